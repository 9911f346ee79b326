// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
)

// job waits until a job is in a state.
func (f *fixture) job(id, state string) bridge.Job {
	f.t.Helper()
	var j bridge.Job
	f.eventually(func() (string, bool) {
		var err error
		j, err = f.Job("", id)
		f.must(err)
		return fmt.Sprintf("job %+v, want it %s", j, state), j.State == state
	})
	return j
}

// dead sends events to a target that refuses them and waits until they are dead.
func (f *fixture) dead(ids ...string) {
	f.t.Helper()
	f.send("reading", ids...)
	for _, id := range ids {
		f.journey(id, bridge.StateDead)
	}
}

func (f *fixture) startJob(s bridge.JobSpec) bridge.Job {
	f.t.Helper()
	j, err := f.StartJob(context.Background(), s)
	f.must(err)
	return j
}

func (f *fixture) deadLetters(q bridge.DeadFilter) []bridge.DeadLetter {
	f.t.Helper()
	page, err := f.DeadLetters(context.Background(), bridge.DeadQuery{DeadFilter: q, Limit: 1000})
	f.must(err)
	return page.Items
}

// refusing is a target that refuses everything for good until up.
func (f *fixture) refusing(name string) (*recipient, *atomic.Bool) {
	var up atomic.Bool
	r := f.target(name, `{"concurrency":1,"retry":{"schedule":[]}}`, func(d targets.Delivery) error {
		if up.Load() {
			return nil
		}
		return targets.StatusError(400, 0)
	})
	return r, &up
}

func extension(ev *event.Event) any {
	v, _ := ev.Extension(bridge.RedriveExtension)
	return v
}

func TestDeadLettersAreRedriven(t *testing.T) {
	f := newFixture(t).start()
	defer func() { f.stop(time.Second) }()
	ops, up := f.refusing("ops")
	f.rule("all", "reading", "ops")
	f.dead("a", "b", "c")
	if l := f.balanced(); l.Deliveries[0].Dead != 3 {
		t.Fatalf("account %+v", l.Deliveries)
	}
	up.Store(true)
	job := f.startJob(bridge.JobSpec{Kind: bridge.JobRedrive, Filter: bridge.DeadFilter{Bus: "default", Target: "ops"}, By: "ci", Why: "mended"})
	if job.Total != 3 || job.State != bridge.JobRunning || job.By != "ci" {
		t.Errorf("job %+v", job)
	}
	for _, id := range []string{"a", "b", "c"} {
		d := f.journey(id, bridge.StateDelivered).Journey.Deliveries[0]
		if len(d.Redrives) != 1 || d.Redrives[0].Job != job.ID || d.Redrives[0].By != "ci" || d.DeadLetter != "" || len(d.Attempts) != 2 {
			t.Errorf("delivery of %s %+v", id, d)
		}
	}
	job = f.job(job.ID, bridge.JobDone)
	f.balanced()
	if job, _ = f.Job("default", job.ID); job.Handled != 3 || job.Delivered != 3 || job.Pending != 0 || job.Skipped != 0 {
		t.Errorf("job %+v", job)
	}
	got := ops.attempts(t, 6)
	ids := map[string]string{}
	for i, d := range got {
		switch {
		case i < 3:
			ids[d.Event.ID] = d.ID
			if extension(d.Event) != nil {
				t.Errorf("a first attempt is marked: %+v", d.Event)
			}
		case d.ID != ids[d.Event.ID]:
			t.Errorf("delivery id %s of %s, was %s", d.ID, d.Event.ID, ids[d.Event.ID])
		case extension(d.Event) != job.ID || d.Attempt != 1:
			t.Errorf("redriven event %+v, attempt %d", d.Event, d.Attempt)
		}
	}
	for _, views := range []string{"kept", "rebuilt"} {
		l := f.balanced()
		if d := l.Deliveries[0]; len(l.Deliveries) != 1 || d.Owed != 3 || d.Delivered != 3 || d.Dead != 0 {
			t.Errorf("views %s: account %+v", views, l.Deliveries)
		}
		if left := f.deadLetters(bridge.DeadFilter{}); len(left) != 0 {
			t.Errorf("views %s: dead letters %+v", views, left)
		}
		if j := f.job(job.ID, bridge.JobDone); j.Delivered != 3 || j.Why != "mended" {
			t.Errorf("views %s: job %+v", views, j)
		}
		f.stop(time.Second)
		f.must(os.RemoveAll(f.views()))
		f.start()
	}
}

