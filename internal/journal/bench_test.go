// SPDX-License-Identifier: Apache-2.0

package journal_test

import (
	"fmt"
	"log/slog"
	"syscall"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/journal"
)

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// traffic makes the messages of JOURNEY and the events of a bus under load: a message holds 50 events, each of which goes
// to one of a number of targets; two of three are delivered by then, the others in the next message.
type traffic struct {
	routes []journal.Route
	seq    uint64 // of the last event
	late   []journal.Outcome
}

const perMessage = 50

func newTraffic(targets int) *traffic {
	t := &traffic{}
	for i := range targets {
		t.routes = append(t.routes, journal.Route{Rule: fmt.Sprint("rule-", i), Revision: 1, Target: fmt.Sprint("target-", i)})
	}
	return t
}

func (t *traffic) message(e *journal.Encoder) []byte {
	late := t.late
	t.late = nil
	for range perMessage {
		t.seq++
		route := t.routes[t.seq*7919%uint64(len(t.routes))]
		at := base.Add(time.Duration(t.seq) * 100 * time.Microsecond)
		e.Routed(journal.Routed{Seq: t.seq, Check: journal.Check(t.seq), Hour: journal.HourOf(at), Routes: []journal.Route{route}})
		o := journal.Outcome{Seq: t.seq, Route: route, State: journal.Delivered, Attempt: 1, At: at, Duration: 800 * time.Microsecond, Status: 204}
		if t.seq%3 == 0 {
			t.late = append(t.late, o)
		} else {
			e.Outcome(o)
		}
	}
	for _, o := range late {
		e.Outcome(o)
	}
	return e.Take()
}

// BenchmarkApply is what the views cost for each event that is routed and delivered to one target.
func BenchmarkApply(b *testing.B) {
	for _, targets := range []int{1, 200} {
		b.Run(fmt.Sprintf("targets=%d", targets), func(b *testing.B) {
			j, err := journal.Open(journal.Options{Dir: b.TempDir(), Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				b.Fatal(err)
			}
			defer j.Close()
			t := newTraffic(targets)
			var e journal.Encoder
			messages := make([][]byte, b.N/perMessage+1)
			bytes := 0
			for i := range messages {
				messages[i] = t.message(&e)
				bytes += len(messages[i])
			}
			b.ReportAllocs()
			cpu := cpuTime()
			b.ResetTimer()
			for i, m := range messages {
				if err := j.Apply("devices", uint64(i+1), m); err != nil {
					b.Fatal(err)
				}
			}
			if err := j.Flush(); err != nil {
				b.Fatal(err)
			}
			n := float64(len(messages) * perMessage)
			b.ReportMetric(float64((cpuTime()-cpu).Nanoseconds())/n, "cpu-ns/event")
			b.ReportMetric(float64(bytes)/n, "journey-B/event")
			b.ReportMetric(float64(j.Bytes())/n, "disk-B/event")
		})
	}
}

// BenchmarkIndex is what the views cost for each event that is accepted.
func BenchmarkIndex(b *testing.B) {
	j, err := journal.Open(journal.Options{Dir: b.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	defer j.Close()
	entries := make([]eventlog.Entry, 256)
	for i := range entries {
		entries[i].Record = &event.Record{Received: base}
	}
	b.ReportAllocs()
	cpu := cpuTime()
	seq := uint64(0)
	for b.Loop() {
		if seq%256 == 0 && seq > 0 {
			if err := j.Index("devices", entries, nil, seq+1); err != nil {
				b.Fatal(err)
			}
		}
		e := &entries[seq%256]
		seq++
		e.Seq = seq
		e.Record.Event = event.Event{ID: fmt.Sprint("0195c2a1-7b1e-7cc3-9d59-", seq), Subject: fmt.Sprint("truck/", seq%5000), Source: "/s", Type: "t"}
	}
	b.ReportMetric(float64((cpuTime()-cpu).Nanoseconds())/float64(seq), "cpu-ns/event")
}
