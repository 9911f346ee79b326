// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"net/http"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
)

// slack is https://docs.slack.dev/apis/events-api. Slack waits three seconds, and turns an app off whose answers are mostly
// no 2xx: so an event that no rule wants is good as well.
var slack = &provider{
	name: "slack", title: "Slack", fields: []string{"secret"}, within: 2500 * time.Millisecond, status: http.StatusOK,
	doc: "*Basic Information* of the app has the signing secret. The URL of the hook is the request URL under *Event Subscriptions* " +
		"(the question that Slack asks first is answered), *Interactivity* and *Slash Commands*. `type` is `com.slack.<event type>`, `com.slack.command` for a " +
		"slash command, `source` `slack:<team>/<app>`, `subject` the channel, or else the user. " +
		"The verification token, which Slack still sends, is left out of what is stored.",
	open: func(h *hook) (receiver, error) { return h.slack, nil },
}

func (h *hook) slack(_ context.Context, r *request) (taken, error) {
	if err := slackScheme.verify(h, r); err != nil {
		return taken{}, err
	}
	if isForm(r.Request) {
		return h.slackForm(r)
	}
	p, err := parsePayload(r.body)
	if err != nil {
		return taken{}, err
	}
	if p.text("type") == "url_verification" {
		return taken{answer: &answer{"text/plain; charset=utf-8", []byte(p.text("challenge"))}}, nil
	}
	kind := p.first("event.type", "type")
	subject := p.first("event.channel", "event.channel.id", "event.item.channel", "event.user", "event.user.id", "event.user_id")
	ev := r.jsonEvent(p.text("event_id"), slackSource(p.text("team_id"), p.text("api_app_id")), typeName("com.slack", kind), subject, p.when("event_time"),
		without(r.body, "token"))
	return taken{events: []event.Event{ev}}, nil
}

// slackForm is for what people do: a form with a payload in JSON, or the fields of a slash command. Neither has an id; a
// trigger is there once.
func (h *hook) slackForm(r *request) (taken, error) {
	form, err := r.form()
	if err != nil {
		return taken{}, err
	}
	if inner := form.Get("payload"); inner != "" {
		p, err := parsePayload([]byte(inner))
		if err != nil {
			return taken{}, err
		}
		subject := p.first("channel.id", "container.channel_id", "user.id")
		ev := r.jsonEvent(p.first("trigger_id"), slackSource(p.first("team.id", "user.team_id"), p.text("api_app_id")), typeName("com.slack", p.text("type")), subject,
			p.when("action_ts"), without([]byte(inner), "token"))
		return taken{events: []event.Event{ev}}, nil
	}
	form.Del("token")
	data, err := formObject(form)
	if err != nil {
		return taken{}, err
	}
	subject := form.Get("channel_id")
	if subject == "" {
		subject = form.Get("user_id")
	}
	ev := r.jsonEvent(form.Get("trigger_id"), slackSource(form.Get("team_id"), form.Get("api_app_id")), "com.slack.command", subject, time.Time{}, data)
	return taken{events: []event.Event{ev}}, nil
}

func slackSource(team, app string) string {
	if app == "" {
		return "slack:" + team
	}
	return "slack:" + team + "/" + app
}
