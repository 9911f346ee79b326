// SPDX-License-Identifier: Apache-2.0

//go:build !race

// Several blocks of both streams have to be written, which takes the race detector ten times as long.

package bridge_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
)

// large adds a rule whose document is about as large as one may be.
func (f *fixture) large(name string) {
	f.t.Helper()
	f.rev++
	r, err := rules.ParseRule(fmt.Appendf(nil, `{"kind":"Rule","name":%q,"pattern":{"type":["reading"]},
		"targets":[{"target":"ops","transform":{"constant":%q}}]}`, name, strings.Repeat("x", 250<<10)))
	f.must(err)
	r.Revision = f.rev
	for i, old := range f.rules {
		if old.Name == name {
			f.rules = append(f.rules[:i:i], f.rules[i+1:]...)
			break
		}
	}
	f.setRules(append(f.rules[:len(f.rules):len(f.rules)], r))
}

// Retention takes whole blocks of both streams, and what is left is enough to build the views anew.
func TestRetentionLeavesAnAccountThatBalances(t *testing.T) {
	f := newFixture(t)
	ops := f.target("ops", `{}`, nil)
	f.start()
	ctx := context.Background()
	f.send("other", "before")
	f.balanced()
	f.stop(time.Second)
	old := filepath.Join(t.TempDir(), "old")
	f.must(os.CopyFS(old, os.DirFS(f.views())))
	f.start()
	f.must(f.SetBus(ctx, &bridge.BusDoc{Name: "default", MaxAge: time.Hour, MaxBytes: 1, DedupWindow: time.Minute}))
	data := make([]byte, 400<<10)
	const n = 72
	for i := range n {
		f.large("all")
		rec := &event.Record{Event: event.Event{ID: fmt.Sprint(i), Source: "/test", Type: "reading", Data: data}}
		if _, err := f.Ingest(ctx, "default", []*event.Record{rec}); err != nil {
			t.Fatal(err)
		}
		ops.attempts(t, i+1)
	}
	f.balanced()
	f.must(f.Trim(ctx, "default"))
	first, _, journeyFirst, journeyLast, err := f.Streams("default")
	f.must(err)
	if first == 1 || journeyFirst == 1 {
		t.Fatalf("nothing was trimmed: events from %d, JOURNEY from %d", first, journeyFirst)
	}
	f.must(f.Trim(ctx, "default"))
	if _, _, _, again, err := f.Streams("default"); err != nil || again > journeyLast+2 { // a floor may come
		t.Errorf("JOURNEY grew from %d to %d by trimming once more, %v", journeyLast, again, err)
	}
	f.balanced()
	f.stop(time.Second)
	for _, views := range []string{"kept", "deleted", "older than what is left"} {
		if views != "kept" {
			f.must(os.RemoveAll(f.views()))
		}
		if views == "older than what is left" {
			f.must(os.CopyFS(f.views(), os.DirFS(old)))
		}
		f.start()
		f.balanced()
		for seq := first; seq <= n+1; seq++ {
			found := f.journey(fmt.Sprint(seq-2), bridge.StateDelivered)
			if v := found.Journey.Rules; len(v) != 1 || v[0].Explanation == nil {
				t.Errorf("views %s: verdicts of %d: %+v", views, seq, v)
			}
		}
		f.stop(time.Second)
	}
}

// A dead letter has a copy of its event: it is redriven when the bus has trimmed the event, also by views that were rebuilt
// from what JOURNEY has kept.
func TestADeadLetterOutlivesItsEvent(t *testing.T) {
	f := newFixture(t)
	var mode atomic.Int32 // 0: refuse for good, 1: later, 2: take
	ops := f.target("ops", `{"retry":{"schedule":["1h"],"maxAttempts":2}}`, func(targets.Delivery) error {
		return []error{targets.StatusError(400, 0), targets.StatusError(503, 0), nil}[mode.Load()]
	})
	f.rule("all", "reading", "ops")
	f.start()
	ctx := context.Background()
	f.dead("a", "b")
	f.must(f.SetBus(ctx, &bridge.BusDoc{Name: "default", MaxAge: time.Hour, MaxBytes: 1, DedupWindow: time.Minute}))
	data := make([]byte, 400<<10)
	fill := func(round string) {
		t.Helper()
		for i := range 72 {
			f.large("unused")
			rec := &event.Record{Event: event.Event{ID: round + fmt.Sprint(i), Source: "/test", Type: "other", Data: data}}
			if _, err := f.Ingest(ctx, "default", []*event.Record{rec}); err != nil {
				t.Fatal(err)
			}
			f.journey(round+fmt.Sprint(i), bridge.StateUnmatched)
		}
		f.balanced()
		f.must(f.Trim(ctx, "default"))
	}
	fill("x")
	first, _, journeyFirst, _, err := f.Streams("default")
	f.must(err)
	if first <= 2 || journeyFirst == 1 {
		t.Fatalf("events from %d, JOURNEY from %d", first, journeyFirst)
	}
	mode.Store(1)
	ids := f.deadLetters(bridge.DeadFilter{})
	f.job(f.startJob(bridge.JobSpec{Kind: bridge.JobRedrive, Filter: bridge.DeadFilter{IDs: []string{ids[1].ID}}}).ID, bridge.JobDone)
	ops.attempts(t, 3)
	f.must(f.Trim(ctx, "default"))
	f.stop(time.Second)
	f.must(os.RemoveAll(f.views()))
	f.start()
	l, err := f.Ledger(ctx, bridge.LedgerQuery{Bus: "default"})
	f.must(err)
	if !l.Balanced || len(l.Deliveries) != 1 || l.Deliveries[0].Owed != 1 || l.Deliveries[0].Pending != 1 {
		t.Errorf("account %+v", l.Deliveries)
	}
	f.stop(time.Second)
}

