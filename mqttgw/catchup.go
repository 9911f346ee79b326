// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"errors"

	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

const (
	scanEntries = 64       // read at a time by a session that is behind
	catchUpSize = 32 << 10 // outbound bytes after which the writer writes before it catches up further
)

// busy reports whether the writer has something to do beside writing: something is due to the client, and there is room
// for it. The session's mu and mu are held.
func (c *conn) busy() bool { return c.busyWith(true) }

// busyWith is busy, with or without what shared groups owe.
func (c *conn) busyWith(groups bool) bool {
	s := c.session
	if s == nil || s.conn != c || c.ended || c.why != nil || c.out.broken || c.out.size >= c.g.limits.MaxOutbound {
		return false
	}
	if s.resends > 0 {
		return c.mayResend()
	}
	return len(s.scans) > 0 && c.mayScan() || c.hasRoom() && (s.pos.lagging() && !s.riding || groups && s.owed())
}

// mayResend reports whether what was in flight on an earlier connection may be sent again: the new client may take fewer
// at once. The session's mu is held.
func (c *conn) mayResend() bool {
	s := c.session
	return len(s.flying)-s.resends < s.maxFlying
}

// mayScan reports whether the first retained scan can go on. The session's mu is held.
func (c *conn) mayScan() bool {
	return c.session.scans[0].sub.qos == 0 || c.hasRoom()
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
		due := c.busy() && c.out.size < catchUpSize
		resend, scan := s.resends > 0, len(s.scans) > 0 && due && c.mayScan()
		behind := s.pos.lagging() && !s.riding
		var groups []*group
		if due && !resend && !scan && !behind {
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
		case resend:
			err = c.resend()
		case scan:
			err = c.scanRetained()
		case behind:
			err = c.readOn()
		default:
			for _, gr := range groups {
				if err == nil {
					err = gr.feed()
				}
			}
			if err == nil {
				return true
			}
		}
		if err != nil {
			if c.g.life.Err() == nil {
				c.g.log.Warn("read for a subscriber", "clientId", c.key.clientID, "err", err)
			}
			c.end(packet.UnspecifiedError)
			return false
		}
	}
}

// reading is what was read from the bus.
type reading struct {
	entries []eventlog.Entry
	next    uint64
	gone    uint64 // how many sequences from the first on are not in the log any more
}

// readLog reads from a sequence on, and notices what retention has taken.
func (g *Gateway) readLog(from uint64, most int, dst []eventlog.Entry) (r reading, err error) {
	r.entries, r.next, err = g.opts.Tail.Read(g.life, from, most, dst)
	first := g.opts.Tail.First()
	if errors.Is(err, eventlog.ErrGone) {
		err, r.entries, r.next = nil, dst, max(first, from+1)
	}
	if err != nil {
		return r, err
	}
	if first > from && (len(r.entries) == 0 || r.entries[0].Seq > from) {
		end := first
		if len(r.entries) > 0 {
			end = min(end, r.entries[0].Seq)
		}
		r.gone = end - from
		r.next = max(r.next, end)
	}
	return r, nil
}

// resend sends the first message again that was in flight when the last connection was lost: same id, DUP, or PUBREL
// where PUBREC had come (MQTT-4.4.0-1).
func (c *conn) resend() error {
	s := c.session
	s.mu.Lock()
	i := 0
	for i < len(s.flying) && !s.flying[i].resend {
		i++
	}
	if i == len(s.flying) {
		s.resends = 0
		s.mu.Unlock()
		return nil
	}
	f := s.flying[i]
	if f.stage == stageReleased {
		s.flying[i].resend = false
		s.resends--
		c.send(&packet.Ack{Kind: packet.TypePubrel, PacketID: f.id})
		s.mu.Unlock()
		return nil
	}
	topic := s.topics[f.id]
	s.mu.Unlock()
	m, err := c.g.messageAt(f.seq, topic)
	if err != nil {
		return err
	}
	var landed *flight
	s.mu.Lock()
	c.mu.Lock()
	if now := s.flightOf(f.id); now != nil && now.resend && now.seq == f.seq && s.conn == c && !c.ended {
		now.resend = false
		s.resends--
		h := s.hitOf(m)
		qos := byte(now.stage) + 1
		if m == nil || c.tooLarge(m, &h, qos) {
			taken, _ := s.land(f.id)
			landed = &taken
			s.changed()
		} else {
			c.transmit(m, packet.Head{Dup: true, ID: f.id, IDs: h.ids, Retain: f.stored || h.retain && m.origin.Retain}, qos)
		}
	}
	c.mu.Unlock()
	s.mu.Unlock()
	if m == nil && !f.stored {
		c.g.lost(s.key, s.key.clientID, f.seq, 1)
	}
	if landed != nil && landed.group != nil {
		landed.group.settled(landed.seq)
	}
	return nil
}

