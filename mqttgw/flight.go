// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"slices"

	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// stage is how far the delivery of a message with QoS 1 or 2 has come.
type stage byte

const (
	stageQoS1     stage = iota // PUBACK is awaited
	stageQoS2                  // PUBREC is awaited
	stageReleased              // PUBCOMP is awaited
)

// flight is a QoS 1 or 2 message that awaits its acknowledgement.
type flight struct {
	feed   *feed // nil: of a retained message, from a bus that is not served any more
	seq    uint64
	group  *group // whose message it is; nil = the session's own
	id     uint16
	stage  stage
	resend bool // was sent on an earlier connection, and not on this one yet
	ahead  bool // it was sent before its turn
	stored bool // it is a retained message: its topic is in session.topics

	command bool   // to this device alone: no position speaks of it
	order   *order // of a command that is not final yet
}

// down reports whether the message is one of DOWN.
func (f *flight) down() bool { return f.feed != nil && f.feed.lane == laneDown }

// takeOff gives a message a packet id and puts it in flight.
func (s *session) takeOff(f flight) (id uint16) {
	id = s.lastID
	for {
		id++
		if id == 0 {
			id = 1
		}
		if s.flightOf(id) == nil {
			break
		}
	}
	s.lastID, f.id = id, id
	s.enter(f)
	return id
}

// resendsFirst reports whether a message of a lane has to wait for those that are to be sent again: one of DOWN waits for
// those of DOWN only. mu is held.
func (s *session) resendsFirst(l lane) bool {
	return s.resends > 0 && (l == laneUp || slices.ContainsFunc(s.flying, func(f flight) bool { return f.resend && f.down() }))
}

// enter puts a message in flight.
func (s *session) enter(f flight) {
	s.flying = append(s.flying, f)
	if f.down() {
		s.downs++
	}
}

// flightOf returns the message with a packet id; nil when there is none.
func (s *session) flightOf(id uint16) *flight {
	for i := range s.flying {
		if s.flying[i].id == id {
			return &s.flying[i]
		}
	}
	return nil
}

// carries reports whether a message is in flight already.
func (s *session) carries(m *message, gr *group) bool {
	return slices.ContainsFunc(s.flying, func(f flight) bool { return f.seq == m.seq && f.feed == m.feed && f.group == gr && !f.stored })
}

// land takes a message out of flight.
func (s *session) land(id uint16) (f flight, ok bool) {
	i := slices.IndexFunc(s.flying, func(f flight) bool { return f.id == id })
	if i < 0 {
		return flight{}, false
	}
	f = s.flying[i]
	s.flying = slices.Delete(s.flying, i, i+1)
	if f.stored {
		delete(s.topics, id)
	}
	if f.resend {
		s.resends--
	}
	if f.down() {
		s.downs--
	}
	return f, true
}

func (c *conn) takePuback(first byte, body []byte) error {
	var p packet.Ack
	if err := p.Decode(first, body, c.version); err != nil {
		return err
	}
	c.settleFlight(p.PacketID, stageQoS1, p.Code)
	return nil
}

// settleFlight ends a delivery that is at a stage, as the client has said, and lets the writer go on with what waits for
// the room.
func (c *conn) settleFlight(id uint16, at stage, code packet.Reason) {
	s := c.session
	s.mu.Lock()
	f := s.flightOf(id)
	if f == nil || f.stage != at {
		s.mu.Unlock()
		return
	}
	landed, _ := s.land(id)
	s.changed()
	c.g.answered(landed.order, code, nil)
	c.mu.Lock()
	if c.busy() {
		c.startWriter()
	}
	c.mu.Unlock()
	s.mu.Unlock()
	if landed.group != nil {
		landed.group.settled(landed)
	}
}

// takePubrec answers a PUBREC with a PUBREL, after the record says that there will be one.
func (c *conn) takePubrec(first byte, body []byte) error {
	var p packet.Ack
	if err := p.Decode(first, body, c.version); err != nil {
		return err
	}
	if p.Code.Failed() { // the client will not take it: that is its acknowledgement
		c.settleFlight(p.PacketID, stageQoS2, p.Code)
		return nil
	}
	s := c.session
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.flightOf(p.PacketID)
	if f == nil || f.stage == stageQoS1 {
		// Left over from a session of another time.
		c.send(&packet.Ack{Kind: packet.TypePubrel, PacketID: p.PacketID, Code: packet.PacketIDNotFound})
		return nil
	}
	if f.resend {
		f.resend = false
		s.resends--
	}
	if seq := f.seq; f.order != nil { // it is released when that is committed, once
		c.g.answered(f.order, p.Code, func() { s.releaseOrder(p.PacketID, seq) })
		return nil
	}
	c.release(f)
	return nil
}

// release sends PUBREL once it is recorded that it will be. s.mu is held.
func (c *conn) release(f *flight) {
	if f.resend { // not the message again
		f.resend = false
		c.session.resends--
	}
	f.stage, f.order = stageReleased, nil
	release := &packet.Ack{Kind: packet.TypePubrel, PacketID: f.id}
	c.afterRecord(&record{kind: recordFlight, flight: c.session.flightState(f)}, func() { c.send(release) })
}

func (c *conn) takePubcomp(first byte, body []byte) error {
	var p packet.Ack
	if err := p.Decode(first, body, c.version); err != nil {
		return err
	}
	c.settleFlight(p.PacketID, stageReleased, packet.Success)
	return nil
}

// afterRecord runs then once a record of the session is committed; at once for a session that ends with its connection. then must
// not take the session's lock. s.mu is held.
func (c *conn) afterRecord(r *record, then func()) {
	s := c.session
	if !s.durable() {
		then()
		return
	}
	c.mu.Lock()
	c.uncommitted++
	c.mu.Unlock()
	s.record(r, func() {
		c.mu.Lock()
		c.uncommitted--
		c.wake()
		c.mu.Unlock()
		then()
	})
}

// flightState is a flight as it is written down. mu is held.
func (s *session) flightState(f *flight) flightState {
	state := flightState{seq: f.seq, id: f.id, stage: f.stage, command: f.command}
	if f.feed != nil {
		state.feed = f.feed.name
	}
	if f.stored {
		state.topic = s.topics[f.id]
	}
	if f.group != nil {
		state.group = f.group.filter
	}
	return state
}
