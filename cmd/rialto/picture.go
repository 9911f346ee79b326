// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/rules"
)

// eventStory is an event with its journey, as the server tells it.
type eventStory struct {
	Event    json.RawMessage `json:"event"`
	Position string          `json:"position"`
	Received time.Time       `json:"received"`
	Origin   *struct {
		Topic  string `json:"topic"`
		Client string `json:"client"`
		QoS    int    `json:"qos"`
	} `json:"origin"`
	Others  []string `json:"others"`
	Status  string   `json:"status"` // its deliveries taken together
	Journey struct {
		State      string          `json:"state"`
		RoutedAt   *time.Time      `json:"routedAt"`
		Ruleset    uint64          `json:"ruleset"`
		Rules      []ruleVerdict   `json:"rules"`
		RulesMore  int             `json:"rulesMore"`
		Records    int             `json:"recordsMore"`
		Responses  int             `json:"responsesMore"`
		Deliveries []deliveryStory `json:"deliveries"`
	} `json:"journey"`
}

type ruleVerdict struct {
	Rule        string             `json:"rule"`
	Revision    uint64             `json:"revision"`
	Matched     bool               `json:"matched"`
	Explanation *rules.Explanation `json:"explanation"`
}

type deliveryStory struct {
	Rule       string         `json:"rule"`
	Target     string         `json:"target"`
	State      string         `json:"state"` // live, parked, delivered, dead, expired, cancelled, discarded
	Reason     string         `json:"reason"`
	Due        *time.Time     `json:"due"`
	Behind     *headStory     `json:"behind"`
	Attempts   []attemptStory `json:"attempts"`
	DeadLetter string         `json:"deadLetter"`

	Redrives  []redriveStory `json:"redrives"`
	Discarded *redriveStory  `json:"discarded"`
}

// headStory is what has its turn first.
type headStory struct {
	Position string `json:"position"`
}

// redriveStory says who made a delivery owed again, or wrote it off.
type redriveStory struct {
	At     time.Time `json:"at"`
	Job    string    `json:"job"`
	By     string    `json:"by"`
	Why    string    `json:"why"`
	From   string    `json:"from"`
	Edited bool      `json:"edited"`
}

func (r redriveStory) text(what string) string {
	if r.Edited {
		what += " with an edited event"
	}
	if r.From != "" {
		what += " from " + r.From
	}
	if r.By != "" {
		what += " by " + r.By
	}
	if r.Job != "" {
		what += " (" + r.Job + ")"
	}
	if r.Why != "" {
		what += ": " + r.Why
	}
	return what
}

type attemptStory struct {
	N          int       `json:"n"`
	At         time.Time `json:"at"`
	DurationMS float64   `json:"durationMs"`
	OK         bool      `json:"ok"`
	Status     int       `json:"status"`
	Reason     string    `json:"reason"`
	Detail     string    `json:"detail"`
	Remote     string    `json:"remote"`
	Reused     bool      `json:"reused"`
	Timings    struct {
		DNS       float64 `json:"dnsMs"`
		Connect   float64 `json:"connectMs"`
		TLS       float64 `json:"tlsMs"`
		FirstByte float64 `json:"firstByteMs"`
	} `json:"timings"`
	Response string     `json:"response"`
	Next     *time.Time `json:"next"`
}

// wire says where the time of an attempt went.
func (a attemptStory) wire() string {
	parts := []string{a.Remote}
	if a.Reused {
		parts[0] = strings.TrimSpace(a.Remote + " kept")
	}
	for _, t := range []struct {
		name string
		ms   float64
	}{{"dns", a.Timings.DNS}, {"connect", a.Timings.Connect}, {"tls", a.Timings.TLS}, {"first byte", a.Timings.FirstByte}} {
		if t.ms > 0 {
			parts = append(parts, t.name+" "+milliseconds(t.ms))
		}
	}
	return strings.TrimPrefix(strings.Join(parts, ", "), ", ")
}

const (
	pageWidth     = 80
	stampWidth    = 12 // 15:04:05.000
	mostStrangers = 12 // rules that did not match and are shown
)

// picture is drawn line by line: a time on the left, the tree beside it.
type picture struct {
	b      strings.Builder
	paint  palette
	stamps int       // width of the times; 0 for a picture without
	day    time.Time // the day whose times need no date
	zone   *time.Location
	now    time.Time
}

// drawJourney draws the story of an event for a person, in 80 columns, in the time zone of now.
func drawJourney(bus string, s eventStory, now time.Time, paint palette) string {
	p := &picture{paint: paint, stamps: stampWidth, now: now, zone: now.Location(), day: s.Received.In(now.Location())}
	p.head(s.Event)
	p.field("day", p.day.Format("Monday 2 January 2006, MST"))
	for _, other := range s.Others {
		p.field("see also", other+" has the same id")
	}
	p.b.WriteByte('\n')
	p.arrival(bus, s)
	p.routing(s)
	p.verdicts(s)
	return p.b.String()
}

