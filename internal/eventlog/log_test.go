// SPDX-License-Identifier: Apache-2.0

package eventlog_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
)

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	l := open(t, eventlog.Options{Dir: t.TempDir(), Registerer: reg})
	b := openBus(t, l, "default")
	appendAll(t, b, record(1), record(1), record(2))
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		m := f.GetMetric()[0]
		got[f.GetName()] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetHistogram().GetSampleSum()
	}
	for name, want := range map[string]func(float64) bool{
		"rialto_log_appended_total":      func(v float64) bool { return v == 2 },
		"rialto_log_duplicates_total":    func(v float64) bool { return v == 1 },
		"rialto_log_append_batch_size":   func(v float64) bool { return v == 2 },
		"rialto_log_fsync_seconds":       func(v float64) bool { return v > 0 },
		"rialto_log_bytes":               func(v float64) bool { return v > 500 },
		"rialto_log_disk_free_bytes":     func(v float64) bool { return v > 0 },
		"rialto_log_refused_total":       func(v float64) bool { return v == 0 },
		"rialto_log_failed":              func(v float64) bool { return v == 0 },
		"rialto_log_damaged_reads_total": func(v float64) bool { return v == 0 },
		"rialto_log_lost_total":          func(v float64) bool { return v == 0 },
	} {
		if v, ok := got[name]; !ok || !want(v) {
			t.Errorf("%s = %v, %v", name, v, ok)
		}
	}
}

func TestAppendAndRead(t *testing.T) {
	dir := t.TempDir()
	l := open(t, eventlog.Options{Dir: dir, Logger: logger(t)})
	b := openBus(t, l, "default")
	want := records(1, 1000)
	for i, r := range appendAll(t, b, want...) {
		if r.Err != nil || r.Pos != (event.Position{Stream: "EV_default", Seq: uint64(i + 1)}) || r.Duplicate {
			t.Fatalf("receipt %d = %+v", i, r)
		}
	}
	check := func(b *eventlog.Bus) {
		t.Helper()
		if got := b.Committed(); got != 1000 {
			t.Fatalf("Committed() = %d, want 1000", got)
		}
		next := uint64(1)
		var got []eventlog.Entry
		for next <= 1000 {
			var err error
			if got, next, err = b.Read(t.Context(), next, 77, got); err != nil {
				t.Fatal(err)
			}
		}
		if len(got) != len(want) {
			t.Fatalf("read %d events, want %d", len(got), len(want))
		}
		for i, e := range got {
			if diff := cmp.Diff(want[i], e.Record); e.Seq != uint64(i+1) || diff != "" {
				t.Fatalf("event %d at %d:\n%s", i, e.Seq, diff)
			}
		}
		for _, seq := range []uint64{1, 500, 1000} {
			e, err := b.Get(t.Context(), seq)
			if err != nil || e.Record.Event.ID != fmt.Sprintf("id-%d", seq) {
				t.Errorf("Get(%d) = %v, %v", seq, e, err)
			}
		}
		if _, err := b.Get(t.Context(), 1001); !errors.Is(err, eventlog.ErrNotFound) {
			t.Errorf("Get(1001) = %v, want ErrNotFound", err)
		}
	}
	check(b)
	closeLog(t, l)
	check(openBus(t, open(t, eventlog.Options{Dir: dir, Logger: logger(t)}), "default"))
}
