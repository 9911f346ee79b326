// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// pagerduty is V3 webhooks, https://developer.pagerduty.com/docs/webhooks-overview. A 403 has PagerDuty not try again.
var pagerduty = &provider{
	name: "pagerduty", title: "PagerDuty", fields: []string{"secret"}, within: 4 * time.Second, status: http.StatusOK,
	doc: "*Integrations*, *Generic Webhooks (v3)*, *New Webhook*: the URL of the hook; the secret is shown once. `type` is `com.pagerduty.<event type>`, " +
		"`source` the account's page, `subject` the id of what it is about.",
	open: func(h *hook) (receiver, error) { return h.pagerduty, nil },
}

func (h *hook) pagerduty(_ context.Context, r *request) (taken, error) {
	if err := pagerScheme.verify(h, r); err != nil {
		return taken{}, err
	}
	p, err := parsePayload(r.body)
	if err != nil {
		return taken{}, err
	}
	kind := p.text("event.event_type")
	if kind == "" {
		return taken{}, fault.New(fault.Invalid, "the payload has no event.event_type")
	}
	source := "https://www.pagerduty.com"
	if u, err := url.Parse(p.text("event.data.html_url")); err == nil && u.Host != "" {
		source = u.Scheme + "://" + u.Host
	}
	ev := r.jsonEvent(p.text("event.id"), source, typeName("com.pagerduty", kind), p.text("event.data.id"), p.when("event.occurred_at"), r.body)
	return taken{events: []event.Event{ev}}, nil
}
