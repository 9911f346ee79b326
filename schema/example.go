// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"bytes"
	"encoding/json"
	"iter"
	"maps"
	"reflect"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Bounds of the search for an example.
const (
	exampleSteps   = 20000 // values looked at
	exampleDepth   = 6     // levels on which optional fields are filled in
	exampleDeepest = 32    // levels on which required ones are
	exampleChoices = 64    // ways through the unions of one value
)

// Example returns a document that is valid against s, indented, and always the same one: with what the schema itself
// gives as examples and defaults where it does, and with all fields that do not contradict each other. The error is a
// *fault.Error of kind Invalid when none was found: the schema contradicts itself, or is too intricate.
func Example(s *jsonschema.Schema) ([]byte, error) {
	x := &exampler{steps: exampleSteps}
	for v := range x.valid([]*jsonschema.Schema{s}, 0) {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(v); err != nil {
			return nil, err
		}
		return b.Bytes(), nil
	}
	return nil, fault.New(fault.Invalid, "no document was found that is valid against this schema: it contradicts itself, or is too intricate")
}

// exampler looks for values, and gives up when its steps are used.
type exampler struct {
	steps int
	open  []*jsonschema.Schema // being filled in, from the outside in
}

// valid yields values that are valid against all of the schemas, the best one first.
func (x *exampler) valid(all []*jsonschema.Schema, depth int) iter.Seq[any] {
	return func(yield func(any) bool) {
		if depth > exampleDeepest {
			return
		}
		mark := len(x.open)
		x.open = append(x.open, all...)
		defer func() { x.open = x.open[:mark] }()
		for choice := range choices(all) {
			for v := range x.candidates(choice, depth) {
				if x.steps--; x.steps < 0 {
					return
				}
				if holds(all, v) && !yield(v) {
					return
				}
			}
		}
	}
}

// first is the best value that is not among the taken ones.
func (x *exampler) first(all []*jsonschema.Schema, depth int, taken []any) (any, bool) {
	for v := range x.valid(all, depth) {
		if !slices.ContainsFunc(taken, func(t any) bool { return reflect.DeepEqual(t, v) }) {
			return v, true
		}
	}
	return nil, false
}

// isOpen says whether one of the schemas is being filled in further out: an optional field would recur for ever.
func (x *exampler) isOpen(all []*jsonschema.Schema) bool {
	for _, s := range together(all) {
		for _, o := range x.open {
			if o == s || o.Ref != nil && o.Ref == s {
				return true
			}
		}
	}
	return false
}

func holds(all []*jsonschema.Schema, v any) bool {
	for _, s := range all {
		if s.Validate(v) != nil {
			return false
		}
	}
	return true
}

// together lists the schemas with all that must hold besides them, through $ref and allOf, each once.
func together(all []*jsonschema.Schema) []*jsonschema.Schema {
	var out []*jsonschema.Schema
	var add func(s *jsonschema.Schema)
	add = func(s *jsonschema.Schema) {
		if s == nil || slices.Contains(out, s) {
			return
		}
		out = append(out, s)
		add(s.Ref)
		add(s.RecursiveRef)
		if s.DynamicRef != nil {
			add(s.DynamicRef.Ref)
		}
		for _, p := range s.AllOf {
			add(p)
		}
	}
	for _, s := range all {
		add(s)
	}
	return out
}

// choices yields the sets of schemas that result from taking one branch of each union, the first branches first. In a
// conditional schema, one way is the condition with what follows, the other what follows without it.
func choices(all []*jsonschema.Schema) iter.Seq[[]*jsonschema.Schema] {
	return func(yield func([]*jsonschema.Schema) bool) {
		left := exampleChoices
		choose(together(all), 0, 0, &left, yield)
	}
}

// choose takes the branches of the unions from the given one of the given schema on. A branch is put at the end of the
// list, so that its own unions come later.
func choose(all []*jsonschema.Schema, schema, union int, left *int, yield func([]*jsonschema.Schema) bool) bool {
	for ; schema < len(all); schema, union = schema+1, 0 {
		ways := unions(all[schema])
		if union >= len(ways) {
			continue
		}
		for _, way := range ways[union] {
			if !choose(together(append(slices.Clip(all), way...)), schema, union+1, left, yield) {
				return false
			}
		}
		return true
	}
	*left--
	return *left >= 0 && yield(all)
}

// unions lists the unions of a schema, each as the ways through it.
func unions(s *jsonschema.Schema) [][][]*jsonschema.Schema {
	var out [][][]*jsonschema.Schema
	for _, branches := range [][]*jsonschema.Schema{s.OneOf, s.AnyOf} {
		if len(branches) > 0 {
			out = append(out, eachAlone(branches))
		}
	}
	if s.If != nil {
		present := func(list ...*jsonschema.Schema) []*jsonschema.Schema {
			return slices.DeleteFunc(list, func(s *jsonschema.Schema) bool { return s == nil })
		}
		out = append(out, [][]*jsonschema.Schema{present(s.If, s.Then), present(s.Else)})
	}
	return out
}

