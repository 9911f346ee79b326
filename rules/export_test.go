// SPDX-License-Identifier: Apache-2.0

package rules

import "github.com/rialto-bridge/rialto/internal/event"

// Direct evaluates every rule by itself, without the index: what Match should say.
func Direct(rules []*Rule, ev *event.Event) []*Rule {
	var d direct
	d.loadEvent(ev)
	return d.matching(rules)
}

// DirectDocument is Direct for MatchDocument.
func DirectDocument(rules []*Rule, json []byte) ([]*Rule, error) {
	var d direct
	if err := d.loadDocument(json); err != nil {
		return nil, err
	}
	return d.matching(rules), nil
}

func (s *direct) matching(rules []*Rule) []*Rule {
	var matched []*Rule
	for _, r := range rules {
		if !r.Disabled && s.matches(r.Pattern) {
			matched = append(matched, r)
		}
	}
	return matched
}

// ParseAddress is how cidr reads addresses.
func ParseAddress(s string) (string, bool) {
	if address, ok := parseIPv4([]byte(s)); ok {
		return address.String(), true
	}
	address, ok := parseIPv6([]byte(s))
	return address.String(), ok
}

// NumberKey and CompareNumbers are how numbers are found and compared.
func NumberKey(literal string) (key int64, exact bool) { return parseNumber([]byte(literal)).key() }

func CompareNumbers(a, b string) int { return parseNumber([]byte(a)).compare(parseNumber([]byte(b))) }

// Parts returns the sizes of the parts of an index.
func (x *Index) Parts() []int {
	var sizes []int
	for _, p := range x.parts {
		sizes = append(sizes, len(p.plans))
	}
	return sizes
}

// EvaluateSQL returns what a query results in, with the module's own error.
func EvaluateSQL(q *Query, ev *event.Event) (any, error) { return q.expression.Evaluate(forSQL(ev)) }

// Holds says how many values the scratch has room for.
func (s *Scratch) Holds() int { return max(cap(s.values), cap(s.direct.doc.nodes)) }
