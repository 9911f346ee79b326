// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// link is one link as one definition has it. While it has the lease, one goroutine owns its state: an owner.
type link struct {
	ls      *Links
	def     *Link
	ctx     context.Context
	cancel  context.CancelFunc
	ended   chan struct{}
	again   chan struct{} // asks for a new start
	asks    chan ask      // for the owner
	metrics linkMetrics

	events, bytes *meter // outlive a change of the definition
	snap          atomic.Pointer[snapshot]
	foreign       atomic.Bool // the log is another one than the link knows
	unsaid        atomic.Bool // TypeBehind could not be stored

	mu     sync.Mutex // guards below
	state  State
	since  time.Time
	last   *LinkError
	opened time.Time // when the owner began, which answers; zero when there is none
	shut   time.Time // when retention first found that there is none; zero since one has answered, or lasted
	gaveUp bool      // retention has waited long enough
	warned time.Time // when io.rialto.link.refused was raised last
}

// ask is a question of Trimming.
type ask struct {
	ctx   context.Context //nolint:containedctx // lives as long as the call
	first uint64
	reply chan error
}

func newLink(ls *Links, def *Link, old *link) *link {
	l := &link{ls: ls, def: def, ended: make(chan struct{}), again: make(chan struct{}, 1), asks: make(chan ask), metrics: ls.metrics.link(def.Name),
		events: &meter{}, bytes: &meter{}, state: Connecting, since: ls.o.Now()}
	l.ctx, l.cancel = context.WithCancel(ls.ctx)
	if old != nil {
		l.events, l.bytes = old.events, old.bytes
		if old.def.Bus == def.Bus {
			l.snap.Store(old.snap.Load())
		}
	}
	return l
}

// errRestart ends a run that is to begin anew at once.
var errRestart = errors.New("restart")

// errForeign is the start of what is said of a log that was restored.
var errForeign = errors.New("the log is not the one that the link has read: it was restored, or replaced; reset the link")

// foreignError is an errForeign and by what it was recognised.
type foreignError struct{ why string }

func (e *foreignError) Error() string { return errForeign.Error() + " (" + e.why + ")" }
func (e *foreignError) Unwrap() error { return errForeign }

func foreign(format string, args ...any) error { return &foreignError{fmt.Sprintf(format, args...)} }

// run runs the link until it is cancelled. It begins when before is closed, if it is not nil.
func (l *link) run(before <-chan struct{}) {
	defer close(l.ended)
	defer l.cancel()
	if before != nil {
		<-before
	}
	wait := l.ls.retry
	for l.ctx.Err() == nil {
		began := time.Now()
		err := l.attempt()
		if l.ctx.Err() != nil {
			break
		}
		switch {
		case errors.Is(err, errRestart), errors.Is(err, errMoved):
			continue
		case errors.Is(err, eventlog.ErrLeaseLost):
			l.ls.log.Info("another node has the link now", "link", l.def.Name)
			continue
		case err == nil:
			err = errors.New("the link ended by itself")
		}
		if time.Since(began) > lastRetry {
			wait = l.ls.retry
		}
		if errors.Is(err, errForeign) {
			l.foreign.Store(true)
			wait = refusedRetry
		}
		l.enter(Failing, err)
		l.pause(wait)
		wait = min(2*wait, lastRetry)
	}
	l.metrics.connected.Set(0)
}

// attempt runs the link while this node has its lease.
func (l *link) attempt() error {
	l.enter(Standby, nil)
	return l.ls.o.Leases.Hold(l.ctx, "link."+l.def.Name, func(ctx context.Context) error {
		o, err := l.open(ctx)
		if err != nil {
			return err
		}
		l.foreign.Store(false)
		l.setOpen(true)
		defer l.setOpen(false)
		defer o.close(ctx)
		return o.run(ctx)
	})
}

// jitter is d, give or take a fifth.
func jitter(d time.Duration) time.Duration { return d*4/5 + rand.N(d*2/5+1) }

// pause waits d, or until a restart is asked for.
func (l *link) pause(d time.Duration) {
	timer := time.NewTimer(jitter(d))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.again:
	case <-l.ctx.Done():
	}
}

// restart has the link begin anew, from wherever its position says now.
func (l *link) restart() {
	select {
	case l.again <- struct{}{}:
	default: // it is asked for already
	}
}

// enter notes a state, and what is wrong if something is. It logs what is new.
func (l *link) enter(s State, err error) {
	now := l.ls.o.Now()
	l.mu.Lock()
	if l.state != s {
		l.state, l.since = s, now
	}
	said := false
	if err != nil {
		said = l.last != nil && l.last.Message == err.Error()
		l.last = &LinkError{Message: err.Error(), At: now}
	}
	l.mu.Unlock()
	connected := 0.0
	if s == Running {
		connected = 1
	}
	l.metrics.connected.Set(connected)
	switch {
	case s == Running:
		l.ls.log.Info("link connected", "link", l.def.Name, "region", l.def.Region)
	case err != nil && !said:
		l.ls.log.Warn("link does not forward, it is tried again", "link", l.def.Name, "region", l.def.Region, "state", string(s), "err", err)
	}
}

