// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
)

// Documents that show a finding are made, not found: samples makes a few documents of a writer, small ones at the edges of
// what it allows. Nothing depends on how good they are but whether there is one to show: each is put before the
// validator.

const (
	maxSampleDepth = 5
	maxSamples     = 24 // of one part
)

// show looks for documents of the writer that the reader refuses, for a finding that has none yet.
func (c *checker) show(w *writer, r *js, k kinds, f *found) {
	if f.open {
		return
	}
	tried := append(slices.Clone(f.shown), c.nearly(w, r, k)...)
	f.shown = nil
	for _, v := range tried {
		if len(f.shown) >= maxWitness {
			return
		}
		if w.valid(v) && r.Validate(v) != nil && c.writes(w, v, 0) {
			f.shown = append(f.shown, v)
		}
	}
}

// nearly makes documents of the writer with an eye to the reader's edges.
func (c *checker) nearly(w *writer, r *js, k kinds) []any {
	var out []any
	for _, v := range c.samples(w, 0) {
		if kindOf(v) == k {
			out = append(out, v)
		}
	}
	switch k {
	case kindNumber:
		out = append(out, c.numberSamples(conj(append(slices.Clone(w.roots), edgesOf(r))...))...)
		out = append(out, c.numberSamples(conj(edgesOf(r)))...)
	case kindString:
		out = append(out, stringSamples([]*js{r})...)
		if r.MaxLength != nil && *r.MaxLength < 4096 {
			out = append(out, strings.Repeat("a", *r.MaxLength+1))
		}
		if r.MinLength != nil && *r.MinLength > 0 && *r.MinLength < 4096 {
			out = append(out, strings.Repeat("a", *r.MinLength-1))
		}
	case kindObject:
		out = append(out, c.objectSamples(w, sortedKeys(r.Properties), 0)...)
	}
	return out
}

// edgesOf keeps of a reader what bounds numbers.
func edgesOf(r *js) *js {
	return &js{Minimum: r.Minimum, Maximum: r.Maximum, ExclusiveMinimum: r.ExclusiveMinimum, ExclusiveMaximum: r.ExclusiveMaximum, MultipleOf: r.MultipleOf, DraftVersion: 2020}
}

func sortedKeys(m map[string]*js) []string { return slices.Sorted(maps.Keys(m)) }

// samples makes documents that are valid for a writer.
func (c *checker) samples(w *writer, depth int) []any {
	if depth > maxSampleDepth {
		return nil
	}
	key := fmt.Sprintf("%s/%d/%d", w.key(), len(w.unions), depth)
	if out, ok := c.pool[key]; ok {
		return out
	}
	c.pool[key] = nil // of what recurs there is none at this depth
	var raw []any
	k, _ := w.kinds()
	k.each(func(one kinds) {
		if values, ok := c.finite(w, one); ok {
			raw = append(raw, values...)
			return
		}
		raw = append(raw, c.kindSamples(w, one, depth)...)
	})
	if len(w.unions) > 0 {
		for _, branch := range w.split() {
			raw = append(raw, c.samples(branch, depth+1)...)
		}
	}
	var out []any
	for _, v := range raw {
		if len(out) < maxSamples && w.valid(v) && c.writes(w, v, 0) {
			out = append(out, v)
		}
	}
	c.pool[key] = out
	return out
}

func (c *checker) kindSamples(w *writer, k kinds, depth int) []any {
	switch k {
	case kindNumber:
		return c.numberSamples(w)
	case kindString:
		return stringSamples(w.local)
	case kindArray:
		return c.arraySamples(w, depth)
	case kindObject:
		return c.objectSamples(w, nil, depth)
	}
	return nil
}

