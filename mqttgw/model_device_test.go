// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"fmt"
	"slices"
	"time"

	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// modelDevice is a client that behaves, with the session state that MQTT wants of it.
type modelDevice struct {
	m        *model
	name     string
	v        packet.Version
	qos      byte // of all its subscriptions
	receive  uint32
	expiries []uint32 // of its session, in seconds, one of which it asks for in MQTT 5
	latest   bool     // some of its subscriptions ask for the latest first
	member   bool     // it subscribes to the shared subscription, and to nothing else
	wills    bool     // some of its connections have a will
	c        *client  // nil = away
	in       chan packet.Packet
	filters  map[string]bool // that it has
	maybe    map[string]bool // that it may have: a request was not answered
	session  life
	unclean  bool            // a clean start was not answered
	noticed  bool            // it is away, and the server knows
	received map[uint16]bool // QoS 2 ids without PUBREL
	unacked  map[uint16]int  // QoS 1 messages without PUBACK, by id
	held     []packet.Packet // acknowledgements that it has not sent
	last     map[string]int  // the highest message seen, by topic and QoS
	armed    []*sent         // wills that the server may still have: the last one, and those of a CONNECT that was not answered
}

// owner is to whom messages are owed: the device, or the shared group.
func (d *modelDevice) owner() string {
	if d.member {
		return sharedFilter
	}
	return d.name
}

// open connects without waiting for an answer.
func (d *modelDevice) open(p *packet.Connect) (ack *packet.Connack) {
	nc, err := d.m.w.now.dial()
	if err != nil {
		d.m.t.Fatal(err)
	}
	d.m.w.now.mu.Lock()
	d.m.w.now.conns = append(d.m.w.now.conns, nc)
	d.m.w.now.mu.Unlock()
	c := &client{Conn: nc, t: d.m.t, in: packet.NewReader(nc), v: d.v}
	in := make(chan packet.Packet, 10_000)
	go func() {
		defer close(in)
		for {
			first, body, err := c.in.Next(1 << 20)
			if err != nil {
				return
			}
			p, err := packet.Decode(first, slices.Clone(body), c.v)
			if err != nil {
				d.m.t.Errorf("server sent %02x %x: %v", first, body, err)
				return
			}
			in <- p
		}
	}()
	d.c, d.in, d.noticed, d.unacked = c, in, false, map[uint16]int{}
	d.write(p)
	got, _ := d.next().(*packet.Connack)
	return got
}

// close loses the connection.
func (d *modelDevice) close() {
	if d.c != nil {
		d.hangUp()
		d.parted(true)
	}
}

// hangUp closes the connection.
func (d *modelDevice) hangUp() {
	d.c.Close()
	for range d.in {
	}
	d.c, d.held = nil, nil
}

// parted is the end of a connection. The will is due, or deleted.
func (d *modelDevice) parted(will bool) {
	d.session.left = exactly(d.m.now())
	if n := len(d.armed); n > 0 && will {
		d.armed[n-1].will.least = 1
		d.armed[n-1].will.most++
	}
}

// write sends; a connection that is gone is noticed when reading.
func (d *modelDevice) write(p packet.Packet) {
	_, err := d.c.Write(p.Append(nil, d.v))
	if a, ok := p.(*packet.Ack); ok && a.Kind == packet.TypePuback && err == nil {
		if n, ok := d.unacked[a.PacketID]; ok {
			d.m.all[n].taken[d.owner()] = true
		}
	}
}

// next waits for a packet; nil when the connection or the process has ended.
func (d *modelDevice) next() packet.Packet {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case p := <-d.in:
		return p
	case <-d.m.w.killed:
		return nil
	case <-timeout.C:
		d.m.fail("%s: nothing from the server in time", d.name)
		return nil
	}
}

// connect connects, clean or not, and holds the server to the session.
func (d *modelDevice) connect(clean bool) bool {
	clean = clean || d.unclean
	d.unclean = clean
	surely, possibly := d.alive()
	if clean || !possibly {
		// A clean start ends the session, and from the moment it is sent nobody knows. What has ended is not there, whether or not
		// there is an answer that says so: nothing is owed. What may come is known by the answer.
		d.filters = map[string]bool{}
		d.m.release(d)
		surely, possibly = false, false
	}
	if !clean && !possibly {
		d.received = map[uint16]bool{}
	}
	if d.m.full.Load() {
		for _, s := range d.armed {
			s.will.least = 0 // given up, if it is not there by now
		}
	}
	p, asked := d.hello(clean)
	d.m.note("%s connects, clean %v, expiry %v, will %v", d.name, clean, asked, p.Will != nil)
	for _, s := range d.m.all {
		if !s.expired(d.m.now()) {
			delete(s.unsent, d.name)
		}
	}
	ack := d.open(p)
	if ack == nil {
		d.session.unsure(asked, surely)
		d.hangUp()
		return false
	}
	switch {
	case ack.Code != 0:
		d.m.fail("%s: CONNACK %v", d.name, ack.Code)
	case surely && !ack.SessionPresent:
		d.m.fail("%s: the session is lost", d.name)
	case !possibly && ack.SessionPresent:
		d.m.fail("%s: a session that has ended is there", d.name)
	}
	if !ack.SessionPresent {
		d.forget()
	}
	d.unclean = false
	d.session = life{expiry: exactly(asked), asked: asked, used: true}
	d.armed = nil
	if p.Will != nil {
		d.armed = []*sent{d.m.all[len(d.m.all)-1]}
	}
	return true
}

