// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/rules"
)

// path is the way of the events of one bus: its log, its router, its records.
type path struct {
	b        *Bridge
	name     string
	log      busLog
	journey  *eventlog.Stream
	rec      *recorder
	counters busCounters
	track    *tracker
	doc      atomic.Pointer[BusDoc]
	overflow overflow
	refusals refusals
	trimming sync.Mutex    // held while retention is applied: one at a time
	relief   patience      // of the maintainer, with a bus that is running full
	unread   unread        // events that attempts could not read
	unruled  unread        // and those whose rules they could not
	looked   atomic.Uint64 // events that came under PolicyWarn, for its sample
	traffic  traffic
	rules    atomic.Pointer[ruleset] // nil until the first SetRules
	setting  sync.Mutex              // one change of the rules at a time
	first    chan struct{}           // closed by the first SetRules
	once     sync.Once

	// deletedTo is, for each rule that was deleted, the last event that was routed by then; nil until one was.
	deletedTo atomic.Pointer[map[string]uint64]

	ended      chan struct{}         // held by who changes deliveries that have ended
	difference atomic.Int64          // of the ledger, as last seen
	alarmed    atomic.Int64          // the difference that was last told, or 0
	resumed    atomic.Bool           // what an earlier run left live was offered
	problem    atomic.Pointer[error] // why the router waits; nil if it does not
	routing    patience              // of the router, with what it waits for
	marksAt    uint64                // the rules and dead letters that JOURNEY must not forget stand at or behind this sequence of it; only trim looks

	ctx    context.Context // ends when the path is to stop: router and indexer
	cancel context.CancelFunc
	// hard ends when a stop may wait no longer: attempts under way, and what cannot be written, are given up.
	hard         context.Context
	hardStop     context.CancelFunc
	stopped      sync.WaitGroup // router, indexer
	underWay     sync.WaitGroup // attempts
	recorderDone chan struct{}
}

// ruleset is a set of rules in force.
type ruleset struct {
	revision uint64
	index    *rules.Index
	byName   map[string]*rules.Rule
	marked   bool // the mark that says so is committed; only the router looks
}

// openPath opens the streams of a bus and lets the views catch up with JOURNEY. Nothing runs yet but the recorder.
func (b *Bridge) openPath(ctx context.Context, doc *BusDoc) (*path, error) {
	log, err := b.o.Log.Bus(ctx, eventlog.BusConfig{Name: doc.Name, DedupWindow: doc.window()})
	if err != nil {
		return nil, err
	}
	journey, err := b.o.Log.Stream(ctx, eventlog.StreamConfig{Name: "JOURNEY_" + doc.Name, Subjects: []string{"journey." + doc.Name}})
	if err != nil {
		return nil, err
	}
	p := &path{b: b, traffic: traffic{types: map[string]*typeCount{}, since: b.o.Now()}, counters: b.metrics.bus(doc.Name), name: doc.Name, log: busLog{log, b.o.View}, journey: journey, first: make(chan struct{}), recorderDone: make(chan struct{}), ended: make(chan struct{}, 1)}
	p.doc.Store(doc)
	p.overflow.limit.Store(overflowLimit(doc))
	if err := p.catchUp(ctx); err != nil {
		return nil, err
	}
	if err := p.settleDamage(ctx); err != nil {
		return nil, fmt.Errorf("settle damage: %w", err)
	}
	floor, err := b.o.Journal.Floor(p.name)
	if err != nil {
		return nil, err
	}
	p.ctx, p.cancel = context.WithCancel(b.ctx)
	p.hard, p.hardStop = context.WithCancel(b.hard)
	p.track = newTracker(floor)
	p.rec = newRecorder(p, journey, floor)
	if _, err := b.o.Journal.TakeCancelled(p.name); err != nil { // by records of an earlier run, which counted it
		return nil, err
	}
	b.records.Add(1)
	go func() {
		defer b.records.Done()
		p.rec.run()
	}()
	return p, nil
}

