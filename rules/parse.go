// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Limits of a pattern.
const (
	MaxPattern      = 32 << 10 // bytes of JSON text
	MaxAlternatives = 1024     // combinations of $or branches
	MaxCost         = 100_000  // tests of one value, over all combinations
	maxComplaints   = 20       // details in one error
)

// emptyHint says how to write a rule that takes everything.
const emptyHint = `an empty pattern is refused because it would match every event; if that is meant, write {"source":[{"exists":true}]}`

// operators are what an object in a list of values may hold.
var operators = []string{opPrefix, opSuffix, opIgnoreCase, opWildcard, opAnyBut, opNumeric, opExists, opCIDR, opExactly}

// reserved names may not be fields directly inside a branch of $or: a list of operators put there by mistake would
// otherwise be a valid pattern that means something else.
var reserved = append(slices.Clone(operators), "=", "<", "<=", ">", ">=", "regex", "not-wildcard",
	"not-equals-ignore-case", "date-after", "date-on-or-after", "date-before", "date-on-or-before", "in-date-range",
	"ip-address-in-range", "ip-address-not-in-range")

// ParsePattern compiles the JSON text of a pattern. A text that is no pattern is a *fault.Error of kind Invalid, whose
// details point at what is wrong (up to 20 of them). Any name may stand at the top: that the pattern of a rule speaks
// of attributes and data is ParseRule's concern. The text is copied.
func ParsePattern(json []byte) (*Pattern, error) {
	pattern, _, err := parsePattern(slices.Clone(json))
	return pattern, err
}

// parsePattern is ParsePattern for a text that stays as it is. It also returns the terms.
func parsePattern(source []byte) (*Pattern, []*term, error) {
	if isSpace(source) {
		return nil, nil, invalidPattern(fault.Detail{Detail: emptyHint})
	}
	if len(source) > MaxPattern {
		return nil, nil, invalidPattern(fault.Detail{Detail: fmt.Sprintf("the pattern has %d bytes; at most %d are allowed", len(source), MaxPattern)})
	}
	var doc document
	root, err := doc.parse(source)
	if err != nil {
		return nil, nil, invalidPattern(fault.Detail{Detail: err.Error()})
	}
	if doc.unpair {
		return nil, nil, invalidPattern(fault.Detail{Detail: `a \u escape is half of a surrogate pair; no string is equal to it`})
	}
	p := patternParser{doc: &doc}
	switch n := &doc.nodes[root]; {
	case n.kind == kindNull || n.kind == kindObject && n.next == root+1:
		return nil, nil, invalidPattern(fault.Detail{Detail: emptyHint})
	case n.kind != kindObject:
		return nil, nil, invalidPattern(fault.Detail{Detail: "a pattern is an object, this is " + n.kind.String()})
	}
	var terms []*term
	top := p.group(root, "", 0, false)
	if len(p.details) == 0 {
		terms = top.flat()
		p.checkPaths(terms)
	}
	if len(p.details) > 0 {
		return nil, nil, invalidPattern(p.details...)
	}
	return &Pattern{source: source}, terms, nil
}

func invalidPattern(details ...fault.Detail) error {
	return &fault.Error{Kind: fault.Invalid, Message: "invalid pattern", Details: details}
}

// patternParser turns nodes into groups and collects complaints; what it returns is of use only when there are none.
type patternParser struct {
	doc     *document
	details []fault.Detail
}