// hello is a CONNECT, and how long its session is to outlive the connection.
func (d *modelDevice) hello(clean bool) (p *packet.Connect, asked time.Duration) {
	p = &packet.Connect{Version: d.v, CleanStart: clean, ClientID: []byte(d.name)}
	if d.wills && d.m.rnd.IntN(3) == 0 {
		s := d.m.add("w/"+d.name, 1)
		s.will = &count{}
		d.armed = append(d.armed, s)
		p.Will = &packet.Will{Topic: []byte(s.topic), QoS: s.qos, Payload: fmt.Append(nil, len(d.m.all)-1)}
	}
	switch {
	case d.v == packet.V5:
		expiry := d.expiries[d.m.rnd.IntN(len(d.expiries))]
		p.Properties = p.Properties.AppendInt(packet.SessionExpiry, expiry).AppendInt(packet.ReceiveMaximum, d.receive)
		return p, seconds(expiry)
	case clean: // the session ends with the connection
		return p, 0
	}
	return p, forever
}

// leave sends DISCONNECT, with another session expiry or not, and for the will to be sent or not.
func (d *modelDevice) leave() {
	p := &packet.Disconnect{Kind: packet.TypeDisconnect}
	expiry := d.session.expiry.least
	if d.v == packet.V5 {
		if d.m.rnd.IntN(2) == 0 {
			p.Code = packet.DisconnectWithWill
		}
		if n := d.expiries[d.m.rnd.IntN(len(d.expiries))]; d.session.asked > 0 && d.m.rnd.IntN(2) == 0 {
			p.Properties = p.Properties.AppendInt(packet.SessionExpiry, n)
			expiry = seconds(n)
		}
	}
	d.m.note("%s disconnects with %v, expiry %v", d.name, p.Code, expiry)
	d.write(p)
	for d.next() != nil { // what still comes is lost on the way
	}
	d.noticed = !d.m.dead()
	d.hangUp()
	d.parted(p.Code == packet.DisconnectWithWill)
	if d.noticed {
		d.session.expiry = exactly(expiry)
	} else {
		d.session.expiry.take(expiry)
	}
}

// cutOff loses the connection, and may wait until the server has noticed.
func (d *modelDevice) cutOff() {
	wait := d.m.rnd.IntN(2) == 0
	d.m.note("%s is cut off, noticed %v", d.name, wait)
	d.close()
	if wait {
		d.awaitAway()
	}
}

// awaitAway waits until the server knows that the device is away, or is killed.
func (d *modelDevice) awaitAway() {
	eventually(d.m.t, d.name+" is seen to be away", func() bool {
		for _, c := range d.m.w.now.gateway.Clients("", true) {
			if c.ClientID == d.name && c.Online {
				return d.m.dead()
			}
		}
		return true
	})
	d.noticed = !d.m.dead()
}

// takeOver connects a second time, which ends the first connection.
func (d *modelDevice) takeOver() {
	d.m.note("%s takes over", d.name)
	old, in := d.c, d.in
	d.c, d.held = nil, nil
	d.parted(true)
	d.connect(false)
	old.Close()
	for range in {
	}
}

// forget is the end of a session: nothing is owed any more.
func (d *modelDevice) forget() {
	d.filters, d.maybe, d.received = map[string]bool{}, map[string]bool{}, map[uint16]bool{}
	d.m.release(d)
	for _, s := range d.m.all {
		delete(s.may, d.name)
	}
}

// handle takes a packet from the server. later has an acknowledgement held back.
func (d *modelDevice) handle(p packet.Packet, later bool) {
	answer := func(a *packet.Ack) {
		if later {
			d.held = append(d.held, a)
			return
		}
		d.write(a)
	}
	switch p := p.(type) {
	case *packet.Publish:
		var n int
		if _, err := fmt.Sscan(string(p.Payload), &n); err != nil || n >= len(d.m.all) {
			d.m.fail("%s got %q", d.name, p.Payload)
		}
		if p.QoS == 1 {
			d.deliver(n, p)
			d.unacked[p.PacketID] = n
			answer(&packet.Ack{Kind: packet.TypePuback, PacketID: p.PacketID})
			return
		}
		if !d.received[p.PacketID] {
			d.received[p.PacketID] = true
			d.deliver(n, p)
		}
		answer(&packet.Ack{Kind: packet.TypePubrec, PacketID: p.PacketID})
	case *packet.Ack:
		if p.Kind != packet.TypePubrel {
			d.m.fail("%s got %v", d.name, p.Kind)
		}
		delete(d.received, p.PacketID)
		answer(&packet.Ack{Kind: packet.TypePubcomp, PacketID: p.PacketID})
	case *packet.Suback, *packet.Ping:
	default:
		d.m.fail("%s got %T", d.name, p)
	}
}

