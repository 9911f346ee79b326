// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// The scanner reads JSON once, beside the trie of the paths that rules look at, and records the scalars at its leaves.
// It takes and refuses exactly what document.parse does, but builds nothing for what no rule looks at.
//
// Array consistency needs more than scalars, but few events have arrays of objects where rules look. So the scanner
// only marks nodes at which one scalar may come from another element than the next (taint), and candidates with
// several fields below such a node are decided by the direct evaluator.

// scalar is a value at a leaf.
type scalar struct {
	value
	next int32 // of the same leaf; nowhere at the end
}

// slot is what is known of a node of the trie in this event; stale unless the stamps are the event's.
type slot struct {
	stamp       uint32 // there are scalars
	first, last int32  // their chain
	visited     uint32 // an object or array was here
	tainted     uint32 // values below are spread over the elements of an array, or may be
	counted     uint32 // see needsDirect
}

// record adds a scalar at a leaf.
func (s *Scratch) record(node int32, v value) {
	at := int32(len(s.values))
	s.values = append(s.values, scalar{v, nowhere})
	sl := &s.slots[node]
	if sl.stamp != s.epoch {
		sl.stamp, sl.first = s.epoch, at
		s.touched = append(s.touched, node)
	} else {
		s.values[sl.last].next = at
	}
	sl.last = at
}

// visit notes that an object or array is at a node with children. A second one (names are repeated, or have dots) makes
// one object of several, which is too much for the scanner to follow.
func (s *Scratch) visit(node int32) {
	if sl := &s.slots[node]; sl.visited == s.epoch {
		sl.tainted, s.tainted = s.epoch, true
	} else {
		sl.visited = s.epoch
	}
}

// scan reads the whole of src as the value of a node. If it is not JSON, nothing of it stays and false is returned.
func (s *Scratch) scan(t *trie, src []byte, node int32) bool {
	values, touched := len(s.values), len(s.touched)
	if utf8.Valid(src) && s.scanValue(t, src, node) {
		return true
	}
	for _, n := range s.touched[touched:] {
		s.slots[n].stamp = 0
	}
	for _, n := range s.touched[:touched] {
		sl := &s.slots[n]
		if int(sl.last) < values {
			continue
		}
		for j := sl.first; j != nowhere && int(j) < values; j = s.values[j].next {
			sl.last = j
		}
		s.values[sl.last].next = nowhere
	}
	s.values, s.touched = s.values[:values], s.touched[:touched]
	return false
}

// frame is an open array or object: its node and, in the lowest bit, whether it is an object.
type frame int32

func (s *Scratch) scanValue(t *trie, src []byte, node int32) bool {
	open := s.open[:0]
	defer func() { s.open = open[:0] }()
	i := skipSpace(src, 0)
	for {
		// A value is due at i, at node.
		if i >= len(src) {
			return false
		}
		switch c := src[i]; {
		case c == '"':
			end, escaped := skipString(src, i)
			if end < 0 {
				return false
			}
			if node >= 0 && t.nodes[node].leaf {
				s.record(node, value{kindString, s.decoded(src[i+1:end-1], escaped)})
			}
			i = end
		case c == '{' || c == '[':
			if node < 0 || t.nodes[node].kids == nil && (c == '{' || !t.nodes[node].leaf) {
				if i = skipContainer(src, i, len(open)); i < 0 {
					return false
				}
				break
			}
			if len(open) == maxDepth {
				return false
			}
			if t.nodes[node].kids != nil {
				if len(open) > 0 && open[len(open)-1]&1 == 0 {
					s.slots[node].tainted, s.tainted = s.epoch, true
				} else {
					s.visit(node)
				}
			}
			i = skipSpace(src, i+1)
			if i >= len(src) {
				return false
			}
			if c == '[' {
				if src[i] == ']' {
					i++
					break
				}
				open = append(open, frame(node<<1))
				continue
			}
			if src[i] == '}' {
				i++
				break
			}
			open = append(open, frame(node<<1|1))
			if node, i = s.scanName(t, src, i, node); i < 0 {
				return false
			}
			continue
		case c == '-' || '0' <= c && c <= '9':
			end := skipNumber(src, i)
			if end < 0 {
				return false
			}
			if node >= 0 && t.nodes[node].leaf {
				s.record(node, value{kindNumber, src[i:end]})
			}
			i = end
		default:
			k, end, err := literal(src, i)
			if err != nil {
				return false
			}
			if node >= 0 && t.nodes[node].leaf {
				s.record(node, value{kind: k})
			}
			i = end
		}
		// A value has ended: close what ends here and find the next.
		for {
			if i < len(src) && src[i] <= ' ' {
				i = skipSpace(src, i)
			}
			if len(open) == 0 {
				return i == len(src)
			}
			if i >= len(src) {
				return false
			}
			c, top := src[i], open[len(open)-1]
			i++
			if c == ',' {
				node = int32(top >> 1)
				if i < len(src) && src[i] <= ' ' {
					i = skipSpace(src, i)
				}
				if top&1 == 0 {
					break
				}
				if node, i = s.scanName(t, src, i, node); i < 0 {
					return false
				}
				break
			}
			if c != '}' && top&1 == 1 || c != ']' && top&1 == 0 {
				return false
			}
			open = open[:len(open)-1]
		}
	}
}

