// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// Form is what a Text is a part of. It decides how the values of placeholders are written, so that none can break what is around
// it.
type Form uint8

// The forms.
const (
	FormPlain Form = iota // as they are
	FormJSON              // a JSON document: as in the templates of transforms
	FormURL               // a URL: one segment of the path, or a part of the query
	FormQuery             // a value of a form (application/x-www-form-urlencoded)
	FormXML               // text or an attribute of XML or HTML
)

// The contexts of placeholders that transforms do not have.
const (
	inPath context = iota + inValue + 1
	inQuery
	inXML
)

// secretsPrefix is what the names of secrets begin with in placeholders. No path of an event can.
const secretsPrefix = "secret."

// Text is a template that others than transforms have: of a URL, a header, a body, or words for people (ParseMessage). It is
// immutable and safe for concurrent use.
type Text struct {
	form     Form
	template template
	static   bool
	secrets  bool
}

// Filler is an event that texts are filled in from. It belongs to one goroutine.
type Filler struct{ view *view }

// NewFiller returns a filler. secrets are what ${secret.NAME} stands for.
func NewFiller(ev *event.Event, rc RenderContext, secrets map[string]string) (*Filler, error) {
	v, err := newView(ev, rc)
	if err != nil {
		return nil, err
	}
	v.secrets = secrets
	return &Filler{v}, nil
}

// ParseText compiles a text with placeholders ${...}: paths and expressions as in templates, and ${secret.NAME} for the names that
// are given. In a URL they stand behind the host: no event decides where it is sent. The error is for who wrote the text.
func ParseText(s string, form Form, secrets []string) (*Text, error) {
	if len(s) > MaxTemplate {
		return nil, fmt.Errorf("has %d bytes; at most %d are allowed", len(s), MaxTemplate)
	}
	t := &Text{form: form}
	c := compiler{parse: t.parser(secrets), scan: scanDollar}
	pieces, err := c.scan(s)
	if err != nil {
		return nil, err
	}
	if form == FormJSON {
		err = c.jsonText(pieces)
	} else {
		err = c.pieces(pieces, form)
	}
	if err != nil {
		return nil, err
	}
	return t.of(c.fragments), nil
}

// ParseJSON is ParseText for a text of form FormJSON that is given as a JSON value: a string in it that is one placeholder becomes the
// value with its type. The error is a *fault.Error of kind Invalid.
func ParseJSON(raw []byte, secrets []string) (*Text, error) {
	if len(raw) > MaxTemplate {
		return nil, fault.Invalidf("", "has %d bytes; at most %d are allowed", len(raw), MaxTemplate)
	}
	src := slices.Clone(raw)
	var doc document
	root, err := doc.parse(src)
	if err != nil {
		return nil, fault.Invalidf("", "%s", err)
	}
	t := &Text{form: FormJSON}
	c := compiler{doc: &doc, src: src, parse: t.parser(secrets), scan: scanDollar}
	if err := c.value(root, ""); err != nil {
		return nil, err
	}
	return t.of(c.fragments), nil
}

func (t *Text) of(fragments []fragment) *Text {
	t.template.fragments = fragments
	t.static = !slices.ContainsFunc(fragments, func(f fragment) bool { return f.reference != nil })
	return t
}

// parser reads placeholders.
func (t *Text) parser(secrets []string) func(string) (*reference, error) {
	return func(s string) (*reference, error) {
		name, ok := strings.CutPrefix(s, secretsPrefix)
		if !ok {
			return parseReference(s)
		}
		if !slices.Contains(secrets, name) {
			return nil, fmt.Errorf("there is no secret of the name %s", shorten(name, 60))
		}
		t.secrets = true
		return &reference{secret: name}, nil
	}
}

var errAuthority = errors.New("has a placeholder in front of the path: no event decides where it is sent")

// pieces compiles a text that is not JSON.
func (c *compiler) pieces(pieces []piece, form Form) error {
	where := map[Form]context{FormURL: inPath, FormQuery: inQuery, FormXML: inXML}[form] // else inText
	before := ""
	for _, p := range pieces {
		if !p.placeholder {
			c.literal(p.text)
			before += p.text
			if form == FormURL && strings.Contains(p.text, "?") {
				where = inQuery
			}
			continue
		}
		if form == FormURL {
			_, rest, _ := strings.Cut(before, "://")
			if where == inPath && !strings.Contains(rest, "/") || where == inQuery && strings.Contains(before, "#") {
				return errAuthority
			}
		}
		if err := c.placeholder(p.text, where); err != nil {
			return err
		}
	}
	return nil
}

// Static reports whether a text is the same for every event.
func (t *Text) Static() bool { return t.static }

// Secret reports whether secrets are filled in.
func (t *Text) Secret() bool { return t.secrets }

// Reads lists what a text looks at, which stands at pointer.
func (t *Text) Reads(pointer string) []Read { return t.template.reads(pointer) }

// Sample is the text with each placeholder as if it stood for x; in JSON, for null where a value stands.
func (t *Text) Sample() string {
	var b strings.Builder
	for _, f := range t.template.fragments {
		switch {
		case f.reference == nil:
			b.Write(f.literal)
		case f.context == inValue:
			b.WriteString("null")
		default:
			b.WriteByte('x')
		}
	}
	return b.String()
}

var (
	errEmptySegment = errors.New("a value in the path of the URL is empty")
	errDotSegment   = errors.New("a value makes a segment of the URL's path . or .., which leads elsewhere")
)

// Fill fills an event in. The error says why that cannot be done, and holds nothing of the event.
func (t *Text) Fill(f *Filler) ([]byte, error) {
	dst := make([]byte, 0, 256)
	var err error
	for _, s := range t.template.fragments {
		if s.reference == nil {
			dst = append(dst, s.literal...)
			continue
		}
		before := len(dst)
		if s.escape != nil {
			dst, err = f.view.appendEscapedReference(dst, &s)
		} else {
			dst, err = f.view.appendReference(dst, s.reference, s.context)
		}
		if err != nil {
			return nil, err
		}
		if s.context == inPath && len(dst) == before {
			return nil, errEmptySegment
		}
		if len(dst) > MaxOutput {
			return nil, errOutput
		}
	}
	if t.form == FormURL && !t.static && leadsElsewhere(dst) {
		return nil, errDotSegment
	}
	return dst, nil
}

// leadsElsewhere reports whether the path of a URL has a segment that others take for a step up, or for none.
func leadsElsewhere(to []byte) bool {
	path, _, _ := bytes.Cut(to, []byte("?"))
	for segment := range bytes.SplitSeq(path, []byte("/")) {
		if s := string(segment); s == "." || s == ".." {
			return true
		}
	}
	return false
}

// appendIn appends a text as a context of a Text has it.
func appendIn(dst, text []byte, where context) []byte {
	switch where {
	case inPath:
		return append(dst, url.PathEscape(string(text))...)
	case inQuery:
		return append(dst, url.QueryEscape(string(text))...)
	case inXML:
		b := bytes.NewBuffer(dst)
		_ = xml.EscapeText(b, text) // a Buffer takes all
		return b.Bytes()
	}
	return append(dst, text...)
}
