// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/internal/store/memory"
	"github.com/rialto-bridge/rialto/web/api"
)

// applied is the answer to a change set.
type applied struct {
	DryRun  bool
	Results []api.Changed
}

// outcomes is one line for each definition.
func (a applied) outcomes() string {
	var out []string
	for _, r := range a.Results {
		scope := r.Bus + r.Group
		if scope != "" {
			scope += "/"
		}
		out = append(out, strings.ToLower(r.Kind)+" "+scope+r.Name+" "+r.Outcome)
	}
	return strings.Join(out, "\n")
}

// set is a change set of documents, with more members.
func set(more string, docs ...string) string {
	return `{"documents":[` + strings.Join(docs, ",") + `]` + more + `}`
}

func (s *server) apply(query, body string) applied {
	s.t.Helper()
	return into[applied](s.t, s.do("POST", "/v1/definitions:apply"+query, body).want(s.t, http.StatusOK))
}

// everything is what is stored of all kinds, with revisions.
func (s *server) everything() string {
	s.t.Helper()
	var b strings.Builder
	for _, kind := range []string{"Bus", "Target", "Rule", "Source", "Device", "Key"} {
		p, err := s.store.List(s.t.Context(), store.Query{Kind: kind, AllScopes: true, Limit: 1000})
		if err != nil {
			s.t.Fatal(err)
		}
		for _, d := range p.Items {
			fmt.Fprintf(&b, "%s %d %s\n", d.Key, d.Revision, d.Raw)
		}
	}
	return b.String()
}

const (
	warmBus  = `{"kind":"Bus","name":"warm"}`
	warmRule = `{"kind":"Rule","name":"too-warm","bus":"warm","labels":{"team":"cold"},"pattern":{"type":["t"]},"targets":[{"target":"hook"}]}`
)

// What the documents of a set name counts, and a dry run says so.
func TestApplyTooManyNamed(t *testing.T) {
	s := start(t)
	const rules, each = 100, 10
	var docs []string
	for i := range rules {
		var named []string
		for j := range each {
			name := fmt.Sprintf("t%d", i*each+j)
			s.put(store.Key{Kind: "Target", Name: name}, `{"kind":"Target","name":"`+name+`"}`)
			named = append(named, `{"target":"`+name+`"}`)
		}
		docs = append(docs, fmt.Sprintf(`{"kind":"Rule","name":"r%d","pattern":{"type":["t"]},"targets":[%s]}`, i, strings.Join(named, ",")))
	}
	for _, query := range []string{"?dryRun=true", ""} {
		p := wantProblem(t, s.do("POST", "/v1/definitions:apply"+query, set("", docs...)), 413, "too-large")
		if want := "at most 1000 definitions, and not 1101: 100 that it writes or prunes, and 1001 that these name"; !strings.Contains(p.Detail, want) {
			t.Errorf("%q: %s, want %q", query, p.Detail, want)
		}
	}
}

func TestApplyStory(t *testing.T) {
	s := start(t)
	// A rule comes before the bus and the target that it names, and all are new.
	first := set("", warmRule, target, warmBus)
	if a := s.apply("?dryRun=true", first); !a.DryRun || a.outcomes() != "rule warm/too-warm created\ntarget hook created\nbus warm created" || a.Results[0].Revision != 0 {
		t.Errorf("dry run: %+v", a)
	}
	wantProblem(t, s.do("GET", "/v1/buses/warm", ""), 404, "not-found")
	a := s.apply("", first)
	if a.outcomes() != "rule warm/too-warm created\ntarget hook created\nbus warm created" {
		t.Errorf("first: %s", a.outcomes())
	}
	if a.Results[0].Revision < a.Results[1].Revision || a.Results[0].Revision < a.Results[2].Revision {
		t.Errorf("a rule was written before what it names: %+v", a.Results)
	}
	was := s.everything()
	again := s.apply("", first)
	if want := "rule warm/too-warm unchanged\ntarget hook unchanged\nbus warm unchanged"; again.outcomes() != want || s.everything() != was {
		t.Errorf("again: %s\n%s", again.outcomes(), s.everything())
	}
	// The order of members does not matter, nor do those that the server owns.
	same := `{"config":{"url":"https://example.com/<x>&y"},"type":"webhook","revision":7,"status":{},"name":"hook","kind":"Target"}`
	changed := strings.Replace(warmRule, `"t"`, `"u"`, 1)
	b := s.apply("", set("", same, changed))
	if want := "target hook unchanged\nrule warm/too-warm configured"; b.outcomes() != want {
		t.Errorf("a change: %s", b.outcomes())
	}
	if r := b.Results[1]; r.OldRevision != a.Results[0].Revision || r.Revision <= r.OldRevision {
		t.Errorf("revisions of a change: %+v after %+v", r, a.Results[0])
	}
	got := into[document](t, s.do("GET", "/v1/buses/warm/rules/too-warm", "").want(t, http.StatusOK))
	if got.Revision != b.Results[1].Revision {
		t.Errorf("stored at %d, answered %d", got.Revision, b.Results[1].Revision)
	}
	// One request is one change in the audit.
	page := into[struct {
		Items []struct{ Name, RequestID, By string }
	}](t, s.do("GET", "/v1/audit?limit=4", "").want(t, 200))
	ids := map[string][]string{}
	for _, e := range page.Items {
		ids[e.RequestID] = append(ids[e.RequestID], e.By+" "+e.Name)
	}
	if len(page.Items) != 4 || len(ids) != 2 {
		t.Errorf("audit %+v", page.Items)
	}
}

