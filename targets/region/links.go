// SPDX-License-Identifier: Apache-2.0

package region

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// Log is where links read.
type Log interface {
	// Bus returns the log of a bus.
	Bus(name string) (*eventlog.Bus, error)
	// Retention is how long, and how many bytes of, its events are kept; 0 = no limit.
	Retention(bus string) (maxAge time.Duration, maxBytes int64, err error)
}

// CallFunction has a function make the data of an event, as rules.CallFunction. An error that is a *targets.Error and not permanent
// is one that trying again may help: the event waits. Any other is for good.
type CallFunction func(ctx context.Context, name, code string, ev *event.Event) (data []byte, contentType string, err error)

// LinksOptions are what a Links is made of.
type LinksOptions struct {
	Instance string           // of this bridge, as in event.Hop; required
	Log      Log              // required
	States   *States          // required
	Leases   *eventlog.Leases // required
	// Dial makes connections. It is where addresses are refused that nobody may connect to. Required.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Secrets looks a reference up. nil = only keys by value can be used.
	Secrets func(ref string) (string, error)
	// View shows an event as rules see it. nil = as it is stored.
	View func(*event.Record) *event.Record
	// Emit stores events of the bridge's own. nil = there are none.
	Emit func(ctx context.Context, bus string, evs ...event.Event) error
	// Functions runs the functions that transforms name. nil = none can be run.
	Functions CallFunction

	Logger     *slog.Logger          // nil = none
	Registerer prometheus.Registerer // nil = no metrics
	Now        func() time.Time      // nil = time.Now
}

// Validate joins all complaints about the options.
func (o *LinksOptions) Validate() error {
	var errs []error
	if !event.IsInstance(o.Instance) {
		errs = append(errs, errors.New("links: the instance is not 1 to 32 of a-z and 0-9"))
	}
	if o.Log == nil || o.States == nil || o.Leases == nil || o.Dial == nil {
		errs = append(errs, errors.New("links: log, states, leases and dial are required"))
	}
	return errors.Join(errs...)
}

// Links runs the links of this node: each in a goroutine of its own, while this node has its lease. Safe for concurrent use.
type Links struct {
	o       LinksOptions
	log     *slog.Logger
	metrics *metrics
	ctx     context.Context // done when the links are closed
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	retry   time.Duration // firstRetry; tests have less patience
	most    time.Duration // how long any wait for the other side is; 0 = as long as it should be
	batch   int           // batchBytes; tests want more batches
	trim    time.Duration // trimTime; tests want more rounds
	grace   time.Duration // openGrace; tests have less patience

	mu      sync.RWMutex // guards below
	regions map[string]*destination
	known   map[string]*link
	going   map[string]<-chan struct{} // links that were removed and have not ended
	closed  bool
}

// destination is a region and what its links share.
type destination struct {
	def  *Region
	pace *pace
}

// NewLinks makes a Links without regions and links.
func NewLinks(o LinksOptions) (*Links, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.View == nil {
		o.View = func(r *event.Record) *event.Record { return r }
	}
	if o.Secrets == nil {
		o.Secrets = func(string) (string, error) { return "", errors.New("references are not known here") }
	}
	if o.Emit == nil {
		o.Emit = func(context.Context, string, ...event.Event) error { return nil }
	}
	ls := &Links{o: o, log: o.Logger.With("component", "links"), metrics: newMetrics(o.Registerer), regions: map[string]*destination{},
		retry: firstRetry, batch: batchBytes, trim: trimTime, grace: openGrace, known: map[string]*link{}, going: map[string]<-chan struct{}{}}
	ls.ctx, ls.cancel = context.WithCancel(context.Background())
	return ls, nil
}

// SetRegion puts a region in force, over one of the same name. Its links connect again. It does not wait.
func (ls *Links) SetRegion(r *Region) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	old := ls.regions[r.Name]
	if ls.closed || old != nil && bytes.Equal(old.def.Raw, r.Raw) {
		return
	}
	d := &destination{def: r, pace: &pace{}}
	if old != nil {
		d.pace = old.pace
	}
	d.pace.set(r.Bandwidth)
	ls.regions[r.Name] = d
	ls.restart(r.Name)
}

// RemoveRegion takes a region away. Its links wait until there is one of that name.
func (ls *Links) RemoveRegion(name string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	delete(ls.regions, name)
	ls.restart(name)
}

// restart has the links of a region begin anew. Called with mu held.
func (ls *Links) restart(region string) {
	for _, l := range ls.known {
		if l.def.Region == region {
			l.restart()
		}
	}
}

// region returns a region, and how many links share it; nil if there is none.
func (ls *Links) region(name string) (d *destination, links int) {
	ls.mu.RLock()
	defer ls.mu.RUnlock()
	for _, l := range ls.known {
		if l.def.Region == name && !l.def.Paused {
			links++
		}
	}
	return ls.regions[name], links
}

// Set puts a link in force, over one of the same name. It does not wait: the new one runs as soon as the old one has ended.
// A link keeps its position as long as it reads the same bus. Where it forwards to another region or bus than before, it goes on
// with what it had not forwarded, as a new epoch.
func (ls *Links) Set(def *Link) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	old, before := ls.known[def.Name], ls.going[def.Name]
	if ls.closed || old != nil && bytes.Equal(old.def.Raw, def.Raw) {
		return
	}
	l := newLink(ls, def, old)
	ls.known[def.Name] = l
	if old != nil {
		old.cancel()
		before = old.ended
	}
	ls.wg.Go(func() { l.run(before) })
}

