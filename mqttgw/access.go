// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// Access says what a client may do, in templates. It is a part of Device and DevicePolicy documents. A client may do what
// a list has a filter for, and nothing else. Connect absent is any client id; Publish and Subscribe absent are nothing;
// Receive absent is what may be subscribed to, Retain and Will absent are what may be published. There is no order: what is
// excepted is not allowed.
type accessDocument struct {
	Connect   *[]string `json:"connect,omitempty"`   // client ids, * stands for any text
	Publish   *[]string `json:"publish,omitempty"`   // topic filters, as all that follow
	Subscribe *[]string `json:"subscribe,omitempty"` // covers every filter that matches nothing else
	Receive   *[]string `json:"receive,omitempty"`
	Retain    *[]string `json:"retain,omitempty"`
	Will      *[]string `json:"will,omitempty"`

	PublishExcept   *[]string `json:"publishExcept,omitempty"`   // what Publish, Retain and Will do not allow, whatever they say
	SubscribeExcept *[]string `json:"subscribeExcept,omitempty"` // what Subscribe and Receive do not allow
	// LatestFirst is no right: subscriptions that it covers get new messages before those that they are behind with.
	LatestFirst *[]string `json:"latestFirst,omitempty"`
}

// rateDocument bounds how fast a client may publish.
type rateDocument struct {
	PerSecond float64 `json:"perSecond"`
	Burst     int     `json:"burst,omitempty"`
}

const (
	maxAccess     = 64 // entries of a list
	maxTemplate   = 1 << 10
	maxAttributes = 64
	maxAttribute  = 256 // bytes of a value
	maxRate       = 100_000
)

