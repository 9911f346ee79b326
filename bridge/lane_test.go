// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/targets"
)

// While a worker reads what is due, another delivery is parked, too late for that reading. The lane must not forget it.
func TestWhatIsParkedDuringAReadingOfTheDueIsNotForgotten(t *testing.T) {
	j := emptyViews(t)
	now := time.Now()
	var l *lane
	park := true
	b := &Bridge{o: Options{Journal: j, Now: func() time.Time {
		if park { // called by readDue, without the lane's lock
			park = false
			l.recorded(&task{path: &path{}, lane: l}, journal.Outcome{State: journal.Parked, Due: now.Add(time.Minute)})
		}
		return now
	}}}
	l = newLane(b, &targets.Definition{Name: "ops"}, nil)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nextDue = now
	l.load()
	if !l.nextDue.Equal(now.Add(time.Minute)) {
		t.Errorf("the lane looks again at %v, want %v", l.nextDue, now.Add(time.Minute))
	}
}

// Due times are compared by the wall clock, as the views have them: a monotonic reading, which a clock that is set does not change, would
// make a later one the earliest, and what is due before it would not be read.
func TestDueTimesAreOfTheWallClock(t *testing.T) {
	now := time.Now()
	l := &lane{}
	l.parkedUntil(now.Add(time.Minute))
	l.parkedUntil(now)
	if got := l.nextDue; !got.Equal(now) || strings.Contains(got.String(), "m=") {
		t.Errorf("the earliest is %v, want %v without a monotonic reading", got, now)
	}
}

// What the router has ranged gets into the views while it asks whether the range is still there. What comes then must not go before it.
func TestARangeThatIsWrittenWhileTheRouterAsksGoesFirst(t *testing.T) {
	j := emptyViews(t)
	b := &Bridge{o: Options{Journal: j, RangeAfter: 10}}
	l := newLane(b, &targets.Definition{Name: "ops"}, nil)
	r := router{p: &path{b: b, name: "default"}, ranging: map[*lane]*ranging{l: {}}}
	record := uint64(0)
	apply := func(fn func(*journal.Encoder)) {
		record++
		var e journal.Encoder
		fn(&e)
		if err := j.Apply("default", record, e.Take()); err != nil {
			t.Error(err)
		}
	}
	for seq := uint64(1); seq <= 500; seq++ {
		r.ranging[l].last = seq
		l.takes.Add(1)
		written := make(chan struct{})
		go func() {
			defer close(written)
			apply(func(e *journal.Encoder) {
				e.Routed(journal.Routed{Seq: seq, Ranged: []journal.Route{{Rule: "all", Target: "ops"}}})
			})
		}()
		into, follows := r.inOrder(l, false)
		for range seq % 32 { // once more, at some moment before it is written or after
			l.takes.Add(1)
			if into, follows = r.inOrder(l, false); !into {
				break
			}
		}
		<-written
		if !into && !follows {
			t.Fatalf("what comes goes before event %d, which waits in the range", seq)
		}
		apply(func(e *journal.Encoder) { e.Taking(journal.Taking{Target: "ops", To: seq}) })
	}
}

// What comes out of a range while its bus is removed makes no line: when the bus is set again, its key would wait for a path that has ended.
func TestABusThatIsRemovedLeavesNoLine(t *testing.T) {
	j := emptyViews(t)
	b := &Bridge{o: Options{Journal: j, Now: time.Now}}
	l := newLane(b, &targets.Definition{Name: "ops"}, nil)
	p := &path{b: b, name: "default"}
	p.ctx, p.cancel = context.WithCancel(t.Context())
	l.parkedIn(p, 7, 1, time.Now(), false)
	p.cancel()
	l.drop(p)
	p.taken(l, journal.Taking{Target: "ops", To: 2, At: time.Now(), Deliveries: []journal.Taken{{Seq: 2, Key: 7}}}) // the recorder still writes
	if ln := l.order.lines[7]; ln != nil {
		t.Errorf("the lane has a line of a path that has ended: %+v", ln)
	}
}

// A range grows while the lane looks in vain at another one, whose bus is just removed. It must not take that for a sign that there is nothing.
func TestARangeThatGrowsDuringAVainLookIsTaken(t *testing.T) {
	j := emptyViews(t)
	var e journal.Encoder
	e.Routed(journal.Routed{Seq: 1, Ranged: []journal.Route{{Rule: "all", Target: "ops"}}})
	if err := j.Apply("removed", 1, e.Take()); err != nil {
		t.Fatal(err)
	}
	b := &Bridge{o: Options{Journal: j, RangeAfter: 10, ParkedKeys: 10}, paths: map[string]*path{}, hands: newHands()}
	b.ctx = t.Context()
	p := &path{b: b, name: "removed", journey: &eventlog.Stream{}, rec: &recorder{}}
	p.ctx, p.cancel = context.WithCancel(t.Context())
	b.paths[p.name] = p
	l := newLane(b, &targets.Definition{Name: "ops"}, nil)
	grown := false
	b.o.Now = func() time.Time {
		if !grown { // the range is being read, without the lane's lock
			grown, p.rec.ended = true, true
			p.cancel()
			l.wasRanged(&path{b: b, name: "other"})
		}
		return time.Now()
	}
	l.mu.Lock()
	l.takeMore(time.Now())
	l.mu.Unlock()
	b.wg.Wait()
	if !grown || l.barren {
		t.Errorf("grown %v, and the lane looks no more: %v", grown, l.barren)
	}
}