// Remove ends a link and forgets its position. It does not wait.
func (ls *Links) Remove(name string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.known[name]
	if l == nil || ls.closed {
		return
	}
	delete(ls.known, name)
	l.cancel()
	gone := make(chan struct{})
	ls.going[name] = gone
	ls.wg.Go(func() {
		<-l.ended
		defer func() {
			ls.mu.Lock()
			defer ls.mu.Unlock()
			if ls.known[name] == nil {
				ls.metrics.forget(name)
			}
			if ls.going[name] == gone {
				delete(ls.going, name)
			}
			close(gone)
		}()
		if err := ls.o.States.forget(context.WithoutCancel(ls.ctx), name); err != nil {
			ls.log.Warn("the position of a deleted link is left", "link", name, "err", err)
		}
	})
}

// Settle forgets where links were that are not defined: they were deleted while nobody was here to forget it, and one that is made
// with such a name later is a new one. It is for whoever calls Set and Remove, once all that is defined was Set; defined says what is,
// be it in force or not. What another node has at the moment is left.
func (ls *Links) Settle(ctx context.Context, defined func(name string) bool) error {
	names, err := ls.o.States.names(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		ls.mu.RLock()
		ours := ls.known[name] != nil || ls.going[name] != nil
		ls.mu.RUnlock()
		if ours || defined(name) {
			continue
		}
		if err := ls.forget(ctx, name); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// forget removes what is kept of a link that nobody runs.
func (ls *Links) forget(ctx context.Context, name string) error {
	ctx, cancel := stateContext(ctx)
	defer cancel()
	lease := "link." + name
	if node, err := ls.o.Leases.Holder(ctx, lease); err != nil || node != "" && node != ls.o.Leases.Node() {
		return err
	}
	ls.log.Info("the position of a link that is not defined is forgotten", "link", name)
	return ls.o.Leases.Hold(ctx, lease, func(ctx context.Context) error { return ls.o.States.forget(ctx, name) })
}

// atMost is how long a wait for the other side is.
func (ls *Links) atMost(d time.Duration) time.Duration {
	if ls.most > 0 {
		return min(d, ls.most)
	}
	return d
}

func (ls *Links) lookup(name string) *link {
	ls.mu.RLock()
	defer ls.mu.RUnlock()
	return ls.known[name]
}

// of lists the links of a bus.
func (ls *Links) of(bus string) (all []*link) {
	ls.mu.RLock()
	defer ls.mu.RUnlock()
	for _, l := range ls.known {
		if l.def.Bus == bus {
			all = append(all, l)
		}
	}
	return all
}

// Reset has a link begin a new epoch at start, which is as in a definition, or "" for what the definition says. NotFound if
// there is no such link, Invalid if start is none.
func (ls *Links) Reset(ctx context.Context, name, start string) error {
	l := ls.lookup(name)
	if l == nil {
		return fault.New(fault.NotFound, "no link %q", name)
	}
	if _, ok := ParseStart(start); !ok {
		return fault.Invalidf("/start", badStart)
	}
	if err := ls.o.States.reset(ctx, name, start, newEpoch()); err != nil {
		return &fault.Error{Kind: fault.Unavailable, Message: "the position cannot be written now", RetryAfter: time.Second, Err: err}
	}
	l.restart()
	return nil
}

// newEpoch names one life of a link.
func newEpoch() string { return rand.Text()[:16] }

// Status says where a link stands here; false if there is none.
func (ls *Links) Status(name string) (LinkStatus, bool) {
	l := ls.lookup(name)
	if l == nil {
		return LinkStatus{}, false
	}
	return l.status(), true
}

// RegionStatus says how the links to a region stand here; false if there is no such region.
func (ls *Links) RegionStatus(name string) (RegionStatus, bool) {
	ls.mu.RLock()
	d := ls.regions[name]
	var all []*link
	for _, l := range ls.known {
		if l.def.Region == name {
			all = append(all, l)
		}
	}
	ls.mu.RUnlock()
	if d == nil {
		return RegionStatus{}, false
	}
	return regionStatus(d.def, all), true
}

// Accounts returns the accounts of the links that read a bus, by name.
func (ls *Links) Accounts(bus string) []Account {
	out := []Account{}
	for _, l := range ls.of(bus) {
		if s := l.snap.Load(); s != nil {
			out = append(out, s.account(l.def.Name))
		}
	}
	sortAccounts(out)
	return out
}

// Needed is the lowest sequence of a bus that a link has still to read; 0 = none has. Of a link whose position is not known
// yet that is the first. It does not block.
func (ls *Links) Needed(bus string) (lowest uint64) {
	for _, l := range ls.of(bus) {
		n := uint64(1)
		if s := l.snap.Load(); s != nil {
			n = s.needed
		}
		if l.foreign.Load() {
			continue // a log that is not the one that it knows
		}
		if lowest == 0 || n < lowest {
			lowest = n
		}
	}
	return lowest
}

// Trimming counts what the links of a bus have not forwarded of what is below first, as dropped, and writes that down. It
// returns an error if some of that is on its way at the moment, is not counted within 10 s (the next call goes on), or cannot be
// written. A link that cannot be opened for a minute is passed over: what goes meanwhile counts as dropped when it opens.
func (ls *Links) Trimming(ctx context.Context, bus string, first uint64) error {
	all := ls.of(bus)
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, l := range all {
		wg.Go(func() {
			if err := l.trimming(ctx, first); err != nil {
				errs[i] = fmt.Errorf("link %s: %w", l.def.Name, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Close ends all links, writes down where they are, and waits for that until ctx is done.
func (ls *Links) Close(ctx context.Context) error {
	ls.mu.Lock()
	ls.closed = true
	ls.mu.Unlock()
	ls.cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		ls.wg.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errors.Join(errors.New("some links do not end"), context.Cause(ctx))
	}
}
