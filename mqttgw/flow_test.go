// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// The steps of a QoS 2 delivery, in the right order and in wrong ones.
func TestQoS2Delivery(t *testing.T) {
	for _, kept := range []bool{false, true} {
		versions(t, func(t *testing.T, v packet.Version) {
			w := newWorld(t)
			c := w.now.connect(v, "c", func(p *packet.Connect) {
				if kept {
					keep(p)
				}
			})
			c.subscribe(2, "t")
			p := w.now.connect(packet.V5, "p")
			p.publish2("t", "x")
			m := recv[*packet.Publish](c)
			if m.QoS != 2 || m.Dup {
				t.Fatalf("got %+v", m)
			}
			c.send(&packet.Ack{Kind: packet.TypePuback, PacketID: m.PacketID}, &packet.Ack{Kind: packet.TypePubcomp, PacketID: m.PacketID}) // not yet: passed over
			for range 2 {                                                                                                                   // PUBREC may come again
				c.send(&packet.Ack{Kind: packet.TypePubrec, PacketID: m.PacketID})
				c.ack(packet.TypePubrel, m.PacketID, packet.Success)
			}
			c.send(&packet.Ack{Kind: packet.TypePubcomp, PacketID: m.PacketID})
			unknown := packet.PacketIDNotFound
			if v == packet.V311 {
				unknown = packet.Success
			}
			c.send(&packet.Ack{Kind: packet.TypePubrec, PacketID: 4711})
			c.ack(packet.TypePubrel, 4711, unknown)
			if v == packet.V5 {
				p.publish2("t", "refused")
				m = recv[*packet.Publish](c)
				c.send(&packet.Ack{Kind: packet.TypePubrec, PacketID: m.PacketID, Code: packet.QuotaExceeded})
			}
			c.nothing()
		})
	}
}

// A QoS 2 message of a kept session is written down before it is sent, and so is its release.
func TestQoS2IsWrittenDownFirst(t *testing.T) {
	w := newWorld(t)
	c := w.now.resume(packet.V5, "c", false)
	c.subscribe(2, "t")
	p := w.now.connect(packet.V5, "p")
	w.log.set(func() { w.log.hold = true })
	p.publish2("t", "x") // p has no session that would be written down
	c.nothing()
	w.log.release()
	m := recv[*packet.Publish](c)
	w.log.set(func() { w.log.hold = true })
	c.send(&packet.Ack{Kind: packet.TypePubrec, PacketID: m.PacketID})
	c.nothing()
	w.log.release()
	c.ack(packet.TypePubrel, m.PacketID, packet.Success)
	c.send(publish("u", "y", 2, 5))
	c.ack(packet.TypePubrec, 5, packet.Success)
	w.log.set(func() { w.log.hold = true })
	c.send(&packet.Ack{Kind: packet.TypePubrel, PacketID: 5}, publish("u", "z", 2, 6))
	c.nothing()
	w.log.release()
	c.ack(packet.TypePubcomp, 5, packet.Success)
	c.ack(packet.TypePubrec, 6, packet.Success)
}

// The server uses as many aliases as the client allows, the first time with the topic and then without.
func TestAliasesFromTheServer(t *testing.T) {
	w := newWorld(t)
	c := w.now.connect(packet.V5, "c", props(packet.Properties(nil).AppendInt(packet.TopicAliasMaximum, 2)))
	plain := w.now.connect(packet.V5, "plain")
	c.subscribe(1, "#")
	plain.subscribe(1, "#")
	p := w.now.connect(packet.V5, "p")
	topics := []string{"one/topic", "two/topic", "three/topic"}
	aliases := map[uint32]string{}
	for k := range 9 {
		p.publish(topics[k%3], fmt.Sprint(k))
		m := c.message()
		alias := m.Properties.Int(packet.TopicAlias, 0)
		topic := string(m.Topic)
		switch {
		case k < 2 && (alias == 0 || topic != topics[k]), k%3 == 2 && alias != 0, k > 2 && k%3 != 2 && topic != "":
			t.Errorf("message %d: topic %q, alias %d", k, topic, alias)
		case topic == "":
			topic = aliases[alias]
		case alias > 0:
			aliases[alias] = topic
		}
		if topic != topics[k%3] || alias > 2 {
			t.Errorf("message %d came under %q, alias %d", k, topic, alias)
		}
		if m := plain.message(); string(m.Topic) != topics[k%3] || m.Properties.Int(packet.TopicAlias, 0) != 0 {
			t.Errorf("without aliases: %+v", m)
		}
	}
}

func TestResponseInformation(t *testing.T) {
	w := newWorld(t)
	for want, ps := range map[string]packet.Properties{"response/c": packet.Properties(nil).AppendInt(packet.RequestResponseInfo, 1), "": nil} {
		_, ack := w.now.tryConnect(packet.V5, "c", props(ps))
		if got := string(ack.Properties.Bytes(packet.ResponseInfo)); got != want {
			t.Errorf("Response Information %q, want %q", got, want)
		}
	}
}

// A return with a smaller Receive Maximum gets what was in flight as it acknowledges.
func TestSmallerReceiveMaximumOnReturn(t *testing.T) {
	w := newWorld(t)
	c := w.now.resume(packet.V5, "c", false)
	c.subscribe(1, "t")
	p := w.now.connect(packet.V5, "p")
	for k := range 10 {
		p.publish("t", fmt.Sprint(k))
		recv[*packet.Publish](c)
	}
	c.Close()
	c = w.now.resume(packet.V5, "c", true, func(p *packet.Connect) { p.Properties = p.Properties.AppendInt(packet.ReceiveMaximum, 2) })
	first, second := recv[*packet.Publish](c), recv[*packet.Publish](c)
	c.nothing()
	c.send(&packet.Ack{Kind: packet.TypePuback, PacketID: first.PacketID}, &packet.Ack{Kind: packet.TypePuback, PacketID: second.PacketID})
	if got := c.payloads(8); !slices.Equal(got, numbers(10)[2:]) {
		t.Errorf("then %v", got)
	}
	// And with a smaller Maximum Packet Size what is too large counts as taken.
	p.publish("t", strings.Repeat("x", 500))
	recv[*packet.Publish](c)
	p.publish("t", "small")
	c.Close()
	c = w.now.resume(packet.V5, "c", true, func(p *packet.Connect) { p.Properties = p.Properties.AppendInt(packet.MaximumPacketSize, 100) })
	if got := c.payloads(1); got[0] != "small" {
		t.Errorf("got %q", got)
	}
	c.nothing()
}

// A delivery that has begun is completed after the end of the subscription (MQTT-3.10.4-3).
func TestUnsubscribedButInFlight(t *testing.T) {
	w := newWorld(t)
	c := w.now.resume(packet.V5, "c", false)
	c.subscribe(2, "t")
	w.now.connect(packet.V5, "p").publish2("t", "x")
	m := recv[*packet.Publish](c)
	c.send(&packet.Unsubscribe{PacketID: 1, Filters: [][]byte{[]byte("t")}})
	recv[*packet.Suback](c)
	c.Close()
	c = w.now.resume(packet.V5, "c", true)
	if again := recv[*packet.Publish](c); again.PacketID != m.PacketID || !again.Dup || again.QoS != 2 {
		t.Errorf("got %+v", again)
	}
}
