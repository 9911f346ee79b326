// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
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
	wanted := make(map[string]*subscription, min(len(p.Filters), c.g.limits.MaxFilters))
	held := c.filters()
	left := c.g.limits.MaxFilters - len(held)
	for i, f := range p.Filters {
		filter := string(f.Filter)
		ack.Codes[i] = c.checkFilter(filter)
		if isNew := held[filter] == nil && wanted[filter] == nil; isNew && !ack.Codes[i].Failed() {
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
		wanted[filter] = &subscription{conn: c, filter: filter, qos: granted, noLocal: f.NoLocal, retain: f.RetainAsPublished, id: id}
	}
	c.subscribe(wanted, ack)
	return nil
}

// filters returns the subscriptions of the session. Only the reader changes them, so it may look without mu.
func (c *conn) filters() map[string]*subscription {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session.subs
}

// checkFilter returns a failure code for a filter that is not granted.
func (c *conn) checkFilter(filter string) packet.Reason {
	if !packet.ValidFilter(filter) || len(filter) > c.g.limits.MaxTopic || strings.Count(filter, "/") >= c.g.limits.MaxLevels {
		return packet.TopicFilterInvalid
	}
	if strings.HasPrefix(filter, "$share/") {
		return packet.SharedNotSupported
	}
	return packet.Success
}

// subscribe makes the wanted subscriptions and queues the SUBACK, in front of their first message.
func (c *conn) subscribe(wanted map[string]*subscription, ack *packet.Suback) {
	add := make([]*subscription, 0, len(wanted))
	for _, s := range wanted {
		add = append(add, s)
	}
	var replaced []*subscription
	for f := range wanted {
		if old := c.filters()[f]; old != nil {
			replaced = append(replaced, old)
		}
	}
	c.g.router.change(replaced, add, func() uint64 {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.session.subs == nil && len(add) > 0 {
			c.session.subs = make(map[string]*subscription, len(add))
		}
		for _, s := range add {
			if old := c.session.subs[s.filter]; old != nil {
				s.since = old.since // messages that it is behind with stay due
			}
			c.session.subs[s.filter] = s
		}
		c.queue(ack)
		return c.g.tailPos.Load()
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
		switch s := c.session.subs[filter]; {
		case s != nil:
			delete(c.session.subs, filter)
			remove = append(remove, s)
		case !packet.ValidFilter(filter):
			ack.Codes[i] = packet.TopicFilterInvalid
		default:
			ack.Codes[i] = packet.NoSubscriptionExisted
		}
	}
	c.mu.Unlock()
	c.unhang(remove)
	c.send(ack)
	return nil
}

// dropSubscriptions ends all deliveries.
func (c *conn) dropSubscriptions() {
	c.mu.Lock()
	remove := make([]*subscription, 0, len(c.session.subs))
	for _, s := range c.session.subs {
		remove = append(remove, s)
	}
	c.session.subs = nil
	c.mu.Unlock()
	c.unhang(remove)
}

func (c *conn) unhang(remove []*subscription) {
	if len(remove) == 0 {
		return
	}
	c.g.router.change(remove, nil, func() uint64 { return 0 })
	c.g.metrics.filters.Sub(float64(len(remove)))
}
