// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/journal"
)

const (
	maintainEvery = 30 * time.Second
	// deadKept is how long dead letters are kept.
	deadKept = 14 * 24 * time.Hour
	// accountKept is how long the account of an hour is kept at least.
	accountKept = 31 * 24 * time.Hour
	// jobsKept is how long jobs that have ended are kept.
	jobsKept = 31 * 24 * time.Hour
)

// maintain is the goroutine that checks the account and trims what retention no longer promises.
func (b *Bridge) maintain() {
	defer b.wg.Done()
	round := time.NewTicker(maintainEvery)
	defer round.Stop()
	again := time.NewTimer(0) // when a bus that is running full is looked at again
	defer again.Stop()
	pressure, wait := b.pressure, relieveSoon
	for {
		select {
		case <-b.ctx.Done():
			return
		case <-round.C:
			b.maintainAll()
		case <-pressure:
			began := time.Now()
			if b.relieve() {
				wait = relieveSoon
				continue
			}
			pressure = nil
			again.Reset(max(wait, relieveShare*time.Since(began)))
			wait = min(2*wait, relieveEvery)
		case <-again.C:
			pressure = b.pressure
			if slices.ContainsFunc(b.allPaths(), (*path).runsFull) {
				b.press()
			} else {
				wait = relieveSoon
			}
		}
	}
}

// maintainAll is one round over everything.
func (b *Bridge) maintainAll() {
	for _, p := range b.allPaths() {
		b.checkLedger(p)
		if err := p.trim(b.ctx); err != nil && b.ctx.Err() == nil {
			b.log.Error("retention failed", "bus", p.name, "err", err)
		}
	}
	if err := b.standings.compact(b.ctx, b.o.Now()); err != nil && b.ctx.Err() == nil {
		b.log.Error("retention failed", "stream", "LANES", "err", err)
	}
	if err := b.aside.compact(b.ctx); err != nil && b.ctx.Err() == nil {
		b.log.Error("retention failed", "stream", "ASIDE", "err", err)
	}
	if err := b.trimDead(); err != nil && b.ctx.Err() == nil {
		b.log.Error("retention failed", "stream", "DEAD", "err", err)
	}
}

// checkLedger raises an alarm when the account of a bus does not balance: a metric, a readiness line, and an event.
func (b *Bridge) checkLedger(p *path) {
	l, err := b.Ledger(b.ctx, LedgerQuery{Bus: p.name})
	if err != nil {
		if b.ctx.Err() == nil {
			b.log.Warn("the account cannot be checked", "bus", p.name, "err", err)
		}
		return
	}
	b.metrics.difference.WithLabelValues(p.name).Set(float64(l.Difference))
	if old := p.difference.Swap(l.Difference); l.Difference != 0 && l.Difference != old {
		b.log.Error("the account does not balance: this is a bug", "bus", p.name, "difference", l.Difference)
	}
	if l.Difference == 0 || l.Difference == p.alarmed.Load() {
		p.alarmed.Store(l.Difference)
		return
	}
	data, err := json.Marshal(map[string]any{"bus": p.name, "difference": l.Difference, "events": l.Events, "deliveries": l.Deliveries})
	if err != nil {
		b.log.Error("alarm cannot be written", "err", err)
		return
	}
	_, err = b.Ingest(b.ctx, "default", []*event.Record{{Event: event.Event{Source: "rialto/ledger",
		Type: "io.rialto.ledger.mismatch", Subject: p.name, DataContentType: "application/json", Data: data}}})
	if err != nil {
		b.log.Error("alarm cannot be written, trying again", "bus", p.name, "err", err)
		return
	}
	p.alarmed.Store(l.Difference)
}

