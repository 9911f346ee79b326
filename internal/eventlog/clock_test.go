// SPDX-License-Identifier: Apache-2.0

package eventlog_test

import (
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
)

const decade = 10 * 365 * 24 * time.Hour

func TestTheClockIsTrustedWhenItRunsEvenly(t *testing.T) {
	wall, mono := base, time.Duration(0)
	look, trusted := eventlog.NewClock(func() time.Time { return wall }, func() time.Duration { return mono }, 10*time.Minute)
	for i, c := range []struct {
		mono, step time.Duration // what passes, and by how much the clock is set meanwhile
		trusted    bool
		stepped    bool
	}{
		{0, 0, false, false}, // a start
		{9 * time.Minute, 0, false, false},
		{time.Minute, 0, true, false},
		{time.Second, 30 * time.Second, true, false}, // a process that stood still
		{time.Second, decade, false, true},
		{time.Minute, 0, false, true},
		{time.Second, -decade, false, true},
		{9 * time.Minute, 0, false, true},
		{time.Minute, 0, true, true},
		{time.Second, -time.Hour, false, true},
		{9*time.Minute + 59*time.Second, 0, false, true},
		{time.Second, 0, true, true},
		{20 * time.Minute, 0, true, true},
	} {
		mono += c.mono
		wall = wall.Add(c.mono + c.step)
		if _, stepped := look(); stepped != c.stepped {
			t.Errorf("look %d: stepped %v, want %v", i, stepped, c.stepped)
		}
		if got := trusted(); got != c.trusted {
			t.Errorf("look %d: trusted %v, want %v", i, got, c.trusted)
		}
	}
}

// jumping is a log whose clock a test sets.
func jumping(t *testing.T, dir string, trust time.Duration) (*eventlog.Log, *atomic.Int64) {
	t.Helper()
	by := new(atomic.Int64)
	now := func() time.Time { return time.Now().Add(time.Duration(by.Load())) }
	return open(t, eventlog.Options{Dir: dir, Durability: eventlog.OS, Now: now, ClockTrust: trust}), by
}

// A clock that is ahead for a moment costs nothing; one that stays there is believed in the end.
func TestAgeDoesNotCountWhenTheClockWasSet(t *testing.T) {
	const trust = 400 * time.Millisecond
	l, by := jumping(t, t.TempDir(), trust)
	b := openBus(t, l, "default")
	var recs []*event.Record
	for n := range 500 {
		r := record(n)
		r.Minted, r.Event.Data = true, make([]byte, 100_000)
		recs = append(recs, r)
	}
	appendAll(t, b, recs...)
	trim := func() int {
		t.Helper()
		tr, err := b.Trim(t.Context(), eventlog.TrimPolicy{MaxAge: time.Hour, Protect: math.MaxUint64, Now: time.Now().Add(time.Duration(by.Load()))})
		if err != nil {
			t.Fatal(err)
		}
		return tr.Blocks
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		deadline := time.After(20 * time.Second)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for !ok() {
			select {
			case <-tick.C:
			case <-deadline:
				t.Fatal(what)
			}
		}
	}
	for _, jump := range []time.Duration{decade, 0, -time.Hour, 0} {
		by.Store(int64(jump))
		if n := trim(); n != 0 || l.ClockStepped() != true {
			t.Fatalf("the clock was set to %v: %d blocks went", jump, n)
		}
	}
	until("the clock is never trusted again", func() bool { return !l.ClockStepped() })
	if n := trim(); n != 0 {
		t.Errorf("%d young blocks went", n)
	}
	by.Store(int64(decade))
	began := time.Now()
	until("a clock that stays ahead is never believed", func() bool { return trim() > 0 })
	if took := time.Since(began); took < trust {
		t.Errorf("it was believed after %v", took)
	}
}

// What was stored while the clock was ahead grows old with what was stored after it, and not in ten years.
func TestBlocksFromTheFutureGrowOld(t *testing.T) {
	const now = 1000
	for _, c := range []struct {
		begun []int64 // the blocks that come after
		want  int64
	}{
		{[]int64{10, 20, 30}, 10},
		{[]int64{5000, 5001, 30, 40}, 30},
		{[]int64{5000, 5001}, now},
		{[]int64{30, 5000}, 30},
		{[]int64{now}, now},
		{nil, now},
	} {
		if got := eventlog.StoredBy(c.begun, now); got != c.want {
			t.Errorf("%v: %d, want %d", c.begun, got, c.want)
		}
	}
}

// An id that was stored while the clock was ahead is known for the window, also after a restart, and no longer.
func TestADuplicateFromTheFuture(t *testing.T) {
	dir := t.TempDir()
	now := base.Add(decade)
	o := eventlog.Options{Dir: dir, Durability: eventlog.OS, Now: func() time.Time { return now }}
	l := open(t, o)
	b := openBus(t, l, "default")
	r := record(1)
	r.Received = now
	appendAll(t, b, r)
	closeLog(t, l)
	now = base // it is right again
	b = openBus(t, open(t, o), "default")
	if got := appendAll(t, b, record(1))[0]; !got.Duplicate {
		t.Errorf("soon after the restart: %+v", got)
	}
	now = base.Add(2 * time.Minute)
	if got := appendAll(t, b, record(1))[0]; got.Duplicate || got.Err != nil {
		t.Errorf("after the window: %+v", got)
	}
}
