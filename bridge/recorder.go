// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"
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
// records waits: routing and delivery stop, intake goes on. If trying again cannot help, it ends, and its path with it.
type recorder struct {
	p      *path
	stream *eventlog.Stream

	mu      sync.Mutex // guards all below
	room    *sync.Cond // there is room, or the recorder has ended
	enc     journal.Encoder
	waiting []func()  // run after what is in enc is committed and in the views
	full    []message // before enc
	bytes   int       // in full
	floor   uint64    // last floor written
	err     error     // why the last attempt to write failed; nil when it works
	closed  bool
	urgent  bool // somebody waits for what was added
	soon    bool // the next of a key does
	ended   bool
	wake    chan struct{}
}

// message is a message of JOURNEY and what waits for it.
type message struct {
	data    []byte
	waiting []func()
}

const (
	// recorderRoom is how many bytes of records may gather.
	recorderRoom = 512 << 10
	// messageSize is where a message ends: it is larger by less than its last record, which is a rule document of 256 KiB
	// or much smaller.
	messageSize = 256 << 10
	// gatherFor is how long records gather at least between two messages, and pressing how many bytes do not wait: a message
	// costs a sync of the disk, which intake wants too, and as much processor time as an event. A crash repeats what was
	// delivered meanwhile.
	gatherFor = 10 * time.Millisecond
	// gatherKeyed is gatherFor when there is an outcome that the next delivery of its key waits for.
	gatherKeyed = 5 * time.Millisecond
	pressing    = 64 << 10
	// floorEvery is how long a floor may go unwritten when nothing else is.
	floorEvery = time.Second
	// stopGrace is how long a message may take when a stop may wait no longer.
	stopGrace = time.Second
)

var errEnded = fault.New(fault.Unavailable, "outcomes are not recorded any more")

func newRecorder(p *path, stream *eventlog.Stream, floor uint64) *recorder {
	r := &recorder{p: p, stream: stream, floor: floor, wake: make(chan struct{}, 1)}
	r.room = sync.NewCond(&r.mu)
	return r
}

// add calls fn with the encoder once there is room, and then after once the records are committed. It blocks while
// there is no room. It returns false, and calls neither, when the recorder has ended; if it ends later after is not
// called.
func (r *recorder) add(fn func(*journal.Encoder), after func()) bool { return r.put(true, fn, after) }

// addNow is add without waiting for room: for the recorder's own goroutine, which makes the room.
func (r *recorder) addNow(fn func(*journal.Encoder), after func()) bool {
	return r.put(false, fn, after)
}

func (r *recorder) put(wait bool, fn func(*journal.Encoder), after func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for wait && r.bytes+r.enc.Len() >= recorderRoom && !r.ended {
		r.room.Wait()
	}
	if r.ended {
		return false
	}
	before := r.enc.Len() + len(r.waiting)
	fn(&r.enc)
	if after != nil {
		r.waiting = append(r.waiting, after)
	}
	size := r.enc.Len()
	if size >= messageSize {
		r.seal()
	}
	if before == 0 || size >= pressing {
		r.signal()
	}
	return true
}

func (r *recorder) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// seal ends the message that is gathering; the floor goes along. Called with mu held.
func (r *recorder) seal() {
	if floor, _ := r.p.track.state(); floor > r.floor {
		r.enc.Floor(floor)
		r.floor = floor
	}
	if r.enc.Len() == 0 && len(r.waiting) == 0 {
		return
	}
	r.full = append(r.full, message{r.enc.Take(), r.waiting})
	r.bytes += len(r.full[len(r.full)-1].data)
	r.waiting = nil
}

// outcome records what became of a delivery. The first outcome of a live delivery settles it for the floor.
func (r *recorder) outcome(t *task, o journal.Outcome) { r.record(t, o, true) }

// record is outcome; wait says whether it waits for room, as add, or not, as addNow.
func (r *recorder) record(t *task, o journal.Outcome, wait bool) {
	o.Seq, o.Route, o.Key = t.seq, t.route, t.key
	settles := !t.settled.Swap(true)
	if !r.put(wait, func(e *journal.Encoder) {
		t.final = true
		e.Outcome(o)
		if t.key != 0 && !r.soon {
			r.soon = true
			r.signal()
		}
	}, func() {
		if settles {
			r.p.track.done(t.seq)
		}
		t.lane.recorded(t, o)
	}) {
		t.lane.release(t)
		return
	}
	r.p.b.metrics.outcome(t, o)
}

