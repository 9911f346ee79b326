// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"container/heap"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/targets"
)

// line is the deliveries of one key that are pending at a lane, in order: its head, which is queued or under way; what is
// parked, on disk and on its way there; and what waits in memory. If anything is parked, nothing waits in memory.
type line struct {
	key     uint64
	path    *path
	head    *task    // nil while nothing of it is queued, or under way
	behind  []*task  // live
	parked  bool     // something may be parked
	way     []uint64 // sequences of what is on its way to be parked
	failed  bool     // the first that is parked has been tried
	from    uint64   // nothing parked stands before this sequence
	due     time.Time
	index   int  // in the heap, -1 if it is not there
	loading bool // its first is being read from the views
	changed bool // something was parked since that began
	stalled bool // its first waits for a range, as far as was seen last
}

// order is the lines of a lane. It belongs to it, and its lock guards it.
type order struct {
	lines  map[uint64]*line
	heads  lineHeap // lines that wait for the due time of their first
	behind int      // deliveries that wait behind the heads, in memory
	parked int      // lines with something parked
	// Lines that only a take can bring on. They count as parked all the same, so a lane that has nothing else to do takes
	// although many keys are parked, or it would wait for itself.
	stalled int
}

// lineHeap orders lines by due time.
type lineHeap []*line

func (h lineHeap) Len() int           { return len(h) }
func (h lineHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h lineHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *lineHeap) Push(x any) {
	ln := x.(*line)
	ln.index = len(*h)
	*h = append(*h, ln)
}

// Pop implements heap.Interface.
func (h *lineHeap) Pop() any {
	n := len(*h) - 1
	ln := (*h)[n]
	(*h)[n] = nil
	*h = (*h)[:n]
	ln.index = -1
	return ln
}

// of returns the line of a key, made if there is none.
func (o *order) of(p *path, key uint64) *line {
	if ln := o.lines[key]; ln != nil {
		return ln
	}
	if o.lines == nil {
		o.lines = make(map[uint64]*line)
	}
	ln := &line{key: key, path: p, index: -1, from: math.MaxUint64}
	o.lines[key] = ln
	return ln
}

func (o *order) setParked(ln *line, is bool) {
	if ln.parked == is {
		return
	}
	ln.parked = is
	if is {
		o.parked++
	} else {
		o.parked--
		ln.failed, ln.from = false, math.MaxUint64
	}
}

func (o *order) setStalled(ln *line, is bool) {
	if ln.stalled == is {
		return
	}
	ln.stalled = is
	if is {
		o.stalled++
	} else {
		o.stalled--
	}
}

// follow says that all that waits in memory is parked, and returns it.
func (o *order) follow(ln *line) []*task {
	all := ln.behind
	o.behind -= len(all)
	ln.behind = nil
	for _, t := range all {
		o.onWay(ln, t.seq)
	}
	return all
}

// onWay says that a delivery is about to be parked.
func (o *order) onWay(ln *line, seq uint64) {
	o.setParked(ln, true)
	ln.way = append(ln.way, seq)
	ln.from = min(ln.from, seq)
	ln.changed = true
}

// wait puts a line into the heap.
func (o *order) wait(ln *line, due time.Time) {
	ln.due = due
	if ln.index >= 0 {
		heap.Fix(&o.heads, ln.index)
		return
	}
	heap.Push(&o.heads, ln)
}

// stir takes a line out of the heap.
func (o *order) stir(ln *line) {
	if ln.index >= 0 {
		heap.Remove(&o.heads, ln.index)
	}
}

// remove takes a line out.
func (o *order) remove(ln *line) {
	o.behind -= len(ln.behind)
	o.setParked(ln, false)
	o.setStalled(ln, false)
	o.stir(ln)
	delete(o.lines, ln.key)
	if len(o.lines) == 0 {
		o.lines = nil // a map never gets smaller
	}
}

// keyOf reads the event of a delivery and returns its key; 0 if it has no order, or the event is gone. After an error the caller waits: a
// delivery without its key would go out of its order.
func (p *path) keyOf(o *targets.Ordering, seq uint64) (uint64, error) {
	entry, err := p.log.Get(p.hard, seq)
	if isGone(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read event %d for its key: %w", seq, err)
	}
	return o.Key(p.name, &entry.Record.Event), nil
}

