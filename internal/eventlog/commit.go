// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"fmt"
	"slices"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
)

// commit makes verified batches durable, in order, and completes their items. Those that an urgent stream has written meanwhile
// share a sync.
func (s *Stream) commit() {
	var group []*batch
	for b := range s.verified {
		group = append(group[:0], b)
		for n := len(s.verified); n > 0; n-- {
			group = append(group, <-s.verified)
		}
		s.commitGroup(group)
		clear(group)
	}
}

func (s *Stream) commitGroup(group []*batch) {
	sent, size := 0, int64(0)
	for _, b := range group {
		sent += b.sent
		size += b.bytes
	}
	if sent > 0 {
		if err := s.persist(group, sent); err != nil {
			err = s.log.fail(fmt.Errorf("stream %s: %w", s.name, err))
			for _, b := range group {
				s.refuse(b, err)
			}
		}
	}
	s.unsynced.Add(-size)
	select {
	case s.synced <- struct{}{}:
	default: // it is told already
	}
	for _, b := range group {
		s.commitBatch(b)
		s.log.disk.end(b.going)
		clear(b.items)
		b.items = b.items[:0]
		select {
		case s.free <- b:
		default:
		}
	}
}

// commitBatch completes the items of a batch that was synced, or refused.
func (s *Stream) commitBatch(b *batch) {
	if s.dedup != nil {
		now := s.log.opts.Now()
		for i := range b.items {
			if it := &b.items[i]; it.flight != nil && it.subject != "" {
				s.dedup.settle(it.key, it.flight, it.seq, it.err, now)
			}
		}
	}
	if b.sent > 0 {
		if s.commits != nil {
			s.commits(b.items)
		}
		s.advance(b)
	}
	for i := range b.items {
		s.complete(&b.items[i])
	}
}

// persist syncs what batches wrote, which are sent messages, and moves the mark.
func (s *Stream) persist(group []*batch, sent int) error {
	if f := s.log.failure.Load(); f != nil {
		return f
	}
	start := time.Now()
	last, err := s.syncer.commit()
	if err != nil {
		return err
	}
	m := s.log.metrics
	m.fsync.Observe(time.Since(start).Seconds())
	m.batch.Observe(float64(sent))
	if err := s.syncer.follow(last); err != nil {
		return err
	}
	for _, b := range slices.Backward(group) {
		for i := len(b.items) - 1; i >= 0; i-- {
			if it := &b.items[i]; it.subject != "" && it.err == nil {
				return s.mark.write(it.seq, recordKey(it.subject, it.header, it.data))
			}
		}
	}
	return nil
}

// advance makes the items of b visible.
func (s *Stream) advance(b *batch) {
	top, size := uint64(0), int64(0)
	for i := range b.items {
		if it := &b.items[i]; it.subject != "" && it.err == nil {
			top = it.seq
			size += it.recordSize()
		}
	}
	s.bytes.Add(size)
	s.log.metrics.appended.WithLabelValues(s.name).Add(float64(b.sent))
	if first := s.blocks.first(); first > 0 && s.firstSeq.Load() > s.committed.Load() {
		s.firstSeq.Store(first)
	}
	s.committed.Store(top)
	s.mu.Lock()
	s.wakeWaiters()
	s.mu.Unlock()
}

// complete calls the item's function.
func (s *Stream) complete(it *item) {
	if it.pooled != nil {
		if it.header != nil {
			*it.pooled = it.header[:0]
		}
		headerBuffers.Put(it.pooled)
	}
	if it.receipt == nil {
		it.done(Result{Seq: it.seq, Err: it.err})
		return
	}
	r := Receipt{Err: it.err}
	seq := it.seq
	if it.subject == "" { // a duplicate, whose first is settled by now
		seq, r.Err = s.dedup.outcome(it.flight)
		r.Duplicate = r.Err == nil
	}
	if r.Err == nil {
		r.Pos = event.Position{Stream: s.name, Seq: seq}
	}
	it.receipt(r)
}
