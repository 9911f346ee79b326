// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/targets"
)

// Whatever happens in whatever order, every accepted event is delivered to every target at least once, and the account
// balances at every look, with views that are kept, deleted, or an older copy.
func TestWhateverHappensAllIsDelivered(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			runSchedule(t, seed)
		})
	}
}

func runSchedule(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	f := newFixture(t)
	f.opts = bridge.Options{LiveQueue: 4, Unsettled: 20 * time.Millisecond, Window: 32, RangeAfter: 3}
	var mu sync.Mutex // guards all below
	calm := false     // the targets answer
	fate := rand.New(rand.NewPCG(seed, 2))
	got := map[string]map[string]int{}
	gone := map[string]bool{} // the next answer disables the target, and buries the delivery
	buried := map[string]map[string]bool{}
	names := []string{"good", "flaky", "hangs", "panics"}
	for _, name := range names {
		got[name], buried[name] = map[string]int{}, map[string]bool{}
		f.target(name, `{"concurrency":2,"timeout":"1s","retry":{"schedule":["1ms","20ms"],"maxAttempts":1000},
			"breaker":{"window":"1s","minAttempts":3,"failurePercent":60,"open":"100ms","maxOpen":"200ms"},"rateLimit":{"perSecond":200,"burst":5},"status":{"disable":[404]}}`, func(d targets.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			if gone[name] {
				delete(gone, name)
				buried[name][d.Event.ID] = true
				return targets.StatusError(404, 0)
			}
			if !calm && name != "good" && fate.IntN(3) > 0 {
				switch name {
				case "hangs":
					return errHang
				case "panics":
					panic("at the disco")
				}
				return targets.StatusError(503, 0)
			}
			got[name][d.Event.ID]++
			return nil
		})
	}
	f.rule("all", "reading", names...)
	f.start()
	sent := 0
	old := filepath.Join(t.TempDir(), "old")
	restart := func() {
		f.stop(time.Duration(rnd.IntN(20)) * time.Millisecond)
		switch rnd.IntN(4) {
		case 0:
			f.must(os.RemoveAll(f.views()))
		case 1:
			f.must(os.RemoveAll(old))
			f.must(os.CopyFS(old, os.DirFS(f.views())))
		case 2:
			if _, err := os.Stat(old); err == nil {
				f.must(os.RemoveAll(f.views()))
				f.must(os.CopyFS(f.views(), os.DirFS(old)))
			}
		}
		f.start()
	}
	for range 12 {
		for range rnd.IntN(12) {
			f.send("reading", fmt.Sprint("e", sent))
			sent++
		}
		switch rnd.IntN(8) {
		case 0:
			f.send("other", fmt.Sprint("other", sent))
		case 1: // the rule again, at a new revision
			f.rules = nil
			f.rule("all", "reading", names...)
		case 2:
			f.must(f.RemoveBus("default"))
			f.setBus()
		case 3: // somebody pauses a target, or lets it go on
			f.pause(names[rnd.IntN(len(names))], rnd.IntN(2) == 0)
		case 4: // a target says that it is gone
			mu.Lock()
			gone[names[rnd.IntN(len(names))]] = true
			mu.Unlock()
		default:
			restart()
		}
	}
	mu.Lock()
	calm = true
	clear(gone)
	mu.Unlock()
	for _, name := range names {
		f.pause(name, false)
	}
	before := f.balanced()
	mu.Lock()
	for _, name := range names {
		for i := range sent {
			if id := fmt.Sprint("e", i); got[name][id] == 0 && !buried[name][id] {
				t.Errorf("seed %d: event %s was not delivered to %s", seed, id, name)
			}
		}
	}
	mu.Unlock()
	f.stop(time.Second)
	f.must(os.RemoveAll(f.views()))
	f.start()
	defer f.stop(time.Second)
	after := f.balanced()
	for i, d := range after.Deliveries {
		if d.Owed != uint64(sent) || d.Delivered+d.Dead != uint64(sent) || d.Dead > uint64(len(buried[d.Target])) || d != before.Deliveries[i] {
			t.Errorf("seed %d: %d sent, account %+v, and %+v when it was rebuilt", seed, sent, before.Deliveries[i], d)
		}
	}
	if before.Events != after.Events {
		t.Errorf("seed %d: events %+v, and %+v when they were rebuilt", seed, before.Events, after.Events)
	}
}

