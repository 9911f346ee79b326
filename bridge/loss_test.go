// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
)

// disk is a disk that a test can stop for a while.
type disk struct{ stopped atomic.Pointer[chan struct{}] }

func (d *disk) sync(file *os.File) error {
	if ch := d.stopped.Load(); ch != nil {
		<-*ch
	}
	return file.Sync()
}

// stop stops it until the function that is returned is called.
func (d *disk) stop() (goOn func()) {
	ch := make(chan struct{})
	d.stopped.Store(&ch)
	return func() { d.stopped.Store(nil); close(ch) }
}

// slowDisk gives a fixture that was not started a disk that can be stopped.
func (f *fixture) slowDisk() *disk {
	d := &disk{}
	f.logOpts = eventlog.Options{Durability: eventlog.Fsync, Sync: d.sync}
	return d
}

// bigRule adds a rule whose document is large.
func (f *fixture) bigRule(name, typ, to string, size int) {
	f.t.Helper()
	r, err := rules.ParseRule(fmt.Appendf(nil, `{"kind":"Rule","name":%q,"bus":"default","pattern":{"type":[%q]},"targets":[{"target":%q,
		"transform":{"template":{"text":%q}}}]}`, name, typ, to, strings.Repeat("x", size)))
	f.must(err)
	f.rev++
	r.Revision = f.rev
	f.rules = append(f.rules, r)
}

// What redrives the deliveries of many large rules does not fit into one message of JOURNEY.
func TestDeliveriesOfManyLargeRulesAreRedriven(t *testing.T) {
	f := newFixture(t)
	ops, up := f.refusing("ops")
	const n = 40
	for i := range n {
		f.bigRule(fmt.Sprint("rule", i), "reading", "ops", 30<<10)
	}
	f.start()
	defer f.stop(time.Second)
	f.dead("a")
	up.Store(true)
	job := f.startJob(bridge.JobSpec{Kind: bridge.JobRedrive, Rate: 10_000})
	ops.attempts(t, 2*n)
	if j := f.job(job.ID, bridge.JobDone); j.Handled != n {
		t.Errorf("job %+v", j)
	}
	if l := f.balanced(); len(l.Deliveries) != n || l.Deliveries[0].Delivered != 1 {
		t.Errorf("account %+v", l.Deliveries)
	}
	for _, c := range f.Checks() {
		if !c.OK {
			t.Errorf("check %+v", c)
		}
	}
}

// Who asked for a redrive goes away before it is committed: it is made all the same.
func TestARedriveWhoseCallerIsGoneIsMade(t *testing.T) {
	f := newFixture(t)
	d := f.slowDisk()
	ops, up := f.refusing("ops")
	f.rule("all", "reading", "ops")
	f.start()
	defer f.stop(time.Second)
	f.dead("a")
	f.balanced()
	up.Store(true)
	goOn := d.stop()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := f.Redrive(ctx, bridge.RedriveRequest{Bus: "default", ID: "a"})
	goOn()
	if fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "journey") {
		t.Errorf("the disk stands still: %v", err)
	}
	ops.attempts(t, 2)
	f.journey("a", bridge.StateDelivered)
	f.balanced()
}

// A job of which its caller was told nothing does not begin at a later start: it is there, or it is not.
func TestAJobWhoseCallerIsGoneIsInTheList(t *testing.T) {
	f := newFixture(t)
	d := f.slowDisk()
	_, up := f.refusing("ops")
	f.rule("all", "reading", "ops")
	f.start()
	defer func() { f.stop(time.Second) }()
	f.dead("a")
	f.balanced()
	up.Store(true)
	goOn := d.stop()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	type answer struct {
		job bridge.Job
		err error
	}
	made := make(chan answer, 1)
	go func() {
		j, err := f.StartJob(ctx, bridge.JobSpec{Kind: bridge.JobRedrive})
		made <- answer{j, err}
	}()
	<-ctx.Done()
	goOn()
	a := <-made
	before, err := f.Jobs("")
	f.must(err)
	if (a.err == nil) != (len(before) == 1) {
		t.Errorf("StartJob = %+v, %v; jobs %+v", a.job, a.err, before)
	}
	f.stop(time.Second)
	f.start()
	after, err := f.Jobs("")
	f.must(err)
	if len(after) != len(before) {
		t.Errorf("jobs %+v, were %+v", after, before)
	}
}

// A rule is deleted between an attempt's failure and the record that parks its delivery: it is cancelled all the same.
func TestARuleIsDeletedWhileItsDeliveryIsParked(t *testing.T) {
	f := newFixture(t)
	failed, deleted := make(chan struct{}), make(chan struct{})
	f.opts.Rand = func() float64 {
		close(failed)
		<-deleted
		return 0.5
	}
	f.target("ops", `{"retry":{"schedule":["1h"]}}`, func(targets.Delivery) error { return targets.StatusError(503, 0) })
	f.rule("all", "reading", "ops")
	f.start()
	defer f.stop(time.Second)
	f.send("reading", "a")
	<-failed
	f.setRules(nil)
	close(deleted)
	if d := f.journey("a", bridge.StateCancelled).Journey.Deliveries[0]; d.Reason != "rule_deleted" {
		t.Errorf("delivery %+v", d)
	}
	f.balanced()
}

