// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/egress"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/webhook"
)

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// shelf is a server that keeps definitions in memory, with ETags and conditions.
type shelf struct {
	mu     sync.Mutex // guards the rest
	docs   map[string]json.RawMessage
	revs   map[string]int
	writes []string // method and path of every write, in order
	rev    int
}

func newShelf(t *testing.T) (*shelf, *httptest.Server) {
	s := &shelf{docs: map[string]json.RawMessage{}, revs: map[string]int{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return s, server
}

func (s *shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := r.URL.Path
	if r.Method != http.MethodGet {
		s.writes = append(s.writes, r.Method+" "+r.URL.String())
	}
	switch r.Method {
	case http.MethodGet:
		s.read(w, r, path)
	case http.MethodPost:
		s.store(w, r, path, true)
	case http.MethodPut:
		s.store(w, r, path, false)
	case http.MethodDelete:
		if _, ok := s.docs[path]; !ok {
			says(404, `{"detail":"there is no `+path+`"}`)(w, r)
			return
		}
		delete(s.docs, path)
		w.WriteHeader(http.StatusNoContent)
	}
}

func (s *shelf) read(w http.ResponseWriter, r *http.Request, path string) {
	if doc, ok := s.docs[path]; ok {
		w.Header().Set("ETag", fmt.Sprintf(`"%d"`, s.revs[path]))
		w.Write(s.dressed(path, doc))
		return
	}
	if !slices.Contains([]string{"/v1/buses", "/v1/targets", "/v1/devices", "/v1/keys"}, path) && filepath.Base(path) != "rules" {
		says(404, `{"detail":"there is no `+path+`"}`)(w, r)
		return
	}
	// A list, one item a page.
	var names []string
	for name := range s.docs {
		if filepath.Dir(name) == path {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	page := map[string]any{"items": []any{}}
	for i, name := range names {
		if name > r.URL.Query().Get("cursor") {
			page["items"] = []json.RawMessage{s.dressed(name, s.docs[name])}
			if i < len(names)-1 {
				page["nextCursor"] = name
			}
			break
		}
	}
	json.NewEncoder(w).Encode(page)
}

// dressed is a document with what the server adds.
func (s *shelf) dressed(path string, doc json.RawMessage) []byte {
	return fmt.Appendf(nil, `{"revision":%d,"createdAt":"2026-11-29T20:00:00Z","updatedAt":"2026-11-29T20:12:00Z",%s`, s.revs[path], doc[1:])
}

func (s *shelf) store(w http.ResponseWriter, r *http.Request, path string, post bool) {
	body, err := io.ReadAll(r.Body)
	if err != nil || !json.Valid(body) {
		says(400, `{"detail":"invalid"}`)(w, r)
		return
	}
	var doc struct {
		Name string `json:"name"`
		Bad  string `json:"bad"`
	}
	json.Unmarshal(body, &doc)
	if post {
		path += "/" + doc.Name
	}
	if base, rule := strings.CutSuffix(filepath.Dir(path), "/rules"); rule && base != "/v1/buses/default" && s.docs[base] == nil {
		says(404, `{"detail":"there is no `+base+`"}`)(w, r)
		return
	}
	_, exists := s.docs[path]
	etag := fmt.Sprintf(`"%d"`, s.revs[path])
	switch {
	case doc.Bad != "":
		says(400, `{"detail":"invalid","errors":[{"pointer":"/bad","detail":"is not known"}]}`)(w, r)
		return
	case r.Header.Get("If-None-Match") == "*" && exists, r.Header.Get("If-Match") != "" && r.Header.Get("If-Match") != etag:
		says(412, `{"detail":"has changed"}`)(w, r)
		return
	}
	if r.URL.Query().Get("dryRun") != "true" && string(s.docs[path]) != string(body) {
		s.rev++
		s.docs[path], s.revs[path] = body, s.rev
	}
	answer := s.dressed(path, body)
	if post {
		answer = fmt.Appendf(nil, `{"secret":"rk_%s",%s`, doc.Name, answer[1:])
	}
	if !exists {
		w.WriteHeader(http.StatusCreated)
	}
	w.Write(answer)
}

const bridgeYAML = `# everything of a small bridge, in the wrong order
kind: Rule
name: too-warm
bus: devices
pattern:
  type: [com.acme.telemetry]
  data: {temperature: [{numeric: [">", 8]}], door: [{anything-but: "open"}]}
targets: [{target: ops-webhook}]
---
kind: Target
name: ops-webhook
type: webhook
config: {url: "https://ops.example.com/hook"}
---
---
kind: Bus
name: devices
retention: {maxAge: 168h}
schemaPolicy: "off"
---
kind: Key
name: ci
scopes: ["events:write:default"]
`

func TestApply(t *testing.T) {
	shelf, server := newShelf(t)
	file := filepath.Join(t.TempDir(), "bridge.yaml")
	writeFile(t, file, bridgeYAML)

	got := rialto(t, server, "", "apply", "-f", file, "--dry-run")
	want := "bus/devices created (dry run)\ntarget/ops-webhook created (dry run)\nkey/ci created (dry run)\nrule/too-warm on devices created (dry run)\n"
	if got.code != exitOK || got.out != want || len(shelf.docs) != 0 {
		t.Fatalf("dry run: exit %d, %s%s, %d stored; want\n%s", got.code, got.out, got.err, len(shelf.docs), want)
	}

	got = rialto(t, server, "", "apply", "-f", file)
	want = "bus/devices created\ntarget/ops-webhook created\nkey/ci created\n  its secret, shown this once: rk_ci\nrule/too-warm on devices created\n"
	if got.code != exitOK || got.out != want {
		t.Fatalf("first: exit %d, %s%s; want\n%s", got.code, got.out, got.err, want)
	}
	if diff := cmp.Diff(`{"bus":"devices","kind":"Rule","name":"too-warm","pattern":{"data":{"door":[{"anything-but":"open"}],`+
		`"temperature":[{"numeric":["\u003e",8]}]},"type":["com.acme.telemetry"]},"targets":[{"target":"ops-webhook"}]}`,
		string(shelf.docs["/v1/buses/devices/rules/too-warm"])); diff != "" {
		t.Errorf("stored rule (-want +got)\n%s", diff)
	}

	// Only what differs is reported as written.
	got = rialto(t, server, strings.Replace(bridgeYAML, "168h", "24h", 1), "apply", "-f", "-", "-o", "jsonl")
	want = `{"kind":"Bus","name":"devices","outcome":"configured"}
{"kind":"Target","name":"ops-webhook","outcome":"unchanged"}
{"kind":"Key","name":"ci","outcome":"unchanged"}
{"kind":"Rule","bus":"devices","name":"too-warm","outcome":"unchanged"}
`
	if got.code != exitOK || got.out != want {
		t.Errorf("again: exit %d, %s%s; want\n%s", got.code, got.out, got.err, want)
	}
}

// What get prints as YAML is what apply takes, and applying it changes nothing.
func TestGetApplyRoundTrip(t *testing.T) {
	_, server := newShelf(t)
	if got := rialto(t, server, bridgeYAML, "apply", "-f", "-"); got.code != exitOK {
		t.Fatal(got.err)
	}
	for _, kind := range []string{"buses", "targets", "keys", "rules"} {
		for _, format := range []string{"yaml", "json", "jsonl"} {
			docs := rialto(t, server, "", "get", kind, "-o", format)
			if docs.code != exitOK {
				t.Fatalf("get %s: %s", kind, docs.err)
			}
			again := rialto(t, server, docs.out, "apply", "-f", "-")
			if again.code != exitOK || !strings.Contains(again.out, "unchanged") || strings.Contains(again.out, "configured") {
				t.Errorf("get %s -o %s | apply: exit %d, %s%s\n%s", kind, format, again.code, again.out, again.err, docs.out)
			}
		}
	}
	got := rialto(t, server, "", "get", "rule", "too-warm", "-o", "yaml")
	want := `kind: Rule
name: too-warm
bus: devices
pattern:
  data:
    door:
    - anything-but: open
    temperature:
    - numeric:
      - '>'
      - 8
  type:
  - com.acme.telemetry
targets:
- target: ops-webhook
`
	if diff := cmp.Diff(want, got.out); diff != "" {
		t.Errorf("yaml (-want +got)\n%s", diff)
	}
}

func TestApplyGoesOnAfterARefusal(t *testing.T) {
	_, server := newShelf(t)
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "b", "one.yaml"), "kind: Target\nname: wrong\nbad: \"yes\"\n")
	writeFile(t, filepath.Join(dir, "a.json"), `{"kind":"Target","name":"right"}`)
	writeFile(t, filepath.Join(dir, "notes.txt"), "not a definition")
	writeFile(t, filepath.Join(dir, ".hidden", "x.yaml"), "not: a definition")
	got := rialto(t, server, "", "apply", "-f", dir)
	if got.code != exitFailed || got.out != "target/right created\n" {
		t.Errorf("exit %d, stdout %q", got.code, got.out)
	}
	for _, want := range []string{"target/wrong", "one.yaml", "/bad: is not known"} {
		if !strings.Contains(got.err, want) {
			t.Errorf("stderr %q does not say %q", got.err, want)
		}
	}
}

// A dry run of a whole file does not stumble over what the file itself would make first.
func TestApplyDryRunOfReferences(t *testing.T) {
	missing := func(pointer string) http.HandlerFunc {
		return says(400, `{"detail":"invalid","errors":[{"pointer":"`+pointer+`","detail":"there is no target of this name"}]}`)
	}
	server := serve(t, map[string]http.HandlerFunc{
		"GET /":                            says(404, `{}`),
		"PUT /v1/targets/a":                says(201, `{}`),
		"PUT /v1/buses/default/rules/good": missing("/targets/0/target"),
		"PUT /v1/buses/default/rules/bad":  missing("/targets/1/target"),
		"PUT /v1/buses/none/rules/lost":    says(404, `{"detail":"no bus none"}`),
	})
	got := rialto(t, server, `
{kind: Target, name: a}
---
{kind: Rule, name: good, targets: [{target: a}]}
---
{kind: Rule, name: bad, targets: [{target: a}, {target: b}]}
---
{kind: Rule, name: lost, bus: none, targets: [{target: a}]}
`, "apply", "-f", "-", "--dry-run")
	if want := "target/a created (dry run)\nrule/good created (dry run)\n"; got.code != exitFailed || got.out != want {
		t.Errorf("exit %d, %s%s; want\n%s", got.code, got.out, got.err, want)
	}
}

// What the server doubts is said on stderr, and changes neither the outcome nor the exit code.
func TestApplyWarnings(t *testing.T) {
	const doubt = `"status":{"warnings":[{"pointer":"/pattern/type","message":"is always true\u001b[2J","fix":"[1]"}]}`
	server := serve(t, map[string]http.HandlerFunc{
		"GET /v1/buses/default/rules/old": says(200, `{"kind":"Rule","name":"old"}`),
		"GET /":                           says(404, `{}`),
		"PUT /v1/buses/default/rules/old": says(200, `{"kind":"Rule","name":"old",`+doubt+`}`),
		"PUT /v1/buses/default/rules/new": says(201, `{"kind":"Rule","name":"new",`+doubt+`}`),
	})
	docs := "{kind: Rule, name: old}\n---\n{kind: Rule, name: new}\n"
	got := rialto(t, server, docs, "apply", "-f", "-")
	if want := "rule/old unchanged\nrule/new created\n"; got.code != exitOK || got.out != want {
		t.Errorf("exit %d, %s; want\n%s", got.code, got.out, want)
	}
	if want := "warning: rule/new (stdin, document 2): /pattern/type: is always true\uFFFD[2J\n  write instead: [1]\n"; !strings.HasSuffix(got.err, want) || strings.Count(got.err, "warning: ") != 2 {
		t.Errorf("stderr %q, want at its end %q", got.err, want)
	}
	got = rialto(t, server, docs, "apply", "-f", "-", "-o", "jsonl")
	if want := `{"kind":"Rule","bus":"default","name":"new","outcome":"created","warnings":[{"pointer":"/pattern/type",`; !strings.Contains(got.out, want) {
		t.Errorf("-o jsonl: %s", got.out)
	}
}

func TestApplyReadsAllBeforeItWrites(t *testing.T) {
	for name, text := range map[string]string{
		"unknown kind": "kind: Target\nname: a\n---\nkind: Gizmo\nname: b\n",
		"no name":      "kind: Target\nname: a\n---\nkind: Target\n",
		"bad name":     "kind: Target\nname: a\n---\nkind: Target\nname: Under_score\n",
		"key twice":    "kind: Target\nname: a\n---\nkind: Target\nname: b\nname: c\n",
		"not YAML":     "kind: Target\nname: a\n---\nkind: [\n",
		"not JSON":     `{"kind":"Target","name":"a"}{"kind":`,
		"a number":     "kind: Target\nname: a\n---\n17\n",
	} {
		shelf, server := newShelf(t)
		got := rialto(t, server, text, "apply", "-f", "-")
		if got.code != exitFailed || len(shelf.writes) != 0 || !strings.Contains(got.err, "stdin") {
			t.Errorf("%s: exit %d, %d writes, stderr %q", name, got.code, len(shelf.writes), got.err)
		}
	}
	if got := rialto(t, nil, "# nothing\n---\n", "apply", "-f", "-"); got.code != exitUsage {
		t.Errorf("an empty file: exit %d, stderr %q", got.code, got.err)
	}
}

func TestApplyNoticesAChangeMeanwhile(t *testing.T) {
	s := serve(t, map[string]http.HandlerFunc{
		"GET /v1/targets/a": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", `"7"`)
			says(200, `{"kind":"Target","name":"a","revision":7}`)(w, r)
		},
		"PUT /v1/targets/a": func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("If-Match") != `"7"` {
				t.Errorf("If-Match is %q", r.Header.Get("If-Match"))
			}
			says(412, `{"detail":"the target has changed"}`)(w, r)
		},
	})
	got := rialto(t, s, "kind: Target\nname: a\ntype: webhook\n", "apply", "-f", "-")
	if got.code != exitConflict || got.out != "" {
		t.Errorf("exit %d, stdout %q, stderr %q; want exit 5", got.code, got.out, got.err)
	}
}

