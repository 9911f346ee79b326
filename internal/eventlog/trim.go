// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// TrimPolicy says what may go. Both limits may be set; what one of them allows to go goes.
type TrimPolicy struct {
	MaxAge   time.Duration // 0: no limit; not looked at while the clock cannot be trusted (Options.ClockTrust)
	MaxBytes int64         // 0: no limit
	Protect  uint64        // nothing at or above this sequence goes; 0 protects all, math.MaxUint64 nothing
	Now      time.Time     // zero: the log's clock
	// Before, if it is not nil, is told from where on events stay, while those below can still be read. An error leaves all
	// there, and is returned. Other trims of the stream wait for it; appends do not.
	Before func(first uint64) error
}

// Trimmed says what went.
type Trimmed struct {
	First  uint64 // lowest sequence that is left
	Blocks int
	Bytes  int64
}

// keepBlocks is how many of the newest blocks a trim never touches.
const keepBlocks = 2

// trimStep is how many blocks the server removes at a time. It reads each of them, and answers nobody meanwhile: an append that it
// does not answer for Options.ackTimeout would close the log.
const trimStep = 8

// storedBy returns a time by which all before the first of some blocks was stored: when that block was begun, or a later one if the
// clock was ahead at that time; now if it was so all along.
func storedBy(list []*block, now time.Time) time.Time {
	for _, k := range list {
		if t := time.Unix(0, k.time); !t.After(now) {
			return t
		}
	}
	return now
}

// Trim removes whole old blocks, the oldest first. It stops at the first block that must stay. It blocks while the files are
// removed; appends wait for some of them at a time. After an error a part may be gone.
func (s *Stream) Trim(ctx context.Context, p TrimPolicy) (Trimmed, error) {
	s.trimming.Lock()
	defer s.trimming.Unlock()
	if f := s.log.failure.Load(); f != nil {
		return Trimmed{First: s.First()}, f
	}
	if p.Now.IsZero() {
		p.Now = s.log.opts.Now()
	}
	if p.MaxAge > 0 && !s.log.clock.trusted() {
		p.MaxAge = 0
	}
	list := s.blocks.snapshot()
	sizes := make([]int64, len(list))
	var total int64
	for i, k := range list {
		st, err := os.Stat(s.blocks.path(k.index))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Trimmed{}, err
		}
		if err == nil {
			sizes[i] = st.Size()
			total += sizes[i]
		}
	}
	n, left := 0, total
	for n+keepBlocks < len(list) {
		next := list[n+1]
		old := p.MaxAge > 0 && storedBy(list[n+1:], p.Now).Before(p.Now.Add(-p.MaxAge))
		large := p.MaxBytes > 0 && left > p.MaxBytes
		if !old && !large || next.first > p.Protect {
			break
		}
		left -= sizes[n]
		n++
	}
	if n == 0 {
		return Trimmed{First: s.First()}, nil
	}
	first := list[n].first
	if p.Before != nil {
		if err := p.Before(first); err != nil {
			return Trimmed{First: s.First()}, err
		}
	}
	var gone Trimmed
	var err error
	for at := 0; at < n && err == nil; {
		at = min(at+trimStep, n)
		err = s.purge(ctx, list[at].first)
		// What is gone is gone also after an error: the server may not have said so in time.
		for left := s.blocks.first(); gone.Blocks < at && list[gone.Blocks].first < left; gone.Blocks++ {
			gone.Bytes += sizes[gone.Blocks]
			s.bytes.Add(-sizes[gone.Blocks]) // what is appended meanwhile counts itself
		}
	}
	gone.First = s.First()
	if err != nil {
		return gone, fmt.Errorf("trim stream %s: %w", s.name, err)
	}
	return gone, nil
}

// purge removes the blocks before a sequence, which is the first of a block. Nothing is appended meanwhile.
func (s *Stream) purge(ctx context.Context, first uint64) error {
	s.firstSeq.Store(first) // readers get ErrGone before the files go
	err := s.syncer.exclusive(func() error {
		st, err := s.log.js.Stream(ctx, s.name)
		if err != nil {
			return err
		}
		// The sequence is the first of a block: the server removes the blocks below and rewrites nothing.
		return st.Purge(ctx, jetstream.WithPurgeSequence(first))
	})
	if rerr := s.blocks.refresh(); rerr != nil {
		err = errors.Join(err, rerr)
	}
	if at := s.blocks.first(); at > 0 {
		s.firstSeq.Store(at)
	}
	return err
}
