// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/targets"
)

// fill looks at sequences of a run, at most so many and for not much longer than fillTime, and puts those that are taken into the
// lane's batch. The run stays before an event that cannot be shaped now: what stands before it is sent first, and then the error is
// returned.
func (s *session) fill(t *track, r *run, most, limit int, committed uint64) error {
	o, w := s.o, &t.batch
	w.begin(t.id, r.from)
	end, stop := r.end(committed), r.at+uint64(most) //nolint:gosec // positive
	began, first := time.Now(), r.at
	for r.at <= end && r.at < stop && !w.full(limit) && (r.at == first || time.Since(began) < fillTime) {
		if r.quiet {
			r.pass(&r.passed.Dropped, end)
			break
		}
		if t.id == Urgent {
			if last := min(o.st.quietTo(r.at), end); last >= r.at {
				r.pass(&r.passed.Others, last)
				r.ahead = nil
				continue
			}
		}
		if len(r.ahead) == 0 {
			if err := s.readOn(t, r, end); err != nil {
				return err
			}
			continue
		}
		e := r.ahead[0]
		r.ahead = r.ahead[1:]
		if e.Seq > end {
			r.ahead = nil
			s.gap(t, r, false, end)
			break
		}
		s.gap(t, r, false, e.Seq-1)
		if err := s.put(t, r, e.Seq, e); err != nil {
			r.ahead = nil
			if w.count > 0 {
				break
			}
			return err
		}
	}
	if r.at > r.from && r.since.IsZero() {
		r.since = time.Now()
	}
	return nil
}

// pass moves the run behind a sequence, and counts what it has passed over.
func (r *run) pass(as *uint64, last uint64) {
	*as += last + 1 - r.at
	r.at = last + 1
}

// gap passes over sequences that have no event, up to last.
func (s *session) gap(t *track, r *run, gone bool, last uint64) {
	if last >= r.at {
		r.passed.miss(t.id, gone, last+1-r.at)
		r.at = last + 1
	}
}

// readOn reads the next events of a run.
func (s *session) readOn(t *track, r *run, end uint64) (err error) {
	ctx := s.line.ctx
	var next uint64
	if r.buf, next, err = s.o.bus.Read(ctx, r.at, readAhead, r.buf[:0]); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("read the log: %w", err)
	}
	r.ahead = r.buf
	if gone := min(s.o.bus.First(), end+1); gone > r.at { // before the link ran here; else Trimming has counted it
		if r.again { // the far side has lost what is not here either
			r.pass(&r.passed.Dropped, gone-1)
		} else {
			s.gap(t, r, true, gone-1)
		}
		for len(r.ahead) > 0 && r.ahead[0].Seq < r.at {
			r.ahead = r.ahead[1:]
		}
		return nil
	}
	if len(r.ahead) > 0 {
		return nil
	}
	if next <= r.at {
		next = end + 1 // nothing that is committed can be read there
	}
	s.gap(t, r, false, min(next-1, end))
	return nil
}

// put looks at an event and puts it into the batch if it is taken. Where that cannot be said now nothing has changed.
func (s *session) put(t *track, r *run, seq uint64, e eventlog.Entry) error {
	o, ctx := s.o, s.line.ctx
	f := o.matcher.look(t.id, e.Record, o.st.urgentAt(seq), s.line.welcome.Instance)
	var rec *event.Record
	var err error
	if f == taken {
		rec, err = o.matcher.shape(ctx, e.Record)
	}
	switch {
	case err != nil && ctx.Err() != nil: // whatever it says, it was we who stopped it
		return context.Cause(ctx)
	case transient(err):
		return &trouble{Failing, fmt.Errorf("event %d cannot be transformed now: %s", seq, plain(err.Error())), refusedRetry}
	case err != nil:
		r.passed.Failed++
		if !r.again {
			o.l.refused(1, droppedFailed, plain(err.Error()))
		}
	case f != taken:
		r.passed.note(t.id, f)
	default:
		t.batch.add(seq, rec)
	}
	o.remember(seq, e.Record)
	r.at = seq + 1
	return nil
}

// transient reports whether an error of a transform may not be there the next time.
func transient(err error) bool {
	var te *targets.Error
	return errors.As(err, &te) && !te.Permanent
}