// A rule is used as it is now, so that what its transform spoilt can be mended, and another target gets what the first one
// would have.
func TestARedriveGoesElsewhere(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	ops, _ := f.refusing("ops")
	spare := f.target("spare", quick, nil)
	f.rule("all", "reading", "ops")
	f.dead("a", "b")
	r, err := rules.ParseRule([]byte(`{"kind":"Rule","name":"all","bus":"default","pattern":{"type":["reading"]},
		"targets":[{"target":"ops","transform":{"template":{"mended":true}}}]}`))
	f.must(err)
	f.rev++
	r.Revision = f.rev
	f.setRules([]*rules.Rule{r})
	job := f.startJob(bridge.JobSpec{Kind: bridge.JobRedrive, To: "spare", Filter: bridge.DeadFilter{IDs: []string{f.deadLetters(bridge.DeadFilter{})[0].ID}}})
	got := spare.attempts(t, 1)[0]
	if got.Event.ID != "b" || string(got.Event.Data) != `{"mended":true}` || got.Target != "spare" || got.ID == ops.attempts(t, 2)[1].ID {
		t.Errorf("delivery %+v, data %s", got, got.Event.Data)
	}
	f.job(job.ID, bridge.JobDone)
	found := f.journey("b", bridge.StateDelivered)
	ds := found.Journey.Deliveries
	if len(ds) != 2 || ds[0].State != journal.Discarded || ds[0].Reason != "redriven_elsewhere" || ds[0].DeadLetter != "" ||
		ds[1].Target != "spare" || ds[1].State != journal.Delivered || ds[1].Redrives[0].From != "ops" || ds[1].Revision != f.rev {
		t.Errorf("deliveries %+v", ds)
	}
	l := f.balanced()
	if a, b := l.Deliveries[0], l.Deliveries[1]; a.Owed != 2 || a.Dead != 1 || a.Discarded != 1 || b.Target != "spare" || b.Owed != 1 || b.Delivered != 1 {
		t.Errorf("account %+v", l.Deliveries)
	}
}

func TestAnEditedEventIsSent(t *testing.T) {
	f := newFixture(t)
	ops := f.target("ops", `{"retry":{"schedule":[]}}`, func(d targets.Delivery) error {
		if string(d.Event.Data) == `{"n":2}` {
			return nil
		}
		return targets.StatusError(422, 0)
	})
	f.rule("all", "reading", "ops")
	f.start()
	f.dead("a")
	id := f.deadLetters(bridge.DeadFilter{})[0].ID
	edited := *f.deadLetters(bridge.DeadFilter{})[0].Event
	edited.ID = "b"
	spec := bridge.JobSpec{Kind: bridge.JobRedrive, Filter: bridge.DeadFilter{IDs: []string{id}}, Event: &edited}
	if _, err := f.StartJob(context.Background(), spec); fault.KindOf(err) != fault.Invalid {
		t.Errorf("another id: %v", err)
	}
	if _, err := f.PlanJob(context.Background(), spec); fault.KindOf(err) != fault.Invalid {
		t.Errorf("the plan of another id: %v", err)
	}
	gone := bridge.JobSpec{Kind: bridge.JobRedrive, Filter: bridge.DeadFilter{IDs: []string{"DEAD:77"}}, Event: &edited}
	if _, err := f.PlanJob(context.Background(), gone); fault.KindOf(err) != fault.NotFound {
		t.Errorf("the plan of what is not there: %v", err)
	}
	edited.ID, edited.Data = "a", []byte(`{"n":3}`)
	f.job(f.startJob(spec).ID, bridge.JobDone)
	f.eventually(func() (string, bool) {
		left := f.deadLetters(bridge.DeadFilter{})
		return fmt.Sprintf("dead letters %+v", left), len(left) == 1 && left[0].ID != id && string(left[0].Event.Data) == `{"n":3}` && left[0].Redrive != ""
	})
	spec.Filter.IDs[0], edited.Data = f.deadLetters(bridge.DeadFilter{})[0].ID, []byte(`{"n":2}`)
	job := f.startJob(spec)
	f.journey("a", bridge.StateDelivered)
	got := ops.attempts(t, 3)
	if got[0].ID != got[2].ID || string(got[2].Event.Data) != `{"n":2}` || !job.Edited {
		t.Errorf("attempts %+v", got)
	}
	if stored := f.journey("a", bridge.StateDelivered); string(stored.Event.Data) != `{"n":1}` || !stored.Journey.Deliveries[0].Redrives[1].Edited {
		t.Errorf("the log was changed: %s, or the journey does not say that the event was edited", stored.Event.Data)
	}
	f.balanced()
	f.stop(time.Second)
}