// queue brings a live delivery with a key into its line, or returns what has to be parked instead, and why. Called with mu
// held.
func (l *lane) queue(t *task, reason string, due time.Time) ([]*task, string, time.Time) {
	o := &l.order
	ln := o.of(t.path, t.key)
	full := len(l.live)-l.head+o.behind >= l.b.o.LiveQueue
	switch {
	case ln.parked || t.follows:
		reason, due = reasonOrder, t.offered
	case full && reason == "":
		reason, due = reasonQueueFull, t.offered
	case reason == "" || !full && ln.head != nil:
		if ln.head == nil {
			ln.head = t
			l.live = append(l.live, t)
		} else {
			ln.behind = append(ln.behind, t)
			o.behind++
		}
		return nil, "", time.Time{}
	}
	park := append(o.follow(ln), t)
	o.onWay(ln, t.seq)
	return park, reason, due
}

// left is called when a delivery with a key has an outcome in the views. It returns what has to be parked behind it. Called
// with mu held.
func (l *lane) left(t *task, o journal.Outcome) (park []*task) {
	ln := l.order.lines[t.key]
	if ln == nil {
		return nil
	}
	parked := o.State == journal.Parked
	if ln.head == t {
		ln.head, ln.failed = nil, false
		if parked {
			l.order.setParked(ln, true)
			ln.failed, ln.due, ln.from = o.Attempt > 0, o.Due, min(ln.from, t.seq)
			park = l.order.follow(ln)
		} else {
			ln.due = l.b.o.Now()
		}
	} else if i := slices.Index(ln.way, t.seq); i >= 0 {
		ln.way = slices.Delete(ln.way, i, i+1)
	}
	ln.changed = true
	l.advance(ln)
	return park
}

// advance gives the next of a line its turn. Called with mu held.
func (l *lane) advance(ln *line) {
	switch {
	case ln.head != nil || ln.loading || ln.index >= 0:
	case ln.parked:
		l.order.wait(ln, ln.due)
		l.parkedUntil(ln.due)
	case len(ln.behind) > 0:
		ln.head = ln.behind[0]
		ln.behind[0] = nil
		ln.behind = ln.behind[1:]
		l.order.behind--
		l.live = append(l.live, ln.head)
	default:
		l.order.remove(ln)
	}
}

// loadLines reads the first of each line that is due, and makes it ready. Called with mu held, which it gives up meanwhile.
func (l *lane) loadLines() error {
	o := &l.order
	if len(o.heads) == 0 {
		return nil
	}
	now := l.b.o.Now()
	var due []*line
	var from []uint64
	for len(o.heads) > 0 && len(due) < dueBatch && isDue(o.heads[0].due, now) {
		ln := heap.Pop(&o.heads).(*line)
		ln.loading, ln.changed = true, false
		due, from = append(due, ln), append(from, ln.from)
	}
	if len(due) == 0 {
		return nil
	}
	l.mu.Unlock()
	found, stalled := make([]*journal.Pending, len(due)), make([]bool, len(due))
	var failed error
	for i, ln := range due {
		// The range is read first: what is taken out of it afterwards is parked by then, and found.
		var r journal.Range
		var open bool
		var err error
		if l.waiting.Ranged() > 0 {
			r, open, err = l.b.o.Journal.RangeOf(ln.path.name, l.name)
		}
		var first journal.Line
		var ok bool
		if err == nil {
			first, ok, err = l.b.o.Journal.LineOf(ln.path.name, l.name, ln.key, from[i])
		}
		if err == nil && ok && open && first.Head.Seq >= r.Next { // what is parked behind a range waits for that
			first.Head.Due = now.Add(lineAgain)
			stalled[i] = true
		}
		if err != nil {
			failed = err
			first.Head = journal.Pending{Due: now.Add(time.Second)}
		}
		if ok || err != nil {
			found[i] = &first.Head
		}
	}
	l.mu.Lock()
	for i, ln := range due {
		ln.loading = false
		if o.lines[ln.key] == ln {
			o.setStalled(ln, stalled[i])
			l.loaded(ln, found[i], from[i], now)
		}
	}
	return failed
}