// Dead letters are listed for as long as they are kept, also by views that are built anew when JOURNEY has forgotten how they died;
// and none comes back that somebody has dealt with.
func TestDeadLettersOutliveTheViews(t *testing.T) {
	f := newFixture(t).start()
	ops, up := f.refusing("ops")
	f.rule("all", "reading", "ops")
	ctx := context.Background()
	f.dead("discarded", "left", "redriven")
	f.must(f.SetBus(ctx, &bridge.BusDoc{Name: "default", MaxAge: time.Hour, MaxBytes: 1, DedupWindow: time.Minute}))
	data := make([]byte, 400<<10)
	forget := func(round string) {
		t.Helper()
		_, _, before, _, err := f.Streams("default")
		f.must(err)
		for i := range 72 {
			f.large("unused")
			f.publish("other", round, i, 1, data)
			f.journey(round+fmt.Sprint(i), bridge.StateUnmatched)
		}
		f.balanced()
		f.must(f.Trim(ctx, "default"))
		first, _, journeyFirst, _, err := f.Streams("default")
		f.must(err)
		if first <= 3 || journeyFirst == before {
			t.Fatalf("events from %d, JOURNEY from %d", first, journeyFirst)
		}
	}
	listed := func(want ...string) {
		t.Helper()
		f.rebuild()
		f.must(f.SetBus(ctx, &bridge.BusDoc{Name: "default", MaxAge: time.Hour, MaxBytes: 1, DedupWindow: time.Minute}))
		var got []string
		for _, d := range f.deadLetters(bridge.DeadFilter{Bus: "default", Reason: "status"}) {
			got = append(got, d.EventID)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("dead letters (-want +got):\n%s", d)
		}
	}
	id := f.deadLetters(bridge.DeadFilter{})[2].ID
	f.job(f.startJob(bridge.JobSpec{Kind: bridge.JobDiscard, Filter: bridge.DeadFilter{IDs: []string{id}}, Why: "test data"}).ID, bridge.JobDone)
	forget("x")
	listed("redriven", "left")
	up.Store(true)
	f.job(f.startJob(bridge.JobSpec{Kind: bridge.JobRedrive, Filter: bridge.DeadFilter{IDs: []string{f.deadLetters(bridge.DeadFilter{})[0].ID}}}).ID, bridge.JobDone)
	if got := ops.attempts(t, 4)[3]; got.Event.ID != "redriven" {
		t.Errorf("redriven %+v", got.Event)
	}
	f.balanced()
	forget("y")
	listed("left")
	f.stop(time.Second)
}

// What waits in a range holds the retention of both streams, and only from where its cursor is; and the views can be built
// anew from what is left.
func TestARangeHoldsRetention(t *testing.T) {
	f := newFixture(t)
	f.opts = bridge.Options{RangeAfter: 2, LiveQueue: 1, Unsettled: 20 * time.Millisecond}
	var up atomic.Bool
	f.target("ops", `{"concurrency":1,"breaker":{"minAttempts":1,"open":"100ms","maxOpen":"100ms"},"retry":{"schedule":["50ms"],"maxAttempts":1000}}`, func(targets.Delivery) error {
		if up.Load() {
			return nil
		}
		return targets.StatusError(503, 0)
	})
	up.Store(true)
	f.start()
	ctx := context.Background()
	f.must(f.SetBus(ctx, &bridge.BusDoc{Name: "default", MaxAge: time.Hour, MaxBytes: 1, DedupWindow: time.Minute}))
	data := make([]byte, 400<<10)
	send := func(from, to int) {
		for i := from; i < to; i++ {
			f.large("all")
			rec := &event.Record{Event: event.Event{ID: fmt.Sprint(i), Source: "/test", Type: "reading", Data: data}}
			if _, err := f.Ingest(ctx, "default", []*event.Record{rec}); err != nil {
				t.Fatal(err)
			}
			if up.Load() {
				f.journey(fmt.Sprint(i), bridge.StateDelivered)
			} else {
				f.parked("ops", i+1-from)
			}
		}
	}
	const n = 48
	send(0, n)
	up.Store(false)
	send(n, 2*n)
	s := f.parked("ops", n)
	if s.Ranged < 5 {
		t.Fatalf("status %+v", s)
	}
	f.must(f.Trim(ctx, "default"))
	first, _, journeyFirst, _, err := f.Streams("default")
	f.must(err)
	if first == 1 || journeyFirst == 1 || first > n+1 {
		t.Fatalf("events from %d, JOURNEY from %d; %d is the first that waits", first, journeyFirst, n+1)
	}
	f.rebuild()
	f.parked("ops", n)
	f.must(f.SetBus(ctx, &bridge.BusDoc{Name: "default", MaxAge: time.Hour, MaxBytes: 1, DedupWindow: time.Minute}))
	up.Store(true)
	f.balanced()
	for i := n; i < 2*n; i++ {
		f.journey(fmt.Sprint(i), bridge.StateDelivered)
	}
	f.must(f.Trim(ctx, "default"))
	if now, _, _, _, err := f.Streams("default"); err != nil || now <= first {
		t.Errorf("events from %d, then from %d, %v", first, now, err)
	}
	f.stop(time.Second)
}
