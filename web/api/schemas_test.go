// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/store/memory"
	"github.com/rialto-bridge/rialto/schema"
	"github.com/rialto-bridge/rialto/web/api"
)

const (
	orderPath  = "/v1/schemas/shop/com.example.Order"
	orderText  = `{"type":"object","properties":{"id":{"type":"string"}},"required":["id"]}`
	orderNext  = `{"type":"object","properties":{"id":{"type":"string"},"note":{"type":"string"}},"required":["id"]}`
	orderWrong = `{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}`
)

type versionAnswer struct {
	Group, Schema, State, Format, Dialect, Text, Hash, URL string
	Version, ID                                            int
	Revision                                               uint64
}

type pageAnswer[T any] struct {
	Items      []T
	NextCursor string
}

func texted(text string) string { return `{"schema":` + text + `}` }

func TestSchemaStory(t *testing.T) {
	s := start(t)
	made := s.do("POST", orderPath+"/versions", texted(orderText)).want(t, http.StatusCreated)
	v := into[versionAnswer](t, made)
	if v.Version != 1 || v.ID < 1 || v.State != "active" || v.Format != "jsonschema" || v.Dialect != "2020-12" || v.Text != orderText || v.Revision == 0 ||
		v.URL != s.http.URL+orderPath+"/versions/1" || made.header.Get("Location") != orderPath+"/versions/1" || made.header.Get("ETag") == "" {
		t.Errorf("made %s, headers %v", made.body, made.header)
	}
	// The same content is the same version, also when the text is sent as a string.
	quoted, _ := json.Marshal(" " + orderText)
	same := s.do("POST", orderPath+"/versions", texted(string(quoted))).want(t, http.StatusOK)
	if same.body != made.body {
		t.Errorf("the same content: %s", same.body)
	}
	s.do("POST", orderPath+"/versions", texted(orderNext)).want(t, http.StatusCreated)
	p := wantProblem(t, s.do("POST", orderPath+"/versions", texted(orderWrong)), 422, "incompatible", "/properties/id")
	if len(p.Incompatibilities) != 1 || p.Incompatibilities[0].Rule != "T1" || p.Incompatibilities[0].Witness == nil || p.Incompatibilities[0].Version != 2 {
		t.Errorf("incompatibilities %+v", p.Incompatibilities)
	}
	if got := s.do("GET", orderPath+"/versions/1", "").want(t, http.StatusOK); got.body != made.body {
		t.Errorf("GET = %s, made was %s", got.body, made.body)
	}
	s.do("GET", orderPath+"/versions/1", "", "If-None-Match", made.header.Get("ETag")).want(t, http.StatusNotModified)
	if raw := s.do("GET", orderPath+"/versions/latest?raw=true", "").want(t, http.StatusOK); raw.body != orderNext || raw.header.Get("Content-Type") != "application/schema+json" {
		t.Errorf("raw = %s, %v", raw.body, raw.header)
	}
	list := into[pageAnswer[versionAnswer]](t, s.do("GET", orderPath+"/versions?limit=1", "").want(t, http.StatusOK))
	if len(list.Items) != 1 || list.Items[0].Version != 1 || list.NextCursor == "" {
		t.Errorf("first page %+v", list)
	}
	rest := into[pageAnswer[versionAnswer]](t, s.do("GET", orderPath+"/versions?cursor="+list.NextCursor, "").want(t, http.StatusOK))
	if len(rest.Items) != 1 || rest.Items[0].Version != 2 || rest.NextCursor != "" {
		t.Errorf("second page %+v", rest)
	}
	verdict := into[schema.Verdict](t, s.do("POST", orderPath+":check", `{"schema":`+orderWrong+`,"version":1,"compatibility":"FORWARD"}`).want(t, http.StatusOK))
	if verdict.Outcome != schema.Incompatible || verdict.Findings[0].WriterIs != "new" || verdict.Findings[0].Version != 1 {
		t.Errorf("verdict %+v", verdict)
	}
	state := func(etag, to string) answer {
		return s.do("PUT", orderPath+"/versions/1/state", `{"state":"`+to+`"}`, "If-Match", etag)
	}
	wantProblem(t, state(`"999999"`, "deprecated"), 412, "precondition-failed")
	changed := state(made.header.Get("ETag"), "deprecated").want(t, http.StatusOK)
	if c := into[versionAnswer](t, changed); c.State != "deprecated" || c.Revision <= v.Revision {
		t.Errorf("deprecated: %s", changed.body)
	}
	wantProblem(t, state("*", "draft"), 409, "conflict")
	wantProblem(t, state("*", "gone"), 400, "invalid", "/state")
	wantProblem(t, s.do("DELETE", orderPath+"/versions/1", "", "If-Match", made.header.Get("ETag")), 412, "precondition-failed")
	s.do("DELETE", orderPath+"/versions/1", "").want(t, http.StatusNoContent)
	if d := into[versionAnswer](t, s.do("GET", orderPath+"/versions/1", "").want(t, http.StatusOK)); d.State != "deleted" {
		t.Errorf("a tombstone is %+v", d)
	}
	s.do("DELETE", orderPath, "").want(t, http.StatusNoContent)
	for _, path := range []string{orderPath, orderPath + "/versions", orderPath + "/types", orderPath + "/versions/latest"} {
		wantProblem(t, s.do("GET", path, ""), 404, "not-found")
	}
	wantProblem(t, s.do("DELETE", orderPath, ""), 404, "not-found")
}

