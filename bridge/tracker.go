// SPDX-License-Identifier: Apache-2.0

package bridge

import "sync"

// tracker knows which events of a path are settled: it counts, for each sequence above the floor, how many records
// are still to be committed before the event is settled. The router adds sequences in order; whoever sees a record
// committed calls done.
type tracker struct {
	mu    sync.Mutex // guards all below
	floor uint64     // everything up to here is settled
	open  []int32    // a ring: open[(head+i)%len] are the records still missing for sequence floor+1+i
	head  int
	n     int
	moved chan struct{} // closed when the floor moves; nil while nobody waits for that
}

func newTracker(floor uint64) *tracker {
	return &tracker{floor: floor, open: make([]int32, 1024)}
}

// add says that seq, the next one, waits for count records. A count of 0 is settled at once.
func (t *tracker) add(seq uint64, count int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.floor
	if t.n == 0 && seq > t.floor {
		t.floor = seq - 1 // sequences without an event
	}
	for t.floor+uint64(t.n)+1 < seq { // more of them, behind open ones
		t.push(0)
	}
	t.push(int32(count))
	t.advance(before)
}

func (t *tracker) push(count int32) {
	if t.n == len(t.open) {
		bigger := make([]int32, 2*len(t.open))
		k := copy(bigger, t.open[t.head:])
		copy(bigger[k:], t.open[:t.head])
		t.open, t.head = bigger, 0
	}
	t.open[(t.head+t.n)%len(t.open)] = count
	t.n++
}

func (t *tracker) advance(before uint64) {
	for t.n > 0 && t.open[t.head] == 0 {
		t.head = (t.head + 1) % len(t.open)
		t.n--
		t.floor++
	}
	if t.floor != before && t.moved != nil {
		close(t.moved)
		t.moved = nil
	}
}

// done says that one record of seq is committed.
func (t *tracker) done(seq uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if seq <= t.floor || seq > t.floor+uint64(t.n) {
		return
	}
	i := (t.head + int(seq-t.floor-1)) % len(t.open)
	if t.open[i] > 0 {
		t.open[i]--
	}
	if i == t.head {
		t.advance(t.floor)
	}
}

// state returns the floor, and how many sequences above it are tracked.
func (t *tracker) state() (floor uint64, open int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.floor, t.n
}

// wait is state with a channel that is closed when the floor moves from there.
func (t *tracker) wait() (floor uint64, open int, moved <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.moved == nil {
		t.moved = make(chan struct{})
	}
	return t.floor, t.n, t.moved
}
