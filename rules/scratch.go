// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/internal/event"
)

// Scratch is the memory that matching works in. The zero value is ready. It may be used for any number of events and
// indexes, one after the other, and not by two goroutines at once. Between calls it holds on to the last event.
type Scratch struct {
	// OnFailure, if it is set, is called by Match when a when or sql cannot be evaluated. It must not use the Scratch.
	OnFailure func(r *Rule, err error)

	x        *Index
	event    *event.Event
	document []byte // instead of an event
	waiting  bool   // data has not been read yet

	epoch   uint32 // of this event; what has another stamp is not of it
	slots   []slot // by node of the trie
	values  []scalar
	thrift  thrift  // of values
	touched []int32 // nodes with values
	tainted bool    // some node is
	doubted bool    // what a lookup finds proves nothing: a number has no exact key, or a text is not UTF-8
	doc     document
	open    []frame
	folded  []byte

	part       *part
	stamps     []uint32 // rules that are candidates
	listed     []uint32 // lists that were gone through
	memos      []uint32 // results of conditions: the epoch, shifted, and the result
	candidates []int32
	found      []found
	count      uint32 // see needsDirect

	direct direct
	parsed bool // direct has been given the event

	evaluation evaluation
	carrier    event.Event // of a bare document, for expressions
}

// found is a rule that matched.
type found struct {
	order uint32
	rule  *Rule
}

// begin makes everything ready for another event.
func (s *Scratch) begin(x *Index) {
	s.x, s.event, s.document, s.waiting, s.parsed, s.tainted, s.doubted = x, nil, nil, false, false, false, false
	if s.epoch++; s.epoch >= 1<<31 {
		clear(s.slots)
		clear(s.stamps)
		clear(s.listed)
		clear(s.memos)
		s.epoch = 1
	}
	if s.count++; s.count >= 1<<31 {
		clear(s.slots)
		s.count = 1
	}
	s.slots = atLeastLen(s.slots, len(x.paths.nodes))
	s.stamps = atLeastLen(s.stamps, int(x.allPlans))
	s.listed = atLeastLen(s.listed, int(x.allLists))
	s.memos = atLeastLen(s.memos, int(x.allMemos))
	s.doc.reset()
	if s.thrift.spare(cap(s.values), len(s.values), keepNodes) {
		s.values = nil
	}
	s.values, s.touched, s.found = s.values[:0], s.touched[:0], s.found[:0]
}

func atLeastLen[T any](s []T, n int) []T {
	if len(s) < n {
		return append(s, make([]T, n-len(s))...)
	}
	return s
}

// readAttributes records the attributes that rules look at.
func (s *Scratch) readAttributes(ev *event.Event) {
	for i, node := range s.x.attributes {
		if node == nowhere {
			continue
		}
		if i == len(attributeNames)-1 {
			if !ev.Time.IsZero() {
				from := len(s.doc.arena)
				s.doc.arena = appendTime(s.doc.arena, ev.Time)
				s.record(node, value{kindString, s.doc.tail(from)})
			}
			continue
		}
		if text := attribute(ev, i); text != "" {
			s.doubted = s.doubted || !utf8.ValidString(text)
			s.record(node, value{kindString, s.doc.keep(text)})
		}
	}
	kids := s.x.paths.nodes[0].kids
	if kids == nil {
		return
	}
	for i := range ev.Extensions {
		a := &ev.Extensions[i]
		node := int32(nowhere)
		if strings.IndexByte(a.Name, '.') >= 0 {
			node = s.descend(s.x.paths, s.doc.keep(a.Name), 0)
		} else {
			node = kids.findString(a.Name)
		}
		if node != nowhere && s.x.paths.nodes[node].leaf {
			if v, ok := s.doc.extension(a); ok {
				s.doubted = s.doubted || !utf8.Valid(v.text)
				s.record(node, v)
			}
		}
	}
}

// readData scans the payload if that has not been done.
func (s *Scratch) readData() {
	if !s.waiting {
		return
	}
	s.waiting = false
	if notJSON(s.event.DataContentType) == "" {
		s.scan(s.x.paths, s.event.Data, s.x.paths.data)
	}
}

// match finds the rules that match what has been read.
func (s *Scratch) match(dst []Match) []Match {
	if s.x.inData {
		s.readData()
	}
	for i := range s.x.parts {
		s.matchPart(&s.x.parts[i])
	}
	if len(s.found) > 1 {
		slices.SortFunc(s.found, func(a, b found) int { return cmp.Compare(a.order, b.order) })
	}
	asked := false
	for _, f := range s.found {
		if f.rule.When != nil || f.rule.SQL != nil {
			if !asked {
				asked = true
				s.evaluation.reset()
			}
			if !s.condition(f.rule) {
				continue
			}
		}
		dst = append(dst, Match{f.rule})
	}
	return dst
}

// condition evaluates the when and sql of a rule whose pattern matches.
func (s *Scratch) condition(r *Rule) bool {
	ev := s.event
	if ev == nil {
		s.carrier = event.Event{DataContentType: jsonType, Data: s.document}
		ev = &s.carrier
	}
	holds, err := r.condition(&s.evaluation, ev)
	if err != nil {
		s.x.failures.Add(1)
		if s.OnFailure != nil {
			s.OnFailure(r, err)
		}
	}
	return holds
}

