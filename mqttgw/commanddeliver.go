// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"fmt"
	"slices"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// joinPeers puts a connection among those of its client id. g.mu is held.
func (g *Gateway) joinPeers(c *conn) {
	c.peer, g.peers[c.key.clientID] = g.peers[c.key.clientID], c
}

// leavePeers takes a connection out. g.mu is held.
func (g *Gateway) leavePeers(c *conn) {
	first := g.peers[c.key.clientID]
	if first == c {
		if g.peers[c.key.clientID] = c.peer; c.peer == nil {
			delete(g.peers, c.key.clientID)
		}
		return
	}
	for p := first; p != nil; p = p.peer {
		if p.peer == c {
			p.peer = c.peer
			return
		}
	}
}

// notify has the connected clients that a device may be look for its commands.
func (c *commands) notify(device string) {
	d := c.g.opts.Directory
	d.mu.RLock()
	dev := d.devices[device]
	d.mu.RUnlock()
	var found []*conn
	c.g.mu.Lock()
	if dev == nil {
		for p := c.g.peers[device]; p != nil; p = p.peer {
			found = append(found, p)
		}
	} else {
		for k := c.g.kin[dev.Principal]; k != nil; k = k.kin.next {
			if dev.allowsClientID(k.key.clientID) {
				found = append(found, k)
			}
		}
	}
	c.g.mu.Unlock()
	for _, p := range found {
		p.wakeOrders()
	}
}

// addresses are the devices that a client is: the Device that is defined for it, or its client id.
func (d *Directory) addresses(key sessionKey) (names [2]string) {
	names[0] = d.deviceOf(key.principal, key.clientID)
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.devices[key.clientID] == nil { // a client id that is the name of a Device is that Device's
		names[1] = key.clientID
	}
	return names
}

// addresses are the devices that the client is, as it was judged: of several Devices that its client id may be, the one whose password it
// has shown. mu is held.
func (c *conn) addresses() [2]string {
	names := c.g.opts.Directory.addresses(c.key)
	if names[0] = ""; c.standing.device != nil {
		names[0] = c.standing.device.Name
	}
	return names
}

// waitsFor reports whether anything may wait for a client.
func (c *commands) waitsFor(client *conn) bool {
	if c == nil {
		return false
	}
	client.mu.Lock()
	names := client.addresses()
	client.mu.Unlock()
	return c.waits(names[0]) || c.waits(names[1])
}

// wakeOrders has the writer look for commands.
func (c *conn) wakeOrders() {
	c.mu.Lock()
	s := c.held
	c.mu.Unlock()
	if s == nil {
		return // attach looks
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.orders = true
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ordersDue() {
		c.startWriter()
	}
}

// ordersDue reports whether commands are to be looked for, and can be sent. Commands that were in flight before go first. The session's mu and mu
// are held.
func (c *conn) ordersDue() bool {
	s := c.session
	return s != nil && s.orders && s.conn == c && !c.ended && c.why == nil && !c.out.broken && c.hasRoom(laneDown) && !s.resendsFirst(laneDown)
}

// sendOrders queues the commands that the client can get now, in their order. It is called by the writer, without locks.
func (c *conn) sendOrders() {
	for {
		o := c.nextOrder()
		if o == nil {
			return
		}
		m, err := c.g.commands.messageOf(o, o.seq)
		if err != nil {
			if c.g.life.Err() == nil {
				c.g.log.Warn("read a command", "clientId", c.key.clientID, "err", err)
			}
			c.end(packet.UnspecifiedError)
			return
		}
		c.giveOrder(o, m)
	}
}

// nextOrder returns the first command that the client can get now; nil if there is none.
func (c *conn) nextOrder() *order {
	s := c.session
	s.mu.Lock()
	defer s.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ordersDue() {
		return nil
	}
	o := c.g.commands.next(s, c.addresses())
	s.orders = o != nil
	return o
}

// giveOrder queues a command, if the client still can get it.
func (c *conn) giveOrder(o *order, m *message) {
	s := c.session
	s.mu.Lock()
	defer s.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ordersDue() {
		c.sendOrder(o, m)
	}
}

// next returns the first command that waits for the client of a session, which is these devices, and that it can get; nil if there is
// none. The session's mu is held.
func (c *commands) next(s *session, names [2]string) *order {
	now := c.g.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		b := c.boxes[name]
		if b == nil || name == "" {
			continue
		}
		for i := 0; i < len(b.orders); i++ {
			o := b.orders[i]
			switch {
			case o.session != nil || o.principal != "" && o.principal != s.key.principal:
			case !now.Before(o.expires):
				c.settle(o, commandExpired, "", nil)
				i--
			default:
				if _, ok := s.hitFor(o.topic); ok {
					return o
				}
			}
		}
	}
	return nil
}

// hitFor joins the subscriptions that match the topic of a command. Shared ones do not count: a command is for one device.
// ok is false if there is none, or the client may not receive it. mu is held.
func (s *session) hitFor(topic string) (h hit, ok bool) {
	h.session = s
	for _, sub := range s.subs {
		if sub.group == nil && matches(sub.filter, topic) {
			h.add(sub)
			ok = true
		}
	}
	return h, ok && s.mayReceive(topic)
}