var attributeFormat = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,62}$`)

// access is a parsed accessDocument. Immutable. A nil list is an absent one.
type access struct {
	connect, publish, subscribe, receive, retain, will, latest []template

	publishExcept, subscribeExcept []template
}

// parse checks the document and returns what it says.
func (d *accessDocument) parse(complain complaint) *access {
	list := func(name string, texts *[]string, check func(template) error) []template {
		if texts == nil {
			return nil
		}
		out := make([]template, 0, len(*texts))
		if len(*texts) > maxAccess {
			complain("/"+name, "must be at most %d", maxAccess)
			return out
		}
		for i, text := range *texts {
			t, err := parseTemplate(text)
			if err == nil {
				err = check(t)
			}
			if err != nil {
				complain("/"+name+"/"+strconv.Itoa(i), "%s", err)
				continue
			}
			out = append(out, t)
		}
		return out
	}
	return &access{
		connect: list("connect", d.Connect, template.checkClientID),
		publish: list("publish", d.Publish, template.checkFilter), subscribe: list("subscribe", d.Subscribe, template.checkFilter),
		receive: list("receive", d.Receive, template.checkFilter),
		retain:  list("retain", d.Retain, template.checkFilter), will: list("will", d.Will, template.checkFilter),
		publishExcept:   list("publishExcept", d.PublishExcept, template.checkFilter),
		subscribeExcept: list("subscribeExcept", d.SubscribeExcept, template.checkFilter),
		latest:          list("latestFirst", d.LatestFirst, template.checkFilter),
	}
}

func (d *rateDocument) check(complain complaint) {
	if d == nil {
		return
	}
	if !(d.PerSecond >= 0.001 && d.PerSecond <= maxRate) {
		complain("/perSecond", "must be 0.001 to %d", maxRate)
	}
	if d.Burst < 0 || d.Burst > maxRate {
		complain("/burst", "must be 1 to %d; absent or 0 is perSecond, rounded up", maxRate)
	}
}

func checkAttributes(attrs map[string]string, complain complaint) {
	if len(attrs) > maxAttributes {
		complain("", "must be at most %d", maxAttributes)
	}
	for _, name := range slices.Sorted(maps.Keys(attrs)) {
		at := "/" + strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
		if !attributeFormat.MatchString(name) {
			complain(at, "the name must be a letter and at most 62 letters, digits, _ and -")
		}
		if len(attrs[name]) > maxAttribute {
			complain(at, "must be at most %d bytes", maxAttribute)
		}
	}
}

// template is a text with ${principal}, ${clientid} and ${attr.<name>} in it. Every other character, a $ that no { follows
// too, stands for itself.
type template []templatePart

// templatePart is a literal, or a variable if name is set.
type templatePart struct{ literal, name string }

const (
	varPrincipal = "principal"
	varClientID  = "clientid"
	varAttribute = "attr."
)

func parseTemplate(s string) (template, error) {
	if s == "" || len(s) > maxTemplate {
		return nil, fmt.Errorf("must be 1 to %d bytes", maxTemplate)
	}
	var t template
	for s != "" {
		literal, rest, found := strings.Cut(s, "${")
		if literal != "" {
			t = append(t, templatePart{literal: literal})
		}
		if !found {
			return t, nil
		}
		name, after, closed := strings.Cut(rest, "}")
		attr, isAttr := strings.CutPrefix(name, varAttribute)
		if !closed || name != varPrincipal && name != varClientID && !(isAttr && attributeFormat.MatchString(attr)) {
			return nil, errors.New("has ${...} that is none of ${principal}, ${clientid} and ${attr.NAME}")
		}
		t, s = append(t, templatePart{name: name}), after
	}
	return t, nil
}

// String writes what parseTemplate reads.
func (t template) String() string {
	var b strings.Builder
	for _, p := range t {
		if p.name != "" {
			b.WriteString("${" + p.name + "}")
		} else {
			b.WriteString(p.literal)
		}
	}
	return b.String()
}

// checkFilter refuses a template that makes no topic filter.
func (t template) checkFilter() error {
	var b strings.Builder
	for _, p := range t {
		b.WriteString(p.literal)
		if p.name != "" {
			b.WriteByte('x') // stands for a value, which has no wildcard and no slash
		}
	}
	if f := b.String(); !packet.ValidFilter(f) || strings.HasPrefix(f, "$share/") {
		return errors.New("is not a topic filter: + and # stand alone in a level, # in the last; shared subscriptions are judged by the filter behind $share/<group>/")
	}
	return nil
}

func (t template) checkClientID() error {
	if slices.ContainsFunc(t, func(p templatePart) bool { return p.name == varClientID }) {
		return errors.New("cannot use ${clientid}: it is what is being judged")
	}
	return nil
}

// unfit says why a value cannot stand in a topic filter as a literal; "" if it can. A value never widens a filter.
func unfit(value string) string {
	switch {
	case value == "":
		return "is empty"
	case strings.ContainsAny(value, "+#/\x00"):
		return "holds one of + # / and U+0000"
	case value[0] == '$':
		return "begins with $"
	}
	return ""
}

// subject is who templates are filled in for.
type subject struct {
	principal, clientID string
	attributes          map[string]string
}

func (s *subject) value(name string) string {
	switch name {
	case varPrincipal:
		return s.principal
	case varClientID:
		return s.clientID
	}
	return s.attributes[strings.TrimPrefix(name, varAttribute)]
}

// unfitError is a value that a template cannot take.
type unfitError struct{ name, why string }

func (e *unfitError) Error() string {
	return e.name + " " + e.why + ", and stands in an access template"
}

// filter fills the template in. The error is an *unfitError.
func (t template) filter(s *subject) (string, error) {
	var b strings.Builder
	for _, p := range t {
		b.WriteString(p.literal)
		if p.name == "" {
			continue
		}
		v := s.value(p.name)
		if why := unfit(v); why != "" {
			return "", &unfitError{p.name, why}
		}
		b.WriteString(v)
	}
	return b.String(), nil
}

// matchesClientID reports whether a client id is the template filled in, where * in the template, and not in a value,
// stands for any text. Without a value for a variable none is.
func (t template) matchesClientID(id string, s *subject) bool {
	pieces := []string{""} // between the stars
	for _, p := range t {
		literal := p.literal
		if p.name != "" {
			v := s.value(p.name)
			if v == "" {
				return false // ${attr.x}* would be any client id
			}
			pieces[len(pieces)-1] += v
			continue
		}
		for i, piece := range strings.Split(literal, "*") {
			if i > 0 {
				pieces = append(pieces, "")
			}
			pieces[len(pieces)-1] += piece
		}
	}
	return globPieces(pieces, id)
}

// globPieces reports whether text is the pieces in their order with any text between them.
func globPieces(pieces []string, text string) bool {
	first, last := pieces[0], pieces[len(pieces)-1]
	if len(pieces) == 1 {
		return text == first
	}
	text, ok := strings.CutPrefix(text, first)
	if !ok {
		return false
	}
	for _, piece := range pieces[1 : len(pieces)-1] {
		i := strings.Index(text, piece)
		if i < 0 {
			return false
		}
		text = text[i+len(piece):]
	}
	return strings.HasSuffix(text, last)
}
