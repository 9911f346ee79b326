// SPDX-License-Identifier: Apache-2.0

package sourcetest

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/sources"
)

// Hook is a source that is sent to, under test.
type Hook struct {
	Kind sources.Kind
	// Config is that of the source; base is the address that senders know.
	Config func(base string) string
	// Request makes a good request: its payload says i, and it is signed at a time.
	Request func(t testing.TB, url string, i int, at time.Time) *http.Request
	Timed   bool // a signature is good for a while only
	// Enclosed says that the proof is about what the body encloses: what stands around it may differ. BodyOnly says that it
	// stands in the body itself.
	Enclosed, BodyOnly bool
	Edit               func(*sources.Options)
	// State is the state plane that is used; nil makes one. Hooks keep nothing in it.
	State *eventlog.Log
}

// RunHook runs the suite of sources that are sent to.
func RunHook(t *testing.T, h Hook) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { checkLeaks(t, before) })
	if h.State == nil {
		h.State = State(t)
	}
	t.Run("AnsweredAfterTheCommit", h.answeredAfterTheCommit)
	t.Run("FailingLog", h.failingLog)
	t.Run("Twice", h.twice)
	t.Run("Tampered", h.tampered)
	t.Run("Unproved", h.unproved)
	t.Run("Poison", func(t *testing.T) { h.poison(t, fault.New(fault.Invalid, "it is not valid")) })
	t.Run("Misfit", func(t *testing.T) { h.poison(t, fault.New(fault.Unfit, "the schema does not allow it")) })
	t.Run("Incomplete", h.incomplete)
	t.Run("Many", h.many)
	if h.Timed {
		t.Run("Stale", h.stale)
	}
}

// HookServer serves the hooks of a supervisor, with errors as the API has them.
func HookServer(t testing.TB, s func() *sources.Supervisor) *httptest.Server {
	status := map[fault.Kind]int{fault.Invalid: 400, fault.Unauthorized: 401, fault.Forbidden: 403, fault.NotFound: 404, fault.TooLarge: 413,
		fault.Unsupported: 415, fault.Unavailable: 503, fault.Full: 507, fault.Internal: 500}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s().ServeHook(strings.TrimPrefix(r.URL.Path, "/hooks/"), w, r); err != nil {
			w.WriteHeader(status[fault.KindOf(err)])
			_, _ = io.WriteString(w, err.Error()) // who has gone does not read it
		}
	}))
	t.Cleanup(srv.Close)
	return srv
}

// far is a hook with its log and what sends to it.
type far struct {
	t   *testing.T
	h   Hook
	log *Log
	s   *sources.Supervisor
	url string
	cl  *http.Client
}

func (h Hook) start(t *testing.T) *far {
	t.Helper()
	f := &far{t: t, h: h, log: NewLog(), cl: &http.Client{Timeout: Patience, Transport: &http.Transport{MaxIdleConnsPerHost: 64, ExpectContinueTimeout: Patience}}}
	t.Cleanup(f.cl.CloseIdleConnections)
	srv := HookServer(t, func() *sources.Supervisor { return f.s })
	f.url = srv.URL + "/hooks/s"
	f.s, _ = Node(t, "one", h.State, f.log, h.Edit, h.Kind)
	Define(t, f.s, fmt.Sprintf(`{"name":"s","type":%q,"config":%s}`, h.Kind.Name, h.Config(srv.URL)), h.Kind)
	return f
}

// send sends a request and returns the status and the body of the answer.
func (f *far) send(r *http.Request) (int, string) {
	f.t.Helper()
	resp, err := f.cl.Do(r)
	if err != nil {
		f.t.Error(err)
		return 0, ""
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Error(err)
	}
	return resp.StatusCode, string(b)
}

func (f *far) good(i int) *http.Request { return f.h.Request(f.t, f.url, i, time.Now()) }

func (f *far) accepted(r *http.Request) {
	f.t.Helper()
	if status, body := f.send(r); status < 200 || status > 299 {
		f.t.Errorf("a good request is answered %d %s", status, body)
	}
}

func (f *far) rejected(what string, r *http.Request) {
	f.t.Helper()
	if status, body := f.send(r); status != 401 && status != 403 && status != 400 {
		f.t.Errorf("%s is answered %d %s, want 401 or 403", what, status, body)
	}
}

func (f *far) stored(want int) {
	f.t.Helper()
	evs := f.log.Events()
	if len(evs) != want {
		f.t.Errorf("%d events are stored, want %d", len(evs), want)
	}
	for _, ev := range evs {
		if err := ev.Validate(event.Limits{MaxData: MaxData}); err != nil {
			f.t.Error(err)
		}
	}
}

func (h Hook) answeredAfterTheCommit(t *testing.T) {
	f := h.start(t)
	release := f.log.Hold()
	defer release()
	req, answered := f.good(0), make(chan int, 1)
	go func() {
		status, _ := f.send(req)
		answered <- status
	}()
	f.log.Await(t, "the event is on its way", func() bool { return f.log.Asked() > 0 })
	select {
	case status := <-answered:
		t.Errorf("answered %d before the commit", status)
	case <-time.After(50 * time.Millisecond):
	}
	release()
	if status := <-answered; status < 200 || status > 299 {
		t.Errorf("answered %d", status)
	}
	f.stored(1)
}