// loaded takes what the views say is the first of a line from a sequence on; nil = nothing is. Called with mu held.
func (l *lane) loaded(ln *line, first *journal.Pending, from uint64, now time.Time) {
	switch {
	case first == nil && (ln.changed || len(ln.way) > 0):
		if len(ln.way) > 0 {
			return // it is on its way, and left looks again
		}
		ln.due = now
	case first == nil:
		l.order.setParked(ln, false)
	case slices.ContainsFunc(ln.way, func(seq uint64) bool { return first.Seq >= seq }):
		return // something before it is on its way
	case ln.from < from: // something before it was parked meanwhile
		ln.due = now
	case first.State != journal.Parked, !ln.path.resumed.Load():
		ln.due = now.Add(lineAgain)
	case !isDue(first.Due, now):
		ln.due, ln.failed = first.Due, first.Attempts > 0
	default:
		t := ln.task(l, first, now)
		ln.head, ln.from = t, first.Seq // another rule may have the same event
		l.hold(t)
		l.ready = append(l.ready, t)
		return
	}
	l.advance(ln)
}

// task is a parked delivery of the line, to be attempted.
func (ln *line) task(l *lane, p *journal.Pending, now time.Time) *task {
	t := &task{path: ln.path, lane: l, seq: p.Seq, check: p.Check, route: p.Route, attempts: p.Attempts, firstAt: p.First,
		redrive: p.Redrive, offered: now, key: ln.key}
	t.settled.Store(true)
	return t
}

// lineAgain is after how long a line is looked at again whose first cannot be made yet.
const lineAgain = 100 * time.Millisecond

// linesOf makes the lines of what a path's last run has left parked, before anything of the path is offered.
func (l *lane) linesOf(p *path) error {
	return l.b.o.Journal.EachLine(l.name, func(x journal.Line) (bool, error) {
		if x.Bus == p.name {
			l.parkedIn(p, x.Key, x.Head.Seq, x.Head.Due, x.Head.Attempts > 0)
		}
		return true, nil
	})
}

// comeOut says that deliveries are about to be parked which come out of a range. They are in the views before parkedIn is called, and what
// follows them is not to have its turn in between.
func (l *lane) comeOut(p *path, list []journal.Taken) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || p.ctx.Err() != nil {
		return
	}
	for _, d := range list {
		if d.Key != 0 {
			l.order.onWay(l.order.of(p, d.Key), d.Seq)
		}
	}
}

// parkedIn says that something is parked in a line.
func (l *lane) parkedIn(p *path, key, seq uint64, due time.Time, failed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || p.ctx.Err() != nil { // drop takes its lines out, or has done so
		return
	}
	ln := l.order.of(p, key)
	if i := slices.Index(ln.way, seq); i >= 0 {
		ln.way = slices.Delete(ln.way, i, i+1)
	}
	ln.changed, ln.from = true, min(ln.from, seq)
	if l.order.setParked(ln, true); ln.index < 0 && !ln.loading && ln.head == nil {
		ln.due, ln.failed = due, failed
	}
	l.advance(ln)
}

// recheck has the first of every line looked at again.
func (l *lane) recheck() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.b.o.Now()
	for _, ln := range l.order.lines {
		ln.changed = true
		if ln.index >= 0 && ln.due.After(now) {
			l.order.wait(ln, now)
			l.parkedUntil(now)
		}
	}
	l.start()
}

// dropLines takes out the lines of a path that has ended. Called with mu held.
func (l *lane) dropLines(p *path) {
	for _, ln := range l.order.lines {
		if ln.path == p {
			l.order.remove(ln)
		}
	}
}

// overdueLines takes out what waits in memory behind heads, of the lines where old says so of any, or whose head was taken out
// of the queue. Called with mu held.
func (l *lane) overdueLines(queued []*task, old func(*task) bool) (all []*task) {
	taken := make(map[*task]bool, len(queued))
	for _, t := range queued {
		taken[t] = true
		if t.key == 0 {
			all = append(all, t)
		}
	}
	for _, ln := range l.order.lines {
		switch {
		case ln.head != nil && taken[ln.head]:
			t := ln.head
			ln.head = nil
			l.order.onWay(ln, t.seq)
			ln.due = l.b.o.Now()
			all = append(append(all, t), l.order.follow(ln)...)
		case slices.ContainsFunc(ln.behind, old):
			all = append(all, l.order.follow(ln)...)
		}
	}
	return all
}

// blocked returns how many lines wait because their first has failed. Called with mu held.
func (l *lane) blocked() (n int) {
	for _, ln := range l.order.lines {
		if ln.failed && ln.parked {
			n++
		}
	}
	return n
}
