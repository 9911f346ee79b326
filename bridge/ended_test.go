// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/targets"
)

// endedJob is a redrive of deliveries to ops on bus default by how they ended.
func endedJob(outcome string) bridge.JobSpec {
	return bridge.JobSpec{Kind: bridge.JobRedrive, Outcome: outcome, Filter: bridge.DeadFilter{Bus: "default", Target: "ops"}, By: "ci", Rate: 10_000}
}

func (f *fixture) plan(s bridge.JobSpec) bridge.DeadCount {
	f.t.Helper()
	n, err := f.PlanJob(context.Background(), s)
	f.must(err)
	return n
}

// Everything that a deleted target took along, out of its range as well, is made again by one job when the target is back, each once,
// although the job is stopped and the views are made anew meanwhile.
func TestAJobRedrivesWhatWasCancelled(t *testing.T) {
	const count = 400
	var up atomic.Bool
	f := downFor(t, count, &up)
	defer func() { f.stop(time.Second) }()
	f.waits("ops", count)
	f.RemoveTarget("ops")
	f.balanced()
	var mu sync.Mutex // guards got
	got := map[string]int{}
	f.target("ops", quick, func(d targets.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		got[d.Event.ID]++
		return nil
	})
	n := f.plan(endedJob("cancelled"))
	if n.Total != count || n.Partial || len(n.Groups) != 1 || n.Groups[0].Reason != "target_deleted" || n.Groups[0].Count != count {
		t.Errorf("plan %+v", n)
	}
	spec := endedJob("cancelled")
	spec.Rate = 200
	job := f.startJob(spec)
	if job.Total != count || job.Filter.Outcome != "cancelled" {
		t.Errorf("job %+v", job)
	}
	f.eventually(func() (string, bool) {
		j, err := f.Job("default", job.ID)
		f.must(err)
		return fmt.Sprintf("job %+v", j), j.Handled >= 50
	})
	f.rebuild() // its cursor is where it was when the job was made
	job = f.job(job.ID, bridge.JobDone)
	if d := f.balanced().Deliveries[0]; d.Owed != count || d.Delivered != count || d.Cancelled != 0 {
		t.Errorf("account %+v", d)
	}
	if job, _ = f.Job("default", job.ID); job.Handled != count || job.Delivered != count || job.Skipped != 0 {
		t.Errorf("job %+v", job)
	}
	for id, n := range got {
		if n != 1 {
			t.Errorf("%s was delivered %d times", id, n)
		}
	}
	if n := f.plan(endedJob("cancelled")); n.Total != 0 {
		t.Errorf("plan of what is left %+v", n)
	}
}

// What was delivered is sent again, once by each job: a job that has lost its place passes over what it has handled, and nothing that
// has ended since it was made is its business. The filter is that of the server: rule, subject and time.
func TestAJobReplaysWhatWasDelivered(t *testing.T) {
	f := newFixture(t)
	ops := f.target("ops", quick, nil)
	f.rule("all", "reading", "ops")
	f.rule("too", "reading", "ops")
	f.start()
	defer func() { f.stop(time.Second) }()
	const events = 40
	for i := range events {
		_, err := f.Ingest(t.Context(), "default", []*event.Record{{Event: event.Event{ID: fmt.Sprint("e", i), Source: "/test", Type: "reading",
			Subject: fmt.Sprint("box-", i%2), Data: []byte("{}")}}})
		f.must(err)
	}
	f.balanced()
	for name, c := range map[string]struct {
		change func(*bridge.JobSpec)
		want   uint64
	}{
		"all":     {func(*bridge.JobSpec) {}, 2 * events},
		"rule":    {func(s *bridge.JobSpec) { s.Filter.Rule = "all" }, events},
		"subject": {func(s *bridge.JobSpec) { s.Subject = "box-1" }, events},
		"reason":  {func(s *bridge.JobSpec) { s.Filter.Reason = "status" }, 0},
		"later":   {func(s *bridge.JobSpec) { s.Filter.From = time.Now().Add(time.Hour) }, 0},
		"earlier": {func(s *bridge.JobSpec) { s.Filter.To = time.Now().Add(-time.Hour) }, 0},
		"now":     {func(s *bridge.JobSpec) { s.Filter.From, s.Filter.To = time.Now().Add(-time.Hour), time.Now() }, 2 * events},
		"dead":    {func(s *bridge.JobSpec) { s.Outcome = "dead" }, 0},
	} {
		s := endedJob("delivered")
		c.change(&s)
		if n := f.plan(s); n.Total != c.want {
			t.Errorf("%s: %+v, want %d", name, n, c.want)
		}
	}
	spec := endedJob("delivered")
	spec.Subject, spec.Rate = "box-1", 40
	job := f.startJob(spec)
	f.send("reading", "fresh")
	f.eventually(func() (string, bool) {
		j, err := f.Job("default", job.ID)
		f.must(err)
		return fmt.Sprintf("job %+v", j), j.Delivered >= 12
	})
	f.rebuild() // its cursor is at the beginning
	f.job(job.ID, bridge.JobDone)
	l := f.balanced()
	for _, d := range l.Deliveries {
		if d.Owed != events+events/2+1 || d.Delivered != d.Owed {
			t.Errorf("account %+v", d)
		}
	}
	marked := map[string]int{}
	for _, d := range ops.attempts(t, 3*events+2) {
		if extension(d.Event) == job.ID {
			marked[d.Event.ID+" "+d.Rule]++
			if d.Event.Subject != "box-1" {
				t.Errorf("delivery %+v", d.Event)
			}
		}
	}
	if len(marked) != events {
		t.Errorf("%d deliveries were made again, want %d", len(marked), events)
	}
	for id, n := range marked {
		if n != 1 {
			t.Errorf("%s was made again %d times", id, n)
		}
	}
}

