// SPDX-License-Identifier: Apache-2.0

// Package targettest is the suite that every kind of target which reaches out must pass: what package targets promises
// of a Target, tried against a far side that misbehaves. Run is for those that speak HTTP, RunDialled for the others; what
// stands beside them, such as Make and Sink, is for the tests that a kind has of its own.
//
// A kind's test calls one of them and nothing else for this:
//
//	targettest.Run(t, targettest.Subject{
//		Kind:   webhook.Kind(guard.CheckURL),
//		Config: func(url string) string { return `{"url": "` + url + `"}` },
//	})
package targettest

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"go.uber.org/goleak"

	"github.com/rialto-bridge/rialto/internal/egress"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

// Subject is the kind under test.
type Subject struct {
	Kind   targets.Kind
	Config func(url string) string // a valid config of a target that sends to url
	// Accept answers a request as the far side does when it accepts; nil = status 204.
	Accept http.HandlerFunc
}

// Guard returns a guard that allows this host, where the far side of a test is.
func Guard() *egress.Guard {
	return egress.New(egress.Options{Allow: []egress.Entry{{Prefix: netip.MustParsePrefix("127.0.0.0/8")}}})
}

// Event returns an event with everything that is hard to carry: text beyond ASCII, all types of extension, binary data.
func Event() *event.Event {
	return &event.Event{
		ID: "id-1 ü%", Source: "mqtt://gw-1/box%2017", Type: "com.acme.telemetry", Subject: "truck/4/box/17 \"Euro € 😀\"",
		DataContentType: "application/json", DataSchema: "https://schemas.example.com/telemetry/1",
		Time:       time.Date(2027, 3, 1, 12, 0, 0, 123456789, time.UTC),
		Extensions: []event.Attribute{{Name: "flag", Value: true}, {Name: "n", Value: int32(-7)}, {Name: "partitionkey", Value: "box 17"}},
		Data:       []byte(`{"temperature": 9.1, "door": "open"}`),
	}
}

// Delivery returns a delivery of Event.
func Delivery() targets.Delivery {
	return targets.Delivery{
		ID: "dlv_0123456789abcdef", Event: Event(), Bus: "devices", Rule: "too-warm", Target: "ops",
		Attempt: 1, Position: event.Position{Stream: "EV_devices", Seq: 7},
	}
}

// Run runs the suite.
func Run(t *testing.T, s Subject) {
	if s.Accept == nil {
		s.Accept = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }
	}
	t.Run("Definition", s.definition)
	t.Run("Accepted", s.accepted)
	t.Run("OneRequestPerCall", s.oneRequestPerCall)
	t.Run("Statuses", s.statuses)
	t.Run("RetryAfter", s.retryAfter)
	t.Run("Redirects", s.redirects)
	t.Run("Misbehaviour", s.misbehaviour)
	t.Run("Context", s.context)
	t.Run("NoConnection", s.noConnection)
	t.Run("Concurrency", s.concurrency)
}

// far is a far side with a target that sends to it.
type far struct {
	*httptest.Server
	target   targets.Target
	requests atomic.Int64
}

func (s Subject) far(t *testing.T, answer http.HandlerFunc) *far {
	t.Helper()
	running := goleak.IgnoreCurrent()
	f := &far{}
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.requests.Add(1)
		io.Copy(io.Discard, r.Body) // net/http notices only then that a client has gone
		answer(w, r)
	}))
	f.Config.ErrorLog = log.New(io.Discard, "", 0)
	f.Start()
	client := outbound.Client(Guard(), outbound.Options{Concurrency: 4})
	t.Cleanup(func() {
		client.CloseIdleConnections()
		f.Close()
		if err := goleak.Find(running); err != nil {
			t.Errorf("goroutines are left: %v", err)
		}
	})
	f.target = s.target(t, f.URL, client)
	return f
}

