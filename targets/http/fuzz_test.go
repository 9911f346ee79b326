// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/secret"
	"github.com/rialto-bridge/rialto/targets"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// FuzzConfig: a config is refused with pointers, or makes a target that calls the host that it names whatever the event holds, and
// gives errors of this package's kind whatever the answer is. None is accepted with a secret that is sealed.
func FuzzConfig(f *testing.F) {
	for _, config := range []string{
		`{"url": "https://h.example/${data.v}?q=${data.v}", "body": {"json": {"a": "${data}"}}, "answer": {"path": "$.code", "equals": [0, null]}}`,
		`{"url": "https://h.example", "method": "DELETE", "headers": {"X-A": "${data.v}"}, "success": [200, 404]}`,
		`{"url": "https://h.example/", "body": {"form": {"a": "${secret.k}${data.v}"}}, "secrets": {"k": {"value": "s"}}}`,
		`{"url": "https://h.example/", "body": {"text": "<a>${data.v}</a>"}, "contentType": "text/xml"}`,
		`{"url": "https://h.example/", "body": {"json": "{\"a\": ${data.n + 1}}"}, "auth": ` + `{"type": "basic", "username": "u", "password": {"value": "p"}}}`,
		`{"url": "https://h.example/", "body": "event", "idempotencyKey": true}`,
		`{"url": "https://h.example/", "tls": {"serverName": "x.example"}}`,
		`{"url": "https://h.example/", "body": {"form": {"sealed": "x"}}}`,
		`{"url": "https://h.example/", "headers": {"sealed": "x"}}`,
	} {
		f.Add(config, "../x", `{"code": 0}`)
		f.Add(config, "é\r\n", `[`)
	}
	kinds := targets.NewCatalog(kind())
	f.Fuzz(func(t *testing.T, config, value, answer string) {
		doc := []byte(`{"name": "far", "type": "http", "config": ` + config + `}`)
		d, err := targets.ParseDefinition(doc, kinds)
		if err != nil {
			var fe *fault.Error
			if !errors.As(err, &fe) || fe.Kind != fault.Invalid {
				t.Errorf("%v", err)
			}
			return
		}
		if sealed := secret.Sealed(d.Config); len(sealed) > 0 {
			t.Fatalf("%s is accepted with what only the store has: %v", config, sealed)
		}
		var c struct{ URL string }
		if err := json.Unmarshal(d.Config, &c); err != nil {
			t.Fatal(err)
		}
		want, _, _ := strings.Cut(c.URL, "${")
		client := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			if u, err := url.Parse(want); err != nil || r.URL.Host != u.Host && !strings.Contains(config, "tokenUrl") {
				t.Errorf("%s is called for %s", r.URL.Host, c.URL)
			}
			return &http.Response{StatusCode: 200, Status: "200 OK", Proto: "HTTP/1.1", Header: http.Header{}, ContentLength: -1, Body: io.NopCloser(strings.NewReader(answer))}, nil
		})}
		made, err := kinds.New(d, targets.Env{HTTP: client, TLS: func(*tls.Config) *http.Client { return client }, Logger: slog.New(slog.DiscardHandler), Now: time.Now, Secrets: func(string) (string, error) { return "s", nil }})
		if err != nil {
			t.Fatalf("%s is accepted, and then %v", config, err)
		}
		data, err := json.Marshal(map[string]any{"v": value, "n": 1})
		if err != nil {
			t.Fatal(err)
		}
		_, err = made.Deliver(t.Context(), targets.Delivery{ID: "dlv_1", Bus: "b", Event: &event.Event{ID: "1", Source: "/s", Type: "t", DataContentType: "application/json", Data: data}})
		var te *targets.Error
		if err != nil && !errors.As(err, &te) {
			t.Errorf("%T %v", err, err)
		}
	})
}
