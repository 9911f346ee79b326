// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"bytes"
	"hash/maphash"
	"math"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/internal/event"
)

// Limits of a quick check. What is beyond them is left to the library.
const (
	quickDepth   = 64  // levels of a document
	quickOthers  = 256 // members of one object that have no bit
	quickNumber  = 64  // bytes of a number; see numberFault
	quickRepeats = 8   // how often the bytes of a document may be read, on average
)

// quickScan is one reading of one document.
type quickScan struct {
	event.Scanner
	seed   maphash.Seed
	others []uint64 // hashes of names that have no bit, of all objects that are open
	buf    []byte   // a string without its escapes
	left   int      // bytes that may still be read again
}

var quickScans = sync.Pool{New: func() any { return &quickScan{seed: maphash.MakeSeed()} }}

// fits reports whether a document is JSON as Decode takes it and valid; false means that it may be.
func (p *part) fits(doc []byte) bool {
	q := quickScans.Get().(*quickScan)
	q.Scanner, q.others, q.left = event.ScanJSON(doc), q.others[:0], quickRepeats*len(doc)
	ok := q.value(p, quickDepth) && q.End()
	q.Scanner = event.Scanner{}
	quickScans.Put(q)
	return ok
}

// value reads a value that p asks something of; nil is any. depth is how many levels may still come.
func (q *quickScan) value(p *part, depth int) bool {
	if p == nil || p.more == nil {
		return q.once(p, depth)
	}
	q.Next()
	start := q.Scanner
	if !q.once(p, depth) {
		return false
	}
	end := q.Scanner
	again := func(p *part) bool {
		q.left -= end.At() - start.At()
		q.Scanner = start
		return q.left >= 0 && q.value(p, depth)
	}
	for _, p := range p.more.all {
		if !again(p) {
			return false
		}
	}
	open := len(q.others)
	for _, branches := range p.more.any {
		if !slices.ContainsFunc(branches, func(p *part) bool {
			q.others = q.others[:open]
			return again(p)
		}) {
			return false
		}
	}
	q.Scanner = end
	return true
}

// once is value without what else looks at the value.
func (q *quickScan) once(p *part, depth int) bool {
	if p != nil && p.unknown || depth == 0 {
		return false
	}
	switch c := q.Next(); c {
	case '{':
		return p.takes(objectType) && q.object(p, depth)
	case '[':
		return p.takes(arrayType) && q.array(p, depth)
	case '"':
		return p.takes(stringType) && q.text(p)
	case 't':
		return p.takes(booleanType) && p.lists(trueWord) && q.Literal("true") == ""
	case 'f':
		return p.takes(booleanType) && p.lists(falseWord) && q.Literal("false") == ""
	case 'n':
		return p.takes(nullType) && p.lists(nullType) && q.Literal("null") == ""
	default:
		return (c == '-' || '0' <= c && c <= '9') && q.number(p)
	}
}

func (p *part) takes(t typeSet) bool {
	return p == nil || (p.types == 0 || p.types&t != 0) && (p.listed == nil || t != objectType && t != arrayType)
}

func (p *part) lists(word typeSet) bool {
	return p == nil || p.listed == nil || p.listed.literals&word != 0
}

func (q *quickScan) text(p *part) bool {
	raw, escaped, fault := q.Text()
	if fault != "" || p == nil || p.text == nil && p.listed == nil {
		return fault == ""
	}
	if escaped {
		var ok bool
		if q.buf, ok = event.Unescape(q.buf[:0], raw); !ok {
			return false
		}
		raw = q.buf
	}
	if p.listed != nil {
		if !slices.ContainsFunc(p.listed.texts, func(t string) bool { return t == string(raw) }) {
			return false
		}
	}
	return p.text == nil || p.text.fits(raw)
}

func (t *textPart) fits(s []byte) bool {
	if t.shortest > 0 || len(s) > t.longest {
		if n := utf8.RuneCount(s); n < t.shortest || n > t.longest {
			return false
		}
	}
	return (t.pattern == nil || t.pattern.Match(s)) && (t.format == nil || t.format(s))
}

