// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"errors"
	"slices"
	"time"

	"github.com/rialto-bridge/rialto/internal/journal"
)

// load takes due deliveries from the views. Called with mu held, which it gives up meanwhile: what is parked then may
// not be among those read, so its due time is kept.
func (l *lane) load() {
	from := l.nextDue
	if l.reading.failing() { // what was read then was not noted
		from = time.Time{}
	}
	l.loading, l.nextDue = true, time.Time{}
	lerr := l.loadLines()
	l.mu.Unlock()
	found, next, err := l.readDue(from)
	l.mu.Lock()
	l.loading = false
	if len(l.order.heads) > 0 {
		next = sooner(next, l.order.heads[0].due)
	}
	if err = errors.Join(err, lerr); err != nil {
		wait, say := l.reading.failed(l.b.o.Now())
		if say {
			l.b.log.Error("parked deliveries cannot be read, trying again", "targetId", l.name, "err", err)
		}
		next = l.b.o.Now().Add(wait)
	} else {
		l.reading.worked()
	}
	l.parkedUntil(next)
	for _, t := range found {
		if _, ok := l.busy[t.id()]; !ok && t.path.ctx.Err() == nil && !t.ruleIsDeleted() { // cancelParked ends those of deleted rules
			l.hold(t)
			l.ready = append(l.ready, t)
		}
	}
	l.start()
}

// parkedUntil notes that something is parked until due; zero = nothing is. Called with mu held.
//
// The order of due times is that of the views, which have the wall clock: by the monotonic reading, a clock that was set would make a
// time the earliest that is not.
func (l *lane) parkedUntil(due time.Time) {
	l.nextDue = sooner(l.nextDue, due.Round(0))
}

// longestWait is more than any delivery waits for its next attempt: a policy has waits of a week, with as much jitter, and a far side
// may ask for a rest of an hour. What is due later was parked while the clock was ahead, and is due now.
const longestWait = 15 * 24 * time.Hour

var farFuture = time.UnixMilli(1 << 62)

// isDue reports whether something that is parked until a time is to be attempted now.
func isDue(at, now time.Time) bool { return !at.After(now) || at.Sub(now) > longestWait }

// hasDue reports whether something parked is due. Called with mu held.
func (l *lane) hasDue(now time.Time) bool { return !l.nextDue.IsZero() && isDue(l.nextDue, now) }

// expect says that something was parked until due, by others than the lane.
func (l *lane) expect(due time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parkedUntil(due)
	l.start()
}

// readDue reads what is due at from or later, and when the next after that is. Deliveries that are busy are passed over, before the views
// are asked about them: their record there is about to change.
//
// Nothing is due before the earliest time that is known, so that is where a reading begins: the views are slow to pass over what was
// delivered since their files were written last, and a backlog is read in many parts.
func (l *lane) readDue(from time.Time) (found []*task, next time.Time, err error) {
	now := l.b.o.Now()
	until, taken := now, 0
	take := func(k journal.DueKey) (journal.Verdict, error) {
		if k.Due.After(now) && !isDue(k.Due, now) {
			next = sooner(next, k.Due)
		}
		if k.Due.After(until) {
			return journal.Stop, nil
		}
		if taken == dueBatch {
			next = sooner(next, k.Due)
			if k.Due.After(now) { // it is due all the same, see isDue
				next = now
			}
			return journal.Stop, nil
		}
		p, perr := l.b.path(k.Bus)
		if perr != nil || p.rec.hasEnded() {
			return journal.Skip, nil // the bus is not open, or stands still; its deliveries wait
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if _, busy := l.busy[taskID{p, k.Seq, k.Rule}]; busy {
			return journal.Skip, nil
		}
		taken++
		return journal.Take, nil
	}
	keep := func(d journal.Due) error {
		p, perr := l.b.path(d.Bus)
		if perr != nil {
			return nil
		}
		t := &task{path: p, lane: l, seq: d.Seq, check: d.Check, route: d.Route, attempts: d.Attempts, firstAt: d.First, redrive: d.Redrive, offered: now}
		t.settled.Store(true)
		found = append(found, t)
		return nil
	}
	if err = l.b.o.Journal.DueFor(l.name, from, take, keep); err == nil {
		until = farFuture
		err = l.b.o.Journal.DueFor(l.name, now.Add(longestWait), take, keep)
	}
	return found, next, err
}

// forgetReady takes out what has come from the views and is about to be ended there: its worker would end it once more. The head of a line
// stays, since its worker gives the next its turn.
func (l *lane) forgetReady(p *path, gone func(owing) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ready = slices.DeleteFunc(l.ready, func(t *task) bool {
		if t.path != p || t.key != 0 || !gone(owing{t.route, t.redrive}) {
			return false
		}
		delete(l.busy, t.id())
		return true
	})
}

// loadNextDue looks for what is parked: when the lane is made, and when something was parked past it.
func (l *lane) loadNextDue() {
	at, err := l.b.o.Journal.NextDue(l.name)
	if err != nil {
		l.b.log.Error("parked deliveries cannot be read", "targetId", l.name, "err", err)
		at = time.UnixMilli(1) // a reading from the front, which is tried until it succeeds
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.barren = false
	l.parkedUntil(at)
	l.start()
}
