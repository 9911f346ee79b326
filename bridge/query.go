// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/rules"
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

// Journey is what happened to an event.
type Journey struct {
	State      string            `json:"state"` // pending | unmatched | routed
	RoutedAt   *time.Time        `json:"routedAt,omitempty"`
	Ruleset    uint64            `json:"ruleset,omitempty"`
	Rules      []RuleVerdict     `json:"rules"`
	RulesMore  int               `json:"rulesMore,omitempty"` // rules in force that are not listed
	Deliveries []JourneyDelivery `json:"deliveries"`
}

// RuleVerdict is what a rule in force when the event was routed says of it.
type RuleVerdict struct {
	Rule        string             `json:"rule"`
	Revision    uint64             `json:"revision"`
	Matched     bool               `json:"matched"`
	Explanation *rules.Explanation `json:"explanation,omitempty"`
}

// JourneyDelivery is one delivery of a journey.
type JourneyDelivery struct {
	Rule       string        `json:"rule"`
	Revision   uint64        `json:"revision"`
	Target     string        `json:"target"`
	State      journal.State `json:"state"`
	Reason     string        `json:"reason,omitempty"` // why it is in that state
	Due        *time.Time    `json:"due,omitempty"`
	Range      *JourneyRange `json:"range,omitempty"`  // where it waits, if it is parked in a range
	Behind     *JourneyHead  `json:"behind,omitempty"` // what has its turn first, if it waits for something of its key
	Attempts   []Attempt     `json:"attempts"`
	DeadLetter string        `json:"deadLetter,omitempty"` // its id

	Redrives  []JourneyRedrive `json:"redrives,omitempty"` // how often somebody asked for it, in order
	Discarded *JourneyDiscard  `json:"discarded,omitempty"`
}

// JourneyRange is a range in which a delivery waits for its turn: from Next on, in order, Deliveries of them to the target.
type JourneyRange struct {
	Next       string `json:"next"` // position
	Deliveries uint64 `json:"deliveries"`
}

// JourneyRedrive says that somebody made a delivery owed again. Attempts since then begin to count at 1.
type JourneyRedrive struct {
	At     time.Time `json:"at"`
	Job    string    `json:"job,omitempty"` // "" = by hand
	By     string    `json:"by,omitempty"`
	From   string    `json:"from,omitempty"` // the target that was to have it before
	Edited bool      `json:"edited,omitempty"`

	via string // the target whose transform was used, if not its own
}

// JourneyDiscard says who wrote a dead letter off, and why.
type JourneyDiscard struct {
	At  time.Time `json:"at"`
	Job string    `json:"job,omitempty"`
	By  string    `json:"by,omitempty"`
	Why string    `json:"why,omitempty"`
}

func redriveStory(r *journal.Redrive) JourneyRedrive {
	out := JourneyRedrive{At: r.At, By: r.By, From: r.From, Edited: r.Edited != 0, via: r.Via}
	if r.Job != 0 {
		out.Job = jobID(JobRedrive, r.Job)
	}
	return out
}

func discardStory(d *journal.Discard) *JourneyDiscard {
	out := &JourneyDiscard{At: d.At, By: d.By, Why: d.Why}
	if d.Job != 0 {
		out.Job = jobID(JobDiscard, d.Job)
	}
	return out
}

// Attempt is one attempt of a delivery.
type Attempt struct {
	N          int       `json:"n"`
	At         time.Time `json:"at"`
	DurationMS float64   `json:"durationMs"`
	OK         bool      `json:"ok"`
	Status     int       `json:"status,omitempty"`
	Reason     string    `json:"reason,omitempty"`
	Detail     string    `json:"detail,omitempty"`

	Remote   string     `json:"remote,omitempty"` // the address that was dialled
	Reused   bool       `json:"reused,omitempty"` // over a connection that was there
	Timings  *Timings   `json:"timings,omitempty"`
	Response string     `json:"response,omitempty"` // how the answer of a failed attempt began: status, headers, an empty line, body
	Next     *time.Time `json:"next,omitempty"`     // when the next attempt was due then
}

// Timings say where the time of an attempt went, in milliseconds; what did not happen is left out.
type Timings struct {
	DNS       float64 `json:"dnsMs,omitempty"`
	Connect   float64 `json:"connectMs,omitempty"`
	TLS       float64 `json:"tlsMs,omitempty"`
	FirstByte float64 `json:"firstByteMs,omitempty"` // since the start of the attempt
}