// messageOf returns the message of a command at a sequence, o if it is not final; nil if it is gone.
func (c *commands) messageOf(o *order, seq uint64) (*message, error) {
	var rec *event.Record
	if o != nil {
		c.mu.Lock()
		rec = o.rec
		c.mu.Unlock()
	}
	if rec == nil {
		e, ok, err := c.down.at(c.g.life, seq)
		if err != nil || !ok || e.rec == nil {
			return nil, err
		}
		rec = e.rec
	}
	m, _ := newMessage(c.g.feeds.down(), eventlog.Entry{Seq: seq, Record: rec}, c.g.now)
	return m, nil
}

// sendOrder queues a command, if it still waits and the client can still get it. The session's mu and mu are held.
func (c *conn) sendOrder(o *order, m *message) {
	s, all := c.session, c.g.commands
	all.mu.Lock()
	defer all.mu.Unlock()
	h, ok := s.hitFor(o.topic)
	switch {
	case o.over || o.session != nil || !ok:
		return
	case m == nil:
		all.settle(o, commandExpired, reasonGone, nil)
		return
	}
	qos := min(h.qos, m.origin.QoS)
	if c.tooLarge(m, &h, qos) {
		all.settle(o, commandRefused, reasonTooLarge, nil)
		return
	}
	c.g.metrics.deliveries[qos].Inc()
	head := packet.Head{IDs: h.ids}
	if qos == 0 {
		all.settle(o, commandDone, "", nil)
		c.transmit(m, head, 0)
		return
	}
	f := flight{feed: m.feed, seq: o.seq, command: true, order: o, stage: stage(qos - 1)}
	o.session = s
	all.settle(o, commandSent, "", nil)
	head.ID = s.takeOff(f)
	s.changed()
	if qos == 2 && s.durable() {
		c.transmitLater(m, head)
		return
	}
	c.transmit(m, head, qos)
}

// answered notes what a client has said to a command, and runs then after the commit. It reports whether it was to be noted.
func (g *Gateway) answered(o *order, code packet.Reason, then func()) bool {
	switch {
	case o == nil:
		return false
	case code.Failed():
		return g.commands.end(o, commandRefused, fmt.Sprintf("%s%02X", reasonCode, byte(code)), then)
	}
	return g.commands.end(o, commandAcknowledged, "", then)
}

// releaseOrder goes on with a QoS 2 command when it is written down that its device has it: only then may the packet id
// become free.
func (s *session) releaseOrder(id uint16, seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.flightOf(id)
	switch {
	case f == nil || !f.command || f.seq != seq || f.stage != stageQoS2:
	case s.conn != nil:
		s.conn.release(f)
	default:
		f.stage, f.order = stageReleased, nil
		s.changed()
	}
}

// returnOrders has the commands that a session has in flight wait again, because it ends. It returns their devices, whose other clients
// may get them. mu is held.
func (s *session) returnOrders() (devices []string) {
	for i := range s.flying {
		o := s.flying[i].order
		if o == nil {
			continue
		}
		s.flying[i].order = nil
		if s.g.commands.end(o, commandQueued, reasonSessionEnded, nil) && !slices.Contains(devices, o.box.device) {
			devices = append(devices, o.box.device)
		}
	}
	return devices
}

// tooLate reports whether a command that was sent on an earlier connection is not to be sent again: its time is over. With
// QoS 2 its packet id stays in use until the client has answered.
func (g *Gateway) tooLate(f *flight) bool {
	return f.order != nil && f.stage == stageQoS1 && !g.now().Before(f.order.expires)
}

// dropLate takes the commands out of flight whose time is over, because the client has gone. mu is held.
func (s *session) dropLate() {
	for i := 0; i < len(s.flying); i++ {
		f := s.flying[i]
		if !s.g.tooLate(&f) {
			continue
		}
		s.land(f.id)
		s.g.commands.end(f.order, commandExpired, reasonUnacknowledged, nil)
		i--
	}
}

// dropped notes that a command is not sent again. m is its message; nil if it is gone.
func (g *Gateway) dropped(f *flight, m *message) {
	if f.order == nil {
		return
	}
	state, reason := commandRefused, reasonTooLarge
	switch {
	case m == nil:
		state, reason = commandExpired, reasonGone
	case g.tooLate(f):
		state, reason = commandExpired, reasonUnacknowledged
	}
	g.commands.end(f.order, state, reason, nil)
}

// restoreOrder joins a flight that was written down with its command. It reports whether the flight goes on: a QoS 1 command
// that has ended is not sent again.
func (g *Gateway) restoreOrder(s *session, f *flight) bool {
	if g.commands == nil {
		return false
	}
	g.commands.flown = max(g.commands.flown, f.seq)
	o := g.commands.loading[f.seq]
	switch {
	case o == nil:
		return f.stage != stageQoS1
	case f.stage == stageReleased: // PUBREL is sent after that was written; an older version may have
		g.commands.end(o, commandAcknowledged, "", nil)
		return true
	}
	f.order = o
	g.commands.mu.Lock()
	o.session = s
	g.commands.mu.Unlock()
	return true
}
