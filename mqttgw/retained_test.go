// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"bytes"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

func (c *client) retain(topic, payload string, qos byte, ps packet.Properties) {
	c.t.Helper()
	c.send(&packet.Publish{Topic: []byte(topic), Payload: []byte(payload), QoS: qos, PacketID: 66 * uint16(min(qos, 1)), Retain: true, Properties: ps})
	switch qos {
	case 0:
		c.nothing() // the answer comes when the message is stored
	case 1:
		c.ack(packet.TypePuback, 66, packet.Success)
	case 2:
		c.ack(packet.TypePubrec, 66, packet.Success)
		c.send(&packet.Ack{Kind: packet.TypePubrel, PacketID: 66})
		c.ack(packet.TypePubcomp, 66, packet.Success)
	}
}

// ask subscribes with options and requires that it is granted.
func (c *client) ask(s packet.Subscription, ps packet.Properties) {
	c.t.Helper()
	c.send(&packet.Subscribe{PacketID: 3, Properties: ps, Filters: []packet.Subscription{s}})
	if a := recv[*packet.Suback](c); a.Codes[0] != packet.Reason(s.QoS) {
		c.t.Fatalf("SUBACK %v for %s", a.Codes, s.Filter)
	}
}

func TestRetainedMessages(t *testing.T) {
	versions(t, func(t *testing.T, v packet.Version) {
		ways(t, func(t *testing.T, w *world, again func()) {
			p := w.now.connect(v, "p")
			live := w.now.connect(v, "live")
			live.subscribe(1, "a")
			p.retain("a", "v1", 1, nil)
			if m := live.message(); m.Retain || string(m.Payload) != "v1" {
				t.Errorf("live: RETAIN %v, %q", m.Retain, m.Payload)
			}
			again()
			c := w.now.connect(v, "new")
			c.subscribe(1, "a")
			if m := c.message(); !m.Retain || m.QoS != 1 || string(m.Payload) != "v1" {
				t.Errorf("new subscription: RETAIN %v, QoS %d, %q", m.Retain, m.QoS, m.Payload)
			}
			p = w.now.connect(v, "p")
			p.retain("a", "v2", 1, nil)
			if m := c.message(); m.Retain || string(m.Payload) != "v2" {
				t.Errorf("live: RETAIN %v, %q", m.Retain, m.Payload)
			}
			p.retain("a", "", 1, nil)
			if m := c.message(); m.Retain || len(m.Payload) != 0 {
				t.Errorf("cleared: RETAIN %v, %q, want it forwarded once", m.Retain, m.Payload)
			}
			c.nothing()
			again()
			c = w.now.connect(v, "newer")
			c.subscribe(1, "a", "#")
			c.nothing()
		})
	})
}

// What is retained outlives the log's retention.
func TestRetainedOutlivesTheLog(t *testing.T) {
	w := newWorld(t)
	live := w.now.connect(packet.V5, "live")
	live.subscribe(0, "a")
	w.now.connect(packet.V5, "p").retain("a", "old", 2, nil)
	recv[*packet.Publish](live) // so it is in the view
	w.bus.set(func() { w.bus.trimmed = 1 })
	w.restart()
	c := w.now.resume(packet.V5, "c", false)
	c.subscribe(2, "a")
	m := recv[*packet.Publish](c)
	if string(m.Payload) != "old" || m.QoS != 2 || !m.Retain {
		t.Errorf("got %+v", m)
	}
	c.Close() // unacknowledged: it comes again, from the view
	c = w.now.resume(packet.V5, "c", true)
	if again := recv[*packet.Publish](c); again.PacketID != m.PacketID || !again.Dup || !again.Retain || string(again.Payload) != "old" {
		t.Errorf("again: %+v", again)
	}
}

func TestManyRetained(t *testing.T) {
	w := newWorld(t, func(o *mqttgw.Options) { o.Limits.MaxInFlight = 3 })
	p := w.now.connect(packet.V311, "p")
	var want []string
	for k := range 200 {
		topic := fmt.Sprintf("a/%03d", k)
		want = append(want, topic)
		p.retain(topic, topic, 1, nil)
	}
	p.retain("a", "a", 1, nil)
	p.retain("ab/c", "not below a", 1, nil)
	for _, tt := range []struct {
		filter string
		qos    byte
		want   []string
	}{{"a/#", 1, append([]string{"a"}, want...)}, {"a/+", 0, want}, {"a/+", 2, want}, {"a/007", 1, []string{"a/007"}}, {"+/100", 1, []string{"a/100"}}, {"b/#", 1, nil}, {"a/+/c", 1, nil}} {
		c := w.now.connect(packet.V5, "c")
		c.subscribe(tt.qos, tt.filter)
		var got []string
		for range tt.want {
			m := c.message()
			if m.QoS == 2 || !m.Retain || string(m.Topic) != string(m.Payload) {
				t.Fatalf("%+v", m)
			}
			got = append(got, string(m.Topic))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %d messages %q, want %d", tt.filter, len(got), got, len(tt.want))
		}
		c.nothing()
	}
}

