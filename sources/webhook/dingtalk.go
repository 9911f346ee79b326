// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha1"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/secret"
)

// dingtalk is https://open.dingtalk.com/document/orgapp/configure-event-subcription. Payloads are encrypted, and so must be
// the answer.
var dingtalk = &provider{
	name: "dingtalk", title: "DingTalk", fields: []string{"token", "aesKey", "ownerKey"}, within: 2500 * time.Millisecond, status: http.StatusOK,
	doc: "*Event subscription* of the app, push by HTTP: `token` and `aesKey` (43 characters) as they stand there; `ownerKey` is the app key (AppKey, " +
		"SuiteKey or corp id) that payloads are for. The question at registration (`check_url`) is answered. `type` is `com.dingtalk.<EventType>`, `source` `dingtalk:<corp>`.",
	check: func(c *config) error {
		return checkKeys(c.AESKey, "/aesKey", isDingTalkKey, "is 43 characters of base64")
	},
	open: func(h *hook) (receiver, error) {
		d := &dingTalk{h: h, token: &secrets{sources: h.s.Token}, key: &secrets{sources: h.s.AESKey}}
		return d.receive, nil
	},
}

// checkKeys looks at the secrets that stand in the config itself.
func checkKeys(list secretList, pointer string, ok func(string) bool, want string) error {
	for _, src := range list {
		if src.Ref() != "" {
			continue
		}
		v, err := src.Resolve(secret.Resolver{}.Resolve)
		if err != nil || !ok(v.Reveal()) {
			return fault.Invalidf(pointer, "%s", want)
		}
	}
	return nil
}

func dingTalkKey(text string) ([]byte, error) { return base64.StdEncoding.DecodeString(text + "=") }

func isDingTalkKey(text string) bool {
	key, err := dingTalkKey(text)
	return err == nil && len(key) == 32
}

type dingTalk struct {
	h          *hook
	token, key *secrets
}

var errDingTalk = fault.New(fault.Forbidden, "the query has no signature, timestamp and nonce")

// dingTalkBlock is the block that padding fills.
const dingTalkBlock = 32

func (d *dingTalk) receive(_ context.Context, r *request) (taken, error) {
	q := r.URL.Query()
	sig, ts, nonce := cmp.Or(q.Get("msg_signature"), q.Get("signature")), q.Get("timestamp"), q.Get("nonce")
	if sig == "" || ts == "" || nonce == "" {
		return taken{}, errDingTalk
	}
	at, ok := parseWhen(ts)
	if !ok {
		return taken{}, errTimestamp
	}
	if err := d.h.fresh(r, at); err != nil {
		return taken{}, err
	}
	if err := r.read(); err != nil {
		return taken{}, err
	}
	var envelope struct {
		Encrypt string `json:"encrypt"`
	}
	if json.Unmarshal(r.body, &envelope) != nil || envelope.Encrypt == "" {
		return taken{}, fault.New(fault.Invalid, "the body has no encrypt")
	}
	token, err := d.prove(sig, ts, nonce, envelope.Encrypt)
	if err != nil {
		return taken{}, err
	}
	key, text, err := d.decrypt(envelope.Encrypt)
	if err != nil {
		return taken{}, err
	}
	p, err := parsePayload(text)
	if err != nil {
		return taken{}, err
	}
	reply, err := d.success(token, key, r.now)
	if err != nil {
		return taken{}, err
	}
	kind := p.first("EventType", "eventType")
	if kind == "check_url" || kind == "check_create_suite_url" || kind == "check_update_suite_url" {
		return taken{answer: reply}, nil
	}
	id := p.first("EventId", "eventId")
	if id == "" {
		id = digest([]byte(envelope.Encrypt))
	}
	source := "dingtalk:" + p.first("CorpId", "corpId")
	ev := r.jsonEvent(id, source, typeName("com.dingtalk", kind), p.first("UserId", "OpenConversationId", "ProcessInstanceId", "processInstanceId"), p.when("TimeStamp", "timeStamp", "EventTime"), text)
	return taken{events: []event.Event{ev}, answer: reply}, nil
}

// signDingTalk is the hex SHA-1 of the sorted parts.
func signDingTalk(parts ...string) string {
	slices.Sort(parts)
	sum := sha1.Sum([]byte(strings.Join(parts, "")))
	return hex.EncodeToString(sum[:])
}

// prove checks the signature and returns the token that it was made with.
func (d *dingTalk) prove(sig, ts, nonce, encrypted string) (token string, err error) {
	tokens, err := d.token.get(d.h.env)
	if err != nil {
		return "", err
	}
	for _, t := range tokens {
		if subtle.ConstantTimeCompare([]byte(sig), []byte(signDingTalk(t, ts, nonce, encrypted))) == 1 {
			token = t
		}
	}
	if token == "" {
		return "", errSignature
	}
	return token, nil
}

// decrypt tries every key. The plaintext is 16 random bytes, a length, the message, and for whom it is.
func (d *dingTalk) decrypt(encrypted string) (key, text []byte, err error) {
	raw, err := base64.StdEncoding.DecodeString(encrypted)
	if err != nil {
		return nil, nil, fault.New(fault.Invalid, "encrypt is not base64")
	}
	list, err := d.key.get(d.h.env)
	if err != nil {
		return nil, nil, err
	}
	for _, k := range list {
		key, err := dingTalkKey(k)
		if err != nil || len(key) != 32 {
			continue
		}
		plain, err := decryptCBC(key, key[:16], raw, dingTalkBlock)
		if err != nil || len(plain) < 20 {
			continue
		}
		n := int64(binary.BigEndian.Uint32(plain[16:20]))
		if n > int64(len(plain)-20) || !bytes.Equal(plain[20+n:], []byte(d.h.s.OwnerKey)) {
			continue
		}
		return key, plain[20 : 20+n], nil
	}
	return nil, nil, fault.New(fault.Forbidden, "the payload is not encrypted with this key for this owner")
}

// success is the answer: the word success, encrypted and signed.
func (d *dingTalk) success(token string, key []byte, now time.Time) (*answer, error) {
	const word = "success"
	plain := make([]byte, 20, 64)
	rand.Read(plain[:16])
	binary.BigEndian.PutUint32(plain[16:20], uint32(len(word)))
	plain = append(append(plain, word...), d.h.s.OwnerKey...)
	sealed, err := encryptCBC(key, key[:16], plain, dingTalkBlock)
	if err != nil {
		return nil, err
	}
	nonceBytes := make([]byte, 8)
	rand.Read(nonceBytes)
	encrypted, ts, nonce := base64.StdEncoding.EncodeToString(sealed), strconv.FormatInt(now.UnixMilli(), 10), hex.EncodeToString(nonceBytes)
	body, err := json.Marshal(map[string]string{"msg_signature": signDingTalk(token, ts, nonce, encrypted), "timeStamp": ts, "nonce": nonce, "encrypt": encrypted})
	return &answer{"application/json", body}, err
}