func TestSchemaSettings(t *testing.T) {
	s := start(t)
	wantProblem(t, s.do("PUT", orderPath, `{}`, "If-Match", "*"), 412, "precondition-failed")
	made := s.do("PUT", orderPath, `{"kind":"Schema","group":"shop","name":"com.example.Order","compatibility":"full","labels":{"team":"shop"}}`, "If-None-Match", "*").want(t, http.StatusCreated)
	var doc map[string]any
	if err := json.Unmarshal([]byte(made.body), &doc); err != nil {
		t.Fatal(err)
	}
	if doc["format"] != "jsonschema" || doc["policy"] != "lenient" || doc["compatibility"] != "full" || doc["name"] != "com.example.Order" {
		t.Errorf("made %s", made.body)
	}
	// What was read can be written back, and nothing changes.
	same := s.do("PUT", orderPath, made.body, "If-Match", made.header.Get("ETag")).want(t, http.StatusOK)
	if same.body != made.body {
		t.Errorf("written back: %s", same.body)
	}
	if got := s.do("GET", orderPath, "").want(t, http.StatusOK); got.body != made.body || got.header.Get("ETag") != made.header.Get("ETag") {
		t.Errorf("GET = %s", got.body)
	}
	s.do("GET", orderPath, "", "If-None-Match", made.header.Get("ETag")).want(t, http.StatusNotModified)
	s.do("PUT", orderPath, `{"compatibility":"none"}`).want(t, http.StatusOK)
	wantProblem(t, s.do("PUT", orderPath, `{"compatibility":"full"}`, "If-Match", made.header.Get("ETag")), 412, "precondition-failed")
	s.do("PUT", "/v1/schemas/ops/a", `{"labels":{"team":"ops"},"format":"avro"}`).want(t, http.StatusCreated)
	for path, want := range map[string]int{"/v1/schemas": 2, "/v1/schemas?group=ops": 1, "/v1/schemas?labels=team=ops": 1, "/v1/schemas?labels=team=none": 0, "/v1/schemas?limit=1": 1} {
		if p := into[pageAnswer[map[string]any]](t, s.do("GET", path, "").want(t, http.StatusOK)); len(p.Items) != want {
			t.Errorf("%s lists %d schemas, want %d", path, len(p.Items), want)
		}
	}
	for _, c := range []struct{ path, doc, pointer string }{
		{orderPath, `{"compatibility":"sideways"}`, "/compatibility"},
		{orderPath, `{"policy":"mild"}`, "/policy"},
		{orderPath, `{"format":"xsd"}`, "/format"},
		{orderPath, `{"name":"other"}`, "/name"},
		{orderPath, `{"labels":{"a,b":"c"}}`, "/labels/a,b"},
		{orderPath, `{"unheard":1}`, "/unheard"},
		{"/v1/schemas/Shop/x", `{}`, "/group"},
		{"/v1/schemas/shop/a%20b", `{}`, "/schema"},
	} {
		wantProblem(t, s.do("PUT", c.path, c.doc), 400, "invalid", c.pointer)
	}
}