// catchUp brings the JOURNEY messages into the views that a crash, or a deletion, has taken out of them.
func (p *path) catchUp(ctx context.Context) error {
	j := p.b.o.Journal
	done, err := j.Applied(p.name)
	if err != nil {
		return err
	}
	indexed, err := j.Indexed(p.name)
	if err != nil {
		return err
	}
	if done > p.journey.Committed() { // damage took what the views hold; its places are not used again
		p.b.log.Error("outcomes are gone: JOURNEY was damaged", "bus", p.name, "from", p.journey.Committed()+1, "to", done)
		if err := p.journey.SkipTo(ctx, done); err != nil {
			return err
		}
	}
	if done+1 < p.journey.First() || indexed+1 < p.log.First() { // they ask for what was trimmed
		if done > 0 || indexed > 0 {
			p.b.log.Warn("views are too old and are rebuilt", "bus", p.name)
		}
		if err := j.Forget(p.name); err != nil {
			return err
		}
		done = 0
	}
	from := max(done+1, p.journey.First())
	if done == 0 {
		if err := p.setBase(ctx, from); err != nil {
			return err
		}
	}
	if err := p.eachMessage(ctx, from, func(raw eventlog.Raw) error {
		if raw.Gap() {
			return nil
		}
		return j.Apply(p.name, raw.Seq, raw.Data)
	}); err != nil {
		return err
	}
	return j.DropTrimmedDead(p.b.dead.First()) // JOURNEY may tell of dead letters that were kept for long enough
}

// eachMessage calls fn for the messages of JOURNEY from a sequence on, the places of lost ones included.
func (p *path) eachMessage(ctx context.Context, from uint64, fn func(eventlog.Raw) error) error {
	var buf []eventlog.Raw
	for from <= p.journey.Committed() {
		var err error
		buf, err = p.journey.Read(ctx, eventlog.ReadOptions{From: from, Max: 256}, buf[:0])
		if err != nil {
			return fmt.Errorf("read outcomes: %w", err)
		}
		if len(buf) == 0 {
			break
		}
		for _, raw := range buf {
			from = raw.Seq + 1
			if err := fn(raw); err != nil {
				return err
			}
		}
	}
	return nil
}

// setBase finds where empty views begin to count: at the first event that both the log and JOURNEY still know, behind
// the last place where damage took something from JOURNEY.
func (p *path) setBase(ctx context.Context, from uint64) error {
	var first uint64 // event
	err := p.eachMessage(ctx, from, func(raw eventlog.Raw) error {
		if raw.Gap() {
			first = 0
		}
		if raw.Gap() || first != 0 {
			return nil
		}
		return journal.Decode(raw.Data, journal.Visitor{Routed: func(r journal.Routed) error {
			if first == 0 {
				first = r.Seq
			}
			return nil
		}})
	})
	if err != nil {
		return err
	}
	return p.b.o.Journal.SetBase(p.name, max(p.log.First(), first))
}

// settleDamage makes sure that no sequence is used twice: if the views know of events behind the end of the log, damage
// took them, and their places stay empty. The router passes over them and so closes the account.
func (p *path) settleDamage(ctx context.Context) error {
	j := p.b.o.Journal
	routed, err := j.RoutedTo(p.name)
	if err != nil {
		return err
	}
	indexed, err := j.Indexed(p.name)
	if err != nil {
		return err
	}
	lost := p.log.Lost()
	if known := max(routed, indexed); known > p.log.Committed() {
		lost = append(lost, eventlog.Range{From: p.log.Committed() + 1, To: known})
		if err := p.log.SkipTo(ctx, known); err != nil {
			return err
		}
	}
	for _, l := range lost {
		p.b.log.Error("events are gone: the log was damaged", "bus", p.name, "from", l.From, "to", l.To)
	}
	return nil
}

// start begins routing and indexing. Called with the bridge's mu held, once.
func (p *path) start() {
	for _, run := range []func(){p.route, p.index} {
		p.b.wg.Add(1)
		p.stopped.Add(1)
		go func() {
			defer p.b.wg.Done()
			defer p.stopped.Done()
			run()
		}()
	}
}

// close ends a path that is no longer reachable: it lets the attempts under way finish for ten seconds, writes down what
// happened, and leaves the rest owed.
func (p *path) close() error {
	p.cancel()
	late := time.AfterFunc(removeWithin, p.hardStop)
	defer late.Stop()
	p.stopped.Wait()
	for _, l := range p.b.allLanes() {
		l.drop(p)
	}
	p.underWay.Wait()
	err := p.rec.close()
	p.hardStop()
	return err
}

// removeWithin is how long the removal of a bus waits for attempts under way.
const removeWithin = 10 * time.Second

