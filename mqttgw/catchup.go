// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"slices"

	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

const (
	scanEntries = 64       // read at a time by a session that is behind
	ownReading  = 256      // entries that it may be behind to read for itself: thousands that return with more would each read all
	catchUpSize = 32 << 10 // outbound bytes after which the writer writes before it catches up further
)

// busy reports whether the writer has something to do beside writing: something is due to the client, and there is room
// for it. The session's mu and mu are held.
func (c *conn) busy() bool { return c.busyWith(true) }

// busyWith is busy, with or without what shared groups owe.
func (c *conn) busyWith(groups bool) bool {
	s := c.session
	if c.urgentDue() || c.ordersDue() {
		return true
	}
	if s == nil || s.conn != c || c.ended || c.why != nil || c.out.broken || c.full(laneUp) {
		return false
	}
	if s.resends > 0 {
		return c.mayResend()
	}
	return len(s.scans) > 0 && c.mayScan() || c.hasRoom(laneUp) && (s.waits() != nil && c.hasRoomBehind(laneUp) || groups && s.owed())
}

// urgentDue reports whether something of DOWN is due to the client, and there is room for it. The session's mu and mu are
// held.
func (c *conn) urgentDue() bool {
	s := c.session
	if s == nil || len(s.at) == 0 || s.at[0].feed.lane != laneDown {
		return false
	}
	p := &s.at[0]
	return s.conn == c && !c.ended && c.why == nil && !c.out.broken && p.lagging() && !p.riding && c.hasRoom(laneDown) && !s.resendsFirst(laneDown)
}

// mayResend reports whether what was in flight on an earlier connection may be sent again: the new client may take fewer
// at once. The session's mu is held.
func (c *conn) mayResend() bool {
	s := c.session
	return len(s.flying)-s.resends < s.maxFlying
}

// mayScan reports whether the first retained scan can go on. The session's mu is held.
func (c *conn) mayScan() bool {
	return c.session.scans[0].sub.qos == 0 || c.hasRoom(laneUp)
}

// owed reports whether a shared group waits for a member with room. mu is held.
func (s *session) owed() bool {
	for _, sub := range s.subs {
		if sub.group != nil && sub.group.lags.Load() {
			return true
		}
	}
	return false
}

// catchUp queues what the session is behind with. It is called by the writer, without locks, and returns when there is
// nothing more, no room, or enough for one write. stuck is true when what is left, if anything, is a shared group's that
// has another writer, or no member with room.
func (c *conn) catchUp() (stuck bool) {
	s := c.session
	for {
		s.mu.Lock()
		c.mu.Lock()
		orders, urgent := c.ordersDue(), c.urgentDue()
		due := orders || urgent || c.busy() && c.out.size < catchUpSize
		resend, scan := s.resends > 0, len(s.scans) > 0 && due && c.mayScan()
		var behind *feed
		if p := s.waits(); p != nil && c.hasRoomBehind(laneUp) {
			behind = p.feed
		}
		var groups []*group
		if due && !resend && !scan && behind == nil {
			for _, sub := range s.subs {
				if sub.group != nil && sub.group.lags.Load() {
					groups = append(groups, sub.group)
				}
			}
		}
		c.mu.Unlock()
		s.mu.Unlock()
		var err error
		switch {
		case !due:
			return false
		case orders:
			c.sendOrders()
		case urgent:
			err = c.readOn(s.g.feeds.all()[0])
		case resend:
			err = c.resend()
		case scan:
			err = c.scanRetained()
		case behind != nil:
			err = c.readOn(behind)
		default:
			stuck := true
			for _, gr := range groups {
				if err != nil {
					break
				}
				var more bool
				more, err = gr.feed()
				stuck = stuck && !more
			}
			if err == nil && stuck {
				return true
			}
		}
		if err != nil {
			c.readFailedFor(err)
			return false
		}
	}
}

// readUrgent queues what of DOWN is due. It is called by the writer, without locks.
func (c *conn) readUrgent() {
	if err := c.readOn(c.g.feeds.all()[0]); err != nil {
		c.readFailedFor(err)
	}
}

// readFailedFor ends the connection because its messages cannot be read.
func (c *conn) readFailedFor(err error) {
	if c.g.life.Err() == nil {
		c.g.log.Warn("read for a subscriber", "clientId", c.key.clientID, "err", err)
	}
	c.end(packet.UnspecifiedError)
}

