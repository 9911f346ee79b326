// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// changeWriter writes what becomes of commands to DOWN. As the recorder of sessions it packs what gathers while the last
// message is being committed, and then runs what waited for it; one goroutine does all this.
type changeWriter struct {
	g      *Gateway
	down   *Downlink
	wake   chan struct{}
	broken chan struct{} // closed when it has ended by itself

	mu      sync.Mutex
	full    []batch  // guarded by mu; messages that wait to be committed
	buf     []byte   // guarded by mu; changes that gather
	waiting []func() // guarded by mu; for the commit of buf
	closed  bool     // guarded by mu
	ended   bool     // guarded by mu

	refused bool // the goroutine's; the log's last refusal was logged
}

var errChangesEnded = errors.New("what becomes of commands is not written any more")

func newChangeWriter(g *Gateway, down *Downlink) *changeWriter {
	return &changeWriter{g: g, down: down, wake: make(chan struct{}, 1), broken: make(chan struct{})}
}

// add adds a change and runs then, if it is not nil, after its commit. It does not block. then is not called when the
// writer has ended; what DOWN does not say is found out anew after a start.
func (w *changeWriter) add(c change, then func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	if len(w.buf) == 0 {
		w.buf = append(w.buf, changesFormat)
	}
	w.buf = c.append(w.buf)
	if then != nil {
		w.waiting = append(w.waiting, then)
	}
	if len(w.buf) >= messageSize {
		w.seal()
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// seal ends the message that gathers. mu is held.
func (w *changeWriter) seal() {
	if len(w.buf) > 0 {
		w.full = append(w.full, batch{w.buf, w.waiting})
		w.buf, w.waiting = nil, nil
	}
}

// run is the goroutine: it ends after close, when everything is written.
func (w *changeWriter) run(ctx context.Context) {
	for {
		<-w.wake
		w.mu.Lock()
		w.seal()
		todo, closing := w.full, w.closed
		w.full = nil
		w.mu.Unlock()
		for _, b := range todo {
			if err := w.commit(ctx, b.records); err != nil {
				w.end(err)
				return
			}
			for _, then := range b.waiting {
				then()
			}
		}
		if closing {
			return
		}
	}
}

func (w *changeWriter) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *changeWriter) end(err error) {
	w.mu.Lock()
	w.ended, w.full, w.buf, w.waiting = true, nil, nil, nil
	w.mu.Unlock()
	close(w.broken)
	w.g.log.Error(errChangesEnded.Error(), "err", err)
}

// await waits until what closes done has run, ctx is done, or the writer has ended.
func (w *changeWriter) await(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return unavailable(context.Cause(ctx))
	case <-w.broken:
		return fault.New(fault.Unavailable, "%s", errChangesEnded)
	}
}

// commit appends a message and waits for its commit. The error says that no later attempt can help.
func (w *changeWriter) commit(ctx context.Context, msg []byte) error {
	for pause := minRetry; ; pause = min(2*pause, maxRetry) {
		err := w.append(ctx, msg)
		if err == nil {
			w.refused = false
			return nil
		}
		if k := fault.KindOf(err); k != fault.Full && k != fault.Unavailable || ctx.Err() != nil {
			return fmt.Errorf("append changes: %w", err)
		}
		if !w.refused {
			w.refused = true
			w.g.log.Warn("what becomes of commands cannot be written, trying again", "err", err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

func (w *changeWriter) append(ctx context.Context, msg []byte) error {
	done := make(chan error, 1)
	if err := w.down.appendChanges(ctx, msg, func(r eventlog.Result) { done <- r.Err }); err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
