// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
)

// attempt makes one attempt for a delivery, records what came of it, and says what that tells of the target.
func (p *path) attempt(t *task, target targets.Target, policy targets.DeliveryPolicy) finding {
	if p.hard.Err() != nil || p.rec.hasEnded() { // what came of it could not be written down
		t.lane.release(t)
		return nothing
	}
	rule, err := p.ruleOf(t)
	if errors.Is(err, errUnreadDocument) {
		p.postpone(t, &p.unruled, "rule of a delivery cannot be read, trying again", err)
		return nothing
	}
	if err != nil {
		p.b.log.Error("delivery cannot be rendered", "bus", p.name, "ruleId", t.route.Rule, "targetId", t.route.Target, "err", err)
		p.retry(t, policy, targets.Result{}, 0, p.b.o.Now(), &targets.Error{Reason: targets.ReasonInternal, Err: err})
		return nothing
	}
	if rule == nil {
		p.rec.cancel(t, reasonRuleDeleted)
		return nothing
	}
	stored, _, err := p.eventOf(t)
	switch {
	case isGone(err):
		p.rec.cancel(t, reasonEventGone)
		return nothing
	case err != nil:
		p.postpone(t, &p.unread, "event cannot be read, trying again", err)
		return nothing
	}
	p.unread.worked(t.seq)
	p.unruled.worked(t.seq)
	ev := &stored.Event
	if at, ok := ev.Expiry(); ok && t.redrive == nil {
		if !p.b.o.Now().Before(at) {
			p.rec.outcome(t, journal.Outcome{State: journal.Expired, At: p.b.o.Now(), Reason: reasonExpired})
			return nothing
		}
		t.expires = at
	}
	if p.tooLate(t, policy) {
		p.giveUp(t)
		return nothing
	}
	if tr := transformFor(rule, t.via()); tr != nil {
		ev, err = tr.Apply(ev, rules.RenderContext{Rule: rule.Name, Bus: p.name, Received: stored.Received,
			Function: p.functions(deliveryID(p.name, &stored.Event, t.route), policy.Timeout)})
		if err != nil {
			p.retry(t, policy, targets.Result{}, 0, p.b.o.Now(), transformError(err))
			return nothing
		}
	}
	began := p.b.o.Now()
	if t.firstAt.IsZero() {
		t.firstAt = began
	}
	ctx := targets.NewWithin(p.hard, policy.Timeout)
	res, err := deliver(ctx, target, targets.Delivery{ID: deliveryID(p.name, &stored.Event, t.route), Event: t.marked(ev),
		Bus: p.name, Rule: t.route.Rule, Target: t.route.Target, Attempt: t.attempts + 1, Position: p.position(t.seq), Received: stored.Received})
	ctx.Close()
	took := p.b.o.Now().Sub(began)
	if err != nil {
		if p.hard.Err() != nil { // cut off by our own stop: it is owed as before, and this was no attempt
			t.lane.release(t)
			return nothing
		}
		if targets.ReasonOf(err) == targets.ReasonBlockedAddress { // whatever a kind says: nobody is told what answers there
			res.Status, res.Remote, res.Head = 0, "", ""
		}
		err, disable := policy.Status.Apply(err)
		p.retry(t, policy, res, took, began, err)
		f := find(err, disable)
		f.began, f.stepped, f.last = began, p.b.o.Log.ClockStepped(), p.tell(t, &stored.Event, res, began, err)
		return f
	}
	p.rec.outcome(t, journal.Outcome{State: journal.Delivered, Attempt: t.attempts + 1, At: began, Duration: took, Status: res.Status,
		Exchange: journal.Exchange(res.Exchange)})
	return find(nil, false)
}

// postpone parks a delivery whose event, or rule, cannot be read at the moment. The target was not asked, so this was no attempt.
func (p *path) postpone(t *task, u *unread, what string, err error) {
	if p.hard.Err() != nil {
		t.lane.release(t)
		return
	}
	now := p.b.o.Now()
	wait, say := u.failed(t.seq, now)
	if say {
		p.b.log.Error(what, "bus", p.name, "position", t.seq, "ruleId", t.route.Rule, "err", err)
	}
	p.rec.outcome(t, journal.Outcome{State: journal.Parked, At: now, Due: now.Add(wait), Reason: reasonUnreadable})
}

