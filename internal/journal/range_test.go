// SPDX-License-Identifier: Apache-2.0

package journal_test

import (
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/journal"
)

// rangedEvents routes the events from..to, which owe warm and archive, the first in a range.
func rangedEvents(f *feeder, from, to uint64) {
	f.apply(func(e *journal.Encoder) {
		for seq := from; seq <= to; seq++ {
			e.Routed(journal.Routed{Seq: seq, Check: journal.Check(seq), Hour: hour(), Routes: []journal.Route{archive}, Ranged: []journal.Route{warm}})
		}
	})
}

func taken(seqs ...uint64) []journal.Taken {
	var out []journal.Taken
	for _, seq := range seqs {
		out = append(out, journal.Taken{Seq: seq, Route: warm, Check: journal.Check(seq), Hour: hour()})
	}
	return out
}

// standing returns the counts of warm and how its pending deliveries stand.
func standing(t *testing.T, j *journal.Journal) (journal.Counts, journal.Standing) {
	t.Helper()
	l, err := j.Ledger("devices", 0, ^uint32(0))
	if err != nil {
		t.Fatal(err)
	}
	pair := journal.RoutePair{Rule: warm.Rule, Target: warm.Target}
	return l.Hours[0].Deliveries[pair], l.Pending[hour()][pair]
}

func TestARangeIsACursor(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	f := &feeder{t: t, j: j}
	rangedEvents(f, 1, 3)
	rangedEvents(f, 4, 5)
	r, ok, err := j.RangeOf("devices", warm.Target)
	if want := (journal.Range{Next: 1, Last: 5, Count: 5}); err != nil || !ok || r != want {
		t.Fatalf("RangeOf = %+v, %v, %v, want %+v", r, ok, err, want)
	}
	if _, seq, err := j.OldestNeeded("devices"); err != nil || seq != 1 {
		t.Errorf("OldestNeeded = %d, %v, want 1", seq, err)
	}
	f.apply(func(e *journal.Encoder) {
		e.Taking(journal.Taking{Target: warm.Target, To: 2, At: base, Deliveries: taken(1, 2)})
		e.Outcome(journal.Outcome{Seq: 1, Route: warm, State: journal.Delivered, Attempt: 1, At: base})
		e.Outcome(journal.Outcome{Seq: 1, Route: archive, State: journal.Delivered, Attempt: 1, At: base})
	})
	c, st := standing(t, j)
	if want := (journal.Counts{Owed: 5, Delivered: 1, Ranged: 3}); c != want {
		t.Errorf("counts %+v, want %+v", c, want)
	}
	if want := (journal.Standing{Parked: 1, Ranged: 3}); st != want {
		t.Errorf("standing %+v, want %+v", st, want)
	}
	p, ok, err := j.FindPending("devices", 2, warm.Rule, warm.Target)
	if err != nil || !ok || p.State != journal.Parked || !p.Due.Equal(base.Truncate(time.Millisecond)) || p.Check != 2 || p.Route != warm {
		t.Errorf("pending %+v, %v, %v", p, ok, err)
	}
	if w := j.WaitingFor(warm.Target); w.Parked() != 1 || w.Ranged() != 3 {
		t.Errorf("waiting: %d parked, %d ranged", w.Parked(), w.Ranged())
	}
	j.Close()
	j = open(t, dir)
	defer j.Close()
	if w := j.WaitingFor(warm.Target); w.Parked() != 1 || w.Ranged() != 3 {
		t.Errorf("after a restart: %d parked, %d ranged", w.Parked(), w.Ranged())
	}
	// Views that are fed again end up the same.
	if err := j.Forget("devices"); err != nil {
		t.Fatal(err)
	}
	if w := j.WaitingFor(warm.Target); w.Parked() != 0 || w.Ranged() != 0 {
		t.Errorf("forgotten: %d parked, %d ranged", w.Parked(), w.Ranged())
	}
	for i, msg := range f.all {
		if err := j.Apply("devices", uint64(i+1), msg); err != nil {
			t.Fatal(err)
		}
	}
	again, stAgain := standing(t, j)
	if again != c || stAgain != st {
		t.Errorf("fed again: %+v, %+v, before %+v, %+v", again, stAgain, c, st)
	}
	// So do views that are fed what is left once JOURNEY has forgotten the first message: of it nothing is pending.
	if err := j.Forget("devices"); err != nil {
		t.Fatal(err)
	}
	for i, msg := range f.all[1:] {
		if err := j.Apply("devices", uint64(i+2), msg); err != nil {
			t.Fatal(err)
		}
	}
	c, st = standing(t, j)
	if want := (journal.Counts{Owed: 2, Ranged: 2}); c != want || st != (journal.Standing{Ranged: 2}) {
		t.Errorf("fed what is left: %+v, %+v, want %+v", c, st, want)
	}
}

