// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/eventlog"
)

const (
	batchRead   = 1024                  // entries between two looks at the riders
	riderGrace  = 20 * time.Millisecond // for riders without room to get on again
	batchGrace  = 50 * time.Millisecond // in all for a batch
	scanRetries = time.Second           // after the log could not be read
)

// scan reads a feed once for all sessions that are far behind in it: 10,000 devices that return must not cost 10,000
// readings. A pass begins at the lowest position of a rider and goes on to the tail; each event is matched once and
// offered to the riders that are aboard. A rider without room gets off, and on again when it has room: if the pass is
// still in the batch where it got off, the batch is offered again from there; else it waits for the next pass.
type scan struct {
	f    *feed
	g    *Gateway
	wake chan struct{}

	mu      sync.Mutex
	riders  map[*session]struct{} // guarded by mu
	joined  []*session            // guarded by mu; riders that are not aboard yet
	gotOff  int                   // guarded by mu; riders that got off for lack of room and are not on again
	settled chan struct{}         // gotOff has become 0

	aboard atomic.Int64 // riders that the present pass is not past

	// The scan goroutine's own.
	t    tailer
	hits []*session
}

func newScan(f *feed) *scan {
	return &scan{f: f, g: f.g, wake: make(chan struct{}, 1), settled: make(chan struct{}, 1), riders: map[*session]struct{}{}, t: tailer{f: f, g: f.g}}
}

// ride puts a session on the scan, if its client is there.
func (sc *scan) ride(s *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.at.find(sc.f)
	if s.conn == nil || p == nil || p.riding || p.behind == 0 {
		return
	}
	sc.mu.Lock()
	defer sc.mu.Unlock()
	p.riding = true
	sc.riders[s] = struct{}{}
	sc.joined = append(sc.joined, s)
	sc.back()
	select {
	case sc.wake <- struct{}{}:
	default:
	}
}

// off takes a session off the scan, if it rides. p is its position in the feed. The session's mu is held.
func (sc *scan) off(s *session, p *position) {
	if !p.riding {
		return
	}
	p.riding = false
	sc.setAboard(p, false)
	sc.mu.Lock()
	defer sc.mu.Unlock()
	delete(sc.riders, s)
}

// setAboard says whether the present pass serves a session. The session's mu is held.
func (sc *scan) setAboard(p *position, aboard bool) {
	if p.aboard == aboard {
		return
	}
	p.aboard = aboard
	if aboard {
		sc.aboard.Add(1)
	} else {
		sc.aboard.Add(-1)
	}
}

// back says that a rider that got off is there again, or will not come. mu is held.
func (sc *scan) back() {
	if sc.gotOff == 0 {
		return
	}
	sc.gotOff--
	if sc.gotOff == 0 {
		select {
		case sc.settled <- struct{}{}:
		default:
		}
	}
}

// run is the scan's goroutine.
func (sc *scan) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-sc.wake:
		}
		for ctx.Err() == nil {
			from := sc.start()
			if from == 0 {
				break
			}
			if err := sc.pass(ctx, from); err != nil && ctx.Err() == nil {
				sc.g.log.Error("returning sessions wait: the log cannot be read", "bus", sc.f.name, "err", err)
				timer := time.NewTimer(scanRetries)
				select {
				case <-ctx.Done():
				case <-timer.C:
				}
				timer.Stop()
			}
		}
	}
}

// start has all riders aboard and returns where the next pass begins: the lowest position of a rider; 0 = there are none.
func (sc *scan) start() (from uint64) {
	sc.mu.Lock()
	sc.joined = nil
	sc.mu.Unlock()
	for _, s := range sc.all() {
		s.mu.Lock()
		if p := s.at.find(sc.f); p != nil && p.riding {
			sc.setAboard(p, true)
			if from == 0 || p.behind < from {
				from = p.behind
			}
		}
		s.mu.Unlock()
	}
	return from
}

// board has those riders aboard that have come since and that a batch is not past. It reports whether there are any. The
// others wait for the next pass.
func (sc *scan) board(from uint64) (any bool) {
	sc.mu.Lock()
	joined := sc.joined
	sc.joined = nil
	sc.gotOff = 0
	sc.mu.Unlock()
	for _, s := range joined {
		s.mu.Lock()
		if p := s.at.find(sc.f); p != nil && p.riding && !p.aboard && p.behind >= from {
			sc.setAboard(p, true)
			any = true
		}
		s.mu.Unlock()
	}
	return any
}

