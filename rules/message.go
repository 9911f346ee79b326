// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"errors"
	"slices"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Escape writes a value so that it means nothing but itself where it is put, such as in Markdown.
type Escape func(value string) string

// ParseMessage compiles a template of words for people: plain text, whatever it begins with. Values are put in as escape writes them; nil = as they
// are. The error says what is wrong, without a pointer.
func ParseMessage(s string, escape Escape) (*Text, error) {
	if len(s) > MaxTemplate {
		return nil, errTemplateSize
	}
	pieces, err := scanDollar(s)
	if err != nil {
		return nil, err
	}
	c := compiler{parse: parseReference}
	for _, p := range pieces {
		if !p.placeholder {
			c.literal(p.text)
		} else if err := c.placeholder(p.text, inText); err != nil {
			return nil, err
		}
	}
	return newMessage(&c, FormPlain, func(int) Escape { return escape }), nil
}

// ParseMessageJSON compiles a JSON document whose strings are templates: one that is a placeholder and nothing else becomes the
// value with its type. escape says by a string's pointer in the document how values in it are written, before they are
// written as JSON; where it returns nil, that is as they are, and where it does not, the string stays a string. The error is
// a *fault.Error with pointers into the document.
func ParseMessageJSON(doc []byte, escape func(pointer string) Escape) (*Text, error) {
	if len(doc) > MaxTemplate {
		return nil, fault.Invalidf("", "%s", errTemplateSize)
	}
	var d document
	src := slices.Clone(doc)
	root, err := d.parse(src)
	if err != nil {
		return nil, fault.Invalidf("", "%s", err)
	}
	c := compiler{doc: &d, src: src, parse: parseReference, scan: scanDollar}
	var escapes []Escape // of the fragments, in their order
	c.inString = func(pointer string) {
		for len(escapes) < len(c.fragments) {
			escapes = append(escapes, escape(pointer))
		}
	}
	if err := c.value(root, ""); err != nil {
		return nil, err
	}
	return newMessage(&c, FormJSON, func(i int) Escape {
		if i < len(escapes) {
			return escapes[i]
		}
		return nil
	}), nil
}

func newMessage(c *compiler, form Form, escape func(fragment int) Escape) *Text {
	t := (&Text{form: form}).of(c.fragments)
	for i := range t.template.fragments {
		if f := &t.template.fragments[i]; f.reference != nil {
			f.escape = escape(i)
		}
	}
	return t
}

var errTemplateSize = errors.New("a template has at most 32768 bytes")

// appendEscapedReference appends what a placeholder stands for, as text that escape has written.
func (v *view) appendEscapedReference(dst []byte, f *fragment) ([]byte, error) {
	text, err := v.appendReference(nil, f.reference, inText)
	if err != nil {
		return nil, err
	}
	text = []byte(f.escape(string(text)))
	switch f.context {
	case inString:
		return appendEscaped(dst, text), nil
	case inValue:
		return appendString(dst, text), nil
	}
	return append(dst, text...), nil
}