// Of sources the table says where they stand: what they do, how fast, and what waits for them.
func TestGetSources(t *testing.T) {
	s := serve(t, map[string]http.HandlerFunc{"GET /v1/sources": says(200, `{"items":[
		{"kind":"Source","name":"github","type":"webhook","status":{"state":"running","hook":"/hooks/github","rate":2.5,"stored":150}},
		{"kind":"Source","name":"plant","type":"mqtt-client","bus":"devices","status":{"state":"failing","rate":0,"lag":1500000,"lastError":{"message":"no route"}}}]}`)})
	got := rialto(t, s, "", "get", "sources")
	want := `NAME    TYPE         BUS      STATE    RATE/S  LAG      LAST EVENT  CHANGED
github  webhook      default  running  2.5     -        -           -
plant   mqtt-client  devices  failing  0       1500000  -           -
`
	if diff := cmp.Diff(want, got.out); diff != "" {
		t.Errorf("get sources (-want +got)\n%s", diff)
	}
}

func TestGet(t *testing.T) {
	_, server := newShelf(t)
	more := bridgeYAML + "---\nkind: Bus\nname: default\n---\nkind: Rule\nname: all\npattern: {source: [{exists: true}]}\n" +
		"targets: [{target: ops-webhook}, {target: pager}]\ndisabled: true\n"
	if got := rialto(t, server, more, "apply", "-f", "-"); got.code != exitOK {
		t.Fatal(got.err)
	}
	got := rialto(t, server, "", "get", "rules")
	want := `BUS      NAME      STATE     CHANGED  TARGETS
default  all       disabled  3m ago   ops-webhook, pager
devices  too-warm  active    3m ago   ops-webhook
`
	if diff := cmp.Diff(want, got.out); diff != "" {
		t.Errorf("get rules (-want +got)\n%s", diff)
	}
	got = rialto(t, server, "", "get", "rules", "--bus", "default", "-o", "json")
	var list []map[string]any
	if err := json.Unmarshal([]byte(got.out), &list); err != nil || len(list) != 1 || list[0]["name"] != "all" || list[0]["revision"] == nil {
		t.Errorf("get rules --bus default -o json: %s %v", got.out, err)
	}
	got = rialto(t, server, "", "get", "devices", "-o", "json")
	if got.out != "[]\n" {
		t.Errorf("get devices -o json = %q, want an empty list", got.out)
	}
	if got = rialto(t, server, "", "get", "rule", "none-such"); got.code != exitNotFound {
		t.Errorf("get rule none-such: exit %d", got.code)
	}
}

