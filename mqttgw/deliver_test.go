// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

func TestSuback(t *testing.T) {
	s := start(t, func(o *mqttgw.Options) { o.Limits.MaxFilters = 6 })
	filters := []string{"a", "a/b#", "a+/b", "a/#/b", "+/x", "", "$share/g/a", "$share/g", "$share/g+/x", "$share//x", "a", "$SYS/#",
		"$share/g/" + strings.Repeat("/", 31), strings.Repeat("/", 40), "#", "seventh"}
	want := map[packet.Version][]packet.Reason{
		packet.V5:   {2, 0x8F, 0x8F, 0x8F, 2, 0x8F, 2, 0x8F, 0x8F, 0x8F, 2, 2, 2, 0x8F, 2, 0x97},
		packet.V311: {2, 0x80, 0x80, 0x80, 2, 0x80, 2, 0x80, 0x80, 0x80, 2, 2, 2, 0x80, 2, 0x80},
	}
	for v, codes := range want {
		p := &packet.Subscribe{PacketID: 9}
		for _, f := range filters {
			p.Filters = append(p.Filters, packet.Subscription{Filter: []byte(f), QoS: 2})
		}
		c := s.connect(v, "c")
		for range 2 { // again replaces
			c.send(p)
			if got := recv[*packet.Suback](c); !slices.Equal(got.Codes, codes) || got.PacketID != 9 {
				t.Errorf("v%d: SUBACK %v, want %v", v, got.Codes, codes)
			}
		}
	}
}

func TestUnsuback(t *testing.T) {
	s := start(t)
	c := s.connect(packet.V5, "c")
	c.subscribe(1, "a", "b")
	c.send(&packet.Unsubscribe{PacketID: 5, Filters: [][]byte{[]byte("a"), []byte("none"), []byte("b"), []byte("a/#/")}})
	if got := recv[*packet.Suback](c); !slices.Equal(got.Codes, []packet.Reason{0, 0x11, 0, 0x8F}) {
		t.Errorf("UNSUBACK %v", got.Codes)
	}
	c.publish("a", "x")
	c.nothing()
}

func TestTopicsReachTheirFilters(t *testing.T) {
	versions(t, func(t *testing.T, v packet.Version) {
		s := start(t)
		p := s.connect(v, "publisher")
		for i, tt := range []struct{ topic, yes, no string }{
			{"room 1/temp sensor", "room 1/temp sensor", "room 1"}, {"a.b/c.d", "a.b/+", "a/b/+"}, {"a/*/>", "a/+/+", "a/*"},
			{"sport", "sport/#", "sport/+"}, {"/a", "+/a", "a"}, {"a//b/", "a/+/b/+", "a/b"}, {"/", "+/+", "+"}, {"工厂/温度", "工厂/#", "工厂"},
			{"foo/x", "#", "+"},
		} {
			c := s.connect(v, fmt.Sprint("c", i))
			c.subscribe(1, tt.yes)
			other := s.connect(v, fmt.Sprint("o", i))
			other.subscribe(1, tt.no)
			p.publish(tt.topic, "x")
			if m := c.message(); string(m.Topic) != tt.topic {
				t.Errorf("%q came as %q", tt.topic, m.Topic)
			}
			c.nothing()
			other.nothing()
		}
	})
}

func TestOverlappingSubscriptionsAreOneMessage(t *testing.T) {
	s := start(t)
	c := s.connect(packet.V5, "c")
	for i, f := range []packet.Subscription{{Filter: []byte("t/#"), QoS: 0, RetainAsPublished: true}, {Filter: []byte("t/a"), QoS: 1}, {Filter: []byte("+/a"), QoS: 0}} {
		p := &packet.Subscribe{PacketID: 1, Filters: []packet.Subscription{f}}
		if i < 2 {
			p.Properties = p.Properties.AppendInt(packet.SubscriptionID, uint32(5+i))
		}
		c.send(p)
		recv[*packet.Suback](c)
	}
	s.connect(packet.V311, "p").send(&packet.Publish{Topic: []byte("t/a"), QoS: 1, PacketID: 9, Retain: true, Payload: []byte("x")})
	m := c.message()
	var ids []uint32
	for p := range m.Properties.All() {
		ids = append(ids, p.Int)
	}
	slices.Sort(ids)
	if !slices.Equal(ids, []uint32{5, 6}) || m.QoS != 1 || !m.Retain {
		t.Errorf("ids %v, QoS %d, retain %v, want 5 and 6, 1, true", ids, m.QoS, m.Retain)
	}
	c.nothing()
}

