// SPDX-License-Identifier: Apache-2.0

// Package sourcetest is the suites that every kind of source must pass: what package sources promises, tried against an
// upstream that misbehaves, for sources that are sent to, against senders that do, and for those that make their events by
// themselves, against a log that does.
//
// A kind's test calls RunPulled, RunHook or RunOwn. What they run is the real supervisor over a real state plane; only the log of
// events is a list in memory, so that commits can be held and refused.
package sourcetest

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/egress"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/sources"
)

// Patience is how long the suites wait for what has to happen.
const Patience = 30 * time.Second

// Log is an Ingester that keeps events in memory, drops duplicates, and whose commits can be held or made to fail.
type Log struct {
	mu     sync.Mutex // guards below
	events []event.Event
	known  map[event.Key]bool
	fail   error
	refuse func(*event.Event) error
	lost   error         // what is answered to what was committed
	held   chan struct{} // closed when commits are let go; nil if they are not held
	asked  int           // events that Ingest was called for
	most   int           // events in one call
	news   chan struct{} // closed and replaced when something changes
}

// NewLog returns an empty log.
func NewLog() *Log { return &Log{known: map[event.Key]bool{}, news: make(chan struct{})} }

// Ingest is sources.Ingester.Ingest.
func (l *Log) Ingest(ctx context.Context, _ string, recs []*event.Record) ([]eventlog.Receipt, error) {
	l.mu.Lock()
	l.asked += len(recs)
	l.most = max(l.most, len(recs))
	held := l.held
	l.tell()
	l.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.tell()
	if err := l.misfit(recs); err != nil {
		return nil, err
	}
	out, had := make([]eventlog.Receipt, len(recs)), len(l.events)
	var errs []error
	for i, rec := range recs {
		switch {
		case l.fail != nil:
			out[i].Err = l.fail
		case l.refuse != nil && l.refuse(&rec.Event) != nil:
			out[i].Err = l.refuse(&rec.Event)
		case l.known[rec.Event.Key()]:
			out[i].Duplicate = true
		default:
			l.known[rec.Event.Key()] = true
			l.events = append(l.events, rec.Event)
		}
		errs = append(errs, out[i].Err)
	}
	if l.lost != nil && len(l.events) > had {
		clear(l.known)
		return nil, l.lost
	}
	return out, errors.Join(errs...)
}

// Stored is sources.Ingester.Stored.
func (l *Log) Stored(_ context.Context, _, source, id string) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.events, func(ev event.Event) bool { return ev.Source == source && ev.ID == id }), nil
}

// misfit is why none of several events is stored: one does not fit its schema. Called with mu held.
func (l *Log) misfit(recs []*event.Record) error {
	if l.refuse == nil || len(recs) == 1 {
		return nil
	}
	for _, rec := range recs {
		if err := l.refuse(&rec.Event); fault.KindOf(err) == fault.Unfit {
			return err
		}
	}
	return nil
}

// tell wakes those who wait. Called with mu held.
func (l *Log) tell() {
	close(l.news)
	l.news = make(chan struct{})
}

// Hold keeps commits from ending until the function it returns is called.
func (l *Log) Hold() (release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := make(chan struct{})
	l.held = held
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.held = nil
		close(held)
	})
}

// Fail has every commit fail with err; nil lets them succeed again.
func (l *Log) Fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail = err
}

// LoseAnswers has whoever commits something hear of err instead, and the ids forgotten: as it is for who is killed after a commit and
// comes back when the dedup window of the bus has passed. nil ends it.
func (l *Log) LoseAnswers(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = err
}

// Refuse has single events fail; if one of several fails as Unfit, all do.
func (l *Log) Refuse(why func(*event.Event) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse = why
}

// Events returns what is committed.
func (l *Log) Events() []event.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.events)
}

// Asked returns for how many events Ingest was called, repeats included.
func (l *Log) Asked() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked
}

// Await waits until ok says so of the log.
func (l *Log) Await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	Await(t, what, l.changed, ok)
}

func (l *Log) changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.news
}

// Await waits until ok, and looks again whenever changed fires and every 20 ms.
func Await(t testing.TB, what string, changed func() <-chan struct{}, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(Patience)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		var news <-chan struct{}
		if changed != nil {
			news = changed()
		}
		if ok() {
			return
		}
		select {
		case <-news:
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("%s: not in time", what)
		}
	}
}

// Guard returns a guard that allows this host, where the upstream of a test is.
func Guard() *egress.Guard {
	return egress.New(egress.Options{Allow: []egress.Entry{{Prefix: netip.MustParsePrefix("127.0.0.0/8")}}})
}

// State opens a state plane for the supervisors of a test.
func State(t testing.TB) *eventlog.Log {
	t.Helper()
	l, err := eventlog.Open(t.Context(), eventlog.Options{Dir: t.TempDir(), Durability: eventlog.OS, Reserve: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return l
}

// LeaseTTL is how long the nodes of a test wait for one that does not answer.
const LeaseTTL = 500 * time.Millisecond

// MaxData is the largest payload that a node of a test takes.
const MaxData = 2 << 20

// Node starts a supervisor as one node of those that share a state plane. stop ends it; the test does so if nobody else does.
func Node(t testing.TB, name string, state *eventlog.Log, log sources.Ingester, edit func(*sources.Options), kinds ...sources.Kind) (s *sources.Supervisor, stop func()) {
	t.Helper()
	nc, err := state.Connect()
	if err != nil {
		t.Fatal(err)
	}
	leases, err := eventlog.OpenLeases(t.Context(), nc, eventlog.LeaseOptions{Node: name, TTL: LeaseTTL})
	if err != nil {
		t.Fatal(err)
	}
	positions, err := sources.OpenPositions(t.Context(), nc, "sources")
	if err != nil {
		t.Fatal(err)
	}
	guard := Guard()
	client := &http.Client{Transport: &http.Transport{DialContext: guard.DialContext},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	o := sources.Options{Catalog: sources.NewCatalog(kinds...), Ingester: log, Leases: leases, Positions: positions,
		Limits: event.Limits{MaxData: MaxData}, MinBackoff: 10 * time.Millisecond, MaxBackoff: 100 * time.Millisecond,
		Env: func(*sources.Definition) sources.Env {
			return sources.Env{HTTP: client, Dial: guard.DialContext, Secrets: func(ref string) (string, error) {
				return "", errors.New("no secret " + ref)
			}}
		}}
	if os.Getenv("RIALTO_TEST_LOG") != "" {
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", name)
	}
	if edit != nil {
		edit(&o)
	}
	if s, err = sources.NewSupervisor(o); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
		client.CloseIdleConnections()
		nc.Close()
	})
	t.Cleanup(stop)
	return s, stop
}

// Define parses a definition and puts it in force.
func Define(t testing.TB, s *sources.Supervisor, doc string, kinds ...sources.Kind) {
	t.Helper()
	d, err := sources.ParseDefinition([]byte(doc), sources.NewCatalog(kinds...))
	if err != nil {
		t.Fatalf("%s: %v", doc, err)
	}
	s.Set(d)
}
