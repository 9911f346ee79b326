// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// sessionKey is what a client id belongs to: one principal's client ids are not another's.
type sessionKey struct{ principal, clientID string }

// conn is one connection. The goroutine of serve reads; a goroutine of write exists while there is something to write, or
// something that its session has to catch up with.
type conn struct {
	g    *Gateway
	nc   net.Conn
	addr netip.Addr
	in   *packet.Reader

	light bool // a read of nc needs little stack
	calm  bool // the reader's; the last packet was one after which it may rest

	// Set by connect, before anybody else sees the connection.
	version     packet.Version
	key         sessionKey
	established bool // CONNECT was accepted
	source      string
	keepAlive   time.Duration // after which silence ends the connection; 0 = never
	maxPacket   int           // the client's Maximum Packet Size
	tellWhy     bool          // the client wants reason strings
	expiring    bool          // the client asked for a session that outlives the connection
	aliasMax    uint16        // topic aliases that the client allows
	will        *will         // of the CONNECT, until the session has it
	session     *session      // nil until CONNECT is accepted
	since       int64         // when CONNECT came, in Unix nanoseconds
	enhanced    bool          // the client has connected with enhanced authentication
	expiry      *time.Timer   // ends the connection when its identity does; nil = never; the reader's

	aliases map[uint16]string // inbound topic aliases; the reader's

	kin  kinship // guarded by Gateway.mu
	peer *conn   // guarded by Gateway.mu; the next that has the same client id
	over *conn   // guarded by Gateway.mu; whose client id this one waits for, or gave up to wait for; nil = it has it

	lastSeen atomic.Int64           // when the last packet came, in Unix nanoseconds
	rights   atomic.Pointer[rights] // nil = everything is allowed
	quota    atomic.Pointer[quota]  // of publishes, which other connections may share; nil = none; changed under mu

	mu          sync.Mutex        // taken inside the session's
	room        *sync.Cond        // guarded by mu; of mu; nil until somebody waits: for the admission of the next packet, or the writer's end
	waiters     int               // guarded by mu; who waits on room
	out         outbox            // guarded by mu
	sentAliases map[string]uint16 // guarded by mu; outbound topic aliases
	uplink      uplink            // guarded by mu; see publish.go
	uncommitted int               // guarded by mu; answers that wait for their record
	whyText     string            // guarded by mu; for the client
	held        *session          // guarded by mu; session, for others than the reader
	who         *identity         // guarded by mu; what it was judged by last
	standing    standing          // guarded by mu; what the directory said then
	why         *packet.Reason    // guarded by mu; set once: this side ends the connection, and says so to an MQTT 5 client
	stalled     bool              // guarded by mu; why is that the client did not read for WriteTimeout
	ended       bool              // guarded by mu; nothing is queued any more
	gone        chan struct{}     // guarded by mu; made by who waits for detached
	detached    bool              // guarded by mu; off its session, will handed over
}

func newConn(g *Gateway, nc net.Conn, addr netip.Addr) *conn {
	c := &conn{g: g, nc: nc, addr: addr, in: packet.NewReader(nc), maxPacket: 1 << 28}
	_, c.light = nc.(*net.TCPConn)
	c.calm = c.light
	if err := limitUnsent(nc); err != nil {
		g.log.Debug("limit what the kernel holds for a client", "err", err)
	}
	return c
}

// serve is the reader and owns the connection: it returns when nothing of it is left, or another goroutine has become the
// reader (see rest).
func (c *conn) serve() { c.attend(c.connect) }

// attend is serve from any packet on; proceed says whether there is one.
func (c *conn) attend(proceed func() bool) {
	clean, resting := false, false
	defer func() {
		if resting {
			go c.rest()
			return
		}
		c.finish(clean)
		c.g.forget(c)
	}()
	defer func() {
		if r := recover(); r != nil {
			c.g.metrics.panics.Inc()
			c.g.log.Error("connection ended by a programming error", "clientId", c.key.clientID, "err", r, "stack", string(debug.Stack()))
			c.end(packet.UnspecifiedError)
		}
	}()
	if proceed() {
		clean, resting = c.read()
	}
}

// rest is the reader of a connection on which nothing happens: a goroutine of its own, because what waits needs a stack of
// 2 KiB, what handles packets has grown it to 4 KiB or more, and stacks hardly shrink. Half of what an idle connection
// takes is its stack.
func (c *conn) rest() {
	c.in.Await()
	c.wakeUp()
}

//go:noinline
func (c *conn) wakeUp() { c.attend(func() bool { return true }) }

// restAfter reports whether a connection is likely to be idle after a packet. One that publishes, or acknowledges what it
// gets, will do so again, and a new goroutine for each packet would cost more than the stack.
func restAfter(t packet.Type) bool {
	switch t {
	case packet.TypeSubscribe, packet.TypeUnsubscribe, packet.TypePingreq:
		return true
	}
	return false
}

// errClosing is the error of read when this side ends the connection.
var errClosing = errors.New("connection is being closed")

