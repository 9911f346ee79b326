// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"maps"
	"slices"
	"strings"
)

// trie holds the paths that rules look at, one node for each step. The scanner walks it beside the event, so that what
// no rule looks at is passed over. Node 0 is the root. A trie that an Index uses does not change: a pathBuilder copies
// what it adds to.
type trie struct {
	nodes []trieNode
	data  int32 // the node of data, below which the payload of an event is; nowhere if no rule looks there
}

type trieNode struct {
	kids   *kids // nil: no rule looks below
	parent int32 // nowhere for the root
	leaf   bool  // a field ends here
	data   bool  // it is data, or below
}

// nowhere is the node of what no rule looks at.
const nowhere = -1

// kids are the children of a node. Names are told apart by length and two of their bytes before they are compared.
type kids struct {
	heads [64]uint8 // 1-based index into list, by bucket
	list  []kid
	many  map[string]int32 // instead of list, once there are more than maxKids
}

type kid struct {
	name string
	node int32
	next uint8 // 1-based index of the next in the bucket
}

const maxKids = 128

func bucket[T string | []byte](name T) uint8 {
	n := len(name)
	if n == 0 {
		return 0
	}
	return uint8(n*7+int(name[0])*3+int(name[n-1])) & 63
}

// find returns the node of a name, or nowhere.
func (k *kids) find(name []byte) int32 {
	if k.many != nil {
		if node, ok := k.many[string(name)]; ok {
			return node
		}
		return nowhere
	}
	for j := k.heads[bucket(name)]; j != 0; {
		e := &k.list[j-1]
		if e.name == string(name) {
			return e.node
		}
		j = e.next
	}
	return nowhere
}

// findString is find for a string that is no slice.
func (k *kids) findString(name string) int32 {
	if k.many != nil {
		if node, ok := k.many[name]; ok {
			return node
		}
		return nowhere
	}
	for j := k.heads[bucket(name)]; j != 0; {
		e := &k.list[j-1]
		if e.name == name {
			return e.node
		}
		j = e.next
	}
	return nowhere
}

func (k *kids) add(name string, node int32) {
	switch {
	case k.many != nil:
		k.many[name] = node
	case len(k.list) == maxKids:
		k.many = make(map[string]int32, 2*maxKids)
		for _, e := range k.list {
			k.many[e.name] = e.node
		}
		k.many[name] = node
		k.list = nil
	default:
		b := bucket(name)
		k.list = append(k.list, kid{name, node, k.heads[b]})
		k.heads[b] = uint8(len(k.list))
	}
}

func (k *kids) clone() *kids {
	return &kids{heads: k.heads, list: slices.Clone(k.list), many: maps.Clone(k.many)}
}

// pathBuilder adds paths to a trie without changing it.
type pathBuilder struct {
	t     *trie
	owned bool             // t is the builder's own
	kids  map[*kids]bool   // those that are
	known map[string]int32 // by the name of the path: most rules look at the same few
}

func newPathBuilder(t *trie) *pathBuilder {
	b := &pathBuilder{t: t, kids: map[*kids]bool{}, known: map[string]int32{}}
	if t == nil {
		b.t, b.owned = &trie{nodes: []trieNode{{parent: nowhere}}, data: nowhere}, true
	}
	return b
}

// leaf returns the node of a path at which a field ends. name is a name of the path that no other has.
func (b *pathBuilder) leaf(name []byte, path []string) int32 {
	if node, ok := b.known[string(name)]; ok {
		return node
	}
	node := int32(0)
	for _, step := range path {
		node = b.step(node, step)
	}
	if !b.t.nodes[node].leaf {
		b.own()
		b.t.nodes[node].leaf = true
	}
	b.known[string(name)] = node
	return node
}

func (b *pathBuilder) step(node int32, name string) int32 {
	old := b.t.nodes[node].kids
	if old != nil {
		if next := old.findString(name); next != nowhere {
			return next
		}
	}
	b.own()
	switch {
	case old == nil:
		old = &kids{}
	case !b.kids[old]:
		old = old.clone()
	}
	b.kids[old] = true
	b.t.nodes[node].kids = old
	next := int32(len(b.t.nodes))
	old.add(strings.Clone(name), next)
	below := b.t.nodes[node].data
	if node == 0 && name == dataName {
		b.t.data, below = next, true
	}
	b.t.nodes = append(b.t.nodes, trieNode{parent: node, data: below})
	return next
}

func (b *pathBuilder) own() {
	if !b.owned {
		b.t, b.owned = &trie{nodes: slices.Clone(b.t.nodes), data: b.t.data}, true
	}
}
