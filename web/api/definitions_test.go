// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/web/api"
)

const (
	target = `{"kind":"Target","name":"hook","type":"webhook","config":{"url":"https://example.com/<x>&y"}}`
	rule   = `{"kind":"Rule","name":"too-warm","bus":"default","labels":{"team":"cold"},"pattern":{"type":["t"]},"targets":[{"target":"hook"}]}`
)

type document struct {
	Kind, Name, Bus      string
	Revision             uint64
	CreatedAt, UpdatedAt time.Time
}

func TestDefinitionStory(t *testing.T) {
	s := start(t)
	made := s.do("PUT", "/v1/targets/hook", target).want(t, http.StatusCreated)
	d := into[document](t, made)
	if d.Revision == 0 || d.CreatedAt.IsZero() || made.header.Get("Location") != "/v1/targets/hook" ||
		made.header.Get("ETag") != fmt.Sprintf(`"%d"`, d.Revision) || !strings.Contains(made.body, `https://example.com/<x>&y`) {
		t.Errorf("made %s, headers %v", made.body, made.header)
	}
	got := s.do("GET", "/v1/targets/hook", "").want(t, http.StatusOK)
	if got.body != made.body || got.header.Get("ETag") != made.header.Get("ETag") {
		t.Errorf("GET = %s, PUT had answered %s", got.body, made.body)
	}
	// What was read can be written back: the server's members are ignored, and nothing changes.
	same := s.do("PUT", "/v1/targets/hook", got.body, "Content-Type", "application/json").want(t, http.StatusOK)
	if same.body != made.body {
		t.Errorf("written back: %s", same.body)
	}
	changed := s.do("PUT", "/v1/targets/hook", `{"config":{"url":"u2"},"status":{"x":1},"revision":"nonsense"}`, "If-Match", got.header.Get("ETag")).want(t, http.StatusOK)
	if e := into[document](t, changed); e.Revision <= d.Revision || e.Kind != "Target" || e.Name != "hook" || !e.CreatedAt.Equal(d.CreatedAt) {
		t.Errorf("changed to %s", changed.body)
	}
	s.do("GET", "/v1/targets/hook", "", "If-None-Match", changed.header.Get("ETag")).want(t, http.StatusNotModified)
	s.do("GET", "/v1/targets/hook", "", "If-None-Match", "W/"+changed.header.Get("ETag")).want(t, http.StatusNotModified)
	s.do("GET", "/v1/targets/hook", "", "If-None-Match", got.header.Get("ETag")).want(t, http.StatusOK)
	if a := s.do("HEAD", "/v1/targets/hook", "").want(t, http.StatusOK); a.body != "" || a.header.Get("ETag") != changed.header.Get("ETag") {
		t.Errorf("HEAD = %q, %v", a.body, a.header)
	}
	s.do("DELETE", "/v1/targets/hook", "").want(t, http.StatusNoContent)
	wantProblem(t, s.do("GET", "/v1/targets/hook", ""), 404, "not-found")
	wantProblem(t, s.do("DELETE", "/v1/targets/hook", ""), 404, "not-found")
}

func TestPreconditions(t *testing.T) {
	s := start(t)
	wantProblem(t, s.do("PUT", "/v1/targets/hook", target, "If-Match", `"1"`), 412, "precondition-failed")
	wantProblem(t, s.do("PUT", "/v1/targets/hook", target, "If-Match", `*`), 412, "precondition-failed")
	etag := s.do("PUT", "/v1/targets/hook", target, "If-None-Match", "*").want(t, http.StatusCreated).header.Get("ETag")
	wantProblem(t, s.do("PUT", "/v1/targets/hook", target, "If-None-Match", "*"), 412, "precondition-failed")
	wantProblem(t, s.do("PUT", "/v1/targets/hook", target, "If-Match", `"99999"`), 412, "precondition-failed")
	wantProblem(t, s.do("PUT", "/v1/targets/hook", target, "If-Match", "W/"+etag), 412, "precondition-failed")
	wantProblem(t, s.do("PUT", "/v1/targets/hook", target, "If-Match", strings.Trim(etag, `"`)), 412, "precondition-failed")
	s.do("PUT", "/v1/targets/hook", target, "If-Match", `"7", `+etag).want(t, http.StatusOK)
	s.do("PUT", "/v1/targets/hook", target, "If-Match", "*").want(t, http.StatusOK)
	wantProblem(t, s.do("DELETE", "/v1/targets/hook", "", "If-Match", `"99999"`), 412, "precondition-failed")
	s.do("DELETE", "/v1/targets/hook", "", "If-Match", etag).want(t, http.StatusNoContent)
}

