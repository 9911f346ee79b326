// SPDX-License-Identifier: Apache-2.0

package mqttgw

import "slices"

// position is where a reader of a feed is: a session or a shared group. It is guarded by its owner's mu.
//
// A reader is live when the tail feeds it. A QoS 1 or 2 message for which there is no room makes it lag: first its
// sequence is kept in waiting, up to a bound; beyond that, behind is where the reader's own reading of the log goes on.
// While it lags, the tail adds sequences, or nothing when behind is set, and a writer catches up as room comes.
type position struct {
	feed     *feed
	waiting  []uint64 // sequences that match, oldest first
	behind   uint64   // 0 = not behind; else every message from this sequence on is still to be looked at
	liveFrom uint64   // sequences below were looked at
	exact    uint64   // the last message that was sent with QoS 2; what is read again up to it was sent
	riding   bool     // the feed's shared scan reads for it
	aboard   bool     // the present pass of the scan is not past it
	running  bool     // nothing has had to wait since the last message that was sent ahead
	ahead    []span   // what was sent before its turn; nil for a reader that does not lag
}

func (p *position) lagging() bool { return p.behind != 0 || len(p.waiting) > 0 }

// next is the first message that is still to be looked at, of a reader that lags.
func (p *position) next() uint64 {
	if len(p.waiting) > 0 {
		return p.waiting[0]
	}
	return p.behind
}

// postpone keeps the position of a message for which there is no room.
func (p *position) postpone(seq uint64, most int) {
	switch {
	case p.behind != 0: // the reading from there will find it
	case len(p.waiting) < most:
		p.waiting = append(p.waiting, seq)
	default:
		p.behind = seq
	}
}

// fold makes one position of all: nothing from the first waiting message on was sent.
func (p *position) fold() {
	if len(p.waiting) > 0 {
		p.behind, p.waiting = p.waiting[0], nil
	}
}

func (p *position) popWaiting() {
	p.waiting = p.waiting[1:]
	if len(p.waiting) == 0 {
		p.waiting = nil
	}
	if !p.lagging() {
		p.forgetAhead()
	}
}

// arrive says that everything below next was looked at. The tail stores its position before it delivers, and delivers under the
// owner's mu: with a position below next it has delivered nothing from next on, and will find the reader live.
func (p *position) arrive(next uint64) {
	if p.feed.tailPos.Load() < next {
		p.behind, p.liveFrom = 0, max(p.liveFrom, next)
		p.forgetAhead()
		return
	}
	p.behind = next
}

// idle reports whether the position says nothing that a reader without one does not do: it is live, and would be live
// after a crash.
func (p *position) idle() bool {
	return !p.lagging() && p.liveFrom <= p.feed.routed.Load()+1 && p.exact <= p.feed.marked.Load()
}

// state is the position as it is written down.
func (p *position) state() streamState {
	s := streamState{feed: p.feed.name, lags: p.lagging(), from: p.liveFrom, exact: p.exact}
	if s.lags {
		s.from, s.ahead = p.next(), slices.Clone(p.ahead)
	}
	return s
}

// restore sets the position from what was written down. A reader that did not lag was live at the checkpoint. What is beyond the end
// of the feed is of a bus that was there before this one.
func (p *position) restore(s streamState) {
	end := p.feed.recovered
	if s.from > end+1 || slices.ContainsFunc(s.ahead, func(a span) bool { return a.to > end }) {
		s.ahead = nil
	}
	s.from, s.exact = min(s.from, end+1), min(s.exact, end)
	*p = position{feed: p.feed, exact: s.exact}
	if s.lags {
		p.behind, p.ahead = max(s.from, 1), s.ahead
		return
	}
	p.liveFrom = s.from
}

// positions are those of one reader, in the order of the feeds: one for each feed in which there is something to say. In a feed without one the
// reader is live. What find and of return is good until the next call of of or tidy.
type positions []position

// find returns the position in a feed; nil when there is none.
func (ps positions) find(f *feed) *position {
	for i := range ps {
		if ps[i].feed == f {
			return &ps[i]
		}
	}
	return nil
}

// of returns the position in a feed, and makes it when there is none.
func (ps *positions) of(f *feed) *position {
	if p := ps.find(f); p != nil {
		return p
	}
	i := 0
	for i < len(*ps) && (*ps)[i].feed.rank < f.rank {
		i++
	}
	*ps = slices.Insert(*ps, i, position{feed: f})
	return &(*ps)[i]
}

// lagElsewhere reports whether the reader lags in another feed.
func (ps positions) lagElsewhere(f *feed) bool {
	for i := range ps {
		if ps[i].feed != f && ps[i].lagging() {
			return true
		}
	}
	return false
}

// lags reports whether the reader lags anywhere.
func (ps positions) lags() bool { return ps.lagElsewhere(nil) }

// lagsIn reports whether the reader lags in a feed.
func (ps positions) lagsIn(f *feed) bool {
	p := ps.find(f)
	return p != nil && p.lagging()
}

func (ps positions) fold() {
	for i := range ps {
		ps[i].fold()
	}
}

// tidy forgets the positions that say nothing any more.
func (ps *positions) tidy() {
	*ps = slices.DeleteFunc(*ps, func(p position) bool { return p.idle() })
	if len(*ps) == 0 {
		*ps = nil
	}
}

// states are the positions as they are written down.
func (ps positions) states() (all []streamState) {
	for i := range ps {
		all = append(all, ps[i].state())
	}
	return all
}
