// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"mime"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// message is an event as MQTT subscribers see it. Its frames are made once for each version and QoS that needs them.
type message struct {
	feed    *feed
	seq     uint64
	origin  *event.Origin
	props   packet.Properties
	payload []byte
	frames  [2][3]*packet.Frame // by version (0 = 3.1.1) and QoS
}

// newMessage returns the message of an entry of a feed; nil for an event that did not come over MQTT. expired is true when its
// time is over: then it may be sent again to whom it was sent in time, and to nobody else (MQTT 5 section 3.3.2.3.3).
func newMessage(f *feed, e eventlog.Entry, now func() time.Time) (m *message, expired bool) {
	o := e.Record.MQTT
	if o == nil || len(o.Topic) == 0 || len(o.Topic) > 65535 {
		return nil, false
	}
	m = &message{feed: f, seq: e.Seq, origin: o, props: o.Properties, payload: e.Record.Event.Data}
	if expiry, ok := m.props.Find(packet.MessageExpiry); ok {
		gone := max(0, now().Sub(e.Record.Received)/time.Second)
		if expired = time.Duration(expiry.Int) <= gone; expired {
			m.props = withExpiry(m.props, 0)
		} else if gone > 0 {
			m.props = withExpiry(m.props, expiry.Int-uint32(gone))
		}
	}
	if !e.Record.Minted && structured(o) {
		m.payload = event.AppendJSON(nil, &e.Record.Event) // as it was published, in our own spelling
	}
	return m, expired
}

// messageOf returns the message of an entry that may still be sent for the first time; nil when there is none.
func (f *feed) messageOf(e eventlog.Entry) *message {
	m, expired := newMessage(f, e, f.g.now)
	if expired {
		f.g.metrics.drop(droppedExpired)
		return nil
	}
	return m
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
	session *session
	qos     byte
	retain  bool // RETAIN as published
	latest  bool // the latest first
	barred  bool // the client may not receive it, because its rights say so or have changed since SUBSCRIBE
	ids     packet.Properties
}

// add joins a subscription to the hit.
func (h *hit) add(s *subscription) {
	h.qos = max(h.qos, s.qos)
	h.retain, h.latest = h.retain || s.retain, h.latest || s.latest
	if s.id == nil {
		return
	}
	if h.ids == nil {
		h.ids = s.id // shared; the capacity below keeps it unchanged
		return
	}
	h.ids = append(h.ids[:len(h.ids):len(h.ids)], s.id...)
}

// suits reports whether a subscription takes a message that matches its filter, if the client may receive it.
func (s *subscription) suits(m *message) bool {
	own := s.noLocal && m.origin.Client == s.session.key.clientID && m.origin.Principal == s.session.key.principal
	return (s.group != nil || s.since.at(m.feed) < m.seq) && !own
}

// bar is deliver for a message that the client may not receive: it is counted, unless the session looks or has looked at it when it
// reads the log.
func (s *session) bar(m *message, h *hit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.at.find(m.feed)
	reads := min(h.qos, m.origin.QoS) > 0 && p != nil && (p.behind != 0 || m.seq < p.liveFrom)
	if !s.ended && !reads {
		s.g.metrics.drop(droppedBarred)
	}
}

// hasRoom reports whether another QoS 1 or 2 message of a lane can be sent for the first time. What comes from devices leaves
// one place in eight to what goes down to them, and that does not wait for what was in flight on an earlier connection.
// The session's mu and mu are held.
func (c *conn) hasRoom(l lane) bool {
	s := c.session
	switch {
	case c.full(l):
		return false
	case l == laneDown:
		return len(s.flying)-s.resends < s.maxFlying
	}
	return len(s.flying) < s.maxFlying && len(s.flying)-s.downs < s.maxFlying-s.reserve()
}

// reserve is how many messages of DOWN can be in flight whatever else is; none where there never was such a message, so that
// a client with a small Receive Maximum gets all of it. mu is held.
func (s *session) reserve() int {
	if d := s.g.opts.Down; d == nil || !d.used.Load() || s.maxFlying < 2 {
		return 0
	}
	return max(1, s.maxFlying/8)
}

// urgent reports whether the message goes out before what is not.
func (m *message) urgent() bool { return m.feed != nil && m.feed.lane == laneDown }

// deliver is called by the tail. It queues the message, or leaves it for later, or drops it; it never blocks. It returns
// a connection whose writer the caller has to start; its place is reserved.
func (s *session) deliver(m *message, h *hit) (start *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	qos := min(h.qos, m.origin.QoS)
	c := s.conn
	if s.fresh != nil && m.origin.Retain {
		s.fresh[m.origin.Topic] = true
	}
	p := s.at.find(m.feed)
	switch {
	case s.ended || qos > 0 && p != nil && m.seq < p.liveFrom:
		return nil
	case c == nil:
		s.miss(m, qos)
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ended || c.out.broken:
		s.miss(m, qos)
		return nil
	case qos == 0:
		if c.full(m.feed.lane) {
			c.g.metrics.drop(droppedSlow)
			return nil
		}
		c.put(m, h, 0)
	case s.resendsFirst(m.feed.lane) || p != nil && p.lagging() || !c.hasRoom(m.feed.lane) || s.heldBack(m.feed, m.seq):
		if p != nil && p.lagging() && c.mayOvertake(p, m, h, qos) {
			c.overtake(p, m, h)
			break
		}
		p = s.at.of(m.feed)
		if !p.lagging() {
			s.changed()
		}
		p.running = p.running && !h.latest
		p.postpone(m.seq, c.g.limits.MaxWaiting)
		if !c.busy() {
			return nil
		}
	default:
		c.launch(m, h, qos, nil)
	}
	if c.out.writing {
		return nil
	}
	c.out.writing = true
	return c
}

