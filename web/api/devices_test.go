// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/web/api"
)

// fakeClients are clients in memory.
type fakeClients struct {
	mu     sync.Mutex // guards what follows
	all    []mqttgw.Client
	ended  []string // principal and client ids
	device string   // the one that there is
}

func (f *fakeClients) Clients(principal string, all bool) []mqttgw.Client {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.all), func(c mqttgw.Client) bool { return !all && c.Principal != principal })
}

func (f *fakeClients) Disconnect(principal string, clientID ...string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = append(f.ended, fmt.Sprint(principal, clientID))
	return 1
}

func (f *fakeClients) DisconnectDevice(name string) (int, bool) { return 2, name == f.device }

func withClients(f *fakeClients) func(*api.Options) {
	return func(o *api.Options) { o.Clients = f }
}

func TestClientsAreListed(t *testing.T) {
	f := &fakeClients{}
	for i := range 5 {
		f.all = append(f.all, mqttgw.Client{Principal: "", ClientID: fmt.Sprint("a", i)}, mqttgw.Client{Principal: "p", ClientID: fmt.Sprint("b", i), Online: i > 2})
	}
	slices.SortFunc(f.all, func(a, b mqttgw.Client) int {
		return slices.Compare([]string{a.Principal, a.ClientID}, []string{b.Principal, b.ClientID})
	})
	s := start(t, withClients(f))
	list := func(query string) (ids []string, next string) {
		t.Helper()
		page := into[struct {
			Items      []struct{ ClientID string }
			NextCursor string
		}](t, s.do("GET", "/v1/clients?"+query, "").want(t, http.StatusOK))
		for _, c := range page.Items {
			ids = append(ids, c.ClientID)
		}
		return ids, page.NextCursor
	}
	for query, want := range map[string][]string{
		"":                     {"a0", "a1", "a2", "a3", "a4", "b0", "b1", "b2", "b3", "b4"},
		"principal=":           {"a0", "a1", "a2", "a3", "a4"},
		"principal=p&online":   {"b3", "b4"},
		"clientId=b1":          {"b1"},
		"principal=x":          nil,
		"online=false&limit=1": {"a0"},
	} {
		if got, _ := list(query); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", query, got, want)
		}
	}
	var all []string
	for cursor := ""; ; {
		ids, next := list("limit=3&cursor=" + url.QueryEscape(cursor))
		all = append(all, ids...)
		if cursor = next; cursor == "" {
			break
		}
	}
	if d := cmp.Diff([]string{"a0", "a1", "a2", "a3", "a4", "b0", "b1", "b2", "b3", "b4"}, all); d != "" {
		t.Errorf("pages (-want +got):\n%s", d)
	}
	wantProblem(t, s.do("GET", "/v1/clients?cursor=!", ""), 400, "invalid", "/cursor")
	wantProblem(t, s.do("GET", "/v1/clients?user=x", ""), 400, "invalid", "/user")
}

func TestClientsAreDisconnected(t *testing.T) {
	f := &fakeClients{device: "box"}
	s := start(t, withClients(f))
	s.do("POST", "/v1/clients:disconnect", `{"principal":"p","clientId":""}`).want(t, http.StatusOK)
	s.do("POST", "/v1/clients:disconnect", `{"principal":""}`).want(t, http.StatusOK)
	if d := cmp.Diff([]string{"p[]", "[]"}, f.ended); d != "" {
		t.Errorf("ended (-want +got):\n%s", d)
	}
	wantProblem(t, s.do("POST", "/v1/clients:disconnect", `{"clientId":"x"}`), 400, "invalid", "/principal")
	wantProblem(t, s.do("POST", "/v1/clients:disconnect", `{"principal":7}`), 400, "invalid", "/principal")
	if a := s.do("POST", "/v1/devices/box:disconnect", "").want(t, http.StatusOK); a.body != `{"disconnected":2}` {
		t.Errorf("answer %s", a.body)
	}
	wantProblem(t, s.do("POST", "/v1/devices/other:disconnect", ""), 404, "not-found")
}

func TestDevicesAreBlocked(t *testing.T) {
	s := start(t, withClients(&fakeClients{}))
	k := store.Key{Kind: "Device", Name: "box"}
	first := s.put(k, `{"kind":"Device","name":"box","principal":"p"}`)
	for range 2 { // the second time nothing changes
		a := s.do("POST", "/v1/devices/box:block", "").want(t, http.StatusOK)
		d := into[struct {
			Blocked   bool
			Principal string
			Revision  uint64
		}](t, a)
		if !d.Blocked || d.Principal != "p" || d.Revision != first.Revision+1 || a.header.Get("ETag") != fmt.Sprintf(`"%d"`, d.Revision) {
			t.Errorf("blocked: %s %v", a.body, a.header)
		}
	}
	if d := into[struct{ Blocked *bool }](t, s.do("POST", "/v1/devices/box:unblock", "").want(t, http.StatusOK)); d.Blocked != nil {
		t.Errorf("unblocked: %v", *d.Blocked)
	}
	wantProblem(t, s.do("POST", "/v1/devices/other:block", ""), 404, "not-found")
	wantProblem(t, s.do("POST", "/v1/devices/box:block?x=1", ""), 400, "invalid", "/x")
}

func TestDevicesWithoutMQTT(t *testing.T) {
	s := start(t)
	wantProblem(t, s.do("GET", "/v1/clients", ""), 503, "unavailable")
	wantProblem(t, s.do("POST", "/v1/clients:disconnect", `{"principal":"p"}`), 503, "unavailable")
	wantProblem(t, s.do("POST", "/v1/devices/box:disconnect", ""), 503, "unavailable")
}

func TestDevicesNeedTheRight(t *testing.T) {
	s := start(t, withClients(&fakeClients{device: "box"}))
	reader := s.addKey("reader", "devices:read")
	other := s.addKey("other", "events:*", "definitions:*")
	for _, c := range []struct {
		key, method, path, body string
		want                    int
	}{
		{reader, "GET", "/v1/clients", "", 200},
		{reader, "POST", "/v1/devices/box:disconnect", "", 403},
		{reader, "POST", "/v1/devices/box:block", "", 403},
		{reader, "POST", "/v1/clients:disconnect", `{"principal":"p"}`, 403},
		{other, "GET", "/v1/clients", "", 403},
	} {
		s.key = c.key
		if a := s.do(c.method, c.path, c.body); a.status != c.want {
			t.Errorf("%s %s: %d, want %d: %s", c.method, c.path, a.status, c.want, a.body)
		}
	}
}
