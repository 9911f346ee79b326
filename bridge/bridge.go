// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
)

// Options are what a Bridge is made of. Log, Journal and Logger are required.
type Options struct {
	Log        *eventlog.Log
	Journal    *journal.Journal
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil = no metrics
	Now        func() time.Time      // nil = time.Now
	Rand       func() float64        // jitter of retries, [0,1); nil = math/rand

	// Schemas checks events that are taken in, on buses whose policy asks for it. nil = no event has a schema.
	Schemas Schemas
	// Discover is told of events that are routed, on buses that discover schemas. nil = nobody is.
	Discover Discoverer
	// Functions runs the functions that transforms name. nil = none can be run.
	Functions Functions

	// View is how schemas, rules, targets and readers see an event. It returns its argument, or another record of the same event
	// with other data, the same each time. nil = as it is stored.
	View func(*event.Record) *event.Record

	// LiveQueue is how many deliveries a lane keeps in memory before it parks; 0 = 4096.
	LiveQueue int
	// Unsettled is how long a delivery may stay live before it is parked, so that the floor moves on; 0 = 2 s.
	Unsettled time.Duration
	// Window is how many events may be routed and not settled; 0 = 50 000.
	Window int
	// RangeAfter is how many deliveries a lane may have parked before what else would be parked is ranged; 0 = 10 000.
	RangeAfter int
	// Aside bounds what is kept until a time or a decision.
	Aside AsideOptions

	// HoldRetention keeps all events until StartRetention is called: who follows the buses is not known before.
	HoldRetention bool

	// ParkedKeys is how many keys of a lane that keeps order may have something parked, before what else comes is ranged; 0 =
	// 10 000.
	ParkedKeys int
}

// Bridge is the event path of a process. Close ends it.
type Bridge struct {
	o         Options
	log       *slog.Logger
	dead      *eventlog.Stream
	jobs      *jobs
	aside     *aside
	standings *standings
	metrics   *metrics
	rules     *ruleCache

	crowding sync.Mutex // held while crowded is changed; taken inside a lane's mu
	crowded  atomic.Pointer[crowded]

	ctx    context.Context // ends when Close begins: routers and sweepers stop, attempts are cut off later
	cancel context.CancelFunc
	// hard ends when a stop may wait no longer: attempts under way are given up and stay owed.
	hard     context.Context
	hardStop context.CancelFunc
	wg       sync.WaitGroup // routers, sweepers, workers
	hands    hands          // workers without work
	records  sync.WaitGroup // recorders, which stop last

	announceEvery time.Duration // const announceEvery

	followers atomic.Pointer[Followers]
	retains   atomic.Bool   // retention has begun
	pressure  chan struct{} // 1: a bus that refuses is running full

	opening  sync.Mutex // held while a bus is opened or removed: one at a time
	closing  sync.Once
	closeErr error // of the first Close

	mu     sync.RWMutex // guards paths, lanes, closed
	paths  map[string]*path
	lanes  map[string]*lane
	closed bool
}

// New opens what the bridge keeps besides buses, and starts. It blocks while streams are opened.
func New(ctx context.Context, o Options) (*Bridge, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.View == nil {
		o.View = func(r *event.Record) *event.Record { return r }
	}
	if o.Rand == nil {
		o.Rand = rand.Float64
	}
	if o.LiveQueue == 0 {
		o.LiveQueue = 4096
	}
	if o.Unsettled == 0 {
		o.Unsettled = 2 * time.Second
	}
	if o.Window == 0 {
		o.Window = 50_000
	}
	if o.ParkedKeys == 0 {
		o.ParkedKeys = 10_000
	}
	if o.RangeAfter == 0 {
		o.RangeAfter = 10_000
	}
	dead, err := o.Log.Stream(ctx, eventlog.StreamConfig{Name: "DEAD", Subjects: []string{"dead.>"}})
	if err != nil {
		return nil, fmt.Errorf("open dead letters: %w", err)
	}
	known, err := o.Journal.LastDead()
	if err != nil {
		return nil, fmt.Errorf("open dead letters: %w", err)
	}
	if err := dead.SkipTo(ctx, known); err != nil { // after damage: a place the views name is not used again
		return nil, fmt.Errorf("open dead letters: %w", err)
	}
	stand, err := openStandings(ctx, o.Log)
	if err != nil {
		return nil, fmt.Errorf("open what is known of targets: %w", err)
	}
	b := &Bridge{standings: stand, announceEvery: announceEvery, hands: newHands(), o: o, log: o.Logger.With("component", "bridge"), dead: dead, rules: newRuleCache(o.Journal), pressure: make(chan struct{}, 1),
		paths: make(map[string]*path), lanes: make(map[string]*lane)}
	b.ctx, b.cancel = context.WithCancel(context.WithoutCancel(ctx))
	b.hard, b.hardStop = context.WithCancel(context.WithoutCancel(ctx))
	if b.jobs, err = openJobs(ctx, b); err != nil {
		b.cancel()
		return nil, fmt.Errorf("open jobs: %w", err)
	}
	if b.aside, err = openAside(ctx, b); err != nil {
		b.cancel()
		return nil, fmt.Errorf("open what is kept for later: %w", err)
	}
	b.retains.Store(!o.HoldRetention)
	b.metrics = newMetrics(o.Registerer, b)
	b.jobs.start()
	for _, target := range stand.targets() {
		b.announce(target)
	}
	b.wg.Add(3)
	go b.aside.run()
	go b.sweep()
	go b.maintain()
	return b, nil
}

