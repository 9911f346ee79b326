// SPDX-License-Identifier: Apache-2.0

package notice

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/internal/event"
)

// maxIndent is how deep JSON is laid out over lines. What is deeper stays in the line of what holds it.
const maxIndent = 32

// Data is the data of an event for people, at most limit bytes of it: JSON over several lines, other text as it is, and of all
// else how much it is. It has no control characters but line breaks and tabs. What it costs grows with the data and with the
// limit, and not with how deep the data is nested.
func Data(e *event.Event, limit int) string {
	text := utf8.Valid(e.Data)
	switch {
	case len(e.Data) == 0:
		return ""
	case text && (e.DataContentType == "" || event.IsJSON(e.DataContentType)) && json.Valid(e.Data):
		laidOut, whole := indented(e.Data, limit)
		s := Block(string(laidOut))
		if !whole {
			s += ellipsis
		}
		return Cut(s, limit)
	case text && !bytes.ContainsFunc(e.Data, isBinary):
		return Cut(Block(string(e.Data)), limit)
	}
	kind := e.DataContentType
	if kind == "" {
		kind = "an unknown type"
	}
	return Cut(fmt.Sprintf("%d bytes of %s", len(e.Data), Line(kind)), limit)
}

// indented lays JSON, which is valid, out over lines as json.Indent does by two blanks, though not below maxIndent, and ends when
// it has more than limit bytes, or with the whole.
func indented(src []byte, limit int) (out []byte, whole bool) {
	out = make([]byte, 0, min(2*len(src), limit)+2*maxIndent)
	depth, fresh := 0, false // fresh: a bracket was opened and nothing stands behind it yet
	line := func() {
		if depth <= maxIndent {
			out = append(append(out, '\n'), strings.Repeat("  ", depth)...)
		}
	}
	for i := 0; i < len(src); i++ {
		if len(out) > limit {
			return out, false
		}
		c := src[i]
		if c == ' ' || c == '\t' || c == '\r' || c == '\n' {
			continue
		}
		closes := c == '}' || c == ']'
		if fresh && !closes {
			line()
		}
		switch c {
		case '{', '[':
			depth++
			out = append(out, c)
		case '}', ']':
			// The line of a bracket that closes is there only if what it closes is laid out.
			laidOut := depth <= maxIndent
			depth--
			if !fresh && laidOut {
				line()
			}
			out = append(out, c)
		case ',':
			out = append(out, c)
			line()
		case ':':
			out = append(out, c, ' ')
		case '"':
			end := i + 1
			for ; src[end] != '"'; end++ {
				if src[end] == '\\' {
					end++
				}
			}
			out = append(out, src[i:end+1]...)
			i = end
		default:
			out = append(out, c)
		}
		fresh = c == '{' || c == '['
	}
	return out, true
}
