// SPDX-License-Identifier: Apache-2.0

package rules

import "bytes"

// number is a JSON number, kept as the digits of its literal: comparing two of them is exact, whatever their size, and
// allocates nothing. It aliases the literal it was read from.
type number struct {
	literal   []byte
	digits    []byte // from the first to the last digit that is not zero; may hold the decimal point; empty for zero
	magnitude int64  // decimal exponent of the first digit
	negative  bool   // false for zero
}

// maxExponent saturates exponents. An operand of a pattern is refused long before (maxOperandExponent), so that an
// event's number never compares equal to one by saturation, and always falls on the right side of it.
const (
	maxExponent        = 1 << 40
	maxOperandExponent = 999_999_999
)

// parseNumber reads a literal that follows the JSON grammar.
func parseNumber(literal []byte) number {
	n := number{literal: literal}
	mantissa := literal
	if mantissa[0] == '-' {
		n.negative = true
		mantissa = mantissa[1:]
	}
	var exponent int64
	if e := bytes.IndexAny(mantissa, "eE"); e >= 0 {
		exponent = parseExponent(mantissa[e+1:])
		mantissa = mantissa[:e]
	}
	point := bytes.IndexByte(mantissa, '.')
	if point < 0 {
		point = len(mantissa)
	}
	first := 0
	for first < len(mantissa) && (mantissa[first] == '0' || mantissa[first] == '.') {
		first++
	}
	if first == len(mantissa) {
		n.negative = false // -0 is 0
		return n
	}
	if first < point {
		n.magnitude = exponent + int64(point-first-1)
	} else {
		n.magnitude = exponent - int64(first-point)
	}
	n.digits = bytes.TrimRight(mantissa[first:], "0.")
	return n
}

// parseExponent reads the digits after the e, with their sign.
func parseExponent(b []byte) int64 {
	negative := b[0] == '-'
	if b[0] == '-' || b[0] == '+' {
		b = b[1:]
	}
	var x int64
	for _, c := range b {
		if x = x*10 + int64(c-'0'); x > maxExponent {
			x = maxExponent
			break
		}
	}
	if negative {
		return -x
	}
	return x
}

// sign is -1, 0 or 1.
func (n number) sign() int {
	switch {
	case len(n.digits) == 0:
		return 0
	case n.negative:
		return -1
	}
	return 1
}

// compare returns -1, 0 or 1, as n is less than, equal to, or greater than m.
func (n number) compare(m number) int {
	s := n.sign()
	if t := m.sign(); s != t {
		return sgn(int64(s - t))
	}
	if s == 0 {
		return 0
	}
	if n.magnitude != m.magnitude {
		return s * sgn(n.magnitude-m.magnitude)
	}
	return s * compareDigits(n.digits, m.digits)
}

// compareDigits compares two runs of digits that begin at the same decimal place.
func compareDigits(a, b []byte) int {
	for {
		x, y := byte('0'), byte('0')
		x, a = nextDigit(a)
		y, b = nextDigit(b)
		switch {
		case x < y:
			return -1
		case x > y:
			return 1
		case len(a) == 0 && len(b) == 0:
			return 0
		}
	}
}

// nextDigit takes the first digit off; past the end there are zeros.
func nextDigit(b []byte) (byte, []byte) {
	if len(b) > 0 && b[0] == '.' {
		b = b[1:]
	}
	if len(b) == 0 {
		return '0', nil
	}
	return b[0], b[1:]
}

func sgn(x int64) int {
	switch {
	case x < 0:
		return -1
	case x > 0:
		return 1
	}
	return 0
}

// keyDigits is how many digits of a number its key holds, and keyMagnitude how far its exponents go.
const (
	keyDigits    = 15
	keyMagnitude = 4000
)

// key maps n to an integer, so that a number that is less never has a greater key. Numbers whose keys are exact are in
// the order of their keys. Others, which have more digits or exponents out of range, lie between their key and the next
// one away from zero, so they may have the key of another number.
func (n number) key() (k int64, exact bool) {
	if len(n.digits) == 0 {
		return 0, true
	}
	digits := 0
	exact = true
	for _, c := range n.digits {
		if c == '.' {
			continue
		}
		if digits == keyDigits {
			exact = false
			break
		}
		k = k*10 + int64(c-'0')
		digits++
	}
	for ; digits < keyDigits; digits++ {
		k *= 10
	}
	switch {
	case n.magnitude > keyMagnitude:
		k, exact = (2*keyMagnitude+2)<<50, false
	case n.magnitude < -keyMagnitude:
		k, exact = 0, false
	default:
		k |= (n.magnitude + keyMagnitude + 1) << 50 // 15 digits take less than 50 bits
	}
	if n.negative {
		return -k, exact
	}
	return k, exact
}

// away is the key next to k, away from zero on the side of n.
func (n number) away(k int64) int64 {
	if n.negative {
		return k - 1
	}
	return k + 1
}
