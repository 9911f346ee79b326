// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// js is a part of a compiled JSON Schema. References are pointers, so parts are compared by identity.
type js = jsonschema.Schema

// kinds are the JSON types that a document may have.
type kinds uint8

const (
	kindNull kinds = 1 << iota
	kindBool
	kindNumber
	kindString
	kindArray
	kindObject
	allKinds = kindNull | kindBool | kindNumber | kindString | kindArray | kindObject
)

var kindNames = map[string]kinds{"null": kindNull, "boolean": kindBool, "number": kindNumber, "integer": kindNumber,
	"string": kindString, "array": kindArray, "object": kindObject}

func (k kinds) each(fn func(kinds)) {
	for one := kindNull; one <= kindObject; one <<= 1 {
		if k&one != 0 {
			fn(one)
		}
	}
}

// kindOf is the kind of a decoded value.
func kindOf(v any) kinds {
	switch v.(type) {
	case nil:
		return kindNull
	case bool:
		return kindBool
	case string:
		return kindString
	case []any:
		return kindArray
	case map[string]any:
		return kindObject
	}
	return kindNumber
}

// typesOf says which kinds s lets through by its type, and whether numbers must be whole.
func typesOf(s *js) (k kinds, whole bool) {
	if s.Types == nil || s.Types.IsEmpty() {
		return allKinds, false
	}
	names := s.Types.ToStrings()
	for _, n := range names {
		k |= kindNames[n]
	}
	return k, slices.Contains(names, "integer") && !slices.Contains(names, "number")
}

// writer is what is known of a writer's documents: they are valid for each of some schemas. Parts that are left out make
// it weaker, which never makes a wrong proof.
type writer struct {
	roots  []*js   // a document that is valid for each is the writer's
	local  []*js   // the roots and all that they refer to or are made of, for the keywords beside each other
	unions [][]*js // anyOf and oneOf that were not taken apart: one of each list is valid
	hints  []*js   // parts that may or may not apply: they declare names
	loose  bool    // something was left out
}

// conj is the writer of what is valid for all of some schemas.
func conj(list ...*js) *writer {
	w := &writer{}
	for _, s := range list {
		w.roots = append(w.roots, s)
		w.flatten(s)
	}
	return w
}

// with is w for documents that are valid for s as well.
func (w *writer) with(s *js) *writer {
	out := &writer{roots: slices.Clone(w.roots), local: slices.Clone(w.local), unions: slices.Clone(w.unions),
		hints: slices.Clone(w.hints), loose: w.loose}
	out.roots = append(out.roots, s)
	out.flatten(s)
	return out
}

// split is w for each branch of its first union.
func (w *writer) split() []*writer {
	var out []*writer
	rest := *w
	rest.unions = w.unions[1:]
	for _, branch := range w.unions[0] {
		out = append(out, rest.with(branch))
	}
	return out
}

func (w *writer) flatten(s *js) {
	if slices.Contains(w.local, s) {
		return
	}
	if s.DraftVersion < 2019 && s.Ref != nil { // the rest is ignored, but for const
		if s.Const != nil {
			w.local = append(w.local, &js{Const: s.Const, DraftVersion: s.DraftVersion})
		}
		w.flatten(s.Ref)
		return
	}
	w.local = append(w.local, s)
	if s.Ref != nil {
		w.flatten(s.Ref)
	}
	for _, p := range s.AllOf {
		w.flatten(p)
	}
	for _, u := range [][]*js{s.AnyOf, s.OneOf} {
		if len(u) > 0 {
			w.unions = append(w.unions, u)
		}
	}
	for _, p := range conditional(s) {
		w.hints, w.loose = append(w.hints, p), true
	}
	if s.Not != nil {
		w.loose = true
	}
}

// conditional lists the parts that apply to some values only.
func conditional(s *js) []*js {
	var out []*js
	for _, p := range []*js{s.If, s.Then, s.Else} {
		if p != nil {
			out = append(out, p)
		}
	}
	for _, p := range s.DependentSchemas {
		out = append(out, p)
	}
	for _, d := range s.Dependencies {
		if p, ok := d.(*js); ok {
			out = append(out, p)
		}
	}
	return out
}

// closure is s and all parts that look at the same value, without what is under not.
func closure(s *js, seen map[*js]bool) map[*js]bool {
	if seen[s] {
		return seen
	}
	seen[s] = true
	for _, p := range sameValue(s) {
		if p != s.Not {
			closure(p, seen)
		}
	}
	return seen
}

