// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/rialto-bridge/rialto/internal/event"
)

// Warning is something in a rule that is allowed and probably not meant.
type Warning struct {
	Pointer string `json:"pointer"` // JSON pointer into the document
	Message string `json:"message"`
	Fix     string `json:"fix,omitempty"` // what to write at Pointer instead, as JSON; "" if that is for the author to say
}

// Lint looks for what cannot do what its author hopes: lists that are always true, entries that another makes
// redundant, numbers and strings that never meet, stars that are just stars.
func Lint(r *Rule) []Warning { return LintObserved(r, nil) }

// LintObserved is Lint that also knows the paths of stored events and warns of fields that none of them has. Without
// paths it is Lint.
func LintObserved(r *Rule, seen Paths) []Warning {
	l := linter{seen: seen, warnings: []Warning{}}
	if r.Pattern != nil {
		l.group(r.Pattern.parse(new(document)), "/pattern", nil)
	}
	if r.When != nil {
		l.when(r.When)
	}
	return l.warnings
}

// Paths are the paths of scalars in stored events, joined by dots, and in how many events each was seen.
type Paths map[string]int

// maxPaths bounds Paths: an event with random names must not make it grow without end.
const maxPaths = 50_000

// Add notes the paths of an event.
func (p Paths) Add(ev *event.Event) {
	var d direct
	d.loadEvent(ev)
	d.loadData()
	seen := map[string]bool{}
	var path []byte
	type level struct{ end, length int32 } // where it ends, and how long the path was before it
	var open []level
	for i := int32(1); int(i) < len(d.doc.nodes); i++ {
		for len(open) > 0 && i >= open[len(open)-1].end {
			path = path[:open[len(open)-1].length]
			open = open[:len(open)-1]
		}
		n := &d.doc.nodes[i]
		length := int32(len(path))
		if n.key != nil {
			if length > 0 {
				path = append(path, '.')
			}
			path = append(path, n.key...)
		}
		if !n.kind.scalar() {
			open = append(open, level{n.next, length})
			continue
		}
		if name := string(path); !seen[name] && len(seen) < maxPaths {
			seen[name] = true
			if p[name] > 0 || len(p) < maxPaths {
				p[name]++
			}
		}
		path = path[:length]
	}
}

// linter collects warnings.
type linter struct {
	seen     Paths
	warnings []Warning
}

const maxWarnings = 50

func (l *linter) warn(pointer, fix, format string, args ...any) {
	if len(l.warnings) < maxWarnings {
		l.warnings = append(l.warnings, Warning{pointer, fmt.Sprintf(format, args...), fix})
	}
}

func (l *linter) group(g *group, pointer string, path []string) {
	for _, m := range g.members {
		at := pointer + pointerTo(m.key)
		switch {
		case m.or != nil:
			for i, branch := range m.or {
				l.group(branch, at+pointerAt(i), path)
			}
		case m.group != nil:
			l.group(m.group, at, slices.Concat(path, strings.Split(m.key, ".")))
		default:
			l.field(m.field, at, slices.Concat(path, strings.Split(m.key, ".")))
		}
	}
}

func (l *linter) field(f *field, pointer string, path []string) {
	l.unseen(f, pointer, path)
	if l.alwaysTrue(f, pointer) {
		return
	}
	for i, e := range f.entries {
		at := pointer + pointerAt(i)
		if !l.redundant(f, i, at) {
			l.entry(e.test, at, path)
		}
	}
}

// unseen warns of a field that no stored event has.
func (l *linter) unseen(f *field, pointer string, path []string) {
	name := joined(path)
	if len(l.seen) == 0 || f.absent || l.seen[name] > 0 {
		return
	}
	var names []string
	for seen := range l.seen {
		names = append(names, seen)
	}
	slices.Sort(names)
	if near := allNearest(name, names, 3); len(near) > 0 {
		l.warn(pointer, "", "no stored event has %s; there are %s", shorten(name, 80), join(near, "and"))
		return
	}
	l.warn(pointer, "", "no stored event has %s", shorten(name, 80))
}

// alwaysTrue warns of lists that every value meets: entries are alternatives.
func (l *linter) alwaysTrue(f *field, pointer string) bool {
	var buts []anythingBut
	var above, below *bound
	exists := false
	for _, e := range f.entries {
		switch t := e.test.(type) {
		case present:
			exists = true
		case anythingBut:
			buts = append(buts, t)
		case numeric:
			if len(t.bounds) == 1 {
				switch t.bounds[0].operator[0] {
				case '>':
					above = &t.bounds[0]
				case '<':
					below = &t.bounds[0]
				}
			}
		}
	}
	switch {
	case exists && f.absent:
		l.warn(pointer, "", "a list with both {\"exists\":true} and {\"exists\":false} is always true; leave the field out")
	case exists && len(f.entries) > 1:
		l.warn(pointer, `[{"exists":true}]`, "entries of a list are alternatives, so {\"exists\":true} makes all others needless")
	case len(buts) > 1:
		l.warn(pointer, joinButs(buts), "entries of a list are alternatives: what one anything-but excludes the other takes, so that every value matches; write one with a list")
	case len(buts) == 1 && l.contradicts(f, buts[0]):
		l.warn(pointer, `[{"exists":true}]`, "what anything-but excludes another entry takes, so that every value matches")
	case above != nil && below != nil && above.operand.compare(below.operand) < 0:
		fix := string(numeric{[]bound{*above, *below}}.appendJSON(nil))
		l.warn(pointer, "["+fix+"]", "entries of a list are alternatives: every number is one or the other; write one range with both bounds")
	default:
		return false
	}
	return true
}

