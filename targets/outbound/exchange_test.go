// SPDX-License-Identifier: Apache-2.0

package outbound_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/internal/egress"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

// loopback is a guard that allows this host, as the operator can.
func loopback() *egress.Guard {
	return egress.New(egress.Options{Allow: []egress.Entry{{Prefix: netip.MustParsePrefix("127.0.0.0/8")}}})
}

func client(t *testing.T, g *egress.Guard, cfg *tls.Config) *http.Client {
	t.Helper()
	c := outbound.Client(g, outbound.Options{Concurrency: 4, TLS: cfg})
	t.Cleanup(c.CloseIdleConnections)
	return c
}

func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // net/http notices only then that a client has gone
		h(w, r)
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.Start()
	t.Cleanup(srv.Close)
	return srv
}

// post makes one attempt.
func post(t *testing.T, ctx context.Context, c *http.Client, rawURL string) (targets.Result, *targets.Error) {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	m := outbound.Message{Method: http.MethodPost, URL: u, Header: http.Header{}, Body: []byte("hello")}
	res, err := outbound.Exchange(ctx, c, m, time.Now)
	if err == nil {
		return res, nil
	}
	var te *targets.Error
	if !errors.As(err, &te) {
		t.Fatalf("error %T %v, want a *targets.Error", err, err)
	}
	if text := te.Error(); len(text) > 300 || strings.ContainsAny(text, "\r\n\x00\x1b") || !utf8.ValidString(text) {
		t.Errorf("error text %q is not fit to be shown", text)
	}
	return res, te
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestExchangeSucceedsWith2xxOnly(t *testing.T) {
	var code atomic.Int64
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.Header().Set("Location", "http://169.254.169.254/latest/meta-data/")
		w.WriteHeader(int(code.Load()))
		if code.Load() != 204 && code.Load() != 304 {
			fmt.Fprintf(w, "status\r\n %d\x00\x1b[31m", code.Load())
		}
	})
	c := client(t, loopback(), nil)
	for _, n := range []int{200, 201, 202, 204, 299, 300, 301, 302, 303, 304, 307, 308, 400, 401, 403, 404, 405, 408, 409, 410, 413, 415, 422, 425, 429, 500, 503, 599} {
		code.Store(int64(n))
		res, err := post(t, within(t, 5*time.Second), c, srv.URL)
		if (err == nil) != (n < 300) || res.Status != n {
			t.Errorf("status %d: %+v, %v", n, res, err)
		}
		status, body, _ := strings.Cut(res.Head, "\n")
		_, body, _ = strings.Cut(body, "\n\n")
		switch want := fmt.Sprintf("status %d [31m", n); {
		case n < 300 && res.Head != "":
			t.Errorf("status %d: head %q, and it succeeded", n, res.Head)
		case n >= 300 && !strings.HasPrefix(status, fmt.Sprint("HTTP/1.1 ", n)), n > 304 && body != want:
			t.Errorf("status %d: head %q, want the status and %q", n, res.Head, want)
		}
		if res.Remote != srv.Listener.Addr().String() {
			t.Errorf("remote %q, want %q", res.Remote, srv.Listener.Addr())
		}
		if n == 429 && err.RetryAfter != 7*time.Second {
			t.Errorf("429: rest %v, want 7s", err.RetryAfter)
		}
	}
}

// A far side that refuses may say what is to follow; one that accepts is taken at its status.
func TestExchangeObeysTheFarSide(t *testing.T) {
	for _, c := range []struct {
		status                    int
		wish                      string
		permanent, abort, disable bool
	}{
		{503, "", false, false, false},
		{503, "abort-message", true, true, false},
		{401, " Disable ", true, true, true},
		{429, "later", false, false, false},
		{400, "", true, false, false},
		{200, "disable", false, false, false},
	} {
		srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Webhook-Delivery", c.wish)
			w.WriteHeader(c.status)
		})
		_, err := post(t, within(t, 5*time.Second), client(t, loopback(), nil), srv.URL)
		if c.status == 200 {
			if err != nil {
				t.Errorf("%d with %q: %v", c.status, c.wish, err)
			}
			continue
		}
		if err == nil || err.Permanent != c.permanent || err.Abort != c.abort || err.Disable != c.disable || err.Status != c.status {
			t.Errorf("%d with %q: %+v", c.status, c.wish, err)
		}
	}
}

