// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/rules"
)

// drawVerdicts draws why rules match an event or do not, for a person, in 80 columns. whole shows every clause of every
// rule; without it, rules are listed with what kept them from matching. foreign is why none of it counts; "" if it does.
func drawVerdicts(s subject, v verdicts, whole bool, foreign string, paint palette) string {
	p := &picture{paint: paint}
	p.head(s.raw)
	if s.position != "" {
		p.field("stored", s.position)
	}
	p.b.WriteByte('\n')
	if foreign != "" {
		for _, text := range wrap(foreign, pageWidth-4) {
			p.line("", paint.bad(text))
		}
		p.b.WriteByte('\n')
	}
	if !whole {
		p.nearest(v)
		return p.b.String()
	}
	for i, x := range v.Rules {
		if i > 0 {
			p.b.WriteByte('\n')
		}
		p.ruleInFull(x)
	}
	return p.b.String()
}

// nearest lists rules, those that match first and those that nearly do behind them.
func (p *picture) nearest(v verdicts) {
	matched := 0
	var branches []branch
	for i := range v.Rules {
		x := &v.Rules[i]
		b := branch{verdict: ruleVerdict{Rule: x.Rule, Revision: x.Revision, Matched: x.Matched && !x.Disabled, Explanation: &x.Explanation}}
		if b.verdict.Matched {
			matched++
		}
		branches = append(branches, b)
	}
	all := count(len(v.Rules)+v.RulesMore, "rule") + " on " + clean(v.Bus)
	switch {
	case len(v.Rules) == 0:
		p.line("", p.paint.dim("○")+" there is no rule on "+p.paint.bold(clean(v.Bus)))
		return
	case matched == 0:
		p.line("", p.paint.dim("○")+" none of "+all+" matches; those that nearly do come first")
	default:
		p.line("", p.paint.good("●")+fmt.Sprintf(" %d of %s would take it", matched, all))
	}
	p.branches(branches, v.RulesMore)
}

// ruleInFull draws every clause of a rule.
func (p *picture) ruleInFull(x rules.RuleExplanation) {
	mark, state, colour := p.paint.dim("○"), "no match", p.paint.bad
	switch {
	case x.Disabled:
		state, colour = "disabled", p.paint.wait
	case x.Matched:
		mark, state, colour = p.paint.good("●"), "matches", p.paint.good
	}
	p.entry("", mark+" ", p.paint.bold(clean(x.Rule)), clean(x.Rule), state, colour)
	conditions, note := conditionsOf(&x.Explanation), noteOf(&x.Explanation)
	for i, c := range x.Clauses {
		p.inFull(c, i == len(x.Clauses)-1 && len(conditions) == 0 && note == "")
	}
	for i, c := range conditions {
		stem := p.clause("", i == len(conditions)-1 && note == "", c.Verdict, c.name+": "+c.Actual)
		p.note(stem, c.Expression)
	}
	for i, text := range wrap(clean(note), pageWidth-8) {
		fork := "   "
		if i == 0 {
			p.line("", "│")
			fork = "└─ "
		}
		p.line("", fork+text)
	}
}

// inFull draws one clause of a pattern: what is there, and what was wanted if that is something else.
func (p *picture) inFull(c rules.Clause, last bool) {
	text, isOr := orDefault(c.Path, c.Pointer), strings.HasSuffix(c.Pointer, "/$or")
	if isOr {
		text = strings.TrimSpace(c.Path + " $or")
	}
	branch := ""
	if parts := strings.Split(c.Pointer, "/$or/"); len(parts) > 1 {
		number, _, _ := strings.Cut(parts[len(parts)-1], "/")
		branch = strings.Repeat("    ", min(len(parts)-2, 5)) + "[" + number + "]"
	}
	stem := p.clause(branch, last, c.Verdict, text+": "+shorten(c.Actual, 200))
	if !isOr && c.Expected != "["+c.Actual+"]" {
		p.note(stem, "wanted "+shorten(c.Expected, 160))
	}
	if c.Hint != "" && c.Verdict == rules.Failed {
		p.note(stem, c.Hint)
	}
}

// clause draws the first line of a clause, behind the number of its branch if it is in one, and returns what its notes
// stand behind.
func (p *picture) clause(branch string, last bool, verdict rules.Verdict, text string) (stem string) {
	fork, stem := "├─ ", "│  "
	if last {
		fork, stem = "└─ ", "   "
	}
	mark, colour := "–", p.paint.dim
	switch verdict {
	case rules.Matched:
		mark, colour = "✓", p.paint.good
	case rules.Failed:
		mark, colour = "✗", p.paint.bad
	}
	if branch != "" {
		branch = "  " + branch + " "
		if !last {
			fork = stem
		}
	}
	indent := strings.Repeat(" ", utf8.RuneCountInString(branch))
	for i, part := range wrap(clean(text), pageWidth-9-len(indent)) {
		if i == 0 {
			p.line("", fork+p.paint.dim(branch)+colour(mark)+" "+part)
			continue
		}
		p.line("", stem+indent+"    "+part)
	}
	return stem + indent
}
