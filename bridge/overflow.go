// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/rules"
)

// What a bus does when it is full.
const (
	OverflowOldest   = "oldest"   // the oldest events go, forwarded or not
	OverflowNewest   = "newest"   // what has still to be read stays, and new events are refused
	OverflowPriority = "priority" // the same, and the last room is for events that match a pattern
)

var overflows = []string{OverflowOldest, OverflowNewest, OverflowPriority}

// Reasons, beside the kinds of faults, for which events are refused.
const (
	refusedOverflow = "overflow" // the bus is full, and its policy keeps what it has
	refusedReserve  = "reserve"  // what is left is for events that match the priority of the bus
)

// Followers read buses at their own pace beside the rules: links to other regions.
type Followers interface {
	// Needed is the lowest sequence of a bus that a follower still has to read; 0 = none has. It does not block.
	Needed(bus string) uint64
	// Trimming is called before retention removes what is below first, while it can still be read, so that what nobody has
	// forwarded yet is counted. An error (such as: some of it is on its way at the moment) keeps all for this round.
	Trimming(ctx context.Context, bus string, first uint64) error
}

// SetFollowers says who follows the buses. Retention asks them from then on; with Options.HoldRetention it removes nothing before
// StartRetention, so that a start does not remove what a follower needs that is not there yet.
func (b *Bridge) SetFollowers(f Followers) { b.followers.Store(&f) }

// StartRetention ends what Options.HoldRetention began. Whoever follows the buses is known by now.
func (b *Bridge) StartRetention() {
	b.retains.Store(true)
	b.press()
}

// followersOf returns who follows the buses; nil if nobody does.
func (b *Bridge) followersOf() Followers {
	if f := b.followers.Load(); f != nil {
		return *f
	}
	return nil
}

// Retention returns what is in force for a bus: its own limits, and its share of the store if it has none in bytes.
func (b *Bridge) Retention(bus string) (maxAge time.Duration, maxBytes int64, err error) {
	p, err := b.path(bus)
	if err != nil {
		return 0, 0, err
	}
	doc := p.doc.Load()
	return doc.MaxAge, p.maxBytes(doc), nil
}

// maxBytes is what a bus may take.
func (p *path) maxBytes(doc *BusDoc) int64 {
	if doc.MaxBytes != 0 {
		return doc.MaxBytes
	}
	return p.b.share()
}

// Sizes of a bus that refuses. Retention removes whole blocks of 8 MiB and never the two newest, which a message of the
// largest size may have made a little larger; so a bus must have room for those, for such a message, and for one block that
// can go, or it would be full for ever.
const (
	minRefusing = 32 << 20
	// Trimming begins before a bus is full, so that nobody is refused while there is something that can go.
	leastSlack = 8 << 20
	mostSlack  = 64 << 20
	slackOf    = 8 // an eighth of it
	// recordSlack is about what an event takes in the log beside its texts and its data.
	recordSlack = 256
)

// limit is what a bus that refuses allows. It is immutable.
type limit struct {
	policy   string
	full     int64        // bytes at which all are refused
	low      int64        // bytes at which those are refused that do not match; full if there is no pattern
	trim     int64        // bytes to which retention brings the bus, if what it holds may go
	reserve  int          // percent
	priority *rules.Index // nil: all are alike
}

// overflowLimit returns the limit of a document; nil if its bus never refuses.
func overflowLimit(doc *BusDoc) *limit {
	if doc.Overflow == OverflowOldest || doc.Overflow == "" {
		return nil
	}
	l := &limit{policy: doc.Overflow, full: doc.MaxBytes, low: doc.MaxBytes, reserve: doc.Reserve}
	if doc.Overflow == OverflowPriority {
		l.priority, l.low = doc.priority, lowOf(doc.MaxBytes, doc.Reserve)
	}
	l.trim = l.low - min(max(l.low/slackOf, leastSlack), mostSlack)
	return l
}

// lowOf is what is left of a size for events without priority.
func lowOf(size int64, reserve int) int64 { return size - size/100*int64(reserve) }

// overflow is how full a bus is that refuses, for any number of goroutines.
type overflow struct {
	limit    atomic.Pointer[limit] // nil: never refuses
	going    atomic.Int64          // bytes of events on their way into the log
	refusing atomic.Int32          // what has been refused since there was room last: an index of BusStates
}

var scratches = sync.Pool{New: func() any { return new(rules.Scratch) }}

// reserve takes room for an event on a bus that has a limit. Who gets some gives it back with going.Add(-n) when the event is stored,
// or was not.
func (p *path) reserve(l *limit, rec *event.Record) (n int64, err error) {
	n = roomOf(rec)
	used := p.log.Info().Bytes + p.overflow.going.Load() + n
	if used > l.trim {
		p.b.press()
	}
	switch {
	case used > l.full:
		return 0, p.overflowed(refusedOverflow, fault.New(fault.Full, "bus %q is full: it has reached its limit of %s, and its overflow policy %s keeps what has still to be read",
			p.name, sizeText(l.full), l.policy))
	case used > l.low && !l.matches(&p.b.o.View(rec).Event):
		return 0, p.overflowed(refusedReserve, fault.New(fault.Full, "bus %q is almost full: less than %d%% of its limit of %s is left, and its overflow policy %s keeps that for events that match its priority",
			p.name, l.reserve, sizeText(l.full), l.policy))
	}
	p.overflow.going.Add(n)
	return n, nil
}

