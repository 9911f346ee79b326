// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/rules"
)

// RedriveExtension is the extension attribute that marks an event which is delivered because somebody asked for it. Its
// value is the id of the job, or RedriveByHand.
const (
	RedriveExtension = "rialtoredrive"
	RedriveByHand    = "manual"
)

// RedriveRequest names one delivery that has ended, however it did, and is to be owed again.
type RedriveRequest struct {
	Bus        string
	ID, Source string       // of the event; Source may be empty, as for Event
	Rule       string       // may be empty if only one delivery of the event is to Target
	Target     string       // may be empty if the event has one delivery
	To         string       // another target; "" = the same
	Delivered  bool         // also if it was delivered
	Event      *event.Event // sent instead; nil = as stored, or as its dead letter has it. Its id and source are those of the stored event

	By, RequestID string // who asks, in which request of the API
}

// Redrive makes a delivery owed again that has ended: delivered (if the request says so), dead, expired, cancelled or
// discarded. It is rendered by its rule as the rule is now or, if that was deleted, as it was when the delivery was routed. It has
// a fresh set of attempts, and keeps its delivery id; another target has an id of its own. Redrive blocks until that is
// committed, and returns the id of the delivery.
//
// Errors are *fault.Error: NotFound (no such bus, event or delivery), Invalid, and Conflict when it has not ended, when the target
// was deleted, when its rule is there and does not send to the target any more, or when the rule was deleted so long ago that its
// document is not kept any more.
func (b *Bridge) Redrive(ctx context.Context, q RedriveRequest) (string, error) {
	p, err := b.path(q.Bus)
	if err != nil {
		return "", err
	}
	if q.To != "" && b.lane(q.To) == nil {
		return "", fault.Invalidf("/to", "there is no such target")
	}
	if err := p.lockEnded(ctx); err != nil {
		return "", unavailable(err)
	}
	defer p.unlockEnded()
	found, err := b.Event(ctx, q.Bus, q.ID, q.Source)
	if err != nil {
		return "", err
	}
	if found.Journey.State == "pending" {
		return "", fault.New(fault.Conflict, "the event is not routed yet")
	}
	d, err := chooseDelivery(found.Journey.Deliveries, q.Rule, q.Target)
	if err != nil {
		return "", err
	}
	switch {
	case !d.State.Terminal():
		return "", fault.New(fault.Conflict, "the delivery is %s: it has not ended", d.State)
	case d.State == journal.Delivered && !q.Delivered && (q.To == "" || q.To == d.Target):
		return "", fault.New(fault.Conflict, "the delivery was made; ask for it explicitly to make it again")
	}
	r, err := p.reopening(selected{found.Position.Seq, found.Event, found.Received, d})
	if err != nil {
		return "", err
	}
	r.to, r.by, r.due = q.To, q.By, b.o.Now()
	if q.Event != nil {
		if r.edited, err = b.jobs.keepEvent(ctx, &event.Record{Event: *q.Event, Received: found.Received}, found.Event); err != nil {
			return "", err
		}
	}
	why, err := p.reopen(ctx, []reopening{r})
	if ctx.Err() != nil && err != nil {
		return "", &fault.Error{Kind: fault.Unavailable, Message: "it takes too long to be written down; whether it was, the journey of the event will say",
			RetryAfter: time.Second, Err: err}
	}
	if err != nil {
		return "", err
	}
	if why[0] != nil {
		return "", why[0]
	}
	b.jobs.noteRedrive(ctx, RedriveEntry{At: b.o.Now(), By: q.By, RequestID: q.RequestID, Kind: JobRedrive, Bus: q.Bus, Name: q.ID, Source: found.Event.Source, Rule: d.Rule,
		Target: d.Target, Was: d.State.String(), To: q.To, Edited: q.Event != nil, Count: 1})
	b.log.Info("delivery redriven", "bus", q.Bus, "eventId", q.ID, "ruleId", d.Rule, "targetId", r.target(), "key", q.By)
	return deliveryID(q.Bus, found.Event, journal.Route{Rule: d.Rule, Target: r.target()}), nil
}

// chooseDelivery finds the delivery that a request names.
func chooseDelivery(all []JourneyDelivery, rule, target string) (*JourneyDelivery, error) {
	var found *JourneyDelivery
	for i, d := range all {
		if rule != "" && d.Rule != rule || target != "" && d.Target != target {
			continue
		}
		if found != nil {
			return nil, fault.Invalidf("/rule", "the event has several deliveries: name the rule and the target")
		}
		found = &all[i]
	}
	if found == nil {
		return nil, fault.New(fault.NotFound, "the event has no such delivery")
	}
	return found, nil
}

// reopening is one delivery that has ended and is to be owed again.
type reopening struct {
	seq          uint64
	check        journal.Check
	hour         uint32
	rule         string
	revision     uint64 // of the rule when the delivery was routed, or redriven last
	from, to     string // targets; to "" = from
	via          string // the target whose transform it had, if that is known and not from
	was          journal.State
	dead, edited uint64
	job          uint64
	by           string
	due          time.Time
}

