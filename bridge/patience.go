// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"sync"
	"sync/atomic"
	"time"
)

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

// unread is the events of a path that could not be read when somebody last tried: each is waited for with a patience of its own, and
// all together are spoken of once, and from then on every few minutes. For any number of goroutines; the zero value is ready.
type unread struct {
	any atomic.Bool // there are some

	mu   sync.Mutex // guards all below
	of   map[uint64]patience
	said time.Time
}

// unreadMost is how many events are remembered. Others wait for as long as any.
const unreadMost = 1000

// failed is called when an event could not be read, and returns how long to wait, and whether to say something.
func (u *unread) failed(seq uint64, now time.Time) (wait time.Duration, say bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if say = u.said.IsZero() || now.Sub(u.said) >= sayAgain; say {
		u.said = now
	}
	p, known := u.of[seq]
	if !known && len(u.of) >= unreadMost {
		return mostWait, say
	}
	if u.of == nil {
		u.of = make(map[uint64]patience)
	}
	wait, _ = p.failed(now)
	u.of[seq] = p
	u.any.Store(true)
	return wait, say
}

// worked is called when an event was read.
func (u *unread) worked(seq uint64) {
	if !u.any.Load() {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.of, seq)
	u.any.Store(len(u.of) > 0)
}