// tell is what the owner of a target is told of an attempt that failed.
func (p *path) tell(t *task, ev *event.Event, res targets.Result, began time.Time, err error) *lastAttempt {
	return &lastAttempt{Bus: p.name, Rule: t.route.Rule, Event: ev.ID, Source: ev.Source, Type: ev.Type, Position: p.position(t.seq).String(),
		Attempt: t.attempts + 1, At: began, Status: res.Status, Reason: string(targets.ReasonOf(err)), Detail: journal.Cut(detailOf(err), maxTold),
		Response: journal.Cut(res.Head, maxTold)}
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

// ruleOf returns the rule a delivery was routed by, as it was then, or redriven by; nil if it ends because the rule was deleted.
func (p *path) ruleOf(t *task) (*rules.Rule, error) {
	if t.ruleIsDeleted() {
		return nil, nil
	}
	return p.ruleAt(t.route.Rule, t.route.Revision)
}

// ruleIsDeleted reports whether a delivery ends because its rule was deleted: see ofRules.
func (t *task) ruleIsDeleted() bool { return t.redrive == nil && t.path.isDeleted(t.route.Rule, t.seq) }

// isDeleted reports whether the rule by which an event was routed was deleted. One that is made with its name brings nothing back.
func (p *path) isDeleted(rule string, seq uint64) bool {
	if current := p.rules.Load(); current != nil && current.byName[rule] == nil {
		return true
	}
	to := p.deletedTo.Load()
	return to != nil && seq <= (*to)[rule]
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
	since := first
	if p.b.o.Log.ClockStepped() { // it is not older than its attempts make it
		since = began
	}
	d := targets.Next(policy.Retry, n, err, since, now, p.b.o.Rand)
	if d.Rest > 0 {
		t.lane.restUntil(now.Add(d.Rest))
	}
	o := journal.Outcome{State: journal.Parked, Attempt: n, At: began, Duration: took, Status: res.Status,
		Reason: string(d.Reason), Detail: detailOf(err), Due: d.At, Exchange: journal.Exchange(res.Exchange)}
	switch {
	case !d.Dead():
	case t.blocks(policy): // its key waits for somebody, or something, to change
		o.Due = now.Add(policy.Retry.Again(n, p.b.o.Rand))
	default:
		seq, derr := p.b.bury(p, t, o, string(d.End))
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
	if o.State == journal.Parked {
		o.Due = t.untilExpiry(o.Due)
	}
	p.rec.outcome(t, o)
}

// untilExpiry is a due time, or when its event expires if that is before: what ends then need not hold up its key until the next try.
// Milliseconds are kept, and it is not due before it has expired.
func (t *task) untilExpiry(due time.Time) time.Time {
	if t.expires.IsZero() || !t.expires.Before(due) {
		return due
	}
	return t.expires.Add(time.Millisecond - 1).Truncate(time.Millisecond)
}

// blocks reports whether a delivery is tried on although it has failed for good.
func (t *task) blocks(policy targets.DeliveryPolicy) bool {
	return t.key != 0 && policy.Ordering != nil && policy.Ordering.Block
}

// tooLate reports whether a delivery that was tried has waited for so long that it may not be tried again: its next attempt was
// planned in time, and then its target was paused, or left alone, or nothing ran.
func (p *path) tooLate(t *task, policy targets.DeliveryPolicy) bool {
	return !t.firstAt.IsZero() && policy.Retry.TooLate(t.firstAt, p.b.o.Now()) && !t.blocks(policy) && !p.b.o.Log.ClockStepped()
}

// giveUp ends a delivery that is too old for another attempt, as a dead letter of its last one.
func (p *path) giveUp(t *task) {
	last, err := p.lastAttempt(t)
	o := journal.Outcome{State: journal.Dead, At: last.At, Status: last.Status, Reason: last.Reason, Detail: last.Detail}
	if err == nil {
		o.DeadSeq, err = p.b.bury(p, t, last, string(targets.EndAge))
	}
	switch {
	case err == nil:
		p.rec.outcome(t, o)
	case p.hard.Err() != nil:
		t.lane.release(t)
	case isGone(err):
		p.rec.cancel(t, reasonEventGone)
	default:
		p.b.log.Error("dead letter cannot be written", "bus", p.name, "position", t.seq, "targetId", t.route.Target, "err", err)
		o.State, o.At, o.Due = journal.Parked, p.b.o.Now(), p.b.o.Now().Add(deadRetry)
		p.rec.outcome(t, o)
	}
}

// lastAttempt returns how the last attempt of a delivery ended, as JOURNEY tells it.
func (p *path) lastAttempt(t *task) (journal.Outcome, error) {
	last := journal.Outcome{At: p.b.o.Now(), Reason: string(targets.EndAge), Attempt: t.attempts} // if that was trimmed, or damaged
	story, err := p.b.o.Journal.Journey(p.hard, p.name, p.journey, t.seq)
	for _, o := range story.Outcomes {
		if o.Route.Rule == t.route.Rule && o.Route.Target == t.route.Target && o.Attempt == t.attempts && o.Reason != "" {
			last = o.Outcome
		}
	}
	return last, err
}

// deadRetry is how long a delivery waits whose dead letter could not be written, and deadTries how often.
const (
	deadRetry = 30 * time.Second
	deadTries = 20
)
