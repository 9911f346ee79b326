// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Limits of a Rule document.
const (
	MaxRule        = 256 << 10 // bytes of JSON text
	MaxTargets     = 100       // targets of one rule
	MaxLabels      = 64
	MaxLabelName   = 63   // bytes
	MaxLabelValue  = 256  // bytes
	MaxDescription = 4096 // bytes
	maxName        = 63   // bytes of a resource's name
)

// Rule is a compiled Rule document. ParseRule sets all but Revision, which is for the owner of the document to set
// before the rule is shared. Immutable from then on.
type Rule struct {
	Name        string
	Bus         string // "default" when the document does not say
	Revision    uint64
	Labels      map[string]string
	Description string
	Disabled    bool // never matches
	Pattern     *Pattern
	When        *Expression // nil: none; evaluated only when the pattern matches
	SQL         *Query      // nil: none; evaluated only when the pattern matches
	Targets     []RuleTarget
	Raw         []byte // the document as it was given
}

// RuleTarget is one target of a rule.
type RuleTarget struct {
	Target    string     // its name
	Transform *Transform // nil = original
}

// ruleFields are what a Rule document may hold; the second list is what the server adds and ignores when written.
var (
	ruleFields  = []string{"kind", "name", "bus", "labels", "description", "disabled", "pattern", "when", "sql", "targets"}
	serverOwned = []string{"revision", "createdAt", "updatedAt", "status"}
)

// ParseRule compiles a Rule document, given as JSON. Anything wrong is a *fault.Error of kind Invalid whose details
// point into the document; names that are not known are refused. Beyond the pattern language, the pattern of a rule
// must speak of what an event has: attributes at the top and the payload under data. doc is copied.
func ParseRule(doc []byte) (*Rule, error) {
	if len(doc) > MaxRule {
		return nil, invalidRule(fault.Detail{Detail: fmt.Sprintf("the rule has %d bytes; at most %d are allowed", len(doc), MaxRule)})
	}
	r := &Rule{Raw: slices.Clone(doc)}
	var d document
	root, err := d.parse(r.Raw)
	if err != nil {
		return nil, invalidRule(fault.Detail{Detail: err.Error()})
	}
	if k := d.nodes[root].kind; k != kindObject {
		return nil, invalidRule(fault.Detail{Detail: "a rule is an object, this is " + k.String()})
	}
	p := ruleParser{doc: &d, src: r.Raw}
	p.rule(root, r)
	if len(p.details) > 0 {
		return nil, invalidRule(p.details...)
	}
	return r, nil
}

func invalidRule(details ...fault.Detail) error {
	return &fault.Error{Kind: fault.Invalid, Message: "invalid rule", Details: details}
}

// ruleParser collects complaints while it fills in a Rule.
type ruleParser struct {
	doc     *document
	src     []byte // what doc was parsed from
	details []fault.Detail
}

