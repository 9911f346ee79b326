// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// Ingester is where events go: the bridge.
type Ingester interface {
	// Ingest takes events in and blocks until all are committed. If some could not be stored, the error says why and the
	// receipts say which.
	Ingest(ctx context.Context, bus string, recs []*event.Record) ([]eventlog.Receipt, error)
	// Stored reports whether an event that was sent to a bus is in the log, there or where the bus sends what does not fit its
	// schema.
	Stored(ctx context.Context, bus, source, id string) (bool, error)
}

// Options are what a Supervisor is made of.
type Options struct {
	Catalog   *Catalog         // required
	Ingester  Ingester         // required
	Leases    *eventlog.Leases // required
	Positions *Positions       // required
	// Env returns what a source may use of the process: HTTP, Dial and Secrets. The supervisor adds the rest. Required.
	Env    func(d *Definition) Env
	Limits event.Limits // of events

	// A source that ended is run again after MinBackoff, doubling up to MaxBackoff. 0 = 1 s and 1 min.
	MinBackoff, MaxBackoff time.Duration

	Logger     *slog.Logger          // nil = none
	Registerer prometheus.Registerer // nil = no metrics
	Now        func() time.Time      // nil = time.Now
}

// Validate joins all complaints about the options.
func (o *Options) Validate() error {
	if o.Catalog == nil || o.Ingester == nil || o.Leases == nil || o.Positions == nil || o.Env == nil {
		return errors.New("sources: catalog, ingester, leases, positions and env are required")
	}
	return nil
}

// Supervisor runs the sources of this node: each in a goroutine, again when it ends, and pulled ones only while this
// node has their lease. Safe for concurrent use.
type Supervisor struct {
	o       Options
	log     *slog.Logger
	metrics *metrics
	ctx     context.Context // done when the supervisor is closed
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	mu     sync.RWMutex // guards below
	known  map[string]*instance
	going  map[string]<-chan struct{} // sources that were removed and have not ended
	closed bool
}

// NewSupervisor makes a supervisor without sources.
func NewSupervisor(o Options) (*Supervisor, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.MinBackoff == 0 {
		o.MinBackoff = time.Second
	}
	if o.MaxBackoff == 0 {
		o.MaxBackoff = time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Supervisor{o: o, log: o.Logger.With("component", "sources"), metrics: newMetrics(o.Registerer), known: make(map[string]*instance),
		going: make(map[string]<-chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// Set puts a definition in force, over one of the same name. It does not wait: the new source runs as soon as the old one
// has ended. d must be valid for the catalog.
func (s *Supervisor) Set(d *Definition) {
	k, ok := s.o.Catalog.Lookup(d.Type)
	if !ok {
		s.log.Error("source of an unknown kind", "source", d.Name, "kind", d.Type)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	old, before := s.known[d.Name], s.going[d.Name]
	in := newInstance(s, d, k, old)
	s.known[d.Name] = in
	if old != nil {
		old.cancel()
		before = old.ended
	}
	s.wg.Go(func() { in.run(before) })
}

// Remove ends a source and forgets its position. It does not wait.
func (s *Supervisor) Remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.known[name]
	if in == nil || s.closed {
		return
	}
	delete(s.known, name)
	in.cancel()
	s.metrics.forget(name)
	gone := make(chan struct{})
	s.going[name] = gone
	s.wg.Go(func() {
		<-in.ended
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.going[name] == gone {
				delete(s.going, name)
			}
			close(gone)
		}()
		if err := s.o.Positions.Forget(context.WithoutCancel(s.ctx), name); err != nil {
			s.log.Warn("the position of a deleted source is left", "source", name, "err", err)
		}
	})
}

func (s *Supervisor) lookup(name string) *instance {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.known[name]
}

// Reset has a source begin at start, which is as in a definition, or "" for what the definition says. NotFound if there is
// no such source, Invalid if it has no position.
func (s *Supervisor) Reset(ctx context.Context, name, start string) error {
	in := s.lookup(name)
	if in == nil {
		return fault.New(fault.NotFound, "no source %q", name)
	}
	if !in.kind.Starts {
		return fault.New(fault.Conflict, "sources of type %s have no position", in.kind.Name)
	}
	if why := startFault(in.kind, start); why != "" {
		return fault.Invalidf("/start", "%s", why)
	}
	if err := s.o.Positions.Reset(ctx, name, start); err != nil {
		return &fault.Error{Kind: fault.Unavailable, Message: "the position cannot be written now", RetryAfter: time.Second, Err: err}
	}
	in.restart()
	return nil
}

// ServeHook answers a request for a source that is sent to. The error is for the sender: NotFound if there is no such
// source, Unavailable while it is paused or cannot start.
func (s *Supervisor) ServeHook(name string, w http.ResponseWriter, r *http.Request) error {
	in := s.lookup(name)
	if in == nil || !in.kind.Hook {
		return fault.New(fault.NotFound, "no hook %q", name)
	}
	h := in.hook.Load()
	if h == nil {
		why := "the source is not ready"
		if in.def.Paused {
			why = "the source is paused"
		}
		return &fault.Error{Kind: fault.Unavailable, Message: why, RetryAfter: pausedRetry}
	}
	err := (*h).ServeHook(w, r, in.emit)
	if unread := (*Unread)(nil); errors.As(err, &unread) {
		in.unread(r.Context(), unread)
		err = unread.Err
	}
	in.answered(err)
	return err
}

// pausedRetry is when senders are asked to come back to a source that is paused.
const pausedRetry = 30 * time.Second

// Status says where a source stands here; false if there is none.
func (s *Supervisor) Status(name string) (Status, bool) {
	in := s.lookup(name)
	if in == nil {
		return Status{}, false
	}
	return in.status(), true
}

// Close ends all sources and waits for them until ctx is done.
func (s *Supervisor) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.wg.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errors.Join(errors.New("some sources do not end"), context.Cause(ctx))
	}
}