func TestSchemaRefused(t *testing.T) {
	s := start(t)
	s.do("POST", "/v1/schemas/shop/Avro/versions", `{"schema":{"type":"record","name":"A","fields":[]},"format":"avro"}`).want(t, http.StatusCreated)
	for _, c := range []struct {
		name, path, body string
		status           int
		slug, pointer    string
	}{
		{"no text", orderPath + "/versions", `{}`, 400, "invalid", "/schema"},
		{"a wrong text", orderPath + "/versions", texted(`{"properties":{"a":{"type":"strin"}}}`), 400, "invalid", "/schema/properties/a/type"},
		{"the network", orderPath + "/versions", texted(`{"$ref":"http://127.0.0.1:1/x"}`), 400, "invalid", "/schema/$ref"},
		{"a wrong reference", orderPath + "/versions", `{"schema":{},"references":[{"name":"a","group":"shop","schema":"x","version":0}]}`, 400, "invalid", "/references/0"},
		{"a wrong state", orderPath + "/versions", `{"schema":{},"state":"deleted"}`, 400, "invalid", "/state"},
		{"what a check takes", orderPath + "/versions", `{"schema":{},"policy":"strict"}`, 400, "invalid", ""},
		{"an unknown member", orderPath + "/versions", `{"schema":{},"more":1}`, 400, "invalid", "/more"},
		{"another format", "/v1/schemas/shop/Avro/versions", `{"schema":{},"format":"jsonschema"}`, 409, "conflict", "-"},
		{"a large text", orderPath + "/versions", texted(`{"description":"` + strings.Repeat("x", 300<<10) + `"}`), 413, "too-large", "-"},
		{"a larger one", orderPath + "/versions", texted(`"` + strings.Repeat("x", 1<<20) + `"`), 413, "too-large", "-"},
		{"a mode of no check", orderPath + ":check", `{"schema":{},"compatibility":"sideways"}`, 400, "invalid", "/compatibility"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := s.do("POST", c.path, c.body)
			if c.pointer == "-" {
				wantProblem(t, a, c.status, c.slug)
				return
			}
			wantProblem(t, a, c.status, c.slug, c.pointer)
		})
	}
	wantProblem(t, s.do("POST", orderPath+"/versions", texted(`{}`), "Content-Type", "text/plain"), 415, "unsupported")
	wantProblem(t, s.do("GET", orderPath+"/versions/none", ""), 404, "not-found")
	wantProblem(t, s.do("GET", orderPath+"/versions/1", ""), 404, "not-found")
}

func TestSchemaTypes(t *testing.T) {
	s := start(t)
	const placed = orderPath + "/types/com.example%2Forder%20placed"
	wantProblem(t, s.do("PUT", placed, ""), 404, "not-found")
	s.do("POST", orderPath+"/versions", texted(orderText)).want(t, http.StatusCreated)
	s.do("PUT", placed, "").want(t, http.StatusOK)
	list := into[pageAnswer[map[string]string]](t, s.do("GET", orderPath+"/types", "").want(t, http.StatusOK))
	if diff := cmp.Diff([]map[string]string{{"type": "com.example/order placed", "group": "shop", "schema": "com.example.Order"}}, list.Items); diff != "" {
		t.Errorf("types (-want +got):\n%s", diff)
	}
	wantProblem(t, s.do("DELETE", orderPath, ""), 409, "conflict")
	s.do("DELETE", placed, "").want(t, http.StatusNoContent)
	wantProblem(t, s.do("DELETE", placed, ""), 404, "not-found")
}

func TestSchemaRights(t *testing.T) {
	s := start(t)
	s.do("POST", orderPath+"/versions", texted(orderText)).want(t, http.StatusCreated)
	s.key = s.addKey("reader", "definitions:read")
	s.do("GET", orderPath+"/versions/1", "").want(t, http.StatusOK)
	s.do("GET", "/subjects", "").want(t, http.StatusOK)
	s.do("POST", orderPath+":check", texted(orderNext)).want(t, http.StatusOK)
	for _, r := range [][2]string{{"POST", orderPath + "/versions"}, {"PUT", orderPath}, {"DELETE", orderPath}, {"PUT", orderPath + "/versions/1/state"}, {"DELETE", orderPath + "/versions/1"}, {"PUT", orderPath + "/types/x"}} {
		wantProblem(t, s.do(r[0], r[1], `{}`), 403, "forbidden")
	}
	s.key = s.addKey("other", "events:*")
	for _, path := range []string{"/v1/schemas", orderPath, "/subjects", "/schemas/ids/1", "/xregistry"} {
		wantProblem(t, s.do("GET", path, ""), 403, "forbidden")
	}
}

