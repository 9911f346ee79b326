// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// The check of JSON Schemas asks whether every document that is valid for a writer is valid for a reader. It proves that
// keyword by keyword of the reader (docs/schemas.md lists the rules by name); where the proof fails it looks for a
// document that shows why, and the validator has the last word on that. What is left out of the writer's side, and what
// is not understood on the reader's, can cost a proof and never make a false one.

const (
	maxWork     = 30000 // steps of one check
	maxWitness  = 5     // documents that are kept at each level as candidates
	maxMessages = 20    // findings at each level
)

// found is a finding with what is needed to show it.
type found struct {
	rule, reason   string
	writer, reader string
	plain          bool  // the texts alone say so
	open           bool  // not decided, and no document is looked for
	shown          []any // documents of the writer that the reader refuses, at this level
}

// checker is one check of one writer's text against one reader's. Not safe for concurrent use.
type checker struct {
	policy Policy
	work   int
	stack  map[string]int // what is being checked, by its depth
	lowest int            // depth of the lowest entry of stack that was taken for granted since it was reset
	done   map[string][]found
	same   map[[2]*js]bool
	pool   map[string][]any // samples
}

func newChecker(p Policy) *checker {
	return &checker{policy: p, stack: map[string]int{}, lowest: math.MaxInt, done: map[string][]found{}, same: map[[2]*js]bool{}, pool: map[string][]any{}}
}

// jsonFindings lists why documents of w may not be valid for r, in order.
func jsonFindings(w, r *jsonSchema, p Policy) []Finding {
	c := newChecker(p)
	if c.equal(w.root, r.root) {
		return nil
	}
	if w.dynamic || r.dynamic {
		return []Finding{{Outcome: Unknown, Rule: "R5", Reason: "$dynamicRef and $recursiveRef are not compared"}}
	}
	root := conj(w.root)
	var out []Finding
	for _, f := range c.fitsAll(root, r.root) {
		out = append(out, c.finding(root, r.root, f))
	}
	slices.SortFunc(out, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Reader, b.Reader), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Reason, b.Reason))
	})
	return slices.CompactFunc(out, func(a, b Finding) bool { return a.Reader == b.Reader && a.Rule == b.Rule && a.Reason == b.Reason })
}

// finding is what users see of a finding at the root.
func (c *checker) finding(w *writer, r *js, f found) Finding {
	out := Finding{Outcome: Unknown, Rule: f.rule, Reason: f.reason, Writer: f.writer, Reader: f.reader}
	if f.plain {
		out.Outcome = Incompatible
	}
	if f.open {
		return out
	}
	for _, v := range f.shown {
		if !w.valid(v) || r.Validate(v) == nil {
			continue
		}
		if b, err := canonicalJSON(v); err == nil && len(b) <= 4096 {
			out.Outcome, out.Witness = Incompatible, json.RawMessage(b)
			break
		}
	}
	return out
}

// fitsAll checks documents of every kind.
func (c *checker) fitsAll(w *writer, r *js) []found {
	if r.Bool != nil && *r.Bool || c.sameAsOne(w, r) {
		return nil
	}
	var out []found
	k, _ := w.kinds()
	k.each(func(one kinds) { out = append(out, c.fits(w, r, one)...) })
	return limit(out)
}

func limit(list []found) []found { return list[:min(len(list), maxMessages)] }

// sameAsOne reports whether r is among what w's documents are valid for.
func (c *checker) sameAsOne(w *writer, r *js) bool {
	for _, s := range w.roots {
		if c.equal(s, r) {
			return true
		}
	}
	for _, s := range w.local {
		if c.equal(s, r) {
			return true
		}
	}
	return false
}