func TestNoLocalAndRetainAsPublished(t *testing.T) {
	s := start(t)
	c, plain := s.connect(packet.V5, "c"), s.connect(packet.V5, "plain")
	c.send(&packet.Subscribe{PacketID: 1, Filters: []packet.Subscription{{Filter: []byte("t"), QoS: 1, NoLocal: true}}})
	recv[*packet.Suback](c)
	plain.subscribe(1, "t")
	c.publish("t", "own")
	if m := plain.message(); string(m.Payload) != "own" {
		t.Errorf("payload %q", m.Payload)
	}
	s.connect(packet.V311, "old").send(&packet.Publish{Topic: []byte("t"), Retain: true, Payload: []byte("others")})
	if m := c.message(); string(m.Payload) != "others" {
		t.Errorf("with No Local: %q, want the message of others", m.Payload)
	}
	if m := plain.message(); m.Retain {
		t.Error("RETAIN on a live message without Retain As Published")
	}
}

// What a device published reaches subscribers of both versions as it was, and with the properties in their order.
func TestRoundTrip(t *testing.T) {
	kept := packet.Properties(nil).AppendInt(packet.PayloadFormat, 1).AppendString(packet.ContentType, "text/plain").
		AppendUser("b", "1").AppendUser("a", "2").AppendUser("b", "1").AppendUser("", "").AppendString(packet.ResponseTopic, "r").AppendString(packet.CorrelationData, "\x00\xff")
	doc := `{"specversion":"1.0","id":"i","source":"s","type":"t","datacontenttype":"application/json","data":{"a":1}}`
	structured := packet.Properties(nil).AppendString(packet.ContentType, "application/cloudevents+json")
	s := start(t)
	three, five := s.connect(packet.V311, "three"), s.connect(packet.V5, "five")
	three.subscribe(1, "t")
	five.subscribe(1, "t")
	for _, tt := range []struct {
		from packet.Version
		p    packet.Publish
	}{
		{packet.V5, packet.Publish{Properties: kept, Payload: []byte("21.5")}},
		{packet.V5, packet.Publish{Payload: []byte{}}},
		{packet.V5, packet.Publish{Payload: []byte(strings.Repeat("z", 10_000))}},
		{packet.V5, packet.Publish{Properties: structured, Payload: []byte(doc)}},
		{packet.V311, packet.Publish{Payload: []byte(doc)}},
		{packet.V311, packet.Publish{Payload: []byte{0, 1, 255}}},
	} {
		tt.p.Topic, tt.p.QoS, tt.p.PacketID = []byte("t"), 1, 3
		p := s.connect(tt.from, "p")
		p.send(&tt.p)
		p.ack(packet.TypePuback, 3, packet.Success)
		for _, c := range []*client{three, five} {
			m := c.message()
			got, want := string(m.Payload), string(tt.p.Payload)
			if want == doc { // a CloudEvent comes back with the same meaning
				got, want = canonical(t, got), canonical(t, want)
			}
			if got != want {
				t.Errorf("payload %q, want %q", got, want)
			}
			if c == five && string(m.Properties) != string(tt.p.Properties) {
				t.Errorf("properties %q, want %q", m.Properties, tt.p.Properties)
			}
		}
	}
}

func canonical(t *testing.T, doc string) string {
	t.Helper()
	e, err := event.ParseJSON([]byte(doc), event.Limits{})
	if err != nil {
		t.Fatalf("%q: %v", doc, err)
	}
	return string(event.AppendJSON(nil, &e))
}

