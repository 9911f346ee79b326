// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"errors"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// Why retention has to wait.
var (
	errUnderWay = errors.New("some of it is on its way at the moment")
	errCounting = errors.New("what would go is not counted yet")
)

// trimTime is how long the owner counts at a time: it has other work, too.
const trimTime = 250 * time.Millisecond

// trim counts what is below first and not done as dropped, writes that down, and has the lanes pass over it. What it has not come
// to when its time is up is for the next one, which goes on from there; the error is errCounting then.
func (o *owner) trim(ctx context.Context, first uint64) error {
	if o.l.foreign.Load() {
		return nil // what it has not forwarded is in another log
	}
	if o.underWay(first) {
		if o.denied++; o.denied > 1 {
			o.floor, o.until = first, time.Now().Add(holdTime)
		}
		return errUnderWay
	}
	next := o.st.clone()
	dropped, why := o.drop(ctx, next, first)
	if err := o.save(context.WithoutCancel(ctx), next); err != nil { // put has its own bound
		return err
	}
	o.l.metrics.retention.Add(float64(dropped))
	o.dropped, o.before = o.dropped+dropped, first
	if o.session != nil {
		o.session.trimmed(first)
	}
	o.publish()
	if why != nil { // what is not counted is not begun, or it would never come to an end
		o.floor, o.until = first, time.Now().Add(holdTime)
		return why
	}
	o.denied, o.floor = 0, 0
	o.tellDropped()
	return nil
}

// drop counts in st what is below first and not done, lane by lane and upwards, as long as there is time. The error is why it has
// not counted all.
func (o *owner) drop(ctx context.Context, st *state, first uint64) (dropped uint64, err error) {
	until := time.Now().Add(o.l.ls.trim)
	for l := range lanes {
		from := st.start(l)
		if from == 0 || from >= first {
			continue
		}
		done := st.Done.Of(l)
		for {
			missing, more := done.Missing(from, first-1)
			if !more {
				break
			}
			t, next, err := o.fates(ctx, l, missing, until)
			dropped += t.Dropped
			st.of(l).add(&t)
			*done = done.Add(missing.From, next-1)
			switch {
			case err != nil:
				return dropped, err
			case next <= missing.To:
				return dropped, errCounting
			}
			from = next
		}
	}
	return dropped, nil
}

// tellDropped tells of what retention has taken and nobody was told of.
func (o *owner) tellDropped() {
	if o.dropped == 0 {
		return
	}
	o.l.ls.log.Warn("retention has taken events before they were forwarded", "link", o.def.Name, "region", o.def.Region, "events", o.dropped)
	o.l.raise(TypeDropped, map[string]any{"events": o.dropped, "reason": droppedRetention, "before": o.before}, nil)
	o.dropped = 0
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

// fates reads a stretch of the log and counts what would become of it, were it not dropped. It counts some of it at least, and no
// more when it is until; at is the next that it has not counted.
func (o *owner) fates(ctx context.Context, l Lane, r Range, until time.Time) (t tally, at uint64, err error) {
	var buf []eventlog.Entry
	for at = r.From; at <= r.To && (at == r.From || time.Now().Before(until)); {
		if l == Urgent {
			if quiet := min(o.st.quietTo(at), r.To); quiet >= at {
				t.Others += quiet - at + 1
				at = quiet + 1
				continue
			}
		}
		var next uint64
		if buf, next, err = o.bus.Read(ctx, at, readAhead, buf[:0]); err != nil {
			return t, at, err
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
	return t, at, nil
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
