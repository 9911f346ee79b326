// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"encoding/json"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// A quick check reads a document once, byte by byte, and builds nothing of it. It has two answers: the document is valid,
// or it does not know, and then Decode and the library decide and say what is wrong. So it may leave out whatever is rare, and a
// part that asks for more than the schema does costs time and nothing else; a part that asks for less would be a fault, which is what
// FuzzQuick looks for.

// part is what one schema asks of a value, as far as a quick check knows how to tell.
type part struct {
	unknown bool    // it asks what only the library can tell
	types   typeSet // 0 = any
	also    []*part // what the value has to fit, too
	any     [][]*part

	listed *listed // of an enum or const; nil = any value

	texts    bool // strings are looked into
	shortest int  // code points
	longest  int
	pattern  *regexp.Regexp
	format   *jsonschema.Format

	bounds []bound

	members     map[string]member
	required    uint64 // bits of members
	patterns    []patternPart
	rest        *part // of members that nothing else is about; nil = any
	fewest      int   // members
	most        int
	prefix      []*part
	items       *part // beyond the prefix; nil = any
	fewestItems int
	mostItems   int
}

// member is a member that is declared or required. Its bit says that it was there; those beyond 64 have none.
type member struct {
	bit      uint64
	declared bool
	part     *part
}

type patternPart struct {
	name *regexp.Regexp
	part *part
}

// listed are the scalars of an enum.
type listed struct {
	literals typeSet // null is there; see trueWord, falseWord
	texts    map[string]struct{}
	numbers  []number
}

// typeSet is a set of JSON types. A number that is an integer is in both.
type typeSet uint16

const (
	nullType typeSet = 1 << iota
	booleanType
	numberType
	integerType
	stringType
	arrayType
	objectType

	trueWord  // in a list alone
	falseWord // in a list alone
)

var typeBits = map[string]typeSet{"null": nullType, "boolean": booleanType, "number": numberType, "integer": integerType,
	"string": stringType, "array": arrayType, "object": objectType}

// number is a number as a float64. Of two exact ones the floats are equal if and only if the numbers are: numbers of 15
// decimal digits at most, none of them rounded into another. Of any two numbers, the one with the larger float is larger.
type number struct {
	float float64
	exact bool
}

const exactDigits = 15

// bound is a minimum or a maximum.
type bound struct {
	number
	upper, open bool // open: the number itself is beyond it
}

func (b bound) holds(n number) bool {
	switch {
	case n.float < b.float:
		return b.upper
	case n.float > b.float:
		return !b.upper
	}
	return !b.open && n.exact && b.exact
}

// quicken makes the quick check of a schema; nil if it would know of no document.
func quicken(root *jsonschema.Schema) *part {
	q := quickener{}
	if p := q.part(root); !p.unknown {
		return p
	}
	return nil
}

// quickener makes parts, one of each schema, so that a schema may recur.
type quickener map[*jsonschema.Schema]*part

func (q quickener) part(s *jsonschema.Schema) *part {
	if p, ok := q[s]; ok {
		return p
	}
	if s.Ref != nil && s.DraftVersion < 2019 { // nothing beside a $ref counts
		return q.part(s.Ref)
	}
	p := &part{longest: math.MaxInt, most: math.MaxInt, mostItems: math.MaxInt}
	q[s] = p
	if s.Bool != nil {
		p.unknown = !*s.Bool
		return p
	}
	if rare(s) {
		p.unknown = true
		return p
	}
	q.scalars(p, s)
	q.object(p, s)
	q.array(p, s)
	if s.Ref != nil && p.bare() && len(s.AllOf)+len(s.AnyOf)+len(s.OneOf) == 0 {
		q[s] = q.part(s.Ref)
		return q[s]
	}
	q.others(p, s)
	return p
}

// bare reports whether a part asks nothing of any value.
func (p *part) bare() bool {
	return !p.unknown && p.types == 0 && p.listed == nil && !p.texts && len(p.bounds)+len(p.members)+len(p.patterns)+len(p.prefix) == 0 &&
		p.rest == nil && p.items == nil && p.fewest == 0 && p.most == math.MaxInt && p.fewestItems == 0 && p.mostItems == math.MaxInt
}

// rare reports whether a schema has keywords that are left to the library.
func rare(s *jsonschema.Schema) bool {
	return s.RecursiveRef != nil || s.DynamicRef != nil || s.Not != nil || s.If != nil || s.PropertyNames != nil || len(s.Dependencies) > 0 ||
		len(s.DependentRequired) > 0 || len(s.DependentSchemas) > 0 || s.UnevaluatedProperties != nil || s.UnevaluatedItems != nil ||
		s.UniqueItems || s.Contains != nil || s.MultipleOf != nil || s.ContentEncoding != nil || s.ContentMediaType != nil ||
		s.ContentSchema != nil || len(s.Extensions) > 0
}

func (q quickener) scalars(p *part, s *jsonschema.Schema) {
	p.types = typesAsked(s)
	p.format = s.Format
	if s.Pattern != nil {
		p.pattern = regexp.MustCompile(s.Pattern.String()) // the library has compiled it, but does not match bytes
	}
	p.shortest, p.longest = orElse(s.MinLength, 0), orElse(s.MaxLength, math.MaxInt)
	p.texts = p.format != nil || p.pattern != nil || s.MinLength != nil || s.MaxLength != nil
	if s.Enum != nil {
		p.listed = listOf(s.Enum.Values)
	}
	if s.Const != nil {
		p.listed = listOf([]any{*s.Const})
		p.unknown = s.Enum != nil
	}
	p.bound(s.Minimum, false, false)
	p.bound(s.ExclusiveMinimum, false, true)
	p.bound(s.Maximum, true, false)
	p.bound(s.ExclusiveMaximum, true, true)
}

