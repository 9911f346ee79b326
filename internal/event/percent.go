// SPDX-License-Identifier: Apache-2.0

package event

import "strings"

const upperHex = "0123456789ABCDEF"

// plain holds the bytes that stand for themselves in a header value: printable ASCII without blank, quote and percent
// sign (HTTP binding 1.0.2 section 3.1.3.2).
var plain = func() (t [256]bool) {
	for c := 0x21; c < 0x7f; c++ {
		t[c] = c != '"' && c != '%'
	}
	return t
}()

// appendPercent appends s as a header value.
func appendPercent(dst []byte, s string) []byte {
	i := 0
	for i < len(s) && plain[s[i]] {
		i++
	}
	dst = append(dst, s[:i]...)
	for ; i < len(s); i++ {
		if c := s[i]; plain[c] {
			dst = append(dst, c)
		} else {
			dst = append(dst, '%', upperHex[c>>4], upperHex[c&15])
		}
	}
	return dst
}

// percentLen is the length of what appendPercent appends.
func percentLen(s string) int {
	n := len(s)
	for i := 0; i < len(s); i++ {
		if !plain[s[i]] {
			n += 2
		}
	}
	return n
}

// percentEncode returns s as a header value; s itself where nothing has to be encoded.
func percentEncode(s string) string {
	for i := 0; i < len(s); i++ {
		if !plain[s[i]] {
			var buf [256]byte
			return string(appendPercent(buf[:0], s))
		}
	}
	return s
}

// percentDecode undoes one round of percent-encoding; s itself where nothing is encoded. It is false for a percent sign
// without two hexadecimal digits. It does not check what the bytes mean.
func percentDecode(s string) (string, bool) {
	i := strings.IndexByte(s, '%')
	if i < 0 {
		return s, true
	}
	var buf [256]byte
	b := append(buf[:0], s[:i]...)
	for ; i < len(s); i++ {
		c := s[i]
		if c == '%' {
			if i+2 >= len(s) {
				return "", false
			}
			hi, lo := unhex(s[i+1]), unhex(s[i+2])
			if hi < 0 || lo < 0 {
				return "", false
			}
			c = byte(hi<<4 | lo)
			i += 2
		}
		b = append(b, c)
	}
	return string(b), true
}

// unhex is the value of a hexadecimal digit, or -1.
func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
