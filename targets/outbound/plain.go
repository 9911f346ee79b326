// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/targets"
)

const (
	// maxPlainBody is the largest message that is written before the answer is looked at. A far side that answers before it
	// has read a larger one, and waits for its answer to be read, would wait for ever.
	maxPlainBody = 32 << 10
	// lookAfter is how long a connection has to be idle before it is looked at whether the far side has closed it.
	lookAfter = 50 * time.Millisecond
)

var (
	errHeadTooLarge = fmt.Errorf("head of the answer is larger than %d bytes", maxHeaderBytes)
	longAgo         = time.Unix(1, 0)
)

// plain exchanges small messages over HTTP/1.1 without TLS: the goroutine that sends a message also writes it and reads
// the answer. The transport of net/http hands a message to a goroutine of the connection and gets the answer from another
// one, which for a small message is half of what an attempt costs. What plain does not do itself it leaves to next.
//
// It is safe for concurrent use, and starts no goroutine.
type plain struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	keep int           // connections that may be idle
	look time.Duration // lookAfter, but in tests
	next *http.Transport

	mu     sync.Mutex   // guards all below
	idle   []*plainConn // the one that was used last is at the end
	reaper *time.Timer  // set while something is idle
	unused bool         // idle connections were closed, and nothing has been sent since
}

// plainConn is a connection. It belongs to the exchange that uses it, or to the idle ones.
type plainConn struct {
	net.Conn
	address string
	in      *bufio.Reader
	room    int // bytes that the head of an answer may still take; negative = no limit
	reused  bool
	since   time.Time // it has been idle

	shared context.Context // what the attempts over it end with; nil before the first
	leave  func() bool     // ends looking out for that
}

// Close closes the connection.
func (c *plainConn) Close() error {
	if c.leave != nil {
		c.leave()
	}
	return c.Conn.Close()
}

var errLeft = errors.New("connection belonged to attempts that were given up")

// follow has the connection wake who reads or writes when an attempt is over. An error says that it is, or that the connection
// cannot be used for it.
func (c *plainConn) follow(w *targets.Within) error {
	if shared := w.Shared(); c.shared != shared {
		if err := c.unfollow(); err != nil {
			return err
		}
		c.shared = shared
		c.leave = context.AfterFunc(shared, func() { _ = c.SetDeadline(longAgo) })
	}
	end, _ := w.Deadline()
	if err := c.SetDeadline(end); err != nil {
		return err
	}
	return w.Err() // looked at last: if it ends now, the deadline is set anew
}

// unfollow takes back what follow did.
func (c *plainConn) unfollow() error {
	if c.leave == nil {
		return nil
	}
	if !c.leave() {
		return errLeft
	}
	c.shared, c.leave = nil, nil
	return c.SetDeadline(time.Time{})
}

// Read is for in.
func (c *plainConn) Read(p []byte) (int, error) {
	if c.room == 0 {
		return 0, errHeadTooLarge
	}
	if c.room > 0 && len(p) > c.room {
		p = p[:c.room]
	}
	n, err := c.Conn.Read(p)
	if c.room > 0 {
		c.room -= n
	}
	return n, err
}

// requests are what messages are written into.
var requests = sync.Pool{New: func() any { return new(make([]byte, 0, 4<<10)) }}

// write sends a message in one piece.
func (c *plainConn) write(m *Message) error {
	buf := requests.Get().(*[]byte)
	defer requests.Put(buf)
	*buf = m.append((*buf)[:0])
	_, err := c.Write(*buf)
	return err
}

// RoundTrip implements http.RoundTripper: who does not say Exchange gets the transport of net/http.
func (p *plain) RoundTrip(req *http.Request) (*http.Response, error) { return p.next.RoundTrip(req) }

// takes reports whether p exchanges a message itself.
func (p *plain) takes(m *Message) bool {
	return m.URL.Scheme == "http" && m.URL.Hostname() != "" && isASCII(m.URL.Host) && !strings.Contains(m.URL.Host, "%") && m.Method == http.MethodPost && len(m.Body) <= maxPlainBody
}

// send exchanges a message. One that a kept connection has not brought to the far side, as far as one can tell (it was
// closed before any byte of an answer), is sent once more over a new one.
func (p *plain) send(a *attempt, m *Message) (*http.Response, error) {
	address := m.URL.Host
	if m.URL.Port() == "" {
		address = net.JoinHostPort(m.URL.Hostname(), "80")
	}
	c := p.take(address)
	for {
		if c == nil {
			var err error
			if c, err = p.connect(a, address); err != nil {
				return nil, err
			}
		}
		resp, answered, err := p.exchange(a, c, m)
		if err == nil {
			return resp, nil
		}
		_ = c.Close() // the error of the exchange is the one that counts
		if answered || !c.reused || a.Err() != nil {
			return nil, err
		}
		c = nil
	}
}