// What was edited and has died again is sent as edited when it is redriven once more: that is what its dead letter shows.
func TestAnEditedEventThatDiesAgainStaysEdited(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	ops, up := f.refusing("ops")
	f.rule("all", "reading", "ops")
	f.dead("a")
	first := f.deadLetters(bridge.DeadFilter{})[0]
	edited := *first.Event
	edited.Data = []byte(`{"n":2}`)
	f.startJob(bridge.JobSpec{Kind: bridge.JobRedrive, Filter: bridge.DeadFilter{IDs: []string{first.ID}}, Event: &edited})
	again := first
	for n := range 2 {
		f.eventually(func() (string, bool) {
			left := f.deadLetters(bridge.DeadFilter{})
			if len(left) == 1 {
				again = left[0]
			}
			return fmt.Sprintf("dead letters %+v", left), len(left) == 1 && again.ID != first.ID
		})
		if string(again.Event.Data) != `{"n":2}` {
			t.Errorf("dead letter %d is about %s", n, again.Event.Data)
		}
		first = again
		up.Store(n == 1)
		f.startJob(bridge.JobSpec{Kind: bridge.JobRedrive, Filter: bridge.DeadFilter{IDs: []string{again.ID}}})
		ops.attempts(t, 3+n)
	}
	f.journey("a", bridge.StateDelivered)
	for i, d := range ops.attempts(t, 4)[1:] {
		if string(d.Event.Data) != `{"n":2}` {
			t.Errorf("attempt %d sends %s", i+2, d.Event.Data)
		}
	}
	f.balanced()
}

func TestADiscardSaysWhoAndWhy(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	_, up := f.refusing("ops")
	f.rule("all", "reading", "ops")
	f.dead("a", "b")
	spec := bridge.JobSpec{Kind: bridge.JobDiscard, Filter: bridge.DeadFilter{Target: "ops"}, By: "ci"}
	if _, err := f.StartJob(context.Background(), spec); fault.KindOf(err) != fault.Invalid {
		t.Errorf("without a reason: %v", err)
	}
	spec.Why = "test data"
	job := f.startJob(spec)
	f.job(job.ID, bridge.JobDone)
	d := f.journey("a", bridge.StateCancelled).Journey.Deliveries[0]
	if d.State != journal.Discarded || d.Discarded == nil || d.Discarded.By != "ci" || d.Discarded.Why != "test data" || d.Discarded.Job != job.ID {
		t.Errorf("delivery %+v", d)
	}
	if l := f.balanced(); l.Deliveries[0].Discarded != 2 || l.Deliveries[0].Dead != 0 || len(f.deadLetters(bridge.DeadFilter{})) != 0 {
		t.Errorf("account %+v", l.Deliveries)
	}
	up.Store(true)
	if _, err := f.Redrive(context.Background(), bridge.RedriveRequest{Bus: "default", ID: "a"}); err != nil {
		t.Errorf("retry of what was discarded: %v", err)
	}
	f.journey("a", bridge.StateDelivered)
	if l := f.balanced(); l.Deliveries[0].Discarded != 1 || l.Deliveries[0].Delivered != 1 || l.Deliveries[0].Owed != 2 {
		t.Errorf("account %+v", l.Deliveries)
	}
}

