// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"errors"
	"fmt"
	"slices"

	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/rules"
)

// routeBatch is how many events the router reads at a time.
const routeBatch = 256

// route is the router's goroutine: it takes up what an earlier run left unsettled, and then matches every committed
// event once, in order, and offers its deliveries to their lanes. It never waits for a target; it waits for records to
// be written, and when too many events are unsettled it has the oldest parked.
func (p *path) route() {
	select {
	case <-p.first:
	case <-p.ctx.Done():
		return
	}
	next, err := p.resume()
	for ; err != nil; next, err = p.resume() {
		if !p.waits(err) {
			return
		}
	}
	r := router{p: p}
	r.scratch.OnFailure = p.expressionFailed
	var buf []eventlog.Entry
	for {
		if p.log.Wait(p.ctx, next-1) != nil {
			return
		}
		entries, after, err := p.log.Read(p.ctx, next, routeBatch, buf[:0])
		if err == nil {
			err = r.mark(next)
		}
		if err != nil {
			if !p.waits(err) {
				return
			}
			continue
		}
		p.routing.worked()
		p.problem.Store(nil)
		for _, e := range entries {
			if e.Seq > next {
				p.skipped(next, e.Seq-1)
			}
			if !r.event(e) {
				return
			}
			next = e.Seq + 1
		}
		if after > next {
			p.skipped(next, after-1)
			next = after
		}
		buf = entries
		if !p.withinWindow() {
			return
		}
	}
}

// waits says that routing cannot go on, and waits before it is tried again. It returns false if the path is stopping, or
// if trying again cannot help.
func (p *path) waits(err error) bool {
	if p.ctx.Err() != nil || p.rec.hasEnded() {
		return false
	}
	wait, say := p.routing.failed(p.b.o.Now())
	if say {
		p.b.log.Error("routing waits", "bus", p.name, "err", err)
	}
	p.problem.Store(&err)
	return pause(p.ctx, wait)
}

// resume offers again what was live when the last run ended, and returns where routing continues. If it fails it has offered
// nothing.
func (p *path) resume() (next uint64, err error) {
	j := p.b.o.Journal
	routed, err := j.RoutedTo(p.name)
	if err != nil {
		return 0, err
	}
	floor, _ := p.track.state()
	routed = max(routed, floor)
	var live []journal.Pending
	owed := make(map[uint64]int)
	if err := j.EachPending(p.name, func(d journal.Pending) (bool, error) {
		if d.State == journal.Live && d.Seq <= routed {
			live = append(live, d)
			owed[d.Seq]++
		}
		return true, nil
	}); err != nil {
		return 0, err
	}
	tasks, err := p.tasksOf(live)
	if err != nil {
		return 0, err
	}
	drops, err := p.deletedRanges()
	if err != nil {
		return 0, err
	}
	for _, l := range p.b.allLanes() { // before anything stands behind it
		if err := l.linesOf(p); err != nil {
			return 0, err
		}
	}
	// From here on nothing fails: what is offered is not offered again.
	for seq := floor + 1; seq <= routed; seq++ {
		p.track.add(seq, owed[seq])
	}
	for _, t := range tasks {
		p.b.offer(t, nil)
	}
	p.resumed.Store(true)
	if len(live) > 0 {
		p.b.log.Info("deliveries taken up again", "bus", p.name, "count", len(live))
	}
	// A rule or target may have been deleted while nothing ran.
	p.dropRanged(drops...)
	rs := p.rules.Load()
	p.cancelParked(ofRules(func(name string) bool { return rs.byName[name] == nil }), reasonRuleDeleted)
	p.cancelParked(ofTarget(func(name string) bool { return p.b.lane(name) == nil }), reasonTargetDeleted)
	// Lanes that looked for parked deliveries before this bus was open have passed over them.
	for _, l := range p.b.allLanes() {
		l.loadNextDue()
	}
	return routed + 1, nil // what was trimmed, or lost, before it was routed is passed over there
}

// tasksOf makes tasks of live deliveries, with the keys of those whose lanes keep order.
func (p *path) tasksOf(live []journal.Pending) ([]*task, error) {
	tasks := make([]*task, len(live))
	for i, d := range live {
		t := &task{path: p, seq: d.Seq, check: d.Check, route: d.Route, attempts: d.Attempts, firstAt: d.First}
		if l := p.b.lane(d.Route.Target); l != nil {
			if o := l.ordering.Load(); o != nil {
				var err error
				if t.key, err = p.keyOf(o, d.Seq); err != nil {
					return nil, err
				}
			}
		}
		tasks[i] = t
	}
	return tasks, nil
}

