// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// move has topics published to the bus fleet.
func (w *world) move(filters ...string) {
	w.t.Helper()
	if err := w.remap(filters...); err != nil {
		w.t.Fatal(err)
	}
}

// What a mapping sends to another bus reaches subscribers, connected or away, at a restart and after a kill.
func TestSubscribersOfAnotherBus(t *testing.T) {
	versions(t, func(t *testing.T, v packet.Version) {
		w := newWorld(t)
		here, away := w.now.resume(v, "here", false), w.now.resume(v, "away", false)
		here.subscribe(1, "fleet/#", "t")
		away.subscribe(1, "fleet/#", "$share/g/s/#")
		away.leave()
		w.move("fleet/#", "s/#")
		p := w.now.connect(v, "p")
		p.publish("fleet/1", "a")
		p.publish("s/1", "shared")
		if got := here.payloads(1); !slices.Equal(got, []string{"a"}) {
			t.Errorf("got %q", got)
		}
		if len(w.bus2.records()) != 3 { // with the mark of the change
			t.Errorf("%d events on the bus, want 3", len(w.bus2.records()))
		}
		w.kill()
		p = w.now.connect(v, "p")
		p.publish("fleet/2", "b")
		w.restart()
		p = w.now.connect(v, "p")
		p.publish("fleet/3", "c")
		got := w.now.resume(v, "away", true).payloads(4)
		if slices.Sort(got); !slices.Equal(got, []string{"a", "b", "c", "shared"}) {
			t.Errorf("got %q", got)
		}
		if got := w.now.resume(v, "here", true).payloads(2); !slices.Equal(got[len(got)-2:], []string{"b", "c"}) && !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("got %q", got)
		}
	})
}

// A bus is served from its end when the mapping comes into force, also when the process is killed at once.
func TestAnotherBusBeginsAtItsEnd(t *testing.T) {
	w := newWorld(t)
	w.move("fleet/#")
	p := w.now.connect(packet.V5, "p")
	p.publish("fleet/1", "old")
	w.move() // nobody is subscribed: the bus is not served any more, at the latest when the process ends
	w.restart()
	c := w.now.resume(packet.V5, "c", false)
	c.subscribe(1, "fleet/#")
	c.leave()
	w.move("fleet/#")
	p = w.now.connect(packet.V5, "p")
	p.publish("fleet/2", "new")
	w.kill()
	if got := w.now.resume(packet.V5, "c", true).payloads(1); got[0] != "new" {
		t.Errorf("got %q", got)
	}
}

// peeking is a tail that says where it ends after something has happened.
type peeking struct {
	mqttgw.Tail
	first func()
}

func (p peeking) Committed() uint64 {
	p.first()
	return p.Tail.Committed()
}

// A bus is not served before it is known where it begins: a subscription that comes in between gets nothing that is older.
func TestSubscribedWhileAnotherBusBegins(t *testing.T) {
	w := newWorld(t)
	w.bus2.set(func() {
		w.bus2.entries = append(w.bus2.entries, eventlog.Entry{Seq: 1, Record: &event.Record{Event: event.Event{ID: "old"}, MQTT: &event.Origin{Topic: "f/1", QoS: 1}}})
	})
	var c *client
	var asked atomic.Bool
	subscribed := func() {
		if !asked.Swap(true) {
			c = w.now.resume(packet.V5, "c", false)
			c.subscribe(1, "f/#")
			w.settled()
		}
	}
	w.with = []setup{func(o *mqttgw.Options) {
		tails := o.Tails
		o.Tails = func(bus string) (mqttgw.Tail, error) {
			tail, err := tails(bus)
			if bus == "fleet" {
				tail = peeking{tail, subscribed}
			}
			return tail, err
		}
	}}
	w.restart()
	p := w.now.connect(packet.V5, "p") // clients are let in by now
	w.move("f/#")
	p.publish("f/1", "new")
	if got := c.payloads(1); got[0] != "new" {
		t.Errorf("got %q", got)
	}
	c.nothing()
}

