// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"encoding/json"
	"math/big"
	"slices"
	"strings"
)

const (
	maxEmptyDepth = 6  // members that a proof of emptiness goes into
	maxEnumerated = 64 // whole numbers that are tried one by one
)

// finite lists the writer's documents of a kind if they can be counted: of an enum, of null and boolean, of a short range of
// whole numbers. Each was confirmed by the validator, and none is left out.
func (c *checker) finite(w *writer, k kinds) ([]any, bool) {
	var values []any
	ok := false
	take := func(v []any) {
		if !ok || len(v) < len(values) {
			values, ok = v, true
		}
	}
	for _, s := range w.local {
		if s.Const != nil {
			take([]any{*s.Const})
		}
		if s.Enum != nil {
			take(s.Enum.Values)
		}
	}
	if !ok {
		values, ok = c.few(w, k)
	}
	if !ok {
		return nil, false
	}
	var out []any
	for _, v := range values {
		if kindOf(v) == k && w.valid(v) {
			out = append(out, v)
		}
	}
	return out, true
}

// few lists values without an enum.
func (c *checker) few(w *writer, k kinds) ([]any, bool) {
	switch k {
	case kindNull:
		return []any{nil}, true
	case kindBool:
		return []any{false, true}, true
	case kindNumber:
		_, whole := w.kinds()
		if b := boundsOf(whole, w.local...); whole && b.lo != nil && b.hi != nil {
			return wholeNumbers(b.lo, b.hi)
		}
	case kindString:
		if _, most := w.lengths(); most == 0 {
			return []any{""}, true
		}
	case kindArray:
		if _, most, _ := c.counts(w); most == 0 {
			return []any{[]any{}}, true
		}
	case kindObject:
		if _, most := c.memberSpan(w); most == 0 {
			return []any{map[string]any{}}, true
		}
	}
	return nil, false
}

func wholeNumbers(lo, hi *big.Rat) ([]any, bool) {
	n := new(big.Rat).Sub(hi, lo)
	if n.Cmp(big.NewRat(maxEnumerated, 1)) > 0 {
		return nil, false
	}
	var out []any
	for v := new(big.Rat).Set(lo); v.Cmp(hi) <= 0; v = new(big.Rat).Add(v, big.NewRat(1, 1)) {
		out = append(out, json.Number(v.Num().String()))
	}
	return out, true
}

// empty reports whether it is proved that no document of a kind is the writer's. What the lenient policy assumes is not used:
// the writer may be made of parts of the reader.
func (c *checker) empty(w *writer, k kinds, depth int) bool {
	if c.work++; depth > maxEmptyDepth || c.work > maxWork {
		return false
	}
	if t, _ := w.kinds(); t&k == 0 {
		return true
	}
	strict := c.literal()
	if values, ok := strict.finite(w, k); ok {
		c.work += len(values)
		return len(values) == 0
	}
	if strict.contradicts(w, k, depth) {
		c.work = strict.work
		return true
	}
	c.work = strict.work
	for i := range w.unions {
		turned := *w
		turned.unions = slices.Concat(w.unions[i:i+1], w.unions[:i], w.unions[i+1:])
		if !slices.ContainsFunc(turned.split(), func(b *writer) bool { return !c.empty(b, k, depth+1) }) {
			return true
		}
	}
	return false
}

func (c *checker) emptyAll(w *writer, depth int) bool {
	none := true
	allKinds.each(func(k kinds) { none = none && c.empty(w, k, depth) })
	return none
}

// literal is c without the lenient policy.
func (c *checker) literal() *checker {
	out := *c
	out.policy = Strict
	return &out
}

// contradicts reports whether the keywords beside each other exclude every value of a kind.
func (c *checker) contradicts(w *writer, k kinds, depth int) bool {
	switch k {
	case kindNumber:
		_, whole := w.kinds()
		return boundsOf(whole, w.local...).none()
	case kindString:
		least, most := w.lengths()
		return least > most
	case kindArray:
		least, most, _ := c.counts(w)
		if least > most {
			return true
		}
		for i := range min(least, maxEmptyDepth) {
			if parts, _ := items(w, i); c.emptyAll(conj(parts...), depth+1) {
				return true
			}
		}
	case kindObject:
		least, most := c.memberSpan(w)
		if least > most {
			return true
		}
		for name := range w.required() {
			if parts, absent := c.member(w, name); absent || c.emptyAll(conj(parts...), depth+1) {
				return true
			}
		}
	}
	return false
}

// freshName is a name that neither side declares.
func (c *checker) freshName(w *writer, r *js) string {
	name := "x"
	known := bothNames(w, r)
	for slices.ContainsFunc(known, func(n string) bool { return n == name }) {
		name += "x"
	}
	return name
}

// plainText reports whether a pattern is plain text between anchors, which is then a match of it.
func plainText(pattern string) (string, bool) {
	bare := strings.TrimSuffix(strings.TrimPrefix(pattern, "^"), "$")
	return bare, !strings.ContainsAny(bare, `\.+*?()[]{}|^$`)
}
