// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/targets"
)

const decade = 10 * 365 * 24 * time.Hour

// A clock that jumps ten years ahead, back, and an hour further back, costs no event and no delivery: what waits for a time of the
// other years is tried now, and nothing has become too old for another attempt. The account balances, whatever hours it has.
func TestAClockThatJumpsLosesNothing(t *testing.T) {
	for _, restart := range []string{"no restart", "a restart while it is ahead", "a restart when it is back", "views made anew when it is back"} {
		t.Run(restart, func(t *testing.T) {
			f := newFixture(t)
			c := f.useClock()
			f.logOpts.Now, f.logOpts.ClockTrust = c.Now, time.Hour
			var up atomic.Bool
			up.Store(true)
			ops := f.target("ops", `{"retry":{"schedule":["1h","1h","1h","1h","1h"],"maxAge":"6h"},"breaker":{"enabled":false}}`, func(targets.Delivery) error {
				if up.Load() {
					return nil
				}
				return targets.StatusError(503, 0)
			})
			f.rule("all", "reading", "ops")
			f.start()
			again := func(views bool) {
				f.stop(time.Second)
				if views {
					f.must(os.RemoveAll(f.views()))
				}
				f.start()
			}
			f.send("reading", "right")
			f.journey("right", bridge.StateDelivered)
			up.Store(false)
			f.send("reading", "waits")
			ops.attempts(t, 2)
			f.parked("ops", 1)

			c.advance(f, decade)
			ops.attempts(t, 3) // it is due, and not too old for another
			f.send("reading", "ahead")
			ops.attempts(t, 4)
			f.parked("ops", 2)
			if restart == "a restart while it is ahead" {
				again(false)
			}

			up.Store(true)
			c.advance(f, -decade-time.Hour)
			switch restart {
			case "a restart when it is back":
				again(false)
			case "views made anew when it is back":
				again(true)
			}
			f.send("reading", "back")
			c.advance(f, 0)
			for _, id := range []string{"right", "waits", "ahead", "back"} {
				f.journey(id, bridge.StateDelivered)
			}
			l := f.balanced()
			if l.Events.Accepted != 4 || len(l.Deliveries) != 1 || l.Deliveries[0].Delivered != 4 || len(l.Hours) != 3 {
				t.Errorf("account %+v", l)
			}
			for i, r := range f.send("reading", "fresh", "right") { // more than the two minutes of the window have passed, by any clock
				if r.Err != nil || r.Duplicate {
					t.Errorf("event %d: %+v", i, r)
				}
			}
			f.balanced()
			f.stop(time.Second)
		})
	}
}

// The longest wait that a policy may have, a week and as much jitter, is none that only a clock which was ahead has written.
func TestTheLongestWaitIsWaited(t *testing.T) {
	f := newFixture(t)
	now := f.useClock()
	f.opts.Rand = func() float64 { return 0.999 }
	var up atomic.Bool
	ops := f.target("ops", `{"retry":{"exponential":{"initial":"168h","max":"168h","jitter":1},"maxAttempts":3}}`, func(targets.Delivery) error {
		if up.Load() {
			return nil
		}
		return targets.StatusError(503, 0)
	})
	f.rule("all", "reading", "ops")
	f.start()
	defer f.stop(time.Second)
	f.send("reading", "a")
	ops.attempts(t, 1)
	f.parked("ops", 1)
	now.advance(f, 24*time.Hour)
	up.Store(true)
	f.send("reading", "b")
	f.journey("b", bridge.StateDelivered)
	if n := len(ops.attempts(t, 2)); n != 2 {
		t.Errorf("%d attempts on the first day", n)
	}
	now.advance(f, 13*24*time.Hour)
	f.journey("a", bridge.StateDelivered)
}

// A prepared event is not rolled back for its age by a clock that was set.
func TestAPreparedEventOutlivesAJumpOfTheClock(t *testing.T) {
	f := newFixture(t)
	f.opts.Aside = bridge.AsideOptions{MaxAge: time.Hour}
	c := f.useClock()
	f.logOpts.Now, f.logOpts.ClockTrust = c.Now, time.Hour
	f.start()
	kept := f.keep(bridge.AsideRequest{Prepare: true}, "order")
	c.pass(decade)
	for range 3 {
		f.WakeAside()
		page, err := f.Kept(context.Background(), bridge.KeptQuery{Prepared: true})
		if err != nil || len(page.Items) != 1 {
			t.Fatalf("kept %+v, %v", page.Items, err)
		}
	}
	c.pass(-decade)
	f.WakeAside()
	d, err := f.Decide(context.Background(), "", kept[0].Token, true)
	if f.must(err); d.State != "committed" {
		t.Errorf("decided %+v", d)
	}
	f.journey("order", bridge.StateUnmatched)
	f.stop(time.Second)
}

// A target that fails when the clock jumps days ahead has not failed for days, neither at once nor when the clock is trusted again.
func TestAClockThatJumpsDisablesNoTarget(t *testing.T) {
	f := newFixture(t)
	c := f.useClock()
	f.logOpts.Now, f.logOpts.ClockTrust = c.Now, time.Hour
	ops := f.target("ops", `{"breaker":{"enabled":false},"retry":{"schedule":["168h"],"maxAttempts":9}}`, func(targets.Delivery) error {
		return targets.StatusError(503, 0)
	})
	f.rule("all", "reading", "ops")
	f.start()
	f.send("reading", "a", "b")
	ops.attempts(t, 2)
	f.parked("ops", 2)
	c.pass(6 * 24 * time.Hour)
	f.send("reading", "c")
	ops.attempts(t, 3)
	f.parked("ops", 3)
	if s, err := f.TargetStatus("ops", true); err != nil || s.State != bridge.TargetActive {
		t.Errorf("when the clock has jumped the target is %s, %v", s.State, err)
	}
	f.stop(time.Second)
	f.start() // which trusts the clock
	defer f.stop(time.Second)
	f.send("reading", "d")
	ops.attempts(t, 4)
	f.parked("ops", 4)
	if s, err := f.TargetStatus("ops", true); err != nil || s.State != bridge.TargetActive {
		t.Errorf("later the target is %s, %v", s.State, err)
	}
}
