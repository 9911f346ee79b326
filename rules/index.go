// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"unicode/utf8"

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