// read handles packets until the connection ends, or rests. clean is true after a DISCONNECT that deletes the will.
func (c *conn) read() (clean, resting bool) {
	limit := c.g.limits.MaxPacket
	for {
		if err := c.ready(limit); err != nil {
			return false, false
		}
		if c.calm && c.in.Empty() {
			c.calm = false
			return false, true
		}
		first, body, err := c.in.Next(limit)
		if err != nil {
			c.readFailed(err)
			return false, false
		}
		clean, err := c.handle(first, body)
		if clean {
			return true, false
		}
		if err != nil {
			c.refuse(err)
			return false, false
		}
		c.calm = c.light && restAfter(packet.TypeOf(first))
	}
}

// ready waits until another packet may be taken: the window of unacknowledged messages has room, and the answers do not
// pile up. Deliveries stop at MaxOutbound, so only answers can reach twice that: a client that reads nothing but
// acknowledges messages is still listened to. ready then sets the time by which the packet has to be there.
func (c *conn) ready(limit int) error {
	c.lastSeen.Store(c.g.now().UnixNano())
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.why == nil && !c.out.broken && (c.uplink.full(&c.g.limits) || c.out.size > 2*c.g.limits.MaxOutbound || c.uncommitted >= maxUncommitted) {
		c.wait()
	}
	if c.why != nil || c.out.broken {
		return errClosing
	}
	if c.keepAlive > 0 && !c.in.Ready(limit) {
		// Under mu, so that end's deadline in the past is not overwritten.
		return c.nc.SetReadDeadline(time.Now().Add(c.keepAlive))
	}
	return nil
}

// maxUncommitted bounds what a connection may have waiting for the recorder, beside messages.
const maxUncommitted = 64

// wait waits for room. mu is held.
func (c *conn) wait() {
	if c.room == nil {
		c.room = sync.NewCond(&c.mu)
	}
	c.waiters++
	c.room.Wait()
	c.waiters--
}

// wake wakes who waits for room. mu is held.
func (c *conn) wake() {
	if c.waiters > 0 {
		c.room.Broadcast()
	}
}

func (c *conn) readFailed(err error) {
	var refused *packet.Error
	switch {
	case errors.As(err, &refused):
		c.refuse(err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.endSilent()
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
	default:
		c.g.log.Debug("connection lost", "clientId", c.key.clientID, "err", err)
	}
}

// endSilent ends the connection when the reader's deadline has passed: no packet came in time, unless end or the writer has set the
// deadline.
func (c *conn) endSilent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.out.broken {
		c.endLocked(packet.KeepAliveTimeout)
	}
}

// refuse ends the connection for what the client sent.
func (c *conn) refuse(err error) {
	code := packet.UnspecifiedError
	var refused *packet.Error
	if errors.As(err, &refused) {
		code = refused.Code
	}
	if !errors.Is(err, errClosing) {
		c.g.log.Debug("client broke the protocol", "clientId", c.key.clientID, "reason", code.String(), "err", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why == nil {
		c.whyText = detailOf(err)
	}
	c.endLocked(code)
}

// handle handles one packet after CONNECT. The error is an *packet.Error, or errClosing.
func (c *conn) handle(first byte, body []byte) (clean bool, err error) {
	switch packet.TypeOf(first) {
	case packet.TypePublish:
		return false, c.takePublish(first, body)
	case packet.TypePuback:
		return false, c.takePuback(first, body)
	case packet.TypePubrel:
		return false, c.takePubrel(first, body)
	case packet.TypePubrec:
		return false, c.takePubrec(first, body)
	case packet.TypePubcomp:
		return false, c.takePubcomp(first, body)
	case packet.TypeSubscribe:
		return false, c.takeSubscribe(first, body)
	case packet.TypeUnsubscribe:
		return false, c.takeUnsubscribe(first, body)
	case packet.TypePingreq:
		var p packet.Ping
		if err := p.Decode(first, body, c.version); err != nil {
			return false, err
		}
		c.send(&packet.Ping{Kind: packet.TypePingresp})
		return false, nil
	case packet.TypeAuth:
		return false, c.takeAuth(first, body)
	case packet.TypeDisconnect:
		return c.takeDisconnect(first, body)
	}
	// Whatever is malformed is told so first.
	p, err := packet.Decode(first, body, c.version)
	if err != nil {
		return false, err
	}
	return false, &packet.Error{Code: packet.ProtocolError, Detail: p.Type().String() + " is not expected from a client"}
}

func (c *conn) takeDisconnect(first byte, body []byte) (clean bool, err error) {
	var p packet.Disconnect
	if err := p.Decode(first, body, c.version); err != nil {
		return false, err
	}
	expiry, changed := p.Properties.Find(packet.SessionExpiry)
	if expiry.Int > 0 && !c.expiring {
		return false, &packet.Error{Code: packet.ProtocolError, Detail: "session expiry in DISCONNECT after none in CONNECT"}
	}
	if _, ok := p.Properties.Find(packet.ServerReference); ok {
		return false, &packet.Error{Code: packet.ProtocolError, Detail: "server reference from a client"}
	}
	if changed {
		c.setExpiry(c.g.limits.sessionExpiry(expiry.Int))
	}
	c.endSilently()
	return p.Code == packet.Success, nil
}

// setExpiry changes how long the session outlives the connection.
func (c *conn) setExpiry(seconds uint32) {
	s := c.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expiry == seconds || s.expiry == 0 {
		return
	}
	s.expiry = seconds
	if s.recorded && seconds > 0 { // with 0 it ends now
		s.record(s.whole(), nil)
	}
}

// send queues a packet, unless the connection is ending.
func (c *conn) send(p packet.Packet) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue(p)
}

// queue is send with mu held.
func (c *conn) queue(p packet.Packet) {
	if c.ended || c.out.broken {
		return
	}
	before := len(c.out.chunk)
	c.out.grow()
	c.out.chunk = p.Append(c.out.chunk, c.version)
	c.out.size += len(c.out.chunk) - before
	c.startWriter()
}

// queueFirst queues a packet before everything, also before what is urgent and comes later. mu is held.
func (c *conn) queueFirst(p packet.Packet) {
	before := len(c.out.urgent)
	c.out.urgent = p.Append(c.out.urgent, c.version)
	c.out.size += len(c.out.urgent) - before
}

// sendFirst is send with queueFirst.
func (c *conn) sendFirst(p packet.Packet) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || c.out.broken {
		return
	}
	c.queueFirst(p)
	c.startWriter()
}