// Dead letters by how they ended: they leave the list, and another target has them. What of a fingerprint did not die is left.
func TestAJobRedrivesTheDeadOfATarget(t *testing.T) {
	f := newFixture(t).start()
	defer func() { f.stop(time.Second) }()
	f.target("ops", `{"retry":{"schedule":[]}}`, func(d targets.Delivery) error {
		if strings.HasPrefix(d.Event.ID, "gone") {
			return targets.StatusError(422, 0)
		}
		return targets.StatusError(400, 0)
	})
	spare := f.target("spare", quick, nil)
	f.rule("all", "reading", "ops")
	f.dead("a", "b", "gone")
	spec := endedJob("dead")
	n := f.plan(spec)
	if n.Total != 3 || len(n.Groups) != 2 || n.Groups[0].Status != 400 || n.Groups[0].Count != 2 {
		t.Fatalf("plan %+v", n)
	}
	if byLetter, err := f.CountDead(t.Context(), spec.Filter); err != nil || byLetter.Groups[0].Print != n.Groups[0].Print {
		t.Errorf("as dead letters: %+v, %v", byLetter, err)
	}
	spec.Filter.Fingerprint, spec.To = n.Groups[0].Print, "spare"
	job := f.startJob(spec)
	spare.attempts(t, 2)
	f.rebuild()
	f.job(job.ID, bridge.JobDone)
	if left := f.deadLetters(bridge.DeadFilter{}); len(left) != 1 || left[0].EventID != "gone" {
		t.Errorf("dead letters %+v", left)
	}
	if got := spare.attempts(t, 2); len(got) != 2 {
		t.Errorf("%d attempts at spare", len(got))
	}
	f.balanced()
}

func TestAJobByOutcomeSaysWhatItNeeds(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	for pointer, change := range map[string]func(*bridge.JobSpec){
		"/filter/outcome": func(s *bridge.JobSpec) { s.Outcome = "parked" },
		"/filter/target":  func(s *bridge.JobSpec) { s.Filter.Target = "" },
		"/filter/ids":     func(s *bridge.JobSpec) { s.Filter.IDs = []string{"DEAD:1"} },
		"/event":          func(s *bridge.JobSpec) { s.Event = &event.Event{} },
	} {
		s := endedJob(journal.Cancelled.String())
		change(&s)
		if _, err := f.PlanJob(t.Context(), s); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), pointer+":") {
			t.Errorf("%s: %v", pointer, err)
		}
	}
	s := endedJob("dead")
	s.Filter.Bus = "none"
	if _, err := f.StartJob(t.Context(), s); fault.KindOf(err) != fault.NotFound {
		t.Errorf("no such bus: %v", err)
	}
}