func TestSchemasAway(t *testing.T) {
	closed := memory.NewSchemas()
	closed.Close()
	s := start(t, func(o *api.Options) { o.Schemas = schema.NewRegistry(schema.RegistryOptions{Store: closed}) })
	for _, path := range []string{"/v1/schemas", orderPath, orderPath + "/versions/1", "/subjects", "/schemas/ids/1"} {
		if a := s.do("GET", path, ""); a.status != 503 || a.header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
}

func subjectsOf(t *testing.T, s *server, method, path, body string, status int) string {
	t.Helper()
	a := s.do(method, path, body).want(t, status)
	if ct := a.header.Get("Content-Type"); ct != "application/vnd.schemaregistry.v1+json" {
		t.Errorf("%s is %s", path, ct)
	}
	return strings.TrimSpace(a.body)
}

func TestSubjects(t *testing.T) {
	s := start(t)
	s.do("POST", "/v1/schemas/default/orders-value/versions", texted(orderText)).want(t, http.StatusCreated)
	s.do("POST", "/v1/schemas/default/orders-value/versions", texted(orderNext)).want(t, http.StatusCreated)
	s.do("POST", "/v1/schemas/shop/Row/versions", `{"schema":{"type":"record","name":"Row","fields":[]},"format":"avro"}`).want(t, http.StatusCreated)
	s.do("POST", "/v1/schemas/default/baskets/versions", `{"schema":{"items":{"$ref":"order.json"}},"references":[{"name":"order.json","group":"default","schema":"orders-value","version":2}]}`).want(t, http.StatusCreated)
	s.do("POST", "/v1/schemas/default/orders-value/versions", `{"schema":{"type":"object","title":"draft"},"state":"draft"}`).want(t, http.StatusCreated)
	quote := func(s string) string { b, _ := json.Marshal(s); return string(b) }
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", "/subjects", "", 200, `["baskets","orders-value",":.shop:Row"]`},
		{"GET", "/subjects?subjectPrefix=or&deleted=false", "", 200, `["orders-value"]`},
		{"GET", "/subjects/orders-value/versions", "", 200, `[1,2]`},
		{"GET", "/subjects/orders-value/versions/1", "", 200, `{"subject":"orders-value","id":1,"version":1,"schemaType":"JSON","schema":` + quote(orderText) + `}`},
		{"GET", "/subjects/orders-value/versions/latest", "", 200, `{"subject":"orders-value","id":2,"version":2,"schemaType":"JSON","schema":` + quote(orderNext) + `}`},
		{"GET", "/subjects/:.shop:Row/versions/1", "", 200, `{"subject":":.shop:Row","id":3,"version":1,"schema":"{\"type\":\"record\",\"name\":\"Row\",\"fields\":[]}"}`},
		{"GET", "/subjects/baskets/versions/1", "", 200, `{"subject":"baskets","id":4,"version":1,"schemaType":"JSON","references":[{"name":"order.json","subject":"orders-value","version":2}],"schema":"{\"items\":{\"$ref\":\"order.json\"}}"}`},
		{"GET", "/subjects/orders-value/versions/1/schema", "", 200, orderText},
		{"GET", "/subjects/orders-value/versions/2/referencedby", "", 200, `[4]`},
		{"GET", "/schemas/ids/1?fetchMaxId=false&subject=", "", 200, `{"schemaType":"JSON","schema":` + quote(orderText) + `}`},
		{"GET", "/schemas/ids/1/schema", "", 200, orderText},
		{"GET", "/schemas/ids/3/subjects", "", 200, `[":.shop:Row"]`},
		{"GET", "/schemas/ids/2/versions", "", 200, `[{"subject":"orders-value","version":2}]`},
		{"GET", "/schemas/types", "", 200, `["AVRO","JSON","PROTOBUF"]`},
		{"GET", "/config", "", 200, `{"compatibilityLevel":"BACKWARD"}`},
		{"GET", "/config/orders-value?defaultToGlobal=true", "", 200, `{"compatibilityLevel":"BACKWARD","compatibilityPolicy":"LENIENT"}`},
		{"GET", "/mode", "", 200, `{"mode":"READONLY"}`},
		{"GET", "/mode/orders-value", "", 200, `{"mode":"READONLY"}`},
		{"POST", "/subjects/orders-value?normalize=true", `{"schemaType":"JSON","schema":` + quote(" "+orderText) + `}`, 200, `{"subject":"orders-value","id":1,"version":1,"schemaType":"JSON","schema":` + quote(orderText) + `}`},
		{"POST", "/compatibility/subjects/orders-value/versions/latest", `{"schemaType":"JSON","schema":` + quote(orderNext) + `}`, 200, `{"is_compatible":true}`},
		{"POST", "/compatibility/subjects/orders-value/versions", `{"schemaType":"JSON","schema":` + quote(orderWrong) + `}`, 200, `{"is_compatible":false}`},
		{"GET", "/subjects/none/versions", "", 404, `{"error_code":40401,"message":"there is no such subject"}`},
		{"GET", "/subjects/orders-value/versions/9", "", 404, `{"error_code":40402,"message":"there is no such version"}`},
		{"GET", "/subjects/orders-value/versions/3", "", 404, `{"error_code":40402,"message":"there is no such version"}`},
		{"GET", "/subjects/orders-value/versions/-1", "", 422, `{"error_code":42202,"message":"a version is a number from 1, or latest"}`},
		{"GET", "/schemas/ids/99", "", 404, `{"error_code":40403,"message":"there is no such schema"}`},
		{"GET", "/schemas/ids/x", "", 404, `{"error_code":40403,"message":"there is no such schema"}`},
		{"POST", "/subjects/orders-value", `{"schemaType":"JSON","schema":"{}"}`, 404, `{"error_code":40403,"message":"there is no such schema"}`},
		{"POST", "/subjects/orders-value", `{"schema":"\"int\""}`, 404, `{"error_code":40403,"message":"there is no such schema"}`},
		{"POST", "/subjects/orders-value", `{"schemaType":"XSD","schema":"{}"}`, 422, `{"error_code":42201,"message":"invalid: /schemaType: must be AVRO, JSON or PROTOBUF"}`},
	} {
		if got := subjectsOf(t, s, c.method, c.path, c.body, c.status); got != c.want {
			t.Errorf("%s %s = %s, want %s", c.method, c.path, got, c.want)
		}
	}
	verbose := subjectsOf(t, s, "POST", "/compatibility/subjects/orders-value/versions?verbose=true", `{"schemaType":"JSON","schema":`+quote(orderWrong)+`}`, 200)
	if !strings.Contains(verbose, `"is_compatible":false`) || !strings.Contains(verbose, "T1: ") {
		t.Errorf("verbose: %s", verbose)
	}
	wantProblem(t, s.do("POST", "/subjects/orders-value/versions", `{"schema":"{}"}`), 405, "method-not-allowed")
}

