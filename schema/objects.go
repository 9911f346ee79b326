// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"fmt"
	"maps"
	"slices"
)

// objects is rules O1 to O6.
func (c *checker) objects(w *writer, r *js) []found {
	out := c.requiredMembers(w, r)
	out = append(out, c.namedMembers(w, r)...)
	out = append(out, c.otherMembers(w, r)...)
	out = append(out, c.memberNames(w, r)...)
	out = append(out, c.memberCounts(w, r)...)
	out = append(out, c.dependencies(w, r)...)
	return append(out, c.unevaluatedMembers(w, r)...)
}

func (c *checker) requiredMembers(w *writer, r *js) []found {
	var out []found
	have := w.required()
	for _, name := range r.Required {
		if !have[name] {
			out = append(out, c.fail(w, r, "O2", "the reader requires %q, which the writer may leave out", clip(name))...)
		}
	}
	return out
}

// readerOf lists what a reader wants of a member, without unevaluatedProperties.
func readerOf(r *js, name string) []*js {
	var out []*js
	met := false
	if p, ok := r.Properties[name]; ok {
		out, met = append(out, p), true
	}
	for re, p := range r.PatternProperties {
		if re.MatchString(name) {
			out, met = append(out, p), true
		}
	}
	if !met {
		out = append(out, readerRest(r)...)
	}
	return out
}

// readerRest is what a reader wants of members that it does not declare.
func readerRest(r *js) []*js {
	switch p := r.AdditionalProperties.(type) {
	case bool:
		if !p {
			return []*js{falseSchema}
		}
	case *js:
		return []*js{p}
	}
	return nil
}

// namedMembers is rule O1: every member that either side names.
func (c *checker) namedMembers(w *writer, r *js) []found {
	var out []found
	for _, name := range bothNames(w, r) {
		parts, absent := c.member(w, name)
		if absent {
			continue
		}
		for _, want := range readerOf(r, name) {
			out = append(out, c.inMember(w, r, name, parts, want, "O1")...)
		}
	}
	return out
}

