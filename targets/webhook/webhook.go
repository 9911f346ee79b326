// SPDX-License-Identifier: Apache-2.0

// Package webhook is the target kind "webhook": each event becomes an HTTP POST to one URL.
//
// The event travels as a CloudEvent in binary mode (attributes in ce-* headers, the data as the body) or in structured
// mode. webhook-id is the delivery's id, the same on every attempt; webhook-timestamp is the attempt's; with a secret the
// request is signed by Standard Webhooks 1.0.0. In binary mode that signature covers the data and not the attributes:
// who must be able to trust the type takes structured mode, or a signature by RFC 9421, which covers both.
//
// 200-299 is success and nothing else is. Redirects are not followed. A target holds no connection and no goroutine of
// its own; those of the client it was given belong to whoever made the client.
package webhook

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

// The modes (CloudEvents HTTP binding).
const (
	modeBinary     = "binary"
	modeStructured = "structured"
	modeBatch      = "batch"
)

var structuredType = []string{"application/cloudevents+json; charset=utf-8"}

// Kind returns the kind. checkURL says, when a definition is written, why a URL cannot be a target; it is the egress
// guard's CheckURL.
func Kind(checkURL func(url string) error) targets.Kind {
	return targets.Kind{
		Name: "webhook",
		Doc: "Posts each event to a URL as a CloudEvent, in binary or structured mode or in batches, with a stable webhook-id and, when it has " +
			"keys, signed by Standard Webhooks or RFC 9421. Success is 200-299; redirects are not followed.",
		Example: "kind: Target\nname: ops\ntype: webhook\nconfig:\n  url: https://ops.example.com/hook\n  mode: structured\n" +
			"  secret: {ref: ops-signing}\n  auth: {type: bearer, token: {ref: ops-token}}\ndelivery:\n  concurrency: 8\n  timeout: 10s\n",
		ConfigSchema: outbound.ConfigSchema(configSchema),
		Check:        func(cfg json.RawMessage) error { return check(cfg, checkURL) },
		New:          newTarget,
	}
}

// webhook is a target. It is safe for concurrent use.
type webhook struct {
	settings
	env    targets.Env
	url    *url.URL
	sender *outbound.Sender[signers]
	asks   *handshake // nil without a handshake
}

func newTarget(cfg json.RawMessage, env targets.Env) (targets.Target, error) {
	r := parse(cfg)
	s := r.settings
	if err := fault.Collect(r.Details()); err != nil {
		return nil, err
	}
	u, err := url.Parse(s.url)
	if err != nil || u.Host == "" {
		return nil, fault.Invalidf("/url", "is not a URL")
	}
	if u, err = r.SentURL(u); err != nil { // what RFC 9421 covers is what is sent
		return nil, fault.Invalidf("/url", "cannot be signed for AWS")
	}
	w := &webhook{settings: s, env: env, url: u}
	w.sender = outbound.NewSender(r.Access, u.Hostname(), env, w.signers)
	if s.handshake != nil {
		w.asks = newHandshake(*s.handshake, w)
	}
	return w, nil
}

// Pace implements targets.Paced.
func (w *webhook) Pace() targets.RateLimit {
	if w.asks == nil {
		return targets.RateLimit{}
	}
	return w.asks.pace()
}

// Warnings implements targets.Warner.
func (w *webhook) Warnings() (all []rules.Warning) {
	all = w.sender.Warnings()
	if w.asks != nil {
		if warning := w.asks.warning(); warning != "" {
			all = append(all, rules.Warning{Pointer: "/config/handshake", Message: warning})
		}
	}
	return all
}

// Deliver makes one attempt. It implements targets.Target.
func (w *webhook) Deliver(ctx context.Context, d targets.Delivery) (targets.Result, error) {
	if w.mode == modeBatch {
		return w.deliverInBatch(ctx, d)
	}
	return w.attempt(ctx, w.message(d), d.ID)
}

// attempt names a message, signs it and sends it.
func (w *webhook) attempt(ctx context.Context, m outbound.Message, id string) (targets.Result, error) {
	now := w.env.Now()
	creds, err := w.sender.Credentials(now)
	if err != nil {
		return targets.Result{}, err
	}
	if w.asks != nil {
		if err := w.asks.agreed(ctx); err != nil {
			return targets.Result{}, err
		}
		m.Header["Webhook-Request-Origin"] = []string{w.asks.Origin}
	}
	creds.Prepare(&m)
	if err := creds.Own.sign(&m, id, now); err != nil {
		return targets.Result{}, &targets.Error{Reason: targets.ReasonInternal, Err: err}
	}
	res, _, err := w.sender.Send(ctx, m, creds, outbound.Terms{})
	return res, err
}

// message is the message for a delivery: its event.
func (w *webhook) message(d targets.Delivery) outbound.Message {
	m := outbound.Message{Method: http.MethodPost, URL: w.url, Header: make(http.Header, 16)}
	switch {
	case w.mode == modeStructured:
		m.Body = event.AppendJSON(nil, d.Event)
		m.Header["Content-Type"] = structuredType
	case w.raw:
		m.Body = event.ToHTTPBinaryRaw(m.Header, d.Event)
	default:
		m.Body = event.ToHTTPBinary(m.Header, d.Event)
	}
	return m
}

// sign names the message and signs it.
func (s *signers) sign(m *outbound.Message, id string, now time.Time) error {
	ts := now.Unix()
	values := [3]string{id, strconv.FormatInt(ts, 10)}
	m.Header["Webhook-Id"] = values[0:1:1]
	m.Header["Webhook-Timestamp"] = values[1:2:2]
	if s.webhook != nil {
		values[2] = s.webhook.Sign(id, ts, m.Body)
		m.Header["Webhook-Signature"] = values[2:3:3]
	}
	if s.message != nil {
		return s.message.Sign(m, now)
	}
	return nil
}