// A retained message comes with the lower QoS of the two, also through a wildcard.
func TestRetainedQoS(t *testing.T) {
	versions(t, func(t *testing.T, v packet.Version) {
		w := newWorld(t)
		p := w.now.connect(v, "p")
		for published := range byte(3) {
			p.retain("test/a", fmt.Sprint(published), published, nil)
			for granted := range byte(3) {
				c := w.now.connect(v, "c")
				c.subscribe(granted, "test/+")
				m := recv[*packet.Publish](c)
				if m.QoS != min(published, granted) || !m.Retain || string(m.Payload) != fmt.Sprint(published) || (m.PacketID != 0) != (m.QoS > 0) {
					t.Errorf("published with QoS %d, subscribed with %d: got %+v", published, granted, m)
				}
			}
		}
	})
}

func TestRetainHandling(t *testing.T) {
	w := newWorld(t)
	w.now.connect(packet.V5, "p").retain("t", "x", 2, packet.Properties(nil).AppendUser("k", "v"))
	c := w.now.connect(packet.V5, "c")
	id := packet.Properties(nil).AppendInt(packet.SubscriptionID, 7)
	for i, tt := range []struct {
		handling byte
		again    bool
		want     bool
	}{{2, false, false}, {0, true, true}, {1, true, false}, {1, false, true}, {0, false, true}} {
		if !tt.again {
			c.send(&packet.Unsubscribe{PacketID: 1, Filters: [][]byte{[]byte("t")}})
			recv[*packet.Suback](c)
		}
		c.ask(packet.Subscription{Filter: []byte("t"), QoS: 1, RetainHandling: tt.handling}, id)
		if tt.want {
			if m := c.message(); !m.Retain || m.QoS != 1 || m.Properties.Int(packet.SubscriptionID, 0) != 7 || len(m.Properties.Bytes(packet.UserProperty)) == 0 {
				t.Errorf("%d: %+v", i, m)
			}
		}
		c.nothing()
	}
	// Its own message, with No Local; and a shared subscription: neither gets it.
	own := w.now.connect(packet.V5, "own")
	own.retain("mine", "x", 1, nil)
	own.ask(packet.Subscription{Filter: []byte("mine"), QoS: 1, NoLocal: true}, nil)
	own.ask(packet.Subscription{Filter: []byte("$share/g/t"), QoS: 1}, nil)
	own.nothing()
	own.raw([]byte("\x82\x0e\x00\x02\x00\x00\x08$share/g\x05"))
	own.drain()
}

// A client that comes back in the middle of its retained messages, and subscribes again without asking for them, gets the rest.
func TestRetainedMessagesOutliveAnotherSubscribe(t *testing.T) {
	for handling := byte(1); handling <= 2; handling++ {
		w := newWorld(t)
		p := w.now.connect(packet.V5, "p")
		for _, topic := range []string{"t/1", "t/2", "t/3"} {
			p.retain(topic, "x", 1, nil)
		}
		one := func(p *packet.Connect) { p.Properties = p.Properties.AppendInt(packet.ReceiveMaximum, 1) }
		c := w.now.resume(packet.V5, "c", false, one)
		c.send(&packet.Subscribe{PacketID: 3, Filters: []packet.Subscription{{Filter: []byte("t/+"), QoS: 1, RetainHandling: 1}}})
		for range 2 { // SUBACK, which waits for the disk, and the first message
			c.next()
		}
		c.Close()
		c = w.now.resume(packet.V5, "c", true, one)
		recv[*packet.Publish](c) // once more
		c.ask(packet.Subscription{Filter: []byte("t/+"), QoS: 1, RetainHandling: handling}, packet.Properties(nil).AppendInt(packet.SubscriptionID, 7))
		c.send(&packet.Ack{Kind: packet.TypePuback, PacketID: 1})
		for _, want := range []string{"t/2", "t/3"} {
			if m := c.message(); string(m.Topic) != want || !m.Retain || m.Properties.Int(packet.SubscriptionID, 0) != 7 {
				t.Errorf("retain handling %d: %+v, want %s", handling, m, want)
			}
		}
		c.nothing()
	}
}

