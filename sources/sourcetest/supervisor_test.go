// SPDX-License-Identifier: Apache-2.0

package sourcetest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/sources"
	"github.com/rialto-bridge/rialto/sources/sourcetest"
)

// await waits for a state of the source s.
func await(t *testing.T, s *sources.Supervisor, want sources.State) sources.Status {
	t.Helper()
	var st sources.Status
	sourcetest.Await(t, "the source is "+string(want), nil, func() bool {
		st, _ = s.Status("s")
		return st.State == want
	})
	return st
}

func put(l *list, n int) {
	for i := range n {
		l.Put(nil, fmt.Append(nil, i))
	}
}

func TestPauseKeepsThePosition(t *testing.T) {
	l, log := newList(), sourcetest.NewLog()
	s, _ := sourcetest.Node(t, "n", sourcetest.State(t), log, nil, l.kind())
	sourcetest.Define(t, s, `{"name":"s","type":"list","config":{"batch":4}}`, l.kind())
	put(l, 10)
	log.Await(t, "ten events", func() bool { return len(log.Events()) == 10 })
	sourcetest.Await(t, "the position is kept", nil, func() bool { st, _ := s.Status("s"); return st.Position == "10" })

	sourcetest.Define(t, s, `{"name":"s","type":"list","config":{"batch":4},"paused":true}`, l.kind())
	st := await(t, s, sources.Paused)
	if st.Stored != 10 {
		t.Errorf("a change of the definition forgets what was counted: %+v", st)
	}
	if st.Lag != nil {
		t.Errorf("of a paused source nobody knows the lag: %d", *st.Lag)
	}
	put(l, 5)
	sourcetest.Define(t, s, `{"name":"s","type":"list","config":{"batch":4}}`, l.kind())
	log.Await(t, "the rest", func() bool { return len(log.Events()) == 15 })
	sourcetest.Await(t, "nothing waits upstream", nil, func() bool { st, _ := s.Status("s"); return st.Lag != nil && *st.Lag == 0 && st.Position == "15" })
	if log.Asked() != 15 {
		t.Errorf("%d events were handed over, want each once", log.Asked())
	}
	if len(l.starts) != 1 {
		t.Errorf("the source began anew %d times", len(l.starts))
	}
}

func TestResetBeginsWhereItSays(t *testing.T) {
	l, log := newList(), sourcetest.NewLog()
	s, _ := sourcetest.Node(t, "n", sourcetest.State(t), log, nil, l.kind())
	sourcetest.Define(t, s, `{"name":"s","type":"list","config":{"batch":4},"start":"earliest"}`, l.kind())
	put(l, 6)
	sourcetest.Await(t, "the position is kept", nil, func() bool { st, _ := s.Status("s"); return st.Position == "6" })
	if err := s.Reset(t.Context(), "s", "2027-01-02T03:04:05Z"); err != nil {
		t.Fatal(err)
	}
	log.Await(t, "it reads again", func() bool { return log.Asked() == 12 })
	sourcetest.Await(t, "the position is kept", nil, func() bool { st, _ := s.Status("s"); return st.Position == "6" })
	st, _ := s.Status("s")
	if len(log.Events()) != 6 || st.Duplicate != 6 {
		t.Errorf("%d events are stored and %d were known, want 6 and 6", len(log.Events()), st.Duplicate)
	}
	if err := s.Reset(t.Context(), "s", ""); err != nil {
		t.Fatal(err)
	}
	log.Await(t, "it reads once more", func() bool { return log.Asked() == 18 })
	want := []sources.Start{{Earliest: true}, {Time: time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)}, {Earliest: true}}
	l.mu.Lock()
	defer l.mu.Unlock()
	if diff := cmp.Diff(want, l.starts); diff != "" {
		t.Errorf("starts (-want +got):\n%s", diff)
	}
	for name, want := range map[string]fault.Kind{"nobody": fault.NotFound, "s": fault.Invalid} {
		if err := s.Reset(t.Context(), name, "yesterday"); fault.KindOf(err) != want {
			t.Errorf("reset of %s: %v", name, err)
		}
	}
}

// A reset that comes by way of another node reaches the one that runs the source.
func TestResetOnAnotherNode(t *testing.T) {
	l, log, state := newList(), sourcetest.NewLog(), sourcetest.State(t)
	const doc = `{"name":"s","type":"list","config":{"batch":4}}`
	a, _ := sourcetest.Node(t, "a", state, log, nil, l.kind())
	sourcetest.Define(t, a, doc, l.kind())
	await(t, a, sources.Running)
	put(l, 3)
	log.Await(t, "three events", func() bool { return log.Asked() == 3 })
	b, _ := sourcetest.Node(t, "b", state, log, nil, l.kind())
	sourcetest.Define(t, b, doc, l.kind())
	await(t, b, sources.Standby)
	if err := b.Reset(t.Context(), "s", "earliest"); err != nil {
		t.Fatal(err)
	}
	log.Await(t, "a reads again", func() bool { return log.Asked() == 6 })
}

