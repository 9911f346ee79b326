// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"
	"hash/maphash"

	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/targets"
)

// Trim applies the retention of a bus now.
func (b *Bridge) Trim(ctx context.Context, bus string) error {
	p, err := b.path(bus)
	if err != nil {
		return err
	}
	return p.trim(ctx)
}

// Streams returns the positions of a bus's log and of its JOURNEY.
func (b *Bridge) Streams(bus string) (first, last, journeyFirst, journeyLast uint64, err error) {
	p, err := b.path(bus)
	if err != nil {
		return 0, 0, 0, 0, err
	}
	return p.log.First(), p.log.Committed(), p.journey.First(), p.journey.Committed(), nil
}

// WakeLanes has every lane look at the clock, which a test has moved.
func (b *Bridge) WakeLanes() {
	for _, l := range b.allLanes() {
		l.wake()
	}
}

// RateOf is the rate that the lane of a target keeps to.
func (b *Bridge) RateOf(target string) targets.RateLimit {
	l := b.lane(target)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gate.limiter.rate
}

// WakeAside has what is kept for later look at the clock, which a test has moved.
func (b *Bridge) WakeAside() {
	select {
	case b.aside.wake <- struct{}{}:
	default:
	}
}

// CompactAside writes ASIDE again if more than slack of it, beside twice what is kept, has ended. It returns its first message.
func (b *Bridge) CompactAside(ctx context.Context, slack int64) (first uint64, err error) {
	b.aside.slack = slack
	err = b.aside.compact(ctx)
	return b.aside.stream.First(), err
}

// Lanes is the stream that says how targets stand.
func (b *Bridge) Lanes() *eventlog.Stream { return b.standings.stream }

// CheckLedgers checks the accounts of all buses now.
func (b *Bridge) CheckLedgers() {
	for _, p := range b.allPaths() {
		b.checkLedger(p)
	}
}

// Misplace writes down that the first event of a bus, which is settled, owes a delivery that nobody makes.
func (b *Bridge) Misplace(ctx context.Context, bus string, r journal.Route) error {
	p, err := b.path(bus)
	if err != nil {
		return err
	}
	p.rec.add(func(e *journal.Encoder) {
		e.Pending(journal.Pending{Seq: 1, Route: r, Hour: journal.HourOf(b.o.Now()), State: journal.Live})
	}, nil)
	return p.rec.sync(ctx)
}

// Tried writes down an attempt that nobody has made, in a record of its own.
func (b *Bridge) Tried(ctx context.Context, bus string, o journal.Outcome) error {
	p, err := b.path(bus)
	if err != nil {
		return err
	}
	p.rec.add(func(e *journal.Encoder) { e.Outcome(o) }, nil)
	return p.rec.sync(ctx)
}

// ReadToken, ReadAnswer and ReplayAside are for fuzzing.
var (
	ReadToken  = readToken
	ReadAnswer = readAnswer
	TokenOf    = tokenOf
)

// ReplayAside reads messages as if they stood in ASIDE, and returns how many events are kept then, and their bytes.
func ReplayAside(msgs ...eventlog.Raw) (n int, bytes int64, err error) {
	s := &aside{o: AsideOptions{}.withDefaults(), all: make(map[keptKey]*kept), seed: maphash.MakeSeed()}
	for _, m := range msgs {
		err = errors.Join(err, s.replay(m))
	}
	return len(s.all), s.bytes, err
}

// LoadRules has the documents of earlier rules read through fail from now on: what it returns is why one cannot be read.
func (b *Bridge) LoadRules(fail func() error) {
	c := b.rules
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.rules)
	load := c.load
	c.load = func(id ruleID) ([]byte, error) {
		if err := fail(); err != nil {
			return nil, err
		}
		return load(id)
	}
}
