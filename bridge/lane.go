// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
)

// task is one delivery on its way: a position and what is owed for it, never the event itself, which the log's ring
// holds. A task belongs to its lane; the fields without a note are set before it is offered and never change.
type task struct {
	path     *path
	lane     *lane
	seq      uint64
	check    journal.Check
	route    journal.Route
	attempts int       // made before this one
	firstAt  time.Time // start of the first attempt; zero if there was none
	offered  time.Time

	settled atomic.Bool // an outcome was recorded, so the floor may pass
	final   bool        // guarded by the recorder's mu: the attempt's own outcome was recorded
}

type taskID struct {
	path         *path
	seq          uint64
	rule, target string
}

func (t *task) id() taskID { return taskID{t.path, t.seq, t.route.Rule, t.route.Target} }

// lane is the path to one target: a queue of live deliveries, workers that exist only while there is work, and the
// parked deliveries that are due.
//
// Workers take live deliveries first; every eighth time they look at parked ones first, so that a backlog drains under
// load. The lock is never held over a call to the target, the log or the recorder.
type lane struct {
	b    *Bridge
	name string

	mu      sync.Mutex // guards all below
	def     *targets.Definition
	target  targets.Target
	live    []*task // a queue from head on
	head    int
	ready   []*task          // parked deliveries that are due, taken from the views
	busy    map[taskID]*task // queued, under way, or with an outcome that the views do not show yet
	workers int
	turn    int
	loading bool        // a worker is reading due deliveries from the views
	nextDue time.Time   // earliest due time that is known; zero = nothing parked
	rest    time.Time   // no attempts before: the target asked for it
	timer   *time.Timer // wakes the lane at nextDue or rest
	closed  bool
	removed bool // closed because the target was deleted
}

// parkedEvery is how often parked deliveries go first: at least 1/8 of the slots.
const parkedEvery = 8

// dueBatch is how many due deliveries are taken from the views at a time.
const dueBatch = 128

func newLane(b *Bridge, def *targets.Definition, t targets.Target) *lane {
	return &lane{b: b, name: def.Name, def: def, target: t, busy: make(map[taskID]*task)}
}

func (l *lane) configure(def *targets.Definition, t targets.Target) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.def, l.target, l.rest = def, t, time.Time{}
	l.start()
}

// idle reports whether the lane may make no attempt. Called with mu held.
func (l *lane) idle() bool { return l.closed || l.target == nil }

// offer hands a live delivery to the lane of its target. It does not block on the target; it may wait for room in the
// recorder when the delivery has to be parked.
func (b *Bridge) offer(t *task) {
	l := b.lane(t.route.Target)
	if l == nil {
		t.lane = &lane{b: b, name: t.route.Target, closed: true, busy: make(map[taskID]*task)}
		t.path.rec.cancel(t, reasonTargetDeleted)
		return
	}
	t.lane, t.offered = l, b.o.Now()
	l.mu.Lock()
	if l.closed {
		removed := l.removed
		l.mu.Unlock()
		if removed {
			t.path.rec.cancel(t, reasonTargetDeleted)
		}
		return // otherwise the bridge is stopping: it stays owed, and the next start takes it up
	}
	l.busy[t.id()] = t
	if len(l.live)-l.head >= b.o.LiveQueue {
		l.mu.Unlock()
		t.path.rec.outcome(t, journal.Outcome{State: journal.Parked, At: t.offered, Due: t.offered, Reason: reasonQueueFull})
		return
	}
	if l.head > 256 && l.head > len(l.live)/2 {
		n := copy(l.live, l.live[l.head:])
		clear(l.live[n:])
		l.live, l.head = l.live[:n], 0
	}
	l.live = append(l.live, t)
	l.start()
	l.mu.Unlock()
}

