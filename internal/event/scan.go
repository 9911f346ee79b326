// SPDX-License-Identifier: Apache-2.0

package event

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// Scanner reads JSON (RFC 8259) from a buffer, in place. It is strict: UTF-8, no control characters in strings, no
// leading zeros, one value. It does not recurse, so nesting costs a byte of memory a level and no stack. A fault is ""
// or says what is wrong at i. A copy of a Scanner goes on from where it was copied.
type Scanner struct {
	b []byte
	i int
}

// ScanJSON returns a Scanner at the start of b, which must not change meanwhile.
func ScanJSON(b []byte) Scanner { return Scanner{b: b} }

// At is how many bytes were read.
func (s *Scanner) At() int { return s.i }

// End reports whether nothing but blanks is left.
func (s *Scanner) End() bool {
	s.space()
	return s.i == len(s.b)
}

const (
	endOfInput = "unexpected end"
	notAValue  = "a value was expected"
)

func (s *Scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\r', '\n':
			s.i++
		default:
			return
		}
	}
}

// Next skips blanks and returns the byte there, or 0 at the end.
func (s *Scanner) Next() byte {
	s.space()
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

// Expect skips blanks and then c.
func (s *Scanner) Expect(c byte) string {
	if s.Next() == c {
		s.i++
		return ""
	}
	return s.unexpected("'" + string(c) + "' was expected")
}

func (s *Scanner) unexpected(fault string) string {
	if s.i >= len(s.b) {
		return endOfInput
	}
	return fault
}

// value skips one value with containers nested at most depth deep.
func (s *Scanner) value(depth int) string {
	var buf [64]byte
	open := buf[:0] // the closing bytes that are due
	for {
		var fault string
		switch c := s.Next(); {
		case c == '"':
			_, _, fault = s.Text()
		case c == '{' || c == '[':
			if len(open) == depth {
				return "nested too deeply"
			}
			s.i++
			if s.Next() == c+2 { // '}' and ']' are two after '{' and '['
				s.i++
				break
			}
			open = append(open, c+2)
			if c == '{' {
				fault = s.memberName()
			}
			if fault != "" {
				return fault
			}
			continue
		default:
			fault = s.scalar(c)
		}
		if fault != "" {
			return fault
		}
		// A value is complete: close what closes here, until another value is due.
		for {
			if len(open) == 0 {
				return ""
			}
			c, last := s.Next(), open[len(open)-1]
			if c == last {
				s.i++
				open = open[:len(open)-1]
				continue
			}
			if c != ',' {
				return s.unexpected("',' or the end of the array or object was expected")
			}
			s.i++
			if last == '}' {
				if fault = s.memberName(); fault != "" {
					return fault
				}
			}
			break
		}
	}
}

// memberName skips a name and its colon.
func (s *Scanner) memberName() string {
	if s.Next() != '"' {
		return s.unexpected("a member name was expected")
	}
	if _, _, fault := s.Text(); fault != "" {
		return fault
	}
	return s.Expect(':')
}

// scalar skips a number or a literal that begins with c.
func (s *Scanner) scalar(c byte) string {
	switch {
	case c == '-' || '0' <= c && c <= '9':
		_, _, fault := s.Number()
		return fault
	case c == 't':
		return s.Literal("true")
	case c == 'f':
		return s.Literal("false")
	case c == 'n':
		return s.Literal("null")
	}
	return s.unexpected(notAValue)
}

// Literal skips a word.
func (s *Scanner) Literal(word string) string {
	if len(s.b)-s.i < len(word) || string(s.b[s.i:s.i+len(word)]) != word {
		return s.unexpected(notAValue)
	}
	s.i += len(word)
	return ""
}

// Number skips the number that begins where the Scanner is, a digit or a minus, and returns how it is written and whether
// that is as an integer.
func (s *Scanner) Number() (raw []byte, integer bool, fault string) {
	const bad = "malformed number"
	from := s.i
	if s.b[s.i] == '-' {
		s.i++
	}
	start := s.i
	n := s.digits()
	if n == 0 || n > 1 && s.b[start] == '0' {
		return nil, false, bad
	}
	integer = true
	if s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		integer = false
		if s.digits() == 0 {
			return nil, false, bad
		}
	}
	if s.i < len(s.b) && s.b[s.i]|0x20 == 'e' {
		s.i++
		integer = false
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		if s.digits() == 0 {
			return nil, false, bad
		}
	}
	return s.b[from:s.i], integer, ""
}