const (
	// trimWithin bounds how long a trim waits for the owner of a link.
	trimWithin = 10 * time.Second
	// openWithin bounds how long one waits for a link that is not open, at a time, and openGrace for how long it does so.
	openWithin = time.Second
	openGrace  = time.Minute
)

// trimming has the owner count what goes, as far as it comes. Where another node has the link it is for that to do.
func (l *link) trimming(ctx context.Context, first uint64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, trimWithin, errors.New("it does not answer"))
	defer cancel()
	for counting := false; ; {
		err := l.askOwner(ctx, first)
		switch {
		case errors.Is(err, errCounting) && ctx.Err() == nil:
			counting = true
			continue
		case counting && err != nil && ctx.Err() != nil:
			return errCounting
		}
		return err
	}
}

// askOwner asks once.
func (l *link) askOwner(ctx context.Context, first uint64) error {
	q := ask{ctx, first, make(chan error, 1)}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); ; {
		if l.foreign.Load() || l.givenUp(false) {
			return nil // what it has not forwarded is in another log, or is counted when it opens
		}
		select {
		case l.asks <- q:
			select {
			case err := <-q.reply:
				l.answered()
				return err
			case <-l.ended:
				return errEnded
			}
		case <-tick.C:
			if node, err := l.ls.o.Leases.Holder(ctx, "link."+l.def.Name); err == nil && node != "" && node != l.ls.o.Leases.Node() {
				return nil
			}
			if time.Since(began) >= openWithin && !l.isOpen() && !l.givenUp(true) {
				return errShut
			}
		case <-l.ended:
			return errEnded
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

var (
	errEnded = errors.New("it has ended")
	errShut  = errors.New("it cannot be opened")
)

// setOpen notes whether there is an owner, which answers; one that has not lasted may not have come to that.
func (l *link) setOpen(open bool) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if open {
		l.opened = now
		return
	}
	if now.Sub(l.opened) > openWithin {
		l.shut = time.Time{}
	}
	l.opened = time.Time{}
}

// answered notes that the owner has answered retention.
func (l *link) answered() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shut = time.Time{}
}

func (l *link) isOpen() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.opened.IsZero()
}

// givenUp reports whether retention does not wait for the link any more, since it has found it shut for openGrace: one that does
// not work is not to fill the disk of all. found says that it was found shut just now.
func (l *link) givenUp(found bool) bool {
	now := time.Now()
	l.mu.Lock()
	if found && l.opened.IsZero() && l.shut.IsZero() {
		l.shut = now
	}
	up := l.opened.IsZero() && !l.shut.IsZero() && now.Sub(l.shut) >= l.ls.grace
	tell := up && !l.gaveUp
	l.gaveUp = up
	l.mu.Unlock()
	if tell {
		l.ls.log.Warn("link cannot be opened: retention waits for it no more", "link", l.def.Name, "region", l.def.Region)
	}
	return up
}

// Types of the events that links raise on their bus, or, if that takes nothing, on the bus default.
const (
	TypeBehind  = "io.rialto.link.behind"  // retention will take what the link has not forwarded
	TypeDropped = "io.rialto.link.dropped" // retention has
	TypeRefused = "io.rialto.link.refused" // the other region can never store an event, or the transform failed
)

// emitTime bounds how long an event of the link's own takes.
const emitTime = 10 * time.Second

// refusedEvery is how often TypeRefused is raised at most.
const refusedEvery = time.Minute

// raise stores an event of the link's own, without waiting: on its bus, or, where that takes nothing (it may be full), on the bus
// default. lost is called if neither takes it; nil = it need not be known.
func (l *link) raise(kind string, data map[string]any, lost func()) {
	data["link"], data["region"], data["bus"] = l.def.Name, l.def.Region, l.def.Bus
	b, err := json.Marshal(data)
	if err != nil {
		b = []byte("{}") // strings and numbers always marshal
	}
	ev := event.Event{ID: event.NewID(), Source: "/links/" + l.def.Name, Type: kind, Subject: l.def.Name, Time: l.ls.o.Now().UTC(),
		DataContentType: "application/json", Data: b}
	l.ls.wg.Go(func() {
		err := l.store(l.def.Bus, ev)
		if err != nil && l.def.Bus != defaultBus && l.store(defaultBus, ev) == nil {
			err = nil
		}
		if err == nil {
			return
		}
		l.ls.log.Warn("an event of a link could not be stored", "link", l.def.Name, "eventType", kind, "err", err)
		if lost != nil {
			lost()
		}
	})
}

// defaultBus always exists.
const defaultBus = "default"

// store stores an event of the link's own on a bus.
func (l *link) store(bus string, ev event.Event) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), emitTime)
	defer cancel()
	return l.ls.o.Emit(ctx, bus, ev)
}

// refused tells of events that will never be forwarded, but not of each.
func (l *link) refused(n uint64, reason, why string) {
	now := l.ls.o.Now()
	l.mu.Lock()
	told := !l.warned.IsZero() && now.Sub(l.warned).Abs() < refusedEvery
	if !told {
		l.warned = now
	}
	l.mu.Unlock()
	if told {
		return
	}
	l.ls.log.Warn("link leaves events out", "link", l.def.Name, "region", l.def.Region, "reason", reason, "err", why)
	l.raise(TypeRefused, map[string]any{"reason": reason, "detail": why, "events": n}, nil)
}
