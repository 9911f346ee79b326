// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"net/http"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// stripe is https://docs.stripe.com/webhooks. Stripe tries again for three days.
var stripe = &provider{
	name: "stripe", title: "Stripe", fields: []string{"secret"}, within: 9 * time.Second, status: http.StatusOK,
	doc: "In the dashboard: *Developers*, *Webhooks*, *Add endpoint*, the URL of the hook; the secret is the endpoint's signing secret, with its `whsec_`. " +
		"`type` is `com.stripe.<type>`, `source` `https://stripe.com/<account>`, `subject` the id of the object.",
	open: func(h *hook) (receiver, error) { return h.stripe, nil },
}

func (h *hook) stripe(_ context.Context, r *request) (taken, error) {
	if err := stripeScheme.verify(h, r); err != nil {
		return taken{}, err
	}
	p, err := parsePayload(r.body)
	if err != nil {
		return taken{}, err
	}
	kind := p.text("type")
	if kind == "" {
		return taken{}, fault.New(fault.Invalid, "the payload has no type")
	}
	source := "https://stripe.com"
	if account := p.first("account", "context"); account != "" {
		source += "/" + account
	}
	ev := r.jsonEvent(p.text("id"), source, typeName("com.stripe", kind), p.first("data.object.id", "related_object.id"), p.when("created"), r.body)
	return taken{events: []event.Event{ev}}, nil
}