// Whatever is redriven, discarded, paused and restarted in whatever order, the account balances at every look and nothing
// that is dead is forgotten: in the end each delivery is delivered or discarded, also to views that are rebuilt.
func TestWhateverIsRedrivenAddsUp(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			runRedrives(t, seed)
		})
	}
}

func runRedrives(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 3))
	f := newFixture(t)
	f.opts = bridge.Options{LiveQueue: 4, Unsettled: 20 * time.Millisecond, Window: 32, RangeAfter: 3}
	var calm atomic.Bool
	var n atomic.Uint64
	answer := func(targets.Delivery) error {
		switch i := n.Add(1); {
		case calm.Load() || i%3 == 0:
			return nil
		case i%7 == 1:
			return errHang
		case i%2 == 0:
			return targets.StatusError(400, 0)
		}
		return targets.StatusError(503, 0)
	}
	for _, name := range []string{"a", "b", "spare"} {
		f.target(name, `{"concurrency":2,"timeout":"1s","breaker":{"enabled":false},"retry":{"schedule":["1ms"],"maxAttempts":2}}`, answer)
	}
	f.rule("all", "reading", "a", "b")
	f.start()
	ctx := context.Background()
	sent := 0
	var jobs []string
	start := func(s bridge.JobSpec) {
		t.Helper()
		j, err := f.StartJob(ctx, s)
		f.must(err)
		jobs = append(jobs, j.ID)
	}
	for range 15 {
		for range rnd.IntN(6) {
			f.send("reading", fmt.Sprint("e", sent))
			sent++
		}
		switch rnd.IntN(8) {
		case 0:
			start(bridge.JobSpec{Kind: bridge.JobRedrive, Rate: 20})
		case 1:
			start(bridge.JobSpec{Kind: bridge.JobRedrive, To: "spare", Filter: bridge.DeadFilter{Bus: "default", Target: "a"}})
		case 2:
			start(bridge.JobSpec{Kind: bridge.JobDiscard, Why: "x", Filter: bridge.DeadFilter{Target: "spare"}})
		case 3:
			if len(jobs) > 0 {
				state := []string{bridge.JobPaused, bridge.JobRunning, bridge.JobCancelled}[rnd.IntN(3)]
				if _, err := f.SetJob(ctx, bridge.JobChange{ID: jobs[rnd.IntN(len(jobs))], State: state}); err != nil && fault.KindOf(err) != fault.Conflict {
					t.Fatal(err)
				}
			}
		case 4:
			if sent > 0 { // it may be pending, delivered or dead
				_, err := f.Redrive(ctx, bridge.RedriveRequest{Bus: "default", ID: fmt.Sprint("e", rnd.IntN(sent)), Target: "b", Delivered: true})
				if err != nil && fault.KindOf(err) != fault.Conflict {
					t.Fatal(err)
				}
			}
		default:
			f.stop(time.Duration(rnd.IntN(20)) * time.Millisecond)
			if rnd.IntN(2) == 0 {
				f.must(os.RemoveAll(f.views()))
			}
			f.start()
		}
		if l, err := f.Ledger(ctx, bridge.LedgerQuery{Bus: "default"}); err != nil || !l.Balanced {
			t.Fatalf("seed %d: account differs by %d, %v", seed, l.Difference, err)
		}
	}
	calm.Store(true)
	for _, id := range jobs {
		if _, err := f.SetJob(ctx, bridge.JobChange{ID: id, State: bridge.JobCancelled}); err != nil && fault.KindOf(err) != fault.Conflict {
			t.Fatal(err)
		}
	}
	f.balanced()
	last, err := f.StartJob(ctx, bridge.JobSpec{Kind: bridge.JobRedrive, Rate: 1000})
	f.must(err)
	f.job(last.ID, bridge.JobDone)
	before := f.balanced()
	f.stop(time.Second)
	f.must(os.RemoveAll(f.views()))
	f.start()
	defer f.stop(time.Second)
	after := f.balanced()
	if d := cmp.Diff(before.Deliveries, after.Deliveries); d != "" {
		t.Errorf("seed %d: the account, and when it was rebuilt:\n%s", seed, d)
	}
	for _, d := range after.Deliveries {
		if d.Dead != 0 || d.Owed != d.Delivered+d.Discarded {
			t.Errorf("seed %d: %+v", seed, d)
		}
	}
	if left := f.deadLetters(bridge.DeadFilter{}); len(left) != 0 {
		t.Errorf("seed %d: dead letters %+v", seed, left)
	}
}
