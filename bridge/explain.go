// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/rules"
)

// ExplainEvent says of an event, stored or not, what the rules of a bus that are in force now make of it: those that
// match first, then those that nearly do, then disabled ones. There are at most rules.MaxExplained; more is how many
// others the bus has. The error is NotFound for a bus that is not there, and Unavailable while its rules are not loaded.
// It works on the caller's goroutine, some 10 ms for 100,000 rules.
func (b *Bridge) ExplainEvent(ctx context.Context, bus string, ev *event.Event) (explained []rules.RuleExplanation, more int, err error) {
	rs, err := b.inForce(ctx, bus)
	if err != nil {
		return nil, 0, err
	}
	explained = rs.index.ExplainAll(ev)
	var off []*rules.Rule // the index leaves them out
	for _, r := range rs.byName {
		if r.Disabled {
			off = append(off, r)
		}
	}
	slices.SortFunc(off, func(x, y *rules.Rule) int { return cmp.Compare(x.Name, y.Name) })
	for _, r := range off[:min(len(off), rules.MaxExplained-len(explained))] {
		explained = append(explained, explain(r, ev))
	}
	return explained, len(rs.byName) - len(explained), nil
}

// ExplainRule is ExplainEvent for one rule. The error is NotFound if the bus has no such rule in force.
func (b *Bridge) ExplainRule(ctx context.Context, bus, rule string, ev *event.Event) (rules.RuleExplanation, error) {
	rs, err := b.inForce(ctx, bus)
	if err != nil {
		return rules.RuleExplanation{}, err
	}
	r := rs.byName[rule]
	if r == nil {
		return rules.RuleExplanation{}, fault.New(fault.NotFound, "bus %q has no rule %q in force", bus, rule)
	}
	return explain(r, ev), nil
}

func explain(r *rules.Rule, ev *event.Event) rules.RuleExplanation {
	return rules.RuleExplanation{Rule: r.Name, Bus: r.Bus, Revision: r.Revision, Disabled: r.Disabled, Explanation: r.Explain(ev)}
}

// What Observed looks at.
const (
	observedEvents = 200
	observedBytes  = 4 << 20 // of data
	observedLeast  = 20
	observedPage   = 25
)

// Observed returns the paths that the newest stored events of a rule's bus have, of those events whose attributes are as
// the rule wants them: what is in none of them, the rule asks in vain. nil means that there are too few to say so.
func (b *Bridge) Observed(ctx context.Context, r *rules.Rule) (rules.Paths, error) {
	p, err := b.path(r.Bus)
	if err != nil {
		return nil, err
	}
	seen := rules.Paths{}
	var buf []eventlog.Entry
	looked, size, fit := 0, 0, 0
	for end, first := p.log.Committed(), max(p.log.First(), 1); end >= first && looked < observedEvents && size < observedBytes; {
		from := first
		if end-first >= observedPage {
			from = end - observedPage + 1
		}
		if buf, _, err = p.log.Read(ctx, from, int(end-from+1), buf[:0]); err != nil {
			return nil, err
		}
		for _, e := range slices.Backward(buf) {
			ev := &e.Record.Event
			looked++
			size += len(ev.Data)
			if attributesFit(r, ev) {
				fit++
				seen.Add(ev)
			}
		}
		end = from - 1
	}
	if fit < observedLeast {
		return nil, nil
	}
	return seen, nil
}

// attributesFit reports whether no clause of a rule about attributes fails.
func attributesFit(r *rules.Rule, ev *event.Event) bool {
	head := *ev
	head.Data = nil // which is never parsed then
	return !slices.ContainsFunc(r.Explain(&head).Clauses, func(c rules.Clause) bool {
		inside := c.Path == "" || c.Path == "data" || strings.HasPrefix(c.Path, "data.") || strings.HasSuffix(c.Pointer, "/$or")
		return c.Verdict == rules.Failed && !inside
	})
}

// inForce returns the rules of a bus.
func (b *Bridge) inForce(ctx context.Context, bus string) (*ruleset, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p, err := b.path(bus)
	if err != nil {
		return nil, err
	}
	rs := p.rules.Load()
	if rs == nil {
		return nil, fault.New(fault.Unavailable, "the rules of bus %q are not loaded yet", bus)
	}
	return rs, nil
}