// scanName reads the name of a member of the object at a node, and the colon. It returns the member's node and where
// its value begins, -1 if this is no name.
func (s *Scratch) scanName(t *trie, src []byte, i int, parent int32) (node int32, next int) {
	if i >= len(src) || src[i] != '"' {
		return 0, -1
	}
	end, escaped, dots := skipName(src, i)
	if end < 0 {
		return 0, -1
	}
	name := src[i+1 : end-1]
	if escaped {
		name = s.decoded(name, true)
		dots = bytes.IndexByte(name, '.') >= 0
	}
	if i = skipColon(src, end); i < 0 {
		return 0, -1
	}
	k := t.nodes[parent].kids
	switch {
	case k == nil:
		return nowhere, i
	case dots:
		return s.descend(t, name, parent), i
	}
	return k.find(name), i
}

// descend follows a name with dots, which are steps.
func (s *Scratch) descend(t *trie, name []byte, node int32) int32 {
	for {
		dot := bytes.IndexByte(name, '.')
		step := name
		if dot >= 0 {
			step = name[:dot]
		}
		if t.nodes[node].kids == nil {
			return nowhere
		}
		if node = t.nodes[node].kids.find(step); node == nowhere || dot < 0 {
			return node
		}
		s.visit(node)
		name = name[dot+1:]
	}
}

