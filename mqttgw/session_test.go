// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// keep asks for a session that outlives the connection.
func keep(p *packet.Connect) {
	p.CleanStart = false
	if p.Version == packet.V5 {
		p.Properties = p.Properties.AppendInt(packet.SessionExpiry, 3600)
	}
}

func (s *server) resume(v packet.Version, id string, present bool, with ...func(*packet.Connect)) *client {
	s.t.Helper()
	c, ack := s.tryConnect(v, id, append([]func(*packet.Connect){keep}, with...)...)
	if ack.Code != packet.Success || ack.SessionPresent != present {
		s.t.Fatalf("CONNACK %v with Session Present %v, want %v", ack.Code, ack.SessionPresent, present)
	}
	return c
}

// leave disconnects in good order.
func (c *client) leave() {
	c.t.Helper()
	c.send(&packet.Disconnect{Kind: packet.TypeDisconnect})
	c.drain()
}

// payloads receives n messages and acknowledges them to the end.
func (c *client) payloads(n int) (got []string) {
	c.t.Helper()
	open := 0
	for len(got) < n || open > 0 {
		switch p := c.next().(type) {
		case *packet.Publish:
			got = append(got, string(p.Payload))
			switch p.QoS {
			case 1:
				c.send(&packet.Ack{Kind: packet.TypePuback, PacketID: p.PacketID})
			case 2:
				open++
				c.send(&packet.Ack{Kind: packet.TypePubrec, PacketID: p.PacketID})
			}
		case *packet.Ack:
			if p.Kind != packet.TypePubrel || p.Code != 0 {
				c.t.Fatalf("got %v %v, want PUBREL", p.Kind, p.Code)
			}
			open--
			c.send(&packet.Ack{Kind: packet.TypePubcomp, PacketID: p.PacketID})
		default:
			c.t.Fatalf("got %T after %q, want messages", p, got)
		}
	}
	return got
}

// publish2 publishes with QoS 2 and completes it.
func (c *client) publish2(topic, payload string) {
	c.t.Helper()
	c.send(publish(topic, payload, 2, 88))
	c.ack(packet.TypePubrec, 88, packet.Success)
	c.send(&packet.Ack{Kind: packet.TypePubrel, PacketID: 88})
	c.ack(packet.TypePubcomp, 88, packet.Success)
}

func numbers(n int) (all []string) {
	for k := range n {
		all = append(all, fmt.Sprint(k))
	}
	return all
}

// ways are how a session may come back.
func ways(t *testing.T, f func(t *testing.T, w *world, again func())) {
	t.Helper()
	t.Run("connection lost", func(t *testing.T) { w := newWorld(t); f(t, w, func() {}) })
	t.Run("restart", func(t *testing.T) { w := newWorld(t); f(t, w, w.restart) })
	t.Run("kill", func(t *testing.T) { w := newWorld(t); f(t, w, w.kill) })
}

func TestSessionResumes(t *testing.T) {
	for _, v := range []packet.Version{packet.V311, packet.V5} {
		for qos := byte(1); qos < 3; qos++ {
			t.Run(fmt.Sprintf("v%d qos %d", v, qos), func(t *testing.T) {
				ways(t, func(t *testing.T, w *world, again func()) {
					c := w.now.resume(v, "c", false)
					c.subscribe(qos, "t/+")
					c.leave()
					p := w.now.connect(packet.V5, "p")
					for k := range 100 {
						if qos == 1 {
							p.publish("t/x", fmt.Sprint(k))
						} else {
							p.publish2("t/x", fmt.Sprint(k))
						}
						p.publish("other", "x")
					}
					again()
					c = w.now.resume(v, "c", true)
					if got := c.payloads(100); !slices.Equal(got, numbers(100)) {
						t.Errorf("got %v", got)
					}
					c.nothing()
				})
			})
		}
	}
}

