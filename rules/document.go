// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"fmt"
	"math"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth is how deep arrays and objects may be nested, in patterns, events and templates.
const maxDepth = 1000

// kind is what a JSON value is.
type kind uint8

const (
	kindNull kind = iota
	kindFalse
	kindTrue
	kindNumber
	kindString
	kindArray
	kindObject
)

var kindNames = [...]string{"null", "false", "true", "a number", "a string", "an array", "an object"}

// String names the kind for messages.
func (k kind) String() string { return kindNames[k] }

// scalar reports whether values of the kind hold no others.
func (k kind) scalar() bool { return k < kindArray }

// value is a scalar as a test of a pattern sees it.
type value struct {
	kind kind
	text []byte // a string decoded, a number as it was written; else nil
}

// node is one value of a document. What an array or an object holds follows it directly, so that the values inside
// node i are i+1 <= j < next, and next is also its sibling.
type node struct {
	value
	next       int32
	start, end int32  // where the value stands in the source
	key        []byte // name inside an object, decoded
}

// document is JSON text taken apart: a flat list of nodes in the order of the text. Numbers keep their text and
// repeated names are all there. Names and strings alias the source where it has no escapes, so the source must not
// change while the document is used. The zero value is ready; reset makes one reusable without giving up its memory.
type document struct {
	nodes  []node
	arena  []byte  // strings that had escapes
	open   []int32 // containers not closed yet, while parsing
	unpair bool    // an escape was half of a surrogate pair; it reads as U+FFFD
	outer  int     // levels around what maxDepth is meant for: 1 when data is read with its event

	nodesThrift, arenaThrift thrift
}

// keepNodes and keepArena bound the memory that an unused document holds on to for long, keepEvents how long: as many
// documents that need much less.
const (
	keepNodes  = 1 << 15
	keepArena  = 1 << 18
	keepEvents = 64
)

// thrift decides when memory that was needed once is given up.
type thrift struct{ idle int }

// spare reports whether to give up memory for size elements, of which used were used last and keep may stay anyway.
func (t *thrift) spare(size, used, keep int) bool {
	if size <= keep || used > size/4 {
		t.idle = 0
		return false
	}
	t.idle++
	return t.idle > keepEvents
}

func (d *document) reset() {
	if d.nodesThrift.spare(cap(d.nodes), len(d.nodes), keepNodes) {
		d.nodes = nil
	}
	if d.arenaThrift.spare(cap(d.arena), len(d.arena), keepArena) {
		d.arena = nil
	}
	d.nodes, d.arena, d.open, d.unpair = d.nodes[:0], d.arena[:0], d.open[:0], false
}

// syntaxError is why a text is not JSON.
type syntaxError struct {
	offset int
	reason string
}

// Error says what was found and where, in bytes from the start.
func (e *syntaxError) Error() string {
	return fmt.Sprintf("not valid JSON at byte %d: %s", e.offset, e.reason)
}

// parse appends the one value that src holds to the nodes and returns its index. Nothing is appended when it fails.
// It follows RFC 8259 strictly, wants UTF-8, reads the whole of src, and does not recurse.
func (d *document) parse(src []byte) (int32, error) {
	if len(src) > math.MaxInt32 {
		return 0, &syntaxError{0, "longer than 2 GiB"}
	}
	if !utf8.Valid(src) {
		return 0, &syntaxError{invalidUTF8(src), "not UTF-8"}
	}
	first := len(d.nodes)
	d.open = d.open[:0]
	if err := d.parseValue(src); err != nil {
		d.nodes = d.nodes[:first]
		return 0, err
	}
	return int32(first), nil
}

func invalidUTF8(src []byte) int {
	i := 0
	for i < len(src) {
		r, n := utf8.DecodeRune(src[i:])
		if r == utf8.RuneError && n <= 1 {
			break
		}
		i += n
	}
	return i
}

