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

// gitlab is https://docs.gitlab.com/user/project/integrations/webhooks. It sends a secret token as it is, or, with a signing
// token, a signature by Standard Webhooks. A hook that fails often is disabled by GitLab.
var gitlab = &provider{
	name: "gitlab", title: "GitLab", fields: []string{"secret"}, within: 9 * time.Second, status: http.StatusOK,
	doc: "*Settings*, *Webhooks*, *Add new webhook*: the URL of the hook, and the secret token (or the signing token, `whsec_...`). " +
		"`type` is `com.gitlab.push`, `.tag_push`, `.merge_request.<action>`, `.issue.<state>`, `.note.<on what>`, `.pipeline.<status>`, " +
		"`.job.<status>` and so on; `source` the page of the project, `id` the idempotency key.",
	open: func(h *hook) (receiver, error) { return h.gitlab, nil },
}

func (h *hook) gitlab(_ context.Context, r *request) (taken, error) {
	if err := h.proveGitLab(r); err != nil {
		return taken{}, err
	}
	p, err := parsePayload(r.body)
	if err != nil {
		return taken{}, err
	}
	kind := p.first("object_kind", "event_name", "event_type")
	if kind == "" {
		return taken{}, fault.New(fault.Invalid, "the payload has no object_kind")
	}
	suffix, subject, at := gitlabEvent(kind, p)
	if kind == "build" {
		kind = "job"
	}
	id := r.Header.Get("Webhook-Id")
	if id == "" {
		id = r.Header.Get("Idempotency-Key")
	}
	source := p.first("repository.homepage", "project.web_url", "project.homepage", "group.web_url")
	if source == "" {
		source = "https://gitlab.com"
	}
	return taken{events: []event.Event{r.jsonEvent(id, source, typeName("com.gitlab", kind, suffix), subject, at, r.body)}}, nil
}

// gitlabEvent is what the type ends with, the subject and the time.
func gitlabEvent(kind string, p payload) (suffix, subject string, at time.Time) {
	at = p.when("object_attributes.updated_at", "object_attributes.finished_at", "object_attributes.created_at", "released_at", "status_changed_at")
	switch kind {
	case "push", "tag_push":
		return "", p.first("checkout_sha", "after"), at
	case "merge_request":
		return p.text("object_attributes.action"), p.text("object_attributes.iid"), at
	case "issue", "work_item":
		return p.first("object_attributes.state", "object_attributes.action"), p.text("object_attributes.iid"), at
	case "note":
		return strings.ToLower(p.text("object_attributes.noteable_type")), p.text("object_attributes.id"), at
	case "pipeline":
		return p.text("object_attributes.status"), p.text("object_attributes.id"), at
	case "build":
		return p.text("build_status"), p.text("build_id"), p.when("build_finished_at", "build_started_at", "build_created_at")
	case "deployment":
		return p.text("status"), p.text("deployment_id"), at
	case "release":
		return p.text("action"), p.text("tag"), at
	}
	return p.first("object_attributes.action", "action"), p.first("object_attributes.id", "object_attributes.slug"), at
}

// proveGitLab checks a signature if there is one, else the token, and reads the body.
func (h *hook) proveGitLab(r *request) error {
	if r.Header.Get("Webhook-Signature") != "" {
		return h.proveStandard(r, "Webhook-")
	}
	token, err := r.header("X-Gitlab-Token")
	if err != nil {
		return err
	}
	secrets, err := h.s.secrets.get(h.env)
	if err != nil {
		return err
	}
	if !equalAny(secrets, token) {
		return errToken
	}
	r.known = true
	return r.read()
}
