// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// BenchmarkSend is all of the sending path but the network: read, match, encode and compress, of events of 256 B.
func BenchmarkSend(b *testing.B) {
	const events = 50_000
	for name, c := range map[string]struct {
		ring   int64
		fields string
	}{
		"hot":       {64 << 20, everything},
		"cold":      {1, everything},
		"filtered":  {64 << 20, `"pattern":{"data":{"n":[{"numeric":[">",49500]}]}},"start":"earliest"`},
		"urgent":    {64 << 20, everything + `,"urgent":{"type":["alarm"]}`},
		"transform": {64 << 20, everything + `,"transform":{"path":"$.data"}`},
	} {
		b.Run(name, func(b *testing.B) {
			l, err := eventlog.Open(b.Context(), eventlog.Options{Dir: b.TempDir(), Durability: eventlog.OS, Reserve: 1 << 20, RingBytes: c.ring})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { l.Close(context.Background()) }) //nolint:errcheck // the test is over
			bus, err := l.Bus(b.Context(), eventlog.BusConfig{Name: "default", DedupWindow: -1})
			if err != nil {
				b.Fatal(err)
			}
			done := make(chan eventlog.Receipt, events)
			pad := strings.Repeat("x", 230)
			for i := range events {
				r := record(i)
				r.Event.ID, r.Event.Data = event.NewID(), fmt.Appendf(nil, `{"n":%d,"pad":%q}`, i, pad)
				if err := bus.Append(b.Context(), r, func(r eventlog.Receipt) { done <- r }); err != nil {
					b.Fatal(err)
				}
			}
			for range events {
				if r := <-done; r.Err != nil {
					b.Fatal(r.Err)
				}
			}
			def, err := ParseLink([]byte(`{"name":"up","region":"far",` + c.fields + `}`))
			if err != nil {
				b.Fatal(err)
			}
			st := &state{Start: 1}
			st.adopt(def.Urgent, 1)
			o := &owner{def: def, bus: bus, st: st}
			if o.matcher, err = newMatcher(def, st.Segments, func(r *event.Record) *event.Record { return r }, nil); err != nil {
				b.Fatal(err)
			}
			s := &session{o: o, line: &line{ctx: b.Context(), welcome: Welcome{Instance: "far"}}}
			bytes := 0
			b.ReportAllocs()
			for b.Loop() {
				for lane := range lanes {
					if st.start(lane) == 0 {
						continue
					}
					t := &s.tracks[lane]
					t.id, t.tail = lane, &run{from: 1, at: 1}
					for t.tail.at <= events {
						if err := s.fill(t, t.tail, lookAtOnce, batchBytes, events); err != nil {
							b.Fatal(err)
						}
						bytes += len(t.batch.end(t.tail.at - 1))
						t.tail.from = t.tail.at
					}
				}
			}
			n := float64(b.N) * events
			b.ReportMetric(n/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/n, "ns/event")
			b.ReportMetric(float64(bytes)/n, "wire-B/event")
		})
	}
}
