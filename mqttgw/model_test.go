// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// The model of sessions. Devices subscribe, acknowledge now or later, disconnect, lose their connections, are taken over and start
// clean; some are members of a shared subscription; a publisher publishes; time passes; topics move from bus to bus; the process is killed
// after a random number of commits, over and over. Against what a simple model says:
//
//   - with QoS 1 nothing is lost, with QoS 2 everything comes exactly once, and the messages of a topic come first in the order in which
//     they were published, whatever bus they are on; nothing comes to which the session was not subscribed;
//   - a session is there until it expires, and then nothing of it is;
//   - a message that expires before it could be sent does not come;
//   - a will is in the log if the client was lost or said so, and not after a normal DISCONNECT, unless the client was back while the bus
//     took none;
//   - each message of the shared group is taken by a member, one with QoS 2 by exactly one, whoever else is away.

// sent is a published message, or a will, as the model knows it. Devices are named; the shared group has the name of its filter.
type sent struct {
	topic  string
	qos    byte
	at     time.Duration       // when it was published
	expiry time.Duration       // 0 = never
	will   *count              // nil = a message of the publisher
	may    map[string]bool     // who may get it
	seen   map[string]int      // times an application got it
	taken  map[string]bool     // it was acknowledged; with QoS 2: got
	unsent map[string]bool     // devices to which it was surely not sent yet
	owed   map[string][]string // to whom, by filters that they had and have
}

// sharedFilter is what members of the group subscribe to.
const sharedFilter = "$share/g/#"

type model struct {
	t       *testing.T
	seed    uint64
	w       *world
	rnd     *rand.Rand
	clock   atomic.Int64 // nanoseconds since the beginning
	pub     *modelDevice
	devices []*modelDevice
	all     []*sent
	log     []string
	faults  faults
	full    atomic.Bool // the buses take no wills
}

// nearlyFull are buses that take no wills while they are full.
type nearlyFull struct {
	mqttgw.Publisher
	full *atomic.Bool
}

func (b nearlyFull) Publish(ctx context.Context, bus string, rec *event.Record, done func(error)) error {
	if b.full.Load() && rec.MQTT != nil && strings.HasPrefix(rec.MQTT.Topic, "w/") {
		return errFull
	}
	return b.Publisher.Publish(ctx, bus, rec, done)
}

// faults is the log of the servers, of which it keeps the programming errors.
type faults struct {
	mu   sync.Mutex
	text []byte // guarded by mu
}

func (f *faults) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("programming error")) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.text = append(f.text, line...)
	}
	return len(line), nil
}

func (f *faults) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return string(f.text)
}

func (m *model) note(format string, args ...any) { m.log = append(m.log, fmt.Sprintf(format, args...)) }

func (m *model) fail(format string, args ...any) {
	m.t.Helper()
	tail := m.log[max(0, len(m.log)-400):]
	m.t.Fatalf("seed %d: %s\nafter\n%s\n%s%s", m.seed, fmt.Sprintf(format, args...), strings.Join(tail, "\n"), m.faults.String(), m.w.now.gateway.Dump())
}

// add makes a message that is published now.
func (m *model) add(topic string, qos byte) *sent {
	s := &sent{topic: topic, qos: qos, at: m.now(), may: map[string]bool{}, seen: map[string]int{}, taken: map[string]bool{}, unsent: map[string]bool{}, owed: map[string][]string{}}
	m.all = append(m.all, s)
	return s
}

