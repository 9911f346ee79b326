// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
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
	"time"

	"github.com/google/go-cmp/cmp"
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
	if path == "/v1/definitions:apply" {
		s.apply(w, r)
		return
	}
	if r.Method != http.MethodGet {
		s.writes = append(s.writes, r.Method+" "+r.URL.String())
	}
	switch r.Method {
	case http.MethodGet:
		s.read(w, r, path)
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

// apply takes a change set: all of it, unless a document has a member "bad".
func (s *shelf) apply(w http.ResponseWriter, r *http.Request) {
	var set struct {
		Documents []json.RawMessage
		Prune     *struct {
			Labels string
			Kinds  []string
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&set); err != nil {
		says(400, `{"detail":"invalid"}`)(w, r)
		return
	}
	dryRun := r.URL.Query().Get("dryRun") == "true"
	results := []map[string]any{}
	var bad []string
	for i, raw := range set.Documents {
		var doc struct{ Kind, Name, Bus, Bad string }
		if err := json.Unmarshal(raw, &doc); err != nil || doc.Bad != "" {
			bad = append(bad, fmt.Sprintf(`{"pointer":"/documents/%d/bad","detail":"is not known"}`, i))
			continue
		}
		k, err := kindNamed(doc.Kind)
		if err != nil {
			bad = append(bad, fmt.Sprintf(`{"pointer":"/documents/%d/kind","detail":"is not known"}`, i))
			continue
		}
		if k.inBus && doc.Bus == "" {
			doc.Bus = defaultBus
		}
		if !k.inBus {
			doc.Bus = ""
		}
		path := resource{kind: k, bus: doc.Bus, name: doc.Name}.path()
		raw, _ = own(k, raw)
		old, there := s.docs[path]
		result := map[string]any{"kind": doc.Kind, "bus": doc.Bus, "name": doc.Name, "outcome": "created", "after": raw}
		if there {
			result["outcome"], result["before"] = "configured", old
		}
		if there && alike(old, raw) {
			result["outcome"] = "unchanged"
		}
		if !there && doc.Kind == "Key" && !dryRun {
			result["secret"] = "rk_" + doc.Name
		}
		if r.URL.Query().Get("show") != "true" {
			delete(result, "before")
			delete(result, "after")
		}
		results = append(results, result)
		if !dryRun && result["outcome"] != "unchanged" {
			defer func() {
				if bad == nil {
					s.rev++
					s.docs[path], s.revs[path] = raw, s.rev
					s.writes = append(s.writes, path)
				}
			}()
		}
	}
	if set.Prune != nil {
		results = append(results, map[string]any{"kind": "Target", "name": "pruned-" + strings.Join(set.Prune.Kinds, "-") + set.Prune.Labels, "outcome": "pruned",
			"before": json.RawMessage(`{"kind":"Target","name":"gone"}`)})
	}
	if bad != nil {
		says(400, `{"detail":"invalid","errors":[`+strings.Join(bad, ",")+`]}`)(w, r)
		return
	}
	json.NewEncoder(w).Encode(map[string]any{"results": results})
}

func alike(a, b json.RawMessage) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && cmp.Equal(x, y)
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
	if diff := cmp.Diff(`{"kind":"Rule","name":"too-warm","bus":"devices","pattern":{"data":{"door":[{"anything-but":"open"}],`+
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

// What the server refuses is told with file, line and document, and nothing is written.
func TestApplyIsToldWhere(t *testing.T) {
	shelf, server := newShelf(t)
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "b", "one.yaml"), "kind: Bus\nname: fine\n---\nkind: Target\nname: wrong\nbad: \"yes\"\n")
	writeFile(t, filepath.Join(dir, "a.json"), `{"kind":"Target","name":"right"}`)
	writeFile(t, filepath.Join(dir, "c.json"), "{\"kind\":\"Rule\",\n\"name\":\"r\",\n\"bad\":\"yes\"}")
	got := rialto(t, server, "", "apply", "-f", dir)
	if got.code != exitFailed || got.out != "" || len(shelf.docs) != 0 {
		t.Errorf("exit %d, stdout %q, %d stored", got.code, got.out, len(shelf.docs))
	}
	for _, want := range []string{"nothing was written", filepath.Join(dir, "b", "one.yaml") + ":6 (document 2): /bad: is not known\n", filepath.Join(dir, "c.json") + ":3: /bad: is not known\n"} {
		if !strings.Contains(got.err, want) {
			t.Errorf("stderr %q does not say %q", got.err, want)
		}
	}
}

func TestApplyPrune(t *testing.T) {
	_, server := newShelf(t)
	for _, args := range [][]string{{"--prune"}, {"-l", "a=b"}, {"--prune-kinds", "keys"}, {"--prune", "-l", "a=b", "--prune-kinds", "gizmos"}} {
		if got := rialto(t, server, "{kind: Bus, name: a}", append([]string{"apply", "-f", "-"}, args...)...); got.code != exitUsage {
			t.Errorf("%v: exit %d, %s", args, got.code, got.err)
		}
	}
	got := rialto(t, server, "{kind: Bus, name: a}", "apply", "-f", "-", "--prune", "-l", "a=b", "--prune-kinds", "keys,Rule")
	if want := "bus/a created\ntarget/pruned-Key-Rulea=b pruned\n"; got.code != exitOK || got.out != want {
		t.Errorf("exit %d, %s%s; want %s", got.code, got.out, got.err, want)
	}
}

// What the server doubts is said on stderr, and changes neither the outcome nor the exit code.
func TestApplyWarnings(t *testing.T) {
	const doubt = `"warnings":[{"pointer":"/pattern/type","message":"is always true\u001b[2J","fix":"[1]"}]`
	server := serve(t, map[string]http.HandlerFunc{
		"POST /v1/definitions:apply": says(200, `{"results":[{"kind":"Rule","bus":"default","name":"old","outcome":"unchanged",`+doubt+`},{"kind":"Rule","bus":"default","name":"new","outcome":"created",`+doubt+`}]}`),
	})
	docs := "{kind: Rule, name: old}\n---\n{kind: Rule, name: new}\n"
	got := rialto(t, server, docs, "apply", "-f", "-")
	if want := "rule/old unchanged\nrule/new created\n"; got.code != exitOK || got.out != want {
		t.Errorf("exit %d, %s; want\n%s", got.code, got.out, want)
	}
	if want := "warning: rule/new: stdin:3 (document 2): /pattern/type: is always true\uFFFD[2J\n  write instead: [1]\n"; !strings.HasSuffix(got.err, want) || strings.Count(got.err, "warning: ") != 2 {
		t.Errorf("stderr %q, want at its end %q", got.err, want)
	}
	got = rialto(t, server, docs, "apply", "-f", "-", "-o", "jsonl")
	if want := `{"kind":"Rule","bus":"default","name":"new","outcome":"created","warnings":[{"pointer":"/pattern/type",`; !strings.Contains(got.out, want) {
		t.Errorf("-o jsonl: %s", got.out)
	}
}

func TestDiff(t *testing.T) {
	_, server := newShelf(t)
	if got := rialto(t, server, bridgeYAML, "apply", "-f", "-"); got.code != exitOK {
		t.Fatal(got.err)
	}
	if got := rialto(t, server, bridgeYAML, "diff", "-f", "-"); got.code != exitOK || got.out != "" {
		t.Errorf("of what is there: exit %d, %s%s", got.code, got.out, got.err)
	}
	got := rialto(t, server, strings.Replace(bridgeYAML, "168h", "24h", 1)+"---\nkind: Target\nname: more\n", "diff", "-f", "-", "--prune", "-l", "a=b")
	want := `--- live bus/devices
+++ new  bus/devices
@@ -1,5 +1,5 @@
 kind: Bus
 name: devices
 retention:
-  maxAge: 168h
+  maxAge: 24h
 schemaPolicy: "off"
--- /dev/null
+++ new  target/more
@@ -0,0 +1,2 @@
+kind: Target
+name: more
--- live target/pruned-a=b
+++ /dev/null
@@ -1,2 +0,0 @@
-kind: Target
-name: gone
`
	if got.code != exitFailed || got.err != "" {
		t.Errorf("exit %d, stderr %q", got.code, got.err)
	}
	if diff := cmp.Diff(want, got.out); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := rialto(t, server, "kind: Target\nname: a\nbad: x\n", "diff", "-f", "-"); got.code != exitProblems || !strings.Contains(got.err, "stdin:3: /bad") {
		t.Errorf("of what is wrong: exit %d, %s", got.code, got.err)
	}
	if got := rialto(t, server, "", "diff"); got.code != exitUsage {
		t.Errorf("without files: exit %d", got.code)
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		name, text string
		code       int
		want       []string
	}{
		{"good", bridgeYAML, exitOK, []string{"4 documents, nothing wrong"}},
		{"a schema", "kind: Schema\ngroup: acme\nname: t\nschema: {type: object}\ntypes: [com.acme.t]\n", exitOK, []string{"1 document, nothing wrong"}},
		{"private address", "kind: Target\nname: t\ntype: webhook\nconfig: {url: \"http://10.0.0.7/x\"}\n", exitOK, nil},
		{"outside", "kind: Rule\nname: r\nbus: far\npattern: {type: [a]}\ntargets:\n  - target: there\n", exitOK,
			[]string{"warning: stdin:3: /bus: there is no bus of this name in the set", "warning: stdin:6: /targets/0/target: there is no target of this name in the set"}},
		{"two mistakes", "kind: Rule\nname: r\npattern:\n  type: [{prefx: a}]\ntargets: [{target: t}]\n---\nkind: Target\nname: t\ntype: webhook\nconfig:\n  url: nonsense\n", exitProblems,
			[]string{"stdin:4 (document 1): /pattern/type/0", "stdin:11 (document 2): /config/url", "2 mistakes of 2 documents"}},
		{"template", "kind: Target\nname: t\ntype: webhook\nconfig: {url: \"https://example.com\"}\n---\nkind: Rule\nname: r\npattern: {type: [a]}\ntargets:\n- target: t\n  transform:\n    template: {a: \"${data.\"}\n", exitProblems,
			[]string{"stdin:12 (document 2): /targets/0/transform"}},
		{"schema text", "kind: Schema\ngroup: acme\nname: t\nschema:\n  type: nonsense\n", exitProblems, []string{"stdin:5: /schema/type"}},
		{"not YAML", "kind: [\n", exitProblems, []string{"stdin:1: "}},
		{"twice", "kind: Bus\nname: a\n---\nkind: Bus\nname: a\n", exitProblems, []string{"stdin:5 (document 2): /name: Bus/a is at stdin:1 (document 1) already"}},
		{"kind", "kind: Gizmo\nname: a\n", exitProblems, []string{"stdin:1: /kind: kind Gizmo: there are Bus,"}},
	} {
		got := rialto(t, nil, c.text, "validate", "-f", "-")
		if got.code != c.code {
			t.Errorf("%s: exit %d, %s%s", c.name, got.code, got.out, got.err)
		}
		for _, want := range c.want {
			if !strings.Contains(got.out+got.err, want) {
				t.Errorf("%s: %s%s does not say %q", c.name, got.out, got.err, want)
			}
		}
	}
	if got := rialto(t, nil, "", "validate", "-f", filepath.Join(t.TempDir(), "none")); got.code != exitFailed {
		t.Errorf("no such file: exit %d", got.code)
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

// The examples of the documentation are definitions that a server takes.
func TestExamples(t *testing.T) {
	for _, folder := range []string{"docs/examples"} {
		if got := rialto(t, nil, "", "validate", "-f", filepath.Join("..", "..", filepath.FromSlash(folder))); got.code != exitOK || got.err != "" {
			t.Errorf("%s: exit %d, %s%s", folder, got.code, got.out, got.err)
		}
	}
}

// A watch goes on where it was when it breaks, and begins again when the server has forgotten that.
func TestGetWatch(t *testing.T) {
	var asked []string
	var mu sync.Mutex // guards asked
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	server := serve(t, map[string]http.HandlerFunc{"GET /v1/targets": func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, r.URL.RawQuery+" "+r.Header.Get("Last-Event-ID"))
		switch len(asked) {
		case 1:
			io.WriteString(w, "retry: 1000\n\nevent: put\nid: 7\ndata: {\"kind\":\"Target\",\"name\":\"a\",\"revision\":7}\n\nevent: synced\nid: 9\ndata: {\"revision\":9}\n\n: alive\n\n")
		case 2:
			says(410, `{"detail":"not known"}`)(w, r)
		case 3:
			io.WriteString(w, "event: delete\nid: 12\ndata: {\"kind\":\"Target\",\"name\":\"b\",\"revision\":12}\n\n")
		default:
			cancel()
		}
	}})
	var out, errs bytes.Buffer
	code := run(ctx, &cli{in: strings.NewReader(""), out: &out, err: &errs, http: server.Client(), now: time.Now, getenv: func(string) string { return "" }},
		[]string{"get", "targets", "--watch", "-l", "a=b", "--url", server.URL})
	if code != exitOK || out.String() != "put     target/a  revision 7\ndelete  target/b  revision 12\n" {
		t.Errorf("exit %d, %s%s", code, out.String(), errs.String())
	}
	want := []string{"labels=a%3Db&watch=true ", "labels=a%3Db&watch=true 9", "labels=a%3Db&watch=true ", "labels=a%3Db&watch=true 12"}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("asked (-want +got)\n%s", diff)
	}
	for _, args := range [][]string{{"get", "rules", "--watch"}, {"get", "targets", "a", "--watch"}} {
		if got := rialto(t, server, "", args...); got.code != exitUsage {
			t.Errorf("%v: exit %d, %s", args, got.code, got.err)
		}
	}
}
