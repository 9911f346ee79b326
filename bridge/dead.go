// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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
	End      string    `json:"end"` // permanent | attempts | age | skipped
	Detail   string    `json:"detail,omitempty"`
	Status   int       `json:"status,omitempty"`
	Response string    `json:"response,omitempty"` // how the last answer began, as in an Attempt
	Remote   string    `json:"remote,omitempty"`
	Attempts int       `json:"attempts"`
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
	Redrive  string    `json:"redrive,omitempty"` // what had redriven it
	Via      string    `json:"via,omitempty"`     // the target whose transform it was rendered with, if not its own
	Edited   bool      `json:"edited,omitempty"`  // its event is not that of the bus: somebody had edited it
}

// maxTold is how many bytes are told of an attempt where much else is: of its detail, and in lists and announcements of the
// answer.
const maxTold = 1 << 10

// bury writes a dead letter and returns its place in DEAD once it is committed. It blocks while DEAD cannot be written.
func (b *Bridge) bury(p *path, t *task, o journal.Outcome, end string) (uint64, error) {
	stored, edited, err := p.eventOf(t)
	if err != nil {
		return 0, err
	}
	first := t.firstAt
	if first.IsZero() {
		first = o.At
	}
	story := deadStory{Bus: p.name, Seq: t.seq, Rule: t.route.Rule, Revision: t.route.Revision,
		Target: t.route.Target, Reason: o.Reason, End: end, Detail: journal.Cut(o.Detail, maxTold), Status: o.Status,
		Response: journal.Cut(o.Exchange.Head, targets.MaxHead), Remote: o.Exchange.Remote, Attempts: o.Attempt, First: first, Last: o.At,
		Edited: edited}
	if t.redrive != nil {
		story.Redrive, story.Via = redriveName(t.redrive.Job), t.redrive.Via
	}
	seq, err := b.writeDead(p, story, stored)
	if fault.KindOf(err) == fault.TooLarge { // attributes near the log's limit leave little room beside them
		story.Detail, story.Response = "", ""
		seq, err = b.writeDead(p, story, stored)
	}
	if fault.KindOf(err) == fault.TooLarge {
		rec := *stored
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
	var story bytes.Buffer
	enc := json.NewEncoder(&story)
	enc.SetEscapeHTML(false) // a page of HTML would grow sixfold
	if err := enc.Encode(s); err != nil {
		return 0, err
	}
	header := event.AppendNATS(nil, rec)
	header = append(header[:len(header)-2], deadHeader+": "...)
	header = append(append(header, bytes.TrimSuffix(story.Bytes(), []byte("\n"))...), "\r\n\r\n"...)
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

// DeadFilter selects dead letters; empty fields select all.
type DeadFilter struct {
	Bus         string    `json:"bus,omitempty"`
	Rule        string    `json:"rule,omitempty"`
	Target      string    `json:"target,omitempty"`
	Reason      string    `json:"reason,omitempty"`
	Fingerprint string    `json:"fingerprint,omitempty"`
	From        time.Time `json:"from,omitzero"` // of the last attempt
	To          time.Time `json:"to,omitzero"`
	IDs         []string  `json:"ids,omitempty"` // at most MaxDeadIDs
}

// MaxDeadIDs is how many dead letters a filter may name.
const MaxDeadIDs = 1000

// chosen is a DeadFilter ready for use.
type chosen struct {
	DeadFilter
	seqs map[uint64]bool // nil = all
}

func (f DeadFilter) choose() (chosen, error) {
	c := chosen{DeadFilter: f}
	if len(f.IDs) > MaxDeadIDs {
		return c, fault.Invalidf("/ids", "must be at most %d", MaxDeadIDs)
	}
	for i, id := range f.IDs {
		seq, err := deadSeq(id)
		if err != nil {
			return c, fault.Invalidf(fmt.Sprintf("/ids/%d", i), "is no id of a dead letter, such as DEAD:7")
		}
		if c.seqs == nil {
			c.seqs = make(map[uint64]bool)
		}
		c.seqs[seq] = true
	}
	return c, nil
}

func deadSeq(id string) (uint64, error) {
	pos, err := event.ParsePosition(id)
	if err == nil && pos.Stream != "DEAD" {
		err = errors.New("not in DEAD")
	}
	return pos.Seq, err
}

func (c *chosen) has(r *journal.DeadRef) bool {
	switch {
	case c.seqs != nil && !c.seqs[r.Seq],
		c.Bus != "" && r.Bus != c.Bus, c.Rule != "" && r.Route.Rule != c.Rule, c.Target != "" && r.Route.Target != c.Target,
		c.Reason != "" && r.Reason != c.Reason, !within(r.At, c.From, c.To):
		return false
	}
	return c.Fingerprint == "" || fingerprint(r) == c.Fingerprint
}

// span is where in DEAD the chosen ones can be, up to last: behind after.
func (c *chosen) span(after, last uint64) (uint64, uint64) {
	if c.seqs == nil {
		return after, last
	}
	lowest, highest := ^uint64(0), uint64(0)
	for seq := range c.seqs {
		lowest, highest = min(lowest, seq), max(highest, seq)
	}
	return max(after, lowest-1), min(last, highest)
}

// fingerprint says which dead letters died of the same: a short hash of the reason, the status and the detail without
// what differs from one to the next, which is every word with a digit in it.
func fingerprint(r *journal.DeadRef) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%d\x00%s", r.Reason, r.Status, alike(r.Detail))
	return hex.EncodeToString(h.Sum(nil)[:6])
}

// alike writes a # for each word of s that has a digit in it.
func alike(s string) string {
	var b strings.Builder
	word := func(w string) {
		if strings.ContainsAny(w, "0123456789") {
			w = "#"
		}
		b.WriteString(w)
	}
	start := 0
	for i, c := range s {
		if !unicode.IsLetter(c) && !unicode.IsDigit(c) && c != '_' && c != '-' {
			word(s[start:i])
			b.WriteRune(c)
			start = i + len(string(c))
		}
	}
	word(s[min(start, len(s)):])
	return b.String()
}

// DeadQuery asks for a page of dead letters.
type DeadQuery struct {
	DeadFilter
	Limit  int    // 1-1000; 0 = 100
	Cursor string // Cursor of the last page
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
	Print    string         `json:"fingerprint"` // the same for all that died of the same
	End      string         `json:"end"`
	Detail   string         `json:"detail,omitempty"`
	Status   int            `json:"status,omitempty"`
	Response string         `json:"response,omitempty"` // how the last answer began, as in an Attempt
	Remote   string         `json:"remote,omitempty"`   // the address that was dialled last
	Attempts int            `json:"attempts"`
	First    time.Time      `json:"firstAttempt"`
	Last     time.Time      `json:"lastAttempt"`
	Redrive  string         `json:"redrive,omitempty"` // what had redriven it before it died
	Event    *event.Event   `json:"-"`

	received time.Time // of the event
}

// pageBytes is how many bytes of dead letters, or of events, a page holds; it may be more by one of them.
const pageBytes = 8 << 20

// DeadPage is a part of a list of dead letters, newest first. It may be short, or empty, and still have a NextCursor: they
// are large, or gone.
type DeadPage struct {
	Items      []DeadLetter
	NextCursor string // "" on the last page
}

// DeadLetters lists dead letters, newest first. Of long responses it tells the beginning.
func (b *Bridge) DeadLetters(ctx context.Context, q DeadQuery) (DeadPage, error) {
	limit, err := limitOf(q.Limit)
	if err != nil {
		return DeadPage{}, err
	}
	before, err := cursorOf(q.Cursor)
	if err != nil {
		return DeadPage{}, err
	}
	want, err := q.choose()
	if err != nil {
		return DeadPage{}, err
	}
	var refs []journal.DeadRef
	var page DeadPage
	err = b.o.Journal.DeadLetters(before, func(r journal.DeadRef) (bool, error) {
		if !want.has(&r) {
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
	size := 0
	for i, r := range refs {
		if size >= pageBytes { // the rest comes with the next page
			page.NextCursor = fmt.Sprint(refs[i-1].Seq)
			break
		}
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
		dl.Response = journal.Cut(dl.Response, maxTold)
		page.Items = append(page.Items, dl)
		size += len(raw.Data) + len(raw.Header)
	}
	return page, nil
}

// DeadLetter returns one dead letter by its id; bus, if it is not empty, is where it must be. The error is NotFound if there
// is none, or none any more.
func (b *Bridge) DeadLetter(ctx context.Context, bus, id string) (*DeadLetter, error) {
	none := fault.New(fault.NotFound, "no dead letter with this id: it may have been redriven, discarded, or kept for long enough")
	seq, err := deadSeq(id)
	if err != nil {
		return nil, none
	}
	ref, ok, err := b.o.Journal.DeadLetter(seq)
	if err != nil {
		return nil, err
	}
	if !ok || bus != "" && ref.Bus != bus {
		return nil, none
	}
	raw, err := b.dead.Get(ctx, seq)
	if isGone(err) {
		return nil, none
	}
	if err != nil {
		return nil, err
	}
	dl, err := readDead(ref, raw)
	return &dl, err
}

// DeadGroup is how many dead letters died of the same.
type DeadGroup struct {
	Print  string    `json:"fingerprint"`
	Reason string    `json:"reason"`
	Status int       `json:"status,omitempty"`
	Detail string    `json:"detail,omitempty"` // of one of them
	Count  uint64    `json:"count"`
	First  time.Time `json:"first"` // of the last attempts
	Last   time.Time `json:"last"`
}

// DeadCount says how many dead letters a filter selects, and of what they died, the most frequent first. For a job over deliveries by
// outcome it says so of those, and their reasons.
type DeadCount struct {
	Total   uint64      `json:"total"`
	Groups  []DeadGroup `json:"groups"`
	More    uint64      `json:"more,omitempty"`    // in groups that are not listed
	Partial bool        `json:"partial,omitempty"` // there were more than a count looks at: these are the oldest
}

// tally makes a DeadCount. The zero value is ready.
type tally struct {
	DeadCount
	at map[string]int // groups by fingerprint
}

func (t *tally) add(r *journal.DeadRef) {
	t.Total++
	fp := fingerprint(r)
	i, ok := t.at[fp]
	if !ok && len(t.Groups) == maxGroups {
		t.More++
		return
	}
	if !ok {
		if t.at == nil {
			t.at = make(map[string]int)
		}
		i = len(t.Groups)
		t.at[fp] = i
		t.Groups = append(t.Groups, DeadGroup{Print: fp, Reason: r.Reason, Status: r.Status, First: r.At, Last: r.At})
	}
	g := &t.Groups[i]
	g.Count++
	g.Detail = r.Detail
	if r.At.Before(g.First) {
		g.First = r.At
	}
	if r.At.After(g.Last) {
		g.Last = r.At
	}
}

func (t *tally) result() DeadCount {
	if t.Groups == nil {
		t.Groups = []DeadGroup{}
	}
	slices.SortFunc(t.Groups, func(a, b DeadGroup) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Print, b.Print))
	})
	return t.DeadCount
}

// maxGroups is how many groups a count lists.
const maxGroups = 1000

// CountDead counts dead letters. It reads the index of all of them, and not the letters.
func (b *Bridge) CountDead(ctx context.Context, f DeadFilter) (DeadCount, error) {
	n, _, err := b.countDead(ctx, f)
	return n, err
}

// countDead is CountDead, and says on which buses they are.
func (b *Bridge) countDead(ctx context.Context, f DeadFilter) (DeadCount, map[string]bool, error) {
	var t tally
	buses := make(map[string]bool)
	want, err := f.choose()
	if err != nil {
		return DeadCount{}, nil, err
	}
	after, last := want.span(0, b.dead.Committed())
	err = b.o.Journal.EachDead(after, last, func(r journal.DeadRef) (bool, error) {
		if !want.has(&r) {
			return true, ctx.Err()
		}
		buses[r.Bus] = true
		t.add(&r)
		return true, ctx.Err()
	})
	return t.result(), buses, err
}

func readDead(ref journal.DeadRef, raw eventlog.Raw) (DeadLetter, error) {
	rec, err := event.FromNATS(raw.Header, raw.Data)
	if err != nil {
		return DeadLetter{}, fmt.Errorf("dead letter %d: %w", ref.Seq, err)
	}
	s, err := readStory(raw)
	if err != nil {
		return DeadLetter{}, err
	}
	ev := &rec.Event
	return DeadLetter{ID: event.Position{Stream: "DEAD", Seq: ref.Seq}.String(), Bus: ref.Bus, Rule: s.Rule, Target: s.Target,
		EventID: ev.ID, Source: ev.Source, Type: ev.Type, Position: event.Position{Stream: "EV_" + ref.Bus, Seq: s.Seq},
		Reason: s.Reason, Print: fingerprint(&ref), Redrive: s.Redrive, End: s.End, Detail: s.Detail, Status: s.Status, Response: s.Response,
		Remote: s.Remote, Attempts: s.Attempts,
		First: s.First, Last: s.Last, Event: ev, received: rec.Received}, nil
}

func readStory(raw eventlog.Raw) (s deadStory, err error) {
	if err = json.Unmarshal(headerValue(raw.Header, deadHeader), &s); err != nil {
		err = fmt.Errorf("dead letter %d: %w", raw.Seq, err)
	}
	return s, err
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