// What was in flight comes again at once, in order, with DUP and its id; ids of the client's own messages are others.
func TestInFlightComesAgain(t *testing.T) {
	versions(t, func(t *testing.T, v packet.Version) {
		ways(t, func(t *testing.T, w *world, again func()) {
			c := w.now.resume(v, "c", false)
			c.subscribe(2, "t")
			p := w.now.connect(packet.V5, "p")
			var ids []uint16
			for k := range 6 {
				if k%2 == 0 {
					p.publish("t", fmt.Sprint(k))
				} else {
					p.publish2("t", fmt.Sprint(k))
				}
				m := recv[*packet.Publish](c)
				if m.Dup {
					t.Fatal("DUP on a first delivery")
				}
				ids = append(ids, m.PacketID)
			}
			// The client's own ids are independent.
			c.send(publish("other", "x", 1, ids[0]), publish("other", "x", 2, ids[1]), &packet.Ack{Kind: packet.TypePubrec, PacketID: ids[3]})
			for seen := map[packet.Type]bool{}; !seen[packet.TypePuback] || !seen[packet.TypePubrec] || !seen[packet.TypePubrel]; {
				seen[recv[*packet.Ack](c).Kind] = true
			}
			w.settled()
			c.Close()
			again()
			c = w.now.resume(v, "c", true)
			for k, id := range ids {
				if k == 3 {
					c.ack(packet.TypePubrel, id, packet.Success)
					continue
				}
				m := recv[*packet.Publish](c)
				if string(m.Payload) != fmt.Sprint(k) || !m.Dup || m.PacketID != id || m.QoS != byte(1+k%2) {
					t.Errorf("message %d came as %q with id %d, DUP %v, QoS %d; want id %d, DUP", k, m.Payload, m.PacketID, m.Dup, m.QoS, id)
				}
			}
			c.nothing()
		})
	})
}

// settled waits until everything that has changed in sessions so far is written down.
func (w *world) settled() {
	w.t.Helper()
	w.log.mu.Lock()
	n := len(w.log.msgs)
	w.log.mu.Unlock()
	deadline := time.Now().Add(patience)
	for range 2 { // the second flush begins after this call
		for {
			w.log.mu.Lock()
			now := len(w.log.msgs)
			w.log.mu.Unlock()
			if now > n {
				n = now
				break
			}
			if time.Now().After(deadline) {
				w.t.Fatal("sessions are not written down")
			}
			w.now.connect(packet.V5, "tick").publish("tick", "x") // something for the checkpoint to move over
		}
	}
}

func TestCleanStartEndsTheSession(t *testing.T) {
	versions(t, func(t *testing.T, v packet.Version) {
		ways(t, func(t *testing.T, w *world, again func()) {
			c := w.now.resume(v, "c", false)
			c.subscribe(1, "t")
			c.leave()
			w.now.connect(v, "c").leave() // clean
			again()
			c = w.now.resume(v, "c", false)
			w.now.connect(packet.V5, "p").publish("t", "x")
			c.nothing()
		})
	})
}

func TestSessionExpires(t *testing.T) {
	var now atomic.Int64
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		expiry  uint32
		after   time.Duration
		present bool
	}{{10, 9 * time.Second, true}, {10, 10 * time.Second, false}, {0xFFFFFFFF, 1000 * 24 * time.Hour, true}, {0, 0, false}} {
		for name, how := range map[string]func(*world){"connection lost": func(*world) {}, "kill": (*world).kill} {
			t.Run(fmt.Sprintf("%d %v %s", tt.expiry, tt.after, name), func(t *testing.T) {
				now.Store(0)
				w := newWorld(t, func(o *mqttgw.Options) { o.Now = func() time.Time { return begin.Add(time.Duration(now.Load())) } })
				expiry := props(packet.Properties(nil).AppendInt(packet.SessionExpiry, tt.expiry))
				c := w.now.connect(packet.V5, "c", expiry)
				c.subscribe(1, "t")
				c.leave()
				how(w)
				p := w.now.connect(packet.V5, "p")
				now.Store(int64(tt.after))
				c, ack := w.now.tryConnect(packet.V5, "c", expiry, func(p *packet.Connect) { p.CleanStart = false })
				if ack.SessionPresent != tt.present {
					t.Errorf("Session Present %v, want %v", ack.SessionPresent, tt.present)
				}
				p.publish("t", "x")
				if tt.present {
					c.message()
				}
				c.nothing()
			})
		}
	}
}

