// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/targets"
)

// publish sends count events, numbered from first on, as fast as they are taken in, and waits for their acknowledgements.
func (f *fixture) publish(typ, prefix string, first, count int, data []byte) {
	f.t.Helper()
	var stored sync.WaitGroup
	stored.Add(count)
	for i := range count {
		rec := &event.Record{Event: event.Event{ID: fmt.Sprint(prefix, first+i), Source: "/test", Type: typ, Data: data}}
		f.must(f.Publish(context.Background(), "default", rec, func(r bridge.Receipt) {
			if r.Err != nil {
				f.t.Error(r.Err)
			}
			stored.Done()
		}))
	}
	stored.Wait()
}

// waits waits until a target is owed n deliveries, all on disk.
func (f *fixture) waits(name string, n int) bridge.TargetStatus {
	f.t.Helper()
	return f.parked(name, n)
}

func (f *fixture) account() bridge.LedgerDelivery {
	f.t.Helper()
	l, err := f.Ledger(context.Background(), bridge.LedgerQuery{Bus: "default"})
	f.must(err)
	if !l.Balanced || len(l.Deliveries) != 1 {
		f.t.Fatalf("account %+v", l)
	}
	return l.Deliveries[0]
}

// found counts what a search finds on all of its pages.
func (f *fixture) found(q bridge.SearchQuery) (n int) {
	f.t.Helper()
	for {
		page, err := f.Search(context.Background(), "default", q)
		f.must(err)
		n += len(page.Items)
		if q.Cursor = page.NextCursor; q.Cursor == "" {
			return n
		}
	}
}

// rebuild restarts the bridge with views that are made anew.
func (f *fixture) rebuild() {
	f.t.Helper()
	f.stop(time.Second)
	f.must(os.RemoveAll(f.views()))
	f.start()
}

// downFor is a bridge with a target that is down, and owed count deliveries, most of them in a range.
func downFor(t *testing.T, count int, up *atomic.Bool) *fixture {
	t.Helper()
	f := newFixture(t)
	f.down(count, up)
	return f
}

func (f *fixture) down(count int, up *atomic.Bool) {
	f.t.Helper()
	f.opts.RangeAfter, f.opts.LiveQueue, f.opts.Unsettled = 50, 20, 50*time.Millisecond
	f.target("ops", `{"concurrency":4,"breaker":{"minAttempts":3,"open":"100ms","maxOpen":"100ms"},"retry":{"schedule":["50ms"],"maxAttempts":1000}}`, func(targets.Delivery) error {
		if up.Load() {
			return nil
		}
		return targets.StatusError(503, 0)
	})
	f.rule("all", "reading", "ops")
	f.start()
	f.send("reading", ids("first", 4)...)
	f.status("ops", bridge.TargetOpen)
	const records = 100 // enough for a range to begin; how soon the views know of them is their matter
	f.publish("reading", "e", 0, records, []byte("{}"))
	f.eventually(func() (string, bool) {
		s, err := f.TargetStatus("ops", false)
		f.must(err)
		return fmt.Sprintf("%+v", s), s.Parked >= f.opts.RangeAfter+s.Ranged
	})
	f.publish("reading", "e", records, count-4-records, []byte("{}"))
}

