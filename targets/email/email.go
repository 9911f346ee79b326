// SPDX-License-Identifier: Apache-2.0

// Package email is the target kind "email": each event becomes a mail that is handed to an SMTP server.
//
// Mails go to one server, the submission service of whoever sends them, over a connection of its own each, through the egress
// guard. The connection is encrypted, by STARTTLS or from the start, and the server's certificate verified; only a config
// that says so in as many words goes without, and then without a password. A mail is delivered when the server has taken it
// for all recipients: if it refuses one of them, nobody gets it. 4xx is tried again, 5xx is for good.
//
// The Message-ID derives from the delivery's id and is the same on every attempt, so that a mail that was sent twice, because
// an answer was lost, can be recognised. Values of the event are escaped where HTML is around them, and cannot become headers,
// recipients that the config has no place for, or commands.
package email

import (
	"context"
	_ "embed"
	"encoding/json"
	"time"

	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/notice"
)

//go:embed config.schema.json
var configSchema []byte

// Kind returns the kind. checkHost says, when a definition is written, why a host and port cannot be a target; it is the
// egress guard's CheckHost.
func Kind(checkHost func(host string, port uint16) error) targets.Kind {
	return targets.Kind{
		Name: "email",
		Doc: "Sends each event as a mail by SMTP, encrypted, with templates for recipients, subject, text and HTML. The Message-ID is the same " +
			"on every attempt.",
		Example: "kind: Target\nname: ops-mail\ntype: email\nconfig:\n  host: smtp.example.com\n  auth: {type: plain, username: rialto, password: {ref: smtp-password}}\n" +
			"  from: \"Rialto <rialto@example.com>\"\n  to: [ops@example.com]\n  subject: \"${data.box} is too warm\"\n" +
			"  text: \"${data.box} is at ${data.temperature} °C since ${time}.\"\n  attachEvent: true\ndelivery:\n  concurrency: 4\n  timeout: 30s\n",
		ConfigSchema: configSchema,
		Check: func(cfg json.RawMessage) error {
			_, err := parse(cfg, checkHost)
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

// Warnings implements targets.Warner.
func (t *target) Warnings() (all []rules.Warning) {
	if t.security == securityNone {
		all = append(all, rules.Warning{Pointer: "/config/security", Message: "whoever is on the way can read and change mails"})
	}
	if t.tls.InsecureSkipVerify {
		all = append(all, rules.Warning{Pointer: "/config/tls/insecureSkipVerify",
			Message: "whoever is on the way can pose as the server, and read and change mails and the password"})
	}
	return all
}

// Reads implements targets.Reading.
func (t *target) Reads() []rules.Read {
	var places []notice.Place
	for _, list := range [][]address{t.to, t.cc, t.bcc} {
		for _, a := range list {
			places = append(places, notice.Place{Pointer: a.pointer, Text: a.text})
		}
	}
	if t.replyTo != nil {
		places = append(places, notice.Place{Pointer: t.replyTo.pointer, Text: t.replyTo.text})
	}
	return notice.Reads(append(places, notice.Place{Pointer: "/subject", Text: t.subject}, notice.Place{Pointer: "/text", Text: t.text}, notice.Place{Pointer: "/html", Text: t.html})...)
}

// maxAttempt is how long an attempt takes that nobody else has bounded.
const maxAttempt = time.Minute

// Deliver hands a mail to the server. It implements targets.Target.
func (t *target) Deliver(ctx context.Context, d targets.Delivery) (targets.Result, error) {
	m, err := t.compose(notice.NewDraft(d))
	if err != nil {
		return targets.Result{}, err
	}
	secrets, err := t.secrets.Values()
	if err != nil {
		return targets.Result{}, &targets.Error{Reason: targets.ReasonInternal, Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, maxAttempt)
	defer cancel()
	s := &session{settings: &t.settings, secrets: secrets, hidden: t.hidden(secrets), start: time.Now()}
	defer s.close()
	if e := s.send(ctx, t.env.Dial, m); e != nil {
		return s.result, e
	}
	return s.result, nil
}
