// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"encoding/json"
	"maps"
	"math"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// A quick check reads a document once, byte by byte, and builds nothing of it. It has two answers: the document is valid,
// or it does not know, and then Decode and the library decide and say what is wrong. So it may leave out whatever is rare, and a
// part that asks for more than the schema does costs time and nothing else; a part that asks for less would be a fault, which is what
// FuzzQuick looks for.

// part is what one schema asks of a value, as far as a quick check knows how to tell. Of a thousand schemas none is in the
// processor's caches when its turn comes: time goes by with waiting for memory. So parts are small, and those that many
// schemas have are the same for all.
type part struct {
	unknown bool    // it asks what only the library can tell
	types   typeSet // 0 = any
	listed  *listed // of an enum or const; nil = any value
	text    *textPart
	number  *numberPart
	object  *objectPart
	array   *arrayPart
	more    *combined
}

// combined is what else looks at the same value.
type combined struct {
	all []*part   // each has to fit
	any [][]*part // of each list, one
}

type numberPart struct{ bounds []bound }

type textPart struct {
	shortest, longest int // code points
	pattern           *regexp.Regexp
	format            func(s []byte) bool // false may be that it does not know
}

type objectPart struct {
	names        string   // of the members, one behind the other
	members      []member // by name
	required     uint64   // bits of members
	patterns     []patternPart
	rest         *part // of members that nothing else is about; nil = any
	fewest, most int   // members
}

// member is a member that is declared or required. Its bit says that it was there; those beyond 64 have none.
type member struct {
	from, to uint16 // its name in names
	place    uint8  // of its bit, from 1; 0 = none
	declared bool
	part     *part
}

// bit is the member's in a set of 64.
func (m *member) bit() uint64 {
	if m.place == 0 {
		return 0
	}
	return 1 << (m.place - 1)
}

type patternPart struct {
	name *regexp.Regexp
	part *part
}

type arrayPart struct {
	prefix       []*part
	items        *part // beyond the prefix; nil = any
	fewest, most int
}

// find returns the member of a name; the zero member if it is none of them.
func (o *objectPart) find(name []byte) member {
	lo, hi := 0, len(o.members)
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		m := &o.members[mid]
		switch own := o.names[m.from:m.to]; {
		case own == string(name):
			return *m
		case own < string(name):
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return member{}
}

// listed are the scalars of an enum.
type listed struct {
	literals typeSet // null is there; see trueWord, falseWord
	texts    []string
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
	p := &part{}
	q[s] = p
	if s.Bool != nil {
		p.unknown = !*s.Bool
		return p
	}
	if rare(s) {
		p.unknown = true
		return p
	}
	p.scalars(s)
	q.object(p, s)
	q.array(p, s)
	if same := p.plain(s); same != nil {
		q[s] = same
		return same
	}
	if s.Ref != nil && p.bare() && len(s.AllOf)+len(s.AnyOf)+len(s.OneOf) == 0 {
		q[s] = q.part(s.Ref)
		return q[s]
	}
	q.others(p, s)
	return p
}

// bare reports whether a part asks nothing of any value.
func (p *part) bare() bool { return p.types == 0 && p.onlyTypes() }

func (p *part) onlyTypes() bool {
	return !p.unknown && p.listed == nil && p.text == nil && p.number == nil && p.object == nil && p.array == nil
}

// plain returns the part that all schemas have in common which ask for p's types and nothing else; nil if p is none such.
func (p *part) plain(s *jsonschema.Schema) *part {
	if s.Ref != nil || len(s.AllOf)+len(s.AnyOf)+len(s.OneOf) > 0 || !p.onlyTypes() {
		return nil
	}
	return &plainParts[p.types]
}

var plainParts = func() (all [trueWord]part) {
	for types := range all {
		all[types].types = typeSet(types)
	}
	return all
}()

// rare reports whether a schema has keywords that are left to the library.
func rare(s *jsonschema.Schema) bool {
	return s.RecursiveRef != nil || s.DynamicRef != nil || s.Not != nil || s.If != nil || s.PropertyNames != nil || len(s.Dependencies) > 0 ||
		len(s.DependentRequired) > 0 || len(s.DependentSchemas) > 0 || s.UnevaluatedProperties != nil || s.UnevaluatedItems != nil ||
		s.UniqueItems || s.Contains != nil || s.MultipleOf != nil || s.ContentEncoding != nil || s.ContentMediaType != nil ||
		s.ContentSchema != nil || len(s.Extensions) > 0
}

func (p *part) scalars(s *jsonschema.Schema) {
	p.types = typesAsked(s)
	if s.Format != nil || s.Pattern != nil || s.MinLength != nil || s.MaxLength != nil {
		p.text = textOf(s)
	}
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

func textOf(s *jsonschema.Schema) *textPart {
	t := &textPart{shortest: orElse(s.MinLength, 0), longest: orElse(s.MaxLength, math.MaxInt)}
	if s.Pattern != nil {
		t.pattern = regexp.MustCompile(s.Pattern.String()) // the library has compiled it, but does not match bytes
	}
	if s.Format == nil {
		return t
	}
	same := plainFormats[s.Format.Name]
	switch {
	case same == nil:
		t.format = func(text []byte) bool { return s.Format.Validate(string(text)) == nil }
	case s.Pattern == nil && s.MinLength == nil && s.MaxLength == nil:
		return same
	default:
		t.format = same.format
	}
	return t
}

// plainFormats are the most frequent formats. They know most of what is in a format, and leave the rest to the library.
var plainFormats = map[string]*textPart{
	"date":      {longest: math.MaxInt, format: func(s []byte) bool { return len(s) == len(time.DateOnly) && isDate(s) }},
	"date-time": {longest: math.MaxInt, format: func(s []byte) bool { return len(s) >= 20 && s[10] == 'T' && isDateTime(s) }},
	"uuid":      {longest: math.MaxInt, format: isUUID[[]byte]},
	"email":     {longest: math.MaxInt, format: func(s []byte) bool { return isEmail(string(s)) }},
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
	if r == nil {
		return
	}
	if p.number == nil {
		p.number = &numberPart{}
	}
	p.number.bounds = append(p.number.bounds, bound{numberOf(r), upper, open})
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
	w := &listed{}
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
			w.texts = append(w.texts, v)
		case json.Number:
			if r, ok := new(big.Rat).SetString(v.String()); ok {
				w.numbers = append(w.numbers, numberOf(r))
			}
		} // no document is known to be equal to an array or object
	}
	return w
}