// The messages of a topic come in order though it moves from bus to bus, to who is connected, slow, or away.
func TestTopicMoves(t *testing.T) {
	for _, cold := range []bool{false, true} {
		t.Run(fmt.Sprint("cold ", cold), func(t *testing.T) {
			w := newWorld(t)
			w.bus.cold, w.bus2.cold = cold, cold
			var all []*client
			for _, id := range []string{"fast", "slow", "away"} {
				c := w.now.resume(packet.V5, id, false, props(packet.Properties(nil).AppendInt(packet.ReceiveMaximum, 3).AppendInt(packet.SessionExpiry, 1000)))
				c.subscribe(1, "t/#")
				all = append(all, c)
			}
			all[2].leave()
			p := w.now.connect(packet.V5, "p")
			n := 0
			for round := range 6 {
				if round%2 == 0 {
					w.move("t/+")
				} else {
					w.move()
				}
				for range 20 {
					p.publish("t/1", fmt.Sprint(n))
					n++
				}
				if got := all[0].payloads(20); !slices.Equal(got, numbers(n)[n-20:]) {
					t.Fatalf("fast got %q", got)
				}
			}
			if got := all[1].payloads(n); !slices.Equal(got, numbers(n)) {
				t.Errorf("slow got %q", got)
			}
			w.restart()
			if got := w.now.resume(packet.V5, "away", true).payloads(n); !slices.Equal(got, numbers(n)) {
				t.Errorf("away got %q", got)
			}
		})
	}
}

// Who catches up with the bus that a topic has come to does not get ahead of what the tail of the other bus has still to deliver.
func TestTopicMovesFromASlowBus(t *testing.T) {
	for _, cold := range []bool{false, true} {
		t.Run(fmt.Sprint("cold ", cold), func(t *testing.T) {
			w := newWorld(t)
			w.bus2.cold = cold
			w.move("u")
			c, p := w.now.resume(packet.V5, "c", false), w.now.connect(packet.V5, "p")
			c.subscribe(1, "#")
			c.leave()
			p.publish("u", "away")
			w.bus.set(func() { w.bus.still = true })
			p.publish("t", "before")
			w.move("u", "t")
			p.publish("t", "behind")
			c = w.now.resume(packet.V5, "c", true)
			got := c.payloads(1)
			c.nothing()
			w.bus.set(func() { w.bus.still = false })
			if got = append(got, c.payloads(2)...); !slices.Equal(got, []string{"away", "before", "behind"}) {
				t.Errorf("got %q", got)
			}
		})
	}
}

// hookedTail tells when somebody looks at its end.
type hookedTail struct {
	mqttgw.Tail
	look func()
}

func (h *hookedTail) Committed() uint64 {
	n := h.Tail.Committed()
	h.look()
	return n
}

// An event that comes to the bus while a cut is made, and is not a device's, does not take the tail past the cut.
func TestTopicMovesWhileTheBusIsBusy(t *testing.T) {
	look := func() {}
	w := newWorld(t, func(o *mqttgw.Options) {
		tails := o.Tails
		o.Limits.ProgressEvery = time.Hour // nobody but the cut looks at the end
		o.Tails = func(bus string) (mqttgw.Tail, error) {
			tail, err := tails(bus)
			return &hookedTail{tail, func() { look() }}, err
		}
	})
	w.move("u")
	c, p, z := w.now.resume(packet.V5, "c", false), w.now.connect(packet.V5, "p"), w.now.connect(packet.V5, "z")
	c.subscribe(1, "t")
	z.subscribe(0, "z")
	w.bus.set(func() { w.bus.still = true })
	p.publish("t", "before")
	look = sync.OnceFunc(func() {
		rec := &event.Record{Event: event.Event{ID: "1", Source: "x", Type: "y", Data: []byte("z")}, MQTT: &event.Origin{Topic: "z", Version: 5}}
		if err := w.bus2.Publish(context.Background(), "fleet", rec, func(error) {}); err != nil {
			t.Error(err)
		}
		recv[*packet.Publish](z) // the tail is past it
	})
	w.move("u", "t")
	p.publish("t", "behind")
	c.nothing()
	w.bus.set(func() { w.bus.still = false })
	if got := c.payloads(2); !slices.Equal(got, []string{"before", "behind"}) {
		t.Errorf("got %q", got)
	}
}

// Mappings whose cut cannot be written down are not in force: a start would not know which messages came before the change.
func TestMappingsWithoutACut(t *testing.T) {
	w := newWorld(t)
	w.move("u")
	p := w.now.connect(packet.V5, "p")
	w.log.set(func() { w.log.hold = true })
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := w.remapOn(ctx, "u", "t"); err == nil {
		t.Error("a change is in force that is not written down")
	}
	w.log.release()
	p.publish("t", "x")
	if got := w.bus.records(); got[len(got)-1].MQTT == nil {
		t.Error("the message went where mappings say that are not in force")
	}
}

