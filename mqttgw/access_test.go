// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/internal/secret/token"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// defined makes a directory of documents; each is a device unless its kind says otherwise.
func defined(t testing.TB, docs ...string) *mqttgw.Directory {
	t.Helper()
	d := mqttgw.NewDirectory()
	for _, doc := range docs {
		define(t, d, doc)
	}
	return d
}

func define(t testing.TB, d *mqttgw.Directory, doc string) {
	t.Helper()
	if dev, err := mqttgw.ParseDevice([]byte(doc)); err == nil {
		d.Set(dev.Name, dev)
		return
	}
	if s, err := mqttgw.ParseIssuer([]byte(doc), token.Env{}); err == nil {
		d.SetIssuer(s.Name, s)
		return
	}
	p, err := mqttgw.ParsePolicy([]byte(doc))
	if err != nil {
		t.Fatalf("%s is no document: %v", doc, err)
	}
	d.SetPolicy(p.Name, p)
}

func with(d *mqttgw.Directory) setup {
	return func(o *mqttgw.Options) { o.Directory, o.Anonymous = d, false }
}

const ownTopics = `{"kind":"DevicePolicy","name":"own","access":{"publish":["dev/${clientid}/#"],"subscribe":["dev/${clientid}/#"]}}`

func TestPublishNeedsTheRight(t *testing.T) {
	d := defined(t, ownTopics, `{"name":"p","password":{"value":"x"},"policy":"own"}`, `{"name":"s","password":{"value":"x"}}`)
	versions(t, func(t *testing.T, v packet.Version) {
		reg := prometheus.NewRegistry()
		s := start(t, with(d), func(o *mqttgw.Options) { o.Registerer = reg })
		watch := s.connect(v, "watch", credentials("s", "x"))
		watch.subscribe(1, "#")
		c := s.connect(v, "1", credentials("p", "x"))
		c.publish("dev/1/t", "mine")
		c.send(publish("dev/2/t", "not mine", 0, 0))
		c.send(publish("dev/2/t", "not mine", 1, 9))
		if v == packet.V5 {
			c.ack(packet.TypePuback, 9, packet.NotAuthorized)
			c.publish("dev/1/t", "mine again")
			for range 2 { // the packet id is free again, and what is allowed may have it
				c.send(publish("dev/2/t", "not mine", 2, 8))
				c.ack(packet.TypePubrec, 8, packet.NotAuthorized)
			}
			c.send(publish("dev/1/t", "exactly mine", 2, 8))
			c.ack(packet.TypePubrec, 8, packet.Success)
		} else {
			c.closed(packet.NotAuthorized) // 3.1.1 has no way to refuse a PUBLISH
		}
		if m := watch.message(); string(m.Payload) != "mine" {
			t.Errorf("%s %s arrived", m.Topic, m.Payload)
		}
		if n := metric(t, reg, "rialto_mqtt_publishes_total", "0", "refused"); n != 1 {
			t.Errorf("%v refused with QoS 0, want 1", n)
		}
		for _, r := range s.bus.records() {
			if r.MQTT.Topic != "dev/1/t" {
				t.Errorf("%s is stored", r.MQTT.Topic)
			}
		}
	})
}

func TestSubscribeNeedsTheRight(t *testing.T) {
	d := defined(t, ownTopics, `{"name":"p","password":{"value":"x"},"policy":"own"}`)
	versions(t, func(t *testing.T, v packet.Version) {
		s := start(t, with(d))
		c := s.connect(v, "1", credentials("p", "x"))
		denied := packet.NotAuthorized
		if v != packet.V5 {
			denied = packet.UnspecifiedError // 0x80, the failure of 3.1.1
		}
		p := &packet.Subscribe{PacketID: 3}
		for _, f := range []string{"#", "dev/1/#", "dev/+/t", "dev/2/t", "dev/1/t"} {
			p.Filters = append(p.Filters, packet.Subscription{Filter: []byte(f), QoS: 1})
		}
		c.send(p)
		ack := recv[*packet.Suback](c)
		for i, want := range []packet.Reason{denied, 1, denied, denied, 1} {
			if ack.Codes[i] != want {
				t.Errorf("SUBACK %v for %s, want %v", ack.Codes[i], p.Filters[i].Filter, want)
			}
		}
	})
}

