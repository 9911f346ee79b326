// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// A member that is away holds nothing back.
func TestSharedWithAnAwayMember(t *testing.T) {
	ways(t, func(t *testing.T, w *world, again func()) {
		a, b := w.now.resume(packet.V311, "a", false), w.now.resume(packet.V5, "b", false)
		a.subscribe(1, "$share/g/t")
		b.subscribe(1, "$share/g/t")
		other := w.now.connect(packet.V5, "other")
		other.subscribe(1, "$share/other/t")
		a.leave()
		p := w.now.connect(packet.V5, "p")
		for k := range 20 {
			p.publish("t", fmt.Sprint(k))
		}
		if got := b.payloads(20); !slices.Equal(got, numbers(20)) {
			t.Errorf("the member that is there got %v", got)
		}
		if got := other.payloads(20); !slices.Equal(got, numbers(20)) {
			t.Errorf("the other group got %v", got)
		}
		b.leave()
		// All are away: the group keeps them for whoever comes first.
		for k := range 20 {
			p.publish("t", fmt.Sprint(k))
		}
		w.settled()
		again()
		a = w.now.resume(packet.V311, "a", true)
		if got := a.payloads(20); !slices.Equal(got, numbers(20)) {
			t.Errorf("the first that came back got %v", got)
		}
		b = w.now.resume(packet.V5, "b", true)
		a.nothing()
		b.nothing()
	})
}

// Members take turns, whatever room they have, and each message comes once.
func TestSharedTurns(t *testing.T) {
	w := newWorld(t)
	var members []*client
	for k := range 3 {
		c := w.now.connect(packet.V5, fmt.Sprint("m", k), props(packet.Properties(nil).AppendInt(packet.ReceiveMaximum, 5)))
		c.subscribe(2, "$share/g/t/#")
		members = append(members, c)
	}
	p := w.now.connect(packet.V5, "p")
	for k := range 60 {
		p.publish("t/x", fmt.Sprint(k)) // 15 are in flight, the others wait for room
	}
	seen := map[string]int{}
	var counts [3]int
	for len(seen) < 60 {
		for i, c := range members {
			c.send(&packet.Ping{Kind: packet.TypePingreq})
			for pong := false; !pong; {
				switch m := c.next().(type) {
				case *packet.Ping:
					pong = true
				case *packet.Publish:
					seen[string(m.Payload)]++
					counts[i]++
					c.send(&packet.Ack{Kind: packet.TypePuback, PacketID: m.PacketID})
				}
			}
		}
	}
	for _, c := range members {
		c.nothing()
	}
	for k, n := range seen {
		if n != 1 {
			t.Errorf("message %s came %d times", k, n)
		}
	}
	if slices.Min(counts[:]) < 5 {
		t.Errorf("shares %v", counts)
	}
}

// What a member has not acknowledged when it goes is another's; with QoS 2 it stays its own.
func TestSharedUnacknowledged(t *testing.T) {
	ways(t, func(t *testing.T, w *world, again func()) {
		a, b := w.now.resume(packet.V5, "a", false), w.now.resume(packet.V311, "b", false)
		a.subscribe(2, "$share/g/t")
		p := w.now.connect(packet.V5, "p")
		p.publish("t", "one")
		p.publish2("t", "two")
		one, two := recv[*packet.Publish](a), recv[*packet.Publish](a)
		b.subscribe(2, "$share/g/t")
		w.settled()
		a.Close()
		again()
		b = w.now.resume(packet.V311, "b", true)
		if m := b.message(); string(m.Payload) != string(one.Payload) || m.QoS != 1 {
			t.Errorf("the other member got %q", m.Payload)
		}
		a = w.now.resume(packet.V5, "a", true)
		if m := recv[*packet.Publish](a); m.PacketID != two.PacketID || !m.Dup || string(m.Payload) != "two" {
			t.Errorf("the member got %+v again", m)
		}
		a.nothing()
		b.nothing()
	})
}

