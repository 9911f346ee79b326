// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"slices"
	"strings"

	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// The options of a subscription as they are written down: the QoS, and these.
const (
	optNoLocal = 4
	optRetain  = 8
	optLatest  = 16
)

// state is the subscription as it is written down.
func (s *subscription) state() subState {
	st := subState{filter: s.filter, opts: s.qos, since: s.since.state(), id: s.id.Int(packet.SubscriptionID, 0)}
	if s.noLocal {
		st.opts |= optNoLocal
	}
	if s.retain {
		st.opts |= optRetain
	}
	if s.latest {
		st.opts |= optLatest
	}
	return st
}

// newSubscription is the inverse of state.
func newSubscription(s *session, st subState) *subscription {
	sub := &subscription{session: s, filter: st.filter, qos: min(st.opts&3, 2), noLocal: st.opts&optNoLocal != 0, retain: st.opts&optRetain != 0, latest: st.opts&optLatest != 0, since: s.g.momentOf(st.since)}
	if st.id > 0 {
		sub.id = sub.id.AppendInt(packet.SubscriptionID, st.id)
	}
	return sub
}

// same reports whether b is a with another place in time.
func (s *subscription) same(b *subscription) bool {
	return s.filter == b.filter && s.qos == b.qos && s.noLocal == b.noLocal && s.retain == b.retain && s.latest == b.latest && slices.Equal(s.id, b.id)
}

// maxFilterBytes bounds what the filters of a session take in its record.
const maxFilterBytes = 256 << 10

func (c *conn) takeSubscribe(first byte, body []byte) error {
	var p packet.Subscribe
	if err := p.Decode(first, body, c.version); err != nil {
		return err
	}
	var id packet.Properties
	if n := p.Properties.Int(packet.SubscriptionID, 0); n > 0 {
		id = id.AppendInt(packet.SubscriptionID, n)
	}
	ack := &packet.Suback{Kind: packet.TypeSuback, PacketID: p.PacketID, Codes: make([]packet.Reason, len(p.Filters))}
	order, known := orderOf(p.Properties)
	if !known {
		ack.Properties = c.because("user property " + orderProperty + " must be " + orderLatest + " or " + orderLog)
	}
	var add []*subscription
	var handling []byte
	filters, size := c.filters()
	for i, f := range p.Filters {
		filter := string(f.Filter)
		again := slices.IndexFunc(add, func(s *subscription) bool { return s.filter == filter })
		if ack.Codes[i] = c.checkFilter(filter); !known && !ack.Codes[i].Failed() {
			ack.Codes[i] = packet.ImplementationError
		}
		if again < 0 && !c.subscribed(filter) && !ack.Codes[i].Failed() {
			if filters >= c.g.limits.MaxFilters || size+len(filter) > maxFilterBytes {
				ack.Codes[i] = packet.QuotaExceeded
			} else {
				filters++
				size += len(filter)
			}
		}
		if ack.Codes[i].Failed() {
			continue
		}
		ack.Codes[i] = packet.Reason(f.QoS)
		s := &subscription{session: c.session, filter: filter, qos: f.QoS, noLocal: f.NoLocal, retain: f.RetainAsPublished, latest: order == orderLatest || order == "" && c.rights.Load().latestFirst(filter), id: id}
		if again >= 0 {
			add[again], handling[again] = s, f.RetainHandling
		} else {
			add, handling = append(add, s), append(handling, f.RetainHandling)
		}
	}
	since := c.g.ends() // what is stored already was published before
	// The tails have to be there too: what they have delivered is in the retained view, and what they deliver from here on
	// comes through the subscription.
	if err := c.g.awaitTails(c.g.life, since); err != nil {
		return errClosing
	}
	c.subscribe(add, handling, since, ack)
	c.announceSubscribed(add)
	return nil
}

// The user property of SUBSCRIBE that says in which order a session that is behind gets messages.
const (
	orderProperty = "rialto-order"
	orderLatest   = "latest-first"
	orderLog      = "log"
)

// orderOf returns the order that a SUBSCRIBE asks for; "" = none. known is false if it is one that does not exist.
func orderOf(ps packet.Properties) (order string, known bool) {
	for p := range ps.All() {
		if p.ID == packet.UserProperty && string(p.Bytes) == orderProperty {
			order = string(p.Value)
			if order != orderLatest && order != orderLog {
				return "", false
			}
		}
	}
	return order, true
}