// One that is wrong among fifty, wherever and in whatever way, leaves everything as it was, and all complaints are told.
func TestApplyIsAtomic(t *testing.T) {
	s := start(t)
	s.do("PUT", "/v1/targets/hook", target).want(t, http.StatusCreated)
	was := s.everything()
	for _, c := range []struct{ name, doc, pointer, detail string }{
		{"its own check", `{"kind":"Target","name":"bad"}`, "/documents/%d/config/url", "missing"},
		{"pattern", `{"kind":"Rule","name":"bad","pattern":{},"targets":[{"target":"hook"}]}`, "/documents/%d/pattern", "exists"},
		{"no such target", `{"kind":"Rule","name":"bad","pattern":{"type":["t"]},"targets":[{"target":"hook"},{"target":"none"}]}`, "/documents/%d/targets/1/target", "there is no target"},
		{"no such bus", strings.Replace(warmRule, "too-warm", "bad", 1), "/documents/%d/bus", "there is no bus"},
		{"kind", `{"kind":"Gizmo","name":"bad"}`, "/documents/%d/kind", "there are Bus, Target"},
		{"no kind", `{"name":"bad"}`, "/documents/%d/kind", "Bus, Target"},
		{"no name", `{"kind":"Bus"}`, "/documents/%d/name", "missing"},
		{"bad name", `{"kind":"Bus","name":"B"}`, "/documents/%d/name", "must"},
		{"twice", `{"kind":"Target","name":"t7","config":{"url":"u"}}`, "/documents/%d/name", "document 7 of the set"},
		{"member twice", `{"kind":"Target","name":"bad","name":"worse"}`, "/documents/%d/name", "twice"},
		{"labels", `{"kind":"Target","name":"bad","labels":{"a":1},"config":{"url":"u"}}`, "/documents/%d/labels", "strings"},
		{"no object", `17`, "/documents/%d", "object"},
		{"key", `{"kind":"Key","name":"bad","scopes":["x"]}`, "/documents/%d/scopes/0", "area"},
		{"schema", `{"kind":"Schema","group":"g","name":"s","schema":{"type":"nonsense"}}`, "/documents/%d/schema/type", ""},
		{"schema's name", `{"kind":"Schema","group":"G","name":"s"}`, "/documents/%d/group", "letters"},
		{"schema's types", `{"kind":"Schema","group":"g","name":"s","types":[""]}`, "/documents/%d/types", "list"},
	} {
		for _, at := range []int{8, 49} {
			var docs []string
			for i := range 49 {
				docs = append(docs, fmt.Sprintf(`{"kind":"Target","name":"t%d","config":{"url":"u"}}`, i))
			}
			docs = slices.Insert(docs, at, c.doc)
			p := wantProblem(t, s.do("POST", "/v1/definitions:apply", set("", docs...)), 400, "invalid")
			pointer := fmt.Sprintf(c.pointer, at)
			if len(p.Errors) != 1 || !strings.HasPrefix(p.Errors[0].Pointer, pointer) || !strings.Contains(p.Errors[0].Detail, c.detail) {
				t.Errorf("%s at %d: %+v, want %s: %s", c.name, at, p.Errors, pointer, c.detail)
			}
			if now := s.everything(); now != was {
				t.Fatalf("%s: something was stored:\n%s", c.name, cmp.Diff(was, now))
			}
		}
	}
	// What is wrong with several is told at once, in the order of the documents.
	p := wantProblem(t, s.do("POST", "/v1/definitions:apply", set("", `{"kind":"Rule","name":"a","pattern":{"type":["t"]},"targets":[{"target":"none"}]}`,
		`{"kind":"Bus","name":"a","retention":{"maxAge":"x"},"dedupWindow":"y"}`, `{"kind":"Nothing"}`)), 400, "invalid")
	var pointers []string
	for _, e := range p.Errors {
		pointers = append(pointers, e.Pointer)
	}
	want := []string{"/documents/0/targets/0/target", "/documents/1/retention/maxAge", "/documents/1/dedupWindow", "/documents/2/kind"}
	if !slices.Equal(slices.Sorted(slices.Values(pointers)), slices.Sorted(slices.Values(want))) {
		t.Errorf("pointers %v, want %v", pointers, want)
	}
}