func (p *path) setRules(revision uint64, rs []*rules.Rule) error {
	p.setting.Lock()
	defer p.setting.Unlock()
	next := &ruleset{revision: revision, byName: make(map[string]*rules.Rule, len(rs))}
	for _, r := range rs {
		next.byName[r.Name] = r
	}
	old := p.rules.Load()
	var err error
	if next.index, err = indexOf(old, rs, next.byName); err != nil {
		return err
	}
	p.rules.Store(next)
	p.once.Do(func() { close(p.first) })
	if old == nil {
		return nil
	}
	gone := make(map[string]bool)
	for name := range old.byName {
		if next.byName[name] == nil {
			gone[name] = true
		}
	}
	if len(gone) > 0 {
		p.noteDeleted(gone)
		ranged, err := p.b.o.Journal.RangedRules(p.name)
		if err != nil {
			p.b.log.Error("ranged deliveries were not cancelled", "bus", p.name, "err", err)
		}
		for name := range gone {
			if ranged[name] {
				p.dropRanged(journal.Drop{Rule: name})
			}
		}
		p.cancelParked(ofRules(func(name string) bool { return gone[name] }), reasonRuleDeleted)
	}
	return nil
}

// noteDeleted remembers up to where rules that were deleted have routed.
func (p *path) noteDeleted(gone map[string]bool) {
	next := make(map[string]uint64)
	if old := p.deletedTo.Load(); old != nil {
		maps.Copy(next, *old)
	}
	floor, open := p.track.state()
	for name := range gone {
		next[name] = floor + uint64(open)
	}
	p.deletedTo.Store(&next)
}

// indexOf returns the index of the enabled rules of a set: the old one with what has changed, or a new one when that is
// much. A rule that has not changed is the same *rules.Rule.
func indexOf(old *ruleset, rs []*rules.Rule, byName map[string]*rules.Rule) (*rules.Index, error) {
	var enabled, changed []*rules.Rule
	for _, r := range rs {
		if r.Disabled {
			continue
		}
		enabled = append(enabled, r)
		if old == nil || old.byName[r.Name] != r {
			changed = append(changed, r)
		}
	}
	if old == nil || len(changed) > len(enabled)/4 {
		return rules.Compile(enabled)
	}
	var gone []string
	for name, r := range old.byName {
		if now := byName[name]; !r.Disabled && (now == nil || now.Disabled) {
			gone = append(gone, name)
		}
	}
	return old.index.With(changed, gone)
}

// indexBatch is how many events are brought into the views at once, and indexEvery how long fewer may gather: sorted keys
// are cheaper the more there are, and lookups decode what is not indexed yet (about 1 us for each event).
const (
	indexBatch = 1024
	indexEvery = 50 * time.Millisecond
)

// index feeds the views with the events of the log.
func (p *path) index() {
	j := p.b.o.Journal
	done, err := j.Indexed(p.name)
	if err != nil {
		p.b.log.Error("events are not indexed", "bus", p.name, "err", err)
		return
	}
	from := max(done+1, p.log.First())
	var buf []eventlog.Entry
	var trouble patience
	for {
		if p.log.Wait(p.ctx, from-1) != nil {
			return
		}
		entries, next, err := p.log.Bus.Read(p.ctx, from, indexBatch, buf[:0])
		var gone []journal.Gone
		if err == nil {
			gone, err = p.gone(p.ctx, from, entries, next)
		}
		if err == nil {
			err = j.Index(p.name, entries, gone, next)
		}
		if err != nil {
			if p.ctx.Err() != nil {
				return
			}
			wait, say := trouble.failed(p.b.o.Now())
			if say {
				p.b.log.Error("events are not indexed, trying again", "bus", p.name, "err", err)
			}
			if !pause(p.ctx, wait) {
				return
			}
			continue
		}
		trouble.worked()
		buf, from = entries, next
		// Lookups read what is not indexed yet from the log, so events may gather.
		if len(entries) < indexBatch && !pause(p.ctx, indexEvery) {
			return
		}
	}
}

// gone returns the events that were routed and stand no longer between from and next, where the entries are.
func (p *path) gone(ctx context.Context, from uint64, entries []eventlog.Entry, next uint64) ([]journal.Gone, error) {
	var out []journal.Gone
	for _, e := range entries {
		if err := p.goneIn(ctx, from, e.Seq-1, &out); err != nil {
			return nil, err
		}
		from = e.Seq + 1
	}
	return out, p.goneIn(ctx, from, next-1, &out)
}

// goneIn adds the events from..to, all of them gaps, that JOURNEY knows.
func (p *path) goneIn(ctx context.Context, from, to uint64, out *[]journal.Gone) error {
	for from <= to {
		r, _, err := p.b.o.Journal.RoutingOf(p.name, from)
		if err != nil || r.Record == 0 || r.First > to {
			return err
		}
		raw, err := p.journey.Get(ctx, r.Record)
		if err != nil && !isGone(err) {
			return fmt.Errorf("read outcomes: %w", err)
		}
		if err == nil {
			if err := journal.Decode(raw.Data, journal.Visitor{Routed: func(x journal.Routed) error {
				if x.Seq >= from && x.Seq <= to {
					*out = append(*out, journal.Gone{Seq: x.Seq, Hour: x.Hour})
				}
				return nil
			}}); err != nil {
				return err
			}
		}
		from = r.Last + 1
	}
	return nil
}

