// SPDX-License-Identifier: Apache-2.0

package outbound_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

// far is a far side that says exactly what a test wants it to say.
type far struct {
	url   string
	conns atomic.Int64
}

// playFar calls say for each connection, with its number from 1, and closes the connection after it.
func playFar(t *testing.T, say func(n int64, conn net.Conn, in *bufio.Reader)) *far {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &far{url: "http://" + l.Addr().String()}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				say(f.conns.Add(1), conn, bufio.NewReader(conn))
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return f
}

// request reads one request, whole; false at the end of the connection.
func request(in *bufio.Reader) (*http.Request, bool) {
	req, err := http.ReadRequest(in)
	if err != nil {
		return nil, false
	}
	_, err = io.Copy(io.Discard, req.Body)
	return req, err == nil
}

// Every form of an answer is read to its end, and the connection is used again exactly if that is allowed.
func TestPlainAnswers(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	for name, c := range map[string]struct {
		answer string
		status int
		reason targets.Reason
		again  bool
	}{
		"no body":                {ok + "Content-Length: 0\r\n\r\n", 200, "", true},
		"204":                    {"HTTP/1.1 204 No Content\r\n\r\n", 204, "", true},
		"length":                 {ok + "Content-Length: 5\r\n\r\nhello", 200, "", true},
		"chunks and trailer":     {ok + "Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n", 200, "", true},
		"informational first":    {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + ok + "Content-Length: 0\r\n\r\n", 200, "", true},
		"close":                  {ok + "Connection: close\r\nContent-Length: 0\r\n\r\n", 200, "", false},
		"to the end":             {ok + "\r\nhello", 200, "", false},
		"HTTP/1.0":               {"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", 200, "", false},
		"more than was asked":    {ok + "Content-Length: 0\r\n\r\n" + ok + "Content-Length: 0\r\n\r\n", 200, "", false},
		"switching protocols":    {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", 101, targets.ReasonProtocol, false},
		"body too long to read":  {ok + "Content-Length: 100000\r\n\r\n" + strings.Repeat("x", 100000), 200, "", false},
		"body that breaks off":   {ok + "Content-Length: 9\r\n\r\nhello", 200, targets.ReasonReset, false},
		"chunk that breaks off":  {ok + "Transfer-Encoding: chunked\r\n\r\n5\r\nhe", 200, targets.ReasonReset, false},
		"head that breaks off":   {"HTTP/1.1 200 OK\r\n", 0, targets.ReasonReset, false},
		"two lengths":            {ok + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 0, targets.ReasonProtocol, false},
		"no HTTP":                {"SSH-2.0-x\r\n\r\n", 0, targets.ReasonProtocol, false},
		"head too large":         {ok + "X: " + strings.Repeat("x", 70<<10) + "\r\n\r\n", 0, targets.ReasonProtocol, false},
		"informational for ever": {strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 3000), 0, targets.ReasonProtocol, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := playFar(t, func(_ int64, conn net.Conn, in *bufio.Reader) {
				for {
					if _, ok := request(in); !ok {
						return
					}
					io.WriteString(conn, c.answer)
					if !c.again { // or the end of the body would not be seen
						conn.(*net.TCPConn).CloseWrite()
					}
				}
			})
			cl := client(t, loopback(), nil)
			for range 3 {
				res, err := post(t, within(t, 10*time.Second), cl, f.url)
				if res.Status != c.status && !(c.status == 0 && err != nil) {
					t.Errorf("status %d, want %d", res.Status, c.status)
				}
				switch {
				case c.reason == "" && err != nil, c.reason != "" && (err == nil || c.status != 101 && err.Reason != c.reason):
					t.Errorf("error %v, want reason %q", err, c.reason)
				}
			}
			if n := f.conns.Load(); (n == 1) != c.again {
				t.Errorf("3 attempts used %d connections, again: %v", n, c.again)
			}
		})
	}
}