func (p *patternParser) complain(pointer, format string, args ...any) {
	if len(p.details) < maxComplaints {
		p.details = append(p.details, fault.Detail{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
	}
}

// children calls f for every node that stands directly inside node i.
func (d *document) children(i int32, f func(n int, child int32)) {
	n := 0
	for j := i + 1; j < d.nodes[i].next; j = d.nodes[j].next {
		f(n, j)
		n++
	}
}

// group reads an object that stands below a path of so many steps.
func (p *patternParser) group(i int32, pointer string, steps int, branch bool) *group {
	g := &group{}
	seen := map[string]bool{}
	p.doc.children(i, func(_ int, j int32) {
		n := &p.doc.nodes[j]
		m := member{key: string(n.key)}
		at := pointer + pointerTo(m.key)
		below := steps + strings.Count(m.key, ".") + 1
		switch {
		case below > maxDepth && m.key != opOr:
			p.complain(at, "the path has %d steps; at most %d are allowed", below, maxDepth)
		case seen[m.key]:
			p.complain(at, "the name stands twice in one object; join the two lists, or use $or")
		case branch && slices.Contains(reserved, m.key):
			p.complain(at, "inside $or this name is reserved: an operator stands in the list of values of a field, such as {\"field\":[{%q:...}]}", m.key)
		case m.key == opOr:
			m.or = p.or(j, at, steps)
		case n.kind == kindArray:
			m.field = p.field(j, at)
		case n.kind == kindObject && n.next == j+1:
			p.complain(at, "an empty object says nothing; to ask whether the field is there write [{\"exists\":true}]")
		case n.kind == kindObject:
			if hint := operatorHint(p.doc, j); hint != "" {
				p.complain(at, "%s", hint)
				return
			}
			m.group = p.group(j, at, below, false)
		default:
			p.complain(at, "a field takes a list of values: write [%s] instead of %s", p.sample(n), p.sample(n))
		}
		seen[m.key] = true
		g.members = append(g.members, m)
	})
	return g
}

// operatorHint recognises {"field":{"prefix":"a"}}, which lacks the list. Lists and objects below an operator's name
// may be fields of that name, so only a scalar gives it away.
func operatorHint(doc *document, i int32) string {
	first := &doc.nodes[i+1]
	if first.next == doc.nodes[i].next && first.kind.scalar() && slices.Contains(operators, string(first.key)) {
		return fmt.Sprintf("an operator stands in a list of values: write [{%q:...}]", first.key)
	}
	return ""
}

// sample shows a scalar of the pattern in a complaint about it.
func (p *patternParser) sample(n *node) string {
	switch n.kind {
	case kindString:
		return shorten(string(appendString(nil, n.text)), 40)
	case kindNumber:
		return shorten(string(n.text), 40)
	}
	return n.kind.String()
}

func (p *patternParser) or(i int32, pointer string, steps int) []*group {
	if p.doc.nodes[i].kind != kindArray {
		p.complain(pointer, "$or takes a list of at least two objects, this is %s", p.doc.nodes[i].kind)
		return nil
	}
	branches := []*group{}
	p.doc.children(i, func(k int, j int32) {
		at := pointer + pointerAt(k)
		switch n := &p.doc.nodes[j]; {
		case n.kind != kindObject:
			p.complain(at, "a branch of $or is an object, this is %s", n.kind)
		case n.next == j+1:
			p.complain(at, "an empty branch would always match")
		default:
			branches = append(branches, p.group(j, at, steps, true))
			return
		}
		branches = append(branches, nil)
	})
	if len(branches) < 2 {
		p.complain(pointer, "$or takes at least two branches, here are %d", len(branches))
	}
	return branches
}

func (p *patternParser) field(i int32, pointer string) *field {
	f := &field{}
	if p.doc.nodes[i].next == i+1 {
		p.complain(pointer, "an empty list matches nothing; to ask that the field is absent write [{\"exists\":false}]")
	}
	p.doc.children(i, func(k int, j int32) {
		t, ok := p.entry(j, pointer+pointerAt(k))
		switch {
		case !ok:
			return
		case t == nil:
			f.absent = true
		default:
			f.tests = append(f.tests, t)
		}
		f.entries = append(f.entries, entry{t})
	})
	return f
}

// entry reads one entry of a list of values. A nil test stands for {"exists":false}.
func (p *patternParser) entry(i int32, pointer string) (test, bool) {
	n := &p.doc.nodes[i]
	switch n.kind {
	case kindArray:
		p.complain(pointer, "a list of values holds no other list")
		return nil, false
	case kindObject:
		return p.operator(i, pointer)
	}
	return p.literal(n, pointer)
}

func (p *patternParser) literal(n *node, pointer string) (test, bool) {
	switch n.kind {
	case kindString:
		return exactString(n.text), true
	case kindNumber:
		x, ok := p.number(n, pointer)
		return exactNumber{x}, ok
	}
	return exactKind(n.kind), true
}

func (p *patternParser) number(n *node, pointer string) (number, bool) {
	x := parseNumber(n.text)
	if x.magnitude > maxOperandExponent || x.magnitude < -maxOperandExponent {
		p.complain(pointer, "the exponent is beyond %d", maxOperandExponent)
		return x, false
	}
	return x, true
}

func (p *patternParser) operator(i int32, pointer string) (test, bool) {
	n := &p.doc.nodes[i]
	switch {
	case n.next == i+1:
		p.complain(pointer, "an empty object is no operator; there are %s", join(operators[:len(operators)-1], "and"))
		return nil, false
	case p.doc.nodes[i+1].next != n.next:
		p.complain(pointer, "an operator object has exactly one name; entries of a list are alternatives, and two conditions on one field cannot be joined by and")
		return nil, false
	}
	operand := i + 1
	name := string(p.doc.nodes[operand].key)
	at := pointer + pointerTo(name)
	switch name {
	case opPrefix, opSuffix:
		return p.affix(name, operand, at)
	case opIgnoreCase:
		s, ok := p.string(operand, at)
		return text{operator: opIgnoreCase, fold: true, operand: s}, ok
	case opExactly:
		s, ok := p.string(operand, at)
		return exactString(s), ok
	case opWildcard:
		return p.wildcard(operand, at)
	case opExists:
		return p.exists(operand, at)
	case opCIDR:
		return p.cidr(operand, at)
	case opNumeric:
		return p.numeric(operand, at)
	case opAnyBut:
		return p.anythingBut(operand, at)
	}
	if word := nearest(name, operators); word != "" {
		p.complain(at, "unknown operator; did you mean %s?", word)
	} else {
		p.complain(at, "unknown operator; there are %s", join(operators[:len(operators)-1], "and"))
	}
	return nil, false
}

func (p *patternParser) string(i int32, pointer string) (string, bool) {
	n := &p.doc.nodes[i]
	if n.kind != kindString {
		p.complain(pointer, "must be one string, this is %s%s", n.kind, ifList(n.kind))
		return "", false
	}
	return string(n.text), true
}

// ifList explains what to do instead of giving a list to an operator that takes one string.
func ifList(k kind) string {
	if k == kindArray {
		return `; for alternatives write one object each, such as [{"prefix":"a"},{"prefix":"b"}]`
	}
	return ""
}

func (p *patternParser) affix(name string, i int32, pointer string) (test, bool) {
	if n := &p.doc.nodes[i]; n.kind == kindObject {
		inner := i + 1
		if inner < n.next && p.doc.nodes[inner].next == n.next && string(p.doc.nodes[inner].key) == opIgnoreCase {
			s, ok := p.string(inner, pointer+"/"+opIgnoreCase)
			return text{operator: name, fold: true, operand: s}, ok
		}
		p.complain(pointer, "must be one string or {\"equals-ignore-case\":\"...\"}")
		return nil, false
	}
	s, ok := p.string(i, pointer)
	return text{operator: name, operand: s}, ok
}

func (p *patternParser) wildcard(i int32, pointer string) (test, bool) {
	s, ok := p.string(i, pointer)
	if !ok {
		return nil, false
	}
	w, err := parseWildcard(s)
	if err != nil {
		p.complain(pointer, "%s", err)
		return nil, false
	}
	return w, true
}

func (p *patternParser) exists(i int32, pointer string) (test, bool) {
	switch n := &p.doc.nodes[i]; n.kind {
	case kindTrue:
		return present{}, true
	case kindFalse:
		return nil, true
	default:
		p.complain(pointer, "must be true or false, this is %s", n.kind)
		return nil, false
	}
}

func (p *patternParser) cidr(i int32, pointer string) (test, bool) {
	s, ok := p.string(i, pointer)
	if !ok {
		return nil, false
	}
	prefix, err := netip.ParsePrefix(s)
	if err != nil {
		p.complain(pointer, "must be a block such as 10.0.0.0/8 or 2001:db8::/32")
		return nil, false
	}
	return block{prefix.Masked()}, true
}

func (p *patternParser) numeric(i int32, pointer string) (test, bool) {
	const allowed = `must be ["=",n], one of < <= > >= with a number, or a lower and then an upper bound such as [">",0,"<=",5]`
	if p.doc.nodes[i].kind != kindArray {
		p.complain(pointer, "%s", allowed)
		return nil, false
	}
	var parts []int32
	p.doc.children(i, func(_ int, j int32) { parts = append(parts, j) })
	if len(parts) != 2 && len(parts) != 4 {
		p.complain(pointer, "%s", allowed)
		return nil, false
	}
	var bounds []bound
	for k := 0; k < len(parts); k += 2 {
		op, operand := &p.doc.nodes[parts[k]], &p.doc.nodes[parts[k+1]]
		if op.kind != kindString || !slices.Contains([]string{"=", "<", "<=", ">", ">="}, string(op.text)) {
			p.complain(pointer+pointerAt(k), "must be one of = < <= > >=")
			return nil, false
		}
		if operand.kind != kindNumber {
			p.complain(pointer+pointerAt(k+1), "must be a number, this is %s", operand.kind)
			return nil, false
		}
		x, ok := p.number(operand, pointer+pointerAt(k+1))
		if !ok {
			return nil, false
		}
		bounds = append(bounds, bound{string(op.text), x})
	}
	if len(bounds) == 2 {
		switch low, high := bounds[0], bounds[1]; {
		case low.operator[0] != '>' || high.operator[0] != '<':
			p.complain(pointer, "%s", allowed)
			return nil, false
		case low.operand.compare(high.operand) >= 0:
			p.complain(pointer, "the lower bound must be less than the upper one")
			return nil, false
		}
	}
	return numeric{bounds}, true
}

func (p *patternParser) anythingBut(i int32, pointer string) (test, bool) {
	n := &p.doc.nodes[i]
	if n.kind == kindObject {
		return p.anythingButNested(i, pointer)
	}
	t := anythingBut{list: n.kind == kindArray}
	items := []int32{i}
	if t.list {
		items = items[:0]
		p.doc.children(i, func(_ int, j int32) { items = append(items, j) })
	}
	if len(items) == 0 {
		p.complain(pointer, "an empty list excludes nothing; to ask whether the field is there write {\"exists\":true}")
		return nil, false
	}
	want := p.doc.nodes[items[0]].kind
	for k, j := range items {
		at := pointer
		if t.list {
			at += pointerAt(k)
		}
		item := &p.doc.nodes[j]
		switch {
		case item.kind != kindString && item.kind != kindNumber:
			p.complain(at, "must be a string or a number, or all strings or all numbers in a list, this is %s", item.kind)
			return nil, false
		case item.kind != want:
			p.complain(at, "strings and numbers cannot be mixed in one list")
			return nil, false
		}
		inner, ok := p.literal(item, at)
		if !ok {
			return nil, false
		}
		t.tests = append(t.tests, inner)
	}
	return t, true
}

func (p *patternParser) anythingButNested(i int32, pointer string) (test, bool) {
	const allowed = "must be a string, a number, a list of either, or one of prefix, suffix, equals-ignore-case and wildcard with a string or a list of strings"
	n := &p.doc.nodes[i]
	if n.next == i+1 || p.doc.nodes[i+1].next != n.next {
		p.complain(pointer, "%s", allowed)
		return nil, false
	}
	operand := &p.doc.nodes[i+1]
	t := anythingBut{nested: string(operand.key), list: operand.kind == kindArray}
	at := pointer + pointerTo(t.nested)
	if !slices.Contains([]string{opPrefix, opSuffix, opIgnoreCase, opWildcard}, t.nested) {
		p.complain(at, "%s", allowed)
		return nil, false
	}
	if !t.list {
		inner, ok := p.nested(t.nested, i+1, at)
		t.tests = []test{inner}
		return t, ok
	}
	good := true
	p.doc.children(i+1, func(k int, j int32) {
		inner, ok := p.nested(t.nested, j, at+pointerAt(k))
		t.tests = append(t.tests, inner)
		good = good && ok
	})
	if len(t.tests) == 0 {
		p.complain(at, "an empty list excludes nothing")
		return nil, false
	}
	return t, good
}

// nested reads an operand of an operator inside anything-but.
func (p *patternParser) nested(name string, i int32, pointer string) (test, bool) {
	if p.doc.nodes[i].kind != kindString {
		p.complain(pointer, "must be a string, this is %s", p.doc.nodes[i].kind)
		return nil, false
	}
	if name == opWildcard {
		return p.wildcard(i, pointer)
	}
	s := string(p.doc.nodes[i].text)
	if s == "" && name != opIgnoreCase {
		p.complain(pointer, "every string has an empty %s, so nothing would be left", name)
		return nil, false
	}
	return text{operator: name, fold: name == opIgnoreCase, operand: s}, true
}

// checkPaths refuses what the grammar allows and the language does not: a path that is tested in two places which must
// both hold, paths longer than maxDepth, and more combinations of branches than MaxAlternatives.
func (p *patternParser) checkPaths(terms []*term) {
	p.checkRepeats(terms, map[string]string{})
	n, cost := alternatives(terms)
	if n > MaxAlternatives {
		p.complain("", "the branches of its $or can be combined in %s ways; at most %d are allowed", atLeast(n), MaxAlternatives)
	} else if cost > MaxCost {
		p.complain("", "deciding it could take %s tests of one value, over all combinations of its $or; at most %d are allowed: use fewer branches, or shorter lists outside $or", atLeast(cost), MaxCost)
	}
}

func atLeast(n int) string {
	if n >= countCap {
		return "a hundred million or more"
	}
	return strconv.Itoa(n)
}

// checkRepeats returns the paths it has added to seen, which maps a path to where it is tested.
func (p *patternParser) checkRepeats(terms []*term, seen map[string]string) []string {
	var added []string
	for _, t := range terms {
		if t.field == nil {
			continue
		}
		path := joined(t.path)
		if first, ok := seen[path]; ok {
			p.complain(t.at, "%s is already tested at %s, and both would have to hold; test a path in one place", shorten(path, 80), shorten(first, 80))
			continue
		}
		seen[path] = t.at
		added = append(added, path)
	}
	for _, t := range terms {
		var all []string
		for _, branch := range t.or {
			paths := p.checkRepeats(branch, seen)
			for _, path := range paths {
				delete(seen, path)
			}
			all = append(all, paths...)
		}
		for _, path := range all {
			seen[path] = t.at
		}
		added = append(added, all...)
	}
	return added
}

// countCap is where counting stops.
const countCap = 100_000_000

// alternatives counts, up to countCap, the ways to choose one branch of every $or, and the tests in all of them
// together. It looks at every term once.
func alternatives(terms []*term) (ways, cost int) {
	ways, here := 1, 0
	type choice struct{ ways, cost int }
	var choices []choice
	for _, t := range terms {
		if t.field != nil {
			here = min(here+t.field.cost(), countCap)
			continue
		}
		var c choice
		for _, branch := range t.or {
			w, k := alternatives(branch)
			c.ways, c.cost = min(c.ways+w, countCap), min(c.cost+k, countCap)
		}
		ways = min(ways*c.ways, countCap)
		choices = append(choices, c)
	}
	cost = min(ways*here, countCap)
	for _, c := range choices {
		cost = min(cost+ways/max(c.ways, 1)*c.cost, countCap)
	}
	return ways, cost
}

// cost is how many tests one value may be put to. A part of a wildcard counts as one.
func (f *field) cost() int {
	n := 0
	for _, t := range f.tests {
		switch t := t.(type) {
		case wildcard:
			n += len(t.parts)
		case anythingBut:
			for _, inner := range t.tests {
				if w, ok := inner.(wildcard); ok {
					n += len(w.parts)
				} else {
					n++
				}
			}
		default:
			n++
		}
	}
	return max(n, 1)
}

func pointerTo(name string) string {
	if !strings.ContainsAny(name, "~/") {
		return "/" + name
	}
	return fault.Pointer(name)
}

func pointerAt(i int) string { return "/" + strconv.Itoa(i) }
