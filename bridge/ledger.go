// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/journal"
)

// Ledger is the account of a bus: every accepted event and every owed delivery, and where each went. It balances if
// Difference is 0.
type Ledger struct {
	Bus        string           `json:"bus"`
	From       time.Time        `json:"from"`
	To         time.Time        `json:"to"`
	Balanced   bool             `json:"balanced"`
	Difference int64            `json:"difference"`
	Events     LedgerEvents     `json:"events"`
	Deliveries []LedgerDelivery `json:"deliveries"`
	Hours      []LedgerHour     `json:"hours"`
}

// LedgerHour is the account of the events that arrived in one hour.
type LedgerHour struct {
	Hour       time.Time        `json:"hour"`
	Events     LedgerEvents     `json:"events"`
	Deliveries []LedgerDelivery `json:"deliveries"`
}

// LedgerEvents says: accepted = matched + unmatched + notYetRouted + lost.
type LedgerEvents struct {
	Accepted     uint64 `json:"accepted"`
	Matched      uint64 `json:"matched"`
	Unmatched    uint64 `json:"unmatched"`
	NotYetRouted uint64 `json:"notYetRouted"`
	Lost         uint64 `json:"lost"` // damage to the disk took them
}

func (e LedgerEvents) difference() int64 {
	return int64(e.Accepted) - int64(e.Matched+e.Unmatched+e.NotYetRouted+e.Lost)
}

// LedgerDelivery says: owed = delivered + dead + expired + cancelled + discarded + pending, and pending = live + parked.
type LedgerDelivery struct {
	Rule   string `json:"rule"`
	Target string `json:"target"`
	journal.Counts
	Pending uint64 `json:"pending"`
	Live    uint64 `json:"live"`
	Parked  uint64 `json:"parked"` // with those that are ranged
}

func (d LedgerDelivery) difference() int64 {
	return d.Counts.Open() - int64(d.Live+d.Parked)
}

// LedgerQuery selects a bus and the hours of the events' arrival.
type LedgerQuery struct {
	Bus      string
	From, To time.Time // zero = everything the views know
}

// ledgerWait is how long Ledger waits for the views to have read all that was accepted when it was called.
const ledgerWait = 5 * time.Second

// Ledger returns the account of a bus as of now. It is Unavailable if the views are too far behind to say.
func (b *Bridge) Ledger(ctx context.Context, q LedgerQuery) (Ledger, error) {
	p, err := b.path(q.Bus)
	if err != nil {
		return Ledger{}, err
	}
	from, to := uint32(0), ^uint32(0)
	if !q.From.IsZero() {
		from = journal.HourOf(q.From)
	}
	if !q.To.IsZero() {
		to = journal.HourOf(q.To)
	}
	if from > to {
		return Ledger{}, fault.Invalidf("/from", "must not be after to")
	}
	ctx, cancel := context.WithTimeout(ctx, ledgerWait)
	defer cancel()
	accepted := p.log.Committed()
	for {
		l, err := b.o.Journal.Ledger(p.name, from, to)
		if err != nil {
			return Ledger{}, err
		}
		if l.Indexed >= max(l.RoutedTo, accepted) {
			return account(p.name, q, l), nil
		}
		if !pause(ctx, 10*time.Millisecond) {
			return Ledger{}, &fault.Error{Kind: fault.Unavailable, Message: "the views are still reading the log", RetryAfter: time.Second}
		}
	}
}

func account(bus string, q LedgerQuery, l journal.Ledger) Ledger {
	out := Ledger{Bus: bus, From: q.From, To: q.To, Deliveries: []LedgerDelivery{}, Hours: []LedgerHour{}}
	total := make(map[journal.RoutePair]*LedgerDelivery)
	for _, h := range l.Hours {
		hour := LedgerHour{Hour: hourTime(h.Hour), Deliveries: []LedgerDelivery{}, Events: LedgerEvents{
			Accepted: h.Events.Accepted, Matched: h.Events.Matched, Unmatched: h.Events.Unmatched, Lost: h.Events.Lost,
			NotYetRouted: l.NotRouted[h.Hour]}}
		out.Events.Accepted += hour.Events.Accepted
		out.Events.Matched += hour.Events.Matched
		out.Events.Unmatched += hour.Events.Unmatched
		out.Events.NotYetRouted += hour.Events.NotYetRouted
		out.Events.Lost += hour.Events.Lost
		out.Difference += abs(hour.Events.difference())
		for pair, c := range h.Deliveries {
			st := l.Pending[h.Hour][pair]
			d := LedgerDelivery{Rule: pair.Rule, Target: pair.Target, Counts: c, Pending: st.Live + st.Parked + st.Ranged + st.Lost,
				Live: st.Live, Parked: st.Parked + st.Ranged}
			hour.Deliveries = append(hour.Deliveries, d)
			out.Difference += abs(d.difference())
			t := total[pair]
			if t == nil {
				t = &LedgerDelivery{Rule: pair.Rule, Target: pair.Target}
				total[pair] = t
			}
			t.Counts.Add(c)
			t.Pending += d.Pending
			t.Live += d.Live
			t.Parked += d.Parked
		}
		sortDeliveries(hour.Deliveries)
		out.Hours = append(out.Hours, hour)
	}
	for _, t := range total {
		out.Deliveries = append(out.Deliveries, *t)
	}
	sortDeliveries(out.Deliveries)
	out.Balanced = out.Difference == 0
	if n := len(out.Hours); n > 0 {
		if out.From.IsZero() {
			out.From = out.Hours[0].Hour
		}
		if out.To.IsZero() {
			out.To = out.Hours[n-1].Hour.Add(time.Hour)
		}
	}
	return out
}

func sortDeliveries(d []LedgerDelivery) {
	slices.SortFunc(d, func(a, b LedgerDelivery) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Target, b.Target))
	})
}

func hourTime(h uint32) time.Time { return time.Unix(int64(h)*3600, 0).UTC() }

func abs(n int64) int64 {
	if n < 0 {
		return -n
	}
	return n
}
