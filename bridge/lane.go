// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/journal"
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
	redrive  *journal.Redriven // nil unless it was redriven
	key      uint64            // what it is in order with; 0 = nothing. Set when it is offered
	follows  bool              // something before it waits in a range, so it is parked

	expires time.Time   // of the event, if it was read for an attempt; zero = never
	term    uint32      // of the lane's gate, while an attempt is made
	settled atomic.Bool // an outcome was recorded, so the floor may pass
	final   bool        // guarded by the recorder's mu: the attempt's own outcome was recorded
}

// taskID names a task of a lane.
type taskID struct {
	path *path
	seq  uint64
	rule string
}

func (t *task) id() taskID { return taskID{t.path, t.seq, t.route.Rule} }

// lane is the path to one target: a queue of live deliveries, workers that it has only while there is work, and the
// parked deliveries that are due.
//
// Workers take live deliveries first; after seven of them, while something parked is due, it is that one's turn, so that a
// backlog drains under load. How many attempts may begin is the gate's to say. The lock is never held over a call to the target, the log or the recorder.
type lane struct {
	b       *Bridge
	name    string
	waiting *journal.Waiting // what it has on disk

	mu      sync.Mutex // guards all below
	def     *targets.Definition
	target  targets.Target
	live    []*task // a queue from head on
	head    int
	ready   []*task          // parked deliveries that are due, taken from the views
	busy    map[taskID]*task // queued, under way, or with an outcome that the views do not show yet; nil after a quiet time
	workers int
	turn    int       // live deliveries that went before a parked one that is due
	loading bool      // a worker is reading due deliveries from the views
	reading patience  // with that
	nextDue time.Time // earliest due time that is known; zero = nothing parked
	gate    gate
	timer   *time.Timer // wakes the lane when something is due or the gate opens; nil until it was needed
	closed  bool
	removed bool // closed because the target was deleted

	order     order
	ordering  atomic.Pointer[targets.Ordering] // of def; nil = none
	takes     atomic.Uint64                    // how often a range's cursor has moved
	watched   bool                             // the router asks before it offers
	crowded   bool                             // much is parked: what else would be parked is ranged
	slow      bool                             // live deliveries were parked lately because they waited for too long
	taking    bool                             // a goroutine is taking deliveries out of a range
	barren    bool                             // nothing was there to be taken
	takeAfter time.Time
	ranging   patience // with reading ranges
	tookFrom  string   // the bus
}

// parkedEvery is how often parked deliveries go first: at least 1/8 of the slots.
const parkedEvery = 8

// dueBatch is how many due deliveries are taken from the views at a time.
const dueBatch = 128

func newLane(b *Bridge, def *targets.Definition, t targets.Target) *lane {
	l := &lane{b: b, name: def.Name, waiting: b.o.Journal.WaitingFor(def.Name), def: &targets.Definition{Name: def.Name}}
	if b.standings != nil {
		if s := b.standings.of(def.Name); s != (standing{}) {
			l.gate.standing, l.gate.noted = &s, &s
		}
	}
	if t == nil {
		l.ordering.Store(def.Delivery.Ordering) // what comes before the target can be used has its order
	} else {
		l.configure(def, t)
	}
	return l
}

// configure puts a definition in force. It does not block.
func (l *lane) configure(def *targets.Definition, t targets.Target) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.def, l.target = def, t
	l.ordering.Store(def.Delivery.Ordering)
	now := l.b.o.Now()
	was := l.gate.configure(def, now)
	l.pace(now)
	if was.disabled() {
		l.b.log.Info("target is enabled", "targetId", l.name)
		l.tell(targetEnabled, was, nil)
	}
	l.start()
}

// pace has the lane go as fast as its policy and its target allow, and reports whether that has changed. Called with mu held.
func (l *lane) pace(now time.Time) (changed bool) {
	rate := l.def.Delivery.Rate
	if p, ok := l.target.(targets.Paced); ok {
		rate = rate.Within(p.Pace())
	}
	if rate == l.gate.limiter.rate {
		return false
	}
	l.gate.limiter.set(rate, now)
	return true
}