func TestRemovedSourceForgetsItsPosition(t *testing.T) {
	l, log := newList(), sourcetest.NewLog()
	s, _ := sourcetest.Node(t, "n", sourcetest.State(t), log, nil, l.kind())
	const doc = `{"name":"s","type":"list","config":{"batch":4}}`
	sourcetest.Define(t, s, doc, l.kind())
	put(l, 3)
	sourcetest.Await(t, "the position is kept", nil, func() bool { st, _ := s.Status("s"); return st.Position == "3" })
	s.Remove("s")
	if _, ok := s.Status("s"); ok {
		t.Error("a source that was removed has a status")
	}
	sourcetest.Define(t, s, doc, l.kind()) // at once: it waits until the old one is gone
	log.Await(t, "it reads from the start", func() bool { return log.Asked() == 6 })
}

// A kind that fails in ways of its own.
func failing(made func(n int) (sources.Source, error)) sources.Kind {
	n := 0
	return sources.Kind{Name: "bad", ConfigSchema: []byte(`{"type":"object"}`), New: func(json.RawMessage, sources.Env) (sources.Source, error) {
		n++
		return made(n)
	}}
}

type run func(ctx context.Context, emit sources.Emit) error

func (r run) Run(ctx context.Context, emit sources.Emit) error { return r(ctx, emit) }

func TestFailingSourceIsTriedAgain(t *testing.T) {
	reg := prometheus.NewRegistry()
	k := failing(func(n int) (sources.Source, error) {
		switch n {
		case 1:
			return nil, errors.New("no such broker")
		case 2:
			return run(func(context.Context, sources.Emit) error { return nil }), nil
		case 3:
			return run(func(context.Context, sources.Emit) error { return errors.New("it broke") }), nil
		}
		return run(func(ctx context.Context, _ sources.Emit) error { <-ctx.Done(); return ctx.Err() }), nil
	})
	s, _ := sourcetest.Node(t, "n", sourcetest.State(t), sourcetest.NewLog(), func(o *sources.Options) { o.Registerer = reg }, k)
	sourcetest.Define(t, s, `{"name":"s","type":"bad"}`, k)
	var st sources.Status
	sourcetest.Await(t, "it runs at last", nil, func() bool {
		st, _ = s.Status("s")
		return st.State == sources.Running && st.LastError != nil && st.LastError.Message == "it broke"
	})
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var failures float64
	for _, f := range families {
		if f.GetName() == "rialto_source_failures_total" {
			failures = f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	if failures != 3 {
		t.Errorf("%v failures are counted, want 3", failures)
	}
}

// An event that is not valid is replaced, whether the bridge finds it out or the supervisor.
func TestInvalidEventsBecomeRefusals(t *testing.T) {
	emitted := make(chan error, 1)
	k := failing(func(int) (sources.Source, error) {
		return run(func(ctx context.Context, emit sources.Emit) error {
			emitted <- emit(ctx, event.Event{ID: "1", Source: "/a", Type: "good"}, event.Event{ID: "2", Source: "/a", Type: "bad\n"},
				event.Event{ID: "3", Source: "/a", Type: "full", Data: make([]byte, sourcetest.MaxData+1)}, event.Event{ID: "4", Source: "/a", Type: "odd"})
			<-ctx.Done()
			return ctx.Err()
		}), nil
	})
	log := sourcetest.NewLog()
	log.Refuse(func(ev *event.Event) error {
		if ev.Type == "odd" {
			return fault.New(fault.Unfit, "the schema does not allow it")
		}
		return nil
	})
	s, _ := sourcetest.Node(t, "n", sourcetest.State(t), log, nil, k)
	sourcetest.Define(t, s, `{"name":"s","type":"bad"}`, k)
	if err := <-emitted; err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, ev := range log.Events() {
		if ev.Type != sources.RefusedType {
			_, recorded := ev.Extension("recordedtime")
			got = append(got, fmt.Sprint(ev.Type, " ", recorded))
			continue
		}
		var d struct{ Source, Reason string }
		if err := json.Unmarshal(ev.Data, &d); err != nil || ev.Subject != "s" || ev.Source != "/sources/s" {
			t.Errorf("%+v: %v", ev, err)
		}
		got = append(got, d.Source+": "+d.Reason)
	}
	want := []string{"good true", "s: type: has a control character, a noncharacter, or is not UTF-8", "s: data: is longer than 2097152 bytes", "s: the schema does not allow it"}
	if len(got) != len(want) || got[0] != want[0] || got[3] != want[3] || !strings.HasPrefix(got[1], "s: type: ") || !strings.HasPrefix(got[2], "s: data: ") {
		t.Errorf("stored:\n%s", strings.Join(got, "\n"))
	}
	if st, _ := s.Status("s"); st.Stored != 4 || st.Refused != 3 {
		t.Errorf("status %+v", st)
	}
}

// lines counts what is logged, by message.
type lines struct {
	slog.Handler
	mu    sync.Mutex // guards count
	count map[string]int
}

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }
func (l *lines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *lines) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count[r.Message]++
	return nil
}

