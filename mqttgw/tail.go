// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"runtime/debug"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/eventlog"
)

const (
	tailEntries = 256         // read at a time
	startAfter  = 128         // writers that are started together
	tailPause   = time.Second // after the log could not be read
)

// tailer follows a feed for all sessions. Its fields are the tail goroutine's.
type tailer struct {
	f        *feed
	g        *Gateway
	hits     []hit
	groups   []*group
	writers  []*conn // with a reserved place for a writer
	advanced time.Time
}

// runTail delivers everything behind tailPos as it is committed, until ctx is done. Nothing in it waits for a client.
func (f *feed) runTail(ctx context.Context) {
	t := &tailer{f: f, g: f.g}
	f.failing.Store(false)
	var entries []eventlog.Entry
	for ctx.Err() == nil {
		err := f.tail.Wait(ctx, f.routed.Load())
		if err == nil {
			entries, err = t.step(ctx, entries)
		}
		f.failing.Store(err != nil)
		if err == nil || ctx.Err() != nil {
			continue
		}
		f.g.log.Error("subscribers wait: the log cannot be read", "bus", f.name, "err", err)
		timer := time.NewTimer(tailPause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// step delivers one batch.
func (t *tailer) step(ctx context.Context, entries []eventlog.Entry) ([]eventlog.Entry, error) {
	g, f := t.g, t.f
	from := f.routed.Load() + 1
	most, err := f.toCut(ctx, from, tailEntries)
	if err != nil {
		return entries, err
	}
	r, err := f.read(from, most, entries[:0])
	if err != nil {
		return entries, err
	}
	f.upToCut(from, &r) // that was made since
	entries = r.entries
	if r.gone > 0 {
		f.lost(sessionKey{}, everySubscriber, from, r.gone) // retention has overtaken the tail, which takes hours of standstill
	}
	// The retained view is ahead of the subscribers: what a SUBSCRIBE finds in it does not come again.
	if v := g.opts.Retained; v != nil {
		if err := v.apply(f.name, entries, r.next); err != nil {
			return entries, err
		}
		if now := time.Now(); now.Sub(t.advanced) >= advanceEvery {
			t.advanced = now
			if err := v.advance(f.name, r.next-1); err != nil {
				return entries, err
			}
		}
	}
	for _, e := range entries {
		f.tailPos.Store(e.Seq)
		t.route(e)
	}
	t.startWriters()
	if r.next > 0 {
		f.tailPos.Store(max(f.tailPos.Load(), r.next-1))
		f.routedTo(r.next - 1)
	}
	clear(entries) // do not hold the events
	return entries, nil
}

// advanceEvery is how often the retained view is told of a position when nothing is retained.
const advanceEvery = 2 * time.Second

// route delivers one event to every session that is subscribed to it. A programming error costs the event's remaining
// deliveries and not the process.
func (t *tailer) route(e eventlog.Entry) {
	defer func() {
		if r := recover(); r != nil {
			t.g.metrics.panics.Inc()
			t.g.log.Error("event not delivered because of a programming error", "bus", t.f.name, "seq", e.Seq, "err", r, "stack", string(debug.Stack()))
		}
	}()
	if e.Seq <= t.f.recovered {
		t.g.recoverReceipt(e.Record)
	}
	if e.Seq <= t.f.start {
		return
	}
	m := t.f.messageOf(e)
	if m == nil {
		return
	}
	t.hits, t.groups = t.hits[:0], t.groups[:0]
	w := &t.g.walks[t.f.lane]
	w.mu.Lock()
	defer w.mu.Unlock()
	w.event++
	t.g.router.mu.RLock()
	defer t.g.router.mu.RUnlock()
	t.g.router.root.match(m.origin.Topic, true, func(subs []*subscription) { t.collect(w, m, subs) })
	for i := range t.hits {
		h := &t.hits[i]
		if h.barred {
			h.session.bar(m, h)
		} else {
			t.start(h.session.deliver(m, h))
		}
		h.session, h.ids = nil, nil
	}
	for i, gr := range t.groups {
		t.start(gr.deliver(m))
		t.groups[i] = nil
	}
}

// start notes a connection whose writer is to be started.
func (t *tailer) start(c *conn) {
	if c == nil {
		return
	}
	t.writers = append(t.writers, c)
	if len(t.writers) >= startAfter {
		t.startWriters()
	}
}

// lane is what feeds have in common that deliver one after the other.
type lane byte

const (
	laneDown lane = iota // DOWN, which waits for nobody
	laneUp               // the buses
	lanes
)

// walk makes the tails of a lane match one event at a time: sessions have a place for one hit of each lane only.
type walk struct {
	mu    sync.Mutex
	event uint64 // guarded by mu; which event is matched
}

// place is where the hit of a session is among those of the event that a lane matches. It is guarded by the walk's mu.
type place struct {
	event [lanes]uint64
	index [lanes]int32
}

// collect joins the subscriptions of each session to one hit. The walk's mu is held.
func (t *tailer) collect(w *walk, m *message, subs []*subscription) {
	for _, sub := range subs {
		if sub.group != nil {
			t.groups = append(t.groups, sub.group)
			continue
		}
		if !sub.suits(m) {
			continue
		}
		s := sub.session
		if s.hit.event[t.f.lane] != w.event {
			s.hit.event[t.f.lane], s.hit.index[t.f.lane] = w.event, int32(len(t.hits)) //nolint:gosec // sessions are fewer
			t.hits = append(t.hits, hit{session: s, barred: !s.mayReceive(m.origin.Topic)})
		}
		t.hits[s.hit.index[t.f.lane]].add(sub)
	}
}

func (t *tailer) startWriters() {
	for i, c := range t.writers {
		go c.write()
		t.writers[i] = nil
	}
	t.writers = t.writers[:0]
}
