// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
)

// What a deleted target was owed has ended, and is not delivered to one that is made at once with its name.
func TestATargetThatIsMadeAnewGetsNothingOfTheOldOne(t *testing.T) {
	f := newFixture(t)
	f.target("ops", quick, nil)
	f.rule("all", "reading", "ops")
	f.pause("ops", true)
	f.start()
	defer f.stop(time.Second)
	const count = 50
	f.send("reading", ids("old", count)...)
	f.parked("ops", count)
	f.RemoveTarget("ops")
	ops := f.target("ops", quick, nil)
	f.send("reading", "new")
	f.journey("new", bridge.StateDelivered)
	if l := f.balanced(); l.Deliveries[0].Cancelled != count {
		t.Errorf("account %+v", l.Deliveries)
	}
	if n := len(ops.attempts(t, 1)); n != 1 {
		t.Errorf("%d attempts at the new target", n)
	}
}

// What a deleted rule had sent has ended, also when a rule of its name is made before that is written down.
func TestARuleThatIsMadeAnewBringsNothingBack(t *testing.T) {
	f := newFixture(t)
	ops := f.target("ops", quick, nil)
	f.rule("all", "reading", "ops")
	f.pause("ops", true)
	f.start()
	defer f.stop(time.Second)
	const count = 50
	f.send("reading", ids("old", count)...)
	f.parked("ops", count)
	f.setRules(nil)
	f.rule("all", "reading", "ops")
	f.pause("ops", false)
	f.send("reading", "new")
	f.journey("new", bridge.StateDelivered)
	if l := f.balanced(); l.Deliveries[0].Cancelled != count {
		t.Errorf("account %+v", l.Deliveries)
	}
	if n := len(ops.attempts(t, 1)); n != 1 {
		t.Errorf("%d attempts", n)
	}
}