// parseValue is the loop of parse: at its top a value is due at i, whose name, if it stands in an object, is key.
func (d *document) parseValue(src []byte) error {
	var key []byte
	i := 0
	for {
		i = skipSpace(src, i)
		if i == len(src) {
			return &syntaxError{i, "the text ends where a value is due"}
		}
		n := node{start: int32(i), key: key}
		var err error
		switch c := src[i]; {
		case c == '{' || c == '[':
			if len(d.open) == maxDepth+d.outer {
				return &syntaxError{i, fmt.Sprintf("nested deeper than %d", maxDepth+d.outer)}
			}
			n.kind = kindArray
			if c == '{' {
				n.kind = kindObject
			}
			d.open = append(d.open, int32(len(d.nodes)))
			d.nodes = append(d.nodes, n)
			i = skipSpace(src, i+1)
			if i < len(src) && src[i] == closer(n.kind) {
				break
			}
			if key = nil; n.kind == kindObject {
				if key, i, err = d.name(src, i); err != nil {
					return err
				}
			}
			continue
		case c == '"':
			n.kind = kindString
			n.text, i, err = d.str(src, i)
			d.scalar(n, i)
		case c == '-' || '0' <= c && c <= '9':
			n.kind = kindNumber
			var j int
			j, err = scanNumber(src, i)
			n.text, i = src[i:j], j
			d.scalar(n, i)
		default:
			n.kind, i, err = literal(src, i)
			d.scalar(n, i)
		}
		if err != nil {
			return err
		}
		var more bool
		if more, key, i, err = d.after(src, i); err != nil || !more {
			return err
		}
	}
}

// scalar appends a node that holds no others.
func (d *document) scalar(n node, end int) {
	n.end = int32(end)
	n.next = int32(len(d.nodes)) + 1
	d.nodes = append(d.nodes, n)
}

// after reads on from the end of a value: it closes what ends here and returns whether another value is due, with its
// name.
func (d *document) after(src []byte, i int) (more bool, key []byte, next int, err error) {
	for {
		i = skipSpace(src, i)
		if len(d.open) == 0 {
			if i < len(src) {
				return false, nil, i, &syntaxError{i, "text behind the value"}
			}
			return false, nil, i, nil
		}
		top := &d.nodes[d.open[len(d.open)-1]]
		switch {
		case i == len(src):
			return false, nil, i, &syntaxError{i, "the text ends inside " + top.kind.String()}
		case src[i] == closer(top.kind):
			top.next, top.end = int32(len(d.nodes)), int32(i+1)
			d.open = d.open[:len(d.open)-1]
			i++
		case src[i] == ',' && top.kind == kindObject:
			key, i, err = d.name(src, skipSpace(src, i+1))
			return true, key, i, err
		case src[i] == ',':
			return true, nil, i + 1, nil
		default:
			return false, nil, i, &syntaxError{i, fmt.Sprintf("expected , or %c", closer(top.kind))}
		}
	}
}

func closer(k kind) byte {
	if k == kindObject {
		return '}'
	}
	return ']'
}

// name reads a member's name and the colon behind it.
func (d *document) name(src []byte, i int) ([]byte, int, error) {
	if i == len(src) || src[i] != '"' {
		return nil, i, &syntaxError{i, "expected a name in quotes"}
	}
	key, i, err := d.str(src, i)
	if err != nil {
		return nil, i, err
	}
	if i = skipSpace(src, i); i == len(src) || src[i] != ':' {
		return nil, i, &syntaxError{i, "expected : behind the name"}
	}
	return key, i + 1, nil
}

// str reads the string that begins at i and returns it decoded, with the index behind it.
func (d *document) str(src []byte, i int) ([]byte, int, error) {
	start := i + 1
	for j := start; j < len(src); j++ {
		switch c := src[j]; {
		case c == '"':
			return src[start:j:j], j + 1, nil
		case c == '\\':
			return d.escaped(src, start, j)
		case c < ' ':
			return nil, j, &syntaxError{j, "a control character in a string must be escaped"}
		}
	}
	return nil, len(src), &syntaxError{len(src), "the text ends inside a string"}
}