// A target that stays down has some deliveries parked, and a range for the rest: no record of its own for each. When it is
// back what is fresh goes first, the rest is delivered in turn, and each once.
func TestATargetThatStaysDownHasARange(t *testing.T) {
	const count = 3000
	var up atomic.Bool
	f := downFor(t, count, &up)
	defer func() { f.stop(time.Second) }()
	s := f.waits("ops", count)
	if records := s.Parked - s.Ranged; records > count/2 || s.NextDue == nil {
		t.Errorf("%d records for %d deliveries: %+v", records, count, s)
	}
	before := f.account()
	if before.Parked < uint64(s.Ranged) || before.Ranged == 0 || before.Owed != count {
		t.Errorf("account %+v", before)
	}
	last := fmt.Sprint("e", count-5)
	d := f.journey(last, bridge.StatePending).Journey.Deliveries[0]
	if d.State != journal.Parked || d.Reason != "range" || d.Range == nil || d.Range.Deliveries < 100 || d.Due != nil {
		t.Errorf("delivery %+v, range %+v", d, d.Range)
	}
	if _, err := f.Redrive(context.Background(), bridge.RedriveRequest{Bus: "default", ID: last}); fault.KindOf(err) != fault.Conflict {
		t.Errorf("redrive of what waits: %v", err)
	}
	f.rebuild()
	f.status("ops", bridge.TargetOpen)
	if after := f.account(); after.Owed != count || after.Pending != count || after.Ranged == 0 {
		t.Errorf("rebuilt %+v, it was %+v", after, before)
	}
	up.Store(true)
	f.eventually(func() (string, bool) {
		s, err := f.TargetStatus("ops", false)
		f.must(err)
		return fmt.Sprintf("%+v", s), s.State == bridge.TargetActive
	})
	ops := f.targets["ops"]
	n := len(ops.attempts(t, 1))
	f.send("reading", "fresh")
	f.journey("fresh", bridge.StateDelivered)
	all := ops.attempts(t, 1)
	if i := slices.IndexFunc(all, func(d targets.Delivery) bool { return d.Event.ID == "fresh" }); i > n+count/2 {
		t.Errorf("%d attempts went before the fresh event", i-n)
	}
	if l := f.balanced(); l.Deliveries[0].Delivered != count+1 || l.Deliveries[0].Ranged != 0 {
		t.Errorf("account %+v", l.Deliveries)
	}
	delivered := map[string]int{}
	for _, d := range f.targets["ops"].attempts(t, 1)[n:] {
		delivered[d.Event.ID]++
	}
	for id, n := range delivered {
		if n != 1 {
			t.Errorf("%s was delivered %d times", id, n)
		}
	}
	d = f.journey(last, bridge.StateDelivered).Journey.Deliveries[0]
	if len(d.Attempts) != 1 || d.Range != nil {
		t.Errorf("delivery %+v", d)
	}
	was := f.account()
	f.rebuild()
	if d := cmp.Diff(was, f.account()); d != "" {
		t.Errorf("the account, and when it was rebuilt:\n%s", d)
	}
}

// A target that answers, and more slowly than events come, gets a range as well, and what is fresh while its queue is short.
func TestASlowTargetHasARange(t *testing.T) {
	f := newFixture(t)
	f.opts = bridge.Options{RangeAfter: 20, LiveQueue: 1000, Unsettled: 20 * time.Millisecond}
	release := make(chan struct{})
	f.target("ops", `{"concurrency":1}`, func(targets.Delivery) error { <-release; return nil })
	f.rule("all", "reading", "ops")
	f.start()
	defer f.stop(time.Second)
	sent := 0
	f.eventually(func() (string, bool) {
		f.send("reading", ids(fmt.Sprint("e", sent, "-"), 10)...)
		sent += 10
		s, err := f.TargetStatus("ops", false)
		f.must(err)
		return fmt.Sprintf("%+v", s), s.Ranged > 100
	})
	close(release)
	if l := f.balanced(); l.Deliveries[0].Delivered != uint64(sent) {
		t.Errorf("account %+v, %d were sent", l.Deliveries, sent)
	}
}