// trim applies the retention of a bus. Nothing at or above the floor, and nothing a pending delivery needs, is removed,
// and nothing that the views would ask for after a crash; on a bus that refuses when it is full, nothing that a follower needs.
func (p *path) trim(ctx context.Context) error {
	if !p.b.retains.Load() {
		return nil
	}
	p.trimming.Lock()
	defer p.trimming.Unlock()
	j := p.b.o.Journal
	doc := p.doc.Load()
	redriven, needed, err := j.OldestNeeded(p.name)
	if err != nil {
		return err
	}
	floor, _ := p.track.state()
	indexed, err := j.Indexed(p.name)
	if err != nil {
		return err
	}
	protect := min(floor, indexed) + 1
	if needed > 0 {
		protect = min(protect, needed)
	}
	maxBytes := p.maxBytes(doc)
	if l := p.overflow.limit.Load(); l != nil {
		maxBytes = l.trim
		if f := p.b.followersOf(); f != nil {
			if needed := f.Needed(p.name); needed > 0 {
				protect = min(protect, needed)
			}
		}
	}
	first := p.log.First()
	_, err = p.log.Trim(ctx, eventlog.TrimPolicy{MaxAge: doc.MaxAge, MaxBytes: maxBytes, Protect: protect, Now: p.b.o.Now(),
		Before: func(first uint64) error { return p.beforeTrim(ctx, first) }})
	switch {
	case errors.Is(err, errKept):
		p.b.log.Debug("retention waits for a follower", "bus", p.name, "err", err)
		return nil
	case err != nil:
		return fmt.Errorf("trim events: %w", err)
	}
	if gone := p.log.First() - first; gone > 0 {
		p.b.metrics.trimmed.WithLabelValues(p.name).Add(float64(gone))
		if err := p.trimViews(ctx); err != nil {
			return fmt.Errorf("trim views: %w", err)
		}
	}
	return p.trimJourney(ctx, redriven)
}

// trimViews forgets what the views know of events that are gone.
func (p *path) trimViews(ctx context.Context) error {
	j := p.b.o.Journal
	if err := j.Trim(p.name, p.log.First(), p.journey.First()); err != nil {
		return err
	}
	oldest, _, err := p.log.Read(ctx, p.log.First(), 1, nil)
	if err != nil || len(oldest) == 0 {
		return err
	}
	if p.b.o.Log.ClockStepped() {
		return nil // the next trim forgets them
	}
	kept := p.b.o.Now().Add(-accountKept)
	if t := oldest[0].Record.Received.Add(-24 * time.Hour); t.Before(kept) { // the clock may have been set
		kept = t
	}
	return j.ForgetHours(p.name, journal.HourOf(kept))
}

// share is how much of the store a bus may fill that does not say: half of it, by all buses together.
func (b *Bridge) share() int64 {
	d := b.o.Log.Disk()
	room := d.Used + d.Free - d.Reserve
	if d.Cap > 0 {
		room = min(room, d.Cap)
	}
	return max(room/2/int64(max(len(b.allPaths()), 1)), minMaxBytes)
}

// trimJourney removes the part of JOURNEY that speaks of events which are gone. What is pending is not among them, and
// what JOURNEY says of an event comes after its routing; so only the rules have to be written again. Where a delivery is
// pending that was redriven at a message (0 = none is), that stays: its event may be gone.
func (p *path) trimJourney(ctx context.Context, redriven uint64) error {
	r, ok, err := p.b.o.Journal.RoutingOf(p.name, p.log.First())
	if err != nil || !ok {
		return err
	}
	if redriven > 0 {
		r.Record = min(r.Record, redriven)
	}
	if r.Record <= p.journey.First() {
		return nil
	}
	if r.Record > p.marksAt {
		from := p.journey.Committed() + 1
		if err := p.repeatMarks(ctx, p.log.First()); err != nil {
			return fmt.Errorf("repeat rules: %w", err)
		}
		if err := p.repeatDead(ctx); err != nil {
			return fmt.Errorf("repeat dead letters: %w", err)
		}
		p.marksAt = from
	}
	_, err = p.journey.Trim(ctx, eventlog.TrimPolicy{MaxBytes: 1, Protect: r.Record,
		Before: func(uint64) error { return p.b.o.Journal.Flush() }})
	if err != nil {
		return fmt.Errorf("trim outcomes: %w", err)
	}
	return nil
}