func TestXRegistry(t *testing.T) {
	s := start(t)
	s.do("PUT", orderPath, `{"labels":{"team":"shop"},"description":"orders"}`).want(t, http.StatusCreated)
	for _, text := range []string{orderText, orderNext} {
		s.do("POST", orderPath+"/versions", texted(text)).want(t, http.StatusCreated)
	}
	s.do("PUT", orderPath+"/versions/1/state", `{"state":"deprecated"}`).want(t, http.StatusOK)
	const group, at = "/xregistry/schemagroups/shop", "/xregistry/schemagroups/shop/schemas/com.example.Order"
	get := func(path string) map[string]any {
		t.Helper()
		return into[map[string]any](t, s.do("GET", path, "").want(t, http.StatusOK))
	}
	for _, c := range []struct{ path, member, want string }{
		{"/xregistry", "schemagroupscount", "1"},
		{"/xregistry", "self", s.http.URL + "/xregistry"},
		{"/xregistry/schemagroups", "shop", "map"},
		{group, "schemascount", "1"},
		{group + "/schemas", "com.example.Order", "map"},
		{at + "$details", "versionid", "2"},
		{at + "$details", "description", "orders"},
		{at + "$details", "xid", "/schemagroups/shop/schemas/com.example.Order"},
		{at + "$details", "format", "JsonSchema/2020-12"},
		{at + "/meta", "compatibility", "backward"},
		{at + "/meta", "defaultversionid", "2"},
		{at + "/versions", "1", "map"},
		{at + "/versions/1$details", "deprecated", "map"},
		{at + "/versions/1$details", "isdefault", "false"},
		{at + "/versions/2$details", "self", s.http.URL + at + "/versions/2"},
	} {
		if got := fmt.Sprint(get(c.path)[c.member]); got != c.want && !(c.want == "map" && strings.HasPrefix(got, "map[")) {
			t.Errorf("%s: %s = %s, want %s", c.path, c.member, got, c.want)
		}
	}
	text := s.do("GET", at+"/versions/1", "").want(t, http.StatusOK)
	if text.body != orderText || text.header.Get("Xregistry-Versionid") != "1" || text.header.Get("Content-Type") != "application/schema+json" {
		t.Errorf("a version is %s, %v", text.body, text.header)
	}
	if text := s.do("GET", at, "").want(t, http.StatusOK); text.body != orderNext {
		t.Errorf("the default version is %s", text.body)
	}
	wantProblem(t, s.do("GET", "/xregistry/schemagroups/none", ""), 404, "not-found")
	wantProblem(t, s.do("GET", at+"/versions/9", ""), 404, "not-found")
	wantProblem(t, s.do("PUT", at, ""), 405, "method-not-allowed")
}