func (sc *scan) all() []*session {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	all := make([]*session, 0, len(sc.riders))
	for s := range sc.riders {
		all = append(all, s)
	}
	return all
}

// pass reads from a position to the tail.
func (sc *scan) pass(ctx context.Context, from uint64) error {
	var entries []eventlog.Entry
	for ctx.Err() == nil {
		sc.board(from)
		if sc.aboard.Load() == 0 {
			return nil // whoever gets on again is served by a pass that begins there
		}
		r, err := sc.f.read(from, batchRead, entries[:0])
		if err != nil {
			return err
		}
		entries = r.entries
		if r.gone > 0 {
			sc.skip(from, r.gone)
		}
		for begin := time.Now(); ; {
			for _, e := range entries {
				sc.offer(e)
			}
			sc.t.startWriters()
			sc.wait(ctx)
			if time.Since(begin) > batchGrace || !sc.board(from) {
				break
			}
		}
		clear(entries)
		if r.next <= from || sc.f.tailPos.Load() < r.next {
			sc.end(max(from, r.next))
			return nil
		}
		from = r.next
	}
	return nil
}

// skip tells the riders of what has left the log before they got to it.
func (sc *scan) skip(from, n uint64) {
	for _, s := range sc.all() {
		s.mu.Lock()
		p := s.at.find(sc.f)
		lost, at := p != nil && p.aboard && p.behind < from+n, uint64(0)
		if lost {
			at, p.behind = p.behind, from+n
		}
		s.mu.Unlock()
		if lost {
			sc.f.lost(s.key, s.key.clientID, at, from+n-at)
		}
	}
}

// offer gives an event to the riders that are subscribed to it. A programming error costs that, and not the process.
func (sc *scan) offer(e eventlog.Entry) {
	t := &sc.t
	defer func() {
		if r := recover(); r != nil {
			sc.g.metrics.panics.Inc()
			sc.g.log.Error("event not redelivered because of a programming error", "bus", sc.f.name, "seq", e.Seq, "err", r, "stack", string(debug.Stack()))
		}
	}()
	m := sc.f.messageOf(e)
	if m == nil || m.origin.QoS == 0 {
		return
	}
	hits := sc.hits[:0]
	sc.g.router.mu.RLock()
	sc.g.router.root.match(m.origin.Topic, true, func(subs []*subscription) {
		for _, sub := range subs {
			if sub.session != nil {
				hits = append(hits, sub.session)
			}
		}
	})
	sc.g.router.mu.RUnlock()
	for _, s := range hits {
		t.start(sc.give(s, m))
	}
	clear(hits)
	sc.hits = hits
}

// give offers a message to a rider. It returns a connection whose writer is to be started.
func (sc *scan) give(s *session, m *message) (start *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, p := s.conn, s.at.find(sc.f)
	if p == nil || !p.aboard || c == nil || m.seq < p.behind {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.hasRoomBehind(sc.f.lane) || s.resendsFirst(sc.f.lane) || c.ended || c.out.broken || s.heldBack(m.feed, m.seq) {
		p.behind = m.seq
		sc.off(s, p)
		sc.mu.Lock()
		sc.gotOff++
		sc.mu.Unlock()
		if !c.busy() { // it is, if another feed has to be read on first
			return nil
		}
	} else {
		c.redeliver(m)
		p.behind = m.seq + 1
	}
	if c.out.writing {
		return nil
	}
	c.out.writing = true
	return c
}

// end is the end of a pass: who is still on has been offered everything below next.
func (sc *scan) end(next uint64) {
	for _, s := range sc.all() {
		s.mu.Lock()
		if p := s.at.find(sc.f); p != nil && p.aboard {
			if p.behind <= next {
				s.changed()
				p.arrive(p.behind, next)
			}
			if !p.lagging() {
				sc.off(s, p)
				s.goOn()
			}
		}
		s.mu.Unlock()
	}
}

// wait gives the riders that got off for lack of room a moment to get on again before the scan is past them, unless others
// wait for the next pass.
func (sc *scan) wait(ctx context.Context) {
	select {
	case <-sc.settled: // of an earlier batch
	default:
	}
	sc.mu.Lock()
	off, others := sc.gotOff, int64(len(sc.riders)-len(sc.joined)) > sc.aboard.Load()
	sc.mu.Unlock()
	if off == 0 || others {
		return
	}
	timer := time.NewTimer(riderGrace)
	defer timer.Stop()
	select {
	case <-sc.settled:
	case <-timer.C:
	case <-ctx.Done():
	}
}
