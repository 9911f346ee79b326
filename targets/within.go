// SPDX-License-Identifier: Apache-2.0

package targets

import (
	"context"
	"sync"
	"time"
)

// Within is the context of one attempt: it ends at a moment, or with a context that many attempts share. It behaves as what
// context.WithTimeout returns and costs a fifth: nothing is set up before somebody asks for Done. Who waits for a connection
// need not ask: its deadline is the moment, and one look-out for the shared context is enough for all attempts over it.
//
// It is safe for concurrent use. Whoever made it calls Close when the attempt is over.
type Within struct {
	shared context.Context //nolint:containedctx // it is one itself
	end    time.Time

	mu     sync.Mutex // guards all below
	ctx    context.Context
	cancel context.CancelFunc // nil until somebody asked for Done
	closed bool
}

// NewWithin returns a context that ends after d, or with shared.
func NewWithin(shared context.Context, d time.Duration) *Within {
	end := time.Now().Add(d)
	if sooner, ok := shared.Deadline(); ok && sooner.Before(end) {
		end = sooner
	}
	return &Within{shared: shared, end: end}
}

// Shared is what it ends with beside its own moment.
func (w *Within) Shared() context.Context { return w.shared }

// Deadline implements context.Context.
func (w *Within) Deadline() (time.Time, bool) { return w.end, true }

// Done implements context.Context.
func (w *Within) Done() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx == nil {
		w.ctx, w.cancel = context.WithDeadline(w.shared, w.end)
		if w.closed {
			w.cancel()
		}
	}
	return w.ctx.Done()
}

// Err implements context.Context.
func (w *Within) Err() error {
	if ctx, closed := w.state(); ctx != nil {
		return ctx.Err()
	} else if closed {
		return context.Canceled
	}
	if err := w.shared.Err(); err != nil {
		return err
	}
	if !time.Now().Before(w.end) {
		return context.DeadlineExceeded
	}
	return nil
}

func (w *Within) state() (ctx context.Context, closed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ctx, w.closed
}

// Value implements context.Context. What package context asks, to make one context the child of another, the one behind Done
// answers.
func (w *Within) Value(key any) any {
	if ctx, _ := w.state(); ctx != nil {
		return ctx.Value(key)
	}
	return w.shared.Value(key)
}

// Close ends it.
func (w *Within) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.cancel != nil {
		w.cancel()
	}
}
