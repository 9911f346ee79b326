// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/schema"
)

// What a new version of a schema does to a consumer.
const (
	unaffected = "unaffected"
	mayBreak   = "mayBreak" // some events are, or may be, treated otherwise
	breaks     = "breaks"   // what it asks for is never there any more
)

// maxImpact is how many consumers, and how many changes, one answer lists; the worst first.
const maxImpact = 1000

// impactDoc is the answer of POST /v1/schemas/{group}/{schema}:impact.
type impactDoc struct {
	Group     string           `json:"group"`
	Schema    string           `json:"schema"`
	Version   int              `json:"version"` // that the text was compared with
	Verdict   string           `json:"verdict"` // the worst of the consumers'
	Types     []string         `json:"types"`   // of events that are bound to the schema
	Changes   []placeDoc       `json:"changes"`
	Consumers []impactConsumer `json:"consumers"`
	More      int              `json:"more,omitempty"` // consumers that are not listed
}

// placeDoc is a place of events that changes.
type placeDoc struct {
	Path string `json:"path"`
	schema.PlaceChange
}

type impactConsumer struct {
	Bus     string         `json:"bus"`
	Rule    string         `json:"rule"`
	Target  string         `json:"target"`
	Types   []string       `json:"types"` // of events that it may get
	Verdict string         `json:"verdict"`
	Reasons []impactReason `json:"reasons"`
}

type impactReason struct {
	Verdict string `json:"verdict"`
	Path    string `json:"path"`
	By      string `json:"by"`
	Reason  string `json:"reason"`
}

// impact answers who reads what a text would change, if it became the next version of a schema. It stores nothing.
func (a *API) impact(ctx context.Context, in *schemaTextIn) (*documentOut, error) {
	reg, o, err := registration(ctx, in)
	if err == nil && (o.Compatibility != "" || reg.State != "") {
		err = fault.Invalidf("", "compatibility and state do not matter to who reads what")
	}
	if err != nil {
		return nil, err
	}
	s, err := a.o.Schemas.Succession(ctx, reg, o)
	if err != nil {
		return nil, inText(err)
	}
	j, err := newJudge(s)
	if err != nil {
		return nil, err
	}
	out := impactDoc{Group: reg.Name.Group, Schema: reg.Name.Schema, Version: s.Before.Ref.Version, Verdict: unaffected, Types: []string{}, Changes: []placeDoc{}, Consumers: []impactConsumer{}}
	for _, c := range j.changes[:min(len(j.changes), maxImpact)] {
		out.Changes = append(out.Changes, placeDoc{inData(c.Path).String(), c})
	}
	types, err := a.o.Schemas.TypesOf(ctx, reg.Name)
	if err != nil {
		return nil, err
	}
	out.Types = append(out.Types, types...)
	if err := a.judgeAll(ctx, j, &out); err != nil {
		return nil, err
	}
	return jsonOut(http.StatusOK, 0, out)
}

// judgeAll adds all consumers of the types to an answer, the worst first.
func (a *API) judgeAll(ctx context.Context, j *judge, out *impactDoc) error {
	list, err := a.busRules(ctx, a.o.Bridge.Buses())
	if err != nil {
		return err
	}
	for _, r := range list {
		takes := []string{}
		for _, t := range out.Types {
			if r.takes(t) {
				takes = append(takes, t)
			}
		}
		if len(takes) == 0 {
			continue
		}
		for _, t := range r.rule.Targets {
			c := impactConsumer{Bus: r.bus, Rule: r.rule.Name, Target: t.Target, Types: takes}
			if c.Verdict, c.Reasons, err = j.consumer(a.readsFor(r, t.Target)); err != nil {
				return err
			}
			out.Verdict = worseImpact(out.Verdict, c.Verdict)
			out.Consumers = append(out.Consumers, c)
		}
	}
	slices.SortStableFunc(out.Consumers, func(a, b impactConsumer) int { return cmp.Compare(impactRank(b.Verdict), impactRank(a.Verdict)) })
	if n := len(out.Consumers); n > maxImpact {
		out.Consumers, out.More = out.Consumers[:maxImpact], n-maxImpact
	}
	return nil
}

func impactRank(verdict string) int {
	return slices.Index([]string{unaffected, mayBreak, breaks}, verdict)
}