// A rule that does not name a target any more has no transform for it: the event would go there as it is, with all that the
// rule had kept from it.
func TestNothingIsRedrivenPastItsRule(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	ops, up := f.refusing("ops")
	other := f.target("other", quick, nil)
	f.bigRule("all", "reading", "ops", 10)
	f.setRules(f.rules)
	f.dead("a")
	f.rules = nil
	f.rule("all", "reading", "other")
	up.Store(true)
	job := f.startJob(bridge.JobSpec{Kind: bridge.JobRedrive})
	if j := f.job(job.ID, bridge.JobDone); j.Skipped != 1 || j.Handled != 0 || !strings.Contains(j.Skip, "rule all does not send to target ops any more") {
		t.Errorf("job %+v", j)
	}
	if _, err := f.Redrive(context.Background(), bridge.RedriveRequest{Bus: "default", ID: "a"}); fault.KindOf(err) != fault.Conflict {
		t.Errorf("redrive by hand: %v, want a conflict", err)
	}
	f.journey("a", bridge.StateDead)
	// To the target that it does name, it goes as the rule says.
	_, err := f.Redrive(context.Background(), bridge.RedriveRequest{Bus: "default", ID: "a", To: "other"})
	f.must(err)
	if got := other.attempts(t, 1)[0]; string(got.Event.Data) != `{"n":1}` {
		t.Errorf("delivery %+v", got)
	}
	if n := len(ops.attempts(t, 1)); n != 1 {
		t.Errorf("%d attempts", n)
	}
	f.balanced()
}

// What was redriven to another target, and dies there, is rendered with the same transform when it is redriven once more.
func TestATransformGoesAlong(t *testing.T) {
	f := newFixture(t)
	f.refusing("ops")
	spare, up := f.refusing("spare")
	f.bigRule("all", "reading", "ops", 3)
	f.start()
	defer f.stop(time.Second)
	f.dead("a", "b")
	job := f.startJob(bridge.JobSpec{Kind: bridge.JobRedrive, To: "spare"})
	f.job(job.ID, bridge.JobDone)
	f.balanced()
	up.Store(true)
	_, err := f.Redrive(context.Background(), bridge.RedriveRequest{Bus: "default", ID: "a", Target: "spare"})
	f.must(err)
	job = f.startJob(bridge.JobSpec{Kind: bridge.JobRedrive, Filter: bridge.DeadFilter{Target: "spare"}})
	f.job(job.ID, bridge.JobDone)
	_, err = f.Redrive(context.Background(), bridge.RedriveRequest{Bus: "default", ID: "b", Target: "spare", Delivered: true})
	for fault.KindOf(err) == fault.Conflict { // not made yet
		_, err = f.Redrive(context.Background(), bridge.RedriveRequest{Bus: "default", ID: "b", Target: "spare", Delivered: true})
	}
	f.must(err)
	for _, d := range spare.attempts(t, 5) {
		if string(d.Event.Data) != `{"text":"xxx"}` {
			t.Errorf("delivery of %s: %s", d.Event.ID, d.Event.Data)
		}
	}
	f.balanced()
}

// A page of large dead letters is short: a list takes little memory, whatever is in it.
func TestAPageOfLargeDeadLettersIsShort(t *testing.T) {
	f := newFixture(t)
	f.refusing("ops")
	f.rule("all", "reading", "ops")
	f.start()
	defer f.stop(time.Second)
	const n, size = 24, 1 << 20
	for i := range n {
		_, err := f.Ingest(context.Background(), "default", []*event.Record{{Event: event.Event{ID: fmt.Sprint("e", i), Source: "/test", Type: "reading", Data: make([]byte, size)}}})
		f.must(err)
	}
	if l := f.balanced(); l.Deliveries[0].Dead != n {
		t.Fatalf("account %+v", l.Deliveries)
	}
	seen := make(map[string]bool)
	q := bridge.DeadQuery{Limit: 1000}
	for {
		page, err := f.DeadLetters(context.Background(), q)
		f.must(err)
		if len(page.Items) > 10 || len(page.Items) == 0 {
			t.Errorf("a page of %d MiB", len(page.Items))
		}
		for _, d := range page.Items {
			seen[d.EventID] = true
		}
		if q.Cursor = page.NextCursor; q.Cursor == "" {
			break
		}
	}
	if len(seen) != n {
		t.Errorf("%d of %d dead letters in all pages", len(seen), n)
	}
}

// A target that is gone leaves no series behind, also if its last attempt ends later.
func TestADeletedTargetLeavesNoMetrics(t *testing.T) {
	f := newFixture(t)
	reg := prometheus.NewRegistry()
	f.opts.Registerer = reg
	gate := make(chan struct{})
	ops := f.target("ops", `{}`, func(d targets.Delivery) error {
		if d.Event.ID == "b" {
			<-gate
		}
		return nil
	})
	other := f.target("other", `{}`, nil)
	f.rule("all", "reading", "ops", "other")
	f.start()
	defer f.stop(time.Second)
	f.send("reading", "a")
	f.journey("a", bridge.StateDelivered)
	f.send("reading", "b")
	ops.attempts(t, 2)
	other.attempts(t, 2)
	series := func(target string) (names []string) {
		families, err := reg.Gather()
		f.must(err)
		for _, m := range families {
			for _, s := range m.GetMetric() {
				for _, l := range s.GetLabel() {
					if l.GetName() == "target" && l.GetValue() == target {
						names = append(names, m.GetName())
					}
				}
			}
		}
		return names
	}
	if n := len(series("ops")); n < 4 {
		t.Fatalf("series before: %v", series("ops"))
	}
	f.RemoveTarget("ops")
	delete(f.targets, "ops")
	if left := series("ops"); len(left) > 0 {
		t.Errorf("series of a deleted target: %v", left)
	}
	close(gate)
	f.balanced()
	f.send("reading", "c") // its rule still names the target
	other.attempts(t, 3)
	f.balanced()
	if left := series("ops"); len(left) > 0 {
		t.Errorf("series of a deleted target, later: %v", left)
	}
	if n := len(series("other")); n < 4 {
		t.Errorf("series of the other: %v", series("other"))
	}
}