// What others can cause as often as they like is not logged as often.
func TestFloodsAreLoggedOnceInAWhile(t *testing.T) {
	var ahead atomic.Int64 // of the clock
	out := &lines{count: map[string]int{}}
	edit := func(o *sources.Options) {
		o.Logger = slog.New(out)
		o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	}
	k := failing(func(int) (sources.Source, error) {
		return flooded{run(func(ctx context.Context, _ sources.Emit) error { <-ctx.Done(); return ctx.Err() })}, nil
	})
	k.Hook = true
	s, _ := sourcetest.Node(t, "n", sourcetest.State(t), sourcetest.NewLog(), edit, k)
	sourcetest.Define(t, s, `{"name":"s","type":"bad"}`, k)
	const times = 100
	for range 2 {
		for range times {
			if err := s.ServeHook("s", httptest.NewRecorder(), httptest.NewRequest("POST", "/hooks/s", nil)); fault.KindOf(err) != fault.Forbidden {
				t.Fatal(err)
			}
		}
		ahead.Add(int64(time.Minute))
	}
	if st, _ := s.Status("s"); st.Rejected != 2*times || st.Refused != 2*times {
		t.Errorf("status %+v", st)
	}
	out.mu.Lock()
	defer out.mu.Unlock()
	if out.count["hook request rejected"] != 2 || out.count["event refused"] != 2 {
		t.Errorf("logged %v, want each twice", out.count)
	}
}

// flooded has an event that cannot be stored, and then does not believe the sender.
type flooded struct{ run }

func (flooded) ServeHook(_ http.ResponseWriter, r *http.Request, emit sources.Emit) error {
	if err := emit(r.Context(), event.Event{ID: "1", Source: "/h", Type: "bad\n"}); err != nil {
		return err
	}
	return fault.New(fault.Forbidden, "no")
}

type hook struct{ run }

func (hook) ServeHook(w http.ResponseWriter, r *http.Request, emit sources.Emit) error {
	if err := emit(r.Context(), event.Event{ID: "1", Source: "/h", Type: "hook"}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func TestHooksAnswerAsSoonAsTheyAreDefined(t *testing.T) {
	k := failing(func(int) (sources.Source, error) {
		return hook{run(func(ctx context.Context, _ sources.Emit) error { <-ctx.Done(); return ctx.Err() })}, nil
	})
	k.Hook = true
	log := sourcetest.NewLog()
	s, _ := sourcetest.Node(t, "n", sourcetest.State(t), log, nil, k)
	call := func(name string) (int, error) {
		w := httptest.NewRecorder()
		err := s.ServeHook(name, w, httptest.NewRequest("POST", "/hooks/"+name, nil))
		return w.Code, err
	}
	if _, err := call("s"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("unknown hook: %v", err)
	}
	sourcetest.Define(t, s, `{"name":"s","type":"bad"}`, k)
	if code, err := call("s"); code != http.StatusNoContent || err != nil {
		t.Errorf("%d, %v", code, err)
	}
	sourcetest.Define(t, s, `{"name":"s","type":"bad","paused":true}`, k)
	if _, err := call("s"); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("paused hook: %v", err)
	}
	sourcetest.Define(t, s, `{"name":"s","type":"bad"}`, k)
	if code, err := call("s"); code != http.StatusNoContent || err != nil {
		t.Errorf("%d, %v", code, err)
	}
	st := await(t, s, sources.Running)
	if st.Hook != "/hooks/s" || st.Node != "" {
		t.Errorf("status %+v", st)
	}
	if err := s.Reset(t.Context(), "s", ""); fault.KindOf(err) != fault.Conflict {
		t.Errorf("reset of a hook: %v", err)
	}
}