// A manual retry works from every state in which a delivery has ended.
func TestAnythingThatHasEndedCanBeRetried(t *testing.T) {
	f := newFixture(t)
	f.opts = bridge.Options{Unsettled: 10 * time.Millisecond}
	var up atomic.Bool
	ops := f.target("ops", `{"retry":{"schedule":["1h"],"maxAttempts":3}}`, func(d targets.Delivery) error {
		if up.Load() {
			return nil
		}
		return targets.StatusError(503, 0)
	})
	f.rule("all", "reading", "ops")
	f.start()
	defer f.stop(time.Second)
	f.send("reading", "a")
	ops.attempts(t, 1)
	retry := func(change func(*bridge.RedriveRequest)) (string, error) {
		q := bridge.RedriveRequest{Bus: "default", ID: "a", Rule: "all", Target: "ops", By: "me"}
		if change != nil {
			change(&q)
		}
		return f.Redrive(context.Background(), q)
	}
	if _, err := retry(nil); fault.KindOf(err) != fault.Conflict { // routed or not
		t.Errorf("what is pending: %v", err)
	}
	f.RemoveTarget("ops")
	f.journey("a", bridge.StateCancelled)
	if _, err := retry(nil); fault.KindOf(err) != fault.Conflict {
		t.Errorf("the target is gone: %v", err)
	}
	up.Store(true)
	f.must(f.SetTarget(ops.def, ops))
	id, err := retry(nil)
	f.must(err)
	f.journey("a", bridge.StateDelivered)
	if got := ops.attempts(t, 2); got[1].ID != id || got[0].ID != id || extension(got[1].Event) != bridge.RedriveByHand {
		t.Errorf("attempts %+v, id %s", got, id)
	}
	if _, err := retry(nil); fault.KindOf(err) != fault.Conflict {
		t.Errorf("what was delivered, without asking for it: %v", err)
	}
	if _, err := retry(func(q *bridge.RedriveRequest) { q.Delivered = true }); err != nil {
		t.Errorf("what was delivered: %v", err)
	}
	ops.attempts(t, 3)
	if l := f.balanced(); l.Deliveries[0].Owed != 2 || l.Deliveries[0].Delivered != 2 {
		t.Errorf("account %+v", l.Deliveries)
	}
	for name, c := range map[string]struct {
		change func(*bridge.RedriveRequest)
		want   fault.Kind
	}{
		"no event":    {func(q *bridge.RedriveRequest) { q.ID = "none" }, fault.NotFound},
		"no bus":      {func(q *bridge.RedriveRequest) { q.Bus = "none" }, fault.NotFound},
		"no delivery": {func(q *bridge.RedriveRequest) { q.Target = "none" }, fault.NotFound},
		"no target":   {func(q *bridge.RedriveRequest) { q.To, q.Delivered = "none", true }, fault.Invalid},
	} {
		if _, err := retry(c.change); fault.KindOf(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	f.balanced()
}

// ruleText is a rule that sends readings to a target as the text says.
func (f *fixture) ruleText(name, to, text string) *rules.Rule {
	f.t.Helper()
	r, err := rules.ParseRule(fmt.Appendf(nil, `{"kind":"Rule","name":%q,"bus":"default","pattern":{"type":["reading"]},
		"targets":[{"target":%q,"transform":{"constant":%q}}]}`, name, to, text))
	f.must(err)
	f.rev++
	r.Revision = f.rev
	return r
}

// A delivery can be made again although its rule was deleted: by the rule as it was when the event met it. Nothing ends it for
// the rule, and nothing is lost over a restart with views that are made anew. A rule that is there again renders as it is now.
func TestARedriveOutlivesItsRule(t *testing.T) {
	f := newFixture(t)
	var answer atomic.Pointer[error]
	refuse := func(err error) { answer.Store(&err) }
	refuse(targets.StatusError(400, 0))
	ops := f.target("ops", `{"retry":{"schedule":["1h"],"maxAttempts":3}}`, func(targets.Delivery) error { return *answer.Load() })
	f.start()
	defer func() { f.stop(time.Second) }()
	f.setRules([]*rules.Rule{f.ruleText("all", "ops", "first")})
	first := f.rev
	f.dead("a")
	refuse(targets.StatusError(503, 0))
	f.send("reading", "b")
	ops.attempts(t, 2)
	f.setRules([]*rules.Rule{f.ruleText("all", "ops", "second")})
	f.setRules(nil)
	f.journey("b", bridge.StateCancelled)

	for _, id := range []string{"a", "b"} {
		if _, err := f.Redrive(t.Context(), bridge.RedriveRequest{Bus: "default", ID: id, By: "me"}); err != nil {
			t.Fatal(err)
		}
	}
	got := ops.attempts(t, 4)[2:]
	for _, d := range got {
		if string(d.Event.Data) != "first" || extension(d.Event) != bridge.RedriveByHand {
			t.Errorf("delivery %+v, data %s", d, d.Event.Data)
		}
	}
	f.rebuild() // they are parked, and their rule is not there
	refuse(nil)
	for _, id := range []string{"a", "b"} {
		d := f.journey(id, bridge.StatePending).Journey.Deliveries[0]
		if d.State != journal.Parked || d.Revision != first || len(d.Redrives) != 1 {
			t.Errorf("delivery of %s %+v", id, d)
		}
	}
	now := f.useClock()
	f.rebuild()
	now.advance(f, 2*time.Hour)
	for _, id := range []string{"a", "b"} {
		f.journey(id, bridge.StateDelivered)
	}
	if d := f.balanced().Deliveries[0]; d.Owed != 2 || d.Delivered != 2 {
		t.Errorf("account %+v", d)
	}
	f.setRules([]*rules.Rule{f.ruleText("all", "ops", "third")})
	if _, err := f.Redrive(t.Context(), bridge.RedriveRequest{Bus: "default", ID: "a", Delivered: true}); err != nil {
		t.Fatal(err)
	}
	if d := ops.attempts(t, 7)[6]; string(d.Event.Data) != "third" {
		t.Errorf("with the rule there again: %s", d.Event.Data)
	}
	f.balanced()
}

// A job redrives what the rules of then had sent, and without the target it says what to do.
func TestAJobOutlivesRuleAndTarget(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	_, up := f.refusing("ops")
	spare := f.target("spare", quick, nil)
	f.setRules([]*rules.Rule{f.ruleText("all", "ops", "then")})
	f.dead("a", "b")
	f.setRules(nil)
	f.RemoveTarget("ops")
	up.Store(true)
	job := f.startJob(bridge.JobSpec{Kind: bridge.JobRedrive})
	if j := f.job(job.ID, bridge.JobDone); j.Skipped != 2 || j.Skip != "the target ops was deleted: name another one to send to" {
		t.Errorf("job %+v", j)
	}
	if _, err := f.Redrive(t.Context(), bridge.RedriveRequest{Bus: "default", ID: "a"}); fault.KindOf(err) != fault.Conflict || !strings.Contains(err.Error(), "target ops was deleted") {
		t.Errorf("by hand: %v", err)
	}
	f.job(f.startJob(bridge.JobSpec{Kind: bridge.JobRedrive, To: "spare", Rate: 1000}).ID, bridge.JobDone)
	for _, d := range spare.attempts(t, 2) {
		if string(d.Event.Data) != "then" {
			t.Errorf("delivery %+v, data %s", d, d.Event.Data)
		}
	}
	l := f.balanced()
	if a, b := l.Deliveries[0], l.Deliveries[1]; a.Discarded != 2 || b.Owed != 2 || b.Delivered != 2 {
		t.Errorf("account %+v", l.Deliveries)
	}
}

func TestJobsPauseResumeAndEnd(t *testing.T) {
	f := newFixture(t).start()
	defer func() { f.stop(time.Second) }()
	ops, up := f.refusing("ops")
	f.rule("all", "reading", "ops")
	f.dead("a", "b", "c", "d", "e")
	up.Store(true)
	job := f.startJob(bridge.JobSpec{Kind: bridge.JobRedrive, Rate: 0.5}) // one every two seconds
	ops.attempts(t, 6)
	set := func(state string) bridge.Job {
		t.Helper()
		j, err := f.SetJob(context.Background(), bridge.JobChange{ID: job.ID, State: state, By: "me"})
		f.must(err)
		return j
	}
	if j := set(bridge.JobPaused); j.State != bridge.JobPaused || j.Handled != 1 {
		t.Errorf("paused: %+v", j)
	}
	if _, err := f.SetJob(context.Background(), bridge.JobChange{Bus: "other", ID: job.ID, State: bridge.JobRunning}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("job of another bus: %v", err)
	}
	f.stop(time.Second)
	f.start()
	if j := f.job(job.ID, bridge.JobPaused); j.Handled != 1 || j.Total != 5 {
		t.Errorf("after a restart: %+v", j)
	}
	set(bridge.JobRunning)
	ops.attempts(t, 7)
	set(bridge.JobCancelled)
	set(bridge.JobCancelled)
	if _, err := f.SetJob(context.Background(), bridge.JobChange{ID: job.ID, State: bridge.JobRunning}); fault.KindOf(err) != fault.Conflict {
		t.Errorf("resume of what was cancelled: %v", err)
	}
	if n := len(f.deadLetters(bridge.DeadFilter{})); n != 3 {
		t.Errorf("%d dead letters are left, want 3", n)
	}
	second := f.startJob(bridge.JobSpec{Kind: bridge.JobRedrive, Rate: 1000})
	f.job(second.ID, bridge.JobDone)
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		f.journey(id, bridge.StateDelivered)
	}
	all, err := f.Jobs("")
	f.must(err)
	if len(all) != 2 || all[0].ID != second.ID || all[1].State != bridge.JobCancelled || len(ops.attempts(t, 10)) != 10 {
		t.Errorf("jobs %+v, %d attempts", all, len(ops.attempts(t, 10)))
	}
	if some, err := f.Jobs("default"); err != nil || len(some) != 0 {
		t.Errorf("jobs of one bus %+v, %v: these are of all", some, err)
	}
}

// A job that is stopped again and again, with views that are kept, deleted or older, redrives everything, and each once.
func TestAJobSurvivesRestarts(t *testing.T) {
	f := newFixture(t)
	var mu sync.Mutex // guards got
	got := map[string]int{}
	var up atomic.Bool
	f.target("ops", `{"retry":{"schedule":[]}}`, func(d targets.Delivery) error {
		if !up.Load() {
			return targets.StatusError(400, 0)
		}
		mu.Lock()
		defer mu.Unlock()
		got[d.Event.ID]++
		return nil
	})
	f.rule("all", "reading", "ops")
	f.start()
	const n = 60
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint("e", i)
	}
	f.dead(ids...)
	up.Store(true)
	job := f.startJob(bridge.JobSpec{Kind: bridge.JobRedrive, Rate: 40})
	old := t.TempDir()
	for i := range 4 {
		handled := uint64(5 + 12*i)
		f.eventually(func() (string, bool) {
			j, err := f.Job("", job.ID)
			f.must(err)
			return fmt.Sprintf("job %+v", j), j.Handled >= handled
		})
		f.stop(time.Second)
		switch i {
		case 1:
			f.must(os.RemoveAll(f.views()))
		case 2:
			f.must(os.CopyFS(old, os.DirFS(f.views())))
		case 3:
			f.must(os.RemoveAll(f.views()))
			f.must(os.CopyFS(f.views(), os.DirFS(old)))
		}
		f.start()
	}
	job = f.job(job.ID, bridge.JobDone)
	l := f.balanced()
	if d := l.Deliveries[0]; d.Owed != n || d.Delivered != n {
		t.Errorf("account %+v", d)
	}
	if job, _ = f.Job("", job.ID); job.Handled != n || job.Delivered != n || job.Skipped != 0 {
		t.Errorf("job %+v", job)
	}
	f.stop(time.Second)
	for _, id := range ids {
		if got[id] != 1 {
			t.Errorf("%s was delivered %d times after it was redriven", id, got[id])
		}
	}
}