// Close stops routing, lets the attempts under way finish for as long as ctx allows, writes down what happened, and
// returns. What is left over stays owed and is taken up by the next start. A second call waits for the first and returns
// what it did.
func (b *Bridge) Close(ctx context.Context) error {
	b.closing.Do(func() { b.closeErr = b.close(ctx) })
	return b.closeErr
}

func (b *Bridge) close(ctx context.Context) error {
	defer b.hardStop()
	stop := context.AfterFunc(ctx, b.hardStop)
	defer stop()
	b.mu.Lock()
	b.closed = true
	lanes := b.laneList()
	b.mu.Unlock()
	b.cancel()
	for _, l := range lanes {
		l.close(false)
	}
	b.opening.Lock() // a bus that is being opened gives up, one that is being removed is
	defer b.opening.Unlock()
	paths := b.allPaths()
	b.wg.Wait()
	var errs []error
	for _, p := range paths {
		errs = append(errs, p.rec.close())
	}
	b.records.Wait()
	return errors.Join(errs...)
}

// laneList and pathList are called with mu held.
func (b *Bridge) laneList() []*lane {
	out := make([]*lane, 0, len(b.lanes))
	for _, l := range b.lanes {
		out = append(out, l)
	}
	return out
}

func (b *Bridge) pathList() []*path {
	out := make([]*path, 0, len(b.paths))
	for _, p := range b.paths {
		out = append(out, p)
	}
	slices.SortFunc(out, func(x, y *path) int { return cmp.Compare(x.name, y.name) })
	return out
}

// path returns the path of a bus, or a NotFound error.
func (b *Bridge) path(bus string) (*path, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	p, ok := b.paths[bus]
	if !ok {
		return nil, fault.New(fault.NotFound, "no bus %q", bus)
	}
	return p, nil
}

func (b *Bridge) allPaths() []*path {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.pathList()
}

func (b *Bridge) allLanes() []*lane {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.laneList()
}

// lane returns the lane of a target; nil if there is no such target.
func (b *Bridge) lane(target string) *lane {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.lanes[target]
}

// Buses returns the names of the buses, sorted.
func (b *Bridge) Buses() []string {
	var names []string
	for _, p := range b.allPaths() {
		names = append(names, p.name)
	}
	return names
}

// Bus returns the log of a bus, for readers of its tail.
func (b *Bridge) Bus(bus string) (*eventlog.Bus, error) {
	p, err := b.path(bus)
	if err != nil {
		return nil, err
	}
	return p.log.Bus, nil
}

