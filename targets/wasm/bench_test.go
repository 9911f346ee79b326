// SPDX-License-Identifier: Apache-2.0

package wasm_test

import (
	"bytes"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/targets/wasm"
)

// oneKiB is an event with a payload of about a KiB.
var oneKiB = fmt.Appendf(nil, `{"specversion":"1.0","id":"1","source":"/box/17","type":"com.acme.telemetry","data":{"temperature":9.1,"door":"open","notes":%q}}`,
	bytes.Repeat([]byte("x"), 880))

// processorTime is what this process has used so far.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// benchmark calls a function that has begun.
func benchmark(b *testing.B, code []byte, edit func(*wasm.Settings)) {
	f := function(b, wasm.Options{}, code, edit)
	call := wasm.Call{Delivery: "dlv_1", Event: oneKiB}
	if _, err := f.Call(b.Context(), call); err != nil {
		b.Fatal(err)
	}
	began, best := processorTime(b), time.Hour
	for b.Loop() {
		start := time.Now()
		if _, err := f.Call(b.Context(), call); err != nil {
			b.Fatal(err)
		}
		best = min(best, time.Since(start))
	}
	b.ReportMetric(float64(best), "best-ns")
	b.ReportMetric(float64(processorTime(b)-began)/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(f.Status().PeakMemory), "memory-B")
}

func BenchmarkSmall(b *testing.B) { benchmark(b, shout(b), nil) }

func BenchmarkSmallStateful(b *testing.B) {
	benchmark(b, shout(b), func(s *wasm.Settings) { s.Stateful = true })
}

func BenchmarkGo(b *testing.B) { benchmark(b, inGo(b, "c-shared"), nil) }

func BenchmarkGoStateful(b *testing.B) {
	benchmark(b, inGo(b, "c-shared"), func(s *wasm.Settings) { s.Stateful = true })
}

func BenchmarkGoCommand(b *testing.B) { benchmark(b, inGo(b, "exe"), nil) }
