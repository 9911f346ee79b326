// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"maps"
	"slices"
)

// member is what a writer's documents have under a name: documents of a writer, or nothing at all.
func (c *checker) member(w *writer, name string) (parts []*js, absent bool) {
	for _, s := range w.local {
		met := false
		if p, ok := s.Properties[name]; ok {
			parts, met = append(parts, p), true
		}
		for re, p := range s.PatternProperties {
			if re.MatchString(name) {
				parts, met = append(parts, p), true
			}
		}
		if !met {
			parts, absent = addRest(parts, absent, s.AdditionalProperties)
			if s.AdditionalProperties == nil && s.UnevaluatedProperties != nil && !mentions(s, name) {
				parts = append(parts, s.UnevaluatedProperties)
			}
		}
	}
	if !absent && c.declaredOnly(w) {
		absent = !declares(w.reach(), name)
	}
	return parts, absent || slices.ContainsFunc(parts, isFalse)
}

// addRest takes in what stands for the names that are not declared: nil, a bool or a schema.
func addRest(parts []*js, absent bool, rest any) ([]*js, bool) {
	switch r := rest.(type) {
	case bool:
		return parts, absent || !r
	case *js:
		return append(parts, r), absent
	}
	return parts, absent
}

// mentions reports whether any other part of s that looks at the same value may evaluate a member, so that
// unevaluatedProperties of s may not apply to it.
func mentions(s *js, name string) bool {
	for p := range closure(s, map[*js]bool{}) {
		if p == s {
			continue
		}
		if p.AdditionalProperties != nil || p.UnevaluatedProperties != nil || declares(map[*js]bool{p: true}, name) {
			return true
		}
	}
	return false
}

func declares(parts map[*js]bool, name string) bool {
	for s := range parts {
		if _, ok := s.Properties[name]; ok {
			return true
		}
		for re := range s.PatternProperties {
			if re.MatchString(name) {
				return true
			}
		}
	}
	return false
}

// declaredOnly reports whether, by the lenient policy, w's documents have the names that w declares and no others: it
// declares some and nowhere says what becomes of the rest.
func (c *checker) declaredOnly(w *writer) bool {
	if c.policy != Lenient {
		return false
	}
	for s := range w.reach() {
		if s.AdditionalProperties != nil || s.UnevaluatedProperties != nil {
			return false
		}
	}
	// A part that may not apply adds names, and does not make the rest theirs.
	return slices.ContainsFunc(w.local, func(s *js) bool { return s.Properties != nil || s.PatternProperties != nil })
}

// rest is what a writer's documents have under the names that match nothing.
func (c *checker) rest(w *writer) (parts []*js, absent bool) {
	for _, s := range w.local {
		parts, absent = addRest(parts, absent, s.AdditionalProperties)
		if s.AdditionalProperties == nil && s.UnevaluatedProperties != nil && !mentionsRest(s) {
			parts = append(parts, s.UnevaluatedProperties)
		}
	}
	return parts, absent || c.declaredOnly(w) || slices.ContainsFunc(parts, isFalse)
}

// mentionsRest is mentions for a name that nothing declares; patterns of other parts may match it.
func mentionsRest(s *js) bool {
	for p := range closure(s, map[*js]bool{}) {
		if p != s && (p.AdditionalProperties != nil || p.UnevaluatedProperties != nil || len(p.PatternProperties) > 0) {
			return true
		}
	}
	return false
}

// patternMembers are the patterns of w with what is known of a member that matches one.
func (c *checker) patternMembers(w *writer) map[string][]*js {
	out := map[string][]*js{}
	for _, s := range w.local {
		for re, p := range s.PatternProperties {
			out[re.String()] = append(out[re.String()], p)
		}
	}
	for pattern := range out {
		for _, s := range w.local {
			if len(s.PatternProperties) == 0 { // such a member is none of its own
				more, absent := addRest(nil, false, s.AdditionalProperties)
				out[pattern] = append(out[pattern], more...)
				if absent {
					out[pattern] = append(out[pattern], falseSchema)
				}
			}
		}
	}
	if c.declaredOnly(w) { // by patterns that may or may not apply, too
		for s := range w.reach() {
			for re := range s.PatternProperties {
				if _, ok := out[re.String()]; !ok {
					out[re.String()] = nil
				}
			}
		}
	}
	return out
}

var falseSchema = func() *js { no := false; return &js{Bool: &no, DraftVersion: 2020} }()

// names are the members that w's documents may have by name.
func (w *writer) names() []string {
	set := map[string]bool{}
	for s := range w.reach() {
		for name := range s.Properties {
			set[name] = true
		}
		for _, name := range s.Required {
			set[name] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// items is what a writer's arrays have at a position, or that none is so long.
func items(w *writer, at int) (parts []*js, absent bool) {
	for _, s := range w.local {
		p, rest := prefixOf(s)
		if at < len(p) {
			parts = append(parts, p[at])
		} else {
			parts, absent = addRest(parts, absent, rest)
		}
	}
	return parts, absent || slices.ContainsFunc(parts, isFalse)
}

// prefixOf is what a schema says of the first items, and of the rest: nil, a bool or a schema.
func prefixOf(s *js) (prefix []*js, rest any) {
	if s.DraftVersion >= 2020 {
		if s.Items2020 != nil {
			return s.PrefixItems, s.Items2020
		}
		return s.PrefixItems, nil
	}
	switch i := s.Items.(type) {
	case *js:
		return nil, i
	case []*js:
		return i, s.AdditionalItems
	}
	return nil, s.AdditionalItems // without items every item is one more
}

// counts is how many items the writer's arrays have, and from where on all are alike.
func (c *checker) counts(w *writer) (least, most, alike int) {
	least, most = span(w.local, func(s *js) *int { return s.MinItems }, func(s *js) *int { return s.MaxItems })
	for _, s := range w.local {
		p, _ := prefixOf(s)
		alike = max(alike, len(p))
		if s.Contains != nil && (s.MinContains == nil || *s.MinContains > 0) {
			least = max(least, 1)
			if s.MinContains != nil {
				least = max(least, *s.MinContains)
			}
		}
	}
	for i := 0; i <= alike && i < most; i++ {
		if _, absent := items(w, i); absent {
			most = i
		}
	}
	return least, most, alike
}
