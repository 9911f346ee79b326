// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what has to come. It is never waited for in a test that passes.
const patience = 10 * time.Second

// memoryBus is a bus in memory whose commits can be held back and made to fail.
type memoryBus struct {
	mu      sync.Mutex
	entries []eventlog.Entry // committed
	held    []commit
	hold    bool
	fail    error // of the next commits
	most    int   // commits that were held at once
	trimmed uint64
	cold    bool // nothing is in memory, so to speak
	still   bool // the tail does not hear of what is committed
	changed chan struct{}
	commits func() bool // asked before a commit, under mu; false holds it
}

type commit struct {
	rec  *event.Record
	done func(error)
}

func newMemoryBus() *memoryBus { return &memoryBus{changed: make(chan struct{})} }

func (b *memoryBus) change() {
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *memoryBus) Publish(_ context.Context, _ string, rec *event.Record, done func(error)) error {
	b.mu.Lock()
	if b.hold || b.commits != nil && !b.commits() {
		b.held = append(b.held, commit{rec, done})
		b.most = max(b.most, len(b.held))
		b.change()
		b.mu.Unlock()
		return nil
	}
	err := b.commit(rec)
	b.mu.Unlock()
	done(err)
	return nil
}

func (b *memoryBus) commit(rec *event.Record) error {
	if b.fail != nil {
		return b.fail
	}
	b.entries = append(b.entries, eventlog.Entry{Seq: uint64(len(b.entries)) + 1, Record: rec})
	b.change()
	return nil
}

// set changes the bus under its lock.
func (b *memoryBus) set(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
	b.change()
}

// release commits n held messages; n < 0 all, and those to come.
func (b *memoryBus) release(n int) {
	b.mu.Lock()
	if n < 0 {
		b.hold, n = false, len(b.held)
	}
	var errs []error
	ready := b.held[:n]
	b.held = b.held[n:]
	for _, c := range ready {
		errs = append(errs, b.commit(c.rec))
	}
	b.mu.Unlock()
	for i, c := range ready {
		c.done(errs[i])
	}
}

// await waits until cond, which is asked under the lock.
func (b *memoryBus) await(t testing.TB, what string, cond func() bool) {
	t.Helper()
	timeout := time.After(patience)
	for {
		b.mu.Lock()
		ok, changed := cond(), b.changed
		b.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}

// eventually waits until cond, for what no channel tells.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(patience)
	for !cond() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}

func (b *memoryBus) records() []*event.Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []*event.Record
	for _, e := range b.entries {
		all = append(all, e.Record)
	}
	return all
}

func (b *memoryBus) First() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.trimmed + 1
}

func (b *memoryBus) Committed() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return uint64(len(b.entries))
}

func (b *memoryBus) Hot() uint64 {
	if b.cold {
		return b.Committed() + 1
	}
	return b.First()
}

