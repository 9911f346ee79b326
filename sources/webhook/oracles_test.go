// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/PagerDuty/go-pagerduty/webhookv3"
	shopify "github.com/bold-commerce/go-shopify/v4"
	"github.com/google/go-github/v74/github"
	lark "github.com/larksuite/oapi-sdk-go/v3/event"
	"github.com/slack-go/slack"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	stripehook "github.com/stripe/stripe-go/v82/webhook"
	twilioclient "github.com/twilio/twilio-go/client"

	"github.com/rialto-bridge/rialto/sources"
)

// oracles are the products' own libraries: each says whether it takes a request for good. What the suite has the bridge
// accept and refuse is made by the same functions.
var oracles = map[string]func(r *http.Request, body []byte) error{
	"github": func(r *http.Request, body []byte) error {
		return github.ValidateSignature(r.Header.Get("X-Hub-Signature-256"), body, []byte(secretText))
	},
	"gitlab":   verifyStandard,
	"standard": verifyStandard,
	"stripe": func(r *http.Request, body []byte) error {
		return stripehook.ValidatePayload(body, r.Header.Get("Stripe-Signature"), whsec)
	},
	"slack": func(r *http.Request, body []byte) error {
		v, err := slack.NewSecretsVerifier(r.Header, secretText)
		if err != nil {
			return err
		}
		if _, err := v.Write(body); err != nil {
			return err
		}
		return v.Ensure()
	},
	"shopify": func(r *http.Request, body []byte) error {
		r.Body = io.NopCloser(bytes.NewReader(body))
		ok, err := shopify.App{ApiSecret: secretText}.VerifyWebhookRequestVerbose(r)
		if err == nil && !ok {
			err = errors.New("refused")
		}
		return err
	},
	"pagerduty": func(r *http.Request, body []byte) error {
		r.Body = io.NopCloser(bytes.NewReader(body))
		return webhookv3.VerifySignature(r, secretText)
	},
	"twilio": func(r *http.Request, body []byte) error {
		form, err := url.ParseQuery(string(body))
		if err != nil {
			return err
		}
		params := map[string]string{}
		for name := range form {
			params[name] = form.Get(name)
		}
		v := twilioclient.NewRequestValidator(secretText)
		if !v.Validate(r.URL.String(), params, r.Header.Get("X-Twilio-Signature")) {
			return errors.New("refused")
		}
		return nil
	},
	"feishu": func(r *http.Request, body []byte) error {
		var envelope struct{ Encrypt string }
		if err := json.Unmarshal(body, &envelope); err != nil {
			return err
		}
		if _, err := lark.EventDecrypt(envelope.Encrypt, feishuKey); err != nil {
			return err
		}
		h := r.Header
		if h.Get("X-Lark-Signature") != lark.Signature(h.Get("X-Lark-Request-Timestamp"), h.Get("X-Lark-Request-Nonce"), feishuKey, string(body)) {
			return errors.New("refused")
		}
		return nil
	},
}

func verifyStandard(r *http.Request, body []byte) error {
	w, err := standardwebhooks.NewWebhook(whsec)
	if err != nil {
		return err
	}
	return w.Verify(body, r.Header)
}

// What the tests sign is what the products' libraries take for good; with one bit changed they do not, as we do not.
func TestOurSendersAreWhatTheOfficialLibrariesTake(t *testing.T) {
	for name, verify := range oracles {
		t.Run(name, func(t *testing.T) {
			s := senders[slices.IndexFunc(senders, func(s sender) bool { return s.name == name })]
			w := newWorld(t, s.config, nil)
			for i := range 20 {
				payload, header := s.payload(i, time.Now())
				r := s.sign(t, w.url, payload, header, time.Now())
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Fatal(err)
				}
				if err := verify(r.Clone(t.Context()), body); err != nil {
					t.Fatalf("the official library refuses our request: %v", err)
				}
				good := r.Clone(t.Context())
				good.Body, good.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
				if status, answer := w.send(t, good); status > 299 {
					t.Fatalf("we refuse what the official library takes: %d %s", status, answer)
				}
				body[i*len(body)/20] ^= 1 << (i % 7)
				if verify(r.Clone(t.Context()), body) == nil {
					t.Fatalf("the official library takes a body with another bit")
				}
				bad := r.Clone(t.Context())
				bad.Body, bad.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
				if status, _ := w.send(t, bad); status < 400 {
					t.Errorf("we take a body with another bit: %d", status)
				}
			}
			if n := len(w.log.Events()); n != 20 {
				t.Errorf("%d events are stored, want 20", n)
			}
		})
	}
}

