// SPDX-License-Identifier: Apache-2.0

package mqttgw

import "slices"

// A subscription may ask for the latest first: while its session is behind in a bus, a new QoS 1 message is sent at once,
// and what is older drains behind it. What was sent ahead is remembered in runs of sequences, so that the reading of the
// log passes over it. QoS 0 messages never wait, and QoS 2 messages always keep their order, because what was sent exactly
// once is known by one number.

// span is a run of sequences, both included: every message in it that matches a subscription with the latest first was
// sent.
type span struct{ from, to uint64 }

// maxSpans bounds the runs of a position. A message that would begin one more waits for its turn.
const maxSpans = 64

// sentAhead reports whether a message was sent before its turn.
func (p *position) sentAhead(seq uint64) bool {
	return slices.ContainsFunc(p.ahead, func(s span) bool { return s.from <= seq && seq <= s.to })
}

// mayRun reports whether a message can be remembered as sent ahead.
func (p *position) mayRun() bool {
	if next := p.next(); len(p.ahead) > 0 && p.ahead[0].to < next {
		p.ahead = slices.DeleteFunc(p.ahead, func(s span) bool { return s.to < next })
	}
	return p.running || len(p.ahead) < maxSpans
}

// run remembers a message as sent ahead.
func (p *position) run(seq uint64) {
	if p.running && len(p.ahead) > 0 {
		p.ahead[len(p.ahead)-1].to = seq
		return
	}
	p.ahead, p.running = append(p.ahead, span{seq, seq}), true
}

// forgetAhead lets what was sent ahead come once more in its turn.
func (p *position) forgetAhead() { p.ahead, p.running = nil, false }

// relatest notes whether a subscription asks for the latest first, after a change of subscriptions. What was sent ahead is
// forgotten: the new ones may take what the old ones did not. mu is held.
func (s *session) relatest() {
	s.latest = slices.ContainsFunc(s.subs, func(sub *subscription) bool { return sub.latest && sub.group == nil })
	for i := range s.at {
		s.at[i].forgetAhead()
	}
}

// halves are how many messages a session with the latest first may have in flight of new ones and of older ones. mu is held.
func (s *session) halves() (ahead, behind int) {
	room := s.maxFlying - s.reserve()
	return (room + 1) / 2, max(1, room/2)
}

// aheads counts the messages in flight that were sent ahead. mu is held.
func (s *session) aheads() (n int) {
	for i := range s.flying {
		if s.flying[i].ahead {
			n++
		}
	}
	return n
}

// mayOvertake reports whether a message that the session would have to wait for can be sent at once. p is its position.
// The session's mu and mu are held.
func (c *conn) mayOvertake(p *position, m *message, h *hit, qos byte) bool {
	s := c.session
	if !h.latest || qos != 1 || m.urgent() || s.resends > 0 || s.maxFlying-s.reserve() < 2 || !c.hasRoom(laneUp) {
		return false
	}
	most, _ := s.halves()
	return p.mayRun() && s.aheads() < most && !s.heldBack(m.feed, m.seq)
}

// overtake sends a message before its turn. The session's mu and mu are held.
func (c *conn) overtake(p *position, m *message, h *hit) {
	p.run(m.seq)
	if s := c.session; c.launch(m, h, 1, nil) {
		s.flying[len(s.flying)-1].ahead = true
	}
}

// hasRoomBehind is hasRoom for a message of a bus that is sent in its turn after it had to wait: new ones keep their half.
// The session's mu and mu are held.
func (c *conn) hasRoomBehind(l lane) bool {
	if s := c.session; s.latest && l == laneUp {
		if _, most := s.halves(); len(s.flying)-s.downs-s.aheads() >= most {
			return false
		}
	}
	return c.hasRoom(l)
}
