// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"errors"
	"mime"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// message is an event as MQTT subscribers see it. Its frames are made once for each version and QoS that needs them.
type message struct {
	seq     uint64
	origin  *event.Origin
	props   packet.Properties
	payload []byte
	frames  [2][2]*packet.Frame // by version (0 = 3.1.1) and QoS
}

// newMessage returns the message of a log entry; nil for an event that did not come over MQTT, and for one that has
// expired, for which expired is true.
func newMessage(e eventlog.Entry, now func() time.Time) (m *message, expired bool) {
	o := e.Record.MQTT
	if o == nil || len(o.Topic) == 0 || len(o.Topic) > 65535 {
		return nil, false
	}
	m = &message{seq: e.Seq, origin: o, props: o.Properties, payload: e.Record.Event.Data}
	if expiry, ok := m.props.Find(packet.MessageExpiry); ok {
		gone := max(0, now().Sub(e.Record.Received)/time.Second)
		if time.Duration(expiry.Int) <= gone {
			return nil, true
		}
		if gone > 0 {
			m.props = withExpiry(m.props, expiry.Int-uint32(gone))
		}
	}
	if !e.Record.Minted && structured(o) {
		m.payload = event.AppendJSON(nil, &e.Record.Event) // as it was published, in our own spelling
	}
	return m, false
}

// structured reports whether the payload was a whole CloudEvent in JSON. 3.1.1 has no other way to publish one.
func structured(o *event.Origin) bool {
	if o.Version < byte(packet.V5) {
		return true
	}
	contentType := packet.Properties(o.Properties).Bytes(packet.ContentType)
	if len(contentType) == 0 {
		return false
	}
	mediaType, _, err := mime.ParseMediaType(string(contentType))
	return err == nil && mediaType == "application/cloudevents+json"
}

// withExpiry returns a copy of ps with another message expiry (MQTT-3.3.2-6).
func withExpiry(ps packet.Properties, seconds uint32) packet.Properties {
	out := make(packet.Properties, 0, len(ps))
	for p := range ps.All() {
		if p.ID == packet.MessageExpiry {
			out = out.AppendInt(packet.MessageExpiry, seconds)
		} else {
			out = append(out, p.Raw...)
		}
	}
	return out
}

func (m *message) frame(v packet.Version, qos byte) *packet.Frame {
	i := 0
	if v == packet.V5 {
		i = 1
	}
	f := m.frames[i][qos]
	if f == nil {
		f = packet.NewFrame(v, qos, m.origin.Topic, m.props, len(m.payload))
		m.frames[i][qos] = f
	}
	return f
}

// hit is what all matching subscriptions of one session make of a message: one PUBLISH with the highest QoS and every
// subscription identifier (MQTT-3.3.4-2 to -4).
type hit struct {
	conn   *conn
	qos    byte
	retain bool
	ids    packet.Properties
}

// add joins a subscription to the hit.
func (h *hit) add(s *subscription) {
	h.qos = max(h.qos, s.qos)
	h.retain = h.retain || s.retain
	if s.id == nil {
		return
	}
	if h.ids == nil {
		h.ids = s.id // shared; the capacity below keeps it unchanged
		return
	}
	h.ids = append(h.ids[:len(h.ids):len(h.ids)], s.id...)
}

// suits reports whether a subscription takes a message that matches its filter. What the client may not receive, because
// its rights say so or have changed since SUBSCRIBE, it does not get.
func (s *subscription) suits(m *message) bool {
	own := s.noLocal && m.origin.Client == s.conn.key.clientID && m.origin.Principal == s.conn.key.principal
	return s.since < m.seq && !own && s.conn.rights.Load().mayReceive(m.origin.Topic)
}

// hasRoom reports whether another QoS 1 message can be sent. mu is held.
func (c *conn) hasRoom() bool {
	return len(c.session.flying) < c.session.maxFlying && c.out.size < c.g.limits.MaxOutbound
}

// deliver is called by the tail. It queues the message, or leaves it for later, or drops it; it never blocks. It reports
// whether the caller has to start a writer, for which it has the place reserved.
func (c *conn) deliver(m *message, h *hit) (start bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.session
	if s.ended || c.out.broken {
		return false
	}
	switch qos := min(h.qos, m.origin.QoS); {
	case qos == 0:
		if c.out.size >= c.g.limits.MaxOutbound {
			c.g.metrics.drop(droppedSlow)
			return false
		}
		c.put(m, h, 0)
	case m.seq < s.liveFrom:
		return false
	case s.lagging() || !c.hasRoom():
		s.postpone(m.seq, c.g.limits.MaxWaiting)
		if !c.behindWithRoom() {
			return false
		}
	default:
		c.put(m, h, 1)
	}
	start = !c.out.writing
	c.out.writing = true
	return start
}

