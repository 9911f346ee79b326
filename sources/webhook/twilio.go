// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"hash"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// twilio is https://www.twilio.com/docs/usage/security, and https://www.twilio.com/docs/usage/webhooks/webhook-shared-keys for
// signatures with a shared key. The URL that Twilio calls is part of what it signs.
var twilio = &provider{
	name: "twilio", title: "Twilio", fields: []string{"secret", "publicUrl"}, within: 9 * time.Second, status: http.StatusNoContent,
	doc: "The secret is the auth token of the account, or the secret of a shared key where a webhook rule says that one signs (HMAC-SHA256 or " +
		"HMAC-SHA1, as the header `X-Twilio-Webhooks-Signature-Settings` names it); give both while you change over. `publicUrl` is the base of the URL that Twilio was told, since that is part of what it signs. " +
		"The fields of a form become a JSON object. `type` is `com.twilio.message.<status>`, `com.twilio.call.<status>` and so on, `source` " +
		"`twilio:<account>`, `subject` the SID, `id` the idempotency token, or else the SID and a hash of all that was signed. The answer is empty (204): for a call that wants instructions, answer by a webhook of your own.",
	open: func(h *hook) (receiver, error) { return h.twilio, nil },
}

func (h *hook) twilio(_ context.Context, r *request) (taken, error) {
	given, err := twilioSignatureOf(r)
	if err != nil {
		return taken{}, err
	}
	if err := r.read(); err != nil {
		return taken{}, err
	}
	form := url.Values{}
	if isForm(r.Request) {
		if form, err = r.form(); err != nil {
			return taken{}, err
		}
	}
	if err := h.proveTwilio(r, given, form); err != nil {
		return taken{}, err
	}
	data := r.body
	if isForm(r.Request) {
		if data, err = formObject(form); err != nil {
			return taken{}, err
		}
	}
	p, err := parsePayload(data)
	if err != nil {
		return taken{}, err
	}
	kind, sid, status := twilioKind(p)
	id := r.Header.Get("I-Twilio-Idempotency-Token")
	if id == "" { // a SID may be of several events with one status, such as two digits of a call: all that is signed tells them apart
		id = strings.TrimPrefix(sid+"-"+digest([]byte(r.URL.RawQuery+"\n"), data), "-")
	}
	source := "twilio:" + p.text("AccountSid")
	ev := r.jsonEvent(id, source, typeName("com.twilio", kind, status), sid, p.when("Timestamp"), data)
	return taken{events: []event.Event{ev}}, nil
}

// twilioKind says what a request is about.
func twilioKind(p payload) (kind, sid, status string) {
	for _, k := range []struct{ kind, sid, status string }{
		{"recording", "RecordingSid", "RecordingStatus"}, {"message", "MessageSid", "MessageStatus"}, {"message", "SmsSid", "SmsStatus"},
		{"call", "CallSid", "CallStatus"}, {"room", "RoomSid", "StatusCallbackEvent"}, {"conversation", "ConversationSid", "EventType"},
		{"error", "Sid", "Level"},
	} {
		if sid := p.text(k.sid); sid != "" {
			status := p.text(k.status)
			if status == "" && k.sid == "MessageSid" {
				status = p.text("SmsStatus")
			}
			return k.kind, sid, strings.ToLower(status)
		}
	}
	return "event", "", ""
}

// twilioSignature is a signature and how it was made.
type twilioSignature struct {
	hash func() hash.Hash
	sum  []byte
}

// twilioSignatureOf reads the headers. Only what is signed with a shared key says how.
func twilioSignatureOf(r *request) (s twilioSignature, err error) {
	header, err := r.header("X-Twilio-Signature")
	if err != nil {
		return s, err
	}
	switch strings.ToUpper(member(r.Header.Get("X-Twilio-Webhooks-Signature-Settings"), ",", "algorithm=")) {
	case "", "HMAC_SHA1":
		s.hash = sha1.New
	case "HMAC_SHA256":
		s.hash = sha256.New
	default:
		return s, errTwilioAlgorithm
	}
	if s.sum, err = base64.StdEncoding.DecodeString(header); err != nil {
		return s, errSignature
	}
	return s, nil
}

var errTwilioAlgorithm = fault.New(fault.Forbidden, "the algorithm of the signature is not HMAC_SHA1 or HMAC_SHA256")

// proveTwilio checks the HMAC of the URL and the sorted fields. A body that is no form is in the URL by its hash.
func (h *hook) proveTwilio(r *request, given twilioSignature, form url.Values) error {
	if sum := r.URL.Query().Get("bodySHA256"); sum != "" || !isForm(r.Request) {
		want, got := sha256.Sum256(r.body), make([]byte, sha256.Size)
		if n, err := hex.Decode(got, []byte(sum)[:min(len(sum), 2*sha256.Size)]); err != nil || subtle.ConstantTimeCompare(got[:n], want[:]) == 0 {
			return errSignature
		}
		form = url.Values{}
	}
	secrets, err := h.s.secrets.get(h.env)
	if err != nil {
		return err
	}
	good := 0
	for _, token := range secrets {
		for _, u := range twilioURLs(h.s.PublicURL + r.URL.RequestURI()) {
			mac := hmac.New(given.hash, []byte(token))
			mac.Write([]byte(u))
			for _, name := range slices.Sorted(maps.Keys(form)) {
				for _, value := range sortedOnce(form[name]) {
					mac.Write([]byte(name + value))
				}
			}
			good |= subtle.ConstantTimeCompare(mac.Sum(nil), given.sum)
		}
	}
	if good == 0 {
		return errSignature
	}
	return nil
}

// sortedOnce is the values of a field as Twilio signs them: each once, in order.
func sortedOnce(values []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(values)))
}

// twilioURLs is a URL with and without its default port: Twilio signs either.
func twilioURLs(raw string) []string {
	u, err := url.Parse(raw)
	if err != nil {
		return []string{raw}
	}
	port := map[string]string{"https": ":443", "http": ":80"}[u.Scheme]
	scheme, rest, _ := strings.Cut(raw, "://")
	switch {
	case u.Port() == "":
		return []string{raw, scheme + "://" + strings.Replace(rest, u.Host, u.Host+port, 1)}
	case strings.HasSuffix(u.Host, port):
		return []string{raw, scheme + "://" + strings.Replace(rest, u.Host, strings.TrimSuffix(u.Host, port), 1)}
	}
	return []string{raw}
}
