// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/journal"
)

// recorder writes the records of one path to JOURNEY: it packs what gathers while the last message is being committed,
// commits it, brings it into the views, and then runs what waited for it. One goroutine does all this, so records reach
// the stream, the views and their waiters in the order in which they were added.
//
// If JOURNEY cannot be written the recorder keeps the message and tries again; meanwhile it fills up and whoever adds
// records waits: routing and delivery stop, intake goes on.
type recorder struct {
	p      *path
	stream *eventlog.Stream

	mu      sync.Mutex // guards all below
	room    *sync.Cond // there is room, or the recorder is closed
	enc     journal.Encoder
	waiting []func() // run after what is in enc is committed and in the views
	floor   uint64   // last floor written
	err     error    // why the last attempt to write failed; nil when it works
	closed  bool
	ended   bool
	wake    chan struct{}
}

const (
	// recorderRoom is how many bytes of records may gather; a message is never much larger.
	recorderRoom = 512 << 10
	// floorEvery is how long a floor may go unwritten when nothing else is.
	floorEvery = time.Second
)

func newRecorder(p *path, stream *eventlog.Stream) *recorder {
	r := &recorder{p: p, stream: stream, wake: make(chan struct{}, 1)}
	r.room = sync.NewCond(&r.mu)
	return r
}

// add calls fn with the encoder once there is room, and then after once the records are committed. It blocks while
// there is no room. Records added after close are not written; their after is not called.
func (r *recorder) add(fn func(*journal.Encoder), after func()) {
	r.mu.Lock()
	for r.enc.Len() >= recorderRoom && !r.ended {
		r.room.Wait()
	}
	if !r.ended {
		fn(&r.enc)
		if after != nil {
			r.waiting = append(r.waiting, after)
		}
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// outcome records what became of a delivery. The first outcome of a live delivery settles it for the floor.
func (r *recorder) outcome(t *task, o journal.Outcome) {
	o.Seq, o.Route = t.seq, t.route
	settles := !t.settled.Swap(true)
	r.add(func(e *journal.Encoder) {
		t.final = true
		e.Outcome(o)
	}, func() {
		if settles {
			r.p.track.done(t.seq)
		}
		t.lane.recorded(t, o)
	})
	r.p.b.metrics.outcome(t, o)
}

// overtake parks a delivery whose attempt is still under way, so that the floor can move on. If the attempt has ended
// in the meantime its own outcome stands.
func (r *recorder) overtake(t *task, o journal.Outcome) {
	if t.settled.Swap(true) {
		return
	}
	o.Seq, o.Route = t.seq, t.route
	r.add(func(e *journal.Encoder) {
		if !t.final {
			e.Outcome(o)
		}
	}, func() { r.p.track.done(t.seq) })
}

// cancel ends a delivery whose rule or target is gone.
func (r *recorder) cancel(t *task, reason string) {
	r.outcome(t, journal.Outcome{State: journal.Cancelled, At: r.p.b.o.Now(), Reason: reason})
}

// sync blocks until everything added so far is committed and in the views.
func (r *recorder) sync(ctx context.Context) error {
	done := make(chan struct{})
	r.add(func(*journal.Encoder) {}, func() { close(done) })
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// state returns why records cannot be written at the moment, or nil.
func (r *recorder) state() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// close writes what was added and ends the recorder's goroutine. It returns what kept records from being written.
func (r *recorder) close() error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
	<-r.p.recorderDone
	return r.state()
}

// run is the recorder's goroutine.
func (r *recorder) run() {
	defer close(r.p.recorderDone)
	tick := time.NewTicker(floorEvery)
	defer tick.Stop()
	for {
		msg, waiting, closed := r.take(false)
		if len(msg) == 0 && len(waiting) == 0 {
			if closed {
				if msg, waiting, _ = r.take(true); len(msg) == 0 && len(waiting) == 0 {
					r.end(nil)
					return
				}
			} else {
				select {
				case <-r.wake:
					continue
				case <-tick.C:
					msg, waiting, _ = r.take(true)
				}
			}
		}
		if err := r.write(msg); err != nil {
			r.p.b.log.Error("outcomes cannot be written", "bus", r.p.name, "err", err)
			r.end(err)
			return
		}
		for _, fn := range waiting {
			fn()
		}
	}
}

// end lets everyone go who waits for room: nothing is written any more.
func (r *recorder) end(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	if err != nil {
		r.err = err
	}
	r.room.Broadcast()
}

// take returns the message gathered so far. The floor goes along with other records, or alone if flush is true.
func (r *recorder) take(flush bool) (msg []byte, waiting []func(), closed bool) {
	floor, _, _ := r.p.track.state()
	r.mu.Lock()
	defer r.mu.Unlock()
	if floor > r.floor && (flush || r.enc.Len() > 0) {
		r.enc.Floor(floor)
		r.floor = floor
	}
	if r.enc.Len() > 0 {
		msg = r.enc.Take()
	}
	waiting, r.waiting = r.waiting, nil
	r.room.Broadcast()
	return msg, waiting, r.closed
}

// write commits a message and brings it into the views. It returns an error only if no later attempt can help.
func (r *recorder) write(msg []byte) error {
	if len(msg) == 0 {
		return nil
	}
	backoff := 10 * time.Millisecond
	for {
		seq, err := r.append(msg)
		if err == nil {
			r.setErr(nil)
			if err := r.p.b.o.Journal.Apply(r.p.name, seq, msg); err != nil {
				return fmt.Errorf("apply outcomes: %w", err)
			}
			return nil
		}
		if k := fault.KindOf(err); k != fault.Full && k != fault.Unavailable {
			return fmt.Errorf("append outcomes: %w", err)
		}
		if r.setErr(err) {
			r.p.b.log.Warn("outcomes cannot be written, trying again", "bus", r.p.name, "err", err)
		}
		timer := time.NewTimer(backoff)
		select {
		case <-timer.C:
		case <-r.p.b.hard.Done():
			timer.Stop()
			return err
		}
		backoff = min(2*backoff, time.Second)
	}
}

// setErr notes why writing fails and reports whether that is news.
func (r *recorder) setErr(err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	news := (r.err == nil) != (err == nil)
	r.err = err
	return news
}

func (r *recorder) append(msg []byte) (uint64, error) {
	done := make(chan eventlog.Result, 1)
	err := r.stream.Append(context.Background(), eventlog.Message{Subject: "journey." + r.p.name, Data: msg},
		func(res eventlog.Result) { done <- res })
	if err != nil {
		return 0, err
	}
	res := <-done
	return res.Seq, res.Err
}
