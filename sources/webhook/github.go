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

// github is https://docs.github.com/webhooks. GitHub waits ten seconds and never tries again by itself; a redelivery by hand
// has the id of the first.
var github = &provider{
	name: "github", title: "GitHub", fields: []string{"secret"}, within: 9 * time.Second, status: http.StatusOK,
	doc: "In the settings of a repository, an organization or an app: *Webhooks*, *Add webhook*, the URL of the hook, and the secret. " +
		"Both content types work; with a form, the data of the event is the JSON in its field `payload`. " +
		"`type` is `com.github.<event>` and `.<action>` where there is one, `source` the URL of the repository in the API, `id` the delivery's GUID.",
	open: func(h *hook) (receiver, error) { return h.github, nil },
}

// githubEvent says where the attributes of an event are. Paths are tried in their order.
type githubEvent struct {
	source  string // default repository.url
	suffix  string // of the type, instead of action; "-" = none
	subject string
	time    []string
}

// githubEvents follows the GitHub adapter of the CloudEvents specification.
var githubEvents = map[string]githubEvent{
	"check_run":                      {subject: "check_run.id", time: []string{"check_run.completed_at", "check_run.started_at"}},
	"check_suite":                    {subject: "check_suite.id", time: []string{"check_suite.updated_at"}},
	"commit_comment":                 {source: "comment.url", subject: "comment.id", time: []string{"comment.updated_at"}},
	"content_reference":              {subject: "content_reference.id"},
	"create":                         {suffix: "ref_type", subject: "ref"},
	"delete":                         {suffix: "ref_type", subject: "ref"},
	"deploy_key":                     {subject: "key.id", time: []string{"key.deleted_at", "key.created_at"}},
	"deployment":                     {suffix: "-", subject: "deployment.id", time: []string{"deployment.updated_at"}},
	"deployment_status":              {source: "deployment.url", suffix: "deployment_status.state", subject: "deployment_status.url", time: []string{"deployment_status.updated_at"}},
	"fork":                           {suffix: "-", subject: "forkee.url", time: []string{"forkee.created_at"}},
	"github_app_authorization":       {source: "sender.url", suffix: "-"},
	"gollum":                         {suffix: "-"},
	"installation":                   {source: "installation.account.url", subject: "installation.id", time: []string{"installation.updated_at"}},
	"installation_repositories":      {source: "installation.account.url", subject: "installation.id", time: []string{"installation.updated_at"}},
	"issue_comment":                  {source: "issue.url", subject: "comment.id", time: []string{"comment.updated_at"}},
	"issues":                         {subject: "issue.number", time: []string{"issue.updated_at"}},
	"label":                          {subject: "label.name"},
	"marketplace_purchase":           {source: "sender.url", subject: "marketplace_purchase.account.login", time: []string{"effective_date"}},
	"member":                         {subject: "member.login"},
	"membership":                     {source: "team.url", subject: "member.login"},
	"meta":                           {subject: "hook_id", time: []string{"hook.updated_at"}},
	"milestone":                      {subject: "milestone.number", time: []string{"milestone.updated_at"}},
	"organization":                   {source: "organization.url", subject: "membership.user.login"},
	"org_block":                      {source: "organization.url", subject: "blocked_user.login"},
	"page_build":                     {suffix: "-", subject: "build.url", time: []string{"pusher.updated_at"}},
	"project_card":                   {subject: "project_card.id", time: []string{"project_card.updated_at"}},
	"project_column":                 {subject: "project_column.id", time: []string{"project_column.updated_at"}},
	"project":                        {subject: "project.id", time: []string{"project.updated_at"}},
	"public":                         {source: "repository.owner.url", suffix: "-", subject: "repository.name", time: []string{"repository.updated_at"}},
	"pull_request":                   {subject: "number", time: []string{"pull_request.updated_at"}},
	"pull_request_review":            {source: "pull_request.url", subject: "review.id", time: []string{"review.submitted_at"}},
	"pull_request_review_comment":    {source: "pull_request.url", subject: "comment.id", time: []string{"pull_request.updated_at"}},
	"push":                           {suffix: "-", subject: "ref"},
	"registry_package":               {subject: "registry_package.html_url", time: []string{"registry_package.updated_at"}},
	"release":                        {subject: "release.id", time: []string{"release.published_at", "release.created_at"}},
	"repository":                     {source: "repository.owner.url", subject: "repository.name", time: []string{"repository.updated_at"}},
	"repository_import":              {source: "repository.owner.url", suffix: "-", subject: "repository.name", time: []string{"repository.updated_at"}},
	"repository_vulnerability_alert": {subject: "alert.id"},
	"security_advisory":              {source: "-", subject: "security_advisory.ghsa_id", time: []string{"security_advisory.updated_at"}},
	"star":                           {time: []string{"starred_at"}},
	"status":                         {suffix: "-", subject: "sha", time: []string{"updated_at"}},
	"team":                           {subject: "team.id", time: []string{"updated_at"}},
	"team_add":                       {subject: "team.id"},
}

func (h *hook) github(_ context.Context, r *request) (taken, error) {
	if err := githubScheme.verify(h, r); err != nil {
		return taken{}, err
	}
	data := r.body
	if isForm(r.Request) {
		form, err := r.form()
		if err != nil {
			return taken{}, err
		}
		data = []byte(form.Get("payload"))
	}
	p, err := parsePayload(data)
	if err != nil {
		return taken{}, err
	}
	name := r.Header.Get("X-Github-Event")
	if name == "" {
		return taken{}, fault.New(fault.Invalid, "the header X-GitHub-Event is missing")
	}
	e := githubEvents[name]
	suffix := p.text("action")
	switch {
	case e.suffix == "-":
		suffix = ""
	case e.suffix != "":
		suffix = p.text(e.suffix)
	case name == "membership" && suffix != "":
		suffix = typeName(p.text("scope"), suffix)
	}
	ev := r.jsonEvent(r.Header.Get("X-Github-Delivery"), githubSource(name, e, p), typeName("com.github", name, suffix), p.text(e.subject), p.when(e.time...), data)
	return taken{events: []event.Event{ev}}, nil
}

// githubSource is the source of an event: of what has no repository, the organization, the sender, or GitHub.
func githubSource(name string, e githubEvent, p payload) string {
	const host = "https://github.com"
	if e.source == "-" {
		return host
	}
	source := p.text(e.source)
	switch {
	case source == "":
		source = p.first("repository.url", "organization.url", "sender.url")
	case name == "commit_comment":
		source += "/" + p.text("comment.commit_id")
	case name == "marketplace_purchase":
		source = strings.TrimSuffix(source, "/"+p.text("sender.login"))
	}
	if source == "" {
		return host
	}
	return source
}
