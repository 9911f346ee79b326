// SPDX-License-Identifier: Apache-2.0

package mqttgw

// position is where a reader of the bus is: a session or a shared group. It is guarded by its owner's mu.
//
// A reader is live when the tail feeds it. A QoS 1 or 2 message for which there is no room makes it lag: first its
// sequence is kept in waiting, up to a bound; beyond that, behind is where the reader's own reading of the log goes on.
// While it lags, the tail adds sequences, or nothing when behind is set, and a writer catches up as room comes.
type position struct {
	waiting  []uint64 // sequences that match, oldest first
	behind   uint64   // 0 = not behind; else every message from this sequence on is still to be looked at
	liveFrom uint64   // sequences below were looked at
	exact    uint64   // the last message that was sent with QoS 2; what is read again up to it was sent
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
}

// state is the position as it is written down.
func (p *position) state() streamState {
	s := streamState{lags: p.lagging(), from: p.liveFrom, exact: p.exact}
	if s.lags {
		s.from = p.next()
	}
	return s
}

// restore sets the position from what was written down. A reader that did not lag was live at the checkpoint.
func (p *position) restore(s streamState, checkpoint uint64) {
	*p = position{exact: s.exact}
	if s.lags {
		p.behind = max(s.from, 1)
		return
	}
	p.liveFrom = max(s.from, checkpoint+1)
}