func TestReceiveIsNarrowerThanSubscribe(t *testing.T) {
	d := defined(t, `{"name":"p","password":{"value":"x"},"access":{"publish":["#"],"subscribe":["#"],"receive":["a/+"]}}`)
	s := start(t, with(d))
	c := s.connect(packet.V5, "1", credentials("p", "x"))
	c.subscribe(1, "#")
	c.publish("b", "no")
	c.publish("a/x", "yes")
	if m := c.message(); string(m.Payload) != "yes" {
		t.Errorf("%s arrived", m.Topic)
	}
	c.nothing()
}

func TestWillNeedsTheRight(t *testing.T) {
	d := defined(t, `{"name":"p","password":{"value":"x"},"access":{"publish":["#"],"will":["lost/${clientid}"],"subscribe":["#"]}}`)
	versions(t, func(t *testing.T, v packet.Version) {
		s := start(t, with(d))
		watch := s.connect(v, "watch", credentials("p", "x"))
		watch.subscribe(0, "#")
		will := func(topic string) func(*packet.Connect) {
			return func(p *packet.Connect) { p.Will = &packet.Will{Topic: []byte(topic), Payload: []byte("gone")} }
		}
		_, ack := s.tryConnect(v, "1", credentials("p", "x"), will("lost/2"))
		want := packet.NotAuthorized
		if v != packet.V5 {
			want = 5
		}
		if ack.Code != want {
			t.Errorf("CONNACK %v, want %v", ack.Code, want)
		}
		c := s.connect(v, "1", credentials("p", "x"), will("lost/1"))
		c.Close()
		if m := watch.message(); string(m.Topic) != "lost/1" {
			t.Errorf("will on %s", m.Topic)
		}
	})
}

func TestWillLosesItsRightWhileConnected(t *testing.T) {
	d := defined(t, ownTopics, `{"name":"p","password":{"value":"x"},"policy":"own"}`, `{"name":"s","password":{"value":"x"}}`)
	s := start(t, with(d))
	watch := s.connect(packet.V5, "watch", credentials("s", "x"))
	watch.subscribe(0, "#")
	c := s.connect(packet.V5, "1", credentials("p", "x"), func(p *packet.Connect) { p.Will = &packet.Will{Topic: []byte("dev/1/x")} })
	c.subscribe(1, "dev/1/in")
	define(t, d, `{"kind":"DevicePolicy","name":"own","access":{"publish":["other"]}}`)
	d.Enforce()
	c.send(publish("dev/1/t", "", 1, 4))
	c.ack(packet.TypePuback, 4, packet.NotAuthorized)
	c.publish("other", "allowed now")
	if m := watch.message(); string(m.Topic) != "other" {
		t.Errorf("%s arrived", m.Topic)
	}
	// The subscription stands, the right does not.
	s.connect(packet.V5, "p", credentials("s", "x")).publish("dev/1/in", "x")
	watch.message()
	c.nothing()
	c.Close()
	s.stop()
	if n := len(s.bus.records()); n != 2 {
		t.Errorf("%d stored, want 2: the will is not allowed any more", n)
	}
}

// Values are literals: they never widen what a template says.
func TestTemplateValuesAreLiterals(t *testing.T) {
	d := defined(t, ownTopics, `{"name":"p","password":{"value":"x"},"policy":"own"}`,
		`{"name":"site","password":{"value":"x"},"attributes":{"site":"+"},"access":{"publish":["${attr.site}/t"]}}`,
		`{"name":"none","password":{"value":"x"},"access":{"publish":["${attr.site}/t"]}}`,
		`{"name":"nobody","password":{"value":"x"},"access":{"connect":["${attr.site}*"]}}`,
		`{"name":"free","password":{"value":"x"},"access":{"publish":["t"]}}`)
	s := start(t, with(d))
	if _, ack := s.tryConnect(packet.V5, "any", credentials("nobody", "x")); ack.Code != packet.ClientIDInvalid {
		t.Errorf("a client id without the attribute that it has to begin with: CONNACK %v, want 0x85", ack.Code)
	}
	for _, id := range []string{"+", "#", "a/b", "$SYS", "$share"} {
		if _, ack := s.tryConnect(packet.V5, id, credentials("p", "x")); ack.Code != packet.ClientIDInvalid {
			t.Errorf("client id %q: CONNACK %v, want 0x85", id, ack.Code)
		}
		if _, ack := s.tryConnect(packet.V5, id, credentials("free", "x")); ack.Code != packet.Success {
			t.Errorf("client id %q, which stands in no template: CONNACK %v", id, ack.Code)
		}
	}
	for _, user := range []string{"site", "none"} {
		if _, ack := s.tryConnect(packet.V5, "c", credentials(user, "x")); ack.Code != packet.NotAuthorized {
			t.Errorf("%s: CONNACK %v, want 0x87", user, ack.Code)
		}
	}
}

