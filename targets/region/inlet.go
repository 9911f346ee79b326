// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// name is the name of the inlet's state.
func (o origin) name() string { return o.instance + "." + o.link + "." + o.bus }

// inlet is what is known of one link of another bridge. Its state outlives its connections, of which it has one at a time.
type inlet struct {
	origin
	x *Inlets

	turn   chan struct{} // held by the connection whose messages are taken in
	saving chan struct{} // held by who writes the state

	mu       sync.Mutex // guards the fields below
	epochs   epochs
	by       string  // the key of the API that forwards
	seq      uint64  // everything of the link up to here in our log is in the epochs
	scanned  bool    // what is behind that in the log is in the epochs, too
	inFlight int     // batches
	dirty    bool    // differs from what is stored
	stored   bool    // a start knows where to begin to read
	current  *intake // the connection, if there is one
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
	// Beside is what our log has of it beside Done: stored by a batch that was cut, or found behind the state at a start.
	Beside Progress `json:"beside"`
	Last   LastSeen `json:"last"`
}

// seen notes the last event of a lane.
func (e *epoch) seen(l Lane, seq uint64, key event.Key) {
	to := &e.Last.Main
	if l == Urgent {
		to = &e.Last.Urgent
	}
	if *to == nil || (*to).Seq < seq {
		*to = &Seen{seq, key[:]}
	}
}

// maxRuns is how many runs a set may have: a near side has at most 64 gaps, and what lies beside is little.
const maxRuns = 512

var errRuns = fmt.Errorf("%w: it does too little of too much", errProtocol)

// tooMany reports whether a set has more runs than a link makes.
func (e *epoch) tooMany() bool {
	return len(e.Done.Main) > maxRuns || len(e.Done.Urgent) > maxRuns
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
	in                *inlet
	stream, epoch, by string // what the link reads, in which life, by whose right
	cancel            context.CancelCauseFunc
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

// welcome is what is known in an epoch, in memory of its own.
func (in *inlet) welcome(name string) Welcome {
	in.mu.Lock()
	defer in.mu.Unlock()
	e := in.epochs.of(name)
	return Welcome{Instance: in.x.o.Instance, Done: Progress{slices.Clone(e.Done.Main), slices.Clone(e.Done.Urgent)}, Last: e.Last}
}

// pending is a batch whose events are on their way into the log.
type pending struct {
	left   atomic.Int64 // events without a receipt, and one until all were handed over
	done   chan struct{}
	cut    bool // not all were handed over
	failed atomic.Bool

	mu       sync.Mutex // guards what receipts fill in
	ack      Ack
	highest  uint64   // in our log
	diverted bool     // an event stands in another bus than the inlet's
	taken    []uint64 // sequences of the sender that our log has
	last     Seen     // the last event of the batch, if it has one
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
		} else {
			p.diverted = true
		}
	}
	p.mu.Unlock()
	p.release()
}

// take hands the events of a batch to the log, in order. It blocks while the log has no room. An error is why the connection
// ends; the batch is returned in any case, and completes.
func (t *intake) take(ctx context.Context, b Batch) (*pending, error) {
	in := t.in
	p := &pending{done: make(chan struct{}), ack: Ack{Lane: b.Lane, From: b.From, To: b.To}}
	p.left.Store(1)
	defer p.release()
	in.mu.Lock()
	in.inFlight++
	many := in.epochs.of(t.epoch).tooMany()
	in.mu.Unlock()
	if many {
		p.cut = true
		return p, errRuns
	}
	stream, link := streamPrefix+in.bus, linkMark(in.link, t.epoch, b.Lane)
	for i, f := range b.Events {
		rec := f.Record
		if i == len(b.Events)-1 {
			key := rec.Event.Key()
			p.last = Seen{f.Seq, key[:]}
		}
		if in.knows(t.epoch, b.Lane, f.Seq) {
			p.count(func(a *Ack) { a.Known++ })
			continue
		}
		if why := in.unwelcome(f); why != "" {
			p.refuse(why)
			continue
		}
		rec.Link = link
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
func (in *inlet) unwelcome(f Forwarded) string {
	switch {
	case f.Unfit != nil:
		return f.Unfit.Error()
	case f.Record.Passed(in.x.o.Instance):
		return "the event has been here: a loop"
	case len(f.Record.Hops) >= event.MaxHops:
		return fmt.Sprintf("the event has passed %d bridges", len(f.Record.Hops))
	}
	return ""
}

// knows reports whether an event was taken in before.
func (in *inlet) knows(epochName string, l Lane, seq uint64) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	e := in.epochs.of(epochName)
	return e.Done.Of(l).Has(seq) || e.Beside.Of(l).Has(seq)
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
	e := in.epochs.of(t.epoch)
	in.dirty = true
	if p.cut || p.failed.Load() {
		beside := e.Beside.Of(p.ack.Lane)
		for _, seq := range p.taken {
			*beside = beside.Add(seq, seq)
		}
		in.seq = max(in.seq, p.highest)
		return p.ack, false
	}
	in.counts.refused += uint64(p.ack.Refused) //nolint:gosec // as above
	done := e.Done.Of(p.ack.Lane)
	*done = done.Add(p.ack.From, p.ack.To)
	if p.last.Seq > 0 {
		e.seen(p.ack.Lane, p.last.Seq, event.Key(p.last.Key))
		in.lastAt = in.x.o.Now()
	}
	in.seq = max(in.seq, p.highest)
	e.settle()
	return p.ack, true
}

// settle forgets what lies beside and its lane has passed.
func (e *epoch) settle() {
	for l := range lanes {
		if beside := e.Beside.Of(l); len(*beside) > 0 {
			*beside = minus(*beside, *e.Done.Of(l))
		}
	}
}

// linkMark is what event.Record.Link says: the link, its life and, if it is not main, the lane.
func linkMark(link, life string, l Lane) string {
	if l == Urgent {
		return link + "/" + life + "/urgent"
	}
	return link + "/" + life
}

// parseLinkMark is the inverse of linkMark.
func parseLinkMark(mark string) (link, life string, l Lane) {
	link, rest, _ := strings.Cut(mark, "/")
	life, lane, _ := strings.Cut(rest, "/")
	if lane == "urgent" {
		return link, life, Urgent
	}
	return link, life, Main
}