// contradicts reports whether the list takes all that an anything-but of it excludes.
func (l *linter) contradicts(f *field, but anythingBut) bool {
	for _, inner := range but.tests {
		if !slices.ContainsFunc(f.tests, func(t test) bool { return covers(t, inner) }) {
			return false
		}
	}
	return true
}

// joinButs is one anything-but of several, as a list of values, if their operands can stand in one list.
func joinButs(buts []anythingBut) string {
	all := anythingBut{nested: buts[0].nested, list: true}
	_, number := buts[0].tests[0].(exactNumber)
	for _, but := range buts {
		if _, ok := but.tests[0].(exactNumber); but.nested != all.nested || ok != number {
			return ""
		}
		all.tests = append(all.tests, but.tests...)
	}
	return "[" + string(all.appendJSON(nil)) + "]"
}

// redundant warns of an entry that holds for nothing for which another entry does not hold.
func (l *linter) redundant(f *field, i int, pointer string) bool {
	entry := f.entries[i].test
	for j, other := range f.entries {
		if j == i || entry == nil && other.test != nil || entry != nil && other.test == nil {
			continue
		}
		if entry != nil && !covers(other.test, entry) {
			continue
		}
		if j > i && (entry == nil || covers(entry, other.test)) {
			continue // they are the same: the later one is redundant
		}
		rest := &field{entries: slices.Delete(slices.Clone(f.entries), i, i+1)}
		l.warn(strings.TrimSuffix(pointer, pointerAt(i)), string(rest.appendJSON(nil)), "%s is needless: %s matches all that it matches",
			shorten(string((&field{entries: f.entries[i : i+1]}).appendJSON(nil)), 120), shorten(string((&field{entries: f.entries[j : j+1]}).appendJSON(nil)), 120))
		return true
	}
	return false
}

// covers reports whether a holds for everything for which b holds, as far as that is easy to see.
func covers(a, b test) bool {
	if bytes.Equal(a.appendJSON(nil), b.appendJSON(nil)) {
		return true
	}
	switch b := b.(type) {
	case exactString:
		return a.holds(value{kindString, []byte(b)})
	case exactNumber:
		return a.holds(value{kindNumber, b.literal})
	case exactKind:
		return a.holds(value{kind: kind(b)})
	case text:
		return coversText(a, b)
	case numeric:
		return coversRange(a, b)
	case block:
		wide, ok := a.(block)
		return ok && overlapsWhole(wide.prefix, b.prefix)
	}
	return false
}

func coversText(a test, b text) bool {
	t, ok := a.(text)
	if !ok || b.fold && !t.fold {
		return false
	}
	operand := value{kindString, []byte(b.operand)}
	switch {
	case t.operator == b.operator || b.operator == opIgnoreCase:
		return t.holds(operand)
	}
	return t.operand == "" && t.operator != opIgnoreCase
}

func coversRange(a test, b numeric) bool {
	wide, ok := a.(numeric)
	if !ok {
		return false
	}
	for _, limit := range wide.bounds {
		if !slices.ContainsFunc(b.bounds, func(inner bound) bool { return implies(inner, limit) }) {
			return false
		}
	}
	return true
}

// implies reports whether every number within inner is within limit.
func implies(inner, limit bound) bool {
	c := inner.operand.compare(limit.operand)
	switch {
	case inner.operator == "=":
		return limit.holds(inner.operand)
	case limit.operator == "=" || inner.operator[0] != limit.operator[0]:
		return false
	case limit.operator == ">":
		return c > 0 || c == 0 && inner.operator == ">"
	case limit.operator == ">=":
		return c >= 0
	case limit.operator == "<":
		return c < 0 || c == 0 && inner.operator == "<"
	}
	return c <= 0
}

func overlapsWhole(wide, narrow netip.Prefix) bool {
	return wide.Bits() <= narrow.Bits() && wide.Contains(narrow.Addr())
}

// entry warns of one entry by itself.
func (l *linter) entry(t test, pointer string, path []string) {
	attribute := path[0] != dataName && slices.Contains(attributeNames, path[0])
	switch t := t.(type) {
	case exactString:
		if end, err := numberEnd(string(t)); !attribute && err == nil && end == len(t) {
			l.warn(pointer, "", "the string %q matches no number; if the value may be one, add %s without quotes", shorten(string(t), 40), shorten(string(t), 40))
		} else if w, err := parseWildcard(string(t)); err == nil && len(w.parts) > 1 {
			l.warn(pointer, string(w.appendJSON(nil)), "a * in a plain string is just a star; a wildcard is an operator")
		}
	case exactNumber, numeric, exactKind:
		if attribute {
			l.warn(pointer, "", "the attribute %s is always a string, so this never matches", path[0])
		}
	case wildcard:
		if len(t.parts) == 1 {
			l.warn(pointer, string(appendString(nil, t.parts[0])), "a wildcard without a * is a plain string")
		}
	}
}

func numberEnd(s string) (int, error) {
	if s == "" {
		return 0, &syntaxError{0, "empty"}
	}
	return scanNumber([]byte(s), 0)
}

// when warns of variables that are nearly attributes.
func (l *linter) when(e *Expression) {
	var known []string
	for name := range attributeTypes {
		known = append(known, name)
	}
	slices.Sort(known)
	for _, name := range e.names {
		if attributeTypes[name] != nil || l.seen[name] > 0 {
			continue
		}
		if word := nearest(name, known); word != "" {
			l.warn("/when", "", "%s is taken for an extension attribute; did you mean %s?", shorten(name, 60), word)
		}
	}
}
