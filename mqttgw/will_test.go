// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// delayed is a will with a delay, of a session that expires.
func delayed(delay, expiry uint32) func(*packet.Connect) {
	return func(p *packet.Connect) {
		p.CleanStart = false
		p.Will = &packet.Will{Topic: []byte("gone"), Payload: []byte("x"), QoS: 1, Properties: packet.Properties(nil).AppendInt(packet.WillDelay, delay)}
		if expiry > 0 {
			p.Properties = p.Properties.AppendInt(packet.SessionExpiry, expiry)
		}
	}
}

func (b *memoryBus) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.entries)
}

// wills is how many wills are in the log.
func (w *world) wills() int {
	return len(slices.DeleteFunc(w.bus.records(), func(r *event.Record) bool { return r.MQTT == nil || r.MQTT.Topic != "gone" }))
}

// The will comes after its delay or at the end of the session, whichever is first.
func TestWillDelay(t *testing.T) {
	for _, tt := range []struct {
		delay, expiry uint32
		want          time.Duration
	}{{5, 0, 0}, {5, 2, 2 * time.Second}, {3, 60, 3 * time.Second}, {0, 60, 0}} {
		t.Run(fmt.Sprintf("delay %d expiry %d", tt.delay, tt.expiry), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startPipes(t, func(o *mqttgw.Options) { o.Sessions = &memoryLog{} })
				c := s.connect(packet.V5, "c", delayed(tt.delay, tt.expiry))
				begin := time.Now()
				c.Close()
				synctest.Wait()
				if tt.want > 0 {
					if s.bus.count() != 0 {
						t.Error("the will came at once")
					}
					time.Sleep(tt.want - time.Nanosecond) // of the bubble: costs no time
					synctest.Wait()
					if s.bus.count() != 0 {
						t.Errorf("the will came before %s", tt.want)
					}
					time.Sleep(time.Nanosecond)
					synctest.Wait()
				}
				if s.bus.count() != 1 || time.Since(begin) != tt.want {
					t.Errorf("%d wills after %s, want 1 after %s", s.bus.count(), time.Since(begin), tt.want)
				}
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				if s.bus.count() != 1 {
					t.Errorf("%d wills", s.bus.count())
				}
				s.stop()
			})
		})
	}
}

// A return in time cancels the will; a clean start ends the session, and so the will is due.
func TestWillAndReturn(t *testing.T) {
	for _, tt := range []struct {
		name  string
		clean bool
		want  int
	}{{"resumed", false, 0}, {"clean start", true, 1}} {
		for _, over := range []bool{false, true} {
			t.Run(fmt.Sprint(tt.name, " takeover ", over), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := startPipes(t, func(o *mqttgw.Options) { o.Sessions = &memoryLog{} })
					c := s.connect(packet.V5, "c", delayed(10, 60))
					if over {
						go io.Copy(io.Discard, c) // a pipe holds nothing: the goodbye has to be read
					} else {
						c.Close()
						time.Sleep(5 * time.Second)
					}
					again := s.connect(packet.V5, "c", keep, func(p *packet.Connect) { p.CleanStart = tt.clean })
					time.Sleep(time.Minute)
					synctest.Wait()
					if got := s.bus.count(); got != tt.want {
						t.Errorf("%d wills, want %d", got, tt.want)
					}
					again.Close()
					s.stop()
				})
			})
		}
	}
}

// A connection that is refused because it cannot be written down leaves everything as it was: the will of the one before comes when it
// was due, and that of the refused one never.
func TestWillAndRefusedReturn(t *testing.T) {
	for _, tt := range []struct {
		name string
		with func(*packet.Connect)
	}{{"without a will", keep}, {"with another will", func(p *packet.Connect) {
		delayed(1, 60)(p)
		p.Will.Topic = []byte("wrong")
	}}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := &memoryLog{}
				s := startPipes(t, func(o *mqttgw.Options) { o.Sessions = log })
				begin := time.Now()
				s.connect(packet.V5, "c", delayed(10, 60)).Close()
				time.Sleep(5 * time.Second) // of the bubble
				log.set(func() { log.fail = errors.New("the disk is gone") })
				if _, ack := s.tryConnect(packet.V5, "c", func(p *packet.Connect) { p.CleanStart = false }, tt.with); ack.Code != packet.ServerUnavailable {
					t.Fatalf("CONNACK %v, want %v", ack.Code, packet.ServerUnavailable)
				}
				time.Sleep(time.Until(begin.Add(10*time.Second - 1)))
				synctest.Wait()
				if n := s.bus.count(); n != 0 {
					t.Errorf("%d wills before the time", n)
				}
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				if all := s.bus.records(); len(all) != 1 || all[0].MQTT.Topic != "gone" {
					t.Errorf("%d wills, want the one of the connection that was", len(all))
				}
				s.stop()
			})
		})
	}
}