// What waits in a range ends when its target is deleted, and the range goes.
func TestADeletedTargetEndsItsRange(t *testing.T) {
	const count = 500
	var up atomic.Bool
	f := downFor(t, count, &up)
	defer func() { f.stop(time.Second) }()
	f.waits("ops", count)
	f.RemoveTarget("ops")
	def := f.targets["ops"]
	delete(f.targets, "ops")
	l := f.balanced()
	if d := l.Deliveries[0]; d.Cancelled != count || d.Ranged != 0 {
		t.Errorf("account %+v", d)
	}
	d := f.journey(fmt.Sprint("e", count-5), bridge.StateCancelled).Journey.Deliveries[0]
	if d.Reason != "target_deleted" || d.Range != nil {
		t.Errorf("delivery %+v", d)
	}
	if n := f.found(bridge.SearchQuery{Target: "ops", Outcome: "cancelled", Limit: 100}); n != count {
		t.Errorf("a search finds %d cancelled, want %d", n, count)
	}
	if n := f.found(bridge.SearchQuery{Target: "ops", Outcome: "parked", Limit: 100}); n != 0 {
		t.Errorf("a search finds %d parked", n)
	}
	// A target of the same name has nothing of that, and gets what comes for it; and what is asked for.
	up.Store(true)
	f.targets["ops"] = def
	f.must(f.SetTarget(def.def, def))
	if _, err := f.Redrive(context.Background(), bridge.RedriveRequest{Bus: "default", ID: fmt.Sprint("e", count-5)}); err != nil {
		t.Fatal(err)
	}
	f.send("reading", "new")
	if d := f.balanced().Deliveries[0]; d.Delivered != 2 || d.Cancelled != count-1 {
		t.Errorf("account %+v", d)
	}
	if d := f.journey(fmt.Sprint("e", count-5), bridge.StateDelivered).Journey.Deliveries[0]; len(d.Redrives) != 1 {
		t.Errorf("delivery %+v", d)
	}
	was := f.account()
	f.rebuild()
	if d := cmp.Diff(was, f.account()); d != "" {
		t.Errorf("the account, and when it was rebuilt:\n%s", d)
	}
	if n := f.found(bridge.SearchQuery{Target: "ops", Outcome: "cancelled", Limit: 1000}); n != count-1 {
		t.Errorf("when it was rebuilt, a search finds %d cancelled, want %d", n, count-1)
	}
	f.journey(fmt.Sprint("e", count-6), bridge.StateCancelled)
}

// A rule that is deleted takes its deliveries out of the range at once, also if the target is paused. A rule of the same
// name begins anew, and the others stay.
func TestADeletedRuleLeavesTheRange(t *testing.T) {
	const count = 300
	var up atomic.Bool
	f := downFor(t, count, &up)
	defer func() { f.stop(time.Second) }()
	f.waits("ops", count)
	f.rule("second", "reading", "ops")
	f.pause("ops", true)
	f.publish("reading", "both", 0, count, nil)
	f.waits("ops", 3*count)
	f.setRules(f.rules[1:])
	f.waits("ops", count)
	d := f.journey("both3", bridge.StatePending).Journey.Deliveries
	i := slices.IndexFunc(d, func(d bridge.JourneyDelivery) bool { return d.Rule == "all" })
	if d[i].State != journal.Cancelled || d[i].Reason != "rule_deleted" || d[1-i].State != journal.Parked {
		t.Errorf("deliveries %+v", d)
	}
	f.rule("all", "reading", "ops")
	f.publish("reading", "again", 0, 100, nil)
	f.waits("ops", count+200)
	f.rebuild()
	f.waits("ops", count+200)
	up.Store(true)
	f.pause("ops", false)
	l := f.balanced()
	for _, d := range l.Deliveries {
		if d.Rule == "all" && (d.Cancelled != 2*count || d.Delivered != 100) || d.Rule == "second" && d.Delivered != count+100 {
			t.Errorf("account %+v", d)
		}
	}
}

// What a deleted rule has taken out of a range can be made again, out of the middle of the range that the others still have.
func TestWhatLeftARangeCanBeRedriven(t *testing.T) {
	const count = 300
	var up atomic.Bool
	f := downFor(t, count, &up)
	defer func() { f.stop(time.Second) }()
	f.waits("ops", count)
	f.rule("second", "reading", "ops")
	f.pause("ops", true)
	f.publish("reading", "both", 0, count, nil)
	f.waits("ops", 3*count)
	f.setRules(f.rules[1:])
	f.waits("ops", count)
	_, err := f.Redrive(context.Background(), bridge.RedriveRequest{Bus: "default", ID: "both200", Rule: "all", Target: "ops", By: "me"})
	f.must(err)
	for range 2 {
		d := f.journey("both200", bridge.StatePending).Journey.Deliveries
		i := slices.IndexFunc(d, func(d bridge.JourneyDelivery) bool { return d.Rule == "all" })
		if d[i].State != journal.Parked || d[i].Reason != "redriven" || len(d[i].Redrives) != 1 {
			t.Errorf("deliveries %+v", d)
		}
		f.rebuild()
	}
	up.Store(true)
	f.pause("ops", false)
	for _, d := range f.balanced().Deliveries {
		if d.Rule == "all" && (d.Owed != 2*count || d.Delivered != 1 || d.Cancelled != 2*count-1) || d.Rule == "second" && d.Delivered != count {
			t.Errorf("account %+v", d)
		}
	}
}

