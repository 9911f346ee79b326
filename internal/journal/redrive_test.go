// SPDX-License-Identifier: Apache-2.0

package journal_test

import (
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/journal"
)

// redrives goes on with the story: what was dead is redriven, to its own target, dies again and goes to another one; a
// delivered one is sent again; and one is written off.
func redrives(f *feeder) {
	own := journal.Route{Rule: warm.Rule, Revision: 8, Target: warm.Target}
	f.apply(func(e *journal.Encoder) {
		e.Redrive(journal.Redrive{Seq: 3, Route: own, Check: 13, Hour: hour(), Was: journal.Dead, Dead: 1, Job: 5, At: base, Due: base, By: "ci"})
		e.Redrive(journal.Redrive{Seq: 3, Route: own, Check: 13, Hour: hour(), Was: journal.Dead, Dead: 1, Job: 6, At: base, Due: base}) // owed already
	})
	f.apply(func(e *journal.Encoder) {
		e.Outcome(journal.Outcome{Seq: 3, Route: own, State: journal.Dead, Attempt: 1, At: base, Reason: "status", Status: 400, DeadSeq: 2})
		e.Redrive(journal.Redrive{Seq: 1, Route: warm, Check: 11, Hour: hour(), Was: journal.Delivered, At: base, Due: base})
		e.Outcome(journal.Outcome{Seq: 4, Route: archive, State: journal.Dead, Attempt: 1, At: base, Reason: "status", Status: 422, DeadSeq: 3})
	})
	f.apply(func(e *journal.Encoder) {
		e.Redrive(journal.Redrive{Seq: 3, Route: journal.Route{Rule: warm.Rule, Revision: 8, Target: "spare"}, Check: 13, Hour: hour(),
			Was: journal.Dead, From: warm.Target, Dead: 2, Edited: 40, Job: 7, At: base, Due: base.Add(time.Minute)})
		e.Discard(journal.Discard{Seq: 4, Route: archive, Hour: hour(), Dead: 3, Job: 9, At: base, By: "ci", Why: "test data"})
	})
}

func TestRedrivesKeepTheAccount(t *testing.T) {
	j := open(t, t.TempDir())
	defer j.Close()
	f := &feeder{t: t, j: j}
	story(f)
	index(t, j, 1, 4)
	redrives(f)
	for _, views := range []string{"as they were made", "rebuilt"} {
		l, err := j.Ledger("devices", 0, ^uint32(0))
		if err != nil {
			t.Fatal(err)
		}
		want := map[journal.RoutePair]journal.Counts{
			{Rule: "too-warm", Target: "ops"}:   {Owed: 3, Delivered: 1, Discarded: 1},
			{Rule: "too-warm", Target: "spare"}: {Owed: 1},
			{Rule: "all", Target: "archive"}:    {Owed: 2, Discarded: 1},
		}
		if d := gocmp.Diff(want, l.Hours[0].Deliveries); d != "" {
			t.Errorf("%s: counts (-want +got):\n%s", views, d)
		}
		for pair, c := range want {
			if st := l.Pending[hour()][pair]; c.Open() != int64(st.Parked) {
				t.Errorf("%s: %v has %d open and %d parked", views, pair, c.Open(), st.Parked)
			}
		}
		p, ok, err := j.FindPending("devices", 3, warm.Rule, "spare")
		if err != nil || !ok || p.Attempts != 0 || p.Redrive == nil ||
			*p.Redrive != (journal.Redriven{Job: 7, Dead: 2, Edited: 40, Via: "ops", Record: 7}) {
			t.Errorf("%s: pending %+v %+v, %v, %v", views, p, p.Redrive, ok, err)
		}
		for job, want := range map[uint64]journal.JobCounts{5: {Handled: 1, Counts: journal.Counts{Dead: 1}}, 6: {}, 7: {Handled: 1}, 9: {Handled: 1}} {
			if got, err := j.JobCounts(job); err != nil || got != want {
				t.Errorf("%s: job %d counts %+v, %v, want %+v", views, job, got, err, want)
			}
		}
		if err := j.DeadLetters(0, func(r journal.DeadRef) (bool, error) { t.Errorf("%s: dead letter %+v", views, r); return true, nil }); err != nil {
			t.Error(err)
		}
		if n, err := j.LastDead(); n != 3 || err != nil {
			t.Errorf("%s: LastDead = %d, %v, want 3", views, n, err)
		}
		if n, err := j.LastJob(); n != 40 || err != nil {
			t.Errorf("%s: LastJob = %d, %v, want 40", views, n, err)
		}
		if dead, jobs, err := j.CopiesNeeded(); dead != 2 || jobs != 40 || err != nil {
			t.Errorf("%s: CopiesNeeded = %d, %d, %v, want 2, 40", views, dead, jobs, err)
		}
		if record, seq, err := j.OldestNeeded("devices"); record != 6 || seq != 1 || err != nil {
			t.Errorf("%s: OldestNeeded = %d, %d, %v, want 6, 1", views, record, seq, err)
		}
		if err := j.Forget("devices"); err != nil {
			t.Fatal(err)
		}
		for i, m := range f.all {
			if err := j.Apply("devices", uint64(i+1), m); err != nil {
				t.Fatal(err)
			}
		}
		index(t, j, 1, 4)
	}
	if err := j.ForgetJobs(8); err != nil {
		t.Fatal(err)
	}
	if c, err := j.JobCounts(7); err != nil || c.Handled != 0 {
		t.Errorf("job 7 counts %+v, %v, after it was forgotten", c, err)
	}
	if c, err := j.JobCounts(9); err != nil || c.Handled != 1 {
		t.Errorf("job 9 counts %+v, %v", c, err)
	}
}

