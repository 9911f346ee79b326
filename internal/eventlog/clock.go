// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"log/slog"
	"sync"
	"time"
)

// ClockTrust is how long the wall clock must have run evenly before age counts, unless Options.ClockTrust says.
const ClockTrust = 10 * time.Minute

// clockStep is how far the wall clock may part from the monotonic one between two looks: more is a step. Clocks that are slewed, and a
// process that does not get its turn, stay below.
const clockStep = time.Minute

// clock watches whether the wall clock can be trusted: a device without a battery starts in another year, and time that is set
// wrongly for a moment must not cost what is young.
//
// What decides is the monotonic clock, which nobody sets: age counts when the wall clock has gone along with it for a while, also
// after a start, since nobody knows what it did before. The time of the newest event would be no better judge: it came from the
// same clock.
type clock struct {
	now     func() time.Time
	elapsed func() time.Duration // monotonic
	trust   time.Duration
	logger  *slog.Logger

	mu      sync.Mutex    // guards all below
	wall    time.Time     // at the last look
	mono    time.Duration // the same
	since   time.Duration // since when it has run evenly
	stepped bool          // that began with a step, and not with the process
}

func newClock(o Options, logger *slog.Logger) *clock {
	began := time.Now()
	c := &clock{now: o.Now, elapsed: func() time.Duration { return time.Since(began) }, trust: o.ClockTrust, logger: logger}
	if c.trust == 0 {
		c.trust = ClockTrust
	}
	c.wall = c.now().Round(0)
	return c
}

// look compares the clocks. It is called every second, and when somebody asks.
func (c *clock) look() (even time.Duration, stepped bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall, mono := c.now().Round(0), c.elapsed() // without its monotonic part, which would hide a step
	step := wall.Sub(c.wall) - (mono - c.mono)
	c.wall, c.mono = wall, mono
	if step > clockStep || step < -clockStep {
		c.since, c.stepped = mono, true
		c.logger.Warn("the clock was set: nothing is removed for its age until it has run evenly", "step", step.Round(time.Second), "for", c.trust)
	}
	return mono - c.since, c.stepped
}

// trusted reports whether age counts.
func (c *clock) trusted() bool {
	even, _ := c.look()
	return even >= c.trust
}

// ClockStepped reports whether the clock was set, forward or back, such a short time ago that it may be set again: what ends by time
// alone should wait.
func (l *Log) ClockStepped() bool {
	even, stepped := l.clock.look()
	return stepped && even < l.clock.trust
}
