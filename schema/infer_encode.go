// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// A summary is written as: version, depth, node. A node is: its counts by type, then, where there were strings, their
// lengths, counts by format and words (their number + 1; 0 when they are no enumeration any more), where there were
// arrays, their lengths and perhaps the node of their items, and where there were objects, what is below them. Numbers
// are varints, texts have their length in front, names and words are sorted: equal summaries give equal bytes.
const summaryVersion = 1

// What is below an object.
const (
	belowValues = 1 << iota
	belowMap
	belowAll = belowValues | belowMap
)

// Encode appends the summary to b.
func (s *Summary) Encode(b []byte) []byte {
	b = append(b, summaryVersion, byte(s.depth))
	return s.root.encode(b)
}

func (n *inferNode) encode(b []byte) []byte {
	for _, c := range n.kinds {
		b = binary.AppendUvarint(b, c)
	}
	if n.kinds[inferString] > 0 {
		b = n.encodeStrings(b)
	}
	if n.kinds[inferArray] > 0 {
		b = appendExtent(b, n.arrays)
		if n.items == nil {
			b = append(b, 0)
		} else {
			b = n.items.encode(append(b, 1))
		}
	}
	if n.kinds[inferObject] > 0 {
		b = n.encodeFields(b)
	}
	return b
}

func appendExtent(b []byte, s extent) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(s.min)), uint64(s.max-s.min))
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func (n *inferNode) encodeStrings(b []byte) []byte {
	b = appendExtent(b, n.strings)
	for _, c := range n.formats {
		b = binary.AppendUvarint(b, c)
	}
	if n.prose {
		return append(b, 0)
	}
	b = binary.AppendUvarint(b, uint64(len(n.words))+1)
	for _, w := range slices.Sorted(maps.Keys(n.words)) {
		b = appendText(b, w)
	}
	return b
}

func (n *inferNode) encodeFields(b []byte) []byte {
	flags := byte(0)
	if n.values != nil {
		flags |= belowValues
	}
	if n.isMap {
		flags |= belowMap
	}
	b = append(b, flags)
	if n.values != nil {
		b = n.values.encode(b)
	}
	if n.isMap {
		return b
	}
	b = binary.AppendUvarint(b, uint64(len(n.fields)))
	for _, name := range slices.Sorted(maps.Keys(n.fields)) {
		b = n.fields[name].encode(appendText(b, name))
	}
	return b
}

// DecodeSummary reads what Encode has written. The error is a *fault.Error of kind Invalid: what comes from another node
// is held to the same limits as what was counted here.
func DecodeSummary(b []byte) (*Summary, error) {
	d := &summaryReader{b: b}
	version, depth := d.byte(), d.byte()
	if version != summaryVersion || depth > MaxInferDepth {
		d.bad = true
	}
	s := &Summary{depth: int(depth), root: d.node(int(depth))}
	if d.bad || len(d.b) > 0 || s.root.weight(s.depth) > MaxInferPaths {
		return nil, fault.New(fault.Invalid, "not a summary of payloads, or of another version")
	}
	return s, nil
}

// summaryReader reads a summary. After the first thing that cannot be, bad is set and all it returns is zero.
type summaryReader struct {
	b     []byte
	bad   bool
	nodes int
}

func (d *summaryReader) fail() { d.bad, d.b = true, nil }

func (d *summaryReader) byte() byte {
	if len(d.b) == 0 {
		d.fail()
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

// number reads a varint of at most limit, in its shortest form.
func (d *summaryReader) number(limit uint64) uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || v > limit || n > 1 && d.b[n-1] == 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *summaryReader) text(limit uint64) string {
	n := d.number(limit)
	if uint64(len(d.b)) < n {
		d.fail()
		return ""
	}
	s := string(d.b[:n])
	d.b = d.b[n:]
	return s
}

func (d *summaryReader) extent() extent {
	const most = 1 << 31
	low := d.number(most)
	return extent{min: int(low), max: int(low + d.number(most))}
}

func (d *summaryReader) node(depth int) *inferNode {
	n := &inferNode{}
	if d.nodes++; d.nodes > MaxInferPaths {
		d.fail()
	}
	if d.bad {
		return n
	}
	for i := range n.kinds {
		n.kinds[i] = d.number(maxInferCount)
	}
	if n.kinds[inferString] > 0 {
		d.strings(n)
	}
	if n.kinds[inferArray] > 0 {
		n.arrays = d.extent()
		switch d.byte() {
		case 0:
		case 1:
			n.items = d.child(depth)
		default:
			d.fail()
		}
	}
	if n.kinds[inferObject] > 0 {
		d.fields(n, depth)
	}
	return n
}

// child reads a node one level down, which has been seen at least once.
func (d *summaryReader) child(depth int) *inferNode {
	if depth == 0 {
		d.fail()
		return nil
	}
	n := d.node(depth - 1)
	if n.total() == 0 {
		d.fail()
	}
	return n
}

func (d *summaryReader) strings(n *inferNode) {
	n.strings = d.extent()
	sum := uint64(0)
	for i := range n.formats {
		n.formats[i] = d.number(maxInferCount)
		sum = countAdd(sum, n.formats[i])
	}
	count := d.number(maxInferDistinct + 1)
	n.prose = count == 0
	if sum > n.kinds[inferString] || sum > 0 && !n.prose || count == 1 {
		d.fail()
	}
	last := ""
	for i := uint64(1); i < count && !d.bad; i++ {
		w := d.text(maxInferWord)
		if w <= last || !isWord(w) || formatOf(w) >= 0 {
			d.fail()
			return
		}
		n.addWord(w, true)
		last = w
	}
}

func (d *summaryReader) fields(n *inferNode, depth int) {
	flags := d.byte()
	if flags > belowAll || flags == belowMap {
		d.fail()
	}
	n.isMap = flags&belowMap != 0
	if flags&belowValues != 0 {
		n.values = d.child(depth)
	}
	if n.isMap || d.bad {
		return
	}
	count := d.number(maxInferKeys)
	last := ""
	for i := range count {
		name := d.text(maxInferKey)
		if i > 0 && name <= last || looksLikeData(name) || d.bad {
			d.fail()
			return
		}
		child := d.child(depth)
		if d.bad || child.total() > n.kinds[inferObject] {
			d.fail()
			return
		}
		if n.fields == nil {
			n.fields = map[string]*inferNode{}
		}
		n.fields[name] = child
		last = name
	}
}
