// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/targets"
)

// deadHeader is the NATS header of a message in DEAD that tells its story; the rest of the message is the event as the
// bus had it.
const deadHeader = "Rialto-Dead"

// deadStory is the value of deadHeader.
type deadStory struct {
	Bus      string    `json:"bus"`
	Seq      uint64    `json:"seq"`
	Rule     string    `json:"rule"`
	Revision uint64    `json:"revision"`
	Target   string    `json:"target"`
	Reason   string    `json:"reason"`
	End      string    `json:"end"` // permanent | attempts | age
	Detail   string    `json:"detail,omitempty"`
	Status   int       `json:"status,omitempty"`
	Response string    `json:"response,omitempty"`
	Attempts int       `json:"attempts"`
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
}

// maxResponse is how much of the far side's answer a dead letter keeps.
const maxResponse = 1024

// bury writes a dead letter and returns its place in DEAD once it is committed. It blocks while DEAD cannot be written.
func (b *Bridge) bury(p *path, t *task, o journal.Outcome, res targets.Result, end string) (uint64, error) {
	entry, err := p.log.Get(p.hard, t.seq)
	if err != nil {
		return 0, err
	}
	first := t.firstAt
	if first.IsZero() {
		first = o.At
	}
	story := deadStory{Bus: p.name, Seq: t.seq, Rule: t.route.Rule, Revision: t.route.Revision,
		Target: t.route.Target, Reason: o.Reason, End: end, Detail: cutText(o.Detail, maxResponse), Status: o.Status,
		Response: cutText(res.Head, maxResponse), Attempts: o.Attempt, First: first, Last: o.At}
	seq, err := b.writeDead(p, story, entry.Record)
	if fault.KindOf(err) == fault.TooLarge { // attributes near the log's limit leave little room beside them
		story.Detail, story.Response = "", ""
		seq, err = b.writeDead(p, story, entry.Record)
	}
	if fault.KindOf(err) == fault.TooLarge {
		rec := *entry.Record
		rec.Event.Extensions = nil
		seq, err = b.writeDead(p, story, &rec)
	}
	if err == nil {
		b.metrics.dead.WithLabelValues(o.Reason).Inc()
	}
	return seq, err
}

// writeDead appends to DEAD. While the log has no room it waits, as the recorder does.
func (b *Bridge) writeDead(p *path, s deadStory, rec *event.Record) (uint64, error) {
	story, err := json.Marshal(s)
	if err != nil {
		return 0, err
	}
	header := event.AppendNATS(nil, rec)
	header = append(header[:len(header)-2], deadHeader+": "...)
	header = append(append(header, story...), "\r\n\r\n"...)
	msg := eventlog.Message{Subject: "dead." + p.name + "." + s.Target, Header: header, Data: rec.Event.Data}
	for backoff := 10 * time.Millisecond; ; backoff = min(2*backoff, time.Second) {
		done := make(chan eventlog.Result, 1)
		r := eventlog.Result{Err: b.dead.Append(p.hard, msg, func(r eventlog.Result) { done <- r })}
		if r.Err == nil {
			select {
			case r = <-done:
			case <-p.hard.Done(): // the attempt is repeated by the next start
				return 0, context.Cause(p.hard)
			}
		}
		if k := fault.KindOf(r.Err); k != fault.Full && k != fault.Unavailable || !pause(p.hard, backoff) {
			return r.Seq, r.Err
		}
	}
}

// DeadQuery selects dead letters; empty fields select all.
type DeadQuery struct {
	Bus, Rule, Target, Reason string
	From, To                  time.Time // of the last attempt
	Limit                     int       // 1-1000; 0 = 100
	Cursor                    string    // Cursor of the last page
}

// DeadLetter is a delivery that ended without success.
type DeadLetter struct {
	ID       string         `json:"id"` // its position in DEAD
	Bus      string         `json:"bus"`
	Rule     string         `json:"rule"`
	Target   string         `json:"target"`
	EventID  string         `json:"eventId"`
	Source   string         `json:"source"`
	Type     string         `json:"type"`
	Position event.Position `json:"position"`
	Reason   string         `json:"reason"`
	End      string         `json:"end"`
	Detail   string         `json:"detail,omitempty"`
	Status   int            `json:"status,omitempty"`
	Response string         `json:"response,omitempty"`
	Attempts int            `json:"attempts"`
	First    time.Time      `json:"firstAttempt"`
	Last     time.Time      `json:"lastAttempt"`
	Event    *event.Event   `json:"-"`
}

