// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// instance is one source as one definition has it.
type instance struct {
	s      *Supervisor
	def    *Definition
	kind   Kind
	ctx    context.Context
	cancel context.CancelFunc
	ended  chan struct{}
	hook   atomic.Pointer[HookHandler] // nil while it is not to be called
	ailing atomic.Bool                 // the last request for it was not taken
	again  chan struct{}               // asks for a new start
	tally  *tally                      // outlives a change of the definition
	first  Source                      // of a hook, made with the instance: it answers as soon as the definition is in force

	mu     sync.Mutex // guards below
	state  State
	since  time.Time
	at     string // position
	lag    int64  // negative: not known
	last   *LastError
	legacy Heir // the last one that was made, of this definition or of one before; nil if there is none
}

func newInstance(s *Supervisor, d *Definition, k Kind, old *instance) *instance {
	in := &instance{s: s, def: d, kind: k, ended: make(chan struct{}), again: make(chan struct{}, 1), state: Starting, since: s.o.Now(), lag: -1}
	in.ctx, in.cancel = context.WithCancel(s.ctx)
	if old != nil {
		in.tally = old.tally
	} else {
		in.tally = newTally(s.metrics.source(d.Name))
	}
	if old != nil && old.def.Type == d.Type && old.def.Bus == d.Bus {
		in.legacy = old.heir(nil)
	}
	if k.Hook && !d.Paused {
		if src, err := in.make(nil); err == nil { // else run says why
			in.first = src
			in.offer(src)
		}
	}
	return in
}

// make makes the source.
func (in *instance) make(p *place) (Source, error) {
	src, err := in.kind.New(in.def.Config, in.env(p))
	if h, ok := src.(Heir); ok && err == nil {
		if before := in.heir(h); before != nil {
			h.Inherit(before)
		}
	}
	return src, err
}

// heir returns the last one that was made, and notes next as that if it is not nil.
func (in *instance) heir(next Heir) (last Heir) {
	in.mu.Lock()
	defer in.mu.Unlock()
	last = in.legacy
	if next != nil {
		in.legacy = next
	}
	return last
}

// offer has a source answer hooks.
func (in *instance) offer(src Source) {
	if h, ok := src.(HookHandler); ok {
		in.hook.Store(&h)
	}
}

// run runs the source until it is cancelled. It begins when before is closed, if it is not nil.
func (in *instance) run(before <-chan struct{}) {
	defer close(in.ended)
	defer in.cancel()
	if before != nil {
		<-before
	}
	if in.def.Paused {
		in.rest()
		return
	}
	wait := in.s.o.MinBackoff
	for in.ctx.Err() == nil {
		began, stored := in.s.o.Now(), in.tally.stored.Load()
		err := in.attempt()
		if in.ctx.Err() != nil {
			break
		}
		switch {
		case errors.Is(err, errRestart):
			continue
		case errors.Is(err, eventlog.ErrLeaseLost):
			in.s.log.Info("another node has the source now", "source", in.def.Name)
			continue
		case in.s.o.Now().Sub(began) > in.s.o.MaxBackoff, in.tally.stored.Load() > stored:
			wait = in.s.o.MinBackoff
		}
		in.fail(err)
		if !in.pause(wait) {
			break
		}
		wait = min(2*wait, in.s.o.MaxBackoff)
	}
	in.set(Stopped)
}

// rest is what a source does while its definition pauses it: it notes that, for when it goes on. It is noted under the lease, so that
// a node which is late does not take one that runs again for paused.
func (in *instance) rest() {
	in.set(Paused)
	wait := in.s.o.MinBackoff
	for !in.kind.Hook {
		err := in.s.o.Leases.Hold(in.ctx, "source."+in.def.Name, func(ctx context.Context) error {
			return in.s.o.Positions.pause(ctx, in.def.Name)
		})
		if err == nil || in.ctx.Err() != nil {
			break
		}
		in.s.log.Warn("it is not noted that a source is paused, and tried again", "source", in.def.Name, "err", err)
		in.pause(wait)
		wait = min(2*wait, in.s.o.MaxBackoff)
	}
	<-in.ctx.Done()
}

// errRestart ends a run that is to begin anew at once.
var errRestart = errors.New("restart")

// restart has the source begin anew, from wherever its position says now.
func (in *instance) restart() {
	select {
	case in.again <- struct{}{}:
	default: // it is asked for already
	}
}

// pause waits d, give or take a fifth, or until a restart is asked for; false if the source was cancelled.
func (in *instance) pause(d time.Duration) bool {
	timer := time.NewTimer(d*4/5 + rand.N(d*2/5+1))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-in.again:
	case <-in.ctx.Done():
		return false
	}
	return true
}

// attempt is one run: for a hook here, for a pulled source with the lease.
func (in *instance) attempt() error {
	if in.kind.Hook {
		return in.serve(in.ctx, nil)
	}
	in.set(Standby)
	return in.s.o.Leases.Hold(in.ctx, "source."+in.def.Name, func(ctx context.Context) error {
		p, err := openPlace(ctx, in)
		if err != nil {
			return err
		}
		return in.serve(ctx, p)
	})
}

// serve makes the source and runs it, until it ends or has to begin anew.
func (in *instance) serve(ctx context.Context, p *place) error {
	src := in.first
	in.first = nil
	if src == nil {
		var err error
		if src, err = in.make(p); err != nil {
			return err
		}
	}
	in.offer(src)
	defer in.hook.Store(nil)
	in.set(Running)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- src.Run(ctx, in.emit) }()
	look := time.NewTicker(lookAfter)
	defer look.Stop()
	for {
		select {
		case err := <-done:
			return ended(ctx, err)
		case <-in.again:
			cancel(errRestart)
			<-done
			return errRestart
		case <-look.C:
			if p != nil && p.moved(ctx) {
				cancel(errRestart)
				<-done
				return errRestart
			}
		}
	}
}