// start makes workers as long as there is work for one more. Called with mu held.
func (l *lane) start() {
	if l.idle() {
		return
	}
	now := l.b.o.Now()
	if now.Before(l.rest) {
		l.wakeAt(l.rest)
		return
	}
	work := len(l.live) - l.head + len(l.ready)
	if !l.nextDue.IsZero() {
		if now.Before(l.nextDue) {
			l.wakeAt(l.nextDue)
		} else {
			work++
		}
	}
	for ; work > 0 && l.workers < l.def.Delivery.Concurrency; work-- {
		l.workers++
		l.b.wg.Add(1)
		go l.work()
	}
}

// wakeAt sets the timer. Called with mu held.
func (l *lane) wakeAt(at time.Time) {
	d := max(at.Sub(l.b.o.Now()), time.Millisecond)
	if l.timer == nil {
		l.timer = time.AfterFunc(d, l.wake)
		return
	}
	l.timer.Reset(d)
}

func (l *lane) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.start()
}

// work is a worker's goroutine: it ends when there is nothing to do.
func (l *lane) work() {
	defer l.b.wg.Done()
	for {
		t, target, policy := l.next()
		if t == nil {
			return
		}
		t.path.attempt(t, target, policy)
		t.path.underWay.Done()
	}
}

// next takes the next delivery, or ends the worker. A delivery counts as under way on its path from then on.
func (l *lane) next() (*task, targets.Target, targets.DeliveryPolicy) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		now := l.b.o.Now()
		if l.idle() || l.workers > l.def.Delivery.Concurrency || now.Before(l.rest) {
			break
		}
		due := len(l.ready) > 0 || !l.nextDue.IsZero() && !now.Before(l.nextDue)
		if l.turn++; due && (l.turn%parkedEvery == 0 || l.head == len(l.live)) {
			if len(l.ready) > 0 {
				t := l.ready[0]
				l.ready = l.ready[1:]
				t.path.underWay.Add(1)
				return t, l.target, l.def.Delivery
			}
			if !l.loading {
				l.load()
				continue
			}
		}
		if l.head < len(l.live) {
			t := l.live[l.head]
			l.live[l.head] = nil
			if l.head++; l.head == len(l.live) {
				l.live, l.head = l.live[:0], 0
				if cap(l.live) > 64 {
					l.live = nil // an idle lane keeps little
				}
			}
			t.path.underWay.Add(1)
			return t, l.target, l.def.Delivery
		}
		break
	}
	l.workers--
	if !l.idle() {
		if now := l.b.o.Now(); now.Before(l.rest) {
			l.wakeAt(l.rest)
		} else if !l.nextDue.IsZero() && now.Before(l.nextDue) {
			l.wakeAt(l.nextDue)
		}
	}
	return nil, nil, targets.DeliveryPolicy{}
}

// load takes due deliveries from the views. Called with mu held, which it gives up meanwhile: what is parked then may
// not be among those read, so its due time is kept.
func (l *lane) load() {
	l.loading, l.nextDue = true, time.Time{}
	l.mu.Unlock()
	found, next, err := l.readDue()
	l.mu.Lock()
	l.loading = false
	if err != nil {
		l.b.log.Error("parked deliveries cannot be read, trying again", "targetId", l.name, "err", err)
		next = l.b.o.Now().Add(time.Second)
	}
	l.parkedUntil(next)
	for _, t := range found {
		if _, ok := l.busy[t.id()]; !ok && t.path.ctx.Err() == nil {
			l.busy[t.id()] = t
			l.ready = append(l.ready, t)
		}
	}
	l.start()
}

// parkedUntil notes that something is parked until due; zero = nothing is. Called with mu held.
func (l *lane) parkedUntil(due time.Time) {
	if !due.IsZero() && (l.nextDue.IsZero() || due.Before(l.nextDue)) {
		l.nextDue = due
	}
}

