// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// work is the goroutine of a broadcast. It ends when the broadcast has, or is paused.
func (b *broadcasts) work(r *broadcast) {
	saved := time.Now()
	names := b.g.selected(&r.Select, r.Cursor)
	for {
		if !b.isRunning(r, true) || b.ctx.Err() != nil {
			return
		}
		began := time.Now()
		most := max(1, min(r.Batch, int(r.Rate*broadcastTurn.Seconds())))
		turn := names[:min(most, len(names))]
		taken, err := b.send(r, turn)
		pace := time.Duration(float64(taken)/r.Rate*float64(time.Second)) - time.Since(began)
		names = names[taken:]
		switch {
		case b.ctx.Err() != nil:
			return
		case err != nil:
			pace = broadcastRetry
		case len(turn) == 0:
			err = b.change(b.ctx, r, func(r *broadcast) error {
				if r.State == BroadcastRunning {
					r.State = BroadcastDone
				}
				return nil
			})
			if err == nil {
				b.g.log.Info("broadcast done", "job", r.ID)
				continue
			}
			pace = broadcastRetry
		case time.Since(saved) >= broadcastCheckpoint:
			saved = time.Now()
			if err := b.change(b.ctx, r, func(*broadcast) error { return nil }); err != nil {
				b.g.log.Warn("broadcast's progress cannot be written", "job", r.ID, "err", err)
			}
		}
		b.note(r, err)
		if !b.rest(r, pace) {
			return
		}
	}
}

// note says why a broadcast waits, to the log too, as long as the reason is the same once.
func (b *broadcasts) note(r *broadcast, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := r.Waiting
	if r.Waiting = ""; err != nil && r.State == BroadcastRunning {
		if r.Waiting = reasonFor(err); r.Waiting != before {
			b.g.log.Warn("broadcast waits", "job", r.ID, "err", err)
		}
	}
}

// reasonFor is what a person reads.
func reasonFor(err error) string {
	var f *fault.Error
	if errors.As(err, &f) {
		return f.Error()
	}
	return "an internal error, see the server's log"
}

// send gives some devices their command, all at the same time. taken is how many of the first had their turn; the error
// says why the one behind them has to wait.
func (b *broadcasts) send(r *broadcast, names []string) (taken int, err error) {
	results := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			spec := r.Command
			spec.Device, spec.ID, spec.Topic, spec.job = name, r.ID, topicFor(spec.Topic, name), r.ID
			_, results[i] = b.g.SendCommand(b.ctx, spec)
		})
	}
	wg.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, res := range results {
		switch kind := fault.KindOf(res); {
		case res == nil:
			r.Sent++
		case kind == fault.Invalid, kind == fault.Conflict, kind == fault.TooLarge, errors.Is(res, errMailboxFull):
			r.Skipped++
			r.Skip = reasonFor(res)
		default: // those behind it that were sent are the same commands the next time
			return taken, res
		}
		taken++
		r.Cursor = names[i]
	}
	return taken, nil
}

// isRunning reports whether a broadcast is to go on; if not, and last, its goroutine ends.
func (b *broadcasts) isRunning(r *broadcast, last bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.State != BroadcastRunning && last {
		r.active = false
	}
	return r.State == BroadcastRunning
}

// rest waits, or until the broadcast is not to run any more. It returns false when the gateway stops.
func (b *broadcasts) rest(r *broadcast, d time.Duration) bool {
	t := time.NewTimer(max(d, 0))
	defer t.Stop()
	for {
		select {
		case <-t.C:
			return true
		case <-r.wake:
			if !b.isRunning(r, false) {
				return true
			}
		case <-b.ctx.Done():
			return false
		}
	}
}

// save has the progress of broadcasts written down once more.
func (b *broadcasts) save(ctx context.Context) error {
	b.mu.Lock()
	var open []*broadcast
	for _, r := range b.all {
		if r.State == BroadcastRunning {
			open = append(open, r)
		}
	}
	b.mu.Unlock()
	var errs []error
	for _, r := range open {
		errs = append(errs, b.change(ctx, r, func(*broadcast) error { return nil }))
	}
	return errors.Join(errs...)
}