func TestApplyRefuses(t *testing.T) {
	s := start(t)
	var many []string
	for i := range 501 {
		many = append(many, fmt.Sprintf(`{"kind":"Target","name":"t%d","config":{"url":"u"}}`, i))
	}
	for _, c := range []struct {
		name, body string
		status     int
		slug       string
		pointers   []string
	}{
		{"no documents", `{}`, 400, "invalid", []string{"/documents"}},
		{"empty", `{"documents":[]}`, 400, "invalid", []string{"/documents"}},
		{"not a list", `{"documents":{}}`, 400, "invalid", []string{"/documents"}},
		{"unknown member", `{"documents":[` + target + `],"dryRun":true}`, 400, "invalid", []string{"/dryRun"}},
		{"no selector", set(`,"prune":{}`, target), 400, "invalid", []string{"/prune/labels"}},
		{"empty selector", set(`,"prune":{"labels":""}`, target), 400, "invalid", []string{"/prune/labels"}},
		{"half a selector", set(`,"prune":{"labels":"team"}`, target), 400, "invalid", []string{"/prune/labels"}},
		{"kinds", set(`,"prune":{"labels":"a=b","kinds":["Bus","Schema","Gizmo"]}`, target), 400, "invalid", []string{"/prune/kinds/1", "/prune/kinds/2"}},
		{"prune", set(`,"prune":{"label":"a=b"}`, target), 400, "invalid", []string{"/prune/label"}},
		{"too many", set("", many...), 413, "too-large", nil},
		{"too large", set("", `{"kind":"Target","name":"t","x":"`+strings.Repeat("x", 16<<20)+`"}`), 413, "too-large", nil},
		{"a large document", set("", `{"kind":"Target","name":"t","x":"`+strings.Repeat("x", 256<<10)+`"}`), 400, "invalid", []string{"/documents/0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &server{t: t, http: s.http, key: s.key}
			wantProblem(t, s.do("POST", "/v1/definitions:apply", c.body), c.status, c.slug, c.pointers...)
		})
	}
	wantProblem(t, s.do("POST", "/v1/definitions:apply?dryrun=true", set("", target)), 400, "invalid", "/dryrun")
	wantProblem(t, s.do("POST", "/v1/definitions:apply", set("", target), "Content-Type", "text/plain"), 415, "unsupported")
	if a := s.apply("", set("", many[:500]...)); len(a.Results) != 500 {
		t.Errorf("%d results of 500 documents", len(a.Results))
	}
}