// miss notes a message that cannot be sent because the client is away: the first of them is where its return begins to
// read. mu is held.
func (s *session) miss(m *message, qos byte) {
	if qos == 0 || s.expiry == 0 {
		return
	}
	p := s.at.of(m.feed)
	p.running = false
	p.fold()
	if p.behind == 0 {
		p.behind = m.seq
		s.changed()
	}
}

// launch sends a message with QoS 1 or 2 for the first time: it gets a packet id and is in flight. A QoS 2 message of a
// session that survives a crash is written down before it is sent, and so is one of a shared group, which may survive the
// session of its member. It reports whether the message was sent or will be:
// one that is larger than the client takes counts as if it had been (MQTT-3.1.2-25). The session's mu and mu are held.
func (c *conn) launch(m *message, h *hit, qos byte, gr *group) bool {
	s := c.session
	if c.tooLarge(m, h, qos) {
		return false
	}
	f := flight{feed: m.feed, seq: m.seq, group: gr, stage: stageQoS1}
	if qos == 2 {
		f.stage = stageQoS2
	}
	head := packet.Head{Retain: h.retain && m.origin.Retain, IDs: h.ids, Dup: s.doubtful && m.seq <= m.feed.recovered}
	head.ID = s.takeOff(f)
	if gr == nil && qos == 2 {
		s.at.of(m.feed).exact = m.seq
	}
	s.changed()
	c.g.metrics.deliveries[qos].Inc()
	if qos == 2 && (s.durable() || gr != nil && c.g.recorder != nil) {
		c.transmitLater(m, head)
		return true
	}
	c.transmit(m, head, qos)
	return true
}

// transmitLater sends a QoS 2 message once its record is committed, if the connection is still there: if not, the next
// one finds the message in flight. The session's mu and mu are held.
func (c *conn) transmitLater(m *message, head packet.Head) {
	s := c.session
	f := s.flightOf(head.ID)
	s.record(&record{kind: recordFlight, flight: s.flightState(f)}, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		c.mu.Lock()
		defer c.mu.Unlock()
		if s.conn == c && !c.ended && !c.out.broken {
			c.transmit(m, head, 2)
			c.startWriter()
		}
	})
}

// tooLarge reports whether a message is larger than the client takes, and counts it then. mu is held.
func (c *conn) tooLarge(m *message, h *hit, qos byte) bool {
	size := m.frame(c.version, qos).Size(&packet.Head{IDs: c.idsOf(h.ids)})
	if c.aliasMax > 0 {
		size += aliasRoom
	}
	if size <= c.maxPacket {
		return false
	}
	c.g.metrics.drop(droppedTooLarge)
	return true
}

// aliasRoom is how much a topic alias may add to a packet: the property, and a byte to each of two lengths.
const aliasRoom = 5

func (c *conn) idsOf(ids packet.Properties) packet.Properties {
	if c.version != packet.V5 {
		return nil
	}
	return ids
}

// put queues a PUBLISH with QoS 0. mu is held.
func (c *conn) put(m *message, h *hit, qos byte) {
	if c.tooLarge(m, h, qos) {
		return
	}
	c.g.metrics.deliveries[qos].Inc()
	c.transmit(m, packet.Head{Retain: h.retain && m.origin.Retain, IDs: h.ids}, qos)
}

// transmit queues a PUBLISH. mu is held.
func (c *conn) transmit(m *message, head packet.Head, qos byte) {
	f := m.frame(c.version, qos)
	head.IDs = c.idsOf(head.IDs)
	if m.urgent() { // without an alias, which a packet that is overtaken might have to set first
		before := len(c.out.urgent)
		if before == 0 {
			c.out.urgent = newChunk()
		}
		c.out.urgent = append(f.Append(c.out.urgent, &head), m.payload...)
		c.out.size += len(c.out.urgent) - before
		return
	}
	c.setAlias(&head, m.origin.Topic)
	c.out.grow()
	before := len(c.out.chunk)
	c.out.chunk = f.Append(c.out.chunk, &head)
	c.out.size += len(c.out.chunk) - before + len(m.payload)
	if len(m.payload) >= sharedFrom {
		c.out.share(m.payload)
	} else {
		c.out.chunk = append(c.out.chunk, m.payload...)
	}
}

// setAlias uses the topic aliases that the client allows: the first topics of the connection get one each. mu is held.
func (c *conn) setAlias(head *packet.Head, topic string) {
	if c.aliasMax == 0 || c.version != packet.V5 {
		return
	}
	if n, ok := c.sentAliases[topic]; ok {
		head.Alias, head.Known = n, true
		return
	}
	if len(c.sentAliases) >= int(c.aliasMax) || len(topic) < aliasFrom {
		return
	}
	if c.sentAliases == nil {
		c.sentAliases = map[string]uint16{}
	}
	head.Alias = uint16(len(c.sentAliases) + 1)
	c.sentAliases[topic] = head.Alias
}

// aliasFrom is the length of the shortest topic for which an alias pays.
const aliasFrom = 4
