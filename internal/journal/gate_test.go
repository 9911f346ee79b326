// SPDX-License-Identifier: Apache-2.0

package journal_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/journal"
)

var searched = flag.Int("events", 300_000, "how many events TestGateSearch searches")

// answersWithin is what a query may take; the bar is that of 10 M events.
const answersWithin = 20 * time.Millisecond

const (
	subjects   = 50_000
	pageLimit  = 100
	rareEvery  = 50_000 // one event in so many goes to the target "rare"
	otherCount = 200    // targets that share half of the events
)

// archiveOf fills views and JOURNEY with events: half of them go to the target "busy", the others to 200 more, a few to
// "rare". One in a hundred dies, one in a hundred stays parked, one in ten is delivered at the second attempt.
func archiveOf(t *testing.T, j *journal.Journal, stream *eventlog.Stream, events uint64) {
	t.Helper()
	routes := []journal.Route{{Rule: "all", Revision: 1, Target: "busy"}, {Rule: "few", Revision: 1, Target: "rare"}}
	for i := range otherCount {
		routes = append(routes, journal.Route{Rule: fmt.Sprint("rule-", i), Revision: 1, Target: fmt.Sprint("target-", i)})
	}
	failed := journal.Exchange{Remote: "192.0.2.7:443", DNS: time.Millisecond, Connect: time.Millisecond, TLS: 5 * time.Millisecond,
		FirstByte: 20 * time.Millisecond, Head: "HTTP/1.1 503 Service Unavailable\nContent-Type: text/plain\n\ndown for maintenance"}
	kept := journal.Exchange{Remote: "192.0.2.7:443", Reused: true, FirstByte: 12 * time.Millisecond}
	rnd := rand.New(rand.NewPCG(1, 1))
	var e journal.Encoder
	var later []journal.Outcome
	entries := make([]eventlog.Entry, 0, 1024)
	dead := uint64(0)
	done := make(chan error, 1)
	for seq := uint64(1); seq <= events; seq++ {
		at := base.Add(time.Duration(seq) * 100 * time.Microsecond)
		route := routes[0]
		switch {
		case seq%rareEvery == 0:
			route = routes[1]
		case rnd.IntN(2) == 0:
			route = routes[2+rnd.IntN(otherCount)]
		}
		e.Routed(journal.Routed{Seq: seq, Check: journal.Check(seq), Hour: journal.HourOf(at), Routes: []journal.Route{route}})
		o := journal.Outcome{Seq: seq, Route: route, State: journal.Delivered, Attempt: 1, At: at, Duration: 13 * time.Millisecond, Status: 204, Exchange: kept}
		switch n := rnd.IntN(100); {
		case n < 12:
			f := o
			f.State, f.Status, f.Reason, f.Detail, f.Due, f.Exchange = journal.Parked, 503, "status", "status 503", at.Add(5*time.Second), failed
			if n < 1 {
				dead++
				f.State, f.Due, f.DeadSeq = journal.Dead, time.Time{}, dead
			}
			e.Outcome(f)
			if n >= 2 {
				o.Attempt = 2
				later = append(later, o)
			}
		default:
			e.Outcome(o)
		}
		entries = append(entries, entry(seq, idOf(seq), subjectOf(seq)))
		if seq%perMessage == 0 || seq == events {
			if len(later) > 500 || seq == events {
				for _, o := range later {
					e.Outcome(o)
				}
				later = later[:0]
			}
			m := e.Take()
			err := stream.Append(context.Background(), eventlog.Message{Subject: "journey.devices", Data: m}, func(r eventlog.Result) {
				if r.Err != nil {
					select {
					case done <- r.Err:
					default:
					}
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := j.Apply("devices", (seq+perMessage-1)/perMessage, m); err != nil {
				t.Fatal(err)
			}
		}
		if len(entries) == cap(entries) || seq == events {
			if err := j.Index("devices", entries, nil, seq+1); err != nil {
				t.Fatal(err)
			}
			entries = entries[:0]
		}
	}
	if err := stream.Wait(t.Context(), (events+perMessage-1)/perMessage-1); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		t.Fatal(err)
	default:
	}
}

func idOf(seq uint64) string {
	return fmt.Sprintf("0195c2a1-7b1e-7cc3-%04x-%012x", seq%7919, seq*2654435761)
}
func subjectOf(seq uint64) string {
	return fmt.Sprintf("truck/%d/box/%d", seq*7%subjects/100, seq*7%100+seq*7%subjects)
}

// TestGateSearch measures what each query takes, with the journeys that a list of events shows, over many events; 10 M by
// hand: go test ./internal/journal -run TestGateSearch -v -events 10000000 -timeout 30m
func TestGateSearch(t *testing.T) {
	ctx := t.Context()
	events := uint64(*searched)
	log, err := eventlog.Open(ctx, eventlog.Options{Dir: t.TempDir(), Durability: eventlog.OS, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close(context.Background())
	stream, err := log.Stream(ctx, eventlog.StreamConfig{Name: "JOURNEY_devices", Subjects: []string{"journey.devices"}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	j := open(t, dir)
	began, cpu := time.Now(), cpuTime()
	archiveOf(t, j, stream, events)
	t.Logf("%d events in %v, %v of CPU time each, the making of them included", events, time.Since(began).Round(time.Second), (cpuTime()-cpu)/time.Duration(events))
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = open(t, dir) // nothing is in memory
	defer j.Close()
	t.Logf("%d MB of views, %d B an event; %d MB resident", j.Bytes()>>20, j.Bytes()/events, resident(t)>>20)

	rnd := rand.New(rand.NewPCG(2, 2))
	for _, q := range []struct {
		name  string
		least int // results
		ask   func(before uint64) ([]uint64, error)
	}{
		{"id", 1, func(before uint64) ([]uint64, error) { return j.ByID("devices", idOf(before-1), 0, 64) }},
		{"id of nothing", 0, func(before uint64) ([]uint64, error) { return j.ByID("devices", fmt.Sprint("none-", before), 0, 64) }},
		{"subject", 0, func(before uint64) ([]uint64, error) {
			return j.BySubject("devices", subjectOf(before-1), before, pageLimit)
		}},
		{"delivered at a busy target", pageLimit, outcomes(j, "busy", journal.Delivered)},
		{"parked at a busy target", 1, outcomes(j, "busy", journal.Parked)},
		{"dead at a busy target", 1, outcomes(j, "busy", journal.Dead)},
		{"cancelled at a busy target", 0, outcomes(j, "busy", journal.Cancelled)},
		{"any outcome at a busy target", pageLimit, outcomes(j, "busy", 0)},
		{"delivered at one of many", 1, outcomes(j, "target-7", journal.Delivered)},
		{"any outcome at a rare target", 0, outcomes(j, "rare", 0)},
		{"any outcome at no target", 0, outcomes(j, "nobody", 0)},
	} {
		var took, view []time.Duration
		found := 0
		for range 100 {
			before := uint64(2000) + rnd.Uint64N(events-2000)
			start := time.Now()
			seqs, err := q.ask(before)
			if err != nil {
				t.Fatal(err)
			}
			view = append(view, time.Since(start))
			journeys, err := j.Journeys(ctx, "devices", stream, seqs)
			took = append(took, time.Since(start))
			if err != nil || len(seqs) < q.least {
				t.Fatalf("%s below %d: %d results, want %d; %v", q.name, before, len(seqs), q.least, err)
			}
			for _, seq := range seqs {
				if y := journeys[seq]; !y.Routed || y.Check != journal.Check(seq) || len(y.Outcomes) == 0 {
					t.Fatalf("%s: journey of %d: %+v", q.name, seq, y)
				}
			}
			found += len(seqs)
		}
		slices.Sort(took)
		slices.Sort(view)
		t.Logf("%-30s %4d results: view p50 %8v p90 %8v, with journeys p50 %8v p90 %8v max %8v", q.name, found/100,
			view[50].Round(time.Microsecond), view[90].Round(time.Microsecond), took[50].Round(time.Microsecond), took[90].Round(time.Microsecond), took[99].Round(time.Microsecond))
		if view[90] > answersWithin || took[50] > answersWithin { // other processes disturb some
			t.Errorf("%s takes %v, and %v with journeys, want at most %v", q.name, view[90], took[50], answersWithin)
		}
	}
	t.Logf("%d MB resident after all", resident(t)>>20)
}

func outcomes(j *journal.Journal, target string, state journal.State) func(uint64) ([]uint64, error) {
	return func(before uint64) ([]uint64, error) {
		return j.ByOutcome("devices", target, state, 0, before, pageLimit)
	}
}

// resident is what this process keeps in memory, in bytes.
func resident(t *testing.T) (n uint64) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &n); err == nil {
			return n << 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}
