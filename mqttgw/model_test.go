// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// The model of sessions. Devices subscribe, acknowledge now or later, lose their connections, are taken over and start
// clean; a publisher publishes; topics move from bus to bus; the process is killed after a random number of commits, over and over. Against what a
// simple model says: with QoS 1 nothing is lost, with QoS 2 everything comes exactly once, and the messages of a topic
// come first in the order in which they were published, whatever bus they are on.

// sent is a published message as the model knows it.
type sent struct {
	topic string
	qos   byte
	seen  map[string]int      // times a device's application got it
	owed  map[string][]string // to a device, by filters that it had and has
}

// modelDevice is a client that behaves, with the session state that MQTT wants of it.
type modelDevice struct {
	m        *model
	name     string
	v        packet.Version
	qos      byte // of all its subscriptions
	receive  uint32
	latest   bool    // some of its subscriptions ask for the latest first
	c        *client // nil = away
	in       chan packet.Packet
	filters  map[string]bool
	session  bool            // the server has to have it
	unclean  bool            // a clean start was not answered
	received map[uint16]bool // QoS 2 ids without PUBREL
	held     []packet.Packet // acknowledgements that it has not sent
	last     map[string]int  // the highest message seen, by topic and QoS
}

type model struct {
	t       *testing.T
	w       *world
	rnd     *rand.Rand
	devices []*modelDevice
	all     []*sent
	log     []string
}

func (m *model) note(format string, args ...any) { m.log = append(m.log, fmt.Sprintf(format, args...)) }

func (m *model) fail(format string, args ...any) {
	m.t.Helper()
	tail := m.log[max(0, len(m.log)-400):]
	m.t.Fatalf("%s\nafter\n%s", fmt.Sprintf(format, args...), strings.Join(tail, "\n"))
}

// open connects without waiting for an answer.
func (d *modelDevice) open(clean bool) (ack *packet.Connack) {
	d.close()
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
	p := &packet.Connect{Version: d.v, CleanStart: clean, ClientID: []byte(d.name)}
	if d.v == packet.V5 {
		p.Properties = p.Properties.AppendInt(packet.SessionExpiry, 1000).AppendInt(packet.ReceiveMaximum, d.receive)
	}
	d.c, d.in = c, in
	d.write(p)
	if got, ok := d.next().(*packet.Connack); ok {
		return got
	}
	d.close()
	return nil
}

func (d *modelDevice) close() {
	if d.c == nil {
		return
	}
	d.c.Close()
	for range d.in {
	}
	d.c, d.held = nil, nil
}

// write sends; a connection that is gone is noticed when reading.
func (d *modelDevice) write(p packet.Packet) {
	d.c.Write(p.Append(nil, d.v)) //nolint:errcheck // see above
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
	d.m.note("%s connects, clean %v", d.name, clean)
	if clean {
		// From the moment it is sent nobody knows.
		d.forget()
	}
	expect, unsure := d.session, clean
	ack := d.open(clean)
	if ack == nil {
		d.session = d.session && !clean
		return false
	}
	if ack.Code != 0 {
		d.m.fail("%s: CONNACK %v", d.name, ack.Code)
	}
	if !unsure && expect && !ack.SessionPresent {
		d.m.fail("%s: the session is lost", d.name)
	}
	if !ack.SessionPresent {
		d.forget()
	}
	d.unclean = false
	d.session = !clean || d.v == packet.V5 // a clean session of 3.1.1 ends with its connection
	return true
}

