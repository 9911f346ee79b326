// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"encoding/binary"
	"math"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"
)

// posting is the rules that hang on one test: 0 none, positive one (its number in the segment, plus one), negative a
// list of the segment (its index, complemented).
type posting int32

// lookup finds, for a scalar at one path, the tests that rules hang on and that hold for it, or may hold: what it finds
// are candidates.
type lookup struct {
	strings map[string]posting
	folded  map[string]posting // by what equals-ignore-case folds to
	numbers map[int64]posting  // by key
	kinds   [kindTrue + 1]posting
	present posting // any scalar will do

	prefix, suffix, foldPrefix, foldSuffix *affixes
	ranges                                 ranges
	v4                                     *blocks4
	v6                                     *blocks6
	grams                                  []*grams
	folds                                  bool // folded, foldPrefix or foldSuffix is there
}

// find calls s.emit for what v may meet.
func (l *lookup) find(s *Scratch, v *scalar) {
	if l.present != 0 {
		s.emit(l.present)
	}
	switch v.kind {
	case kindString:
		l.findString(s, v.text)
	case kindNumber:
		if l.numbers == nil && l.ranges == nil {
			return
		}
		n := parseNumber(v.text)
		key, exact := n.key()
		l.findNumber(s, key)
		if !exact {
			s.doubted = true
			l.findNumber(s, n.away(key))
		}
	default:
		s.emit(l.kinds[v.kind])
	}
}

func (l *lookup) findString(s *Scratch, text []byte) {
	if l.strings != nil {
		s.emit(l.strings[string(text)])
	}
	if l.prefix != nil {
		l.prefix.find(s, text)
	}
	if l.suffix != nil {
		l.suffix.find(s, text)
	}
	if (l.v4 != nil || l.v6 != nil) && len(text) <= maxAddress && looksLikeAddress(text) {
		l.findAddress(s, text)
	}
	for _, g := range l.grams {
		g.find(s, text)
	}
	if !l.folds {
		return
	}
	s.folded = appendFold(s.folded[:0], text)
	if l.folded != nil {
		s.emit(l.folded[string(s.folded)])
	}
	if l.foldPrefix != nil {
		l.foldPrefix.find(s, s.folded)
	}
	if l.foldSuffix != nil {
		l.foldSuffix.find(s, s.folded)
	}
}

func (l *lookup) findNumber(s *Scratch, key int64) {
	if l.numbers != nil {
		s.emit(l.numbers[key])
	}
	l.ranges.find(s, key)
}

func (l *lookup) findAddress(s *Scratch, text []byte) {
	address, ok := parseIPv4(text)
	switch {
	case ok && l.v4 != nil:
		b := address.As4()
		l.v4.find(s, binary.BigEndian.Uint32(b[:]))
	case !ok && l.v6 != nil:
		if address, ok := parseIPv6(text); ok {
			l.v6.find(s, address)
		}
	}
}

// appendFold appends text folded: two strings that differ in case alone become the same.
func appendFold[T string | []byte](dst []byte, text T) []byte {
	for i := 0; i < len(text); {
		c := text[i]
		if c < utf8.RuneSelf {
			if 'a' <= c && c <= 'z' {
				c -= 'a' - 'A'
			}
			dst = append(dst, c)
			i++
			continue
		}
		var r rune
		var n int
		switch text := any(text).(type) {
		case string:
			r, n = utf8.DecodeRuneInString(text[i:])
		case []byte:
			r, n = utf8.DecodeRune(text[i:])
		}
		dst = utf8.AppendRune(dst, foldRune(r))
		i += n
	}
	return dst
}

// affixes finds the prefixes of a string among many, or, reversed, the suffixes. They are sorted, and each knows the
// longest other that it begins with. All prefixes of a string then lie on the way up from the last of them that is not
// greater than the string: whatever stands between a prefix and the string begins with that prefix, too.
type affixes struct {
	reversed bool
	keys     []string
	heads    []uint64 // the first eight bytes of each, which settle most comparisons
	parents  []int32
	postings []posting
}

