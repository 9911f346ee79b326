// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"slices"
	"strconv"
	"strings"

	"github.com/theory/jsonpath/spec"

	"github.com/rialto-bridge/rialto/internal/event"
)

// Read is a place of events at which a rule looks, and what it asks of what is there.
type Read struct {
	Path    event.Path // empty = the whole event
	Pointer string     // JSON pointer into the rule: what looks
	Target  string     // the one whose transform it is; "" = it counts for all targets
	// Whole: it takes what is there with all that is below, or what it takes of that cannot be told.
	Whole bool
	// Through: an array, on the way or at the end, stands for its items, as in patterns.
	Through bool
	// Needed: of an event without it nothing can be delivered.
	Needed bool
	// Either: it stands in a branch of a $or, so that others may hold in its place.
	Either bool
	// Types are the JSON types of which a value can be what is asked for: string, number, boolean, null; nil = any.
	Types     []string
	Operators []string // of the pattern language or of expressions, as far as they are known

	field *field // of a pattern
}

// Decides reports whether a Read is a clause of a pattern, of which Holds and HoldsAbsent tell more.
func (r *Read) Decides() bool { return r.field != nil }

// Holds reports whether a scalar, given as JSON, meets the clause.
func (r *Read) Holds(scalar []byte) bool {
	var d document
	i, err := d.parse(scalar)
	if err != nil || !d.nodes[i].kind.scalar() {
		return false
	}
	v := d.nodes[i].value
	return slices.ContainsFunc(r.field.tests, func(t test) bool { return t.holds(v) })
}

// HoldsAbsent reports whether the clause holds where there is nothing.
func (r *Read) HoldsAbsent() bool { return r.field.absent }

// Reads lists all that the rule looks at, in the order of its document, the same place once for each that looks.
func (r *Rule) Reads() []Read {
	var out []Read
	if r.Pattern != nil {
		out = readsOfTerms(out, r.Pattern.parse(new(document)).flatten(nil, "", nil), false)
	}
	if r.When != nil {
		out = append(out, r.When.Reads("/when")...)
	}
	if r.SQL != nil {
		out = append(out, r.SQL.reads("/sql")...)
	}
	for i, t := range r.Targets {
		for _, read := range t.Transform.reads("/targets/" + strconv.Itoa(i)) {
			read.Target = t.Target
			out = append(out, read)
		}
	}
	return out
}

func readsOfTerms(out []Read, terms []*term, either bool) []Read {
	for _, t := range terms {
		for _, branch := range t.or {
			out = readsOfTerms(out, branch, true)
		}
		if t.field != nil {
			read := Read{Path: pathOf(t.path), Pointer: "/pattern" + t.at, Through: true, Either: either, field: t.field}
			read.Types, read.Operators = t.field.asks()
			out = append(out, read)
		}
	}
	return out
}

func pathOf(names []string) event.Path {
	path := make(event.Path, len(names))
	for i, name := range names {
		path[i].Name = name
	}
	return path
}

// asks says of which types a value can meet the field, and by which operators.
func (f *field) asks() (types, operators []string) {
	add := func(operator string, of ...string) {
		types, operators = append(types, of...), append(operators, operator)
	}
	for _, t := range f.tests {
		switch t := t.(type) {
		case exactString:
			add("exact", "string")
		case exactNumber:
			add("exact", "number")
		case exactKind:
			of := "boolean"
			if kind(t) == kindNull {
				of = "null"
			}
			add("exact", of)
		case text:
			add(t.operator, "string")
		case wildcard:
			add(opWildcard, "string")
		case block:
			add(opCIDR, "string")
		case numeric:
			add(opNumeric, "number")
		case present:
			add(opExists, scalarTypes...)
		default:
			add(opAnyBut, scalarTypes...)
		}
	}
	if f.absent {
		operators = append(operators, opExists)
	}
	return sortedSet(types), sortedSet(operators)
}

var scalarTypes = []string{"boolean", "null", "number", "string"}

func sortedSet(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

// TypeFilter returns what tells whether an event of a type may match, whatever else it holds. What when and sql say of the
// type is not looked at.
func (r *Rule) TypeFilter() func(eventType string) bool {
	if r.Disabled || r.Pattern == nil {
		return func(string) bool { return false }
	}
	terms := r.Pattern.parse(new(document)).flatten(nil, "", nil)
	return func(eventType string) bool { return mayMatchType(terms, value{kindString, []byte(eventType)}) }
}

func mayMatchType(terms []*term, v value) bool {
	for _, t := range terms {
		switch {
		case t.or != nil:
			if !slices.ContainsFunc(t.or, func(branch []*term) bool { return mayMatchType(branch, v) }) {
				return false
			}
		case len(t.path) == 1 && t.path[0] == "type":
			if !slices.ContainsFunc(t.field.tests, func(t test) bool { return t.holds(v) }) {
				return false
			}
		}
	}
	return true
}

// reads is what a transform looks at; pointer is that of its target.
func (t *Transform) reads(pointer string) []Read {
	switch {
	case t == nil:
		return []Read{{Pointer: pointer, Whole: true}}
	case t.path != nil:
		return []Read{t.path.read(pointer+"/transform/path", t.path.definite)}
	case t.function != nil:
		return []Read{{Pointer: pointer + "/transform/function", Whole: true}}
	case t.template == nil:
		return nil
	}
	return t.template.reads(pointer + "/transform/template")
}

// reads is what a template looks at, which stands at pointer.
func (t *template) reads(pointer string) (out []Read) {
	for _, f := range t.fragments {
		switch ref := f.reference; {
		case ref == nil:
		case ref.path != nil:
			out = append(out, ref.path.read(pointer, f.context == inPath)) // a URL has no empty segment
		case ref.expression != nil:
			out = append(out, ref.expression.Reads(pointer)...)
		case ref.variable == varEvent:
			out = append(out, Read{Pointer: pointer, Whole: true})
		}
	}
	return out
}

// read is what a JSONPath looks at: up to the first step that may lead anywhere, and from there on all.
func (p *path) read(pointer string, needed bool) Read {
	r := Read{Pointer: pointer, Whole: true, Needed: needed}
	for _, segment := range p.query.Segments() {
		if segment.IsDescendant() || len(segment.Selectors()) != 1 {
			break
		}
		var step event.Step
		switch s := segment.Selectors()[0].(type) {
		case spec.Name:
			step.Name = string(s)
		case spec.Index:
			step = indexStep(int(s))
		case spec.WildcardSelector, spec.SliceSelector:
			step.Each = true
		default: // a filter looks at all of what it chooses from
			return r
		}
		r.Path = append(r.Path, step)
	}
	return r
}

// indexStep leads to an item; from the end, it may be any.
func indexStep(i int) event.Step {
	if i < 0 {
		return event.Step{Each: true}
	}
	return event.Step{Name: strconv.Itoa(i)}
}

// reads lists the attributes that a query names. A name before a bracket is a function's.
func (q *Query) reads(pointer string) []Read {
	var out []Read
	for _, name := range attributesOf(q.source) {
		out = append(out, Read{Path: event.Path{{Name: strings.ToLower(name)}}, Pointer: pointer})
	}
	return out
}