// repeatMarks writes again the rules that events from seq on have met, and waits for it. Those that no event has met yet
// were written after all that is trimmed; to write them again could undo newer ones.
func (p *path) repeatMarks(ctx context.Context, seq uint64) error {
	routed, err := p.b.o.Journal.RoutedTo(p.name)
	if err != nil {
		return err
	}
	marks, err := p.b.o.Journal.Marks(p.name, seq)
	if err != nil {
		return err
	}
	written := make(map[journal.RuleRef]bool)
	for _, m := range marks {
		if m.First > routed {
			break
		}
		for _, ref := range m.Rules {
			if written[ref] {
				continue
			}
			written[ref] = true
			doc, err := p.b.o.Journal.RuleDocument(p.name, ref.Name, ref.Revision)
			if err != nil {
				return err
			}
			if doc != nil {
				p.rec.add(func(e *journal.Encoder) {
					e.RuleDoc(journal.RuleDoc{Name: ref.Name, Revision: ref.Revision, Raw: doc})
				}, nil)
			}
		}
		p.rec.add(func(e *journal.Encoder) { e.Mark(m) }, nil)
	}
	return p.rec.sync(ctx)
}

// repeatDead writes again which dead letters the bus has, and waits for it: they are kept for longer than how they died.
func (p *path) repeatDead(ctx context.Context) error {
	for after, more := uint64(0), true; more; {
		var err error
		if after, more, err = p.repeatSomeDead(ctx, after); err != nil {
			return err
		}
	}
	return nil
}

// deadPart is how many dead letters are written again at a time, while nobody redrives or discards any.
const deadPart = 1000

func (p *path) repeatSomeDead(ctx context.Context, after uint64) (last uint64, more bool, err error) {
	if err := p.lockEnded(ctx); err != nil {
		return 0, false, err
	}
	defer p.unlockEnded()
	if err := p.rec.sync(ctx); err != nil { // whoever has redriven one may not have waited until the views show that
		return 0, false, err
	}
	var list []journal.Buried
	if err := p.b.o.Journal.EachBuried(p.name, after, func(b journal.Buried) (bool, error) {
		list = append(list, b)
		return len(list) < deadPart, ctx.Err()
	}); err != nil || len(list) == 0 {
		return 0, false, err
	}
	for _, b := range list {
		p.rec.add(func(e *journal.Encoder) { e.Buried(b) }, nil)
	}
	return list[len(list)-1].Seq, len(list) == deadPart, p.rec.sync(ctx)
}

// trimDead applies the retention of dead letters and of jobs. What a pending delivery may need stays.
func (b *Bridge) trimDead() error {
	oldDead, err := b.isOld(b.dead, deadKept)
	if err != nil {
		return err
	}
	oldJobs, err := b.isOld(b.jobs.stream, jobsKept)
	if err != nil || !oldDead && !oldJobs {
		return err
	}
	if err := b.o.Journal.Flush(); err != nil {
		return err
	}
	dead, edited, err := b.o.Journal.CopiesNeeded()
	if err != nil {
		return err
	}
	now := b.o.Now()
	gone, err := b.dead.Trim(b.ctx, eventlog.TrimPolicy{MaxAge: deadKept, Protect: orAll(dead), Now: now})
	if err != nil {
		return err
	}
	if gone.Blocks > 0 {
		if err := b.o.Journal.DropTrimmedDead(b.dead.First()); err != nil {
			return err
		}
	}
	gone, err = b.jobs.stream.Trim(b.ctx, eventlog.TrimPolicy{MaxAge: jobsKept, Protect: min(orAll(edited), b.jobs.needed()), Now: now})
	if err != nil || gone.Blocks == 0 {
		return err
	}
	return b.jobs.forget(b.jobs.stream.First())
}

func orAll(seq uint64) uint64 {
	if seq == 0 {
		return math.MaxUint64
	}
	return seq
}

// isOld reports whether a stream has anything that was kept for long enough.
func (b *Bridge) isOld(s *eventlog.Stream, kept time.Duration) (bool, error) {
	first, err := s.Read(b.ctx, eventlog.ReadOptions{From: s.First(), Max: 1}, nil)
	return err == nil && len(first) > 0 && first[0].Stored.Before(b.o.Now().Add(-kept)), err
}