func TestEventsFromElsewhereStayAway(t *testing.T) {
	s := start(t)
	c := s.connect(packet.V5, "c")
	c.subscribe(1, "#")
	if err := s.bus.Publish(t.Context(), "devices", &event.Record{Event: event.Event{ID: "1", Source: "http", Type: "t", Subject: "a"}}, func(error) {}); err != nil {
		t.Fatal(err)
	}
	c.publish("a", "x")
	if m := c.message(); string(m.Payload) != "x" {
		t.Errorf("got %q", m.Payload)
	}
}

func TestReceiveMaximumOfTheClient(t *testing.T) {
	s := start(t)
	c := s.connect(packet.V5, "c", props(packet.Properties(nil).AppendInt(packet.ReceiveMaximum, 2)))
	c.subscribe(1, "t")
	p := s.connect(packet.V311, "p")
	for k := range 6 {
		p.publish("t", fmt.Sprint(k))
	}
	p.send(publish("t", "q0", 0, 0))
	var flying []uint16
	got := map[string]bool{}
	for len(got) < 3 { // two in flight, and the QoS 0 message does not wait for them
		m := recv[*packet.Publish](c)
		got[string(m.Payload)] = true
		if m.QoS > 0 {
			flying = append(flying, m.PacketID)
		}
	}
	if !got["0"] || !got["1"] || !got["q0"] {
		t.Fatalf("got %v, want 0, 1 and q0", got)
	}
	c.nothing()
	for k := 2; k < 6; k++ {
		c.send(&packet.Ack{Kind: packet.TypePuback, PacketID: flying[0]})
		flying = flying[1:]
		m := recv[*packet.Publish](c)
		if string(m.Payload) != fmt.Sprint(k) {
			t.Fatalf("message %q, want %d", m.Payload, k)
		}
		flying = append(flying, m.PacketID)
		c.nothing()
	}
}

// A client that is far behind reads the log by itself: everything once and in order, whatever the bounds are, while
// others get everything at once.
func TestSlowSessionReadsOn(t *testing.T) {
	const messages = 501
	for _, l := range []mqttgw.Limits{{MaxInFlight: 1, MaxWaiting: 1}, {MaxInFlight: 3, MaxWaiting: 10}, {MaxInFlight: 50, MaxWaiting: 1000}, {MaxOutbound: 2048, MaxWaiting: 5}} {
		t.Run(fmt.Sprintf("%d-%d-%d", l.MaxInFlight, l.MaxWaiting, l.MaxOutbound), func(t *testing.T) {
			s := start(t, func(o *mqttgw.Options) { o.Limits = l })
			slow := s.connect(packet.V5, "slow")
			slow.subscribe(1, "a/+", "c")
			slow.subscribe(0, "b/#")
			p := s.connect(packet.V311, "p")
			for k := range messages {
				p.publish([]string{"a/x", "other/x", "c"}[k%3], strings.Repeat("x", k%7*100)+" "+fmt.Sprint(k))
			}
			last := -1
			var early []packet.Packet // came before the answer to a ping
			next := func() *packet.Publish {
				t.Helper()
				for {
					var p packet.Packet
					if len(early) > 0 {
						p, early = early[0], early[1:]
					} else {
						p = slow.next()
					}
					if m, ok := p.(*packet.Publish); ok {
						slow.send(&packet.Ack{Kind: packet.TypePuback, PacketID: m.PacketID})
						return m
					} else if _, ok := p.(*packet.Suback); !ok {
						t.Fatalf("got %T", p)
					}
				}
			}
			read := func(upTo int) {
				t.Helper()
				for last < upTo {
					k := -1
					if _, err := fmt.Sscan(strings.TrimLeft(string(next().Payload), "x"), &k); err != nil {
						t.Fatal(err)
					}
					want := last + 1
					if want%3 == 1 {
						want++
					}
					if k != want {
						t.Fatalf("message %d after %d, want %d", k, last, want)
					}
					last = k
				}
			}
			read(messages / 2)
			// Subscribed now: what came before stays away, though the session has not looked at it yet.
			slow.send(&packet.Subscribe{PacketID: 2, Filters: []packet.Subscription{{Filter: []byte("other/+"), QoS: 1}}})
			slow.send(&packet.Ping{Kind: packet.TypePingreq})
			for pong := false; !pong; {
				switch m := slow.next().(type) {
				case *packet.Ping:
					pong = true
				case *packet.Publish:
					early = append(early, m)
				}
			}
			p.publish("other/x", "late")
			read(messages - 1)
			if m := next(); string(m.Payload) != "late" {
				t.Fatalf("then %q, want late", m.Payload)
			}
			p.publish("a/x", "live again")
			if m := next(); string(m.Payload) != "live again" {
				t.Fatalf("got %q", m.Payload)
			}
			slow.nothing()
		})
	}
}

