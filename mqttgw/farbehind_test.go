// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// While few are far behind only what they are subscribed to is read, also when others get on in the middle: each gets all
// of its own, in order.
func TestFewReadWhatTheyWant(t *testing.T) {
	const topics, each = 200, 20
	bus := &coldBus{memoryBus: newMemoryBus()}
	bus.cold = true
	s := start(t, func(o *mqttgw.Options) {
		o.Publisher, o.Tail, o.Sessions, o.Limits.MaxInFlight, o.Limits.MaxWaiting = bus, bus, &memoryLog{}, 3, 1
	})
	devices := []int{3, 50, 51, 120, 199}
	name := func(k int) string { return fmt.Sprintf("d%03d", k) }
	for _, k := range devices {
		c := s.resume(packet.V5, name(k), false)
		c.subscribe(1, name(k)+"/+")
		c.leave()
	}
	p := s.connect(packet.V5, "p")
	for n := range each {
		for k := range topics {
			p.publish(name(k)+"/cmd", fmt.Sprint(n))
		}
	}
	bus.reads.Store(0)
	take := func(c *client, most int) (got []string) {
		for len(got) < most {
			m, ok := c.next().(*packet.Publish)
			if !ok {
				return append(got, "the end")
			}
			got = append(got, string(m.Payload))
			c.raw((&packet.Ack{Kind: packet.TypePuback, PacketID: m.PacketID}).Append(nil, packet.V5))
		}
		return got
	}
	first := s.resume(packet.V5, name(3), true)
	all := map[int][]string{3: take(first, each/2)}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, k := range devices[1:] {
		c := s.resume(packet.V5, name(k), true)
		wg.Go(func() {
			got := take(c, each)
			mu.Lock()
			defer mu.Unlock()
			all[k] = got
		})
	}
	rest := take(first, each-each/2)
	wg.Wait()
	all[3] = append(all[3], rest...)
	for _, k := range devices {
		if !slices.Equal(all[k], numbers(each)) {
			t.Errorf("%s got %v", name(k), all[k])
		}
	}
	// The reading begins anew when one gets on; a batch has 5 of the 200 topics at most.
	if read := bus.reads.Load(); read > topics*each/2 {
		t.Errorf("%d entries were read for %d messages among %d", read, len(devices)*each, topics*each)
	}
	p.publish(name(3)+"/cmd", "live")
	if m := first.message(); string(m.Payload) != "live" {
		t.Errorf("got %q, want the live one", m.Payload)
	}
}

// A shared group that is far behind is read for by the scan, by its filter; members without room hold up nobody.
func TestASharedGroupThatIsFarBehind(t *testing.T) {
	const messages, others = 60, 40
	bus := &coldBus{memoryBus: newMemoryBus()}
	bus.cold = true
	s := start(t, func(o *mqttgw.Options) {
		o.Publisher, o.Tail, o.Sessions, o.Limits.MaxInFlight, o.Limits.MaxWaiting = bus, bus, &memoryLog{}, 4, 1
	})
	for k := range 2 {
		c := s.resume(packet.V5, fmt.Sprint("m", k), false)
		c.subscribe(1, "$share/g/jobs/+")
		c.leave()
	}
	p := s.connect(packet.V5, "p")
	for n := range messages {
		p.publish("jobs/x", fmt.Sprint(n))
		for range others {
			p.publish("elsewhere", "")
		}
	}
	bus.reads.Store(0)
	slow := s.resume(packet.V5, "m0", true) // takes its window and acknowledges nothing for now
	var held []*packet.Publish
	for range 4 {
		held = append(held, recv[*packet.Publish](slow))
	}
	quick := s.resume(packet.V5, "m1", true)
	seen := map[string]bool{}
	for range messages - len(held) {
		seen[string(quick.message().Payload)] = true
	}
	for _, m := range held {
		seen[string(m.Payload)] = true
		slow.send(&packet.Ack{Kind: packet.TypePuback, PacketID: m.PacketID})
	}
	if len(seen) != messages {
		t.Errorf("%d of %d messages came", len(seen), messages)
	}
	if read := bus.reads.Load(); read > 40*messages { // one by one they were some 70,000
		t.Errorf("%d entries were read for %d messages among %d", read, messages, messages*(others+1))
	}
	p.publish("jobs/x", "live")
	p.publish("jobs/x", "live")
	quick.message()
	slow.message()
}

// dearBus is a coldBus each scan of which reads some megabytes.
type dearBus struct {
	*coldBus
	batch, bytes int
}

func (b dearBus) Scan(ctx context.Context, o eventlog.ScanOptions, dst []eventlog.Entry) ([]eventlog.Entry, uint64, int, error) {
	o.Max = min(o.Max, b.batch)
	dst, next, _, err := b.coldBus.Scan(ctx, o, dst)
	return dst, next, b.bytes, err
}

// What is read for those that are far behind has a rate for the whole node, which what is new does not wait for.
func TestCatchingUpHasARate(t *testing.T) {
	for _, filter := range []string{"t", "$share/g/t"} {
		t.Run(filter, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const messages, perBatch, bytes, perSecond = 100, 4, 4 << 20, 2 << 20
				bus := dearBus{&coldBus{memoryBus: newMemoryBus()}, perBatch, bytes}
				bus.cold = true
				reg := prometheus.NewPedanticRegistry()
				s := startPipes(t, func(o *mqttgw.Options) {
					o.Publisher, o.Tail, o.Sessions, o.Registerer = bus, bus, &memoryLog{}, reg
					o.Limits.MaxWaiting, o.Limits.MaxCatchUp = 1, perSecond
				})
				c := s.resume(packet.V5, "c", false)
				c.subscribe(1, filter)
				c.Close()
				synctest.Wait()
				p := s.connect(packet.V5, "p")
				live := s.connect(packet.V5, "live")
				live.subscribe(1, "t")
				for n := range messages {
					p.publish("t", fmt.Sprint(n))
					live.message()
				}
				begin := time.Now()
				c = s.resume(packet.V5, "c", true)
				for n := range messages {
					if m := c.message(); string(m.Payload) != fmt.Sprint(n) {
						t.Fatalf("got %q, want %d", m.Payload, n)
					}
					if n == messages/2 {
						before := time.Now()
						p.publish("t", "new")
						if m := live.message(); string(m.Payload) != "new" || time.Since(before) > 0 {
							t.Errorf("%q came after %s", m.Payload, time.Since(before))
						}
					}
				}
				read := metric(t, reg, "rialto_mqtt_catch_up_bytes_total")
				if read < messages/perBatch*bytes {
					t.Errorf("%v bytes were read, want at least %d", read, messages/perBatch*bytes)
				}
				least := time.Duration(float64(messages/perBatch*bytes-20<<20) / perSecond * float64(time.Second))
				if took := time.Since(begin); took < least || took > 2*least {
					t.Errorf("it took %s for %v bytes, want about %s", took, read, least)
				}
				for _, cl := range []*client{c, p, live} {
					cl.Close()
				}
				s.stop()
			})
		})
	}
}
