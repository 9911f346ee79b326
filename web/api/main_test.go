// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/internal/store/memory"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/schema"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/web/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeBridge keeps events in memory. It is what the API's tests need of the event path and no more.
type fakeBridge struct {
	consents []string   // rates
	mu       sync.Mutex // guards what follows
	buses    map[string][]eventlog.Entry
	news     chan struct{} // closed and replaced at every event
	fail     error         // what Ingest, Event, Search, DeadLetters and Ledger fail with
	checks   []bridge.Check
	dead     []bridge.DeadLetter
	rules    []*rules.Rule
	traffic  map[string][]bridge.TypeTraffic
	ordering map[string]*targets.Ordering
	reads    map[string][]rules.Read // of targets
	asked    any                     // the last query
	jobs     []bridge.Job
	kept     []bridge.Kept
}

func newFakeBridge() *fakeBridge {
	return &fakeBridge{buses: map[string][]eventlog.Entry{"default": nil, "devices": nil}, news: make(chan struct{}),
		checks: []bridge.Check{{Name: "log", OK: true}}}
}

func (f *fakeBridge) bus(name string) error {
	if f.fail != nil {
		return f.fail
	}
	if _, ok := f.buses[name]; !ok {
		return fault.New(fault.NotFound, "no bus %q", name)
	}
	return nil
}

func (f *fakeBridge) setFail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

func (f *fakeBridge) stored(bus string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.buses[bus])
}

func (f *fakeBridge) lastQuery() any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

var arrived = time.Date(2027, 1, 2, 3, 4, 5, 6000, time.UTC)

func (f *fakeBridge) Ingest(_ context.Context, bus string, recs []*event.Record) ([]bridge.Receipt, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.bus(bus); err != nil {
		return nil, err
	}
	out := make([]bridge.Receipt, len(recs))
	for i, rec := range recs {
		for _, e := range f.buses[bus] {
			if e.Record.Event.Key() == rec.Event.Key() {
				out[i] = bridge.Receipt{Pos: event.Position{Stream: "EV_" + bus, Seq: e.Seq}, Duplicate: true}
			}
		}
		if out[i].Duplicate {
			continue
		}
		rec.Received = arrived
		seq := uint64(len(f.buses[bus]) + 1)
		f.buses[bus] = append(f.buses[bus], eventlog.Entry{Seq: seq, Record: rec})
		out[i].Pos = event.Position{Stream: "EV_" + bus, Seq: seq}
	}
	close(f.news)
	f.news = make(chan struct{})
	return out, nil
}

func (f *fakeBridge) EventPage(_ context.Context, q bridge.EventQuery) (*bridge.Found, error) {
	bus, id, source := q.Bus, q.ID, q.Source
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = q
	if err := f.bus(bus); err != nil {
		return nil, err
	}
	var found *bridge.Found
	for _, e := range slices.Backward(f.buses[bus]) {
		ev := &e.Record.Event
		pos := event.Position{Stream: "EV_" + bus, Seq: e.Seq}
		switch {
		case ev.ID != id || source != "" && ev.Source != source:
		case found == nil:
			found = &bridge.Found{Event: ev, Position: pos, Received: e.Record.Received, Origin: e.Record.MQTT, State: bridge.StateUnmatched,
				Journey: &bridge.Journey{State: "unmatched", Rules: []bridge.RuleVerdict{}, Deliveries: []bridge.JourneyDelivery{}}}
		default:
			found.Others = append(found.Others, pos)
		}
	}
	if found == nil {
		return nil, fault.New(fault.NotFound, "no event with this id on bus %q", bus)
	}
	return found, nil
}

func (f *fakeBridge) Find(ctx context.Context, bus, id, source string) (*bridge.Found, error) {
	found, err := f.EventPage(ctx, bridge.EventQuery{Bus: bus, ID: id, Source: source})
	if err == nil {
		found.Journey, found.State = nil, ""
	}
	return found, err
}

func (f *fakeBridge) ExplainEvent(_ context.Context, bus string, ev *event.Event) ([]rules.RuleExplanation, int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.bus(bus); err != nil {
		return nil, 0, err
	}
	index, err := rules.Compile(f.rules)
	if err != nil {
		return nil, 0, err
	}
	return index.ExplainAll(ev), 7, nil
}

func (f *fakeBridge) ExplainRule(ctx context.Context, bus, rule string, ev *event.Event) (rules.RuleExplanation, error) {
	all, _, err := f.ExplainEvent(ctx, bus, ev)
	for _, x := range all {
		if x.Rule == rule {
			return x, nil
		}
	}
	if err == nil {
		err = fault.New(fault.NotFound, "no such rule")
	}
	return rules.RuleExplanation{}, err
}

