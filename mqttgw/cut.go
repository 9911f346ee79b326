// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// cuts are the moments at which changes of topic mappings came into force, the last few of them: in every feed what the old
// mappings made is before the cut, and what the new ones make is behind. A change may move a topic from one bus to another,
// so nobody gets what is behind a cut in one feed before what is before it in the others: not from the tails, which wait
// for each other at a cut, and not while a session catches up.
type cuts struct {
	list atomic.Pointer[[]cut] // oldest first; nil = none
}

// cut is one of them. Immutable.
type cut struct {
	moment
	made uint64 // which mappings it has put in force, see Mappings; notInForce = none, as far as is known
}

const (
	notInForce = 0

	maxCuts = 32
	// cutTime is how long a tail waits at a cut for one that fails: a bus that cannot be read must not keep the others from their
	// subscribers.
	cutTime = 2 * time.Second
)

// add adds a cut. One goroutine at a time does so.
func (c *cuts) add(cut cut) {
	list := append(slices.Clone(c.all()), cut)
	list = list[max(0, len(list)-maxCuts):]
	c.list.Store(&list)
}

func (c *cuts) all() []cut {
	if list := c.list.Load(); list != nil {
		return *list
	}
	return nil
}

// state is the cut as it is written down.
func (c cut) state() cutState { return cutState{c.moment.state(), c.made} }

// cutHere makes a cut at the ends of the feeds, if the mappings are others than at the last one, and returns when it is written down:
// a start that did not find it would make one behind what the new mappings have made already. Which mappings it puts in force is
// written down after that: if it fails, they may never be. The caller keeps publishes back meanwhile.
func (g *Gateway) cutHere(ctx context.Context, made uint64) error {
	if all := g.cuts.all(); len(all) > 0 && all[len(all)-1].made == made {
		return nil
	}
	here := slices.DeleteFunc(g.ends(), func(k mark) bool { return k.feed.lane == laneDown }) // which waits for nobody
	if g.recorder != nil {
		done := make(chan struct{})
		g.recorder.add(&record{kind: recordCut, cut: cut{here, notInForce}.state()}, func() { close(done) })
		if err := g.recorder.await(ctx, done); err != nil {
			return fmt.Errorf("write down a change of topic mappings: %w", err)
		}
		g.recorder.add(&record{kind: recordCut, cut: cut{here, made}.state()}, nil)
	}
	g.cuts.add(cut{here, made})
	for _, k := range here {
		k.feed.cut(here)
	}
	return nil
}

// restoreCut puts a cut in force that a start has found. Where a tail begins behind it, it has passed it.
func (g *Gateway) restoreCut(c cut) {
	g.cuts.add(c)
	for _, k := range c.moment {
		if k.seq >= k.feed.routed.Load() {
			k.feed.cut(c.moment)
		}
	}
}

// cut has the tail wait at a cut.
func (f *feed) cut(at moment) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cuts = append(f.cuts, at)
}

// toCut waits until the tail may deliver from a sequence on, and returns how much, most at most. Cuts are in the same
// order in all feeds, so that no two tails wait for each other.
func (f *feed) toCut(ctx context.Context, from uint64, most int) (int, error) {
	for {
		f.mu.Lock()
		if len(f.cuts) == 0 {
			f.mu.Unlock()
			return most, nil
		}
		cut := f.cuts[0]
		f.mu.Unlock()
		if at := cut.at(f); from <= at {
			return int(min(uint64(most), at-from+1)), nil //nolint:gosec // most is small
		}
		f.failing.Store(false) // it waits
		for passed := false; !passed; {
			wait, cancel := context.WithTimeout(ctx, cutTime)
			err := f.g.awaitTails(wait, cut)
			cancel()
			if ctx.Err() != nil {
				return 0, context.Cause(ctx)
			}
			if passed = err == nil || cut.fails(); err != nil && passed {
				f.g.log.Warn("messages of a topic that has moved may be out of order: another bus is not read", "bus", f.name)
			}
		}
		f.mu.Lock()
		f.cuts = f.cuts[1:]
		f.mu.Unlock()
	}
}

// fails reports whether the tails that have not come to the moment cannot read their feeds.
func (m moment) fails() bool {
	return !slices.ContainsFunc(m, func(k mark) bool { return k.feed.routed.Load() < k.seq && !k.feed.failing.Load() })
}

// upToCut leaves out of what was read from a sequence on what is behind a cut that the tail has not passed: there a subscriber is
// live, and goes on when the tails of the other feeds have come to the cut too. The tail may be some events beyond, which
// have come while the cut was made: those are nobody's who publishes to a topic.
func (f *feed) upToCut(from uint64, r *reading) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.cuts) == 0 {
		return
	}
	r.next = min(r.next, max(from, f.cuts[0].at(f)+1, f.tailPos.Load()+1))
	r.gone = min(r.gone, r.next-from)
	r.entries = slices.DeleteFunc(r.entries, func(e eventlog.Entry) bool { return e.Seq >= r.next })
}

// heldBack reports whether a message has to wait because the session lags before a cut, in another feed, that the message
// is behind. mu is held.
func (s *session) heldBack(f *feed, seq uint64) bool {
	if !s.at.lagElsewhere(f) || f.lane == laneDown {
		return false
	}
	for _, cut := range s.g.cuts.all() {
		if seq <= cut.at(f) {
			continue
		}
		for i := range s.at {
			if p := &s.at[i]; p.feed != f && p.lagging() && p.next() <= cut.at(p.feed) {
				return true
			}
		}
	}
	return false
}