func TestPrune(t *testing.T) {
	s := start(t)
	labelled := func(kind, name, team string) string {
		return `{"kind":"` + kind + `","name":"` + name + `","labels":{"team":"` + team + `"},"config":{"url":"u"}}`
	}
	s.apply("", set("", target, labelled("Target", "mine", "a"), labelled("Target", "kept", "a"), labelled("Target", "theirs", "b"), labelled("Device", "box", "a"),
		`{"kind":"Bus","name":"default","labels":{"team":"a"}}`, `{"kind":"Bus","name":"old","labels":{"team":"a"}}`,
		`{"kind":"Key","name":"ci","labels":{"team":"a"},"scopes":["events:read"]}`,
		`{"kind":"Rule","name":"mine","bus":"old","labels":{"team":"a"},"pattern":{"type":["t"]},"targets":[{"target":"mine"}]}`))
	prune := `,"prune":{"labels":"team=a"}`
	kept := labelled("Target", "kept", "a")
	a := s.apply("?dryRun=true&show=true", set(prune, kept))
	want := "target kept unchanged\nrule old/mine pruned\nbus old pruned\ntarget mine pruned"
	if a.outcomes() != want || len(a.Results[1].Before) == 0 || a.Results[1].After != nil {
		t.Errorf("dry run: %s", a.outcomes())
	}
	s.do("GET", "/v1/targets/mine", "").want(t, http.StatusOK)

	// What is used by something that stays, stays.
	s.do("PUT", "/v1/buses/default/rules/other", `{"pattern":{"type":["t"]},"targets":[{"target":"mine"}]}`).want(t, http.StatusCreated)
	was := s.everything()
	p := wantProblem(t, s.do("POST", "/v1/definitions:apply", set(prune, kept)), 400, "invalid", "/prune")
	if !strings.Contains(p.Errors[0].Detail, "Target/mine is in use by Rule/default/other") || s.everything() != was {
		t.Errorf("prune of what is in use: %+v", p.Errors)
	}
	// So it is when a document of the set itself names it.
	wantProblem(t, s.do("POST", "/v1/definitions:apply", set(prune, `{"kind":"Rule","name":"other","pattern":{"type":["u"]},"targets":[{"target":"mine"}]}`)), 400, "invalid", "/documents/0/targets/0/target")

	// With the use gone in the same set, all goes.
	a = s.apply("", set(prune, kept, `{"kind":"Rule","name":"other","pattern":{"type":["t"]},"targets":[{"target":"kept"}]}`))
	if got := a.outcomes(); got != "target kept unchanged\nrule default/other configured\nrule old/mine pruned\nbus old pruned\ntarget mine pruned" {
		t.Errorf("pruned: %s", got)
	}
	for path, status := range map[string]int{"/v1/targets/mine": 404, "/v1/buses/old": 404, "/v1/targets/theirs": 200, "/v1/targets/hook": 200,
		"/v1/buses/default": 200, "/v1/devices/box": 200, "/v1/keys/ci": 200} {
		s.do("GET", path, "").want(t, status)
	}
	// Keys and devices go when they are named.
	a = s.apply("", set(`,"prune":{"labels":"team=a","kinds":["Key","Device"]}`, target))
	if got := a.outcomes(); got != "target hook unchanged\ndevice box pruned\nkey ci pruned" {
		t.Errorf("pruned by name: %s", got)
	}
}

func TestApplyRights(t *testing.T) {
	s := start(t)
	s.do("PUT", "/v1/targets/hook", target).want(t, http.StatusCreated)
	as := func(scopes ...string) *server {
		c := *s
		c.key = s.addKey("k", scopes...)
		return &c
	}
	onDefault := `{"kind":"Rule","name":"r","pattern":{"type":["t"]},"targets":[{"target":"hook"}]}`
	nobody := *s
	nobody.key = ""
	wantProblem(t, nobody.do("POST", "/v1/definitions:apply", set("", target)), 401, "unauthorized")
	for _, c := range []struct {
		scope, query, body string
		status             int
	}{
		{"definitions:read", "?dryRun=true", set("", target), 403},
		{"definitions:write", "?dryRun=true", set("", target), 200},
		{"definitions:write", "?dryRun=true&show=true", set("", target), 403},
		{"definitions:*", "?show=true", set("", target), 200},
		{"definitions:write:default", "", set("", onDefault), 200},
		{"definitions:write:devices", "", set("", onDefault), 403},
		{"definitions:write:default", "", set("", onDefault, target), 403},
		{"definitions:write", "", set("", `{"kind":"Device","name":"d"}`), 403},
		{"devices:write", "", set("", `{"kind":"Device","name":"d"}`), 200},
		{"definitions:write", "", set("", `{"kind":"Key","name":"x","scopes":["admin:*"]}`), 403},
		{"definitions:write", "", set(`,"prune":{"labels":"a=b","kinds":["Device"]}`, target), 200}, // there is none
		{"events:write", "", set("", `{"kind":"Schema","group":"g","name":"s"}`), 403},
	} {
		if a := as(c.scope).do("POST", "/v1/definitions:apply"+c.query, c.body); a.status != c.status {
			t.Errorf("%s %s %s: %d %s, want %d", c.scope, c.query, c.body, a.status, a.body, c.status)
		}
	}
	// Nothing is removed that the key could not delete.
	s.do("PUT", "/v1/devices/gone", `{"labels":{"a":"b"}}`).want(t, http.StatusCreated)
	wantProblem(t, as("definitions:write").do("POST", "/v1/definitions:apply", set(`,"prune":{"labels":"a=b","kinds":["Device"]}`, target)), 403, "forbidden")
	s.do("GET", "/v1/devices/gone", "").want(t, http.StatusOK)
}

