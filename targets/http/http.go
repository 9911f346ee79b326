// SPDX-License-Identifier: Apache-2.0

// Package http is the target kind "http": each event becomes an HTTP request of any form, for far sides that do not speak
// CloudEvents, such as gateways for messages, pagers and the APIs of products.
//
// URL, headers and body are templates, whose values are escaped for where they stand. No value decides which host is called.
// What cannot be filled in is a dead letter at once (ReasonTransform): the same event would give the same again.
//
// Success is 200-299, or the statuses that the config lists; redirects are never followed. An answer may have to say in its JSON
// that it accepts. A target holds no connection and no goroutine of its own.
package http

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

//go:embed config.schema.json
var configSchema []byte

// Kind returns the kind. checkURL says, when a definition is written, why a URL cannot be a target; it is the egress
// guard's CheckURL.
func Kind(checkURL func(url string) error) targets.Kind {
	return targets.Kind{
		Name: "http",
		Doc: "Makes an HTTP request of each event: method, URL, headers and body are yours, with values of the event. For far sides that do not " +
			"speak CloudEvents: pagers, gateways for messages, APIs. Success is 200-299 or what you list; redirects are not followed.",
		Example: "kind: Target\nname: sms\ntype: http\nconfig:\n  url: https://sms.example.com/v1/messages/${data.phone}\n" +
			"  auth: {type: basic, username: acme, password: {ref: sms-password}}\n" +
			"  body: {form: {From: acme, Text: \"Box ${subject} is at ${data.temperature} C\"}}\n" +
			"  answer: {path: $.code, equals: 0}\n",
		ConfigSchema: outbound.ConfigSchema(configSchema),
		Check: func(cfg json.RawMessage) error {
			r := parse(cfg)
			if r.url != nil {
				r.CheckURLs(map[string]string{"/url": r.url.Sample()}, checkURL)
			}
			return fault.Collect(r.Details())
		},
		New: newTarget,
	}
}

// target is a target. It is safe for concurrent use.
type target struct {
	settings
	env    targets.Env
	sender *outbound.Sender[map[string]string] // secrets by their names in templates
}

func newTarget(cfg json.RawMessage, env targets.Env) (targets.Target, error) {
	r := parse(cfg)
	if err := fault.Collect(r.Details()); err != nil {
		return nil, err
	}
	u, err := url.Parse(r.url.Sample())
	if err != nil || u.Host == "" {
		return nil, fault.Invalidf("/url", "is not a URL")
	}
	t := &target{settings: r.settings, env: env}
	t.sender = outbound.NewSender(r.Access, u.Hostname(), env, t.named)
	return t, nil
}

// named are the secrets by their names.
func (s *settings) named(values map[string]string) (map[string]string, error) {
	out := make(map[string]string, len(s.secrets))
	for _, name := range s.secrets {
		out[name] = values[secretPointer(name)]
	}
	return out, nil
}

// Warnings implements targets.Warner.
func (t *target) Warnings() []rules.Warning { return t.sender.Warnings() }

// Reads implements targets.Reading.
func (t *target) Reads() []rules.Read {
	out := t.url.Reads("/config/url")
	for _, h := range t.headers {
		out = append(out, h.text.Reads(h.pointer)...)
	}
	if t.body.text != nil {
		out = append(out, t.body.text.Reads(t.body.pointer)...)
	}
	for _, f := range t.body.form {
		out = append(out, f.text.Reads(f.pointer)...)
	}
	return out
}

// Deliver makes one attempt. It implements targets.Target.
func (t *target) Deliver(ctx context.Context, d targets.Delivery) (targets.Result, error) {
	creds, err := t.sender.Credentials(t.env.Now())
	if err != nil {
		return targets.Result{}, err
	}
	m, err := t.message(d, creds.Own)
	if err != nil {
		return targets.Result{}, &targets.Error{Reason: targets.ReasonTransform, Permanent: true, Err: err}
	}
	creds.Prepare(&m)
	res, ans, err := t.sender.Send(ctx, m, creds, t.terms)
	if err != nil || t.answer == nil {
		return res, err
	}
	if e := t.answer.judge(&ans); e != nil {
		e.Status, res.Head = res.Status, ans.Head()
		return res, e
	}
	return res, nil
}

// message is the request for a delivery, but for what is the same each time.
func (t *target) message(d targets.Delivery, secrets map[string]string) (m outbound.Message, err error) {
	var f *rules.Filler
	if !t.static {
		if f, err = rules.NewFiller(d.Event, rules.RenderContext{Rule: d.Rule, Bus: d.Bus, Received: d.Received}, secrets); err != nil {
			return m, err
		}
	}
	to, err := t.url.Fill(f)
	if err != nil {
		return m, about("url", err)
	}
	m = outbound.Message{Method: t.method, Header: make(http.Header, 8)}
	if m.URL, err = url.Parse(string(to)); err != nil {
		return m, errors.New("url: is none with the values of this event")
	}
	if len(to) > maxURL {
		return m, errors.New("url: is too long with the values of this event")
	}
	for _, h := range t.headers {
		value, err := h.text.Fill(f)
		if err == nil && len(value) > 0 {
			err = outbound.CheckFieldValue(string(value))
		}
		if err != nil {
			return m, about("header "+h.name, err)
		}
		if len(value) > 0 { // what the event does not have is not sent
			m.Header[h.name] = []string{string(value)}
		}
	}
	if t.idempotent {
		m.Header["Idempotency-Key"] = []string{d.ID}
	}
	return m, about("body", t.fillBody(&m, d.Event, f))
}

// maxURL is the longest URL that is called, in bytes.
const maxURL = 8 << 10

// about says of what an error is; nil stays nil.
func about(what string, err error) error {
	if err == nil {
		return nil
	}
	return &aboutError{what, err}
}

type aboutError struct {
	what string
	err  error
}

func (e *aboutError) Error() string { return e.what + ": " + e.err.Error() }
func (e *aboutError) Unwrap() error { return e.err }