// head shows the event itself.
func (p *picture) head(raw json.RawMessage) {
	var e struct {
		ID, Source, Type, Subject string
		Time                      string
		DataContentType           string
		Data                      json.RawMessage `json:"data"`
		Base64                    string          `json:"data_base64"`
	}
	// An event that cannot be shown in parts is shown as it is.
	if err := json.Unmarshal(raw, &e); err != nil {
		p.line("", clean(shorten(string(raw), pageWidth)))
		return
	}
	p.b.WriteString(p.paint.bold(clean(e.Type)) + "  " + clean(e.ID) + "\n\n")
	p.field("source", e.Source)
	p.field("subject", e.Subject)
	p.field("time", e.Time)
	switch {
	case len(e.Data) > 0:
		p.field("data", string(e.Data))
	case e.Base64 != "":
		p.field("data", fmt.Sprintf("%s, %s", orDefault(e.DataContentType, "bytes"), count(base64.StdEncoding.DecodedLen(len(e.Base64))-strings.Count(e.Base64, "="), "byte")))
	}
}

// field is a line of the head.
func (p *picture) field(name, value string) {
	if value != "" {
		p.b.WriteString("  " + p.paint.dim(fmt.Sprintf("%-8s", name)) + " " + shorten(clean(value), pageWidth-11) + "\n")
	}
}

func (p *picture) arrival(bus string, s eventStory) {
	p.line(p.stamp(s.Received), p.paint.good("●")+" arrived on "+p.paint.bold(clean(bus))+p.paint.dim("  "+clean(s.Position)))
	if s.Origin != nil {
		by := ""
		if s.Origin.Client != "" {
			by = " by " + s.Origin.Client
		}
		for _, text := range wrap(fmt.Sprintf("MQTT QoS %d on %s%s", s.Origin.QoS, s.Origin.Topic, by), pageWidth-stampWidth-4) {
			p.line("", "│ "+p.paint.dim(text))
		}
	}
	p.line("", "│")
}

func (p *picture) routing(s eventStory) {
	j := s.Journey
	matched := 0
	for _, r := range j.Rules {
		if r.Matched {
			matched++
		}
	}
	stamp := ""
	if j.RoutedAt != nil {
		stamp = p.stamp(*j.RoutedAt)
	}
	switch {
	case j.State == "pending":
		p.line("", p.paint.wait("◌")+" not routed yet")
	case len(j.Rules) == 0 && len(j.Deliveries) == 0:
		p.line(stamp, p.paint.dim("○")+" no rule matched")
	case len(j.Rules) == 0:
		p.line(stamp, p.paint.good("●")+" routed")
	case matched == 0:
		p.line(stamp, p.paint.dim("○")+fmt.Sprintf(" none of %s matched", count(len(j.Rules)+j.RulesMore, "rule")))
	default:
		p.line(stamp, p.paint.good("●")+fmt.Sprintf(" %d of %s matched", matched, count(len(j.Rules)+j.RulesMore, "rule")))
	}
}

// branch is one rule of the tree.
type branch struct {
	verdict    ruleVerdict
	deliveries []deliveryStory
}

// verdicts draws the rules, those that matched first.
func (p *picture) verdicts(s eventStory) {
	var branches []branch
	at := map[string]int{}
	for _, r := range s.Journey.Rules {
		at[r.Rule] = len(branches)
		branches = append(branches, branch{verdict: r})
	}
	for _, d := range s.Journey.Deliveries {
		i, ok := at[d.Rule]
		if !ok { // the rule is gone; what it started is not
			i = len(branches)
			at[d.Rule] = i
			branches = append(branches, branch{verdict: ruleVerdict{Rule: d.Rule, Matched: true}})
		}
		branches[i].deliveries = append(branches[i].deliveries, d)
	}
	slices.SortStableFunc(branches, func(a, b branch) int {
		switch {
		case a.verdict.Matched == b.verdict.Matched:
			return 0
		case a.verdict.Matched:
			return -1
		}
		return 1
	})
	p.branches(branches, s.Journey.RulesMore)
	if n := s.Journey.Records; n > 0 {
		p.line("", p.paint.dim(fmt.Sprintf("left out: %s", count(n, "older record"))))
	}
	if n := s.Journey.Responses; n > 0 {
		p.line("", p.paint.dim(fmt.Sprintf("left out: the %s of the first attempts", count(n, "response"))))
	}
}

