// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/theory/jsonpath"
	"github.com/theory/jsonpath/spec"
)

// Limits of a JSONPath. One descendant segment and no absolute query inside a filter keep the cost of a path linear in
// the event, times the depth of nesting; the selectors of its segments multiply.
const (
	MaxPath        = 1024 // bytes
	maxSelectors   = 64   // product of the numbers of selectors in each segment
	maxDescendants = 1    // .. segments, filters included
)

// path is a JSONPath (RFC 9535). The module parses it and decides filters; the walk is done here, over the nodes of a
// document, because the module walks Go maps, whose order is random, and a transform must give the same bytes again.
type path struct {
	source   string
	query    *spec.PathQuery
	definite bool // it selects at most one value
}

// parsePath compiles a JSONPath over the JSON form of an event.
func parsePath(source string) (*path, error) {
	if len(source) > MaxPath {
		return nil, fmt.Errorf("the path has %d bytes; at most %d are allowed", len(source), MaxPath)
	}
	parsed, err := jsonpath.Parse(source)
	if err != nil {
		return nil, fmt.Errorf("not a JSONPath: %s", strings.TrimPrefix(err.Error(), "jsonpath: "))
	}
	p := &path{source: source, query: parsed.Query(), definite: parsed.Query().Singular() != nil}
	product := 1
	for _, segment := range p.query.Segments() {
		product = min(product*len(segment.Selectors()), maxSelectors+1)
	}
	bare := withoutStrings(source)
	switch {
	case product > maxSelectors:
		return nil, fmt.Errorf("the selectors of its segments multiply to more than %d", maxSelectors)
	case strings.Count(bare, "..") > maxDescendants:
		return nil, fmt.Errorf("more than %d descendant segment (..) may visit every value many times", maxDescendants)
	case strings.Count(bare, "$") > 1:
		return nil, errors.New("a $ inside a filter would read the whole event for every value; use @")
	}
	return p, p.checkStart()
}

// withoutStrings blanks the quoted strings of a JSONPath that is known to be one.
func withoutStrings(source string) string {
	b := []byte(source)
	for i := 0; i < len(b); i++ {
		if quote := b[i]; quote == '\'' || quote == '"' {
			for i++; i < len(b) && b[i] != quote; i++ {
				if b[i] == '\\' {
					b[i] = ' '
					i++
				}
				if i < len(b) {
					b[i] = ' '
				}
			}
		}
	}
	return string(b)
}

// checkStart refuses paths that no event can have: beside data, an event has attributes, which hold no other values.
func (p *path) checkStart() error {
	segments := p.query.Segments()
	if len(segments) == 0 || segments[0].IsDescendant() || len(segments[0].Selectors()) != 1 {
		return nil
	}
	if name, ok := segments[0].Selectors()[0].(spec.Name); ok {
		return checkAttribute(string(name), len(segments) > 1)
	}
	return nil
}

// checkAttribute refuses a first step that leads nowhere in any event.
func checkAttribute(name string, deeper bool) error {
	switch {
	case name == dataName:
		return nil
	case name == "detail-type":
		return errors.New("an event has no detail-type; its kind is the attribute type")
	case name == "detail" && deeper:
		return errors.New("an event has no detail; its payload is under data")
	case name != "data_base64" && !isAttribute(name):
		return fmt.Errorf("%q cannot be an attribute, whose names are a-z and 0-9 only; the payload is under data", shorten(name, 60))
	case deeper:
		return fmt.Errorf("the attribute %s is one value and holds no others; the payload is under data", name)
	}
	return nil
}

// selectFrom returns the nodes of v that the path selects, in the order of RFC 9535 with the members of an object in
// the order of the text.
func (p *path) selectFrom(v *view) []int32 {
	nodes := []int32{0}
	for _, segment := range p.query.Segments() {
		var selected []int32
		for _, i := range nodes {
			last := i
			if segment.IsDescendant() {
				last = v.doc.nodes[i].next - 1
			}
			for ; i <= last; i++ {
				for _, selector := range segment.Selectors() {
					selected = v.selectChildren(selected, i, selector)
				}
			}
		}
		nodes = selected
	}
	return nodes
}

// selectChildren appends the children of node i that a selector selects.
func (v *view) selectChildren(dst []int32, i int32, selector spec.Selector) []int32 {
	n := &v.doc.nodes[i]
	if n.kind.scalar() {
		return dst
	}
	switch selector := selector.(type) {
	case spec.Name:
		if child, ok := v.doc.memberNamed(i, string(selector)); ok {
			dst = append(dst, child)
		}
	case spec.Index:
		if child, ok := v.doc.elementAt(i, int(selector)); ok {
			dst = append(dst, child)
		}
	case spec.WildcardSelector:
		v.doc.children(i, func(_ int, child int32) { dst = append(dst, child) })
	case spec.SliceSelector:
		if n.kind == kindArray {
			dst = v.selectSlice(dst, i, selector)
		}
	case *spec.FilterSelector:
		v.doc.children(i, func(_ int, child int32) {
			if selector.Eval(v.value(child), v.value(0)) {
				dst = append(dst, child)
			}
		})
	}
	return dst
}

func (v *view) selectSlice(dst []int32, i int32, s spec.SliceSelector) []int32 {
	var elements []int32
	v.doc.children(i, func(_ int, child int32) { elements = append(elements, child) })
	lower, upper := s.Bounds(len(elements))
	switch step := s.Step(); {
	case step > 0:
		for k := lower; k < upper; k += step {
			dst = append(dst, elements[k])
		}
	case step < 0:
		for k := upper; k > lower; k += step {
			dst = append(dst, elements[k])
		}
	}
	return dst
}

// memberNamed returns the member of an object; of several the last, as most readers of JSON have it.
func (d *document) memberNamed(i int32, name string) (found int32, ok bool) {
	if d.nodes[i].kind != kindObject {
		return 0, false
	}
	d.children(i, func(_ int, child int32) {
		if string(d.nodes[child].key) == name {
			found, ok = child, true
		}
	})
	return found, ok
}

// elementAt returns an element of an array; a negative index counts from the end.
func (d *document) elementAt(i int32, index int) (found int32, ok bool) {
	if d.nodes[i].kind != kindArray {
		return 0, false
	}
	if index < 0 {
		d.children(i, func(int, int32) { index++ })
	}
	d.children(i, func(k int, child int32) {
		if k == index {
			found, ok = child, true
		}
	})
	return found, ok
}

// value is node i as filters want it: maps, slices, strings, json.Number, bool and nil. All are made on first use.
func (v *view) value(i int32) any {
	if v.values == nil {
		v.values = make([]any, len(v.doc.nodes))
		for j := len(v.doc.nodes) - 1; j >= 0; j-- {
			v.values[j] = v.makeValue(int32(j))
		}
	}
	return v.values[i]
}

// makeValue makes one value of those inside it, which are made already.
func (v *view) makeValue(i int32) any {
	switch n := &v.doc.nodes[i]; n.kind {
	case kindNull:
		return nil
	case kindString:
		return string(n.text)
	case kindNumber:
		return json.Number(n.text)
	case kindArray:
		list := []any{}
		v.doc.children(i, func(_ int, child int32) { list = append(list, v.values[child]) })
		return list
	case kindObject:
		object := map[string]any{}
		v.doc.children(i, func(_ int, child int32) { object[string(v.doc.nodes[child].key)] = v.values[child] })
		return object
	default:
		return n.kind == kindTrue
	}
}