// Session expiry 0, said or not: the session ends with the connection and its will is due, whatever its delay, and the client that
// comes back finds neither, whether the old connection is still there, has just gone, or goes at that moment.
func TestTakeoverOfAnEndingSession(t *testing.T) {
	absent := func(*packet.Connect) {}
	zero := func(p *packet.Connect) { p.Properties = p.Properties.AppendInt(packet.SessionExpiry, 0) }
	for name, expiry := range map[string]func(*packet.Connect){"absent": absent, "zero": zero} {
		for order, come := range map[string]func(w *world, old *client) *client{
			"while the old one is there": func(w *world, old *client) *client {
				n := w.now.resume(packet.V5, "c", false)
				old.closed(packet.SessionTakenOver)
				return n
			},
			"after the old one": func(w *world, old *client) *client {
				old.Close()
				w.bus.await(w.t, "the will", func() bool { return len(w.bus.entries) == 1 })
				return w.now.resume(packet.V5, "c", false)
			},
			"at the same time": func(w *world, old *client) *client {
				go old.Close()
				return w.now.resume(packet.V5, "c", false)
			},
		} {
			t.Run(name+" "+order, func(t *testing.T) {
				w := newWorld(t)
				old := w.now.connect(packet.V5, "c", delayed(10, 0), expiry)
				old.subscribe(1, "old")
				n := come(w, old)
				if w.bus.count() != 1 {
					t.Errorf("%d wills when the new connection is accepted, want 1", w.bus.count())
				}
				w.now.connect(packet.V5, "p").publish("old", "x")
				n.nothing()
				n.Close()
				w.restart()
				w.now.resume(packet.V5, "c", true).nothing()
				if got := w.bus.count(); got != 2 { // with what p has published
					t.Errorf("%d messages after a restart, want one will and one other", got)
				}
			})
		}
	}
}

// A kill takes no will: it is published by the process that comes after, at once or when its delay is over.
func TestWillsSurviveAKill(t *testing.T) {
	for _, tt := range []struct {
		name string
		with func(*packet.Connect)
		v    packet.Version
		want int
	}{
		{"3.1.1", func(p *packet.Connect) { p.Will = &packet.Will{Topic: []byte("gone")} }, packet.V311, 1},
		{"at the end of the connection", delayed(0, 0), packet.V5, 1},
		{"at the end of the session", delayed(30, 0), packet.V5, 1},
		{"kept session", delayed(0, 60), packet.V5, 1},
		{"later", delayed(30, 60), packet.V5, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.now.connect(tt.v, "c", tt.with)
			w.now.connect(tt.v, "left", tt.with).leave()
			w.settled()
			before := w.bus.count()
			w.kill()
			w.now.connect(packet.V5, "other") // so it has started
			if got := w.bus.count() - before; got != tt.want {
				t.Errorf("%d wills, want %d", got, tt.want)
			}
		})
	}
}

// A will that is on its way to its bus when the process is killed is published by the next one, and not by the one after that.
func TestWillOnItsWayAtAKill(t *testing.T) {
	ended := func(w *world, end func()) {
		before := w.log.Committed()
		end()
		w.bus.await(w.t, "the will", func() bool { return len(w.bus.held) == 1 })
		eventually(w.t, "the end of the connection is written down", func() bool { return w.log.Committed() > before })
	}
	clean := func(w *world, _ *client) {
		c := w.now.open(packet.V5)
		ended(w, func() { c.send(&packet.Connect{Version: packet.V5, CleanStart: true, ClientID: []byte("c")}) })
	}
	lost := func(w *world, c *client) { ended(w, func() { c.Close() }) }
	for _, tt := range []struct {
		name    string
		with    func(*packet.Connect)
		end     func(w *world, c *client)
		present bool
	}{
		{"at the end of the connection", delayed(0, 0), lost, false},
		{"kept session", delayed(0, 60), lost, true},
		{"at the end of the session", delayed(30, 60), clean, false},
		{"session ended by DISCONNECT", delayed(0, 60), func(w *world, c *client) {
			ended(w, func() {
				c.send(&packet.Disconnect{Kind: packet.TypeDisconnect, Code: packet.DisconnectWithWill, Properties: packet.Properties(nil).AppendInt(packet.SessionExpiry, 0)})
			})
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			c := w.now.connect(packet.V5, "c", tt.with)
			w.bus.set(func() { w.bus.hold = true })
			tt.end(w, c)
			for range 2 {
				w.kill()
				w.now.connect(packet.V5, "other") // so it has started
				w.settled()
				if got := w.wills(); got != 1 {
					t.Errorf("%d wills, want 1", got)
				}
			}
			w.now.resume(packet.V5, "c", tt.present)
		})
	}
}