// fits checks documents of one kind: first all together, then, where that fails, for each branch of the writer's unions.
func (c *checker) fits(w *writer, r *js, k kinds) []found {
	key := fmt.Sprintf("%s/%d>%p/%d", w.key(), len(w.unions), r, k)
	if at, ok := c.stack[key]; ok {
		// On the way here a member was entered, so the document at hand is smaller: what is proved of the larger one may
		// be taken for granted.
		c.lowest = min(c.lowest, at)
		return nil
	}
	if out, ok := c.done[key]; ok {
		return out
	}
	if c.work++; c.work > maxWork {
		return []found{{rule: "W1", reason: "the schemas are too entangled to be compared in bounded time", writer: w.pointer(), reader: pointerOf(r), open: true}}
	}
	depth, before := len(c.stack), c.lowest
	c.stack[key], c.lowest = depth, math.MaxInt
	out := c.fitsOrSplit(w, r, k)
	delete(c.stack, key)
	if c.lowest >= depth { // nothing but itself was taken for granted
		c.done[key] = out
		c.lowest = math.MaxInt
	}
	c.lowest = min(c.lowest, before)
	return out
}

func (c *checker) fitsOrSplit(w *writer, r *js, k kinds) []found {
	if values, ok := c.finite(w, k); ok {
		return c.fitsValues(w, r, values)
	}
	out := c.keywords(w, r, k)
	if len(out) == 0 || c.empty(w, k, 0) {
		return nil
	}
	if len(w.unions) > 0 {
		out = nil
		for _, branch := range w.split() {
			if t, _ := branch.kinds(); t&k != 0 && !c.sameAsOne(branch, r) {
				out = append(out, c.fits(branch, r, k)...)
			}
		}
		return limit(out)
	}
	for i := range out {
		c.show(w, r, k, &out[i])
	}
	return limit(out)
}

// fitsValues is exact: each value is tried.
func (c *checker) fitsValues(w *writer, r *js, values []any) []found {
	var shown []any
	for _, v := range values {
		if r.Validate(v) != nil {
			shown = append(shown, v)
		}
	}
	if shown == nil {
		return nil
	}
	return []found{{rule: "E1", reason: fmt.Sprintf("the reader refuses %d of the %d values that the writer may send", len(shown), len(values)),
		writer: w.pointer(), reader: pointerOf(r), plain: true, shown: shown[:min(len(shown), maxWitness)]}}
}

// fail is a finding of a rule. It is plain unless something of the writer's was left out.
func (c *checker) fail(w *writer, r *js, rule, format string, args ...any) []found {
	return []found{{rule: rule, reason: fmt.Sprintf(format, args...), writer: w.pointer(), reader: pointerOf(r), plain: !w.loose && len(w.unions) == 0}}
}

// doubt is a finding that only a document makes more than unknown.
func (c *checker) doubt(w *writer, r *js, rule, format string, args ...any) []found {
	out := c.fail(w, r, rule, format, args...)
	out[0].plain = false
	return out
}

// keywords checks every keyword of the reader against the writer's documents of one kind.
func (c *checker) keywords(w *writer, r *js, k kinds) []found {
	if r.Bool != nil {
		if *r.Bool {
			return nil
		}
		return c.fail(w, r, "O3", "the reader allows nothing here")
	}
	if r.DraftVersion < 2019 && r.Ref != nil {
		out := c.fits(w, r.Ref, k)
		if r.Const != nil {
			out = append(out, c.fail(w, r, "E1", "the reader has a const")...)
		}
		return out
	}
	if out := c.typeAndValues(w, r, k); out != nil {
		return out
	}
	var out []found
	switch k {
	case kindNumber:
		out = c.numbers(w, r)
	case kindString:
		out = c.strings(w, r)
	case kindArray:
		out = c.arrays(w, r)
	case kindObject:
		out = c.objects(w, r)
	}
	if r.Ref != nil && !c.sameAsOne(w, r.Ref) {
		out = append(out, c.fits(w, r.Ref, k)...)
	}
	for _, p := range r.AllOf {
		if !c.sameAsOne(w, p) {
			out = append(out, c.fits(w, p, k)...)
		}
	}
	out = append(out, c.anyOf(w, r, k)...)
	out = append(out, c.oneOf(w, r, k)...)
	out = append(out, c.not(w, r, k)...)
	return append(out, c.ifThenElse(w, r, k)...)
}