func TestApplyKeysAndSecrets(t *testing.T) {
	s := start(t)
	key := `{"kind":"Key","name":"ci","scopes":["events:write"]}`
	if a := s.apply("?dryRun=true", set("", key)); a.outcomes() != "key ci created" || a.Results[0].Secret != "" {
		t.Errorf("dry run: %+v", a)
	}
	made := s.do("POST", "/v1/definitions:apply", set("", key)).want(t, http.StatusOK)
	a := into[applied](t, made)
	if a.outcomes() != "key ci created" || !strings.HasPrefix(a.Results[0].Secret, "rialto_") || made.header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%s, %v", made.body, made.header)
	}
	ci := *s
	ci.key = a.Results[0].Secret
	ci.post("default", "by-ci").want(t, http.StatusAccepted)
	b := s.apply("", set("", key))
	if b.outcomes() != "key ci unchanged" || b.Results[0].Secret != "" {
		t.Errorf("again: %+v", b)
	}
	s.apply("", set("", strings.Replace(key, "events:write", "events:read", 1)))
	wantProblem(t, ci.post("default", "x"), 403, "forbidden")

	// What is hidden is not shown, and that it differs is said.
	s.apply("", set("", `{"kind":"Device","name":"box","password":{"value":"hunter2"}}`))
	for doc, want := range map[string]bool{
		`{"kind":"Device","name":"box","password":{"value":"hunter2hunter2"}}`:             true,
		`{"kind":"Device","name":"box","password":{"value":"hunter2"},"labels":{"a":"b"}}`: false,
	} {
		shown := s.do("POST", "/v1/definitions:apply?dryRun=true&show=true", set("", doc)).want(t, http.StatusOK)
		c := into[applied](t, shown)
		if strings.Contains(shown.body, "hunter2") || c.Results[0].SecretsDiffer != want || c.outcomes() != "device box configured" {
			t.Errorf("%s: %s", doc, shown.body)
		}
	}
}