func TestReferences(t *testing.T) {
	s := start(t)
	wantProblem(t, s.do("PUT", "/v1/buses/default/rules/too-warm", rule), 400, "invalid", "/targets/0/target")
	s.do("PUT", "/v1/targets/hook", target).want(t, http.StatusCreated)
	a := s.do("PUT", "/v1/buses/default/rules/too-warm", rule).want(t, http.StatusCreated)
	if a.header.Get("Location") != "/v1/buses/default/rules/too-warm" {
		t.Errorf("Location = %q", a.header.Get("Location"))
	}
	wantProblem(t, s.do("PUT", "/v1/buses/none/rules/too-warm", strings.ReplaceAll(rule, `"default"`, `"none"`)), 404, "not-found")
	wantProblem(t, s.do("GET", "/v1/buses/none/rules", ""), 404, "not-found")

	p := wantProblem(t, s.do("DELETE", "/v1/targets/hook", ""), 409, "conflict")
	if !strings.Contains(p.Detail, "rule default/too-warm") {
		t.Errorf("detail %q does not name the user", p.Detail)
	}
	wantProblem(t, s.do("DELETE", "/v1/targets/hook?dryRun=true", ""), 409, "conflict")
	wantProblem(t, s.do("DELETE", "/v1/buses/default", ""), 409, "conflict")
	wantProblem(t, s.do("DELETE", "/v1/buses/devices", ""), 409, "conflict")

	s.do("PUT", "/v1/buses/b2", `{}`).want(t, http.StatusCreated)
	s.do("PUT", "/v1/buses/b2/rules/r", `{"pattern":{"type":["t"]},"targets":[{"target":"hook"}]}`).want(t, http.StatusCreated)
	if p := wantProblem(t, s.do("DELETE", "/v1/buses/b2", ""), 409, "conflict"); !strings.Contains(p.Detail, "rule b2/r") {
		t.Errorf("detail %q does not name the user", p.Detail)
	}
	for _, path := range []string{"/v1/buses/b2/rules/r", "/v1/buses/b2", "/v1/buses/default/rules/too-warm", "/v1/targets/hook"} {
		s.do("DELETE", path, "").want(t, http.StatusNoContent)
	}
}

func TestManyUsersAreNotAllNamed(t *testing.T) {
	s := start(t)
	s.do("PUT", "/v1/targets/hook", target).want(t, http.StatusCreated)
	for i := range 30 {
		s.put(store.Key{Kind: "Rule", Scope: "default", Name: fmt.Sprintf("r%02d", i)}, strings.ReplaceAll(rule, "too-warm", fmt.Sprintf("r%02d", i)))
	}
	p := wantProblem(t, s.do("DELETE", "/v1/targets/hook", ""), 409, "conflict")
	if !strings.Contains(p.Detail, "rule default/r09 and others") || strings.Contains(p.Detail, "r10") {
		t.Errorf("detail = %q", p.Detail)
	}
}