func (f *fakeBridge) Rules(_ context.Context, bus string) ([]*rules.Rule, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*rules.Rule
	for _, r := range f.rules {
		if r.Bus == bus {
			out = append(out, r)
		}
	}
	return out, f.bus(bus)
}

func (f *fakeBridge) Traffic(_ context.Context, bus string) (bridge.Traffic, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return bridge.Traffic{Since: arrived, Types: f.traffic[bus]}, f.bus(bus)
}

func (f *fakeBridge) TargetReads(target string) []rules.Read {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reads[target]
}

func (f *fakeBridge) Ordering(target string) *targets.Ordering {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ordering[target]
}

func (f *fakeBridge) Search(_ context.Context, bus string, q bridge.SearchQuery) (bridge.SearchPage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = q
	if err := f.bus(bus); err != nil {
		return bridge.SearchPage{}, err
	}
	var p bridge.SearchPage
	for _, e := range slices.Backward(f.buses[bus]) {
		if q.Type != "" && q.Type != e.Record.Event.Type {
			continue
		}
		if q.Limit > 0 && len(p.Items) == q.Limit {
			p.NextCursor = `next"page`
			break
		}
		p.Items = append(p.Items, bridge.Found{Event: &e.Record.Event, Position: event.Position{Stream: "EV_" + bus, Seq: e.Seq},
			Received: e.Record.Received, State: bridge.StatePending})
	}
	return p, nil
}

func (f *fakeBridge) Follow(ctx context.Context, o bridge.FollowOptions, fn func(eventlog.Entry) error) error {
	next := o.From
	for {
		f.mu.Lock()
		err, entries, news := f.bus(o.Bus), f.buses[o.Bus], f.news
		f.mu.Unlock()
		if err != nil {
			return err
		}
		for _, e := range entries[min(next-1, uint64(len(entries))):] {
			next = e.Seq + 1
			if o.Type != "" && o.Type != e.Record.Event.Type {
				continue
			}
			if err := fn(e); err != nil {
				return err
			}
		}
		select {
		case <-news:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fakeBridge) DeadLetters(_ context.Context, q bridge.DeadQuery) (bridge.DeadPage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = q
	return bridge.DeadPage{Items: f.dead, NextCursor: "7"}, f.fail
}

func (f *fakeBridge) DeadLetter(_ context.Context, bus, id string) (*bridge.DeadLetter, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, d := range f.dead {
		if d.ID == id && (bus == "" || bus == d.Bus) {
			return &f.dead[i], f.fail
		}
	}
	return nil, fault.New(fault.NotFound, "no dead letter with this id")
}

func (f *fakeBridge) CountDead(_ context.Context, q bridge.DeadFilter) (bridge.DeadCount, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = q
	return bridge.DeadCount{Total: uint64(len(f.dead)), Groups: []bridge.DeadGroup{}}, f.fail
}

func (f *fakeBridge) Skip(_ context.Context, q bridge.SkipRequest) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = q
	return "DEAD:7", f.fail
}

func (f *fakeBridge) Redrive(_ context.Context, q bridge.RedriveRequest) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = q
	return "dlv_1", f.bus(q.Bus)
}

func (f *fakeBridge) PlanJob(ctx context.Context, s bridge.JobSpec) (bridge.DeadCount, error) {
	return f.CountDead(ctx, s.Filter)
}

func (f *fakeBridge) StartJob(_ context.Context, s bridge.JobSpec) (bridge.Job, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = s
	j := bridge.Job{ID: fmt.Sprint(s.Kind, "-", len(f.jobs)+1), Kind: s.Kind, State: bridge.JobRunning, Filter: bridge.JobFilter{DeadFilter: s.Filter, Outcome: s.Outcome, Subject: s.Subject}}
	f.jobs = append(f.jobs, j)
	return j, f.fail
}

func (f *fakeBridge) Jobs(bus string) ([]bridge.Job, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := []bridge.Job{}
	for _, j := range f.jobs {
		if bus == "" || j.Filter.Bus == bus {
			out = append(out, j)
		}
	}
	return out, f.fail
}

func (f *fakeBridge) Job(bus, id string) (bridge.Job, error) {
	jobs, err := f.Jobs(bus)
	for _, j := range jobs {
		if j.ID == id {
			return j, err
		}
	}
	return bridge.Job{}, fault.New(fault.NotFound, "no job with this id")
}

