// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"unicode"
	"unicode/utf8"
)

// foldRune returns the one rune that stands for all that differ from r in case alone: the smallest of its orbit under
// Unicode simple case folding. Simple folding maps a rune to a rune, so ß is not SS, and İ is not i.
func foldRune(r rune) rune {
	if r < utf8.RuneSelf {
		if 'a' <= r && r <= 'z' {
			return r - ('a' - 'A')
		}
		return r
	}
	least := r
	for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
		least = min(least, next)
	}
	return least
}

// foldPrefix reports whether s begins with operand, ignoring case, and what is left of s behind it.
func foldPrefix(s []byte, operand string) (rest []byte, ok bool) {
	for _, want := range operand {
		r, n := utf8.DecodeRune(s)
		if n == 0 || foldRune(r) != foldRune(want) {
			return nil, false
		}
		s = s[n:]
	}
	return s, true
}

// foldEqual reports whether s is operand, ignoring case.
func foldEqual(s []byte, operand string) bool {
	rest, ok := foldPrefix(s, operand)
	return ok && len(rest) == 0
}

// foldSuffix reports whether s ends with operand, ignoring case.
func foldSuffix(s []byte, operand string) bool {
	for len(operand) > 0 {
		want, m := utf8.DecodeLastRuneInString(operand)
		r, n := utf8.DecodeLastRune(s)
		if n == 0 || foldRune(r) != foldRune(want) {
			return false
		}
		operand, s = operand[:len(operand)-m], s[:len(s)-n]
	}
	return true
}
