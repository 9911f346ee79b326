// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// application is one message on its way into the views.
type application struct {
	j      *Journal
	feed   *feed
	bus    string
	record uint64
	base   uint64
	batch  *pebble.Batch
	// What this message has changed so far: a later record of the message sees it, which the batch would not show.
	deliveries map[pendingID]*delivery
	counts     map[string]*counts
	events     map[uint32]*eventCounts
	sets       map[outcomeSet][]uint16
	first      uint64 // of what was routed
	last       uint64
	fresh      bool // the views hold no delivery of an event at or behind first
	alone      bool // no other message has routed any of it
	mention    map[uint64]struct{}
	jobs       map[uint64]*jobCounts
	highest    map[byte]uint64 // of the sequences of other streams that were named
	backlog    map[string]*backlog
	dropped    map[RoutePair]uint64
	cancelled  map[string]uint64 // what a Drop ended, by target
	spans      map[RoutePair]span

	look       lookup
	key, value []byte // scratch
}

type pendingID struct {
	seq          uint64
	rule, target string
}

func idOf(seq uint64, r Route) pendingID { return pendingID{seq, r.Rule, r.Target} }

// delivery is one that this message speaks of.
type delivery struct {
	Pending
	was    State // before this message; 0 = it was not owed
	over   bool  // it is not pending any more; State says how it ended
	stored bool  // the views may hold it as pending
}

// counts are the deliveries of an hour, rule and target.
type counts struct {
	key  []byte
	pair RoutePair
	Counts
}

type eventCounts struct{ matched, unmatched, lost uint64 }

// Apply brings the message at sequence record of JOURNEY_<bus> into the views. Messages come in order; one that the
// views hold already changes nothing. A message that cannot be read is ErrFormat.
func (j *Journal) Apply(bus string, record uint64, message []byte) error {
	f, err := j.feedOf(bus)
	if err != nil || record <= f.applied {
		return err
	}
	a := application{j: j, feed: f, bus: bus, record: record, base: f.base, batch: j.db.NewBatch(),
		deliveries: make(map[pendingID]*delivery), counts: make(map[string]*counts), events: make(map[uint32]*eventCounts),
		sets: make(map[outcomeSet][]uint16), mention: make(map[uint64]struct{}), jobs: make(map[uint64]*jobCounts), highest: make(map[byte]uint64),
		backlog: make(map[string]*backlog), dropped: make(map[RoutePair]uint64), look: lookup{view: j.view}}
	defer a.batch.Close()
	defer a.look.close() //nolint:errcheck // a reading that failed has said so
	if err := Decode(message, Visitor{Routed: a.routed, Skipped: a.skipped, Outcome: a.outcome, Pending: a.again,
		Mark: a.mark, RuleDoc: a.ruleDoc, Floor: a.floor, Redrive: a.redrive, Discard: a.discard,
		Taking: a.take, Drop: a.drop, Buried: a.buried}); err != nil {
		return fmt.Errorf("journey message %d of bus %s: %w", record, bus, err)
	}
	if err := a.finish(); err != nil {
		return fmt.Errorf("write views: %w", err)
	}
	f.remember(&a)
	return nil
}

// feed is what Apply remembers of a bus, so that it need not ask the views for what it has just written there. It belongs to
// the one goroutine that applies to the bus.
type feed struct {
	applied, base, routed uint64
	live                  map[pendingID]Pending // some of the live deliveries
	cancelled             map[string]uint64     // what Drop records ended, by target
}

// maxLive is how many deliveries a feed remembers: what is under way at a time, as long as targets answer at once. About 1 MB.
const maxLive = 4096