// router holds what one goroutine needs to match events.
type router struct {
	p       *path
	current *ruleset
	scratch rules.Scratch
	matches []rules.Match
	routes  []journal.Route
	// What goes into ranges, and the lanes it is for.
	ranged   []journal.Route
	rangedIn []*lane
	ranging  map[*lane]*ranging
}

// mark makes the newest rules the current ones, and has it written down from which position on they are in force
// before any event meets them.
func (r *router) mark(next uint64) error {
	newest := r.p.rules.Load()
	if newest == r.current && newest.marked {
		return nil
	}
	last, err := r.p.b.o.Journal.InForce(r.p.name, next)
	if err != nil {
		return err
	}
	refs := make([]journal.RuleRef, 0, len(newest.byName))
	for _, rule := range newest.index.Rules() {
		refs = append(refs, journal.RuleRef{Name: rule.Name, Revision: rule.Revision})
	}
	if last.Ruleset == 0 || !sameRules(last.Rules, refs) {
		if err := r.p.writeMark(next, newest, refs); err != nil {
			return err
		}
	}
	newest.marked = true
	r.current = newest
	return nil
}

func sameRules(a, b []journal.RuleRef) bool {
	if len(a) != len(b) {
		return false
	}
	known := make(map[journal.RuleRef]bool, len(a))
	for _, x := range a {
		known[x] = true
	}
	for _, x := range b {
		if !known[x] {
			return false
		}
	}
	return true
}

// markPart is how many rules one mark names.
const markPart = 1000

// writeMark writes the documents that JOURNEY does not have yet, then the mark, and waits for both.
func (p *path) writeMark(first uint64, rs *ruleset, refs []journal.RuleRef) error {
	for _, rule := range rs.index.Rules() {
		have, err := p.b.o.Journal.RuleDocument(p.name, rule.Name, rule.Revision)
		if err != nil {
			return err
		}
		if have == nil {
			p.rec.add(func(e *journal.Encoder) {
				e.RuleDoc(journal.RuleDoc{Name: rule.Name, Revision: rule.Revision, Raw: rule.Raw})
			}, nil)
		}
	}
	for part := 0; part == 0 || len(refs) > 0; part++ {
		n := min(len(refs), markPart)
		m := journal.Mark{First: first, Ruleset: max(rs.revision, 1), Part: part, Rules: refs[:n]}
		refs = refs[n:]
		p.rec.add(func(e *journal.Encoder) { e.Mark(m) }, nil)
	}
	if err := p.rec.sync(p.ctx); err != nil {
		return fmt.Errorf("write ruleset mark: %w", err)
	}
	return nil
}

// routesPart is how many deliveries one record names.
const routesPart = 1000

// event matches one event and sends it on its ways. It returns false if that cannot be written down any more.
func (r *router) event(e eventlog.Entry) bool {
	ev := &e.Record.Event
	if d := r.p.b.o.Discover; d != nil && r.p.doc.Load().SchemaDiscovery {
		d.Observe(r.p.name, ev)
	}
	r.p.traffic.saw(ev, e.Record.Received)
	var err error
	r.matches, err = r.current.index.Match(ev, &r.scratch, r.matches[:0])
	if err != nil {
		// The event was checked when it was taken in; what a rule cannot read it does not match.
		r.p.b.log.Warn("event could not be matched", "bus", r.p.name, "eventId", ev.ID, "err", err)
		r.p.b.metrics.matchErrors.Inc()
	}
	p := r.p
	r.routes, r.ranged, r.rangedIn = r.routes[:0], r.ranged[:0], nil
	crowded := p.b.crowded.Load()
	var follows []string // targets where a range goes before it
	for _, m := range r.matches {
		for i := range m.Rule.Targets {
			route := journal.Route{Rule: m.Rule.Name, Revision: m.Rule.Revision, Target: m.Rule.Targets[i].Target}
			if crowded != nil {
				ranges, after := r.ranges((*crowded)[route.Target], e.Seq)
				if ranges {
					r.ranged = append(r.ranged, route)
					continue
				}
				if after {
					follows = append(follows, route.Target)
				}
			}
			r.routes = append(r.routes, route)
		}
	}
	check := journal.CheckOf(ev.Key())
	p.track.add(e.Seq, 1+len(r.routes))
	hour := journal.HourOf(e.Record.Received)
	// What one message cannot hold goes before: the event is routed with the last part, so a crash in between routes it
	// again, and the views count each delivery once.
	rest := r.routes
	for ; len(rest) > routesPart; rest = rest[routesPart:] {
		p.rec.add(func(enc *journal.Encoder) {
			for _, route := range rest[:routesPart] {
				enc.Pending(journal.Pending{Seq: e.Seq, Route: route, Check: check, Hour: hour, State: journal.Live})
			}
		}, nil)
	}
	after := func() { p.track.done(e.Seq) }
	if lanes := r.rangedIn; lanes != nil {
		after = func() {
			p.track.done(e.Seq)
			for _, l := range lanes {
				l.wasRanged(p)
			}
		}
	}
	if !p.rec.add(func(enc *journal.Encoder) {
		enc.Routed(journal.Routed{Seq: e.Seq, Check: check, Hour: hour, Routes: rest, Ranged: r.ranged})
	}, after) {
		return false
	}
	p.counters.routed(len(r.routes) + len(r.ranged))
	for _, route := range r.routes {
		p.b.offer(&task{path: p, seq: e.Seq, check: check, route: route, follows: follows != nil && slices.Contains(follows, route.Target)}, ev)
	}
	return true
}