// end makes this side end the connection: the reader stops, and finish says goodbye. The first reason counts. It does not
// block.
func (c *conn) end(code packet.Reason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(code)
}

// endLocked is end with mu held.
func (c *conn) endLocked(code packet.Reason) {
	if c.why != nil {
		return
	}
	c.why = &code
	c.wake()
	c.interrupt()
}

// endSilently is end after the client's own DISCONNECT, which is not answered.
func (c *conn) endSilently() { c.end(packet.Success) }

// interrupt makes a read that is under way, and every later one, return. mu is held.
func (c *conn) interrupt() {
	if err := c.nc.SetReadDeadline(longAgo); err != nil && !errors.Is(err, net.ErrClosed) {
		c.g.log.Debug("interrupt reader", "err", err)
	}
}

var longAgo = time.Unix(1, 0)

const (
	lingerTime = time.Second     // for the client to read the last packet and close
	settleTime = 2 * time.Second // for the last packets to be written, and for a will to be taken
)

// finish leaves the session, says goodbye, and waits for the writer. clean tells whether the will is dropped.
func (c *conn) finish(clean bool) {
	if c.expiry != nil {
		c.expiry.Stop()
	}
	c.detach(clean)
	if c.shuttingDown() {
		c.awaitAcks()
	}
	polite := c.lastWords()
	if polite {
		// The writer gets a moment for what is queued; then it fails.
		timer := time.AfterFunc(settleTime, c.closeSocket)
		c.awaitWriter()
		timer.Stop()
		c.halfClose()
	}
	c.closeSocket()
	c.awaitWriter()
	if c.established {
		c.g.metrics.connections.Dec()
	}
}

func (c *conn) closeSocket() {
	if err := c.nc.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		c.g.log.Debug("close connection", "err", err)
	}
}

func (c *conn) awaitWriter() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.out.writing {
		c.wait()
	}
}

func (c *conn) shuttingDown() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.why != nil && *c.why == packet.ServerShuttingDown
}

// awaitAcks waits for the commits of what the client has published, so that they can be acknowledged, while the gateway's
// life lasts.
func (c *conn) awaitAcks() {
	stop := context.AfterFunc(c.g.life, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.uplink.abandoned = true
		c.wake()
	})
	defer stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.uplink.bytes > 0 && !c.uplink.abandoned && !c.out.broken {
		c.wait()
	}
}

// lastWords queues the DISCONNECT that this side owes, and reports whether the peer should get the time to read it.
func (c *conn) lastWords() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why == nil || *c.why == packet.Success || c.out.broken {
		// The client has left.
		c.ended, c.out.broken = true, true
		return false
	}
	if c.established && c.version == packet.V5 {
		c.queue(&packet.Disconnect{Kind: packet.TypeDisconnect, Code: *c.why, Properties: c.because(c.whyText)})
	}
	c.ended = true
	return true
}

// halfClose closes our direction and reads until the client has closed too, for a second at most: closing with unread
// data in the socket would reset the connection, and the reason would be lost.
func (c *conn) halfClose() {
	half, ok := c.nc.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	if err := c.nc.SetReadDeadline(time.Now().Add(lingerTime)); err != nil {
		return
	}
	var scrap [512]byte
	for {
		if _, err := c.nc.Read(scrap[:]); err != nil {
			return
		}
	}
}

// detach leaves the session: no more deliveries, the will is handed over, the client id is free.
func (c *conn) detach(clean bool) {
	c.announceEnd()
	c.leave(clean)
	c.g.release(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.detached = true
	c.g.quotas.drop(c.quota.Swap(nil), c.g.now())
	if c.gone != nil {
		close(c.gone)
	}
}

// whenDetached returns a channel that is closed once the session has ended.
func (c *conn) whenDetached() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone == nil {
		c.gone = make(chan struct{})
		if c.detached {
			close(c.gone)
		}
	}
	return c.gone
}
