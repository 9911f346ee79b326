// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// standard is https://www.standardwebhooks.com, and what Svix sends, which differs in the names of the headers.
var standard = &provider{
	name: "standard", title: "Standard Webhooks and Svix", fields: []string{"secret"}, optional: []string{"source"}, within: 14 * time.Second, status: http.StatusNoContent,
	doc: "For every sender that signs by Standard Webhooks (`webhook-signature`) or Svix (`svix-signature`). The secret is `whsec_...`, or the public " +
		"key `whpk_...` of a sender that signs with ed25519. `id` is `webhook-id`, `type` the payload's `type` or else `io.rialto.hook`, `time` its `timestamp`. " +
		"A body that is a CloudEvent in structured mode is taken as that event.",
	open: func(h *hook) (receiver, error) { return h.standard, nil },
}

// hookType is the type of events whose payload does not say one.
const hookType = "io.rialto.hook"

func (h *hook) standard(_ context.Context, r *request) (taken, error) {
	prefix := "Webhook-"
	if r.Header.Get("Svix-Signature") != "" {
		prefix = "Svix-"
	}
	if err := h.proveStandard(r, prefix); err != nil {
		return taken{}, err
	}
	if event.ModeOf(r.Header.Get("Content-Type")) == event.Structured {
		return h.cloudEvents(r)
	}
	p, err := parsePayload(r.body)
	if err != nil {
		return taken{}, err
	}
	kind := p.first("type", "eventType", "event_type")
	if kind == "" {
		kind = hookType
	}
	ev := r.jsonEvent(r.Header.Get(prefix+"Id"), h.source(), typeName(kind), "", p.when("timestamp"), r.body)
	return taken{events: []event.Event{ev}}, nil
}

// source is the source of events that do not say one.
func (h *hook) source() string {
	if h.s.Source != "" {
		return h.s.Source
	}
	return "/hooks/" + h.env.Name
}

// cloudEvents takes a body that holds events as they are.
func (h *hook) cloudEvents(r *request) (taken, error) {
	_, evs, err := event.FromHTTP(r.Header, r.body, event.Limits{MaxData: h.env.MaxData})
	if e, ok := errors.AsType[*event.Error](err); ok {
		err = noEvent(e)
	}
	return taken{events: evs}, err
}

// noEvent is the answer to a body that is no CloudEvent.
func noEvent(e *event.Error) error {
	kind := fault.Invalid
	switch {
	case e.Unsupported:
		kind = fault.Unsupported
	case e.TooLarge:
		kind = fault.TooLarge
	}
	return &fault.Error{Kind: kind, Message: e.Error(), Details: []fault.Detail{{Pointer: e.Pointer(), Detail: e.Reason}}}
}

// proveStandard reads the body and checks a signature by Standard Webhooks 1.0: v1 is an HMAC, v1a is ed25519.
func (h *hook) proveStandard(r *request, prefix string) error {
	id, err := r.header(prefix + "Id")
	if err != nil {
		return err
	}
	ts, err := r.header(prefix + "Timestamp")
	if err != nil {
		return err
	}
	header, err := r.header(prefix + "Signature")
	if err != nil {
		return err
	}
	n, err := strconv.ParseInt(ts, 10, 64)
	if err != nil {
		return errTimestamp
	}
	if err := h.fresh(r, time.Unix(n, 0)); err != nil {
		return err
	}
	given := standardSignatures(header)
	if len(given) == 0 {
		return errSignature
	}
	if err := r.read(); err != nil {
		return err
	}
	secrets, err := h.s.secrets.get(h.env)
	if err != nil {
		return err
	}
	signed := append([]byte(id+"."+ts+"."), r.body...)
	for _, s := range secrets {
		if standardMatches(s, signed, given) {
			return nil
		}
	}
	return errSignature
}

// standardSignature is one of a header.
type standardSignature struct {
	version string
	sum     []byte
}

// standardSignatures reads a header. What is no signature is left out.
func standardSignatures(header string) []standardSignature {
	parts := strings.SplitN(header, " ", maxSignatures+1)
	var out []standardSignature
	for _, p := range parts[:min(len(parts), maxSignatures)] {
		version, text, _ := strings.Cut(p, ",")
		if sum, err := base64.StdEncoding.DecodeString(text); err == nil && (version == versionHMAC || version == versionEd25519) {
			out = append(out, standardSignature{version, sum})
		}
	}
	return out
}

// Versions of signatures.
const (
	versionHMAC    = "v1"
	versionEd25519 = "v1a"
)

// standardMatches reports whether one of some signatures is good by a secret.
func standardMatches(secret string, signed []byte, given []standardSignature) bool {
	public, asymmetric := strings.CutPrefix(secret, "whpk_")
	key, err := base64.StdEncoding.DecodeString(public)
	if !asymmetric {
		key, err = base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
		if err != nil { // of senders that take any text
			key, err = []byte(secret), nil
		}
	}
	if err != nil || asymmetric && len(key) != ed25519.PublicKeySize {
		return false
	}
	good := 0
	for _, g := range given {
		switch {
		case asymmetric && g.version == versionEd25519:
			if ed25519.Verify(key, signed, g.sum) {
				good = 1
			}
		case !asymmetric && g.version == versionHMAC:
			mac := hmac.New(sha256.New, key)
			mac.Write(signed)
			good |= subtle.ConstantTimeCompare(mac.Sum(nil), g.sum)
		}
	}
	return good == 1
}