func TestSessionExpiryInDisconnect(t *testing.T) {
	for _, tt := range []struct{ connect, disconnect, want uint32 }{{100, 0, 0}, {100, 0xFFFFFFFF, 1}, {100, 5, 1}} {
		w := newWorld(t)
		c := w.now.connect(packet.V5, "c", props(packet.Properties(nil).AppendInt(packet.SessionExpiry, tt.connect)))
		c.send(&packet.Disconnect{Kind: packet.TypeDisconnect, Properties: packet.Properties(nil).AppendInt(packet.SessionExpiry, tt.disconnect)})
		c.drain()
		w.kill()
		w.now.resume(packet.V5, "c", tt.want == 1)
	}
}

// A QoS 2 message of the client is stored once, whenever the process is killed, and its id is free only after PUBREL.
func TestQoS2AcrossKills(t *testing.T) {
	versions(t, func(t *testing.T, v packet.Version) {
		for kills := range 12 {
			w := newWorld(t)
			c := w.now.resume(v, "c", false)
			w.arm(kills)
			stage, dup := packet.TypePublish, false
			for again := 0; stage != packet.TypePubcomp; again++ {
				if stage == packet.TypePublish {
					p := publish("t", "x", 2, 7)
					p.Dup = dup
					c.send(p)
				} else {
					c.send(&packet.Ack{Kind: packet.TypePubrel, PacketID: 7})
				}
				if a, ok := w.next(c).(*packet.Ack); ok {
					if stage = packet.TypePubrel; a.Kind == packet.TypePubcomp {
						stage = packet.TypePubcomp
					}
					continue
				}
				w.kill()
				c = w.now.resume(v, "c", true)
				if dup = true; again == 0 {
					w.arm(kills / 2) // and once more
				}
			}
			w.arm(-1)
			c.send(publish("t", "y", 2, 7)) // another message with the id
			c.ack(packet.TypePubrec, 7, packet.Success)
			var got []string
			for _, r := range w.bus.records() {
				got = append(got, string(r.Event.Data))
			}
			if !slices.Equal(got, []string{"x", "y"}) {
				t.Errorf("killed after %d commits: stored %q", kills, got)
			}
		}
	})
}

// next returns the next packet, or nil when the connection or the process has ended.
func (w *world) next(c *client) packet.Packet {
	got := make(chan packet.Packet, 1)
	go func() {
		first, body, err := c.in.Next(1 << 24)
		if err != nil {
			got <- nil
			return
		}
		p, err := packet.Decode(first, slices.Clone(body), c.v)
		if err != nil {
			w.t.Errorf("server sent %02x %x: %v", first, body, err)
		}
		got <- p
	}()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case p := <-got:
		return p
	case <-w.killed:
		c.Close()
		<-got
		return nil
	case <-timeout.C:
		w.t.Fatal("nothing from the server in time")
		return nil
	}
}

func TestSessionLimit(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	w := newWorld(t, func(o *mqttgw.Options) { o.Limits.MaxSessions, o.Registerer = 2, reg })
	w.now.resume(packet.V5, "a", false)
	w.now.resume(packet.V311, "b", false)
	if _, ack := w.now.tryConnect(packet.V5, "c", keep); ack.Code != packet.QuotaExceeded {
		t.Errorf("a third session: CONNACK %v, want 0x97", ack.Code)
	}
	w.now.connect(packet.V5, "c")
	w.now.resume(packet.V5, "a", true)
	if got := metric(t, reg, "rialto_mqtt_sessions"); got != 2 {
		t.Errorf("%v sessions, want 2", got)
	}
}