// What JOURNEY says of a redrive is enough, also when what came before it was trimmed.
func TestARedriveStandsAlone(t *testing.T) {
	j := open(t, t.TempDir())
	defer j.Close()
	f := &feeder{t: t, j: j}
	for range 4 {
		f.seq++
		f.all = append(f.all, nil)
	}
	redrives(f)
	l, err := j.Ledger("devices", 0, ^uint32(0))
	if err != nil {
		t.Fatal(err)
	}
	for pair, c := range l.Hours[0].Deliveries {
		if st := l.Pending[hour()][pair]; c.Open() != int64(st.Parked+st.Live) {
			t.Errorf("%v: %+v has %d open and %+v pending", pair, c, c.Open(), st)
		}
	}
}

func TestEachDead(t *testing.T) {
	j := open(t, t.TempDir())
	defer j.Close()
	f := &feeder{t: t, j: j}
	f.apply(func(e *journal.Encoder) {
		for seq := range uint64(5) {
			e.Routed(journal.Routed{Seq: seq + 1, Check: journal.Check(seq), Hour: hour(), Routes: []journal.Route{warm}})
			e.Outcome(journal.Outcome{Seq: seq + 1, Route: warm, State: journal.Dead, Attempt: 1, At: base, Reason: "status", DeadSeq: 10 + seq})
		}
	})
	var got []uint64
	if err := j.EachDead(10, 13, func(r journal.DeadRef) (bool, error) {
		if r.Hour != hour() || r.Check != journal.Check(r.Outcome.Seq-1) || r.Bus != "devices" {
			t.Errorf("dead letter %+v", r)
		}
		got = append(got, r.Seq)
		return true, nil
	}); err != nil || !gocmp.Equal(got, []uint64{11, 12, 13}) {
		t.Errorf("EachDead = %v, %v", got, err)
	}
	if _, ok, err := j.DeadLetter(14); !ok || err != nil {
		t.Errorf("DeadLetter(14) = %v, %v", ok, err)
	}
	if _, ok, err := j.DeadLetter(15); ok || err != nil {
		t.Errorf("DeadLetter(15) = %v, %v", ok, err)
	}
}