func (s Subject) target(t *testing.T, url string, client *http.Client) targets.Target {
	t.Helper()
	kinds := targets.NewCatalog(s.Kind)
	d, err := targets.ParseDefinition([]byte(s.document(url)), kinds)
	if err != nil {
		t.Fatalf("the config is refused: %v", err)
	}
	target, err := kinds.New(d, targets.Env{
		HTTP: client, TLS: func(*tls.Config) *http.Client { return client }, Dial: Guard().DialContext, Logger: slog.New(slog.DiscardHandler), Now: time.Now,
		Secrets: func(ref string) (string, error) { return "", fmt.Errorf("secret %s is not there", ref) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return target
}

func (s Subject) document(url string) string {
	return `{"kind": "Target", "name": "ops", "type": "` + s.Kind.Name + `", "config": ` + s.Config(url) + `}`
}

// deliver makes one attempt that may take five seconds, and checks what holds of every outcome.
func (f *far) deliver(t *testing.T) (targets.Result, *targets.Error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	return deliver(t, ctx, f.target)
}

func deliver(t *testing.T, ctx context.Context, target targets.Target) (targets.Result, *targets.Error) {
	t.Helper()
	d := Delivery()
	res, err := target.Deliver(ctx, d)
	if !reflect.DeepEqual(d, Delivery()) {
		t.Error("Deliver changed the delivery, which is shared")
	}
	if !presentable(strings.ReplaceAll(res.Head, "\n", "")) || len(res.Head) > targets.MaxHead {
		t.Errorf("head %q is not sanitised", res.Head)
	}
	if err == nil {
		if res.Head != "" {
			t.Errorf("head %q of an attempt that succeeded", res.Head)
		}
		return res, nil
	}
	var te *targets.Error
	if !errors.As(err, &te) {
		t.Fatalf("error %T %v, want a *targets.Error", err, err)
	}
	if !presentable(te.Error()) || len(te.Error()) > 512 {
		t.Errorf("error text %q is not sanitised", te.Error())
	}
	if te.Reason == targets.ReasonBlockedAddress && (res.Head != "" || res.Remote != "" || res.Status != 0) {
		t.Errorf("%+v of an address that was refused", res)
	}
	return res, te
}

func presentable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// definition: the schema is the documentation, so that an unknown field is an error with a pointer.
func (s Subject) definition(t *testing.T) {
	kinds := targets.NewCatalog(s.Kind)
	if s.Kind.Doc == "" {
		t.Error("the kind has no Doc")
	}
	portable(t, s.Kind)
	if _, err := targets.ParseDefinition([]byte(s.document("https://ops.example.com/hook")), kinds); err != nil {
		t.Errorf("a good config is refused: %v", err)
	}
	doc := strings.Replace(s.document("https://ops.example.com/hook"), `"config": {`, `"config": {"no-such-field": 1, `, 1)
	if _, err := targets.ParseDefinition([]byte(doc), kinds); err == nil || !strings.Contains(err.Error(), "/config/no-such-field") {
		t.Errorf("an unknown field gives %v", err)
	}
	for _, url := range []string{"http://169.254.169.254/", "file:///etc/passwd", "https://user:pass@ops.example.com/"} {
		if _, err := targets.ParseDefinition([]byte(s.document(url)), kinds); err == nil || !strings.Contains(err.Error(), "/config/") {
			t.Errorf("URL %s gives %v, want a complaint with a pointer", url, err)
		}
	}
}

func (s Subject) accepted(t *testing.T) {
	f := s.far(t, s.Accept)
	for range 3 {
		res, err := f.deliver(t)
		if err != nil || res.Status < 200 || res.Status > 299 || res.Remote != f.Listener.Addr().String() {
			t.Errorf("%+v, %v, want success at %s", res, err, f.Listener.Addr())
		}
	}
}

func (s Subject) oneRequestPerCall(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"accepted": s.Accept,
		"503":      func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) },
		"breaks off in its answer": hijack(func(conn net.Conn) {
			io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
		}),
		"breaks off before": hijack(func(net.Conn) {}),
	} {
		f := s.far(t, answer)
		f.deliver(t)
		if n := f.requests.Load(); n != 1 {
			t.Errorf("%s: %d requests for one call", name, n)
		}
	}
}

func (s Subject) statuses(t *testing.T) {
	var code atomic.Int64
	f := s.far(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(int(code.Load()))
		io.WriteString(w, "<h1>no</h1>\r\nX-Injected: \x00\x1b[2J"+strings.Repeat("é", 4000))
	})
	for _, n := range []int{400, 401, 403, 404, 405, 408, 409, 410, 413, 415, 422, 425, 429, 500, 502, 503, 504} {
		code.Store(int64(n))
		res, err := f.deliver(t)
		want := targets.StatusError(n, 0)
		if err == nil || err.Reason != want.Reason || err.Permanent != want.Permanent || err.Status != n || res.Status != n {
			t.Errorf("status %d: %+v, %v, want %s, permanent = %v", n, res, err, want.Reason, want.Permanent)
		}
	}
}

func (s Subject) retryAfter(t *testing.T) {
	var value atomic.Value
	f := s.far(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", value.Load().(string))
		w.WriteHeader(http.StatusTooManyRequests)
	})
	for in, want := range map[string]time.Duration{"30": 30 * time.Second, "86400": time.Hour, "-5": 0, "soon": 0} {
		value.Store(in)
		if _, err := f.deliver(t); err == nil || err.RetryAfter != want {
			t.Errorf("Retry-After: %s: %+v, want %v", in, err, want)
		}
	}
}

