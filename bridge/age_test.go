// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/targets"
)

// No attempt is later than maxAge after the first, also where the delivery waited for something else than its next attempt. What was
// never tried is not too old, nor is what begins anew because somebody redrives it.
func TestNoAttemptIsLaterThanMaxAge(t *testing.T) {
	f := newFixture(t)
	now := f.useClock()
	var up atomic.Bool
	ops := f.target("ops", `{"retry":{"schedule":["1m"],"maxAttempts":10,"maxAge":"2h"}}`, func(targets.Delivery) error {
		if up.Load() {
			return nil
		}
		return targets.StatusError(503, 0)
	})
	f.rule("all", "reading", "ops")
	f.start()
	f.send("reading", "tried")
	ops.attempts(t, 1)
	f.parked("ops", 1)
	f.pause("ops", true)
	f.send("reading", "never tried")
	f.parked("ops", 2)
	now.advance(f, 3*time.Hour)
	f.stop(time.Second)
	f.start()
	defer f.stop(time.Second)
	up.Store(true)
	f.pause("ops", false)
	f.journey("never tried", bridge.StateDelivered)
	if d := f.journey("tried", bridge.StateDead).Journey.Deliveries[0]; len(d.Attempts) != 1 || d.Reason != "status" || d.DeadLetter == "" {
		t.Errorf("delivery %+v", d)
	}
	dead := f.deadLetters(bridge.DeadFilter{})
	if len(dead) != 1 || dead[0].End != "age" || dead[0].Attempts != 1 || dead[0].Status != 503 || !dead[0].First.Equal(dead[0].Last) {
		t.Fatalf("dead letters %+v", dead)
	}
	if l := f.balanced(); l.Deliveries[0].Dead != 1 {
		t.Errorf("account %+v", l.Deliveries)
	}
	f.startJob(bridge.JobSpec{Kind: bridge.JobRedrive, Filter: bridge.DeadFilter{Target: "ops"}})
	f.journey("tried", bridge.StateDelivered)
	f.balanced()
}

// The first of a key that blocks is tried on, whatever its age.
func TestAHeadThatBlocksHasNoMaxAge(t *testing.T) {
	f := newFixture(t)
	now := f.useClock()
	var up atomic.Bool
	ops := f.target("ops", `{"ordering":"key","orderBy":"source","onFailure":"block","retry":{"schedule":["1m"],"maxAge":"2h"}}`, func(targets.Delivery) error {
		if up.Load() {
			return nil
		}
		return targets.StatusError(503, 0)
	})
	f.rule("all", "reading", "ops")
	f.start()
	defer f.stop(time.Second)
	f.send("reading", "a", "b")
	ops.attempts(t, 1)
	f.parked("ops", 2)
	up.Store(true)
	now.advance(f, 3*time.Hour)
	f.journey("a", bridge.StateDelivered)
	f.journey("b", bridge.StateDelivered)
}