func (b *memoryBus) Wait(ctx context.Context, after uint64) error {
	for {
		b.mu.Lock()
		n, still, changed := uint64(len(b.entries)), b.still, b.changed
		b.mu.Unlock()
		if n > after && !still {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Scan leaves out what no filter matches, and nothing else.
func (b *memoryBus) Scan(_ context.Context, o eventlog.ScanOptions, dst []eventlog.Entry) (_ []eventlog.Entry, next uint64, looked int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if next = o.From; next <= b.trimmed {
		return dst, next, 0, eventlog.ErrGone
	}
	to := uint64(len(b.entries))
	if o.To > 0 {
		to = min(to, o.To)
	}
	for ; next <= to && o.Max > 0; next++ {
		e := b.entries[next-1]
		looked += 100
		if o.Topics == nil || e.Record.MQTT != nil && slices.ContainsFunc(o.Topics, func(f string) bool { return mqttgw.Matches(f, e.Record.MQTT.Topic) }) {
			dst = append(dst, e)
			o.Max--
		}
	}
	return dst, next, looked, nil
}

// server is a gateway that is served until the test ends.
type server struct {
	t    testing.TB
	bus  *memoryBus
	ln   net.Listener
	stop func() // waits for Serve
	dial func() (net.Conn, error)

	gateway *mqttgw.Gateway

	mu    sync.Mutex
	conns []net.Conn // of the test's clients
}

// cut closes every connection from the clients' side.
func (s *server) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, nc := range s.conns {
		nc.Close()
	}
}

type setup func(*mqttgw.Options)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// startOn serves a gateway on a listener.
func startOn(t testing.TB, ln net.Listener, with ...setup) *server {
	t.Helper()
	s := &server{t: t, bus: newMemoryBus(), ln: ln}
	o := mqttgw.Options{Name: "gw", Publisher: s.bus, Tail: s.bus, Anonymous: true, Logger: quiet()}
	for _, f := range with {
		f(&o)
	}
	g, err := mqttgw.New(o)
	if err != nil {
		t.Fatal(err)
	}
	s.gateway = g
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- g.Serve(ctx, ln) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(s.stop)
	return s
}

// start serves a gateway on a loopback port.
func start(t testing.TB, with ...setup) *server {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := startOn(t, ln, with...)
	s.dial = func() (net.Conn, error) { return net.Dial("tcp", ln.Addr().String()) }
	return s
}

// pipes is a listener whose connections are in memory and hold no byte: a write waits for its reader. They work inside
// synctest.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func startPipes(t testing.TB, with ...setup) *server {
	t.Helper()
	return startPipesOn(t, func(ln net.Listener) net.Listener { return ln }, with...)
}

// startPipesOn is startPipes with a listener on top.
func startPipesOn(t testing.TB, on func(net.Listener) net.Listener, with ...setup) *server {
	t.Helper()
	p := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	s := startOn(t, on(p), with...)
	s.dial = func() (net.Conn, error) {
		a, b := net.Pipe()
		select {
		case p.conns <- b:
			return a, nil
		case <-p.done:
			return nil, net.ErrClosed
		}
	}
	return s
}

// client speaks raw packets.
type client struct {
	net.Conn
	t  testing.TB
	in *packet.Reader
	v  packet.Version
}

// open connects without a CONNECT.
func (s *server) open(v packet.Version) *client {
	s.t.Helper()
	nc, err := s.dial()
	if err != nil {
		s.t.Fatal(err)
	}
	c := &client{Conn: nc, t: s.t, in: packet.NewReader(nc), v: v}
	s.mu.Lock()
	s.conns = append(s.conns, nc)
	s.mu.Unlock()
	s.t.Cleanup(func() { nc.Close() })
	return c
}

// connect connects and requires success.
func (s *server) connect(v packet.Version, id string, with ...func(*packet.Connect)) *client {
	s.t.Helper()
	c, ack := s.tryConnect(v, id, with...)
	if ack.Code != packet.Success {
		s.t.Fatalf("CONNACK %v, want 0x00", ack.Code)
	}
	return c
}

func (s *server) tryConnect(v packet.Version, id string, with ...func(*packet.Connect)) (*client, *packet.Connack) {
	s.t.Helper()
	c := s.open(v)
	p := &packet.Connect{Version: v, CleanStart: true, ClientID: []byte(id)}
	for _, f := range with {
		f(p)
	}
	c.send(p)
	return c, recv[*packet.Connack](c)
}

func (c *client) send(ps ...packet.Packet) {
	c.t.Helper()
	var b []byte
	for _, p := range ps {
		b = p.Append(b, c.v)
	}
	c.raw(b)
}

func (c *client) raw(b []byte) {
	c.t.Helper()
	if err := c.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.Write(b); err != nil {
		c.t.Fatalf("write: %v", err)
	}
}

// next returns the next packet, or nil when the server has closed.
func (c *client) next() packet.Packet {
	c.t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		c.t.Fatal(err)
	}
	first, body, err := c.in.Next(1 << 24)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.t.Fatal("nothing from the server in time")
	case err != nil:
		return nil
	}
	p, err := packet.Decode(first, append([]byte(nil), body...), c.v)
	if err != nil {
		c.t.Fatalf("server sent %02x %x: %v", first, body, err)
	}
	return p
}