func (h Hook) failingLog(t *testing.T) {
	f := h.start(t)
	f.log.Fail(fault.New(fault.Full, "the log has no room"))
	if status, body := f.send(f.good(0)); status < 500 {
		t.Errorf("what is not stored is answered %d %s", status, body)
	}
	if st, _ := f.s.Status("s"); st.LastError == nil || st.LastError.Message != "the log has no room" {
		t.Errorf("status %+v does not say why nothing is taken", st)
	}
	f.log.Fail(nil)
	f.accepted(f.good(0))
	f.stored(1)
	if st, _ := f.s.Status("s"); st.LastError != nil {
		t.Errorf("the last request was taken, and the status says %+v", st.LastError)
	}
}

func (h Hook) twice(t *testing.T) {
	f := h.start(t)
	at := time.Now()
	f.accepted(h.Request(t, f.url, 0, at))
	f.accepted(h.Request(t, f.url, 0, at))
	f.accepted(h.Request(t, f.url, 1, at))
	f.stored(2)
	if n := f.log.Asked(); n != 2 {
		t.Errorf("%d events were handed over: a repeat is known without", n)
	}
	if st, _ := f.s.Status("s"); st.Duplicate != 1 {
		t.Errorf("status %+v does not count the repeat", st)
	}
}

// body takes the body of a request out.
func body(t *testing.T, r *http.Request) []byte {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func withBody(r *http.Request, b []byte) *http.Request {
	r.Body, r.ContentLength, r.GetBody = io.NopCloser(bytes.NewReader(b)), int64(len(b)), nil
	return r
}

// tampered changes one bit of the body at several places.
func (h Hook) tampered(t *testing.T) {
	f := h.start(t)
	n := len(body(t, f.good(0)))
	for _, at := range []int{0, n / 3, n / 2, n - 2, n - 1} {
		r := f.good(0)
		b := body(t, r)
		b[at] ^= 1
		f.rejected(fmt.Sprintf("a body with another bit at %d", at), withBody(r, b))
	}
	r := f.good(0)
	if !h.Enclosed {
		f.rejected("a longer body", withBody(r, append(body(t, r), ' ')))
	}
	r = f.good(0)
	f.rejected("no body", withBody(r, nil))
	f.stored(0)
	f.accepted(f.good(0))
}

// unproved takes away, or changes, what a request is proved by.
func (h Hook) unproved(t *testing.T) {
	f := h.start(t)
	if h.BodyOnly {
		return // the cases of tampering have it all
	}
	r := f.good(0)
	bare, err := http.NewRequest(http.MethodPost, f.url, bytes.NewReader(body(t, r)))
	if err != nil {
		t.Fatal(err)
	}
	bare.Header.Set("Content-Type", r.Header.Get("Content-Type"))
	status, answer := f.send(bare)
	if status < 400 || status > 403 {
		t.Errorf("a request without a proof is answered %d %s", status, answer)
	}
	f.stored(0)
}

// poison is an event that the bridge will never store. The sender can do nothing about it.
func (h Hook) poison(t *testing.T, why error) {
	f := h.start(t)
	f.log.Refuse(func(ev *event.Event) error {
		if ev.Type == sources.RefusedType {
			return nil
		}
		return why
	})
	f.accepted(f.good(0))
	evs := f.log.Events()
	if len(evs) != 1 || evs[0].Type != sources.RefusedType {
		t.Errorf("stored %+v", evs)
	}
}

// incomplete has the connection break in the middle of the body, and a body that is too large.
func (h Hook) incomplete(t *testing.T) {
	f := h.start(t)
	r := f.good(0)
	b := body(t, r)
	nc, err := net.Dial("tcp", strings.Split(f.url, "/")[2])
	if err != nil {
		t.Fatal(err)
	}
	var head bytes.Buffer
	fmt.Fprintf(&head, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n", r.URL.RequestURI(), len(b))
	if err := r.Header.Write(&head); err != nil {
		t.Fatal(err)
	}
	head.WriteString("\r\n")
	head.Write(b[:len(b)/2])
	if _, err := nc.Write(head.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := nc.Close(); err != nil {
		t.Fatal(err)
	}
	large := withBody(f.good(0), make([]byte, 3*MaxData+64<<10+1))
	large.Header.Set("Expect", "100-continue") // the server need not take what it refuses
	if status, _ := f.send(large); status != http.StatusRequestEntityTooLarge {
		t.Errorf("a body that is too large is answered %d", status)
	}
	if st, _ := f.s.Status("s"); st.LastError == nil || st.Refused != 1 {
		t.Errorf("status %+v does not say of a body that is too large", st)
	}
	f.stored(0)
}

func (h Hook) many(t *testing.T) {
	f := h.start(t)
	const workers, each = 4, 10
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for i := range each {
				f.accepted(f.good(w*each + i))
			}
		})
	}
	all.Wait()
	f.stored(workers * each)
	if st, _ := f.s.Status("s"); st.Stored != workers*each || st.Hook != "/hooks/s" || st.Rejected != 0 {
		t.Errorf("status %+v", st)
	}
}

func (h Hook) stale(t *testing.T) {
	f := h.start(t)
	for _, off := range []time.Duration{-2 * time.Hour, 2 * time.Hour} {
		f.rejected(fmt.Sprintf("a signature of %s from now", off), h.Request(t, f.url, 0, time.Now().Add(off)))
	}
	f.stored(0)
	if st, _ := f.s.Status("s"); st.Rejected != 2 {
		t.Errorf("%d rejections are counted, want 2", st.Rejected)
	}
}