func bothNames(w *writer, r *js) []string {
	names := w.names()
	for name := range r.Properties {
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// inMember checks one member of the writer's documents and shows findings by whole documents.
func (c *checker) inMember(w *writer, r *js, name string, parts []*js, want *js, rule string) []found {
	m := conj(parts...)
	out := c.fitsAll(m, want)
	for i := range out {
		f := &out[i]
		if want == falseSchema {
			f.rule, f.reason = rule, fmt.Sprintf("the reader does not take the member %q", clip(name))
		}
		if len(parts) == 0 || want == falseSchema { // the writer says nothing of the member
			f.rule = rule
			if _, declared := r.Properties[name]; declared {
				f.reason = fmt.Sprintf("the writer may send anything as %q, which the reader declares: %s", clip(name), f.reason)
			}
		}
		f.writer, f.reader = inside(f.writer, w.pointer()), inside(f.reader, pointerOf(r))
		f.plain = f.plain && !w.loose
		f.shown = c.wrapMember(w, name, f.shown)
	}
	return out
}

// inside is where something stands, or what it is a part of when it stands nowhere itself.
func inside(at, whole string) string {
	if at == "" {
		return whole
	}
	return at
}

// otherMembers is rules O3 and O4: members that are known by a pattern or by nothing.
func (c *checker) otherMembers(w *writer, r *js) []found {
	patterns := c.patternMembers(w)
	var out []found
	for _, pattern := range slices.Sorted(maps.Keys(patterns)) {
		out = append(out, c.patternMember(w, r, pattern, patterns[pattern])...)
	}
	parts, absent := c.rest(w)
	if absent {
		return out
	}
	for re, want := range r.PatternProperties {
		if _, shared := patterns[re.String()]; shared {
			continue // what matches it is no other
		}
		for _, name := range matching(re.String(), 1) {
			out = append(out, c.inMember(w, r, name, parts, want, "O4")...)
		}
		if !c.memberFits(parts, want) {
			out = append(out, c.doubt(w, r, "O4", "members that match %s are not what the reader wants", clip(re.String()))...)
		}
	}
	for _, want := range readerRest(r) {
		out = append(out, c.inMember(w, r, c.freshName(w, r), parts, want, "O3")...)
	}
	return out
}

func (c *checker) memberFits(parts []*js, want *js) bool {
	return len(c.fitsAll(conj(parts...), want)) == 0
}

// patternMember checks the members that match a pattern of the writer.
func (c *checker) patternMember(w *writer, r *js, pattern string, parts []*js) []found {
	if slices.ContainsFunc(parts, isFalse) {
		return nil
	}
	var out []found
	shared := false
	for re, want := range r.PatternProperties {
		same := re.String() == pattern
		shared = shared || same
		if c.memberFits(parts, want) {
			continue
		}
		var here []found
		if same {
			here = c.fail(w, r, "O4", "members that match %s are not what the reader wants", clip(pattern))
		} else {
			here = c.doubt(w, r, "O4", "members that match %s may match the reader's %s, which wants something else", clip(pattern), clip(re.String()))
		}
		out = append(out, here...)
	}
	if !shared {
		for _, want := range readerRest(r) {
			if !c.memberFits(parts, want) {
				out = append(out, c.doubt(w, r, "O4", "members that match %s may be none that the reader declares", clip(pattern))...)
			}
		}
	}
	return out
}

// memberNames is rule O4 for propertyNames.
func (c *checker) memberNames(w *writer, r *js) []found {
	if r.PropertyNames == nil {
		return nil
	}
	var known []*js
	for _, s := range w.local {
		if s.PropertyNames != nil {
			known = append(known, s.PropertyNames)
		}
	}
	names := conj(known...)
	if c.sameAsOne(names, r.PropertyNames) {
		return nil
	}
	var out []found
	for _, name := range w.names() {
		parts, absent := c.member(w, name)
		if absent || r.PropertyNames.Validate(name) == nil || !names.valid(name) || c.emptyAll(conj(parts...), 0) {
			continue
		}
		out = append(out, c.fail(w, r, "O4", "the reader does not take the name %q", clip(name))...)
	}
	_, closed := c.rest(w)
	if closed && len(c.patternMembers(w)) == 0 {
		return out
	}
	if more := c.fits(names, r.PropertyNames, kindString); len(more) > 0 {
		out = append(out, c.doubt(w, r, "O4", "the reader does not take every name that the writer may use")...)
	}
	return out
}

// memberCounts is rule O5.
func (c *checker) memberCounts(w *writer, r *js) []found {
	if r.MinProperties == nil && r.MaxProperties == nil {
		return nil
	}
	least, most := c.memberSpan(w)
	var out []found
	if r.MinProperties != nil && least < *r.MinProperties {
		out = append(out, c.fail(w, r, "O5", "the writer may send fewer members than the reader's minProperties")...)
	}
	if r.MaxProperties != nil && most > *r.MaxProperties {
		out = append(out, c.fail(w, r, "O5", "the writer may send more members than the reader's maxProperties")...)
	}
	return out
}

// memberSpan is how many members the writer's documents have.
func (c *checker) memberSpan(w *writer) (least, most int) {
	least, most = span(w.local, func(s *js) *int { return s.MinProperties }, func(s *js) *int { return s.MaxProperties })
	least = max(least, len(w.required()))
	if _, closed := c.rest(w); closed && len(c.patternMembers(w)) == 0 {
		n := 0
		for _, name := range w.names() {
			if _, absent := c.member(w, name); !absent {
				n++
			}
		}
		most = min(most, n)
	}
	return least, most
}

// dependencies is rule O6.
func (c *checker) dependencies(w *writer, r *js) []found {
	var out []found
	lists := maps.Clone(r.DependentRequired)
	schemas := maps.Clone(r.DependentSchemas)
	for name, d := range r.Dependencies {
		switch d := d.(type) {
		case []string:
			if lists == nil {
				lists = map[string][]string{}
			}
			lists[name] = d
		case *js:
			if schemas == nil {
				schemas = map[string]*js{}
			}
			schemas[name] = d
		}
	}
	have := w.required()
	for name, needs := range lists {
		if _, absent := c.member(w, name); absent {
			continue
		}
		for _, need := range needs {
			if !have[need] && !w.depends(name, need) {
				out = append(out, c.fail(w, r, "O6", "with %q the reader requires %q, which the writer may leave out", clip(name), clip(need))...)
			}
		}
	}
	for name, p := range schemas {
		if _, absent := c.member(w, name); absent || c.sameDependent(w, name, p) {
			continue
		}
		given := w.with(&js{Required: []string{name}, DraftVersion: 2020})
		if c.sameAsOne(w, p) || len(c.fits(given, p, kindObject)) == 0 {
			continue
		}
		here := c.doubt(w, r, "O6", "what the reader wants of documents with %q is not decided", clip(name))
		here[0].open = true
		out = append(out, here...)
	}
	return out
}

// depends reports whether w's documents that have name have need.
func (w *writer) depends(name, need string) bool {
	for _, s := range w.local {
		if slices.Contains(s.DependentRequired[name], need) {
			return true
		}
		if list, ok := s.Dependencies[name].([]string); ok && slices.Contains(list, need) {
			return true
		}
	}
	return false
}

func (c *checker) sameDependent(w *writer, name string, p *js) bool {
	for _, s := range w.local {
		q := s.DependentSchemas[name]
		if d, ok := s.Dependencies[name].(*js); ok {
			q = d
		}
		if q != nil && c.equal(q, p) {
			return true
		}
	}
	return false
}

// unevaluatedMembers is rules O1 and O3 for unevaluatedProperties: members that no part of the reader is sure to declare
// must fit it.
func (c *checker) unevaluatedMembers(w *writer, r *js) []found {
	want := r.UnevaluatedProperties
	if want == nil || want.Bool != nil && *want.Bool || r.AdditionalProperties != nil {
		return nil // additionalProperties has evaluated every member
	}
	sure, maybe := evaluatedBy(r)
	var out []found
	report := func(name string, list []found) {
		for _, f := range list {
			if len(maybe) > 0 && (declares(maybe, name) || anyRest(maybe)) {
				f.open, f.plain, f.reason = true, false, "whether the reader evaluates a member is not decided: "+f.reason
			}
			out = append(out, f)
		}
	}
	for _, name := range bothNames(w, r) {
		parts, absent := c.member(w, name)
		if !absent && !declares(sure, name) && !anyRest(sure) {
			report(name, c.inMember(w, r, name, parts, want, "O1"))
		}
	}
	if anyRest(sure) {
		return out
	}
	patterns := c.patternMembers(w)
	for pattern, parts := range patterns {
		if !slices.ContainsFunc(parts, isFalse) && !hasPattern(sure, pattern) && !c.memberFits(parts, want) {
			out = append(out, c.doubt(w, r, "O4", "members that match %s may be none that the reader declares", clip(pattern))...)
		}
	}
	if parts, absent := c.rest(w); !absent {
		name := c.freshName(w, r)
		report(name, c.inMember(w, r, name, parts, want, "O3"))
	}
	return out
}

// evaluatedBy lists the parts of r that are sure to look at the members of its documents, and those that may.
func evaluatedBy(r *js) (sure, maybe map[*js]bool) {
	sure = map[*js]bool{}
	var walk func(s *js)
	walk = func(s *js) {
		if sure[s] {
			return
		}
		sure[s] = true
		if s.Ref != nil {
			walk(s.Ref)
		}
		for _, p := range s.AllOf {
			walk(p)
		}
	}
	walk(r)
	maybe = closure(r, map[*js]bool{})
	for s := range sure {
		delete(maybe, s)
	}
	return sure, maybe
}

// anyRest reports whether a part evaluates every member.
func anyRest(parts map[*js]bool) bool {
	for s := range parts {
		if s.AdditionalProperties != nil {
			return true
		}
	}
	return false
}

func hasPattern(parts map[*js]bool, pattern string) bool {
	for s := range parts {
		for re := range s.PatternProperties {
			if re.String() == pattern {
				return true
			}
		}
	}
	return false
}
