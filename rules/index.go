// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// MaxDocument is the largest text, in bytes, that MatchDocument takes. Events are bounded where they come in.
const MaxDocument = 16 << 20

// dataName is where the payload of an event stands in its JSON form.
const dataName = "data"

// Index is a set of rules that events are matched against. What a match costs follows the rules that are nearly met,
// not all there are. An Index is immutable and safe for concurrent use, each goroutine with its own Scratch; With makes
// another one and shares what has not changed.
type Index struct {
	rules atomic.Pointer[[]*Rule] // nil until asked for
	next  uint32                  // order of the next rule
	paths *trie
	parts []part // from the oldest and largest to the newest and smallest

	attributes                   []int32 // where attributeNames are in paths; nowhere if no rule looks
	inData                       bool    // some rule hangs on a path at or below data
	allPlans, allLists, allMemos int32

	failures *atomic.Uint64 // shared with the indexes that With makes of this one
}

// part is a segment of an index.
type part struct {
	*segment
	gone                            []uint64 // rules that were removed, a bit for each; nil: none
	dead                            int      // how many
	firstPlan, firstList, firstMemo int32    // where the numbers of the segment begin among those of the index
}

// Compile builds an index over rules, in this order. The rules must not change afterwards. A rule without a pattern, or
// two of one name on one bus, are refused.
func Compile(rules []*Rule) (*Index, error) {
	for i, r := range rules {
		if r.Pattern == nil {
			return nil, fault.Invalidf(pointerAt(i), "rule %q has no pattern", r.Name)
		}
	}
	orders := make([]uint32, len(rules))
	for i := range orders {
		orders[i] = uint32(i)
	}
	return compile(rules, orders)
}

// compile is Compile for rules with patterns.
func compile(rules []*Rule, orders []uint32) (*Index, error) {
	b := newPathBuilder(nil)
	seg, twice, ok := build(b, rules, orders)
	if !ok {
		return nil, fault.Invalidf(pointerAt(twice), "rule %q stands twice on bus %q", rules[twice].Name, rules[twice].Bus)
	}
	x := &Index{paths: b.t, parts: []part{{segment: seg}}, failures: new(atomic.Uint64)}
	x.rules.Store(&rules)
	if n := len(orders); n > 0 {
		x.next = orders[n-1] + 1
	}
	x.number()
	return x, nil
}

// number gives the parts their numbers.
func (x *Index) number() {
	for i := range x.parts {
		p := &x.parts[i]
		p.firstPlan, p.firstList, p.firstMemo = x.allPlans, x.allLists, x.allMemos
		x.allPlans += int32(len(p.plans))
		x.allLists += int32(len(p.lists))
		x.allMemos += p.memos
		x.inData = x.inData || p.inData
	}
	x.attributes = make([]int32, len(attributeNames))
	for i, name := range attributeNames {
		x.attributes[i] = nowhere
		if k := x.paths.nodes[0].kids; k != nil {
			if node := k.findString(name); node != nowhere && x.paths.nodes[node].leaf {
				x.attributes[i] = node
			}
		}
	}
}

// Rules returns the rules of the index, disabled ones too, in the order they were given. The caller must not change
// the slice.
func (x *Index) Rules() []*Rule {
	if list := x.rules.Load(); list != nil {
		return *list
	}
	list, _ := living(x.parts)
	x.rules.Store(&list)
	return list
}

// living returns the rules of some parts that are not gone, and their orders, which are ascending.
func living(parts []part) ([]*Rule, []uint32) {
	var plans []*plan
	for i := range parts {
		p := &parts[i]
		for rule := range p.plans {
			if !p.isGone(int32(rule)) {
				plans = append(plans, &p.plans[rule])
			}
		}
	}
	slices.SortFunc(plans, func(a, b *plan) int { return cmp.Compare(a.order, b.order) })
	rules, orders := make([]*Rule, len(plans)), make([]uint32, len(plans))
	for i, p := range plans {
		rules[i], orders[i] = p.rule, p.order
	}
	return rules, orders
}

// Failures counts the evaluations of when and sql that have failed, over this index and those that it was made of by
// With.
func (x *Index) Failures() uint64 { return x.failures.Load() }

// Match is one rule that matched.
type Match struct{ Rule *Rule }

// Match appends the enabled rules that match ev to dst, in the order of the index. It does not block. A when or sql is
// evaluated once the pattern has matched; if that fails, the rule does not match, and the failure is counted
// (Failures) and told (Scratch.OnFailure). So there is no error today; callers should still treat one as the event
// not having been matched. With a reused dst and s nothing is allocated, but for s to grow, and for what expressions
// make. A nil s is allowed and costs a new one.
func (x *Index) Match(ev *event.Event, s *Scratch, dst []Match) ([]Match, error) {
	if s == nil {
		s = new(Scratch)
	}
	s.begin(x)
	s.event, s.waiting = ev, ev.Data != nil && x.paths.data != nowhere
	s.readAttributes(ev)
	return s.match(dst), nil
}

// MatchDocument matches a bare JSON document instead of an event: its own members are what paths begin with; to a when
// it is the data of an event that has nothing else. The error
// is a *fault.Error of kind Invalid when json is not one JSON object. json must not change during the call.
func (x *Index) MatchDocument(json []byte, s *Scratch, dst []Match) ([]Match, error) {
	if s == nil {
		s = new(Scratch)
	}
	s.begin(x)
	s.document = json
	if len(json) > MaxDocument || !startsObject(json) || !s.scan(x.paths, json, 0) {
		if err := s.direct.loadDocument(json); err != nil {
			return dst, err // it has the words
		}
	}
	return s.match(dst), nil
}

func startsObject(json []byte) bool {
	i := skipSpace(json, 0)
	return i < len(json) && json[i] == '{'
}
