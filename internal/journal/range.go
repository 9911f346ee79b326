// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// Range is a stretch of a bus in which deliveries to a target wait without a record of their own: the Routed records say
// which they are, and the range is a cursor over those. There is one for a target and bus at most; it begins with the first
// delivery that is ranged, and ends when the cursor has passed the last.
type Range struct {
	Next  uint64 // where the cursor is: what is ranged from here on waits
	Last  uint64 // the last event with a delivery in it
	Count uint64 // deliveries that wait
}

// Taking moves the cursor of a range behind To, and makes what it has passed parked deliveries that are due.
type Taking struct {
	Target     string
	To         uint64
	At         time.Time // milliseconds are kept
	Deliveries []Taken   // in order of position
}

// Taken is one delivery of a Taking.
type Taken struct {
	Seq   uint64
	Route Route
	Check Check
	Hour  uint32
	Key   uint64 // as in Outcome
}

// Drop cancels what is ranged for a rule or for a target, up to where JOURNEY has come.
type Drop struct{ Rule, Target string } // one of them

// ReasonRange is why a delivery is parked that has no record of its own yet.
const ReasonRange = "range"

const (
	kindTake = 'T' // a taking
	kindLine = 'L' // a taking of which each has a key
	kindDrop = 'X'
)

// Taking adds t. Its deliveries are all to its target.
func (e *Encoder) Taking(t Taking) {
	routes := make([]uint64, len(t.Deliveries))
	for i, d := range t.Deliveries {
		routes[i] = e.route(d.Route)
	}
	keyed := slices.ContainsFunc(t.Deliveries, func(d Taken) bool { return d.Key != 0 })
	if keyed {
		e.begin(kindLine)
	} else {
		e.begin(kindTake)
	}
	e.str(t.Target)
	e.sequence(t.To)
	e.time(t.At)
	e.uint(uint64(len(t.Deliveries)))
	for i, d := range t.Deliveries {
		e.sequence(d.Seq)
		e.uint(routes[i])
		e.buf = binary.BigEndian.AppendUint32(e.buf, uint32(d.Check))
		e.int(int64(d.Hour) - int64(e.hour))
		e.hour = d.Hour
		if keyed {
			e.buf = binary.BigEndian.AppendUint64(e.buf, d.Key)
		}
	}
}

// Drop adds d.
func (e *Encoder) Drop(d Drop) {
	e.begin(kindDrop)
	e.str(d.Rule)
	e.str(d.Target)
}

func (d *decoder) taking(keyed bool) Taking {
	t := Taking{Target: d.str(), To: d.sequence()}
	d.at += d.int()
	t.At = fromMillis(d.at)
	n := d.uint()
	if n > uint64(len(d.b)) {
		d.fail("deliveries")
		return t
	}
	d.taken = d.taken[:0]
	for range n {
		x := Taken{Seq: d.sequence(), Route: d.route(), Check: d.check()}
		d.hour += d.int()
		x.Hour = uint32(d.hour)
		if keyed {
			x.Key = d.key()
		}
		d.taken = append(d.taken, x)
	}
	t.Deliveries = d.taken
	return t
}

// waits is what waits for a target on one bus.
type waits struct {
	parked uint64
	Range
}

// backlog is what waits for a target while a message is applied.
type backlog struct {
	was waits // before the message
	waits
}

func backlogKey(target, bus string) []byte { return append(key('g', target), bus...) }

func (w waits) encode() []byte {
	var b []byte
	for _, v := range []uint64{w.parked, w.Next, w.Last, w.Count} {
		b = binary.AppendUvarint(b, v)
	}
	return b
}

func (w *waits) decode(b []byte) error {
	d := decoder{b: b}
	*w = waits{d.uint(), Range{d.uint(), d.uint(), d.uint()}}
	return d.err
}

// Waiting counts what waits on disk for a target, over all buses, as far as the views know.
type Waiting struct{ parked, ranged atomic.Int64 }

// Parked returns how many deliveries are parked, each with a record of its own.
func (w *Waiting) Parked() int { return int(w.parked.Load()) }

// Ranged returns how many wait in ranges.
func (w *Waiting) Ranged() int { return int(w.ranged.Load()) }

func (w *Waiting) add(was, is waits) {
	w.parked.Add(int64(is.parked) - int64(was.parked))
	w.ranged.Add(int64(is.Count) - int64(was.Count))
}

// WaitingFor returns the counts of a target, which change as the views do.
func (j *Journal) WaitingFor(target string) *Waiting {
	j.mu.Lock()
	defer j.mu.Unlock()
	w := j.waiting[target]
	if w == nil {
		w = &Waiting{}
		j.waiting[target] = w
	}
	return w
}

