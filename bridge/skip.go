// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/targets"
)

// SkipRequest names a delivery that holds up its key.
type SkipRequest struct {
	Bus        string
	ID, Source string // of the event; Source may be empty, as for Event
	Rule       string // may be empty if only one delivery of the event is to Target
	Target     string // may be empty if the event has one delivery
	By         string // who asks
}

// Skip ends a delivery that is parked and the first of its key at a target that keeps order, as a dead letter with the reason of
// its last attempt, so that the next has its turn. It blocks until that is committed, and returns the id of the dead letter.
//
// Errors are *fault.Error: NotFound (no such bus, event or delivery), Invalid, Unavailable, and Conflict when the delivery is not
// parked, keeps no order, is not the first, or is being attempted at the moment.
func (b *Bridge) Skip(ctx context.Context, q SkipRequest) (string, error) {
	p, err := b.path(q.Bus)
	if err != nil {
		return "", err
	}
	found, err := b.Event(ctx, q.Bus, q.ID, q.Source)
	if err != nil {
		return "", err
	}
	d, err := chooseDelivery(found.Journey.Deliveries, q.Rule, q.Target)
	if err != nil {
		return "", err
	}
	l := b.lane(d.Target)
	if l == nil {
		return "", fault.New(fault.Conflict, "the target %s is gone", d.Target)
	}
	t, err := l.claim(p, found.Position.Seq, d.Rule)
	if err != nil {
		return "", err
	}
	o := journal.Outcome{State: journal.Dead, At: b.o.Now(), Reason: d.Reason, Detail: "skipped by " + cmp.Or(q.By, "somebody")}
	last := o
	if last.Attempt = t.attempts; len(d.Attempts) > 0 {
		a := d.Attempts[len(d.Attempts)-1]
		last.Reason, last.Detail, last.Status, last.At = a.Reason, a.Detail, a.Status, a.At
		last.Exchange = journal.Exchange{Remote: a.Remote, Head: a.Response}
		o.Reason = a.Reason
	}
	if o.DeadSeq, err = b.bury(p, t, last, string(targets.EndSkipped)); err != nil {
		l.unclaim(t)
		if isGone(err) {
			return "", fault.New(fault.Conflict, "the event is gone; the next attempt ends the delivery")
		}
		return "", unavailable(err)
	}
	p.rec.outcome(t, o)
	if err := p.rec.sync(ctx); err != nil {
		return "", unavailable(err)
	}
	b.log.Info("delivery skipped", "bus", q.Bus, "eventId", q.ID, "ruleId", d.Rule, "targetId", d.Target, "key", q.By)
	return event.Position{Stream: "DEAD", Seq: o.DeadSeq}.String(), nil
}

// claim makes the first of a line its head, as for an attempt.
func (l *lane) claim(p *path, seq uint64, rule string) (*task, error) {
	parked, ok, err := l.b.o.Journal.FindPending(p.name, seq, rule, l.name)
	if err != nil {
		return nil, err
	}
	if !ok || parked.State != journal.Parked {
		return nil, fault.New(fault.Conflict, "the delivery is not parked")
	}
	if parked.Key == 0 {
		return nil, fault.New(fault.Conflict, "the delivery keeps no order: nothing waits for it")
	}
	if _, err := l.firstOf(p, parked); err != nil {
		return nil, err
	}
	t, err := l.claimHead(p, parked)
	if err != nil {
		return nil, err
	}
	parked, err = l.firstOf(p, parked) // it may have been attempted since then, and from now on it is not
	if err != nil {
		l.unclaim(t)
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	t.attempts, t.firstAt = parked.Attempts, parked.First
	return t, nil
}

// firstOf returns a delivery as it is parked; a Conflict if it is not, or not as the first of its key.
func (l *lane) firstOf(p *path, d journal.Pending) (journal.Pending, error) {
	first, ok, err := l.b.o.Journal.LineOf(p.name, l.name, d.Key, 0)
	if err == nil && (!ok || first.Head.Seq != d.Seq || first.Head.Route.Rule != d.Route.Rule || first.Head.State != journal.Parked) {
		err = fault.New(fault.Conflict, "the delivery is not the first of its key")
	}
	return first.Head, err
}

func (l *lane) claimHead(p *path, parked journal.Pending) (*task, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.order.lines[parked.Key]
	if ln == nil || ln.index < 0 || slices.ContainsFunc(ln.way, func(way uint64) bool { return way <= parked.Seq }) {
		return nil, fault.New(fault.Conflict, "the delivery is being attempted at the moment")
	}
	t := ln.task(l, &parked, l.b.o.Now())
	if _, busy := l.busy[t.id()]; busy {
		return nil, fault.New(fault.Conflict, "the delivery is being attempted at the moment")
	}
	l.order.stir(ln)
	ln.head = t
	l.hold(t)
	return t, nil
}

// unclaim gives a head back.
func (l *lane) unclaim(t *task) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.busy, t.id())
	if ln := l.order.lines[t.key]; ln != nil && ln.head == t {
		ln.head = nil
		l.advance(ln)
		l.start()
	}
}

// BlockedHead is the first delivery of a key that has failed and holds up what follows.
type BlockedHead struct {
	Bus       string    `json:"bus"`
	EventID   string    `json:"eventId,omitempty"` // absent if the event is gone
	Position  string    `json:"position"`
	Rule      string    `json:"rule"`
	Attempts  int       `json:"attempts"`
	NextTry   time.Time `json:"nextTry"`
	Followers int       `json:"followers"` // deliveries that wait for it, up to 1000
}

const (
	blockedListed    = 20
	followersCounted = 1000
)

// blockedHeads describes some of the lines that are held up, the oldest first.
func (l *lane) blockedHeads() ([]BlockedHead, error) {
	l.mu.Lock()
	var lines []line
	for _, ln := range l.order.lines {
		if ln.failed && ln.parked {
			lines = append(lines, line{key: ln.key, path: ln.path, from: ln.from})
		}
	}
	l.mu.Unlock()
	slices.SortFunc(lines, func(a, b line) int { return cmp.Compare(a.from, b.from) })
	var out []BlockedHead
	for _, ln := range lines[:min(len(lines), blockedListed)] {
		first, ok, err := l.b.o.Journal.LineOf(ln.path.name, l.name, ln.key, ln.from)
		if err != nil {
			return nil, err
		}
		n, err := l.b.o.Journal.CountLine(l.name, ln.key, followersCounted+1)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		h := BlockedHead{Bus: ln.path.name, Position: ln.path.position(first.Head.Seq).String(), Rule: first.Head.Route.Rule,
			Attempts: first.Head.Attempts, NextTry: first.Head.Due, Followers: max(n-1, 0)}
		entry, err := ln.path.log.Get(l.b.ctx, first.Head.Seq)
		switch {
		case err == nil:
			h.EventID = entry.Record.Event.ID
		case !isGone(err):
			return nil, err
		}
		out = append(out, h)
	}
	return out, nil
}
