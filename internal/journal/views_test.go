// SPDX-License-Identifier: Apache-2.0

package journal_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/journal"
)

var (
	warm    = journal.Route{Rule: "too-warm", Revision: 7, Target: "ops"}
	archive = journal.Route{Rule: "all", Revision: 3, Target: "archive"}
)

func open(t *testing.T, dir string) *journal.Journal {
	t.Helper()
	j, err := journal.Open(journal.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// feeder applies messages as a bus's JOURNEY would bring them.
type feeder struct {
	t   *testing.T
	j   *journal.Journal
	seq uint64
	all [][]byte
}

func (f *feeder) apply(fn func(*journal.Encoder)) {
	f.t.Helper()
	var e journal.Encoder
	fn(&e)
	f.seq++
	f.all = append(f.all, e.Take())
	if err := f.j.Apply("devices", f.seq, f.all[f.seq-1]); err != nil {
		f.t.Fatal(err)
	}
}

func entry(seq uint64, id, subject string) eventlog.Entry {
	return eventlog.Entry{Seq: seq, Record: &event.Record{Received: base,
		Event: event.Event{ID: id, Source: "/s", Type: "t", Subject: subject}}}
}

func index(t *testing.T, j *journal.Journal, from, to uint64) {
	t.Helper()
	var es []eventlog.Entry
	for seq := from; seq <= to; seq++ {
		es = append(es, entry(seq, fmt.Sprint("id-", seq), fmt.Sprint("subject-", seq%3)))
	}
	if err := j.Index("devices", es, nil, to+1); err != nil {
		t.Fatal(err)
	}
}

func hour() uint32 { return journal.HourOf(base) }

// story is what the tests below look at: four events, one of them unmatched, with every end a delivery can have.
func story(f *feeder) {
	f.apply(func(e *journal.Encoder) {
		e.RuleDoc(journal.RuleDoc{Name: "too-warm", Revision: 7, Raw: []byte(`{"name":"too-warm"}`)})
		e.Mark(journal.Mark{First: 1, Ruleset: 9, Rules: []journal.RuleRef{{Name: "too-warm", Revision: 7}, {Name: "all", Revision: 3}}})
	})
	f.apply(func(e *journal.Encoder) {
		e.Routed(journal.Routed{Seq: 1, Check: 11, Hour: hour(), Routes: []journal.Route{warm, archive}})
		e.Routed(journal.Routed{Seq: 2, Check: 12, Hour: hour()})
		e.Outcome(journal.Outcome{Seq: 1, Route: warm, State: journal.Delivered, Attempt: 1, At: base, Status: 200})
	})
	f.apply(func(e *journal.Encoder) {
		e.Routed(journal.Routed{Seq: 3, Check: 13, Hour: hour(), Routes: []journal.Route{warm}})
		e.Routed(journal.Routed{Seq: 4, Check: 14, Hour: hour(), Routes: []journal.Route{archive}})
		e.Outcome(journal.Outcome{Seq: 1, Route: archive, State: journal.Parked, Attempt: 1, At: base, Reason: "status", Due: base.Add(5 * time.Second)})
		e.Outcome(journal.Outcome{Seq: 3, Route: warm, State: journal.Dead, Attempt: 1, At: base, Reason: "status", Status: 400, DeadSeq: 1})
	})
	f.apply(func(e *journal.Encoder) { e.Floor(3) })
}

func counts(owed, delivered, dead uint64) journal.Counts {
	return journal.Counts{Owed: owed, Delivered: delivered, Dead: dead}
}

func TestViewsTellTheStory(t *testing.T) {
	j := open(t, t.TempDir())
	defer j.Close()
	f := &feeder{t: t, j: j}
	story(f)
	index(t, j, 1, 5)

	l, err := j.Ledger("devices", 0, ^uint32(0))
	if err != nil {
		t.Fatal(err)
	}
	want := journal.Ledger{
		Hours: []journal.HourCounts{{Hour: hour(), Events: journal.EventCounts{Accepted: 5, Matched: 3, Unmatched: 1},
			Deliveries: map[journal.RoutePair]journal.Counts{{Rule: "too-warm", Target: "ops"}: counts(2, 1, 1), {Rule: "all", Target: "archive"}: counts(2, 0, 0)}}},
		Pending:   map[uint32]map[journal.RoutePair]journal.Standing{hour(): {{Rule: "all", Target: "archive"}: {Parked: 1, Live: 1}}},
		NotRouted: map[uint32]uint64{hour(): 1}, Indexed: 5, RoutedTo: 4, Floor: 3,
	}
	if d := gocmp.Diff(want, l); d != "" {
		t.Errorf("Ledger (-want +got):\n%s", d)
	}

	pending, ok, err := j.FindPending("devices", 1, archive.Rule, archive.Target)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	parked := journal.Pending{Seq: 1, Route: archive, Check: 11, Hour: hour(), State: journal.Parked, Attempts: 1,
		Due: base.Add(5 * time.Second), First: base, Record: 3}
	if d := gocmp.Diff(parked, pending); d != "" {
		t.Errorf("FindPending (-want +got):\n%s", d)
	}
	if at, err := j.NextDue("archive"); err != nil || !at.Equal(base.Add(5*time.Second)) {
		t.Errorf("NextDue = %v, %v", at, err)
	}
	if ids, err := j.ByID("devices", "id-4", 0, 10); err != nil || !gocmp.Equal(ids, []uint64{4}) {
		t.Errorf("ByID = %v, %v", ids, err)
	}
	if seqs, err := j.BySubject("devices", "subject-1", 4, 10); err != nil || !gocmp.Equal(seqs, []uint64{1}) {
		t.Errorf("BySubject below 4 = %v, %v", seqs, err)
	}
	if m, err := j.InForce("devices", 100); err != nil || m.Ruleset != 9 || len(m.Rules) != 2 {
		t.Errorf("InForce = %+v, %v", m, err)
	}
	var dead []journal.DeadRef
	if err := j.DeadLetters(0, func(r journal.DeadRef) (bool, error) { dead = append(dead, r); return true, nil }); err != nil {
		t.Fatal(err)
	}
	if len(dead) != 1 || dead[0].Seq != 1 || dead[0].Bus != "devices" || dead[0].Outcome.Seq != 3 || dead[0].Status != 400 {
		t.Errorf("DeadLetters = %+v", dead)
	}
}

func TestRepeatedOutcomesCountOnce(t *testing.T) {
	j := open(t, t.TempDir())
	defer j.Close()
	f := &feeder{t: t, j: j}
	story(f)
	again := journal.Outcome{Seq: 1, Route: warm, State: journal.Delivered, Attempt: 1, At: base.Add(time.Minute), Status: 200}
	f.apply(func(e *journal.Encoder) { e.Outcome(again) })
	l, err := j.Ledger("devices", 0, ^uint32(0))
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Hours[0].Deliveries[journal.RoutePair{Rule: "too-warm", Target: "ops"}]; got != counts(2, 1, 1) {
		t.Errorf("after the repeat: %+v", got)
	}
	// A message that is fed twice changes nothing either.
	if err := j.Apply("devices", 2, f.all[1]); err != nil {
		t.Fatal(err)
	}
	if got, err := j.Applied("devices"); err != nil || got != f.seq {
		t.Errorf("Applied = %d, %v, want %d", got, err, f.seq)
	}
}

func TestDueDeliveries(t *testing.T) {
	j := open(t, t.TempDir())
	defer j.Close()
	f := &feeder{t: t, j: j}
	f.apply(func(e *journal.Encoder) {
		for seq := uint64(1); seq <= 5; seq++ {
			e.Routed(journal.Routed{Seq: seq, Hour: hour(), Routes: []journal.Route{archive}})
			e.Outcome(journal.Outcome{Seq: seq, Route: archive, State: journal.Parked, At: base, Due: base.Add(time.Duration(10-seq) * time.Second)})
		}
	})
	// The third is parked again for later, the fifth is delivered: their old due times are gone.
	f.apply(func(e *journal.Encoder) {
		e.Outcome(journal.Outcome{Seq: 3, Route: archive, State: journal.Parked, Attempt: 1, At: base, Due: base.Add(time.Hour)})
		e.Outcome(journal.Outcome{Seq: 5, Route: archive, State: journal.Delivered, Attempt: 1, At: base})
	})
	var order []uint64
	err := j.DueFor("archive", time.Time{}, func(k journal.DueKey) (journal.Verdict, error) {
		switch {
		case k.Due.After(base.Add(time.Minute)):
			return journal.Stop, nil
		case k.Seq == 2:
			return journal.Skip, nil
		}
		return journal.Take, nil
	}, func(d journal.Due) error { order = append(order, d.Seq); return nil })
	if err != nil {
		t.Fatal(err)
	}
	if !gocmp.Equal(order, []uint64{4, 1}) {
		t.Errorf("due in order %v, want [4 1]", order)
	}
}

// After a crash the views are those of an earlier position; fed again from there they say the same.
func TestViewsAreRebuilt(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	f := &feeder{t: t, j: j}
	story(f)
	index(t, j, 1, 4)
	want, err := j.Ledger("devices", 0, ^uint32(0))
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = open(t, dir)
	if got, err := j.Applied("devices"); err != nil || got != f.seq {
		t.Fatalf("after a clean stop Applied = %d, %v, want %d", got, err, f.seq)
	}
	if got, err := j.Ledger("devices", 0, ^uint32(0)); err != nil || !gocmp.Equal(want, got) {
		t.Errorf("after a clean stop: %v\n%s", err, gocmp.Diff(want, got))
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = open(t, t.TempDir()) // deleted
	defer j.Close()
	for i, m := range f.all {
		if err := j.Apply("devices", uint64(i+1), m); err != nil {
			t.Fatal(err)
		}
	}
	index(t, j, 1, 4)
	if got, err := j.Ledger("devices", 0, ^uint32(0)); err != nil || !gocmp.Equal(want, got) {
		t.Errorf("rebuilt: %v\n%s", err, gocmp.Diff(want, got))
	}
}

func TestLostEventsAreCounted(t *testing.T) {
	j := open(t, t.TempDir())
	defer j.Close()
	f := &feeder{t: t, j: j}
	story(f)
	index(t, j, 1, 4)
	index(t, j, 5, 10)
	// Damage took 3 to 20: 3 and 4 were routed before, and 11 to 20 were never counted.
	f.apply(func(e *journal.Encoder) { e.Skipped(5, 20) })
	if err := j.Index("devices", nil, nil, 21); err != nil {
		t.Fatal(err)
	}
	l, err := j.Ledger("devices", 0, ^uint32(0))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := l.Hours[0].Events, (journal.EventCounts{Accepted: 10, Matched: 3, Unmatched: 1, Lost: 6}); got != want {
		t.Errorf("events = %+v, want %+v", got, want)
	}
	if len(l.NotRouted) != 0 {
		t.Errorf("not routed = %v, want none", l.NotRouted)
	}
}

func TestTrimForgets(t *testing.T) {
	j := open(t, t.TempDir())
	defer j.Close()
	f := &feeder{t: t, j: j}
	story(f)
	index(t, j, 1, 5)
	f.apply(func(e *journal.Encoder) { e.Mark(journal.Mark{First: 4, Ruleset: 10}) })
	if err := j.Trim("devices", 4, 1); err != nil {
		t.Fatal(err)
	}
	if m, err := j.InForce("devices", 5); err != nil || m.Ruleset != 10 {
		t.Errorf("InForce(5) = %+v, %v", m, err)
	}
	if _, ok, err := j.RoutingOf("devices", 2); err != nil || ok {
		t.Errorf("RoutingOf(2) = %v, %v, want none", ok, err)
	}
	// What is pending stays, with the record it rests on.
	if rec, seq, err := j.OldestNeeded("devices"); err != nil || rec != 0 || seq != 1 {
		t.Errorf("OldestNeeded = %d, %d, %v, want 0, 1", rec, seq, err)
	}
}

// A journey that is longer than what is read of it says how much is left out, and its parts tell all of it: in order, nothing twice,
// and what comes meanwhile is in none of those that are older.
func TestALongJourneyIsToldInParts(t *testing.T) {
	ctx := context.Background()
	log, err := eventlog.Open(ctx, eventlog.Options{Dir: t.TempDir(), Durability: eventlog.OS, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close(ctx)
	stream, err := log.Stream(ctx, eventlog.StreamConfig{Name: "JOURNEY_devices", Subjects: []string{"journey.devices"}})
	if err != nil {
		t.Fatal(err)
	}
	j := open(t, t.TempDir())
	defer j.Close()
	f := &feeder{t: t, j: j}
	apply := func(write func(*journal.Encoder)) {
		t.Helper()
		f.apply(write)
		done := make(chan eventlog.Result, 1)
		if err := stream.Append(ctx, eventlog.Message{Subject: "journey.devices", Data: f.all[len(f.all)-1]}, func(r eventlog.Result) { done <- r }); err != nil {
			t.Fatal(err)
		}
		if r := <-done; r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	attempt := func(e *journal.Encoder, n int) {
		e.Outcome(journal.Outcome{Seq: 1, Route: warm, State: journal.Parked, Attempt: n, At: base, Due: base})
	}
	apply(func(e *journal.Encoder) {
		e.Routed(journal.Routed{Seq: 1, Hour: hour(), Routes: []journal.Route{warm, archive}})
		e.Routed(journal.Routed{Seq: 2, Hour: hour(), Routes: []journal.Route{warm}})
		e.Outcome(journal.Outcome{Seq: 1, Route: archive, State: journal.Delivered, Attempt: 1, At: base})
		attempt(e, 1)
	})
	n := 1
	more := func(count int) {
		for range count {
			n++
			apply(func(e *journal.Encoder) { attempt(e, n) })
		}
	}
	more(1003)
	spare := journal.Route{Rule: "warm", Revision: 9, Target: "spare"}
	apply(func(e *journal.Encoder) {
		e.Redrive(journal.Redrive{Seq: 1, Route: spare, Check: 1, Hour: hour(), Was: journal.Dead, From: "ops", At: base, Due: base})
	})
	apply(func(e *journal.Encoder) {
		e.Outcome(journal.Outcome{Seq: 1, Route: spare, State: journal.Delivered, Attempt: 1, At: base})
	})
	for seq, want := range map[uint64]int{1: 5, 2: 0} {
		got, err := j.Journey(ctx, "devices", stream, seq)
		if err != nil || got.Untold != want || (got.Next == 0) != (want == 0) {
			t.Errorf("of event %d %d records are left out, before %d, %v, want %d", seq, got.Untold, got.Next, err, want)
		}
	}
	for _, most := range []int{1, 7, 1000} {
		before, parts := uint64(0), 0
		told := map[journal.Route][]int{} // numbers of attempts, the last first
		for left := -1; ; {
			got, err := j.JourneyPart(ctx, "devices", stream, 1, before, most)
			if err != nil || !got.Routed || len(got.Routes) < 2 || got.Routes[0] != warm || got.Routes[1] != archive {
				t.Fatalf("part before %d: %+v, %v", before, got, err)
			}
			if left >= 0 && got.Untold != max(0, left-most) {
				t.Errorf("part before %d of %d leaves out %d, after one with %d", before, most, got.Untold, left)
			}
			for _, o := range slices.Backward(got.Outcomes) {
				if o.Attempt > 0 && !o.Untold {
					told[o.Route] = append(told[o.Route], o.Attempt)
				}
			}
			left, before, parts = got.Untold, got.Next, parts+1
			if before == 0 {
				break
			}
			if parts < 4 {
				more(1)
			}
		}
		last := told[warm][0]
		for i, attempt := range told[warm] {
			if attempt != last-i {
				t.Fatalf("in parts of %d attempt %d comes before %d", most, attempt, last-i+1)
			}
		}
		if len(told[warm]) != last || len(told[archive]) != 1 || len(told[spare]) != 1 {
			t.Errorf("in parts of %d: %d attempts of %d, and %v, %v", most, len(told[warm]), last, told[archive], told[spare])
		}
	}
}

func TestJourneyIsReadFromTheStream(t *testing.T) {
	ctx := context.Background()
	log, err := eventlog.Open(ctx, eventlog.Options{Dir: t.TempDir(), Durability: eventlog.OS, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close(ctx)
	stream, err := log.Stream(ctx, eventlog.StreamConfig{Name: "JOURNEY_devices", Subjects: []string{"journey.devices"}})
	if err != nil {
		t.Fatal(err)
	}
	j := open(t, t.TempDir())
	defer j.Close()
	f := &feeder{t: t, j: j}
	story(f)
	for _, m := range f.all {
		done := make(chan eventlog.Result, 1)
		if err := stream.Append(ctx, eventlog.Message{Subject: "journey.devices", Data: m}, func(r eventlog.Result) { done <- r }); err != nil {
			t.Fatal(err)
		}
		if r := <-done; r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	got, err := j.Journey(ctx, "devices", stream, 1)
	if err != nil {
		t.Fatal(err)
	}
	if !got.Routed || got.Check != 11 || !gocmp.Equal(got.Routes, []journal.Route{warm, archive}) || len(got.Outcomes) != 2 {
		t.Errorf("Journey(1) = %+v", got)
	}
	if got, err := j.Journey(ctx, "devices", stream, 99); err != nil || got.Routed {
		t.Errorf("Journey(99) = %+v, %v, want none", got, err)
	}
}

// Arrivals are not in order where an hour ends: the account of any cut through them is right, hour by hour.
func TestNotRoutedIsCountedByHour(t *testing.T) {
	j := open(t, t.TempDir())
	defer j.Close()
	f := &feeder{t: t, j: j}
	late := base.Add(time.Hour)
	var es []eventlog.Entry
	for seq, at := range map[uint64]time.Time{1: base, 2: late, 4: base, 5: late, 7: base} { // 3 and 6 are gaps
		e := entry(seq, fmt.Sprint(seq), "")
		e.Record.Received = at
		es = append(es, e)
	}
	slices.SortFunc(es, func(a, b eventlog.Entry) int { return cmp.Compare(a.Seq, b.Seq) })
	if err := j.Index("devices", es, []journal.Gone{{Seq: 6, Hour: hour() + 1}}, 9); err != nil {
		t.Fatal(err)
	}
	for routed, want := range []map[uint32]uint64{
		{hour(): 3, hour() + 1: 3}, {hour(): 2, hour() + 1: 3}, {hour(): 2, hour() + 1: 2}, {hour(): 2, hour() + 1: 2},
		{hour(): 1, hour() + 1: 2}, {hour(): 1, hour() + 1: 1}, {hour(): 1}, {}, {},
	} {
		switch {
		case routed == 3 || routed == 8:
			f.apply(func(e *journal.Encoder) { e.Skipped(uint64(routed), uint64(routed)) })
		case routed > 0:
			f.apply(func(e *journal.Encoder) { e.Routed(journal.Routed{Seq: uint64(routed), Hour: hour()}) })
		}
		l, err := j.Ledger("devices", 0, ^uint32(0))
		if err != nil {
			t.Fatal(err)
		}
		if d := gocmp.Diff(want, l.NotRouted); d != "" {
			t.Errorf("routed to %d (-want +got):\n%s", routed, d)
		}
	}
}

// A set of rules that takes the place of a larger one, before an event met that, leaves nothing of it.
func TestAMarkReplacesAllPartsOfTheOneBefore(t *testing.T) {
	j := open(t, t.TempDir())
	defer j.Close()
	f := &feeder{t: t, j: j}
	one, two := []journal.RuleRef{{Name: "one", Revision: 1}}, []journal.RuleRef{{Name: "two", Revision: 2}}
	f.apply(func(e *journal.Encoder) {
		e.Mark(journal.Mark{First: 5, Ruleset: 1, Part: 0, Rules: one})
		e.Mark(journal.Mark{First: 5, Ruleset: 1, Part: 1, Rules: two})
	})
	f.apply(func(e *journal.Encoder) { e.Mark(journal.Mark{First: 5, Ruleset: 2, Part: 0, Rules: two}) })
	m, err := j.InForce("devices", 5)
	if err != nil || m.Ruleset != 2 || !gocmp.Equal(m.Rules, two) {
		t.Errorf("InForce = %+v, %v, want ruleset 2 with %v", m, err, two)
	}
}

// A delivery that was parked again since the reading of due times began is not due.
func TestDueTimesThatChangedMeanwhile(t *testing.T) {
	j := open(t, t.TempDir())
	defer j.Close()
	f := &feeder{t: t, j: j}
	f.apply(func(e *journal.Encoder) {
		e.Routed(journal.Routed{Seq: 1, Hour: hour(), Routes: []journal.Route{archive}})
		e.Outcome(journal.Outcome{Seq: 1, Route: archive, State: journal.Parked, At: base, Due: base})
	})
	err := j.DueFor("archive", time.Time{}, func(journal.DueKey) (journal.Verdict, error) {
		f.apply(func(e *journal.Encoder) {
			e.Outcome(journal.Outcome{Seq: 1, Route: archive, State: journal.Parked, Attempt: 1, At: base, Due: base.Add(time.Hour)})
		})
		return journal.Take, nil
	}, func(d journal.Due) error {
		t.Errorf("taken: %+v", d)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestRulesThatNobodyNeedsAreForgotten(t *testing.T) {
	j := open(t, t.TempDir())
	defer j.Close()
	f := &feeder{t: t, j: j}
	for rev := uint64(1); rev <= 4; rev++ {
		f.apply(func(e *journal.Encoder) {
			e.RuleDoc(journal.RuleDoc{Name: "r", Revision: rev, Raw: []byte("{}")})
			e.Mark(journal.Mark{First: rev * 10, Ruleset: rev, Rules: []journal.RuleRef{{Name: "r", Revision: rev}}})
		})
	}
	f.apply(func(e *journal.Encoder) { e.RuleDoc(journal.RuleDoc{Name: "r", Revision: 5, Raw: []byte("{}")}) }) // its mark comes
	if err := j.Trim("devices", 35, 5); err != nil {
		t.Fatal(err)
	}
	for rev, want := range map[uint64]bool{1: false, 2: false, 3: true, 4: true, 5: true} {
		doc, err := j.RuleDocument("devices", "r", rev)
		if err != nil || (doc != nil) != want {
			t.Errorf("document of revision %d: %q, %v, want it kept: %v", rev, doc, err, want)
		}
	}
}

func TestForget(t *testing.T) {
	j := open(t, t.TempDir())
	defer j.Close()
	f := &feeder{t: t, j: j}
	story(f)
	index(t, j, 1, 4)
	if err := j.ForgetHours("devices", hour()); err != nil {
		t.Fatal(err)
	}
	if l, err := j.Ledger("devices", 0, ^uint32(0)); err != nil || len(l.Hours) != 1 {
		t.Errorf("the hour itself is gone: %+v, %v", l, err)
	}
	// What is pending is owed by its hour: how it ends is to be counted there.
	if err := j.ForgetHours("devices", hour()+1); err != nil {
		t.Fatal(err)
	}
	f.apply(func(e *journal.Encoder) {
		e.Outcome(journal.Outcome{Seq: 1, Route: archive, State: journal.Delivered, Attempt: 2, At: base})
		e.Outcome(journal.Outcome{Seq: 4, Route: archive, State: journal.Delivered, Attempt: 1, At: base})
	})
	l, err := j.Ledger("devices", 0, ^uint32(0))
	if err != nil || len(l.Hours) != 1 {
		t.Fatalf("hours with something pending: %+v, %v", l.Hours, err)
	}
	for pair, c := range l.Hours[0].Deliveries {
		if c.Open() != 0 || c.Owed == 0 {
			t.Errorf("%v: %+v", pair, c)
		}
	}
	f.apply(func(e *journal.Encoder) { // nor does a range end with its hour
		e.Routed(journal.Routed{Seq: 5, Check: 15, Hour: hour(), Ranged: []journal.Route{archive}})
	})
	if err := j.ForgetHours("devices", hour()+1); err != nil {
		t.Fatal(err)
	}
	f.apply(func(e *journal.Encoder) {
		e.Taking(journal.Taking{Target: archive.Target, To: 5, At: base, Deliveries: []journal.Taken{{Seq: 5, Route: archive, Check: 15, Hour: hour()}}})
		e.Outcome(journal.Outcome{Seq: 5, Route: archive, State: journal.Delivered, Attempt: 1, At: base})
	})
	if l, err := j.Ledger("devices", 0, ^uint32(0)); err != nil || len(l.Hours) != 1 {
		t.Fatalf("hours with a range: %+v, %v", l.Hours, err)
	}
	f.apply(func(e *journal.Encoder) { // the hours after are not held by those before
		e.Routed(journal.Routed{Seq: 6, Check: 16, Hour: hour() + 1, Routes: []journal.Route{warm}})
	})
	if err := j.ForgetHours("devices", hour()+2); err != nil {
		t.Fatal(err)
	}
	if l, err := j.Ledger("devices", 0, ^uint32(0)); err != nil || len(l.Hours) != 1 || l.Hours[0].Hour != hour()+1 {
		t.Errorf("hours before the one with something pending: %+v, %v", l.Hours, err)
	}
	f.apply(func(e *journal.Encoder) {
		e.Outcome(journal.Outcome{Seq: 6, Route: warm, State: journal.Delivered, Attempt: 1, At: base})
	})
	if err := j.ForgetHours("devices", hour()+2); err != nil {
		t.Fatal(err)
	}
	if l, err := j.Ledger("devices", 0, ^uint32(0)); err != nil || len(l.Hours) != 0 {
		t.Errorf("hours are left: %+v, %v", l.Hours, err)
	}
	if err := j.Forget("devices"); err != nil {
		t.Fatal(err)
	}
	done, err := j.Applied("devices")
	if at, err2 := j.NextDue("archive"); done != 0 || !at.IsZero() || err != nil || err2 != nil {
		t.Errorf("Applied = %d, NextDue = %v, %v, %v", done, at, err, err2)
	}
	if n, err := j.LastDead(); n != 1 || err != nil {
		t.Errorf("LastDead = %d, %v", n, err)
	}
}