// head is up to eight bytes of a string as a number of the same order.
func (a *affixes) head(text []byte) uint64 {
	if len(text) >= 8 {
		if a.reversed {
			return binary.LittleEndian.Uint64(text[len(text)-8:])
		}
		return binary.BigEndian.Uint64(text)
	}
	var h uint64
	for i := range 8 {
		h <<= 8
		switch {
		case i >= len(text):
		case a.reversed:
			h |= uint64(text[len(text)-1-i])
		default:
			h |= uint64(text[i])
		}
	}
	return h
}

// compare orders a key and a text, from their ends if reversed.
func (a *affixes) compare(key string, text []byte) int {
	if !a.reversed {
		switch { // these comparisons copy nothing
		case key < string(text):
			return -1
		case key > string(text):
			return 1
		}
		return 0
	}
	for i := 1; i <= len(key) && i <= len(text); i++ {
		if c := cmp.Compare(key[len(key)-i], text[len(text)-i]); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(key), len(text))
}

// common counts the bytes that a key and a text have in common.
func (a *affixes) common(key string, text []byte) int {
	n := min(len(key), len(text))
	i := 0
	if a.reversed {
		for i < n && key[len(key)-1-i] == text[len(text)-1-i] {
			i++
		}
		return i
	}
	for i < n && key[i] == text[i] {
		i++
	}
	return i
}

func newAffixes(entries map[string]posting, reversed bool) *affixes {
	a := &affixes{reversed: reversed, keys: make([]string, 0, len(entries))}
	for key := range entries {
		a.keys = append(a.keys, key)
	}
	type headed struct {
		head uint64
		key  string
	}
	sorted := make([]headed, len(a.keys))
	for i, key := range a.keys {
		sorted[i] = headed{a.head([]byte(key)), key}
	}
	slices.SortFunc(sorted, func(x, y headed) int {
		if c := cmp.Compare(x.head, y.head); c != 0 {
			return c
		}
		return a.compare(x.key, []byte(y.key))
	})
	n := len(sorted)
	a.heads, a.parents, a.postings = make([]uint64, n), make([]int32, n), make([]posting, n)
	for i, e := range sorted {
		a.heads[i], a.keys[i], a.postings[i] = e.head, e.key, entries[e.key]
		p := int32(i) - 1
		for p >= 0 && !a.begins(e.key, a.keys[p]) {
			p = a.parents[p]
		}
		a.parents[i] = p
	}
	return a
}

func (a *affixes) begins(key, with string) bool {
	if a.reversed {
		return strings.HasSuffix(key, with)
	}
	return strings.HasPrefix(key, with)
}

func (a *affixes) find(s *Scratch, text []byte) {
	h := a.head(text)
	low, high := 0, len(a.keys) // the first key that is greater is in [low, high]
	for low < high {
		mid := int(uint(low+high) >> 1)
		k := a.heads[mid]
		if k < h || k == h && a.compare(a.keys[mid], text) <= 0 {
			low = mid + 1
		} else {
			high = mid
		}
	}
	i := int32(low) - 1
	if i < 0 {
		return
	}
	n := a.common(a.keys[i], text)
	for ; i >= 0; i = a.parents[i] {
		if len(a.keys[i]) <= n {
			s.emit(a.postings[i])
		}
	}
}

// ranges is an interval tree over keys of numbers: sorted by the lower bound, the middle of each part being its root,
// and for each root the greatest upper bound of its part.
type ranges []interval

type interval struct {
	low, high, greatest int64
	posting             posting
}

func newRanges(entries map[[2]int64]posting) ranges {
	r := make(ranges, 0, len(entries))
	for b, p := range entries {
		r = append(r, interval{low: b[0], high: b[1], posting: p})
	}
	slices.SortFunc(r, func(a, b interval) int { return cmp.Or(cmp.Compare(a.low, b.low), cmp.Compare(a.high, b.high)) })
	r.augment()
	return r
}

