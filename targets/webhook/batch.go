// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

// batchConfig bounds batches.
type batchConfig struct {
	MaxEvents int    `json:"maxEvents"`
	MaxBytes  int    `json:"maxBytes"`
	Linger    string `json:"linger"`
}

// The limits of batches that a config does not name. 32 events is the default concurrency of a lane: more are never there at once.
const (
	defaultBatchEvents = 32
	defaultBatchBytes  = 1 << 20
	defaultLinger      = 50 * time.Millisecond
	maxLinger          = 5 * time.Second
)

func (r *reader) batching(c *batchConfig) {
	r.gather = &gatherer{maxEvents: defaultBatchEvents, maxBytes: defaultBatchBytes, linger: defaultLinger}
	if c == nil {
		return
	}
	if r.mode != modeBatch {
		r.Complain("/batch", "is for mode batch")
	}
	if c.MaxEvents != 0 {
		r.gather.maxEvents = c.MaxEvents
	}
	if c.MaxBytes != 0 {
		r.gather.maxBytes = c.MaxBytes
	}
	if c.Linger != "" {
		var err error
		if r.gather.linger, err = time.ParseDuration(c.Linger); err != nil || r.gather.linger < time.Millisecond || r.gather.linger > maxLinger {
			r.Complain("/batch/linger", "is not a duration from 1ms to 5s")
		}
	}
}

// gatherer brings deliveries together that are under way at the same time. A lane has each of them in a worker of its own, with an
// attempt and an outcome of its own: the worker that comes first waits for others, and sends the request for all.
type gatherer struct {
	maxEvents, maxBytes int
	linger              time.Duration

	mu      sync.Mutex // guards all below, and what of current is not its leader's
	current *batch     // takes more; nil = none
}

// batch is deliveries of one request. It is its leader's once it is full.
type batch struct {
	items []item
	bytes int
	full  chan struct{} // closed when it takes no more
	done  chan struct{} // closed when all outcomes are there
}

// item is a delivery of a batch, and what became of it.
type item struct {
	id   string
	json []byte
	res  targets.Result
	err  error
}

// join adds a delivery to a batch. The one that is first leads it.
func (g *gatherer) join(d targets.Delivery) (b *batch, index int, leads bool) {
	one := item{id: d.ID, json: event.AppendJSON(nil, d.Event)}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.current != nil && g.current.bytes+len(one.json) > g.maxBytes {
		g.finish(g.current)
	}
	if g.current == nil {
		g.current, leads = &batch{full: make(chan struct{}), done: make(chan struct{})}, true
	}
	b = g.current
	b.items = append(b.items, one)
	b.bytes += len(one.json)
	if len(b.items) >= g.maxEvents {
		g.finish(b)
	}
	return b, len(b.items) - 1, leads
}

// finish says that a batch takes no more. Called with mu held.
func (g *gatherer) finish(b *batch) {
	if g.current == b {
		g.current = nil
		close(b.full)
	}
}

// gathered blocks until a batch is full, has waited long enough, or ctx is done. It leaves most of the time of ctx for the request.
func (g *gatherer) gathered(ctx context.Context, b *batch) {
	linger := g.linger
	if end, ok := ctx.Deadline(); ok {
		linger = min(linger, time.Until(end)/4)
	}
	timer := time.NewTimer(linger)
	defer timer.Stop()
	select {
	case <-b.full:
	case <-timer.C:
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.finish(b)
}

// deliverInBatch makes one attempt, together with others.
func (w *webhook) deliverInBatch(ctx context.Context, d targets.Delivery) (targets.Result, error) {
	b, i, leads := w.gather.join(d)
	if leads {
		w.gather.gathered(ctx, b)
		func() {
			defer close(b.done)
			w.sendBatch(ctx, b.items)
		}()
	}
	select {
	case <-b.done:
	case <-ctx.Done():
	}
	select {
	case <-b.done: // also if the time was up meanwhile: what was accepted is not sent again
		return b.items[i].res, b.items[i].err
	default: // the request may arrive all the same
		return targets.Result{}, &targets.Error{Reason: targets.ReasonOf(ctx.Err()), Err: ctx.Err()}
	}
}

// sendBatch sends items in one request. If that is refused for what is in it, each half is tried by itself, down to the single event:
// one that is refused ends no others.
func (w *webhook) sendBatch(ctx context.Context, items []item) {
	for i := range items {
		items[i].err = &targets.Error{Reason: targets.ReasonInternal} // should this not return
	}
	m := outbound.Message{Method: http.MethodPost, URL: w.url, Header: http.Header{"Content-Type": batchType}}
	hash := sha256.New()
	for i := range items {
		m.Body = append(append(m.Body, ','), items[i].json...)
		hash.Write([]byte(items[i].id + "\n"))
	}
	m.Body[0] = '['
	m.Body = append(m.Body, ']')
	res, err := w.attempt(ctx, m, "bat_"+hex.EncodeToString(hash.Sum(nil)[:16]))
	var te *targets.Error
	if len(items) > 1 && slices.Contains(dividing, res.Status) && errors.As(err, &te) && !te.Abort && ctx.Err() == nil {
		w.sendBatch(ctx, items[:len(items)/2])
		w.sendBatch(ctx, items[len(items)/2:])
		return
	}
	for i := range items {
		items[i].res, items[i].err = res, err
	}
}

// dividing are the statuses that may be said of one event in a batch, or of how many there are.
var dividing = []int{http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity}

var batchType = []string{event.BatchType}