func TestDryRun(t *testing.T) {
	s := start(t)
	a := s.do("PUT", "/v1/targets/hook?dryRun=true", target).want(t, http.StatusCreated)
	if d := into[document](t, a); d.Name != "hook" || d.Revision != 0 || a.header.Get("ETag") != "" || a.header.Get("Location") != "" {
		t.Errorf("dry run answered %s, %v", a.body, a.header)
	}
	wantProblem(t, s.do("GET", "/v1/targets/hook", ""), 404, "not-found")
	wantProblem(t, s.do("PUT", "/v1/targets/hook?dryRun=true", `{}`), 400, "invalid", "/config/url")
	made := s.do("PUT", "/v1/targets/hook?dryRun=false", target).want(t, http.StatusCreated)
	if a := s.do("PUT", "/v1/targets/hook?dryRun=true", target).want(t, http.StatusOK); a.body != made.body {
		t.Errorf("dry run of no change = %s", a.body)
	}
	if a := s.do("PUT", "/v1/targets/hook?dryRun=true", `{"config":{"url":"new"}}`).want(t, http.StatusOK); !strings.Contains(a.body, `"new"`) {
		t.Errorf("dry run of a change = %s", a.body)
	}
	wantProblem(t, s.do("PUT", "/v1/targets/hook?dryRun=true", target, "If-None-Match", "*"), 412, "precondition-failed")
	s.do("DELETE", "/v1/targets/hook?dryRun=true", "").want(t, http.StatusNoContent)
	if a := s.do("GET", "/v1/targets/hook", "").want(t, http.StatusOK); a.body != made.body {
		t.Errorf("after dry runs: %s", a.body)
	}
}

