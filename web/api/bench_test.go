// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/internal/store/memory"
	"github.com/rialto-bridge/rialto/web/api"
)

// instantBridge commits at once, so that what is measured is the API alone.
type instantBridge struct{ *fakeBridge }

func (instantBridge) Ingest(_ context.Context, bus string, recs []*event.Record) ([]bridge.Receipt, error) {
	out := make([]bridge.Receipt, len(recs))
	for i := range out {
		out[i].Pos = event.Position{Stream: "EV_default", Seq: 123456}
	}
	return out, nil
}

// discard is a response that nobody reads, reused as net/http reuses nothing.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(status int)      { d.status = status }

type body struct{ bytes.Reader }

func (b *body) Close() error { return nil }

// ingester returns a function that sends one binary event of 256 bytes through the API.
func ingester(tb testing.TB) func() {
	keys := api.NewKeys()
	secret, doc, err := api.NewKey("bench", "events:write:default")
	if err != nil {
		tb.Fatal(err)
	}
	if err := keys.Set(store.Document{Key: store.Key{Kind: "Key", Name: "bench"}, Revision: 1, Raw: doc}); err != nil {
		tb.Fatal(err)
	}
	a, err := api.New(api.Options{Bridge: instantBridge{newFakeBridge()}, Store: memory.New(nil), Keys: keys})
	if err != nil {
		tb.Fatal(err)
	}
	data := bytes.Repeat([]byte("x"), 256)
	req, err := http.NewRequest("POST", "http://127.0.0.1/v1/buses/default/events", nil)
	if err != nil {
		tb.Fatal(err)
	}
	req.Header = http.Header{"Authorization": {"Bearer " + secret}, "Content-Type": {"application/json"}, "Content-Length": {strconv.Itoa(len(data))},
		"Accept-Encoding": {"gzip"}, "User-Agent": {"Go-http-client/1.1"}, "Ce-Specversion": {"1.0"}, "Ce-Id": {"r1-123456"},
		"Ce-Type": {"com.example.load"}, "Ce-Source": {"/bridgeload"}, "Ce-Partitionkey": {"k17"}}
	req.ContentLength = int64(len(data))
	b := &body{}
	req.Body = io.NopCloser(b)
	w := &discard{header: http.Header{}}
	return func() {
		b.Reset(data)
		clear(w.header)
		w.status = 0
		a.ServeHTTP(w, req)
		if w.status != http.StatusAccepted {
			tb.Fatal("status", w.status)
		}
	}
}

// BenchmarkIngest is what the API adds to net/http for one event: routing, right, decoding, answer, metrics.
func BenchmarkIngest(b *testing.B) {
	send := ingester(b)
	b.ReportAllocs()
	for b.Loop() {
		send()
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkList lists the first page of ten thousand rules.
func BenchmarkList(b *testing.B) {
	s := memory.New(nil)
	writes := make([]store.Write, 0, 500)
	for i := range 10_000 {
		k := store.Key{Kind: "Rule", Scope: "default", Name: "rule-" + strconv.Itoa(i)}
		doc := `{"kind":"Rule","name":"` + k.Name + `","bus":"default","description":"` + strings.Repeat("x", 500) + `","pattern":{"type":["com.example.order"],"data":{"total":[{"numeric":[">",100]}]}},"targets":[{"target":"ops"}]}`
		if writes = append(writes, store.Write{Key: k, Raw: []byte(doc)}); len(writes) == cap(writes) {
			if _, err := s.Apply(b.Context(), writes); err != nil {
				b.Fatal(err)
			}
			writes = writes[:0]
		}
	}
	secret, doc, err := api.NewKey("bench", "definitions:read")
	if err != nil {
		b.Fatal(err)
	}
	keys := api.NewKeys()
	if err := keys.Set(store.Document{Key: store.Key{Kind: "Key", Name: "bench"}, Revision: 1, Raw: doc}); err != nil {
		b.Fatal(err)
	}
	if _, err := s.Put(b.Context(), store.Key{Kind: "Bus", Name: "default"}, []byte(`{"kind":"Bus","name":"default"}`), store.Condition{}); err != nil {
		b.Fatal(err)
	}
	a, err := api.New(api.Options{Bridge: newFakeBridge(), Store: s, Keys: keys, Kinds: []api.Kind{{Name: "Rule", Plural: "rules", Scoped: true}, {Name: "Bus", Plural: "buses"}}})
	if err != nil {
		b.Fatal(err)
	}
	req, err := http.NewRequest("GET", "http://127.0.0.1/v1/buses/default/rules?limit=100", nil)
	if err != nil {
		b.Fatal(err)
	}
	req.Header = http.Header{"Authorization": {"Bearer " + secret}}
	w := &discard{header: http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		clear(w.header)
		if a.ServeHTTP(w, req); w.status != http.StatusOK {
			b.Fatal("status", w.status)
		}
	}
}
