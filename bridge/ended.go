// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/journal"
)

// EndedOutcomes are how a delivery can have ended that a job selects.
var EndedOutcomes = []string{journal.Delivered.String(), journal.Dead.String(), journal.Expired.String(), journal.Cancelled.String(),
	journal.Discarded.String()}

const (
	// endedBlock is how many positions are asked about at a time. The views keep outcomes in blocks of as many.
	endedBlock = 8192
	// endedLeast and endedMost are how many journeys are read at a time.
	endedLeast, endedMost = 16, 500
	// maxCounted is how many events a count looks at.
	maxCounted = 100_000
)

// checkEnded says what is wrong with a job over deliveries that have ended.
func (s *JobSpec) checkEnded(bad *[]fault.Detail) {
	if !slices.Contains(EndedOutcomes, s.Outcome) || s.Kind != JobRedrive {
		complain(bad, "/filter/outcome", "must be one of "+strings.Join(EndedOutcomes, ", ")+", and is for a redrive")
	}
	if s.Filter.Target == "" {
		complain(bad, "/filter/target", "is required with an outcome")
	}
	if len(s.Filter.IDs) > 0 {
		complain(bad, "/filter/ids", "are of dead letters, and do not go with an outcome")
	}
}

// endedJob selects deliveries that have ended. From and To of its filter are times at which events arrived.
type endedJob struct {
	p *path
	chosen
	outcome journal.State
	subject string
	job     uint64    // what this has redriven already is passed over; 0 = there is no job yet
	to      string    // its other target; "" = the same
	made    time.Time // of the job: what has ended since then is not its business; zero = there is no job yet
}

func (b *Bridge) endedJob(f JobFilter) (*endedJob, error) {
	p, err := b.path(f.Bus)
	if err != nil {
		return nil, err
	}
	want, err := f.choose()
	if err != nil {
		return nil, err
	}
	e := &endedJob{p: p, chosen: want, subject: f.Subject}
	return e, e.outcome.UnmarshalText([]byte(f.Outcome))
}

// span returns where in the bus the events are, behind after and up to last.
func (e *endedJob) span(ctx context.Context) (after, last uint64, err error) {
	if last, err = e.p.b.o.Journal.RoutedTo(e.p.name); err != nil {
		return 0, 0, err
	}
	if !e.To.IsZero() {
		end, err := e.p.firstSince(ctx, e.To.Add(arrivalSlack))
		if err != nil {
			return 0, 0, err
		}
		last = min(last, end-1)
	}
	first := e.p.log.First()
	if !e.From.IsZero() {
		if first, err = e.p.firstSince(ctx, e.From.Add(-arrivalSlack)); err != nil {
			return 0, 0, err
		}
	}
	return first - min(first, 1), last, nil
}

// candidates returns the first events behind after and up to last that may have such a delivery, at most limit, oldest first, and up to
// where there are no others.
func (e *endedJob) candidates(ctx context.Context, after, last uint64, limit int) (seqs []uint64, to uint64, err error) {
	for after < last {
		if err := ctx.Err(); err != nil {
			return nil, after, err
		}
		end := min(last, (after+1)/endedBlock*endedBlock+endedBlock-1)
		seqs, err = e.p.b.o.Journal.ByOutcome(e.p.name, e.Target, e.outcome, after+1, end+1, endedBlock)
		if err != nil {
			return nil, after, err
		}
		slices.Reverse(seqs)
		if len(seqs) > limit {
			return seqs[:limit], seqs[limit-1], nil
		}
		if len(seqs) > 0 {
			return seqs, end, nil
		}
		after = end
	}
	return nil, last, nil
}

// selected is a delivery that has ended, and its event.
type selected struct {
	seq      uint64
	event    *event.Event
	received time.Time
	*JourneyDelivery
}

// next returns selected deliveries of the events behind after and up to last, oldest first: of the next events that may have one, at
// most limit. It also returns how many events it looked at, and how far it came.
func (e *endedJob) next(ctx context.Context, after, last uint64, limit int) (found []selected, looked int, to uint64, err error) {
	seqs, to, err := e.candidates(ctx, after, last, limit)
	if err != nil {
		return nil, 0, after, err
	}
	journeys, err := e.p.b.o.Journal.Journeys(ctx, e.p.name, e.p.journey, seqs)
	if err != nil {
		return nil, 0, after, err
	}
	for _, seq := range seqs {
		entry, err := e.p.log.Get(ctx, seq)
		if isGone(err) {
			continue
		}
		if err != nil {
			return nil, 0, after, err
		}
		r := entry.Record
		if e.subject != "" && r.Event.Subject != e.subject || !within(r.Received, e.From, e.To) {
			continue
		}
		j := deliveriesOf(journeys[seq])
		for i := range j.Deliveries {
			if d := &j.Deliveries[i]; e.has(d) && !e.handled(j, d) {
				found = append(found, selected{seq, &r.Event, r.Received, d})
			}
		}
	}
	return found, len(seqs), to, nil
}

