// SPDX-License-Identifier: Apache-2.0

// Package webhook is the target kind "webhook": each event becomes an HTTP POST to one URL.
//
// The event travels as a CloudEvent in binary mode (attributes in ce-* headers, the data as the body) or in structured
// mode. webhook-id is the delivery's id, the same on every attempt; webhook-timestamp is the attempt's; with a secret the
// request is signed by Standard Webhooks 1.0.0. In binary mode that signature covers the data and not the attributes:
// who must be able to trust the type takes structured mode.
//
// 200-299 is success and nothing else is. Redirects are not followed. A target holds no connection and no goroutine of
// its own; those of the client it was given belong to whoever made the client.
package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

// refresh is how long resolved secrets are used before their references are looked at again, so that a secret that was
// changed in its file is taken up without a restart.
const refresh = time.Minute

var structuredType = []string{"application/cloudevents+json; charset=utf-8"}

// Kind returns the kind. checkURL says, when a definition is written, why a URL cannot be a target; it is the egress
// guard's CheckURL.
func Kind(checkURL func(url string) error) targets.Kind {
	return targets.Kind{
		Name: "webhook",
		Doc: "Posts each event to a URL as a CloudEvent, in binary or structured mode, with a stable webhook-id and, when it has a secret, " +
			"signed by Standard Webhooks. Success is 200-299; redirects are not followed.",
		ConfigSchema: configSchema,
		Check:        func(cfg json.RawMessage) error { return check(cfg, checkURL) },
		New:          newTarget,
	}
}

// webhook is a target. It is safe for concurrent use.
type webhook struct {
	settings
	env   targets.Env
	url   *url.URL
	fixed bool // no secret is a reference, so that nothing has to be looked at again
	creds atomic.Pointer[credentials]
}

// credentials is what the secrets of a webhook resolved to.
type credentials struct {
	signer  *outbound.Signer // nil = unsigned
	headers http.Header      // the static headers; values are shared between requests
	hidden  []string         // what of them is secret, longer texts before those they hold
	at      time.Time
}

func newTarget(cfg json.RawMessage, env targets.Env) (targets.Target, error) {
	s, details := parse(cfg)
	if err := fault.Collect(details); err != nil {
		return nil, err
	}
	u, err := url.Parse(s.url)
	if err != nil || u.Host == "" {
		return nil, fault.Invalidf("/url", "is not a URL")
	}
	w := &webhook{settings: s, env: env, url: u, fixed: true}
	for _, src := range s.secrets {
		w.fixed = w.fixed && src.Ref() == ""
	}
	for _, h := range s.headers {
		w.fixed = w.fixed && h.secret.Ref() == ""
	}
	return w, nil
}

// Deliver makes one attempt. It implements targets.Target.
func (w *webhook) Deliver(ctx context.Context, d targets.Delivery) (targets.Result, error) {
	now := w.env.Now()
	creds, err := w.credentials(now)
	if err != nil {
		return targets.Result{}, &targets.Error{Reason: targets.ReasonInternal, Err: err}
	}
	return outbound.Exchange(ctx, w.env.HTTP, w.message(d, creds, now), w.env.Now)
}

func (w *webhook) message(d targets.Delivery, creds *credentials, now time.Time) outbound.Message {
	m := outbound.Message{Method: http.MethodPost, URL: w.url, Header: make(http.Header, 16), Hide: creds.hidden}
	for name, values := range creds.headers {
		m.Header[name] = values
	}
	if w.structured {
		m.Body = event.AppendJSON(nil, d.Event)
		m.Header["Content-Type"] = structuredType
	} else {
		m.Body = event.ToHTTPBinary(m.Header, d.Event)
	}
	ts := now.Unix()
	values := [3]string{d.ID, strconv.FormatInt(ts, 10)}
	m.Header["Webhook-Id"] = values[0:1:1]
	m.Header["Webhook-Timestamp"] = values[1:2:2]
	if creds.signer != nil {
		values[2] = creds.signer.Sign(d.ID, ts, m.Body)
		m.Header["Webhook-Signature"] = values[2:3:3]
	}
	return m
}

// credentials returns the resolved secrets. While a reference cannot be resolved, what it resolved to before is used; if
// it never did, there is an error, which names the reference.
func (w *webhook) credentials(now time.Time) (*credentials, error) {
	old := w.creds.Load()
	if old != nil && (w.fixed || now.Sub(old.at) < refresh) {
		return old, nil
	}
	fresh, err := w.resolve()
	if err != nil {
		if old == nil {
			return nil, err
		}
		w.env.Logger.Warn("secret not readable, the last one stays in use", slog.Any("err", err))
		fresh = &credentials{signer: old.signer, headers: old.headers, hidden: old.hidden}
	}
	fresh.at = now
	w.creds.Store(fresh)
	return fresh, nil
}

func (w *webhook) resolve() (*credentials, error) {
	c := &credentials{headers: make(http.Header, len(w.headers))}
	for _, h := range w.headers {
		value := h.text
		if !h.secret.IsZero() {
			v, err := h.secret.Resolve(w.env.Secrets)
			if err != nil {
				return nil, err
			}
			value = v.Reveal()
			c.hidden = append(c.hidden, value)
			if _, credentials, ok := strings.Cut(value, " "); ok { // behind the scheme, such as Bearer
				c.hidden = append(c.hidden, strings.TrimSpace(credentials))
			}
		}
		if !isFieldValue(value) {
			return nil, fmt.Errorf("header %s: secret %s %s", h.name, h.secret, badValue)
		}
		c.headers[h.name] = []string{value}
	}
	slices.SortFunc(c.hidden, func(x, y string) int { return len(y) - len(x) })
	if len(w.secrets) == 0 {
		return c, nil
	}
	texts := make([]string, len(w.secrets))
	for i, src := range w.secrets {
		v, err := src.Resolve(w.env.Secrets)
		if err != nil {
			return nil, err
		}
		texts[i] = v.Reveal()
		if err := outbound.CheckSecret(texts[i]); err != nil {
			return nil, fmt.Errorf("secret %s: %w", src, err)
		}
	}
	signer, err := outbound.NewSigner(texts...)
	if err != nil {
		return nil, err
	}
	c.signer = signer
	return c, nil
}
