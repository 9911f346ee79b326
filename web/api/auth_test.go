// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/web/api"
)

func TestRights(t *testing.T) {
	s := start(t)
	for _, c := range []struct {
		scope  string
		may    string
		mayNot string
	}{
		{"events:write", "POST /v1/buses/default/events", "GET /v1/buses/default/events"},
		{"events:write:devices", "POST /v1/buses/devices/events", "POST /v1/buses/default/events"},
		{"events:read:default", "GET /v1/buses/default/events", "GET /v1/buses/devices/events"},
		{"events:read:default", "GET /v1/ledger?bus=default", "GET /v1/ledger"},
		{"events:read:default", "GET /v1/deadletters?bus=default", "GET /v1/deadletters?bus=devices"},
		{"events:read:default", "GET /v1/deadletters/DEAD:1?bus=default", "GET /v1/deadletters/DEAD:1"},
		{"events:read:default", "GET /v1/deadletters:count?bus=default", "GET /v1/deadletters:count"},
		{"events:read", "GET /v1/jobs", "POST /v1/deadletters:redrive"},
		{"events:write:devices", "POST /v1/buses/devices/deliveries:redrive", "POST /v1/buses/default/deliveries:redrive"},
		{"events:write:default", "POST /v1/deadletters:redrive?bus=default", "POST /v1/deadletters:redrive"},
		{"events:write:default", "POST /v1/deadletters:discard?bus=default", "POST /v1/deadletters:discard?bus=devices"},
		{"events:write:default", "POST /v1/buses/default/events/x:redrive", "POST /v1/buses/devices/events/x:redrive"},
		{"events:write:default", "POST /v1/jobs/x:cancel?bus=default", "POST /v1/jobs/x:cancel"},
		{"events:read:default", "GET /v1/scheduled?bus=default", "GET /v1/scheduled"},
		{"events:read:default", "GET /v1/prepared/x?bus=default", "GET /v1/prepared/x?bus=devices"},
		{"events:read", "GET /v1/scheduled/x", "DELETE /v1/scheduled/x"},
		{"events:write:default", "DELETE /v1/scheduled/x?bus=default", "DELETE /v1/scheduled/x"},
		{"events:write:default", "POST /v1/prepared/x:commit?bus=default", "POST /v1/prepared/x:rollback"},
		{"events:read:default", "GET /v1/jobs?bus=default", "GET /v1/jobs/redrive-1"},
		{"events:*", "GET /v1/ledger", "GET /v1/targets"},
		{"definitions:read", "GET /v1/targets", "PUT /v1/targets/x"},
		{"definitions:write", "PUT /v1/targets/x", "GET /v1/targets/x"},
		{"definitions:*", "GET /v1/buses", "GET /v1/devices"},
		{"definitions:*", "GET /v1/buses/default/rules", "GET /v1/keys"},
		{"definitions:*:default", "GET /v1/buses/default/rules", "GET /v1/buses/devices/rules"},
		{"definitions:*:default", "GET /v1/buses/default", "GET /v1/buses/devices"},
		{"definitions:*:default", "GET /v1/buses/default/rules", "GET /v1/targets"},
		{"devices:read", "GET /v1/devices", "GET /v1/targets"},
		{"queues:*", "GET /livez", "GET /v1/devices"},
		{"admin:read", "GET /v1/keys", "POST /v1/keys"},
		{"admin:read", "GET /metrics", "PUT /v1/targets/x"},
		{"admin:*", "GET /metrics", ""},
		{"events:*", "GET /", "GET /metrics"},
	} {
		s.key = s.addKey("test", c.scope)
		send := func(what string) int {
			method, path, _ := strings.Cut(what, " ")
			return s.do(method, path, `{}`).status
		}
		if status := send(c.may); status == http.StatusForbidden || status == http.StatusUnauthorized {
			t.Errorf("%s may not %s: %d", c.scope, c.may, status)
		}
		if c.mayNot != "" {
			if status := send(c.mayNot); status != http.StatusForbidden {
				t.Errorf("%s may %s: %d", c.scope, c.mayNot, status)
			}
		}
	}
	s.key = s.addKey("test", "events:read:default")
	p := wantProblem(t, s.do("GET", "/v1/buses/devices/events", ""), 403, "forbidden")
	if !strings.Contains(p.Detail, "events:read:devices") {
		t.Errorf("detail %q does not name the right", p.Detail)
	}
}