func (q *quickScan) number(p *part) bool {
	raw, integer, fault := q.Number()
	if fault != "" || len(raw) > quickNumber {
		return false
	}
	if e := bytes.IndexAny(raw, "eE"); !integer && e >= 0 && len(bytes.TrimLeft(raw[e+1:], "+-")) > len("99") {
		return false
	}
	if p == nil {
		return true
	}
	if p.number == nil && p.listed == nil && (p.types&numberType != 0 || p.types == 0 || integer && p.types&integerType != 0) {
		return true
	}
	n, ok := readNumber(raw, integer)
	whole := integer || n.exact && n.float == float64(int64(n.float))
	if !ok || p.types&(numberType) == 0 && p.types != 0 && (!whole || p.types&integerType == 0) {
		return false
	}
	if p.number != nil && slices.ContainsFunc(p.number.bounds, func(b bound) bool { return !b.holds(n) }) {
		return false
	}
	return p.listed == nil || slices.ContainsFunc(p.listed.numbers, func(w number) bool { return w.exact && n.exact && w.float == n.float })
}

// readNumber rounds a number as numberOf rounds bounds.
func readNumber(raw []byte, integer bool) (number, bool) {
	if integer && len(raw) <= exactDigits {
		digits, negative := bytes.CutPrefix(raw, []byte("-"))
		n := 0
		for _, c := range digits {
			n = 10*n + int(c-'0')
		}
		if negative {
			n = -n
		}
		return number{float64(n), true}, true
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	plain := len(raw) <= exactDigits && !bytes.ContainsAny(raw, "eE")
	return number{f, plain}, err == nil
}

var (
	anyObject = &objectPart{most: math.MaxInt}
	anyArray  = &arrayPart{most: math.MaxInt}
)

func (q *quickScan) array(p *part, depth int) bool {
	a := anyArray
	if p != nil && p.array != nil {
		a = p.array
	}
	n := 0
	if q.Expect('['); q.Next() == ']' {
		return q.Expect(']') == "" && a.fewest == 0
	}
	for {
		item := a.items
		if n < len(a.prefix) {
			item = a.prefix[n]
		}
		if n++; !q.value(item, depth-1) {
			return false
		}
		if q.Next() == ']' {
			return q.Expect(']') == "" && a.fewest <= n && n <= a.most
		}
		if q.Expect(',') != "" {
			return false
		}
	}
}

func (q *quickScan) object(p *part, depth int) bool {
	o := anyObject
	if p != nil && p.object != nil {
		o = p.object
	}
	open, seen, n := len(q.others), uint64(0), 0
	if q.Expect('{'); q.Next() != '}' {
		for {
			if !q.member(o, &seen, open, depth) {
				return false
			}
			if n++; q.Next() == '}' {
				break
			}
			if q.Expect(',') != "" {
				return false
			}
		}
	}
	q.others = q.others[:open]
	return q.Expect('}') == "" && seen&o.required == o.required && o.fewest <= n && n <= o.most
}

// member reads a member of the object of o. seen has the bits of those before it; the hashes of the others begin at open.
func (q *quickScan) member(o *objectPart, seen *uint64, open, depth int) bool {
	if q.Next() != '"' {
		return false
	}
	name, escaped, fault := q.Text()
	if fault != "" || q.Expect(':') != "" {
		return false
	}
	if escaped {
		var ok bool
		if q.buf, ok = event.Unescape(q.buf[:0], name); !ok || len(o.patterns) > 0 {
			return false // what is in buf does not outlive the value
		}
		name = q.buf
	}
	m := o.find(name)
	bit := m.bit()
	if *seen&bit != 0 || bit == 0 && !q.first(name, open) {
		return false
	}
	*seen |= bit
	switch {
	case len(o.patterns) > 0:
		return q.patterned(o, m, name, depth)
	case !m.declared:
		m.part = o.rest
	}
	return q.value(m.part, depth-1)
}

// first reports whether a name without a bit was not in its object before. Two names may have one hash: then it does
// not know.
func (q *quickScan) first(name []byte, open int) bool {
	hash := maphash.Bytes(q.seed, name)
	if len(q.others)-open == quickOthers || slices.Contains(q.others[open:], hash) {
		return false
	}
	q.others = append(q.others, hash)
	return true
}

// patterned reads the value of a member of an object with patterns: everything that is about its name has a look.
func (q *quickScan) patterned(o *objectPart, m member, name []byte, depth int) bool {
	var about [8]*part
	parts := about[:0]
	if m.declared {
		parts = append(parts, m.part)
	}
	for _, pat := range o.patterns {
		if pat.name.Match(name) {
			parts = append(parts, pat.part)
		}
	}
	if len(parts) == 0 {
		return q.value(o.rest, depth-1)
	}
	q.Next()
	start := q.Scanner
	for i, part := range parts {
		if i > 0 {
			q.left -= q.At() - start.At()
			q.Scanner = start
		}
		if q.left < 0 || !q.value(part, depth-1) {
			return false
		}
	}
	return true
}
