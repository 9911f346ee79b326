// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/journal"
)

// Found is a stored event.
type Found struct {
	Event    *event.Event
	Position event.Position
	Received time.Time
	Origin   *event.Origin    // non-nil if it was published over MQTT
	Hops     []event.Hop      // where it stood before, if a link has forwarded it
	State    string           // as Journey.State, with the deliveries taken together: see stateOf
	Journey  *Journey         // nil in search results
	Others   []event.Position // older stored events with the same id, some of them if there are many
}

// maxOthers is how many other events with its id are named beside an event.
const maxOthers = 31

// maxSameID is how many events with one id are looked at: sources that count from 1 share their ids.
const maxSameID = 10_000

// Event returns a stored event by its id, with its journey. An event can be read as soon as it is accepted. If several
// have the id, source chooses; without it the newest is returned and the others are named. The error is NotFound if
// there is none.
func (b *Bridge) Event(ctx context.Context, bus, id, source string) (*Found, error) {
	return b.EventPage(ctx, EventQuery{Bus: bus, ID: id, Source: source})
}

// EventQuery names an event, and the part of its journey that is asked for.
type EventQuery struct {
	Bus, ID, Source string
	Limit           int    // records of its journey, 1-1000; 0 = 1000
	Cursor          string // NextCursor of the journey that told newer ones; "" = the newest
}

// EventPage is Event with a part of the journey: how its deliveries stand, and what the records of that part tell of attempts,
// redrives and who discarded.
func (b *Bridge) EventPage(ctx context.Context, q EventQuery) (*Found, error) {
	p, err := b.path(q.Bus)
	if err != nil {
		return nil, err
	}
	most := journal.MaxJourneyRecords
	if q.Limit != 0 {
		if most, err = limitOf(q.Limit); err != nil {
			return nil, err
		}
	}
	seq, before, err := readJourneyCursor(q.Cursor)
	if err != nil {
		return nil, err
	}
	found, err := p.find(ctx, q.ID, q.Source)
	if err != nil {
		return nil, err
	}
	if before > 0 && found.Position.Seq != seq {
		return nil, fault.Invalidf("/cursor", "is one of another event")
	}
	j, err := p.journeyOf(ctx, found, before, most)
	if err != nil {
		return nil, err
	}
	found.Journey, found.State = j, stateOf(j)
	return found, nil
}

// Find is Event without the journey and the state.
func (b *Bridge) Find(ctx context.Context, bus, id, source string) (*Found, error) {
	p, err := b.path(bus)
	if err != nil {
		return nil, err
	}
	return p.find(ctx, id, source)
}

// Stored reports whether an event of a source and id that was sent to a bus is in the log: on that bus, or on the one to which it
// sends what does not fit its schema. An event can be found as soon as it is accepted, and until retention has passed over it.
func (b *Bridge) Stored(ctx context.Context, bus, source, id string) (there bool, err error) {
	paths, err := b.pathsOf(bus)
	if err != nil {
		return false, err
	}
	for _, p := range paths {
		err := p.byID(ctx, id, func(e eventlog.Entry) bool {
			there = e.Record.Event.Source == source
			return !there
		})
		if there || err != nil {
			return there, err
		}
	}
	return false, nil
}

// pathsOf returns the path of a bus and, if there is one, that of its quarantine: an event that was sent to the bus is on one of
// them.
func (b *Bridge) pathsOf(bus string) ([]*path, error) {
	p, err := b.path(bus)
	if err != nil {
		return nil, err
	}
	paths := []*path{p}
	if q, err := b.path(p.doc.Load().QuarantineBus); err == nil && q != p {
		paths = append(paths, q)
	}
	return paths, nil
}

func (p *path) find(ctx context.Context, id, source string) (*Found, error) {
	var found *Found
	err := p.byID(ctx, id, func(e eventlog.Entry) bool {
		switch {
		case source != "" && e.Record.Event.Source != source:
		case found == nil:
			found = p.found(e)
		default:
			found.Others = append(found.Others, p.position(e.Seq))
		}
		return found == nil || len(found.Others) < maxOthers
	})
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, fault.New(fault.NotFound, "no event with this id on bus %q", p.name)
	}
	return found, nil
}

func (p *path) position(seq uint64) event.Position {
	return event.Position{Stream: p.log.StreamName(), Seq: seq}
}

func (p *path) found(e eventlog.Entry) *Found {
	r := p.log.view(e.Record)
	return &Found{Event: &r.Event, Position: p.position(e.Seq), Received: r.Received, Origin: r.MQTT, Hops: r.Hops}
}

// byID calls fn for the events with an id, newest first, until it returns false: those of the tail that are not indexed
// yet, and those that are.
func (p *path) byID(ctx context.Context, id string, fn func(eventlog.Entry) bool) error {
	indexed, err := p.b.o.Journal.Indexed(p.name)
	if err != nil {
		return err
	}
	var tail, buf []eventlog.Entry
	for from, end := indexed+1, p.log.Committed(); from <= end; {
		entries, next, err := p.log.Bus.Read(ctx, from, 1024, buf[:0])
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.Record.Event.ID == id {
				tail = append(tail, e)
			}
		}
		if next <= from {
			break
		}
		buf, from = entries, next
	}
	minted, err := p.mintedAs(ctx, id, indexed)
	if err != nil {
		return err
	}
	more := true
	newer := func(than uint64) { // hands over those of minted
		for len(minted) > 0 && more && minted[len(minted)-1].Seq > than {
			more = fn(minted[len(minted)-1])
			minted = minted[:len(minted)-1]
		}
	}
	for _, e := range slices.Backward(tail) {
		if !fn(e) {
			return nil
		}
	}
	const page = 64
	for looked, before := 0, indexed+1; looked < maxSameID; looked += page {
		seqs, err := p.b.o.Journal.ByID(p.name, id, before, page)
		if err != nil {
			return err
		}
		for _, seq := range seqs {
			if newer(seq); !more {
				return nil
			}
			e, err := p.log.Get(ctx, seq)
			switch {
			case isGone(err):
			case err != nil:
				return err
			case e.Record.Event.ID == id && !fn(e):
				return nil
			}
			before = seq
		}
		if len(seqs) < page {
			break
		}
	}
	newer(0)
	return nil
}

// mintedAs returns the events up to last, which are in the views, with an id that the bridge has chosen, oldest first: one,
// as a rule.
func (p *path) mintedAs(ctx context.Context, id string, last uint64) (found []eventlog.Entry, err error) {
	spans, err := p.b.o.Journal.Minted(p.name, id)
	if err != nil {
		return nil, err
	}
	var buf []eventlog.Entry
	for _, s := range spans {
		to := min(s.To, last)
		for from := max(s.From, p.log.First()); from <= to; {
			entries, next, err := p.log.Bus.Read(ctx, from, int(to-from)+1, buf[:0]) //nolint:gosec // a span has few events
			if err != nil {
				return nil, err
			}
			for _, e := range entries {
				if e.Record.Minted && e.Record.Event.ID == id {
					found = append(found, e)
				}
			}
			if next <= from {
				break
			}
			buf, from = entries, next
		}
	}
	return found, nil
}

// isGone reports whether an event is no longer, or never was, at a position.
func isGone(err error) bool {
	return errors.Is(err, eventlog.ErrGone) || errors.Is(err, eventlog.ErrGap) || errors.Is(err, eventlog.ErrNotFound)
}