func typesAsked(s *jsonschema.Schema) typeSet {
	var out typeSet
	if s.Types != nil {
		for _, name := range s.Types.ToStrings() {
			out |= typeBits[name]
		}
	}
	return out
}

func orElse(n *int, otherwise int) int {
	if n == nil {
		return otherwise
	}
	return *n
}

func (p *part) bound(r *big.Rat, upper, open bool) {
	if r != nil {
		p.bounds = append(p.bounds, bound{numberOf(r), upper, open})
	}
}

// numberOf rounds a bound as ParseFloat rounds the numbers that are held against it.
func numberOf(r *big.Rat) number {
	f, _ := r.Float64()
	shortest, _, _ := strings.Cut(strconv.FormatFloat(f, 'e', -1, 64), "e")
	back, ok := new(big.Rat).SetString(strconv.FormatFloat(f, 'f', -1, 64))
	digits := len(strings.NewReplacer("-", "", ".", "").Replace(shortest))
	return number{f, ok && back.Cmp(r) == 0 && digits <= exactDigits && (f == 0 || math.Abs(f) >= 1e-15 && math.Abs(f) < 1e15)}
}

func listOf(values []any) *listed {
	w := &listed{texts: map[string]struct{}{}}
	for _, v := range values {
		switch v := v.(type) {
		case nil:
			w.literals |= nullType
		case bool:
			if v {
				w.literals |= trueWord
			} else {
				w.literals |= falseWord
			}
		case string:
			w.texts[v] = struct{}{}
		case json.Number:
			if r, ok := new(big.Rat).SetString(v.String()); ok {
				w.numbers = append(w.numbers, numberOf(r))
			}
		} // no document is known to be equal to an array or object
	}
	return w
}

func (q quickener) object(p *part, s *jsonschema.Schema) {
	p.fewest, p.most = orElse(s.MinProperties, 0), orElse(s.MaxProperties, math.MaxInt)
	p.members = make(map[string]member, len(s.Properties))
	for _, name := range s.Required {
		m, there := p.members[name]
		if !there {
			if len(p.members) == 64 {
				p.unknown = true
				return
			}
			m.bit = 1 << len(p.members)
			p.required |= m.bit
		}
		p.members[name] = m
	}
	for re, sub := range s.PatternProperties {
		p.patterns = append(p.patterns, patternPart{regexp.MustCompile(re.String()), q.part(sub)})
	}
	switch rest := s.AdditionalProperties.(type) {
	case bool:
		if !rest {
			p.rest = &part{unknown: true}
		}
	case *jsonschema.Schema:
		p.rest = q.part(rest)
	}
	for name, sub := range s.Properties {
		m, there := p.members[name]
		if !there && len(p.members) < 64 {
			m.bit = 1 << len(p.members)
		}
		m.declared, m.part = true, q.part(sub)
		p.unknown = p.unknown || there && m.part.unknown
		p.members[name] = m
	}
}

func (q quickener) array(p *part, s *jsonschema.Schema) {
	p.fewestItems, p.mostItems = orElse(s.MinItems, 0), orElse(s.MaxItems, math.MaxInt)
	for _, sub := range s.PrefixItems {
		p.prefix = append(p.prefix, q.part(sub))
	}
	if s.Items2020 != nil {
		p.items = q.part(s.Items2020)
	}
	switch items := s.Items.(type) { // before 2020
	case *jsonschema.Schema:
		p.items = q.part(items)
	case []*jsonschema.Schema:
		for _, sub := range items {
			p.prefix = append(p.prefix, q.part(sub))
		}
		switch more := s.AdditionalItems.(type) {
		case bool:
			if !more {
				p.items = &part{unknown: true}
			}
		case *jsonschema.Schema:
			p.items = q.part(more)
		}
	}
}

// others takes in the schemas that look at the same value.
func (q quickener) others(p *part, s *jsonschema.Schema) {
	if s.Ref != nil {
		p.also = append(p.also, q.part(s.Ref))
	}
	for _, sub := range s.AllOf {
		p.also = append(p.also, q.part(sub))
	}
	for _, sub := range p.also {
		p.unknown = p.unknown || sub.unknown
	}
	q.union(p, s.AnyOf)
	if len(s.OneOf) > 0 {
		p.unknown = p.unknown || !apart(s.OneOf)
		q.union(p, s.OneOf)
	}
}

func (q quickener) union(p *part, branches []*jsonschema.Schema) {
	if len(branches) == 0 {
		return
	}
	var known []*part
	for _, sub := range branches {
		if b := q.part(sub); !b.unknown {
			known = append(known, b)
		}
	}
	p.unknown = p.unknown || len(known) == 0
	p.any = append(p.any, known)
}

// apart reports whether no value fits two of the schemas, since they ask for different types.
func apart(branches []*jsonschema.Schema) bool {
	var seen typeSet
	for _, b := range branches {
		for b.Ref != nil && b.DraftVersion < 2019 {
			b = b.Ref
		}
		types := typesAsked(b)
		if types&(numberType|integerType) != 0 {
			types |= numberType | integerType
		}
		if types == 0 || types&seen != 0 {
			return false
		}
		seen |= types
	}
	return true
}