func TestSessionsThatCannotBeWrittenDown(t *testing.T) {
	t.Run("claim", func(t *testing.T) {
		w := newWorld(t)
		w.own.fail = fault.New(fault.Unavailable, "away")
		if _, ack := w.now.tryConnect(packet.V5, "c", keep); ack.Code != packet.ServerUnavailable {
			t.Errorf("CONNACK %v, want 0x88", ack.Code)
		}
		w.now.connect(packet.V5, "c").publish("t", "x")
	})
	t.Run("log closed", func(t *testing.T) {
		w := newWorld(t)
		c := w.now.connect(packet.V5, "clean")
		w.log.set(func() { w.log.fail = fault.New(fault.Invalid, "broken") })
		if _, ack := w.now.tryConnect(packet.V5, "c", keep); ack.Code != packet.ServerUnavailable {
			t.Errorf("CONNACK %v, want 0x88", ack.Code)
		}
		c.publish("t", "QoS 1 goes on")
		w.log.set(func() { w.log.fail = nil })
	})
}

// A claim is one per process, not per connection, and is given back with the session.
func TestClaims(t *testing.T) {
	w := newWorld(t)
	c := w.now.resume(packet.V311, "c", false)
	c.leave()
	w.now.resume(packet.V311, "c", true)
	if w.own.revision != 1 {
		t.Errorf("%d claims, want 1", w.own.revision)
	}
	w.kill()
	w.now.resume(packet.V311, "c", true)
	if w.own.revision != 2 {
		t.Errorf("%d claims after a kill, want 2", w.own.revision)
	}
	w.now.connect(packet.V311, "c") // clean
	deadline := time.Now().Add(patience)
	for {
		w.own.mu.Lock()
		n := len(w.own.claims)
		w.own.mu.Unlock()
		if n == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d claims are left", n)
		}
		w.now.connect(packet.V311, "other")
	}
}

// Retention that overtakes an away session is said: Session Present 0, and an event.
func TestGap(t *testing.T) {
	ways(t, func(t *testing.T, w *world, again func()) {
		c, idle := w.now.resume(packet.V5, "c", false), w.now.resume(packet.V5, "idle", false)
		c.subscribe(1, "t")
		idle.subscribe(1, "never")
		c.leave()
		idle.leave()
		p := w.now.connect(packet.V5, "p")
		for k := range 10 {
			p.publish("t", fmt.Sprint(k))
		}
		w.settled()
		again()
		w.bus.set(func() { w.bus.trimmed = 5 })
		w.now.resume(packet.V5, "c", false)
		w.now.resume(packet.V5, "idle", true) // nothing was for it
		events := w.bus.records()
		last := events[len(events)-1]
		if last.Event.Type != mqttgw.EventGap || last.Event.Subject != "c" || !strings.Contains(string(last.Event.Data), `"clientId":"c"`) {
			t.Errorf("last event %+v, want a gap", last.Event)
		}
	})
}

// withoutFleet is a gateway that does not find the bus fleet if it is gone.
func withoutFleet(gone *bool) setup {
	return func(o *mqttgw.Options) {
		tails := o.Tails
		o.Tails = func(bus string) (mqttgw.Tail, error) {
			if *gone && bus == "fleet" {
				return nil, fault.New(fault.NotFound, "no bus %q", bus)
			}
			return tails(bus)
		}
	}
}

// gaps are the events about gaps: who missed something, and what.
func (w *world) gaps() (all []string) {
	for _, rec := range w.bus.records() {
		if rec.Event.Type == mqttgw.EventGap {
			all = append(all, rec.Event.Subject+" "+string(rec.Event.Data))
		}
	}
	return all
}

