// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// origin is which link of which bridge forwards from where to where. It names an inlet.
type origin struct {
	instance, link, stream string // of the sender
	bus                    string // ours
}

// key is the name of the inlet's state.
func (o origin) key() string { return o.instance + "." + o.link + "." + o.bus }

// inlet is what is known of one link of another bridge. Its state outlives its connections, of which it has one at a time.
type inlet struct {
	origin
	x *Inlets

	turn   chan struct{} // held by the connection whose messages are taken in
	saving chan struct{} // held by who writes the state

	mu       sync.Mutex // guards the fields below
	epochs   epochs
	seq      uint64              // everything of the link up to here in our log is in the epochs
	highest  uint64              // where the latest event of the link stands in our log
	recent   map[uint64]struct{} // sequences of the sender that our log has behind that: found at the start, or left by a batch that was cut
	scanned  bool                // recent is complete
	inFlight int                 // batches
	dirty    bool                // differs from what is stored
	stored   bool                // a start knows where to begin to read
	current  *intake             // the connection, if there is one
	counts   inletCounts
	lastAt   time.Time // of the last batch with an event
}

type inletCounts struct{ stored, known, refused uint64 }

// epochs are the last lives of a link, the latest at the end.
type epochs []epoch

// epoch is what is done of a link in one of its lives.
type epoch struct {
	Name string   `json:"name"`
	Done Progress `json:"done"`
}

// keptEpochs is how many lives of a link are known: a near side that was restored from a backup may live in an older one.
const keptEpochs = 4

// of returns the epoch of a name, which becomes the latest.
func (e *epochs) of(name string) *epoch {
	if n := len(*e); n > 0 && (*e)[n-1].Name == name {
		return &(*e)[n-1]
	}
	i := slices.IndexFunc(*e, func(x epoch) bool { return x.Name == name })
	x := epoch{Name: name}
	if i >= 0 {
		x = (*e)[i]
		*e = slices.Delete(*e, i, i+1)
	} else if len(*e) >= keptEpochs {
		*e = slices.Delete(*e, 0, 1)
	}
	*e = append(*e, x)
	return &(*e)[len(*e)-1]
}

// intake is one connection of an inlet.
type intake struct {
	in            *inlet
	stream, epoch string // what the link reads, in which life
	cancel        context.CancelCauseFunc
}

// begin puts a connection in the place of the one before, and waits until that has ended, or until ctx is done.
func (in *inlet) begin(ctx context.Context, t *intake) error {
	in.mu.Lock()
	before := in.current
	in.current = t
	in.mu.Unlock()
	if before != nil {
		before.cancel(errReplaced)
	}
	select {
	case in.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		in.leave(t)
		return context.Cause(ctx)
	}
}

// end gives the turn back. Nothing of the connection is in flight any more.
func (t *intake) end() {
	t.in.leave(t)
	<-t.in.turn
}

func (in *inlet) leave(t *intake) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.current == t {
		in.current = nil
	}
}

// progress returns what is done in an epoch, in memory of its own.
func (in *inlet) progress(name string) Progress {
	in.mu.Lock()
	defer in.mu.Unlock()
	e := in.epochs.of(name)
	return Progress{slices.Clone(e.Done.Main), slices.Clone(e.Done.Urgent)}
}

// pending is a batch whose events are on their way into the log.
type pending struct {
	Batch
	left   atomic.Int64 // events without a receipt, and one until all were handed over
	done   chan struct{}
	cut    bool // not all were handed over
	failed atomic.Bool

	mu      sync.Mutex // guards what receipts fill in
	ack     Ack
	highest uint64   // in our log
	taken   []uint64 // sequences of the sender that our log has
}

func (p *pending) release() {
	if p.left.Add(-1) == 0 {
		close(p.done)
	}
}

// settled is told how an event ended.
func (p *pending) settled(seq uint64, stream string, r eventlog.Receipt) {
	p.mu.Lock()
	switch {
	case r.Err != nil:
		p.failed.Store(true)
	case r.Duplicate:
		p.ack.Known++
	default:
		p.ack.Stored++
	}
	if r.Err == nil {
		p.taken = append(p.taken, seq)
		if r.Pos.Stream == stream {
			p.highest = max(p.highest, r.Pos.Seq)
		}
	}
	p.mu.Unlock()
	p.release()
}