// publish has the publisher publish the next message, however often the process is killed meanwhile.
func (m *model) publish() {
	root := "t"
	if m.w.down != nil && m.rnd.IntN(3) == 0 {
		root = "d" // to DOWN
	}
	n, pub := len(m.all), m.pub
	s := m.add(fmt.Sprintf("%s/%d", root, m.rnd.IntN(3)), 1+byte(m.rnd.IntN(2)))
	p := &packet.Publish{Topic: []byte(s.topic), QoS: s.qos, PacketID: uint16(1 + n%50), Payload: fmt.Append(nil, n)}
	if m.rnd.IntN(3) == 0 {
		expiry := []uint32{5, 20}[m.rnd.IntN(2)]
		s.expiry, p.Properties = seconds(expiry), p.Properties.AppendInt(packet.MessageExpiry, expiry)
	}
	for _, d := range m.devices {
		if surely, _ := d.alive(); surely {
			s.owed[d.owner()] = append(s.owed[d.owner()], matching(d.filters, s.topic)...)
		}
		s.may[d.owner()] = s.may[d.owner()] || len(matching(d.maybe, s.topic)) > 0
		s.unsent[d.name] = d.noticed
	}
	m.note("publish %d to %s with QoS %d, expiry %v", n, s.topic, s.qos, s.expiry)
	stage := packet.TypePublish
	for {
		if pub.c == nil && !pub.connect(false) {
			m.kill()
			continue
		}
		if stage == packet.TypePublish {
			pub.write(p)
		} else {
			pub.write(&packet.Ack{Kind: packet.TypePubrel, PacketID: p.PacketID})
		}
		a, ok := pub.next().(*packet.Ack)
		switch {
		case !ok:
			m.kill()
			p.Dup = true
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
	m.killFor(1 + m.rnd.IntN(40))
}

// killFor ends the process, and begins another that will be killed after so many commits.
func (m *model) killFor(commits int) {
	m.note("killed")
	for _, d := range append([]*modelDevice{m.pub}, m.devices...) {
		d.close()
		d.session.killed(m.now())
		d.noticed = true
		for _, s := range d.armed {
			s.will.most++ // that it was sent, or is to be deleted, may not have been written down
		}
	}
	m.w.kill()
	m.w.arm(commits)
	m.review()
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
	for _, f := range []string{"t/0", "t/1", "t/2", "w/#"} {
		if m.rnd.IntN(2) == 0 {
			filters = append(filters, f)
		}
	}
	m.note("%q go to the other bus", filters)
	if err := m.w.remap(filters...); err != nil && !m.dead() {
		m.fail("mappings: %v", err)
	}
}

func (m *model) step() {
	d := m.devices[m.rnd.IntN(len(m.devices))]
	filter := []string{"#", "t/0", "t/1", "+/2", "d/1"}[m.rnd.IntN(5)]
	if d.member {
		filter = sharedFilter
	}
	switch k := m.rnd.IntN(25); {
	case k < 8:
		m.publish()
	case k < 9:
		m.pass()
	case k == 24:
		m.full.Store(m.rnd.IntN(3) == 0)
		m.note("wills are refused: %v", m.full.Load())
	case d.c == nil:
		d.connect(m.rnd.IntN(15) == 0)
	case k < 13:
		d.read(1+m.rnd.IntN(10), func() bool { return m.rnd.IntN(3) == 0 })
	case k < 15:
		d.settle()
	case k < 17:
		d.subscribe(filter)
	case k < 18 && d.filters[filter]:
		d.unsubscribe(filter)
	case k < 19:
		d.cutOff()
	case k < 20:
		d.takeOver()
	case k < 22:
		d.leave()
	default:
		m.remap()
	}
	if m.dead() {
		m.kill()
	}
	m.review()
	if m.faults.String() != "" {
		m.fail("the server has a fault")
	}
}

// drain has the devices come back and take everything that is owed: first one member of the group alone, then all.
func (m *model) drain() {
	m.full.Store(false)
	m.killFor(-1)
	var back, members []*modelDevice
	for _, d := range m.devices {
		if surely, _ := d.alive(); surely {
			back = append(back, d)
			if d.filters[sharedFilter] {
				members = append(members, d)
			}
		}
	}
	if len(members) > 0 {
		one := members[m.rnd.IntN(len(members))]
		one.connect(false)
		m.take([]*modelDevice{one}, func(s *sent, owner string) bool { return owner == sharedFilter && min(s.qos, one.qos) == 1 })
		one.leave()
	}
	for _, d := range back {
		if d.c == nil {
			d.connect(false)
		}
	}
	m.take(back, func(*sent, string) bool { return true })
	for _, d := range back {
		d.ping() // whatever comes now is looked at too
	}
}

// take has devices take what is there until nothing is missing of what is wanted.
func (m *model) take(from []*modelDevice, wanted func(s *sent, owner string) bool) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		missing := m.missing(wanted)
		for _, d := range from {
			d.read(1000, func() bool { return false })
			if d.c == nil {
				m.fail("%s: the server has closed, and %s", d.name, missing)
			}
			if len(d.received) > 0 {
				missing = d.name + " has no PUBREL"
			}
		}
		if missing == "" {
			return
		}
		select {
		case <-tick.C:
		case <-timeout.C:
			m.fail("%s", missing)
		}
	}
}

