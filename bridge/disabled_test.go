// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
)

// A rule that is disabled matches nothing more, and what it has brought about is still delivered, as it was rendered then.
func TestDisabledRulesKeepWhatIsPending(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	var up atomic.Bool
	ops := f.target("ops", `{"retry":{"schedule":["50ms"],"maxAttempts":1000}}`, func(targets.Delivery) error {
		if up.Load() {
			return nil
		}
		return targets.StatusError(503, 0)
	})
	f.rule("all", "reading", "ops")
	f.send("reading", "before")
	ops.attempts(t, 1)
	f.rev++
	off := *f.rules[0]
	off.Disabled, off.Revision = true, f.rev
	f.setRules([]*rules.Rule{&off})
	f.send("reading", "after")
	f.journey("after", bridge.StateUnmatched)
	up.Store(true)
	f.journey("before", bridge.StateDelivered)
	f.balanced()
}

// A set that differs a little is made from the one before; what is in force is the same as if it were made anew.
func TestSmallChangesOfRules(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	f.target("ops", quick, nil)
	for i := range 20 {
		f.rule(fmt.Sprint("r", i), fmt.Sprint("type", i), "ops")
	}
	f.send("type3", "before")
	f.journey("before", bridge.StateDelivered)
	all := f.rules
	// One is deleted, one disabled, one changed.
	off := *all[4]
	off.Disabled = true
	f.rev++
	other, err := rules.ParseRule([]byte(`{"kind":"Rule","name":"r5","bus":"default","pattern":{"type":["type5-new"]},"targets":[{"target":"ops"}]}`))
	f.must(err)
	other.Revision = f.rev
	next := append([]*rules.Rule{&off, other}, all[:3]...)
	f.setRules(append(next, all[6:]...))
	for typ, want := range map[string]string{"type3": bridge.StateUnmatched, "type4": bridge.StateUnmatched, "type5": bridge.StateUnmatched,
		"type5-new": bridge.StateDelivered, "type6": bridge.StateDelivered, "type0": bridge.StateDelivered} {
		f.send(typ, "after-"+typ)
		f.journey("after-"+typ, want)
	}
	f.setRules(all) // and back
	for i := range 20 {
		f.send(fmt.Sprint("type", i), fmt.Sprint("back-", i))
		f.journey(fmt.Sprint("back-", i), bridge.StateDelivered)
	}
}