func (e *endedJob) has(d *JourneyDelivery) bool {
	switch {
	case d.Target != e.Target, d.State != e.outcome, e.Rule != "" && d.Rule != e.Rule, e.Reason != "" && d.Reason != e.Reason,
		!e.made.IsZero() && d.ended.After(e.made):
		return false
	}
	return e.Fingerprint == "" || fingerprint(d.death()) == e.Fingerprint
}

// handled reports whether the job has redriven a delivery before a crash has set it back.
func (e *endedJob) handled(j *Journey, d *JourneyDelivery) bool {
	target := d.Target
	if e.to != "" {
		target = e.to
	}
	return e.job != 0 && slices.ContainsFunc(j.Deliveries, func(x JourneyDelivery) bool {
		return x.Rule == d.Rule && x.Target == target && slices.ContainsFunc(x.Redrives, func(r JourneyRedrive) bool { return r.Job == jobID(JobRedrive, e.job) })
	})
}

// death is what a delivery ended of, as for a dead letter.
func (d *JourneyDelivery) death() *journal.DeadRef {
	ref := &journal.DeadRef{Outcome: journal.Outcome{Reason: d.Reason, At: d.ended}}
	if n := len(d.Attempts); n > 0 && d.State == journal.Dead {
		ref.Status, ref.Detail = d.Attempts[n-1].Status, d.Attempts[n-1].Detail
	}
	return ref
}

// count says how many deliveries there are and how they ended. It looks at maxCounted events at most.
func (e *endedJob) count(ctx context.Context, after, last uint64) (DeadCount, error) {
	var t tally
	looked := 0
	for after < last && looked < maxCounted {
		found, n, to, err := e.next(ctx, after, last, endedMost)
		if err != nil {
			return DeadCount{}, err
		}
		for _, d := range found {
			t.add(d.death())
		}
		looked, after = looked+n, to
	}
	out := t.result()
	out.Partial = after < last
	return out, nil
}

// stepEnded hands over the next deliveries of a job over those that have ended. done says that there are no more.
func (m *jobs) stepEnded(ctx context.Context, j *job, r jobRecord, most int) (done bool, handed int, err error) {
	e, err := m.b.endedJob(r.Filter)
	if err != nil {
		return false, 0, err
	}
	e.job, e.to, e.made = r.N, r.To, r.CreatedAt
	if err := e.p.lockEnded(ctx); err != nil {
		return false, 0, err
	}
	defer e.p.unlockEnded()
	found, _, to, err := e.next(ctx, r.Cursor, r.Last, max(endedLeast, most))
	if err != nil {
		return false, 0, err
	}
	if n := wholeEvents(found, most); n < len(found) { // the rest comes with the next step
		found, to = found[:n], found[n-1].seq
	}
	list := make([]reopening, len(found))
	for i, d := range found {
		if list[i], err = e.p.reopening(d); err != nil {
			return false, 0, err
		}
		list[i].to, list[i].by, list[i].job, list[i].due = r.To, r.By, r.N, m.dueAt(r, i)
	}
	why, err := e.p.reopen(ctx, list)
	if err != nil {
		return false, 0, err
	}
	m.handed(j, to, why)
	return to >= r.Last && len(found) == 0, len(found), nil
}

// wholeEvents returns how many of the deliveries are the first n, and what else there is of the last event.
func wholeEvents(found []selected, n int) int {
	for n < len(found) && found[n].seq == found[n-1].seq {
		n++
	}
	return min(n, len(found))
}

// reopening makes a delivery that has ended one that is to be owed again.
func (p *path) reopening(d selected) (reopening, error) {
	r := reopening{seq: d.seq, check: journal.CheckOf(d.event.Key()), hour: journal.HourOf(d.received), rule: d.Rule, revision: d.Revision,
		from: d.Target, was: d.State}
	if n := len(d.Redrives); n > 0 {
		r.via = d.Redrives[n-1].via
	}
	if d.State != journal.Dead {
		return r, nil
	}
	pos, err := event.ParsePosition(d.DeadLetter)
	if err != nil {
		return r, err
	}
	if _, there, err := p.b.o.Journal.DeadLetter(pos.Seq); err != nil || !there {
		return r, err
	}
	r.dead = pos.Seq
	return r, nil
}