// readDue reads what is due and when the next after that is. Deliveries that are busy are passed over, before the views
// are asked about them: their record there is about to change.
func (l *lane) readDue() (found []*task, next time.Time, err error) {
	now := l.b.o.Now()
	take := func(k journal.DueKey) (journal.Verdict, error) {
		if k.Due.After(now) {
			next = k.Due
			return journal.Stop, nil
		}
		if len(found) == dueBatch {
			next = now
			return journal.Stop, nil
		}
		p, perr := l.b.path(k.Bus)
		if perr != nil || p.rec.hasEnded() {
			return journal.Skip, nil // the bus is not open, or stands still; its deliveries wait
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if _, busy := l.busy[taskID{p, k.Seq, k.Rule, l.name}]; busy {
			return journal.Skip, nil
		}
		return journal.Take, nil
	}
	err = l.b.o.Journal.DueFor(l.name, take, func(d journal.Due) error {
		p, perr := l.b.path(d.Bus)
		if perr != nil {
			return nil
		}
		t := &task{path: p, lane: l, seq: d.Seq, check: d.Check, route: d.Route, attempts: d.Attempts, firstAt: d.First, offered: now}
		t.settled.Store(true)
		found = append(found, t)
		return nil
	})
	return found, next, err
}

// loadNextDue looks once, when the lane is made, for what is parked.
func (l *lane) loadNextDue() {
	at, err := l.b.o.Journal.NextDue(l.name)
	if err != nil {
		l.b.log.Error("parked deliveries cannot be read", "targetId", l.name, "err", err)
		at = l.b.o.Now().Add(time.Second)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parkedUntil(at)
	l.start()
}

// recorded is called, by the recorder, when an outcome is committed and in the views.
func (l *lane) recorded(t *task, o journal.Outcome) {
	l.mu.Lock()
	delete(l.busy, t.id())
	removed := l.removed
	if o.State == journal.Parked && !removed {
		l.parkedUntil(o.Due)
		l.start()
	}
	l.mu.Unlock()
	if o.State == journal.Parked && removed { // its target was deleted while it was on its way to where nobody looks any more
		t.path.rec.record(t, journal.Outcome{State: journal.Cancelled, At: l.b.o.Now(), Reason: reasonTargetDeleted}, t.path.rec.addNow)
	}
}

// release lets go of a delivery that ends without an outcome: its path has ended, and the next start takes it up.
func (l *lane) release(t *task) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.busy, t.id())
}

// drop takes out everything of a path that has ended.
func (l *lane) drop(p *path) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := func(t *task) bool { return t.path == p }
	l.live, l.head = slices.DeleteFunc(slices.Clone(l.live[l.head:]), of), 0
	l.ready = slices.DeleteFunc(slices.Clone(l.ready), of)
	maps.DeleteFunc(l.busy, func(_ taskID, t *task) bool { return of(t) })
}

// restUntil keeps the lane from the target until at, at the target's own wish.
func (l *lane) restUntil(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at.After(l.rest) {
		l.rest = at
	}
}

// overdue takes out of the queue, and returns, the live deliveries for which old is true; under way are those that cannot
// be taken out because an attempt is being made.
func (l *lane) overdue(old func(*task) bool) (queued, underWay []*task, timeout time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if live := l.live[l.head:]; slices.ContainsFunc(live, old) {
		var keep []*task
		for _, t := range live {
			if old(t) {
				queued = append(queued, t)
			} else {
				keep = append(keep, t)
			}
		}
		l.live, l.head = keep, 0
	}
	if l.workers > 0 {
		waiting := make(map[*task]bool, len(queued)+len(l.live)-l.head)
		for _, t := range queued {
			waiting[t] = true
		}
		for _, t := range l.live[l.head:] {
			waiting[t] = true
		}
		for _, t := range l.busy {
			if !waiting[t] && !t.settled.Load() && old(t) {
				underWay = append(underWay, t)
			}
		}
	}
	return queued, underWay, l.def.Delivery.Timeout
}