// put queues a PUBLISH. mu is held.
func (c *conn) put(m *message, h *hit, qos byte) {
	f := m.frame(c.version, qos)
	ids := h.ids
	if c.version != packet.V5 {
		ids = nil
	}
	size := f.Size(ids)
	if size > c.maxPacket {
		c.g.metrics.drop(droppedTooLarge) // as if it had been sent (MQTT-3.1.2-25)
		return
	}
	var id uint16
	if qos > 0 {
		id = c.session.takeOff(m.seq)
	}
	c.out.grow()
	c.out.chunk = f.Append(c.out.chunk, h.retain && m.origin.Retain, id, ids)
	if len(m.payload) >= sharedFrom {
		c.out.share(m.payload)
	} else {
		c.out.chunk = append(c.out.chunk, m.payload...)
	}
	c.out.size += size
	c.g.metrics.deliveries[qos].Inc()
}

// behindWithRoom reports whether the writer should catch up. mu is held.
func (c *conn) behindWithRoom() bool {
	return c.session.lagging() && c.hasRoom() && !c.session.ended && c.why == nil && !c.out.broken
}

const (
	scanEntries = 64       // read at a time by a session that is behind
	catchUpSize = 32 << 10 // outbound bytes after which the writer writes before it catches up further
)

// catchUp queues messages that the session is behind with. It is called by the writer, without mu.
func (c *conn) catchUp() {
	var entries []eventlog.Entry
	for {
		c.mu.Lock()
		if !c.behindWithRoom() || c.out.size >= catchUpSize {
			c.mu.Unlock()
			return
		}
		from, most := c.session.behind, scanEntries
		waiting := len(c.session.waiting) > 0
		if waiting {
			from, most = c.session.waiting[0], 1
		}
		c.mu.Unlock()

		var next uint64
		var err error
		entries, next, err = c.g.opts.Tail.Read(c.g.life, from, most, entries[:0])
		switch {
		case errors.Is(err, eventlog.ErrGone):
			c.skipGone(waiting)
		case err != nil:
			if c.g.life.Err() == nil {
				c.g.log.Warn("read for a slow subscriber", "clientId", c.key.clientID, "err", err)
			}
			c.end(packet.UnspecifiedError)
			return
		case waiting:
			c.catchUpOne(from, entries)
		default:
			c.catchUpFrom(from, next, entries)
		}
		clear(entries) // do not hold the events
	}
}

// skipGone passes over what retention has taken away before the client could be sent it.
func (c *conn) skipGone(waiting bool) {
	c.g.metrics.drop(droppedGone)
	c.g.log.Warn("messages left the log before a slow subscriber got them", "clientId", c.key.clientID)
	first := c.g.opts.Tail.First()
	c.mu.Lock()
	defer c.mu.Unlock()
	if waiting {
		c.session.popWaiting()
	} else {
		c.session.behind = max(c.session.behind+1, first)
	}
}

func (s *session) popWaiting() {
	s.waiting = s.waiting[1:]
	if len(s.waiting) == 0 {
		s.waiting = nil
	}
}

// catchUpOne sends the message of the first waiting position.
func (c *conn) catchUpOne(seq uint64, entries []eventlog.Entry) {
	var m *message
	if len(entries) == 1 && entries[0].Seq == seq {
		m = c.messageOf(entries[0])
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if m != nil {
		c.redeliver(m)
	}
	c.session.popWaiting()
}

// catchUpFrom sends what matches of a batch that was read from behind on, and makes the session live when it has reached
// the tail.
func (c *conn) catchUpFrom(from, next uint64, entries []eventlog.Entry) {
	for _, e := range entries {
		if m := c.messageOf(e); m != nil && !c.redeliverOrStop(m) {
			return
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// The tail stores its position before it delivers, and delivers under mu: with a position below next it has delivered
	// nothing from next on, and will find the session live.
	if c.g.tailPos.Load() < next || next <= from {
		c.session.behind, c.session.liveFrom = 0, next
		return
	}
	c.session.behind = next
}

// redeliverOrStop is redeliver while there is room; without, the session stays behind from m on.
func (c *conn) redeliverOrStop(m *message) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.hasRoom() {
		c.session.behind = m.seq
		return false
	}
	c.redeliver(m)
	return true
}

func (c *conn) messageOf(e eventlog.Entry) *message {
	m, expired := newMessage(e, c.g.now)
	if expired {
		c.g.metrics.drop(droppedExpired)
	}
	return m
}

// redeliver queues a message if it matches with QoS 1 now. mu is held.
func (c *conn) redeliver(m *message) {
	h := hit{conn: c}
	found := false
	for _, s := range c.session.subs {
		if matches(s.filter, m.origin.Topic) && s.suits(m) {
			h.add(s)
			found = true
		}
	}
	if found && min(h.qos, m.origin.QoS) > 0 {
		c.put(m, &h, 1)
	}
}