// deliver is what the device's application sees.
func (d *modelDevice) deliver(n int, p *packet.Publish) {
	s, to := d.m.all[n], d.owner()
	d.m.note("%s got %d, QoS %d, id %d, DUP %v", d.name, n, p.QoS, p.PacketID, p.Dup)
	if p.QoS != min(s.qos, d.qos) || string(p.Topic) != s.topic {
		d.m.fail("%s got message %d with QoS %d under %s", d.name, n, p.QoS, p.Topic)
	}
	if again := p.Dup && d.member; s.will == nil && !s.may[to] && !again { // what was sent before the group has ended goes on
		d.m.fail("%s got message %d, to which it was not subscribed", d.name, n)
	}
	d.checkExpiry(n, p)
	s.seen[to]++
	if p.QoS == 2 {
		s.taken[to] = true
		if s.seen[to] > 1 {
			d.m.fail("%s got message %d with QoS 2 twice", to, n)
		}
	}
	key := fmt.Sprint(s.topic, p.QoS)
	if s.seen[to] == 1 && !d.member && s.will == nil && (!d.latest || p.QoS == 2) {
		if last, ok := d.last[key]; ok && n < last {
			d.m.fail("%s got message %d of %s after %d", d.name, n, s.topic, last)
		}
		d.last[key] = n
	}
}

// checkExpiry holds the server to the expiry of a message: one that was sent in time may come again later. How much is left is what was
// left at some time since it was published.
func (d *modelDevice) checkExpiry(n int, p *packet.Publish) {
	s := d.m.all[n]
	if s.unsent[d.name] {
		d.m.fail("%s got message %d, which had expired before it could be sent", d.name, n)
	}
	left, ok := p.Properties.Find(packet.MessageExpiry)
	if d.v != packet.V5 || !ok && s.expiry == 0 {
		return
	}
	least := max(0, s.expiry-(d.m.now()-s.at))
	if got := seconds(left.Int); !ok || got < least || got > s.expiry || got == 0 && !p.Dup {
		d.m.fail("%s got message %d with DUP %v and %v of %v left, %v after it was published", d.name, n, p.Dup, got, s.expiry, d.m.now()-s.at)
	}
}

// read takes at most n packets that are there.
func (d *modelDevice) read(n int, later func() bool) {
	for ; n > 0 && d.c != nil; n-- {
		select {
		case p, ok := <-d.in:
			if !ok {
				d.close()
				return
			}
			d.handle(p, later())
		default:
			return
		}
	}
}

// settle sends what was held back.
func (d *modelDevice) settle() {
	for _, p := range d.held {
		d.write(p)
	}
	d.held = nil
}

// ask sends a request and waits for its answer, handling what comes before it.
func (d *modelDevice) ask(p packet.Packet, id uint16) bool {
	d.write(p)
	for {
		switch got := d.next().(type) {
		case nil:
			return false
		case *packet.Suback:
			if got.PacketID == id {
				return true
			}
		default:
			d.handle(got, false)
		}
	}
}

func (d *modelDevice) subscribe(filter string) {
	d.m.note("%s subscribes %s", d.name, filter)
	p := &packet.Subscribe{PacketID: 9, Filters: []packet.Subscription{{Filter: []byte(filter), QoS: d.qos}}}
	if d.latest && d.m.rnd.IntN(3) > 0 {
		p.Properties = p.Properties.AppendUser("rialto-order", "latest-first")
	}
	d.maybe[filter] = true
	if d.ask(p, 9) {
		d.filters[filter] = true
	}
}

func (d *modelDevice) unsubscribe(filter string) {
	d.m.note("%s unsubscribes %s", d.name, filter)
	delete(d.filters, filter) // from the moment it is sent nobody knows
	for _, s := range d.m.all {
		s.owed[d.name] = slices.DeleteFunc(s.owed[d.name], func(f string) bool { return f == filter })
	}
	if d.ask(&packet.Unsubscribe{PacketID: 8, Filters: [][]byte{[]byte(filter)}}, 8) {
		delete(d.maybe, filter)
	}
}

// ping takes what is still on its way, up to the answer.
func (d *modelDevice) ping() {
	d.write(&packet.Ping{Kind: packet.TypePingreq})
	for pong := false; !pong; {
		p := d.next()
		_, pong = p.(*packet.Ping)
		if p == nil {
			d.m.fail("%s: the server has closed", d.name)
		}
		d.handle(p, false)
	}
}

// matching returns those of the filters that match a topic <root>/<n>.
func matching(filters map[string]bool, topic string) (all []string) {
	for _, f := range []string{"#", topic, "+" + topic[1:], sharedFilter} {
		if filters[f] {
			all = append(all, f)
		}
	}
	return all
}
