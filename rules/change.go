// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"slices"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// With returns an index with rules added and removed, while x stays as it is. An added rule takes the place of one with
// its name and bus, or comes last. remove lists names; it is no error if there is no such rule. What it costs follows
// the number of changes, and now and then a part of the rules is compiled anew.
func (x *Index) With(add []*Rule, remove []string) (*Index, error) {
	for i, r := range add {
		if r.Pattern == nil {
			return nil, fault.Invalidf(pointerAt(i), "rule %q has no pattern", r.Name)
		}
	}
	c := change{x: x, parts: slices.Clone(x.parts), next: x.next}
	for _, name := range remove {
		c.remove(name, func(*Rule) bool { return true }, nil)
	}
	orders := make([]uint32, len(add))
	for i, r := range add {
		orders[i] = c.next
		if !c.remove(r.Name, func(old *Rule) bool { return old.Bus == r.Bus }, func(order uint32) {
			orders[i] = order
		}) {
			c.next++
		}
	}
	return c.apply(add, orders)
}

// change collects what With does.
type change struct {
	x     *Index
	parts []part
	owned [8]bool // parts whose gone is the change's own
	next  uint32
}

// remove marks rules of a name as gone and reports whether there were any. With put, they are replaced.
func (c *change) remove(name string, which func(*Rule) bool, put func(order uint32)) bool {
	found := false
	for i := range c.parts {
		p := &c.parts[i]
		p.named(name, func(rule int32) {
			if p.isGone(rule) || !which(p.plans[rule].rule) {
				return
			}
			found = true
			if !c.owned[i] {
				c.owned[i] = true
				if p.gone = slices.Clone(p.gone); p.gone == nil {
					p.gone = make([]uint64, (len(p.plans)+63)/64)
				}
			}
			p.gone[rule>>6] |= 1 << (rule & 63)
			p.dead++
			if put != nil {
				put(p.plans[rule].order)
			}
		})
	}
	return found
}

func (p *part) isGone(rule int32) bool { return p.gone != nil && p.gone[rule>>6]>>(rule&63)&1 == 1 }

// apply makes the new index.
func (c *change) apply(add []*Rule, orders []uint32) (*Index, error) {
	paths := newPathBuilder(c.x.paths)
	if len(add) > 0 {
		seg, twice, ok := build(paths, add, orders)
		if !ok {
			return nil, fault.Invalidf(pointerAt(twice), "rule %q stands twice on bus %q", add[twice].Name, add[twice].Bus)
		}
		c.parts = append(c.parts, part{segment: seg})
	}
	if c.next >= 1<<31 {
		rules, _ := living(c.parts)
		return c.anew(Compile(rules))
	}
	if c.merge(paths) {
		return c.anew(compile(living(c.parts)))
	}
	y := &Index{next: c.next, paths: paths.t, parts: c.parts, failures: c.x.failures}
	y.number()
	return y, nil
}

// anew passes on what With hands down.
func (c *change) anew(y *Index, err error) (*Index, error) {
	if err == nil {
		y.failures = c.x.failures
	}
	return y, err
}

// minPart is up to how many rules compiling anew is as good as anything.
const minPart = 32

// level sorts parts by size: there is at most one of each level in an index, and the largest is alone in its own.
func (c *change) level(p *part) int {
	switch n := len(p.plans); {
	case n <= minPart:
		return 0
	case n <= max(1024, len(c.parts[0].plans)/64):
		return 1
	}
	return 2
}

// merge joins the last parts while they are of one level or out of order, and reports whether all should be compiled
// anew instead.
func (c *change) merge(paths *pathBuilder) bool {
	if p := &c.parts[0]; p.dead > len(p.plans)/4+minPart {
		return true
	}
	for len(c.parts) > 1 {
		n := len(c.parts)
		last, before := &c.parts[n-1], &c.parts[n-2]
		if c.level(before) > c.level(last) {
			return false
		}
		if n == 2 {
			return true
		}
		rules, orders := living(c.parts[n-2:])
		seg, _, _ := build(paths, rules, orders) // no rule is there twice: the older ones are gone
		c.parts = append(c.parts[:n-2], part{segment: seg})
	}
	return false
}
