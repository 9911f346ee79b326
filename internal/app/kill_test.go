// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	mqtt5 "github.com/eclipse/paho.golang/paho"
	mqtt3 "github.com/eclipse/paho.mqtt.golang"
)

// acknowledged collects what the bridge has taken responsibility for.
type acknowledged struct {
	mu     sync.Mutex // guards all below
	bodies []string
	ids    []string // of HTTP events
}

func (a *acknowledged) add(body, id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bodies = append(a.bodies, body)
	if id != "" {
		a.ids = append(a.ids, id)
	}
}

// TestKillLosesNothing publishes over HTTP and MQTT as fast as a few clients can, kills the process at random moments,
// ten times, and looks whether everything that was acknowledged is in the log, was delivered, and is accounted for.
func TestKillLosesNothing(t *testing.T) {
	const rounds = 10
	dir := t.TempDir()
	rnd := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	var acked acknowledged
	failing := func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		if rand.IntN(20) == 0 { // some retries are always under way
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}
	sink := newSink(t, failing)
	for round := range rounds {
		s, cmd := spawn(t, dir)
		if round == 0 {
			s.target("sink", sink.URL, `{"concurrency":16,"retry":{"schedule":["50ms"],"maxAttempts":100}}`)
			s.rule("default", "all", `{"type":["reading"]}`, "sink")
			s.rule("devices", "all", `{"type":["reading","io.rialto.mqtt.publish"]}`, "sink")
			untilRouted(t, s, sink, "default", "devices")
		}
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				publishHTTP(ctx, s, &acked, fmt.Sprintf("h%d-%d", round, w))
			}()
		}
		for name, publish := range map[string]func(context.Context, *server, *acknowledged, string){"three": publishMQTT3, "five": publishMQTT5} {
			wg.Add(1)
			go func() {
				defer wg.Done()
				publish(ctx, s, &acked, fmt.Sprintf("%s-%d", name, round))
			}()
		}
		timer := time.NewTimer(time.Duration(100+rnd.IntN(700)) * time.Millisecond)
		<-timer.C
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		cancel()
		wg.Wait()
		cmd.Wait() // killed: the error is known
	}

	s, _ := spawn(t, dir)
	before := time.Now()
	eventually(t, time.Minute, func() (string, bool) {
		missing := sink.missing(acked.bodies)
		return fmt.Sprintf("%d of %d acknowledged events were not delivered, such as %q", len(missing), len(acked.bodies), first(missing)), len(missing) == 0
	})
	apps, devices := s.settled("default", time.Minute), s.settled("devices", time.Minute)
	for _, id := range acked.ids {
		if s.event("default", id) == nil {
			t.Errorf("acknowledged event %s is not in the log", id)
		}
	}
	duplicates := 0
	sink.mu.Lock()
	for _, n := range sink.seen {
		duplicates += n - 1
	}
	sink.mu.Unlock()
	t.Logf("%d acknowledged (%d over HTTP) in %d lives, all delivered %v after the last start; stored %d + %d, repeated requests %d",
		len(acked.bodies), len(acked.ids), rounds, time.Since(before).Round(time.Millisecond), apps.Events.Accepted, devices.Events.Accepted, duplicates)
	if n := apps.Events.Accepted + devices.Events.Accepted; n < uint64(len(acked.bodies)) {
		t.Errorf("the ledger knows of %d events, and %d were acknowledged", n, len(acked.bodies))
	}
}

// untilRouted waits until the rules that send readings to the sink are in force.
func untilRouted(t *testing.T, s *server, to *sink, buses ...string) {
	t.Helper()
	for _, bus := range buses {
		eventually(t, 10*time.Second, func() (string, bool) {
			body := fmt.Sprintf(`{"probe":%q}`, bus)
			s.publish(bus, fmt.Sprint("probe", time.Now().UnixNano()), "reading", body)
			return "the rule of " + bus + " is not in force", len(to.missing([]string{body})) == 0
		})
	}
}

func first(s []string) string {
	if len(s) == 0 {
		return ""
	}
	return s[0]
}

// publishHTTP sends one event after the other until the server is gone.
func publishHTTP(ctx context.Context, s *server, acked *acknowledged, prefix string) {
	for i := 0; ctx.Err() == nil; i++ {
		id := fmt.Sprintf("%s-%d", prefix, i)
		body := fmt.Sprintf(`{"mark":%q}`, id)
		switch status := s.publish("default", id, "reading", body); status {
		case http.StatusAccepted:
			acked.add(body, id)
		case 0:
			return
		default:
			s.t.Errorf("publish: status %d", status)
			return
		}
	}
}

// publishMQTT3 keeps many QoS 1 publishes under way over MQTT 3.1.1.
func publishMQTT3(ctx context.Context, s *server, acked *acknowledged, name string) {
	c := mqtt3.NewClient(mqtt3.NewClientOptions().AddBroker("tcp://" + s.mqtt).SetClientID(name).SetAutoReconnect(false).
		SetConnectTimeout(5 * time.Second).SetProtocolVersion(4))
	if tok := c.Connect(); !tok.WaitTimeout(5*time.Second) || tok.Error() != nil {
		return // killed first
	}
	defer c.Disconnect(0)
	type sent struct {
		mqtt3.Token
		body string
	}
	window := make(chan sent, 64)
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		for m := range window {
			select {
			case <-m.Done():
				if m.Error() == nil {
					acked.add(m.body, "")
				}
			case <-ctx.Done():
			}
		}
	}()
	for i := 0; ctx.Err() == nil && c.IsConnectionOpen(); i++ {
		body := fmt.Sprintf(`{"mark":"%s-%d"}`, name, i)
		window <- sent{c.Publish("test/"+name, 1, false, body), body}
	}
	close(window)
	wg.Wait()
}

// publishMQTT5 does the same over MQTT 5.
func publishMQTT5(ctx context.Context, s *server, acked *acknowledged, name string) {
	nc, err := net.Dial("tcp", s.mqtt)
	if err != nil {
		return
	}
	defer nc.Close()
	c := mqtt5.NewClient(mqtt5.ClientConfig{Conn: nc, PacketTimeout: 5 * time.Second})
	if _, err := c.Connect(ctx, &mqtt5.Connect{ClientID: name, CleanStart: true, KeepAlive: 30}); err != nil {
		return
	}
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := 0; ctx.Err() == nil; i++ {
				body := fmt.Sprintf(`{"mark":"%s-%d-%d"}`, name, w, i)
				res, err := c.Publish(ctx, &mqtt5.Publish{Topic: "test/" + name, QoS: 1, Payload: []byte(body)})
				if err != nil {
					return
				}
				if res.ReasonCode < 0x80 {
					acked.add(body, "")
				}
			}
		}()
	}
	wg.Wait()
}