func TestApplySchemas(t *testing.T) {
	s := start(t)
	doc := func(text, more string) string {
		return `{"kind":"Schema","group":"acme","name":"telemetry","labels":{"a":"b"}` + more + `,"schema":` + text + `}`
	}
	v1 := `{"type":"object","properties":{"t":{"type":"number"}},"required":["t"]}`
	if a := s.apply("?dryRun=true&show=true", set("", doc(v1, ""), target)); a.outcomes() != "schema acme/telemetry created\ntarget hook created" || a.Results[0].Version != 0 {
		t.Errorf("dry run: %+v", a.Results)
	}
	s.do("GET", "/v1/schemas/acme/telemetry", "").want(t, http.StatusNotFound)
	// Nothing is registered when anything of the set is wrong.
	wantProblem(t, s.do("POST", "/v1/definitions:apply", set("", doc(v1, ""), `{"kind":"Target","name":"bad"}`)), 400, "invalid", "/documents/1/config/url")
	s.do("GET", "/v1/schemas/acme/telemetry", "").want(t, http.StatusNotFound)

	a := s.apply("", set("", doc(v1, `,"types":["com.acme.t","com.acme.u"]`)))
	if a.outcomes() != "schema acme/telemetry created" || a.Results[0].Version != 1 {
		t.Errorf("first: %+v", a.Results)
	}
	// The same content, written in another way, is the same version; types that are left out stay.
	same := `"{ \"required\": [\"t\"], \"type\": \"object\", \"properties\": {\"t\": {\"type\": \"number\"}} }"`
	if a := s.apply("?show=true", set("", doc(same, ""))); a.outcomes() != "schema acme/telemetry unchanged" || a.Results[0].Version != 1 || a.Results[0].Before != nil {
		t.Errorf("the same: %+v", a.Results)
	}
	v2 := `{"type":"object","properties":{"t":{"type":"number"},"u":{"type":"string"}},"required":["t"]}`
	if a := s.apply("?show=true", set("", doc(v2, `,"types":["com.acme.u"]`))); a.outcomes() != "schema acme/telemetry configured" || a.Results[0].Version != 2 ||
		!strings.Contains(string(a.Results[0].Before), "com.acme.t") || strings.Contains(string(a.Results[0].After), "com.acme.t\"") {
		t.Errorf("another: %+v", a.Results)
	}
	types := s.do("GET", "/v1/schemas/acme/telemetry/types", "").want(t, http.StatusOK)
	if strings.Contains(types.body, "com.acme.t\"") || !strings.Contains(types.body, "com.acme.u") {
		t.Errorf("types %s", types.body)
	}
	narrow := `{"type":"object","properties":{"t":{"type":"integer"}},"required":["t"]}`
	p := wantProblem(t, s.do("POST", "/v1/definitions:apply", set("", doc(narrow, ""))), 400, "invalid")
	if !strings.HasPrefix(p.Errors[0].Pointer, "/documents/0/schema") || !strings.Contains(p.Errors[0].Detail, "compatible") {
		t.Errorf("incompatible: %+v", p.Errors)
	}
	if a := s.apply("", set("", doc(narrow, `,"compatibility":"none"`))); a.Results[0].Version != 3 {
		t.Errorf("without compatibility: %+v", a.Results)
	}
	wantProblem(t, s.do("POST", "/v1/definitions:apply", set("", doc(`"syntax = \"proto3\";"`, `,"format":"protobuf"`))), 400, "invalid", "/documents/0/format")
}

// Sets that come at once are each there whole.
func TestApplyAtOnce(t *testing.T) {
	s := start(t)
	names := []string{"a", "b", "c", "d", "e"}
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			var docs []string
			for _, n := range names {
				docs = append(docs, fmt.Sprintf(`{"kind":"Target","name":"%s","config":{"url":"u%d"}}`, n, i))
			}
			if a := s.do("POST", "/v1/definitions:apply", set("", docs...)); a.status != http.StatusOK {
				t.Errorf("%d %s", a.status, a.body)
			}
		})
	}
	wg.Wait()
	urls := map[string]bool{}
	for _, n := range names {
		d, err := s.store.Get(t.Context(), store.Key{Kind: "Target", Name: n})
		if err != nil {
			t.Fatal(err)
		}
		var doc struct{ Config struct{ URL string } }
		if err := json.Unmarshal(d.Raw, &doc); err != nil {
			t.Fatal(err)
		}
		urls[doc.Config.URL] = true
	}
	if len(urls) != 1 {
		t.Errorf("parts of several sets: %v", urls)
	}
}