// resend sends the first message again that was in flight when the last connection was lost, one of DOWN before others: same id, DUP, or PUBREL
// where PUBREC had come (MQTT-4.4.0-1).
func (c *conn) resend() error {
	f, topic, more := c.nextAgain()
	if !more {
		return nil
	}
	var m *message
	var err error
	if f.command {
		m, err = c.g.commands.messageOf(f.order, f.seq)
	} else {
		m, err = c.g.messageAt(f.feed, f.seq, topic)
	}
	if err != nil {
		return err
	}
	landed := c.sendAgain(&f, m)
	switch {
	case m != nil || f.command:
	case f.stored:
		c.g.metrics.drop(droppedGone)
		c.g.log.Info("a retained message that was on its way is gone", "clientId", c.key.clientID)
	default:
		f.feed.lost(c.session.key, c.key.clientID, f.seq, 1)
	}
	if landed != nil && landed.group != nil {
		landed.group.settled(*landed)
	}
	return nil
}

// nextAgain returns the first message that is to be sent again, and the topic of a retained one; more is false if there is none. Where
// PUBREC had come it sends PUBREL.
func (c *conn) nextAgain() (f flight, topic string, more bool) {
	s := c.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != c {
		return f, "", false
	}
	i := slices.IndexFunc(s.flying, func(f flight) bool { return f.resend && f.down() })
	if i < 0 {
		i = slices.IndexFunc(s.flying, func(f flight) bool { return f.resend })
	}
	if i < 0 {
		s.resends = 0
		return f, "", false
	}
	if f = s.flying[i]; f.stage == stageReleased {
		s.flying[i].resend = false
		s.resends--
		c.send(&packet.Ack{Kind: packet.TypePubrel, PacketID: f.id})
		return f, "", false
	}
	return f, s.topics[f.id], true
}

// sendAgain sends a message again, unless the flight has gone on meanwhile. m is nil if it is gone. A message that cannot be sent ends
// its flight, which is returned if it was of QoS 1. With QoS 2 the client may know the packet id, and lets go of it after PUBREL.
func (c *conn) sendAgain(f *flight, m *message) (landed *flight) {
	s := c.session
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.flightOf(f.id)
	if now == nil || !now.resend || now.seq != f.seq || now.feed != f.feed || now.stage != f.stage || s.conn != c {
		return nil
	}
	now.resend = false
	s.resends--
	if c.transmitAgain(now, m) {
		return nil
	}
	c.g.dropped(now, m)
	if now.stage == stageQoS2 {
		c.release(now)
		return nil
	}
	taken, _ := s.land(f.id)
	s.changed()
	return &taken
}