// Retention that overtakes the tail itself is said, for everybody.
func TestGapOfEverybody(t *testing.T) {
	w := newWorld(t)
	c, p := w.now.connect(packet.V5, "c"), w.now.connect(packet.V5, "p")
	c.subscribe(1, "t")
	w.bus.set(func() { w.bus.still = true })
	for i := range 3 {
		p.publish("t", fmt.Sprint(i))
	}
	w.bus.set(func() { w.bus.trimmed, w.bus.still = 2, false })
	if got := c.payloads(1); got[0] != "2" {
		t.Errorf("got %q", got)
	}
	if gaps := w.gaps(); len(gaps) != 1 || !strings.HasPrefix(gaps[0], "# ") || !strings.Contains(gaps[0], `"from":1,`) || !strings.Contains(gaps[0], `"to":2}`) {
		t.Errorf("said are %q", gaps)
	}
}

// A bus that a start does not find is a gap for those who were waiting for its messages, also after another start; if it is there
// again before they are, nothing is lost.
func TestGapOfABusThatIsGone(t *testing.T) {
	for _, c := range []struct {
		starts  int  // without the bus
		flying  bool // one message was sent, and is not acknowledged
		back    bool
		present bool
	}{{1, false, false, false}, {1, true, false, false}, {2, false, false, false}, {2, false, true, true}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			gone := false
			w := newWorld(t, withoutFleet(&gone))
			if err := w.remap("f/#"); err != nil {
				t.Fatal(err)
			}
			cl, idle := w.now.resume(packet.V5, "c", false), w.now.resume(packet.V5, "idle", false)
			cl.subscribe(1, "f/#", "t")
			idle.subscribe(1, "t")
			idle.leave()
			p := w.now.connect(packet.V5, "p")
			if c.flying {
				p.publish("f/1", "x")
				recv[*packet.Publish](cl)
			}
			cl.leave()
			for k := range 3 {
				if !c.flying {
					p.publish("f/1", fmt.Sprint(k))
				}
			}
			w.settled()
			gone = true
			for range c.starts {
				w.restart()
				w.now.connect(packet.V5, "p").publish("t", "x") // which is written down for both
				w.settled()
			}
			if c.back {
				gone = false
				w.restart()
			}
			cl = w.now.resume(packet.V5, "c", c.present)
			w.now.resume(packet.V5, "idle", true)
			gaps := w.gaps()
			if c.present {
				if got := cl.payloads(5); len(gaps) > 0 || len(got) != 5 {
					t.Errorf("got %v, gaps %v", got, gaps)
				}
				return
			}
			if len(gaps) != 1 || !strings.HasPrefix(gaps[0], "c ") || !strings.Contains(gaps[0], `"bus":"fleet"`) || !strings.Contains(gaps[0], `"from":2,`) {
				t.Errorf("gaps %v", gaps)
			}
		})
	}
}

// What was in flight with QoS 2 when a bus was gone for a start comes once if the bus is back before the client.
func TestExactlyOnceThoughABusWasGone(t *testing.T) {
	for starts := range 3 {
		t.Run(fmt.Sprint("starts ", starts), func(t *testing.T) {
			gone := false
			w := newWorld(t, withoutFleet(&gone))
			w.move("f/#")
			c, p := w.now.resume(packet.V5, "c", false), w.now.connect(packet.V5, "p")
			c.subscribe(2, "f/#")
			for i := range 3 {
				p.send(publish("f/1", fmt.Sprint(i), 2, uint16(i+1)))
				p.ack(packet.TypePubrec, uint16(i+1), packet.Success)
			}
			first, second, third := recv[*packet.Publish](c), recv[*packet.Publish](c), recv[*packet.Publish](c)
			c.send(&packet.Ack{Kind: packet.TypePubrec, PacketID: second.PacketID})
			c.ack(packet.TypePubrel, second.PacketID, packet.Success)
			c.send(&packet.Ack{Kind: packet.TypePubrec, PacketID: third.PacketID})
			c.ack(packet.TypePubrel, third.PacketID, packet.Success)
			c.send(&packet.Ack{Kind: packet.TypePubcomp, PacketID: third.PacketID})
			c.nothing()
			w.settled()
			gone = starts > 0
			w.kill() // so that the session is written down anew
			for range starts {
				w.settled()
				w.restart()
			}
			w.now.connect(packet.V5, "p") // so it has started
			gone = false
			w.restart()
			c = w.now.resume(packet.V5, "c", true)
			if m := recv[*packet.Publish](c); !m.Dup || m.PacketID != first.PacketID || string(m.Payload) != "0" {
				t.Errorf("got %q with id %d and DUP %v, want the first again", m.Payload, m.PacketID, m.Dup)
			}
			c.ack(packet.TypePubrel, second.PacketID, packet.Success)
			c.nothing()
		})
	}
}