// What waits for a group on a bus that a start does not find is a gap too, which is told when a member is there; if the bus is there
// again before one is, nothing is lost.
func TestGapOfAGroupWhoseBusIsGone(t *testing.T) {
	const filter = "$share/g/f/#"
	for name, c := range map[string]struct {
		flying byte // a message with this QoS was sent, and is not acknowledged; 0 = three with QoS 1 wait
		starts int  // without the bus
		back   bool // it is there again
		own    bool // the member waits for the messages itself as well, so that its session, and the group with it, ends
	}{
		"waiting": {0, 1, false, false}, "two starts": {0, 2, false, false}, "sent with QoS 1": {1, 1, false, false},
		"sent with QoS 1, two starts": {1, 2, false, false}, "sent with QoS 2": {2, 1, false, false}, "the last member ends": {0, 1, false, true},
		"back": {0, 2, true, false}, "sent with QoS 1, back": {1, 2, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			gone := false
			w := newWorld(t, withoutFleet(&gone))
			if err := w.remap("f/#"); err != nil {
				t.Fatal(err)
			}
			member := w.now.resume(packet.V5, "m", false)
			member.subscribe(2, filter)
			if c.own {
				member.subscribe(1, "f/#")
			}
			p := w.now.connect(packet.V5, "p")
			want := numbers(3)
			switch c.flying {
			case 1:
				p.publish("f/1", "x")
				want = []string{string(recv[*packet.Publish](member).Payload)}
			case 2:
				p.publish2("f/1", "x")
				recv[*packet.Publish](member)
			}
			member.leave()
			for k := range 3 {
				if c.flying == 0 {
					p.publish("f/1", fmt.Sprint(k))
				}
			}
			w.settled()
			gone = true
			for range c.starts {
				w.restart()
				w.now.connect(packet.V5, "p").publish("t", "x")
				w.settled()
			}
			if gaps := w.gaps(); len(gaps) > 0 {
				t.Fatalf("told before a member is there: %q", gaps)
			}
			gone = !c.back
			w.restart()
			member = w.now.resume(packet.V5, "m", !c.own)
			if c.back {
				if got := member.payloads(len(want)); !slices.Equal(got, want) || len(w.gaps()) > 0 {
					t.Errorf("got %q, gaps %q, want %q", got, w.gaps(), want)
				}
				return
			}
			told := func() (of []string) {
				for _, gap := range w.gaps() {
					if strings.HasPrefix(gap, filter+" ") {
						of = append(of, gap)
					}
				}
				return of
			}
			eventually(t, "the gap is told", func() bool { return len(told()) > 0 })
			w.settled()
			w.restart()
			member = w.now.resume(packet.V5, "m", true)
			if c.flying == 2 {
				recv[*packet.Ack](member) // PUBREL, since it may know the packet id
			}
			member.subscribe(2, filter)
			w.now.connect(packet.V5, "p").publish("f/1", "later") // nowhere, or to the bus that is there
			w.settled()
			if gaps := told(); len(gaps) != 1 || !strings.Contains(gaps[0], `"bus":"fleet"`) || !strings.Contains(gaps[0], `"from":2,`) || !strings.Contains(gaps[0], `"subscriber":"`+filter+`"`) {
				t.Errorf("gaps %q", gaps)
			}
		})
	}
}

// A group ends with its last member: what comes then is nobody's.
func TestSharedGroupEnds(t *testing.T) {
	w := newWorld(t)
	a := w.now.resume(packet.V5, "a", false)
	a.subscribe(1, "$share/g/t")
	p := w.now.connect(packet.V5, "p")
	a.send(&packet.Unsubscribe{PacketID: 1, Filters: [][]byte{[]byte("$share/g/t")}})
	recv[*packet.Suback](a)
	p.publish("t", "nobody's")
	w.settled()
	w.kill()
	a = w.now.resume(packet.V5, "a", true)
	a.subscribe(1, "$share/g/t")
	a.subscribe(1, "$share/g/t") // again replaces
	w.now.connect(packet.V5, "p").publish("t", "mine")
	if got := a.payloads(1); got[0] != "mine" {
		t.Errorf("got %q", got)
	}
	a.nothing()
}