func (c *checker) numberSamples(w *writer) []any {
	_, whole := w.kinds()
	b := boundsOf(whole, w.local...)
	var rats []*big.Rat
	add := func(v *big.Rat) {
		if v == nil {
			return
		}
		for _, d := range []*big.Rat{new(big.Rat), big.NewRat(1, 1), big.NewRat(-1, 1), big.NewRat(1, 2), big.NewRat(-1, 2)} {
			rats = append(rats, new(big.Rat).Add(v, d))
		}
	}
	add(b.lo)
	add(b.hi)
	if b.lo != nil && b.hi != nil {
		rats = append(rats, new(big.Rat).Quo(new(big.Rat).Add(b.lo, b.hi), big.NewRat(2, 1)))
	}
	for _, s := range w.local {
		if m := s.MultipleOf; m != nil {
			for _, f := range []int64{1, 2, 3, -1} {
				rats = append(rats, new(big.Rat).Mul(m, big.NewRat(f, 1)))
			}
			if b.lo != nil { // the first multiple inside
				q := roundIn(new(big.Rat).Quo(b.lo, m), b.loOpen, 1)
				rats = append(rats, new(big.Rat).Mul(q, m), new(big.Rat).Mul(new(big.Rat).Add(q, big.NewRat(1, 1)), m))
			}
			if b.hi != nil {
				rats = append(rats, new(big.Rat).Mul(roundIn(new(big.Rat).Quo(b.hi, m), b.hiOpen, -1), m))
			}
		}
	}
	rats = append(rats, big.NewRat(1, 1), new(big.Rat), big.NewRat(3, 2), big.NewRat(-1, 1), big.NewRat(1000003, 1))
	var out []any
	for _, v := range rats {
		if n, ok := numberText(v); ok {
			out = append(out, n)
		}
	}
	return out
}

// numberText writes a number that has a short decimal form.
func numberText(v *big.Rat) (json.Number, bool) {
	if v.IsInt() {
		return json.Number(v.Num().String()), len(v.Num().String()) < 400
	}
	digits, exact := v.FloatPrec()
	if !exact || digits > 40 {
		return "", false
	}
	return json.Number(v.FloatString(digits)), true
}

// formatSamples has a text for each format that is checked.
var formatSamples = map[string]string{
	"date-time": "2026-01-02T03:04:05Z", "date": "2026-01-02", "time": "03:04:05Z", "duration": "P1D", "period": "P1D/2026-01-02T03:04:05Z",
	"email": "a@example.com", "hostname": "example.com", "ipv4": "192.0.2.1", "ipv6": "2001:db8::1", "uuid": "123e4567-e89b-12d3-a456-426614174000",
	"uri": "https://example.com/a", "iri": "https://example.com/a", "uri-reference": "/a", "iri-reference": "/a", "uri-template": "/{a}",
	"json-pointer": "/a", "relative-json-pointer": "1/a", "regex": "^a$", "semver": "1.2.3",
}

func stringSamples(list []*js) []any {
	least, most := span(list, func(s *js) *int { return s.MinLength }, func(s *js) *int { return s.MaxLength })
	texts := []string{"x", "", "ab", "a", "b", "z z", "1", "ä"}
	for _, s := range list {
		if s.Pattern != nil {
			texts = append(matching(s.Pattern.String(), 6), texts...)
		}
		if s.Format != nil {
			texts = append([]string{formatSamples[s.Format.Name]}, texts...)
		}
	}
	for _, n := range []int{least, most, least + 1} {
		if n > 0 && n < 4096 {
			texts = append(texts, strings.Repeat("a", n), strings.Repeat("7", n))
		}
	}
	var out []any
	for _, t := range texts {
		out = append(out, t)
	}
	return out
}

