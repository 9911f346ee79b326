// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"errors"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// errUnderWay is why retention has to wait.
var errUnderWay = errors.New("some of it is on its way at the moment")

// trim counts what is below first and not done as dropped, writes that down, and has the lanes pass over it.
func (o *owner) trim(ctx context.Context, first uint64) error {
	if o.underWay(first) {
		if o.denied++; o.denied > 1 {
			o.floor, o.until = first, time.Now().Add(holdTime)
		}
		return errUnderWay
	}
	next := o.st.clone()
	var dropped uint64
	for l := range lanes {
		from := next.start(l)
		if from == 0 || from >= first {
			continue
		}
		done := next.Done.Of(l)
		for {
			missing, more := done.Missing(from, first-1)
			if !more {
				break
			}
			t, err := o.fates(ctx, l, missing)
			if err != nil {
				return err
			}
			dropped += t.Dropped
			next.of(l).add(&t)
			*done = done.Add(missing.From, missing.To)
			from = missing.To + 1
		}
	}
	if err := o.save(ctx, next); err != nil {
		return err
	}
	o.denied, o.floor = 0, 0
	if o.session != nil {
		o.session.trimmed(first)
	}
	o.publish()
	if dropped > 0 {
		o.l.metrics.retention.Add(float64(dropped))
		o.l.ls.log.Warn("retention has taken events before they were forwarded", "link", o.def.Name, "region", o.def.Region, "events", dropped)
		o.l.raise(TypeDropped, map[string]any{"events": dropped, "reason": droppedRetention, "before": first})
	}
	return nil
}

// underWay reports whether something below first is sent and not acknowledged.
func (o *owner) underWay(first uint64) bool {
	if o.session == nil {
		return false
	}
	for i := range o.session.flights {
		if f := &o.session.flights[i]; f.from < first && !f.again {
			return true
		}
	}
	return false
}

// fates reads a stretch of the log and counts what would become of it, were it not dropped.
func (o *owner) fates(ctx context.Context, l Lane, r Range) (t tally, err error) {
	var buf []eventlog.Entry
	for at := r.From; at <= r.To; {
		if l == Urgent {
			if quiet := min(o.st.quietTo(at), r.To); quiet >= at {
				t.Others += quiet - at + 1
				at = quiet + 1
				continue
			}
		}
		var next uint64
		if buf, next, err = o.bus.Read(ctx, at, readAhead, buf[:0]); err != nil {
			return t, err
		}
		if gone := min(o.bus.First(), r.To+1); gone > at { // nobody was asked: before the link ran here
			t.miss(l, true, gone-at)
			at = gone
			continue
		}
		for _, e := range buf {
			if e.Seq > r.To {
				break
			}
			t.miss(l, false, e.Seq-at)
			t.note(l, o.matcher.look(l, e.Record, o.st.urgentAt(e.Seq), o.st.Instance))
			at = e.Seq + 1
		}
		if next <= at && len(buf) == 0 {
			next = r.To + 1 // it is not committed, or cannot be read: no event
		}
		if end := min(next, r.To+1); end > at {
			t.miss(l, false, end-at)
			at = end
		}
	}
	return t, nil
}

// miss counts sequences of which there is no event: lost to damage, or to retention.
func (t *tally) miss(l Lane, dropped bool, n uint64) {
	switch {
	case l == Urgent:
		t.Others += n
	case dropped:
		t.Dropped += n
	default:
		t.Gaps += n
	}
}

// note counts an event that is not forwarded.
func (t *tally) note(l Lane, f fate) {
	switch {
	case f == taken:
		t.Dropped++
	case l == Urgent && f != looped:
		t.Others++
	case f == filtered:
		t.Filtered++
	case f == looped:
		t.Looped++
	default:
		t.Urgent++
	}
}

// remember notes which event was read last.
func (o *owner) remember(seq uint64, rec *event.Record) {
	if seq > o.st.Last.Seq {
		o.st.Last.Seq, o.newest = seq, rec
	}
}