func worseImpact(a, b string) string {
	if impactRank(b) > impactRank(a) {
		return b
	}
	return a
}

func inData(p event.Path) event.Path { return append(event.Path{{Name: "data"}}, p...) }

// judge says what a new version does to who reads.
type judge struct {
	schema.Succession
	changes []schema.PlaceChange
}

func newJudge(s schema.Succession) (*judge, error) {
	changes, err := schema.Changes(s.Old, s.New, s.Policy)
	return &judge{s, changes}, err
}

// consumer is the verdict on all that a consumer reads, with the reasons for it.
func (j *judge) consumer(reads []rules.Read) (string, []impactReason, error) {
	worst, reasons := unaffected, []impactReason{}
	for _, r := range reads {
		verdict, why, err := j.read(r)
		if err != nil {
			return "", nil, err
		}
		if verdict != unaffected {
			worst = worseImpact(worst, verdict)
			reasons = append(reasons, impactReason{verdict, r.Path.String(), r.Pointer, why})
		}
	}
	return worst, reasons, nil
}

// read is the verdict on one place. Attributes are not the schema's matter.
func (j *judge) read(r rules.Read) (verdict, why string, err error) {
	if len(r.Path) > 0 && (r.Path[0].Each || r.Path[0].Name != "data") {
		return unaffected, "", nil
	}
	var at event.Path
	if len(r.Path) > 0 {
		at = r.Path[1:]
	}
	was, err := j.Old.Place(j.Policy, at, r.Through)
	if err != nil {
		return "", "", err
	}
	is, err := j.New.Place(j.Policy, at, r.Through)
	if err != nil {
		return "", "", err
	}
	if r.Decides() {
		verdict, why = clause(r, was, is)
		return verdict, why, nil
	}
	if verdict, why = value(r, was, is); verdict == unaffected && r.Whole {
		verdict, why = j.below(at)
	}
	return verdict, why, nil
}

// below is the verdict on who takes a value with all that is in it.
func (j *judge) below(at event.Path) (verdict, why string) {
	var paths []string
	for _, c := range j.changes {
		if schema.Inside(c.Path, at) && (slices.Contains(c.What, schema.Removed) || slices.Contains(c.What, schema.Loosened) || widened(c.Old, c.New) != "") {
			paths = append(paths, inData(c.Path).String())
		}
	}
	switch n := len(paths); {
	case n == 0:
		return unaffected, ""
	case n > 3:
		return mayBreak, fmt.Sprintf("it takes all of it, and %s and %d more change", strings.Join(paths[:3], ", "), n-3)
	}
	return mayBreak, "it takes all of it, where this changes: " + strings.Join(paths, ", ")
}

// value is the verdict on who takes the value at a place.
func value(r rules.Read, was, is schema.Place) (verdict, why string) {
	switch {
	case len(was.Types) == 0:
		return unaffected, ""
	case len(is.Types) == 0:
		return breaks, "nothing is there any more"
	case meets(r.Types, was) && !meets(r.Types, is):
		return breaks, "is " + list(is.Types) + " now, and must be " + list(r.Types)
	}
	if more := widened(was, is); more != "" {
		return mayBreak, more
	}
	if loosened(was, is) {
		if r.Needed {
			return mayBreak, "may be missing now, and an event without it cannot be delivered"
		}
		return mayBreak, "may be missing now"
	}
	if gone := lost(was, is); len(gone) > 0 && slices.ContainsFunc(r.Operators, func(op string) bool { return op == "==" || op == "in" || op == "!=" }) {
		return mayBreak, "is never " + list(gone) + " any more"
	}
	return unaffected, ""
}

// list writes words, the first few of them.
func list(words []string) string {
	if len(words) > 10 {
		return fmt.Sprintf("%s or %d more", strings.Join(words[:10], " or "), len(words)-10)
	}
	return strings.Join(words, " or ")
}

// loosened reports whether something may be missing that could not be.
func loosened(was, is schema.Place) bool {
	return was.Always && !is.Always || was.Required && !is.Required
}

// meets reports whether a value at a place may be of one of some types; none = any.
func meets(types []string, p schema.Place) bool {
	return len(types) == 0 || slices.ContainsFunc(p.Types, func(t string) bool { return slices.Contains(types, generic(t)) })
}