// feedOf returns what is remembered of a bus.
func (j *Journal) feedOf(bus string) (*feed, error) {
	j.mu.Lock()
	f := j.feeds[bus]
	j.mu.Unlock()
	if f != nil {
		return f, nil
	}
	f = &feed{}
	for at, k := range map[*uint64][]byte{&f.applied: key('w', bus, 'J'), &f.base: key('b', bus), &f.routed: key('w', bus, 'R')} {
		n, err := j.number(k)
		if err != nil {
			return nil, err
		}
		*at = n
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.feeds[bus] = f
	return f, nil
}

// TakeCancelled returns how many deliveries the Drop records of a bus have ended since it was asked last, by target. It is for
// the goroutine that calls Apply.
func (j *Journal) TakeCancelled(bus string) (map[string]uint64, error) {
	f, err := j.feedOf(bus)
	if err != nil {
		return nil, err
	}
	n := f.cancelled
	f.cancelled = nil
	return n, nil
}

// forgetFeed is called when the views of a bus are changed otherwise than by Apply.
func (j *Journal) forgetFeed(bus string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.feeds, bus)
}

// remember brings in what a message has changed, when it is in the views.
func (f *feed) remember(a *application) {
	f.applied, f.routed = a.record, max(f.routed, a.last)
	for target, n := range a.cancelled {
		if f.cancelled == nil {
			f.cancelled = make(map[string]uint64)
		}
		f.cancelled[target] += n
	}
	for id, d := range a.deliveries {
		if d.over || d.State != Live {
			delete(f.live, id)
			continue
		}
		if f.live == nil {
			f.live = make(map[pendingID]Pending)
		}
		if _, ok := f.live[id]; ok || len(f.live) < maxLive {
			f.live[id] = d.Pending
		}
	}
	if len(f.live) == 0 {
		f.live = nil // a map never gets smaller
	}
}

func (a *application) set(k, v []byte) error { return a.batch.Set(k, v, nil) }

func (a *application) finish() error {
	var errs []error
	for id, d := range a.deliveries {
		if d.State != d.was {
			a.moved(id, d.was, d.State)
		}
		a.key = appendPendingKey(a.key[:0], a.bus, id.seq, id.rule, id.target)
		switch {
		case !d.over:
			a.value = d.encode(a.value[:0])
			errs = append(errs, a.set(a.key, a.value))
		case d.stored:
			errs = append(errs, a.batch.Delete(a.key, nil))
		}
	}
	for _, c := range a.counts {
		errs = append(errs, a.set(c.key, c.Counts.encode()))
	}
	for hour, c := range a.events {
		b := binary.AppendUvarint(nil, c.matched)
		b = binary.AppendUvarint(b, c.unmatched)
		errs = append(errs, a.set(u32(key('l', a.bus), hour), binary.AppendUvarint(b, c.lost)))
	}
	if a.last > 0 {
		errs = append(errs, a.set(u64(key('r', a.bus), a.last), u64(u64(nil, a.first), a.record)),
			a.set(key('w', a.bus, 'R'), u64(nil, a.last)))
	}
	for seq := range a.mention {
		if a.alone && seq >= a.first && seq <= a.last { // the message that routed it is known anyway
			continue
		}
		a.key = u64(u64(append(append(append(a.key[:0], 'j'), a.bus...), 0), seq), a.record)
		errs = append(errs, a.set(a.key, nil))
	}
	errs = append(errs, a.finishOutcomes(), a.finishDrops(), a.finishJobs(), a.finishBacklogs(), a.set(key('w', a.bus, 'J'), u64(nil, a.record)))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := a.batch.Commit(pebble.NoSync); err != nil {
		return err
	}
	for target, b := range a.backlog {
		a.j.WaitingFor(target).add(b.was, b.waits)
	}
	return nil
}

// find returns the pending delivery as this message has left it so far; nil if there is none.
func (a *application) find(seq uint64, r Route) (*delivery, error) {
	id := idOf(seq, r)
	if d := a.deliveries[id]; d != nil {
		if d.over {
			return nil, nil
		}
		return d, nil
	}
	if p, ok := a.feed.live[id]; ok {
		d := &delivery{Pending: p, was: p.State, stored: true}
		a.deliveries[id] = d
		return d, nil
	}
	p, ok, err := a.look.pending(a.bus, seq, r)
	if err != nil || !ok {
		return nil, err
	}
	d := &delivery{Pending: p, was: p.State, stored: true}
	a.deliveries[id] = d
	return d, nil
}

