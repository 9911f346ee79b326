// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"bytes"
	"maps"
	"math/big"
	"slices"
)

// equal reports whether two parts assert the same in the same words, wherever they stand. False says nothing.
func (c *checker) equal(a, b *js) bool {
	if a == b {
		return true
	}
	pair := [2]*js{a, b}
	if v, ok := c.same[pair]; ok {
		return v
	}
	e := &equality{seen: map[[2]*js]bool{}}
	v := e.schemas(a, b)
	c.same[pair] = v
	if v { // everything that was looked at on the way is equal, too
		for p := range e.seen {
			c.same[p] = true
		}
	}
	return v
}

func (c *checker) equalOrNil(a, b *js) bool {
	if a == nil || b == nil {
		return a == b
	}
	return c.equal(a, b)
}

func (c *checker) sameList(a, b []*js) bool { return slices.EqualFunc(a, b, c.equal) }

// equality is one comparison. Pairs that are under way count as equal.
type equality struct{ seen map[[2]*js]bool }

func (e *equality) schemas(a, b *js) bool {
	if a == nil || b == nil {
		return a == b
	}
	pair := [2]*js{a, b}
	if a == b || e.seen[pair] {
		return true
	}
	e.seen[pair] = true
	return (a.DraftVersion < 2019) == (b.DraftVersion < 2019) && sameScalars(a, b) && sameValues(a, b) && e.parts(a, b) && e.maps(a, b) && e.rests(a, b)
}

func sameScalars(a, b *js) bool {
	ta, wa := typesOf(a)
	tb, wb := typesOf(b)
	return ta == tb && wa == wb && sameBool(a.Bool, b.Bool) && a.UniqueItems == b.UniqueItems &&
		sameInt(a.MinProperties, b.MinProperties) && sameInt(a.MaxProperties, b.MaxProperties) &&
		sameInt(a.MinItems, b.MinItems) && sameInt(a.MaxItems, b.MaxItems) &&
		sameInt(a.MinContains, b.MinContains) && sameInt(a.MaxContains, b.MaxContains) &&
		sameInt(a.MinLength, b.MinLength) && sameInt(a.MaxLength, b.MaxLength) &&
		sameRat(a.Minimum, b.Minimum) && sameRat(a.Maximum, b.Maximum) && sameRat(a.MultipleOf, b.MultipleOf) &&
		sameRat(a.ExclusiveMinimum, b.ExclusiveMinimum) && sameRat(a.ExclusiveMaximum, b.ExclusiveMaximum)
}

func sameBool(a, b *bool) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

func sameInt(a, b *int) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

func sameRat(a, b *big.Rat) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Cmp(b) == 0
}

func sameValues(a, b *js) bool {
	if (a.Const == nil) != (b.Const == nil) || a.Const != nil && !sameJSON(*a.Const, *b.Const) {
		return false
	}
	if (a.Enum == nil) != (b.Enum == nil) || a.Enum != nil && !sameJSON(a.Enum.Values, b.Enum.Values) {
		return false
	}
	if (a.Pattern == nil) != (b.Pattern == nil) || a.Pattern != nil && a.Pattern.String() != b.Pattern.String() {
		return false
	}
	if (a.Format == nil) != (b.Format == nil) || a.Format != nil && a.Format.Name != b.Format.Name {
		return false
	}
	return sameSet(a.Required, b.Required) && maps.EqualFunc(a.DependentRequired, b.DependentRequired, sameSet)
}

func sameJSON(a, b any) bool {
	x, errA := canonicalJSON(a)
	y, errB := canonicalJSON(b)
	return errA == nil && errB == nil && bytes.Equal(x, y)
}

func sameSet(a, b []string) bool {
	x, y := slices.Clone(a), slices.Clone(b)
	slices.Sort(x)
	slices.Sort(y)
	return slices.Equal(slices.Compact(x), slices.Compact(y))
}

func (e *equality) parts(a, b *js) bool {
	for _, p := range [][2]*js{{a.Ref, b.Ref}, {a.Not, b.Not}, {a.If, b.If}, {a.Then, b.Then}, {a.Else, b.Else},
		{a.PropertyNames, b.PropertyNames}, {a.UnevaluatedProperties, b.UnevaluatedProperties}, {a.Contains, b.Contains},
		{a.Items2020, b.Items2020}, {a.UnevaluatedItems, b.UnevaluatedItems}} {
		if !e.schemas(p[0], p[1]) {
			return false
		}
	}
	return a.RecursiveRef == nil && b.RecursiveRef == nil && a.DynamicRef == nil && b.DynamicRef == nil &&
		e.lists(a.AllOf, b.AllOf) && e.lists(a.AnyOf, b.AnyOf) && e.lists(a.OneOf, b.OneOf) && e.lists(a.PrefixItems, b.PrefixItems)
}

func (e *equality) lists(a, b []*js) bool { return slices.EqualFunc(a, b, e.schemas) }

// maps compares what is kept by name. An empty list of properties is not none: it says that the names are declared.
func (e *equality) maps(a, b *js) bool {
	if (a.Properties == nil) != (b.Properties == nil) || (a.PatternProperties == nil) != (b.PatternProperties == nil) {
		return false
	}
	return maps.EqualFunc(a.Properties, b.Properties, e.schemas) && maps.EqualFunc(a.DependentSchemas, b.DependentSchemas, e.schemas) &&
		maps.EqualFunc(byPattern(a), byPattern(b), e.schemas) && maps.EqualFunc(a.Dependencies, b.Dependencies, e.rest)
}

func byPattern(s *js) map[string]*js {
	out := map[string]*js{}
	for re, p := range s.PatternProperties {
		out[re.String()] = p
	}
	return out
}

func (e *equality) rests(a, b *js) bool {
	return e.rest(a.AdditionalProperties, b.AdditionalProperties) && e.rest(a.AdditionalItems, b.AdditionalItems) && e.rest(a.Items, b.Items)
}

// rest compares what may be nil, a bool, a schema, a list of schemas or a list of names.
func (e *equality) rest(a, b any) bool {
	switch x := a.(type) {
	case nil:
		return b == nil
	case bool:
		y, ok := b.(bool)
		return ok && x == y
	case *js:
		y, ok := b.(*js)
		return ok && e.schemas(x, y)
	case []*js:
		y, ok := b.([]*js)
		return ok && e.lists(x, y)
	case []string:
		y, ok := b.([]string)
		return ok && sameSet(x, y)
	}
	return false
}
