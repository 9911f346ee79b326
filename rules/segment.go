// SPDX-License-Identifier: Apache-2.0

package rules

import "hash/maphash"

// segment is rules compiled together. Each field that they have is a condition, shared by all that have it; each rule
// is a plan over conditions; and each enabled rule hangs on the tests of one field of its own (or, in a $or, of one in
// each branch), chosen so that few events meet them. An event therefore costs a look at the tests of each path, and
// the plans of the rules that hang on what was met. Segments do not change.
type segment struct {
	plans   []plan
	code    []int32
	conds   []cond
	memos   int32     // number of conditions with a memo
	lists   []uint32  // where the rules that hang on one test begin in listed; one more than there are lists
	listed  []int32   // rules
	lookups []*lookup // by node of the trie; nil where no rule hangs
	always  []int32   // rules that hang on nothing
	inData  bool      // some rule hangs on a path at or below data
	names   []int32   // hash table of rules by name, with open addressing: 1-based
}

// plan is one rule. Its code is a list of conditions that all must hold: a number >= 0 is a condition, a negative
// number a $or with the complemented number of branches, each of which is a length and code of that length.
type plan struct {
	rule   *Rule
	from   uint32 // where the code begins
	size   uint32
	order  uint32 // of the rules of an index
	proven bool   // the last condition holds for all candidates, unless Scratch.doubted
}

// cond is a field at its path.
type cond struct {
	field *field // nil: a string, one, and nothing else
	one   string
	node  int32
	memo  int32 // where its result is kept for the event; nowhere: looking again is cheaper
}

// nameSeed is the seed of the hash tables of names.
var nameSeed = maphash.MakeSeed()

// named calls f for every rule of that name, on any bus.
func (g *segment) named(name string, f func(rule int32)) {
	if len(g.names) == 0 {
		return
	}
	mask := len(g.names) - 1
	for i := int(maphash.String(nameSeed, name)) & mask; g.names[i] != 0; i = (i + 1) & mask {
		if r := g.names[i] - 1; g.plans[r].rule.Name == name {
			f(r)
		}
	}
}

// name enters all rules in the hash table. It returns a rule that is there twice.
func (g *segment) name() (twice int, ok bool) {
	size := 2
	for size < 2*len(g.plans) {
		size *= 2
	}
	g.names = make([]int32, size)
	for i := range g.plans {
		r := g.plans[i].rule
		at := int(maphash.String(nameSeed, r.Name)) & (size - 1)
		for ; g.names[at] != 0; at = (at + 1) & (size - 1) {
			if other := g.plans[g.names[at]-1].rule; other.Name == r.Name && other.Bus == r.Bus {
				return i, false
			}
		}
		g.names[at] = int32(i) + 1
	}
	return 0, true
}
