// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"context"
	"errors"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
)

// Query selects events. An empty field is no condition. Times are compared with Record.Received.
type Query struct {
	From, To   time.Time // From <= received < To
	FromSeq    uint64    // lowest sequence
	ToSeq      uint64    // highest sequence; 0: none
	Type       string
	Source     string
	Subject    string
	MQTTFilter string // of the topic an event was published to
	Limit      int    // events; 0 is 100
	Newest     bool   // from the end backwards
	Budget     int    // messages looked at; 0 is 200000
	MaxBytes   int    // of events found, after which it ends; 0 is 4 MiB
}

const (
	searchLimit  = 100
	searchBudget = 200_000
)

// SearchResult is a page of a search, in the order of the search.
type SearchResult struct {
	Entries []Entry
	Next    uint64 // where to go on: the next query's FromSeq, or ToSeq when Newest; 0: all was looked at
	Scanned int    // messages looked at
}

// Search looks through the log. It ends at a limit, at the end, or when the budget is used up; then Next says where
// to go on. Blocks outside the times are passed over without cost.
func (b *Bus) Search(ctx context.Context, q Query) (SearchResult, error) {
	if q.Limit <= 0 {
		q.Limit = searchLimit
	}
	if q.Budget <= 0 {
		q.Budget = searchBudget
	}
	if q.MaxBytes <= 0 {
		q.MaxBytes = readMaxBytes
	}
	s := b.stream
	low, high := max(q.FromSeq, s.First(), 1), s.Committed()
	if q.ToSeq > 0 {
		high = min(high, q.ToSeq)
	}
	if low > high {
		return SearchResult{}, nil
	}
	search := search{bus: b, q: q, coarse: b.subjects.query(q), ctx: ctx}
	if q.Newest {
		return search.back(low, high)
	}
	return search.forward(low, high)
}

// search is one run of Search.
type search struct {
	bus    *Bus
	q      Query
	coarse subjectQuery
	ctx    context.Context //nolint:containedctx // lives as long as the call
	res    SearchResult
	bytes  int // of what was found
	err    error
}

func (f *search) forward(low, high uint64) (SearchResult, error) {
	blocks := f.bus.stream.blocks
	if !f.q.From.IsZero() {
		low = max(low, blocks.at(f.q.From.Add(-timeSlack)))
	}
	next, err := blocks.scan(low, high, f.look)
	return f.result(next, next <= high, err)
}

func (f *search) back(low, high uint64) (SearchResult, error) {
	skip := func(k *block) bool {
		return !f.q.To.IsZero() && time.Unix(0, k.time).After(f.q.To.Add(timeSlack))
	}
	if !f.q.From.IsZero() {
		low = max(low, f.bus.stream.blocks.at(f.q.From.Add(-timeSlack)))
	}
	next, err := f.bus.stream.blocks.scanBack(high, low, skip, f.look)
	return f.result(next, next >= low && next > 0, err)
}

func (f *search) result(next uint64, more bool, err error) (SearchResult, error) {
	if err = errors.Join(f.err, err); err != nil {
		return SearchResult{}, err
	}
	if more {
		f.res.Next = next
	}
	return f.res, nil
}

// look judges one record and says whether to go on.
func (f *search) look(r *record) bool {
	f.res.Scanned++
	if f.res.Scanned%ctxEvery == 0 && f.ctx.Err() != nil {
		f.err = context.Cause(f.ctx)
		return false
	}
	stored := time.Unix(0, r.time)
	outside := !f.q.Newest && !f.q.To.IsZero() && stored.After(f.q.To.Add(timeSlack)) ||
		f.q.Newest && !f.q.From.IsZero() && stored.Before(f.q.From.Add(-timeSlack))
	// What is past the end of the times does not end the search: the clock may have been set, and the rest of the block may be in time.
	if !outside && f.coarse.match(r.subject) {
		if rec := f.bus.decode(r); rec != nil && f.wanted(rec) {
			f.res.Entries = append(f.res.Entries, Entry{r.seq, rec})
			f.bytes += len(r.header) + len(r.data)
		}
	}
	return len(f.res.Entries) < f.q.Limit && f.res.Scanned < f.q.Budget && f.bytes < f.q.MaxBytes
}

// wanted checks the whole values.
func (f *search) wanted(rec *event.Record) bool {
	q, e := &f.q, &rec.Event
	switch {
	case !q.From.IsZero() && rec.Received.Before(q.From), !q.To.IsZero() && !rec.Received.Before(q.To):
		return false
	case q.Type != "" && e.Type != q.Type, q.Source != "" && e.Source != q.Source, q.Subject != "" && e.Subject != q.Subject:
		return false
	case q.MQTTFilter != "":
		return rec.MQTT != nil && matchTopic(q.MQTTFilter, rec.MQTT.Topic)
	}
	return true
}
