// SPDX-License-Identifier: Apache-2.0

// Package dingtalk is the target kind "dingtalk": each event becomes a message of a custom robot in a group of DingTalk.
//
// The robot's URL holds its access token and is a secret; with a second secret each request is signed, by HMAC-SHA256 over its
// timestamp. A message is Markdown, plain text, a link or an action card. Without a template it has a title, where the event
// comes from, and its data. Values of the event cannot mention anybody, and make neither links nor headings.
//
// DingTalk answers 200 whatever has become of a message, and says it by errcode. It takes 20 messages a minute from a robot,
// and none for ten minutes if there are more: a target sends at most 15 a minute, after a quiet time 5 at once. Targets that
// share a robot do not know of each other.
package dingtalk

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
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
		Name: "dingtalk",
		Doc: "Sends each event as a message of a custom robot to a group of DingTalk, as Markdown, text, link or action card, and signed if the " +
			"robot wants that. Its limit of 20 messages a minute is kept.",
		Example: "kind: Target\nname: ops-dingtalk\ntype: dingtalk\nconfig:\n  url: {ref: dingtalk-robot}\n  secret: {ref: dingtalk-signing}\n" +
			"  title: \"${data.box} is too warm\"\n  text: \"### ${data.box}\\n\\n${data.temperature} °C, ${time}\"\n  atMobiles: [\"13800000000\"]\ndelivery:\n  concurrency: 1\n",
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
	places := []notice.Place{{Pointer: "/title", Text: t.title}, {Pointer: "/text", Text: t.text}, {Pointer: "/messageUrl", Text: t.link}, {Pointer: "/picUrl", Text: t.picture}}
	for i, b := range t.buttons {
		at := fmt.Sprintf("/buttons/%d", i)
		places = append(places, notice.Place{Pointer: at + "/title", Text: b.title}, notice.Place{Pointer: at + "/url", Text: b.url})
	}
	return notice.Reads(places...)
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
	hide := notice.Hide(u)
	if key := secrets["/secret"]; key != "" {
		u = signed(u, t.env.Now(), key)
		hide = notice.Hide(u, append(hide, key)...)
	}
	m := outbound.Message{Method: http.MethodPost, URL: u, Header: http.Header{"Content-Type": {"application/json; charset=utf-8"}}, Body: body, Hide: hide}
	res, err := outbound.Judge(ctx, t.env.HTTP, m, t.env.Now, judge)
	t.secrets.Doubt(err)
	return res, err
}

// refusals are the errcodes that are known; see the documentation of custom robots.
var refusals = map[int]notice.Refusal{
	-1:     {Reason: targets.ReasonStatus, Passes: true},                                                                                                  // busy
	130101: {Reason: targets.ReasonStatus, Passes: true, Rest: 10 * time.Minute},                                                                          // more than 20 a minute: nothing is taken for ten
	410100: {Reason: targets.ReasonStatus, Passes: true, Rest: time.Minute},                                                                               // too fast
	90018:  {Reason: targets.ReasonStatus, Passes: true, Rest: time.Minute},                                                                               // calls of this minute are used up
	90030:  {Reason: targets.ReasonStatus, Passes: true, Rest: time.Hour},                                                                                 // what the organisation may send is used up
	310000: {Reason: targets.ReasonAuth},                                                                                                                  // signature, address or keywords
	300001: {Reason: targets.ReasonAuth}, 300005: {Reason: targets.ReasonAuth}, 40014: {Reason: targets.ReasonAuth}, 400101: {Reason: targets.ReasonAuth}, // token
	400102: {Reason: targets.ReasonGone}, 400106: {Reason: targets.ReasonGone}, 400013: {Reason: targets.ReasonGone}, // robot off, robot or group gone
	40035: {Reason: targets.ReasonStatus}, 400105: {Reason: targets.ReasonStatus}, 43004: {Reason: targets.ReasonStatus}, // not a message
	410101: {Reason: targets.ReasonStatus}, 410102: {Reason: targets.ReasonStatus}, 410103: {Reason: targets.ReasonStatus}, // words or links that are not allowed
	430101: {Reason: targets.ReasonStatus}, 430102: {Reason: targets.ReasonStatus}, 430103: {Reason: targets.ReasonStatus}, 430104: {Reason: targets.ReasonStatus},
	460101: {Reason: targets.ReasonTooLarge},
}

// judge says what became of a message.
func judge(a outbound.Answer) *targets.Error {
	var answer struct {
		Code    *int   `json:"errcode"`
		Message string `json:"errmsg"`
	}
	switch known := json.Unmarshal(a.Body, &answer) == nil && answer.Code != nil; {
	case known && *answer.Code != 0:
		return notice.Refused("DingTalk", *answer.Code, answer.Message, refusals)
	case known || a.Status >= 300:
		return nil // the status says it
	}
	return notice.Unreadable("DingTalk's")
}
