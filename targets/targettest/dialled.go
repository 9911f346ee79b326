// SPDX-License-Identifier: Apache-2.0

package targettest

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rialto-bridge/rialto/internal/egress"
	"github.com/rialto-bridge/rialto/targets"
)

// Dialled is a kind under test that speaks something else than HTTP over a connection that it dials.
type Dialled struct {
	Kind   targets.Kind
	Config func(host, port string) string // a valid config of a target that dials there
	// Serve is the far side of a connection, as it is when it accepts. It returns when it has nothing to do any more; the
	// connection is closed then.
	Serve func(conn net.Conn)
}

// RunDialled runs the suite.
func RunDialled(t *testing.T, s Dialled) {
	t.Run("Definition", s.definition)
	t.Run("Accepted", s.accepted)
	t.Run("OneConnectionPerCall", s.oneConnectionPerCall)
	t.Run("Misbehaviour", s.misbehaviour)
	t.Run("Context", s.context)
	t.Run("NoConnection", s.noConnection)
	t.Run("Concurrency", s.concurrency)
}

// Listener is a far side that serves connections until the test is over, and sees that nothing is left of them.
type Listener struct {
	net.Listener
	Connections atomic.Int64
}

// Listen returns a Listener on this host.
func Listen(t testing.TB, serve func(conn net.Conn)) *Listener {
	t.Helper()
	running := goleak.IgnoreCurrent()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &Listener{Listener: l}
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f.Connections.Add(1)
			mu.Lock()
			open[conn] = true
			mu.Unlock()
			wg.Go(func() {
				serve(conn)
				conn.Close()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for conn := range open {
			conn.Close()
		}
		mu.Unlock()
		wg.Wait()
		if err := goleak.Find(running); err != nil {
			t.Errorf("goroutines are left: %v", err)
		}
	})
	return f
}

// Port is where it listens.
func (l *Listener) Port() string {
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func (s Dialled) target(t *testing.T, port string, guard *egress.Guard) targets.Target {
	t.Helper()
	env := Env(t)
	env.Dial = guard.DialContext
	return Make(t, s.Kind, s.Config("127.0.0.1", port), env)
}

// far is a target with its far side.
func (s Dialled) far(t *testing.T, serve func(conn net.Conn)) (*Listener, targets.Target) {
	t.Helper()
	l := Listen(t, serve)
	return l, s.target(t, l.Port(), Guard())
}

func deliverWithin(t *testing.T, d time.Duration, target targets.Target) (targets.Result, *targets.Error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	return deliver(t, ctx, target)
}

func (s Dialled) definition(t *testing.T) {
	if s.Kind.Doc == "" {
		t.Error("the kind has no Doc")
	}
	portable(t, s.Kind)
	config := s.Config("far.example.com", "4000")
	if got := Complaints(t, s.Kind, strings.Replace(config, "{", `{"no-such-field": 1, `, 1)); !strings.Contains(got, "/config/no-such-field") {
		t.Errorf("an unknown field gives %s", got)
	}
	for _, host := range []string{"169.254.169.254", "metadata.google.internal", "127.1", "a b", "user@far.example.com"} {
		if got := Complaints(t, s.Kind, s.Config(host, "4000")); !strings.Contains(got, "/config/") {
			t.Errorf("host %s gives %s, want a complaint with a pointer", host, got)
		}
	}
}

func (s Dialled) accepted(t *testing.T) {
	l, target := s.far(t, s.Serve)
	for range 3 {
		if res, err := deliverWithin(t, 5*time.Second, target); err != nil || res.Remote != l.Addr().String() || res.FirstByte == 0 {
			t.Errorf("%+v, %v, want success at %s", res, err, l.Addr())
		}
	}
}

func (s Dialled) oneConnectionPerCall(t *testing.T) {
	for name, serve := range map[string]func(net.Conn){
		"accepted":       s.Serve,
		"closes at once": func(net.Conn) {},
	} {
		l, target := s.far(t, serve)
		deliverWithin(t, 5*time.Second, target)
		if n := l.Connections.Load(); n != 1 {
			t.Errorf("%s: %d connections for one call", name, n)
		}
	}
}

// flood writes a text until nobody reads it.
func flood(text string) func(net.Conn) {
	return func(conn net.Conn) {
		b := []byte(strings.Repeat(text, 1000))
		for {
			if _, err := conn.Write(b); err != nil {
				return
			}
		}
	}
}

func (s Dialled) misbehaviour(t *testing.T) {
	for name, c := range map[string]struct {
		serve func(net.Conn)
		want  string // reasons that are right
	}{
		"closes at once":     {func(net.Conn) {}, "reset"},
		"resets":             {func(conn net.Conn) { conn.(*net.TCPConn).SetLinger(0) }, "reset connect"},
		"speaks HTTP":        {func(conn net.Conn) { io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n<h1>\x1b[2J") }, "protocol"},
		"lines without end":  {flood("220-go on\r\n"), "protocol"},
		"a line without end": {flood("220 "), "protocol"},
		"zeros":              {flood("\x00"), "protocol"},
	} {
		_, target := s.far(t, c.serve)
		start := time.Now()
		_, err := deliverWithin(t, 5*time.Second, target)
		if err == nil || !strings.Contains(c.want, string(err.Reason)) || err.Permanent {
			t.Errorf("%s: %v, want a retryable %s", name, err, c.want)
		}
		if took := time.Since(start); took > 4*time.Second {
			t.Errorf("%s: took %v", name, took)
		}
	}
}

func (s Dialled) context(t *testing.T) {
	arrived := make(chan struct{}, 1)
	l, target := s.far(t, func(conn net.Conn) {
		arrived <- struct{}{}
		io.Copy(io.Discard, conn) // says nothing
	})
	start := time.Now()
	if _, err := deliverWithin(t, 50*time.Millisecond, target); err == nil || err.Reason != targets.ReasonTimeout || err.Permanent {
		t.Errorf("a far side that hangs: %v, want a retryable timeout", err)
	}
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("a limit of 50ms took %v", took)
	}
	<-arrived
	stopped, stop := context.WithCancel(t.Context())
	defer stop()
	stopper := make(chan struct{})
	go func() { defer close(stopper); <-arrived; stop() }()
	if _, err := deliver(t, stopped, target); err == nil || err.Reason != targets.ReasonInterrupted {
		t.Errorf("stopped: %v, want interrupted", err)
	}
	<-stopper
	before := l.Connections.Load()
	if _, err := deliver(t, stopped, target); err == nil || err.Reason != targets.ReasonInterrupted {
		t.Errorf("stopped before: %v, want interrupted", err)
	}
	if l.Connections.Load() != before {
		t.Error("a context that is done still made a connection")
	}
}

func (s Dialled) noConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	for want, guard := range map[targets.Reason]*egress.Guard{
		targets.ReasonConnect:        Guard(),
		targets.ReasonBlockedAddress: egress.New(egress.Options{}),
	} {
		if _, err := deliverWithin(t, 5*time.Second, s.target(t, port, guard)); err == nil || err.Reason != want || err.Permanent {
			t.Errorf("%v, want a retryable %s", err, want)
		}
	}
}

func (s Dialled) concurrency(t *testing.T) {
	l, target := s.far(t, s.Serve)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 4 {
				if _, err := target.Deliver(t.Context(), Delivery()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := l.Connections.Load(); n != 8*4 {
		t.Errorf("%d connections for 32 calls", n)
	}
}