// countWaiting reads the counts when the views are opened.
func (j *Journal) countWaiting() error {
	return j.eachBacklog(func(target, _ string, w waits) error {
		j.WaitingFor(target).add(waits{}, w)
		return nil
	})
}

func (s view) eachBacklog(fn func(target, bus string, w waits) error) error {
	return s.scan([]byte{'g'}, nil, func(k, v []byte) (bool, error) {
		target, bus, _ := bytes.Cut(k[1:], []byte{0})
		var w waits
		if err := w.decode(v); err != nil {
			return false, err
		}
		return true, fn(string(target), string(bus), w)
	})
}

// eachRange calls fn for the ranges of a bus.
func (s view) eachRange(bus string, fn func(target string, r Range) error) error {
	return s.eachBacklog(func(target, of string, w waits) error {
		if of != bus || w.Last == 0 {
			return nil
		}
		return fn(target, w.Range)
	})
}

// EachRange calls fn for every range of a bus.
func (j *Journal) EachRange(bus string, fn func(target string, r Range) error) error {
	return j.eachRange(bus, fn)
}

// RangeOf returns the range of a target on a bus; ok is false if there is none.
func (j *Journal) RangeOf(bus, target string) (r Range, ok bool, err error) {
	b, err := j.get(backlogKey(target, bus))
	if err != nil || b == nil {
		return r, false, err
	}
	var w waits
	err = w.decode(b)
	return w.Range, w.Last > 0, err
}

// RangedRules returns the rules of a bus for which something is ranged.
func (j *Journal) RangedRules(bus string) (map[string]bool, error) {
	rules := make(map[string]bool)
	return rules, j.eachCounts(bus, func(_ uint32, pair RoutePair, c Counts) error {
		if c.Ranged > 0 {
			rules[pair.Rule] = true
		}
		return nil
	})
}

func (s view) eachCounts(bus string, fn func(hour uint32, pair RoutePair, c Counts) error) error {
	prefix := key('o', bus)
	return s.scan(prefix, nil, func(k, v []byte) (bool, error) {
		k = k[len(prefix):]
		rule, target, _ := bytes.Cut(k[4:], []byte{0})
		var c Counts
		if err := c.decode(v); err != nil {
			return false, err
		}
		return true, fn(binary.BigEndian.Uint32(k), RoutePair{string(rule), string(target)}, c)
	})
}

func dropKey(bus string, d RoutePair) []byte { return routeKey(key('y', bus), d.Rule, d.Target) }

// DroppedTo returns the position up to which what was ranged for a rule, or for a target, was dropped; 0 = none was.
func (j *Journal) DroppedTo(bus string, d Drop) (uint64, error) {
	return j.number(dropKey(bus, RoutePair(d)))
}

func (a *application) backlogOf(target string) (*backlog, error) {
	if b, ok := a.backlog[target]; ok {
		return b, nil
	}
	v, err := a.j.get(backlogKey(target, a.bus))
	if err != nil {
		return nil, err
	}
	b := &backlog{}
	if v != nil {
		if err := b.decode(v); err != nil {
			return nil, err
		}
	}
	b.was = b.waits
	a.backlog[target] = b
	return b, nil
}

