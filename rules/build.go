// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"encoding/binary"
	"math"
	"slices"
)

// access is a test that rules can hang on.
type access struct {
	node      int32
	class     class
	text      string
	low, high int64
}

// class says by which table of a lookup an access is found.
type class uint8

const (
	byString class = iota
	byFold
	byNumber
	byKind
	byPrefix
	bySuffix
	byFoldPrefix
	byFoldSuffix
	byRange
	byBlock4
	byBlock6
	byGram
	byPresence
)

// builder makes a segment.
type builder struct {
	paths    *pathBuilder
	seg      *segment
	ones     map[oneKey]int32 // conditions that are one string
	others   map[string]int32 // other conditions, by node and list
	key      []byte
	doc      document // of the pattern at hand
	path     []byte
	users    []int32 // of each condition
	ids      map[access]int32
	accesses []access
	weights  []int32 // of each access: how many rules have the test
	sketch   []uint32
	choices  []choice // of each condition
	hung     []hanging
}

type oneKey struct {
	node int32
	text string
}

// choice is what it would be to hang a rule on a condition: the accesses, and how often events meet them, in no unit.
type choice struct {
	cost     float64
	accesses []int32
	proves   bool // whoever meets an access meets the condition
	at       int  // where the condition is in the code; nowhere: it is a $or
}

// hanging is a rule on an access.
type hanging struct{ access, rule int32 }

// build compiles rules, which have patterns, with the given orders. A rule that is there twice is an error.
func build(paths *pathBuilder, rules []*Rule, orders []uint32) (*segment, int, bool) {
	b := &builder{paths: paths, seg: &segment{plans: make([]plan, len(rules))}, ones: map[oneKey]int32{}, others: map[string]int32{}, ids: map[access]int32{}}
	b.seg.code = make([]int32, 0, 4*len(rules))
	for i, r := range rules {
		from := len(b.seg.code)
		b.compile(r.Pattern.parse(&b.doc).flat())
		b.seg.plans[i] = plan{rule: r, from: uint32(from), size: uint32(len(b.seg.code) - from), order: orders[i]}
	}
	if twice, ok := b.seg.name(); !ok {
		return nil, twice, false
	}
	b.weigh()
	b.choose()
	b.hang()
	b.seg.code, b.seg.conds = slices.Clip(b.seg.code), slices.Clip(b.seg.conds)
	return b.seg, 0, true
}

// compile appends the code of terms.
func (b *builder) compile(terms []*term) {
	for _, t := range terms {
		if t.field != nil {
			b.seg.code = append(b.seg.code, b.cond(t))
			continue
		}
		b.seg.code = append(b.seg.code, ^int32(len(t.or)))
		for _, branch := range t.or {
			at := len(b.seg.code)
			b.seg.code = append(b.seg.code, 0)
			b.compile(branch)
			b.seg.code[at] = int32(len(b.seg.code) - at - 1)
		}
	}
}

// cond returns the condition of a field, which may be another rule's.
func (b *builder) cond(t *term) int32 {
	f := t.field
	node := b.leaf(t.path)
	c := cond{node: node, memo: nowhere}
	one, isOne := f.one()
	if isOne {
		c.one = one
	}
	var id int32
	var known bool
	if isOne {
		id, known = b.ones[oneKey{node, c.one}]
	} else {
		b.key = f.appendJSON(binary.LittleEndian.AppendUint32(b.key[:0], uint32(node)))
		id, known = b.others[string(b.key)]
	}
	if known {
		b.users[id]++
		if k := &b.seg.conds[id]; k.memo == nowhere && costly(f) {
			k.memo = b.seg.memos
			b.seg.memos++
		}
		return id
	}
	id = int32(len(b.seg.conds))
	if isOne {
		b.ones[oneKey{node, c.one}] = id
	} else {
		b.others[string(b.key)] = id
		c.field = &field{tests: f.tests, absent: f.absent}
	}
	b.seg.conds = append(b.seg.conds, c)
	b.users = append(b.users, 1)
	return id
}