// An empty payload deletes a retained message, also one that is a CloudEvent without data; a CloudEvent in JSON is no empty payload.
func TestEmptyCloudEventAndRetained(t *testing.T) {
	w := newWorld(t)
	p := w.now.connect(packet.V5, "p")
	p.retain("t", "x", 1, nil)
	attributes := func(id string) (ps packet.Properties) {
		return ps.AppendUser("specversion", "1.0").AppendUser("id", id).AppendUser("source", "/s").AppendUser("type", "t")
	}
	p.retain("t", "", 1, attributes("1"))
	p.retain("u", `{"specversion":"1.0","id":"2","source":"/s","type":"t"}`, 1, packet.Properties(nil).AppendString(packet.ContentType, "application/cloudevents+json"))
	c := w.now.connect(packet.V5, "c")
	c.subscribe(1, "+")
	if m := c.message(); string(m.Topic) != "u" {
		t.Errorf("%+v, want what is retained below u", m)
	}
	c.nothing()
}

func TestRetainedExpiry(t *testing.T) {
	var now atomic.Int64
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	w := newWorld(t, func(o *mqttgw.Options) { o.Now = func() time.Time { return begin.Add(time.Duration(now.Load())) } })
	p := w.now.connect(packet.V5, "p")
	p.retain("short", "x", 1, packet.Properties(nil).AppendInt(packet.MessageExpiry, 2))
	p.retain("long", "x", 1, packet.Properties(nil).AppendInt(packet.MessageExpiry, 100))
	now.Store(int64(3 * time.Second))
	c := w.now.connect(packet.V5, "c")
	c.subscribe(1, "#")
	if m := c.message(); string(m.Topic) != "long" || m.Properties.Int(packet.MessageExpiry, 0) != 97 {
		t.Errorf("got %s, %d s left", m.Topic, m.Properties.Int(packet.MessageExpiry, 0))
	}
	c.nothing()
}

func TestRetainedLimit(t *testing.T) {
	w := newWorld(t, func(o *mqttgw.Options) { o.Limits.MaxRetained = 1 })
	p := w.now.connect(packet.V5, "p")
	c := w.now.connect(packet.V5, "c")
	c.subscribe(0, "#")
	p.retain("a", "1", 1, nil)
	recv[*packet.Publish](c) // so it is in the view
	p.retain("a", "2", 1, nil)
	p.send(&packet.Publish{Topic: []byte("b"), QoS: 1, PacketID: 1, Retain: true, Payload: []byte("x")})
	p.ack(packet.TypePuback, 1, packet.QuotaExceeded)
	p.retain("a", "", 1, nil)
	for range 2 {
		recv[*packet.Publish](c)
	}
	p.retain("b", "x", 1, nil)
}

// What has expired takes no place: it is deleted when somebody finds it, and when a place is needed.
func TestExpiredRetainedGivesItsPlace(t *testing.T) {
	var now atomic.Int64
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(seconds int) { now.Store(int64(seconds) * int64(time.Second)) }
	w := newWorld(t, func(o *mqttgw.Options) {
		o.Now = func() time.Time { return begin.Add(time.Duration(now.Load())) }
		o.Limits.MaxRetained = 2
	})
	p, live := w.now.connect(packet.V5, "p"), w.now.connect(packet.V5, "live")
	live.subscribe(0, "#")
	expiring := func(topic string, seconds uint32) {
		t.Helper()
		p.retain(topic, "x", 1, packet.Properties(nil).AppendInt(packet.MessageExpiry, seconds))
		recv[*packet.Publish](live) // so it is in the view
	}
	refused := func(topic string) {
		t.Helper()
		p.send(&packet.Publish{Topic: []byte(topic), QoS: 1, PacketID: 1, Retain: true, Payload: []byte("x")})
		p.ack(packet.TypePuback, 1, packet.QuotaExceeded)
	}
	expiring("a", 5)
	expiring("b", 10)
	refused("c")
	at(6)
	refused("c") // the store was looked through within this minute
	at(61)
	expiring("c", 5)
	expiring("d", 100)
	at(70) // c expires
	refused("e")
	c := w.now.connect(packet.V5, "c")
	c.subscribe(1, "#")
	if m := c.message(); string(m.Topic) != "d" {
		t.Errorf("got %s, want d only", m.Topic)
	}
	c.nothing()
	expiring("e", 100)
	refused("f")
	at(200)
	w.kill()
	p, live = w.now.connect(packet.V5, "p"), w.now.connect(packet.V5, "live")
	live.subscribe(0, "#")
	live.nothing()
	expiring("f", 100)
	expiring("g", 100)
	refused("h")
}

