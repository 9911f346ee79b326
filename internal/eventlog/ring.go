// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"sync"

	"github.com/rialto-bridge/rialto/internal/event"
)

// ring holds the latest committed events of a bus, decoded, without a hole: entry i has the sequence first+i, and a
// place without an event has no record. It may be used concurrently.
type ring struct {
	mu    sync.RWMutex
	slots []slot // circular; its length is a power of two
	head  int
	n     int
	first uint64
	bytes int64
}

type slot struct {
	rec  *event.Record
	size int64
}

// entryCost is what an entry takes beside the bytes of its strings.
const entryCost = 400

// recordSize estimates the memory of a record.
func recordSize(r *event.Record) int64 {
	e := &r.Event
	n := entryCost + len(e.ID) + len(e.Source) + len(e.Type) + len(e.Subject) + len(e.DataContentType) + len(e.DataSchema) + cap(e.Data)
	for _, a := range e.Extensions {
		n += 48 + len(a.Name)
		if s, ok := a.Value.(string); ok {
			n += len(s)
		}
	}
	if m := r.MQTT; m != nil {
		n += 120 + len(m.Topic) + len(m.Client) + len(m.Principal) + len(m.Properties) + len(m.Sparkplug)
	}
	return int64(n)
}

// push appends the committed items of a batch and returns by how many bytes the ring has grown.
func (r *ring) push(items []item) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.bytes
	for i := range items {
		it := &items[i]
		if it.subject == "" || it.err != nil {
			continue
		}
		if r.n > 0 && it.seq != r.first+uint64(r.n) {
			r.reset()
		}
		if r.n == 0 {
			r.first = it.seq
		}
		if r.n == len(r.slots) {
			r.grow()
		}
		s := slot{rec: it.rec, size: entryCost}
		if it.rec != nil {
			s.size = recordSize(it.rec)
		}
		r.slots[(r.head+r.n)&(len(r.slots)-1)] = s
		r.n++
		r.bytes += s.size
	}
	return r.bytes - before
}

func (r *ring) grow() {
	slots := make([]slot, max(64, 2*len(r.slots)))
	for i := range r.n {
		slots[i] = r.slots[(r.head+i)&(len(r.slots)-1)]
	}
	r.slots, r.head = slots, 0
}

func (r *ring) reset() {
	clear(r.slots)
	r.head, r.n, r.bytes = 0, 0, 0
}

// evict drops the oldest entries until n bytes are free, and returns how many were.
func (r *ring) evict(n int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	freed := int64(0)
	for r.n > 1 && freed < n {
		s := &r.slots[r.head]
		freed += s.size
		*s = slot{}
		r.head = (r.head + 1) & (len(r.slots) - 1)
		r.n--
		r.first++
	}
	r.bytes -= freed
	return freed
}

// read appends up to limit entries from..to to dst and returns the sequence to go on from. ok is false when the ring
// does not reach back to from.
func (r *ring) read(from, to uint64, limit int, dst []Entry) (_ []Entry, next uint64, ok bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.n == 0 || from < r.first || from >= r.first+uint64(r.n) {
		return dst, from, false
	}
	next = from
	for end := min(to+1, r.first+uint64(r.n)); next < end && limit > 0; next++ {
		if rec := r.slots[(r.head+int(next-r.first))&(len(r.slots)-1)].rec; rec != nil {
			dst = append(dst, Entry{next, rec})
			limit--
		}
	}
	return dst, next, true
}

// get returns the entry of one sequence. ok is false when the ring does not hold it.
func (r *ring) get(seq uint64) (rec *event.Record, ok bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.n == 0 || seq < r.first || seq >= r.first+uint64(r.n) {
		return nil, false
	}
	return r.slots[(r.head+int(seq-r.first))&(len(r.slots)-1)].rec, true
}

// start returns the lowest sequence that the ring holds; 0 when it is empty.
func (r *ring) start() uint64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.n == 0 {
		return 0
	}
	return r.first
}

// ringBudget is the memory that the rings of a node share.
type ringBudget struct {
	limit int64

	mu    sync.Mutex // guards the fields below; taken before a ring's lock
	used  int64
	rings []*ring
}

func (b *ringBudget) join(r *ring) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rings = append(b.rings, r)
}

// grew counts what a ring has taken, and lets the largest rings give back what is too much.
func (b *ringBudget) grew(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used += n
	for b.used > b.limit {
		var largest *ring
		var size int64
		for _, r := range b.rings {
			r.mu.RLock()
			if r.n > 1 && r.bytes > size {
				largest, size = r, r.bytes
			}
			r.mu.RUnlock()
		}
		if largest == nil {
			return
		}
		b.used -= largest.evict(b.used - b.limit)
	}
}