func (r *reopening) target() string {
	if r.to != "" {
		return r.to
	}
	return r.from
}

// lockEnded makes its caller the only one who changes deliveries of the path that have ended: what is looked up then is
// still so when the record is written.
func (p *path) lockEnded(ctx context.Context) error {
	select {
	case p.ended <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *path) unlockEnded() { <-p.ended }

// reopen makes deliveries owed again and blocks until that is committed and in the views. why has, for each of them, why it
// was not done, or nil. After an error it is not known which were done; those that were are not dead letters any more. The
// caller has lockEnded.
func (p *path) reopen(ctx context.Context, list []reopening) (why []error, err error) {
	rs := p.rules.Load()
	if rs == nil {
		return nil, fault.New(fault.Unavailable, "the rules of bus %s are not loaded yet", p.name)
	}
	why = make([]error, len(list))
	owed := make(map[string]bool)
	records := make(map[*rules.Rule][]journal.Redrive)
	for i, r := range list {
		to := r.target()
		if p.b.lane(to) == nil {
			why[i] = fault.New(fault.Conflict, "the target %s was deleted: name another one to send to", to)
			continue
		}
		rule, err := p.ruleToRedrive(rs, &r)
		if errors.Is(err, errNoDocument) {
			why[i] = fault.New(fault.Conflict, "the rule %s was deleted, and its document of then is not kept any more: make the rule again", r.rule)
			continue
		}
		if err != nil {
			return nil, err
		}
		via, err := p.viaOf(ctx, rule, &r)
		if err != nil {
			return nil, err
		}
		if via == "" { // it would go there as it is, without the transform that was made for it
			why[i] = fault.New(fault.Conflict, "the rule %s does not send to target %s any more", r.rule, r.from)
			continue
		}
		key := fmt.Sprintf("%d %s %s", r.seq, r.rule, to)
		if why[i], err = p.mayReopen(ctx, &r); err != nil {
			return nil, err
		}
		if why[i] == nil && owed[key] {
			why[i] = errOwed
		}
		if why[i] != nil {
			continue
		}
		owed[key] = true
		x := journal.Redrive{Seq: r.seq, Route: journal.Route{Rule: r.rule, Revision: rule.Revision, Target: to}, Check: r.check,
			Hour: r.hour, Was: r.was, Dead: r.dead, Edited: r.edited, Job: r.job, At: p.b.o.Now(), Due: r.due, By: r.by}
		if to != r.from {
			x.From = r.from
		}
		if via != to {
			x.Via = via
		}
		records[rule] = append(records[rule], x)
	}
	if len(records) == 0 {
		return why, nil
	}
	// A rule goes along in the message of its redrives, so that JOURNEY has it for as long as it has them. What comes then
	// does not depend on who asked for it: ctx may end before the records are committed, and they will be.
	for rule, list := range records {
		if !p.rec.add(func(e *journal.Encoder) {
			e.RuleDoc(journal.RuleDoc{Name: rule.Name, Revision: rule.Revision, Raw: rule.Raw})
			for _, x := range list {
				e.Redrive(x)
			}
		}, func() { p.reopened(list) }) {
			return nil, errEnded
		}
	}
	return why, p.rec.sync(ctx)
}

// ruleToRedrive returns the rule that renders a delivery which is made again: as it is now, or, if it was deleted, as it was when the
// delivery was routed. The error is errNoDocument if that is not known any more.
func (p *path) ruleToRedrive(rs *ruleset, r *reopening) (*rules.Rule, error) {
	if rule := rs.byName[r.rule]; rule != nil {
		return rule, nil
	}
	return p.ruleAt(r.rule, r.revision)
}

// viaOf returns the target whose transform a delivery gets that is made again: the one that had it, the one whose transform
// that had, if it had been redriven itself, or the one that gets it; "" if the rule names none of them.
func (p *path) viaOf(ctx context.Context, rule *rules.Rule, r *reopening) (string, error) {
	if names(rule, r.from) {
		return r.from, nil
	}
	via := r.via
	if via == "" && r.dead != 0 {
		raw, err := p.b.dead.Get(ctx, r.dead)
		if err != nil && !isGone(err) {
			return "", err
		}
		if err == nil {
			story, err := readStory(raw)
			if err != nil {
				return "", err
			}
			via = story.Via
		}
	}
	for _, name := range []string{via, r.target()} {
		if names(rule, name) {
			return name, nil
		}
	}
	return "", nil
}

func names(r *rules.Rule, target string) bool {
	return slices.ContainsFunc(r.Targets, func(t rules.RuleTarget) bool { return t.Target == target })
}

var errOwed = fault.New(fault.Conflict, "the target is owed this event already")

// mayReopen says why a delivery cannot be owed again; nil if it can.
func (p *path) mayReopen(ctx context.Context, r *reopening) (why, err error) {
	j := p.b.o.Journal
	if r.dead != 0 {
		if _, ok, err := j.DeadLetter(r.dead); err != nil || !ok {
			return fault.New(fault.Conflict, "it is no dead letter any more"), err
		}
	}
	if _, ok, err := j.FindPending(p.name, r.seq, r.rule, r.target()); err != nil || ok {
		return errOwed, err
	}
	if in, err := p.inRange(ctx, r.seq, r.rule, r.target()); err != nil || in {
		return errOwed, err
	}
	return nil, nil
}

// reopened tells the lanes what is due. It is called by the recorder, when the redrives are committed and in the views. What
// is for a target that was deleted meanwhile ends here, unless its removal has found it there.
func (p *path) reopened(list []journal.Redrive) {
	for _, x := range list {
		if l := p.b.lane(x.Route.Target); l != nil {
			l.expect(x.Due)
			continue
		}
		o := journal.Outcome{Seq: x.Seq, Route: x.Route, State: journal.Cancelled, At: p.b.o.Now(), Reason: reasonTargetDeleted}
		p.rec.addNow(func(e *journal.Encoder) { e.Outcome(o) }, nil)
	}
}

// discard writes dead letters off and blocks until that is committed and in the views. why is as for reopen, and the caller
// has lockEnded.
func (p *path) discard(ctx context.Context, list []journal.DeadRef, job uint64, by, reason string) (why []error, err error) {
	why = make([]error, len(list))
	var records []journal.Discard
	for i, d := range list {
		if _, ok, err := p.b.o.Journal.DeadLetter(d.Seq); err != nil {
			return nil, err
		} else if !ok {
			why[i] = fault.New(fault.Conflict, "it is no dead letter any more")
			continue
		}
		records = append(records, journal.Discard{Seq: d.Outcome.Seq, Route: d.Route, Hour: d.Hour, Dead: d.Seq, Job: job,
			At: p.b.o.Now(), By: by, Why: reason})
	}
	if len(records) == 0 {
		return why, nil
	}
	if !p.rec.add(func(e *journal.Encoder) {
		for _, x := range records {
			e.Discard(x)
		}
	}, nil) {
		return nil, errEnded
	}
	return why, p.rec.sync(ctx)
}

// eventOf returns the event of a delivery: the edited one, that of the bus, or the copy in its former dead letter. edited says that
// it is not that of the bus. The error satisfies isGone if there is none any more.
func (p *path) eventOf(t *task) (rec *event.Record, edited bool, err error) {
	r := t.redrive
	if r != nil && r.Edited != 0 {
		rec, err = recordAt(p.hard, p.b.jobs.stream, r.Edited)
		return rec, true, err
	}
	if r != nil && r.Dead != 0 {
		if rec, err = p.editedCopy(r.Dead); rec != nil || err != nil {
			return rec, true, err
		}
	}
	entry, err := p.log.Get(p.hard, t.seq)
	if err == nil && journal.CheckOf(entry.Record.Event.Key()) != t.check {
		err = eventlog.ErrGone
	}
	if isGone(err) && r != nil && r.Dead != 0 {
		rec, err = recordAt(p.hard, p.b.dead, r.Dead)
		return rec, false, err
	}
	return entry.Record, false, err
}

// editedCopy returns the event of a dead letter whose event had been edited: the copy there is all that there is of it. nil if it
// was not, or the dead letter is gone.
func (p *path) editedCopy(seq uint64) (*event.Record, error) {
	raw, err := p.b.dead.Get(p.hard, seq)
	if isGone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	story, err := readStory(raw)
	if err != nil || !story.Edited {
		return nil, err
	}
	return event.FromNATS(raw.Header, raw.Data)
}

func recordAt(ctx context.Context, s *eventlog.Stream, seq uint64) (*event.Record, error) {
	raw, err := s.Get(ctx, seq)
	if err != nil {
		return nil, err
	}
	return event.FromNATS(raw.Header, raw.Data)
}

// via is the target whose transform a delivery is rendered with: that which its rule named.
func (t *task) via() string {
	if t.redrive != nil && t.redrive.Via != "" {
		return t.redrive.Via
	}
	return t.route.Target
}

// marked returns the event with the mark of a redrive, if the delivery was redriven.
func (t *task) marked(ev *event.Event) *event.Event {
	if t.redrive == nil {
		return ev
	}
	out := *ev
	out.Extensions = slices.DeleteFunc(slices.Clone(ev.Extensions), func(a event.Attribute) bool { return a.Name == RedriveExtension })
	i, _ := slices.BinarySearchFunc(out.Extensions, RedriveExtension, func(a event.Attribute, name string) int { return strings.Compare(a.Name, name) })
	out.Extensions = slices.Insert(out.Extensions, i, event.Attribute{Name: RedriveExtension, Value: redriveName(t.redrive.Job)})
	return &out
}

func redriveName(job uint64) string {
	if job == 0 {
		return RedriveByHand
	}
	return jobID(JobRedrive, job)
}
