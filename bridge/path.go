// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/rules"
)

// path is the way of the events of one bus: its log, its router, its records.
type path struct {
	b       *Bridge
	name    string
	log     *eventlog.Bus
	journey *eventlog.Stream
	rec     *recorder
	track   *tracker
	doc     atomic.Pointer[BusDoc]
	rules   atomic.Pointer[ruleset] // nil until the first SetRules
	first   chan struct{}           // closed by the first SetRules
	once    sync.Once

	difference atomic.Int64 // of the ledger, as last seen

	ctx          context.Context
	cancel       context.CancelFunc
	stopped      sync.WaitGroup // router, indexer
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
	p := &path{b: b, name: doc.Name, log: log, journey: journey, first: make(chan struct{}), recorderDone: make(chan struct{})}
	p.doc.Store(doc)
	p.ctx, p.cancel = context.WithCancel(b.ctx)
	if err := p.catchUp(ctx); err != nil {
		p.cancel()
		return nil, err
	}
	floor, err := b.o.Journal.Floor(p.name)
	if err != nil {
		p.cancel()
		return nil, err
	}
	p.track = newTracker(floor)
	p.rec = newRecorder(p, journey)
	p.rec.floor = floor
	b.records.Add(1)
	go func() {
		defer b.records.Done()
		p.rec.run()
	}()
	if err := p.settleDamage(ctx); err != nil {
		p.cancel()
		return nil, fmt.Errorf("settle damage: %w", err)
	}
	return p, nil
}

// catchUp brings the JOURNEY messages into the views that a crash, or a deletion, has taken out of them.
func (p *path) catchUp(ctx context.Context) error {
	j := p.b.o.Journal
	done, err := j.Applied(p.name)
	if err != nil {
		return err
	}
	from := max(done+1, p.journey.First())
	if done == 0 {
		if err := p.setBase(ctx, from); err != nil {
			return err
		}
	}
	var buf []eventlog.Raw
	for from <= p.journey.Committed() {
		buf, err = p.journey.Read(ctx, eventlog.ReadOptions{From: from, Max: 256}, buf[:0])
		if err != nil {
			return fmt.Errorf("read outcomes: %w", err)
		}
		if len(buf) == 0 {
			break
		}
		for _, raw := range buf {
			from = raw.Seq + 1
			if len(raw.Data) == 0 { // the place of a lost message
				continue
			}
			if err := j.Apply(p.name, raw.Seq, raw.Data); err != nil {
				return err
			}
		}
	}
	return nil
}

// setBase finds where empty views begin to count: the first event that both the log and JOURNEY still know.
func (p *path) setBase(ctx context.Context, from uint64) error {
	base := p.log.First()
	if from > 1 {
		raws, err := p.journey.Read(ctx, eventlog.ReadOptions{From: from, Max: 1000}, nil)
		if err != nil {
			return fmt.Errorf("read outcomes: %w", err)
		}
		var first uint64
		for _, raw := range raws {
			if first != 0 || len(raw.Data) == 0 {
				continue
			}
			if err := journal.Decode(raw.Data, journal.Visitor{Routed: func(r journal.Routed) error {
				if first == 0 {
					first = r.Seq
				}
				return nil
			}}); err != nil {
				return err
			}
		}
		base = max(base, first)
	}
	return p.b.o.Journal.SetBase(p.name, base)
}

// settleDamage makes sure that no sequence is used twice: if JOURNEY or the views know of events behind the end of the
// log, damage took them, and their places stay empty.
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
		p.rec.add(func(e *journal.Encoder) { e.Lost(journal.Lost{From: l.From, To: l.To}) }, nil)
	}
	if len(lost) == 0 {
		return nil
	}
	return p.rec.sync(ctx)
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

func (p *path) setRules(revision uint64, rs []*rules.Rule) error {
	index, err := rules.Compile(rs)
	if err != nil {
		return err
	}
	next := &ruleset{revision: revision, index: index, byName: make(map[string]*rules.Rule, len(rs))}
	for _, r := range rs {
		next.byName[r.Name] = r
	}
	old := p.rules.Swap(next)
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
		p.cancelParked(func(r journal.Route) bool { return gone[r.Rule] }, reasonRuleDeleted)
	}
	return nil
}

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
	for {
		if p.log.Wait(p.ctx, from-1) != nil {
			return
		}
		entries, next, err := p.log.Read(p.ctx, from, 1024, buf[:0])
		if err == nil {
			err = j.Index(p.name, entries, next)
		}
		if err != nil {
			if p.ctx.Err() != nil {
				return
			}
			p.b.log.Error("events are not indexed, trying again", "bus", p.name, "err", err)
			if !pause(p.ctx, time.Second) {
				return
			}
			continue
		}
		buf, from = entries, next
	}
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

// cancelParked ends parked deliveries that nobody can make any more. Live ones end when their turn comes.
func (p *path) cancelParked(gone func(journal.Route) bool, reason string) {
	var ended []journal.Pending
	err := p.b.o.Journal.EachPending(p.name, func(d journal.Pending) (bool, error) {
		if d.State == journal.Parked && gone(d.Route) {
			ended = append(ended, d)
		}
		return true, nil
	})
	if err != nil {
		p.b.log.Error("parked deliveries were not cancelled", "bus", p.name, "err", err)
	}
	now := p.b.o.Now()
	for _, d := range ended {
		o := journal.Outcome{Seq: d.Seq, Route: d.Route, State: journal.Cancelled, At: now, Reason: reason}
		p.rec.add(func(e *journal.Encoder) { e.Outcome(o) }, nil)
	}
}

// ruleAt returns a rule as it was at a revision.
func (p *path) ruleAt(name string, revision uint64) (*rules.Rule, error) {
	if rs := p.rules.Load(); rs != nil {
		if r := rs.byName[name]; r != nil && r.Revision == revision {
			return r, nil
		}
	}
	return p.b.rules.get(ruleID{p.name, name, revision}, func() ([]byte, error) {
		return p.b.o.Journal.RuleDocument(p.name, name, revision)
	})
}

// ruleCache keeps rules of earlier revisions that deliveries and journeys still need.
type ruleCache struct {
	mu    sync.Mutex // guards rules
	rules map[ruleID]*rules.Rule
}

type ruleID struct {
	bus, name string
	revision  uint64
}

const ruleCacheSize = 10_000

func newRuleCache() *ruleCache { return &ruleCache{rules: make(map[ruleID]*rules.Rule)} }

func (c *ruleCache) get(id ruleID, load func() ([]byte, error)) (*rules.Rule, error) {
	c.mu.Lock()
	r := c.rules[id]
	c.mu.Unlock()
	if r != nil {
		return r, nil
	}
	doc, err := load()
	if err != nil {
		return nil, err
	}
	if doc == nil {
		return nil, fmt.Errorf("rule %s of bus %s is not known at revision %d", id.name, id.bus, id.revision)
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