// condition reports whether the when and the sql of a rule hold.
func (r *Rule) condition(n *evaluation, ev *event.Event) (bool, error) {
	if r.When != nil {
		if holds, err := n.holds(r.When, ev); err != nil || !holds {
			return false, failedIn("when", err)
		}
	}
	if r.SQL != nil {
		if holds, err := r.SQL.holds(ev); err != nil || !holds {
			return false, failedIn("sql", err)
		}
	}
	return true, nil
}

func failedIn(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

func (s *Scratch) matchPart(p *part) {
	s.part, s.candidates = p, s.candidates[:0]
	for _, node := range s.touched {
		if int(node) >= len(p.lookups) || p.lookups[node] == nil {
			continue
		}
		l := p.lookups[node]
		for j := s.slots[node].first; j != nowhere; j = s.values[j].next {
			l.find(s, &s.values[j])
		}
	}
	for _, rule := range s.candidates {
		s.try(rule)
	}
	for _, rule := range p.always {
		s.try(rule)
	}
}

// emit adds the rules of a posting to the candidates.
func (s *Scratch) emit(p posting) {
	switch {
	case p > 0:
		s.candidate(int32(p - 1))
	case p < 0:
		list := ^p
		at := &s.listed[s.part.firstList+int32(list)]
		if *at == s.epoch {
			return
		}
		*at = s.epoch
		for _, rule := range s.part.listed[s.part.lists[list]:s.part.lists[list+1]] {
			s.candidate(rule)
		}
	}
}

func (s *Scratch) candidate(rule int32) {
	if at := &s.stamps[s.part.firstPlan+rule]; *at != s.epoch {
		*at = s.epoch
		s.candidates = append(s.candidates, rule)
	}
}

// try adds a rule to those found if it matches.
func (s *Scratch) try(rule int32) {
	if s.part.isGone(rule) {
		return
	}
	p := &s.part.plans[rule]
	code := s.part.code[p.from : p.from+p.size]
	rest := code
	if p.proven && !s.doubted {
		rest = code[:len(code)-1]
	}
	if !s.all(rest) {
		return
	}
	if s.tainted && s.needsDirect(code) && !s.directly(p.rule.Pattern) {
		return
	}
	s.found = append(s.found, found{p.order, p.rule})
}

// all reports whether all conditions of a code hold, each by itself.
func (s *Scratch) all(code []int32) bool {
	for i := 0; i < len(code); {
		if code[i] >= 0 {
			if !s.holds(code[i]) {
				return false
			}
			i++
			continue
		}
		n, good := ^code[i], false
		i++
		for range n {
			size := int(code[i])
			i++
			good = good || s.all(code[i:i+size])
			i += size
		}
		if !good {
			return false
		}
	}
	return true
}

// holds reports whether a condition holds. In events with arrays of objects it errs to the side of true.
func (s *Scratch) holds(id int32) bool {
	c := &s.part.conds[id]
	if s.waiting && s.x.paths.nodes[c.node].data {
		s.readData()
	}
	if c.field == nil {
		sl := &s.slots[c.node]
		if sl.stamp != s.epoch {
			return false
		}
		for j := sl.first; j != nowhere; j = s.values[j].next {
			if v := &s.values[j]; v.kind == kindString && string(v.text) == c.one {
				return true
			}
		}
		return false
	}
	if c.memo == nowhere {
		return s.look(c)
	}
	memo := &s.memos[s.part.firstMemo+c.memo]
	if *memo>>1 != s.epoch {
		*memo = s.epoch << 1
		if s.look(c) {
			*memo |= 1
		}
	}
	return *memo&1 == 1
}

// look evaluates a condition.
func (s *Scratch) look(c *cond) bool {
	sl := &s.slots[c.node]
	if sl.stamp != s.epoch {
		return c.field.absent
	}
	for j := sl.first; j != nowhere; j = s.values[j].next {
		if c.field.holds(s.values[j].value) {
			return true
		}
	}
	return c.field.absent && s.tainted && s.taintedAbove(c.node)
}

func (s *Scratch) taintedAbove(node int32) bool {
	for node = s.x.paths.nodes[node].parent; node != nowhere; node = s.x.paths.nodes[node].parent {
		if s.slots[node].tainted == s.epoch {
			return true
		}
	}
	return false
}

// needsDirect reports whether conditions that hold one by one may fail to do so together: two of them, or one that
// takes an absence, lie below one tainted node.
func (s *Scratch) needsDirect(code []int32) bool {
	if s.count++; s.count >= 1<<31 {
		return true // begin starts again at 1
	}
	return s.shared(code)
}

func (s *Scratch) shared(code []int32) bool {
	for i := 0; i < len(code); {
		if code[i] < 0 {
			n := ^code[i]
			i++
			for range n {
				size := int(code[i])
				i++
				if s.shared(code[i : i+size]) {
					return true
				}
				i += size
			}
			continue
		}
		c := &s.part.conds[code[i]]
		i++
		for node := s.x.paths.nodes[c.node].parent; node != nowhere; node = s.x.paths.nodes[node].parent {
			sl := &s.slots[node]
			if sl.tainted != s.epoch {
				continue
			}
			if c.field != nil && c.field.absent || sl.counted == s.count {
				return true
			}
			sl.counted = s.count
		}
	}
	return false
}

// directly asks the evaluator.
func (s *Scratch) directly(p *Pattern) bool {
	if !s.parsed {
		s.parsed = true
		if s.event != nil {
			s.direct.loadEvent(s.event)
		} else if err := s.direct.loadDocument(s.document); err != nil {
			return false // the scanner takes nothing else
		}
	}
	return s.direct.matches(p)
}