func eachAlone(branches []*jsonschema.Schema) [][]*jsonschema.Schema {
	var ways [][]*jsonschema.Schema
	for _, b := range branches {
		ways = append(ways, []*jsonschema.Schema{b})
	}
	return ways
}

// candidates yields values that the schemas suggest, valid or not.
func (x *exampler) candidates(all []*jsonschema.Schema, depth int) iter.Seq[any] {
	return func(yield func(any) bool) {
		for _, v := range given(all) {
			if !yield(v) {
				return
			}
		}
		for _, kind := range kindsOf(all) {
			for v := range x.ofKind(kind, all, depth) {
				if !yield(v) {
					return
				}
			}
		}
	}
}

// given lists the values that stand in the schemas.
func given(all []*jsonschema.Schema) []any {
	var out []any
	for _, s := range all {
		out = append(out, s.Examples...)
	}
	for _, s := range all {
		if s.Const != nil {
			out = append(out, *s.Const)
		}
		if s.Enum != nil {
			out = append(out, s.Enum.Values...)
		}
		if s.Default != nil {
			out = append(out, *s.Default)
		}
	}
	return out
}

// kindsOf lists the types to try: those that all schemas allow, and of them first the one their keywords speak of.
func kindsOf(all []*jsonschema.Schema) []string {
	kinds := []string{"object", "string", "integer", "number", "boolean", "array", "null"}
	hint := ""
	for _, s := range all {
		if s.Types != nil {
			allowed := s.Types.ToStrings()
			kinds = slices.DeleteFunc(kinds, func(k string) bool {
				return !slices.Contains(allowed, k) && !(k == "integer" && slices.Contains(allowed, "number"))
			})
		}
		if hint == "" {
			hint = spokenOf(s)
		}
	}
	if hint == "" {
		hint = "string"
	}
	if i := slices.Index(kinds, hint); i > 0 {
		kinds = slices.Insert(slices.Delete(kinds, i, i+1), 0, hint)
	}
	return kinds
}

// spokenOf is the type that the keywords of a schema are about.
func spokenOf(s *jsonschema.Schema) string {
	switch {
	case len(s.Properties) > 0 || len(s.Required) > 0 || len(s.PatternProperties) > 0 || s.MinProperties != nil || s.PropertyNames != nil:
		return "object"
	case s.Items != nil || s.Items2020 != nil || len(s.PrefixItems) > 0 || s.MinItems != nil || s.Contains != nil:
		return "array"
	case s.Pattern != nil || s.Format != nil || s.MinLength != nil || s.MaxLength != nil:
		return "string"
	case s.Minimum != nil || s.Maximum != nil || s.ExclusiveMinimum != nil || s.ExclusiveMaximum != nil || s.MultipleOf != nil:
		return "number"
	}
	return ""
}

func (x *exampler) ofKind(kind string, all []*jsonschema.Schema, depth int) iter.Seq[any] {
	switch kind {
	case "object":
		return x.objects(all, depth)
	case "array":
		return x.arrays(all, depth)
	case "string":
		return exampleStrings(all)
	case "integer":
		return exampleNumbers(all, true)
	case "number":
		return exampleNumbers(all, false)
	case "boolean":
		return slices.Values([]any{true, false})
	}
	return slices.Values([]any{nil})
}

// objects yields an object with all fields, and one with those only that are required.
func (x *exampler) objects(all []*jsonschema.Schema, depth int) iter.Seq[any] {
	return func(yield func(any) bool) {
		if depth <= exampleDepth {
			if v, ok := x.object(all, depth, true); ok && !yield(v) {
				return
			}
		}
		if v, ok := x.object(all, depth, false); ok {
			yield(v)
		}
	}
}

func (x *exampler) object(all []*jsonschema.Schema, depth int, optional bool) (any, bool) {
	out := map[string]any{}
	names, required := fieldNames(all)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		below, allowed := schemasOf(all, name)
		if !required[name] && (!optional || !allowed || x.isOpen(below)) {
			continue
		}
		v, ok := x.first(below, depth+1, nil)
		if !ok && required[name] {
			return nil, false
		}
		if ok {
			out[name] = v
		}
	}
	x.fillUp(out, all, depth, optional)
	return out, true
}

// fieldNames lists the names that the schemas know, and those of them that must be there.
func fieldNames(all []*jsonschema.Schema) (names, required map[string]bool) {
	names, required = map[string]bool{}, map[string]bool{}
	for _, s := range all {
		for name := range s.Properties {
			names[name] = true
		}
		for _, name := range s.Required {
			names[name], required[name] = true, true
		}
	}
	return names, required
}