// close ends the lane and returns what was queued. Attempts under way go on.
func (l *lane) close(removed bool) []*task {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed, l.removed = true, removed
	if l.timer != nil {
		l.timer.Stop()
	}
	queued := append([]*task(nil), l.live[l.head:]...)
	l.live, l.head, l.ready = nil, 0, nil
	return queued
}

func (l *lane) isRemoved() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.removed
}

// sweep is the goroutine that parks what has been live for too long, so that the floor moves on.
func (b *Bridge) sweep() {
	defer b.wg.Done()
	tick := time.NewTicker(b.o.Unsettled / 4)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			limit := b.o.Now().Add(-b.o.Unsettled)
			b.park(func(t *task) bool { return t.offered.Before(limit) }, reasonSlow)
		case <-b.ctx.Done():
			return
		}
	}
}

// parkBelow parks what is still live of the events of p below seq.
func (b *Bridge) parkBelow(p *path, seq uint64) {
	b.park(func(t *task) bool { return t.path == p && t.seq < seq }, reasonSlow)
}

func (b *Bridge) park(old func(*task) bool, reason string) {
	for _, l := range b.allLanes() {
		b.parkIn(l, old, reason)
	}
}

func (b *Bridge) parkIn(l *lane, old func(*task) bool, reason string) {
	queued, underWay, timeout := l.overdue(old)
	now := b.o.Now()
	for _, t := range queued {
		t.path.rec.outcome(t, journal.Outcome{State: journal.Parked, At: now, Due: now, Reason: reason})
	}
	for _, t := range underWay {
		// Due only matters after a crash: until the attempt ends the lane knows that it is being made.
		t.path.rec.overtake(t, journal.Outcome{State: journal.Parked, At: now, Due: now.Add(timeout), Reason: reasonUnderWay})
	}
}

// Words of the bridge's own for why a delivery is parked or cancelled.
const (
	reasonQueueFull     = "queue_full" // the live queue was full
	reasonSlow          = "slow"       // it waited for its turn too long
	reasonUnderWay      = "under_way"  // its attempt is taking long; it goes on
	reasonTargetDeleted = "target_deleted"
	reasonRuleDeleted   = "rule_deleted"
	reasonEventGone     = "event_gone" // retention or damage took the event
)

// attempt makes one attempt for a delivery and records what came of it.
func (p *path) attempt(t *task, target targets.Target, policy targets.DeliveryPolicy) {
	if p.hard.Err() != nil || p.rec.hasEnded() { // what came of it could not be written down
		t.lane.release(t)
		return
	}
	rule, err := p.ruleOf(t)
	if err != nil {
		p.b.log.Error("delivery cannot be rendered", "bus", p.name, "ruleId", t.route.Rule, "targetId", t.route.Target, "err", err)
		p.retry(t, policy, targets.Result{}, 0, p.b.o.Now(), &targets.Error{Reason: targets.ReasonInternal, Err: err})
		return
	}
	if rule == nil {
		p.rec.cancel(t, reasonRuleDeleted)
		return
	}
	entry, err := p.log.Get(p.hard, t.seq)
	switch {
	case isGone(err), err == nil && journal.CheckOf(entry.Record.Event.Key()) != t.check:
		p.rec.cancel(t, reasonEventGone)
		return
	case err != nil:
		if p.hard.Err() != nil {
			t.lane.release(t)
			return
		}
		p.b.log.Error("event cannot be read", "bus", p.name, "position", t.seq, "err", err)
		p.retry(t, policy, targets.Result{}, 0, p.b.o.Now(), &targets.Error{Reason: targets.ReasonInternal, Err: err})
		return
	}
	ev := &entry.Record.Event
	if tr := transformFor(rule, t.route.Target); tr != nil {
		ev, err = tr.Apply(ev, rules.RenderContext{Rule: rule.Name, Bus: p.name, Received: entry.Record.Received})
		if err != nil {
			p.retry(t, policy, targets.Result{}, 0, p.b.o.Now(),
				&targets.Error{Reason: targets.ReasonTransform, Permanent: true, Err: err})
			return
		}
	}
	began := p.b.o.Now()
	if t.firstAt.IsZero() {
		t.firstAt = began
	}
	ctx, cancel := context.WithTimeout(p.hard, policy.Timeout)
	res, err := deliver(ctx, target, targets.Delivery{ID: deliveryID(p.name, &entry.Record.Event, t.route), Event: ev,
		Bus: p.name, Rule: t.route.Rule, Target: t.route.Target, Attempt: t.attempts + 1, Position: p.position(t.seq)})
	cancel()
	took := p.b.o.Now().Sub(began)
	if err != nil {
		p.retry(t, policy, res, took, began, err)
		return
	}
	p.rec.outcome(t, journal.Outcome{State: journal.Delivered, Attempt: t.attempts + 1, At: began, Duration: took, Status: res.Status})
}