// overtake parks a delivery whose attempt is still under way, so that the floor can move on. If the attempt has ended
// in the meantime its own outcome stands.
func (r *recorder) overtake(t *task, o journal.Outcome) {
	if t.settled.Swap(true) {
		return
	}
	o.Seq, o.Route, o.Key = t.seq, t.route, t.key
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
	if !r.add(func(*journal.Encoder) { r.urgent = true }, func() { close(done) }) {
		return errEnded
	}
	r.signal()
	select {
	case <-done:
		return nil
	case <-r.p.recorderDone:
		return errEnded
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

func (r *recorder) hasEnded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// close writes what was added and ends the recorder's goroutine. It returns what kept records from being written.
func (r *recorder) close() error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.signal()
	<-r.p.recorderDone
	return r.state()
}

// run is the recorder's goroutine.
func (r *recorder) run() {
	defer close(r.p.recorderDone)
	tick := time.NewTicker(floorEvery)
	defer tick.Stop()
	flush := false
	var last time.Time // when the last message was taken
	for {
		r.gather(last)
		last = time.Now()
		m, ok := r.take(flush)
		flush = false
		if !ok {
			if r.hasEnded() {
				return
			}
			select {
			case <-r.wake:
			case <-tick.C:
				flush = true
			}
			continue
		}
		if err := r.write(m.data); err != nil {
			r.p.b.log.Error("outcomes are not recorded any more", "bus", r.p.name, "err", err)
			r.fail(err)
			return
		}
		for _, fn := range m.waiting {
			fn()
		}
	}
}

// gather lets records come together for some time after the last message was taken, or until they press.
func (r *recorder) gather(last time.Time) {
	if time.Since(last) >= gatherFor {
		return
	}
	timer := time.NewTimer(gatherFor)
	defer timer.Stop()
	for {
		r.mu.Lock()
		now := r.closed || r.urgent || len(r.full) > 0 || r.enc.Len() >= pressing
		until := last.Add(gatherFor)
		if r.soon {
			until = last.Add(gatherKeyed)
		}
		r.mu.Unlock()
		d := time.Until(until)
		if now || d <= 0 {
			return
		}
		timer.Reset(d)
		select {
		case <-r.wake:
		case <-timer.C:
			return
		}
	}
}

// fail ends the recorder: nothing is written any more, and everyone who waits for room is let go.
func (r *recorder) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended, r.err = true, err
	r.full, r.waiting = nil, nil
	r.enc.Take()
	r.room.Broadcast()
}

// take returns the next message. A floor alone makes one if flush is true. A recorder that is closed ends here, when
// there is nothing left.
func (r *recorder) take(flush bool) (message, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.full) == 0 && (flush || r.closed || r.enc.Len() > 0 || len(r.waiting) > 0) {
		r.seal()
	}
	r.urgent, r.soon = r.urgent && len(r.full) > 1, false
	if len(r.full) == 0 {
		r.ended = r.ended || r.closed
		r.room.Broadcast()
		return message{}, false
	}
	m := r.full[0]
	r.full = r.full[1:]
	r.bytes -= len(m.data)
	r.room.Broadcast()
	return m, true
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
		case <-r.p.hard.Done():
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

// append commits a message. It blocks until that is decided, or until a stop may wait no longer: then the next start
// finds out.
func (r *recorder) append(msg []byte) (uint64, error) {
	done := make(chan eventlog.Result, 1)
	err := r.stream.Append(context.Background(), eventlog.Message{Subject: "journey." + r.p.name, Data: msg},
		func(res eventlog.Result) { done <- res })
	if err != nil {
		return 0, err
	}
	select {
	case res := <-done:
		return res.Seq, res.Err
	case <-r.p.hard.Done():
	}
	timer := time.NewTimer(stopGrace)
	defer timer.Stop()
	select {
	case res := <-done:
		return res.Seq, res.Err
	case <-timer.C:
		return 0, errors.New("the log does not answer")
	}
}
