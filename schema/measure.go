// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"math"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// What a schema costs is not its size: {"allOf": [A, A]} where A is {"allOf": [B, B]} and so on doubles with every line.
// measure counts how often parts of a schema look at one value, and refuses what goes beyond a limit. A schema that
// recurs is looked at for one level; how much each further level multiplies the work bounds the depth of documents.

const (
	maxLooks     = 20000 // of a schema at one value, its members included
	maxDeepLooks = 1e6   // the same, through all levels of a recursion
)

// measurer walks the graph of a compiled schema.
type measurer struct {
	component map[*jsonschema.Schema]int // strongly connected component
	size      map[int]int                // of components
	dynamic   map[*jsonschema.Schema][]*jsonschema.Schema
	looks     map[*jsonschema.Schema]float64
}

// measure refuses schemas without bounds and makes the others ready.
func measure(root *jsonschema.Schema) (*jsonSchema, error) {
	m := &measurer{size: map[int]int{}, looks: map[*jsonschema.Schema]float64{}}
	m.dynamic = dynamicEdges(components(root, sameValue))
	m.component = components(root, m.sameValue)
	for _, c := range m.component {
		m.size[c]++
	}
	if s := m.circle(); s != nil {
		return nil, fault.Invalidf(fragmentOf(s.Location), "refers to itself without looking into its value")
	}
	branching := 1.0
	for s := range m.component {
		if m.count(s) > maxLooks {
			return nil, fault.Invalidf("", "is too large once its references are followed: it would look at one value more than %d times", maxLooks)
		}
	}
	for s := range m.component {
		branching = max(branching, m.branchingOf(s))
	}
	out := &jsonSchema{root: root, dynamic: len(m.dynamic) > 0}
	if branching > 1 {
		out.deepest = max(int(math.Log(maxDeepLooks)/math.Log(branching)), 1)
	} else {
		out.quick = quicken(root)
	}
	return out, nil
}

// dynamicEdges says where references may lead whose target depends on the way to them: to every anchor of the name.
func dynamicEdges(all map[*jsonschema.Schema]int) map[*jsonschema.Schema][]*jsonschema.Schema {
	out := map[*jsonschema.Schema][]*jsonschema.Schema{}
	for s := range all {
		if s.DynamicRef == nil && s.RecursiveRef == nil {
			continue
		}
		out[s] = nil
		for t := range all {
			if s.RecursiveRef != nil && t.RecursiveAnchor || s.DynamicRef != nil && s.DynamicRef.Anchor != "" && t.DynamicAnchor == s.DynamicRef.Anchor {
				out[s] = append(out[s], t)
			}
		}
	}
	return out
}

func (m *measurer) sameValue(s *jsonschema.Schema) []*jsonschema.Schema {
	return append(sameValue(s), m.dynamic[s]...)
}

// circle returns a schema that comes back to itself at the same value, nil if there is none.
func (m *measurer) circle() *jsonschema.Schema {
	const open, done = 1, 2
	state := map[*jsonschema.Schema]int{}
	var walk func(s *jsonschema.Schema) *jsonschema.Schema
	walk = func(s *jsonschema.Schema) *jsonschema.Schema {
		switch state[s] {
		case open:
			return s
		case done:
			return nil
		}
		state[s] = open
		for _, p := range m.sameValue(s) {
			if bad := walk(p); bad != nil {
				return bad
			}
		}
		state[s] = done
		return nil
	}
	var found *jsonschema.Schema
	for s := range m.component {
		if bad := walk(s); bad != nil && (found == nil || bad.Location < found.Location) {
			found = bad
		}
	}
	return found
}

// count is how often s and what it consists of look at a value and its members, one member of each name counted. Members
// that lead back to s are left to branchingOf.
func (m *measurer) count(s *jsonschema.Schema) float64 {
	if n, ok := m.looks[s]; ok {
		return n
	}
	n := 1.0
	for _, p := range m.sameValue(s) {
		n += m.count(p)
	}
	for _, p := range members(s) {
		if m.component[p.schema] != m.component[s] {
			n += m.count(p.schema)
		}
	}
	m.looks[s] = min(n, math.MaxFloat64/maxNodes)
	return m.looks[s]
}

