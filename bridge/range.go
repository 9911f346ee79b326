// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/journal"
)

// takeBytes bounds the record that takes deliveries out of a range, so that one message holds it.
const takeBytes = 96 << 10

// crowded is the set of lanes that have so much parked that what comes for them may be ranged, and of those that keep order. The
// router asks it once for each delivery, without a lock.
type crowded map[string]*lane

// setCrowded puts a lane into the set of those, or takes it out. Called with l's mu held.
func (b *Bridge) setCrowded(l *lane, is bool) {
	b.crowding.Lock()
	defer b.crowding.Unlock()
	next := make(crowded)
	if old := b.crowded.Load(); old != nil {
		maps.Copy(next, *old)
	}
	if is {
		next[l.name] = l
	} else if next[l.name] == l {
		delete(next, l.name)
	}
	if len(next) == 0 {
		b.crowded.Store(nil)
		return
	}
	b.crowded.Store(&next)
}

// weigh notes whether the lane has much parked. Called with mu held.
func (l *lane) weigh() {
	n := l.waiting.Parked()
	l.crowded = n >= l.b.o.RangeAfter || l.crowded && n >= l.b.o.RangeAfter/2
	if is := !l.closed && (l.crowded || l.ordering.Load() != nil); is != l.watched {
		l.watched = is
		l.b.setCrowded(l, is)
	}
}

// ranges reports whether a delivery that comes now goes into a range: it would be parked, where much is parked already.
func (l *lane) ranges() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	if l.order.parked >= l.b.o.ParkedKeys {
		return true
	}
	if !l.crowded {
		return false
	}
	reason, _ := l.parksNow(l.b.o.Now())
	return reason != "" || l.slow && l.head < len(l.live)
}

// wasRanged is called, by the recorder, when a range of the lane on a path has grown.
func (l *lane) wasRanged(p *path) {
	l.mu.Lock()
	removed := l.removed
	l.barren = false
	l.start()
	l.mu.Unlock()
	if removed { // nobody looks there any more
		p.rec.addNow(func(e *journal.Encoder) { e.Drop(journal.Drop{Target: l.name}) }, p.countCancelled)
	}
}

// takeMore begins to take deliveries out of a range if the lane has room for them: attempts may be made, and little is
// parked, or nothing of it is due. It returns when to look again, zero if that does not come with time alone. Called with mu
// held.
func (l *lane) takeMore(now time.Time) (again time.Time) {
	if l.taking || l.barren || l.waiting.Ranged() == 0 {
		return time.Time{}
	}
	due := len(l.ready) > 0 || l.loading || l.hasDue(now)
	stuck := l.order.stalled > 0 && l.workers == 0 && len(l.ready) == 0 && l.head == len(l.live)
	if !stuck && (due && l.waiting.Parked() >= l.b.o.RangeAfter/2 || l.order.parked >= l.b.o.ParkedKeys) {
		return time.Time{}
	}
	if reason, _ := l.gate.parks(now); reason != "" {
		return l.gate.opens(now)
	}
	if now.Before(l.takeAfter) {
		return l.takeAfter
	}
	l.taking, l.barren = true, true // unless something is found, or said to be there meanwhile
	l.b.wg.Add(1)
	go l.take()
	return time.Time{}
}

// take is the goroutine that takes one batch out of the lane's ranges.
func (l *lane) take() {
	defer l.b.wg.Done()
	n, err := l.takeBatch()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taking = false
	now := l.b.o.Now()
	switch {
	case err != nil && l.b.ctx.Err() == nil:
		wait, say := l.ranging.failed(now)
		if say {
			l.b.log.Error("a range cannot be read, trying again", "targetId", l.name, "err", err)
		}
		l.takeAfter, l.barren = now.Add(wait), false
	case n == 0: // its buses are not open; who opens one says so
	default:
		l.barren = false
		l.ranging.worked()
	}
	l.start()
}

// takeBatch takes from the range of one bus after the other until it has enough, and returns how many ranges it looked at.
func (l *lane) takeBatch() (looked int, err error) {
	paths := l.b.allPaths()
	l.mu.Lock()
	i := slices.IndexFunc(paths, func(p *path) bool { return p.name > l.tookFrom }) // each bus has its turn
	l.mu.Unlock()
	if i > 0 {
		paths = slices.Concat(paths[i:], paths[:i])
	}
	for room := l.b.o.RangeAfter / 2; room > 0 && len(paths) > 0; paths = paths[1:] {
		p := paths[0]
		r, ok, err := l.b.o.Journal.RangeOf(p.name, l.name)
		if err != nil {
			return looked, err
		}
		if !ok || p.rec.hasEnded() {
			continue
		}
		n, err := p.take(l, r, room)
		if err != nil {
			if p.ctx.Err() != nil {
				continue
			}
			return looked, err
		}
		looked++
		room -= n
		l.mu.Lock()
		l.tookFrom = p.name
		l.mu.Unlock()
	}
	return looked, nil
}

// take moves the cursor of a range on by about limit deliveries, which are parked and due from then on, and blocks until
// that is in the views. It returns how many.
func (p *path) take(l *lane, r journal.Range, limit int) (int, error) {
	t, err := p.ranged(p.ctx, l.name, r, limit)
	if err != nil {
		return 0, err
	}
	if o := l.ordering.Load(); o != nil {
		for i := range t.Deliveries {
			if t.Deliveries[i].Key, err = p.keyOf(o, t.Deliveries[i].Seq); err != nil {
				return 0, err
			}
		}
	}
	return len(t.Deliveries), p.takeOut(l, t)
}

