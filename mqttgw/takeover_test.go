// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// fullBus has no room for what is published to the topic stuck until it has.
type fullBus struct {
	*memoryBus
	room chan struct{}
}

func (b *fullBus) Publish(ctx context.Context, bus string, rec *event.Record, done func(error)) error {
	if rec.MQTT != nil && rec.MQTT.Topic == "stuck" {
		<-b.room
	}
	return b.memoryBus.Publish(ctx, bus, rec, done)
}

// A connection that waits for the log holds its client id until it has left its session: whoever comes meanwhile is told to come
// again, however many come, and the session is the one's that comes then.
func TestTakeoverOfAConnectionThatWaitsForTheLog(t *testing.T) {
	connect := packet.Connect{Version: packet.V5, ClientID: []byte("c"), Properties: packet.Properties(nil).AppendInt(packet.SessionExpiry, 100)}
	for name, tries := range map[string]time.Duration{"one after the other": 2 * time.Second, "at the same time": 500 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus := &fullBus{memoryBus: newMemoryBus(), room: make(chan struct{})}
				s := startPipes(t, func(o *mqttgw.Options) {
					o.Publisher, o.Tail, o.Sessions = bus, bus.memoryBus, &memoryLog{}
					o.Limits.ConnectTimeout = time.Second
				})
				old := s.resume(packet.V5, "c", false)
				old.subscribe(1, "t")
				old.send(publish("stuck", "x", 1, 7))
				synctest.Wait()
				for range 3 {
					c := s.open(packet.V5)
					c.send(&connect)
					go func() {
						if ack := recv[*packet.Connack](c); ack.Code != packet.ServerBusy {
							t.Errorf("CONNACK %v while the old connection has the session, want %v", ack.Code, packet.ServerBusy)
						}
						c.Close()
					}()
					time.Sleep(tries) // of the bubble: costs no time
				}
				time.Sleep(5 * time.Second)
				old.Close()
				close(bus.room)
				synctest.Wait()
				c := s.resume(packet.V5, "c", true)
				synctest.Wait()
				s.connect(packet.V5, "p").publish("t", "y")
				if m := c.message(); string(m.Payload) != "y" {
					t.Errorf("message %q, want y", m.Payload)
				}
				s.cut()
				s.stop()
			})
		})
	}
}
