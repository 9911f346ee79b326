// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// outage is how many messages wait for a device that was away: small, or RIALTO_OUTAGE.
func outage(t *testing.T, small int) int {
	t.Helper()
	s := os.Getenv("RIALTO_OUTAGE")
	if s == "" {
		return small
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// onLog serves a gateway on a real log.
func onLog(t *testing.T) (*server, *eventlog.Bus) {
	t.Helper()
	log := openLog(t, t.TempDir(), 0)
	bus, err := log.Bus(t.Context(), eventlog.BusConfig{Name: "devices"})
	if err != nil {
		t.Fatal(err)
	}
	sessions, err := log.Stream(t.Context(), eventlog.StreamConfig{Name: "SESSIONS", Subjects: []string{mqttgw.SessionSubject}})
	if err != nil {
		t.Fatal(err)
	}
	maps := mqttgw.NewMappings()
	if err := maps.Set(t.Context(), 1, downMappings(t)); err != nil {
		t.Fatal(err)
	}
	return start(t, func(o *mqttgw.Options) {
		o.Publisher, o.Tail, o.Sessions, o.Mappings, o.Down = busPublisher{bus}, bus, sessions, maps, downOn(t, log, mqttgw.DownlinkOptions{})
	}), bus
}

// store has messages of 256 bytes stored under a topic, as if a device had published them.
func store(t *testing.T, bus *eventlog.Bus, topic string, n int) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Add(n)
	for i := range n {
		data := append(fmt.Appendf(nil, "%d ", i), strings.Repeat("x", 250)...)
		rec := &event.Record{Event: event.Event{ID: event.NewID(), Source: "mqtt://gw/p", Type: "t", Data: data}, Received: time.Now(), Minted: true,
			MQTT: &event.Origin{Topic: topic, QoS: 1, Version: 5}}
		if err := bus.Append(t.Context(), rec, func(r eventlog.Receipt) {
			if r.Err != nil {
				t.Error(r.Err)
			}
			wg.Done()
		}); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
}

// p99 publishes one message after the other and returns how long the slowest in a hundred took from its PUBLISH to its
// subscriber.
func p99(pub, sub *client, n int) time.Duration {
	took := make([]time.Duration, n)
	for i := range took {
		begin := time.Now()
		pub.publish("b/t", "x")
		sub.message()
		took[i] = time.Since(begin)
	}
	slices.Sort(took)
	return took[n*99/100]
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

// A device for which 100 000 messages wait (RIALTO_OUTAGE sets another number), and that takes them slowly, does not make the
// messages of another one late.
func TestGateSlowDeviceDelaysNobody(t *testing.T) {
	s, bus := onLog(t)
	a := s.resume(packet.V5, "a", false, receiving(20))
	a.subscribe(1, "a/#")
	a.leave()
	store(t, bus, "a/t", outage(t, 100_000))
	b, pub := s.connect(packet.V5, "b"), s.connect(packet.V5, "p")
	b.subscribe(1, "b/#")
	p99(pub, b, 100) // warms up
	var alone, beside []time.Duration
	for range 5 {
		alone = append(alone, p99(pub, b, 300))
		a = s.resume(packet.V5, "a", true, receiving(20))
		done, ended := make(chan struct{}), make(chan struct{})
		go func() { // acknowledges a message in two milliseconds
			defer close(ended)
			tick := time.NewTicker(2 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-done:
					return
				case <-tick.C:
					a.message()
				}
			}
		}()
		beside = append(beside, p99(pub, b, 300))
		close(done)
		<-ended
		a.leave()
	}
	without, with := median(alone), median(beside)
	t.Logf("p99 %v without the slow device, %v with it", without, with)
	if with > max(without*6/5, without+2*time.Millisecond) {
		t.Errorf("p99 %v beside a slow device, %v without", with, without)
	}
}

// After an outage, while 50 000 older messages drain (RIALTO_OUTAGE sets another number), a message to the device and the latest
// message of a topic that asks for it arrive within a second.
func TestGateFreshAfterOutage(t *testing.T) {
	s, bus := onLog(t)
	count := outage(t, 50_000)
	c := s.resume(packet.V5, "c", false)
	c.subscribeOrder("latest-first", 1, "state/#", "cmd/#")
	c.leave()
	store(t, bus, "state/x", count)
	if err := s.gateway.Delivered(t.Context()); err != nil {
		t.Fatal(err)
	}
	pub := s.connect(packet.V5, "p")
	c = s.resume(packet.V5, "c", true)
	begin := time.Now()
	var sent time.Time
	old, next := 0, 0
	took := map[string]time.Duration{}
	for old < count || len(took) < 2 {
		m := c.message()
		switch text, _, _ := strings.Cut(string(m.Payload), " "); {
		case text == "fresh":
			took[string(m.Topic)] = time.Since(sent)
			if old == count {
				t.Errorf("%s came after everything else", m.Topic)
			}
		default:
			n, err := strconv.Atoi(text)
			if err != nil || n != next {
				t.Fatalf("got %q, want %d", text, next)
			}
			old, next = old+1, next+1
			if old == 1000 {
				sent = time.Now()
				pub.publish("cmd/c", "fresh")
				pub.publish("state/x", "fresh")
			}
		}
	}
	t.Logf("fresh messages took %v; %d older ones %v", took, count, time.Since(begin))
	for topic, d := range took {
		if d > time.Second {
			t.Errorf("the message to %s took %v", topic, d)
		}
	}
}