func TestDefinitionsRefuse(t *testing.T) {
	s := start(t)
	s.do("PUT", "/v1/targets/hook", target).want(t, http.StatusCreated)
	json, form := []string{"Content-Type", "application/json"}, []string{"Content-Type", "application/x-www-form-urlencoded"}
	for _, c := range []struct {
		name     string
		req      request
		status   int
		slug     string
		pointers []string
	}{
		{"kind", request{"PUT", "/v1/targets/x", `{"kind":"Rule","config":{"url":"u"}}`, json}, 400, "invalid", []string{"/kind"}},
		{"name", request{"PUT", "/v1/targets/x", `{"name":"y","config":{"url":"u"}}`, json}, 400, "invalid", []string{"/name"}},
		{"name and kind", request{"PUT", "/v1/targets/x", `{"kind":1,"name":[]}`, json}, 400, "invalid", []string{"/kind", "/name"}},
		{"bus", request{"PUT", "/v1/buses/default/rules/x", `{"bus":"devices"}`, json}, 400, "invalid", []string{"/bus"}},
		{"bad name", request{"PUT", "/v1/targets/X", `{}`, json}, 400, "invalid", []string{"/name"}},
		{"bad encoded name", request{"PUT", "/v1/targets/a%2Fb", `{}`, json}, 400, "invalid", []string{"/name"}},
		{"long name", request{"PUT", "/v1/targets/" + strings.Repeat("a", 64), `{}`, json}, 400, "invalid", []string{"/name"}},
		{"array", request{"PUT", "/v1/targets/x", `[]`, json}, 400, "invalid", []string{""}},
		{"null", request{"PUT", "/v1/targets/x", `null`, json}, 400, "invalid", []string{""}},
		{"not JSON", request{"PUT", "/v1/targets/x", `{"a":`, json}, 400, "invalid", []string{""}},
		{"two documents", request{"PUT", "/v1/targets/x", `{} {}`, json}, 400, "invalid", []string{""}},
		{"a bracket behind it", request{"PUT", "/v1/targets/x", `{"config":{"url":"u"}}}`, json}, 400, "invalid", []string{""}},
		{"a key and more", request{"POST", "/v1/keys", `{"kind":"Key","name":"ci","scopes":["events:read"]}]`, json}, 400, "invalid", []string{""}},
		{"member twice", request{"PUT", "/v1/targets/x", `{"config":{},"config":{}}`, json}, 400, "invalid", []string{"/config"}},
		{"labels", request{"PUT", "/v1/targets/x", `{"labels":{"a":1},"config":{"url":"u"}}`, json}, 400, "invalid", []string{"/labels"}},
		{"label with comma", request{"PUT", "/v1/targets/x", `{"labels":{"a/b,":"1"},"config":{"url":"u"}}`, json}, 400, "invalid", []string{"/labels/a~1b,"}},
		{"its own check", request{"PUT", "/v1/targets/x", `{}`, json}, 400, "invalid", []string{"/config/url"}},
		{"unknown member of a bus", request{"PUT", "/v1/buses/x", `{"retension":{}}`, json}, 400, "invalid", []string{"/retension"}},
		{"pattern of a rule", request{"PUT", "/v1/buses/default/rules/x", `{"pattern":{"type":[{"numeric":["?",1]}]},"targets":[{"target":"hook"}]}`, json}, 400, "invalid", nil},
		{"no body", request{"PUT", "/v1/targets/x", ``, json}, 400, "invalid", nil},
		{"form", request{"PUT", "/v1/targets/x", `{}`, form}, 415, "unsupported", nil},
		{"too large", request{"PUT", "/v1/targets/x", `{"a":"` + strings.Repeat("x", 256<<10) + `"}`, json}, 413, "too-large", nil},
		{"unknown parameter", request{"PUT", "/v1/targets/x?dryrun=true", target, json}, 400, "invalid", []string{"/dryrun"}},
		{"bad flag", request{"PUT", "/v1/targets/x?dryRun=perhaps", target, json}, 400, "invalid", []string{"/dryRun"}},
		{"post to a document", request{"POST", "/v1/targets/x", `{}`, json}, 405, "method-not-allowed", nil},
		{"post to a list", request{"POST", "/v1/targets", `{}`, json}, 405, "method-not-allowed", nil},
		{"unknown kind", request{"GET", "/v1/tragets", ``, nil}, 404, "not-found", nil},
		{"slash at the end", request{"GET", "/v1/targets/", ``, nil}, 404, "not-found", nil},
		{"limit 0", request{"GET", "/v1/targets?limit=0", ``, nil}, 400, "invalid", []string{"/limit"}},
		{"limit 1001", request{"GET", "/v1/targets?limit=1001", ``, nil}, 400, "invalid", []string{"/limit"}},
		{"limit ten", request{"GET", "/v1/targets?limit=ten", ``, nil}, 400, "invalid", []string{"/limit"}},
		{"cursor", request{"GET", "/v1/targets?cursor=!", ``, nil}, 400, "invalid", []string{"/cursor"}},
		{"labels filter", request{"GET", "/v1/targets?labels=team", ``, nil}, 400, "invalid", []string{"/labels"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &server{t: t, http: s.http, key: s.key}
			wantProblem(t, s.send(c.req), c.status, c.slug, c.pointers...)
			if c.req.method == "PUT" {
				s.do("GET", strings.SplitN(c.req.path, "?", 2)[0], "").want(t, http.StatusNotFound)
			}
		})
	}
	for path, allow := range map[string]string{"/v1/targets/x": "GET, HEAD, PUT, DELETE, OPTIONS", "/v1/targets": "GET, HEAD, OPTIONS",
		"/v1/keys": "GET, HEAD, POST, OPTIONS", "/v1/keys/x:rotate": "GET, HEAD, POST, PUT, DELETE, OPTIONS"} {
		if got := s.do("PATCH", path, "").header.Get("Allow"); got != allow {
			t.Errorf("Allow of %s = %q, want %q", path, got, allow)
		}
		if a := s.do("OPTIONS", path, "").want(t, http.StatusNoContent); a.header.Get("Allow") != allow {
			t.Errorf("OPTIONS %s: Allow = %q, want %q", path, a.header.Get("Allow"), allow)
		}
	}
	wantProblem(t, s.do("OPTIONS", "/v1/none", ""), 404, "not-found")
}

func TestLists(t *testing.T) {
	s := start(t)
	for i := range 5 {
		team := []string{"a", "b"}[i%2]
		s.do("PUT", fmt.Sprintf("/v1/targets/t%d", i), `{"labels":{"team":"`+team+`"},"config":{"url":"u"}}`).want(t, http.StatusCreated)
	}
	type page struct {
		Items      []document
		NextCursor string
	}
	names := func(p page) string {
		var out []string
		for _, d := range p.Items {
			out = append(out, d.Name)
		}
		return strings.Join(out, " ")
	}
	p := into[page](t, s.do("GET", "/v1/targets?limit=2", "").want(t, http.StatusOK))
	if names(p) != "t0 t1" || p.NextCursor == "" || p.Items[0].Revision == 0 {
		t.Errorf("first page = %+v", p)
	}
	p = into[page](t, s.do("GET", "/v1/targets?limit=3&cursor="+p.NextCursor, "").want(t, http.StatusOK))
	if names(p) != "t2 t3 t4" || p.NextCursor != "" {
		t.Errorf("last page = %+v", p)
	}
	p = into[page](t, s.do("GET", "/v1/targets?labels=team%3Da", "").want(t, http.StatusOK))
	if names(p) != "t0 t2 t4" {
		t.Errorf("team a = %+v", p)
	}
	if a := s.do("GET", "/v1/buses/default/rules", "").want(t, http.StatusOK); a.body != `{"items":[]}` {
		t.Errorf("empty list = %s", a.body)
	}
}