func attemptOf(o journal.Outcome) Attempt {
	x := o.Exchange
	a := Attempt{N: o.Attempt, At: o.At, DurationMS: milliseconds(o.Duration), OK: o.State == journal.Delivered, Status: o.Status,
		Reason: o.Reason, Detail: o.Detail, Remote: x.Remote, Reused: x.Reused, Response: x.Head}
	if t := (Timings{milliseconds(x.DNS), milliseconds(x.Connect), milliseconds(x.TLS), milliseconds(x.FirstByte)}); t != (Timings{}) {
		a.Timings = &t
	}
	if o.State == journal.Parked {
		a.Next = &o.Due
	}
	return a
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// maxOthers is how many other events with its id are named beside an event.
const maxOthers = 31

// maxSameID is how many events with one id are looked at: sources that count from 1 share their ids.
const maxSameID = 10_000

// maxVerdicts is how many rules a journey explains; those that matched come first.
const maxVerdicts = 100

// Event returns a stored event by its id, with its journey. An event can be read as soon as it is accepted. If several
// have the id, source chooses; without it the newest is returned and the others are named. The error is NotFound if
// there is none.
func (b *Bridge) Event(ctx context.Context, bus, id, source string) (*Found, error) {
	p, err := b.path(bus)
	if err != nil {
		return nil, err
	}
	found, err := p.find(ctx, id, source)
	if err != nil {
		return nil, err
	}
	j, err := p.journeyOf(ctx, found)
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

// journeyOf puts together what JOURNEY, the views and the rules in force then say about an event.
func (p *path) journeyOf(ctx context.Context, f *Found) (*Journey, error) {
	seq := f.Position.Seq
	raw, err := p.b.o.Journal.Journey(ctx, p.name, p.journey, seq)
	if err != nil {
		return nil, err
	}
	out := &Journey{State: "pending", Rules: []RuleVerdict{}, Deliveries: []JourneyDelivery{}}
	if !raw.Routed {
		return out, nil
	}
	out.State, out.RoutedAt = "routed", &raw.RoutedAt
	if len(raw.Routes) == 0 {
		out.State = "unmatched"
	}
	byRoute := make(map[journal.RoutePair]*JourneyDelivery, len(raw.Routes))
	out.Deliveries = make([]JourneyDelivery, len(raw.Routes))
	for i, r := range raw.Routes {
		out.Deliveries[i] = JourneyDelivery{Rule: r.Rule, Revision: r.Revision, Target: r.Target, State: journal.Live, Attempts: []Attempt{}}
		byRoute[journal.RoutePair{Rule: r.Rule, Target: r.Target}] = &out.Deliveries[i]
	}
	for _, o := range raw.Outcomes {
		if d := byRoute[journal.RoutePair{Rule: o.Route.Rule, Target: o.Route.Target}]; d != nil {
			d.add(o)
		}
		if o.At.Before(raw.RoutedAt) {
			raw.RoutedAt = o.At // the record of the routing is stored a little later than the event was routed
		}
	}
	for i := range out.Deliveries {
		if err := p.whereRanged(&out.Deliveries[i]); err != nil {
			return nil, err
		}
		if err := p.whatIsFirst(&out.Deliveries[i], seq); err != nil {
			return nil, err
		}
	}
	out.bound()
	return out, p.verdicts(out, f.Event, seq)
}

// maxResponses is how many bytes of responses a journey tells.
const maxResponses = 512 << 10

// bound leaves out the responses of the first attempts when there are too many.
func (j *Journey) bound() {
	room := maxResponses
	for i := range j.Deliveries {
		for n := len(j.Deliveries[i].Attempts) - 1; n >= 0; n-- {
			a := &j.Deliveries[i].Attempts[n]
			if room -= len(a.Response); room < 0 {
				a.Response = ""
			}
		}
	}
}

// whereRanged says of a delivery that waits in a range where that is.
func (p *path) whereRanged(d *JourneyDelivery) error {
	if d.State != journal.Parked || d.Reason != journal.ReasonRange || d.Due != nil {
		return nil
	}
	r, ok, err := p.b.o.Journal.RangeOf(p.name, d.Target)
	if err == nil && ok {
		d.Range = &JourneyRange{Next: p.position(r.Next).String(), Deliveries: r.Count}
	}
	return err
}

// add brings an outcome into a delivery.
func (d *JourneyDelivery) add(o journal.Step) {
	if o.Attempt > 0 {
		d.Attempts = append(d.Attempts, attemptOf(o.Outcome))
	}
	switch {
	case o.Redrive != nil && o.State == journal.Parked:
		if !d.State.Terminal() && (len(d.Redrives) > 0 || o.Redrive.From == "") {
			return // it was owed already
		}
		d.Redrives = append(d.Redrives, redriveStory(o.Redrive))
		d.Revision, d.DeadLetter = o.Route.Revision, ""
	case o.Redrive != nil || o.Discard != nil:
		d.DeadLetter = ""
		if x := o.Discard; x != nil {
			d.Discarded = discardStory(x)
		}
	case d.State.Terminal():
		return // a crash made us repeat the attempt
	}
	d.State, d.Reason, d.Due = o.State, o.Reason, nil
	if o.State == journal.Parked && !o.Due.IsZero() {
		d.Due = &o.Due
	}
	if o.State == journal.Dead {
		d.DeadLetter = event.Position{Stream: "DEAD", Seq: o.DeadSeq}.String()
	}
}

// verdicts explains the rules that were in force: those that matched first, then the others, up to maxVerdicts.
func (p *path) verdicts(j *Journey, ev *event.Event, seq uint64) error {
	mark, err := p.b.o.Journal.InForce(p.name, seq)
	if err != nil {
		return err
	}
	j.Ruleset = mark.Ruleset
	matched := make(map[string]bool)
	for _, d := range j.Deliveries {
		matched[d.Rule] = true
	}
	for _, want := range []bool{true, false} {
		for _, ref := range mark.Rules {
			if matched[ref.Name] != want {
				continue
			}
			if len(j.Rules) == maxVerdicts {
				j.RulesMore++
				continue
			}
			v := RuleVerdict{Rule: ref.Name, Revision: ref.Revision, Matched: want}
			if rule, err := p.ruleAt(ref.Name, ref.Revision); err == nil {
				ex := rule.Explain(ev)
				v.Explanation = &ex
			} else {
				p.b.log.Warn("rule of a journey cannot be read", "bus", p.name, "ruleId", ref.Name, "err", err)
			}
			j.Rules = append(j.Rules, v)
		}
	}
	return nil
}

// The states of an event, its deliveries taken together.
const (
	StatePending   = "pending"   // not routed yet, or something is live or parked
	StateUnmatched = "unmatched" // no rule matched
	StateDelivered = "delivered" // all deliveries succeeded
	StateDead      = "dead"      // everything has ended, and something as a dead letter
	StateExpired   = "expired"   // everything has ended, nothing as a dead letter, and something came too late for its event
	StateCancelled = "cancelled" // everything has ended, nothing as above, and something was cancelled or discarded
)

func stateOf(j *Journey) string {
	if j.State != "routed" {
		return j.State
	}
	state := StateDelivered
	for _, d := range j.Deliveries {
		switch {
		case !d.State.Terminal():
			return StatePending
		case d.State == journal.Dead:
			state = StateDead
		case d.State == journal.Expired && state != StateDead:
			state = StateExpired
		case (d.State == journal.Cancelled || d.State == journal.Discarded && d.Reason == journal.ReasonDiscarded) && state == StateDelivered:
			state = StateCancelled
		}
	}
	return state
}

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

// has reports whether a delivery to a target stands as a search wants it; "" wants anything.
func (j *Journey) has(target, outcome string) bool {
	return target == "" || slices.ContainsFunc(j.Deliveries, func(d JourneyDelivery) bool {
		return d.Target == target && d.State != journal.Live && (outcome == "" || d.State.String() == outcome)
	})
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

// deliveriesOf is a journey without explanations.
func deliveriesOf(raw *journal.Journey) *Journey {
	j := &Journey{State: "routed", Deliveries: make([]JourneyDelivery, len(raw.Routes))}
	switch {
	case !raw.Routed:
		j.State = StatePending
	case len(raw.Routes) == 0:
		j.State = StateUnmatched
	}
	for i, r := range raw.Routes {
		d := &j.Deliveries[i]
		d.Target, d.State = r.Target, journal.Live
		for _, o := range raw.Outcomes {
			if o.Route.Rule == r.Rule && o.Route.Target == r.Target {
				d.add(o)
			}
		}
	}
	return j
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

// FollowOptions say what to follow.
type FollowOptions struct {
	Bus  string
	From uint64 // first sequence; 0 = what comes from now on
	Type string // only this type; "" = all
}

// Follow calls fn for the events of a bus as they are committed, in order, and blocks until ctx is done or fn fails. A
// slow fn delays nobody: it reads further behind.
func (b *Bridge) Follow(ctx context.Context, o FollowOptions, fn func(eventlog.Entry) error) error {
	p, err := b.path(o.Bus)
	if err != nil {
		return err
	}
	next := o.From
	if next == 0 {
		next = p.log.Committed() + 1
	}
	next = max(next, p.log.First())
	stop, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.ctx, func() { cancel(fault.New(fault.Unavailable, "the bridge is stopping")) })()
	var buf []eventlog.Entry
	for {
		if p.log.Wait(stop, next-1) != nil {
			return context.Cause(stop)
		}
		entries, after, err := p.log.Read(stop, next, 256, buf[:0])
		if err != nil {
			if stop.Err() != nil {
				return context.Cause(stop)
			}
			return err
		}
		for _, e := range entries {
			if o.Type != "" && e.Record.Event.Type != o.Type {
				continue
			}
			if err := fn(e); err != nil {
				return err
			}
		}
		buf, next = entries, after
	}
}
