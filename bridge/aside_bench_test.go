// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// BenchmarkAside keeps 256-byte events in batches of 100, each batch after the one before is synced, and then stores all of them
// because they are due. heap-B/event is what the process keeps for each of them, kept-us and fired-us how long each took.
func BenchmarkAside(b *testing.B) {
	f := newFixture(b)
	f.logOpts.Durability = eventlog.Fsync
	c := f.useClock()
	f.start()
	defer f.stop(time.Second)
	const batch = 100
	data := make([]byte, 256)
	n := (b.N + batch - 1) / batch * batch
	before := heapInUse()
	began := time.Now()
	for i := 0; i < n; i += batch {
		recs := make([]*event.Record, batch)
		for j := range recs {
			recs[j] = &event.Record{Event: event.Event{ID: fmt.Sprint("reminder-", i+j), Source: "/bench", Type: "later", Data: data}}
		}
		if _, err := f.SetAside(context.Background(), "default", recs, bridge.AsideRequest{At: c.Now().Add(time.Hour)}); err != nil {
			b.Fatal(err)
		}
	}
	kept := time.Since(began)
	b.ReportMetric(float64(kept.Microseconds())/float64(n), "kept-us")
	b.ReportMetric(float64(heapInUse()-before)/float64(n), "heap-B/event")
	began = time.Now()
	c.pass(2 * time.Hour)
	f.WakeAside()
	log, err := f.Bus("default")
	f.must(err)
	f.must(log.Wait(context.Background(), uint64(n-1)))
	b.ReportMetric(float64(time.Since(began).Microseconds())/float64(n), "fired-us")
}

func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // far below
}