// forget is the end of a session: nothing is owed any more.
func (d *modelDevice) forget() {
	d.filters, d.received = map[string]bool{}, map[uint16]bool{}
	for _, s := range d.m.all {
		delete(s.owed, d.name)
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
	s := d.m.all[n]
	d.m.note("%s got %d, QoS %d, id %d, DUP %v", d.name, n, p.QoS, p.PacketID, p.Dup)
	if p.QoS != min(s.qos, d.qos) || string(p.Topic) != s.topic {
		d.m.fail("%s got message %d with QoS %d under %s", d.name, n, p.QoS, p.Topic)
	}
	s.seen[d.name]++
	if p.QoS == 2 && s.seen[d.name] > 1 {
		d.m.fail("%s got message %d with QoS 2 twice", d.name, n)
	}
	key := fmt.Sprint(s.topic, p.QoS)
	if s.seen[d.name] == 1 && (!d.latest || p.QoS == 2) {
		if last, ok := d.last[key]; ok && n < last {
			d.m.fail("%s got message %d of %s after %d", d.name, n, s.topic, last)
		}
		d.last[key] = n
	}
}

// read takes at most n packets that are there.
func (d *modelDevice) read(n int) {
	for ; n > 0 && d.c != nil; n-- {
		select {
		case p, ok := <-d.in:
			if !ok {
				d.close()
				return
			}
			d.handle(p, d.m.rnd.IntN(3) == 0)
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
	d.ask(&packet.Unsubscribe{PacketID: 8, Filters: [][]byte{[]byte(filter)}}, 8)
}

// matching returns the filters of the device that match a topic t/<n> or d/<n>.
func (d *modelDevice) matching(topic string) (all []string) {
	for _, f := range []string{"#", topic, "+" + topic[1:]} {
		if d.filters[f] {
			all = append(all, f)
		}
	}
	return all
}

// publish has the publisher publish the next message, however often the process is killed meanwhile.
func (m *model) publish(pub *modelDevice) {
	root := "t"
	if m.w.down != nil && m.rnd.IntN(3) == 0 {
		root = "d" // to DOWN
	}
	s := &sent{topic: fmt.Sprintf("%s/%d", root, m.rnd.IntN(3)), qos: 1 + byte(m.rnd.IntN(2)), seen: map[string]int{}, owed: map[string][]string{}}
	n := len(m.all)
	m.all = append(m.all, s)
	for _, d := range m.devices {
		if d.session {
			s.owed[d.name] = d.matching(s.topic)
		}
	}
	m.note("publish %d to %s with QoS %d", n, s.topic, s.qos)
	id := uint16(1 + n%50)
	stage, dup := packet.TypePublish, false
	for {
		if pub.c == nil && !pub.connect(false) {
			m.kill()
			continue
		}
		if stage == packet.TypePublish {
			pub.write(&packet.Publish{Topic: []byte(s.topic), QoS: s.qos, PacketID: id, Dup: dup, Payload: fmt.Append(nil, n)})
		} else {
			pub.write(&packet.Ack{Kind: packet.TypePubrel, PacketID: id})
		}
		a, ok := pub.next().(*packet.Ack)
		switch {
		case !ok:
			pub.close()
			m.kill()
			dup = true
		case a.Code.Failed() && a.Kind != packet.TypePubcomp:
			m.fail("publish: %v", a.Code)
		case a.Kind == packet.TypePubrec:
			stage = packet.TypePubrel
		default:
			return
		}
	}
}

// kill ends the process, and begins another that will be killed too.
func (m *model) kill() {
	m.note("killed")
	for _, d := range m.devices {
		d.close()
	}
	m.w.kill()
	m.w.arm(1 + m.rnd.IntN(40))
}

// dead reports whether the process has been killed.
func (m *model) dead() bool {
	select {
	case <-m.w.killed:
		return true
	default:
		return false
	}
}

// remap moves topics from bus to bus. Killed meanwhile, the next process finds the mappings as they were to be.
func (m *model) remap() {
	var filters []string
	for _, f := range []string{"t/0", "t/1", "t/2"} {
		if m.rnd.IntN(2) == 0 {
			filters = append(filters, f)
		}
	}
	m.note("%q go to the other bus", filters)
	if err := m.w.remap(filters...); err != nil && !m.dead() {
		m.fail("mappings: %v", err)
	}
}

func (m *model) step(pub *modelDevice) {
	d := m.devices[m.rnd.IntN(len(m.devices))]
	filter := []string{"#", "t/0", "t/1", "+/2", "d/1"}[m.rnd.IntN(5)]
	switch k := m.rnd.IntN(21); {
	case k < 8:
		m.publish(pub)
	case d.c == nil:
		d.connect(m.rnd.IntN(15) == 0)
	case k < 12:
		d.read(1 + m.rnd.IntN(10))
	case k < 14:
		d.settle()
	case k < 16:
		d.subscribe(filter)
	case k < 17 && d.filters[filter]:
		d.unsubscribe(filter)
	case k < 18:
		m.note("%s is cut off", d.name)
		d.close()
	case k < 19: // taken over by itself
		old := d.c
		d.c, d.held = nil, nil
		d.connect(false)
		old.Close()
	default:
		m.remap()
	}
	if m.dead() {
		m.kill()
	}
}

// drain has every device come back and take everything that is owed to it.
func (m *model) drain() {
	m.w.kill()
	for _, d := range m.devices {
		d.close()
		if !d.session {
			continue
		}
		d.connect(false)
		for {
			missing := -1
			for n, s := range m.all {
				if len(s.owed[d.name]) > 0 && s.seen[d.name] == 0 {
					missing = n
					break
				}
			}
			if missing < 0 && len(d.received) == 0 {
				break
			}
			timeout := time.NewTimer(patience)
			select {
			case p := <-d.in:
				if p == nil {
					m.fail("%s: the server has closed, and message %d is owed", d.name, missing)
				}
				d.handle(p, false)
			case <-timeout.C:
				m.fail("%s never got message %d (%+v)", d.name, missing, m.all[max(missing, 0)])
			}
			timeout.Stop()
		}
		d.write(&packet.Ping{Kind: packet.TypePingreq})
		for pong := false; !pong; { // whatever comes now is looked at too
			p := d.next()
			_, pong = p.(*packet.Ping)
			if p == nil {
				m.fail("%s: the server has closed", d.name)
			}
			d.handle(p, false)
		}
		d.close()
	}
}

// stored checks the log: what was published with QoS 2 is there once, in order.
func (m *model) stored() {
	seen := map[string]int{}
	for _, r := range slices.Concat(m.w.bus.records(), m.w.bus2.records(), m.w.down.records(m.t)) {
		if r.MQTT != nil && r.MQTT.QoS == 2 {
			seen[string(r.Event.Data)]++
		}
	}
	for n, s := range m.all {
		if s.qos == 2 && seen[fmt.Sprint(n)] != 1 {
			m.fail("message %d, published with QoS 2, is %d times in the log", n, seen[fmt.Sprint(n)])
		}
	}
}

func TestSessionModel(t *testing.T) {
	runs, steps := 12, 250
	for seed := range runs {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			runModel(t, uint64(seed), steps)
		})
	}
}

func runModel(t *testing.T, seed uint64, steps int) {
	rnd := rand.New(rand.NewPCG(seed, 7))
	limits := mqttgw.Limits{ProgressEvery: 20 * time.Millisecond, MaxInFlight: 1 + rnd.IntN(20), MaxWaiting: 1 + rnd.IntN(10)}
	begin := newWorld
	if seed%3 > 0 {
		begin = newDownWorld
	}
	m := &model{t: t, rnd: rnd, w: begin(t, func(o *mqttgw.Options) { o.Limits = limits })}
	device := func(name string, v packet.Version, qos byte) *modelDevice {
		return &modelDevice{m: m, name: name, v: v, qos: qos, receive: uint32(1 + rnd.IntN(5)), filters: map[string]bool{}, received: map[uint16]bool{}, last: map[string]int{}}
	}
	m.devices = []*modelDevice{device("d1", packet.V311, 1), device("d2", packet.V5, 2), device("d3", packet.V311, 2), device("d4", packet.V5, 1)}
	m.devices[1].latest, m.devices[3].latest = seed%2 == 0, seed%4 < 3
	pub := device("pub", packet.V5, 2)
	m.devices = append(m.devices, pub)
	devices := m.devices[:4]
	m.devices = devices
	defer pub.close()
	defer func() {
		for _, d := range devices {
			d.close()
		}
	}()
	m.w.bus.cold, m.w.bus2.cold = seed%2 == 1, seed%2 == 1 // what is behind rides the shared scan; from the first kill on
	m.w.arm(1 + rnd.IntN(40))
	for range steps {
		m.step(pub)
	}
	pub.close()
	m.drain()
	m.stored()
}