// branches draws rules; more is how many did not match and are not among them.
func (p *picture) branches(branches []branch, more int) {
	rest := "and %d more"
	if matched := slices.IndexFunc(branches, func(b branch) bool { return !b.verdict.Matched }); matched >= 0 {
		rest += " that did not match"
		if len(branches) > matched+mostStrangers {
			if more == 0 {
				rest += "; -o json has them all"
			}
			more += len(branches) - matched - mostStrangers
			branches = branches[:matched+mostStrangers]
		}
	}
	apart := true // one-liners stand close together
	for i, b := range branches {
		p.rule(b, apart || b.says(), i == len(branches)-1 && more == 0)
		apart = b.says()
	}
	if more > 0 {
		p.line("", "│")
		p.line("", "└─ "+p.paint.dim(fmt.Sprintf(rest, more)))
	}
}

// says reports whether there is more to tell of a branch than its verdict.
func (b branch) says() bool {
	return b.verdict.Matched || b.verdict.Explanation != nil && (b.verdict.Explanation.Note != "" ||
		slices.ContainsFunc(b.verdict.Explanation.Clauses, func(c rules.Clause) bool { return c.Verdict == rules.Failed }))
}

func (p *picture) rule(b branch, apart, last bool) {
	fork, stem := "├─ ", "│  "
	if last {
		fork, stem = "└─ ", "   "
	}
	v := b.verdict
	if apart {
		p.line("", "│")
	}
	if !v.Matched {
		p.entry("", fork, p.paint.dim(clean(v.Rule)), clean(v.Rule), "no match", p.paint.dim)
		p.why(stem, v.Explanation)
		return
	}
	p.entry("", fork, p.paint.bold(clean(v.Rule)), clean(v.Rule), "matched", p.paint.good)
	if v.Explanation != nil && v.Explanation.Note != "" {
		p.note(stem, v.Explanation.Note)
	}
	for i, d := range b.deliveries {
		p.delivery(stem, d, i == len(b.deliveries)-1)
	}
}

// why names the clauses that said no.
func (p *picture) why(stem string, e *rules.Explanation) {
	if e == nil {
		return
	}
	for _, c := range e.Clauses {
		if c.Verdict != rules.Failed {
			continue
		}
		text := fmt.Sprintf("%s: %s; wanted %s", orDefault(c.Path, c.Pointer), shorten(c.Actual, 100), shorten(c.Expected, 160))
		if c.Hint != "" {
			text += " (" + c.Hint + ")"
		}
		p.note(stem, text)
	}
	for _, x := range conditionsOf(e) {
		if x.Verdict == rules.Failed {
			p.note(stem, fmt.Sprintf("%s: %s; wanted %s", x.name, x.Actual, shorten(x.Expression, 160)))
		}
	}
	if note := noteOf(e); note != "" {
		p.note(stem, note)
	}
}

// namedCondition is a when or sql.
type namedCondition struct {
	name string
	rules.Condition
}

func conditionsOf(e *rules.Explanation) []namedCondition {
	var list []namedCondition
	if e.When != nil {
		list = append(list, namedCondition{"when", *e.When})
	}
	if e.SQL != nil {
		list = append(list, namedCondition{"sql", *e.SQL})
	}
	return list
}

// noteOf is the note of an explanation, without what its conditions say themselves.
func noteOf(e *rules.Explanation) string {
	parts := slices.DeleteFunc(strings.Split(e.Note, "; "), func(s string) bool {
		return strings.HasPrefix(s, "the pattern matches, but ")
	})
	return strings.Join(parts, "; ")
}

func (p *picture) note(stem, text string) {
	for i, part := range wrap(clean(text), pageWidth-p.stamps-6-len([]rune(stem))) {
		indent := "  "
		if i > 0 {
			indent = "    "
		}
		p.line("", stem+p.paint.dim(indent+part))
	}
}

func (p *picture) delivery(stem string, d deliveryStory, last bool) {
	fork, deeper := stem+"├─ ", stem+"│  "
	if last {
		fork, deeper = stem+"└─ ", stem+"   "
	}
	state, colour := d.State, p.paint.dim
	switch d.State {
	case "delivered":
		state, colour = "✓ delivered", p.paint.good
	case "dead":
		state, colour = "✗ dead letter", p.paint.bad
	case "parked":
		state, colour = "◷ parked", p.paint.wait
		switch {
		case d.Behind != nil:
			state = "◷ parked behind " + clean(d.Behind.Position)
		case d.Due != nil:
			state = "◷ parked, due " + due(*d.Due, p.now)
		}
	case "live":
		state, colour = "▸ under way", p.paint.wait
	case "cancelled":
		state = "– cancelled"
	case "expired":
		state = "– expired"
	case "discarded":
		state = "– discarded"
	}
	p.line("", stem+"│")
	p.entry("", fork, clean(d.Target), clean(d.Target), state, colour)
	redrives := d.Redrives
	for _, a := range d.Attempts {
		for ; len(redrives) > 0 && !redrives[0].At.After(a.At); redrives = redrives[1:] {
			p.note(deeper, redrives[0].text("redriven"))
		}
		p.attempt(deeper, a)
	}
	for _, r := range redrives {
		p.note(deeper, r.text("redriven"))
	}
	switch {
	case d.Discarded != nil:
		p.note(deeper, d.Discarded.text("discarded"))
	case d.State == "discarded":
		p.note(deeper, strings.ReplaceAll(d.Reason, "_", " "))
	case d.DeadLetter != "":
		p.note(deeper, "kept as "+d.DeadLetter)
	case d.Reason != "" && len(d.Attempts) == 0:
		p.note(deeper, strings.ReplaceAll(d.Reason, "_", " "))
	}
}