// What one device may publish and another may receive is nobody else's matter, by whatever they show who they are. Neither has a right
// but that to the topic: acknowledgements need none.
func TestTwoPrincipals(t *testing.T) {
	ca := newAuthority(t)
	d := defined(t, `{"name":"p","password":{"value":"x"},"clientIds":["c"],"access":{"publish":["t"]}}`,
		`{"name":"s","password":{"value":"x"},"clientIds":["c"],"access":{"subscribe":["t"]}}`)
	for name, of := range map[string]func() func(who string, v packet.Version) *client{
		"passwords": func() func(string, packet.Version) *client {
			s := start(t, with(d))
			return func(who string, v packet.Version) *client { return s.connect(v, "c", credentials(who, "x")) }
		},
		"certificates": func() func(string, packet.Version) *client {
			s := startTLS(t, ca, tls.RequireAndVerifyClientCert, with(d))
			return func(who string, v packet.Version) *client {
				s.dial = func() (net.Conn, error) { return ca.dial(s.ln.Addr(), ca.client("", "", who)) }
				return s.connect(v, "c")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			connect := of()
			versions(t, func(t *testing.T, v packet.Version) {
				sub := connect("s", v)
				sub.subscribe(1, "t")
				pub := connect("p", v) // the same client id, which belongs to its principal
				for k := range 10 {
					pub.publish("t", fmt.Sprint(k))
					if m := sub.message(); string(m.Payload) != fmt.Sprint(k) || m.QoS != 1 {
						t.Errorf("got %+v", m)
					}
				}
				pub.publish2("t", "twice acknowledged")
				if m := sub.message(); string(m.Payload) != "twice acknowledged" || m.QoS != 1 {
					t.Errorf("got %+v", m)
				}
				pub.nothing()
				sub.nothing()
				if v == packet.V5 { // and neither has the other's right
					sub.send(publish("t", "x", 1, 5))
					sub.ack(packet.TypePuback, 5, packet.NotAuthorized)
				}
				pub.send(&packet.Subscribe{PacketID: 1, Filters: []packet.Subscription{{Filter: []byte("t"), QoS: 1}}})
				if code := recv[*packet.Suback](pub).Codes[0]; !code.Failed() {
					t.Errorf("the publisher may subscribe: %v", code)
				}
			})
		})
	}
}

func TestPolicyOfClientsWithoutOne(t *testing.T) {
	d := defined(t, `{"name":"p","password":{"value":"x"}}`)
	s := start(t, with(d), func(o *mqttgw.Options) { o.Anonymous = true })
	dev, anybody := s.connect(packet.V5, "1", credentials("p", "x")), s.connect(packet.V5, "2")
	dev.publish("anywhere", "x")
	anybody.publish("anywhere", "x")
	define(t, d, `{"kind":"DevicePolicy","name":"default","access":{"publish":["dev/${clientid}"]}}`)
	d.Enforce()
	for _, c := range []*client{dev, anybody} {
		c.send(publish("anywhere", "x", 1, 5))
		c.ack(packet.TypePuback, 5, packet.NotAuthorized)
	}
	anybody.publish("dev/2", "x")
	// A policy that is named and not there allows nothing.
	define(t, d, `{"name":"p","password":{"value":"x"},"policy":"gone"}`)
	d.Enforce()
	dev.send(publish("dev/1", "x", 1, 6))
	dev.ack(packet.TypePuback, 6, packet.NotAuthorized)
}

func TestBlockedAndDeletedDevicesAreCut(t *testing.T) {
	d := defined(t, `{"name":"p","password":{"value":"x"}}`, `{"name":"q","password":{"value":"x"}}`)
	versions(t, func(t *testing.T, v packet.Version) {
		s := start(t, with(d))
		p, q := s.connect(v, "1", credentials("p", "x")), s.connect(v, "1", credentials("q", "x"))
		define(t, d, `{"name":"p","password":{"value":"x"},"blocked":true}`)
		d.Remove("q")
		d.Enforce()
		p.closed(packet.AdministrativeAction)
		q.closed(packet.AdministrativeAction)
		banned, unknown := packet.Banned, packet.BadUserOrPassword
		if v != packet.V5 {
			banned, unknown = 5, 4
		}
		if _, ack := s.tryConnect(v, "1", credentials("p", "x")); ack.Code != banned {
			t.Errorf("blocked: CONNACK %v, want %v", ack.Code, banned)
		}
		if _, ack := s.tryConnect(v, "1", credentials("q", "x")); ack.Code != unknown {
			t.Errorf("deleted: CONNACK %v, want %v", ack.Code, unknown)
		}
		define(t, d, `{"name":"p","password":{"value":"x"}}`)
		define(t, d, `{"name":"q","password":{"value":"x"}}`)
		s.connect(v, "1", credentials("p", "x"))
	})
}

