// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/targets"
)

// A target that asks for rest has it, also when its definition is put in force again unchanged, as for a new value of a secret. One
// that was changed is tried at once.
func TestARestOutlivesARotation(t *testing.T) {
	f := newFixture(t)
	f.useClock()
	var up atomic.Bool
	ops := f.target("ops", `{"retry":{"schedule":["1m"]}}`, func(targets.Delivery) error {
		if up.Load() {
			return nil
		}
		return targets.StatusError(429, time.Hour)
	})
	f.rule("all", "reading", "ops")
	f.start()
	defer f.stop(time.Second)
	f.send("reading", "a")
	ops.attempts(t, 1)
	f.parked("ops", 1)
	up.Store(true)
	f.must(f.SetTarget(ops.def, ops))
	if s := f.status("ops", bridge.TargetLimited); s.Reason != "it asked for rest" {
		t.Errorf("status %+v", s)
	}
	f.pause("ops", false)
	f.status("ops", bridge.TargetActive)
	f.send("reading", "b")
	f.journey("b", bridge.StateDelivered)
}

// While a target rests, what comes is parked until the end of that; what comes shortly before waits in memory and goes first.
func TestARestParksUntilItsEnd(t *testing.T) {
	f := newFixture(t)
	f.opts.Unsettled = time.Minute // nothing is swept here
	now := f.useClock()
	var up atomic.Bool
	ops := f.target("ops", `{"concurrency":1,"retry":{"schedule":["1m"]}}`, func(targets.Delivery) error {
		if up.Load() {
			return nil
		}
		return targets.StatusError(429, time.Hour)
	})
	f.rule("all", "reading", "ops")
	f.start()
	defer f.stop(time.Second)
	f.send("reading", "asks")
	ops.attempts(t, 1)
	f.parked("ops", 1)
	end := now.Now().Add(time.Hour)
	f.send("reading", "long before")
	f.parked("ops", 2)
	if d := f.journey("long before", bridge.StatePending).Journey.Deliveries[0]; d.Reason != "rest" || d.Due == nil || !d.Due.Equal(end) || len(d.Attempts) != 0 {
		t.Errorf("delivery %+v", d)
	}
	up.Store(true)
	now.advance(f, time.Hour-time.Second)
	f.send("reading", "shortly before")
	f.eventually(func() (string, bool) {
		s, err := f.TargetStatus("ops", false)
		f.must(err)
		return fmt.Sprintf("%+v", s), s.Live == 1 && s.Parked == 2
	})
	if n := len(ops.attempts(t, 1)); n != 1 {
		t.Errorf("%d attempts while it rests", n)
	}
	now.advance(f, time.Second)
	if got := ops.attempts(t, 2)[1]; got.Event.ID != "shortly before" {
		t.Errorf("after the rest came %s", got.Event.ID)
	}
	f.balanced()
}