// filters returns how many filters the session has, and their bytes.
func (c *conn) filters() (n, size int) {
	s := c.session
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.subs {
		size += len(sub.filter)
	}
	return len(s.subs), size
}

func (c *conn) subscribed(filter string) bool {
	s := c.session
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.find(filter) >= 0
}

// checkFilter returns a failure code for a filter that is not granted.
func (c *conn) checkFilter(filter string) packet.Reason {
	if !packet.ValidFilter(filter) || len(filter) > c.g.limits.MaxTopic || strings.Count(filter, "/") >= c.g.limits.MaxLevels+2*sharedLevels(filter) {
		return packet.TopicFilterInvalid
	}
	if !c.rights.Load().maySubscribe(filter) {
		return packet.NotAuthorized
	}
	return packet.Success
}

// sharedLevels is 1 for a shared subscription, whose two levels in front are not the topic filter's.
func sharedLevels(filter string) int {
	if _, shared := innerFilter(filter); shared {
		return 1
	}
	return 0
}

// subscribe makes subscriptions, in place of those that have their filters. The SUBACK is queued before anything is
// delivered through them, unless the session is written down first: then messages may come before it (section 3.8.4).
func (c *conn) subscribe(add []*subscription, handling []byte, since moment, ack *packet.Suback) {
	s := c.session
	added := 0
	newGroup := func(filter string) *group { return newGroup(c.g, filter, since) }
	c.g.router.change(add, newGroup, func() (replaced []*subscription) {
		s.mu.Lock()
		defer s.mu.Unlock()
		defer s.relatest()
		changed := false
		for i, sub := range add {
			k := s.find(sub.filter)
			scan := c.g.opts.Retained != nil && sub.group == nil && (handling[i] == 0 || handling[i] == 1 && k < 0)
			sub.since = since
			if k < 0 {
				added++
				s.subs = append(s.subs, sub)
			} else {
				old := s.subs[k]
				sub.since = old.since // messages that it is behind with stay due
				s.subs[k] = sub
				if scan {
					s.dropScan(old)
				} else {
					s.keepScan(old, sub)
				}
				replaced = append(replaced, old)
			}
			changed = changed || k < 0 || !sub.same(replaced[len(replaced)-1])
			if scan {
				s.scans = append(s.scans, retainedScan{sub: sub, upTo: since})
				changed = true
			}
		}
		// Commands come behind the SUBACK: MQTT lets them come before (section 3.8.4), but not every client expects that.
		orders := len(add) > 0 && c.g.commands != nil
		if changed && s.durable() {
			c.afterRecord(s.whole(), func() {
				c.sendFirst(ack)
				if orders {
					c.wakeOrders()
				}
			})
		} else {
			c.sendFirst(ack)
			s.orders = s.orders || orders
		}
		c.mu.Lock()
		if c.busy() {
			c.startWriter()
		}
		c.mu.Unlock()
		return replaced
	})
	c.g.metrics.filters.Add(float64(added))
}

func (c *conn) takeUnsubscribe(first byte, body []byte) error {
	var p packet.Unsubscribe
	if err := p.Decode(first, body, c.version); err != nil {
		return err
	}
	ack := &packet.Suback{Kind: packet.TypeUnsuback, PacketID: p.PacketID, Codes: make([]packet.Reason, len(p.Filters))}
	var remove []*subscription
	s := c.session
	s.mu.Lock()
	for i, f := range p.Filters {
		filter := string(f)
		switch k := s.find(filter); {
		case k >= 0:
			remove = append(remove, s.subs[k])
			s.dropScan(s.subs[k])
			s.subs = slices.Delete(s.subs, k, k+1)
		case !packet.ValidFilter(filter):
			ack.Codes[i] = packet.TopicFilterInvalid
		default:
			ack.Codes[i] = packet.NoSubscriptionExisted
		}
	}
	s.relatest()
	s.mu.Unlock()
	c.g.unhang(remove)
	defer c.announceUnsubscribed(remove)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(remove) > 0 {
		c.afterRecord(s.whole(), func() { c.send(ack) })
	} else {
		c.send(ack)
	}
	return nil
}

// unhang takes subscriptions out of the router.
func (g *Gateway) unhang(remove []*subscription) {
	if len(remove) == 0 {
		return
	}
	g.router.change(nil, nil, func() []*subscription { return remove })
	g.metrics.filters.Sub(float64(len(remove)))
}
