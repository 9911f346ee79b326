// SPDX-License-Identifier: Apache-2.0

// Package wecom is the target kind "wecom": each event becomes a message of a robot in a group of WeCom (WeChat Work).
//
// The robot's URL holds its key and is a secret. A message is Markdown, of at most 4096 bytes, or plain text, of at most 2048;
// what is longer is cut between characters. Without a template it has a title, where the event comes from, and its data.
// Values of the event cannot mention anybody, and make neither links nor headings.
//
// WeCom answers 200 whatever has become of a message, and says it by errcode. It takes 20 messages a minute from a robot: a
// target sends at most 15 a minute, after a quiet time 5 at once. Targets that share a robot do not know of each other.
package wecom

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
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
		Name: "wecom",
		Doc: "Sends each event as a message of a robot to a group of WeCom (WeChat Work), as Markdown or text. Its limit of 20 messages a minute " +
			"is kept.",
		Example: "kind: Target\nname: ops-wecom\ntype: wecom\nconfig:\n  url: {ref: wecom-robot}\n" +
			"  text: \"**${data.box}** is at <font color=\\\"warning\\\">${data.temperature} °C</font>\"\n  mentionedUsers: [zhang.san]\ndelivery:\n  concurrency: 1\n",
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

// Pace implements targets.Paced: 5 at once and 15 a minute are at most 20 in any minute.
func (*target) Pace() targets.RateLimit { return targets.RateLimit{PerSecond: 0.25, Burst: 5} }

// Reads implements targets.Reading.
func (t *target) Reads() []rules.Read {
	return notice.Reads(notice.Place{Pointer: "/text", Text: t.text})
}

// Deliver sends a message. It implements targets.Target.
func (t *target) Deliver(ctx context.Context, d targets.Delivery) (targets.Result, error) {
	body, err := t.body(notice.NewDraft(d))
	if err != nil {
		return targets.Result{}, err
	}
	secrets, err := t.secrets.Values()
	if err != nil {
		return targets.Result{}, &targets.Error{Reason: targets.ReasonInternal, Err: err}
	}
	u, err := url.Parse(secrets["/url"])
	if err != nil {
		return targets.Result{}, &targets.Error{Reason: targets.ReasonInternal, Err: errors.New("url: is not a URL")}
	}
	m := outbound.Message{Method: http.MethodPost, URL: u, Header: http.Header{"Content-Type": {"application/json; charset=utf-8"}}, Body: body, Hide: notice.Hide(u)}
	res, err := outbound.Judge(ctx, t.env.HTTP, m, t.env.Now, judge)
	t.secrets.Doubt(err)
	return res, err
}

// refusals are the errcodes that are known; see the documentation of group robots and the list of global error codes.
var refusals = map[int]notice.Refusal{
	-1:    {Reason: targets.ReasonStatus, Passes: true},                                                           // busy
	45009: {Reason: targets.ReasonStatus, Passes: true, Rest: time.Minute},                                        // more than 20 a minute
	45033: {Reason: targets.ReasonStatus, Passes: true, Rest: 5 * time.Second},                                    // too many at the same time
	93000: {Reason: targets.ReasonAuth},                                                                           // the key
	93004: {Reason: targets.ReasonGone}, 93008: {Reason: targets.ReasonGone}, 93017: {Reason: targets.ReasonGone}, // robot off, or out of the group
	60020: {Reason: targets.ReasonAuth}, // our address is not on its list
	45002: {Reason: targets.ReasonTooLarge},
	40008: {Reason: targets.ReasonStatus}, 40035: {Reason: targets.ReasonStatus}, 40058: {Reason: targets.ReasonStatus}, 44004: {Reason: targets.ReasonStatus},
	47001: {Reason: targets.ReasonStatus}, // not a message
}

// judge says what became of a message.
func judge(a outbound.Answer) *targets.Error {
	var answer struct {
		Code    *int   `json:"errcode"`
		Message string `json:"errmsg"`
	}
	switch known := json.Unmarshal(a.Body, &answer) == nil && answer.Code != nil; {
	case known && *answer.Code != 0:
		return notice.Refused("WeCom", *answer.Code, answer.Message, refusals)
	case known || a.Status >= 300:
		return nil // the status says it
	}
	return notice.Unreadable("WeCom's")
}