// put makes a delivery pending. was is how it stood before, unless this message says so.
func (a *application) put(p Pending, was State) {
	p.Record = a.record
	id := idOf(p.Seq, p.Route)
	d := a.deliveries[id]
	if d == nil {
		d = &delivery{was: was, stored: !a.fresh || p.Seq < a.first}
		a.deliveries[id] = d
	}
	d.Pending, d.over = p, false
}

// end notes how a delivery that is not pending stands now.
func (a *application) end(seq uint64, r Route, was, is State) {
	id := idOf(seq, r)
	d := a.deliveries[id]
	if d == nil {
		d = &delivery{was: was}
		a.deliveries[id] = d
	}
	d.State, d.over = is, true
}

func (a *application) countsOf(hour uint32, r Route) (*counts, error) {
	k := routeKey(u32(key('o', a.bus), hour), r.Rule, r.Target)
	if c, ok := a.counts[string(k)]; ok {
		return c, nil
	}
	b, err := a.j.get(k)
	if err != nil {
		return nil, err
	}
	c := &counts{key: k, pair: RoutePair{r.Rule, r.Target}}
	if b != nil {
		if err := c.Counts.decode(b); err != nil {
			return nil, err
		}
	}
	a.counts[string(k)] = c
	return c, nil
}

func (a *application) eventsOf(hour uint32) (*eventCounts, error) {
	if c, ok := a.events[hour]; ok {
		return c, nil
	}
	b, err := a.j.get(u32(key('l', a.bus), hour))
	if err != nil {
		return nil, err
	}
	c := &eventCounts{}
	if b != nil {
		d := decoder{b: b}
		c.matched, c.unmatched, c.lost = d.uint(), d.uint(), d.uint()
		if d.err != nil {
			return nil, d.err
		}
	}
	a.events[hour] = c
	return c, nil
}

func (a *application) extend(from, to uint64) error {
	a.last = max(a.last, to)
	if a.first != 0 {
		return nil
	}
	a.first, a.alone, a.fresh = from, from > a.feed.routed, true
	prefix := key('p', a.bus)
	return a.j.scan(prefix, u64(bytes.Clone(prefix), from), func(_, _ []byte) (bool, error) {
		a.fresh = false // a part of what an event owes was written before a crash
		return false, nil
	})
}

func (a *application) routed(r Routed) error {
	if err := a.extend(r.Seq, r.Seq); err != nil {
		return err
	}
	if r.Seq >= a.base {
		ev, err := a.eventsOf(r.Hour)
		if err != nil {
			return err
		}
		if len(r.Routes)+len(r.Ranged) == 0 {
			ev.unmatched++
		} else {
			ev.matched++
		}
	}
	for _, rt := range r.Routes {
		a.put(Pending{Seq: r.Seq, Route: rt, Check: r.Check, Hour: r.Hour, State: Live}, 0)
		c, err := a.countsOf(r.Hour, rt)
		if err != nil {
			return err
		}
		c.Owed++
	}
	for _, rt := range r.Ranged {
		if err := a.ranged(r.Seq, r.Hour, rt); err != nil {
			return err
		}
	}
	return nil
}

// skipped passes over places without an event. An event that the views had counted there is lost: damage took it before
// it was routed.
func (a *application) skipped(from, to uint64) error {
	if err := a.extend(from, to); err != nil {
		return err
	}
	return a.j.eachIndexed(a.bus, max(from, a.base), to, func(hour uint32, n uint64) error {
		c, err := a.eventsOf(hour)
		if err != nil {
			return err
		}
		c.lost += n
		return nil
	})
}

