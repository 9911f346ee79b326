// SPDX-License-Identifier: Apache-2.0

package http

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

// The bodies that are no templates.
const (
	bodyData  = "data"
	bodyEvent = "event"
	bodyNone  = "none"
)

// body is what a request has in it: the event, a text, or a form.
type body struct {
	event   string // one of the bodies above; "" = a template
	pointer string // of text
	text    *rules.Text
	form    []formField // sorted by name
}

type formField struct {
	name    string // encoded
	pointer string
	text    *rules.Text
}

func (b *body) static() bool {
	return (b.text == nil || b.text.Static()) && !slices.ContainsFunc(b.form, func(f formField) bool { return f.text == nil || !f.text.Static() })
}

const (
	typeJSON = "application/json"
	typeText = "text/plain; charset=utf-8"
	typeForm = "application/x-www-form-urlencoded"
)

func (r *reader) readBody(c *config) {
	r.contentType = c.ContentType
	if c.ContentType != "" {
		if _, _, err := mime.ParseMediaType(c.ContentType); err != nil || outbound.CheckFieldValue(c.ContentType) != nil {
			r.Complain("/contentType", "is not a content type, such as application/json")
		}
	}
	for _, d := range targets.RefuseSecrets("/body", c.Body) {
		r.Complain(d.Pointer, "%s (secrets are given in secrets, and filled in as ${secret.NAME})", d.Detail)
	}
	var template struct {
		JSON json.RawMessage   `json:"json"`
		Form map[string]string `json:"form"`
		Text string            `json:"text"`
	}
	switch {
	case c.Body == nil && (r.method == http.MethodGet || r.method == http.MethodDelete):
		r.body.event = bodyNone
	case c.Body == nil:
		r.body.event = bodyData
	case json.Unmarshal(c.Body, &r.body.event) == nil:
	case json.Unmarshal(c.Body, &template) != nil:
		r.Complain("/body", "is none of data, event, none, and no template")
	case template.JSON != nil:
		r.readJSON(template.JSON)
	case template.Form != nil:
		r.readForm(template.Form)
	default:
		r.readText(template.Text)
	}
	if r.method == http.MethodGet && r.body.event != bodyNone {
		r.Complain("/body", "is not for GET: such a request has none")
	}
	if c.ContentType != "" && (r.body.event != "" || r.body.form != nil) {
		r.Complain("/contentType", "is for a body that is a template of JSON or text")
	}
}

// readJSON reads a template that is JSON, or the text of it.
func (r *reader) readJSON(raw json.RawMessage) {
	if r.contentType == "" {
		r.contentType = typeJSON
	}
	r.body.pointer = "/config/body/json"
	var s string
	if json.Unmarshal(raw, &s) == nil {
		r.body.text = r.text("/body/json", s, rules.FormJSON)
		return
	}
	var err error
	var fe *fault.Error
	if r.body.text, err = rules.ParseJSON(raw, r.secrets); errors.As(fault.At("/body/json", err), &fe) {
		for _, d := range fe.Details {
			r.Complain(d.Pointer, "%s", d.Detail)
		}
	}
}

func (r *reader) readForm(form map[string]string) {
	r.contentType = typeForm
	for _, name := range slices.Sorted(maps.Keys(form)) {
		if t := r.text("/body/form"+fault.Pointer(name), form[name], rules.FormPlain); t != nil {
			r.body.form = append(r.body.form, formField{url.QueryEscape(name), "/config/body/form" + fault.Pointer(name), t})
		}
	}
}

func (r *reader) readText(s string) {
	form := rules.FormPlain
	if r.contentType == "" {
		r.contentType = typeText
	}
	media, _, err := mime.ParseMediaType(r.contentType)
	switch {
	case err != nil: // complained of
	case event.IsJSON(media):
		form = rules.FormJSON
	case media == typeForm:
		form = rules.FormQuery
	case strings.HasSuffix(media, "/xml") || strings.HasSuffix(media, "+xml") || media == "text/html":
		form = rules.FormXML
	}
	r.body.pointer = "/config/body/text"
	r.body.text = r.text("/body/text", s, form)
}

// fillBody makes the body of a message.
func (t *target) fillBody(m *outbound.Message, ev *event.Event, f *rules.Filler) (err error) {
	switch t.body.event {
	case bodyNone:
		return nil
	case bodyData:
		m.Body = ev.Data
		if ev.DataContentType != "" {
			m.Header["Content-Type"] = []string{ev.DataContentType}
		}
		return nil
	case bodyEvent:
		m.Body = event.AppendJSON(nil, ev)
		m.Header["Content-Type"] = []string{event.StructuredType}
		return nil
	}
	m.Header["Content-Type"] = []string{t.contentType}
	if t.body.text != nil {
		m.Body, err = t.body.text.Fill(f)
		return err
	}
	for i, field := range t.body.form {
		value, err := field.text.Fill(f)
		if err != nil {
			return fmt.Errorf("%s: %w", field.name, err)
		}
		if i > 0 {
			m.Body = append(m.Body, '&')
		}
		m.Body = append(append(append(m.Body, field.name...), '='), url.QueryEscape(string(value))...)
		if len(m.Body) > rules.MaxOutput {
			return errTooLarge
		}
	}
	return nil
}

var errTooLarge = fmt.Errorf("would have more than %d bytes", rules.MaxOutput)
