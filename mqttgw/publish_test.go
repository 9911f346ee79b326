// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// Acknowledgements leave after the commit, in the order of the messages, and the messages do not wait for each other.
func TestAcknowledgedAfterTheCommitInOrder(t *testing.T) {
	versions(t, func(t *testing.T, v packet.Version) {
		s := start(t)
		s.bus.set(func() { s.bus.hold = true })
		c := s.connect(v, "p")
		c.send(publish("t", "1", 1, 11), publish("t", "2", 2, 22), publish("t", "3", 0, 0), publish("t", "4", 1, 44))
		s.bus.await(t, "all four handed over", func() bool { return len(s.bus.held) == 4 })
		c.nothing()
		s.bus.release(1)
		c.ack(packet.TypePuback, 11, packet.Success)
		c.nothing()
		s.bus.release(-1)
		c.ack(packet.TypePubrec, 22, packet.Success)
		c.ack(packet.TypePuback, 44, packet.Success)
	})
}

func TestSocketIsNotReadWhileTheWindowIsFull(t *testing.T) {
	for name, limit := range map[string]func(*mqttgw.Options){
		"messages": func(o *mqttgw.Options) { o.Limits.ReceiveMaximum = 4 },
		"bytes":    func(o *mqttgw.Options) { o.Limits.MaxPending = 4 * 512 },
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, limit)
			s.bus.set(func() { s.bus.hold = true })
			c := s.connect(packet.V311, "p")
			for i := range 40 {
				c.send(publish("t", "x", 1, uint16(i+1)))
			}
			s.bus.await(t, "a full window", func() bool { return len(s.bus.held) == 4 })
			for i := range 36 {
				s.bus.release(1)
				c.ack(packet.TypePuback, uint16(i+1), packet.Success)
				s.bus.await(t, "the next message", func() bool { return len(s.bus.held) == 4 })
			}
			s.bus.release(-1)
			if s.bus.most != 4 {
				t.Errorf("%d messages in the window, want 4", s.bus.most)
			}
		})
	}
}

func TestReceiveMaximumExceeded(t *testing.T) {
	s := start(t, func(o *mqttgw.Options) { o.Limits.ReceiveMaximum = 3 })
	c := s.connect(packet.V5, "p")
	for id := range uint16(4) {
		c.send(publish("t", "x", 2, id+1))
	}
	for id := range uint16(3) {
		c.ack(packet.TypePubrec, id+1, packet.Success)
	}
	c.closed(packet.ReceiveMaximumExceeded)
}

func TestLogErrors(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want packet.Reason
	}{
		{fault.New(fault.Full, "full"), packet.QuotaExceeded},
		{fault.New(fault.Unavailable, "away"), packet.UnspecifiedError},
		{errors.New("broken"), packet.UnspecifiedError},
		{fault.New(fault.Invalid, "no"), packet.ImplementationError},
		{fault.New(fault.Forbidden, "no"), packet.NotAuthorized},
	} {
		t.Run(tt.err.Error()+tt.want.String(), func(t *testing.T) {
			s := start(t)
			s.bus.set(func() { s.bus.fail = tt.err })
			five := s.connect(packet.V5, "five")
			five.send(publish("t", "x", 1, 1), publish("t", "x", 2, 2), publish("t", "x", 0, 0))
			five.ack(packet.TypePuback, 1, tt.want)
			five.ack(packet.TypePubrec, 2, tt.want)
			five.send(&packet.Ack{Kind: packet.TypePubrel, PacketID: 2})
			five.ack(packet.TypePubcomp, 2, packet.PacketIDNotFound) // the refused id is free
			five.nothing()
			three := s.connect(packet.V311, "three")
			three.send(publish("t", "x", 0, 0))
			three.nothing()
			three.send(publish("t", "x", 1, 1), publish("t", "x", 1, 2))
			three.closed(0) // without an acknowledgement
			if r := s.bus.records(); len(r) != 0 {
				t.Errorf("%d stored", len(r))
			}
		})
	}
}

func TestQoS2IsStoredOnce(t *testing.T) {
	versions(t, func(t *testing.T, v packet.Version) {
		s := start(t)
		c := s.connect(v, "p")
		for range 2 { // the id can be used again
			for k := range 3 {
				p := publish("t", "x", 2, 7)
				p.Dup = k > 0
				c.send(p)
				c.ack(packet.TypePubrec, 7, packet.Success)
			}
			c.send(&packet.Ack{Kind: packet.TypePubrel, PacketID: 7})
			c.ack(packet.TypePubcomp, 7, packet.Success)
		}
		unknown := packet.PacketIDNotFound
		if v == packet.V311 {
			unknown = packet.Success
		}
		c.send(&packet.Ack{Kind: packet.TypePubrel, PacketID: 7})
		c.ack(packet.TypePubcomp, 7, unknown)
		r := s.bus.records()
		if len(r) != 2 || r[0].Event.ID == r[1].Event.ID {
			t.Fatalf("%d stored, want 2 with different ids", len(r))
		}
	})
}