// leaf returns the node of a path.
func (b *builder) leaf(path []string) int32 {
	b.path = b.path[:0]
	for _, step := range path {
		b.path = append(append(b.path, step...), '.') // steps hold no dots
	}
	return b.paths.leaf(b.path, path)
}

// one returns the string that a field asks for if it asks for nothing else.
func (f *field) one() (string, bool) {
	if len(f.tests) == 1 && !f.absent {
		one, ok := f.tests[0].(exactString)
		return string(one), ok
	}
	return "", false
}

// costly reports whether a field is worth a memo when several rules have it.
func costly(f *field) bool {
	if len(f.tests) > 4 {
		return true
	}
	for _, t := range f.tests {
		switch t.(type) {
		case exactString, exactKind, present:
		default:
			return true
		}
	}
	return false
}

// access returns the id of an access.
func (b *builder) access(a access, users int32) int32 {
	id, ok := b.ids[a]
	if !ok {
		id = int32(len(b.accesses))
		b.ids[a] = id
		b.accesses = append(b.accesses, a)
		b.weights = append(b.weights, 0)
	}
	b.weights[id] += users
	return id
}

// weigh counts how many rules have each test.
func (b *builder) weigh() {
	b.choices = make([]choice, len(b.seg.conds))
	for i := range b.seg.conds {
		c := &b.seg.conds[i]
		if c.field == nil {
			b.choices[i].accesses = []int32{b.access(access{node: c.node, class: byString, text: c.one}, b.users[i])}
			continue
		}
		if c.field.absent {
			continue
		}
		list := make([]int32, 0, len(c.field.tests))
		for _, t := range c.field.tests {
			switch t := t.(type) {
			case wildcard:
				b.weighWildcard(c.node, t, b.users[i])
				list = append(list, nowhere) // chosen when everything has been weighed
			default:
				list = append(list, b.access(accessOf(c.node, t), b.users[i]))
			}
		}
		b.choices[i].accesses = list
	}
}

// accessOf is the access of a test that is no wildcard.
func accessOf(node int32, t test) access {
	a := access{node: node, class: byPresence}
	switch t := t.(type) {
	case exactString:
		a.class, a.text = byString, string(t)
	case exactNumber:
		a.class = byNumber
		a.low, _ = t.key()
	case exactKind:
		a.class, a.low = byKind, int64(t)
	case block:
		address := t.prefix.Addr()
		if address.Is4() {
			octets := address.As4()
			a.class, a.low = byBlock4, int64(key4(binary.BigEndian.Uint32(octets[:]), uint8(t.prefix.Bits())))
		} else {
			octets := address.As16()
			a.class, a.text, a.low = byBlock6, string(octets[:]), int64(t.prefix.Bits())
		}
	case numeric:
		a = rangeAccess(node, t)
	case text:
		a = textAccess(node, t)
	}
	return a
}

// rangeAccess is the range of keys of the numbers for which t holds.
func rangeAccess(node int32, t numeric) access {
	a := access{node: node, class: byRange, low: math.MinInt64, high: math.MaxInt64}
	for _, bound := range t.bounds {
		key, exact := bound.operand.key()
		switch bound.operator {
		case "=":
			return access{node: node, class: byNumber, low: key}
		case ">", ">=":
			if a.low = key; !exact {
				a.low = min(key, bound.operand.away(key))
			} else if bound.operator == ">" {
				a.low++
			}
		default:
			if a.high = key; !exact {
				a.high = max(key, bound.operand.away(key))
			} else if bound.operator == "<" {
				a.high--
			}
		}
	}
	return a
}

// proves reports whether a value that meets the access of a test meets the test, provided that a number has an exact key
// and a text is UTF-8.
func proves(t test) bool {
	switch t := t.(type) {
	case exactString, exactKind, block, text:
		return true
	case exactNumber:
		_, exact := t.key()
		return exact
	case numeric:
		for _, bound := range t.bounds {
			if _, exact := bound.operand.key(); !exact {
				return false
			}
		}
		return true
	}
	return false
}