// A bus that is not served any more does not make a session that has everything from it one that has lost something, whenever the
// process is killed.
func TestKilledWhenABusIsNoLongerServed(t *testing.T) {
	w := newWorld(t, func(o *mqttgw.Options) { o.Limits.ProgressEvery = time.Hour })
	w.move("fleet/#")
	c, p := w.now.resume(packet.V5, "c", false), w.now.connect(packet.V5, "p")
	c.subscribe(1, "fleet/#")
	c.leave()
	p.publish("fleet/1", "x")
	c = w.now.resume(packet.V5, "c", true) // it is written down that it lags
	if got := c.payloads(1); got[0] != "x" {
		t.Errorf("got %q", got)
	}
	c.leave()
	eventually(t, "the bus is not served any more", func() bool {
		w.move() // which has it looked whether somebody needs the bus
		return slices.Equal(w.now.gateway.Feeds(), []string{"devices"})
	})
	w.now.resume(packet.V5, "another", false) // which is written down
	w.kill()
	w.now.resume(packet.V5, "c", true)
}

// A bus that is made anew, or comes from a backup, between two processes ends before what sessions and cuts say. It is served from
// where it is, and keeps no other from being served.
func TestBusMadeAnew(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprint("killed ", killed), func(t *testing.T) {
			w := newWorld(t)
			w.move("fleet/#")
			c, p := w.now.resume(packet.V5, "c", false), w.now.connect(packet.V5, "p")
			for range 5 {
				p.publish("fleet/1", "old")
			}
			c.subscribe(1, "#")
			c.leave()
			for range 5 {
				p.publish("fleet/1", "old")
			}
			w.move("fleet/#", "x") // a cut
			p.publish("t", "behind the cut")
			if killed {
				w.bus2 = newMemoryBus()
				w.kill()
			} else {
				w.now.cut()
				w.now.stop()
				w.bus, w.bus2, w.log, w.maps = w.bus.clone(), newMemoryBus(), w.log.clone(), w.newMaps()
				w.begin()
			}
			p = w.now.connect(packet.V5, "p")
			p.publish("fleet/1", "new")
			p.publish("t", "last")
			got := w.now.resume(packet.V5, "c", true).payloads(3)
			slices.Sort(got)
			if !slices.Equal(got, []string{"behind the cut", "last", "new"}) {
				t.Errorf("got %q", got)
			}
		})
	}
}

// The retained message of a topic that has moved is the later one, also when it was taken away.
func TestRetainedTopicMoves(t *testing.T) {
	w := newWorld(t)
	p := w.now.connect(packet.V5, "p")
	retain := func(topic, payload string) {
		m := publish(topic, payload, 1, 7)
		m.Retain = true
		p.send(m)
		p.ack(packet.TypePuback, 7, packet.Success)
	}
	retain("a", "1")
	retain("b", "1")
	w.move("a", "b", "c")
	retain("a", "2")
	retain("b", "")
	retain("c", "2")
	w.move("b")
	retain("c", "3")
	want := []string{"2", "3"}
	for _, end := range []func(){func() {}, w.restart, w.kill} {
		end()
		c := w.now.connect(packet.V5, "c")
		c.subscribe(1, "+")
		if got := c.payloads(2); !slices.Equal(got, want) {
			t.Errorf("retained %q, want %q", got, want)
		}
	}
}