func TestDeadLettersAreCountedByWhatTheyDiedOf(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	f.target("ops", `{"retry":{"schedule":[]}}`, func(d targets.Delivery) error {
		if strings.HasPrefix(d.Event.ID, "gone") {
			return targets.StatusError(410, 0)
		}
		return &targets.Error{Reason: targets.ReasonConnect, Err: fmt.Errorf("dial tcp 127.0.0.1:%d: connection refused by %s", 1000+len(d.Event.ID), d.Event.ID)}
	})
	f.target("other", `{"retry":{"schedule":[]}}`, func(targets.Delivery) error { return targets.StatusError(400, 0) })
	f.rule("all", "reading", "ops")
	f.rule("rest", "door", "other")
	f.dead("e1", "e22", "e333", "gone1")
	f.send("door", "d")
	f.journey("d", bridge.StateDead)
	n, err := f.CountDead(context.Background(), bridge.DeadFilter{Bus: "default", Target: "ops"})
	f.must(err)
	if n.Total != 4 || len(n.Groups) != 2 || n.Groups[0].Count != 3 || n.Groups[0].Reason != "connect" || n.Groups[1].Status != 410 {
		t.Fatalf("count %+v", n)
	}
	if got := f.deadLetters(bridge.DeadFilter{Fingerprint: n.Groups[0].Print}); len(got) != 3 || got[0].Print != n.Groups[0].Print {
		t.Errorf("dead letters of the first group %+v", got)
	}
	if n, err := f.CountDead(context.Background(), bridge.DeadFilter{Bus: "elsewhere"}); err != nil || n.Total != 0 {
		t.Errorf("another bus: %+v, %v", n, err)
	}
	dl := f.deadLetters(bridge.DeadFilter{Rule: "rest"})[0]
	if one, err := f.DeadLetter(context.Background(), "default", dl.ID); err != nil || one.EventID != "d" || one.Event == nil {
		t.Errorf("one: %+v, %v", one, err)
	}
	for _, at := range [][2]string{{"elsewhere", dl.ID}, {"", "DEAD:999"}, {"", "EV_default:1"}, {"", "x"}} {
		if _, err := f.DeadLetter(context.Background(), at[0], at[1]); fault.KindOf(err) != fault.NotFound {
			t.Errorf("%v: %v", at, err)
		}
	}
	if _, err := f.Redrive(context.Background(), bridge.RedriveRequest{Bus: "default", ID: "d", To: "none"}); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "/to:") {
		t.Errorf("redrive to a target that never was: %v", err)
	}
	// A filter is applied by the server, also to ids: those of another bus are not touched.
	job := f.startJob(bridge.JobSpec{Kind: bridge.JobDiscard, Why: "x", Filter: bridge.DeadFilter{Bus: "elsewhere", IDs: []string{dl.ID}}})
	if j := f.job(job.ID, bridge.JobDone); j.Total != 0 || j.Handled != 0 || len(f.deadLetters(bridge.DeadFilter{})) != 5 {
		t.Errorf("job %+v", j)
	}
	for pointer, s := range map[string]bridge.JobSpec{
		"/rate":         {Kind: bridge.JobRedrive, Rate: 1e9},
		"/to":           {Kind: bridge.JobRedrive, To: "none"},
		"/event":        {Kind: bridge.JobRedrive, Event: dl.Event},
		"/filter/ids/0": {Kind: bridge.JobRedrive, Filter: bridge.DeadFilter{IDs: []string{"EV_default:1"}}},
		"/filter/to":    {Kind: bridge.JobRedrive, Filter: bridge.DeadFilter{From: time.Now(), To: time.Now().Add(-time.Hour)}},
		"/why":          {Kind: bridge.JobDiscard, Why: strings.Repeat("x", 257)},
	} {
		if _, err := f.StartJob(context.Background(), s); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), pointer+":") {
			t.Errorf("%s: %v", pointer, err)
		}
	}
}

