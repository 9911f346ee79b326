// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/rules"
)

// An event that cannot be read for some time costs no attempt: the target was not asked. It is delivered when it can be read.
func TestAnEventThatCannotBeReadCostsNoAttempt(t *testing.T) {
	f := newFixture(t)
	now := f.useClock()
	ops := f.target("ops", `{"retry":{"schedule":[]}}`, nil)
	f.pause("ops", true)
	f.rule("all", "reading", "ops")
	f.start()
	f.send("reading", "a")
	f.parked("ops", 1)
	f.stop(time.Second)
	f.start() // nothing is in memory any more
	defer f.stop(time.Second)
	f.parked("ops", 1)

	blocks, err := filepath.Glob(filepath.Join(f.dir, "events", "jetstream", "$G", "streams", "EV_default", "msgs", "*.blk"))
	if err != nil || len(blocks) != 1 {
		t.Fatalf("blocks %v, %v", blocks, err)
	}
	f.must(os.Rename(blocks[0], blocks[0]+".away"))
	f.must(os.Mkdir(blocks[0], 0o700))
	f.pause("ops", false)
	for _, wait := range []time.Duration{0, 1, 2, 4, 8, 16, 30, 30} {
		now.advance(f, wait*time.Second) // since the last try
		wait = min(max(2*wait, 1), 30)
		f.eventually(func() (string, bool) {
			s, err := f.TargetStatus("ops", false)
			f.must(err)
			return fmt.Sprintf("%+v, want the next after %d s", s, wait), s.NextDue != nil && s.NextDue.Equal(now.Now().Add(wait*time.Second))
		})
	}
	f.must(os.Remove(blocks[0]))
	f.must(os.Rename(blocks[0]+".away", blocks[0]))
	f.eventually(func() (string, bool) {
		now.advance(f, time.Second)
		found, err := f.Event(t.Context(), "default", "a", "")
		f.must(err)
		return fmt.Sprintf("%+v", found.Journey), found.State == bridge.StateDelivered
	})
	if got := ops.attempts(t, 1); len(got) != 1 || got[0].Attempt != 1 {
		t.Errorf("attempts %+v", got)
	}
	f.balanced()
}

// Nor does one whose rule cannot be read.
func TestARuleThatCannotBeReadCostsNoAttempt(t *testing.T) {
	f := newFixture(t)
	now := f.useClock()
	ops := f.target("ops", `{"retry":{"schedule":[]}}`, nil)
	f.pause("ops", true)
	f.setRules([]*rules.Rule{f.ruleText("all", "ops", "first")})
	f.start()
	defer f.stop(time.Second)
	f.send("reading", "a")
	f.parked("ops", 1)
	f.setRules([]*rules.Rule{f.ruleText("all", "ops", "second")})
	var fails atomic.Bool
	fails.Store(true)
	f.LoadRules(func() error {
		if fails.Load() {
			return errors.New("input/output error")
		}
		return nil
	})
	f.pause("ops", false)
	for _, wait := range []time.Duration{1, 2, 4} {
		f.eventually(func() (string, bool) {
			s, err := f.TargetStatus("ops", false)
			f.must(err)
			return fmt.Sprintf("%+v, want the next after %d s", s, wait), s.NextDue != nil && s.NextDue.Equal(now.Now().Add(wait*time.Second))
		})
		if d := f.journey("a", bridge.StatePending).Journey.Deliveries[0]; d.Reason != "unreadable" || len(d.Attempts) != 0 {
			t.Errorf("delivery %+v", d)
		}
		now.advance(f, wait*time.Second)
	}
	fails.Store(false)
	f.eventually(func() (string, bool) {
		now.advance(f, time.Second)
		found, err := f.Event(t.Context(), "default", "a", "")
		f.must(err)
		return fmt.Sprintf("%+v", found.Journey), found.State == bridge.StateDelivered
	})
	if got := ops.attempts(t, 1); len(got) != 1 || got[0].Attempt != 1 || string(got[0].Event.Data) != "first" {
		t.Errorf("attempts %+v", got)
	}
	f.balanced()
}