// What one set names is removed by another at the same time: whoever comes second sees it.
func TestApplyBesidePrune(t *testing.T) {
	s := memory.New(nil)
	defer s.Close()
	c := api.NewChanges(s, kinds(), nil)
	apply := func(prune *api.Prune, docs ...string) error {
		set := api.ChangeSet{Prune: prune}
		for _, d := range docs {
			set.Documents = append(set.Documents, json.RawMessage(d))
		}
		_, err := c.Apply(t.Context(), set)
		return err
	}
	labelled := strings.Replace(target, `"kind"`, `"labels":{"a":"b"},"kind"`, 1)
	for range 50 {
		if err := apply(nil, warmBus, labelled); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { _ = apply(nil, warmRule) }) // one of both may fail, or both go well one after the other
		wg.Go(func() { _ = apply(&api.Prune{Kinds: []string{"Target"}, Labels: map[string]string{"a": "b"}}, warmBus) })
		wg.Wait()
		_, noTarget := s.Get(t.Context(), store.Key{Kind: "Target", Name: "hook"})
		_, noRule := s.Get(t.Context(), store.Key{Kind: "Rule", Scope: "warm", Name: "too-warm"})
		if noTarget != nil && noRule == nil {
			t.Fatal("a rule names a target that is not there")
		}
		if noRule == nil {
			if err := s.Delete(t.Context(), store.Key{Kind: "Rule", Scope: "warm", Name: "too-warm"}, store.Condition{}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestDeclared(t *testing.T) {
	s := start(t, func(o *api.Options) {
		o.Declared = func(k store.Key) string {
			if k.Kind == "Key" || k.Kind == "Device" && k.Name != "declared" {
				return ""
			}
			return "/etc/rialto"
		}
	})
	s.put(store.Key{Kind: "Device", Name: "declared"}, `{"kind":"Device","name":"declared"}`)
	for _, r := range []request{{"PUT", "/v1/targets/hook", target, nil}, {"DELETE", "/v1/buses/devices", "", nil}, {"PUT", "/v1/devices/declared", `{}`, nil},
		{"POST", "/v1/devices/declared:block", "", nil}, {"POST", "/v1/definitions:apply", set("", target), nil}} {
		if p := wantProblem(t, s.send(r), 409, "conflict"); !strings.Contains(p.Detail, "declared by /etc/rialto") {
			t.Errorf("%s %s: %s", r.method, r.path, p.Detail)
		}
	}
	s.do("PUT", "/v1/targets/hook?dryRun=true", target).want(t, http.StatusCreated)
	s.apply("?dryRun=true", set("", target))
	s.do("PUT", "/v1/devices/other", `{}`).want(t, http.StatusCreated)
	s.do("POST", "/v1/devices/other:block", "").want(t, http.StatusOK)
	s.do("POST", "/v1/keys", `{"name":"k","scopes":["events:read"]}`).want(t, http.StatusCreated)
}

func TestCheckWithoutAServer(t *testing.T) {
	s := memory.New(nil)
	defer s.Close()
	c := api.NewChanges(s, kinds(), nil)
	wrong, doubts, err := c.Check(t.Context(), []json.RawMessage{[]byte(warmRule), []byte(warmBus)})
	if err != nil || len(wrong) != 0 || len(doubts) != 1 || doubts[0].Pointer != "/documents/0/targets/0/target" {
		t.Errorf("wrong %v, doubts %v, %v", wrong, doubts, err)
	}
	wrong, _, err = c.Check(t.Context(), []json.RawMessage{[]byte(target), []byte(`{"kind":"Target","name":"bad"}`)})
	if err != nil || len(wrong) != 1 || wrong[0].Pointer != "/documents/1/config/url" {
		t.Errorf("wrong %v, %v", wrong, err)
	}
}

func FuzzApply(f *testing.F) {
	for _, s := range []string{set("", target, warmRule), set(`,"prune":{"labels":"a=b"}`, warmBus), `{"documents":[{"kind":"Schema","group":"g","name":"n","schema":{}}]}`, `{"documents":[[],7,{"kind":null}]}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		var in struct{ Documents []json.RawMessage }
		if json.Unmarshal([]byte(body), &in) != nil {
			return
		}
		s := memory.New(nil)
		defer s.Close()
		c := api.NewChanges(s, kinds(), nil)
		done, err := c.Apply(t.Context(), api.ChangeSet{Documents: in.Documents})
		page, listErr := s.Audit(t.Context(), store.AuditQuery{Limit: 1000})
		if listErr != nil {
			t.Fatal(listErr)
		}
		if err != nil && len(page.Items) > 0 {
			t.Fatalf("refused (%v), and %d stored", err, len(page.Items))
		}
		if err != nil {
			return
		}
		if len(page.Items) != len(in.Documents) || len(done) != len(in.Documents) {
			t.Fatalf("%d documents, %d stored, %d results", len(in.Documents), len(page.Items), len(done))
		}
		again, err := c.Apply(t.Context(), api.ChangeSet{Documents: in.Documents})
		if err != nil {
			t.Fatalf("a second time: %v", err)
		}
		for _, r := range again {
			if r.Outcome != "unchanged" {
				t.Fatalf("a second time: %+v", r)
			}
		}
	})
}
