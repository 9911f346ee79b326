// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// fan is a gateway with subscribed sessions whose writers never run: what deliver costs is left.
func fan(tb testing.TB, sessions int, v packet.Version, qos byte) (*tailer, []*conn) {
	tb.Helper()
	m, err := newMetrics(nil)
	if err != nil {
		tb.Fatal(err)
	}
	g := &Gateway{metrics: m, limits: Limits{}.withDefaults(), log: slog.New(slog.DiscardHandler), now: time.Now}
	f := &feed{g: g, name: DefaultBus, lane: laneUp}
	var all []*conn
	for range sessions {
		c := &conn{g: g, version: v, maxPacket: 1 << 20}
		c.out.writing = true
		c.session = &session{g: g, conn: c, maxFlying: g.limits.MaxInFlight}
		hang(&g.router, &subscription{session: c.session, filter: "fleet/+/telemetry", qos: qos})
		all = append(all, c)
	}
	return &tailer{f: f, g: g}, all
}

func entry(seq uint64) eventlog.Entry {
	return eventlog.Entry{Seq: seq, Record: &event.Record{Minted: true, Event: event.Event{Data: make([]byte, 256)},
		MQTT: &event.Origin{Topic: "fleet/17/telemetry", QoS: 1, Version: 5}}}
}

// empty does what a writer and a client do: takes what is queued, acknowledges everything.
func (c *conn) empty() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, chunk := c.out.take()
	recycle(chunk)
	c.out.size = 0
	c.session.flying = c.session.flying[:0]
}

func BenchmarkDeliver(b *testing.B) {
	for _, v := range []packet.Version{packet.V311, packet.V5} {
		for qos := range byte(2) {
			b.Run(fmt.Sprintf("v%d/qos%d", v, qos), func(b *testing.B) {
				const sessions = 1000
				t, all := fan(b, sessions, v, qos)
				b.ReportAllocs()
				seq := uint64(0)
				for b.Loop() {
					seq++
					t.route(entry(seq))
					if seq%4 == 0 {
						for _, c := range all {
							c.empty()
						}
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(seq*sessions), "ns/delivery")
			})
		}
	}
}