// digits skips decimal digits and returns how many.
func (s *Scanner) digits() int {
	start := s.i
	for s.i < len(s.b) && '0' <= s.b[s.i] && s.b[s.i] <= '9' {
		s.i++
	}
	return s.i - start
}

// Text skips the string that begins where the Scanner is and returns what stands between its quotes, and whether that has escapes.
func (s *Scanner) Text() (raw []byte, escaped bool, fault string) {
	b := s.b
	start := s.i + 1
	for i := start; ; {
		i += ordinary(b[i:])
		if i >= len(b) {
			s.i = len(b)
			return nil, false, endOfInput
		}
		switch c := b[i]; {
		case c == '"':
			s.i = i + 1
			return b[start:i], escaped, ""
		case c == '\\':
			n := escapeLen(b[i:])
			if n == 0 {
				s.i = i
				return nil, false, "malformed escape"
			}
			escaped = true
			i += n
		case c < 0x20:
			s.i = i
			return nil, false, "control character in a string"
		default:
			r, n := utf8.DecodeRune(b[i:])
			if r == utf8.RuneError && n == 1 {
				s.i = i
				return nil, false, "not UTF-8"
			}
			i += n
		}
	}
}

// ordinary is how many bytes at the start of b are ASCII that stands for itself in a string. It looks at eight bytes at
// a time: a byte's high bit is set in m if the byte is a control character, a quote, a backslash or not ASCII.
func ordinary(b []byte) int {
	const low, high = 0x0101010101010101, 0x8080808080808080
	n := 0
	for ; len(b)-n >= 8; n += 8 {
		w := binary.LittleEndian.Uint64(b[n:])
		quote, slash := w^low*'"', w^low*'\\'
		m := (w | (w - low*0x20) | (quote - low) | (slash - low)) & high
		if m != 0 {
			// Borrows run towards later bytes only, so the first mark is always a true one.
			return n + bits.TrailingZeros64(m)/8
		}
	}
	for n < len(b) && b[n] >= 0x20 && b[n] < utf8.RuneSelf && b[n] != '"' && b[n] != '\\' {
		n++
	}
	return n
}

// escapeLen is the length of the escape at the start of b, or 0.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if hex4(b) >= 0 {
			return 6
		}
	}
	return 0
}

// hex4 is the value of the \uXXXX at the start of b, or -1.
func hex4(b []byte) rune {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	var r rune
	for _, c := range b[2:6] {
		n := unhex(c)
		if n < 0 {
			return -1
		}
		r = r<<4 | rune(n)
	}
	return r
}

// Unescape appends what the inside of a string means. It is false for a surrogate without its partner, which stands for
// no character. raw comes from Text.
func Unescape(dst, raw []byte) ([]byte, bool) {
	for i := 0; i < len(raw); {
		c := raw[i]
		if c != '\\' {
			dst = append(dst, c)
			i++
			continue
		}
		switch c = raw[i+1]; c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r := hex4(raw[i:])
			if 0xd800 <= r && r <= 0xdfff {
				low := hex4(raw[i+6:])
				if r > 0xdbff || low < 0xdc00 || low > 0xdfff {
					return dst, false
				}
				r = (r-0xd800)<<10 | (low - 0xdc00) + 0x10000
				i += 6
			}
			dst = utf8.AppendRune(dst, r)
			i += 4
		default:
			dst = append(dst, c)
		}
		i += 2
	}
	return dst, true
}

// isValidJSON reports whether b is one JSON value.
func isValidJSON(b []byte) bool {
	s := ScanJSON(b)
	if s.value(defaultDepth) != "" {
		return false
	}
	s.space()
	return s.i == len(b)
}