// takeOut writes down what comes out of a range, and blocks until that is in the views.
func (p *path) takeOut(l *lane, t journal.Taking) error {
	l.comeOut(p, t.Deliveries)
	if !p.rec.add(func(e *journal.Encoder) { e.Taking(t) }, func() { p.taken(l, t) }) {
		return errEnded
	}
	defer l.takes.Add(1)
	return p.rec.sync(p.ctx)
}

// taken is called, by the recorder, when deliveries have come out of a range. They are due from then on; where their target or rule was
// deleted meanwhile they end.
func (p *path) taken(l *lane, t journal.Taking) {
	l.expect(t.At)
	removed := l.isRemoved()
	for _, d := range t.Deliveries {
		if d.Key != 0 {
			l.parkedIn(p, d.Key, d.Seq, p.b.o.Now(), false)
		}
		o := journal.Outcome{Seq: d.Seq, Route: d.Route, State: journal.Cancelled, At: p.b.o.Now()}
		switch {
		case removed:
			o.Reason = reasonTargetDeleted
		case p.isDeleted(d.Route.Rule, d.Seq):
			o.Reason = reasonRuleDeleted
		default:
			continue
		}
		p.rec.addNow(func(e *journal.Encoder) { e.Outcome(o) }, nil)
	}
}

var errEnough = errors.New("enough")

// ranged reads the first deliveries of a range from JOURNEY: about limit, and all that one event owes. Places where JOURNEY
// was damaged are passed over.
func (p *path) ranged(ctx context.Context, target string, r journal.Range, limit int) (journal.Taking, error) {
	t := journal.Taking{Target: target, To: r.Last, At: p.b.o.Now()}
	j := p.b.o.Journal
	routing, _, err := j.RoutingOf(p.name, r.Next)
	if err != nil {
		return t, err
	}
	dropped := make(map[string]uint64) // rules
	size := 0
	err = p.eachMessage(ctx, max(routing.Record, p.journey.First()), func(raw eventlog.Raw) error {
		if raw.Gap() {
			return nil
		}
		return journal.Decode(raw.Data, journal.Visitor{Routed: func(x journal.Routed) error {
			switch {
			case x.Seq < r.Next:
				return nil
			case x.Seq > r.Last:
				return errEnough
			case len(t.Deliveries) >= limit || size >= takeBytes:
				t.To = x.Seq - 1
				return errEnough
			}
			for _, rt := range x.Ranged {
				if rt.Target != target {
					continue
				}
				to, known := dropped[rt.Rule]
				if !known {
					var err error
					if to, err = j.DroppedTo(p.name, journal.Drop{Rule: rt.Rule}); err != nil {
						return err
					}
					dropped[rt.Rule] = to
					size += len(rt.Rule) + len(rt.Target) + 16
				}
				if x.Seq > to {
					t.Deliveries = append(t.Deliveries, journal.Taken{Seq: x.Seq, Route: rt, Check: x.Check, Hour: x.Hour})
					size += 16
				}
			}
			return nil
		}})
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return t, err
}

// dropRanged cancels what is ranged for deleted rules, or for deleted targets.
func (p *path) dropRanged(drops ...journal.Drop) {
	for _, d := range drops {
		p.rec.add(func(e *journal.Encoder) { e.Drop(d) }, p.countCancelled)
	}
}

// countCancelled counts what Drop records have ended. It is called by the recorder, when one is in the views.
func (p *path) countCancelled() {
	cancelled, err := p.b.o.Journal.TakeCancelled(p.name)
	if err != nil {
		p.b.log.Error("cancelled deliveries are not counted", "bus", p.name, "err", err)
		return
	}
	for target, n := range cancelled {
		p.cancelled(target, n)
	}
}

// cancelled counts deliveries that no task ends.
func (p *path) cancelled(target string, n uint64) {
	if p.b.lane(target) != nil { // the series of a deleted target have ended
		p.b.metrics.outcomes.WithLabelValues(target, journal.Cancelled.String()).Add(float64(n))
	}
}

// deletedRanges are the ranges of rules and targets that were deleted while nothing ran, to be cancelled.
func (p *path) deletedRanges() (drops []journal.Drop, err error) {
	err = p.b.o.Journal.EachRange(p.name, func(target string, _ journal.Range) error {
		if p.b.lane(target) == nil {
			drops = append(drops, journal.Drop{Target: target})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	rules, err := p.b.o.Journal.RangedRules(p.name)
	if err != nil {
		return nil, err
	}
	rs := p.rules.Load()
	for name := range rules {
		if rs.byName[name] == nil {
			drops = append(drops, journal.Drop{Rule: name})
		}
	}
	return drops, nil
}

// inRange reports whether a delivery waits in a range.
func (p *path) inRange(ctx context.Context, seq uint64, rule, target string) (bool, error) {
	r, ok, err := p.b.o.Journal.RangeOf(p.name, target)
	if err != nil || !ok || seq < r.Next || seq > r.Last {
		return false, err
	}
	story, err := p.b.o.Journal.Journey(ctx, p.name, p.journey, seq)
	if err != nil {
		return false, err
	}
	in := false
	for _, o := range story.Outcomes {
		if o.Route.Rule == rule && o.Route.Target == target {
			in = o.State == journal.Parked && o.Reason == journal.ReasonRange
		}
	}
	return in, nil
}