// A subscriber that does not read at all loses QoS 0 messages, which are counted, and nothing else; others lose nothing.
func TestStalledSubscriber(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s := startPipes(t, func(o *mqttgw.Options) { o.Limits.MaxOutbound, o.Registerer = 4096, reg })
	stalled, other := s.connect(packet.V311, "stalled"), s.connect(packet.V311, "other")
	stalled.subscribe(1, "t")
	other.subscribe(1, "t")
	p := s.connect(packet.V311, "p")
	const messages = 50
	for k := range messages {
		for qos := range byte(2) {
			msg := publish("t", strings.Repeat("x", 500), qos, uint16(k+1)*uint16(qos))
			go p.send(msg)
			if qos == 1 {
				p.ack(packet.TypePuback, msg.PacketID, packet.Success)
			}
			if m := other.message(); m.QoS != qos {
				t.Fatalf("other got QoS %d, want %d", m.QoS, qos)
			}
		}
	}
	dropped := metric(t, reg, "rialto_mqtt_dropped_total", "slow")
	if dropped < messages-20 {
		t.Errorf("%v dropped, want most of %d", dropped, messages)
	}
	var got [2]int
	for got[1] < messages {
		got[stalled.message().QoS]++
	}
	if float64(got[0]) != messages-dropped {
		t.Errorf("%d QoS 0 messages came and %v were dropped, want %d in all", got[0], dropped, messages)
	}
}

// A subscriber that takes nothing is given up after WriteTimeout, for that reason and whatever its keep alive is; until then it costs
// MaxOutbound and a packet.
func TestWriteTimeout(t *testing.T) {
	for _, keepAlive := range []uint16{0, 3600} {
		for qos := range byte(2) {
			t.Run(fmt.Sprintf("keep alive %d QoS %d", keepAlive, qos), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const timeout, most, size = 3 * time.Second, 4096, 500
					reg := prometheus.NewPedanticRegistry()
					s := startPipes(t, func(o *mqttgw.Options) {
						o.Limits.MaxOutbound, o.Limits.WriteTimeout, o.Registerer, o.Lifecycle = most, timeout, reg, true
					})
					stalled := s.connect(packet.V5, "stalled", func(p *packet.Connect) { p.KeepAlive = keepAlive })
					stalled.subscribe(qos, "t")
					time.Sleep(time.Minute) // of the bubble: the deadline of the writes so far is over
					begin := time.Now()
					p := s.connect(packet.V5, "p")
					for range 100 {
						p.publish("t", strings.Repeat("x", size))
					}
					if n := metric(t, reg, "rialto_mqtt_deliveries_total", fmt.Sprint(qos)); n > most/size+2 {
						t.Errorf("%v messages of %d bytes are queued, want %d bytes and one being written", n, size, most)
					}
					s.bus.await(t, "the end of the connection", func() bool {
						return bytes.Contains(s.bus.entries[len(s.bus.entries)-1].Record.Event.Data, []byte(`"reason":"write-timeout","byServer":true`))
					})
					if took := time.Since(begin); took < timeout || took > 2*timeout {
						t.Errorf("it took %s, want one to two times %s", took, timeout)
					}
					synctest.Wait()
					for _, c := range s.gateway.Clients("", true) {
						if c.ClientID == "stalled" && (c.Online || c.Reason != "write-timeout") {
							t.Errorf("listed as %+v", c)
						}
					}
					p.Close()
					stalled.Close()
					s.stop()
				})
			})
		}
	}
}

