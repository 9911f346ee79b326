// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/internal/event"
)

// Explanation is why a rule matched an event, or did not.
type Explanation struct {
	Matched bool     `json:"matched"`
	Clauses []Clause `json:"clauses"`        // in the order of the pattern
	Note    string   `json:"note,omitempty"` // what no clause says: data that is not JSON, array consistency, a disabled rule
}

// Clause is what became of one field, or one $or, of the pattern.
type Clause struct {
	Pointer  string  `json:"pointer"`  // JSON pointer into the pattern
	Path     string  `json:"path"`     // of the value, joined by dots
	Expected string  `json:"expected"` // the list of values, as JSON; shortened
	Actual   string  `json:"actual"`   // what is there, as JSON, or in words; shortened
	Verdict  Verdict `json:"verdict"`
	Hint     string  `json:"hint,omitempty"` // a near miss
}

// Verdict is what became of a clause.
type Verdict string

// The verdicts.
const (
	Matched  Verdict = "matched"
	Failed   Verdict = "failed"   // the rule cannot match because of it
	Unneeded Verdict = "unneeded" // it does not hold, but another branch of its $or does
)

// bounds of an explanation.
const (
	maxClauses  = 200
	maxShown    = 5 // values shown of one path
	maxExpected = 300
	maxActual   = 200
)

// Explain evaluates every clause by itself and says what it found. Matched is what Match would say of the rule's
// pattern, whether or not the rule is disabled. The result holds pieces of the event, all of them short.
func (r *Rule) Explain(ev *event.Event) Explanation {
	s := new(direct)
	s.loadEvent(ev)
	s.loadData()
	e := explainer{s: s}
	e.x.Matched = s.matches(r.Pattern)
	e.clauses(r.Pattern.parse(new(document)), "", nil)
	e.note(r)
	return e.x
}

type explainer struct {
	s         *direct
	x         Explanation
	askedData bool
}

// clauses explains a group that stands at path and reports whether each of its clauses holds by itself.
func (e *explainer) clauses(g *group, pointer string, path []string) bool {
	good := true
	for _, m := range g.members {
		at := pointer + pointerTo(m.key)
		switch {
		case m.or != nil:
			good = e.or(m.or, at, path) && good
		case m.group != nil:
			good = e.clauses(m.group, at, slices.Concat(path, strings.Split(m.key, "."))) && good
		default:
			good = e.field(m.field, at, slices.Concat(path, strings.Split(m.key, "."))) && good
		}
	}
	return good
}

// or explains a $or. What fails in a branch is no reason while another branch holds.
func (e *explainer) or(branches []*group, pointer string, path []string) bool {
	at := len(e.x.Clauses)
	e.add(Clause{Pointer: pointer, Path: joined(path), Expected: fmt.Sprintf("one of %d branches", len(branches))})
	good := 0
	for i, branch := range branches {
		if e.clauses(branch, pointer+pointerAt(i), path) {
			good++
		}
	}
	if at == len(e.x.Clauses) {
		return good > 0 // no room
	}
	c := &e.x.Clauses[at]
	c.Actual, c.Verdict = fmt.Sprintf("%d of %d hold", good, len(branches)), Failed
	if good > 0 {
		c.Verdict = Matched
		for i := at + 1; i < len(e.x.Clauses); i++ {
			if inner := &e.x.Clauses[i]; inner.Verdict == Failed {
				inner.Verdict = Unneeded
			}
		}
	}
	return good > 0
}

func (e *explainer) add(c Clause) {
	if len(e.x.Clauses) < maxClauses {
		e.x.Clauses = append(e.x.Clauses, c)
	}
}