// A group whose members had no sessions that a crash leaves is gone with them, and begins anew with its next member.
func TestSharedGroupWithoutMembersAfterAKill(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	w := newWorld(t)
	w.now.connect(packet.V5, "mortal").subscribe(1, "$share/g/t")
	w.settled()
	w.with = append(w.with, func(o *mqttgw.Options) { o.Registerer = reg })
	w.kill()
	p := w.now.connect(packet.V5, "p")
	p.publish("t", "nobody's")
	a := w.now.resume(packet.V5, "a", false)
	a.subscribe(1, "$share/g/t")
	p.publish("t", "mine")
	if m := a.message(); string(m.Payload) != "mine" {
		t.Errorf("got %q", m.Payload)
	}
	if n := metric(t, reg, "rialto_mqtt_panics_total"); n != 0 {
		t.Errorf("%v programming errors", n)
	}
}

// A QoS 2 message that a member has got is nobody else's after a kill, also in a group that is new, and if nothing of the member is left.
func TestSharedQoS2AcrossAKill(t *testing.T) {
	for name, kept := range map[string]bool{"kept session": true, "session that ends": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(o *mqttgw.Options) { o.Limits.ProgressEvery = time.Hour }) // what is not written down at once never is
			b := w.now.resume(packet.V5, "b", false)
			b.subscribe(2, "$share/g/t")
			b.leave()
			a := w.now.connect(packet.V5, "a", func(p *packet.Connect) {
				if kept {
					keep(p)
				}
			})
			a.subscribe(2, "$share/g/t")
			w.now.connect(packet.V5, "p").publish2("t", "x")
			if got := a.payloads(1); got[0] != "x" {
				t.Errorf("got %q", got)
			}
			w.kill()
			w.now.resume(packet.V5, "b", true).nothing()
			a = w.now.resume(packet.V5, "a", kept)
			if kept {
				recv[*packet.Ack](a) // PUBREL again: that it was finished was not written down
			}
			a.nothing()
		})
	}
}

// A shared and an ordinary subscription of one client are two.
func TestSharedBesideOrdinary(t *testing.T) {
	w := newWorld(t)
	c := w.now.connect(packet.V5, "c")
	c.ask(packet.Subscription{Filter: []byte("$share/g/t"), QoS: 1}, packet.Properties(nil).AppendInt(packet.SubscriptionID, 1))
	c.ask(packet.Subscription{Filter: []byte("t"), QoS: 1}, packet.Properties(nil).AppendInt(packet.SubscriptionID, 2))
	w.now.connect(packet.V5, "p").publish("t", "x")
	ids := []uint32{c.message().Properties.Int(packet.SubscriptionID, 0), c.message().Properties.Int(packet.SubscriptionID, 0)}
	slices.Sort(ids)
	if !slices.Equal(ids, []uint32{1, 2}) {
		t.Errorf("subscription identifiers %v", ids)
	}
	c.nothing()
}

// A member that gets room in the moment in which a message finds none gets that message, and the group goes on.
func TestRoomThatComesWhileAMessageFindsNone(t *testing.T) {
	s := start(t)
	c := s.connect(packet.V5, "c", func(p *packet.Connect) { p.Properties = p.Properties.AppendInt(packet.ReceiveMaximum, 1) })
	c.subscribe(1, "$share/g/t")
	put := func(k int) {
		rec := &event.Record{Event: event.Event{ID: fmt.Sprint(k), Data: fmt.Append(nil, k)}, MQTT: &event.Origin{Topic: "t", QoS: 1}, Minted: true}
		if err := s.bus.Publish(t.Context(), "devices", rec, func(error) {}); err != nil {
			t.Error(err)
		}
	}
	put(0)
	for k := range 20_000 {
		m := recv[*packet.Publish](c)
		if string(m.Payload) != fmt.Sprint(k) {
			t.Fatalf("got %s, want %d", m.Payload, k)
		}
		put(k + 1) // while the one before is acknowledged
		c.send(&packet.Ack{Kind: packet.TypePuback, PacketID: m.PacketID})
	}
}
