// SPDX-License-Identifier: Apache-2.0

package region

import (
	"sync"
	"time"
)

// paceSlack is how much of what was not used may be made good for: waking up takes its time.
const paceSlack = 50 * time.Millisecond

// pace holds what is sent to a rate that several share. It goes by the monotonic clock: a clock that is set changes nothing.
type pace struct {
	mu   sync.Mutex // guards below
	rate int64      // bytes a second; 0 = no limit
	free time.Time  // when what was sent is paid for
}

// set changes the rate.
func (p *pace) set(rate int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate, p.free = rate, time.Time{}
}

// limit returns the rate.
func (p *pace) limit() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rate
}

// wait returns how long nothing may be sent.
func (p *pace) wait(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(0, p.free.Sub(now))
}

// spend notes what was sent.
func (p *pace) spend(now time.Time, bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rate <= 0 {
		return
	}
	if slack := now.Add(-paceSlack); p.free.Before(slack) {
		p.free = slack
	}
	p.free = p.free.Add(time.Duration(float64(bytes) / float64(p.rate) * float64(time.Second)))
}
