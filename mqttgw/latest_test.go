// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

func (c *client) subscribeOrder(order string, qos byte, filters ...string) *packet.Suback {
	c.t.Helper()
	p := &packet.Subscribe{PacketID: 1}
	if order != "" {
		p.Properties = p.Properties.AppendUser("rialto-order", order)
	}
	for _, f := range filters {
		p.Filters = append(p.Filters, packet.Subscription{Filter: []byte(f), QoS: qos})
	}
	c.send(p)
	return recv[*packet.Suback](c)
}

// behind has a session that gets the latest first, with older messages waiting for it, of which it has most in flight.
func behind(t *testing.T, w *world, order string, older int, most uint32) (c, p *client) {
	t.Helper()
	c = w.now.resume(packet.V5, "c", false, receiving(most))
	if ack := c.subscribeOrder(order, 1, "t"); ack.Codes[0] != 1 {
		t.Fatalf("SUBACK %v", ack.Codes)
	}
	c.leave()
	p = w.now.connect(packet.V5, "p")
	for n := range older {
		p.publish("t", fmt.Sprint(n))
	}
	w.delivered()
	return w.now.resume(packet.V5, "c", true, receiving(most)), p
}

// delivered waits until what is stored was offered to subscribers: then it is not new any more.
func (w *world) delivered() {
	w.t.Helper()
	if err := w.now.gateway.Delivered(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// A session that is behind gets a new message at once, and everything else once and in order, also when its client comes
// back or the process is restarted in the middle.
func TestLatestFirst(t *testing.T) {
	for _, cold := range []bool{false, true} {
		for _, end := range []string{"", "return", "restart"} {
			t.Run(fmt.Sprint("cold ", cold, " ", end), func(t *testing.T) {
				w := newWorld(t, func(o *mqttgw.Options) { o.Limits.MaxWaiting = 5 })
				w.bus.cold = cold
				const older, most = 200, 10
				c, p := behind(t, w, "latest-first", older, most)
				var held []packet.Packet
				for n := range most / 2 {
					m := recv[*packet.Publish](c)
					if string(m.Payload) != fmt.Sprint(n) {
						t.Fatalf("got %q, want %d", m.Payload, n)
					}
					held = append(held, &packet.Ack{Kind: packet.TypePuback, PacketID: m.PacketID})
				}
				c.nothing() // the other half is for new ones
				var late []string
				for n := range most/2 + 3 {
					late = append(late, fmt.Sprint("new ", n))
					p.publish("t", late[n])
				}
				for n := range most / 2 {
					m := recv[*packet.Publish](c)
					if string(m.Payload) != late[n] {
						t.Fatalf("got %q, want %q", m.Payload, late[n])
					}
					held = append(held, &packet.Ack{Kind: packet.TypePuback, PacketID: m.PacketID})
				}
				w.delivered()
				c.nothing()
				c.send(held...)
				switch end {
				case "return":
					c.leave()
					c = w.now.resume(packet.V5, "c", true, receiving(most))
				case "restart":
					c.leave()
					w.restart()
					c = w.now.resume(packet.V5, "c", true, receiving(most))
				}
				want := append(numbers(older)[most/2:], late[most/2:]...) // those for which there was no place wait their turn
				if got := c.payloads(len(want)); !slices.Equal(got, want) {
					t.Errorf("got %q", got)
				}
				c.nothing()
			})
		}
	}
}

// Without the wish, with a place for one only, and with QoS 2, the order is that of the log.
func TestOrderOfTheLog(t *testing.T) {
	for _, tt := range []struct {
		order string
		qos   byte
		most  uint32
	}{{"", 1, 10}, {"log", 1, 10}, {"latest-first", 1, 1}, {"latest-first", 2, 10}} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			w := newWorld(t)
			c := w.now.resume(packet.V5, "c", false, receiving(tt.most))
			c.subscribeOrder(tt.order, tt.qos, "t")
			c.leave()
			p := w.now.connect(packet.V5, "p")
			for n := range 30 {
				p.publish2("t", fmt.Sprint(n))
			}
			c = w.now.resume(packet.V5, "c", true, receiving(tt.most))
			p.publish2("t", "30")
			if got := c.payloads(31); !slices.Equal(got, numbers(31)) {
				t.Errorf("got %q", got)
			}
		})
	}
}

// The operator says it for clients that cannot.
func TestLatestFirstByPolicy(t *testing.T) {
	p, err := mqttgw.ParsePolicy([]byte(`{"name":"default","access":{"publish":["#"],"subscribe":["#"],"latestFirst":["state/${clientid}/#"]}}`))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(o *mqttgw.Options) {
		o.Directory = mqttgw.NewDirectory()
		o.Directory.SetPolicy("default", p)
		o.Limits.MaxInFlight = 4
	})
	c := w.now.resume(packet.V311, "c", false)
	c.subscribe(1, "state/c/+", "log/#")
	c.leave()
	pub := w.now.connect(packet.V5, "p")
	for n := range 20 {
		pub.publish("state/c/x", fmt.Sprint(n))
		pub.publish("log/x", fmt.Sprint("l", n))
	}
	w.delivered()
	c = w.now.resume(packet.V311, "c", true)
	got := []string{string(recv[*packet.Publish](c).Payload), string(recv[*packet.Publish](c).Payload)}
	c.nothing()
	pub.publish("log/x", "l20")
	pub.publish("state/c/x", "new")
	got = append(got, string(recv[*packet.Publish](c).Payload))
	if want := []string{"0", "l0", "new"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// An order that does not exist is refused, and the client is told which do.
func TestUnknownOrder(t *testing.T) {
	w := newWorld(t)
	ack := w.now.connect(packet.V5, "c").subscribeOrder("newest", 1, "t", "+bad")
	if want := []packet.Reason{packet.ImplementationError, packet.TopicFilterInvalid}; !slices.Equal(ack.Codes, want) {
		t.Errorf("SUBACK %v, want %v", ack.Codes, want)
	}
	if why := string(ack.Properties.Bytes(packet.ReasonString)); why != "user property rialto-order must be latest-first or log" {
		t.Errorf("reason %q", why)
	}
}