// missing says what is owed of what is wanted; "" = nothing.
func (m *model) missing(wanted func(s *sent, owner string) bool) string {
	for n, s := range m.all {
		for owner, filters := range s.owed {
			if len(filters) > 0 && !s.taken[owner] && wanted(s, owner) {
				return fmt.Sprintf("%s never got message %d (%+v)", owner, n, s)
			}
		}
	}
	return ""
}

// stored checks the log: what was published is there, with QoS 2 once, wills as often as they may be, and nobody was told of a loss.
func (m *model) stored() {
	seen := map[string]int{}
	for _, r := range slices.Concat(m.w.bus.records(), m.w.bus2.records(), m.w.down.records(m.t)) {
		if r.MQTT != nil {
			seen[string(r.Event.Data)]++
		} else if r.Event.Type == mqttgw.EventGap {
			m.fail("a gap is said: %s", r.Event.Data)
		}
	}
	for n, s := range m.all {
		want := count{1, 1}
		if s.qos == 1 {
			want.most = math.MaxInt
		}
		if s.will != nil {
			want = *s.will
		}
		if got := seen[fmt.Sprint(n)]; got < want.least || got > want.most {
			m.fail("message %d, published with QoS %d to %s, is %d times in the log, want %d to %d", n, s.qos, s.topic, got, want.least, want.most)
		}
	}
}

// TestSessionModel runs the model with some seeds, always the same, or with as many as RIALTO_MODEL_RUNS says.
func TestSessionModel(t *testing.T) {
	runs, steps := 16, 300
	if text := os.Getenv("RIALTO_MODEL_RUNS"); text != "" {
		var err error
		if runs, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
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
	m := &model{t: t, seed: seed, rnd: rnd}
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	m.w = begin(t, func(o *mqttgw.Options) {
		o.Limits, o.Now = limits, func() time.Time { return epoch.Add(m.now()) }
		o.Logger = slog.New(slog.NewTextHandler(&m.faults, nil))
		o.Publisher = nearlyFull{o.Publisher, &m.full}
	})
	m.people()
	defer func() {
		for _, d := range append(m.devices, m.pub) {
			d.close()
		}
	}()
	m.w.bus.cold, m.w.bus2.cold = seed%2 == 1, seed%2 == 1 // what is behind rides the shared scan; from the first kill on
	m.w.arm(1 + rnd.IntN(40))
	for range steps {
		m.step()
	}
	m.drain()
	m.stored()
}

// people makes the devices and the publisher.
func (m *model) people() {
	device := func(name string, v packet.Version, qos byte) *modelDevice {
		return &modelDevice{m: m, name: name, v: v, qos: qos, receive: 1 + m.rnd.Uint32N(5), expiries: []uint32{0, 10, 10, 1000, 1000, 1000}, wills: true,
			filters: map[string]bool{}, maybe: map[string]bool{}, received: map[uint16]bool{}, last: map[string]int{}}
	}
	m.devices = []*modelDevice{device("d1", packet.V311, 1), device("d2", packet.V5, 2), device("d3", packet.V311, 2), device("d4", packet.V5, 1)}
	m.devices[1].latest, m.devices[3].latest = m.seed%2 == 0, m.seed%4 < 3
	shared := 1 + byte(m.seed/2%2)
	for i, v := range []packet.Version{packet.V311, packet.V5, packet.V5} {
		d := device(fmt.Sprint("m", i), v, shared)
		d.member = true
		m.devices = append(m.devices, d)
	}
	m.pub = device("pub", packet.V5, 2)
	m.pub.expiries, m.pub.wills = []uint32{100_000}, false
}
