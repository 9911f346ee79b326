// SPDX-License-Identifier: Apache-2.0

package region

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// The runs of a connection are what is not done by both, each once, and each of one kind.
func TestRunsAgreeWithSets(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	some := func() (r Ranges) {
		for range rnd.IntN(6) {
			from := 5 + rnd.Uint64N(40)
			r = r.Add(from, from+rnd.Uint64N(8))
		}
		return r
	}
	for range 5000 {
		done, acked, theirs := some(), some(), some()
		both := done.Both(theirs)
		gaps, tail := runs(5, done, acked, both)
		last := uint64(4)
		for _, g := range append(gaps, &run{from: tail.from, at: tail.at, to: 100}) {
			if g.from <= last || g.to < g.from || g.at != g.from {
				t.Fatalf("runs %v of %v %v %v", gaps, done, acked, theirs)
			}
			for seq := last + 1; seq < g.from; seq++ {
				if !both.Has(seq) {
					t.Fatalf("%d is in no run of %v %v %v", seq, done, acked, theirs)
				}
			}
			for seq := g.from; seq <= g.to; seq++ {
				if both.Has(seq) || g.again != done.Has(seq) || g.quiet != (done.Has(seq) && !acked.Has(seq)) {
					t.Fatalf("%d is in run %+v of %v %v %v", seq, g, done, acked, theirs)
				}
			}
			last = g.to
		}
		for _, r := range minus(done, acked) {
			for seq := r.From; seq <= r.To; seq++ {
				if !done.Has(seq) || acked.Has(seq) {
					t.Fatalf("%v without %v has %d", done, acked, seq)
				}
			}
		}
		if minus(done, acked).Count() != done.Count()-done.Both(acked).Count() {
			t.Fatalf("%v without %v is %v", done, acked, minus(done, acked))
		}
	}
}

// While something is fresh the gaps get one byte in eight, and all when nothing is.
func TestGapsGetTheirShare(t *testing.T) {
	tr := track{tail: &run{from: 1000, at: 1000}, gaps: []*run{{from: 1, at: 1, to: 500}, {from: 600, at: 600, to: 700}}}
	bytes := map[*run]int{}
	for i := range 8000 {
		r := tr.pick(5000, 0, false, true)
		n := 100 + i%50
		bytes[r] += n
		tr.sent(r, n, 5000)
	}
	if share := float64(bytes[tr.gaps[0]]) / float64(bytes[tr.gaps[0]]+bytes[tr.tail]); share < 0.12 || share > 0.13 || bytes[tr.gaps[1]] > 0 {
		t.Errorf("the gap has a share of %v", share)
	}
	tr.tail.at = 5001
	for range 100 {
		r := tr.pick(5000, 0, false, true)
		if r != tr.gaps[0] {
			t.Fatal("the gap waits for nothing")
		}
		tr.sent(r, 1<<20, 5000)
	}
	tr.tail.at = 5000
	if tr.pick(5000, 0, false, true) != tr.tail {
		t.Error("what is fresh waits")
	}
	tr.sent(tr.tail, 1000, 5000)
	if tr.pick(5000, 0, false, true) != tr.gaps[0] {
		t.Error("the gap pays for what it had while nothing was fresh")
	}
	if tr.pick(5000, 0, true, false) != tr.gaps[0] || tr.pick(5000, 600, true, true) != nil || tr.pick(5000, 600, false, true) != tr.tail || tr.pick(5000, 0, false, false) != tr.tail {
		t.Error("order, what retention wants, or what is urgent does not count")
	}
	tr.tail.at = 5001
	if tr.pick(5000, 0, false, false) != nil {
		t.Error("the gap goes before what is urgent")
	}
}

// A cap holds, whatever the sizes, and what was not used is not made good for.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pace{}
		p.spend(time.Now(), 1<<30)
		if p.wait(time.Now()) != 0 {
			t.Error("without a cap something waits")
		}
		p.set(100_000)
		time.Sleep(time.Hour)
		began, sent := time.Now(), 0
		for i := 0; time.Since(began) < 10*time.Second; i++ {
			if d := p.wait(time.Now()); d > 0 {
				time.Sleep(d + time.Duration(i%7)*time.Millisecond) // nobody wakes up in time
				continue
			}
			n := 500 + i%3*10_000
			p.spend(time.Now(), n)
			sent += n
		}
		if rate := float64(sent) / time.Since(began).Seconds(); rate < 95_000 || rate > 105_000 {
			t.Errorf("%v bytes a second", rate)
		}
	})
}