// The libraries that sign sign, and we accept.
func TestWhatOfficialLibrariesSignIsAccepted(t *testing.T) {
	accept := func(name string, r func(address string) *http.Request) {
		s := senders[slices.IndexFunc(senders, func(s sender) bool { return s.name == name })]
		w := newWorld(t, s.config, nil)
		if status, answer := w.send(t, r(w.url)); status > 299 {
			t.Errorf("%s: answered %d %s", name, status, answer)
		}
	}
	accept("stripe", func(address string) *http.Request {
		p := stripehook.GenerateTestSignedPayload(&stripehook.UnsignedPayload{Payload: []byte(`{"id":"evt_1","type":"invoice.paid"}`), Secret: whsec})
		return post(t, address, p.Payload, nil, "Stripe-Signature", p.Header)
	})
	for _, name := range []string{"standard", "gitlab"} {
		accept(name, func(address string) *http.Request {
			w, err := standardwebhooks.NewWebhook(whsec)
			if err != nil {
				t.Fatal(err)
			}
			body, at := []byte(`{"object_kind":"push","type":"x"}`), time.Now()
			sig, err := w.Sign("msg_1", at, body)
			if err != nil {
				t.Fatal(err)
			}
			return post(t, address, body, nil, "webhook-id", "msg_1", "webhook-timestamp", unix(at), "webhook-signature", sig)
		})
	}
	accept("feishu", func(address string) *http.Request {
		r := signFeishu(t, address, []byte(`{"header":{"token":"`+feishuToken+`"}}`), nil, time.Now())
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		ts := unix(time.Now())
		return post(t, address, body, nil, "X-Lark-Request-Timestamp", ts, "X-Lark-Request-Nonce", "n9", "X-Lark-Signature", lark.Signature(ts, "n9", feishuKey, string(body)))
	})
}

// The vectors that the products publish. Their times are long past: the clock of the source is set to them.
func TestPublishedVectors(t *testing.T) {
	const standardBody, standardID, standardAt = `{"test": 2432232314}`, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330
	standardHeader := func(sig string) []string {
		return []string{"webhook-id", standardID, "webhook-timestamp", fmt.Sprint(standardAt), "webhook-signature", sig}
	}
	const v1 = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	const v1a = "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg=="
	for _, c := range []struct {
		name, config, path, body string
		at                       int64
		header                   []string
		unread                   bool // the signature is good, and the body is nothing that an event can be made of
	}{
		{name: "GitHub", config: `{"provider":"github","secret":{"value":"It's a Secret to Everybody"}}`, body: "Hello, World!", at: 1700000000, unread: true,
			header: []string{"X-Hub-Signature-256", "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}},
		{name: "Slack", config: `{"provider":"slack","secret":{"value":"8f742231b10e8888abcd99yyyzzz85a5"}}`, at: 1531420618,
			body:   "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c",
			header: []string{"Content-Type", "application/x-www-form-urlencoded", "X-Slack-Request-Timestamp", "1531420618", "X-Slack-Signature", "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"}},
		{name: "Twilio", config: `{"provider":"twilio","secret":{"value":"12345"},"publicUrl":"https://mycompany.com"}`, path: "/myapp.php?foo=1&bar=2", at: 1700000000,
			body:   "CallSid=CA1234567890ABCDE&Caller=%2B14158675309&Digits=1234&From=%2B14158675309&To=%2B18005551212",
			header: []string{"Content-Type", "application/x-www-form-urlencoded", "X-Twilio-Signature", "RSOYDt4T1cUTdK1PDd93/VVr8B8="}},
		{name: "Standard Webhooks", config: `{"provider":"standard","secret":{"value":"` + whsec + `"}}`, body: standardBody, at: standardAt, header: standardHeader(v1)},
		{name: "Standard Webhooks with a public key", config: `{"provider":"standard","secret":{"value":"whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="}}`, body: standardBody, at: standardAt, header: standardHeader(v1 + " " + v1a)},
		{name: "Svix", config: `{"provider":"standard","secret":{"value":"` + whsec + `"}}`, body: standardBody, at: standardAt,
			header: []string{"svix-id", standardID, "svix-timestamp", fmt.Sprint(standardAt), "svix-signature", "v1,AAAA " + v1}},
		{name: "Standard Webhooks, while the secret changes", config: `{"provider":"standard","secret":[{"value":"whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"},{"value":"` + whsec + `"}]}`, body: standardBody, at: standardAt, header: standardHeader(v1)},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := at(t, c.config, time.Unix(c.at, 0), c.path)
			for i, body := range []string{c.body, c.body[:len(c.body)-1] + "x"} {
				header := http.Header{}
				r := post(t, w.url, []byte(body), header, c.header...)
				status, answer := w.send(t, r)
				switch good := status < 300 || c.unread && status == http.StatusBadRequest; {
				case i == 0 && !good:
					t.Errorf("answered %d %s", status, answer)
				case i == 1 && status != http.StatusForbidden:
					t.Errorf("another body is answered %d", status)
				}
			}
		})
	}
}

// at starts a hook whose clock stands still, at whatever path it is called.
func at(t *testing.T, config string, now time.Time, path string) *world {
	t.Helper()
	w := newWorld(t, fixed(config), func(o *sources.Options) { o.Now = func() time.Time { return now } })
	if path != "" {
		srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if err := w.s.ServeHook("s", rw, r); err != nil {
				rw.WriteHeader(http.StatusForbidden)
			}
		}))
		t.Cleanup(srv.Close)
		w.url = srv.URL + path
	}
	return w
}