// A delivery that is made while somebody asks to skip it is not skipped.
func TestWhatWasDeliveredMeanwhileIsNotClaimed(t *testing.T) {
	j := emptyViews(t)
	record := uint64(0)
	apply := func(fn func(*journal.Encoder)) {
		record++
		var e journal.Encoder
		fn(&e)
		if err := j.Apply("default", record, e.Take()); err != nil {
			t.Error(err)
		}
	}
	now := time.Now()
	route := journal.Route{Rule: "all", Target: "ops"}
	apply(func(e *journal.Encoder) {
		for seq := uint64(1); seq <= 2; seq++ {
			e.Routed(journal.Routed{Seq: seq, Routes: []journal.Route{route}})
			e.Outcome(journal.Outcome{Seq: seq, Route: route, State: journal.Parked, At: now, Due: now.Add(time.Hour), Key: 7})
		}
	})
	b := &Bridge{o: Options{Journal: j}}
	l := newLane(b, &targets.Definition{Name: "ops"}, nil)
	delivered := false
	b.o.Now = func() time.Time {
		if !delivered { // the claim has looked at the views
			delivered = true
			apply(func(e *journal.Encoder) {
				e.Outcome(journal.Outcome{Seq: 1, Route: route, State: journal.Delivered, Attempt: 2, At: now})
			})
		}
		return now
	}
	p := &path{b: b, name: "default", ctx: t.Context()}
	l.parkedIn(p, 7, 1, now.Add(time.Hour), true)
	if _, err := l.claim(p, 1, "all"); fault.KindOf(err) != fault.Conflict || !delivered {
		t.Errorf("claim of what was delivered: %v", err)
	}
	if ln := l.order.lines[7]; ln == nil || ln.head != nil || ln.index < 0 || len(l.busy) > 0 {
		t.Errorf("line %+v, busy %v", ln, l.busy)
	}
	if claimed, err := l.claim(p, 2, "all"); err != nil || claimed.seq != 2 {
		t.Errorf("claim of the next: %+v, %v", claimed, err)
	}
}

// What has come out of a range is parked before the lane is told. What follows it must not have its turn in between.
func TestWhatComesOutOfARangeHasItsTurnFirst(t *testing.T) {
	j := emptyViews(t)
	now := time.Now()
	b := &Bridge{o: Options{Journal: j, Now: func() time.Time { return now }}}
	l := newLane(b, &targets.Definition{Name: "ops"}, nil)
	p := &path{b: b, name: "default", track: newTracker(0), recorderDone: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(t.Context())
	p.resumed.Store(true)
	p.rec = newRecorder(p, nil, 0) // nobody writes: the test does
	record := uint64(0)
	write := func() {
		record++
		if err := j.Apply("default", record, p.rec.enc.Take()); err != nil {
			t.Fatal(err)
		}
	}
	route := journal.Route{Rule: "all", Target: "ops"}
	p.rec.enc.Routed(journal.Routed{Seq: 1, Ranged: []journal.Route{route}})
	p.rec.enc.Routed(journal.Routed{Seq: 2, Routes: []journal.Route{route}})
	p.rec.enc.Outcome(journal.Outcome{Seq: 2, Route: route, State: journal.Parked, At: now, Due: now, Key: 7})
	write()
	l.parkedIn(p, 7, 2, now, false)
	close(p.recorderDone) // nobody waits for the record
	if err := p.takeOut(l, journal.Taking{Target: "ops", To: 1, At: now, Deliveries: []journal.Taken{{Seq: 1, Route: route, Key: 7}}}); err == nil {
		t.Error("the record was not awaited")
	}
	write()
	look := func() *task {
		l.mu.Lock()
		defer l.mu.Unlock()
		if err := l.loadLines(); err != nil {
			t.Error(err)
		}
		return l.order.lines[7].head
	}
	if head := look(); head != nil {
		t.Errorf("before the lane knows what was parked, event %d has its turn", head.seq)
	}
	for _, told := range p.rec.waiting {
		told()
	}
	if head := look(); head == nil || head.seq != 1 {
		t.Errorf("the first of the line is %+v, want that of the range", head)
	}
}

// emptyViews are views of nothing.
func emptyViews(t *testing.T) *journal.Journal {
	t.Helper()
	j, err := journal.Open(journal.Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return j
}
