// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

func receiving(n uint32) func(*packet.Connect) {
	return props(packet.Properties(nil).AppendInt(packet.ReceiveMaximum, n).AppendInt(packet.SessionExpiry, 1000))
}

// What goes down to devices is on no bus, reaches subscribers as everything does, and survives restarts and kills.
func TestMessagesToDevices(t *testing.T) {
	versions(t, func(t *testing.T, v packet.Version) {
		w := newDownWorld(t)
		away := w.now.resume(v, "away", false)
		away.subscribe(2, "#", "$share/g/cmd/#")
		away.leave()
		p := w.now.resume(v, "p", false)
		p.publish("cmd/1", "a")
		p.publish2("cmd/2", "b")
		p.publish("t", "c")
		if n := len(w.bus.records()); n != 2 { // with the mark of the mappings
			t.Errorf("%d events on the bus, want 2", n)
		}
		w.kill()
		w.restart()
		want := []string{"a", "a", "b", "b", "c"}
		got := w.now.resume(v, "away", true).payloads(5)
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// A retained message to devices is one.
func TestRetainedMessageToDevices(t *testing.T) {
	w := newDownWorld(t)
	p := w.now.connect(packet.V5, "p")
	m := publish("cmd/1", "x", 1, 7)
	m.Retain = true
	p.send(m)
	p.ack(packet.TypePuback, 7, packet.Success)
	w.kill()
	c := w.now.connect(packet.V5, "c")
	c.subscribe(1, "cmd/#")
	if got := c.payloads(1); got[0] != "x" {
		t.Errorf("got %q", got)
	}
}

// Messages to devices find room when what comes from devices fills the window, and are first when a session comes back.
func TestDownFindsRoom(t *testing.T) {
	for _, most := range []uint32{1, 2, 3, 8, 100} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			w := newDownWorld(t)
			c := w.now.resume(packet.V5, "c", false, receiving(most))
			c.subscribe(1, "#")
			p := w.now.connect(packet.V5, "p")
			p.publish("cmd/0", "the first") // from here on places are kept
			c.payloads(1)
			for n := range 120 {
				p.publish("t", fmt.Sprint(n))
			}
			reserve := max(1, int(most)/8)
			if most == 1 {
				reserve = 0
			}
			for range int(most) - reserve {
				if m := recv[*packet.Publish](c); string(m.Topic) != "t" {
					t.Fatalf("got %s", m.Topic)
				}
			}
			c.nothing()
			var ids []uint16
			for n := range reserve {
				p.publish("cmd/1", fmt.Sprint(n))
				m := recv[*packet.Publish](c)
				if string(m.Payload) != fmt.Sprint(n) || string(m.Topic) != "cmd/1" {
					t.Fatalf("got %s %q, want message %d to the device", m.Topic, m.Payload, n)
				}
				ids = append(ids, m.PacketID)
			}
			c.nothing() // and not more than the client takes
			for _, id := range ids {
				c.send(&packet.Ack{Kind: packet.TypePuback, PacketID: id})
			}
			c.nothing() // the place stays free
			c.leave()
			watch := w.now.connect(packet.V5, "watch")
			watch.subscribe(0, "cmd/2")
			p.publish("cmd/2", "waits")
			watch.payloads(1) // the tail of DOWN has come to it
			c = w.now.resume(packet.V5, "c", true, receiving(100))
			var before int
			for m := recv[*packet.Publish](c); string(m.Topic) != "cmd/2"; m = recv[*packet.Publish](c) {
				if before++; !m.Dup { // what was in flight comes again
					t.Fatalf("%q came before the message to the device", m.Payload)
				}
			}
			if before > int(most) {
				t.Errorf("%d messages came before the one to the device", before)
			}
		})
	}
}

// What goes down to a device that does not read overtakes what waits to be written to it, between two packets.
func TestDownOvertakes(t *testing.T) {
	reg := prometheus.NewRegistry()
	maps := mqttgw.NewMappings()
	if err := maps.Set(t.Context(), 1, downMappings(t)); err != nil {
		t.Fatal(err)
	}
	s := startPipes(t, func(o *mqttgw.Options) {
		o.Down, o.Mappings, o.Limits.MaxOutbound, o.Registerer = downlinkOn(&memoryLog{}), maps, 2<<20, reg
	})
	c := s.connect(packet.V5, "c", props(packet.Properties(nil).AppendInt(packet.TopicAliasMaximum, 5)))
	c.subscribe(0, "#")
	p := s.connect(packet.V5, "p")
	large := strings.Repeat("x", 10<<10)
	for n := range 150 {
		text := fmt.Sprint(n, " ")
		if n%2 == 0 {
			text += large
		} else {
			text += large[:3000] // is copied
		}
		p.publish("telemetry", text)
	}
	eventually(t, "everything is queued", func() bool { return metric(t, reg, "rialto_mqtt_deliveries_total", "0") == 150 })
	p.publish("cmd/1", "now")
	eventually(t, "the message to the device is queued", func() bool { return metric(t, reg, "rialto_mqtt_deliveries_total", "0") == 151 })
	n, before := 0, 0
	for seen := false; n < 150 || !seen; {
		m := recv[*packet.Publish](c)
		switch {
		case bytes.HasPrefix(m.Payload, fmt.Append(nil, n, " ")):
			if n++; !seen {
				before += len(m.Payload)
			}
		case string(m.Payload) == "now" && string(m.Topic) == "cmd/1":
			seen = true
		default:
			t.Fatalf("got %s %.10q after message %d", m.Topic, m.Payload, n)
		}
	}
	if before > 64<<10+2*len(large) { // the writer has taken as much as that
		t.Errorf("%d bytes came before the message to the device", before)
	}
}
