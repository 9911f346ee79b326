// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/outbound"
	"github.com/rialto-bridge/rialto/targets/targettest"
	"github.com/rialto-bridge/rialto/targets/webhook"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	secretA = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	secretB = "whsec_a2tra2tra2tra2tra2tra2tra2tra2tra2tra2s="
)

func kind() targets.Kind { return webhook.Kind(targettest.Guard().CheckURL) }

func TestWebhookIsATarget(t *testing.T) {
	for name, config := range map[string]string{
		"binary":     `{"url": "%s"}`,
		"batch":      `{"url": "%s", "mode": "batch", "batch": {"maxEvents": 1}}`,
		"structured": `{"url": "%s", "mode": "structured", "secret": {"value": "` + secretA + `"}, "headers": {"X-Team": "ops"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			targettest.Run(t, targettest.Subject{Kind: kind(), Config: func(url string) string { return fmt.Sprintf(config, url) }})
		})
	}
}

// sink keeps the last request.
type sink struct {
	*httptest.Server
	header http.Header
	body   []byte
	length int64
}

func newSink(t *testing.T) *sink {
	s := &sink{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.header, s.length = r.Header, r.ContentLength
		s.header.Set(":path", r.Method+" "+r.URL.String()+" "+r.Host)
		s.body, _ = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusAccepted)
	}))
	t.Cleanup(s.Close)
	return s
}

// env returns an environment whose clock and secrets the test holds.
func env(t testing.TB, now *time.Time, secrets map[string]string) targets.Env {
	client := outbound.Client(targettest.Guard(), outbound.Options{})
	t.Cleanup(client.CloseIdleConnections)
	return targets.Env{
		HTTP: client, TLS: func(cfg *tls.Config) *http.Client {
			c := outbound.Client(targettest.Guard(), outbound.Options{TLS: cfg})
			t.Cleanup(c.CloseIdleConnections)
			return c
		}, Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return *now },
		Secrets: func(ref string) (string, error) {
			if s, ok := secrets[ref]; ok {
				return s, nil
			}
			return "", fmt.Errorf("secret %s: is not set", ref)
		},
	}
}

func benchEnv(t testing.TB) targets.Env {
	now := time.Unix(1614265330, 0)
	return env(t, &now, nil)
}

func target(t *testing.T, config string, e targets.Env) targets.Target {
	t.Helper()
	kinds := targets.NewCatalog(kind())
	d, err := targets.ParseDefinition([]byte(`{"name": "ops", "type": "webhook", "config": `+config+`}`), kinds)
	if err != nil {
		t.Fatal(err)
	}
	w, err := kinds.New(d, e)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func deliver(t *testing.T, w targets.Target, d targets.Delivery) {
	t.Helper()
	if res, err := w.Deliver(t.Context(), d); err != nil || res.Status != http.StatusAccepted {
		t.Fatalf("%+v, %v", res, err)
	}
}

func TestBinary(t *testing.T) {
	s := newSink(t)
	now := time.Unix(1614265330, 999_000_000)
	w := target(t, `{"url": "`+s.URL+`/hook?a=b%20c", "headers": {"x-team": "ops", "X-Key": {"ref": "env:KEY"}}}`,
		env(t, &now, map[string]string{"env:KEY": "k1"}))
	deliver(t, w, targettest.Delivery())
	want := http.Header{
		":path":             {"POST /hook?a=b%20c " + strings.TrimPrefix(s.URL, "http://")},
		"Ce-Specversion":    {"1.0"},
		"Ce-Id":             {"id-1%20%C3%BC%25"},
		"Ce-Source":         {"mqtt://gw-1/box%252017"},
		"Ce-Type":           {"com.acme.telemetry"},
		"Ce-Subject":        {"truck/4/box/17%20%22Euro%20%E2%82%AC%20%F0%9F%98%80%22"},
		"Ce-Time":           {"2027-03-01T12:00:00.123456789Z"},
		"Ce-Dataschema":     {"https://schemas.example.com/telemetry/1"},
		"Ce-Flag":           {"true"},
		"Ce-N":              {"-7"},
		"Ce-Partitionkey":   {"box%2017"},
		"Content-Type":      {"application/json"},
		"Content-Length":    {"36"},
		"User-Agent":        {"rialto-webhook/1"},
		"Webhook-Id":        {"dlv_0123456789abcdef"},
		"Webhook-Timestamp": {"1614265330"},
		"X-Team":            {"ops"},
		"X-Key":             {"k1"},
	}
	if diff := cmp.Diff(want, s.header); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if string(s.body) != string(targettest.Event().Data) {
		t.Errorf("body %q", s.body)
	}
	got, err := event.FromHTTPBinary(s.header, s.body, event.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	sent := *targettest.Event()
	sent.Extensions = []event.Attribute{{Name: "flag", Value: "true"}, {Name: "n", Value: "-7"}, {Name: "partitionkey", Value: "box 17"}}
	if diff := cmp.Diff(sent, got); diff != "" { // a header is text: the type of an extension is not carried
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

func TestBinaryWithoutData(t *testing.T) {
	s := newSink(t)
	now := time.Unix(1, 0)
	w := target(t, `{"url": "`+s.URL+`"}`, env(t, &now, nil))
	deliver(t, w, targets.Delivery{ID: "d", Event: &event.Event{ID: "1", Source: "/s", Type: "t"}})
	if ct := s.header.Values("Content-Type"); len(ct) != 0 || s.length != 0 || len(s.body) != 0 {
		t.Errorf("content type %q, length %d, body %q", ct, s.length, s.body)
	}
}

func TestStructured(t *testing.T) {
	s := newSink(t)
	now := time.Unix(1614265330, 0)
	w := target(t, `{"url": "`+s.URL+`", "mode": "structured"}`, env(t, &now, nil))
	deliver(t, w, targettest.Delivery())
	if ct := s.header.Get("Content-Type"); ct != "application/cloudevents+json; charset=utf-8" {
		t.Errorf("content type %q", ct)
	}
	for name := range s.header {
		if strings.HasPrefix(name, "Ce-") {
			t.Errorf("structured mode sent %s", name)
		}
	}
	got, err := event.ParseJSON(s.body, event.Limits{})
	if err != nil {
		t.Fatalf("%v: %s", err, s.body)
	}
	var a, b any
	if json.Unmarshal(got.Data, &a) != nil || json.Unmarshal(targettest.Event().Data, &b) != nil || !cmp.Equal(a, b) {
		t.Errorf("data %s", got.Data)
	}
	got.Data = targettest.Event().Data
	if diff := cmp.Diff(*targettest.Event(), got); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

// signatures verifies as a receiver does, with nothing of ours, and returns how many signatures there are.
func signatures(t *testing.T, s *sink, secret string) (all int, fits bool) {
	t.Helper()
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		t.Fatal(err)
	}
	m := hmac.New(sha256.New, key)
	fmt.Fprintf(m, "%s.%s.%s", s.header.Get("webhook-id"), s.header.Get("webhook-timestamp"), s.body)
	want := "v1," + base64.StdEncoding.EncodeToString(m.Sum(nil))
	for _, sig := range strings.Fields(s.header.Get("webhook-signature")) {
		all++
		fits = fits || hmac.Equal([]byte(sig), []byte(want))
	}
	return all, fits
}

func TestSigned(t *testing.T) {
	s := newSink(t)
	for _, mode := range []string{"binary", "structured"} {
		now := time.Unix(1614265330, 0)
		w := target(t, `{"url": "`+s.URL+`", "mode": "`+mode+`", "secret": [{"value": "`+secretA+`"}, {"ref": "env:NEW"}]}`,
			env(t, &now, map[string]string{"env:NEW": secretB}))
		d := targettest.Delivery()
		deliver(t, w, d)
		firstID := s.header.Get("webhook-id")
		// A later attempt: the same id, another time, another signature.
		now = now.Add(5 * time.Second)
		d.Attempt = 2
		deliver(t, w, d)
		if s.header.Get("webhook-id") != firstID || s.header.Get("webhook-timestamp") != "1614265335" {
			t.Errorf("%s: second attempt has id %s, time %s", mode, s.header.Get("webhook-id"), s.header.Get("webhook-timestamp"))
		}
		for _, secret := range []string{secretA, secretB} {
			if all, fits := signatures(t, s, secret); all != 2 || !fits {
				t.Errorf("%s: %d signatures, fits = %v: %s", mode, all, fits, s.header.Get("webhook-signature"))
			}
		}
		s.body = append(s.body, ' ')
		if _, fits := signatures(t, s, secretA); fits {
			t.Errorf("%s: another body fits", mode)
		}
	}
}

func TestSecretsThatChange(t *testing.T) {
	s := newSink(t)
	now := time.Unix(1614265330, 0)
	secrets := map[string]string{}
	w := target(t, `{"url": "`+s.URL+`", "secret": {"ref": "file:/run/secrets/hook"}}`, env(t, &now, secrets))
	_, err := w.Deliver(t.Context(), targettest.Delivery())
	var te *targets.Error
	if !errors.As(err, &te) || te.Reason != targets.ReasonInternal || te.Permanent || !strings.Contains(err.Error(), "file:/run/secrets/hook") {
		t.Fatalf("a secret that is not there: %v", err)
	}
	signs := func(secret string) {
		t.Helper()
		deliver(t, w, targettest.Delivery())
		if all, fits := signatures(t, s, secret); all != 1 || !fits {
			t.Errorf("not signed with %s", secret)
		}
	}
	secrets["file:/run/secrets/hook"] = secretA // it appears: taken up with the next attempt
	signs(secretA)
	secrets["file:/run/secrets/hook"] = secretB // it changes: taken up within a minute
	signs(secretA)
	now = now.Add(time.Minute)
	signs(secretB)
	delete(secrets, "file:/run/secrets/hook") // it goes: what we had stays in use
	now = now.Add(time.Minute)
	signs(secretB)
	secrets["file:/run/secrets/hook"] = "not a secret"
	now = now.Add(time.Minute)
	signs(secretB)
}

func TestConfigsThatAreRefused(t *testing.T) {
	const hidden = "hunter2"
	kinds := targets.NewCatalog(kind())
	for _, c := range []struct{ config, pointers string }{
		{`{}`, "/config/url"},
		{`{"url": ""}`, "/config/url"},
		{`{"url": 1}`, "/config/url"},
		{`{"url": "https://ops.example.com/` + strings.Repeat("a", 2048) + `"}`, "/config/url"},
		{`{"url": "http://10.0.0.1/"}`, "/config/url"},
		{`{"url": "ftp://ops.example.com/"}`, "/config/url"},
		{`{"url": "https://ops.example.com/", "mode": "batches"}`, "/config/mode"},
		{`{"url": "https://ops.example.com/", "uri": 1}`, "/config/uri"},
		{`{"url": "https://ops.example.com/", "secret": "` + hidden + `"}`, "/config/secret"},
		{`{"url": "https://ops.example.com/", "secret": {"value": "` + hidden + `"}}`, "/config/secret"},
		{`{"url": "https://ops.example.com/", "secret": {"value": "[redacted]"}}`, "/config/secret"},
		{`{"url": "https://ops.example.com/", "secret": {"val": "` + hidden + `"}}`, "/config/secret/val"},
		{`{"url": "https://ops.example.com/", "secret": {"ref": "env:A", "value": "` + secretA + `"}}`, "/config/secret"},
		{`{"url": "https://ops.example.com/", "secret": {"ref": "Github-Hook"}}`, "/config/secret"},
		{`{"url": "https://ops.example.com/", "secret": {"ref": "file:relative"}}`, "/config/secret"},
		{`{"url": "https://ops.example.com/", "secret": []}`, "/config/secret"},
		{`{"url": "https://ops.example.com/", "secret": [{"value": "` + secretA + `"}, {"value": "whsec_` + hidden + `"}]}`, "/config/secret/1"},
		{`{"url": "https://ops.example.com/", "headers": {"X A": "b"}}`, "/config/headers/X A"},
		{`{"url": "https://ops.example.com/", "headers": {"": "b"}}`, "/config/headers/"},
		{`{"url": "https://ops.example.com/", "headers": {"X-A": "b\r\nX-B: c"}}`, "/config/headers/X-A"},
		{`{"url": "https://ops.example.com/", "headers": {"X-A": "é"}}`, "/config/headers/X-A"},
		{`{"url": "https://ops.example.com/", "headers": {"X-A": " b"}}`, "/config/headers/X-A"},
		{`{"url": "https://ops.example.com/", "headers": {"X-A": 1}}`, "/config/headers/X-A"},
		{`{"url": "https://ops.example.com/", "headers": {"X-A": {"value": "a\nb"}}}`, "/config/headers/X-A"},
		{`{"url": "https://ops.example.com/", "headers": {"X-A": "b", "x-a": "c"}}`, "/config/headers/x-a"},
		{`{"url": "https://ops.example.com/", "headers": {"Authorization": "Bearer ` + hidden + `"}}`, "/config/headers/Authorization"},
		{`{"url": "http://10.0.0.1/", "secret": {"value": "x"}, "headers": {"Host": "b"}}`, "/config/headers/Host /config/secret /config/url"},
	} {
		_, err := targets.ParseDefinition([]byte(`{"name": "ops", "type": "webhook", "config": `+c.config+`}`), kinds)
		var fe *fault.Error
		if !errors.As(err, &fe) {
			t.Errorf("%s: %v, want a refusal", c.config, err)
			continue
		}
		var pointers []string
		for _, d := range fe.Details {
			pointers = append(pointers, d.Pointer)
		}
		if got := strings.Join(pointers, " "); got != c.pointers {
			t.Errorf("%s: pointers %s, want %s: %v", c.config, got, c.pointers, err)
		}
		if strings.Contains(err.Error(), hidden) {
			t.Errorf("%s: the error repeats a secret: %v", c.config, err)
		}
	}
	for _, name := range []string{
		"Host", "connection", "Keep-Alive", "TE", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length", "Content-Type",
		"Content-Encoding", "User-Agent", "Proxy-Authorization", "Expect", "Cookie", "ce-type", "CE-ID", "webhook-id", "Webhook-Anything",
		"traceparent", "X-Forwarded-For", "X-Amz-Date", "X-Goog-IAM", "X-Google-X", "X-Azure-FDID", "Metadata-Flavor", "Metadata",
	} {
		_, err := targets.ParseDefinition([]byte(`{"name": "a", "type": "webhook", "config": {"url": "https://ops.example.com/", "headers": {"`+name+`": "x"}}}`), kinds)
		if err == nil {
			t.Errorf("header %s can be set", name)
		}
	}
}

func TestNewRefusesWhatLoadLetsThrough(t *testing.T) {
	kinds := targets.NewCatalog(kind())
	// Stored while 10.0.0.0/8 was on the allow-list: it still loads, and its deliveries say why they fail.
	d, err := targets.LoadDefinition([]byte(`{"name": "ops", "type": "webhook", "config": {"url": "http://10.0.0.1:9/"}}`), kinds)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1, 0)
	w, err := kinds.New(d, env(t, &now, nil))
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Deliver(context.Background(), targettest.Delivery())
	if targets.ReasonOf(err) != targets.ReasonBlockedAddress {
		t.Errorf("Deliver = %v, want a blocked address", err)
	}
	bad := &targets.Definition{Name: "ops", Type: "webhook", Config: json.RawMessage(`{"url": "http://a b/"}`)}
	if _, err := kinds.New(bad, env(t, &now, nil)); err == nil {
		t.Error("New accepts a URL that is none")
	}
}

func FuzzConfig(f *testing.F) {
	for _, s := range []string{
		`{"url": "https://ops.example.com/hook"}`,
		`{"url": "https://ops.example.com/", "mode": "structured", "secret": [{"value": "` + secretA + `"}, {"ref": "file:/a"}], "headers": {"X-A": "b", "X-B": {"ref": "env:B"}}}`,
		`{"url": "https://ops.example.com/", "mode": "batch", "batch": {"linger": "1s"}, "secret": {"ref": "a", "until": "2027-01-01T00:00:00Z"}, "auth": {"type": "oauth2", "tokenUrl": "https://a.example/", "clientId": "a", "clientSecret": {"value": "b"}, "parameters": {"c": "d"}}}`,
		`{"url": "https://ops.example.com/", "auth": {"type": "basic", "username": "a", "password": {"value": "b"}}, "tls": {"insecureSkipVerify": true, "minVersion": "1.3"}, "handshake": {"mode": "required", "origin": "a.example"}}`,
		`{"url": "https://ops.example.com/", "auth": {"type": "apiKey", "header": "X-A", "key": {"ref": "file:/a"}}, "signature": {"algorithm": "hmac-sha256", "keyId": "a", "key": {"value": "` + secretA + `"}}}`,
		`{"url": "http://127.1/", "headers": {"x-a": "b", "X-A": "c"}}`,
	} {
		f.Add([]byte(s))
	}
	kinds := targets.NewCatalog(kind())
	f.Fuzz(func(t *testing.T, config []byte) {
		doc := append(append([]byte(`{"name": "a", "type": "webhook", "config": `), config...), '}')
		d, err := targets.ParseDefinition(doc, kinds)
		if err != nil {
			if fault.KindOf(err) != fault.Invalid {
				t.Fatalf("%q: %v", config, err)
			}
			return
		}
		// What is accepted can be made, and never gets to send a header that net/http or a reader of it chokes on.
		if _, err := kinds.New(d, targets.Env{TLS: func(*tls.Config) *http.Client { return nil }}); err != nil {
			t.Fatalf("%q is accepted, and then: %v", config, err)
		}
	})
}
