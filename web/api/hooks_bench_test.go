// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/internal/store/memory"

	"github.com/rialto-bridge/rialto/sources/sourcetest"
	"github.com/rialto-bridge/rialto/sources/webhook"
	"github.com/rialto-bridge/rialto/web/api"
)

// refusals are hooks that nobody has signed, by what is wrong with them.
var refusals = []struct {
	name, provider string
	header         http.Header
}{
	{"wrong_signature", "github", http.Header{"X-Hub-Signature-256": {"sha256=" + strings.Repeat("0a", 32)}}},
	{"no_signature", "github", nil},
	{"malformed_signature", "github", http.Header{"X-Hub-Signature-256": {"sha256=none"}}},
	{"stale", "slack", http.Header{"X-Slack-Signature": {"v0=" + strings.Repeat("0a", 32)}, "X-Slack-Request-Timestamp": {"1531420618"}}},
}

// refused returns functions that send such hooks through the API to a real source, in the order of refusals.
func refused(tb testing.TB) []func() {
	kind := webhook.Kind()
	s, _ := sourcetest.Node(tb, "n", sourcetest.State(tb), sourcetest.NewLog(), nil, kind)
	for _, provider := range []string{"github", "slack"} {
		sourcetest.Define(tb, s, `{"name":"`+provider+`","type":"webhook","config":{"provider":"`+provider+`","secret":{"value":"a secret"}}}`, kind)
	}
	a, err := api.New(api.Options{Bridge: instantBridge{newFakeBridge()}, Store: memory.New(nil), Keys: api.NewKeys(), Sources: s, QuickRefusals: -1})
	if err != nil {
		tb.Fatal(err)
	}
	data := bytes.Repeat([]byte("x"), 256)
	var out []func()
	for _, c := range refusals {
		req, err := http.NewRequest("POST", "http://127.0.0.1/hooks/"+c.provider, nil)
		if err != nil {
			tb.Fatal(err)
		}
		req.RemoteAddr = "192.0.2.7:1234"
		req.Header = http.Header{"Content-Type": {"application/json"}, "Content-Length": {strconv.Itoa(len(data))}, "Accept-Encoding": {"gzip"},
			"User-Agent": {"GitHub-Hookshot/1"}, "X-Github-Event": {"issues"}, "X-Github-Delivery": {"guid"}}
		for name, v := range c.header {
			req.Header[name] = v
		}
		req.ContentLength = int64(len(data))
		b := &body{}
		req.Body = io.NopCloser(b)
		w := &discard{header: http.Header{}}
		out = append(out, func() {
			b.Reset(data)
			clear(w.header)
			w.status = 0
			a.ServeHTTP(w, req)
			if w.status != http.StatusForbidden {
				tb.Fatal("status", w.status)
			}
		})
	}
	return out
}

// BenchmarkRefusedHook is what a hook costs that is not proved, beside net/http: routing, the source, the answer, the count.
func BenchmarkRefusedHook(b *testing.B) {
	for i, send := range refused(b) {
		b.Run(refusals[i].name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				send()
			}
		})
	}
}
