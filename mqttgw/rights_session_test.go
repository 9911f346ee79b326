// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// What a client may receive when it comes back is what it gets of what waited for it, whatever was allowed before.
func TestRightsOfASessionThatResumes(t *testing.T) {
	const subscriber = `{"name":"s","password":{"value":"x"},"access":{"subscribe":["t/#"]`
	narrow := subscriber + `,"receive":["t/a"]}}`
	wide := subscriber + `,"receive":["t/#"]}}`
	for name, docs := range map[string][2]string{"narrowed": {wide, narrow}, "widened": {narrow, wide}} {
		t.Run(name, func(t *testing.T) {
			d := defined(t, docs[0], `{"name":"p","password":{"value":"x"}}`)
			w := newWorld(t, with(d))
			me := credentials("s", "x")
			c := w.now.resume(packet.V5, "c", false, me)
			c.subscribe(1, "t/#")
			c.leave()
			p := w.now.connect(packet.V5, "p", credentials("p", "x"))
			p.publish("t/a", "1")
			p.publish("t/b", "2")
			define(t, d, docs[1])
			d.Enforce()
			p.publish("t/b", "3")
			p.publish("t/a", "4")
			c = w.now.resume(packet.V5, "c", true, me)
			want := []string{"1", "2", "3", "4"}
			if docs[1] == narrow {
				want = []string{"1", "4"}
			}
			if got := c.payloads(len(want)); !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
			c.nothing()
		})
	}
}

func TestWillOfAKeptSessionLosesItsRight(t *testing.T) {
	d := defined(t, `{"name":"s","password":{"value":"x"},"access":{"publish":["w"]}}`, `{"name":"p","password":{"value":"x"}}`)
	w := newWorld(t, with(d))
	watch := w.now.connect(packet.V5, "watch", credentials("p", "x"))
	watch.subscribe(1, "w")
	lose := func(id string) {
		c := w.now.resume(packet.V5, id, false, credentials("s", "x"), func(p *packet.Connect) {
			p.Will = &packet.Will{Topic: []byte("w"), Payload: []byte(id), QoS: 1, Properties: packet.Properties(nil).AppendInt(packet.WillDelay, 0)}
		})
		if id == "late" {
			define(t, d, `{"name":"s","password":{"value":"x"},"access":{"publish":["other"]}}`)
			d.Enforce()
		}
		c.Close()
	}
	lose("early")
	if m := watch.message(); string(m.Payload) != "early" {
		t.Errorf("will %s", m.Payload)
	}
	lose("late")
	eventually(t, "the end of the connection", func() bool {
		for _, c := range w.now.gateway.Clients("s", false) {
			if c.Online {
				return false
			}
		}
		return true
	})
	watch.nothing()
}

// What a client is subscribed to and may not receive is counted, once for a message however many filters match it.
func TestBarredMessagesAreCounted(t *testing.T) {
	me := credentials("s", "x")
	for name, story := range map[string]func(t *testing.T, w *world, p *client) (want float64){
		"live": func(t *testing.T, w *world, p *client) float64 {
			c := w.now.connect(packet.V5, "c", me)
			c.subscribe(1, "t/#", "t/+", "t/b")
			p.publish("t/b", "1")
			p.send(publish("t/b", "2", 0, 0))
			p.publish("t/a", "3")
			c.payloads(1)
			c.nothing()
			return 2
		},
		"behind": func(t *testing.T, w *world, p *client) float64 {
			c := w.now.connect(packet.V5, "c", me)
			c.subscribe(1, "t/#", "t/+")
			for range 5 { // one in flight, one whose place is kept, the others in the log
				p.publish("t/a", "x")
			}
			p.publish("t/b", "x")
			p.send(publish("t/b", "x", 0, 0))
			p.publish("t/a", "x")
			c.payloads(6)
			return 2
		},
		"away": func(t *testing.T, w *world, p *client) float64 {
			c := w.now.resume(packet.V5, "c", false, me)
			c.subscribe(1, "t/#", "t/+")
			c.leave()
			p.publish("t/b", "1")
			p.publish("t/a", "2")
			c = w.now.resume(packet.V5, "c", true, me)
			c.payloads(1)
			return 1
		},
		"shared": func(t *testing.T, w *world, p *client) float64 {
			for _, id := range []string{"c", "d"} {
				w.now.connect(packet.V5, id, me).subscribe(1, "$share/g/t/#")
			}
			p.publish("t/b", "1")
			return 1
		},
		"retained": func(t *testing.T, w *world, p *client) float64 {
			p.retain("t/b", "1", 1, nil)
			p.retain("t/c", "2", 1, nil)
			p.retain("t/a", "3", 1, nil)
			c := w.now.connect(packet.V5, "c", me)
			c.subscribe(1, "t/#")
			c.payloads(1)
			return 2
		},
	} {
		t.Run(name, func(t *testing.T) {
			reg := prometheus.NewRegistry()
			d := defined(t, `{"name":"s","password":{"value":"x"},"access":{"subscribe":["t/#"],"receive":["t/a"]}}`, `{"name":"p","password":{"value":"x"}}`)
			w := newWorld(t, with(d), func(o *mqttgw.Options) { o.Registerer, o.Limits.MaxInFlight, o.Limits.MaxWaiting = reg, 1, 1 })
			want := story(t, w, w.now.connect(packet.V5, "p", credentials("p", "x")))
			got := func() float64 { return metric(t, reg, "rialto_mqtt_dropped_total", "not-allowed") }
			eventually(t, "the count", func() bool { return got() >= want })
			if n := got(); n != want {
				t.Errorf("%v are counted, want %v", n, want)
			}
		})
	}
}

