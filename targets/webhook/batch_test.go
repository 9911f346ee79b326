// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/targettest"
)

// together delivers events with these ids at the same time, and returns what became of each.
func together(t *testing.T, w targets.Target, ids ...string) map[string]error {
	t.Helper()
	var mu sync.Mutex
	out := map[string]error{}
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() {
			d := targettest.Delivery()
			e := *d.Event
			e.ID, d.ID, d.Event = id, "dlv_"+id, &e
			_, err := w.Deliver(t.Context(), d)
			mu.Lock()
			defer mu.Unlock()
			out[id] = err
		})
	}
	wg.Wait()
	return out
}

// idsOf are the ids in a batch, sorted.
func idsOf(t *testing.T, r taken) []string {
	t.Helper()
	mode, events, err := event.FromHTTP(r.request.Header, r.body, event.Limits{})
	if err != nil || mode != event.Batch {
		t.Fatalf("%v, %v: %s", mode, err, r.body)
	}
	var ids []string
	for i := range events {
		ids = append(ids, events[i].ID)
	}
	slices.Sort(ids)
	return ids
}

// What is under way at the same time goes in one request, which the libraries of CloudEvents and Standard Webhooks read.
func TestBatch(t *testing.T) {
	srv, got := receiver(t, nil)
	now := time.Now()
	w := target(t, fmt.Sprintf(`{"url": "%s", "mode": "batch", "batch": {"maxEvents": 4, "linger": "5s"}, "secret": {"value": "%s"}}`, srv.URL, secretA), env(t, &now, nil))
	for id, err := range together(t, w, "1", "2", "3", "4") {
		if err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	if len(*got) != 1 || fmt.Sprint(idsOf(t, (*got)[0])) != "[1 2 3 4]" {
		t.Fatalf("%d requests", len(*got))
	}
	r := (*got)[0]
	events, err := binding.ToEvents(t.Context(), cehttp.NewMessageFromHttpRequest(r.request), r.request.Body)
	if err != nil || len(events) != 4 || events[0].Subject() != targettest.Event().Subject {
		t.Errorf("the SDK reads %d events, %v", len(events), err)
	}
	var one cloudevents.Event = events[0]
	if err := one.Validate(); err != nil {
		t.Error(err)
	}
	wh, err := standardwebhooks.NewWebhook(secretA)
	if err != nil {
		t.Fatal(err)
	}
	if err := wh.Verify(r.body, r.request.Header); err != nil || !strings.HasPrefix(r.request.Header.Get("Webhook-Id"), "bat_") {
		t.Errorf("%v: %v", err, r.request.Header)
	}
}

func TestBatchAlone(t *testing.T) {
	srv, got := receiver(t, nil)
	now := time.Now()
	w := target(t, fmt.Sprintf(`{"url": "%s", "mode": "batch", "batch": {"linger": "1ms"}}`, srv.URL), env(t, &now, nil))
	deliver(t, w, targettest.Delivery())
	if len(*got) != 1 || len(idsOf(t, (*got)[0])) != 1 {
		t.Errorf("%d requests", len(*got))
	}
}

// A batch holds no more bytes than it may, and what is larger goes alone.
func TestBatchBytes(t *testing.T) {
	srv, got := receiver(t, nil)
	now := time.Now()
	w := target(t, fmt.Sprintf(`{"url": "%s", "mode": "batch", "batch": {"maxEvents": 8, "maxBytes": 1024, "linger": "100ms"}}`, srv.URL), env(t, &now, nil))
	for id, err := range together(t, w, "1", "2", "3", "4", "5", strings.Repeat("6", 1000)) {
		if err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	n := 0
	for _, r := range *got {
		ids := idsOf(t, r)
		if n += len(ids); len(r.body) > 1024+len(ids)+1 && len(ids) > 1 {
			t.Errorf("%d bytes with %d events", len(r.body), len(ids))
		}
	}
	if n != 6 || len(*got) < 3 {
		t.Errorf("%d events in %d requests", n, len(*got))
	}
}

// Whom a failed request concerns: all that were in it, unless it is refused for what is in it; then it is tried in halves.
func TestBatchFails(t *testing.T) {
	for name, c := range map[string]struct {
		answer   func(ids []string) int
		fail     string
		requests int
	}{
		"with its target": {func([]string) int { return 503 }, "1 2 3 4 5 6 7 8", 1},
		"gone":            {func([]string) int { return 410 }, "1 2 3 4 5 6 7 8", 1},
		"for one event": {func(ids []string) int {
			if slices.Contains(ids, "3") {
				return 422
			}
			return 204
		}, "3", 7},
		"for its size": {func(ids []string) int {
			if len(ids) > 2 {
				return 413
			}
			return 204
		}, "", 7},
		"for every event": {func([]string) int { return 400 }, "1 2 3 4 5 6 7 8", 15},
		"in a half, for now": {func(ids []string) int {
			if len(ids) == 8 {
				return 413
			}
			if slices.Contains(ids, "1") {
				return 500
			}
			return 204
		}, "half", 3},
	} {
		t.Run(name, func(t *testing.T) {
			srv, got := receiver(t, nil)
			srv.Config.Handler = http.HandlerFunc(func(inner http.Handler) http.HandlerFunc {
				return func(w http.ResponseWriter, r *http.Request) {
					inner.ServeHTTP(discard{}, r)
					w.WriteHeader(c.answer(idsOf(t, (*got)[len(*got)-1])))
				}
			}(srv.Config.Handler))
			now := time.Now()
			w := target(t, fmt.Sprintf(`{"url": "%s", "mode": "batch", "batch": {"maxEvents": 8, "linger": "5s"}}`, srv.URL), env(t, &now, nil))
			out := together(t, w, strings.Fields("1 2 3 4 5 6 7 8")...)
			var failed []string
			for _, id := range slices.Sorted(maps.Keys(out)) {
				if out[id] != nil {
					failed = append(failed, id)
				}
			}
			if len(*got) != c.requests {
				t.Errorf("%d requests, want %d", len(*got), c.requests)
			}
			if want := strings.Fields(c.fail); c.fail == "half" {
				if len(failed) != 4 || !slices.Contains(failed, "1") {
					t.Errorf("%v failed, want a half with 1", failed)
				}
			} else if !slices.Equal(failed, want) {
				t.Errorf("%v failed, want %v", failed, want)
			}
		})
	}
}

// discard is an answer that nobody sees.
type discard struct{ http.ResponseWriter }

func (discard) WriteHeader(int) {}

func TestBatchConfigsThatAreRefused(t *testing.T) {
	for config, want := range map[string]string{
		`"batch": {"maxEvents": 4}`:                                   "/config/batch: is for mode batch",
		`"mode": "batch", "batch": {"maxEvents": 257}`:                "/config/batch/maxEvents: is more than 256",
		`"mode": "batch", "batch": {"linger": "6s"}`:                  "/config/batch/linger: is not a duration from 1ms to 5s",
		`"mode": "batch", "headerCoding": "raw"`:                      "/config/headerCoding: is for mode binary",
		`"mode": "batch", "batch": {"linger": "soon", "maxBytes": 1}`: "/config/batch/maxBytes: is less than 1024",
	} {
		_, err := targets.ParseDefinition([]byte(`{"name": "ops", "type": "webhook", "config": {"url": "https://ops.example.com/", `+config+`}}`), targets.NewCatalog(kind()))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s gives %v, want %s", config, err, want)
		}
	}
}
