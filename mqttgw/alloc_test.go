// SPDX-License-Identifier: Apache-2.0

//go:build !race

package mqttgw

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// A message costs a few allocations, whatever the number of its receivers.
func TestGateDeliveryAllocatesPerMessageOnly(t *testing.T) {
	const sessions = 500
	tail, all := fan(t, sessions, packet.V5, 1)
	seq := uint64(0)
	n := testing.AllocsPerRun(50, func() {
		seq++
		tail.route(entry(seq))
		for _, c := range all {
			c.empty()
		}
	})
	if n > sessions+40 { // recycling a chunk allocates its header
		t.Errorf("%v allocations for a message to %d sessions", n, sessions)
	}
}

// taker stores everything at once.
type taker struct{}

func (taker) Publish(_ context.Context, _ string, _ *event.Record, done func(error)) error {
	done(nil)
	return nil
}

// A publish allocates what stays (record and origin, topic, payload, id) and what waits for the commit (publication,
// its callback, the acknowledgement), and nothing else.
func TestGatePublishAllocations(t *testing.T) {
	m, err := newMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	g := &Gateway{metrics: m, limits: Limits{}.withDefaults(), log: slog.New(slog.DiscardHandler), now: time.Now, life: t.Context(),
		opts: Options{Bus: DefaultBus, Publisher: taker{}, Mappings: NewMappings()}}
	for qos, most := range map[byte]float64{0: 7, 1: 9} {
		for _, v := range []packet.Version{packet.V311, packet.V5} {
			c := &conn{g: g, version: v, maxPacket: 1 << 20, source: "mqtt://gw/c", session: &session{g: g}}
			c.out.writing = true
			raw := (&packet.Publish{Topic: []byte("fleet/17/telemetry"), QoS: qos, PacketID: uint16(qos), Payload: make([]byte, 256)}).Append(nil, v)
			n := testing.AllocsPerRun(200, func() {
				if err := c.takePublish(raw[0], raw[3:]); err != nil { // behind a length of two bytes
					t.Fatal(err)
				}
				c.empty()
			})
			if n > most {
				t.Errorf("%v allocations for a QoS %d publish of version %d, want %v at most", n, qos, v, most)
			}
		}
	}
}