// escaped reads on at the first escape of a string, decoding into the arena.
func (d *document) escaped(src []byte, start, i int) ([]byte, int, error) {
	from := len(d.arena)
	d.arena = append(d.arena, src[start:i]...)
	for i < len(src) {
		switch c := src[i]; {
		case c == '"':
			return d.tail(from), i + 1, nil
		case c < ' ':
			return nil, i, &syntaxError{i, "a control character in a string must be escaped"}
		case c != '\\':
			d.arena = append(d.arena, c)
			i++
		case i+1 < len(src) && src[i+1] == 'u':
			r, n := unicodeEscape(src[i:])
			if n == 0 {
				return nil, i, &syntaxError{i, `\u wants four hexadecimal digits`}
			}
			d.unpair = d.unpair || utf16.IsSurrogate(r)
			d.arena = utf8.AppendRune(d.arena, r) // half a pair becomes U+FFFD
			i += n
		default:
			at := -1
			if i+1 < len(src) {
				at = bytes.IndexByte([]byte(`"\/bfnrt`), src[i+1])
			}
			if at < 0 {
				return nil, i, &syntaxError{i, "unknown escape"}
			}
			d.arena = append(d.arena, "\"\\/\b\f\n\r\t"[at])
			i += 2
		}
	}
	return nil, i, &syntaxError{i, "the text ends inside a string"}
}

// unicodeEscape reads \uXXXX at the start of b, or two that make a surrogate pair, and how long it is; 0 if it is none.
func unicodeEscape(b []byte) (rune, int) {
	r, ok := hex4(b)
	if !ok {
		return 0, 0
	}
	if utf16.IsSurrogate(r) && len(b) >= 12 && b[6] == '\\' && b[7] == 'u' {
		if low, ok := hex4(b[6:]); ok {
			if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
				return pair, 12
			}
		}
	}
	return r, 6
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 6 {
		return 0, false
	}
	var r rune
	for _, c := range b[2:6] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// scanNumber returns the index behind the number at i.
func scanNumber(src []byte, i int) (int, error) {
	if src[i] == '-' {
		i++
	}
	switch {
	case i < len(src) && src[i] == '0':
		i++
	case i < len(src) && '1' <= src[i] && src[i] <= '9':
		i = skipDigits(src, i)
	default:
		return i, &syntaxError{i, "expected a digit"}
	}
	if i < len(src) && src[i] == '.' {
		j := skipDigits(src, i+1)
		if j == i+1 {
			return i, &syntaxError{j, "expected a digit behind the decimal point"}
		}
		i = j
	}
	if i < len(src) && (src[i] == 'e' || src[i] == 'E') {
		i++
		if i < len(src) && (src[i] == '+' || src[i] == '-') {
			i++
		}
		j := skipDigits(src, i)
		if j == i {
			return i, &syntaxError{j, "expected a digit in the exponent"}
		}
		i = j
	}
	return i, nil
}

func skipDigits(src []byte, i int) int {
	for i < len(src) && '0' <= src[i] && src[i] <= '9' {
		i++
	}
	return i
}

func literal(src []byte, i int) (kind, int, error) {
	for _, l := range [...]struct {
		text string
		kind kind
	}{{"true", kindTrue}, {"false", kindFalse}, {"null", kindNull}} {
		if bytes.HasPrefix(src[i:], []byte(l.text)) {
			return l.kind, i + len(l.text), nil
		}
	}
	return 0, i, &syntaxError{i, "expected a value"}
}

func skipSpace(src []byte, i int) int {
	for i < len(src) && (src[i] == ' ' || src[i] == '\n' || src[i] == '\t' || src[i] == '\r') {
		i++
	}
	return i
}

// keep copies s into the arena, so that the text of an attribute looks like that of a document.
func (d *document) keep(s string) []byte {
	from := len(d.arena)
	d.arena = append(d.arena, s...)
	return d.tail(from)
}

// tail is what stands in the arena from an offset on. It stays as it is when the arena grows.
func (d *document) tail(from int) []byte { return d.arena[from:len(d.arena):len(d.arena)] }

// isSpace reports whether b holds nothing but JSON white space.
func isSpace(b []byte) bool { return len(bytes.Trim(b, " \t\r\n")) == 0 }