func textAccess(node int32, t text) access {
	a := access{node: node, text: t.operand}
	if t.fold {
		a.text = string(appendFold(nil, t.operand))
	}
	switch {
	case t.operator == opIgnoreCase || t.operator != opPrefix && t.operator != opSuffix:
		a.class = byFold
	case t.operand == "":
		return access{node: node, class: byPresence}
	case t.operator == opPrefix && t.fold:
		a.class = byFoldPrefix
	case t.operator == opPrefix:
		a.class = byPrefix
	case t.fold:
		a.class = byFoldSuffix
	default:
		a.class = bySuffix
	}
	return a
}

// eachGram calls f for the runs of bytes that every string must hold which fits a wildcard, all of one size.
func eachGram(w wildcard, f func(gram uint64, size int)) {
	longest := 0
	for _, part := range w.parts {
		longest = max(longest, len(part))
	}
	size := gramSize(longest)
	for _, part := range w.parts {
		for i := 0; size > 0 && i+size <= len(part); i++ {
			f(gram(part[i:i+size]), size)
		}
	}
}

// sketchSize is the number of counters for runs of bytes. Runs that share one only seem more common than they are.
const sketchSize = 1 << 16

func sketchAt(node int32, gram uint64) uint64 {
	return (mixed(gram) ^ mixed(uint64(node))) >> 48
}

func (b *builder) weighWildcard(node int32, w wildcard, users int32) {
	if b.sketch == nil {
		b.sketch = make([]uint32, sketchSize)
	}
	if first := w.parts[0]; len(first) > 0 {
		b.access(access{node: node, class: byPrefix, text: string(first)}, users)
	}
	if last := w.parts[len(w.parts)-1]; len(last) > 0 {
		b.access(access{node: node, class: bySuffix, text: string(last)}, users)
	}
	eachGram(w, func(gram uint64, _ int) { b.sketch[sketchAt(node, gram)] += uint32(users) })
}

// wildcardAccess chooses what part of a wildcard to find it by.
func (b *builder) wildcardAccess(node int32, w wildcard) access {
	best, cost := access{node: node, class: byPresence}, math.Inf(1)
	try := func(a access, users int32) {
		if c := selectivity(a) * float64(users); c < cost {
			best, cost = a, c
		}
	}
	if first := w.parts[0]; len(first) > 0 {
		a := access{node: node, class: byPrefix, text: string(first)}
		try(a, b.weights[b.ids[a]])
	}
	if last := w.parts[len(w.parts)-1]; len(last) > 0 {
		a := access{node: node, class: bySuffix, text: string(last)}
		try(a, b.weights[b.ids[a]])
	}
	eachGram(w, func(gram uint64, size int) {
		try(access{node: node, class: byGram, low: int64(gram), high: int64(size)}, int32(b.sketch[sketchAt(node, gram)]))
	})
	return best
}

// selectivity guesses how often events meet an access, compared with one string: of its kind, and its length.
func selectivity(a access) float64 {
	byLength := func(n int, factor float64) float64 {
		return factor * [...]float64{100, 30, 10, 4, 2}[min(n, 4)]
	}
	switch a.class {
	case byString, byFold, byNumber:
		return 1
	case byKind:
		return 200
	case byPrefix, byFoldPrefix, bySuffix, byFoldSuffix:
		return byLength(len(a.text), 1)
	case byGram:
		return byLength(int(a.high), 2)
	case byBlock4:
		return byLength(int(a.low>>32)/8, 1)
	case byBlock6:
		return byLength(int(a.low)/16, 1)
	case byRange:
		if a.low == math.MinInt64 || a.high == math.MaxInt64 {
			return 100
		}
		return 8
	}
	return 1000
}