// A repeat that comes while the first is not committed yet waits for it.
func TestQoS2RepeatedBeforeTheCommit(t *testing.T) {
	s := start(t)
	s.bus.set(func() { s.bus.hold = true })
	c := s.connect(packet.V5, "p")
	c.send(publish("t", "x", 2, 7), publish("t", "x", 2, 7))
	c.nothing()
	s.bus.release(-1)
	c.ack(packet.TypePubrec, 7, packet.Success)
	c.ack(packet.TypePubrec, 7, packet.Success)
	s.bus.set(func() { s.bus.hold = true })
	c.send(publish("t", "x", 2, 8), &packet.Ack{Kind: packet.TypePubrel, PacketID: 8})
	c.closed(packet.ProtocolError) // no PUBREC, so no PUBREL yet
	s.bus.release(-1)
}

func TestWhatBecomesOfAPublish(t *testing.T) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 8, time.UTC)
	ps := packet.Properties(nil).AppendInt(packet.TopicAlias, 1).AppendString(packet.ContentType, "text/plain").AppendUser("b", "1").AppendUser("a", "2").AppendUser("b", "1")
	kept := packet.Properties(nil).AppendString(packet.ContentType, "text/plain").AppendUser("b", "1").AppendUser("a", "2").AppendUser("b", "1")
	ce := packet.Properties(nil).AppendString(packet.ContentType, "application/cloudevents+json; charset=utf-8")
	doc := `{"specversion":"1.0","id":"i","source":"s","type":"t","datacontenttype":"application/json","data":{"a":1}}`
	tests := []struct {
		name string
		v    packet.Version
		p    *packet.Publish
		want event.Record
	}{
		{"v3", packet.V311, publish("fleet/17", `{"temperature":9}`, 1, 1), event.Record{
			Event: event.Event{Source: "mqtt://gw/box%2017", Type: "io.rialto.mqtt.publish", Subject: "fleet/17", Time: now, DataContentType: "application/json", Data: []byte(`{"temperature":9}`)},
			MQTT:  &event.Origin{Topic: "fleet/17", Client: "box 17", Principal: "box", QoS: 1, Version: 4}, Minted: true}},
		{"v3 retained", packet.V311, &packet.Publish{Topic: []byte("t"), Retain: true, Payload: []byte{}}, event.Record{
			Event: event.Event{Source: "mqtt://gw/box%2017", Type: "io.rialto.mqtt.publish", Subject: "t", Time: now},
			MQTT:  &event.Origin{Topic: "t", Client: "box 17", Principal: "box", Retain: true, Version: 4}, Minted: true}},
		{"v5 with properties", packet.V5, &packet.Publish{Topic: []byte("é/x"), QoS: 2, PacketID: 9, Properties: ps, Payload: []byte("21.5")}, event.Record{
			Event: event.Event{Source: "mqtt://gw/box%2017", Type: "io.rialto.mqtt.publish", Subject: "é/x", Time: now, DataContentType: "text/plain", Data: []byte("21.5")},
			MQTT:  &event.Origin{Topic: "é/x", Client: "box 17", Principal: "box", QoS: 2, Version: 5, Properties: kept}, Minted: true}},
		{"structured CloudEvent", packet.V5, &packet.Publish{Topic: []byte("ce"), QoS: 1, PacketID: 9, Properties: ce, Payload: []byte(doc)}, event.Record{
			Event: event.Event{ID: "i", Source: "s", Type: "t", DataContentType: "application/json", Data: []byte(`{"a":1}`)},
			MQTT:  &event.Origin{Topic: "ce", Client: "box 17", Principal: "box", QoS: 1, Version: 5, Properties: ce}}},
	}
	dir := mqttgw.NewDirectory()
	dir.Set("box", device(t, `{"name":"box","password":{"value":"p"}}`))
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := start(t, func(o *mqttgw.Options) { o.Directory, o.Now = dir, func() time.Time { return now } })
			c := s.connect(tt.v, "box 17", credentials("box", "p"))
			c.send(tt.p)
			c.send(&packet.Ping{Kind: packet.TypePingreq})
			for {
				if _, pong := c.next().(*packet.Ping); pong {
					break
				}
			}
			got := s.bus.records()
			if len(got) != 1 {
				t.Fatalf("%d stored, want 1", len(got))
			}
			tt.want.Received = now
			if tt.want.Minted {
				if got[0].Event.ID == "" {
					t.Error("no id")
				}
				tt.want.Event.ID = got[0].Event.ID
			}
			if d := cmp.Diff(&tt.want, got[0], cmpopts.EquateEmpty()); d != "" {
				t.Errorf("record (-want +got):\n%s", d)
			}
		})
	}
}

