// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"slices"

	"github.com/rialto-bridge/rialto/internal/event"
)

// MaxExplained is how many rules ExplainAll explains.
const MaxExplained = 100

// RuleExplanation is an Explanation with the rule that it is about.
type RuleExplanation struct {
	Rule     string `json:"rule"`
	Bus      string `json:"bus,omitempty"`
	Revision uint64 `json:"revision,omitempty"`
	Disabled bool   `json:"disabled,omitempty"`
	Explanation
}

// distance is how far a rule is from matching.
type distance struct {
	rule   *Rule
	order  uint32
	failed int // conditions
	held   int
}

func (d distance) compare(other distance) int {
	return cmp.Or(cmp.Compare(d.failed, other.failed), cmp.Compare(other.held, d.held), cmp.Compare(d.order, other.order))
}

// ExplainAll explains the rules of the index for an event, those that match first and then those that nearly do: with
// the fewest clauses that fail, and of these with the most that hold. There are at most MaxExplained. It looks at every
// rule, which takes some 10 ms for 100,000.
func (x *Index) ExplainAll(ev *event.Event) []RuleExplanation {
	var nearest []distance
	var s Scratch
	s.begin(x)
	s.event, s.waiting = ev, ev.Data != nil && x.paths.data != nowhere
	s.readAttributes(ev)
	s.readData()
	for i := range x.parts {
		s.part = &x.parts[i]
		for rule := range s.part.plans {
			if s.part.isGone(int32(rule)) {
				continue
			}
			p := &s.part.plans[rule]
			d := distance{rule: p.rule, order: p.order}
			d.failed, d.held = s.missing(s.part.code[p.from : p.from+p.size])
			if nearest = append(nearest, d); len(nearest) >= 4*MaxExplained {
				nearest = keepNearest(nearest)
			}
		}
	}
	explained := []RuleExplanation{}
	for _, d := range keepNearest(nearest) {
		explained = append(explained, RuleExplanation{d.rule.Name, d.rule.Bus, d.rule.Revision, d.rule.Disabled, d.rule.Explain(ev)})
	}
	slices.SortStableFunc(explained, func(a, b RuleExplanation) int { return boolOrder(b.Matched) - boolOrder(a.Matched) })
	return explained
}

func boolOrder(b bool) int {
	if b {
		return 1
	}
	return 0
}

func keepNearest(list []distance) []distance {
	slices.SortFunc(list, distance.compare)
	return list[:min(len(list), MaxExplained)]
}

// missing counts the conditions of a code that fail and those that hold; of a $or, in the branch that comes closest.
func (s *Scratch) missing(code []int32) (failed, held int) {
	for i := 0; i < len(code); {
		if code[i] >= 0 {
			if s.holds(code[i]) {
				held++
			} else {
				failed++
			}
			i++
			continue
		}
		n := ^code[i]
		i++
		best := tally{failed: -1}
		for range n {
			size := int(code[i])
			i++
			f, h := s.missing(code[i : i+size])
			if t := (tally{failed: f, held: h}); best.failed < 0 || t.closer(best) {
				best = t
			}
			i += size
		}
		failed += best.failed
		held += best.held
	}
	return failed, held
}