// What was redriven and not delivered stays owed when its rule goes, ends as cancelled when its target goes, and the account holds.
func TestWhatWasRedrivenEndsWithItsTarget(t *testing.T) {
	f := newFixture(t)
	f.target("ops", `{"retry":{"schedule":["1h"],"maxAttempts":2}}`, func(d targets.Delivery) error {
		if extension(d.Event) == nil {
			return targets.StatusError(400, 0)
		}
		return targets.StatusError(503, 0)
	})
	f.rule("all", "reading", "ops")
	f.start()
	f.dead("a", "b")
	job := f.startJob(bridge.JobSpec{Kind: bridge.JobRedrive, Rate: 1000})
	f.job(job.ID, bridge.JobDone)
	f.eventually(func() (string, bool) {
		d := f.journey("b", bridge.StatePending).Journey.Deliveries[0]
		return fmt.Sprintf("%+v", d), len(d.Attempts) == 2
	})
	f.stop(time.Second)
	f.must(os.RemoveAll(f.views()))
	f.start()
	defer f.stop(time.Second)
	f.setRules(nil)
	if d := f.journey("a", bridge.StatePending).Journey.Deliveries[0]; d.State != journal.Parked {
		t.Errorf("delivery %+v", d)
	}
	f.RemoveTarget("ops")
	f.journey("a", bridge.StateCancelled)
	f.journey("b", bridge.StateCancelled)
	if l := f.balanced(); l.Deliveries[0].Owed != 2 || l.Deliveries[0].Cancelled != 2 {
		t.Errorf("account %+v", l.Deliveries)
	}
	if j, err := f.Job("", job.ID); err != nil || j.Otherwise != 2 || j.Pending != 0 {
		t.Errorf("job %+v, %v", j, err)
	}
}