func TestDelete(t *testing.T) {
	shelf, server := newShelf(t)
	if got := rialto(t, server, bridgeYAML, "apply", "-f", "-"); got.code != exitOK {
		t.Fatal(got.err)
	}
	shelf.writes = nil
	if got := rialto(t, server, "", "delete", "rule", "too-warm"); got.code != exitOK || got.out != "rule/too-warm on devices deleted\n" {
		t.Errorf("exit %d, %s%s", got.code, got.out, got.err)
	}
	got := rialto(t, server, bridgeYAML, "delete", "-f", "-", "--ignore-not-found")
	want := "rule/too-warm on devices not there\nkey/ci deleted\ntarget/ops-webhook deleted\nbus/devices deleted\n"
	if got.code != exitOK || got.out != want {
		t.Errorf("exit %d, %s%s; want\n%s", got.code, got.out, got.err, want)
	}
	if got := rialto(t, server, "", "delete", "target", "ops-webhook"); got.code != exitNotFound {
		t.Errorf("a second time: exit %d, %s", got.code, got.err)
	}
}

func FuzzDocuments(f *testing.F) {
	f.Add([]byte(bridgeYAML))
	f.Add([]byte(`[{"kind":"Bus","name":"a"}] {"kind":"Rule","name":"b","bus":"c"}`))
	f.Add([]byte("--- {kind: Bus, name: x}\n...\n--- 7\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		docs, err := parseDocuments("fuzz", text)
		if err != nil {
			return
		}
		for _, doc := range docs {
			// What was read can be printed, and reads back as the same document.
			bare, err := own(doc.kind, doc.raw)
			if err != nil {
				t.Fatalf("own(%s): %v", doc.raw, err)
			}
			if again, err := parseDocument(bare); err != nil || again.resource != doc.resource {
				t.Fatalf("%s reads back as %v, %v; want %v", bare, again.resource, err, doc.resource)
			}
		}
	})
}

// The examples of the documentation are definitions that a server takes.
func TestExamples(t *testing.T) {
	c := &cli{}
	docs, err := c.readDocuments([]string{filepath.Join("..", "..", "docs", "examples")})
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range docs {
		switch doc.kind.name {
		case "Rule":
			_, err = rules.ParseRule(doc.raw)
		case "Target":
			_, err = targets.ParseDefinition(doc.raw, targets.NewCatalog(webhook.Kind(egress.New(egress.Options{}).CheckURL)))
		}
		if err != nil {
			t.Errorf("%s: %v", doc.from, err)
		}
	}
}
