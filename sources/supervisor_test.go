// SPDX-License-Identifier: Apache-2.0

package sources_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/sources"
)

// attempts is a source that runs for a while and fails, and notes when it was run.
type attempts struct {
	lasts func(n int) time.Duration
	at    []time.Time
}

func (a *attempts) Run(ctx context.Context, _ sources.Emit) error {
	a.at = append(a.at, time.Now())
	select {
	case <-time.After(a.lasts(len(a.at))):
		return errors.New("it broke")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (*attempts) ServeHook(http.ResponseWriter, *http.Request, sources.Emit) error { return nil }

// noLog is for sources that store nothing.
type noLog struct{}

func (noLog) Ingest(context.Context, string, []*event.Record) ([]eventlog.Receipt, error) {
	return nil, errors.New("nothing is to be stored here")
}

func (noLog) Stored(context.Context, string, string, string) (bool, error) { return false, nil }

// unclear is a log that gave up waiting, and whose receipts do not say so.
type unclear struct{ noLog }

func (unclear) Ingest(_ context.Context, _ string, recs []*event.Record) ([]eventlog.Receipt, error) {
	return make([]eventlog.Receipt, len(recs)), errors.New("gave up waiting")
}

// emitter is a source that stores an event and says how that ended.
type emitter chan error

func (e emitter) Run(ctx context.Context, emit sources.Emit) error {
	e <- emit(ctx, event.Event{ID: "1", Source: "/a", Type: "t"})
	<-ctx.Done()
	return ctx.Err()
}

func (emitter) ServeHook(http.ResponseWriter, *http.Request, sources.Emit) error { return nil }

// Nothing is acknowledged of which it is not known that it is committed.
func TestAnErrorIsNoCommit(t *testing.T) {
	e := make(emitter, 1)
	s := supervise(t, unclear{}, e)
	if err := <-e; err == nil {
		t.Error("an event is taken for stored")
	}
	if st, _ := s.Status("s"); st.Stored != 0 {
		t.Errorf("status %+v", st)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// supervise runs one source. It is one that is sent to, and so has neither a lease nor a position.
func supervise(t *testing.T, log sources.Ingester, src sources.Source) *sources.Supervisor {
	t.Helper()
	k := sources.Kind{Name: "bad", Hook: true, ConfigSchema: []byte(`{"type":"object"}`), New: func(json.RawMessage, sources.Env) (sources.Source, error) { return src, nil }}
	s, err := sources.NewSupervisor(sources.Options{Catalog: sources.NewCatalog(k), Ingester: log, Leases: &eventlog.Leases{}, Positions: &sources.Positions{},
		Env: func(*sources.Definition) sources.Env { return sources.Env{} }})
	if err != nil {
		t.Fatal(err)
	}
	s.Set(&sources.Definition{Name: "s", Type: "bad", Bus: "default", Config: json.RawMessage(`{}`)})
	return s
}

// A source that fails is run again after 1 s, give or take a fifth, then after twice as long each time, up to a minute; after a
// run that went well for longer than that, it begins anew.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const long = 9 // the run that goes well
		a := &attempts{lasts: func(n int) time.Duration {
			if n == long {
				return 2 * time.Minute
			}
			return 0
		}}
		s := supervise(t, noLog{}, a)
		time.Sleep(15 * time.Minute) // of the bubble's clock
		if st, _ := s.Status("s"); st.State != sources.Failing || st.LastError == nil || st.LastError.Message != "it broke" {
			t.Errorf("status %+v", st)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 121, 2, 4}
		if len(a.at) <= len(want) {
			t.Fatalf("%d runs", len(a.at))
		}
		for i, w := range want {
			w *= time.Second
			low, high := w*4/5, w*6/5
			if i == long-1 { // the run itself is in it
				low, high = 2*time.Minute+800*time.Millisecond, 2*time.Minute+1200*time.Millisecond
			}
			if got := a.at[i+1].Sub(a.at[i]); got < low || got > high {
				t.Errorf("run %d comes %s after the one before, want %s to %s", i+2, got, low, high)
			}
		}
	})
}