// take hands the events of a batch to the log, in order. It blocks while the log has no room. An error is why the connection
// ends; the batch is returned in any case, and completes.
func (t *intake) take(ctx context.Context, b Batch) (*pending, error) {
	in := t.in
	p := &pending{Batch: b, done: make(chan struct{}), ack: Ack{Lane: b.Lane, From: b.From, To: b.To}}
	p.left.Store(1)
	defer p.release()
	in.mu.Lock()
	in.inFlight++
	in.mu.Unlock()
	stream := streamPrefix + in.bus
	for _, f := range b.Events {
		if in.knows(t.epoch, b.Lane, f.Seq) {
			p.count(func(a *Ack) { a.Known++ })
			continue
		}
		rec := f.Record
		if why := in.unwelcome(rec); why != "" {
			p.refuse(why)
			continue
		}
		rec.Hops = append(rec.Hops, event.Hop{Instance: in.instance, Position: event.Position{Stream: in.stream, Seq: f.Seq}})
		seq := f.Seq
		p.left.Add(1)
		err := in.x.o.Log.Publish(ctx, in.bus, rec, func(r eventlog.Receipt) { p.settled(seq, stream, r) })
		if err == nil {
			continue
		}
		p.left.Add(-1)
		switch fault.KindOf(err) {
		case fault.Unfit, fault.TooLarge, fault.Invalid:
			p.refuse(reasonOf(err))
		default:
			p.cut = true
			return p, err
		}
	}
	return p, nil
}

func (p *pending) count(fn func(*Ack)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fn(&p.ack)
}

func (p *pending) refuse(why string) {
	p.count(func(a *Ack) {
		a.Refused++
		if a.Why == "" {
			a.Why = why
		}
	})
}

// reasonOf is a refusal in the words for users, with what is wrong in the event.
func reasonOf(err error) string {
	var told *fault.Error
	if !errors.As(err, &told) {
		return "cannot be stored"
	}
	if len(told.Details) > 0 {
		d := told.Details[0]
		return fmt.Sprintf("%s: %s %s", told.Message, d.Pointer, d.Detail)
	}
	return told.Message
}

// unwelcome says why an event is not stored; "" if it is.
func (in *inlet) unwelcome(rec *event.Record) string {
	switch {
	case rec.Passed(in.x.o.Instance):
		return "the event has been here: a loop"
	case len(rec.Hops) >= event.MaxHops:
		return fmt.Sprintf("the event has passed %d bridges", len(rec.Hops))
	}
	return ""
}

// knows reports whether an event was taken in before.
func (in *inlet) knows(epochName string, l Lane, seq uint64) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if _, ok := in.recent[seq]; ok {
		return true
	}
	e := in.epochs.of(epochName)
	return e.Done.Of(l).Has(seq)
}

// commit waits for a batch, which is the oldest in flight, and writes down what became of it. It reports whether all of it is
// committed. It waits as long as the log does, which ends all appends in the end.
func (t *intake) commit(p *pending) (Ack, bool) {
	<-p.done
	in := t.in
	in.mu.Lock()
	defer in.mu.Unlock()
	in.inFlight--
	in.counts.stored += uint64(p.ack.Stored) //nolint:gosec // not negative, as the others
	in.counts.known += uint64(p.ack.Known)   //nolint:gosec // as above
	if p.cut || p.failed.Load() {
		for _, seq := range p.taken {
			in.recent[seq] = struct{}{}
		}
		return p.ack, false
	}
	in.counts.refused += uint64(p.ack.Refused) //nolint:gosec // as above
	done := in.epochs.of(t.epoch).Done.Of(p.Lane)
	*done = done.Add(p.From, p.To)
	in.highest = max(in.highest, p.highest)
	in.forget(in.epochs.of(t.epoch))
	if len(in.recent) == 0 { // else a start has to find them again
		in.seq = max(in.seq, in.highest)
	}
	if len(p.Events) > 0 {
		in.lastAt = in.x.o.Now()
	}
	in.dirty = true
	return p.ack, true
}

// forget drops the places of events that no lane will bring again. mu is held.
func (in *inlet) forget(e *epoch) {
	for seq := range in.recent {
		if e.Done.Main.Has(seq) && (len(e.Done.Urgent) == 0 || e.Done.Urgent.Has(seq)) {
			delete(in.recent, seq)
		}
	}
}
