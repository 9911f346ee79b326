// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/internal/event"
)

// Explanation is why a rule matched an event, or did not.
type Explanation struct {
	Matched bool       `json:"matched"`
	Clauses []Clause   `json:"clauses"`        // in the order of the pattern
	When    *Condition `json:"when,omitempty"` // what became of the when, if the rule has one
	SQL     *Condition `json:"sql,omitempty"`  // what became of the sql, if the rule has one
	Note    string     `json:"note,omitempty"` // what no clause says: data that is not JSON, array consistency, a disabled rule
}

// Clause is what became of one field, or one $or, of the pattern.
type Clause struct {
	Pointer  string  `json:"pointer"`  // JSON pointer into the pattern
	Path     string  `json:"path"`     // of the value, joined by dots
	Expected string  `json:"expected"` // the list of values, as JSON; shortened
	Actual   string  `json:"actual"`   // what is there, as JSON, or in words; shortened; with its place where it is one of many
	Verdict  Verdict `json:"verdict"`
	Hint     string  `json:"hint,omitempty"` // a near miss: of a value, of a name, or of a branch
}

// Condition is what became of a when or sql.
type Condition struct {
	Expression string  `json:"expression"`
	Actual     string  `json:"actual"` // true, false, or why it could not be evaluated
	Verdict    Verdict `json:"verdict"`
}

// Verdict is what became of a clause.
type Verdict string

// The verdicts.
const (
	Matched  Verdict = "matched"
	Failed   Verdict = "failed"   // the rule cannot match because of it
	Unneeded Verdict = "unneeded" // it does not hold, but another branch of its $or does; or the pattern has not matched
)

// bounds of an explanation.
const (
	maxClauses  = 200
	maxShown    = 5 // values shown of one path
	maxExpected = 300
	maxActual   = 200
)

// Explain evaluates every clause by itself and says what it found. Matched is what Match would say of the rule, whether
// or not it is disabled. The result holds pieces of the event, all of them short.
func (r *Rule) Explain(ev *event.Event) Explanation {
	var s direct
	s.loadEvent(ev)
	s.loadData()
	e := explainer{s: &s}
	e.x.Matched = s.matches(r.Pattern)
	e.clauses(r.Pattern.parse(new(document)), "", nil)
	e.note(r)
	e.conditions(r, ev)
	e.x.Note = strings.Join(e.notes, "; ")
	return e.x
}

// conditions explains the when and sql, which a match depends on only if the pattern has matched.
func (e *explainer) conditions(r *Rule, ev *event.Event) {
	one := func(name, source string, holds func() (bool, error)) *Condition {
		c := &Condition{Expression: shorten(source, maxExpected), Verdict: Unneeded, Actual: "not evaluated, because the pattern does not match"}
		if !e.x.Matched {
			return c
		}
		held, err := holds()
		c.Actual, c.Verdict = strconv.FormatBool(held), Matched
		if err != nil {
			c.Actual = shorten("failed: "+err.Error(), maxActual)
		}
		if !held {
			c.Verdict = Failed
			e.notes = append(e.notes, fmt.Sprintf("the pattern matches, but %s does not hold", name))
		}
		return c
	}
	var n evaluation
	matched := e.x.Matched
	if r.When != nil {
		e.x.When = one("when", r.When.source, func() (bool, error) { return n.holds(r.When, ev) })
		matched = matched && e.x.When.Verdict == Matched
	}
	if r.SQL != nil {
		e.x.SQL = one("sql", r.SQL.source, func() (bool, error) { return r.SQL.holds(ev) })
		matched = matched && e.x.SQL.Verdict == Matched
	}
	e.x.Matched = matched
}

type explainer struct {
	s         *direct
	x         Explanation
	notes     []string
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
	good, closest := 0, tally{branch: -1}
	for i, branch := range branches {
		from := len(e.x.Clauses)
		if e.clauses(branch, pointer+pointerAt(i), path) {
			good++
		}
		if t := count(e.x.Clauses[from:], i); closest.branch < 0 || t.closer(closest) {
			closest = t
		}
	}
	if at == len(e.x.Clauses) {
		return good > 0 // no room
	}
	c := &e.x.Clauses[at]
	c.Actual, c.Verdict = fmt.Sprintf("%d of %d hold", good, len(branches)), Failed
	switch {
	case good > 0:
		c.Verdict = Matched
		for i := at + 1; i < len(e.x.Clauses); i++ {
			if inner := &e.x.Clauses[i]; inner.Verdict == Failed {
				inner.Verdict = Unneeded
			}
		}
	case len(e.x.Clauses) < maxClauses:
		c.Hint = fmt.Sprintf("%s comes closest: %d of %d clauses hold", pointer+pointerAt(closest.branch), closest.held, closest.held+closest.failed)
	}
	return good > 0
}

// tally counts the clauses of a branch.
type tally struct{ branch, held, failed int }

func count(clauses []Clause, branch int) tally {
	t := tally{branch: branch}
	for _, c := range clauses {
		switch c.Verdict {
		case Matched:
			t.held++
		case Failed:
			t.failed++
		}
	}
	return t
}