func (q quickener) object(p *part, s *jsonschema.Schema) {
	if len(s.Properties)+len(s.Required)+len(s.PatternProperties) == 0 && s.AdditionalProperties == nil && s.MinProperties == nil && s.MaxProperties == nil {
		return
	}
	o := &objectPart{fewest: orElse(s.MinProperties, 0), most: orElse(s.MaxProperties, math.MaxInt)}
	p.object = o
	for re, sub := range s.PatternProperties {
		o.patterns = append(o.patterns, patternPart{regexp.MustCompile(re.String()), q.part(sub)})
	}
	switch rest := s.AdditionalProperties.(type) {
	case bool:
		if !rest {
			o.rest = &part{unknown: true}
		}
	case *jsonschema.Schema:
		o.rest = q.part(rest)
	}
	p.unknown = !q.named(o, s) || p.unknown
}

// named fills in the members. It is false if the quick check cannot tell of so many, or of what is required.
func (q quickener) named(o *objectPart, s *jsonschema.Schema) bool {
	places := map[string]int{} // the required ones first: without its bit, nobody knows whether one was there
	for _, name := range s.Required {
		if places[name] == 0 {
			places[name] = len(places) + 1
		}
	}
	required := len(places)
	names := slices.AppendSeq(slices.Collect(maps.Keys(places)), maps.Keys(s.Properties))
	slices.Sort(names)
	names = slices.Compact(names)
	o.names = strings.Join(names, "")
	if required > 64 || len(o.names) > math.MaxUint16 {
		return false
	}
	o.required = 1<<required - 1
	at, known := 0, true
	for _, name := range names {
		if places[name] == 0 && len(places) < 64 {
			places[name] = len(places) + 1
		}
		m := member{from: uint16(at), to: uint16(at + len(name)), place: uint8(places[name])}
		if sub, ok := s.Properties[name]; ok {
			m.declared, m.part = true, q.part(sub)
			known = known && (m.bit()&o.required == 0 || !m.part.unknown)
		}
		at = int(m.to)
		o.members = append(o.members, m)
	}
	return known
}

func (q quickener) array(p *part, s *jsonschema.Schema) {
	prefix, rest := prefixOf(s)
	a := &arrayPart{fewest: orElse(s.MinItems, 0), most: orElse(s.MaxItems, math.MaxInt)}
	for _, sub := range prefix {
		a.prefix = append(a.prefix, q.part(sub))
	}
	switch rest := rest.(type) {
	case bool:
		if !rest {
			a.items = &part{unknown: true}
		}
	case *jsonschema.Schema:
		a.items = q.part(rest)
	}
	if a.prefix != nil || a.items != nil || s.MinItems != nil || s.MaxItems != nil {
		p.array = a
	}
}

// others takes in the schemas that look at the same value.
func (q quickener) others(p *part, s *jsonschema.Schema) {
	c := &combined{}
	if s.Ref != nil {
		c.all = append(c.all, q.part(s.Ref))
	}
	for _, sub := range s.AllOf {
		c.all = append(c.all, q.part(sub))
	}
	for _, sub := range c.all {
		p.unknown = p.unknown || sub.unknown
	}
	if len(c.all)+len(s.AnyOf)+len(s.OneOf) > 0 {
		p.more = c
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
	p.more.any = append(p.more.any, known)
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
