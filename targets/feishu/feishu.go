// SPDX-License-Identifier: Apache-2.0

// Package feishu is the target kind "feishu": each event becomes a message of a custom bot in a group of Feishu, or of Lark,
// which is the same under another name.
//
// The bot's URL holds its key and is a secret; with a second secret each message is signed, by HMAC-SHA256 over its timestamp.
// A message is a card, a post or plain text. Without a template it has a title, where the event comes from, and its data.
// Values of the event cannot mention anybody, and mean nothing as Markdown.
//
// Feishu answers 200 whatever has become of a message, and says it by a code. It takes 100 messages a minute and 5 a second
// from a bot, which a target keeps to. Targets that share a bot do not know of each other.
package feishu

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/notice"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

//go:embed config.schema.json
var configSchema []byte

// Kind returns the kind. checkURL says, when a definition is written, why a URL cannot be a target; it is the egress
// guard's CheckURL.
func Kind(checkURL func(url string) error) targets.Kind {
	return targets.Kind{
		Name: "feishu",
		Doc: "Sends each event as a message of a custom bot to a group of Feishu or Lark, as card, post or text, and signed if the bot wants that. " +
			"Its limits of 100 messages a minute and 5 a second are kept.",
		Example: "kind: Target\nname: ops-feishu\ntype: feishu\nconfig:\n  url: {ref: feishu-bot}\n  secret: {ref: feishu-signing}\n" +
			"  title: \"${data.box} is too warm\"\n  text: \"**${data.temperature} °C** at ${time}\"\ndelivery:\n  concurrency: 2\n",
		ConfigSchema: configSchema,
		Check: func(cfg json.RawMessage) error {
			_, err := parse(cfg, checkURL)
			return err
		},
		New: func(cfg json.RawMessage, env targets.Env) (targets.Target, error) {
			s, err := parse(cfg, nil)
			if err != nil {
				return nil, err
			}
			return &target{settings: *s, env: env, secrets: targets.NewSecretSet(env, s.slots...)}, nil
		},
	}
}

// target is a target. It is safe for concurrent use.
type target struct {
	settings
	env     targets.Env
	secrets *targets.SecretSet
}

// Pace implements targets.Paced: it is at most 4.6 in any second, and 99 in any minute.
func (*target) Pace() targets.RateLimit { return targets.RateLimit{PerSecond: 1.6, Burst: 3} }

// Reads implements targets.Reading.
func (t *target) Reads() []rules.Read {
	return notice.Reads(notice.Place{Pointer: "/title", Text: t.title}, notice.Place{Pointer: "/text", Text: t.text}, notice.Place{Pointer: "/card", Text: t.card})
}

// Deliver sends a message. It implements targets.Target.
func (t *target) Deliver(ctx context.Context, d targets.Delivery) (targets.Result, error) {
	secrets, err := t.secrets.Values()
	if err != nil {
		return targets.Result{}, &targets.Error{Reason: targets.ReasonInternal, Err: err}
	}
	body, err := t.body(notice.NewDraft(d), secrets["/secret"])
	if err != nil {
		return targets.Result{}, err
	}
	u, err := url.Parse(secrets["/url"])
	if err != nil {
		return targets.Result{}, &targets.Error{Reason: targets.ReasonInternal, Err: errors.New("url: is not a URL")}
	}
	m := outbound.Message{Method: http.MethodPost, URL: u, Header: http.Header{"Content-Type": {"application/json; charset=utf-8"}}, Body: body,
		Hide: notice.Hide(u, secrets["/secret"])}
	res, err := outbound.Judge(ctx, t.env.HTTP, m, t.env.Now, judge)
	t.secrets.Doubt(err)
	return res, err
}

// refusals are the codes that are known; see the documentation of custom bots and the list of general error codes.
var refusals = map[int]notice.Refusal{
	11232:      {Reason: targets.ReasonStatus, Passes: true, Rest: time.Minute},                                                                                      // more than 100 a minute, or 5 a second
	230020:     {Reason: targets.ReasonStatus, Passes: true, Rest: 10 * time.Second},                                                                                 // the group is sent too much
	99991400:   {Reason: targets.ReasonStatus, Passes: true, Rest: time.Minute},                                                                                      // the organisation asks for too much
	19001:      {Reason: targets.ReasonAuth},                                                                                                                         // the key
	19021:      {Reason: targets.ReasonAuth},                                                                                                                         // signature, or a clock that is an hour off
	19022:      {Reason: targets.ReasonAuth},                                                                                                                         // our address is not on its list
	19024:      {Reason: targets.ReasonAuth},                                                                                                                         // none of its keywords
	badRequest: {Reason: targets.ReasonStatus}, 19002: {Reason: targets.ReasonStatus}, 11246: {Reason: targets.ReasonStatus}, 230099: {Reason: targets.ReasonStatus}, // not a message
	11247: {Reason: targets.ReasonGone}, 19007: {Reason: targets.ReasonGone}, // the bot is off
}

// badRequest is what Feishu says to what is not a message, and also ("too many request") to what is too fast.
const badRequest = 9499

// judge says what became of a message. A bot answers in one of two forms, and at times in both.
func judge(a outbound.Answer) *targets.Error {
	var answer struct {
		Code       *int   `json:"code"`
		Message    string `json:"msg"`
		OldCode    *int   `json:"StatusCode"`
		OldMessage string `json:"StatusMessage"`
	}
	readable := json.Unmarshal(a.Body, &answer) == nil
	code, message := answer.Code, answer.Message
	if code == nil {
		code, message = answer.OldCode, answer.OldMessage
	}
	switch known := readable && code != nil; {
	case known && *code != 0:
		e := notice.Refused("Feishu", *code, message, refusals)
		if *code == badRequest && strings.Contains(strings.ToLower(message), "too many") {
			e.Permanent, e.RetryAfter = false, time.Minute
		}
		if reset, err := strconv.Atoi(a.Header.Get("X-Ogw-Ratelimit-Reset")); err == nil && reset > 0 && !e.Permanent {
			e.RetryAfter = min(time.Duration(reset)*time.Second, targets.MaxRest)
		}
		return e
	case known || a.Status >= 300:
		return nil // the status says it
	}
	return notice.Unreadable("Feishu's")
}
