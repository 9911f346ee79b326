// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// shopify is https://shopify.dev/docs/apps/build/webhooks. Shopify waits five seconds, tries eight times in four hours, and
// then deletes the subscription.
var shopify = &provider{
	name: "shopify", title: "Shopify", fields: []string{"secret"}, within: 4 * time.Second, status: http.StatusOK,
	doc: "The secret is the client secret of the app, or for webhooks that were made in the admin, the one that is shown there. After a rotation " +
		"Shopify may sign with the old one for an hour: give both. `type` is `com.shopify.<topic>` with dots, `source` the shop, `id` the webhook's id.",
	open: func(h *hook) (receiver, error) { return h.shopify, nil },
}

func (h *hook) shopify(_ context.Context, r *request) (taken, error) {
	if err := shopifyScheme.verify(h, r); err != nil {
		return taken{}, err
	}
	p, err := parsePayload(r.body)
	if err != nil {
		return taken{}, err
	}
	topic, shop := r.Header.Get("X-Shopify-Topic"), r.Header.Get("X-Shopify-Shop-Domain")
	if topic == "" || shop == "" {
		return taken{}, fault.New(fault.Invalid, "the headers X-Shopify-Topic and X-Shopify-Shop-Domain are needed")
	}
	at, _ := parseWhen(r.Header.Get("X-Shopify-Triggered-At"))
	ev := r.jsonEvent(r.Header.Get("X-Shopify-Webhook-Id"), "https://"+shop, typeName("com.shopify", strings.ReplaceAll(topic, "/", ".")), p.text("id"), at, r.body)
	return taken{events: []event.Event{ev}}, nil
}
