// SPDX-License-Identifier: Apache-2.0

package rules

import "unicode/utf8"

// appendString appends s as a JSON string. Only what must be escaped is, and what is not UTF-8 becomes U+FFFD.
func appendString[T ~string | ~[]byte](dst []byte, s T) []byte {
	return append(appendEscaped(append(dst, '"'), s), '"')
}

// appendEscaped appends s as it stands between the quotes of a JSON string.
func appendEscaped[T ~string | ~[]byte](dst []byte, s T) []byte {
	const hex = "0123456789abcdef"
	from := len(dst)
	dst = append(dst, s...)
	clean := true
	for _, c := range dst[from:] {
		if c < ' ' || c == '"' || c == '\\' || c >= 0x80 {
			clean = false
			break
		}
	}
	if clean {
		return dst
	}
	dst = dst[:from]
	for _, r := range string(s) { // ranging turns what is not UTF-8 into U+FFFD
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r == '\n':
			dst = append(dst, '\\', 'n')
		case r == '\r':
			dst = append(dst, '\\', 'r')
		case r == '\t':
			dst = append(dst, '\\', 't')
		case r < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return dst
}