// matching makes texts that match a regular expression, most times.
func matching(pattern string, n int) []string {
	if text, ok := plainText(pattern); ok {
		return []string{text, text + "x", "x" + text}[:min(n, 3)]
	}
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil
	}
	var out []string
	for turn := range n {
		var b strings.Builder
		generate(&b, re, turn, 0)
		out = append(out, b.String())
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// generate writes a text that an expression matches; turn varies what is chosen.
func generate(b *strings.Builder, re *syntax.Regexp, turn, depth int) {
	if b.Len() > 1024 || depth > 50 {
		return
	}
	repeat := func(least, most int) {
		n := least + turn%3
		if most >= 0 {
			n = min(n, most)
		}
		for range min(n, 256) {
			generate(b, re.Sub[0], turn, depth+1)
		}
	}
	switch re.Op {
	case syntax.OpLiteral:
		b.WriteString(string(re.Rune))
	case syntax.OpCharClass:
		if pairs := len(re.Rune) / 2; pairs > 0 {
			at := turn % pairs
			b.WriteRune(min(re.Rune[2*at]+rune(turn/pairs), re.Rune[2*at+1]))
		}
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		b.WriteByte("ab1"[turn%3])
	case syntax.OpStar:
		repeat(0, -1)
	case syntax.OpPlus:
		repeat(1, -1)
	case syntax.OpQuest:
		repeat(0, 1)
	case syntax.OpRepeat:
		repeat(re.Min, re.Max)
	case syntax.OpAlternate:
		generate(b, re.Sub[turn%len(re.Sub)], turn, depth+1)
	case syntax.OpConcat, syntax.OpCapture:
		for _, s := range re.Sub {
			generate(b, s, turn, depth+1)
		}
	}
}

// arraySamples makes arrays of the least length, of one more, of equal and of different items.
func (c *checker) arraySamples(w *writer, depth int) []any {
	least, most, alike := c.counts(w)
	out := []any{[]any{}}
	for _, n := range []int{least, least + 1, alike, alike + 1, 2, 3} {
		if n > most || n > 64 || n == 0 {
			continue
		}
		for turn := range 4 {
			if a, ok := c.arrayOf(w, n, turn, depth); ok {
				out = append(out, a)
			}
		}
	}
	for _, s := range w.local {
		if s.Contains == nil {
			continue
		}
		for _, v := range c.samples(conj(s.Contains), depth+1) {
			out = append(out, []any{v}, []any{v, v})
			if a, ok := c.arrayOf(w, max(least, 1), 0, depth); ok {
				out = append(out, append([]any{v}, a[1:]...), append(slices.Clone(a), v))
			}
		}
	}
	if most < 64 {
		if a, ok := c.arrayOf(w, most, 1, depth); ok {
			out = append(out, a)
		}
	}
	return out
}

// arrayOf makes an array of n items; turn 0 has equal ones where it can.
func (c *checker) arrayOf(w *writer, n, turn, depth int) ([]any, bool) {
	a := []any{}
	for i := range n {
		parts, absent := items(w, i)
		from := c.samples(conj(parts...), depth+1)
		if absent || len(from) == 0 {
			return nil, false
		}
		a = append(a, from[(i*min(turn, 1)+turn)%len(from)])
	}
	return a, true
}

// objectSamples makes objects of the required members, with each other member, and with all.
func (c *checker) objectSamples(w *writer, more []string, depth int) []any {
	base, ok := c.objectOf(w, depth)
	if !ok {
		return nil
	}
	names := slices.Concat(w.names(), more)
	full := maps.Clone(base)
	out := []any{base}
	for _, name := range names[:min(len(names), 64)] {
		parts, absent := c.member(w, name)
		if absent {
			continue
		}
		values := c.samples(conj(parts...), depth+1)
		for i, v := range values {
			one := maps.Clone(base)
			one[name] = v
			if i == 0 {
				full[name] = v
			}
			if i < 8 {
				out = append(out, one)
			}
		}
	}
	out = append(out, full)
	for _, o := range []map[string]any{base, full} {
		out = append(out, c.withOthers(w, o, depth)...)
	}
	return out
}

// objectOf makes an object of the required members, filled up to the least number.
func (c *checker) objectOf(w *writer, depth int) (map[string]any, bool) {
	out := map[string]any{}
	for name := range w.required() {
		parts, absent := c.member(w, name)
		values := c.samples(conj(parts...), depth+1)
		if absent || len(values) == 0 {
			return nil, false
		}
		out[name] = values[0]
	}
	least, _ := span(w.local, func(s *js) *int { return s.MinProperties }, func(s *js) *int { return s.MaxProperties })
	for _, name := range append(w.names(), spareNames(w, min(least, 64))...) {
		if len(out) >= least {
			break
		}
		if _, there := out[name]; there {
			continue
		}
		parts, absent := c.member(w, name)
		if values := c.samples(conj(parts...), depth+1); !absent && len(values) > 0 {
			out[name] = values[0]
		}
	}
	return out, true
}

// spareNames are names for members that are not declared: of patterns, and any.
func spareNames(w *writer, n int) []string {
	var out []string
	for _, s := range w.local {
		for re := range s.PatternProperties {
			out = append(out, matching(re.String(), 3)...)
		}
	}
	for i := range n {
		out = append(out, "x"+strconv.Itoa(i))
	}
	slices.Sort(out)
	return out
}

// withOthers adds members that are not declared.
func (c *checker) withOthers(w *writer, o map[string]any, depth int) []any {
	var out []any
	for _, name := range append(spareNames(w, 1), "x") {
		parts, absent := c.member(w, name)
		if _, there := o[name]; there || absent {
			continue
		}
		values := c.samples(conj(parts...), depth+1)
		for _, v := range values[:min(len(values), 8)] {
			one := maps.Clone(o)
			one[name] = v
			out = append(out, one)
		}
	}
	return out
}

// wrapMember puts values into documents of the writer.
func (c *checker) wrapMember(w *writer, name string, values []any) []any {
	if len(values) == 0 {
		return nil
	}
	var out []any
	for _, o := range c.samples(w, 0) {
		object, ok := o.(map[string]any)
		if !ok {
			continue
		}
		for _, v := range values {
			one := maps.Clone(object)
			one[name] = v
			if w.valid(one) && c.writes(w, one, 0) {
				out = append(out, one)
			}
		}
		if len(out) >= maxWitness {
			break
		}
	}
	return out
}

// wrapItem puts values into arrays of the writer, at a position.
func (c *checker) wrapItem(w *writer, at int, values []any) []any {
	if len(values) == 0 {
		return nil
	}
	least, _, _ := c.counts(w)
	var out []any
	for n := max(least, at+1); n <= max(least, at+1)+1 && n <= 64; n++ {
		for turn := range 2 {
			a, ok := c.arrayOf(w, n, turn, 0)
			if !ok {
				continue
			}
			for _, v := range values {
				one := slices.Clone(a)
				one[at] = v
				if w.valid(one) && c.writes(w, one, 0) {
					out = append(out, one)
				}
			}
		}
	}
	return out[:min(len(out), 2*maxWitness)]
}

// writes reports whether a document that is valid has, by the policy, only members that the writer declares, in itself and
// in its members. It may say no too often.
func (c *checker) writes(w *writer, v any, depth int) bool {
	if c.policy != Lenient || depth > maxDepth {
		return true
	}
	for _, s := range w.local { // a value that is written out is what it is
		if s.Const != nil || s.Enum != nil {
			return true
		}
	}
	if len(w.unions) > 0 {
		return slices.ContainsFunc(w.split(), func(b *writer) bool { return b.valid(v) && c.writes(b, v, depth) })
	}
	switch v := v.(type) {
	case map[string]any:
		for name, m := range v {
			parts, absent := c.member(w, name)
			if absent || !c.writes(conj(parts...), m, depth+1) {
				return false
			}
		}
	case []any:
		for i, m := range v {
			parts, _ := items(w, i)
			if !c.writes(conj(parts...), m, depth+1) {
				return false
			}
		}
	}
	return true
}