func (f *fakeBridge) SetJob(_ context.Context, c bridge.JobChange) (bridge.Job, error) {
	j, err := f.Job(c.Bus, c.ID)
	j.State = c.State
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = c
	return j, err
}

func (f *fakeBridge) Consent(_ context.Context, target, token, rate string) error {
	if target != "ops" || token != "good" {
		return fault.New(fault.NotFound, "no target has asked for this consent")
	}
	f.consents = append(f.consents, rate)
	return nil
}

func (f *fakeBridge) EnableTarget(_ context.Context, name, by string) (bridge.Enabled, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = [2]string{name, by}
	if name != "ops" {
		return bridge.Enabled{}, fault.New(fault.Conflict, "the target is not disabled: it is active")
	}
	at := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	return bridge.Enabled{Target: name, DisabledAt: at, Reason: "it answered 410", Held: 2,
		Missed: bridge.DeadCount{Total: uint64(len(f.dead)), Groups: []bridge.DeadGroup{}},
		Filter: bridge.DeadFilter{Target: name, From: at.Add(-time.Hour), To: at.Add(time.Hour)}}, f.fail
}

func (f *fakeBridge) Ledger(_ context.Context, q bridge.LedgerQuery) (bridge.Ledger, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = q
	n := uint64(len(f.buses[q.Bus]))
	return bridge.Ledger{Bus: q.Bus, Balanced: true, Events: bridge.LedgerEvents{Accepted: n, Unmatched: n},
		Deliveries: []bridge.LedgerDelivery{}, Hours: []bridge.LedgerHour{}}, f.bus(q.Bus)
}

func (f *fakeBridge) Buses() []string { return []string{"default", "devices"} }

func (f *fakeBridge) Checks() []bridge.Check {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.checks)
}

func (f *fakeBridge) Position(bus string) (event.Position, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return event.Position{Stream: "EV_" + bus, Seq: uint64(len(f.buses[bus]))}, f.bus(bus)
}

// kinds are those of the bridge, as the process wires them, but for targets and devices, which are simpler here.
func kinds() []api.Kind {
	return []api.Kind{
		{Name: "Bus", Plural: "buses", Keep: []string{"default", "devices"}, Normalize: func(_ context.Context, doc, _ []byte) ([]byte, error) {
			_, err := bridge.ParseBus(doc)
			return doc, err
		}},
		{Name: "Target", Plural: "targets", Normalize: func(_ context.Context, doc, _ []byte) ([]byte, error) {
			var t struct {
				Config struct {
					URL string `json:"url"`
				} `json:"config"`
			}
			if err := json.Unmarshal(doc, &t); err != nil || t.Config.URL == "" {
				return nil, fault.Invalidf("/config/url", "is missing")
			}
			return doc, nil
		}},
		{Name: "Rule", Plural: "rules", Scoped: true, Normalize: func(_ context.Context, doc, _ []byte) ([]byte, error) {
			_, err := rules.ParseRule(doc)
			return doc, err
		}, Refs: func(doc []byte) []api.Ref {
			r, err := rules.ParseRule(doc)
			if err != nil {
				return nil
			}
			var refs []api.Ref
			for i, t := range r.Targets {
				refs = append(refs, api.Ref{Kind: "Target", Name: t.Target, Pointer: fmt.Sprintf("/targets/%d/target", i)})
			}
			return refs
		}},
		{Name: "Source", Plural: "sources"},
		{Name: "Device", Plural: "devices", Area: "devices", Lasting: true, Redact: func(doc []byte) []byte {
			return bytes.ReplaceAll(doc, []byte("hunter2"), []byte("***"))
		}},
	}
}

// server is an API under test with what stands behind it.
type server struct {
	t      *testing.T
	api    *api.API
	http   *httptest.Server
	bridge *fakeBridge
	store  store.Store
	keys   *api.Keys
	reg    *prometheus.Registry
	log    *safeBuffer
	key    string // sent with every request; "" for none
}

