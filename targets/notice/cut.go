// SPDX-License-Identifier: Apache-2.0

package notice

import (
	"strings"
	"unicode/utf8"
)

// ellipsis stands for what was cut off.
const ellipsis = "…"

// Cut returns a text of at most limit bytes. What is longer ends with an ellipsis, if that has room.
func Cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	end := ellipsis
	if limit < len(end) {
		end = ""
	}
	return s[:boundary(s, max(limit-len(end), 0))] + end
}

// maxEntity is the longest entity, such as &#8217;, that is not cut.
const maxEntity = 8

// boundary is where s can be cut at n, or before it: between characters, and not inside an entity such as &amp;.
func boundary(s string, n int) int {
	for n > 0 && n < len(s) && !utf8.RuneStart(s[n]) {
		n--
	}
	for i := n - 1; i >= 0 && i >= n-maxEntity && s[i] != ';' && s[i] != ' '; i-- {
		if s[i] == '&' {
			if end := strings.IndexByte(s[i:], ';'); end > 0 && end <= maxEntity && i+end >= n {
				return i
			}
			break
		}
	}
	return n
}

// CutRunes is Cut for a limit of characters.
func CutRunes(s string, limit int) string {
	if len(s) <= limit || utf8.RuneCountInString(s) <= limit {
		return s
	}
	if limit < 1 {
		return ""
	}
	n := 0
	for i := range s {
		if n++; n == limit {
			return s[:boundary(s, i)] + ellipsis
		}
	}
	return s
}

// Parts splits a text into at most n parts of at most limit bytes, where lines end if they are not too long. What does not fit
// is cut off the last part.
func Parts(s string, limit, n int) (parts []string) {
	for s != "" {
		if len(parts) == n-1 || len(s) <= limit {
			return append(parts, Cut(s, limit))
		}
		at := strings.LastIndexByte(s[:limit], '\n')
		rest := at + 1
		if at <= 0 {
			if at = boundary(s, limit); at == 0 {
				return append(parts, Cut(s, limit))
			}
			rest = at
		}
		parts, s = append(parts, s[:at]), s[rest:]
	}
	return parts
}

// Apart puts a character of no width into each of the marks that a text holds, behind the first character, so that what shows
// the text takes it for nothing but text. It is for platforms that know no way to escape their markup.
func Apart(s string, marks ...string) string {
	for _, m := range marks {
		_, first := utf8.DecodeRuneInString(m)
		s = strings.ReplaceAll(s, m, m[:first]+"\u200b"+m[first:])
	}
	return s
}
