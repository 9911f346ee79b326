// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/journal"
)

// SearchQuery selects events of a bus; empty fields select all.
type SearchQuery struct {
	Type, Source, Subject string
	Status                string // one of the states above
	Target                string // with a delivery to this target that is parked or has ended
	Outcome               string // with Target: how that delivery stands; one of Outcomes
	From, To              time.Time
	Limit                 int    // 1-1000; 0 = 100
	Cursor                string // NextCursor of the last page
}

// Outcomes are how a delivery can stand that a search looks for.
var Outcomes = []string{journal.Parked.String(), journal.Delivered.String(), journal.Dead.String(), journal.Expired.String(),
	journal.Cancelled.String(), journal.Discarded.String()}

// SearchPage is a part of a list of events, newest first. A page may be short, or empty, and still have a NextCursor: the
// scan budget was used up, or its events have 8 MiB together; it may be more by one of them.
type SearchPage struct {
	Items      []Found
	NextCursor string // "" on the last page
}

// searchBudget is how many messages one page looks at; to ask for the state of an event costs as much as stateCost.
const (
	searchBudget = 20_000
	stateCost    = 20
)

// Search lists events, newest first.
func (b *Bridge) Search(ctx context.Context, bus string, q SearchQuery) (SearchPage, error) {
	var page SearchPage
	p, err := b.path(bus)
	if err != nil {
		return page, err
	}
	limit, err := limitOf(q.Limit)
	if err != nil {
		return page, err
	}
	before, err := cursorOf(q.Cursor)
	if err != nil {
		return page, err
	}
	switch q.Status {
	case "", StatePending, StateUnmatched, StateDelivered, StateDead, StateExpired, StateCancelled:
	default:
		return page, fault.Invalidf("/status", "must be one of pending, unmatched, delivered, dead, expired, cancelled")
	}
	if q.Outcome != "" && (q.Target == "" || !slices.Contains(Outcomes, q.Outcome)) {
		return page, fault.Invalidf("/outcome", "must be one of %s, and goes with target", strings.Join(Outcomes, ", "))
	}
	size := 0
	for budget := searchBudget; budget > 0; {
		found, next, cost, err := p.candidates(ctx, q, before, limit, budget)
		if err != nil {
			return page, err
		}
		budget -= cost + stateCost*len(found)
		seqs := make([]uint64, len(found))
		for i, e := range found {
			seqs[i] = e.Seq
		}
		journeys, err := p.b.o.Journal.Journeys(ctx, p.name, p.journey, seqs)
		if err != nil {
			return page, err
		}
		for _, e := range found {
			f := p.found(e)
			j := deliveriesOf(journeys[e.Seq])
			if f.State = stateOf(j); q.Status != "" && f.State != q.Status || !j.has(q.Target, q.Outcome) {
				continue
			}
			page.Items = append(page.Items, *f)
			if size += sizeOf(f.Event); len(page.Items) == limit || size >= pageBytes {
				next = e.Seq
				budget = 0
				break
			}
		}
		if before = next; before <= p.log.First() {
			return page, nil
		}
	}
	page.NextCursor = strconv.FormatUint(before, 10)
	return page, nil
}

// candidates returns events below before (0 = all) that q selects, its status and outcome aside, newest first; next is
// the before to go on with, 1 or less if there are no more. cost is how many messages were looked at.
func (p *path) candidates(ctx context.Context, q SearchQuery, before uint64, limit, budget int) (found []eventlog.Entry, next uint64, cost int, err error) {
	lq := eventlog.Query{From: q.From, To: q.To, Type: q.Type, Source: q.Source, Subject: q.Subject, Limit: limit, Newest: true, Budget: budget, MaxBytes: pageBytes}
	if before > 0 {
		if lq.ToSeq = before - 1; lq.ToSeq == 0 {
			return nil, 0, 1, nil
		}
	}
	switch {
	case q.Subject != "": // the views know where a subject is, but for the tail that they have not read
		indexed, err := p.b.o.Journal.Indexed(p.name)
		if err != nil {
			return nil, 0, 0, err
		}
		if before > 0 && before <= indexed+1 || p.log.Committed() <= indexed {
			seqs, err := p.b.o.Journal.BySubject(p.name, q.Subject, before, min(limit, budget))
			if err != nil {
				return nil, 0, 0, err
			}
			return p.wanted(ctx, q, seqs, min(limit, budget))
		}
		lq.FromSeq = indexed + 1
	case q.Target != "":
		return p.withOutcome(ctx, q, before, min(limit, budget))
	}
	res, err := p.log.Search(ctx, lq)
	if err != nil {
		return nil, 0, 0, err
	}
	if next = lq.FromSeq; res.Next > 0 {
		next = res.Next + 1
	}
	return res.Entries, next, max(res.Scanned, 1), nil
}

