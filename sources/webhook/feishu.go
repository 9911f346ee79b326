// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// feishu is https://open.feishu.cn/document/server-docs/event-subscription-guide, and Lark, which is the same abroad.
var feishu = &provider{
	name: "feishu", title: "Feishu and Lark", optional: []string{"aesKey", "token"}, within: 2500 * time.Millisecond, status: http.StatusOK,
	doc: "*Events and callbacks* of the app, *Encryption strategy*: `aesKey` is the encrypt key, `token` the verification token; with both, both are checked. " +
		"Without an encrypt key nothing is signed, and the token is all that tells a sender: set one. The challenge at registration is answered. " +
		"`type` is `com.feishu.<event type>`, `source` `feishu:<tenant>/<app>`. The token is left out of what is stored.",
	check: func(c *config) error {
		if len(c.AESKey) == 0 && len(c.Token) == 0 {
			return fault.Invalidf("/aesKey", "is missing, and so is token: one of them is needed")
		}
		return nil
	},
	open: func(h *hook) (receiver, error) {
		f := &feiShu{h: h, token: &secrets{sources: h.s.Token}, key: &secrets{sources: h.s.AESKey}}
		return f.receive, nil
	},
}

type feiShu struct {
	h          *hook
	token, key *secrets
}

func (f *feiShu) receive(_ context.Context, r *request) (taken, error) {
	if err := r.read(); err != nil {
		return taken{}, err
	}
	text, key, err := f.open(r)
	if err != nil {
		return taken{}, err
	}
	p, err := parsePayload(text)
	if err != nil {
		return taken{}, err
	}
	asks := p.text("type") == "url_verification"
	if key != "" && !asks { // a challenge is encrypted and not signed
		if err := f.prove(r, key); err != nil {
			return taken{}, err
		}
	}
	if err := f.known(p.first("header.token", "token")); err != nil {
		return taken{}, err
	}
	if asks {
		body, err := json.Marshal(map[string]string{"challenge": p.text("challenge")})
		return taken{answer: &answer{"application/json", body}}, err
	}
	id, kind := p.first("header.event_id", "uuid"), p.first("header.event_type", "event.type")
	source := "feishu:" + p.first("header.tenant_key", "event.tenant_key", "tenant_key") + "/" + p.first("header.app_id", "event.app_id")
	subject := p.first("event.message.chat_id", "event.chat_id", "event.operator.operator_id.open_id", "event.open_id")
	ev := r.jsonEvent(id, source, typeName("com.feishu", kind), subject, p.when("header.create_time", "ts"), without(without(text, "token"), "header", "token"))
	return taken{events: []event.Event{ev}, answer: &answer{"application/json", []byte("{}")}}, nil
}

// open decrypts the body with the key that fits, and returns the key; "" if nothing is encrypted here.
func (f *feiShu) open(r *request) (text []byte, key string, err error) {
	if len(f.key.sources) == 0 {
		return r.body, "", nil
	}
	var envelope struct {
		Encrypt string `json:"encrypt"`
	}
	if json.Unmarshal(r.body, &envelope) != nil || envelope.Encrypt == "" {
		return nil, "", fault.New(fault.Forbidden, "the payload is not encrypted")
	}
	raw, err := base64.StdEncoding.DecodeString(envelope.Encrypt)
	if err != nil || len(raw) < 16 {
		return nil, "", fault.New(fault.Invalid, "encrypt is not base64")
	}
	list, err := f.key.get(f.h.env)
	if err != nil {
		return nil, "", err
	}
	for _, k := range list {
		sum := sha256.Sum256([]byte(k))
		if text, err := decryptCBC(sum[:], raw[:16], raw[16:], 16); err == nil && json.Valid(text) {
			return text, k, nil
		}
	}
	return nil, "", fault.New(fault.Forbidden, "the payload is not encrypted with this key")
}

// prove checks the SHA-256 of timestamp, nonce, key and body.
func (f *feiShu) prove(r *request, key string) error {
	sig, err := r.header("X-Lark-Signature")
	if err != nil {
		return err
	}
	ts := r.Header.Get("X-Lark-Request-Timestamp")
	sum := sha256.New()
	sum.Write([]byte(ts + r.Header.Get("X-Lark-Request-Nonce") + key))
	sum.Write(r.body)
	if subtle.ConstantTimeCompare([]byte(sig), []byte(hex.EncodeToString(sum.Sum(nil)))) == 0 {
		return errSignature
	}
	n, err := strconv.ParseInt(ts, 10, 64)
	if err != nil {
		return errTimestamp
	}
	return f.h.fresh(r, time.Unix(n, 0))
}

// known checks the verification token, if there is to be one.
func (f *feiShu) known(token string) error {
	if len(f.token.sources) == 0 {
		return nil
	}
	tokens, err := f.token.get(f.h.env)
	if err != nil {
		return err
	}
	if !equalAny(tokens, token) {
		return errToken
	}
	return nil
}
