// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/rules"
)

// Journey is what happened to an event.
type Journey struct {
	State      string            `json:"state"` // pending | unmatched | routed
	RoutedAt   *time.Time        `json:"routedAt,omitempty"`
	Ruleset    uint64            `json:"ruleset,omitempty"`
	Rules      []RuleVerdict     `json:"rules"`
	RulesMore  int               `json:"rulesMore,omitempty"` // rules in force that are not listed
	Deliveries []JourneyDelivery `json:"deliveries"`

	RecordsMore   int    `json:"recordsMore,omitempty"`   // records that were left out, the oldest: what they say of attempts is not told
	ResponsesMore int    `json:"responsesMore,omitempty"` // attempts, the first, whose response was left out
	NextCursor    string `json:"nextCursor,omitempty"`    // of the records that were left out; "" = none were
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

	ended time.Time // start of the last attempt, or when it was cancelled or the like; meaningless while it is owed
	begun bool      // how it stood before the next record is known: none was left out in between
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

// maxVerdicts is how many rules a journey explains; those that matched come first.
const maxVerdicts = 100

// journeyOf puts together what JOURNEY, the views and the rules in force then say about an event: how it stands, and of the records
// those before one (0 = the newest), at most so many.
func (p *path) journeyOf(ctx context.Context, f *Found, before uint64, most int) (*Journey, error) {
	seq := f.Position.Seq
	raw, err := p.b.o.Journal.Journey(ctx, p.name, p.journey, seq)
	if err != nil {
		return nil, err
	}
	if !raw.Routed {
		return &Journey{State: StatePending, Rules: []RuleVerdict{}, Deliveries: []JourneyDelivery{}}, nil
	}
	out := deliveriesOf(&raw)
	for _, o := range raw.Outcomes {
		if o.At.Before(raw.RoutedAt) {
			raw.RoutedAt = o.At // the record of the routing is stored a little later than the event was routed
		}
	}
	out.RoutedAt = &raw.RoutedAt
	if before > 0 || most < journal.MaxJourneyRecords {
		if raw, err = p.b.o.Journal.JourneyPart(ctx, p.name, p.journey, seq, before, most); err != nil {
			return nil, err
		}
		out.tell(deliveriesOf(&raw))
	}
	if out.RecordsMore = raw.Untold; raw.Next > 0 {
		out.NextCursor = journeyCursor(seq, raw.Next)
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

// tell has a journey tell what another one of the same event has of attempts and the like in place of its own.
func (j *Journey) tell(part *Journey) {
	for i := range j.Deliveries {
		j.Deliveries[i].Attempts, j.Deliveries[i].Redrives = []Attempt{}, nil
	}
	for _, d := range part.Deliveries {
		i := slices.IndexFunc(j.Deliveries, func(x JourneyDelivery) bool { return x.Rule == d.Rule && x.Target == d.Target })
		if i < 0 {
			j.Deliveries = append(j.Deliveries, d)
			continue
		}
		own := &j.Deliveries[i]
		own.Attempts, own.Redrives = d.Attempts, d.Redrives
		if own.Discarded == nil {
			own.Discarded = d.Discarded
		}
	}
}

// journeyCursor makes a cursor of the event and of the record before which a page ends.
func journeyCursor(seq, before uint64) string { return fmt.Sprintf("%d-%d", seq, before) }

// readJourneyCursor reads one; "" is the beginning.
func readJourneyCursor(s string) (seq, before uint64, err error) {
	if s == "" {
		return 0, 0, nil
	}
	event, record, _ := strings.Cut(s, "-")
	seq, err1 := strconv.ParseUint(event, 10, 64)
	before, err2 := strconv.ParseUint(record, 10, 64)
	if err1 != nil || err2 != nil || before == 0 {
		return 0, 0, fault.Invalidf("/cursor", "is not a cursor of a journey")
	}
	return seq, before, nil
}

// maxResponses is how many bytes of responses a journey tells.
const maxResponses = 512 << 10

// bound leaves out the responses of the first attempts when there are too many, and counts them.
func (j *Journey) bound() {
	room := maxResponses
	for i := range j.Deliveries {
		for n := len(j.Deliveries[i].Attempts) - 1; n >= 0; n-- {
			a := &j.Deliveries[i].Attempts[n]
			if room -= len(a.Response); room < 0 && a.Response != "" {
				a.Response = ""
				j.ResponsesMore++
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
	if o.Attempt > 0 && !o.Untold {
		d.Attempts = append(d.Attempts, attemptOf(o.Outcome))
	}
	switch {
	case o.Redrive != nil && o.State == journal.Parked:
		if d.begun && !d.State.Terminal() && (len(d.Redrives) > 0 || o.Redrive.From == "") {
			return // it was owed already
		}
		d.Redrives = append(d.Redrives, redriveStory(o.Redrive))
		d.Revision, d.DeadLetter = o.Route.Revision, ""
	case o.Redrive != nil || o.Discard != nil:
		d.DeadLetter = ""
		if x := o.Discard; x != nil {
			d.Discarded = discardStory(x)
		}
	case d.begun && d.State.Terminal():
		return // a crash made us repeat the attempt
	}
	d.begun = d.begun || !o.Untold && o.Reason != journal.ReasonRange
	d.State, d.Reason, d.Due, d.ended = o.State, o.Reason, nil, o.At
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

// has reports whether a delivery to a target stands as a search wants it; "" wants anything.
func (j *Journey) has(target, outcome string) bool {
	return target == "" || slices.ContainsFunc(j.Deliveries, func(d JourneyDelivery) bool {
		return d.Target == target && d.State != journal.Live && (outcome == "" || d.State.String() == outcome)
	})
}

// deliveriesOf is a journey without explanations.
func deliveriesOf(raw *journal.Journey) *Journey {
	j := &Journey{State: "routed", Rules: []RuleVerdict{}, Deliveries: make([]JourneyDelivery, len(raw.Routes))}
	switch {
	case !raw.Routed:
		j.State = StatePending
	case len(raw.Routes) == 0:
		j.State = StateUnmatched
	}
	byRoute := make(map[journal.RoutePair]*JourneyDelivery, len(raw.Routes))
	for i, r := range raw.Routes {
		j.Deliveries[i] = JourneyDelivery{Rule: r.Rule, Revision: r.Revision, Target: r.Target, State: journal.Live, Attempts: []Attempt{}, begun: raw.Untold == 0}
		byRoute[journal.RoutePair{Rule: r.Rule, Target: r.Target}] = &j.Deliveries[i]
	}
	for _, o := range raw.Outcomes {
		if d := byRoute[journal.RoutePair{Rule: o.Route.Rule, Target: o.Route.Target}]; d != nil {
			d.add(o)
		}
	}
	return j
}
