// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"errors"
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
	g       *Gateway
	hits    []hit
	mark    uint64
	writers []*conn // with a reserved place for a writer
}

// runTail delivers everything behind tailPos as it is committed, until ctx is done. Nothing in it waits for a client.
func (g *Gateway) runTail(ctx context.Context) {
	t := &tailer{g: g}
	var entries []eventlog.Entry
	for ctx.Err() == nil {
		err := g.opts.Tail.Wait(ctx, g.tailPos.Load())
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
	from := g.tailPos.Load() + 1
	entries, next, err := g.opts.Tail.Read(ctx, from, tailEntries, entries[:0])
	if errors.Is(err, eventlog.ErrGone) {
		// Retention has overtaken the tail, which takes hours of standstill.
		first := g.opts.Tail.First()
		g.log.Error("messages left the log before subscribers got them", "from", from, "first", first)
		g.metrics.drop(droppedGone)
		g.tailPos.Store(max(from, first-1))
		return entries, nil
	}
	if err != nil {
		return entries, err
	}
	for _, e := range entries {
		g.tailPos.Store(e.Seq)
		t.route(e)
	}
	t.startWriters()
	if next > 0 {
		g.tailPos.Store(max(g.tailPos.Load(), next-1))
	}
	clear(entries) // do not hold the events
	return entries, nil
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
	m, expired := newMessage(e, t.g.now)
	if m == nil {
		if expired {
			t.g.metrics.drop(droppedExpired)
		}
		return
	}
	t.mark++
	t.hits = t.hits[:0]
	t.g.router.mu.RLock()
	defer t.g.router.mu.RUnlock()
	t.g.router.root.match(m.origin.Topic, true, func(subs []*subscription) { t.collect(m, subs) })
	for i := range t.hits {
		h := &t.hits[i]
		if h.conn.deliver(m, h) {
			t.writers = append(t.writers, h.conn)
			if len(t.writers) >= startAfter {
				t.startWriters()
			}
		}
		h.conn, h.ids = nil, nil
	}
}

// collect joins the subscriptions of each session to one hit.
func (t *tailer) collect(m *message, subs []*subscription) {
	for _, sub := range subs {
		if !sub.suits(m) {
			continue
		}
		s := &sub.conn.session
		if s.mark != t.mark {
			s.mark, s.hit = t.mark, len(t.hits)
			t.hits = append(t.hits, hit{conn: sub.conn})
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
