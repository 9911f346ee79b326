// SPDX-License-Identifier: Apache-2.0

package region

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/rialto-bridge/rialto/internal/eventlog"
)

const (
	// freshAfter and freshBytes are how much a connection finds waiting on main before what is fresh goes first.
	freshAfter = 1000
	freshBytes = 1 << 20
	// freshTime is how old what is fresh may be, of the last freshAfter: a line that is back is found out that much later.
	freshTime = 2 * time.Second
	// maxGaps is how many stretches may wait behind what is fresh.
	maxGaps = 64
	// gapShare is the share that the oldest gap has of the bytes while there is something fresh: one in so many.
	gapShare = 8
	// passedTime and passedSeqs are after how long, and how many sequences, the far side is told that some were passed over.
	passedTime = 200 * time.Millisecond
	passedSeqs = 64 << 10
)

// run is a stretch of a log that a lane reads and sends in order.
type run struct {
	from  uint64 // the first sequence that the far side was not told of
	at    uint64 // the next to be looked at
	to    uint64 // the last; 0 = the end of the log, wherever that is
	again bool   // it was counted before, and is sent again because the far side has forgotten it
	quiet bool   // as again, but it was counted as dropped: the far side is told that it is passed over

	passed tally     // of from..at-1, all of which were passed over
	since  time.Time // when the first of those was; zero when from is at

	ahead []eventlog.Entry // read, and not looked at
	buf   []eventlog.Entry // memory of ahead
}

// end returns the last sequence of the run that can be read.
func (r *run) end(committed uint64) uint64 {
	if r.to > 0 {
		return min(r.to, committed)
	}
	return committed
}

// ended reports whether all of the run has been told.
func (r *run) ended() bool { return r.to > 0 && r.from > r.to }

// back has the run look once more at all that it has not told.
func (r *run) back() {
	r.at, r.passed, r.since, r.ahead = r.from, tally{}, time.Time{}, nil
}

// track is one lane of a connection: what it has to send, in runs.
type track struct {
	id   Lane
	gaps []*run // from the oldest to the newest; all end
	tail *run   // nil: the lane is not in use
	owed int    // bytes that the gaps have a right to before the tail goes on

	batch  batchWriter
	filled *run // of which the batch has events; nil = it has none
}

// runs makes the runs of what is not done by both sides. Those that only the near side has done are run again; what it has
// done and the far side has never acknowledged was dropped.
func runs(from uint64, done, acked, both Ranges) (gaps []*run, tail *run) {
	tail = &run{from: from, at: from}
	if n := len(done); n > 0 {
		tail.from = max(tail.from, done[n-1].To+1)
	}
	if n := len(both); n > 0 {
		tail.from = max(tail.from, both[n-1].To+1)
	}
	tail.at = tail.from
	for _, r := range minus(Ranges{{from, tail.from - 1}}, both) {
		whole := Ranges{r}
		cut := func(part Ranges, again, quiet bool) {
			for _, p := range part {
				gaps = append(gaps, &run{from: p.From, at: p.From, to: p.To, again: again, quiet: quiet})
			}
		}
		cut(minus(whole, done), false, false)
		cut(whole.Both(done).Both(acked), true, false)
		cut(minus(whole.Both(done), acked), true, true)
	}
	slices.SortFunc(gaps, func(a, b *run) int { return cmp.Compare(a.from, b.from) })
	return gaps, tail
}

// freshen has what came lately, and what comes from now on, go before what waits, if that is much.
func (t *track) freshen(ctx context.Context, bus *eventlog.Bus, now time.Time) {
	committed := bus.Committed()
	if committed < t.tail.from || len(t.gaps) >= maxGaps {
		return
	}
	waiting := committed - t.tail.from + 1
	if i := bus.Info(); waiting <= freshAfter && (i.Msgs == 0 || float64(waiting)*float64(i.Bytes)/float64(i.Msgs) <= freshBytes) {
		return
	}
	from := max(t.tail.from, freshFrom(ctx, bus, committed, now))
	if from == t.tail.from {
		return
	}
	t.gaps = append(t.gaps, &run{from: t.tail.from, at: t.tail.from, to: from - 1})
	t.tail = &run{from: from, at: from}
}

// freshFrom returns the first of the last sequences whose event came lately: while the line was there already and nobody knew.
func freshFrom(ctx context.Context, bus *eventlog.Bus, committed uint64, now time.Time) uint64 {
	entries, _, err := bus.Read(ctx, committed+1-min(committed, freshAfter), freshAfter, nil)
	if err != nil {
		return committed + 1 // nothing is known to be fresh
	}
	from := committed + 1
	for i := len(entries) - 1; i >= 0; i-- {
		if e := &entries[i]; e.Seq <= committed {
			if now.Sub(e.Record.Received) > freshTime {
				break
			}
			from = e.Seq
		}
	}
	return from
}

// pick returns the run that goes on; nil if none can. Nothing below floor is begun, and no gap unless gaps.
func (t *track) pick(committed, floor uint64, strict, gaps bool) *run {
	if t.tail == nil {
		return nil
	}
	var gap *run
	if len(t.gaps) > 0 && (gaps || strict) && t.gaps[0].from >= floor {
		gap = t.gaps[0]
	}
	fresh := t.tail.at <= committed && t.tail.from >= floor
	switch {
	case gap != nil && (strict || !fresh || t.owed > 0):
		return gap
	case fresh && (!strict || len(t.gaps) == 0):
		return t.tail
	}
	return nil
}

// sent notes how many bytes of a run have gone, so that gaps get their share and no more.
func (t *track) sent(r *run, bytes int, committed uint64) {
	switch {
	case len(t.gaps) == 0:
		t.owed = 0
	case r == t.tail:
		t.owed += bytes
	case t.tail.at > committed: // nothing is fresh, and nobody saves up
		t.owed = 0
	default:
		t.owed -= bytes * (gapShare - 1)
	}
}

// drop forgets the gaps that have ended.
func (t *track) drop() {
	t.gaps = slices.DeleteFunc(t.gaps, (*run).ended)
}

// trimmed has the lane pass over what retention takes, below first. What was not counted before is counted now.
func (t *track) trimmed(first uint64) {
	if t.tail == nil {
		return
	}
	var gaps []*run
	split := func(r *run) {
		if r.from >= first || r.again {
			return
		}
		if t.filled == r {
			t.filled, t.batch.count = nil, 0
		}
		to := first - 1
		if r.to > 0 {
			to = min(to, r.to)
		}
		gaps = append(gaps, &run{from: r.from, at: r.from, to: to, again: true, quiet: true})
		r.from = to + 1
		r.back()
	}
	for _, r := range t.gaps {
		split(r)
		gaps = append(gaps, r)
	}
	split(t.tail)
	t.gaps = gaps
	t.drop()
}

// minus returns what is in a and not in b.
func minus(a, b Ranges) (out Ranges) {
	for _, r := range a {
		for at := r.From; at <= r.To; {
			missing, some := b.Missing(at, r.To)
			if !some {
				break
			}
			out = append(out, missing)
			at = missing.To + 1
		}
	}
	return out
}
