// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"math/big"
)

// numbers is rules N1 and N2.
func (c *checker) numbers(w *writer, r *js) []found {
	var out []found
	_, whole := w.kinds()
	have, want := boundsOf(whole, w.local...), boundsOf(whole, r)
	if want.lo != nil && (have.lo == nil || have.lo.Cmp(want.lo) < 0 || have.lo.Cmp(want.lo) == 0 && want.loOpen && !have.loOpen) {
		out = append(out, c.fail(w, r, "N1", "the writer may send less than the reader's minimum")...)
	}
	if want.hi != nil && (have.hi == nil || have.hi.Cmp(want.hi) > 0 || have.hi.Cmp(want.hi) == 0 && want.hiOpen && !have.hiOpen) {
		out = append(out, c.fail(w, r, "N1", "the writer may send more than the reader's maximum")...)
	}
	if r.MultipleOf != nil && !multiples(w, whole, r.MultipleOf) {
		out = append(out, c.fail(w, r, "N2", "the writer may send what is no multiple of the reader's multipleOf")...)
	}
	return out
}

// multiples reports whether all numbers of w are multiples of m.
func multiples(w *writer, whole bool, m *big.Rat) bool {
	if whole && new(big.Rat).Inv(m).IsInt() {
		return true
	}
	for _, s := range w.local {
		if s.MultipleOf != nil && new(big.Rat).Quo(s.MultipleOf, m).IsInt() {
			return true
		}
	}
	return false
}

// strings is rules S1, S2 and S3.
func (c *checker) strings(w *writer, r *js) []found {
	var out []found
	least, most := w.lengths()
	if r.MinLength != nil && least < *r.MinLength {
		out = append(out, c.fail(w, r, "S1", "the writer may send fewer characters than the reader's minLength")...)
	}
	if r.MaxLength != nil && most > *r.MaxLength {
		out = append(out, c.fail(w, r, "S1", "the writer may send more characters than the reader's maxLength")...)
	}
	return append(append(out, c.pattern(w, r)...), c.format(w, r)...)
}

func (c *checker) pattern(w *writer, r *js) []found {
	if r.Pattern == nil {
		return nil
	}
	bound := false
	for _, s := range w.local {
		if s.Pattern != nil && s.Pattern.String() == r.Pattern.String() {
			return nil
		}
		bound = bound || s.Pattern != nil || s.Format != nil
	}
	if bound {
		return c.doubt(w, r, "S2", "the reader's pattern is not the writer's")
	}
	return c.fail(w, r, "S2", "the reader has a pattern, and the writer is not bound to it")
}

func (c *checker) format(w *writer, r *js) []found {
	if r.Format == nil {
		return nil
	}
	bound := false
	for _, s := range w.local {
		if s.Format != nil && s.Format.Name == r.Format.Name {
			return nil
		}
		bound = bound || s.Pattern != nil || s.Format != nil
	}
	if bound {
		return c.doubt(w, r, "S3", "the reader's format %s is not the writer's", r.Format.Name)
	}
	return c.fail(w, r, "S3", "the reader has the format %s, and the writer is not bound to it", r.Format.Name)
}