// lookAfter is how often the holder of a source looks whether somebody has reset its position.
const lookAfter = 3 * time.Second

// ended is why a run is over: what cut it off counts before what the source made of that.
func ended(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, ErrMoved):
		return errRestart
	case err == nil:
		return errors.New("the source ended by itself")
	}
	return err
}

func (in *instance) env(p *place) Env {
	env := in.s.o.Env(in.def)
	env.Name, env.Now, env.MaxData = in.def.Name, in.s.o.Now, in.s.o.Limits.MaxData
	if env.MaxData == 0 {
		env.MaxData = 1 << 20 // the default of event.Limits
	}
	env.Logger, env.Stored = in.s.log.With("source", in.def.Name), in.stored
	env.Start, _ = ParseStart(in.def.Start) // a valid definition has a valid start
	env.Position = noPlace{}
	if p != nil {
		env.Position, env.Resumed = p, p.paused
		if start, ok := ParseStart(p.start); ok && p.start != "" {
			env.Start = start
		}
	}
	env.Known = func(n int) { in.tally.duplicate(uint64(n)) }
	env.Lag = func(n int64) {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.lag = n
	}
	return env
}

// answered counts how a request for a hook ended. One that was not taken, and is not the sender's to mend, stands in the status until
// one is taken.
func (in *instance) answered(err error) {
	if err == nil {
		in.tally.metrics.answered.inc("ok")
		in.recovered()
		return
	}
	k, now := fault.KindOf(err), in.s.o.Now()
	in.tally.metrics.answered.inc(k.String())
	switch k {
	case fault.Unauthorized, fault.Forbidden:
		if in.tally.reject(now) {
			in.s.log.Warn("hook request rejected", "source", in.def.Name, "rejected", in.tally.rejected.Load(), "err", err)
		}
	case fault.TooLarge:
		in.untaken(err, now, in.tally.refuse(now))
	case fault.Unavailable, fault.Full, fault.Internal:
		in.untaken(err, now, in.tally.warn(&in.tally.warned.untaken, now))
	}
}

// untaken notes why a hook did not take a request.
func (in *instance) untaken(err error, now time.Time, log bool) {
	in.mu.Lock()
	in.last = &LastError{At: now, Message: err.Error()}
	in.mu.Unlock()
	in.ailing.Store(true)
	if log {
		in.s.log.Warn("hook request not taken", "source", in.def.Name, "kind", fault.KindOf(err).String(), "refused", in.tally.refused.Load(), "err", err)
	}
}

// recovered forgets why a hook did not take a request.
func (in *instance) recovered() {
	if !in.ailing.Load() || !in.ailing.CompareAndSwap(true, false) {
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.last = nil
}

// set notes a state.
func (in *instance) set(s State) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.state != s {
		in.state, in.since = s, in.s.o.Now()
	}
}

// fail notes why a run ended, and logs it unless it ended so before.
func (in *instance) fail(err error) {
	in.mu.Lock()
	same := in.last != nil && in.last.Message == err.Error()
	in.last = &LastError{At: in.s.o.Now(), Message: err.Error()}
	in.state, in.since = Failing, in.last.At
	in.mu.Unlock()
	in.tally.metrics.restarts.Inc()
	if !same {
		in.s.log.Warn("source ended, it is tried again", "source", in.def.Name, "err", err)
	}
}

// place is the Position of a running source.
type place struct {
	in    *instance
	start string // of a reset

	mu       sync.Mutex // guards below
	at       string
	paused   bool   // since at was saved
	revision uint64 // of what we have written
	doubt    uint64 // a later revision that moved saw
}

// openPlace reads the position and writes it again: whoever ran the source before can save no more.
func openPlace(ctx context.Context, in *instance) (*place, error) {
	positions := in.s.o.Positions
	st, revision, err := positions.get(ctx, in.def.Name)
	if err == nil {
		revision, err = positions.put(ctx, in.def.Name, st, revision)
	}
	if err != nil {
		return nil, err
	}
	in.located(st.At)
	return &place{in: in, start: st.Start, at: st.At, paused: st.Paused, revision: revision}, nil
}

// Load is Position.Load.
func (p *place) Load(context.Context) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at, nil
}

// Save is Position.Save.
func (p *place) Save(ctx context.Context, at string) error {
	p.mu.Lock()
	over, same := p.revision, p.at == at && !p.paused
	p.mu.Unlock()
	if same {
		return nil
	}
	st := standing{At: at}
	if start, ok := ParseStart(p.start); ok && start.Time.After(p.in.s.o.Now()) { // it still waits for that
		st.Start = p.start
	}
	revision, err := p.in.s.o.Positions.put(ctx, p.in.def.Name, st, over)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.at, p.paused, p.revision = at, false, revision
	p.mu.Unlock()
	p.in.located(at)
	return nil
}

// moved reports whether somebody else has written the position. A revision that is seen once may be our own, on its way.
func (p *place) moved(ctx context.Context) bool {
	_, revision, err := p.in.s.o.Positions.get(ctx, p.in.def.Name)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil || revision <= p.revision && revision != 0 {
		return false
	}
	seen := p.doubt == revision
	p.doubt = revision
	return seen
}

// located notes the position.
func (in *instance) located(at string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.at = at
}

// noPlace is for sources that are sent to.
type noPlace struct{}

func (noPlace) Load(context.Context) (string, error) { return "", nil }

func (noPlace) Save(context.Context, string) error {
	return errors.New("a source that is sent to has no position")
}
