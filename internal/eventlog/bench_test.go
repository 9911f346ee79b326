// SPDX-License-Identifier: Apache-2.0

package eventlog_test

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
)

func cpuTime(tb testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// benchRecord is an event with 256 bytes of data and six attributes.
func benchRecord(n int) *event.Record {
	data := make([]byte, 256)
	for i := range data {
		data[i] = 'a' + byte(i%26)
	}
	return &event.Record{Received: base, Minted: true, Event: event.Event{
		ID: fmt.Sprintf("01936f3a-7a54-7000-8000-%012d", n), Source: "mqtt://gateway/box-17", Type: "com.acme.telemetry",
		Subject: "fleet/truck-1/box/17", DataContentType: "application/json", Time: base, Data: data}}
}

// BenchmarkAppend: many producers, each with a number of appends on their way.
func BenchmarkAppend(b *testing.B) {
	for _, c := range []struct {
		name              string
		producers, window int
		durability        eventlog.Durability
		keyed             bool
	}{
		{"fsync/64x16", 64, 16, eventlog.Fsync, false},
		{"fsync/256x1", 256, 1, eventlog.Fsync, false},
		{"fsync/64x16/ids", 64, 16, eventlog.Fsync, true},
		{"os/64x16", 64, 16, eventlog.OS, false},
		{"fsync/1x1", 1, 1, eventlog.Fsync, false},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := open(b, eventlog.Options{Dir: b.TempDir(), Durability: c.durability})
			bus := openBus(b, l, "default")
			recs := make([]*event.Record, b.N)
			for i := range recs {
				recs[i] = benchRecord(i)
				recs[i].Minted = !c.keyed
			}
			b.ReportAllocs()
			b.ResetTimer()
			start, cpu := time.Now(), cpuTime(b)
			var wg sync.WaitGroup
			for p := range c.producers {
				wg.Add(1)
				go func() {
					defer wg.Done()
					slots := make(chan struct{}, c.window)
					for i := p; i < b.N; i += c.producers {
						slots <- struct{}{}
						if err := bus.Append(b.Context(), recs[i], func(r eventlog.Receipt) {
							if r.Err != nil {
								b.Error(r.Err)
							}
							<-slots
						}); err != nil {
							b.Error(err)
							return
						}
					}
					for range c.window {
						slots <- struct{}{}
					}
				}()
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "events/s")
			b.ReportMetric(float64((cpuTime(b)-cpu).Nanoseconds())/1e3/float64(b.N), "cpu-us/op")
		})
	}
}

// fillBus appends n events that producers have given ids.
func fillBus(b *testing.B, bus *eventlog.Bus, n int) {
	b.Helper()
	var wg sync.WaitGroup
	wg.Add(n)
	for i := range n {
		if err := bus.Append(b.Context(), benchRecord(i), func(r eventlog.Receipt) {
			if r.Err != nil {
				b.Error(r.Err)
			}
			wg.Done()
		}); err != nil {
			b.Fatal(err)
		}
	}
	wg.Wait()
}

func BenchmarkRead(b *testing.B) {
	const n = 200_000
	for _, c := range []struct {
		name string
		ring int64
	}{{"ring", 1 << 30}, {"stream", 1}} {
		l := open(b, eventlog.Options{Dir: b.TempDir(), Durability: eventlog.OS, RingBytes: c.ring})
		bus := openBus(b, l, "default")
		fillBus(b, bus, n)
		b.Run(c.name+"/read500", func(b *testing.B) {
			b.ReportAllocs()
			var dst []eventlog.Entry
			next := uint64(1)
			for i := 0; i < b.N; i += len(dst) {
				var err error
				if dst, next, err = bus.Read(b.Context(), next, 500, dst[:0]); err != nil {
					b.Fatal(err)
				}
				if len(dst) == 0 {
					b.Fatal("nothing read")
				}
				if next > n {
					next = 1
				}
			}
		})
		b.Run(c.name+"/get", func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				if _, err := bus.Get(b.Context(), uint64(i*7919%n)+1); err != nil {
					b.Fatal(err)
				}
			}
		})
		if c.ring == 1 {
			b.Run("stream/scan-nothing", func(b *testing.B) {
				b.ReportAllocs()
				for next, i := uint64(1), 0; i < b.N; {
					_, after, _, err := bus.Scan(b.Context(), eventlog.ScanOptions{From: next, Max: 500, Topics: []string{"none"}}, nil)
					if err != nil {
						b.Fatal(err)
					}
					i += int(after - next)
					if next = after; next > n {
						next = 1
					}
				}
			})
			for _, newest := range []bool{false, true} {
				b.Run(fmt.Sprintf("search-nothing/newest=%v", newest), func(b *testing.B) {
					for i := 0; i < b.N; {
						res, err := bus.Search(b.Context(), eventlog.Query{Type: "none", Newest: newest, Budget: n})
						if err != nil {
							b.Fatal(err)
						}
						i += res.Scanned
					}
				})
			}
		}
	}
}

// BenchmarkOpen is a start after a clean stop.
func BenchmarkOpen(b *testing.B) {
	for _, n := range []int{0, 200_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			dir := b.TempDir()
			l := open(b, eventlog.Options{Dir: dir, Durability: eventlog.OS})
			fillBus(b, openBus(b, l, "default"), n)
			closeLog(b, l)
			for b.Loop() {
				l := open(b, eventlog.Options{Dir: dir})
				openBus(b, l, "default")
				b.StopTimer()
				closeLog(b, l)
				b.StartTimer()
			}
		})
	}
}
