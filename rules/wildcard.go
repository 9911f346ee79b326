// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"errors"
)

// wildcard is a string in which each * stands for any run of characters, also none. Its literal parts are found from
// left to right, each as early as it can be, which is right because a later start never helps the parts behind it; so
// there is nothing to go back to and the cost is linear in the value.
type wildcard struct {
	source string
	parts  [][]byte // the literals between the stars; one more than there are stars
}

// errors of parseWildcard.
var (
	errTwoStars  = errors.New("two * in a row mean no more than one; write one *")
	errBackslash = errors.New(`a backslash may stand only before * or another backslash (\* and \\)`)
)

// parseWildcard compiles s. \* is a star and \\ is a backslash; ?, [ and . are themselves.
func parseWildcard(s string) (wildcard, error) {
	w := wildcard{source: s}
	part := []byte{}
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '*':
			if i+1 < len(s) && s[i+1] == '*' {
				return w, errTwoStars
			}
			w.parts = append(w.parts, part)
			part = []byte{}
		case '\\':
			i++
			if i == len(s) || s[i] != '*' && s[i] != '\\' {
				return w, errBackslash
			}
			part = append(part, s[i])
		default:
			part = append(part, s[i])
		}
	}
	w.parts = append(w.parts, part)
	return w, nil
}

// match reports whether the whole of s fits.
func (w wildcard) match(s []byte) bool {
	first, last := w.parts[0], w.parts[len(w.parts)-1]
	if len(w.parts) == 1 {
		return bytes.Equal(s, first)
	}
	if len(s) < len(first)+len(last) || !bytes.HasPrefix(s, first) || !bytes.HasSuffix(s, last) {
		return false
	}
	s = s[len(first) : len(s)-len(last)]
	for _, part := range w.parts[1 : len(w.parts)-1] {
		i := bytes.Index(s, part)
		if i < 0 {
			return false
		}
		s = s[i+len(part):]
	}
	return true
}
