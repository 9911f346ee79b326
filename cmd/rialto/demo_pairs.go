// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"slices"
)

// side is one of the two parties who say something about the same thing.
type side uint8

const (
	promised side = iota // it must be there: an acknowledgement, a delivery that is owed
	found                // it is there: in the log, at the receiver
)

// pairs matches what two sides say, in whatever order they say it, and remembers little more than what is still
// alone, so that a demo may run for days. Not safe for concurrent use.
type pairs struct {
	alone   map[string]side
	both    int // things that both sides have named
	repeats int // things that a side has named again

	settled map[string]struct{} // the latest of both, by which a repeat is known
	order   []string            // settled as a ring
	next    int
}

// rememberSettled is how many settled things are remembered.
const rememberSettled = 20_000

func newPairs() *pairs {
	return &pairs{alone: make(map[string]side), settled: make(map[string]struct{})}
}

func (p *pairs) add(key string, s side) {
	_, done := p.settled[key]
	have, waiting := p.alone[key]
	switch {
	case done, waiting && have == s:
		p.repeats++
	case !waiting:
		p.alone[key] = s
	default:
		delete(p.alone, key)
		p.both++
		p.settle(key)
	}
}

func (p *pairs) settle(key string) {
	p.settled[key] = struct{}{}
	if len(p.order) < rememberSettled {
		p.order = append(p.order, key)
		return
	}
	delete(p.settled, p.order[p.next])
	p.order[p.next] = key
	p.next = (p.next + 1) % rememberSettled
}

// count is how many different things a side has named.
func (p *pairs) count(s side) int { return p.both + len(p.lonely(s)) }

// lonely returns what only this side has named, sorted.
func (p *pairs) lonely(s side) []string {
	var keys []string
	for _, key := range slices.Sorted(maps.Keys(p.alone)) {
		if p.alone[key] == s {
			keys = append(keys, key)
		}
	}
	return keys
}
