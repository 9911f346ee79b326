// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
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
	f.opts = bridge.Options{LiveQueue: 4, Unsettled: 20 * time.Millisecond, Window: 32}
	var mu sync.Mutex // guards all below
	calm := false     // the targets answer
	fate := rand.New(rand.NewPCG(seed, 2))
	got := map[string]map[string]int{}
	names := []string{"good", "flaky", "hangs", "panics"}
	for _, name := range names {
		got[name] = map[string]int{}
		f.target(name, `{"concurrency":2,"timeout":"1s","retry":{"schedule":["1ms","20ms"],"maxAttempts":1000}}`, func(d targets.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
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
		switch rnd.IntN(6) {
		case 0:
			f.send("other", fmt.Sprint("other", sent))
		case 1: // the rule again, at a new revision
			f.rules = nil
			f.rule("all", "reading", names...)
		case 2:
			f.must(f.RemoveBus("default"))
			f.setBus()
		default:
			restart()
		}
	}
	mu.Lock()
	calm = true
	mu.Unlock()
	before := f.balanced()
	mu.Lock()
	for _, name := range names {
		for i := range sent {
			if id := fmt.Sprint("e", i); got[name][id] == 0 {
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
		if d.Owed != uint64(sent) || d.Delivered != uint64(sent) || d != before.Deliveries[i] {
			t.Errorf("seed %d: %d sent, account %+v, and %+v when it was rebuilt", seed, sent, before.Deliveries[i], d)
		}
	}
	if before.Events != after.Events {
		t.Errorf("seed %d: events %+v, and %+v when they were rebuilt", seed, before.Events, after.Events)
	}
}
