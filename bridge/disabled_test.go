// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
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