// messageAt returns the message at a sequence, in the log or retained under a topic, also one that has expired; nil when
// it is gone.
func (g *Gateway) messageAt(seq uint64, topic string) (*message, error) {
	r, err := g.readLog(seq, 1, nil)
	if err != nil {
		return nil, err
	}
	if len(r.entries) == 1 && r.entries[0].Seq == seq {
		m, _ := newMessage(r.entries[0], g.now)
		return m, nil
	}
	if topic == "" || g.opts.Retained == nil {
		return nil, nil
	}
	e, ok, err := g.opts.Retained.get(topic)
	if err != nil || !ok || e.Seq != seq {
		return nil, err
	}
	m, _ := newMessage(e, g.now)
	return m, nil
}

// hitOf joins the subscriptions that match a message now. mu is held.
func (s *session) hitOf(m *message) hit {
	h := hit{session: s}
	if m == nil {
		return h
	}
	for _, sub := range s.subs {
		if sub.group == nil && matches(sub.filter, m.origin.Topic) && sub.suits(m) {
			h.add(sub)
		}
	}
	return h
}

// readOn sends what the session has missed: the message of its first waiting position, or what matches of the next batch
// from behind on. What is not in memory any more it leaves to the shared scan.
func (c *conn) readOn() error {
	s := c.session
	s.mu.Lock()
	from, most := s.pos.behind, scanEntries
	waiting := len(s.pos.waiting) > 0
	if waiting {
		from, most = s.pos.waiting[0], 1
	}
	s.mu.Unlock()
	if from < c.g.opts.Tail.Hot() && !waiting {
		c.g.scan.ride(s)
		return nil
	}
	r, err := c.g.readLog(from, most, nil)
	if err != nil {
		return err
	}
	if r.gone > 0 {
		c.g.lost(s.key, s.key.clientID, from, r.gone)
	}
	if waiting {
		c.sendWaiting(from, r.entries)
	} else {
		c.sendFrom(from, r.next, r.entries)
	}
	return nil
}

// sendWaiting sends the message of the first waiting position.
func (c *conn) sendWaiting(seq uint64, entries []eventlog.Entry) {
	s := c.session
	var m *message
	if len(entries) == 1 && entries[0].Seq == seq {
		m = c.g.messageOf(entries[0])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != c || len(s.pos.waiting) == 0 || s.pos.waiting[0] != seq {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.hasRoom() || c.ended {
		return
	}
	if m != nil {
		c.redeliver(m)
	}
	s.pos.popWaiting()
	if !s.pos.lagging() {
		s.changed()
	}
}

// sendFrom sends what matches of a batch that was read from behind on, and makes the session live when it has reached
// the tail.
func (c *conn) sendFrom(from, next uint64, entries []eventlog.Entry) {
	s := c.session
	for _, e := range entries {
		if m := c.g.messageOf(e); m != nil && !c.redeliverOrStop(m) {
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == c && s.pos.behind >= from {
		s.arrive(from, next)
	}
}

// arrive says that everything below next was looked at. The tail stores its position before it delivers, and delivers
// under mu: with a position below next it has delivered nothing from next on, and will find the session live. mu is held.
func (s *session) arrive(from, next uint64) {
	s.changed()
	if s.g.tailPos.Load() < next || next <= from {
		s.pos.behind, s.pos.liveFrom = 0, max(s.pos.liveFrom, next)
		return
	}
	s.pos.behind = next
}

// redeliverOrStop is redeliver while there is room; without, the session stays behind from m on.
func (c *conn) redeliverOrStop(m *message) bool {
	s := c.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != c {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.hasRoom() || c.ended || c.out.broken {
		s.pos.behind = m.seq
		return false
	}
	c.redeliver(m)
	s.pos.behind = m.seq + 1
	return true
}

// redeliver queues a message if it matches with QoS 1 or 2 now, unless it was sent. The session's mu and mu are held.
func (c *conn) redeliver(m *message) {
	s := c.session
	h := s.hitOf(m)
	qos := min(h.qos, m.origin.QoS)
	if qos == 0 || qos == 2 && m.seq <= s.pos.exact || s.carries(m.seq, nil) {
		return
	}
	c.launch(m, &h, qos, nil)
}

// lost says that messages left the log before a subscriber got them.
func (g *Gateway) lost(k sessionKey, who string, from, n uint64) {
	g.metrics.drop(droppedGone)
	g.log.Warn("messages left the log before a subscriber got them", "subscriber", who, "from", from, "sequences", n)
	g.announce(context.WithoutCancel(g.life), k, who, from, n)
}