// What a deleted rule takes out of a range is counted as it is where each has a record.
func TestWhatLeavesARangeIsCounted(t *testing.T) {
	const count = 300
	var up atomic.Bool
	f := newFixture(t)
	reg := prometheus.NewRegistry()
	f.opts.Registerer = reg
	f.down(count, &up)
	defer func() { f.stop(time.Second) }()
	f.waits("ops", count)
	f.setRules(nil)
	f.balanced()
	f.eventually(func() (string, bool) {
		n := 0.0
		families, err := reg.Gather()
		f.must(err)
		for _, family := range families {
			for _, m := range family.GetMetric() {
				for _, l := range m.GetLabel() {
					if family.GetName() == "rialto_deliveries_total" && l.GetValue() == "cancelled" {
						n += m.GetCounter().GetValue()
					}
				}
			}
		}
		return fmt.Sprintf("%v cancelled deliveries are counted, want %d", n, count), n == count
	})
}

// Rules and targets that were deleted while nothing ran end what was ranged for them at the next start.
func TestDeletedWhileNothingRanEndsRanges(t *testing.T) {
	const count = 300
	var up atomic.Bool
	f := downFor(t, count, &up)
	f.waits("ops", count)
	f.stop(time.Second)
	rule, ops := f.rules, f.targets["ops"]
	f.rules = nil
	f.start()
	if d := f.balanced().Deliveries[0]; d.Cancelled != count {
		t.Errorf("without its rule: %+v", d)
	}
	f.rules = rule
	f.setRules(rule)
	f.publish("reading", "more", 0, count, nil)
	f.waits("ops", count)
	f.stop(time.Second)
	delete(f.targets, "ops")
	f.start()
	if d := f.balanced().Deliveries[0]; d.Cancelled != 2*count {
		t.Errorf("without its target: %+v", d)
	}
	f.targets["ops"] = ops
	f.stop(time.Second)
}

// What is ranged is rendered by the rule as it was when the event met it.
func TestARangeKeepsTheRuleThatWasMet(t *testing.T) {
	const count = 300
	var up atomic.Bool
	f := downFor(t, count, &up)
	defer func() { f.stop(time.Second) }()
	f.waits("ops", count)
	old := f.rules[0].Revision
	f.rules = nil
	f.rule("all", "reading", "ops")
	f.publish("reading", "new", 0, 100, nil)
	f.waits("ops", count+100)
	up.Store(true)
	f.balanced()
	for id, want := range map[string]uint64{"e200": old, "new50": f.rules[0].Revision} {
		if d := f.journey(id, bridge.StateDelivered).Journey.Deliveries[0]; d.Revision != want {
			t.Errorf("%s was delivered by revision %d, want %d", id, d.Revision, want)
		}
	}
}

// A delivery that waits in a range is owed: a job that sends dead letters to its target leaves that one.
func TestWhatWaitsInARangeIsOwedOnce(t *testing.T) {
	const count = 300
	var up atomic.Bool
	f := downFor(t, count, &up)
	defer func() { f.stop(time.Second) }()
	f.waits("ops", count)
	f.target("dies", quick, func(targets.Delivery) error { return targets.StatusError(400, 0) })
	f.rules = nil
	f.rule("all", "reading", "ops", "dies")
	f.publish("reading", "both", 0, 20, nil)
	f.waits("ops", count+20)
	f.eventually(func() (string, bool) {
		n := len(f.deadLetters(bridge.DeadFilter{}))
		return fmt.Sprint(n, " dead letters, want 20"), n == 20
	})
	job, err := f.StartJob(context.Background(), bridge.JobSpec{Kind: bridge.JobRedrive, To: "ops", Rate: 1000})
	f.must(err)
	if j := f.job(job.ID, bridge.JobDone); j.Skipped != 20 || j.Handled != 0 {
		t.Errorf("job %+v", j)
	}
	up.Store(true)
	l := f.balanced()
	for _, d := range l.Deliveries {
		if d.Target == "ops" && (d.Owed != count+20 || d.Delivered != count+20) {
			t.Errorf("account %+v", d)
		}
	}
}
