// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// Receipt says where an event was stored.
type Receipt = eventlog.Receipt

// Publish takes an event in. It returns as soon as the event is on its way to the log, and blocks while the log has no
// room for more. If it returns nil, done is called exactly once, after the commit or the failure, in the order of the
// log, and must not block. The record belongs to the bridge from then on; its Received is set, and its id if it has none.
//
// Errors are *fault.Error: NotFound (no such bus), Full (no room on the disk, or on a bus whose overflow policy refuses),
// Unavailable, Unfit (the event does not fit its schema, and the bus refuses such).
func (b *Bridge) Publish(ctx context.Context, bus string, rec *event.Record, done func(Receipt)) error {
	p, err := b.path(bus)
	if err != nil {
		return err
	}
	if p, err = b.admit(p, rec); err != nil {
		return err
	}
	return b.store(ctx, p, rec, done)
}

// store appends an event to the log of a path. Its contract is that of Publish.
func (b *Bridge) store(ctx context.Context, p *path, rec *event.Record, done func(Receipt)) error {
	rec.Received = b.o.Now()
	if rec.Event.ID == "" {
		rec.Event.ID, rec.Minted = event.NewID(), true
	}
	var room int64
	if l := p.overflow.limit.Load(); l != nil {
		var err error
		if room, err = p.reserve(l, rec); err != nil {
			return err
		}
	} else if p.runsFull() {
		b.press()
	}
	err := p.log.Append(ctx, rec, func(r Receipt) {
		if room > 0 {
			p.overflow.going.Add(-room)
		}
		switch {
		case r.Err != nil:
			r.Err = unavailable(r.Err)
			p.refused(fault.KindOf(r.Err).String())
		case r.Duplicate:
			p.counters.duplicates.Inc()
		default:
			p.counters.accepted.Inc()
		}
		done(r)
	})
	if err != nil {
		p.overflow.going.Add(-room)
		err = unavailable(err)
		p.refused(fault.KindOf(err).String())
	}
	return err
}

// unavailable makes a fault of the errors of the log that are none: it was closed, or the caller gave up waiting for room.
func unavailable(err error) error {
	if errors.Is(err, eventlog.ErrClosed) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &fault.Error{Kind: fault.Unavailable, Message: "the log does not take events now", RetryAfter: time.Second, Err: err}
	}
	return err
}

// Ingest takes events in and blocks until all are committed. If some could not be stored, the error says why and the
// receipts say which; those without an error are stored and count like any other. If one of several does not fit its
// schema, and the bus refuses such, none is stored; pointers begin with the number of the event.
func (b *Bridge) Ingest(ctx context.Context, bus string, recs []*event.Record) ([]Receipt, error) {
	if len(recs) == 1 {
		r, err := b.ingestOne(ctx, bus, recs[0])
		return []Receipt{r}, err
	}
	p, err := b.path(bus)
	if err != nil {
		return nil, err
	}
	paths, err := b.admitAll(p, recs)
	if err != nil {
		return nil, err
	}
	receipts := make([]Receipt, len(recs))
	done := make(chan struct{}, len(recs))
	waiting := 0
	var errs []error
	for i, rec := range recs {
		if paths != nil {
			p = paths[i]
		}
		err := b.store(ctx, p, rec, func(r Receipt) {
			receipts[i] = r
			done <- struct{}{}
		})
		if err != nil {
			receipts[i].Err = err
			errs = append(errs, err)
			continue
		}
		waiting++
	}
	for range waiting {
		select {
		case <-done:
		case <-ctx.Done():
			return nil, gaveUp(ctx)
		}
	}
	for _, r := range receipts {
		if r.Err != nil {
			errs = append(errs, r.Err)
			break
		}
	}
	return receipts, errors.Join(errs...)
}

// gaveUp is for events whose outcome is unknown: they may be stored, and then count like any other.
func gaveUp(ctx context.Context) error {
	return &fault.Error{Kind: fault.Unavailable, Message: "gave up waiting for the log", Err: context.Cause(ctx)}
}

// ingestOne is Ingest of one event, by far the most frequent, without what several cost.
func (b *Bridge) ingestOne(ctx context.Context, bus string, rec *event.Record) (Receipt, error) {
	w := waiters.Get().(*waiter)
	if err := b.Publish(ctx, bus, rec, w.done); err != nil {
		waiters.Put(w)
		return Receipt{Err: err}, err
	}
	select {
	case r := <-w.receipt:
		waiters.Put(w)
		return r, r.Err
	case <-ctx.Done(): // the receipt may still come, to this waiter, which is not used again
		err := gaveUp(ctx)
		return Receipt{Err: err}, err
	}
}

// waiter waits for one receipt.
type waiter struct {
	receipt chan Receipt
	done    func(Receipt)
}

var waiters = sync.Pool{New: func() any {
	w := &waiter{receipt: make(chan Receipt, 1)}
	w.done = func(r Receipt) { w.receipt <- r }
	return w
}}
