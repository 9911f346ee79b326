// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/targets"
)

// cpuTime is what this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkPath takes 1 KiB events all the way: intake, commit, match, delivery to a target that answers at once, and
// the records of it. The targets cost nothing, so this is the bridge's own work.
func BenchmarkPath(b *testing.B) {
	for _, deliveries := range []int{0, 1, 3} {
		b.Run(fmt.Sprintf("deliveries=%d", deliveries), func(b *testing.B) {
			f := newFixture(b)
			var done sync.WaitGroup
			var names []string
			for i := range deliveries {
				name := fmt.Sprint("t", i)
				names = append(names, name)
				f.target(name, `{"concurrency":16}`, func(targets.Delivery) error { done.Done(); return nil })
			}
			if deliveries > 0 {
				f.rule("all", "reading", names...)
			}
			f.start()
			defer f.stop(time.Second)
			data := make([]byte, 1024)
			b.ReportAllocs()
			b.ResetTimer()
			began, cpu := time.Now(), cpuTime()
			done.Add(b.N * deliveries)
			var stored sync.WaitGroup
			stored.Add(b.N)
			for i := range b.N {
				rec := &event.Record{Event: event.Event{ID: fmt.Sprint(i), Source: "/bench", Type: "reading", Data: data}}
				if err := f.Publish(context.Background(), "default", rec, func(r bridge.Receipt) {
					if r.Err != nil {
						b.Error(r.Err)
					}
					stored.Done()
				}); err != nil {
					b.Fatal(err)
				}
			}
			stored.Wait()
			done.Wait()
			b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "events/s")
			b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/float64(b.N), "cpu-us/event")
		})
	}
}