// posted is what an answer is read for: its form depends on the method alone.
var posted = &http.Request{Method: http.MethodPost}

// exchange sends a message and reads the head of the answer. answered says whether anything came back.
func (p *plain) exchange(a *attempt, c *plainConn, m *Message) (resp *http.Response, answered bool, err error) {
	a.conn = c.Conn
	stop := func() bool { return true }
	if w, ok := a.Context.(*targets.Within); ok {
		if err := c.follow(w); err != nil {
			return nil, false, err
		}
	} else {
		if err := c.unfollow(); err != nil {
			return nil, false, err
		}
		stop = context.AfterFunc(a.Context, func() { _ = c.SetDeadline(longAgo) }) // wakes who reads or writes, below and in the body
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	c.room = maxHeaderBytes
	sent := c.write(m)
	// Even who does not read all of a message may answer it.
	if _, err := c.in.Peek(1); err != nil {
		if sent != nil {
			err = sent
		}
		return nil, false, err
	}
	a.firstByte()
	for resp == nil || resp.StatusCode < 200 && resp.StatusCode != http.StatusSwitchingProtocols {
		if resp, err = http.ReadResponse(c.in, posted); err != nil {
			if c.room == 0 {
				err = errHeadTooLarge
			} else if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, true, err
		}
	}
	c.room = -1
	b := &plainBody{body: resp.Body, p: p, c: c, stop: stop, again: sent == nil && !resp.Close && resp.StatusCode >= 200}
	resp.Body = b
	if resp.ContentLength == 0 || resp.StatusCode < 200 {
		b.end(true)
		resp.Body = http.NoBody
	}
	return resp, true, nil
}

// plainBody is the body of an answer. The connection is free again when all of it was read.
type plainBody struct {
	body  io.ReadCloser
	p     *plain
	c     *plainConn // nil once it was let go
	stop  func() bool
	again bool // the far side keeps the connection
}

func (b *plainBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if err != nil {
		b.end(errors.Is(err, io.EOF))
	}
	return n, err
}

// Close lets the connection go. One whose answer was not read to the end is closed.
func (b *plainBody) Close() error {
	b.end(false)
	return nil
}

func (b *plainBody) end(whole bool) {
	c := b.c
	if c == nil {
		return
	}
	b.c = nil
	if b.stop() && whole && b.again && c.in.Buffered() == 0 {
		b.p.put(c)
		return
	}
	_ = c.Close() // the answer is there, or its reader knows that it is not
}

func (p *plain) connect(ctx context.Context, address string) (*plainConn, error) {
	conn, err := p.dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c := &plainConn{Conn: conn, address: address}
	c.in = bufio.NewReader(c)
	return c, nil
}

// take returns an idle connection, or nil.
func (p *plain) take(address string) *plainConn {
	for {
		c := p.pop(address)
		if c == nil {
			return nil
		}
		idle := time.Since(c.since)
		if idle < p.look || idle < idleTimeout && c.SetDeadline(time.Time{}) == nil && quiet(c.Conn) {
			c.reused = true
			return c
		}
		_ = c.Close() // the far side has, or has said what nobody asked for
	}
}

func (p *plain) pop(address string) *plainConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unused = false
	for i := len(p.idle) - 1; i >= 0; i-- {
		if c := p.idle[i]; c.address == address {
			last := len(p.idle) - 1
			copy(p.idle[i:], p.idle[i+1:])
			p.idle[last] = nil
			p.idle = p.idle[:last]
			return c
		}
	}
	return nil
}

func (p *plain) put(c *plainConn) {
	c.since = time.Now()
	p.mu.Lock()
	full := p.unused || len(p.idle) >= p.keep
	if !full {
		p.idle = append(p.idle, c)
		if p.reaper == nil {
			p.reaper = time.AfterFunc(idleTimeout, p.reap)
		}
	}
	p.mu.Unlock()
	if full {
		_ = c.Close()
	}
}

// reap closes what has been idle for too long.
func (p *plain) reap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for n < len(p.idle) && time.Since(p.idle[n].since) >= idleTimeout { // the oldest stand first
		n++
	}
	p.drop(n)
	if len(p.idle) > 0 {
		p.reaper = time.AfterFunc(idleTimeout-time.Since(p.idle[0].since), p.reap)
	}
}

// drop closes the n oldest idle connections and stops the reaper. Called with mu held; closing does not block.
func (p *plain) drop(n int) {
	for _, c := range p.idle[:n] {
		_ = c.Close()
	}
	p.idle = append([]*plainConn(nil), p.idle[n:]...)
	if p.reaper != nil {
		p.reaper.Stop()
		p.reaper = nil
	}
}

// CloseIdleConnections closes what is idle now, and what is in use when it is free unless a message is sent before. It is what http.Client.CloseIdleConnections calls.
func (p *plain) CloseIdleConnections() {
	p.next.CloseIdleConnections()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unused = true
	p.drop(len(p.idle))
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}
