// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"slices"
	"strings"

	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

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
	var add []*subscription
	left := c.g.limits.MaxFilters - c.filters()
	for i, f := range p.Filters {
		filter := string(f.Filter)
		again := slices.IndexFunc(add, func(s *subscription) bool { return s.filter == filter })
		ack.Codes[i] = c.checkFilter(filter)
		if again < 0 && !c.subscribed(filter) && !ack.Codes[i].Failed() {
			left--
			if left < 0 {
				ack.Codes[i] = packet.QuotaExceeded
			}
		}
		if ack.Codes[i].Failed() {
			continue
		}
		// QoS 2 is granted as 1: the session layer brings delivery with QoS 2.
		granted := min(f.QoS, 1)
		ack.Codes[i] = packet.Reason(granted)
		s := &subscription{conn: c, filter: filter, qos: granted, noLocal: f.NoLocal, retain: f.RetainAsPublished, id: id}
		if again >= 0 {
			add[again] = s
		} else {
			add = append(add, s)
		}
	}
	c.subscribe(add, ack)
	c.announceSubscribed(add)
	return nil
}

func (c *conn) filters() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.session.subs)
}

func (c *conn) subscribed(filter string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session.find(filter) >= 0
}

// checkFilter returns a failure code for a filter that is not granted.
func (c *conn) checkFilter(filter string) packet.Reason {
	if !packet.ValidFilter(filter) || len(filter) > c.g.limits.MaxTopic || strings.Count(filter, "/") >= c.g.limits.MaxLevels {
		return packet.TopicFilterInvalid
	}
	if !c.rights.Load().maySubscribe(filter) {
		return packet.NotAuthorized
	}
	if strings.HasPrefix(filter, "$share/") {
		return packet.SharedNotSupported
	}
	return packet.Success
}

// subscribe makes subscriptions, in place of those that have their filters, and queues the SUBACK in front of their
// first message.
func (c *conn) subscribe(add []*subscription, ack *packet.Suback) {
	var replaced []*subscription
	since := c.g.opts.Tail.Committed() // what is stored already was published before
	c.g.router.change(add, func() []*subscription {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, s := range add {
			i := c.session.find(s.filter)
			if i < 0 {
				s.since = since
				c.session.subs = append(c.session.subs, s)
				continue
			}
			old := c.session.subs[i]
			s.since = old.since // messages that it is behind with stay due
			c.session.subs[i] = s
			replaced = append(replaced, old)
		}
		c.queue(ack)
		return replaced
	})
	c.g.metrics.filters.Add(float64(len(add) - len(replaced)))
}

func (c *conn) takeUnsubscribe(first byte, body []byte) error {
	var p packet.Unsubscribe
	if err := p.Decode(first, body, c.version); err != nil {
		return err
	}
	ack := &packet.Suback{Kind: packet.TypeUnsuback, PacketID: p.PacketID, Codes: make([]packet.Reason, len(p.Filters))}
	var remove []*subscription
	c.mu.Lock()
	for i, f := range p.Filters {
		filter := string(f)
		switch k := c.session.find(filter); {
		case k >= 0:
			remove = append(remove, c.session.subs[k])
			c.session.subs = slices.Delete(c.session.subs, k, k+1)
		case !packet.ValidFilter(filter):
			ack.Codes[i] = packet.TopicFilterInvalid
		default:
			ack.Codes[i] = packet.NoSubscriptionExisted
		}
	}
	c.mu.Unlock()
	c.unhang(remove)
	c.send(ack)
	c.announceUnsubscribed(remove)
	return nil
}

// dropSubscriptions ends all deliveries.
func (c *conn) dropSubscriptions() {
	c.mu.Lock()
	remove := c.session.subs
	c.session.subs = nil
	c.mu.Unlock()
	c.unhang(remove)
}

func (c *conn) unhang(remove []*subscription) {
	if len(remove) == 0 {
		return
	}
	c.g.router.change(nil, func() []*subscription { return remove })
	c.g.metrics.filters.Sub(float64(len(remove)))
}
