// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// Events that go in batches keep their order by key, and each has attempts, a journey and an end of its own.
func TestBatchesInALane(t *testing.T) {
	const events, keys = 200, 8
	var mu sync.Mutex
	last := map[string]int{}
	requests, delivered, failures := 0, 0, 0
	far := newSink(t, func(w http.ResponseWriter, _ *http.Request, body []byte) {
		var all []struct {
			ID, Partitionkey string
			Data             struct{ N int }
		}
		if err := json.Unmarshal(body, &all); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		if requests++; requests%5 == 0 {
			failures++
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		for _, e := range all {
			if e.Data.N == 100 {
				w.WriteHeader(http.StatusUnprocessableEntity)
				return
			}
		}
		for _, e := range all {
			if e.Data.N < last[e.Partitionkey] {
				t.Errorf("%d of key %s comes after %d", e.Data.N, e.Partitionkey, last[e.Partitionkey])
			}
			last[e.Partitionkey] = e.Data.N
			delivered++
		}
	})
	s, _ := start(t, options(t.TempDir()))
	s.must("PUT", "/v1/targets/ops", fmt.Sprintf(`{"type":"webhook","config":{"url":%q,"mode":"batch","batch":{"maxEvents":%d,"linger":"20ms"}},
		"delivery":{"ordering":"key","orderBy":"partitionkey","breaker":{"enabled":false},"retry":{"maxAttempts":50,"schedule":["10ms"]}}}`, far.URL, keys))
	s.rule("default", "all", `{"type":["reading"]}`, "ops")
	for n := range events {
		status, answer := s.call("POST", "/v1/buses/default/events", fmt.Sprintf(`{"n":%d}`, n), "ce-specversion", "1.0", "ce-id", fmt.Sprint("e", n), "ce-source", "/test", "ce-type", "reading",
			"ce-partitionkey", fmt.Sprint("k", n%keys))
		if status != http.StatusAccepted {
			t.Fatalf("%d %s", status, answer)
		}
	}
	l := s.settled("default", 30*time.Second)
	if d := l.Deliveries[0]; d.Delivered != events-1 || d.Dead != 1 {
		t.Errorf("account: %+v", d)
	}
	mu.Lock()
	defer mu.Unlock()
	if delivered != events-1 || requests-failures > events/2 || failures == 0 {
		t.Errorf("%d events in %d requests, %d of which failed", delivered, requests, failures)
	}
	if dead := string(s.event("default", "e100")); !strings.Contains(dead, `"status":422`) || !strings.Contains(dead, `"dead"`) {
		t.Errorf("the journey of what was refused: %s", dead)
	}
}

// A far side that refuses and wants nothing any more is not sent anything any more.
func TestATargetIsDisabledByItsWish(t *testing.T) {
	far := newSink(t, func(w http.ResponseWriter, _ *http.Request, body []byte) {
		wish := map[string]string{`{"n":1}`: "abort-message", `{"n":2}`: "disable"}[string(body)]
		w.Header().Set("webhook-delivery", wish)
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	s, _ := start(t, options(t.TempDir()))
	s.target("ops", far.URL, `{"status":{"retry":[422]},"retry":{"maxAttempts":9,"schedule":["1h"]}}`)
	s.rule("default", "all", `{"type":["reading"]}`, "ops")
	for n, state := range []string{1: `"state":"active"`, 2: `"state":"disabled"`} {
		if n == 0 {
			continue
		}
		id := fmt.Sprint("e", n)
		if status := s.publish("default", id, "reading", fmt.Sprintf(`{"n":%d}`, n)); status != http.StatusAccepted {
			t.Fatalf("publish: %d", status)
		}
		eventually(t, 10*time.Second, func() (string, bool) {
			told := string(s.event("default", id)) + s.must("GET", "/v1/targets/ops", "")
			return told, strings.Contains(told, `"state":"dead"`) && strings.Contains(told, state)
		})
	}
}

// What a target has agreed to is known after a restart, as long as there is the target.
func TestHandshakesAreKept(t *testing.T) {
	var mu sync.Mutex
	asked, events := 0, 0
	far := newSink(t, func(w http.ResponseWriter, r *http.Request, _ []byte) {
		mu.Lock()
		defer mu.Unlock()
		if r.Method == http.MethodOptions {
			asked++
			w.Header().Set("WebHook-Allowed-Origin", "*")
			w.Header().Set("WebHook-Allowed-Rate", "60000")
			return
		}
		events++
	})
	dir := t.TempDir()
	s, a := start(t, options(dir))
	send := func(id string, wantAsked, wantEvents int) {
		t.Helper()
		if status := s.publish("default", id, "reading", `{}`); status != http.StatusAccepted {
			t.Fatalf("publish: %d", status)
		}
		eventually(t, 10*time.Second, func() (string, bool) {
			mu.Lock()
			defer mu.Unlock()
			return fmt.Sprintf("asked %d times, %d events", asked, events), asked == wantAsked && events == wantEvents
		})
	}
	define := func() {
		t.Helper()
		s.must("PUT", "/v1/targets/ops", fmt.Sprintf(`{"type":"webhook","config":{"url":%q,"handshake":{"mode":"required","origin":"rialto.example.com","rate":60000}}}`, far.URL))
		s.rule("default", "all", `{"type":["reading"]}`, "ops")
	}
	define()
	send("1", 1, 1)
	s.settled("default", 10*time.Second)
	stop(t, a)
	s, _ = start(t, options(dir))
	send("2", 1, 2)
	s.must("DELETE", "/v1/buses/default/rules/all", "")
	s.must("DELETE", "/v1/targets/ops", "")
	define()
	send("3", 2, 3)
}

// Who leaves a target's certificate unverified is told when it is written, and as long as it is so.
func TestUnverifiedTargetsWarn(t *testing.T) {
	s, _ := start(t, options(t.TempDir()))
	written := s.must("PUT", "/v1/targets/ops", `{"type":"webhook","config":{"url":"https://ops.example.com/","tls":{"insecureSkipVerify":true}}}`)
	for _, told := range []string{written, s.must("GET", "/v1/targets/ops", ""), s.must("GET", "/v1/targets", "")} {
		if !strings.Contains(told, `"warnings":[{"pointer":"/config/tls/insecureSkipVerify","message":"whoever is on the way`) {
			t.Errorf("it is not said: %s", told)
		}
	}
}

// The far side of a target agrees at the address that it was sent, and is then sent what waited for that.
func TestConsentsAreTaken(t *testing.T) {
	var mu sync.Mutex
	callback, events := "", 0
	far := newSink(t, func(w http.ResponseWriter, r *http.Request, _ []byte) {
		mu.Lock()
		defer mu.Unlock()
		if r.Method == http.MethodOptions {
			callback = r.Header.Get("WebHook-Request-Callback")
			return
		}
		events++
	})
	s, _ := start(t, options(t.TempDir()))
	s.must("PUT", "/v1/targets/ops", fmt.Sprintf(`{"type":"webhook","config":{"url":%q,"handshake":{"mode":"required","origin":"rialto.example.com","callback":%q}},
		"delivery":{"retry":{"maxAttempts":1000,"schedule":["100ms"]},"breaker":{"enabled":false}}}`, far.URL, s.url))
	s.rule("default", "all", `{"type":["reading"]}`, "ops")
	if status := s.publish("default", "1", "reading", `{}`); status != http.StatusAccepted {
		t.Fatalf("publish: %d", status)
	}
	at := ""
	eventually(t, 10*time.Second, func() (string, bool) {
		mu.Lock()
		defer mu.Unlock()
		at = callback
		return "nobody was asked", callback != ""
	})
	eventually(t, 10*time.Second, func() (string, bool) {
		told := s.must("GET", "/v1/targets/ops", "")
		return told, strings.Contains(told, `"warnings":[{"pointer":"/config/handshake","message":"the target has not agreed`)
	})
	key := s.key
	s.key = "nobody's"
	if status, answer := s.call("GET", strings.TrimPrefix(at, s.url)+"x", ""); status != http.StatusNotFound {
		t.Errorf("another token: %d %s", status, answer)
	}
	if status, answer := s.call("GET", strings.TrimPrefix(at, s.url), ""); status != http.StatusNoContent {
		t.Errorf("%s: %d %s", at, status, answer)
	}
	s.key = key
	l := s.settled("default", 20*time.Second)
	mu.Lock()
	defer mu.Unlock()
	if events != 1 || l.Deliveries[0].Delivered != 1 {
		t.Errorf("%d events, %+v", events, l.Deliveries)
	}
}