// typeAndValues is rules T1 and E1.
func (c *checker) typeAndValues(w *writer, r *js, k kinds) []found {
	allowed, whole := typesOf(r)
	_, wWhole := w.kinds()
	switch {
	case allowed&k == 0:
		return c.fail(w, r, "T1", "the reader does not take values of type %s", kindName(k))
	case k == kindNumber && whole && !wWhole:
		return c.fail(w, r, "T1", "the reader takes whole numbers only")
	case r.Const != nil:
		return c.fail(w, r, "E1", "the reader takes one value only, and the writer is not bound to it")
	case r.Enum != nil:
		return c.fail(w, r, "E1", "the reader takes the values of an enum only, and the writer is not bound to some")
	}
	return nil
}

func kindName(k kinds) string {
	for _, n := range []string{"null", "boolean", "number", "string", "array", "object"} {
		if kindNames[n] == k {
			return n
		}
	}
	return "any"
}

// anyOf is rule C1: one branch takes all, unless the writer can be taken apart further.
func (c *checker) anyOf(w *writer, r *js, k kinds) []found {
	if len(r.AnyOf) == 0 {
		return nil
	}
	for _, l := range w.local {
		if len(l.AnyOf) > 0 && c.sameList(l.AnyOf, r.AnyOf) {
			return nil
		}
	}
	for _, p := range r.AnyOf {
		if c.sameAsOne(w, p) || len(c.fits(w, p, k)) == 0 {
			return nil
		}
	}
	return c.doubt(w, r, "C1", "none of the reader's anyOf takes every %s of the writer", kindName(k))
}

// oneOf is rules C1 and C2: one branch takes all, and each other takes none of them.
func (c *checker) oneOf(w *writer, r *js, k kinds) []found {
	if len(r.OneOf) == 0 {
		return nil
	}
	for _, l := range w.local {
		if len(l.OneOf) > 0 && c.sameList(l.OneOf, r.OneOf) {
			return nil
		}
	}
	rule, reason := "C1", "none of the reader's oneOf takes every %s of the writer"
	for i, p := range r.OneOf {
		if !c.sameAsOne(w, p) && len(c.fits(w, p, k)) > 0 {
			continue
		}
		alone := true
		for j, q := range r.OneOf {
			alone = alone && (i == j || c.empty(w.with(q), k, 0))
		}
		if alone {
			return nil
		}
		rule, reason = "C1", "more than one of the reader's oneOf may take a %s of the writer"
	}
	return c.doubt(w, r, rule, reason, kindName(k))
}

// not is rule C4.
func (c *checker) not(w *writer, r *js, k kinds) []found {
	if r.Not == nil {
		return nil
	}
	for _, s := range w.local {
		if s.Not != nil && c.equal(s.Not, r.Not) {
			return nil
		}
	}
	if c.empty(w.with(r.Not), k, 0) {
		return nil
	}
	return c.doubt(w, r, "C4", "the writer may send what the reader excludes by not")
}

// ifThenElse is rule C5: equal in the writer, or both branches take all.
func (c *checker) ifThenElse(w *writer, r *js, k kinds) []found {
	if r.If == nil || r.Then == nil && r.Else == nil {
		return nil
	}
	for _, s := range w.local {
		if s.If != nil && c.equal(s.If, r.If) && c.equalOrNil(s.Then, r.Then) && c.equalOrNil(s.Else, r.Else) {
			return nil
		}
	}
	both := true
	for _, p := range []*js{r.Then, r.Else} {
		both = both && (p == nil || c.sameAsOne(w, p) || len(c.fits(w, p, k)) == 0)
	}
	if both {
		return nil
	}
	out := c.doubt(w, r, "C5", "if, then and else of the reader are not decided unless the writer has the same")
	out[0].open = true
	return out
}
