// SPDX-License-Identifier: Apache-2.0

package bridge

import "time"

// patience says how long to wait before something is tried again that fails and fails: twice as long each time, up to half a
// minute. Whoever waits like that says so once, and from then on every few minutes. It is pure; the zero value begins.
type patience struct {
	wait time.Duration
	said time.Time
}

const (
	firstWait = time.Second
	mostWait  = 30 * time.Second
	sayAgain  = 5 * time.Minute
)

// failed is called after a failure, and returns how long to wait, and whether to say something.
func (p *patience) failed(now time.Time) (wait time.Duration, say bool) {
	p.wait = min(max(2*p.wait, firstWait), mostWait)
	if say = p.said.IsZero() || now.Sub(p.said) >= sayAgain; say {
		p.said = now
	}
	return p.wait, say
}

// failing reports whether the last try has failed.
func (p *patience) failing() bool { return p.wait > 0 }

// worked is called after a success.
func (p *patience) worked() { *p = patience{} }