// SetBus opens a bus, or changes its settings. It blocks while the streams are opened and the views catch up. Events
// are taken in from then on; they are routed once SetRules was called for the bus.
func (b *Bridge) SetBus(ctx context.Context, doc *BusDoc) error {
	b.opening.Lock()
	defer b.opening.Unlock()
	b.mu.RLock()
	p, ok := b.paths[doc.Name]
	b.mu.RUnlock()
	if ok {
		p.doc.Store(doc)
		p.overflow.limit.Store(overflowLimit(doc))
		p.log.SetDedupWindow(doc.window())
		b.press()
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(b.ctx, func() { cancel(errStopping) })()
	p, err := b.openPath(ctx, doc)
	if err != nil {
		return fmt.Errorf("open bus %s: %w", doc.Name, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		p.cancel()
		return errors.Join(p.rec.close(), errStopping)
	}
	b.paths[doc.Name] = p
	p.start()
	return nil
}

// RemoveBus stops routing and taking in for a bus. It blocks while attempts under way finish, for ten seconds at most;
// what is still owed stays owed and is taken up when the bus is set again. Its streams stay on disk.
func (b *Bridge) RemoveBus(bus string) error {
	b.opening.Lock()
	defer b.opening.Unlock()
	b.mu.Lock()
	p, ok := b.paths[bus]
	delete(b.paths, bus)
	b.mu.Unlock()
	if !ok {
		return nil
	}
	defer b.metrics.forgetBus(bus)
	return p.close()
}

// SetRules puts a set of rules in force for a bus. Events that are routed from now on meet it; those that were routed
// before keep the rules they met. ruleset is the revision of the set. A disabled rule matches nothing, and what is pending
// for it goes on; a rule that is not in the set is a deleted one, whose pending deliveries end as cancelled.
func (b *Bridge) SetRules(bus string, ruleset uint64, rs []*rules.Rule) error {
	p, err := b.path(bus)
	if err != nil {
		return err
	}
	return p.setRules(ruleset, rs)
}

// SetTarget makes or changes the lane of a target.
func (b *Bridge) SetTarget(def *targets.Definition, t targets.Target) error {
	return b.setTarget(def, t)
}

// HoldTarget makes a lane for a target that exists and cannot be used at the moment, if it has none: deliveries to it are
// parked, in the order that it keeps, and made once SetTarget was called. Without it they would end as cancelled, as those to a
// deleted target.
func (b *Bridge) HoldTarget(def *targets.Definition) error {
	return b.setTarget(def, nil)
}

func (b *Bridge) setTarget(def *targets.Definition, t targets.Target) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errStopping
	}
	if l, ok := b.lanes[def.Name]; ok {
		if t != nil {
			l.configure(def, t)
		}
		return nil
	}
	l := newLane(b, def, t)
	b.lanes[def.Name] = l
	b.wg.Add(1)
	go func() { // the first look for parked deliveries, outside the lock
		defer b.wg.Done()
		if l.waiting.Parked() > 0 {
			b.awaitEnds()
		}
		l.loadNextDue()
	}()
	return nil
}

// awaitEnds blocks until what RemoveTarget has ended is not in the views any more: it was owed to a target that is gone, and not to
// one with the same name that is made at once.
func (b *Bridge) awaitEnds() {
	for _, p := range b.allPaths() {
		for range 2 { // what was on its way to be parked is ended by what runs after the first
			_ = p.rec.sync(p.ctx) // a path that has ended makes no attempts
		}
	}
}

// RemoveTarget ends the lane of a target. What it still owed ends as cancelled.
func (b *Bridge) RemoveTarget(name string) {
	b.mu.Lock()
	l, ok := b.lanes[name]
	delete(b.lanes, name)
	b.mu.Unlock()
	if !ok {
		return
	}
	for _, t := range l.close(true) {
		t.path.rec.cancel(t, reasonTargetDeleted)
	}
	b.parkIn(l, func(*task) bool { return true }, reasonTargetDeleted) // the floor does not wait for what is under way
	for _, p := range b.allPaths() {
		if l.waiting.Ranged() > 0 {
			p.dropRanged(journal.Drop{Target: name})
		}
		p.cancelParked(ofTarget(func(target string) bool { return target == name }), reasonTargetDeleted)
	}
	_ = l.standingChanged() // it was logged; a later target of this name has another revision
	b.metrics.forgetTarget(name)
}

// Check is one line of a readiness report.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"`
}

// Checks says what works and what does not.
func (b *Bridge) Checks() []Check {
	log := Check{Name: "log", OK: true}
	if err := b.o.Log.Err(); err != nil {
		log.OK, log.Detail = false, err.Error()
	}
	checks := []Check{log}
	for _, p := range b.allPaths() {
		c := Check{Name: "routing/" + p.name, OK: true}
		if err := p.rec.state(); err != nil {
			c.OK, c.Detail = false, "outcomes cannot be written, routing waits: "+err.Error()
		} else if err := p.problem.Load(); err != nil {
			c.OK, c.Detail = false, "routing waits: "+(*err).Error()
		} else if p.rules.Load() == nil {
			c.OK, c.Detail = false, "no rules loaded yet"
		}
		checks = append(checks, c)
		l := Check{Name: "ledger/" + p.name, OK: true}
		if d := p.difference.Load(); d != 0 {
			l.OK, l.Detail = false, fmt.Sprintf("the account differs by %d", d)
		}
		checks = append(checks, l)
	}
	return checks
}