// deliver calls the target. A panic there is a failed attempt and not the end of the process.
func deliver(ctx context.Context, t targets.Target, d targets.Delivery) (res targets.Result, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &targets.Error{Reason: targets.ReasonInternal, Err: fmt.Errorf("the target panicked: %v", v)}
		}
	}()
	return t.Deliver(ctx, d)
}

// ruleOf returns the rule a delivery was routed by, as it was then; nil if the rule is gone.
func (p *path) ruleOf(t *task) (*rules.Rule, error) {
	current := p.rules.Load()
	if current != nil && current.byName[t.route.Rule] == nil {
		return nil, nil
	}
	return p.ruleAt(t.route.Rule, t.route.Revision)
}

func transformFor(r *rules.Rule, target string) *rules.Transform {
	for i := range r.Targets {
		if r.Targets[i].Target == target {
			return r.Targets[i].Transform
		}
	}
	return nil
}

// retry records a failed attempt: it is parked until the next, or ends as a dead letter.
func (p *path) retry(t *task, policy targets.DeliveryPolicy, res targets.Result, took time.Duration, began time.Time, err error) {
	if p.hard.Err() != nil { // cut off by our own stop: it is owed as before, and this was no attempt
		t.lane.release(t)
		return
	}
	if t.lane.isRemoved() {
		p.rec.cancel(t, reasonTargetDeleted)
		return
	}
	n := t.attempts + 1
	first := t.firstAt
	if first.IsZero() {
		first = began
	}
	now := p.b.o.Now()
	if targets.ReasonOf(err) == targets.ReasonInterrupted { // but not by us: an attempt like any other
		err = &targets.Error{Reason: targets.ReasonInternal, Err: err}
	}
	d := targets.Next(policy.Retry, n, err, first, now, p.b.o.Rand)
	if d.Rest > 0 {
		t.lane.restUntil(now.Add(d.Rest))
	}
	o := journal.Outcome{State: journal.Parked, Attempt: n, At: began, Duration: took, Status: res.Status,
		Reason: string(d.Reason), Detail: detailOf(err), Due: d.At}
	if d.Dead() {
		seq, derr := p.b.bury(p, t, o, res, string(d.End))
		if derr != nil {
			if p.hard.Err() != nil {
				t.lane.release(t)
				return
			}
			p.b.log.Error("dead letter cannot be written", "bus", p.name, "position", t.seq, "targetId", t.route.Target, "err", derr)
			if n >= policy.Retry.MaxAttempts+deadTries { // what cannot be read will not be read, and would be kept for ever
				p.rec.cancel(t, reasonEventGone)
				return
			}
			o.Due = now.Add(deadRetry) // no dead letter, no end: it stays parked and is buried later
		} else {
			o.State, o.DeadSeq = journal.Dead, seq
		}
	}
	p.rec.outcome(t, o)
}

// deadRetry is how long a delivery waits whose dead letter could not be written, and deadTries how often.
const (
	deadRetry = 30 * time.Second
	deadTries = 20
)