// transmitAgain queues a message that is sent again; it reports false if that cannot be. On a connection that has ended nothing
// is queued: its end marks what was in flight anew. The session's mu is held.
func (c *conn) transmitAgain(f *flight, m *message) bool {
	if m == nil || f.command && c.g.tooLate(f) {
		return false
	}
	s := c.session
	h := s.hitOf(m)
	if f.command {
		h, _ = s.hitFor(m.origin.Topic)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	qos := byte(f.stage) + 1
	switch {
	case c.ended:
	case c.tooLarge(m, &h, qos):
		return false
	default:
		c.transmit(m, packet.Head{Dup: true, ID: f.id, IDs: h.ids, Retain: f.stored || h.retain && m.origin.Retain}, qos)
	}
	return true
}

// messageAt returns the message at a sequence of a feed, in the log or retained under a topic, also one that has expired;
// nil when it is gone. The feed may be nil for a retained message.
func (g *Gateway) messageAt(f *feed, seq uint64, topic string) (*message, error) {
	if f != nil {
		r, err := f.read(seq, 1, nil)
		if err != nil {
			return nil, err
		}
		if len(r.entries) == 1 && r.entries[0].Seq == seq {
			m, _ := newMessage(f, r.entries[0], g.now)
			return m, nil
		}
	}
	if topic == "" || g.opts.Retained == nil {
		return nil, nil
	}
	e, ok, err := g.opts.Retained.get(topic)
	if err != nil || !ok || e.Seq != seq || f != nil && e.feed != f.name {
		return nil, err
	}
	m, _ := newMessage(f, e.Entry, g.now)
	return m, nil
}

// hitOf joins the subscriptions that match a message now. mu is held.
func (s *session) hitOf(m *message) hit {
	h := hit{session: s}
	if m == nil {
		return h
	}
	any := false
	for _, sub := range s.subs {
		if sub.group == nil && matches(sub.filter, m.origin.Topic) && sub.suits(m) {
			h.add(sub)
			any = true
		}
	}
	h.barred = any && !s.mayReceive(m.origin.Topic)
	return h
}

// readOn sends what the session has missed in a feed: the message of its first waiting position, or what matches of the next
// batch from behind on. What is far behind, or not in memory any more, it leaves to the shared scan.
func (c *conn) readOn(f *feed) error {
	s := c.session
	s.mu.Lock()
	p := s.at.find(f)
	if p == nil || !p.lagging() {
		s.mu.Unlock()
		return nil
	}
	from, most := p.behind, scanEntries
	waiting := len(p.waiting) > 0
	if waiting {
		from, most = p.waiting[0], 1
	}
	s.mu.Unlock()
	if !waiting && (from < f.tail.Hot() || from+ownReading < f.routed.Load()) {
		f.scan.ride(s)
		return nil
	}
	r, err := f.read(from, most, nil)
	if err != nil {
		return err
	}
	if waiting {
		r.gone = min(r.gone, 1) // what is behind it is told when it is read
	} else {
		f.upToCut(from, &r)
	}
	if r.gone > 0 {
		f.lost(s.key, s.key.clientID, from, r.gone)
	}
	if waiting {
		c.sendWaiting(f, from, r.entries)
	} else {
		c.sendFrom(f, from, r)
	}
	return nil
}

// sendWaiting sends the message of the first waiting position.
func (c *conn) sendWaiting(f *feed, seq uint64, entries []eventlog.Entry) {
	s := c.session
	var m *message
	if len(entries) == 1 && entries[0].Seq == seq {
		m = f.messageOf(entries[0])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.at.find(f)
	if s.conn != c || p == nil || len(p.waiting) == 0 || p.waiting[0] != seq {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.hasRoomBehind(f.lane) || c.ended {
		return
	}
	if m != nil {
		c.redeliver(m)
	}
	p.popWaiting()
	if !p.lagging() {
		s.changed()
	}
}

// sendFrom sends what matches of a batch that was read from behind on, and makes the session live when it has reached
// the tail.
func (c *conn) sendFrom(f *feed, from uint64, r reading) {
	s := c.session
	for _, e := range r.entries {
		if m := f.messageOf(e); m != nil && !c.redeliverOrStop(m) {
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.at.find(f); s.conn == c && p != nil && p.behind >= from {
		s.changed()
		p.arrive(r.next)
	}
}

// redeliverOrStop is redeliver while there is room; without, the session stays behind from m on.
func (c *conn) redeliverOrStop(m *message) bool {
	s := c.session
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.at.find(m.feed)
	if s.conn != c || p == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.hasRoomBehind(m.feed.lane) || c.ended || c.out.broken || s.heldBack(m.feed, m.seq) {
		p.behind = m.seq
		return false
	}
	c.redeliver(m)
	p.behind = m.seq + 1
	return true
}

// redeliver queues a message if it matches with QoS 1 or 2 now, unless it was sent. The session's mu and mu are held.
func (c *conn) redeliver(m *message) {
	s := c.session
	h := s.hitOf(m)
	qos := min(h.qos, m.origin.QoS)
	p := s.at.find(m.feed)
	sent := p != nil && (qos == 2 && m.seq <= p.exact || qos == 1 && h.latest && p.sentAhead(m.seq))
	switch {
	case qos == 0 || sent || s.carries(m, nil):
	case h.barred:
		c.g.metrics.drop(droppedBarred)
	default:
		c.launch(m, &h, qos, nil)
	}
}

// lost says that messages left the log before a subscriber got them.
func (f *feed) lost(k sessionKey, who string, from, n uint64) {
	f.g.lost(k, who, loss{streamState: streamState{feed: f.name, from: from}, n: n})
}

func (g *Gateway) lost(k sessionKey, who string, l loss) {
	g.metrics.drop(droppedGone)
	g.log.Warn("messages left the log before a subscriber got them", "subscriber", who, "bus", l.feed, "from", l.from, "sequences", l.n)
	g.announce(context.WithoutCancel(g.life), k, who, l.feed, l.from, l.n)
}