func TestRefusedPublishes(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s := start(t, func(o *mqttgw.Options) { o.Registerer = reg })
	five := s.connect(packet.V5, "five")
	bad := packet.Properties(nil).AppendString(packet.ContentType, "application/cloudevents+json")
	for i, tt := range []struct {
		p    *packet.Publish
		want packet.Reason
	}{
		{publish("$SYS/x", "", 1, 1), packet.NotAuthorized},
		{publish(strings.Repeat("x", 1025), "", 1, 1), packet.TopicNameInvalid},
		{publish(strings.Repeat("/", 32), "", 2, 1), packet.TopicNameInvalid},
		{&packet.Publish{Topic: []byte("t"), QoS: 1, PacketID: 1, Properties: bad, Payload: []byte("{")}, packet.PayloadFormatInvalid},
	} {
		five.send(tt.p)
		kind := packet.TypePuback
		if tt.p.QoS == 2 {
			kind = packet.TypePubrec
		}
		five.ack(kind, 1, tt.want)
		quiet := *tt.p
		quiet.QoS, quiet.PacketID = 0, 0
		five.send(&quiet) // QoS 0: counted, and nothing to say
		five.nothing()
		three := s.connect(packet.V311, fmt.Sprint("three", i))
		if tt.want != packet.PayloadFormatInvalid { // 3.1.1 cannot announce a CloudEvent
			three.send(tt.p)
			three.closed(0)
		}
	}
	if r := s.bus.records(); len(r) != 0 {
		t.Errorf("%d stored", len(r))
	}
	if got := metric(t, reg, "rialto_mqtt_publishes_total", "0", "refused"); got != 4 {
		t.Errorf("QoS 0 refused: %v, want 4", got)
	}
	retained := s.connect(packet.V5, "retained")
	retained.send(&packet.Publish{Topic: []byte("t"), Retain: true})
	retained.closed(packet.RetainNotSupported)
}

func TestReasonStrings(t *testing.T) {
	bad := packet.Properties(nil).AppendString(packet.ContentType, "application/cloudevents+json")
	for want, ps := range map[bool]packet.Properties{true: nil, false: packet.Properties(nil).AppendInt(packet.RequestProblemInfo, 0)} {
		s := start(t)
		c := s.connect(packet.V5, "c", props(ps))
		c.send(&packet.Publish{Topic: []byte("t"), QoS: 1, PacketID: 1, Properties: bad, Payload: []byte(`{"specversion":"1.0","id":"","source":"s","type":"t"}`)})
		a := recv[*packet.Ack](c)
		if got := string(a.Properties.Bytes(packet.ReasonString)); a.Code != packet.PayloadFormatInvalid || strings.Contains(got, "id") != want {
			t.Errorf("PUBACK %v %q, want the attribute named: %v", a.Code, got, want)
		}
		c.raw([]byte("\x82\x06\x00\x01\x00\x00\x01a"))
		d := recv[*packet.Disconnect](c)
		if got := string(d.Properties.Bytes(packet.ReasonString)); d.Code != packet.MalformedPacket || (got != "") != want {
			t.Errorf("DISCONNECT %v %q", d.Code, got)
		}
	}
}

func TestTopicAliases(t *testing.T) {
	alias := func(topic string, n uint32) *packet.Publish {
		return &packet.Publish{Topic: []byte(topic), QoS: 1, PacketID: 1, Properties: packet.Properties(nil).AppendInt(packet.TopicAlias, n)}
	}
	s := start(t)
	c := s.connect(packet.V5, "a")
	for _, p := range []*packet.Publish{alias("one", 1), alias("", 1), alias("two", 1), alias("", 1), alias("three", 16)} {
		c.send(p)
		c.ack(packet.TypePuback, 1, packet.Success)
	}
	var got []string
	for _, r := range s.bus.records() {
		got = append(got, r.MQTT.Topic)
	}
	if d := cmp.Diff([]string{"one", "one", "two", "two", "three"}, got); d != "" {
		t.Error(d)
	}
	for name, tt := range map[string]struct {
		p    *packet.Publish
		want packet.Reason
	}{"never set": {alias("", 5), packet.ProtocolError}, "0": {alias("t", 0), packet.TopicAliasInvalid}, "above the maximum": {alias("t", 17), packet.TopicAliasInvalid}} {
		c := s.connect(packet.V5, name)
		c.send(tt.p)
		c.closed(tt.want)
	}
}

func TestAcksCarryNothingOfThePublish(t *testing.T) {
	s := start(t)
	c := s.connect(packet.V5, "a")
	ps := packet.Properties(nil).AppendString(packet.ContentType, "text/plain").AppendUser("mine", "1")
	c.send(&packet.Publish{Topic: []byte("t"), QoS: 1, PacketID: 1, Properties: ps}, &packet.Publish{Topic: []byte("t"), QoS: 2, PacketID: 2, Properties: ps})
	for range 2 {
		if a := recv[*packet.Ack](c); len(a.Properties) != 0 || a.Code != 0 {
			t.Errorf("%v %v with properties %q", a.Kind, a.Code, a.Properties)
		}
	}
}