func (p *ruleParser) complain(pointer, format string, args ...any) {
	if len(p.details) < maxComplaints {
		p.details = append(p.details, fault.Detail{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
	}
}

// adopt takes over the complaints of err, which are about what stands at pointer.
func (p *ruleParser) adopt(pointer string, err error) {
	var f *fault.Error
	if errors.As(fault.At(pointer, err), &f) {
		p.details = append(p.details, f.Details[:min(len(f.Details), maxComplaints-min(len(p.details), maxComplaints))]...)
	}
}

func (p *ruleParser) rule(root int32, r *Rule) {
	seen := map[string]bool{}
	p.doc.children(root, func(_ int, i int32) {
		n := &p.doc.nodes[i]
		name := string(n.key)
		at := pointerTo(name)
		if seen[name] {
			p.complain(at, "stands twice")
			return
		}
		seen[name] = true
		switch name {
		case "kind":
			if n.kind != kindString || string(n.text) != "Rule" {
				p.complain(at, "must be Rule")
			}
		case "name":
			r.Name = p.name(n, at)
		case "bus":
			r.Bus = p.name(n, at)
		case "labels":
			r.Labels = p.labels(i, at)
		case "description":
			r.Description = p.text(n, at, MaxDescription)
		case "disabled":
			if n.kind != kindTrue && n.kind != kindFalse {
				p.complain(at, "must be true or false, this is %s", n.kind)
			}
			r.Disabled = n.kind == kindTrue
		case "pattern":
			r.Pattern = p.pattern(i, at)
		case "targets":
			r.Targets = p.targets(i, at)
		case "when":
			r.When = condition(p, n, at, ParseWhen)
		case "sql":
			r.SQL = condition(p, n, at, ParseSQL)
		default:
			p.unknown(name, at, ruleFields, serverOwned)
		}
	})
	if !seen["name"] {
		p.complain("/name", "is missing")
	}
	if !seen["pattern"] {
		p.complain("/pattern", "is missing; %s", emptyHint)
	}
	if !seen["targets"] {
		p.complain("/targets", "is missing; a rule has at least one target")
	}
	if !seen["bus"] {
		r.Bus = "default"
	}
}

// condition compiles a when or sql.
func condition[T any](p *ruleParser, n *node, pointer string, parse func(string) (*T, error)) *T {
	if n.kind != kindString {
		p.complain(pointer, "must be a text, this is %s", n.kind)
		return nil
	}
	compiled, err := parse(string(n.text))
	if err != nil {
		p.complain(pointer, "%s", err)
	}
	return compiled
}

// unknown complains about a name that is in neither list, of which only the first is worth suggesting.
func (p *ruleParser) unknown(name, pointer string, fields, ignored []string) {
	if slices.Contains(ignored, name) {
		return
	}
	if word := nearest(name, fields); word != "" {
		p.complain(pointer, "unknown field; did you mean %s?", word)
		return
	}
	p.complain(pointer, "unknown field; there are %s", join(fields, "and"))
}

func (p *ruleParser) text(n *node, pointer string, limit int) string {
	switch {
	case n.kind != kindString:
		p.complain(pointer, "must be a string, this is %s", n.kind)
	case len(n.text) > limit:
		p.complain(pointer, "has %d bytes; at most %d are allowed", len(n.text), limit)
	}
	return string(n.text)
}

// name reads the name of a resource: [a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?
func (p *ruleParser) name(n *node, pointer string) string {
	s := string(n.text)
	if n.kind != kindString || !isName(s) {
		p.complain(pointer, "must be a name of 1 to %d of a-z, 0-9 and -, which neither begins nor ends with -", maxName)
	}
	return s
}

func isName(s string) bool {
	if s == "" || len(s) > maxName || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for _, c := range []byte(s) {
		if c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}

func (p *ruleParser) labels(i int32, pointer string) map[string]string {
	if k := p.doc.nodes[i].kind; k != kindObject {
		p.complain(pointer, "must be an object of names and strings, this is %s", k)
		return nil
	}
	labels := map[string]string{}
	p.doc.children(i, func(_ int, j int32) {
		n := &p.doc.nodes[j]
		name := string(n.key)
		at := pointer + pointerTo(name)
		switch _, twice := labels[name]; {
		case twice:
			p.complain(at, "stands twice")
		case name == "" || len(name) > MaxLabelName:
			p.complain(at, "the name of a label has 1 to %d bytes", MaxLabelName)
		}
		labels[name] = p.text(n, at, MaxLabelValue)
	})
	if len(labels) > MaxLabels {
		p.complain(pointer, "there are %d labels; at most %d are allowed", len(labels), MaxLabels)
	}
	return labels
}

// raw is the JSON text of node i.
func (p *ruleParser) raw(i int32) []byte { return p.src[p.doc.nodes[i].start:p.doc.nodes[i].end] }

func (p *ruleParser) pattern(i int32, pointer string) *Pattern {
	pattern, terms, err := parsePattern(p.raw(i))
	if err != nil {
		p.adopt(pointer, err)
		return nil
	}
	p.attributes(terms, pointer)
	return pattern
}

// attributes complains about terms that no event can meet: beside data, what stands at the top of an event are
// attributes, with names of a-z and 0-9 and no values inside.
func (p *ruleParser) attributes(terms []*term, pointer string) {
	for _, t := range terms {
		for _, branch := range t.or {
			p.attributes(branch, pointer)
		}
		if t.field == nil || t.path[0] == dataName {
			continue
		}
		at := pointer + t.at
		switch name := t.path[0]; {
		case name == "detail-type":
			p.complain(at, "an event has no detail-type; its kind is the attribute type, as in {\"type\":[\"com.example.order\"]}")
		case name == "detail" && len(t.path) > 1:
			p.complain(at, "an event has no detail; its payload is under data, as in {\"data\":{%q:...}}", t.path[1])
		case name == "data_base64":
			p.complain(at, "binary data cannot be matched; match attributes, such as type and datacontenttype")
		case !isAttribute(name):
			p.complain(at, "%q cannot be an attribute, whose names are a-z and 0-9 only; the payload is under data, as in {\"data\":{%q:...}}", shorten(name, 60), shorten(name, 60))
		case len(t.path) > 1:
			p.complain(at, "the attribute %s is one value and holds no others; the payload is under data, as in {\"data\":{%q:...}}", name, name)
		}
	}
}

func isAttribute(name string) bool {
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

func (p *ruleParser) targets(i int32, pointer string) []RuleTarget {
	if k := p.doc.nodes[i].kind; k != kindArray {
		p.complain(pointer, "must be a list of {target, transform}, this is %s", k)
		return nil
	}
	count := 0
	p.doc.children(i, func(int, int32) { count++ })
	switch {
	case count == 0:
		p.complain(pointer, "a rule has at least one target")
	case count > MaxTargets:
		p.complain(pointer, "there are %d targets; at most %d are allowed", count, MaxTargets)
		return nil
	}
	var targets []RuleTarget
	seen := map[string]bool{}
	p.doc.children(i, func(k int, j int32) {
		at := pointer + pointerAt(k)
		t := p.target(j, at)
		if t.Target != "" && seen[t.Target] {
			p.complain(at+"/target", "stands twice in this rule; write another rule for a second delivery to it")
		}
		seen[t.Target] = true
		targets = append(targets, t)
	})
	return targets
}

func (p *ruleParser) target(i int32, pointer string) (t RuleTarget) {
	if k := p.doc.nodes[i].kind; k != kindObject {
		p.complain(pointer, "must be an object such as {\"target\":\"ops-webhook\"}, this is %s", k)
		return t
	}
	seen := map[string]bool{}
	p.doc.children(i, func(_ int, j int32) {
		n := &p.doc.nodes[j]
		name := string(n.key)
		at := pointer + pointerTo(name)
		if seen[name] {
			p.complain(at, "stands twice")
		}
		seen[name] = true
		switch name {
		case "target":
			t.Target = p.name(n, at)
		case "transform":
			transform, err := parseTransform(p.doc, p.src, j)
			if err != nil {
				p.adopt(at, err)
			}
			t.Transform = transform
		default:
			p.unknown(name, at, []string{"target", "transform"}, nil)
		}
	})
	if !seen["target"] {
		p.complain(pointer+"/target", "is missing")
	}
	return t
}
