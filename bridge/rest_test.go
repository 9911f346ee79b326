// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
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