// The sessions are written anew from time to time, and what came before is trimmed.
func TestSessionsAreCompacted(t *testing.T) {
	w := newWorld(t)
	c := w.now.resume(packet.V5, "c", false)
	c.subscribe(1, "t", "$share/g/s")
	long := w.now.resume(packet.V5, "long", false)
	w.now.connect(packet.V311, "mortal", func(p *packet.Connect) { p.Will = &packet.Will{Topic: []byte("gone")} })
	filters := &packet.Subscribe{PacketID: 1}
	for k := range 60 {
		filters.Filters = append(filters.Filters, packet.Subscription{Filter: []byte(strings.Repeat("x", 1000) + fmt.Sprint(k))})
	}
	deadline := time.Now().Add(patience)
	for k := 0; ; k++ {
		w.log.mu.Lock()
		trimmed := w.log.trimmed
		w.log.mu.Unlock()
		if trimmed > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing is trimmed")
		}
		filters.Filters[0].NoLocal = k%2 == 0 // a change
		long.send(filters)
		recv[*packet.Suback](long)
	}
	before := w.bus.count()
	w.kill()
	c = w.now.resume(packet.V5, "c", true)
	w.now.resume(packet.V5, "long", true)
	if got := w.bus.count() - before; got != 1 {
		t.Errorf("%d wills after the kill, want 1", got)
	}
	p := w.now.connect(packet.V5, "p")
	p.publish("t", "x")
	p.publish("s", "y")
	if got := c.payloads(2); !slices.Equal(got, []string{"x", "y"}) {
		t.Errorf("got %q", got)
	}
}

// A message that expires while the session is away does not come at its return, and one that does not says how long it has left.
func TestMessageExpiryWhileAway(t *testing.T) {
	for name, again := range map[string]func(*world){"connection lost": func(*world) {}, "restart": (*world).restart, "kill": (*world).kill} {
		t.Run(name, func(t *testing.T) {
			var now atomic.Int64
			begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			w := newWorld(t, func(o *mqttgw.Options) { o.Now = func() time.Time { return begin.Add(time.Duration(now.Load())) } })
			c := w.now.resume(packet.V5, "c", false)
			c.subscribe(1, "t")
			c.leave()
			p := w.now.connect(packet.V5, "p")
			for i, seconds := range []uint32{1, 100} {
				m := publish("t", fmt.Sprint(seconds), 1, uint16(i+1))
				m.Properties = m.Properties.AppendInt(packet.MessageExpiry, seconds)
				p.send(m)
				p.ack(packet.TypePuback, m.PacketID, packet.Success)
			}
			again(w)
			now.Store(int64(3 * time.Second))
			c = w.now.resume(packet.V5, "c", true)
			if m := c.message(); string(m.Payload) != "100" || m.Properties.Int(packet.MessageExpiry, 0) != 97 {
				t.Errorf("got %q with %d s left, want 100 with 97", m.Payload, m.Properties.Int(packet.MessageExpiry, 0))
			}
			c.nothing()
		})
	}
}