func TestPublishQuota(t *testing.T) {
	reg := prometheus.NewRegistry()
	d := defined(t, `{"name":"p","password":{"value":"x"},"publishRate":{"perSecond":0.001,"burst":2}}`,
		`{"name":"fast","password":{"value":"x"},"publishRate":{"perSecond":200,"burst":1}}`)
	s := start(t, with(d), func(o *mqttgw.Options) { o.Registerer = reg })
	c := s.connect(packet.V5, "1", credentials("p", "x"))
	c.publish("t", "1")
	c.publish("t", "2")
	c.send(publish("t", "3", 1, 3), publish("t", "4", 2, 4), publish("t", "5", 0, 0))
	c.ack(packet.TypePuback, 3, packet.QuotaExceeded)
	c.ack(packet.TypePubrec, 4, packet.QuotaExceeded)
	c.nothing()
	if n := metric(t, reg, "rialto_mqtt_publishes_total", "0", "refused"); n != 1 {
		t.Errorf("%v refused with QoS 0, want 1", n)
	}
	// 3.1.1 is slowed down, and everything is stored.
	old := s.connect(packet.V311, "1", credentials("fast", "x"))
	for i := range uint16(20) {
		old.send(publish("t", "x", 1, i+1))
	}
	for i := range uint16(20) {
		old.ack(packet.TypePuback, i+1, packet.Success)
	}
}

// A device has one quota, however often it connects and with however many client ids. Who is no device has one for each client id.
func TestPublishQuotaIsOfTheDevice(t *testing.T) {
	d := defined(t, `{"name":"p","password":{"value":"x"},"publishRate":{"perSecond":0.001,"burst":4}}`,
		`{"name":"old","password":{"value":"x"},"publishRate":{"perSecond":200,"burst":1}}`,
		`{"kind":"DevicePolicy","name":"default","publishRate":{"perSecond":0.001,"burst":1}}`)
	s := start(t, func(o *mqttgw.Options) { o.Directory = d })
	login := credentials("p", "x")
	s.connect(packet.V5, "1", login).publish("t", "1")
	one := s.connect(packet.V5, "1", login) // takes the client id over
	one.publish("t", "2")
	two := s.connect(packet.V5, "2", login)
	two.publish("t", "3")
	one.publish("t", "4")
	two.send(publish("t", "5", 1, 5))
	two.ack(packet.TypePuback, 5, packet.QuotaExceeded)
	for _, c := range []*client{one, two} {
		c.send(&packet.Disconnect{Kind: packet.TypeDisconnect})
		c.drain()
	}
	three := s.connect(packet.V5, "3", login)
	three.send(publish("t", "6", 1, 6))
	three.ack(packet.TypePuback, 6, packet.QuotaExceeded)
	// Another rate is another quota.
	define(t, d, `{"name":"p","password":{"value":"x"},"publishRate":{"perSecond":0.001,"burst":2}}`)
	d.Enforce()
	three.publish("t", "7")

	s.connect(packet.V5, "a").publish("t", "1")
	again := s.connect(packet.V5, "a")
	again.send(publish("t", "2", 1, 8))
	again.ack(packet.TypePuback, 8, packet.QuotaExceeded)
	s.connect(packet.V5, "b").publish("t", "1")

	// 3.1.1 clients wait for each other.
	began := time.Now()
	old := []*client{s.connect(packet.V311, "1", credentials("old", "x")), s.connect(packet.V311, "2", credentials("old", "x"))}
	for i := range uint16(10) {
		for _, c := range old {
			c.send(publish("t", "x", 1, i+1))
		}
	}
	for i := range uint16(10) {
		for _, c := range old {
			c.ack(packet.TypePuback, i+1, packet.Success)
		}
	}
	if d := time.Since(began); d < 90*time.Millisecond {
		t.Errorf("20 messages at 200 a second took %s", d)
	}
}