func TestExchangeKeepsConnections(t *testing.T) {
	var conns atomic.Int64
	size := 0
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Write(bytes.Repeat([]byte("x"), size))
	}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	srv.Start()
	defer srv.Close()
	c := client(t, loopback(), nil)
	for _, size = range []int{0, 100, 4 << 10, 60 << 10} {
		for range 10 {
			if _, err := post(t, within(t, 5*time.Second), c, srv.URL); err != nil {
				t.Fatalf("answer of %d bytes: %v", size, err)
			}
		}
	}
	if n := conns.Load(); n != 1 {
		t.Errorf("40 attempts used %d connections, want 1", n)
	}
	// As many as the concurrency are kept.
	start := conns.Load()
	for range 5 {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { post(t, within(t, 5*time.Second), c, srv.URL) })
		}
		wg.Wait()
	}
	if n := conns.Load() - start; n > 4 {
		t.Errorf("20 attempts, 4 at a time, opened %d more connections", n)
	}
}

func TestExchangeAfterTheServerClosedAnIdleConnection(t *testing.T) {
	// A server that takes one request per connection but does not say so.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if req, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				io.Copy(io.Discard, req.Body)
				io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
			}
			conn.Close()
		}
	})
	defer wg.Wait()
	defer l.Close()
	c := client(t, loopback(), nil)
	for i := range 20 {
		if _, err := post(t, within(t, 5*time.Second), c, "http://"+l.Addr().String()); err != nil {
			t.Fatalf("attempt %d: %v", i, err)
		}
	}
}

func TestExchangeFailures(t *testing.T) {
	wait := func(r *http.Request) { <-r.Context().Done() } // until the client has gone
	var endless atomic.Int64
	for _, c := range []struct {
		name   string
		reason targets.Reason // "" = success
		status int
		limit  time.Duration
		answer func(w http.ResponseWriter, r *http.Request)
	}{
		{"hangs", targets.ReasonTimeout, 0, 100 * time.Millisecond, func(_ http.ResponseWriter, r *http.Request) { wait(r) }},
		{"drips its body", targets.ReasonTimeout, 200, 100 * time.Millisecond, func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				io.WriteString(w, "x")
				w.(http.Flusher).Flush()
				select {
				case <-r.Context().Done():
				case <-time.After(5 * time.Millisecond):
				}
			}
		}},
		{"drips the body of an error", targets.ReasonStatus, 500, 100 * time.Millisecond, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(500)
			w.(http.Flusher).Flush()
			wait(r)
		}},
		{"drips its header", targets.ReasonTimeout, 0, 100 * time.Millisecond, raw(func(conn net.Conn, r *http.Request) {
			io.WriteString(conn, "HTTP/1.1 200 OK\r\n")
			for {
				if _, err := io.WriteString(conn, "X-A: b\r\n"); err != nil {
					return
				}
				<-time.After(5 * time.Millisecond)
			}
		})},
		{"breaks off before an answer", targets.ReasonReset, 0, 5 * time.Second, raw(func(conn net.Conn, _ *http.Request) {})},
		{"resets in its header", targets.ReasonReset, 0, 5 * time.Second, raw(func(conn net.Conn, _ *http.Request) {
			io.WriteString(conn, "HTTP/1.1 200 OK\r\nServer: x\r\n")
			conn.(*net.TCPConn).SetLinger(0)
		})},
		{"breaks off in its body", targets.ReasonReset, 200, 5 * time.Second, raw(func(conn net.Conn, _ *http.Request) {
			io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
		})},
		{"resets in its body", targets.ReasonReset, 200, 5 * time.Second, raw(func(conn net.Conn, _ *http.Request) {
			io.WriteString(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
			conn.(*net.TCPConn).SetLinger(0)
		})},
		{"has a broken chunk", targets.ReasonProtocol, 200, 5 * time.Second, raw(func(conn net.Conn, _ *http.Request) {
			io.WriteString(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n")
		})},
		{"speaks something else", targets.ReasonProtocol, 0, 5 * time.Second, raw(func(conn net.Conn, _ *http.Request) {
			io.WriteString(conn, "SSH-2.0-OpenSSH_9.9\x1b[31m\r\n")
		})},
		{"has a header too large", targets.ReasonProtocol, 0, 5 * time.Second, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Large", strings.Repeat("x", 128<<10))
		}},
		{"has a large header", "", 200, 5 * time.Second, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Large", strings.Repeat("x", 32<<10))
		}},
		{"floods with 1xx", targets.ReasonProtocol, 0, 10 * time.Second, raw(func(conn net.Conn, _ *http.Request) {
			for {
				if _, err := io.WriteString(conn, "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n"); err != nil {
					return
				}
			}
		})},
		{"says some 1xx first", "", 200, 5 * time.Second, raw(func(conn net.Conn, _ *http.Request) {
			io.WriteString(conn, strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 5)+"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		})},
		{"switches protocols", targets.ReasonStatus, 101, 5 * time.Second, raw(func(conn net.Conn, _ *http.Request) {
			io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: chat\r\nConnection: Upgrade\r\n\r\n")
		})},
		{"answers without end", "", 200, 10 * time.Second, func(w http.ResponseWriter, _ *http.Request) {
			for {
				n, err := w.Write(bytes.Repeat([]byte("x"), 32<<10))
				if err != nil {
					return
				}
				endless.Add(int64(n))
			}
		}},
		{"sends a gzip bomb", "", 200, 30 * time.Second, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Accept-Encoding") != "" {
				t.Errorf("asked for %q", r.Header.Get("Accept-Encoding"))
			}
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			z.Write(make([]byte, 16<<20))
			z.Close()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := serve(t, c.answer)
			start := time.Now()
			res, err := post(t, within(t, c.limit), client(t, loopback(), nil), srv.URL)
			if took := time.Since(start); took > c.limit+2*time.Second {
				t.Errorf("took %v with a limit of %v", took, c.limit)
			}
			switch {
			case err == nil && c.reason != "":
				t.Errorf("succeeded with %+v, want %s", res, c.reason)
			case err != nil && (err.Reason != c.reason || err.Permanent || err.Status != c.status):
				t.Errorf("%+v %v, want a retryable %s with status %d", err, err, c.reason, c.status)
			}
			if res.Status != c.status {
				t.Errorf("status %d, want %d", res.Status, c.status)
			}
		})
	}
	if n := endless.Load(); n > 8<<20 {
		t.Errorf("took %d bytes of an endless answer", n)
	}
}

