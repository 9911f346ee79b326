// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"slices"

	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// retainedScan sends the retained messages that a new subscription matches, in the order of their topics. It holds no
// list of them: after is the last topic that was looked at. A message that became retained behind upTo comes, or came,
// through the subscription itself.
type retainedScan struct {
	sub   *subscription
	after string
	upTo  moment
}

// dropScan ends the retained scan of a subscription. mu is held.
func (s *session) dropScan(sub *subscription) {
	s.scans = slices.DeleteFunc(s.scans, func(sc retainedScan) bool { return sc.sub == sub })
	if len(s.scans) == 0 {
		s.scans = nil
	}
}

// keepScan goes on for a subscription with what is left of the scan of the one that it replaces (MQTT-3.8.4-4). mu is held.
func (s *session) keepScan(old, sub *subscription) {
	for i := range s.scans {
		if s.scans[i].sub == old {
			s.scans[i].sub = sub
		}
	}
}

const retainedAtOnce = 32

// scanRetained sends the next retained messages of the first scan.
func (c *conn) scanRetained() error {
	s := c.session
	s.mu.Lock()
	if len(s.scans) == 0 || s.conn != c {
		s.mu.Unlock()
		return nil
	}
	sc := s.scans[0]
	// What the tail has delivered by now is in the view with a later position, and is passed over; what it delivers from
	// here on is noted, so that nothing older comes after it.
	s.fresh = map[string]bool{}
	s.mu.Unlock()
	var entries []retainedEntry
	next, done := "", true
	if v := c.g.opts.Retained; v != nil {
		var err error
		if entries, next, done, err = v.match(sc.sub.filter, sc.after, retainedAtOnce, nil); err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.conn == c {
				s.fresh = nil
			}
			return err
		}
		entries = c.g.dropExpired(entries)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != c {
		return nil // what is noted is another connection's
	}
	defer func() { s.fresh = nil }()
	if len(s.scans) == 0 || s.scans[0].sub != sc.sub {
		return nil
	}
	for _, e := range entries {
		topic := e.Record.MQTT.Topic
		if !s.fresh[topic] && !c.sendRetained(&sc, e) {
			s.scans[0].after = sc.after
			return nil
		}
		sc.after = topic
	}
	s.scans[0].after = next
	if done {
		s.dropScan(sc.sub)
	}
	s.changed()
	return nil
}

// dropExpired returns the messages that have not expired, and deletes the others.
func (g *Gateway) dropExpired(entries []retainedEntry) (left []retainedEntry) {
	now := g.now()
	var gone []retainedEntry
	for _, e := range entries {
		if !expired(e.Record, now) {
			left = append(left, e)
			continue
		}
		gone = append(gone, e)
		g.metrics.drop(droppedExpired)
	}
	if err := g.opts.Retained.remove(gone); err != nil {
		g.log.Error("expired messages cannot be deleted", "err", err)
	}
	return left
}

// sendRetained sends a retained message; false says that there is no room. The session's mu is held.
func (c *conn) sendRetained(sc *retainedScan, e retainedEntry) bool {
	f := c.g.feeds.named(e.feed) // nil = it came from a bus that is not served any more
	m, expired := newMessage(f, e.Entry, c.g.now)
	if expired {
		c.g.metrics.drop(droppedExpired)
		return true
	}
	own := m != nil && sc.sub.noLocal && m.origin.Client == c.key.clientID && m.origin.Principal == c.key.principal
	if m == nil || f != nil && e.Seq > sc.upTo.before(f) || own {
		return true
	}
	if !c.rights.Load().mayReceive(m.origin.Topic) {
		c.g.metrics.drop(droppedBarred)
		return true
	}
	s := c.session
	c.mu.Lock()
	defer c.mu.Unlock()
	h := hit{session: s, qos: sc.sub.qos, retain: true, ids: sc.sub.id}
	qos := min(h.qos, m.origin.QoS)
	switch {
	case c.ended || c.out.broken || c.full(laneUp):
		return false
	case qos == 0:
		c.put(m, &h, 0)
		return true
	case !c.hasRoom(laneUp):
		return false
	case c.tooLarge(m, &h, qos):
		return true
	}
	fl := flight{feed: f, seq: m.seq, stage: stageQoS1, stored: true}
	if qos == 2 {
		fl.stage = stageQoS2
	}
	head := packet.Head{Retain: true, IDs: h.ids}
	head.ID = s.takeOff(fl)
	if s.topics == nil {
		s.topics = map[uint16]string{}
	}
	s.topics[head.ID] = m.origin.Topic
	s.changed()
	c.g.metrics.deliveries[qos].Inc()
	if qos == 2 && s.durable() {
		c.transmitLater(m, head)
	} else {
		c.transmit(m, head, qos)
	}
	return true
}