func (a *application) finishBacklogs() error {
	for target, b := range a.backlog {
		k := backlogKey(target, a.bus)
		var err error
		if b.waits == (waits{}) {
			err = a.batch.Delete(k, nil)
		} else {
			err = a.set(k, b.waits.encode())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ranged notes a delivery that is owed and has no record of its own.
func (a *application) ranged(seq uint64, hour uint32, r Route) error {
	c, err := a.countsOf(hour, r)
	if err != nil {
		return err
	}
	b, err := a.backlogOf(r.Target)
	if err != nil {
		return err
	}
	c.Owed++
	c.Ranged++
	if b.Last == 0 {
		b.Next = seq
	}
	b.Last = seq
	b.Count++
	a.moved(idOf(seq, r), 0, Parked)
	return nil
}

// take parks what a range's cursor passes. What is not in the range, because JOURNEY has forgotten its routing or it was
// dropped meanwhile, is passed over.
func (a *application) take(t Taking) error {
	b, err := a.backlogOf(t.Target)
	if err != nil || b.Last == 0 {
		return err
	}
	for _, d := range t.Deliveries {
		if d.Seq < b.Next || d.Seq > b.Last {
			continue
		}
		dropped, err := a.droppedTo(RoutePair{Rule: d.Route.Rule})
		if err != nil {
			return err
		}
		if d.Seq <= dropped {
			continue
		}
		if err := a.takeOne(b, t.At, d); err != nil {
			return err
		}
	}
	b.Next = max(b.Next, t.To+1)
	if b.Next > b.Last {
		b.Range = Range{}
	}
	return nil
}

func (a *application) takeOne(b *backlog, at time.Time, d Taken) error {
	c, err := a.countsOf(d.Hour, d.Route)
	if err != nil {
		return err
	}
	old, err := a.find(d.Seq, d.Route)
	if err != nil {
		return err
	}
	b.Count -= min(b.Count, 1)
	switch {
	case old != nil: // it is owed once
		c.Ranged -= min(c.Ranged, 1)
		c.Owed -= min(c.Owed, 1)
		return nil
	case c.Ranged > 0:
		c.Ranged--
	default: // damage took the record that counted it
		c.Owed++
	}
	return a.park(Pending{Seq: d.Seq, Route: d.Route, Check: d.Check, Hour: d.Hour, State: Parked, Due: at, Key: d.Key}, 0)
}

func (a *application) droppedTo(d RoutePair) (uint64, error) {
	if seq, ok := a.dropped[d]; ok {
		return seq, nil
	}
	seq, err := a.j.number(dropKey(a.bus, d))
	a.dropped[d] = seq
	return seq, err
}

// drop moves what is ranged for a rule or a target from pending to cancelled.
func (a *application) drop(d Drop) error {
	to := max(a.feed.routed, a.last)
	a.dropped[RoutePair(d)] = to
	if err := a.set(dropKey(a.bus, RoutePair(d)), u64(nil, to)); err != nil {
		return err
	}
	matches := func(p RoutePair) bool {
		return d.Rule != "" && p.Rule == d.Rule || d.Target != "" && p.Target == d.Target
	}
	if err := a.j.eachCounts(a.bus, func(hour uint32, pair RoutePair, c Counts) error {
		if c.Ranged == 0 || !matches(pair) {
			return nil
		}
		_, err := a.countsOf(hour, Route{Rule: pair.Rule, Target: pair.Target})
		return err
	}); err != nil {
		return err
	}
	for _, c := range a.counts { // those of this message included
		if c.Ranged == 0 || !matches(c.pair) {
			continue
		}
		b, err := a.backlogOf(c.pair.Target)
		if err != nil {
			return err
		}
		if b.Last > 0 {
			a.dropSpan(c.pair, b.Next, min(to, b.Last))
		}
		b.Count -= min(b.Count, c.Ranged)
		if a.cancelled == nil {
			a.cancelled = make(map[string]uint64)
		}
		a.cancelled[c.pair.Target] += c.Ranged
		c.Cancelled += c.Ranged
		c.Ranged = 0
		if b.Count == 0 {
			b.Range = Range{}
		}
	}
	return nil
}

// span is a stretch of a bus.
type span struct{ from, to uint64 }

// dropSpan notes that what was ranged for a rule and target between two positions has ended.
func (a *application) dropSpan(pair RoutePair, from, to uint64) {
	s, ok := a.spans[pair]
	if !ok {
		s = span{from, to}
	}
	if a.spans == nil {
		a.spans = make(map[RoutePair]span)
	}
	a.spans[pair] = span{min(s.from, from), max(s.to, to)}
}

// finishDrops moves what was dropped from the sets of what is parked to those of what was cancelled, a block at a time. What has a
// record of its own was not in the range.
func (a *application) finishDrops() error {
	for pair, s := range a.spans {
		own, err := a.ownRecords(pair, s)
		if err != nil {
			return err
		}
		for block := s.from >> blockBits; block <= s.to>>blockBits; block++ {
			if err := a.dropBlock(outcomeSet{Parked, pair.Target, pair.Rule, block}, s, own); err != nil {
				return err
			}
		}
	}
	return nil
}

// ownRecords returns the positions of a span at which a delivery has a record of its own.
func (a *application) ownRecords(pair RoutePair, s span) (map[uint64]bool, error) {
	own := make(map[uint64]bool)
	for id := range a.deliveries {
		if id.rule == pair.Rule && id.target == pair.Target {
			own[id.seq] = true
		}
	}
	prefix := key('p', a.bus)
	return own, a.j.eachPending(prefix, u64(bytes.Clone(prefix), s.from), a.bus, func(p Pending) (bool, error) {
		if p.Route.Rule == pair.Rule && p.Route.Target == pair.Target {
			own[p.Seq] = true
		}
		return p.Seq <= s.to, nil
	})
}

func (a *application) dropBlock(set outcomeSet, s span, own map[uint64]bool) error {
	a.key = set.key(a.key[:0], a.bus)
	was, err := a.j.get(a.key)
	if err != nil {
		return err
	}
	var parked, left, come change
	if was != nil {
		if err := parked.read(was, false); err != nil {
			return err
		}
	}
	if list := a.sets[set]; len(list) > 0 {
		if err := parked.read(appendChange(nil, list), false); err != nil {
			return err
		}
	}
	low := set.block << blockBits
	for seq := max(s.from, low); seq <= min(s.to, low+blockSize-1); seq++ {
		w, bit := seq&(blockSize-1)/64, uint64(1)<<(seq%64)
		if parked.come[w]&bit != 0 && !own[seq] {
			left.gone[w] |= bit
			come.come[w] |= bit
		}
	}
	if err := a.batch.Merge(a.key, left.encode(), nil); err != nil {
		return err
	}
	set.state = Cancelled
	return a.batch.Merge(set.key(nil, a.bus), come.encode(), nil)
}

// forgetDrops forgets the drops below seq: no range reaches there any more.
func (j *Journal) forgetDrops(b *pebble.Batch, bus string, seq uint64) error {
	return j.scan(key('y', bus), nil, func(k, v []byte) (bool, error) {
		if len(v) < 8 || binary.BigEndian.Uint64(v) < seq {
			return true, b.Delete(bytes.Clone(k), nil)
		}
		return true, nil
	})
}

// forgetBacklogs deletes what waits on a bus, and returns it.
func (j *Journal) forgetBacklogs(b *pebble.Batch, bus string) (map[string]waits, error) {
	waiting := make(map[string]waits)
	return waiting, j.eachBacklog(func(target, of string, w waits) error {
		if of != bus {
			return nil
		}
		waiting[target] = w
		return b.Delete(backlogKey(target, bus), nil)
	})
}

// ranged notes what of an event was ranged.
func (j *Journey) ranged(r Routed, at time.Time) {
	for _, rt := range r.Ranged {
		j.Routes = append(j.Routes, rt)
		j.Outcomes = append(j.Outcomes, Step{Outcome: Outcome{Seq: r.Seq, Route: rt, State: Parked, At: at, Reason: ReasonRange}})
	}
}

// standInRanges says of what was ranged, and has no record since then, where it stands: it waits there, it is parked, or it
// was dropped. What was dropped and then redriven had ended in between.
func (j *Journey) standInRanges(in *Journal, bus string) error {
	if !slices.ContainsFunc(j.Outcomes, Step.ranged) {
		return nil
	}
	steps := make([]Step, 0, len(j.Outcomes)+1)
	waits := make(map[RoutePair]int) // steps that nothing has followed yet
	for _, o := range j.Outcomes {
		pair := RoutePair{o.Route.Rule, o.Route.Target}
		if i, ok := waits[pair]; ok && o.Redrive != nil && o.Redrive.Was == Cancelled {
			end, dropped, err := steps[i].dropped(in, bus)
			if err != nil {
				return err
			}
			if dropped {
				steps = append(steps, end)
			}
		}
		delete(waits, pair)
		if o.ranged() {
			waits[pair] = len(steps)
		}
		steps = append(steps, o)
	}
	for pair, i := range waits {
		p, ok, err := in.FindPending(bus, steps[i].Seq, pair.Rule, pair.Target)
		if err != nil {
			return err
		}
		if ok {
			steps[i].Due = p.Due
			continue
		}
		end, dropped, err := steps[i].dropped(in, bus)
		if err != nil {
			return err
		}
		if dropped {
			steps = append(steps, end)
		}
	}
	j.Outcomes = steps
	return nil
}

// ranged reports whether the step says that a delivery was ranged.
func (s Step) ranged() bool { return s.Reason == ReasonRange && s.State == Parked }

// dropped returns how a delivery that was ranged has ended, if a Drop has taken it.
func (s Step) dropped(in *Journal, bus string) (end Step, ok bool, err error) {
	for _, d := range []struct {
		reason string
		Drop
	}{{ReasonRuleDeleted, Drop{Rule: s.Route.Rule}}, {ReasonTargetDeleted, Drop{Target: s.Route.Target}}} {
		to, err := in.DroppedTo(bus, d.Drop)
		if err != nil {
			return end, false, err
		}
		if s.Seq <= to {
			return Step{Outcome: Outcome{Seq: s.Seq, Route: s.Route, State: Cancelled, At: s.At, Reason: d.reason}}, true, nil
		}
	}
	return end, false, nil
}

// Why what was ranged is dropped.
const (
	ReasonRuleDeleted   = "rule_deleted"
	ReasonTargetDeleted = "target_deleted"
)
