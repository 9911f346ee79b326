// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/targets"
)

// parked waits until n deliveries of a target are parked.
func (f *fixture) parked(name string, n int) bridge.TargetStatus {
	f.t.Helper()
	var s bridge.TargetStatus
	f.eventually(func() (string, bool) {
		var err error
		s, err = f.TargetStatus(name, false)
		f.must(err)
		return fmt.Sprintf("target %s: %+v, want %d parked", name, s, n), s.Parked == n
	})
	return s
}

func ids(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprint(prefix, i)
	}
	return out
}

// A target gets no more than its rate and its burst; what waits for that is parked like anything that waits, and no
// attempt is counted.
func TestARateIsHeld(t *testing.T) {
	f := newFixture(t)
	now := f.useClock()
	ops := f.target("ops", `{"rateLimit":{"perSecond":2,"burst":3}}`, nil)
	f.rule("all", "reading", "ops")
	f.start()
	defer f.stop(time.Second)
	f.send("reading", ids("e", 10)...)
	ops.attempts(t, 3)
	f.eventually(func() (string, bool) {
		l, err := f.Ledger(context.Background(), bridge.LedgerQuery{Bus: "default"})
		f.must(err)
		s, err := f.TargetStatus("ops", false) // what is delivered, and not recorded yet, is live as well
		f.must(err)
		return fmt.Sprintf("%+v, %+v, want 3 delivered, limited, and 7 live", l.Deliveries, s), len(l.Deliveries) == 1 && l.Deliveries[0].Delivered == 3 &&
			s.State == bridge.TargetLimited && s.Live == 7 && s.Reason != ""
	})
	now.advance(f, 5*time.Second/2) // the burst is full again; what is left has waited for long
	ops.attempts(t, 6)
	f.parked("ops", 4)
	for n := 7; n <= 10; n++ {
		if got := len(ops.attempts(t, n-1)); got != n-1 {
			t.Errorf("%d attempts, want %d", got, n-1)
		}
		now.advance(f, 500*time.Millisecond)
		ops.attempts(t, n)
	}
	if l := f.balanced(); l.Deliveries[0].Delivered != 10 {
		t.Errorf("account %+v", l.Deliveries)
	}
	for _, d := range ops.attempts(t, 10) {
		if d.Attempt != 1 {
			t.Errorf("%s: attempt %d", d.Event.ID, d.Attempt)
		}
	}
	if s := f.status("ops", bridge.TargetActive); s.Parked != 0 || s.NextDue != nil {
		t.Errorf("status %+v", s)
	}
}

// A target fails until its breaker opens. What comes meanwhile is parked without an attempt; one probe finds that it
// works, and then attempts come back one by one.
func TestABreakerOpensAndComesBack(t *testing.T) {
	f := newFixture(t)
	now := f.useClock()
	var up atomic.Bool
	var mu sync.Mutex
	underWay, most := 0, 0
	gate := make(chan struct{}, 100)
	ops := f.target("ops", `{"concurrency":4,"retry":{"schedule":["1h"]}}`, func(d targets.Delivery) error {
		if !up.Load() {
			return targets.StatusError(503, 0)
		}
		mu.Lock()
		underWay++
		most = max(most, underWay)
		mu.Unlock()
		<-gate
		mu.Lock()
		underWay--
		mu.Unlock()
		return nil
	})
	f.rule("all", "reading", "ops")
	f.start()
	defer f.stop(time.Second)
	f.send("reading", ids("fails", 10)...)
	s := f.status("ops", bridge.TargetOpen)
	if s.Since == nil || !s.Since.Equal(now.Now()) {
		t.Errorf("status %+v", s)
	}
	f.send("reading", ids("waits", 20)...)
	s = f.parked("ops", 30)
	if s.NextDue == nil || !s.NextDue.Equal(now.Now().Add(30*time.Second)) {
		t.Errorf("status %+v", s)
	}
	found, err := f.Event(context.Background(), "default", "waits3", "")
	f.must(err)
	if d := found.Journey.Deliveries[0]; d.State != journal.Parked || d.Reason != "breaker" || len(d.Attempts) != 0 || d.Due == nil {
		t.Errorf("delivery %+v", d)
	}

	now.advance(f, 30*time.Second) // the probe fails: open for a minute
	ops.attempts(t, 11)
	f.eventually(func() (string, bool) {
		s, err := f.TargetStatus("ops", false)
		f.must(err)
		return fmt.Sprintf("%+v", s), s.NextDue != nil && s.NextDue.Equal(now.Now().Add(time.Minute))
	})
	now.advance(f, 59*time.Second)
	if n := len(ops.attempts(t, 11)); n != 11 {
		t.Errorf("%d attempts while the breaker is open, want 11", n)
	}

	up.Store(true)
	now.advance(f, time.Second)
	ops.attempts(t, 12)
	f.send("reading", "fresh")
	f.eventually(func() (string, bool) {
		found, err := f.Event(context.Background(), "default", "fresh", "")
		f.must(err)
		return "fresh is not routed", found.Journey.State == "routed"
	})
	gate <- struct{}{} // the probe succeeds; a fresh event goes before what waits
	if got := ops.attempts(t, 13)[12]; got.Event.ID != "fresh" {
		t.Errorf("after the probe came %s, want fresh", got.Event.ID)
	}
	for n, upTo := 13, 1; upTo <= 4; upTo++ { // a round of each size
		for range upTo {
			gate <- struct{}{}
		}
		n += upTo
		ops.attempts(t, n)
	}
	mu.Lock()
	if most > 4 {
		t.Errorf("%d attempts at the same time", most)
	}
	mu.Unlock()
	f.status("ops", bridge.TargetActive)
	close(gate)
	now.advance(f, 2*time.Hour)
	if l := f.balanced(); l.Deliveries[0].Delivered != 31 {
		t.Errorf("account %+v", l.Deliveries)
	}
}