// Who returns while the will is on its way waits for it.
func TestReturnWhileTheWillIsOnItsWay(t *testing.T) {
	for _, expiry := range []uint32{0, 60} {
		t.Run(fmt.Sprint("expiry ", expiry), func(t *testing.T) {
			w := newWorld(t, func(o *mqttgw.Options) { o.Limits.ConnectTimeout = time.Second })
			c := w.now.connect(packet.V5, "c", delayed(0, expiry))
			w.bus.set(func() { w.bus.hold = true })
			c.Close()
			w.bus.await(t, "the will", func() bool { return len(w.bus.held) == 1 })
			for range 2 {
				if _, ack := w.now.tryConnect(packet.V5, "c", delayed(0, 60)); ack.Code != packet.ServerUnavailable {
					t.Errorf("CONNACK %v, want %v", ack.Code, packet.ServerUnavailable)
				}
			}
			w.bus.release(-1)
			w.now.resume(packet.V5, "c", expiry > 0).leave()
			if got := w.bus.count(); got != 1 {
				t.Errorf("%d wills, want 1", got)
			}
		})
	}
}

// Without sessions that are kept there is nothing that a kill could bring back, and so nothing to wait for.
func TestReturnWithoutSessions(t *testing.T) {
	s := start(t)
	c := s.connect(packet.V5, "c", delayed(0, 0))
	s.bus.set(func() { s.bus.hold = true })
	c.Close()
	s.bus.await(t, "the will", func() bool { return len(s.bus.held) == 1 })
	s.connect(packet.V5, "c")
	s.bus.release(-1)
}

// A will whose delay is over when the client returns is published, though the clock has not come to it, and also if the process is
// killed while the client waits for that.
func TestWillThatWasDueAtTheReturn(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprint("killed ", killed), func(t *testing.T) {
			var late atomic.Int64
			w := newWorld(t, func(o *mqttgw.Options) {
				o.Now = func() time.Time { return time.Now().Add(time.Duration(late.Load())) }
			})
			c := w.now.connect(packet.V5, "c", delayed(3600, 7200))
			c.subscribe(1, "f/#")
			w.move("f/#")
			w.bus.set(func() { w.bus.hold = true })
			c.Close()
			eventually(t, "the client is away", func() bool { return !w.now.gateway.Clients("", true)[0].Online })
			late.Store(int64(time.Hour))
			returns := w.now.open(packet.V5)
			p := &packet.Connect{Version: packet.V5, ClientID: []byte("c")}
			delayed(3600, 7200)(p)
			returns.send(p)
			w.bus.await(t, "the will", func() bool { return len(w.bus.held) == 1 })
			if killed {
				before := w.log.Committed()
				w.now.connect(packet.V5, "p").publish("f/1", "x") // the session has missed something, which is written down
				eventually(t, "the session is written down", func() bool { return w.log.Committed() > before })
				w.kill()
				w.now.resume(packet.V5, "c", true)
			} else {
				w.bus.release(-1)
				if ack := recv[*packet.Connack](returns); !ack.SessionPresent {
					t.Error("the session is gone")
				}
			}
			if got := w.wills(); got != 1 {
				t.Errorf("%d wills, want 1", got)
			}
		})
	}
}

// A will that becomes due during a stop is left to the next start.
func TestWillThatIsDueDuringAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, bus := &memoryLog{}, newMemoryBus()
		on := func(o *mqttgw.Options) { o.Sessions, o.Publisher, o.Tail = log, bus, bus }
		s := startPipes(t, on)
		s.connect(packet.V5, "c", delayed(2, 60)).Close()
		synctest.Wait()
		log.set(func() { log.hold = true })
		go func() {
			time.Sleep(2500 * time.Millisecond)
			log.release()
		}()
		s.stop()
		s = startPipes(t, on)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if bus.count() != 1 {
			t.Errorf("%d wills, want 1", bus.count())
		}
		s.stop()
	})
}

// A stop publishes wills that are due then, and keeps those with a delay.
func TestWillsAtAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, bus := &memoryLog{}, newMemoryBus()
		on := func(o *mqttgw.Options) { o.Sessions, o.Publisher, o.Tail = log, bus, bus }
		s := startPipes(t, on)
		now, later := s.connect(packet.V5, "now", delayed(0, 60)), s.connect(packet.V5, "later", delayed(10, 60))
		go io.Copy(io.Discard, now)
		go io.Copy(io.Discard, later)
		s.stop()
		if bus.count() != 1 {
			t.Fatalf("%d wills at the stop, want 1", bus.count())
		}
		s = startPipes(t, on)
		time.Sleep(9 * time.Second)
		synctest.Wait()
		if bus.count() != 1 {
			t.Fatalf("%d wills before the delay is over, want 1", bus.count())
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if bus.count() != 2 {
			t.Errorf("%d wills after the delay, want 2", bus.count())
		}
		s.stop()
	})
}
