// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// valuesType is the type of a value that enum or const lists: an enumeration if all are strings, else what they are.
func (b *bindings) valuesType(all []*jsonschema.Schema, name string) (bindType, bool) {
	values, found := listedValues(all)
	if !found {
		return bindType{}, false
	}
	nullable := slices.Contains(values, nil)
	values = slices.DeleteFunc(values, func(v any) bool { return v == nil })
	var texts []string
	for _, v := range values {
		if s, ok := v.(string); ok {
			texts = append(texts, s)
		}
	}
	if len(texts) != len(values) || len(texts) == 0 {
		return bindType{Kind: commonKind(values), Nullable: nullable}, true
	}
	if len(texts) == 1 {
		return bindType{Kind: bindString, Literal: texts[0], HasOne: true, Nullable: nullable}, true
	}
	d, isNew := b.declare(all, name, declEnum)
	if isNew {
		for _, text := range texts {
			d.Values = append(d.Values, bindValue{Ident: b.unique(d.Name + typeName(text)), Text: text})
		}
	}
	return bindType{Kind: bindNamed, Decl: d, Nullable: nullable}, true
}

// listedValues are the values that enum or const allow and that are valid otherwise.
func listedValues(all []*jsonschema.Schema) (values []any, found bool) {
	for _, s := range all {
		switch {
		case s.Const != nil:
			values, found = []any{*s.Const}, true
		case s.Enum != nil:
			values, found = slices.Clone(s.Enum.Values), true
		default:
			continue
		}
		break
	}
	return slices.DeleteFunc(values, func(v any) bool { return !holds(all, v) }), found
}

func commonKind(values []any) bindKind {
	kind, first := bindAny, true
	for _, v := range values {
		k := bindAny
		switch v := v.(type) {
		case string:
			k = bindString
		case bool:
			k = bindBoolean
		case json.Number:
			k = bindInteger
			if strings.ContainsAny(string(v), ".eE") {
				k = bindNumber
			}
		}
		if !first && k != kind {
			return bindAny
		}
		kind, first = k, false
	}
	return kind
}

// unionType is the type of oneOf and anyOf: the other branch if one of two is null, a union if a field tells the
// branches apart, else anything.
func (b *bindings) unionType(all []*jsonschema.Schema, name string) (bindType, bool) {
	branches, base := splitUnion(all)
	if branches == nil {
		return bindType{}, false
	}
	nullable := false
	branches = slices.DeleteFunc(slices.Clone(branches), func(s *jsonschema.Schema) bool {
		isNull := s.Types != nil && slices.Equal(s.Types.ToStrings(), []string{"null"}) || s.Const != nil && *s.Const == nil
		nullable = nullable || isNull
		return isNull
	})
	sets := make([][]*jsonschema.Schema, len(branches))
	base = slices.DeleteFunc(base, saysNothing)
	for i, branch := range branches {
		sets[i] = append(slices.Clone(base), branch)
	}
	if len(sets) == 1 {
		t := b.typeOf(sets[0], name)
		t.Nullable = t.Nullable || nullable
		return t, true
	}
	if slices.ContainsFunc(branches, func(s *jsonschema.Schema) bool { return len(kindsSpoken(s)) == 0 }) {
		return bindType{}, false // the branches say nothing about types, such as which fields must be there
	}
	if tag := discriminator(sets); tag != "" {
		return bindType{Kind: bindNamed, Decl: b.union(all, sets, tag, name), Nullable: nullable}, true
	}
	t := bindType{Nullable: nullable}
	for _, set := range sets {
		t.Of = append(t.Of, b.typeOf(set, name+"Option"))
	}
	return t, true
}

// kindsSpoken lists the types a branch of a union allows, as far as it says anything about what values hold.
func kindsSpoken(s *jsonschema.Schema) []string {
	set := together([]*jsonschema.Schema{s})
	if _, listed := listedValues(set); listed {
		return []string{"value"}
	}
	for _, p := range set {
		if p.Types != nil || len(p.Properties) > 0 || len(p.OneOf)+len(p.AnyOf) > 0 || p.Items != nil || p.Items2020 != nil {
			kinds, _ := valueKinds(set)
			return append(kinds, "value")
		}
	}
	return nil
}

// splitUnion takes the first union out of the schemas. What stands beside it holds for all branches; of the schema that
// has the union that is its fields.
func splitUnion(all []*jsonschema.Schema) (branches, base []*jsonschema.Schema) {
	for i, s := range all {
		branches = s.OneOf
		if len(branches) == 0 {
			branches = s.AnyOf
		}
		if len(branches) == 0 {
			continue
		}
		rest := *s
		rest.OneOf, rest.AnyOf, rest.Ref, rest.AllOf, rest.DynamicRef, rest.RecursiveRef = nil, nil, nil, nil, nil, nil
		base = append(slices.Clone(all[:i]), &rest)
		return branches, append(base, all[i+1:]...)
	}
	return nil, nil
}

// discriminator is the field that is there in all variants, with one string in each that no other has.
func discriminator(sets [][]*jsonschema.Schema) string {
	for _, set := range sets {
		set = together(set)
		kinds, nullable := valueKinds(set)
		if inner, _ := splitUnion(set); inner != nil || nullable || !slices.Equal(kinds, []string{"object"}) {
			return ""
		}
	}
	names, _ := fieldNames(together(sets[0]))
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !goNameable(name) {
			continue
		}
		seen := map[string]bool{}
		for _, set := range sets {
			if value, ok := fixedText(set, name); ok {
				seen[value] = true
			}
		}
		if len(seen) == len(sets) {
			return name
		}
	}
	return ""
}

// fixedText is the only string that a required field can be.
func fixedText(set []*jsonschema.Schema, name string) (string, bool) {
	set = together(set)
	if _, required := fieldNames(set); !required[name] {
		return "", false
	}
	below, _ := schemasOf(set, name)
	values, found := listedValues(together(below))
	if !found || len(values) != 1 {
		return "", false
	}
	text, ok := values[0].(string)
	return text, ok
}

func (b *bindings) union(all []*jsonschema.Schema, sets [][]*jsonschema.Schema, tag, name string) *bindDecl {
	d, isNew := b.declare(all, name, declUnion)
	if !isNew {
		return d
	}
	d.Tag = tag
	for _, set := range sets {
		value, _ := fixedText(set, tag)
		t := b.typeOf(set, d.Name+typeName(value))
		if t.Decl == nil { // there are too many types
			return d
		}
		t.Decl.Unions = append(t.Decl.Unions, d)
		d.Variants = append(d.Variants, bindVariant{Value: value, Decl: t.Decl})
	}
	return d
}

// saysNothing is for what is left of a schema that was only a union.
func saysNothing(s *jsonschema.Schema) bool {
	return s.Bool == nil && s.Types == nil && s.Enum == nil && s.Const == nil && s.Ref == nil && len(s.AllOf)+len(s.OneOf)+len(s.AnyOf) == 0 &&
		s.DynamicRef == nil && s.RecursiveRef == nil && s.AdditionalProperties == nil && spokenOf(s) == ""
}
