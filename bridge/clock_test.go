// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"sync"
	"time"
)

// clock is a clock that a test moves. Lanes look at it when they are woken, so moving it wakes them.
type clock struct {
	mu  sync.Mutex // guards all below
	now time.Time
}

// useClock gives a fixture that was not started a clock of its own.
func (f *fixture) useClock() *clock {
	c := &clock{now: time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)}
	f.opts.Now = c.Now
	return c
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// pass moves the clock by d and wakes nobody.
func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func (c *clock) advance(f *fixture, d time.Duration) {
	c.pass(d)
	f.WakeLanes()
}