// decoded is the text between two quotes.
func (s *Scratch) decoded(text []byte, escaped bool) []byte {
	if !escaped {
		return text
	}
	// The text was found good, so it is enough to put the closing quote back.
	decoded, _, _ := s.doc.escaped(text[:len(text)+1], 0, bytes.IndexByte(text, '\\'))
	return decoded
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// zeros has the high bit set of each byte of w that is 0, and perhaps of bytes above one.
func zeros(w uint64) uint64 { return (w - ones) &^ w & highs }

// ends has the high bit set of bytes of w that end a run of plain characters in a string: a quote, a backslash, a control
// character; of bytes above the lowest of them, perhaps, too.
func ends(w uint64) uint64 {
	return zeros(w^ones*'"') | zeros(w^ones*'\\') | (w-ones*' ')&^w&highs
}

// skipString returns the index behind the string that begins at i, -1 if it is none, and whether it has escapes.
func skipString(src []byte, i int) (end int, escaped bool) {
	i++
	for {
		for i+8 <= len(src) {
			if m := ends(binary.LittleEndian.Uint64(src[i:])); m != 0 {
				i += bits.TrailingZeros64(m) >> 3
				goto found
			}
			i += 8
		}
		for i < len(src) && src[i] != '"' && src[i] != '\\' && src[i] >= ' ' {
			i++
		}
	found:
		switch {
		case i >= len(src) || src[i] < ' ':
			return -1, false
		case src[i] == '"':
			return i + 1, escaped
		}
		escaped = true
		if i = skipEscape(src, i); i < 0 {
			return -1, false
		}
	}
}

// skipName is skipString that also reports whether there is a dot. (With escapes there may be more of them.)
func skipName(src []byte, i int) (end int, escaped, dots bool) {
	i++
	from := i
	var dot uint64
	for i+8 <= len(src) {
		w := binary.LittleEndian.Uint64(src[i:])
		m := ends(w)
		d := zeros(w ^ ones*'.')
		if m == 0 {
			dot |= d
			i += 8
			continue
		}
		dot |= d & (m&-m - 1)
		i += bits.TrailingZeros64(m) >> 3
		if src[i] == '"' {
			return i + 1, false, dot != 0
		}
		break
	}
	end, escaped = skipString(src, i-1)
	if end < 0 {
		return -1, false, false
	}
	return end, escaped, bytes.IndexByte(src[from:end], '.') >= 0
}

// skipEscape returns the index behind the escape at i, -1 if it is none.
func skipEscape(src []byte, i int) int {
	if i+1 >= len(src) {
		return -1
	}
	switch src[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2
	case 'u':
		if _, ok := hex4(src[i:]); ok {
			return i + 6
		}
	}
	return -1
}

func skipColon(src []byte, i int) int {
	if i < len(src) && src[i] != ':' {
		i = skipSpace(src, i)
	}
	if i >= len(src) || src[i] != ':' {
		return -1
	}
	if i++; i < len(src) && src[i] <= ' ' {
		i = skipSpace(src, i)
	}
	return i
}

// skipNumber returns the index behind the number at i, -1 if it is none.
func skipNumber(src []byte, i int) int {
	if c := src[i]; '1' <= c && c <= '9' {
		i = skipDigits(src, i+1)
		if i >= len(src) || src[i] != '.' && src[i]|0x20 != 'e' {
			return i
		}
		if src[i] == '.' {
			from := i + 1
			if i = skipDigits(src, from); i == from {
				return -1
			}
			if i >= len(src) || src[i]|0x20 != 'e' {
				return i
			}
		}
		if i++; i < len(src) && (src[i] == '+' || src[i] == '-') {
			i++
		}
		from := i
		if i = skipDigits(src, i); i == from {
			return -1
		}
		return i
	}
	end, err := scanNumber(src, i)
	if err != nil {
		return -1
	}
	return end
}

// skipContainer returns the index behind the array or object that begins at i, inside depth others; -1 if it is none.
func skipContainer(src []byte, i, depth int) int {
	var objects [maxDepth/64 + 1]uint64 // which of the open ones are objects
	outer := depth
	for {
		// A value is due at i.
		if i >= len(src) {
			return -1
		}
		switch c := src[i]; {
		case c == '"':
			if i, _ = skipString(src, i); i < 0 {
				return -1
			}
		case c == '{' || c == '[':
			if depth == maxDepth {
				return -1
			}
			i = skipSpace(src, i+1)
			if i >= len(src) {
				return -1
			}
			if src[i] == c+2 {
				i++
				break
			}
			bit := uint64(1) << (depth & 63)
			objects[depth>>6] &^= bit
			if c == '{' {
				objects[depth>>6] |= bit
				if i = skipMember(src, i); i < 0 {
					return -1
				}
			}
			depth++
			continue
		case c == '-' || '0' <= c && c <= '9':
			if i = skipNumber(src, i); i < 0 {
				return -1
			}
		default:
			var err error
			if _, i, err = literal(src, i); err != nil {
				return -1
			}
		}
		for {
			if depth == outer {
				return i
			}
			if i < len(src) && src[i] <= ' ' {
				i = skipSpace(src, i)
			}
			if i >= len(src) {
				return -1
			}
			object := objects[(depth-1)>>6]>>((depth-1)&63)&1 == 1
			c := src[i]
			i++
			if c == ',' {
				if i < len(src) && src[i] <= ' ' {
					i = skipSpace(src, i)
				}
				if object {
					if i = skipMember(src, i); i < 0 {
						return -1
					}
				}
				break
			}
			if c != '}' && object || c != ']' && !object {
				return -1
			}
			depth--
		}
	}
}

// skipMember returns where the value of the member begins whose name is at i; -1 if there is none.
func skipMember(src []byte, i int) int {
	if i >= len(src) || src[i] != '"' {
		return -1
	}
	if i, _ = skipString(src, i); i < 0 {
		return -1
	}
	return skipColon(src, i)
}