// generic is the type of JSON that a type of JSON Schema is.
func generic(t string) string {
	if t == "integer" {
		return "number"
	}
	return t
}

// widened says what may be at a place that could not be before; "" if nothing.
func widened(was, is schema.Place) string {
	if len(was.Types) == 0 || len(is.Types) == 0 {
		return ""
	}
	var more []string
	for _, t := range is.Types {
		if !slices.Contains(was.Types, t) && !(t == "integer" && slices.Contains(was.Types, "number")) {
			more = append(more, t)
		}
	}
	switch {
	case len(more) > 0:
		return "may be " + list(more) + " now, and was " + list(was.Types)
	case was.Values == nil:
		return ""
	case is.Values == nil:
		return "may be another than " + list(texts(was.Values)) + " now"
	}
	if more = lost(is, was); len(more) > 0 {
		return "may be " + list(more) + " now"
	}
	return ""
}

// lost lists the values that there were and are not any more.
func lost(was, is schema.Place) []string {
	if is.Values == nil {
		return nil
	}
	var out []string
	for _, v := range texts(was.Values) {
		if !slices.Contains(texts(is.Values), v) {
			out = append(out, v)
		}
	}
	return out
}

func texts(values []json.RawMessage) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = string(v)
	}
	return out
}

// outcomes says whether a clause holds for something that may be at a place, and whether it fails for something.
func outcomes(r rules.Read, p schema.Place) (holds, fails bool) {
	count := func(held bool) { holds, fails = holds || held, fails || !held }
	if !p.Always {
		count(r.HoldsAbsent())
	}
	for _, v := range p.Values {
		count(r.Holds(v))
	}
	if p.Values != nil {
		return holds, fails
	}
	sure := !r.HoldsAbsent() && slices.Equal(r.Operators, []string{"exists"})
	for _, t := range p.Types {
		met := slices.Contains(r.Types, generic(t))
		holds, fails = holds || met, fails || !met || !sure
	}
	return holds, fails
}

// clause is the verdict on a clause of a pattern.
func clause(r rules.Read, was, is schema.Place) (verdict, why string) {
	held, failed := outcomes(r, was)
	holds, fails := outcomes(r, is)
	switch {
	case !held:
		return unaffected, ""
	case !holds && r.Either:
		return mayBreak, "this branch never holds any more: " + whatIs(is)
	case !holds:
		return breaks, "never holds any more: " + whatIs(is)
	case fails && !failed:
		return mayBreak, "held for every event, and may not hold now: " + whatIs(is)
	case loosened(was, is) && !r.HoldsAbsent():
		return mayBreak, "may be missing now"
	case len(was.Types) == 0 || !was.Always && is.Always && r.HoldsAbsent():
		return mayBreak, "may be there now"
	}
	if gone := heldOf(r, lost(was, is)); len(gone) > 0 {
		return mayBreak, "is never " + list(gone) + " any more"
	}
	for _, t := range is.Types {
		if !slices.Contains(was.Types, t) && !slices.Contains(r.Types, generic(t)) {
			return mayBreak, "may be " + t + " now, for which it does not hold"
		}
	}
	for _, t := range was.Types {
		if asksOf(r, t) && !meets([]string{generic(t)}, is) {
			return mayBreak, "is never " + t + " any more"
		}
	}
	return unaffected, ""
}

// asksOf reports whether a clause is about values of a type, and not just about any.
func asksOf(r rules.Read, t string) bool {
	return slices.Contains(r.Types, generic(t)) && slices.ContainsFunc(r.Operators, func(op string) bool { return op != "exists" && op != "anything-but" })
}

// heldOf are those of some values for which a clause holds.
func heldOf(r rules.Read, values []string) []string {
	return slices.DeleteFunc(values, func(v string) bool { return !r.Holds([]byte(v)) })
}

func whatIs(p schema.Place) string {
	switch {
	case len(p.Types) == 0:
		return "nothing is there"
	case p.Values != nil:
		return "it is " + list(texts(p.Values))
	case !p.Always:
		return "it is " + list(p.Types) + ", or missing"
	}
	return "it is " + list(p.Types)
}