// augment returns the greatest upper bound of all.
func (r ranges) augment() int64 {
	if len(r) == 0 {
		return math.MinInt64
	}
	mid := len(r) / 2
	r[mid].greatest = max(r[mid].high, r[:mid].augment(), r[mid+1:].augment())
	return r[mid].greatest
}

func (r ranges) find(s *Scratch, key int64) {
	var later [64]ranges // parts still to be seen; there are at most as many as the tree is deep
	n := 1
	later[0] = r
	for n > 0 {
		n--
		for part := later[n]; len(part) > 0; {
			mid := len(part) / 2
			root := &part[mid]
			if root.greatest < key {
				break
			}
			if root.low <= key {
				if root.high >= key {
					s.emit(root.posting)
				}
				later[n] = part[mid+1:]
				n++
			}
			part = part[:mid]
		}
	}
}

// blocks4 and blocks6 find the cidr blocks that an address is in, by one look for each length of mask that is used.
type blocks4 struct {
	masks    []uint8
	postings map[uint64]posting // by mask length and masked address
}

type blocks6 struct {
	masks    []uint8
	postings map[netip.Prefix]posting
}

func (b *blocks4) find(s *Scratch, address uint32) {
	for _, m := range b.masks {
		s.emit(b.postings[key4(address, m)])
	}
}

func key4(address uint32, bits uint8) uint64 {
	return uint64(bits)<<32 | uint64(address)&^(1<<(32-bits)-1)
}

func (b *blocks6) find(s *Scratch, address netip.Addr) {
	for _, m := range b.masks {
		if p, err := address.Prefix(int(m)); err == nil {
			s.emit(b.postings[p])
		}
	}
}

// gramSizes are the lengths of runs of bytes that strings are searched for, from the longest. One pass over a string is
// made for each length that is used.
var gramSizes = [...]int{8, 6, 4, 3, 2, 1}

// gramSize is the longest that fits in n bytes, 0 for none.
func gramSize(n int) int {
	for _, size := range gramSizes {
		if size <= n {
			return size
		}
	}
	return 0
}

// grams finds strings that hold a run of size bytes: a hash table with open addressing, at most half full.
type grams struct {
	size  int
	shift uint8
	table []gramEntry
}

type gramEntry struct {
	key     uint64
	posting posting // 0: free
}

func newGrams(size int, entries map[uint64]posting) *grams {
	g := &grams{size: size, shift: 63}
	for n := 2; n < 2*len(entries); n *= 2 {
		g.shift--
	}
	g.table = make([]gramEntry, 1<<(64-g.shift))
	for key, p := range entries {
		i := g.place(key)
		for g.table[i].posting != 0 {
			i = (i + 1) & (len(g.table) - 1)
		}
		g.table[i] = gramEntry{key, p}
	}
	return g
}

func (g *grams) place(key uint64) int { return int(mixed(key) >> g.shift) }

// mixed spreads a key over the upper bits.
func mixed(key uint64) uint64 {
	key *= 0x9e3779b97f4a7c15
	return (key ^ key>>32) * 0xd6e8feb86659fd93
}

// gram packs up to eight bytes.
func gram(text []byte) uint64 {
	var k uint64
	for i, c := range text {
		k |= uint64(c) << (8 * i)
	}
	return k
}

func (g *grams) find(s *Scratch, text []byte) {
	mask := ^uint64(0) >> (64 - 8*g.size)
	for i := 0; i+g.size <= len(text); i++ {
		var key uint64
		if i+8 <= len(text) {
			key = binary.LittleEndian.Uint64(text[i:]) & mask
		} else {
			key = gram(text[i : i+g.size])
		}
		for j := g.place(key); g.table[j].posting != 0; j = (j + 1) & (len(g.table) - 1) {
			if g.table[j].key == key {
				s.emit(g.table[j].posting)
				break
			}
		}
	}
}