// ranges reports whether a delivery to a lane goes into a range, as long as one record can name it, or follows one: then it is
// parked, where order matters.
func (r *router) ranges(l *lane, seq uint64) (ranges, follows bool) {
	if l == nil {
		return false, false
	}
	ranges = l.ranges()
	if l.ordering.Load() != nil {
		ranges, follows = r.inOrder(l, ranges)
	}
	if len(r.ranged) == routesPart {
		return false, ranges || follows
	}
	if !ranges {
		return false, follows
	}
	if !slices.Contains(r.rangedIn, l) {
		r.rangedIn = append(r.rangedIn, l)
	}
	if s := r.ranging[l]; s != nil {
		s.last, s.closing = seq, false
	}
	return true, false
}

// ranging is what the router knows of the range of a lane that keeps order.
type ranging struct {
	last    uint64 // the last event in it; 0 = there is none
	takes   uint64 // of the lane, when the views were asked
	closing bool   // little is left in it: what comes is parked behind it, so that it can end
}

// inOrder says what becomes of a delivery to a lane that keeps order: while there is a range on this bus, what comes must not
// go before it.
func (r *router) inOrder(l *lane, ranges bool) (into, follows bool) {
	s := r.ranging[l]
	takes := l.takes.Load()
	if s == nil || s.last > 0 && s.takes != takes {
		routed, err := r.p.b.o.Journal.RoutedTo(r.p.name) // before the range: what is ranged up to there is seen, or was taken
		known, open, rerr := r.p.b.o.Journal.RangeOf(r.p.name, l.name)
		if err = errors.Join(err, rerr); err != nil {
			r.p.b.log.Error("a range cannot be looked up", "bus", r.p.name, "targetId", l.name, "err", err)
			return true, false
		}
		if s == nil {
			s = &ranging{last: known.Last}
			if r.ranging == nil {
				r.ranging = make(map[*lane]*ranging)
			}
			r.ranging[l] = s
		}
		s.takes = takes
		switch {
		case !open && routed >= s.last:
			s.last, s.closing = 0, false
		case open && known.Count <= uint64(r.p.b.o.RangeAfter/2):
			s.closing = true
		}
	}
	switch {
	case ranges || s.last == 0:
		return ranges, false
	case s.closing:
		return false, true
	}
	return true, false
}

// skipped passes over sequences that hold no event.
func (p *path) skipped(from, to uint64) {
	p.track.add(to, 1)
	p.rec.add(func(e *journal.Encoder) { e.Skipped(from, to) }, func() { p.track.done(to) })
}

// expressionFailed counts a when or sql that could not be evaluated. What it failed on is in the event, so it is not
// logged; explain tells those who may read the event.
func (p *path) expressionFailed(r *rules.Rule, _ error) {
	p.counters.expressions.Inc()
	p.b.log.Debug("expression of a rule failed", "bus", p.name, "ruleId", r.Name)
}

// withinWindow returns once few enough events are unsettled; false if the path is stopping.
func (p *path) withinWindow() bool {
	for {
		if _, open := p.track.state(); open < p.b.o.Window {
			return true
		}
		floor, open, moved := p.track.wait()
		if open < p.b.o.Window {
			return true
		}
		p.b.parkBelow(p, floor+uint64(p.b.o.Window/2))
		select {
		case <-moved:
		case <-p.ctx.Done():
			return false
		}
	}
}