// A will that comes after its connection is judged by the rights of then: after its delay, at the end of the session, after a kill.
func TestDelayedWillLosesItsRight(t *testing.T) {
	const before = `{"name":"s","password":{"value":"x"},"access":{"publish":["gone"]}}`
	for name, now := range map[string]string{
		"kept":       before,
		"revoked":    `{"name":"s","password":{"value":"x"},"access":{"publish":["other"]}}`,
		"blocked":    `{"name":"s","password":{"value":"x"},"access":{"publish":["gone"]},"blocked":true}`,
		"another id": `{"name":"s","password":{"value":"x"},"access":{"connect":["d"],"publish":["gone"]}}`,
		"no policy":  `{"name":"s","password":{"value":"x"},"policy":"none"}`,
	} {
		want := 0
		if now == before {
			want = 1
		}
		me := credentials("s", "x")
		for _, expiry := range []uint32{60, 5} {
			t.Run(fmt.Sprint(name, " expiry ", expiry), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					d := defined(t, before)
					s := startPipes(t, with(d), func(o *mqttgw.Options) { o.Sessions = &memoryLog{} })
					s.connect(packet.V5, "c", me, delayed(10, expiry)).Close()
					synctest.Wait()
					define(t, d, now)
					d.Enforce()
					time.Sleep(time.Minute) // of the bubble
					synctest.Wait()
					if got := s.bus.count(); got != want {
						t.Errorf("%d wills, want %d", got, want)
					}
					s.stop()
				})
			})
		}
		t.Run(name+" killed", func(t *testing.T) {
			d := defined(t, before, `{"name":"p","password":{"value":"x"}}`)
			w := newWorld(t, with(d))
			w.now.connect(packet.V5, "c", me, delayed(0, 60))
			define(t, d, now)
			w.kill()
			w.now.connect(packet.V5, "other", credentials("p", "x")) // so it has started
			if got := w.bus.count(); got != want {
				t.Errorf("%d wills, want %d", got, want)
			}
		})
	}
}

// What a token said of its client counts for the will of a connection that ended with the process.
func TestWillByTokenSurvivesAKill(t *testing.T) {
	key := newTokenKey(t, "")
	d := defined(t, issuer(t, map[string]string{"pem": key.pem(t)}, `,"attributeClaims":{"site":"site"},"policy":"site"`),
		`{"kind":"DevicePolicy","name":"site","access":{"publish":["${attr.site}/gone"]}}`, `{"kind":"DevicePolicy","name":"default","access":{}}`)
	w := newWorld(t, with(d))
	will := func(p *packet.Connect) {
		delayed(0, 60)(p)
		p.Will.Topic = []byte("turin/gone")
	}
	w.now.connect(packet.V5, "c", credentials("", key.token(t, nil)), will)
	w.kill()
	w.now.connect(packet.V5, "other", credentials("", key.token(t, nil)))
	if got := w.bus.count(); got != 1 {
		t.Errorf("%d wills, want 1", got)
	}
}

// A client that is away and has a session is listed with what waits for it.
func TestClientsThatAreAway(t *testing.T) {
	w := newWorld(t)
	c := w.now.resume(packet.V5, "c", false)
	c.subscribe(1, "t")
	c.leave()
	w.restart()
	w.now.connect(packet.V5, "d") // the gateway serves, so it knows its sessions
	all := w.now.gateway.Clients("", true)
	if len(all) != 2 || all[0].ClientID != "c" || all[0].Online || !slices.Equal(all[0].Subscriptions, []string{"t"}) {
		t.Errorf("clients %+v", all)
	}
}