// raw answers on the bare connection, which is closed afterwards.
func raw(answer func(net.Conn, *http.Request)) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		answer(conn, r)
	}
}

func TestExchangeIsStopped(t *testing.T) {
	arrived := make(chan struct{})
	srv := serve(t, func(_ http.ResponseWriter, r *http.Request) { close(arrived); <-r.Context().Done() })
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	_, err := post(t, ctx, client(t, loopback(), nil), srv.URL)
	if err == nil || err.Reason != targets.ReasonInterrupted || !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want interrupted", err)
	}
}

func TestExchangeWithoutConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := "http://" + l.Addr().String()
	l.Close()
	noNames := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("no name server at 10.9.8.7")
	}}
	for _, c := range []struct {
		name   string
		guard  *egress.Guard
		url    string
		reason targets.Reason
	}{
		{"nobody listens", loopback(), closed, targets.ReasonConnect},
		{"not allowed", egress.New(egress.Options{}), closed, targets.ReasonBlockedAddress},
		{"metadata", loopback(), "http://169.254.169.254/latest?token=hunter2", targets.ReasonBlockedAddress},
		{"no such name", egress.New(egress.Options{Resolver: noNames}), "http://nobody.invalid/?token=hunter2", targets.ReasonDNS},
	} {
		res, err := post(t, within(t, 5*time.Second), client(t, c.guard, nil), c.url)
		if err == nil || err.Reason != c.reason || err.Permanent {
			t.Errorf("%s: %+v, %v, want a retryable %s", c.name, res, err, c.reason)
			continue
		}
		if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "10.9.8.7") {
			t.Errorf("%s: error says too much: %v", c.name, err)
		}
	}
}