// A bus that no mapping names any more is served until nobody has anything left in it, and not longer.
func TestBusIsNoLongerServed(t *testing.T) {
	w := newWorld(t)
	w.move("fleet/#")
	c := w.now.resume(packet.V5, "c", false)
	c.subscribe(1, "fleet/#")
	c.leave()
	p := w.now.connect(packet.V5, "p")
	m := publish("fleet/1", "kept", 1, 7)
	m.Retain = true
	p.send(m)
	p.ack(packet.TypePuback, 7, packet.Success)
	w.move()
	if got := w.now.gateway.Feeds(); !slices.Equal(got, []string{"devices", "fleet"}) {
		t.Errorf("served %q while a session waits", got)
	}
	w.restart()
	c = w.now.resume(packet.V5, "c", true)
	if got := w.now.gateway.Feeds(); !slices.Equal(got, []string{"devices", "fleet"}) {
		t.Errorf("served %q after a restart", got)
	}
	if got := c.payloads(1); got[0] != "kept" {
		t.Errorf("got %q", got)
	}
	eventually(t, "the bus is not served any more", func() bool { return slices.Equal(w.now.gateway.Feeds(), []string{"devices"}) })
	late := w.now.connect(packet.V5, "late")
	late.subscribe(1, "fleet/#")
	if got := late.payloads(1); got[0] != "kept" {
		t.Errorf("retained %q", got)
	}
	w.restart()
	p = w.now.connect(packet.V5, "p")
	if got := w.now.gateway.Feeds(); !slices.Equal(got, []string{"devices"}) {
		t.Errorf("served %q", got)
	}
	w.move("fleet/#")
	p.publish("fleet/1", "again")
	if got := w.now.resume(packet.V5, "c", true).payloads(1); got[0] != "again" {
		t.Errorf("got %q", got)
	}
}

// A SUBSCRIBE does not wait for a bus that ceases to be served: what was committed to it since does not come from there any more.
func TestSubscribeWhileABusCeasesToBeServed(t *testing.T) {
	w := newWorld(t)
	p := w.now.connect(packet.V5, "p")
	w.move("fleet/#")
	wait := w.now.gateway.Behind(2) // it has seen the buses, and then the mark of the change and a message on each
	waits := make(chan error)
	go func() { waits <- wait(t.Context()) }()
	w.move()
	eventually(t, "the bus is not served any more", func() bool { return slices.Equal(w.now.gateway.Feeds(), []string{"devices"}) })
	p.publish("t", "x")
	if err := w.bus2.Publish(t.Context(), "fleet", &event.Record{Event: event.Event{ID: "1", Source: "/s", Type: "t"}}, func(error) {}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-waits:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("it waits for a bus that is not served")
	}
}

// A message that is published with QoS 2 to two buses at once is stored once, whatever is committed when the process is killed.
func TestExactlyOnceOnTwoBuses(t *testing.T) {
	for n := range 14 {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			w := newWorld(t)
			w.move("fleet/#")
			p := w.now.resume(packet.V5, "p", false)
			w.arm(n)
			topics := []string{"fleet/1", "t/1", "fleet/2", "t/2"}
			var all []packet.Packet
			for i, topic := range topics {
				all = append(all, publish(topic, fmt.Sprint(i), 2, uint16(i+1)))
			}
			p.send(all...)
			acknowledged := make(chan struct{})
			go func() {
				defer close(acknowledged)
				for range all {
					if _, _, err := p.in.Next(1 << 20); err != nil {
						return // killed
					}
				}
			}()
			select {
			case <-acknowledged:
			case <-w.killed:
			}
			w.kill()
			<-acknowledged
			p = w.now.resume(packet.V5, "p", true)
			for i := range all {
				all[i].(*packet.Publish).Dup = true
				p.send(all[i])
				p.ack(packet.TypePubrec, uint16(i+1), packet.Success)
				p.send(&packet.Ack{Kind: packet.TypePubrel, PacketID: uint16(i + 1)})
				p.ack(packet.TypePubcomp, uint16(i+1), packet.Success)
			}
			seen := map[string]int{}
			for _, r := range slices.Concat(w.bus.records(), w.bus2.records()) {
				if r.MQTT != nil {
					seen[r.MQTT.Topic]++
				}
			}
			for _, topic := range topics {
				if seen[topic] != 1 {
					t.Errorf("%s is stored %d times", topic, seen[topic])
				}
			}
		})
	}
}

// Mappings to a bus that is not there, or whose start cannot be written down, are told.
func TestMappingToNoBus(t *testing.T) {
	w := newWorld(t)
	w.now.connect(packet.V5, "c") // the gateway serves
	w.log.set(func() { w.log.hold = true })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := w.remapOn(ctx, "fleet/#"); err == nil {
		t.Error("a mapping is in force, and its bus's start is not written down")
	}
	w.log.release()
	w.move("fleet/#")
	c := w.now.connect(packet.V5, "c")
	c.subscribe(1, "fleet/#")
	c.publish("fleet/1", "x")
}