// A range over several blocks is dropped in all of them, but for what other rules have there; what is redriven then stands as parked.
func TestADropIsFoundAsCancelled(t *testing.T) {
	j := open(t, t.TempDir())
	defer j.Close()
	f := &feeder{t: t, j: j}
	const count = 20_000
	second := journal.Route{Rule: "second", Revision: 1, Target: warm.Target}
	for seq := uint64(1); seq <= count; seq += 1000 {
		f.apply(func(e *journal.Encoder) {
			for n := seq; n < seq+1000; n++ {
				e.Routed(journal.Routed{Seq: n, Check: journal.Check(n), Hour: hour(), Ranged: []journal.Route{warm, second}})
			}
		})
	}
	f.apply(func(e *journal.Encoder) {
		e.Taking(journal.Taking{Target: warm.Target, To: 100, At: base, Deliveries: taken(50)})
	})
	f.apply(func(e *journal.Encoder) { e.Drop(journal.Drop{Rule: warm.Rule}) })
	find := func(state journal.State, from, before uint64) []uint64 {
		t.Helper()
		got, err := j.ByOutcome("devices", warm.Target, state, from, before, count)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := find(journal.Cancelled, 0, 0); len(got) != count-100 || got[0] != count || got[len(got)-1] != 101 {
		t.Errorf("%d cancelled", len(got))
	}
	if got := find(journal.Parked, 0, 0); len(got) != count {
		t.Errorf("%d parked, for the other rule", len(got))
	}
	f.apply(func(e *journal.Encoder) {
		e.Redrive(journal.Redrive{Seq: 9000, Route: warm, Check: 9000, Hour: hour(), Was: journal.Cancelled, At: base, Due: base})
	})
	if got := find(journal.Cancelled, 8999, 9002); !slices.Equal(got, []uint64{9001, 8999}) {
		t.Errorf("cancelled beside what was redriven: %v", got)
	}
	f.apply(func(e *journal.Encoder) { e.Drop(journal.Drop{Target: warm.Target}) })
	if got := find(journal.Parked, 0, 0); !slices.Contains(got, 9000) || !slices.Contains(got, 50) {
		t.Errorf("%d parked, what has a record of its own among them", len(got))
	}
}

// A record of JOURNEY that damage took is missing in the account once the cursor has passed it, and holds nothing up.
func TestWhatDamageTookFromARangeIsLost(t *testing.T) {
	j := open(t, t.TempDir())
	defer j.Close()
	f := &feeder{t: t, j: j}
	rangedEvents(f, 1, 3)
	f.apply(func(e *journal.Encoder) {
		e.Taking(journal.Taking{Target: warm.Target, To: 3, At: base, Deliveries: taken(1, 3)})
	})
	if r, ok, err := j.RangeOf("devices", warm.Target); err != nil || ok {
		t.Errorf("RangeOf = %+v, %v, %v, want none", r, ok, err)
	}
	if _, st := standing(t, j); st != (journal.Standing{Parked: 2, Lost: 1}) {
		t.Errorf("standing %+v, want 2 parked, 1 lost", st)
	}
	rangedEvents(f, 4, 4)
	if w := j.WaitingFor(warm.Target); w.Parked() != 2 || w.Ranged() != 1 {
		t.Errorf("waiting: %d parked, %d ranged", w.Parked(), w.Ranged())
	}
}

func TestWhatIsRangedIsDropped(t *testing.T) {
	for name, d := range map[string]journal.Drop{"rule": {Rule: warm.Rule}, "target": {Target: warm.Target}} {
		t.Run(name, func(t *testing.T) {
			j := open(t, t.TempDir())
			defer j.Close()
			f := &feeder{t: t, j: j}
			rangedEvents(f, 1, 3)
			f.apply(func(e *journal.Encoder) {
				e.Taking(journal.Taking{Target: warm.Target, To: 1, At: base, Deliveries: taken(1)})
				e.Routed(journal.Routed{Seq: 4, Hour: hour(), Ranged: []journal.Route{warm}})
				e.Drop(d)
				e.Routed(journal.Routed{Seq: 5, Hour: hour(), Ranged: []journal.Route{warm}})
				e.Taking(journal.Taking{Target: warm.Target, To: 3, At: base, Deliveries: taken(2, 3)}) // it was on its way
			})
			c, st := standing(t, j)
			if want := (journal.Counts{Owed: 5, Cancelled: 3, Ranged: 1}); c != want {
				t.Errorf("counts %+v, want %+v", c, want)
			}
			if want := (journal.Standing{Parked: 1, Ranged: 1}); st != want {
				t.Errorf("standing %+v, want %+v", st, want)
			}
			for state, want := range map[journal.State][]uint64{journal.Cancelled: {4, 3, 2}, journal.Parked: {5, 1}} {
				if got, err := j.ByOutcome("devices", warm.Target, state, 0, 0, 10); err != nil || gocmp.Diff(want, got) != "" {
					t.Errorf("ByOutcome(%v) = %v, %v, want %v", state, got, err, want)
				}
			}
			f.apply(func(e *journal.Encoder) {
				e.Taking(journal.Taking{Target: warm.Target, To: 5, At: base, Deliveries: taken(5)})
			})
			want := journal.Standing{Parked: 2}
			if _, st := standing(t, j); gocmp.Diff(want, st) != "" {
				t.Errorf("standing %+v, want %+v", st, want)
			}
		})
	}
}