// An answer that comes before the message was read, from a far side that then closes, is the answer.
func TestPlainEarlyAnswer(t *testing.T) {
	f := playFar(t, func(_ int64, conn net.Conn, in *bufio.Reader) {
		if _, err := in.ReadString('\n'); err == nil {
			io.WriteString(conn, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			conn.(*net.TCPConn).CloseWrite()
			io.Copy(io.Discard, in)
		}
	})
	res, err := post(t, within(t, 10*time.Second), client(t, loopback(), nil), f.url)
	if res.Status != 413 || err == nil || err.Status != 413 {
		t.Errorf("%+v, %v; want status 413", res, err)
	}
}

// What a far side says while nobody asked is no answer to the next message: many say 408 before they close an idle
// connection.
func TestPlainUnasked(t *testing.T) {
	say, said := make(chan struct{}), make(chan struct{})
	f := playFar(t, func(n int64, conn net.Conn, in *bufio.Reader) {
		for {
			if _, ok := request(in); !ok {
				return
			}
			io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
			if n == 1 {
				<-say
				io.WriteString(conn, "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
				close(said)
				return
			}
		}
	})
	cl := client(t, loopback(), nil)
	outbound.LookAlways(cl)
	for i := range 2 {
		if res, err := post(t, within(t, 10*time.Second), cl, f.url); err != nil || res.Status != 204 {
			t.Fatalf("attempt %d: %+v, %v", i, res, err)
		}
		if i == 0 {
			close(say)
			<-said
		}
	}
	if n := f.conns.Load(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}

// A message is sent again only if the connection was a kept one: a new one that is closed without an answer is a failure.
func TestPlainSendsAgainOnce(t *testing.T) {
	var seen atomic.Int64
	f := playFar(t, func(_ int64, conn net.Conn, in *bufio.Reader) {
		if _, ok := request(in); ok {
			seen.Add(1)
		}
	})
	if _, err := post(t, within(t, 10*time.Second), client(t, loopback(), nil), f.url); err == nil || err.Reason != targets.ReasonReset {
		t.Errorf("error %v, want reset", err)
	}
	if n := seen.Load(); n != 1 {
		t.Errorf("the far side saw the message %d times, want once", n)
	}
}

// Whoever waits for an answer, or for the rest of one, is woken when the attempt is over.
func TestPlainIsStopped(t *testing.T) {
	for name, say := range map[string]string{"no answer": "", "half a head": "HTTP/1.1 200 OK\r\n", "half a body": "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhell"} {
		t.Run(name, func(t *testing.T) {
			there := make(chan struct{}, 9)
			f := playFar(t, func(_ int64, conn net.Conn, in *bufio.Reader) {
				if _, ok := request(in); ok {
					io.WriteString(conn, say)
					there <- struct{}{}
					io.Copy(io.Discard, in) // until the client has gone
				}
			})
			cl := client(t, loopback(), nil)
			ctx, cancel := context.WithCancel(t.Context())
			shared, stop := context.WithCancel(t.Context())
			for _, c := range []struct {
				ctx  context.Context
				stop func()
			}{{ctx, cancel}, {targets.NewWithin(shared, time.Minute), stop}} {
				go func() { <-there; c.stop() }()
				if _, err := post(t, c.ctx, cl, f.url); err == nil || err.Reason != targets.ReasonInterrupted {
					t.Errorf("error %v, want interrupted", err)
				}
			}
			if _, err := post(t, within(t, 50*time.Millisecond), cl, f.url); err == nil || err.Reason != targets.ReasonTimeout {
				t.Errorf("error %v, want a timeout", err)
			}
			if _, err := post(t, targets.NewWithin(t.Context(), 50*time.Millisecond), cl, f.url); err == nil || err.Reason != targets.ReasonTimeout {
				t.Errorf("error %v, want a timeout", err)
			}
			if _, err := post(t, targets.NewWithin(shared, time.Minute), cl, f.url); err == nil || err.Reason != targets.ReasonInterrupted {
				t.Errorf("error %v before it began, want interrupted", err)
			}
			if n := outbound.Kept(cl); n != 0 {
				t.Errorf("%d connections are kept, none is free", n)
			}
		})
	}
}

func TestPlainLargeAndSmall(t *testing.T) {
	var got atomic.Int64
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) { got.Store(r.ContentLength) })
	cl := client(t, loopback(), nil)
	for _, size := range []int{0, 1, outbound.MaxPlainBody, outbound.MaxPlainBody + 1, 1 << 20} {
		u, err := url.Parse(srv.URL)
		if err != nil {
			t.Fatal(err)
		}
		m := outbound.Message{Method: http.MethodPost, URL: u, Header: http.Header{}, Body: make([]byte, size)}
		if _, err := outbound.Exchange(within(t, 10*time.Second), cl, m, time.Now); err != nil || got.Load() != int64(size) {
			t.Errorf("message of %d bytes: %v, %d arrived", size, err, got.Load())
		}
	}
}

// A target that is closed keeps nothing, what was in use included.
func TestPlainCloses(t *testing.T) {
	hold, asked := make(chan struct{}), make(chan struct{})
	srv := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			close(asked)
			<-hold
		}
	})
	cl := client(t, loopback(), nil)
	var wg sync.WaitGroup
	wg.Go(func() { post(t, within(t, 10*time.Second), cl, srv.URL+"/hold") })
	<-asked
	if _, err := post(t, within(t, 10*time.Second), cl, srv.URL); err != nil {
		t.Fatal(err)
	}
	if n := outbound.Kept(cl); n != 1 {
		t.Errorf("%d connections are kept, want 1", n)
	}
	cl.CloseIdleConnections()
	close(hold)
	wg.Wait()
	if n := outbound.Kept(cl); n != 0 {
		t.Errorf("%d connections are kept after the end", n)
	}
}