// pause waits and reports whether it did so to the end.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// owing is what decides whether a pending delivery ends because something was deleted.
type owing struct {
	route   journal.Route
	redrive *journal.Redriven // nil unless it was redriven
}

// ofRules selects the deliveries that end with the rules of which gone is true. One that was redriven is owed because somebody has
// asked for it, and not because of its rule: it goes on with the document that its redrive has kept.
func ofRules(gone func(name string) bool) func(owing) bool {
	return func(o owing) bool { return o.redrive == nil && gone(o.route.Rule) }
}

// ofTarget selects the deliveries to a target.
func ofTarget(gone func(name string) bool) func(owing) bool {
	return func(o owing) bool { return gone(o.route.Target) }
}

// cancelParked ends parked deliveries that nobody can make any more. Live ones end when their turn comes.
func (p *path) cancelParked(gone func(owing) bool, reason string) {
	for _, l := range p.b.allLanes() {
		l.forgetReady(p, gone)
	}
	now := p.b.o.Now()
	ordered := false
	// One after the other, while they are read: there may be millions.
	err := p.b.o.Journal.EachPending(p.name, func(d journal.Pending) (bool, error) {
		if d.State != journal.Parked || !gone(owing{d.Route, d.Redrive}) {
			return true, nil
		}
		o := journal.Outcome{Seq: d.Seq, Route: d.Route, State: journal.Cancelled, At: now, Reason: reason}
		ordered = ordered || d.Key != 0
		if !p.rec.add(func(e *journal.Encoder) { e.Outcome(o) }, nil) {
			return false, nil
		}
		p.cancelled(d.Route.Target, 1)
		return true, nil
	})
	if err != nil {
		p.b.log.Error("parked deliveries were not cancelled", "bus", p.name, "err", err)
	}
	if ordered { // what held up its key may be gone
		p.rec.add(func(*journal.Encoder) {}, func() {
			for _, l := range p.b.allLanes() {
				l.recheck()
			}
		})
	}
}

// ruleAt returns a rule as it was at a revision; errNoDocument if nothing has needed that for so long that it was forgotten.
func (p *path) ruleAt(name string, revision uint64) (*rules.Rule, error) {
	if rs := p.rules.Load(); rs != nil {
		if r := rs.byName[name]; r != nil && r.Revision == revision {
			return r, nil
		}
	}
	return p.b.rules.get(ruleID{p.name, name, revision})
}

// ruleCache keeps rules of earlier revisions that deliveries and journeys still need.
type ruleCache struct {
	mu    sync.Mutex // guards both
	rules map[ruleID]*rules.Rule
	load  func(ruleID) ([]byte, error) // nil = there is no such document
}

type ruleID struct {
	bus, name string
	revision  uint64
}

const ruleCacheSize = 10_000

var (
	errNoDocument     = errors.New("its document is not known")
	errUnreadDocument = errors.New("its document cannot be read") // at the moment
)

func newRuleCache(j *journal.Journal) *ruleCache {
	return &ruleCache{rules: make(map[ruleID]*rules.Rule), load: func(id ruleID) ([]byte, error) { return j.RuleDocument(id.bus, id.name, id.revision) }}
}

// get returns a rule. The error is errNoDocument, errUnreadDocument, or that of a document which is no rule.
func (c *ruleCache) get(id ruleID) (*rules.Rule, error) {
	c.mu.Lock()
	r, load := c.rules[id], c.load
	c.mu.Unlock()
	if r != nil {
		return r, nil
	}
	doc, err := load(id)
	if err != nil {
		return nil, fmt.Errorf("rule %s of bus %s at revision %d: %w: %w", id.name, id.bus, id.revision, errUnreadDocument, err)
	}
	if doc == nil {
		return nil, fmt.Errorf("rule %s of bus %s at revision %d: %w", id.name, id.bus, id.revision, errNoDocument)
	}
	if r, err = rules.ParseRule(doc); err != nil {
		return nil, fmt.Errorf("rule %s of bus %s at revision %d: %w", id.name, id.bus, id.revision, err)
	}
	r.Revision = id.revision
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.rules) >= ruleCacheSize {
		clear(c.rules)
	}
	c.rules[id] = r
	return r, nil
}