// DeadPage is a part of a list of dead letters, newest first.
type DeadPage struct {
	Items      []DeadLetter
	NextCursor string // "" on the last page
}

// DeadLetters lists dead letters, newest first.
func (b *Bridge) DeadLetters(ctx context.Context, q DeadQuery) (DeadPage, error) {
	limit, err := limitOf(q.Limit)
	if err != nil {
		return DeadPage{}, err
	}
	before, err := cursorOf(q.Cursor)
	if err != nil {
		return DeadPage{}, err
	}
	var refs []journal.DeadRef
	var page DeadPage
	err = b.o.Journal.DeadLetters(before, func(r journal.DeadRef) (bool, error) {
		if q.Bus != "" && r.Bus != q.Bus || q.Rule != "" && r.Route.Rule != q.Rule || q.Target != "" && r.Route.Target != q.Target ||
			q.Reason != "" && r.Reason != q.Reason || !within(r.At, q.From, q.To) {
			return ctx.Err() == nil, nil
		}
		if len(refs) == limit {
			page.NextCursor = fmt.Sprint(refs[len(refs)-1].Seq)
			return false, nil
		}
		refs = append(refs, r)
		return ctx.Err() == nil, nil
	})
	if err := errors.Join(err, ctx.Err()); err != nil {
		return page, err
	}
	for _, r := range refs {
		raw, err := b.dead.Get(ctx, r.Seq)
		if isGone(err) {
			continue
		}
		if err != nil {
			return page, err
		}
		dl, err := readDead(r, raw)
		if err != nil {
			return page, err
		}
		page.Items = append(page.Items, dl)
	}
	return page, nil
}

func readDead(ref journal.DeadRef, raw eventlog.Raw) (DeadLetter, error) {
	rec, err := event.FromNATS(raw.Header, raw.Data)
	if err != nil {
		return DeadLetter{}, fmt.Errorf("dead letter %d: %w", ref.Seq, err)
	}
	var s deadStory
	if err := json.Unmarshal(headerValue(raw.Header, deadHeader), &s); err != nil {
		return DeadLetter{}, fmt.Errorf("dead letter %d: %w", ref.Seq, err)
	}
	ev := &rec.Event
	return DeadLetter{ID: event.Position{Stream: "DEAD", Seq: ref.Seq}.String(), Bus: ref.Bus, Rule: s.Rule, Target: s.Target,
		EventID: ev.ID, Source: ev.Source, Type: ev.Type, Position: event.Position{Stream: "EV_" + ref.Bus, Seq: s.Seq},
		Reason: s.Reason, End: s.End, Detail: s.Detail, Status: s.Status, Response: s.Response, Attempts: s.Attempts,
		First: s.First, Last: s.Last, Event: ev}, nil
}

// headerValue returns the value of a header of a NATS header block.
func headerValue(block []byte, name string) []byte {
	for line := range bytes.SplitSeq(block, []byte("\r\n")) {
		if v, ok := bytes.CutPrefix(line, []byte(name+":")); ok {
			return v
		}
	}
	return nil
}

// deliveryID is the stable id of a delivery: the same on every attempt, and after a crash.
func deliveryID(bus string, ev *event.Event, r journal.Route) string {
	var buf [512]byte
	b := append(buf[:0], bus...)
	for _, s := range [...]string{ev.Source, ev.ID, r.Rule, r.Target} {
		b = append(b, 0)
		b = append(b, s...)
	}
	sum := sha256.Sum256(b)
	var out [4 + 32]byte
	copy(out[:], "dlv_")
	hex.Encode(out[4:], sum[:16])
	return string(out[:])
}

// detailOf is what a person reads about a failed attempt: one line.
func detailOf(err error) string {
	var te *targets.Error
	if errors.As(err, &te) && te.Err != nil {
		err = te.Err
	}
	line := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(err.Error(), "\uFFFD"))
	return strings.Join(strings.Fields(line), " ")
}