// closer reports whether t is nearer to a match than other: fewer clauses fail, or more hold.
func (t tally) closer(other tally) bool {
	return t.failed < other.failed || t.failed == other.failed && t.held > other.held
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
	var shown []int32
	count, good := 0, false
	e.s.refs = append(e.s.refs[:0], ref{})
	for i := range e.s.all(e.s.refs[:1], path) {
		v := e.s.doc.nodes[i].value
		count++
		good = good || f.holds(v)
		if len(shown) < maxShown {
			shown = append(shown, i)
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
	default:
		c.Actual = e.values(shown, path)
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

// values shows some scalars at path, each with its place if it is inside an element of a list.
func (e *explainer) values(nodes []int32, path []string) string {
	plain := joined(path)
	var list []string
	for _, i := range nodes {
		text := show(e.s.doc.nodes[i].value)
		if at := e.s.doc.place(i); strings.TrimRight(at, "[]0123456789") != strings.TrimRight(plain, "[]0123456789") {
			text = shorten(at, 120) + ": " + text
		}
		list = append(list, text)
	}
	return strings.Join(list, ", ")
}

// place says where node i is, such as data.alarms[1].code.
func (d *document) place(i int32) string {
	var b strings.Builder
	for at := int32(0); at != i; {
		array := d.nodes[at].kind == kindArray
		k := 0
		for child := at + 1; child < d.nodes[at].next; child = d.nodes[child].next {
			if i < d.nodes[child].next {
				if array {
					fmt.Fprintf(&b, "[%d]", k)
				} else {
					if at > 0 || b.Len() > 0 {
						b.WriteByte('.')
					}
					b.Write(d.nodes[child].key)
				}
				at = child
				break
			}
			k++
		}
	}
	return b.String()
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

// absentHint lists the names that are there instead, those that are spelled nearly so if there are any; or it says that
// a test needs a value.
func (e *explainer) absentHint(f *field, path []string) string {
	for _, t := range f.tests {
		if _, ok := t.(anythingBut); ok {
			return `anything-but needs a value; add {"exists":false} to the list if an absent field should match too`
		}
	}
	e.s.refs = append(e.s.refs[:0], ref{})
	place := e.s.refs[:1]
	for depth, step := range path {
		next := e.s.stepInto(place, step)
		if len(next) > 0 {
			place = next
			continue
		}
		names := e.s.names(place)
		if depth == 0 && len(names) > 0 {
			names = allNearest(step, names, maxShown)
		} else if near := allNearest(step, names, maxShown); len(near) > 0 {
			names = near
		}
		if len(names) == 0 {
			return ""
		}
		more := ""
		if len(names) > maxShown {
			names, more = names[:maxShown], ", …"
		}
		for i, name := range names {
			names[i] = joined(append(slices.Clone(path[:depth]), name))
		}
		return "the event has: " + strings.Join(names, ", ") + more
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
			name := shorten(string(s.doc.nodes[j].key), 60)
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
			if len(names) == maxClauses {
				return names
			}
		}
	}
	return names
}

// note says what no clause does.
func (e *explainer) note(r *Rule) {
	if e.askedData && e.s.event.Data == nil {
		e.notes = append(e.notes, "the event has no data")
	}
	if e.askedData && e.s.opaque != "" {
		e.notes = append(e.notes, e.s.opaque+", so only attributes can match")
	}
	failed := slices.ContainsFunc(e.x.Clauses, func(c Clause) bool { return c.Verdict == Failed })
	if !e.x.Matched && !failed && len(e.x.Clauses) < maxClauses {
		e.notes = append(e.notes, "each clause holds by itself, but not all of them in the same element of an array")
	}
	if !e.x.Matched {
		e.s.refs = append(e.s.refs[:0], ref{})
		e.elements(e.s.refs[:1], r.Pattern.evaluated(), 0)
	}
	if len(e.x.Clauses) == maxClauses {
		e.notes = append(e.notes, fmt.Sprintf("only the first %d clauses are shown", maxClauses))
	}
	if r.Disabled {
		e.notes = append(e.notes, "the rule is disabled, so it matches nothing")
	}
}

// maxNotes bounds the notes about elements.
const maxNotes = 5

// elements says, for each array of objects in which several terms must hold in one element, which comes closest.
func (e *explainer) elements(place []ref, terms []*term, depth int) {
	for len(terms) > 0 && len(terms[0].path) == depth {
		terms = terms[1:] // fields that end here, and $or, whose branches are clauses
	}
	if e.s.hasArray(place) {
		if len(terms) > 1 && len(e.notes) < maxNotes {
			e.closest(place, terms, depth)
		}
		return
	}
	for len(terms) > 0 {
		step := terms[0].path[depth]
		n := 1
		for n < len(terms) && terms[n].path[depth] == step {
			n++
		}
		mark := len(e.s.refs)
		e.elements(e.s.step(place, step), terms[:n], depth+1)
		e.s.refs = e.s.refs[:mark]
		terms = terms[n:]
	}
}

// closest adds a note about the element of the arrays at a place in which most of the terms hold, unless all do.
func (e *explainer) closest(place []ref, terms []*term, depth int) {
	best, bestAt := -1, ref{}
	var missing []string
	for element := range e.s.elements(place) {
		held := 0
		var fails []string
		for _, t := range terms {
			if e.holdsIn(element, t, depth) {
				held++
			} else {
				fails = append(fails, joined(t.path[depth:]))
			}
		}
		if held > best {
			best, bestAt, missing = held, element, fails
		}
	}
	if best > 0 && len(missing) > 0 {
		at := shorten(e.s.doc.place(bestAt.node), 120)
		e.notes = append(e.notes, fmt.Sprintf("%s comes closest: %s does not hold there", at, shorten(join(missing, "and"), maxActual)))
	}
}

// holdsIn reports whether a term holds in an element. The branches of a $or are not looked into.
func (e *explainer) holdsIn(element ref, t *term, depth int) bool {
	if t.field == nil {
		return true
	}
	mark := len(e.s.refs)
	defer func() { e.s.refs = e.s.refs[:mark] }()
	e.s.refs = append(e.s.refs, element)
	found := false
	for i := range e.s.all(e.s.refs[mark:], t.path[depth:]) {
		if t.field.holds(e.s.doc.nodes[i].value) {
			return true
		}
		found = true
	}
	return !found && t.field.absent
}
