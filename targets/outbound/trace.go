// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"crypto/tls"
	"net"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/targets"
)

// attempt measures one exchange. It is the context of its request too, by which the dialer finds it: making a connection
// is rare, and costs its own bookkeeping then; an exchange over a connection that is there costs this struct and the hooks.
//
// net/http may call the hooks, and dial, on goroutines that outlive the request, so an attempt is never used again, and
// what they write is atomic.
type attempt struct {
	context.Context
	trace httptrace.ClientTrace
	start time.Time
	first atomic.Int64 // nanoseconds from start to the first byte of an answer
	dial  atomic.Pointer[dial]
	conn  net.Conn // what the request was sent over; written before RoundTrip returns
}

type attemptKey struct{}

func begin(ctx context.Context) *attempt { return &attempt{Context: ctx, start: time.Now()} }

// Value returns the attempt itself to those who look for it.
func (a *attempt) Value(key any) any {
	if key == (attemptKey{}) {
		return a
	}
	return a.Context.Value(key)
}

// traced returns the context for a request with this scheme.
func (a *attempt) traced(scheme string) context.Context {
	a.trace.GotConn, a.trace.GotFirstResponseByte = a.gotConn, a.firstByte
	if scheme == "https" {
		a.trace.TLSHandshakeStart, a.trace.TLSHandshakeDone = a.handshakes, a.shookHands
	}
	return httptrace.WithClientTrace(a, &a.trace)
}

func (a *attempt) gotConn(info httptrace.GotConnInfo) { a.conn = info.Conn }

// firstByte is called for each answer of a connection that had to be replaced, too; the last one counts.
func (a *attempt) firstByte() { a.first.Store(int64(time.Since(a.start))) }

func (a *attempt) handshakes() {
	if d := a.dial.Load(); d != nil {
		d.note(&d.handshake)
	}
}

func (a *attempt) shookHands(tls.ConnectionState, error) {
	if d := a.dial.Load(); d != nil {
		d.note(&d.ready)
	}
}

// exchange says how an attempt went that got an answer.
func (a *attempt) exchange() targets.Exchange {
	x := targets.Exchange{Reused: true, FirstByte: time.Duration(a.first.Load())}
	conn := a.conn
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	switch c := conn.(type) {
	case nil:
	case *timedConn:
		x.Remote = c.remote
		if c.dial == a.dial.Load() && c.used.CompareAndSwap(false, true) {
			x.Reused = false
			c.dial.report(&x)
		}
	default: // a client that is not ours
		x.Remote = conn.RemoteAddr().String()
	}
	return x
}

// failed says how an attempt went that got none. What was under way when it ended took until now.
func (a *attempt) failed(e *targets.Error) targets.Exchange {
	if a.conn != nil {
		return a.exchange()
	}
	x := targets.Exchange{}
	if d := a.dial.Load(); d != nil {
		d.report(&x)
	}
	if e.Reason == targets.ReasonBlockedAddress {
		x.Remote = ""
	}
	return x
}

// dial is how far making a connection has come.
type dial struct {
	mu                                                        sync.Mutex // guards all below; addresses are tried side by side
	remote                                                    string     // the last address that was tried, or the one that answered
	resolves, resolved, connects, connected, handshake, ready time.Time
}

func (d *dial) note(at *time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*at = time.Now()
}

// report adds what making the connection took so far.
func (d *dial) report(x *targets.Exchange) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	between := func(from, to time.Time) time.Duration {
		switch {
		case from.IsZero():
			return 0
		case to.IsZero():
			to = now
		}
		return max(to.Sub(from), 0)
	}
	x.Remote = d.remote
	x.DNS = between(d.resolves, d.resolved)
	x.Connect = between(d.connects, d.connected)
	x.TLS = between(d.handshake, d.ready)
}

// timedConn is a connection that knows how it was made.
type timedConn struct {
	net.Conn
	remote string
	dial   *dial
	used   atomic.Bool
}

// timed is a dialer that notes for the attempt which it dials for how it goes.
func timed(dialContext func(ctx context.Context, network, address string) (net.Conn, error)) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		d := new(dial)
		if a, ok := ctx.Value(attemptKey{}).(*attempt); ok {
			a.dial.Store(d)
		}
		conn, err := dialContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
			DNSStart: func(httptrace.DNSStartInfo) { d.note(&d.resolves) },
			DNSDone:  func(httptrace.DNSDoneInfo) { d.note(&d.resolved) },
			ConnectStart: func(_, address string) {
				d.mu.Lock()
				defer d.mu.Unlock()
				if d.connects.IsZero() {
					d.connects = time.Now()
				}
				if d.connected.IsZero() {
					d.remote = address
				}
			},
		}), network, address)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.connected = time.Now()
		if err != nil {
			return nil, err
		}
		d.remote = conn.RemoteAddr().String()
		return &timedConn{Conn: conn, remote: d.remote, dial: d}, nil
	}
}