// field explains one field.
func (e *explainer) field(f *field, pointer string, path []string) bool {
	c := Clause{Pointer: pointer, Path: shorten(joined(path), maxActual), Expected: shorten(string(f.appendJSON(nil)), maxExpected), Verdict: Failed}
	e.askedData = e.askedData || path[0] == dataName
	var shown []string
	count, good := 0, false
	e.s.refs = append(e.s.refs[:0], ref{})
	for v := range e.s.all(e.s.refs[:1], path) {
		count++
		for _, t := range f.tests {
			good = good || t.holds(v)
		}
		if len(shown) < maxShown {
			shown = append(shown, show(v))
			c.Hint = firstOf(c.Hint, nearMiss(f, v))
		}
	}
	switch {
	case count == 0:
		c.Actual = e.absence(path)
		good = f.absent
		if !good {
			c.Hint = e.absentHint(f, path)
		}
	case count == 1:
		c.Actual = shown[0]
	default:
		c.Actual = strings.Join(shown, ", ")
		if count > len(shown) {
			c.Actual += fmt.Sprintf(", … (%d values)", count)
		}
	}
	if !good && f.absent && e.x.Matched && e.s.absentSomewhere(e.s.refs[:1], path) {
		c.Actual += ", but not in the element that the other fields are in"
		good = true
	}
	if good {
		c.Verdict, c.Hint = Matched, ""
	}
	e.add(c)
	return good
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// show writes a scalar as short JSON.
func show(v value) string {
	switch v.kind {
	case kindString:
		if len(v.text) > maxActual {
			cut := maxActual
			for cut > 0 && !utf8.RuneStart(v.text[cut]) {
				cut--
			}
			return string(appendString(nil, v.text[:cut])) + fmt.Sprintf("… (%d bytes)", len(v.text))
		}
		return string(appendString(nil, v.text))
	case kindNumber:
		return shorten(string(v.text), maxActual)
	}
	return v.kind.String()
}

// nearMiss says how a value that failed is close to what was wanted.
func nearMiss(f *field, v value) string {
	for _, t := range f.tests {
		if hint := missedBy(t, v); hint != "" {
			return hint
		}
	}
	return ""
}

func missedBy(t test, v value) string {
	if v.kind == kindString {
		return stringMissedBy(t, v)
	}
	literal := v.text
	if v.kind != kindNumber {
		literal = []byte(v.kind.String())
	}
	if s, ok := t.(exactString); ok && string(s) == string(literal) {
		return fmt.Sprintf("the value is %s, and the pattern wants the string %s", show(v), appendString(nil, string(s)))
	}
	return ""
}

func stringMissedBy(t test, v value) string {
	switch t := t.(type) {
	case exactNumber, numeric:
		if n := len(v.text); n > 0 {
			if end, err := scanNumber(v.text, 0); err == nil && end == n && t.holds(value{kindNumber, v.text}) {
				return fmt.Sprintf("the value is the string %s, and the pattern wants a number", show(v))
			}
		}
	case exactKind:
		if kind(t).String() == string(v.text) {
			return fmt.Sprintf("the value is the string %s, and the pattern wants %s", show(v), kind(t))
		}
	case exactString:
		switch {
		case foldEqual(v.text, string(t)):
			return `only the case differs; {"equals-ignore-case":...} would match`
		case strings.TrimSpace(string(v.text)) == strings.TrimSpace(string(t)):
			return "only white space at an end differs"
		case strings.ContainsRune(string(t), '*'):
			if w, err := parseWildcard(string(t)); err == nil && w.match(v.text) {
				return `a * is a star in a plain string; {"wildcard":...} would match`
			}
		}
	case text:
		if !t.fold {
			if folded := (text{t.operator, true, t.operand}); folded.holds(v) {
				return fmt.Sprintf(`only the case differs; {%q:{"equals-ignore-case":...}} would match`, t.operator)
			}
		}
	}
	return ""
}

// absence says, in words, why no scalar is at path.
func (e *explainer) absence(path []string) string {
	e.s.refs = append(e.s.refs[:0], ref{})
	place := e.s.refs[:1]
	for depth, step := range path {
		next := e.s.stepInto(place, step)
		if len(next) > 0 {
			place = next
			continue
		}
		if depth == 0 {
			return "absent"
		}
		if e.s.onlyScalars(place) {
			return fmt.Sprintf("absent: %s is not an object", shorten(joined(path[:depth]), 80))
		}
		return "absent"
	}
	return "an object or an empty list: no value of its own"
}

// absentSomewhere reports whether there are elements of the arrays on the way in which no scalar is at path.
func (s *direct) absentSomewhere(place []ref, path []string) bool {
	if len(path) == 0 {
		for range s.scalars(place) {
			return false
		}
		return true
	}
	mark := len(s.refs)
	defer func() { s.refs = s.refs[:mark] }()
	if !s.hasArray(place) {
		return s.absentSomewhere(s.step(place, path[0]), path[1:])
	}
	for element := range s.elements(place) {
		s.refs = append(s.refs[:mark], element)
		if s.absentSomewhere(s.refs[mark:], path) {
			return true
		}
	}
	return false
}

// stepInto is step that looks into all elements of arrays.
func (s *direct) stepInto(place []ref, name string) []ref {
	for s.hasArray(place) {
		var inside []ref
		for element := range s.elements(place) {
			inside = append(inside, element)
		}
		place = inside
	}
	return slices.Clone(s.step(place, name))
}

func (s *direct) onlyScalars(place []ref) bool {
	return !slices.ContainsFunc(place, func(r ref) bool { return r.offset != 0 || !s.doc.nodes[r.node].kind.scalar() })
}

// absentHint suggests a name that is there instead, or says that a test needs a value.
func (e *explainer) absentHint(f *field, path []string) string {
	e.s.refs = append(e.s.refs[:0], ref{})
	place := e.s.refs[:1]
	for depth, step := range path {
		next := e.s.stepInto(place, step)
		if len(next) == 0 {
			if names := e.s.names(place); len(names) > 0 {
				if word := nearest(step, names); word != "" {
					return fmt.Sprintf("the event has %s", joined(append(slices.Clone(path[:depth]), word)))
				}
			}
			break
		}
		place = next
	}
	for _, t := range f.tests {
		if _, ok := t.(anythingBut); ok {
			return `anything-but needs a value; add {"exists":false} to the list if an absent field should match too`
		}
	}
	return ""
}

// names lists the members of the objects at a place, and of the elements there.
func (s *direct) names(place []ref) []string {
	for s.hasArray(place) {
		var inside []ref
		for element := range s.elements(place) {
			inside = append(inside, element)
		}
		place = inside
	}
	var names []string
	for _, r := range place {
		if r.offset != 0 || s.doc.nodes[r.node].kind != kindObject {
			continue
		}
		for j := r.node + 1; j < s.doc.nodes[r.node].next; j = s.doc.nodes[j].next {
			if names = append(names, shorten(string(s.doc.nodes[j].key), 60)); len(names) == maxClauses {
				return names
			}
		}
	}
	return names
}

// note says what no clause does.
func (e *explainer) note(r *Rule) {
	var notes []string
	if e.askedData && e.s.event.Data == nil {
		notes = append(notes, "the event has no data")
	}
	if e.askedData && e.s.opaque != "" {
		notes = append(notes, e.s.opaque+", so only attributes can match")
	}
	failed := slices.ContainsFunc(e.x.Clauses, func(c Clause) bool { return c.Verdict == Failed })
	if !e.x.Matched && !failed && len(e.x.Clauses) < maxClauses {
		notes = append(notes, "each clause holds by itself, but not all of them in the same element of an array")
	}
	if len(e.x.Clauses) == maxClauses {
		notes = append(notes, fmt.Sprintf("only the first %d clauses are shown", maxClauses))
	}
	if r.Disabled {
		notes = append(notes, "the rule is disabled, so it matches nothing")
	}
	e.x.Note = strings.Join(notes, "; ")
}