// tell has it written down how the target stands, and announced; last is the attempt that did it. Called with mu held. The
// channel says what became of that.
func (l *lane) tell(announce string, s standing, last *lastAttempt) <-chan error {
	l.gate.note(l.gate.stands(l.b.o.Now()))
	if announce != "" && !l.b.standings.announce(announce, targetNews{l.name, s, last}) {
		l.b.log.Error("event about a target is lost, too many wait", "targetId", l.name, "eventType", announce)
	}
	done := make(chan error, 1)
	l.b.wg.Add(1)
	go func() {
		defer l.b.wg.Done()
		done <- l.standingChanged()
	}()
	return done
}

// idle reports whether the lane may make no attempt. Called with mu held.
func (l *lane) idle() bool { return l.closed || l.target == nil }

// hold puts a delivery into busy. Called with mu held.
func (l *lane) hold(t *task) {
	if l.busy == nil {
		l.busy = make(map[taskID]*task)
	}
	l.busy[t.id()] = t
}

// offer hands a live delivery to the lane of its target. It does not block on the target; it may wait for room in the
// recorder when the delivery has to be parked.
//
// ev may be nil: then the caller has set the key of a delivery that needs one.
func (b *Bridge) offer(t *task, ev *event.Event) {
	l := b.lane(t.route.Target)
	if l == nil {
		t.lane = &lane{b: b, name: t.route.Target, closed: true, removed: true}
		t.path.rec.cancel(t, reasonTargetDeleted)
		return
	}
	t.lane, t.offered = l, b.o.Now()
	if o := l.ordering.Load(); o != nil && ev != nil {
		t.key = o.Key(t.path.name, ev)
	}
	l.mu.Lock()
	if l.closed {
		removed := l.removed
		l.mu.Unlock()
		if removed {
			t.path.rec.cancel(t, reasonTargetDeleted)
		}
		return // otherwise the bridge is stopping: it stays owed, and the next start takes it up
	}
	l.hold(t)
	reason, due := l.parksNow(t.offered)
	if t.key != 0 {
		var park []*task
		park, reason, due = l.queue(t, reason, due)
		l.start()
		l.mu.Unlock()
		for _, t := range park {
			t.path.rec.outcome(t, journal.Outcome{State: journal.Parked, At: b.o.Now(), Due: due, Reason: reason})
		}
		return
	}
	if reason != "" {
		l.mu.Unlock()
		t.path.rec.outcome(t, journal.Outcome{State: journal.Parked, At: t.offered, Due: due, Reason: reason})
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

// parksNow says why a live delivery that comes now is parked, and until when; "" if it may wait in the queue. Called with mu
// held.
func (l *lane) parksNow(now time.Time) (reason string, due time.Time) {
	reason, due = l.gate.parks(now)
	if (reason == reasonBreaker || reason == reasonRest) && due.Sub(now) < l.b.o.Unsettled {
		reason = "" // it opens soon, and what is fresh goes first
	}
	if reason == "" && len(l.live)-l.head >= l.b.o.LiveQueue {
		reason, due = reasonQueueFull, now
	}
	return reason, due
}

// start makes workers as long as there is work and room for one more, and sees to it that the lane is woken when there
// will be. Called with mu held.
func (l *lane) start() {
	l.weigh()
	if l.idle() {
		return
	}
	now := l.b.o.Now()
	work := len(l.live) - l.head + len(l.ready)
	if l.hasDue(now) && !l.loading { // who is loading starts workers afterwards
		work++
	}
	room := l.gate.room(now)
	for range min(work, room, l.def.Delivery.Concurrency-l.workers) {
		l.workers++
		l.b.employ(l)
	}
	at := l.takeMore(now)
	switch {
	case work > 0 && room == 0:
		at = sooner(at, l.gate.opens(now))
	case now.Before(l.nextDue):
		at = sooner(at, l.nextDue)
	}
	l.wakeAt(at)
}

// sooner returns the earlier of two moments, zero being none.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// wakeAt sets the timer; zero leaves it alone. Called with mu held.
func (l *lane) wakeAt(at time.Time) {
	if at.IsZero() {
		return
	}
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

// work makes attempts until there is nothing to do.
func (l *lane) work() {
	for {
		t, target, policy := l.next()
		if t == nil {
			return
		}
		f := t.path.attempt(t, target, policy)
		l.ended(t, f)
		t.path.underWay.Done()
	}
}

// ended is called when the attempt for a delivery is over, or was not made after all.
func (l *lane) ended(t *task, f finding) {
	if f.verdict == failing {
		f.event = t.path.position(t.seq).String()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.b.o.Now()
	steady := l.gate.breaker.state == breakerClosed
	opened, disabled, changed := l.gate.end(t.term, f, l.def, now)
	if opened {
		l.b.log.Warn("target is left alone", "targetId", l.name, "until", l.gate.breaker.until)
	}
	switch {
	case disabled:
		l.b.log.Warn("target is disabled", "targetId", l.name, "reason", disabledBecause(*l.gate.standing))
		l.tell(targetDisabled, *l.gate.standing, f.last)
	case changed:
		l.tell("", standing{}, nil)
	}
	if l.pace(now) || !steady || opened { // there may be more room now, or a time to wait for; otherwise the worker just goes on
		l.start()
	}
}

// next takes the next delivery, or ends the worker. A delivery counts as under way on its path from then on.
func (l *lane) next() (*task, targets.Target, targets.DeliveryPolicy) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		now := l.b.o.Now()
		if l.idle() || l.workers > l.def.Delivery.Concurrency || l.gate.room(now) == 0 {
			break
		}
		due := len(l.ready) > 0 || l.hasDue(now)
		if due && (l.turn >= parkedEvery-1 || l.head == len(l.live)) {
			if len(l.ready) > 0 {
				l.turn = 0
				t := l.ready[0]
				l.ready[0] = nil
				l.ready = l.ready[1:]
				return l.begin(t, now)
			}
			if !l.loading {
				l.load()
				continue
			}
		}
		if l.head < len(l.live) {
			if due {
				l.turn++
			}
			t := l.live[l.head]
			l.live[l.head] = nil
			if l.head++; l.head == len(l.live) {
				l.live, l.head = l.live[:0], 0
				if cap(l.live) > 64 {
					l.live = nil // an idle lane keeps little
				}
			}
			return l.begin(t, now)
		}
		break
	}
	l.workers--
	l.start()
	return nil, nil, targets.DeliveryPolicy{}
}

// begin hands a delivery to a worker. Called with mu held.
func (l *lane) begin(t *task, now time.Time) (*task, targets.Target, targets.DeliveryPolicy) {
	t.term = l.gate.begin(now)
	t.path.underWay.Add(1)
	return t, l.target, l.def.Delivery
}

// recorded is called, by the recorder, when an outcome is committed and in the views.
func (l *lane) recorded(t *task, o journal.Outcome) {
	l.mu.Lock()
	delete(l.busy, t.id())
	gone := "" // what was deleted while it was on its way to where nobody looks any more
	switch {
	case o.State != journal.Parked:
	case l.removed:
		gone = reasonTargetDeleted
	case t.ruleIsDeleted():
		gone = reasonRuleDeleted
	}
	var behind []*task
	switch {
	case l.removed:
	case t.key != 0:
		behind = l.left(t, o)
		l.start()
	case o.State == journal.Parked && gone == "":
		l.parkedUntil(o.Due)
		l.start()
	}
	l.mu.Unlock()
	for _, t := range behind {
		now := l.b.o.Now()
		t.path.rec.record(t, journal.Outcome{State: journal.Parked, At: now, Due: now, Reason: reasonOrder}, false)
	}
	if gone != "" {
		t.path.rec.record(t, journal.Outcome{State: journal.Cancelled, At: l.b.o.Now(), Reason: gone}, false)
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
	l.dropLines(p)
}

// restUntil keeps the lane from the target until at, at the target's own wish.
func (l *lane) restUntil(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at.After(l.gate.rest) {
		l.gate.rest = at
	}
}

// close ends the lane and returns what was queued. Attempts under way go on.
func (l *lane) close(removed bool) []*task {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed, l.removed = true, removed
	if l.timer != nil {
		l.timer.Stop()
	}
	l.weigh()
	queued := append([]*task(nil), l.live[l.head:]...)
	for _, ln := range l.order.lines {
		queued = append(queued, ln.behind...)
	}
	l.live, l.head, l.ready, l.order = nil, 0, nil, order{}
	return queued
}

func (l *lane) isRemoved() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.removed
}