// reach is everything that may say something about the members of w's documents.
func (w *writer) reach() map[*js]bool {
	seen := map[*js]bool{}
	for _, s := range w.local {
		seen[s] = true
	}
	for _, s := range w.hints {
		closure(s, seen)
	}
	for _, u := range w.unions {
		for _, s := range u {
			closure(s, seen)
		}
	}
	return seen
}

func (w *writer) key() string {
	parts := make([]string, len(w.roots))
	for i, s := range w.roots {
		parts[i] = fmt.Sprintf("%p", s)
	}
	slices.Sort(parts)
	return strings.Join(slices.Compact(parts), "+")
}

func (w *writer) pointer() string {
	if len(w.roots) == 0 {
		return ""
	}
	return pointerOf(w.roots[0])
}

// pointerOf is where s stands in its text; the URL of the text as well if it is another's.
func pointerOf(s *js) string {
	if strings.HasPrefix(s.Location, baseURL) {
		return fragmentOf(s.Location)
	}
	return strings.TrimPrefix(s.Location, "rialto://")
}

func (w *writer) valid(v any) bool {
	for _, s := range w.roots {
		if s.Validate(v) != nil {
			return false
		}
	}
	return true
}

// kinds says which kinds of documents there may be, and whether numbers are whole.
func (w *writer) kinds() (k kinds, whole bool) {
	k = allKinds
	for _, s := range w.local {
		if s.Bool != nil && !*s.Bool {
			return 0, false
		}
		t, i := typesOf(s)
		k &= t
		whole = whole || i
		whole = whole || s.MultipleOf != nil && s.MultipleOf.IsInt()
	}
	return k, whole
}

func isFalse(s *js) bool { return s.Bool != nil && !*s.Bool }

// bounds of numbers; nil is none.
type bounds struct {
	lo, hi         *big.Rat
	loOpen, hiOpen bool // the bound itself is excluded
}

func (b *bounds) atLeast(v *big.Rat, open bool) {
	if v == nil {
		return
	}
	c := 1
	if b.lo != nil {
		c = v.Cmp(b.lo)
	}
	if c > 0 || c == 0 && open {
		b.lo, b.loOpen = v, open
	}
}

func (b *bounds) atMost(v *big.Rat, open bool) {
	if v == nil {
		return
	}
	c := -1
	if b.hi != nil {
		c = v.Cmp(b.hi)
	}
	if c < 0 || c == 0 && open {
		b.hi, b.hiOpen = v, open
	}
}

func boundsOf(whole bool, list ...*js) bounds {
	var b bounds
	for _, s := range list {
		b.atLeast(s.Minimum, false)
		b.atLeast(s.ExclusiveMinimum, true)
		b.atMost(s.Maximum, false)
		b.atMost(s.ExclusiveMaximum, true)
	}
	if whole {
		b.lo, b.loOpen = roundIn(b.lo, b.loOpen, 1), false
		b.hi, b.hiOpen = roundIn(b.hi, b.hiOpen, -1), false
	}
	return b
}

// roundIn moves a bound to the first whole number inside, which is in the direction.
func roundIn(v *big.Rat, open bool, direction int64) *big.Rat {
	if v == nil {
		return nil
	}
	if v.IsInt() {
		if open {
			return new(big.Rat).Add(v, big.NewRat(direction, 1))
		}
		return v
	}
	q := new(big.Int).Div(v.Num(), v.Denom()) // rounds down, as the denominator is positive
	if direction > 0 {
		q.Add(q, big.NewInt(1))
	}
	return new(big.Rat).SetInt(q)
}

func (b bounds) none() bool {
	if b.lo == nil || b.hi == nil {
		return false
	}
	c := b.lo.Cmp(b.hi)
	return c > 0 || c == 0 && (b.loOpen || b.hiOpen)
}

// noLimit stands for a maximum that is not there.
const noLimit = int(^uint(0) >> 1)

// span is the range of a length or a count.
func span(list []*js, lo, hi func(*js) *int) (least, most int) {
	most = noLimit
	for _, s := range list {
		if n := lo(s); n != nil {
			least = max(least, *n)
		}
		if n := hi(s); n != nil {
			most = min(most, *n)
		}
	}
	return least, most
}

func (w *writer) lengths() (least, most int) {
	return span(w.local, func(s *js) *int { return s.MinLength }, func(s *js) *int { return s.MaxLength })
}

// required lists the members that each document has.
func (w *writer) required() map[string]bool {
	out := map[string]bool{}
	for _, s := range w.local {
		for _, name := range s.Required {
			out[name] = true
		}
	}
	return out
}
