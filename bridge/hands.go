// SPDX-License-Identifier: Apache-2.0

package bridge

import "sync/atomic"

// idleHands is how many goroutines wait for the next lane that needs a worker. At a steady rate a lane has a worker for each
// event, for as long as its attempt takes: one that is kept has a stack that has grown already, which is cheaper than to make
// a goroutine and let it grow (5 % of what an event costs).
const idleHands = 64

// hands are the goroutines of a bridge that wait for work at any lane.
type hands struct {
	lanes chan *lane // taken by one that waits
	idle  atomic.Int32
}

func newHands() hands { return hands{lanes: make(chan *lane)} }

// employ gives a lane one more worker. It does not block.
func (b *Bridge) employ(l *lane) {
	select {
	case b.hands.lanes <- l:
	default:
		b.wg.Add(1)
		go b.serve(l)
	}
}

// serve is a worker's goroutine: it works for a lane, and then for whichever needs one, unless enough are waiting already.
func (b *Bridge) serve(l *lane) {
	defer b.wg.Done()
	for l != nil {
		l.work()
		l = b.nextLane()
	}
}

// nextLane waits until a lane needs a worker; nil if this one is not needed any more.
func (b *Bridge) nextLane() (l *lane) {
	defer b.hands.idle.Add(-1)
	if b.hands.idle.Add(1) > idleHands {
		return nil
	}
	select {
	case l = <-b.hands.lanes:
	case <-b.ctx.Done():
	}
	return l
}