// A redrive that a lane had taken when the process ended is made by the next one, out of the copy in the dead letter if the
// bus has lost the event meanwhile.
func TestARedriveUnderWayIsNotLost(t *testing.T) {
	f := newFixture(t)
	var mode atomic.Int32
	ops := f.target("ops", `{"retry":{"schedule":[]}}`, func(targets.Delivery) error {
		switch mode.Load() {
		case 0:
			return targets.StatusError(400, 0)
		case 1:
			return errHang
		}
		return nil
	})
	f.rule("all", "reading", "ops")
	f.start()
	f.dead("a")
	mode.Store(1)
	job := f.startJob(bridge.JobSpec{Kind: bridge.JobRedrive})
	ops.attempts(t, 2)
	f.stop(10 * time.Millisecond)
	f.must(os.RemoveAll(f.views()))
	f.start()
	defer func() { f.stop(time.Second) }()
	ops.attempts(t, 3)
	if left := f.deadLetters(bridge.DeadFilter{}); len(left) != 0 {
		t.Errorf("dead letters %+v", left)
	}
	f.stop(10 * time.Millisecond)
	mode.Store(2)
	f.start()
	f.journey("a", bridge.StateDelivered)
	if l := f.balanced(); l.Deliveries[0].Owed != 1 || l.Deliveries[0].Delivered != 1 {
		t.Errorf("account %+v", l.Deliveries)
	}
	f.job(job.ID, bridge.JobDone)
}
