// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// feed is one stream that subscriptions are served from. A tail goroutine delivers what is committed to it, and a shared
// scan serves the sessions that are far behind in it. Feeds know nothing of each other: each has its own positions in
// sessions and groups, and there is no order between the messages of two.
type feed struct {
	g    *Gateway
	name string // of the bus; stands in records
	lane lane
	rank int // readers that are behind in several feeds read the one with the lowest rank first
	tail Tail
	scan *scan

	start     uint64 // nothing up to here is offered to subscribers; set before the tail runs
	recovered uint64 // up to here the tail looks for what a crash has left; set before it runs

	tailPos atomic.Uint64 // the sequence that the tail is delivering, or has delivered last
	routed  atomic.Uint64 // the last sequence that it has delivered
	marked  atomic.Uint64 // the last checkpoint in SESSIONS
	failing atomic.Bool   // the tail could not read on
	over    atomic.Bool   // it is not served any more

	stop func() // ends its goroutines and waits for them; guarded by feeds.mu

	waiters atomic.Int32
	mu      sync.Mutex
	moved   chan struct{} // guarded by mu; closed when routed moves; nil when nobody waits
	cuts    []moment      // guarded by mu; that the tail has not passed
}

func newFeed(g *Gateway, name string, tail Tail) *feed {
	f := &feed{g: g, name: name, tail: tail, lane: laneUp}
	f.scan = newScan(f)
	return f
}

// begin sets where the feed goes on after a start: subscribers get what comes behind checkpoint, and the tail begins
// there, or earlier if the retained view is. end is where the stream ends now.
func (f *feed) begin(checkpoint, end uint64) {
	from := checkpoint
	if v := f.g.opts.Retained; v != nil {
		from = min(from, v.positionOf(f.name))
	}
	from = max(from, f.tail.First()-1) // what retention has taken is nobody's any more, or said at the return of its session
	f.start, f.recovered = checkpoint, end
	f.marked.Store(checkpoint)
	f.tailPos.Store(from)
	f.routed.Store(from)
}

// run delivers and scans until ctx is done. It waits for its goroutines.
func (f *feed) run(ctx context.Context) {
	var own sync.WaitGroup
	own.Go(func() { f.runTail(ctx) })
	own.Go(func() { f.scan.run(ctx) })
	own.Wait()
}

// routedTo says how far the tail has delivered, and wakes who waits for it.
func (f *feed) routedTo(seq uint64) {
	f.routed.Store(seq)
	f.wakeWaiters()
}

// end lets nobody wait for the feed any more: it is not served.
func (f *feed) end() {
	f.over.Store(true)
	f.wakeWaiters()
}

func (f *feed) wakeWaiters() {
	if f.waiters.Load() == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.moved != nil {
		close(f.moved)
		f.moved = nil
	}
}

// await waits until the tail has delivered everything up to a sequence, or delivers nothing more.
func (f *feed) await(ctx context.Context, seq uint64) error {
	f.waiters.Add(1)
	defer f.waiters.Add(-1)
	for {
		f.mu.Lock()
		if f.moved == nil {
			f.moved = make(chan struct{})
		}
		moved := f.moved
		f.mu.Unlock()
		if f.routed.Load() >= seq || f.over.Load() {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// reading is what was read from a feed.
type reading struct {
	entries []eventlog.Entry
	next    uint64
	gone    uint64 // how many sequences from the first on are not in the log any more
	looked  int    // bytes read from disk
}

// read reads from a sequence on, and notices what retention has taken.
func (f *feed) read(from uint64, most int, dst []eventlog.Entry) (reading, error) {
	return f.scanFrom(eventlog.ScanOptions{From: from, Max: most}, dst)
}

// scanFrom is read for who is far behind, who has to pay for it.
func (f *feed) scanFrom(o eventlog.ScanOptions, dst []eventlog.Entry) (r reading, err error) {
	from := o.From
	r.entries, r.next, r.looked, err = f.tail.Scan(f.g.life, o, dst)
	first := f.tail.First()
	if errors.Is(err, eventlog.ErrGone) {
		err, r.entries, r.next = nil, dst, max(first, from+1)
	}
	if err != nil {
		return r, err
	}
	if first > from && (len(r.entries) == 0 || r.entries[0].Seq > from) {
		end := first
		if len(r.entries) > 0 {
			end = min(end, r.entries[0].Seq)
		}
		r.gone = end - from
		r.next = max(r.next, end)
	}
	return r, nil
}

// moment is a place in each feed. It is shared and immutable. A feed that is not in it began later.
type moment []mark

type mark struct {
	feed *feed
	seq  uint64
}

// at returns the place in a feed; 0 if the feed began later.
func (m moment) at(f *feed) uint64 {
	for i := range m {
		if m[i].feed == f {
			return m[i].seq
		}
	}
	return 0
}

// before is at for what came before the moment: a feed that is not in it began later, and what is older than that came
// when the bus was served before.
func (m moment) before(f *feed) uint64 {
	for i := range m {
		if m[i].feed == f {
			return m[i].seq
		}
	}
	return f.start
}

// state is the moment as it is written down.
func (m moment) state() (st momentState) {
	for _, k := range m {
		st = append(st, markState{k.feed.name, k.seq})
	}
	return st
}

// momentOf is the inverse of state at a start, without the feeds that are gone. A bus that has been made anew, or was restored from a
// backup, may end before.
func (g *Gateway) momentOf(st momentState) (m moment) {
	for _, k := range st {
		if f := g.feeds.named(k.feed); f != nil {
			m = append(m, mark{f, min(k.seq, f.recovered)})
		}
	}
	return m
}

// ends is the end of each feed now.
func (g *Gateway) ends() moment {
	return g.momentBy(func(f *feed) uint64 { return f.tail.Committed() })
}

// awaitTails waits until the tails have delivered everything up to a moment.
func (g *Gateway) awaitTails(ctx context.Context, m moment) error {
	for _, k := range m {
		if err := k.feed.await(ctx, k.seq); err != nil {
			return err
		}
	}
	return nil
}

// routedAll is how far the tails have delivered.
func (g *Gateway) routedAll() moment {
	return g.momentBy(func(f *feed) uint64 { return f.routed.Load() })
}

// markedAll is the last checkpoint.
func (g *Gateway) markedAll() moment {
	return g.momentBy(func(f *feed) uint64 { return f.marked.Load() })
}

func (g *Gateway) momentBy(at func(*feed) uint64) moment {
	feeds := g.feeds.all()
	m := make(moment, len(feeds))
	for i, f := range feeds {
		m[i] = mark{f, at(f)}
	}
	return m
}

// advances reports whether a checkpoint is above the last one.
func (m moment) advances() bool {
	return slices.ContainsFunc(m, func(k mark) bool { return k.seq > k.feed.marked.Load() })
}