// overflowed counts a refusal, and has the log told of the first.
func (p *path) overflowed(reason string, err *fault.Error) error {
	p.refused(reason)
	state := int32(slices.Index(BusStates(), BusFull))
	if reason == refusedReserve {
		state = int32(slices.Index(BusStates(), BusPriority))
	}
	if old := p.overflow.refusing.Load(); old < state && p.overflow.refusing.CompareAndSwap(old, state) {
		p.b.log.Warn("bus is full: events are refused", "bus", p.name, "reason", reason, "bytes", p.log.Info().Bytes)
	}
	return err
}

// matches says whether an event has priority. A pattern that cannot be applied to it does not match.
func (l *limit) matches(ev *event.Event) bool {
	if l.priority == nil {
		return true
	}
	s := scratches.Get().(*rules.Scratch)
	defer scratches.Put(s)
	var found [1]rules.Match
	matched, err := l.priority.Match(ev, s, found[:0])
	return err == nil && len(matched) > 0
}

// roomOf is about what an event takes in the log, and no less.
func roomOf(rec *event.Record) int64 {
	ev := &rec.Event
	n := recordSlack + len(ev.ID) + len(ev.Source) + len(ev.Type) + len(ev.Subject) + len(ev.DataContentType) + len(ev.DataSchema) + len(ev.Data)
	for _, a := range ev.Extensions {
		n += len(a.Name) + 16
		if s, ok := a.Value.(string); ok {
			n += len(s)
		}
	}
	return int64(n)
}

// sizeText writes a size as documents have it, if it is a whole number of a unit.
func sizeText(n int64) string {
	for _, u := range []struct {
		suffix string
		bytes  int64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.bytes && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10) + " bytes"
}

// refusals counts the events of a bus that were refused, by reason.
type refusals struct {
	mu sync.Mutex // guards by
	by map[string]uint64
}

func (r *refusals) add(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.by == nil {
		r.by = make(map[string]uint64)
	}
	r.by[reason]++
}

func (r *refusals) snapshot() map[string]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string]uint64, len(r.by))
	maps.Copy(out, r.by)
	return out
}

// refused counts an event that was not stored: the reason is the name of a fault's kind, or one of those above.
func (p *path) refused(reason string) {
	p.b.metrics.refused.WithLabelValues(p.name, reason).Inc()
	p.refusals.add(reason)
}

// press wakes the maintainer: a bus is running full.
func (b *Bridge) press() {
	select {
	case b.pressure <- struct{}{}:
	default:
	}
}

// A bus that refuses, or is about to, is looked at after relieveSoon while nothing of it can go, and less and less often, down to
// relieveEvery: what a link has forwarded makes room within a second.
const (
	relieveSoon  = 10 * time.Millisecond
	relieveEvery = 500 * time.Millisecond
	// relieveShare bounds the time that goes into it, to a tenth.
	relieveShare = 10
)

// runsFull reports whether a bus has come so close to its limit, if it refuses, or so far above it, if it does not, that retention
// is to see to it.
func (p *path) runsFull() bool {
	if l := p.overflow.limit.Load(); l != nil {
		return p.log.Info().Bytes > l.trim
	}
	most := p.doc.Load().MaxBytes
	return most > 0 && p.log.Info().Bytes > most+leastSlack
}

// relieve trims the buses that are running full. It returns whether anything went.
func (b *Bridge) relieve() (worked bool) {
	for _, p := range b.allPaths() {
		if !p.runsFull() {
			continue
		}
		first := p.log.First()
		if err := p.trim(b.ctx); err != nil && b.ctx.Err() == nil {
			if _, say := p.relief.failed(b.o.Now()); say {
				b.log.Error("retention failed", "bus", p.name, "err", err)
			}
		} else {
			p.relief.worked()
		}
		worked = worked || p.log.First() > first
		if size := p.log.Info().Bytes; !p.runsFull() && p.overflow.refusing.Swap(0) > 0 {
			b.log.Info("bus has room again", "bus", p.name, "bytes", size)
		}
	}
	return worked
}

// errKept is a round in which a follower has asked retention to leave everything where it is.
var errKept = errors.New("a follower needs what would go")

// beforeTrim makes durable what the views hold, since they must not ask for what is gone after a crash, and tells the followers.
func (p *path) beforeTrim(ctx context.Context, first uint64) error {
	if err := p.b.o.Journal.Flush(); err != nil {
		return err
	}
	f := p.b.followersOf()
	if f == nil {
		return nil
	}
	if err := f.Trimming(ctx, p.name, first); err != nil {
		return fmt.Errorf("%w: %w", errKept, err)
	}
	return nil
}