// recv requires that the next packet is a P.
func recv[P packet.Packet](c *client) P {
	c.t.Helper()
	p := c.next()
	got, ok := p.(P)
	if !ok {
		c.t.Fatalf("got %T %+v, want %T", p, p, got)
	}
	return got
}

// ack requires an acknowledgement.
func (c *client) ack(kind packet.Type, id uint16, code packet.Reason) {
	c.t.Helper()
	a := recv[*packet.Ack](c)
	if a.Kind != kind || a.PacketID != id || a.Code != code {
		c.t.Fatalf("%v id %d code %v, want %v id %d code %v", a.Kind, a.PacketID, a.Code, kind, id, code)
	}
}

// nothing requires that nothing is on its way: the next packet is the answer to a ping.
func (c *client) nothing() {
	c.t.Helper()
	c.send(&packet.Ping{Kind: packet.TypePingreq})
	recv[*packet.Ping](c)
}

// closed requires that the server closes, MQTT 5 after a DISCONNECT with the code.
func (c *client) closed(code packet.Reason) {
	c.t.Helper()
	if c.v == packet.V5 {
		if d := recv[*packet.Disconnect](c); d.Code != code {
			c.t.Fatalf("DISCONNECT %v, want %v", d.Code, code)
		}
	}
	if p := c.next(); p != nil {
		c.t.Fatalf("%T, want the connection closed", p)
	}
}

// drain reads until the server closes.
func (c *client) drain() {
	c.t.Helper()
	for c.next() != nil {
	}
}

func (c *client) subscribe(qos byte, filters ...string) {
	c.t.Helper()
	p := &packet.Subscribe{PacketID: 1}
	for _, f := range filters {
		p.Filters = append(p.Filters, packet.Subscription{Filter: []byte(f), QoS: qos})
	}
	c.send(p)
	for i, code := range recv[*packet.Suback](c).Codes {
		if code != packet.Reason(qos) {
			c.t.Fatalf("SUBACK %v for %s, want %d", code, filters[i], qos)
		}
	}
}

func publish(topic, payload string, qos byte, id uint16) *packet.Publish {
	return &packet.Publish{Topic: []byte(topic), Payload: []byte(payload), QoS: qos, PacketID: id}
}

// publish publishes with QoS 1 and waits for the PUBACK.
func (c *client) publish(topic, payload string) {
	c.t.Helper()
	c.send(publish(topic, payload, 1, 77))
	c.ack(packet.TypePuback, 77, packet.Success)
}

// message receives a PUBLISH and acknowledges it.
func (c *client) message() *packet.Publish {
	c.t.Helper()
	p := recv[*packet.Publish](c)
	if p.QoS == 1 {
		c.send(&packet.Ack{Kind: packet.TypePuback, PacketID: p.PacketID})
	}
	return p
}

// versions runs a test for both protocol versions.
func versions(t *testing.T, f func(t *testing.T, v packet.Version)) {
	t.Helper()
	t.Run("v3", func(t *testing.T) { f(t, packet.V311) })
	t.Run("v5", func(t *testing.T) { f(t, packet.V5) })
}

func credentials(user, password string) func(*packet.Connect) {
	return func(p *packet.Connect) {
		p.HasUser, p.Username = true, []byte(user)
		p.HasPass, p.Password = true, []byte(password)
	}
}

func props(p packet.Properties) func(*packet.Connect) {
	return func(c *packet.Connect) { c.Properties = p }
}

// metric returns the value of a series with the given label values, in the order of the label names.
func metric(t testing.TB, reg *prometheus.Registry, name string, labels ...string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var values []string
			for _, l := range m.GetLabel() {
				values = append(values, l.GetValue())
			}
			if slices.Equal(values, labels) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no series %s%v", name, labels)
	return 0
}