func TestGoneMessagesAreCounted(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s := start(t, func(o *mqttgw.Options) {
		o.Limits.MaxInFlight, o.Limits.MaxWaiting, o.Registerer = 1, 1, reg
	})
	c := s.connect(packet.V5, "c")
	c.subscribe(1, "t")
	p := s.connect(packet.V311, "p")
	for k := range 10 {
		p.publish("t", fmt.Sprint(k))
	}
	first := recv[*packet.Publish](c) // in flight, so the window is full when the others go
	s.bus.set(func() { s.bus.trimmed = 7 })
	c.send(&packet.Ack{Kind: packet.TypePuback, PacketID: first.PacketID})
	got := []string{string(first.Payload)}
	for got[len(got)-1] != "9" {
		got = append(got, string(c.message().Payload))
	}
	// What was held in memory when the log was trimmed is sent all the same.
	if !slices.IsSorted(got) || !slices.Contains(got, "7") || !slices.Contains(got, "8") {
		t.Errorf("got %q, want all that is there, in order", got)
	}
	if gone := metric(t, reg, "rialto_mqtt_dropped_total", "gone"); gone < 1 {
		t.Errorf("gone: %v", gone)
	}
}

func TestMaximumPacketSizeOfTheClient(t *testing.T) {
	s := start(t)
	c := s.connect(packet.V5, "c", props(packet.Properties(nil).AppendInt(packet.MaximumPacketSize, 128)))
	c.subscribe(1, "t")
	p := s.connect(packet.V311, "p")
	p.publish("t", strings.Repeat("z", 500))
	p.publish("t", "ok")
	if m := c.message(); string(m.Payload) != "ok" {
		t.Errorf("got %d bytes, want ok", len(m.Payload))
	}
}

func TestMessageExpiry(t *testing.T) {
	var now atomic.Int64
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := start(t, func(o *mqttgw.Options) {
		o.Limits.MaxInFlight = 1
		o.Now = func() time.Time { return begin.Add(time.Duration(now.Load())) }
	})
	c := s.connect(packet.V5, "c")
	c.subscribe(1, "t")
	watch := s.connect(packet.V311, "watch")
	watch.subscribe(1, "t")
	p := s.connect(packet.V5, "p")
	put := func(payload string, seconds uint32) {
		m := publish("t", payload, 1, 1)
		m.Properties = m.Properties.AppendUser("k", "v").AppendInt(packet.MessageExpiry, seconds)
		p.send(m)
		p.ack(packet.TypePuback, 1, packet.Success)
	}
	put("first", 100)
	first := recv[*packet.Publish](c)
	put("short", 2)
	put("long", 100)
	for range 3 {
		watch.message() // so both have been offered to the client too, and wait
	}
	now.Store(int64(3 * time.Second))
	c.send(&packet.Ack{Kind: packet.TypePuback, PacketID: first.PacketID})
	m := c.message()
	if string(m.Payload) != "long" || m.Properties.Int(packet.MessageExpiry, 0) != 97 || len(m.Properties.Bytes(packet.UserProperty)) != 1 {
		t.Errorf("got %q with %q, want long with 97 s left", m.Payload, m.Properties)
	}
}

// Subscriptions come and go while messages flow; who is subscribed throughout misses nothing.
func TestSubscriptionChurn(t *testing.T) {
	s := start(t)
	steady := s.connect(packet.V311, "steady")
	steady.subscribe(1, "t/+")
	const messages = 300
	done := make(chan struct{})
	go func() {
		defer close(done)
		c := s.connect(packet.V5, "churn")
		for range 100 {
			c.send(&packet.Subscribe{PacketID: 1, Filters: []packet.Subscription{{Filter: []byte("t/#")}, {Filter: []byte("t/1")}}},
				&packet.Unsubscribe{PacketID: 2, Filters: [][]byte{[]byte("t/#"), []byte("t/1")}})
			for seen := 0; seen < 2; {
				if _, ok := c.next().(*packet.Suback); ok {
					seen++
				}
			}
		}
	}()
	p := s.connect(packet.V311, "p")
	var want, got []string
	for k := range messages {
		p.publish(fmt.Sprintf("t/%d", k%3), fmt.Sprint(k))
		want, got = append(want, fmt.Sprint(k)), append(got, string(steady.message().Payload))
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	<-done
}