// start starts a server. Its key may do everything.
func start(t *testing.T, change ...func(*api.Options)) *server {
	t.Helper()
	s := &server{t: t, bridge: newFakeBridge(), store: memory.New(nil), keys: api.NewKeys(), reg: prometheus.NewRegistry(), log: &safeBuffer{}}
	schemas := memory.NewSchemas()
	t.Cleanup(func() { schemas.Close() })
	o := api.Options{Bridge: s.bridge, Store: s.store, Keys: s.keys, Kinds: kinds(), Schemas: schema.NewRegistry(schema.RegistryOptions{Store: schemas}), Version: "1.2.3", Registerer: s.reg, Gatherer: s.reg,
		Logger: slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Listeners: func() []api.Listener {
			return []api.Listener{{Name: "MQTT", Address: "127.0.0.1:1883", Try: "mosquitto_pub -t <topic>"}}
		}}
	for _, c := range change {
		c(&o)
	}
	for _, bus := range []string{"default", "devices"} {
		s.put(store.Key{Kind: "Bus", Name: bus}, `{"kind":"Bus","name":"`+bus+`"}`)
	}
	s.key = s.addKey("admin", "admin:*")
	var err error
	if s.api, err = api.New(o); err != nil {
		t.Fatal(err)
	}
	s.http = httptest.NewServer(s.api)
	s.http.Config.RegisterOnShutdown(s.api.Close)
	t.Cleanup(func() {
		s.api.Close()
		s.http.Close()
		s.http.Client().CloseIdleConnections()
		s.store.Close()
	})
	return s
}

func (s *server) put(k store.Key, raw string) store.Document {
	s.t.Helper()
	d, err := s.store.Put(s.t.Context(), k, json.RawMessage(raw), store.Condition{})
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

func (s *server) addKey(name string, scopes ...string) string {
	s.t.Helper()
	secret, doc, err := api.NewKey(name, scopes...)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.keys.Set(s.put(store.Key{Kind: "Key", Name: name}, string(doc))); err != nil {
		s.t.Fatal(err)
	}
	return secret
}

// answer is a whole answer.
type answer struct {
	status int
	header http.Header
	body   string
}

// request is a request to be sent; headers are name, value, name, value.
type request struct {
	method, path string
	body         string
	header       []string
}

func (s *server) do(method, path, body string, header ...string) answer {
	s.t.Helper()
	return s.send(request{method, path, body, header})
}

func (s *server) send(r request) answer {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), r.method, s.http.URL+r.path, strings.NewReader(r.body))
	if err != nil {
		s.t.Fatal(err)
	}
	if s.key != "" {
		req.Header.Set("Authorization", "Bearer "+s.key)
	}
	for i := 0; i+1 < len(r.header); i += 2 {
		if r.header[i] == "Host" {
			req.Host = r.header[i+1]
			continue
		}
		req.Header[http.CanonicalHeaderKey(r.header[i])] = append(req.Header[http.CanonicalHeaderKey(r.header[i])], r.header[i+1])
	}
	resp, err := s.http.Client().Do(req)
	if err != nil {
		s.t.Fatalf("%s %s: %v", r.method, r.path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatalf("%s %s: %v", r.method, r.path, err)
	}
	return answer{resp.StatusCode, resp.Header, string(b)}
}

// post sends an event in binary mode.
func (s *server) post(bus, id string, header ...string) answer {
	s.t.Helper()
	return s.do("POST", "/v1/buses/"+bus+"/events", `{"a":1}`, append([]string{"Ce-Specversion", "1.0", "Ce-Id", id, "Ce-Source", "/test",
		"Ce-Type", "com.example.test", "Content-Type", "application/json"}, header...)...)
}

// want checks a status and returns the answer.
func (a answer) want(t *testing.T, status int) answer {
	t.Helper()
	if a.status != status {
		t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	return a
}

// into decodes a JSON body.
func into[T any](t *testing.T, a answer) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		t.Fatalf("not JSON: %v: %s", err, a.body)
	}
	return v
}

// wantProblem checks that an answer is a whole problem of a status and slug, and that its pointers are these.
func wantProblem(t *testing.T, a answer, status int, slug string, pointers ...string) api.Problem {
	t.Helper()
	if a.status != status {
		t.Errorf("status %d, want %d: %s", a.status, status, a.body)
	}
	if ct := a.header.Get("Content-Type"); ct != "application/problem+json" {
		t.Errorf("Content-Type = %q of a problem", ct)
	}
	p := into[api.Problem](t, a)
	if p.Type != "urn:rialto:problem:"+slug || p.Status != a.status || p.Title == "" {
		t.Errorf("problem = %s, want type %s and the status of the answer", a.body, slug)
	}
	if p.RequestID == "" || p.RequestID != a.header.Get("X-Request-Id") {
		t.Errorf("requestId = %q, header %q", p.RequestID, a.header.Get("X-Request-Id"))
	}
	for _, want := range pointers {
		if !slices.ContainsFunc(p.Errors, func(d fault.Detail) bool { return d.Pointer == want && d.Detail != "" }) {
			t.Errorf("no error at %q in %s", want, a.body)
		}
	}
	return p
}

// safeBuffer is a log that many write to.
type safeBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

var errCause = errors.New("the-inner-cause")
