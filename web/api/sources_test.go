// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/web/api"
)

// fakeSources answer hooks themselves.
type fakeSources struct {
	mu     sync.Mutex // guards what follows
	hooked []string   // name, authorization and body
	resets []string
}

func (f *fakeSources) ServeHook(name string, w http.ResponseWriter, r *http.Request) error {
	if name != "shop" {
		return fault.New(fault.NotFound, "no hook %q", name)
	}
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	if string(b) == "bad" {
		return fault.New(fault.Forbidden, "the signature does not match")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hooked = append(f.hooked, r.Header.Get("Authorization")+" "+string(b))
	w.WriteHeader(http.StatusAccepted)
	return nil
}

func (f *fakeSources) Reset(_ context.Context, name, start string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resets = append(f.resets, name+" "+start)
	return nil
}

// A hook needs no key of ours: what it has in Authorization is for the source, and so is the Host of a public name.
func TestHooksAreTheSourcesOwn(t *testing.T) {
	f := &fakeSources{}
	s := start(t, func(o *api.Options) { o.Sources, o.Anonymous = f, true })
	s.key = ""
	if a := s.do("POST", "/hooks/shop", "one", "Host", "hooks.example.com"); a.status != http.StatusAccepted {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := s.do("POST", "/hooks/shop", "two", "Authorization", "Bearer of-the-sender"); a.status != http.StatusAccepted {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := s.do("POST", "/hooks/shop", "bad"); a.status != http.StatusForbidden || !strings.Contains(a.body, "urn:rialto:problem:forbidden") {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := s.do("POST", "/hooks/nobody", "x"); a.status != http.StatusNotFound {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := s.do("GET", "/v1/buses", "", "Host", "hooks.example.com"); a.status != http.StatusForbidden {
		t.Errorf("the rest of the API is open to other hosts: %d", a.status)
	}
	if diff := cmp.Diff([]string{" one", "Bearer of-the-sender two"}, f.hooked); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSourcesArePausedAndReset(t *testing.T) {
	f := &fakeSources{}
	s := start(t, func(o *api.Options) { o.Sources = f })
	s.put(store.Key{Kind: "Source", Name: "shop"}, `{"kind":"Source","name":"shop","type":"webhook"}`)
	for _, c := range []struct{ path, body, want string }{
		{":pause", "", `"paused":true`}, {":pause", "", `"paused":true`}, {":resume", "", `"type":"webhook"`},
		{":reset", "", `"name":"shop"`}, {":reset", `{"start":"earliest"}`, `"name":"shop"`},
	} {
		a := s.do("POST", "/v1/sources/shop"+c.path, c.body)
		if a.status != http.StatusOK || !strings.Contains(a.body, c.want) || c.path == ":resume" && strings.Contains(a.body, "paused") {
			t.Errorf("%s %s: %d %s", c.path, c.body, a.status, a.body)
		}
	}
	if diff := cmp.Diff([]string{"shop ", "shop earliest"}, f.resets); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, c := range []struct {
		path, body string
		want       int
	}{{"/v1/sources/nobody:pause", "", 404}, {"/v1/sources/nobody:reset", "", 404}, {"/v1/sources/shop:reset", `{"begin":"earliest"}`, 400}, {"/v1/sources/shop:reset", `{"start":"earliest"} x`, 400}, {"/v1/sources/shop:pause?x=1", "", 400}} {
		if a := s.do("POST", c.path, c.body); a.status != c.want {
			t.Errorf("%s: %d %s, want %d", c.path, a.status, a.body, c.want)
		}
	}
	s.key = s.addKey("reader", "definitions:read")
	if a := s.do("POST", "/v1/sources/shop:pause", ""); a.status != http.StatusForbidden {
		t.Errorf("a reader may pause: %d", a.status)
	}
}

// Targets and regions are paused as sources and links are; neither has a position.
func TestTargetsArePaused(t *testing.T) {
	s := start(t)
	s.put(store.Key{Kind: "Target", Name: "ops"}, `{"kind":"Target","name":"ops","type":"webhook","labels":{"team":"a"}}`)
	for range 2 {
		if a := s.do("POST", "/v1/targets/ops:pause", "").want(t, http.StatusOK); !strings.Contains(a.body, `"paused":true`) || !strings.Contains(a.body, `"team":"a"`) {
			t.Errorf("paused: %s", a.body)
		}
	}
	for range 2 {
		if a := s.do("POST", "/v1/targets/ops:resume", "").want(t, http.StatusOK); strings.Contains(a.body, "paused") || !strings.Contains(a.body, `"team":"a"`) {
			t.Errorf("resumed: %s", a.body)
		}
	}
	wantProblem(t, s.do("POST", "/v1/targets/nobody:pause", ""), 404, "not-found")
	wantProblem(t, s.do("POST", "/v1/targets/ops:pause?for=1h", ""), 400, "invalid", "/for")
	s.key = s.addKey("reader", "definitions:read")
	wantProblem(t, s.do("POST", "/v1/targets/ops:resume", ""), 403, "forbidden")
}

// Refused hooks wait when there are many of them, but for those that a proxy has passed on: its connection may be needed for good ones.
func TestRefusedHooksWait(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := start(t, func(o *api.Options) { o.Sources, o.QuickRefusals, o.Registerer = &fakeSources{}, 1, reg })
	held := func() float64 {
		t.Helper()
		all, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			if m.GetName() == "rialto_hook_refusals_held_total" {
				return m.GetMetric()[0].GetCounter().GetValue()
			}
		}
		t.Fatal("there is no such metric")
		return 0
	}
	for range 5 {
		if a := s.do("POST", "/hooks/shop", "bad", "X-Forwarded-For", "192.0.2.7"); a.status != http.StatusForbidden {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	if n := held(); n != 0 {
		t.Errorf("%v of a proxy's requests were held", n)
	}
	for range 2 {
		if a := s.do("POST", "/hooks/shop", "bad"); a.status != http.StatusForbidden {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	if n := held(); n != 1 {
		t.Errorf("%v of two were held, want 1", n)
	}
}