// schemasOf lists what holds for a field, and whether none of the schemas forbids it.
func schemasOf(all []*jsonschema.Schema, name string) (below []*jsonschema.Schema, allowed bool) {
	allowed = true
	for _, s := range all {
		declared := false
		if p := s.Properties[name]; p != nil {
			below, declared = append(below, p), true
		}
		for _, re := range sortedPatterns(s) {
			if re.MatchString(name) {
				below, declared = append(below, s.PatternProperties[re]), true
			}
		}
		if declared {
			continue
		}
		switch rest := s.AdditionalProperties.(type) {
		case bool:
			allowed = allowed && rest
		case *jsonschema.Schema:
			below = append(below, rest)
		}
	}
	return below, allowed
}

func sortedPatterns(s *jsonschema.Schema) []jsonschema.Regexp {
	return slices.SortedFunc(maps.Keys(s.PatternProperties), func(a, b jsonschema.Regexp) int {
		return bytes.Compare([]byte(a.String()), []byte(b.String()))
	})
}

// fillUp adds names of its own: as many as must be there, and to a map one.
func (x *exampler) fillUp(out map[string]any, all []*jsonschema.Schema, depth int, optional bool) {
	want := 0
	for _, s := range all {
		if s.MinProperties != nil {
			want = max(want, *s.MinProperties)
		}
		_, isMap := s.AdditionalProperties.(*jsonschema.Schema)
		if optional && len(s.Properties) == 0 && (isMap || len(s.PatternProperties) > 0) {
			want = max(want, 1)
		}
	}
	for name := range exampleNames(all) {
		if len(out) >= want {
			return
		}
		below, allowed := schemasOf(all, name)
		if _, there := out[name]; there || !allowed {
			continue
		}
		if v, ok := x.first(below, depth+1, nil); ok {
			out[name] = v
		}
	}
}

// exampleNames yields names for fields that are not declared.
func exampleNames(all []*jsonschema.Schema) iter.Seq[string] {
	return func(yield func(string) bool) {
		var rules, patterns []*jsonschema.Schema
		for _, s := range all {
			if s.PropertyNames != nil {
				rules = append(rules, s.PropertyNames)
			}
			for _, re := range sortedPatterns(s) {
				patterns = append(patterns, &jsonschema.Schema{Pattern: re})
			}
		}
		sources := []iter.Seq[any]{exampleStrings(patterns), slices.Values(given(together(rules))), exampleStrings(together(rules))}
		if len(patterns) == 0 {
			sources = sources[1:]
		}
		for _, values := range sources {
			for v := range values {
				if name, ok := v.(string); ok && holds(rules, name) && !yield(name) {
					return
				}
			}
		}
	}
}

// arrays yields arrays of one item, or as many as there must be, then of none.
func (x *exampler) arrays(all []*jsonschema.Schema, depth int) iter.Seq[any] {
	return func(yield func(any) bool) {
		least := 0
		for _, s := range all {
			if s.MinItems != nil {
				least = max(least, *s.MinItems)
			}
			if s.Contains != nil {
				least = max(least, 1)
			}
			least = max(least, len(s.PrefixItems))
		}
		if depth <= exampleDepth || least > 0 {
			for n := max(1, least); n < max(1, least)+3 && n <= 1000; n++ {
				if v, ok := x.array(all, depth, n); ok && !yield(v) {
					return
				}
			}
		}
		yield([]any{})
	}
}

func (x *exampler) array(all []*jsonschema.Schema, depth, n int) (any, bool) {
	out := make([]any, 0, n)
	for i := range n {
		v, ok := x.first(itemSchemas(all, i), depth+1, out)
		if !ok { // equal items are better than none, unless they must differ
			v, ok = x.first(itemSchemas(all, i), depth+1, nil)
		}
		if !ok {
			return nil, false
		}
		out = append(out, v)
	}
	return out, true
}

// itemSchemas lists what holds for the item at i. What an array must contain, its last items are.
func itemSchemas(all []*jsonschema.Schema, i int) []*jsonschema.Schema {
	var below []*jsonschema.Schema
	add := func(s *jsonschema.Schema) {
		if s != nil {
			below = append(below, s)
		}
	}
	for _, s := range all {
		prefix, rest := s.PrefixItems, s.Items2020
		switch items := s.Items.(type) {
		case []*jsonschema.Schema:
			prefix = items
			rest, _ = s.AdditionalItems.(*jsonschema.Schema)
		case *jsonschema.Schema:
			rest = items
		}
		if i < len(prefix) {
			add(prefix[i])
			continue
		}
		add(rest)
		add(s.Contains)
	}
	return below
}
