// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"unicode/utf8"
)

// maxVarint is the largest variable byte integer (MQTT 5.0 section 1.5.5).
const maxVarint = 268_435_455

// cursor takes values off the front of a buffer. After a failure every further value is zero and bad stays set, so that
// a decoder asks once, at its end.
type cursor struct {
	b   []byte
	bad bool
}

func (c *cursor) fail() { c.b, c.bad = nil, true }

func (c *cursor) byte() byte {
	if len(c.b) < 1 {
		c.fail()
		return 0
	}
	x := c.b[0]
	c.b = c.b[1:]
	return x
}

func (c *cursor) uint16() uint16 {
	if len(c.b) < 2 {
		c.fail()
		return 0
	}
	x := binary.BigEndian.Uint16(c.b)
	c.b = c.b[2:]
	return x
}

func (c *cursor) uint32() uint32 {
	if len(c.b) < 4 {
		c.fail()
		return 0
	}
	x := binary.BigEndian.Uint32(c.b)
	c.b = c.b[4:]
	return x
}

func (c *cursor) varint() int {
	n, size := takeVarint(c.b)
	if size <= 0 {
		c.fail()
		return 0
	}
	c.b = c.b[size:]
	return n
}

// take returns the next n bytes; their capacity ends with them, so that an append cannot reach what follows.
func (c *cursor) take(n int) []byte {
	if n > len(c.b) {
		c.fail()
		return nil
	}
	x := c.b[:n:n]
	c.b = c.b[n:]
	return x
}

// binary takes a length and that many bytes.
func (c *cursor) binary() []byte { return c.take(int(c.uint16())) }

// text takes a UTF-8 string (MQTT-1.5.4-1, -2).
func (c *cursor) text() []byte {
	x := c.binary()
	if !validText(x) {
		c.fail()
		return nil
	}
	return x
}

// end is the verdict: everything was there and nothing is left.
func (c *cursor) end() error {
	if c.bad {
		return malformed("ends too early, or holds a text that is not UTF-8")
	}
	if len(c.b) > 0 {
		return malformed("bytes behind the end")
	}
	return nil
}

// validText reports whether b is UTF-8 without U+0000; encoded surrogates are not UTF-8.
func validText(b []byte) bool { return bytes.IndexByte(b, 0) < 0 && utf8.Valid(b) }

// takeVarint reads a variable byte integer at the front of b. size is its length, 0 when b ends too early, and -1 when it
// is longer than four bytes or than it has to be (MQTT-1.5.5-1).
func takeVarint(b []byte) (n, size int) {
	for i := 0; i < 4; i++ {
		if i == len(b) {
			return 0, 0
		}
		n |= int(b[i]&0x7f) << (7 * i)
		if b[i] < 0x80 {
			if b[i] == 0 && i > 0 {
				return 0, -1
			}
			return n, i + 1
		}
	}
	return 0, -1
}

func appendVarint(dst []byte, n int) []byte {
	if n > maxVarint {
		panic("packet: more than 268,435,455 bytes")
	}
	for n >= 0x80 {
		dst = append(dst, byte(n)|0x80)
		n >>= 7
	}
	return append(dst, byte(n))
}

func varintSize(n int) int {
	switch {
	case n < 1<<7:
		return 1
	case n < 1<<14:
		return 2
	case n < 1<<21:
		return 3
	default:
		return 4
	}
}

func appendText[T string | []byte](dst []byte, s T) []byte {
	if len(s) > 65535 {
		panic("packet: a text of more than 65,535 bytes")
	}
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(s)))
	return append(dst, s...)
}

// finish puts the fixed header in front of the body that begins at dst[start+maxHeader:]. It moves the body down, so the
// packet begins at dst[start].
func finish(dst []byte, start int, first byte) []byte {
	n := len(dst) - start - maxHeader
	head := append(dst[:start], first)
	head = appendVarint(head, n)
	copy(dst[len(head):], dst[start+maxHeader:])
	return dst[:len(head)+n]
}

// maxHeader is the longest fixed header.
const maxHeader = 5

// begin leaves room for the fixed header.
func begin(dst []byte) []byte { return append(dst, 0, 0, 0, 0, 0) }

func needFlags(first, flags byte) error {
	if first&15 != flags {
		return malformed("reserved bits of the first byte")
	}
	return nil
}

func needID(id uint16) error {
	if id == 0 {
		return violation("packet id 0")
	}
	return nil
}
