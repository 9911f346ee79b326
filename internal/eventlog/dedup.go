// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
)

// dedup knows the ids of a bus that were committed within the window, and those on their way.
//
// Committed ids stand in generations of a quarter of the window each; a whole generation is dropped when its newest id
// has left the window. An id costs about 64 bytes (BenchmarkDedup). At the limit the oldest generation is dropped early: the
// window is shorter then, and nothing else suffers.
type dedup struct {
	mu      sync.Mutex // guards all
	window  time.Duration
	limit   int
	flights map[event.Key]*flight
	gens    []generation // oldest first
	count   int          // ids in gens
	early   uint64       // ids dropped before their time
}

type generation struct {
	start, end time.Time // of its ids
	ids        map[event.Key]seen
}

// seen is where an id was stored, and when, in milliseconds after the start of its generation.
type seen struct {
	seq uint64
	at  uint32
}

// flight is an event that is on its way into the log.
type flight struct {
	seq uint64
	err error
}

const (
	defaultWindow     = 2 * time.Minute
	dedupGenerations  = 4
	defaultDedupLimit = 1 << 20
)

func newDedup(window time.Duration, limit int) *dedup {
	if window == 0 {
		window = defaultWindow
	}
	if limit <= 0 {
		limit = defaultDedupLimit
	}
	return &dedup{window: window, limit: limit, flights: map[event.Key]*flight{}}
}

// enter begins the way of an event into the log. dup is true when the id is known: then the flight is, or becomes, that
// of the first event, and nothing must be stored.
func (d *dedup) enter(key event.Key, now time.Time) (f *flight, dup bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.flights[key]; f != nil {
		return f, true
	}
	d.expire(now)
	for i := len(d.gens) - 1; i >= 0; i-- {
		g := &d.gens[i]
		if s, ok := g.ids[key]; ok && now.Sub(g.start.Add(time.Duration(s.at)*time.Millisecond)) < d.window {
			return &flight{seq: s.seq}, true
		}
	}
	f = &flight{}
	d.flights[key] = f
	return f, false
}

// settle ends the way of an event: it is stored at seq, or was not.
func (d *dedup) settle(key event.Key, f *flight, seq uint64, err error, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.flights, key)
	f.seq, f.err = seq, err
	if err == nil {
		d.add(key, seq, now)
	}
}

// outcome returns how the first event of a duplicate ended.
func (d *dedup) outcome(f *flight) (uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return f.seq, f.err
}

// load adds an id that was found in the log.
func (d *dedup) load(key event.Key, seq uint64, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.add(key, seq, at)
}

// agesFrom is from when on an id counts that was stored at a time: the clock may have been ahead of now by then.
func agesFrom(stored, now time.Time) time.Time {
	if stored.After(now) {
		return now
	}
	return stored
}

// setWindow changes the window for all that is known.
func (d *dedup) setWindow(w time.Duration) {
	if w == 0 {
		w = defaultWindow
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.window = w
}

func (d *dedup) add(key event.Key, seq uint64, at time.Time) {
	if d.window < 0 {
		return
	}
	n := len(d.gens)
	if n == 0 || at.Sub(d.gens[n-1].start) >= d.window/dedupGenerations || len(d.gens[n-1].ids) >= max(d.limit/dedupGenerations, 1) {
		d.expire(at)
		for len(d.gens) > 0 && d.count > d.limit-max(d.limit/dedupGenerations, 1) {
			d.early += uint64(len(d.gens[0].ids))
			d.drop()
		}
		d.gens = append(d.gens, generation{start: at, end: at, ids: map[event.Key]seen{}})
		n = len(d.gens)
	}
	g := &d.gens[n-1]
	if _, ok := g.ids[key]; !ok {
		d.count++
	}
	g.ids[key] = seen{seq, uint32(max(at.Sub(g.start).Milliseconds(), 0))} //nolint:gosec // below the window
	if at.After(g.end) {
		g.end = at
	}
}

func (d *dedup) expire(now time.Time) {
	for len(d.gens) > 0 && now.Sub(d.gens[0].end) >= d.window {
		d.drop()
	}
}

func (d *dedup) drop() {
	d.count -= len(d.gens[0].ids)
	d.gens[0].ids = nil
	d.gens = d.gens[1:]
}