func TestExchangeTLS(t *testing.T) {
	newServer := func(h2 bool, versions uint16) *httptest.Server {
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/large" {
				w.Header().Set("X-Large", strings.Repeat("x", 128<<10))
			}
			w.WriteHeader(http.StatusTeapot)
			io.WriteString(w, r.Proto)
		}))
		srv.Config.ErrorLog = log.New(io.Discard, "", 0)
		srv.EnableHTTP2 = h2
		srv.TLS = &tls.Config{MaxVersion: versions}
		srv.StartTLS()
		t.Cleanup(srv.Close)
		return srv
	}
	trust := func(srv *httptest.Server) *tls.Config {
		pool := x509.NewCertPool()
		pool.AddCert(srv.Certificate())
		return &tls.Config{RootCAs: pool}
	}
	two, one, old := newServer(true, 0), newServer(false, 0), newServer(false, tls.VersionTLS11)
	plain := serve(t, func(http.ResponseWriter, *http.Request) {})
	for _, c := range []struct {
		name   string
		url    string
		cfg    *tls.Config
		head   string
		reason targets.Reason
	}{
		{"HTTP/2", two.URL, trust(two), "HTTP/2.0", targets.ReasonStatus},
		{"HTTP/1.1", one.URL, trust(one), "HTTP/1.1", targets.ReasonStatus},
		{"HTTP/2 with a header too large", two.URL + "/large", trust(two), "", targets.ReasonProtocol},
		{"unknown authority", one.URL, nil, "", targets.ReasonTLS},
		{"another name", strings.Replace(one.URL, "127.0.0.1", "127.0.0.2", 1), trust(one), "", targets.ReasonTLS},
		{"old version", old.URL, trust(old), "", targets.ReasonTLS},
		{"old version that was asked for", old.URL, func() *tls.Config { c := trust(old); c.MinVersion = tls.VersionTLS10; return c }(), "", targets.ReasonTLS},
		{"no TLS at all", "https" + strings.TrimPrefix(plain.URL, "http"), nil, "", targets.ReasonTLS},
	} {
		url := c.url
		if c.name == "another name" {
			l, err := net.Listen("tcp", "127.0.0.2:0")
			if err != nil {
				t.Fatal(err)
			}
			srv := &httptest.Server{Listener: l, Config: &http.Server{ErrorLog: log.New(io.Discard, "", 0)}, TLS: &tls.Config{Certificates: one.TLS.Certificates}}
			srv.StartTLS()
			t.Cleanup(srv.Close)
			url = srv.URL
		}
		res, err := post(t, within(t, 5*time.Second), client(t, loopback(), c.cfg), url)
		switch {
		case c.reason == "" && err != nil, c.reason != "" && (err == nil || err.Reason != c.reason):
			t.Errorf("%s: %+v, %v, want %q", c.name, res, err, c.reason)
		case !strings.HasPrefix(res.Head, c.head) || !strings.HasSuffix(res.Head, c.head):
			t.Errorf("%s: head %q, want it to begin and end with %q", c.name, res.Head, c.head)
		case c.head != "" && (res.Reused || res.TLS <= 0 || res.Connect <= 0 || res.FirstByte <= res.TLS):
			t.Errorf("%s: %+v, want all times", c.name, res.Exchange)
		}
	}
}

func TestSanitise(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"plain", "plain"},
		{"  two \r\n\t lines \n", "two lines"},
		{"a\x00b\x1b[31mc\x7fd\u0085e", "a b [31mc d e"},
		{"<b>héllo</b> 😀", "<b>héllo</b> 😀"},
		{"bad \xff\xc0 bytes", "bad \ufffd\ufffd bytes"},
		{"cut \xe2\x82", "cut"},
		{"right\u202eleft\u2028line\u200bzero\ufeff", "right left line zero"},
		{strings.Repeat("é", 600), strings.Repeat("é", 512)},
		{strings.Repeat("\xff", 2000), strings.Repeat("\ufffd", 341)},
	} {
		if got := outbound.Sanitise([]byte(c.in)); got != c.want {
			t.Errorf("Sanitise(%q) = %q, want %q", c.in, got, c.want)
		}
	}
}

func FuzzSanitise(f *testing.F) {
	f.Add([]byte("<html>\r\n<b>no\x00</b>"))
	f.Add([]byte("\xff\xfe\u202e"))
	f.Fuzz(func(t *testing.T, in []byte) {
		got := outbound.Sanitise(in)
		if len(got) > 1024 || !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return r < 0x20 || r >= 0x7f && r < 0xa0 }) {
			t.Fatalf("Sanitise(%q) = %q", in, got)
		}
		if again := outbound.Sanitise([]byte(got)); again != got {
			t.Fatalf("Sanitise of %q is %q", got, again)
		}
	})
}
