// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"slices"
	"strings"
	"sync/atomic"
)

// Pattern is a pattern that was found good. It is immutable and safe for concurrent use. It keeps little more than its
// text: an Index has all that matching needs, shared between rules, and who explains one event can wait for a parse.
type Pattern struct {
	source []byte
	terms  atomic.Pointer[[]*term] // for the direct evaluator; made when it first asks
}

// parse takes the text of the pattern apart again.
func (p *Pattern) parse(doc *document) *group {
	doc.reset()
	root, err := doc.parse(p.source)
	if err != nil {
		panic("rules: a pattern that was parsed before is " + err.Error())
	}
	parser := patternParser{doc: doc}
	return parser.group(root, "", 0, false)
}

// flat returns what the pattern says as terms, sorted by less.
func (g *group) flat() []*term {
	terms := g.flatten(nil, "", nil)
	slices.SortStableFunc(terms, less)
	return terms
}

// evaluated returns the terms for the evaluator.
func (p *Pattern) evaluated() []*term {
	if terms := p.terms.Load(); terms != nil {
		return *terms
	}
	terms := p.parse(new(document)).flat()
	p.terms.Store(&terms)
	return terms
}

// group is an object of a pattern: all its members must hold.
type group struct{ members []member }

// member is one of a group: exactly one of field, group and or is set.
type member struct {
	key   string
	field *field
	group *group
	or    []*group // the branches of a $or
}

// field is a list of values in a pattern: one of its tests must hold for a scalar at its path.
type field struct {
	tests   []test // without {"exists":false}
	absent  bool   // {"exists":false} is in the list
	entries []entry
}

// entry is one entry of the list as it was written; a nil test is {"exists":false}.
type entry struct{ test }

// term is a field or a $or with its whole path. Evaluation wants terms, not groups: names with dots, and branches that
// meet what stands outside them, then need no care.
type term struct {
	path  []string // names from the root, one step each; for a $or, those of the object it stands in
	field *field
	or    [][]*term // each branch sorted by less
	at    string    // JSON pointer into the pattern
}

// less orders terms so that those at a place come before those below it and terms with a common step are neighbours.
// data comes last, so that it need not be parsed when an attribute already fails.
func less(a, b *term) int {
	if len(a.path) > 0 && len(b.path) > 0 && a.path[0] != b.path[0] {
		switch {
		case a.path[0] == dataName:
			return 1
		case b.path[0] == dataName:
			return -1
		}
	}
	return slices.Compare(a.path, b.path)
}

// String returns the pattern in canonical form: compact JSON in the order it was written. Parsing it gives the same
// pattern again.
func (p *Pattern) String() string { return string(p.parse(new(document)).appendJSON(nil)) }

func (g *group) appendJSON(dst []byte) []byte {
	dst = append(dst, '{')
	for i, m := range g.members {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendString(dst, m.key), ':')
		switch {
		case m.field != nil:
			dst = m.field.appendJSON(dst)
		case m.group != nil:
			dst = m.group.appendJSON(dst)
		default:
			dst = append(dst, '[')
			for j, branch := range m.or {
				if j > 0 {
					dst = append(dst, ',')
				}
				dst = branch.appendJSON(dst)
			}
			dst = append(dst, ']')
		}
	}
	return append(dst, '}')
}

// appendJSON appends the list of values.
func (f *field) appendJSON(dst []byte) []byte {
	dst = append(dst, '[')
	for i, e := range f.entries {
		if i > 0 {
			dst = append(dst, ',')
		}
		if e.test == nil {
			dst = append(dst, `{"exists":false}`...)
		} else {
			dst = e.appendJSON(dst)
		}
	}
	return append(dst, ']')
}

// flatten appends the terms of the group that stands at path.
func (g *group) flatten(path []string, pointer string, dst []*term) []*term {
	for _, m := range g.members {
		at := pointer + pointerTo(m.key)
		switch {
		case m.or != nil:
			t := &term{path: slices.Clip(slices.Clone(path)), at: at}
			for i, branch := range m.or {
				terms := branch.flatten(path, at+pointerAt(i), nil)
				slices.SortStableFunc(terms, less)
				t.or = append(t.or, terms)
			}
			dst = append(dst, t)
		case m.group != nil:
			dst = m.group.flatten(slices.Concat(path, strings.Split(m.key, ".")), at, dst)
		default:
			dst = append(dst, &term{path: slices.Concat(path, strings.Split(m.key, ".")), field: m.field, at: at})
		}
	}
	return dst
}