func TestNoRight(t *testing.T) {
	s := start(t)
	good := s.key
	s.key = ""
	for name, header := range map[string][]string{
		"no key":       nil,
		"wrong key":    {"Authorization", "Bearer wrong"},
		"half a key":   {"Authorization", "Bearer " + good[:20]},
		"basic":        {"Authorization", "Basic " + good},
		"no scheme":    {"Authorization", good},
		"nothing":      {"Authorization", ""},
		"two keys":     {"Authorization", "Bearer " + good, "Authorization", "Bearer " + good},
		"in the query": nil,
	} {
		path := "/v1/targets"
		if name == "in the query" {
			path += "?access_token=" + good
		}
		a := s.do("GET", path, "", header...)
		wantProblem(t, a, 401, "unauthorized")
		if !strings.HasPrefix(a.header.Get("WWW-Authenticate"), `Bearer realm="rialto"`) {
			t.Errorf("%s: WWW-Authenticate = %q", name, a.header.Get("WWW-Authenticate"))
		}
	}
	wantProblem(t, s.post("default", "x"), 401, "unauthorized")
	for _, path := range []string{"/livez", "/readyz", "/readyz?verbose", "/openapi.json", "/"} {
		s.do("GET", path, "").want(t, http.StatusOK)
		// Who sends a key is told that it is no good, also where none is needed.
		wantProblem(t, s.do("GET", path, "", "Authorization", "Bearer wrong"), 401, "unauthorized")
	}
	// The scheme has no case.
	s.do("GET", "/v1/targets", "", "Authorization", "bearer  "+good).want(t, http.StatusOK)
	if strings.Contains(s.log.String(), good) {
		t.Error("the key is in the log")
	}
}

func TestExpiry(t *testing.T) {
	now := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	s := start(t, func(o *api.Options) { o.Now = func() time.Time { return now } })
	secret, doc, err := api.NewKey("short", "events:write")
	if err != nil {
		t.Fatal(err)
	}
	raw := strings.Replace(string(doc), `"scopes"`, `"expiresAt":"2027-01-01T00:01:00Z","scopes"`, 1)
	if err := s.keys.Set(s.put(store.Key{Kind: "Key", Name: "short"}, raw)); err != nil {
		t.Fatal(err)
	}
	s.key = secret
	s.post("default", "in time").want(t, http.StatusAccepted)
	now = now.Add(time.Minute)
	if p := wantProblem(t, s.post("default", "too late"), 401, "unauthorized"); !strings.Contains(p.Detail, "expired") {
		t.Errorf("detail = %q", p.Detail)
	}
}

func TestAnonymous(t *testing.T) {
	s := start(t, func(o *api.Options) { o.Anonymous = true })
	key := s.key
	s.key = ""
	s.post("default", "x").want(t, http.StatusAccepted)
	s.do("GET", "/v1/keys", "").want(t, http.StatusOK)
	wantProblem(t, s.do("GET", "/v1/targets", "", "Authorization", "Bearer wrong"), 401, "unauthorized")
	for host, ok := range map[string]bool{"localhost": true, "localhost:8080": true, "127.0.0.1:1": true, "[::1]:8080": true, "127.9.9.9": true,
		"evil.example": false, "localhost.evil.example:80": false, "10.0.0.1": false, "127.0.0.1.evil.example": false} {
		a := s.do("GET", "/v1/targets", "", "Host", host)
		if ok && a.status != http.StatusOK {
			t.Errorf("Host %s: %d %s", host, a.status, a.body)
		}
		if !ok {
			wantProblem(t, a, 403, "forbidden")
		}
	}
	s.key = key
	s.do("GET", "/v1/targets", "").want(t, http.StatusOK)
}

func TestDamagedKeys(t *testing.T) {
	s := start(t)
	for _, raw := range []string{`{}`, `{"hash":"zz","scopes":["admin:*"]}`, `{"hash":"00","scopes":["admin:*"]}`, `[]`,
		`{"hash":"` + strings.Repeat("0", 64) + `","scopes":["all"]}`} {
		if err := s.keys.Set(s.put(store.Key{Kind: "Key", Name: "admin"}, raw)); err == nil {
			t.Errorf("Set(%s) has no complaint", raw)
		}
		wantProblem(t, s.do("GET", "/v1/targets", ""), 401, "unauthorized")
	}
	s.keys.Remove("none")
}