func (a *application) outcome(o Outcome) error {
	a.mention[o.Seq] = struct{}{}
	p, err := a.find(o.Seq, o.Route)
	if err != nil {
		return err
	}
	if p == nil {
		// Settled before: an attempt that a crash made us repeat. The journey shows it, the ledger counts it once.
		return nil
	}
	if p.State == Parked {
		if err := a.unpark(&p.Pending); err != nil {
			return err
		}
	}
	if o.Attempt > 0 {
		p.Attempts = max(p.Attempts, o.Attempt)
		if p.First.IsZero() {
			p.First = o.At
		}
	}
	p.State, p.Due, p.Key, p.Record = o.State, o.Due, o.Key, a.record
	switch o.State {
	case Live:
		return nil
	case Parked:
		return a.park(p.Pending, 0)
	}
	p.over = true
	c, err := a.countsOf(p.Hour, o.Route)
	if err != nil {
		return err
	}
	if n := c.ended(o.State); n != nil {
		*n++
	}
	if o.State == Dead {
		a.named('D', o.DeadSeq)
		if err := a.set(u64([]byte{'x'}, o.DeadSeq), encodeDead(a.bus, &p.Pending, o)); err != nil {
			return err
		}
	}
	return a.endedFor(&p.Pending, o.State)
}

// again brings in a delivery that does not stand in its event's Routed record. It counts unless the views know it.
func (a *application) again(p Pending) error {
	a.mention[p.Seq] = struct{}{}
	old, err := a.find(p.Seq, p.Route)
	if err != nil {
		return err
	}
	if old != nil && old.State == Parked {
		if err := a.unpark(&old.Pending); err != nil {
			return err
		}
	}
	if old == nil {
		c, err := a.countsOf(p.Hour, p.Route)
		if err != nil {
			return err
		}
		c.Owed++
	}
	if p.State == Parked {
		return a.park(p, 0)
	}
	a.put(p, 0)
	return nil
}

// park notes that a delivery waits on disk, and how it stood before as put does, unpark that it does not, or is about to wait for something else.
func (a *application) park(p Pending, was State) error {
	b, err := a.backlogOf(p.Route.Target)
	if err != nil {
		return err
	}
	b.parked++
	a.put(p, was)
	return a.set(parkedKey(a.bus, p), nil)
}

func (a *application) unpark(p *Pending) error {
	b, err := a.backlogOf(p.Route.Target)
	if err != nil {
		return err
	}
	b.parked -= min(b.parked, 1)
	return a.batch.Delete(parkedKey(a.bus, *p), nil)
}

func (a *application) mark(m Mark) error {
	if m.Part == 0 { // it replaces a mark at the same place, which may have had more parts
		k := u64(key('m', a.bus), m.First)
		if err := a.batch.DeleteRange(k, after(k), nil); err != nil {
			return err
		}
	}
	b := binary.AppendUvarint(nil, m.Ruleset)
	b = binary.AppendUvarint(b, uint64(len(m.Rules)))
	for _, r := range m.Rules {
		b = binary.AppendUvarint(b, uint64(len(r.Name)))
		b = append(b, r.Name...)
		b = binary.AppendUvarint(b, r.Revision)
	}
	return a.set(u32(u64(key('m', a.bus), m.First), uint32(m.Part)), b)
}

func (a *application) ruleDoc(d RuleDoc) error {
	return a.set(ruleKey(a.bus, d.Name, d.Revision), append(u64(nil, a.record), d.Raw...))
}

func (a *application) buried(b Buried) error {
	k := u64([]byte{'x'}, b.Seq)
	if ref, err := readDead(k, b.Listed); err != nil || ref.Bus != a.bus {
		return fmt.Errorf("%w: dead letter", ErrFormat)
	}
	a.named('D', b.Seq)
	return a.set(k, b.Listed)
}

func (a *application) floor(seq uint64) error { return a.set(key('f', a.bus), u64(nil, seq)) }

func ruleKey(bus, name string, revision uint64) []byte {
	k := append(key('u', bus), name...)
	return u64(append(k, 0), revision)
}
