// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"container/heap"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// How a kept event ends.
const (
	endFired      = "fired"
	endCancelled  = "cancelled"
	endCommitted  = "committed"
	endRolledBack = "rolledback"
	endExpired    = "expired" // rolled back because nobody decided
	endLost       = "lost"    // its message was lost to damage
)

const (
	// asideBatch is how many events are stored together when they are due.
	asideBatch = 256
	// asideLook is how long a wait is at most while something is kept: a clock that is set is noticed then.
	asideLook = time.Second
	// asideRetry is how long an event waits that cannot be stored at the moment, and asideRetryMost how long in the end.
	asideRetry     = 250 * time.Millisecond
	asideRetryMost = 30 * time.Second
	// lateAfter is how late an event may be stored and not count as late.
	lateAfter = time.Second
	// aFewTries is after how many a bus that is not there is taken for gone: at a start the buses open a moment later.
	aFewTries = 5
)

// run is the goroutine that does what is due. It returns when the bridge is closing.
func (s *aside) run() {
	defer s.b.wg.Done()
	for s.b.ctx.Err() == nil {
		ks, wait := s.due()
		if len(ks) > 0 {
			s.serve(ks)
			continue
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-s.wake:
		case <-s.b.ctx.Done():
		}
		t.Stop()
	}
}

// due takes what is due, or says how long there is nothing to do.
func (s *aside) due() (ks []*kept, wait time.Duration) {
	now := s.b.o.Now().UnixNano()
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.order) > 0 && len(ks) < asideBatch && s.order[0].next <= now {
		k := heap.Pop(&s.order).(*kept)
		k.busy = true
		ks = append(ks, k)
	}
	if len(s.order) == 0 {
		return ks, time.Hour
	}
	return ks, max(0, min(asideLook, time.Duration(s.order[0].next-now)))
}

// serve does what is due: it stores scheduled events, and sees to prepared ones.
func (s *aside) serve(ks []*kept) {
	var scheduled []*kept
	for _, k := range ks {
		if k.prepared {
			s.pursue(k)
		} else {
			scheduled = append(scheduled, k)
		}
	}
	s.fire(scheduled)
}

// firing is a scheduled event on its way into its bus's log.
type firing struct {
	k    *kept
	at   time.Time
	done <-chan Receipt // nil: it was there
}

// fire stores scheduled events and writes down that they have ended.
func (s *aside) fire(ks []*kept) {
	bySeq := make(map[uint64]*kept, len(ks))
	for _, k := range ks {
		bySeq[k.seq] = k
	}
	var under []firing
	err := s.stream.Each(s.b.hard, slices.Sorted(maps.Keys(bySeq)), func(raw eventlog.Raw) error {
		k := bySeq[raw.Seq]
		delete(bySeq, raw.Seq)
		rec, story, err := readKept(raw)
		var done <-chan Receipt
		if err == nil {
			_, done, err = s.store(k, rec, story)
		}
		if err != nil {
			s.failed(k, err)
			return nil
		}
		under = append(under, firing{k, story.At, done})
		return nil
	})
	for _, k := range bySeq {
		if err == nil {
			s.lose(k)
		} else {
			s.failed(k, err)
		}
	}
	var ended []*kept
	for _, f := range under {
		if f.done != nil {
			if r := s.await(f.done); r.Err != nil {
				s.failed(f.k, r.Err)
				continue
			}
		}
		if s.b.o.Now().Sub(f.at) > lateAfter {
			s.metrics.late.Inc()
		}
		ended = append(ended, f.k)
	}
	if err := s.end(endFired, ended...); err != nil {
		for _, k := range ended {
			s.failed(k, err)
		}
	}
}

// store hands a kept event, which is the caller's, to its bus. done is nil if the event is there already, at pos.
func (s *aside) store(k *kept, rec *event.Record, story keptStory) (pos event.Position, done <-chan Receipt, err error) {
	p, err := s.b.path(story.to())
	if err != nil {
		return pos, nil, err
	}
	if k.doubt {
		pos, there, err := s.stored(s.b.hard, p, &rec.Event, story)
		if err != nil || there {
			return pos, nil, err
		}
		k.doubt = false
	}
	receipt := make(chan Receipt, 1)
	return pos, receipt, s.b.store(s.b.hard, p, rec, func(r Receipt) { receipt <- r })
}

// stored looks for a kept event in the log of a bus: one of its id and source that has its mark.
func (s *aside) stored(ctx context.Context, p *path, ev *event.Event, story keptStory) (pos event.Position, there bool, err error) {
	name, value := story.attribute()
	err = p.byID(ctx, ev.ID, func(e eventlog.Entry) bool {
		got, _ := attributeOf(&e.Record.Event, name)
		if e.Record.Event.Source == ev.Source && got == value {
			pos, there = p.position(e.Seq), true
		}
		return !there
	})
	return pos, there, err
}

// attributeOf returns an extension attribute that is a string.
func attributeOf(ev *event.Event, name string) (string, bool) {
	for _, a := range ev.Extensions {
		if a.Name == name {
			v, ok := a.Value.(string)
			return v, ok
		}
	}
	return "", false
}

// await returns how a store ended. When the bridge may wait no longer the outcome is unknown.
func (s *aside) await(done <-chan Receipt) Receipt {
	select {
	case r := <-done:
		return r
	case <-s.b.hard.Done():
		return Receipt{Err: unavailable(context.Cause(s.b.hard))}
	}
}

// failed gives a kept event back that something could not be done about. Whether it is stored is in doubt.
func (s *aside) failed(k *kept, err error) {
	k.doubt = true
	k.tries++
	if k.tries == aFewTries && s.b.ctx.Err() == nil {
		s.b.log.Warn("an event kept for later cannot be stored at the moment", "bus", k.bus.Value(), "seq", k.seq, "err", err)
	}
	s.later(k, min(asideRetry<<min(k.tries-1, 10), asideRetryMost))
}

// lose ends a kept event whose message is gone.
func (s *aside) lose(k *kept) {
	s.b.log.Error("an event kept for later was lost to damage", "bus", k.bus.Value(), "seq", k.seq)
	if err := s.end(endLost, k); err != nil {
		s.failed(k, err)
	}
}
