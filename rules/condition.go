// SPDX-License-Identifier: Apache-2.0

package rules

import "net/netip"

// test is one entry of a list of values in a pattern. A test looks at one scalar; which scalars it is shown, and what
// their absence means, is the evaluator's matter.
type test interface {
	holds(v value) bool
	appendJSON(dst []byte) []byte // as it stands in a pattern
}

// exactString is a literal string: the same bytes, after JSON escapes.
type exactString string

func (t exactString) holds(v value) bool { return v.kind == kindString && string(v.text) == string(t) }

func (t exactString) appendJSON(dst []byte) []byte { return appendString(dst, string(t)) }

// exactNumber is a literal number: the same value, however it is written.
type exactNumber struct{ number }

func (t exactNumber) holds(v value) bool {
	return v.kind == kindNumber && parseNumber(v.text).compare(t.number) == 0
}

func (t exactNumber) appendJSON(dst []byte) []byte { return append(dst, t.literal...) }

// exactKind is true, false or null.
type exactKind kind

func (t exactKind) holds(v value) bool { return v.kind == kind(t) }

func (t exactKind) appendJSON(dst []byte) []byte { return append(dst, kind(t).String()...) }

// present is {"exists":true}: any scalar will do. {"exists":false} is no test, because there is nothing to look at.
type present struct{}

func (present) holds(value) bool { return true }

func (present) appendJSON(dst []byte) []byte { return append(dst, `{"exists":true}`...) }

// text is a test of a string by an operator whose operand is one string.
type text struct {
	operator string // prefix, suffix or equals
	fold     bool   // ignore case
	operand  string
}

const (
	opPrefix     = "prefix"
	opSuffix     = "suffix"
	opIgnoreCase = "equals-ignore-case"
	opWildcard   = "wildcard"
	opAnyBut     = "anything-but"
	opNumeric    = "numeric"
	opExists     = "exists"
	opCIDR       = "cidr"
	opExactly    = "exactly"
	opOr         = "$or"
)

func (t text) holds(v value) bool {
	if v.kind != kindString {
		return false
	}
	switch {
	case t.operator == opPrefix && t.fold:
		_, ok := foldPrefix(v.text, t.operand)
		return ok
	case t.operator == opPrefix:
		return len(v.text) >= len(t.operand) && string(v.text[:len(t.operand)]) == t.operand
	case t.operator == opSuffix && t.fold:
		return foldSuffix(v.text, t.operand)
	case t.operator == opSuffix:
		return len(v.text) >= len(t.operand) && string(v.text[len(v.text)-len(t.operand):]) == t.operand
	}
	return foldEqual(v.text, t.operand)
}

func (t text) appendJSON(dst []byte) []byte {
	dst = append(appendString(append(dst, '{'), t.operator), ':')
	if t.fold && t.operator != opIgnoreCase {
		dst = append(appendString(append(append(dst, '{'), `"equals-ignore-case":`...), t.operand), '}')
	} else {
		dst = appendString(dst, t.operand)
	}
	return append(dst, '}')
}

func (w wildcard) holds(v value) bool { return v.kind == kindString && w.match(v.text) }

func (w wildcard) appendJSON(dst []byte) []byte {
	return append(appendString(append(dst, `{"wildcard":`...), w.source), '}')
}

// block is a cidr test.
type block struct{ prefix netip.Prefix }

func (b block) holds(v value) bool { return v.kind == kindString && inBlock(v.text, b.prefix) }

func (b block) appendJSON(dst []byte) []byte {
	return append(appendString(append(dst, `{"cidr":`...), b.prefix.String()), '}')
}

// numeric is one comparison, or a lower and an upper bound.
type numeric struct{ bounds []bound }

type bound struct {
	operator string // = < <= > >=
	operand  number
}

func (b bound) holds(n number) bool {
	c := n.compare(b.operand)
	switch b.operator {
	case "=":
		return c == 0
	case "<":
		return c < 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	}
	return c >= 0
}

func (t numeric) holds(v value) bool {
	if v.kind != kindNumber {
		return false
	}
	n := parseNumber(v.text)
	for _, b := range t.bounds {
		if !b.holds(n) {
			return false
		}
	}
	return true
}

func (t numeric) appendJSON(dst []byte) []byte {
	dst = append(dst, `{"numeric":[`...)
	for i, b := range t.bounds {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(append(append(append(dst, '"'), b.operator...), '"', ','), b.operand.literal...)
	}
	return append(dst, ']', '}')
}

// anythingBut holds for every scalar for which none of its tests does: also for null, booleans and other types.
type anythingBut struct {
	tests  []test
	nested string // operator that all tests share; "" for literals
	list   bool   // written as a list
}

func (t anythingBut) holds(v value) bool {
	for _, inner := range t.tests {
		if inner.holds(v) {
			return false
		}
	}
	return true
}

func (t anythingBut) appendJSON(dst []byte) []byte {
	dst = append(dst, `{"anything-but":`...)
	if t.nested != "" {
		dst = append(appendString(append(dst, '{'), t.nested), ':')
	}
	if t.list {
		dst = append(dst, '[')
	}
	for i, inner := range t.tests {
		if i > 0 {
			dst = append(dst, ',')
		}
		switch inner := inner.(type) {
		case text:
			dst = appendString(dst, inner.operand)
		case wildcard:
			dst = appendString(dst, inner.source)
		default:
			dst = inner.appendJSON(dst)
		}
	}
	if t.list {
		dst = append(dst, ']')
	}
	if t.nested != "" {
		dst = append(dst, '}')
	}
	return append(dst, '}')
}
