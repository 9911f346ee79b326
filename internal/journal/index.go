// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// Gone is an event that JOURNEY knows and the event stream has lost.
type Gone struct {
	Seq  uint64
	Hour uint32 // of its arrival
}

// Index brings events into the views. Entries come in order; those that the views hold already change nothing. gone, in
// order too, are the events among the gaps between them that were routed before they were lost: they count as accepted.
// next is the position the reader continues from, which may lie behind gaps.
func (j *Journal) Index(bus string, entries []eventlog.Entry, gone []Gone, next uint64) error {
	done, err := j.Indexed(bus)
	if err != nil || next <= done+1 {
		return err
	}
	base, err := j.number(key('b', bus))
	if err != nil {
		return err
	}
	b := j.db.NewBatch()
	defer b.Close()
	runs := runs{next: done + 1}
	hours := make(map[uint32]uint64)
	count := func(seq uint64, hour uint32) {
		if seq >= base && seq > done {
			hours[hour]++
			runs.add(seq, hour)
		}
	}
	var t texts
	if t.highest, err = j.highestMinted(bus); err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		for ; len(gone) > 0 && gone[0].Seq < e.Seq; gone = gone[1:] {
			count(gone[0].Seq, gone[0].Hour)
		}
		if e.Seq <= done {
			continue
		}
		t.add(&e)
		count(e.Seq, HourOf(e.Record.Received))
	}
	for _, g := range gone {
		count(g.Seq, g.Hour)
	}
	errs = append(errs, t.set(b, bus))
	for hour, n := range hours {
		k := u32(key('a', bus), hour)
		old, err := j.number(k)
		if err != nil {
			return err
		}
		errs = append(errs, b.Set(k, u64(nil, old+n), nil))
	}
	errs = append(errs, b.Set(u64(key('e', bus), next-1), runs.encode(u64(nil, done+1)), nil),
		b.Set(key('w', bus, 'E'), u64(nil, next-1), nil))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("write views: %w", err)
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("write views: %w", err)
	}
	return nil
}

// runs are the hours of consecutive positions, so that any part of them can be counted. Arrivals are nearly in order, so
// there are few.
type runs struct {
	next uint64 // position behind the last run
	list []run
}

// run is n positions whose events arrived in one hour; 0 stands for positions that were not counted.
type run struct {
	hour uint32
	n    uint64
}

func (r *runs) add(seq uint64, hour uint32) {
	if seq > r.next {
		r.list = append(r.list, run{0, seq - r.next})
	}
	if last := len(r.list) - 1; last >= 0 && r.list[last].hour == hour {
		r.list[last].n++
	} else {
		r.list = append(r.list, run{hour, 1})
	}
	r.next = seq + 1
}

func (r *runs) encode(dst []byte) []byte {
	for _, x := range r.list {
		dst = binary.AppendUvarint(binary.AppendUvarint(dst, uint64(x.hour)), x.n)
	}
	return dst
}

// eachIndexed calls fn with how many indexed events of from..to fall into an hour, run by run.
func (s view) eachIndexed(bus string, from, to uint64, fn func(hour uint32, n uint64) error) error {
	if from > to {
		return nil
	}
	prefix := key('e', bus)
	return s.scan(prefix, u64(bytes.Clone(prefix), from), func(_, v []byte) (bool, error) {
		if len(v) < 8 {
			return false, fmt.Errorf("%w: indexed hours", ErrFormat)
		}
		at := binary.BigEndian.Uint64(v)
		d := decoder{b: v[8:]}
		for len(d.b) > 0 && at <= to {
			hour, n := uint32(d.uint()), d.uint()
			first, end := max(at, from), min(at+n, to+1)
			if at += n; hour == 0 || first >= end {
				continue
			}
			if err := fn(hour, end-first); err != nil {
				return false, err
			}
		}
		return at <= to, d.err
	})
}

// SetBase says that views which are being rebuilt begin to count events at seq: below it, the event stream and JOURNEY
// no longer hold the same events.
func (j *Journal) SetBase(bus string, seq uint64) error {
	defer j.forgetFeed(bus)
	return j.db.Set(key('b', bus), u64(nil, seq), pebble.NoSync)
}