// A paused target keeps what it is owed, over a restart, and gets it when it is not paused any more.
func TestAPausedTargetKeepsWhatItIsOwed(t *testing.T) {
	f := newFixture(t)
	ops := f.target("ops", quick, nil)
	f.pause("ops", true)
	f.rule("all", "reading", "ops")
	f.start()
	f.send("reading", "a", "b")
	f.parked("ops", 2)
	if s := f.status("ops", bridge.TargetPaused); s.Since == nil || s.NextDue != nil {
		t.Errorf("status %+v", s)
	}
	f.stop(time.Second)
	f.start()
	defer f.stop(time.Second)
	f.send("reading", "c")
	f.parked("ops", 3)
	f.pause("ops", false)
	ops.attempts(t, 3)
	f.balanced()
	f.pause("ops", true)
	f.send("reading", "d")
	f.parked("ops", 1)
	f.RemoveTarget("ops")
	delete(f.targets, "ops")
	f.journey("d", bridge.StateCancelled)
	f.balanced()
}

// announced returns the events about a target, oldest first.
func (f *fixture) announced(n int) []map[string]any {
	f.t.Helper()
	var out []map[string]any
	f.eventually(func() (string, bool) {
		page, err := f.Search(context.Background(), "default", bridge.SearchQuery{Source: "rialto/targets"})
		f.must(err)
		out = nil
		for i := len(page.Items) - 1; i >= 0; i-- {
			ev := page.Items[i].Event
			data := map[string]any{"type": ev.Type, "subject": ev.Subject}
			f.must(json.Unmarshal(ev.Data, &data))
			out = append(out, data)
		}
		return fmt.Sprintf("%d events about targets, want %d: %v", len(out), n, out), len(out) >= n
	})
	return out
}

// 410 disables a target: its owner is told, what comes is held, also over a restart and without the views, until the
// definition is changed.
func TestATargetThatIsGoneIsDisabled(t *testing.T) {
	f := newFixture(t)
	var back atomic.Bool
	ops := f.target("ops", quick, func(targets.Delivery) error {
		if back.Load() {
			return nil
		}
		return targets.StatusError(410, 0)
	})
	f.rule("all", "reading", "ops")
	f.start()
	f.send("reading", "a")
	f.journey("a", bridge.StateDead)
	s := f.status("ops", bridge.TargetDisabled)
	if s.Reason != "it answered 410" || s.Since == nil {
		t.Errorf("status %+v", s)
	}
	f.send("reading", "b", "c")
	f.parked("ops", 2)
	back.Store(true)
	if got := f.announced(1); len(got) != 1 || got[0]["type"] != "io.rialto.target.disabled" || got[0]["subject"] != "ops" ||
		got[0]["target"] != "ops" || got[0]["reason"] != "gone" || got[0]["status"] != 410.0 {
		t.Errorf("told %v", got)
	}
	for range 2 {
		f.stop(time.Second)
		f.must(os.RemoveAll(f.views()))
		f.start()
		f.parked("ops", 2)
		f.status("ops", bridge.TargetDisabled)
	}
	if n := len(ops.attempts(t, 1)); n != 1 {
		t.Errorf("%d attempts at a disabled target", n)
	}
	f.stop(time.Second)
	f.Bridge = nil
	f.pause("ops", false) // another revision, before the start
	f.start()
	f.journey("b", bridge.StateDelivered)
	f.journey("c", bridge.StateDelivered)
	f.status("ops", bridge.TargetActive)
	if got := f.announced(2); len(got) != 2 || got[1]["type"] != "io.rialto.target.enabled" {
		t.Errorf("told %v", got)
	}
	f.stop(time.Second)
	f.start()
	defer f.stop(time.Second)
	f.status("ops", bridge.TargetActive)
	f.balanced()
	if got := f.announced(2); len(got) != 2 {
		t.Errorf("told again: %v", got)
	}
}

