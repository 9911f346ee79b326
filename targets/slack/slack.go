// SPDX-License-Identifier: Apache-2.0

// Package slack is the target kind "slack": each event becomes a message in a channel of Slack.
//
// A message goes to an incoming webhook, whose URL is a secret and which has its channel, or through chat.postMessage, with the
// token of a bot and a channel. Without templates it has a title, where the event comes from, and its data; with them it is
// what they say, in which values of the event are escaped, so that they can neither mention people nor make links. What is
// longer than Slack takes is cut.
//
// A message is delivered when Slack has said so, in the body of its answer. Slack knows no ids of messages: an attempt that
// is repeated because its answer was lost may be a second message.
package slack

import (
	"context"
	_ "embed"
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/notice"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

//go:embed config.schema.json
var configSchema []byte

// postMessage is where messages go that no incoming webhook takes.
const postMessage = "https://slack.com/api/chat.postMessage"

// Kind returns the kind. checkURL says, when a definition is written, why a URL cannot be a target; it is the egress
// guard's CheckURL.
func Kind(checkURL func(url string) error) targets.Kind {
	return targets.Kind{
		Name: "slack",
		Doc: "Posts each event as a message to a channel of Slack, by an incoming webhook or with the token of a bot. Values of the event are " +
			"escaped, and what is too long for Slack is cut.",
		Example: "kind: Target\nname: ops-slack\ntype: slack\nconfig:\n  url: {ref: slack-hook}\n" +
			"  text: \"*${data.box}* is at ${data.temperature} °C\"\ndelivery:\n  concurrency: 1\n",
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

// config is the config of a target, in the form that config.schema.json describes.
type config struct {
	URL     json.RawMessage `json:"url"`
	Token   json.RawMessage `json:"token"`
	Channel string          `json:"channel"`
	APIURL  string          `json:"apiUrl"`
	Text    string          `json:"text"`
	Blocks  json.RawMessage `json:"blocks"`
	Unfurl  bool            `json:"unfurl"`
}

// settings is a config that has been read.
type settings struct {
	hook    bool        // messages go to an incoming webhook
	api     string      // or there
	channel *rules.Text // with a token
	text    *rules.Text // nil = the title
	blocks  *rules.Text // nil = none, or the default if there is no text either
	unfurl  bool
	slots   []targets.SecretSlot
}

func parse(cfg json.RawMessage, checkURL func(string) error) (*settings, error) {
	var c config
	f := &notice.Form{}
	if json.Unmarshal(cfg, &c) != nil {
		f.Complain("", "is not a config of a slack target")
		return nil, f.Err()
	}
	s := &settings{unfurl: c.Unfurl, api: postMessage}
	s.hook = f.Hook("/url", c.URL, checkURL)
	token := f.Secret("/token", c.Token, checkToken)
	if c.APIURL != "" {
		s.api = c.APIURL
		if checkURL == nil {
			checkURL = func(string) error { return nil } // it was checked before
		}
		if err := checkURL(c.APIURL); err != nil {
			f.Complain("/apiUrl", "%v", err)
		}
	}
	switch {
	case s.hook && token:
		f.Complain("/token", "stands beside url: one of them says where messages go")
	case !s.hook && !token:
		f.Complain("/url", "is missing: give the URL of an incoming webhook, or token and channel")
	case s.hook && c.Channel != "":
		f.Complain("/channel", "goes with token: an incoming webhook has its channel")
	case s.hook && c.APIURL != "":
		f.Complain("/apiUrl", "goes with token")
	case token && c.Channel == "":
		f.Complain("/channel", "is missing: it goes with token")
	}
	s.channel = f.Text("/channel", c.Channel, nil)
	s.text = f.Text("/text", c.Text, escape)
	s.blocks = readBlocks(f, c.Blocks)
	s.slots = f.Slots
	return s, f.Err()
}

// target is a target. It is safe for concurrent use.
type target struct {
	settings
	env     targets.Env
	secrets *targets.SecretSet
}

// Pace implements targets.Paced: Slack takes a message a second for a channel, and short bursts.
func (*target) Pace() targets.RateLimit { return targets.RateLimit{PerSecond: 1, Burst: 3} }

// Reads implements targets.Reading.
func (t *target) Reads() []rules.Read {
	return notice.Reads(notice.Place{Pointer: "/channel", Text: t.channel}, notice.Place{Pointer: "/text", Text: t.text}, notice.Place{Pointer: "/blocks", Text: t.blocks})
}

// Deliver posts a message. It implements targets.Target.
func (t *target) Deliver(ctx context.Context, d targets.Delivery) (targets.Result, error) {
	body, err := t.message(notice.NewDraft(d))
	if err != nil {
		return targets.Result{}, err
	}
	secrets, err := t.secrets.Values()
	if err != nil {
		return targets.Result{}, &targets.Error{Reason: targets.ReasonInternal, Err: err}
	}
	m := outbound.Message{Method: http.MethodPost, Header: http.Header{"Content-Type": {"application/json; charset=utf-8"}}, Body: body}
	address := t.api
	if t.hook {
		address = secrets["/url"]
	}
	if m.URL, err = url.Parse(address); err != nil {
		return targets.Result{}, &targets.Error{Reason: targets.ReasonInternal, Err: errURL}
	}
	if t.hook {
		m.Hide = notice.Hide(m.URL)
	} else {
		m.Header["Authorization"] = []string{"Bearer " + secrets["/token"]}
		m.Hide = notice.Forms(secrets["/token"])
	}
	res, err := outbound.Judge(ctx, t.env.HTTP, m, t.env.Now, t.judge)
	t.secrets.Doubt(err)
	return res, err
}