func (p *picture) attempt(stem string, a attemptStory) {
	outcome, colour := strings.ReplaceAll(a.Reason, "_", " "), p.paint.bad
	if a.OK {
		outcome, colour = "accepted", p.paint.good
	}
	if a.Status != 0 {
		outcome = strings.TrimSpace(fmt.Sprintf("%d %s", a.Status, http.StatusText(a.Status)))
	}
	text := fmt.Sprintf("%-3s ", fmt.Sprintf("#%d", a.N))
	p.line(p.stamp(a.At), stem+p.paint.dim(text)+colour(clean(orDefault(outcome, "no answer")))+
		p.paint.dim(" in "+milliseconds(a.DurationMS)))
	if !a.OK && a.Detail != "" {
		p.note(stem+"  ", a.Detail)
	}
	if wire := a.wire(); wire != "" {
		p.note(stem+"  ", wire)
	}
	if !a.OK {
		p.response(stem+"  ", a.Response)
	}
	if a.Next != nil {
		p.note(stem+"  ", "next try "+p.stamp(*a.Next))
	}
}

// mostHeaders is how many lines of headers of a response are shown.
const mostHeaders = 6

// response shows how an answer began, but for its status, which stands above.
func (p *picture) response(stem, head string) {
	headers, body, _ := strings.Cut(head, "\n\n")
	lines := strings.Split(headers, "\n")[1:]
	if more := len(lines) - mostHeaders; more > 0 {
		lines = append(lines[:mostHeaders], fmt.Sprintf("and %s; -o json has all", count(more, "header")))
	}
	if body != "" {
		lines = append(lines, body)
	}
	for _, l := range lines {
		p.line("", stem+p.paint.dim("  > "+shorten(clean(l), pageWidth-p.stamps-6-len([]rune(stem)))))
	}
}

// entry is a line with a name on the left and its state at the right edge.
func (p *picture) entry(stamp, fork, painted, plain, state string, colour func(string) string) {
	room := pageWidth - p.stamps - 2 - utf8.RuneCountInString(fork) - utf8.RuneCountInString(plain) - utf8.RuneCountInString(state)
	p.line(stamp, fork+painted+" "+p.paint.dim(strings.Repeat("·", max(room-2, 1)))+" "+colour(state))
}

// line writes one line of the tree beside its time.
func (p *picture) line(stamp, tree string) {
	p.b.WriteString(p.paint.dim(fmt.Sprintf("%*s", p.stamps, stamp)))
	p.b.WriteString("  ")
	p.b.WriteString(tree)
	p.b.WriteByte('\n')
}

// stamp is a time of the day of arrival, or a date and a time without seconds.
func (p *picture) stamp(t time.Time) string {
	t = t.In(p.zone)
	if y, d := t.Year(), t.YearDay(); y != p.day.Year() || d != p.day.YearDay() {
		return t.Format("02 Jan 15:04")
	}
	return t.Format("15:04:05.000")
}

func milliseconds(ms float64) string {
	switch {
	case ms >= 1000:
		return fmt.Sprintf("%.1f s", ms/1000)
	case ms >= 10:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.1f ms", ms)
}

func due(t, now time.Time) string {
	d := t.Sub(now)
	switch {
	case d <= 0:
		return "now"
	case d < time.Second:
		return "in a moment"
	}
	return "in " + span(d)
}

// wrap breaks text into lines of at most width characters, at spaces where there are any.
func wrap(text string, width int) []string {
	var lines []string
	var line []rune
	for _, word := range strings.Fields(text) {
		w := []rune(word)
		if len(line) > 0 && len(line)+1+len(w) > width {
			lines = append(lines, string(line))
			line = nil
		}
		if len(line) > 0 {
			line = append(line, ' ')
		}
		line = append(line, w...)
		for len(line) > width {
			lines = append(lines, string(line[:width]))
			line = line[width:]
		}
	}
	if len(line) > 0 {
		lines = append(lines, string(line))
	}
	return lines
}