// A kept connection serves attempts of several shared contexts, and none that was given up disturbs another.
func TestPlainIsShared(t *testing.T) {
	srv := serve(t, func(http.ResponseWriter, *http.Request) {})
	cl := client(t, loopback(), nil)
	outbound.LookAlways(cl)
	try := func(shared context.Context, limit time.Duration, want targets.Reason) {
		t.Helper()
		w := targets.NewWithin(shared, limit)
		defer w.Close()
		if _, err := post(t, w, cl, srv.URL); want == "" && err != nil || want != "" && (err == nil || err.Reason != want) {
			t.Fatalf("error %v, want reason %q", err, want)
		}
	}
	a, stopA := context.WithCancel(t.Context())
	b, stopB := context.WithCancel(t.Context())
	defer stopB()
	try(a, time.Minute, "")
	try(b, time.Minute, "")
	if n := outbound.Kept(cl); n != 1 {
		t.Errorf("%d connections are kept, want 1", n)
	}
	try(a, time.Minute, "")
	stopA()
	try(b, time.Minute, "")
	try(a, time.Minute, targets.ReasonInterrupted)
	for range 3 { // a deadline that has passed is not that of the next
		try(b, time.Nanosecond, targets.ReasonTimeout)
		try(b, time.Minute, "")
		try(t.Context(), time.Minute, "")
		if _, err := post(t, within(t, time.Minute), cl, srv.URL); err != nil { // a context of another kind
			t.Fatal(err)
		}
	}
}

// Many at once, over connections that close whenever they like, and every answer belongs to its message.
func TestPlainMany(t *testing.T) {
	f := playFar(t, func(_ int64, conn net.Conn, in *bufio.Reader) {
		for {
			req, ok := request(in)
			if !ok {
				return
			}
			body := req.URL.Path
			fmt.Fprintf(conn, "HTTP/1.1 500 No\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			if rand.IntN(4) == 0 {
				return
			}
		}
	})
	cl := client(t, loopback(), nil)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 200 {
				path := fmt.Sprintf("/%d/%d", w, i)
				res, err := post(t, within(t, 10*time.Second), cl, f.url+path)
				if err == nil || err.Status != 500 || !strings.HasSuffix(res.Head, path) {
					t.Errorf("%s: %+v, %v", path, res, err)
				}
			}
		})
	}
	wg.Wait()
	if n := outbound.Kept(cl); n > 4 {
		t.Errorf("%d connections are kept, want at most 4", n)
	}
}