func TestRedaction(t *testing.T) {
	s := start(t)
	for _, a := range []answer{
		s.do("PUT", "/v1/devices/box?dryRun=true", `{"password":{"value":"hunter2"}}`),
		s.do("PUT", "/v1/devices/box", `{"password":{"value":"hunter2"}}`),
		s.do("GET", "/v1/devices/box", ""),
		s.do("GET", "/v1/devices", ""),
	} {
		if a.status > 201 || strings.Contains(a.body, "hunter2") || !strings.Contains(a.body, "***") {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
}

func TestStoreAway(t *testing.T) {
	s := start(t)
	s.store.Close()
	for _, r := range []request{{"GET", "/v1/targets/x", "", nil}, {"GET", "/v1/targets", "", nil}, {"PUT", "/v1/targets/x", target2, nil}, {"DELETE", "/v1/targets/x", "", nil},
		{"POST", "/v1/keys", `{"name":"k","scopes":["admin:*"]}`, nil}, {"POST", "/v1/keys/k:rotate", "", nil}} {
		a := s.send(r)
		wantProblem(t, a, 503, "unavailable")
		if a.header.Get("Retry-After") == "" {
			t.Errorf("%s %s: no Retry-After", r.method, r.path)
		}
	}
	// What is in memory goes on: keys, and events.
	s.post("default", "e").want(t, http.StatusAccepted)
}

const target2 = `{"config":{"url":"u"}}`

func TestWritersAtOnce(t *testing.T) {
	s := start(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 5 {
				a := s.do("PUT", "/v1/targets/busy", fmt.Sprintf(`{"config":{"url":"u%d-%d"}}`, i, j))
				if a.status != http.StatusOK && a.status != http.StatusCreated {
					t.Errorf("%d %s", a.status, a.body)
				}
			}
		})
	}
	wg.Wait()
}

