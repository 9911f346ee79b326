// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/eventlog"
)

const (
	batchRead   = 1024                  // entries between two looks at the riders
	riderGrace  = 20 * time.Millisecond // for riders without room to get on again
	batchGrace  = 50 * time.Millisecond // in all for a batch
	fewRiders   = 16                    // up to so many the scan reads only what they are subscribed to,
	fewFilters  = 64                    // with at most so many filters
	scanRetries = time.Second           // after the log could not be read
)

// scan reads a feed once for all sessions that are far behind in it: 10,000 devices that return must not cost 10,000
// readings. A pass begins at the lowest position of a rider and goes on to the tail; each event is matched once and
// offered to the riders that are aboard. A rider without room gets off, and on again when it has room: if the pass is
// still in the batch where it got off, the batch is offered again from there; else it waits for the next pass. While few
// ride, only what they are subscribed to is read: one device that was away for long does not have a whole bus decoded.
type scan struct {
	f    *feed
	g    *Gateway
	wake chan struct{}

	mu      sync.Mutex
	riders  map[*session]struct{} // guarded by mu
	groups  map[*group]struct{}   // guarded by mu; shared groups that are far behind, with a member that has room
	joined  []*session            // guarded by mu; riders that are not aboard yet
	gotOff  int                   // guarded by mu; riders that got off for lack of room and are not on again
	settled chan struct{}         // gotOff has become 0

	aboard atomic.Int64 // riders that the present pass is not past

	// The scan goroutine's own.
	t    tailer
	hits []*session
}

func newScan(f *feed) *scan {
	return &scan{f: f, g: f.g, wake: make(chan struct{}, 1), settled: make(chan struct{}, 1), riders: map[*session]struct{}{}, groups: map[*group]struct{}{}, t: tailer{f: f, g: f.g}}
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
	sc.start()
}

// start has the scan go on.
func (sc *scan) start() {
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
		for more := true; more && ctx.Err() == nil; {
			var err error
			if more, err = sc.step(ctx); err == nil || ctx.Err() != nil {
				continue
			}
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

// step reads on for the shared groups, and once to the tail for the riders. It reports whether there were any.
func (sc *scan) step(ctx context.Context) (any bool, err error) {
	if any, err = sc.feedGroups(ctx); err != nil {
		return any, err
	}
	from := sc.begin()
	if from == 0 {
		return any, nil
	}
	return true, sc.pass(ctx, from)
}

// begin has all riders aboard and returns where the next pass begins: the lowest position of a rider; 0 = there are none.
func (sc *scan) begin() (from uint64) {
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
		want := sc.interest()
		r, err := sc.f.scanFrom(eventlog.ScanOptions{From: from, To: want.upTo, Max: batchRead, Topics: want.topics}, entries[:0])
		if err != nil {
			return err
		}
		entries = r.entries
		sc.f.upToCut(from, &r)
		if r.gone > 0 {
			sc.skip(from, r.gone)
		}
		whole := sc.offerAll(ctx, from, r.entries, &want)
		clear(entries)
		switch {
		case !whole: // it is read again for who has come
		case r.next <= from || sc.f.tailPos.Load() < r.next:
			sc.end(max(from, r.next))
			return nil
		default:
			from = r.next
		}
		if err := sc.g.pay(ctx, r.looked); err != nil {
			return err
		}
		if _, err := sc.feedGroups(ctx); err != nil {
			return err
		}
	}
	return nil
}

// offerAll offers a batch to those aboard, and to those who get on while it does. It reports false when one of these may
// want what was not read.
func (sc *scan) offerAll(ctx context.Context, from uint64, entries []eventlog.Entry, want *interest) bool {
	for begin := time.Now(); ; {
		for _, e := range entries {
			sc.offer(e)
		}
		sc.t.startWriters()
		sc.wait(ctx)
		if time.Since(begin) > batchGrace || !sc.board(from) {
			return true
		}
		if !sc.covers(want) {
			return false
		}
	}
}

// interest is what those aboard want to have read.
type interest struct {
	topics []string // filters; nil: everything
	of     []*session
	upTo   uint64 // where the feed ended before: a later subscription wants nothing of what is up to here
}

// interest returns what those aboard want, if they are few. With many it costs less to look at everything.
func (sc *scan) interest() (want interest) {
	if sc.aboard.Load() > fewRiders {
		return want
	}
	upTo := sc.f.tail.Committed()
	for _, s := range sc.all() {
		s.mu.Lock()
		if p := s.at.find(sc.f); p != nil && p.aboard {
			want.of = append(want.of, s)
			for _, sub := range s.subs {
				if sub.group == nil && !slices.Contains(want.topics, sub.filter) {
					want.topics = append(want.topics, sub.filter)
				}
			}
		}
		s.mu.Unlock()
	}
	if len(want.topics) == 0 || len(want.topics) > fewFilters {
		return interest{}
	}
	want.upTo = upTo
	return want
}

// covers reports whether those aboard are among those whose interest it is.
func (sc *scan) covers(want *interest) bool {
	if want.topics == nil {
		return true
	}
	for _, s := range sc.all() {
		s.mu.Lock()
		p := s.at.find(sc.f)
		stranger := p != nil && p.aboard && !slices.Contains(want.of, s)
		s.mu.Unlock()
		if stranger {
			return false
		}
	}
	return true
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
				p.arrive(next)
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

// readFor has the scan read for a shared group that is far behind.
func (sc *scan) readFor(gr *group) {
	sc.mu.Lock()
	sc.groups[gr] = struct{}{}
	sc.mu.Unlock()
	sc.start()
}

// feedGroups reads on once for each shared group that is far behind. It reports whether there were any.
func (sc *scan) feedGroups(ctx context.Context) (any bool, err error) {
	sc.mu.Lock()
	groups := slices.Collect(maps.Keys(sc.groups))
	clear(sc.groups) // before it is fed: a member that gets room meanwhile puts it back
	sc.mu.Unlock()
	for _, gr := range groups {
		if err == nil {
			err = sc.feedGroup(ctx, gr)
		} else {
			sc.readFor(gr)
		}
	}
	return len(groups) > 0, err
}

// feedGroup reads on for one. A programming error costs that, and not the process.
func (sc *scan) feedGroup(ctx context.Context, gr *group) error {
	defer func() {
		if r := recover(); r != nil {
			sc.g.metrics.panics.Inc()
			sc.g.log.Error("events not redelivered because of a programming error", "bus", sc.f.name, "filter", gr.filter, "err", r, "stack", string(debug.Stack()))
		}
	}()
	looked, more, err := gr.scanOn()
	if more || err != nil {
		sc.readFor(gr)
	}
	if err != nil {
		return err
	}
	return sc.g.pay(ctx, looked)
}

// catchUpBurst is what is read without a look at the rate: some batches.
const catchUpBurst = 16 << 20

// pay takes what was read from disk from the node's budget of catching up, and waits until there is some left.
func (g *Gateway) pay(ctx context.Context, bytes int) error {
	g.metrics.scanned.Add(float64(bytes))
	return g.catchUp.WaitN(ctx, min(bytes, g.catchUp.Burst()))
}