// Five days of nothing but failures disable a target, whatever restarts come between. A success begins a new count.
func TestATargetThatFailsForDaysIsDisabled(t *testing.T) {
	f := newFixture(t)
	now := f.useClock()
	var up atomic.Bool
	ops := f.target("ops", `{"breaker":{"enabled":false},"retry":{"schedule":["24h"],"maxAttempts":100}}`, func(targets.Delivery) error {
		if up.Load() {
			return nil
		}
		return targets.StatusError(503, 0)
	})
	f.rule("all", "reading", "ops")
	f.start()
	f.opts.Rand = func() float64 { return 0.5 }
	n := 0
	fail := func(id string) {
		f.send("reading", id)
		n++
		ops.attempts(t, n)
		f.eventually(func() (string, bool) {
			found, err := f.Event(context.Background(), "default", id, "")
			f.must(err)
			d := found.Journey.Deliveries
			return fmt.Sprintf("%+v", d), len(d) == 1 && d[0].State != journal.Live
		})
	}
	restart := func() {
		f.stop(time.Second)
		f.start()
	}
	restart()
	defer func() { f.stop(time.Second) }()
	fail("first")
	now.pass(4 * 24 * time.Hour) // without waking anybody
	fail("day4")
	restart()
	n = len(ops.attempts(t, n)) // first is due again
	up.Store(true)
	now.advance(f, 2*24*time.Hour)
	f.journey("first", bridge.StateDelivered)
	f.balanced()
	f.status("ops", bridge.TargetActive)

	up.Store(false)
	n = len(ops.attempts(t, n))
	fail("again")
	now.pass(2 * time.Hour)
	fail("two hours later, which is written down")
	restart()
	now.pass(5*24*time.Hour - 3*time.Hour)
	n = len(ops.attempts(t, n))
	f.WakeLanes()
	f.status("ops", bridge.TargetActive)
	now.pass(2 * time.Hour)
	fail("after five days")
	s := f.status("ops", bridge.TargetDisabled)
	if len(s.Reason) < 40 {
		t.Errorf("status %+v", s)
	}
	if got := f.announced(1); got[0]["reason"] != "status" || got[0]["status"] != 503.0 || got[0]["failingSince"] == nil {
		t.Errorf("told %v", got)
	}
	up.Store(true)
	f.pause("ops", false)
	f.WakeLanes()
	now.advance(f, 48*time.Hour)
	f.balanced()
}

// An outage, scaled down: a backlog gathers behind an open breaker; when the target is back a fresh event goes before it,
// and the backlog drains while fresh ones keep coming.
func TestAfterAnOutageFreshEventsGoFirst(t *testing.T) {
	f := newFixture(t)
	f.opts.Unsettled = 50 * time.Millisecond
	var up atomic.Bool
	ops := f.target("ops", `{"concurrency":4,"rateLimit":{"perSecond":1000,"burst":10},"breaker":{"open":"100ms","maxOpen":"200ms"},"retry":{"schedule":["100ms"],"maxAttempts":1000}}`,
		func(targets.Delivery) error {
			if up.Load() {
				return nil
			}
			return targets.StatusError(503, 0)
		})
	f.rule("all", "reading", "ops")
	f.start()
	defer f.stop(time.Second)
	const backlog = 2000
	for from := 0; from < backlog; from += 100 {
		f.send("reading", ids(fmt.Sprint("old", from, "-"), 100)...)
	}
	f.status("ops", bridge.TargetOpen)
	f.eventually(func() (string, bool) {
		s, err := f.TargetStatus("ops", false)
		f.must(err)
		return fmt.Sprintf("%+v, want all parked", s), s.Parked >= backlog-4
	})
	up.Store(true)
	f.eventually(func() (string, bool) {
		s, err := f.TargetStatus("ops", false)
		f.must(err)
		return "it does not come back", s.State != bridge.TargetOpen
	})
	f.send("reading", "fresh")
	before := len(ops.attempts(t, 1))
	f.journey("fresh", bridge.StateDelivered)
	for i := range 200 {
		f.send("reading", fmt.Sprint("more", i))
	}
	if l := f.balanced(); l.Deliveries[0].Delivered != backlog+201 {
		t.Errorf("account %+v", l.Deliveries)
	}
	for i, d := range ops.attempts(t, 1) {
		if d.Event.ID == "fresh" && i-before > 100 {
			t.Errorf("%d attempts went before the fresh event", i-before)
		}
	}
}