// choose settles for each condition what it costs to hang a rule on it. A test that nearly everything meets stands for
// all others of the condition.
func (b *builder) choose() {
	for i := range b.choices {
		c, ch := &b.seg.conds[i], &b.choices[i]
		if c.field != nil && c.field.absent {
			ch.cost = math.Inf(1)
			continue
		}
		presence := int32(nowhere)
		ch.proves = true
		for k, id := range ch.accesses {
			if id == nowhere {
				id = b.access(b.wildcardAccess(c.node, c.field.tests[k].(wildcard)), b.users[i])
				ch.accesses[k] = id
			}
			if b.accesses[id].class == byPresence {
				presence = id
			}
			ch.proves = ch.proves && (c.field == nil || proves(c.field.tests[k]))
			ch.cost += selectivity(b.accesses[id]) * float64(b.weights[id])
		}
		if presence != nowhere {
			ch.accesses, ch.proves = []int32{presence}, false
		}
		if b.paths.t.nodes[c.node].data {
			ch.cost *= 1.2 // attributes are at hand
		}
	}
}

// best chooses where a rule with this code hangs: on one of the conditions, or on all branches of a $or.
func (b *builder) best(code []int32) choice {
	best := choice{cost: math.Inf(1)}
	for i := 0; i < len(code); {
		ch := choice{at: nowhere}
		if code[i] >= 0 {
			ch = b.choices[code[i]]
			ch.at = i
			i++
		} else {
			n := ^code[i]
			i++
			for range n {
				size := int(code[i])
				branch := b.best(code[i+1 : i+1+size])
				ch.cost += branch.cost
				ch.accesses = append(ch.accesses, branch.accesses...)
				i += 1 + size
			}
		}
		if ch.cost < best.cost {
			best = ch
		}
	}
	return best
}

// hang hangs all rules and makes the lookups.
func (b *builder) hang() {
	for r := range b.seg.plans {
		p := &b.seg.plans[r]
		if p.rule.Disabled {
			continue
		}
		code := b.seg.code[p.from : p.from+p.size]
		ch := b.best(code)
		if math.IsInf(ch.cost, 1) {
			b.seg.always = append(b.seg.always, int32(r))
			continue
		}
		if ch.proves && ch.at != nowhere {
			last := code[ch.at]
			copy(code[ch.at:], code[ch.at+1:])
			code[len(code)-1] = last
			p.proven = true
		}
		for _, id := range ch.accesses {
			b.hung = append(b.hung, hanging{id, int32(r)})
		}
	}
	postings := b.postings()
	byNode := map[int32]*tables{}
	for id, p := range postings {
		if p == 0 {
			continue
		}
		a := &b.accesses[id]
		t := byNode[a.node]
		if t == nil {
			t = &tables{}
			byNode[a.node] = t
		}
		t.add(a, p)
		b.seg.inData = b.seg.inData || b.paths.t.nodes[a.node].data
	}
	for node, t := range byNode {
		if int(node) >= len(b.seg.lookups) {
			b.seg.lookups = append(b.seg.lookups, make([]*lookup, int(node)+1-len(b.seg.lookups))...)
		}
		b.seg.lookups[node] = t.lookup()
	}
}

// postings gathers the rules of each access.
func (b *builder) postings() []posting {
	counts := make([]uint32, len(b.accesses))
	for _, h := range b.hung {
		counts[h.access]++
	}
	postings := make([]posting, len(b.accesses))
	next := make([]uint32, len(b.accesses))
	total := uint32(0)
	for id, n := range counts {
		if n > 1 {
			postings[id] = ^posting(len(b.seg.lists))
			b.seg.lists = append(b.seg.lists, total)
			next[id] = total
			total += n
		}
	}
	b.seg.lists = slices.Clip(append(b.seg.lists, total))
	b.seg.listed = make([]int32, total)
	for _, h := range b.hung {
		if counts[h.access] == 1 {
			postings[h.access] = posting(h.rule) + 1
			continue
		}
		b.seg.listed[next[h.access]] = h.rule
		next[h.access]++
	}
	return postings
}
