// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"runtime/debug"
	"time"

	"github.com/rialto-bridge/rialto/internal/eventlog"
)

const (
	tailEntries = 256         // read at a time
	startAfter  = 128         // writers that are started together
	tailPause   = time.Second // after the log could not be read
)

// tailer follows the bus for all sessions. Its fields are the tail goroutine's.
type tailer struct {
	g        *Gateway
	hits     []hit
	groups   []*group
	mark     uint64
	writers  []*conn // with a reserved place for a writer
	advanced time.Time
}

// runTail delivers everything behind tailPos as it is committed, until ctx is done. Nothing in it waits for a client.
func (g *Gateway) runTail(ctx context.Context) {
	t := &tailer{g: g}
	var entries []eventlog.Entry
	for ctx.Err() == nil {
		err := g.opts.Tail.Wait(ctx, g.routed.Load())
		if err == nil {
			entries, err = t.step(ctx, entries)
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		g.log.Error("subscribers wait: the log cannot be read", "err", err)
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
	g := t.g
	from := g.routed.Load() + 1
	r, err := g.readLog(from, tailEntries, entries[:0])
	if err != nil {
		return entries, err
	}
	entries = r.entries
	if r.gone > 0 {
		// Retention has overtaken the tail, which takes hours of standstill.
		g.log.Error("messages left the log before subscribers got them", "from", from, "sequences", r.gone)
		g.metrics.drop(droppedGone)
	}
	// The retained view is ahead of the subscribers: what a SUBSCRIBE finds in it does not come again.
	if v := g.opts.Retained; v != nil {
		if err := v.apply(entries, r.next); err != nil {
			return entries, err
		}
		if now := time.Now(); now.Sub(t.advanced) >= advanceEvery {
			t.advanced = now
			if err := v.advance(r.next - 1); err != nil {
				return entries, err
			}
		}
	}
	for _, e := range entries {
		g.tailPos.Store(e.Seq)
		t.route(e)
	}
	t.startWriters()
	if r.next > 0 {
		g.tailPos.Store(max(g.tailPos.Load(), r.next-1))
		g.routedTo(r.next - 1)
	}
	clear(entries) // do not hold the events
	return entries, nil
}

// advanceEvery is how often the retained view is told of a position when nothing is retained.
const advanceEvery = 2 * time.Second

// routedTo says how far the tail has delivered, and wakes who waits for it.
func (g *Gateway) routedTo(seq uint64) {
	g.routed.Store(seq)
	if g.tailWaiters.Load() == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.tailMoved != nil {
		close(g.tailMoved)
		g.tailMoved = nil
	}
}

// awaitTail waits until the tail has delivered everything up to a sequence.
func (g *Gateway) awaitTail(ctx context.Context, seq uint64) error {
	g.tailWaiters.Add(1)
	defer g.tailWaiters.Add(-1)
	for {
		g.mu.Lock()
		if g.tailMoved == nil {
			g.tailMoved = make(chan struct{})
		}
		moved := g.tailMoved
		g.mu.Unlock()
		if g.routed.Load() >= seq {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// route delivers one event to every session that is subscribed to it. A programming error costs the event's remaining
// deliveries and not the process.
func (t *tailer) route(e eventlog.Entry) {
	defer func() {
		if r := recover(); r != nil {
			t.g.metrics.panics.Inc()
			t.g.log.Error("event not delivered because of a programming error", "seq", e.Seq, "err", r, "stack", string(debug.Stack()))
		}
	}()
	if e.Seq <= t.g.recovered {
		t.g.recoverReceipt(e.Record)
	}
	m := t.g.messageOf(e)
	if m == nil {
		return
	}
	t.mark++
	t.hits, t.groups = t.hits[:0], t.groups[:0]
	t.g.router.mu.RLock()
	defer t.g.router.mu.RUnlock()
	t.g.router.root.match(m.origin.Topic, true, func(subs []*subscription) { t.collect(m, subs) })
	for i := range t.hits {
		h := &t.hits[i]
		t.start(h.session.deliver(m, h))
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

// collect joins the subscriptions of each session to one hit.
func (t *tailer) collect(m *message, subs []*subscription) {
	for _, sub := range subs {
		if sub.group != nil {
			t.groups = append(t.groups, sub.group)
			continue
		}
		if !sub.suits(m) {
			continue
		}
		s := sub.session
		if s.mark != t.mark {
			s.mark, s.hit = t.mark, len(t.hits)
			t.hits = append(t.hits, hit{session: s})
		}
		t.hits[s.hit].add(sub)
	}
}

func (t *tailer) startWriters() {
	for i, c := range t.writers {
		go c.write()
		t.writers[i] = nil
	}
	t.writers = t.writers[:0]
}