// withOutcome is candidates out of the views of outcomes.
func (p *path) withOutcome(ctx context.Context, q SearchQuery, before uint64, limit int) (found []eventlog.Entry, next uint64, cost int, err error) {
	from := p.log.First()
	if !q.From.IsZero() {
		if from, err = p.firstSince(ctx, q.From.Add(-arrivalSlack)); err != nil {
			return nil, 0, 0, err
		}
	}
	if !q.To.IsZero() {
		end, err := p.firstSince(ctx, q.To.Add(arrivalSlack))
		if err != nil {
			return nil, 0, 0, err
		}
		if before == 0 || end < before {
			before = end
		}
	}
	var state journal.State
	if q.Outcome != "" {
		if err := state.UnmarshalText([]byte(q.Outcome)); err != nil {
			return nil, 0, 0, err
		}
	}
	seqs, err := p.b.o.Journal.ByOutcome(p.name, q.Target, state, from, before, limit)
	if err != nil {
		return nil, 0, 0, err
	}
	return p.wanted(ctx, q, seqs, limit)
}

// arrivalSlack is by how much events may be out of the order of their arrival.
const arrivalSlack = time.Minute

// firstSince returns the first position whose event arrived at a time or later, which may be the next to come.
func (p *path) firstSince(ctx context.Context, at time.Time) (uint64, error) {
	low, high := p.log.First(), p.log.Committed()+1
	for low < high {
		mid := low + (high-low)/2
		entries, _, err := p.log.Read(ctx, mid, 1, nil)
		if err != nil {
			return 0, err
		}
		if len(entries) == 0 || entries[0].Seq >= high || !entries[0].Record.Received.Before(at) { // between are gaps
			high = mid
		} else {
			low = entries[0].Seq + 1
		}
	}
	return low, nil
}

// wanted reads the events that a view has named, at most limit and about pageBytes, and keeps those that q selects.
func (p *path) wanted(ctx context.Context, q SearchQuery, seqs []uint64, limit int) (found []eventlog.Entry, next uint64, cost int, err error) {
	size := 0
	for i, seq := range seqs {
		if size >= pageBytes {
			return found, seqs[i-1], i, nil
		}
		e, err := p.log.Get(ctx, seq)
		if isGone(err) {
			continue
		}
		if err != nil {
			return nil, 0, 0, err
		}
		if r := e.Record; (q.Subject == "" || r.Event.Subject == q.Subject) && (q.Type == "" || r.Event.Type == q.Type) &&
			(q.Source == "" || r.Event.Source == q.Source) && within(r.Received, q.From, q.To) {
			found = append(found, e)
			size += sizeOf(&r.Event)
		}
	}
	if len(seqs) == limit {
		next = seqs[len(seqs)-1]
	}
	return found, next, max(len(seqs), 1), nil
}

// sizeOf is about how many bytes an event has.
func sizeOf(e *event.Event) int {
	n := len(e.ID) + len(e.Source) + len(e.Type) + len(e.Subject) + len(e.DataContentType) + len(e.DataSchema) + len(e.Data)
	for _, x := range e.Extensions {
		n += len(x.Name) + len(x.Canonical())
	}
	return n
}

func limitOf(n int) (int, error) {
	switch {
	case n == 0:
		return 100, nil
	case n < 1 || n > 1000:
		return 0, fault.Invalidf("/limit", "must be 1 to 1000")
	}
	return n, nil
}

func cursorOf(s string) (uint64, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n == 0 {
		return 0, fault.Invalidf("/cursor", "is not a cursor of this list")
	}
	return n, nil
}

func within(t, from, to time.Time) bool {
	return (from.IsZero() || !t.Before(from)) && (to.IsZero() || t.Before(to))
}