func (s Subject) redirects(t *testing.T) {
	elsewhere := s.far(t, s.Accept)
	var code atomic.Int64
	var location atomic.Value
	f := s.far(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", location.Load().(string))
		w.WriteHeader(int(code.Load()))
	})
	for _, n := range []int{301, 302, 303, 307, 308} {
		for _, to := range []string{elsewhere.URL, "http://169.254.169.254/latest/meta-data/", "/again", "file:///etc/passwd", ""} {
			code.Store(int64(n))
			location.Store(to)
			before := f.requests.Load()
			_, err := f.deliver(t)
			if err == nil || err.Reason != targets.ReasonRedirect || !err.Permanent {
				t.Errorf("%d to %q: %v, want a permanent redirect", n, to, err)
			}
			if err != nil && !strings.Contains(err.Error(), to) {
				t.Errorf("%d to %q: the error says %q and not where to", n, to, err)
			}
			if f.requests.Load() != before+1 {
				t.Errorf("%d to %q was followed", n, to)
			}
		}
	}
	if n := elsewhere.requests.Load(); n != 0 {
		t.Errorf("%d requests arrived elsewhere", n)
	}
}

func (s Subject) misbehaviour(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		want   string // reasons that are right
	}{
		{"closes at once", hijack(func(net.Conn) {}), "reset"},
		{"resets in its answer", hijack(func(conn net.Conn) {
			io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nabc")
			conn.(*net.TCPConn).SetLinger(0)
		}), "reset"},
		{"no HTTP", hijack(func(conn net.Conn) { io.WriteString(conn, "220 mail.example.com\r\n") }), "protocol"},
		{"huge header", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Large", strings.Repeat("x", 1<<20))
		}, "protocol"},
		{"1xx without end", hijack(func(conn net.Conn) {
			for {
				if _, err := io.WriteString(conn, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"); err != nil {
					return
				}
			}
		}), "protocol"},
		{"error body without end", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(500)
			for {
				if _, err := w.Write(bytes.Repeat([]byte("x"), 32<<10)); err != nil {
					return
				}
			}
		}, "status"},
	} {
		f := s.far(t, c.answer)
		start := time.Now()
		_, err := f.deliver(t)
		if err == nil || string(err.Reason) != c.want || err.Permanent {
			t.Errorf("%s: %v, want a retryable %s", c.name, err, c.want)
		}
		if took := time.Since(start); took > 4*time.Second {
			t.Errorf("%s: took %v", c.name, took)
		}
	}
}

func (s Subject) context(t *testing.T) {
	var arrived sync.WaitGroup
	f := s.far(t, func(_ http.ResponseWriter, r *http.Request) {
		arrived.Done()
		<-r.Context().Done()
	})
	arrived.Add(1)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, err := deliver(t, ctx, f.target); err == nil || err.Reason != targets.ReasonTimeout || err.Permanent {
		t.Errorf("a far side that hangs: %v, want a retryable timeout", err)
	}
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("a limit of 50ms took %v", took)
	}
	arrived.Add(1)
	stopped, stop := context.WithCancel(t.Context())
	defer stop()
	stopper := make(chan struct{})
	go func() { defer close(stopper); arrived.Wait(); stop() }()
	if _, err := deliver(t, stopped, f.target); err == nil || err.Reason != targets.ReasonInterrupted {
		t.Errorf("stopped: %v, want interrupted", err)
	}
	<-stopper
	before := f.requests.Load()
	if _, err := deliver(t, stopped, f.target); err == nil || err.Reason != targets.ReasonInterrupted {
		t.Errorf("stopped before: %v, want interrupted", err)
	}
	if f.requests.Load() != before {
		t.Error("a context that is done still sent a request")
	}
}

func (s Subject) noConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String()
	l.Close()
	for want, guard := range map[targets.Reason]*egress.Guard{
		targets.ReasonConnect:        Guard(),
		targets.ReasonBlockedAddress: egress.New(egress.Options{}),
	} {
		client := outbound.Client(guard, outbound.Options{})
		if _, err := deliver(t, t.Context(), s.target(t, url, client)); err == nil || err.Reason != want || err.Permanent {
			t.Errorf("%v, want a retryable %s", err, want)
		}
		client.CloseIdleConnections()
	}
}

func (s Subject) concurrency(t *testing.T) {
	f := s.far(t, s.Accept)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 16 {
				if _, err := f.target.Deliver(t.Context(), Delivery()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := f.requests.Load(); n != 8*16 {
		t.Errorf("%s requests for 128 calls", strconv.FormatInt(n, 10))
	}
}

// hijack answers on the bare connection, which is closed afterwards.
func hijack(answer func(net.Conn)) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		answer(conn)
	}
}

// portable complains of patterns that Go reads otherwise than JSON Schema has them, and so than consoles do: those of ECMA-262 know
// neither named classes nor flags.
func portable(t *testing.T, k targets.Kind) {
	t.Helper()
	var schema any
	if err := json.Unmarshal(k.ConfigSchema, &schema); err != nil {
		t.Fatal(err)
	}
	var look func(v any)
	look = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, item := range v {
				look(item)
			}
		case map[string]any:
			if p, ok := v["pattern"].(string); ok && foreign.MatchString(p) {
				t.Errorf("the pattern %s is none of JSON Schema", p)
			}
			for _, member := range v {
				look(member)
			}
		}
	}
	look(schema)
}

var foreign = regexp.MustCompile(`\[:|\(\?[a-zA-Z]|\\[AzQEpP]`)