// Which pattern decides follows from the sequence alone, whatever was forgotten.
func TestUrgentSegments(t *testing.T) {
	st := &state{Start: 10}
	for _, s := range []segment{{10, ""}, {20, "a"}, {30, "b"}, {30, "c"}, {40, ""}, {50, ""}, {60, "d"}} {
		if !st.adopt(s.Urgent, s.From) {
			t.Fatalf("%+v is not adopted", s)
		}
	}
	if len(st.Segments) != 5 || st.Urgent != 20 {
		t.Fatalf("segments %+v from %d", st.Segments, st.Urgent)
	}
	for seq, want := range map[uint64]string{10: "", 19: "", 20: "a", 29: "a", 30: "c", 39: "c", 40: "", 59: "", 60: "d", 999: "d"} {
		got := ""
		if i := st.urgentAt(seq); i >= 0 {
			got = st.Segments[i].Urgent
		}
		if got != want {
			t.Errorf("%q decides at %d, want %q", got, seq, want)
		}
	}
	for seq, want := range map[uint64]uint64{20: 19, 40: 59, 45: 59, 60: 59} {
		if got := st.quietTo(seq); got != want {
			t.Errorf("nothing is urgent from %d to %d, want %d", seq, got, want)
		}
	}
	if n, first := st.pending(Urgent, 70); n != 20+11 || first != 20 {
		t.Errorf("%d are pending from %d", n, first)
	}
	st.Done.Main, st.Done.Urgent = Ranges{{10, 100}}, Ranges{{20, 35}}
	st.prune()
	if st.Segments[0] != (segment{30, "c"}) {
		t.Errorf("segments %+v", st.Segments)
	}
	st.Done.Urgent = Ranges{{20, 100}}
	st.prune()
	if len(st.Segments) != 1 || st.Segments[0].Urgent != "d" || st.urgentAt(15) >= 0 {
		t.Errorf("segments %+v", st.Segments)
	}
	for i := range uint64(100) {
		st.adopt([]string{"x", "y"}[i%2], 200+i)
	}
	if len(st.Segments) != maxSegments {
		t.Errorf("%d segments", len(st.Segments))
	}
}

// What was looked at and not told is looked at again when retention takes some of it: it was counted there.
func TestTrimmedRunsLookAgain(t *testing.T) {
	half := &run{from: 5, at: 20, to: 30, passed: tally{Filtered: 15}, since: time.Now()}
	old := &run{from: 1, at: 1, to: 4}
	again := &run{from: 31, at: 31, to: 40, again: true}
	tail := &run{from: 41, at: 60, passed: tally{Filtered: 19}}
	tr := track{gaps: []*run{old, half, again}, tail: tail, filled: half}
	tr.batch.begin(Main, 5)
	tr.batch.count = 1
	tr.trimmed(10)
	if tr.filled != nil || tr.batch.count != 0 {
		t.Error("a batch is ready that has what was counted")
	}
	if half.from != 10 || half.at != 10 || half.passed != (tally{}) || !half.since.IsZero() {
		t.Errorf("%+v", half)
	}
	quiet := func(i int, from, to uint64) {
		t.Helper()
		if g := tr.gaps[i]; g.from != from || g.to != to || !g.quiet || !g.again {
			t.Errorf("gap %d is %+v", i, g)
		}
	}
	if len(tr.gaps) != 4 || tr.gaps[2] != half || tr.gaps[3] != again || tail.at != 60 {
		t.Fatalf("gaps %+v", tr.gaps)
	}
	quiet(0, 1, 4)
	quiet(1, 5, 9)
	tr.trimmed(50)
	if len(tr.gaps) != 5 || tr.gaps[3] != again || tail.from != 50 || tail.at != 50 || tail.passed != (tally{}) {
		t.Fatalf("gaps %+v, tail %+v", tr.gaps, tail)
	}
	quiet(2, 10, 30)
	quiet(4, 41, 49)
}