// A message that is not retained takes nothing from a subscriber of the one that is, whenever it comes.
func TestRetainedBesideAnotherMessageOfItsTopic(t *testing.T) {
	var armed atomic.Bool
	found, goOn := make(chan struct{}), make(chan struct{})
	w := newWorld(t, func(o *mqttgw.Options) {
		o.Now = func() time.Time {
			if armed.Load() && bytes.Contains(debug.Stack(), []byte("dropExpired")) && armed.CompareAndSwap(true, false) {
				close(found)
				<-goOn
			}
			return time.Now()
		}
	})
	p, c := w.now.connect(packet.V5, "p"), w.now.connect(packet.V5, "c")
	p.retain("t", "retained", 1, nil)
	armed.Store(true)
	c.subscribe(1, "t")
	<-found // what is retained was read, and is about to be sent
	p.publish("t", "other")
	if err := w.now.gateway.Delivered(t.Context()); err != nil {
		t.Error(err)
	}
	close(goOn)
	got := c.payloads(2)
	if slices.Sort(got); !slices.Equal(got, []string{"other", "retained"}) {
		t.Errorf("got %q", got)
	}
}

// Retained messages of new subscriptions and live ones: each client sees the newest of each topic last, and none twice.
func TestRetainedWhilePublishing(t *testing.T) {
	w := newWorld(t)
	p, pace := w.now.connect(packet.V5, "p"), w.now.connect(packet.V5, "pace")
	pace.subscribe(0, "t/+")
	retain := func(n, k int) { // and waits for the tail, which a slow machine leaves behind
		p.retain(fmt.Sprintf("t/%d", n%5), fmt.Sprint(k), 1, nil)
		recv[*packet.Publish](pace)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for k := 0; ; k++ {
			select {
			case <-stop:
				for i := range 5 {
					retain(i, 1000000)
				}
				return
			default:
				retain(k, k)
			}
		}
	}()
	for n := range 30 {
		c := w.now.connect(packet.V5, fmt.Sprint("c", n))
		c.subscribe(1, "t/+")
		last := map[string]int{}
		read := func(until func() bool) {
			for !until() {
				m := c.message()
				var k int
				if _, err := fmt.Sscan(string(m.Payload), &k); err != nil {
					t.Fatal(err)
				}
				if old, ok := last[string(m.Topic)]; ok && k <= old {
					t.Fatalf("%s: %d after %d", m.Topic, k, old)
				}
				last[string(m.Topic)] = k
			}
		}
		read(func() bool { return len(last) == 5 })
		if n == 29 {
			close(stop)
			read(func() bool {
				for _, k := range last {
					if k != 1000000 {
						return false
					}
				}
				return true
			})
		}
	}
	<-done
}

func TestRetainedWill(t *testing.T) {
	w := newWorld(t)
	c := w.now.connect(packet.V5, "c", func(p *packet.Connect) {
		p.Will = &packet.Will{Topic: []byte("state/c"), Payload: []byte("gone"), QoS: 1, Retain: true}
	})
	c.Close()
	w.bus.await(t, "the will", func() bool { return len(w.bus.entries) == 1 })
	n := w.now.connect(packet.V5, "n")
	n.subscribe(1, "state/+")
	if m := n.message(); !m.Retain || string(m.Payload) != "gone" {
		t.Errorf("got %+v", m)
	}
}

func TestRetainedTopicsOfAnyText(t *testing.T) {
	w := newWorld(t)
	p := w.now.connect(packet.V5, "p")
	topics := []string{"/", "a//b", "é/温", "a", strings.Repeat("x", 1000), "a/\xf4\x8f\xbf\xbf"}
	for _, topic := range topics {
		p.retain(topic, topic, 1, nil)
	}
	c := w.now.connect(packet.V5, "c")
	c.subscribe(1, "#")
	var got []string
	for range topics {
		got = append(got, string(c.message().Topic))
	}
	slices.Sort(got)
	slices.Sort(topics)
	if !slices.Equal(got, topics) {
		t.Errorf("got %q", got)
	}
}