// branchingOf is how often one member of a value is looked at by the recursion that s is in.
func (m *measurer) branchingOf(s *jsonschema.Schema) float64 {
	if m.size[m.component[s]] == 1 {
		return 1
	}
	named, others := map[string]float64{}, 0.0
	var walk func(p *jsonschema.Schema)
	walk = func(p *jsonschema.Schema) {
		for _, c := range members(p) {
			switch {
			case m.component[c.schema] != m.component[s]:
			case c.name == "":
				others++
			default:
				named[c.name]++
			}
		}
		for _, q := range m.sameValue(p) {
			walk(q)
		}
	}
	walk(s)
	most := 0.0
	for _, n := range named {
		most = max(most, n)
	}
	return most + others
}

// sameValue lists the parts of a schema that look at the same value.
func sameValue(s *jsonschema.Schema) []*jsonschema.Schema {
	var out []*jsonschema.Schema
	add := func(list ...*jsonschema.Schema) {
		for _, p := range list {
			if p != nil {
				out = append(out, p)
			}
		}
	}
	add(s.Ref, s.RecursiveRef, s.Not, s.If, s.Then, s.Else)
	if s.DynamicRef != nil {
		add(s.DynamicRef.Ref)
	}
	add(s.AllOf...)
	add(s.AnyOf...)
	add(s.OneOf...)
	for _, p := range s.DependentSchemas {
		add(p)
	}
	for _, d := range s.Dependencies {
		if p, ok := d.(*jsonschema.Schema); ok {
			add(p)
		}
	}
	return out
}

// memberSchema is a part of a schema that looks at a member or item of the value.
type memberSchema struct {
	name   string // of the member; "" for those that many may meet
	schema *jsonschema.Schema
}

func members(s *jsonschema.Schema) []memberSchema {
	var out []memberSchema
	add := func(name string, list ...*jsonschema.Schema) {
		for _, p := range list {
			if p != nil {
				out = append(out, memberSchema{name, p})
			}
		}
	}
	for name, p := range s.Properties {
		add("."+name, p)
	}
	for _, p := range s.PatternProperties {
		add("", p)
	}
	for _, v := range []any{s.AdditionalProperties, s.AdditionalItems, s.Items} {
		switch p := v.(type) {
		case *jsonschema.Schema:
			add("", p)
		case []*jsonschema.Schema:
			add("", p...)
		}
	}
	add("", s.UnevaluatedProperties, s.UnevaluatedItems, s.Contains, s.Items2020, s.PropertyNames)
	add("", s.PrefixItems...)
	return out
}

// components numbers the strongly connected components of what can be reached from root (Tarjan).
func components(root *jsonschema.Schema, same func(*jsonschema.Schema) []*jsonschema.Schema) map[*jsonschema.Schema]int {
	t := &tarjan{same: same, index: map[*jsonschema.Schema]int{}, low: map[*jsonschema.Schema]int{}, component: map[*jsonschema.Schema]int{}}
	t.visit(root)
	return t.component
}

type tarjan struct {
	same                  func(*jsonschema.Schema) []*jsonschema.Schema
	index, low, component map[*jsonschema.Schema]int
	stack                 []*jsonschema.Schema
}

func (t *tarjan) visit(s *jsonschema.Schema) {
	n := len(t.index) + 1
	t.index[s], t.low[s] = n, n
	t.stack = append(t.stack, s)
	next := t.same(s)
	for _, m := range members(s) {
		next = append(next, m.schema)
	}
	for _, p := range next {
		if t.index[p] == 0 {
			t.visit(p)
			t.low[s] = min(t.low[s], t.low[p])
		} else if t.component[p] == 0 {
			t.low[s] = min(t.low[s], t.index[p])
		}
	}
	if t.low[s] != n {
		return
	}
	for {
		p := t.stack[len(t.stack)-1]
		t.stack = t.stack[:len(t.stack)-1]
		t.component[p] = n
		if p == s {
			return
		}
	}
}
