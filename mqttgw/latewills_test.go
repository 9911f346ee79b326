// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

var errFull = fault.New(fault.Full, "the bus has no room")

// refuse has a bus take nothing, for a reason; nil = it takes everything again.
func (b *memoryBus) refuse(why error) { b.set(func() { b.fail = why }) }

// newCountedWorld is a world, and how many wills wait in its gateway of the moment.
func newCountedWorld(t *testing.T) (w *world, waiting func() float64) {
	var reg *prometheus.Registry
	w = newWorld(t, func(o *mqttgw.Options) {
		reg = prometheus.NewRegistry()
		o.Registerer = reg
	})
	return w, func() float64 { return metric(t, reg, "rialto_mqtt_wills_waiting") }
}

// A will that its bus does not take is stored once when it does again, of a session that goes on and of one that has ended, and
// whatever becomes of the process meanwhile.
func TestWillIsTriedAgain(t *testing.T) {
	for _, expiry := range []uint32{0, 60} {
		for name, meanwhile := range map[string]func(*world){
			"":              func(*world) {},
			"restart":       (*world).restart,
			"kill":          (*world).kill,
			"kill, twice":   func(w *world) { w.kill(); w.kill() },
			"restart, kill": func(w *world) { w.restart(); w.kill() },
		} {
			t.Run(fmt.Sprintf("expiry %d, %s", expiry, name), func(t *testing.T) {
				w, waiting := newCountedWorld(t)
				c := w.now.connect(packet.V5, "c", delayed(0, expiry))
				w.bus.refuse(errFull)
				c.Close()
				eventually(t, "the will waits", func() bool { return waiting() == 1 })
				meanwhile(w)
				eventually(t, "the will waits still", func() bool { return waiting() == 1 })
				w.bus.refuse(nil)
				eventually(t, "the will is stored", func() bool { return w.wills() == 1 })
				eventually(t, "it does not wait any more", func() bool { return waiting() == 0 })
				w.settled()
				w.kill()
				w.now.resume(packet.V5, "c", expiry > 0)
				if n := w.wills(); n != 1 {
					t.Errorf("%d wills, want 1", n)
				}
			})
		}
	}
}

// A client that is back does not wait for a bus: its will is tried once more, and is given up if the bus does not take it. What the
// bus refuses for good is not tried again.
func TestWillIsGivenUp(t *testing.T) {
	for _, clean := range []bool{false, true} {
		t.Run(fmt.Sprint("clean start ", clean), func(t *testing.T) {
			w, waiting := newCountedWorld(t)
			again := func() *client {
				c, ack := w.now.tryConnect(packet.V5, "c", delayed(0, 60), func(p *packet.Connect) { p.CleanStart = clean })
				if ack.Code != packet.Success {
					t.Fatalf("CONNACK %v", ack.Code)
				}
				return c
			}
			for want, why := range []error{errFull, nil} {
				c := again()
				w.bus.refuse(errFull)
				c.Close()
				eventually(t, "the will waits", func() bool { return waiting() == 1 })
				w.bus.refuse(why)
				again().leave()
				if waiting() != 0 || w.wills() != want {
					t.Errorf("%d wills when the client is back, %v wait; want %d, none", w.wills(), waiting(), want)
				}
			}
			c := again()
			w.bus.refuse(fault.New(fault.Unfit, "it does not fit"))
			c.Close()
			again().leave()
			w.bus.refuse(nil)
			if waiting() != 0 || w.wills() != 1 {
				t.Errorf("%d wills, %v wait", w.wills(), waiting())
			}
		})
	}
}

// stalling is a publisher to a bus that takes nothing while it stalls, and says so when whoever asks gives up.
type stalling struct {
	mqttgw.Publisher
	stalls atomic.Bool
}

func (s *stalling) Publish(ctx context.Context, bus string, rec *event.Record, done func(error)) error {
	if s.stalls.Load() && strings.HasPrefix(rec.MQTT.Topic, "gone") {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.Publisher.Publish(ctx, bus, rec, done)
}

// Many wills that are due on a bus that stalls hold up neither what else is due nor the clients; all are stored, in the end.
func TestManyWillsOnABusThatStalls(t *testing.T) {
	const n = 100
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		p := &stalling{}
		s := startPipes(t, func(o *mqttgw.Options) {
			p.Publisher, o.Sessions, o.Registerer = o.Publisher, &memoryLog{}, reg
			o.Publisher = p
		})
		for i := range n {
			s.connect(packet.V5, fmt.Sprint("c", i), delayed(uint32(i%2), 3600)).Close()
		}
		s.connect(packet.V5, "last", delayed(10, 3600), func(c *packet.Connect) { c.Will.Topic = []byte("elsewhere") }).Close()
		p.stalls.Store(true)
		time.Sleep(10 * time.Second) // of the bubble, like all that follow
		synctest.Wait()
		if waiting := metric(t, reg, "rialto_mqtt_wills_waiting"); waiting < n/2-1 || s.bus.count() > n/2+1 {
			t.Errorf("%v wills wait, %d are stored", waiting, s.bus.count())
		}
		s.connect(packet.V5, "c1").Close() // whose will is given up
		p.stalls.Store(false)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := s.bus.count(); got != n || metric(t, reg, "rialto_mqtt_wills_waiting") != 0 {
			t.Errorf("%d wills are stored, want %d", got, n)
		}
		s.stop()
	})
}
