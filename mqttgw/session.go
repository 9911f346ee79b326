// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"slices"

	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// session is what a client is subscribed to and where its deliveries are. It is a small record with positions in the
// log: messages are not kept in it. Guarded by the connection's mu, apart from the last two fields.
//
// A session is live when the tail feeds it. A QoS 1 message for which there is no room (in flight or outbound bytes)
// makes it lag: first its position is kept in waiting, up to a bound; beyond that, behind is where the session's own
// reading of the log goes on. While it lags, the tail adds positions, or nothing when behind is set, and the writer
// catches up as room comes. QoS 0 messages are live always: sent or dropped.
type session struct {
	ended bool // nothing is queued any more

	subs []*subscription // one for each filter; few, so that a map does not pay

	flying    []flight // QoS 1 without PUBACK, oldest first
	maxFlying int
	lastID    uint16

	waiting  []uint64 // sequences that match, oldest first
	behind   uint64   // 0 = not behind; else every message from this sequence on is still to be looked at
	liveFrom uint64   // sequences below were looked at while catching up

	// The tail's, used while it matches one event.
	mark uint64 // the event that hit belongs to
	hit  int    // index in the tail's hits
}

// flight is a QoS 1 message that awaits its PUBACK.
type flight struct {
	seq uint64
	id  uint16
}

func (s *session) init(l *Limits, receiveMaximum int) {
	s.maxFlying = min(l.MaxInFlight, receiveMaximum)
}

// find returns the index of a filter's subscription, or -1.
func (s *session) find(filter string) int {
	return slices.IndexFunc(s.subs, func(sub *subscription) bool { return sub.filter == filter })
}

func (s *session) lagging() bool { return s.behind != 0 || len(s.waiting) > 0 }

// takeOff gives a message a packet id and puts it in flight.
func (s *session) takeOff(seq uint64) (id uint16) {
	id = s.lastID
	for {
		id++
		if id == 0 {
			id = 1
		}
		if !s.inUse(id) {
			break
		}
	}
	s.lastID = id
	s.flying = append(s.flying, flight{seq, id})
	return id
}

func (s *session) inUse(id uint16) bool {
	return slices.ContainsFunc(s.flying, func(f flight) bool { return f.id == id })
}

// land takes a message out of flight and reports whether it was there.
func (s *session) land(id uint16) bool {
	for i := range s.flying {
		if s.flying[i].id == id {
			copy(s.flying[i:], s.flying[i+1:])
			s.flying = s.flying[:len(s.flying)-1]
			return true
		}
	}
	return false
}

// postpone keeps the position of a message for which there is no room.
func (s *session) postpone(seq uint64, most int) {
	switch {
	case s.behind != 0: // the reading from there will find it
	case len(s.waiting) < most:
		s.waiting = append(s.waiting, seq)
	default:
		s.behind = seq
	}
}

func (c *conn) takePuback(first byte, body []byte) error {
	var p packet.Ack
	if err := p.Decode(first, body, c.version); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session.land(p.PacketID)
	if c.behindWithRoom() {
		c.startWriter()
	}
	return nil
}
