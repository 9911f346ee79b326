// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"math"
	"time"

	"github.com/rialto-bridge/rialto/targets"
)

// breaker leaves a target alone that fails, and brings it back carefully. It is pure: the caller brings the clock, and
// calls it under a lock.
//
//	closed ── enough attempts in the window, too many failed ──> open, until a time
//	open ──── the time has come ──> one attempt, the probe
//	            failed ─────> open again, twice as long
//	            succeeded ──> recovering: one attempt at the same time, then one more each time as many have succeeded
//	recovering ── as many as the target's concurrency ──> closed
//	              too many failed ──> open again, twice as long; a single failure halves what is allowed
//
// Attempts that began before the breaker last opened say nothing any more.
type breaker struct {
	policy  targets.BreakerPolicy
	state   breakerState
	since   time.Time     // when it last opened; zero if it is closed and was never open
	until   time.Time     // open: no attempt before
	openFor time.Duration // how long it was opened the last time; 0 = it has closed since
	window  window

	term     uint32 // counts the times it opened
	underWay int    // attempts of this term
	limit    int    // recovering: attempts at the same time
	good     int    // recovering: successes since limit was raised
}

type breakerState byte

const (
	breakerClosed     breakerState = iota
	breakerOpen                    // and, from until on, probing
	breakerRecovering              // after a successful probe
)

// verdict is what an attempt says of the target.
type verdict byte

const (
	silent  verdict = iota // nothing: no attempt was made, or it did not get as far as the target
	well                   // the target works, whatever it thinks of the event
	failing                // it does not
)

func (b *breaker) enabled() bool { return b.policy.MinAttempts > 0 }

// set changes the policy and closes the breaker: whoever has changed the target wants to see it tried.
func (b *breaker) set(p targets.BreakerPolicy) {
	*b = breaker{policy: p, term: b.term + 1}
}

// room returns how many attempts may begin now.
func (b *breaker) room(now time.Time) int {
	switch {
	case b.state == breakerClosed:
		return math.MaxInt32
	case b.state == breakerOpen && now.Before(b.until):
		return 0
	case b.state == breakerOpen:
		return max(1-b.underWay, 0)
	}
	return max(b.limit-b.underWay, 0)
}

// resting reports whether no attempt may begin for some time, so that live deliveries had better not wait for it.
func (b *breaker) resting(now time.Time) bool { return b.state == breakerOpen && now.Before(b.until) }

// begin says that an attempt begins, and returns the term to end it with.
func (b *breaker) begin() uint32 {
	b.underWay++
	return b.term
}

// end says what an attempt told of the target. concurrency is the target's own. It reports whether the breaker opened.
func (b *breaker) end(term uint32, v verdict, concurrency int, now time.Time) (opened bool) {
	if term != b.term {
		return false
	}
	b.underWay--
	if v == silent || !b.enabled() {
		return false
	}
	if b.state == breakerOpen { // the probe
		if v == failing {
			b.open(now)
			return true
		}
		b.recover()
		return false
	}
	b.window.add(now, b.policy.Window, v == failing)
	if b.state == breakerRecovering {
		b.ramp(v, concurrency)
	}
	if v != failing {
		return false
	}
	tries, failures := b.window.sum(now, b.policy.Window)
	if tries >= b.policy.MinAttempts && failures*100 >= tries*b.policy.FailurePercent {
		b.open(now)
		return true
	}
	return false
}

// recover lets attempts begin again, one at the same time at first.
func (b *breaker) recover() {
	b.state, b.limit, b.good, b.window = breakerRecovering, 1, 0, window{}
}

func (b *breaker) open(now time.Time) {
	b.openFor = min(max(2*b.openFor, b.policy.Open), b.policy.MaxOpen)
	if b.state == breakerClosed {
		b.since = now
	}
	b.state, b.until = breakerOpen, now.Add(b.openFor)
	b.term++
	b.underWay, b.window = 0, window{}
}

// ramp raises what is allowed by one for each round that succeeded, and halves it for a failure.
func (b *breaker) ramp(v verdict, concurrency int) {
	if v == failing {
		b.limit, b.good = max(b.limit/2, 1), 0
		return
	}
	if b.good++; b.good < b.limit {
		return
	}
	b.limit, b.good = b.limit+1, 0
	if b.limit > concurrency {
		b.state, b.openFor, b.since = breakerClosed, 0, time.Time{}
	}
}

// window counts attempts of the last while, in slots of a tenth of it.
type window struct {
	slots [windowSlots]slot
}

const windowSlots = 10

type slot struct {
	number          int64 // time divided by the length of a slot
	tries, failures int32
}

func (w *window) add(now time.Time, length time.Duration, failed bool) {
	n := now.UnixNano() / int64(length/windowSlots)
	s := &w.slots[n%windowSlots]
	if s.number != n {
		*s = slot{number: n}
	}
	s.tries++
	if failed {
		s.failures++
	}
}

func (w *window) sum(now time.Time, length time.Duration) (tries, failures int) {
	n := now.UnixNano() / int64(length/windowSlots)
	for _, s := range w.slots {
		if s.number > n-windowSlots && s.number <= n {
			tries += int(s.tries)
			failures += int(s.failures)
		}
	}
	return tries, failures
}