func TestKeys(t *testing.T) {
	s := start(t)
	type key struct {
		document
		Secret, Hash string
		Scopes       []string
		ExpiresAt    time.Time
	}
	doc := `{"kind":"Key","name":"ci","labels":{"a":"b"},"scopes":["events:write:default","definitions:read"],"expiresAt":"2999-01-01T00:00:00+01:00"}`
	dry := s.do("POST", "/v1/keys?dryRun=true", doc).want(t, http.StatusCreated)
	if k := into[key](t, dry); k.Secret != "" || k.Revision != 0 {
		t.Errorf("dry run = %s", dry.body)
	}
	made := s.do("POST", "/v1/keys", doc).want(t, http.StatusCreated)
	k := into[key](t, made)
	if !strings.HasPrefix(k.Secret, "rialto_") || len(k.Secret) < 40 || k.Hash != "" || made.header.Get("Location") != "/v1/keys/ci" ||
		made.header.Get("Cache-Control") != "no-store" {
		t.Errorf("made %s, %v", made.body, made.header)
	}
	stored, err := s.store.Get(t.Context(), store.Key{Kind: "Key", Name: "ci"})
	if err != nil || strings.Contains(string(stored.Raw), k.Secret) || !strings.Contains(string(stored.Raw), api.HashKey(k.Secret)) {
		t.Errorf("stored %s, %v: want the hash and not the secret", stored.Raw, err)
	}
	for _, path := range []string{"/v1/keys/ci", "/v1/keys"} {
		if a := s.do("GET", path, "").want(t, http.StatusOK); strings.Contains(a.body, "hash") || strings.Contains(a.body, "secret") || strings.Contains(a.body, api.HashKey(k.Secret)) {
			t.Errorf("GET %s = %s", path, a.body)
		}
	}
	wantProblem(t, s.do("POST", "/v1/keys", doc), 409, "conflict")
	wantProblem(t, s.do("POST", "/v1/keys?dryRun=true", doc), 409, "conflict")

	// It is good at once, for what it says.
	ci := &server{t: t, http: s.http, key: k.Secret}
	ci.post("default", "by-ci").want(t, http.StatusAccepted)
	wantProblem(t, ci.post("devices", "by-ci"), 403, "forbidden")
	ci.do("GET", "/v1/targets", "").want(t, http.StatusOK)
	wantProblem(t, ci.do("GET", "/v1/keys", ""), 403, "forbidden")

	// A change of its rights holds at once and keeps its secret.
	s.do("PUT", "/v1/keys/ci", `{"scopes":["events:write"]}`, "If-Match", made.header.Get("ETag")).want(t, http.StatusOK)
	ci.post("devices", "by-ci").want(t, http.StatusAccepted)
	wantProblem(t, ci.do("GET", "/v1/targets", ""), 403, "forbidden")

	// So does a new secret, and its end.
	r := into[key](t, s.do("POST", "/v1/keys/ci:rotate", "").want(t, http.StatusOK))
	wantProblem(t, ci.post("default", "x"), 401, "unauthorized")
	ci.key = r.Secret
	ci.post("default", "y").want(t, http.StatusAccepted)
	s.do("DELETE", "/v1/keys/ci", "").want(t, http.StatusNoContent)
	wantProblem(t, ci.post("default", "z"), 401, "unauthorized")
	// An old state that the feed still brings does not raise it from the dead.
	if err := s.keys.Set(stored); err != nil {
		t.Fatal(err)
	}
	ci.key = k.Secret
	wantProblem(t, ci.post("default", "z"), 401, "unauthorized")

	p := wantProblem(t, s.do("PUT", "/v1/keys/new", `{"scopes":["events:write"]}`), 404, "not-found")
	if !strings.Contains(p.Detail, "POST /v1/keys") {
		t.Errorf("detail %q does not say how keys are made", p.Detail)
	}
	wantProblem(t, s.do("POST", "/v1/keys/none:rotate", ""), 404, "not-found")
	for _, c := range []struct{ doc, pointer string }{
		{`{"scopes":["events:write"]}`, "/name"},
		{`{"name":"X","scopes":["events:write"]}`, "/name"},
		{`{"name":"k"}`, "/scopes"},
		{`{"name":"k","scopes":[]}`, "/scopes"},
		{`{"name":"k","scopes":"events:write"}`, "/scopes"},
		{`{"name":"k","scopes":["events:write","event:write"]}`, "/scopes/1"},
		{`{"name":"k","scopes":["events:delete"]}`, "/scopes/0"},
		{`{"name":"k","scopes":["events"]}`, "/scopes/0"},
		{`{"name":"k","scopes":["events:write:A"]}`, "/scopes/0"},
		{`{"name":"k","scopes":["admin:*:default"]}`, "/scopes/0"},
		{`{"name":"k","scopes":["events:write"],"expiresAt":"tomorrow"}`, "/expiresAt"},
		{`{"name":"k","scopes":["events:write"],"hash":"00"}`, "/hash"},
		{`{"name":"k","scopes":["events:write"],"secret":"s"}`, "/secret"},
	} {
		wantProblem(t, s.do("POST", "/v1/keys", c.doc), 400, "invalid", c.pointer)
	}
}

func TestNewKey(t *testing.T) {
	secret, doc, err := api.NewKey("admin", "admin:*")
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(doc, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"kind": "Key", "name": "admin", "scopes": []any{"admin:*"}, "hash": api.HashKey(secret)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("document (-want +got):\n%s", diff)
	}
	if _, _, err := api.NewKey("k", "all"); fault.KindOf(err) != fault.Invalid || err == nil {
		t.Errorf("NewKey with a bad scope = %v", err)
	}
}
