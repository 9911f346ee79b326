// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"encoding/json"
	"io/fs"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/web/api"
)

func TestSearch(t *testing.T) {
	s := start(t)
	for _, id := range []string{"a", "b", "c"} {
		s.post("default", id).want(t, http.StatusAccepted)
	}
	p := into[struct {
		Items []struct {
			Event    struct{ ID string }
			Position string
			Status   string
			Journey  any
		}
		NextCursor string
	}](t, s.do("GET", "/v1/buses/default/events?type=com.example.test&limit=2&source=/s&subject=x&status=dead&target=ops&outcome=dead&from=2027-01-01T00:00:00Z&to=2027-01-02T00:00:00%2B01:00&cursor=7", "").want(t, http.StatusOK))
	if len(p.Items) != 2 || p.Items[0].Event.ID != "c" || p.Items[0].Position != "EV_default:3" || p.Items[0].Status != "pending" ||
		p.NextCursor != `next"page` || p.Items[0].Journey != nil {
		t.Errorf("page = %+v", p)
	}
	want := bridge.SearchQuery{Type: "com.example.test", Source: "/s", Subject: "x", Status: "dead", Target: "ops", Outcome: "dead", Limit: 2, Cursor: "7",
		From: time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC), To: time.Date(2027, 1, 1, 23, 0, 0, 0, time.UTC)}
	if diff := cmp.Diff(want, s.bridge.lastQuery()); diff != "" {
		t.Errorf("query (-want +got):\n%s", diff)
	}
	if a := s.do("GET", "/v1/buses/devices/events", "").want(t, http.StatusOK); a.body != `{"items":[]}` {
		t.Errorf("nothing found = %s", a.body)
	}
	for query, pointer := range map[string]string{"limit=0": "/limit", "limit=x": "/limit", "limit=1001": "/limit", "from=now": "/from", "to=2027": "/to",
		"status=lost": "/status", "outcome=dead": "/outcome", "target=ops&outcome=live": "/outcome", "types=x": "/types", "type=a&type=b": "/type"} {
		wantProblem(t, s.do("GET", "/v1/buses/default/events?"+query, ""), 400, "invalid", pointer)
	}
	wantProblem(t, s.do("GET", "/v1/buses/default/events?type=%zz", ""), 400, "invalid")
	wantProblem(t, s.do("GET", "/v1/buses/none/events", ""), 404, "not-found")
}

func TestDeadLetters(t *testing.T) {
	s := start(t)
	s.bridge.dead = []bridge.DeadLetter{{ID: "DEAD:1", Bus: "default", Rule: "r", Target: "hook", EventID: "a<b", Reason: "status", Status: 400, Attempts: 1,
		Position: event.Position{Stream: "EV_default", Seq: 9}, Last: arrived,
		Event: &event.Event{ID: "a<b", Source: "/s", Type: "t", DataContentType: "application/json", Data: []byte(`{"x":1.0}`)}}}
	a := s.do("GET", "/v1/deadletters?bus=default&rule=r&target=hook&reason=status&limit=5", "").want(t, http.StatusOK)
	p := into[struct {
		Items []struct {
			ID, Reason, Position, EventID string
			Status                        int
			Event                         struct {
				ID   string
				Data json.RawMessage
			}
		}
		NextCursor string
	}](t, a)
	if len(p.Items) != 1 || p.NextCursor != "7" || p.Items[0].Position != "EV_default:9" || p.Items[0].Event.ID != "a<b" || string(p.Items[0].Event.Data) != `{"x":1.0}` {
		t.Errorf("dead letters = %s", a.body)
	}
	if diff := cmp.Diff(bridge.DeadQuery{DeadFilter: bridge.DeadFilter{Bus: "default", Rule: "r", Target: "hook", Reason: "status"}, Limit: 5}, s.bridge.lastQuery()); diff != "" {
		t.Errorf("query (-want +got):\n%s", diff)
	}
	wantProblem(t, s.do("GET", "/v1/deadletters?limit=-1&from=x", ""), 400, "invalid", "/limit", "/from")
}

func TestLedger(t *testing.T) {
	s := start(t)
	s.post("devices", "a").want(t, http.StatusAccepted)
	type account struct {
		Balanced bool
		Buses    []bridge.Ledger
	}
	l := into[account](t, s.do("GET", "/v1/ledger", "").want(t, http.StatusOK))
	if !l.Balanced || len(l.Buses) != 2 || l.Buses[1].Bus != "devices" || l.Buses[1].Events.Accepted != 1 {
		t.Errorf("ledger = %+v", l)
	}
	l = into[account](t, s.do("GET", "/v1/ledger?bus=default&from=2027-01-01T00:00:00Z", "").want(t, http.StatusOK))
	if len(l.Buses) != 1 || l.Buses[0].Bus != "default" || s.bridge.lastQuery().(bridge.LedgerQuery).From.IsZero() {
		t.Errorf("ledger of a bus = %+v", l)
	}
	wantProblem(t, s.do("GET", "/v1/ledger?bus=none", ""), 404, "not-found")
	wantProblem(t, s.do("GET", "/v1/ledger?to=x", ""), 400, "invalid", "/to")
}

func TestHealth(t *testing.T) {
	extra := []bridge.Check{{Name: "store", OK: true}}
	s := start(t, func(o *api.Options) { o.Checks = func() []bridge.Check { return extra } })
	s.key = ""
	if a := s.do("GET", "/livez", "").want(t, http.StatusOK); a.body != "ok\n" {
		t.Errorf("livez = %q", a.body)
	}
	if a := s.do("GET", "/readyz", "").want(t, http.StatusOK); a.body != "ready\n" {
		t.Errorf("readyz = %q", a.body)
	}
	if a := s.do("GET", "/readyz?verbose", "").want(t, http.StatusOK); a.body != "[+] log\n[+] store\nready\n" {
		t.Errorf("readyz?verbose = %q", a.body)
	}
	s.bridge.mu.Lock()
	s.bridge.checks = append(s.bridge.checks, bridge.Check{Name: "ledger/default", Detail: "the account differs by 1"})
	s.bridge.mu.Unlock()
	if a := s.do("GET", "/readyz", "").want(t, http.StatusOK); a.body != "[-] ledger/default: the account differs by 1\nready\n" {
		t.Errorf("readyz with a difference in the ledger = %q", a.body)
	}
	extra[0] = bridge.Check{Name: "store", Detail: "is away"}
	if a := s.do("GET", "/readyz", "").want(t, http.StatusServiceUnavailable); !strings.Contains(a.body, "[-] store: is away\nnot ready\n") {
		t.Errorf("readyz without a store = %q", a.body)
	}
	wantProblem(t, s.do("GET", "/readyz?verbose=perhaps", ""), 400, "invalid", "/verbose")
	wantProblem(t, s.do("GET", "/livez?x", ""), 400, "invalid", "/x")
}

func TestMetrics(t *testing.T) {
	s := start(t)
	s.post("default", "a").want(t, http.StatusAccepted)
	s.do("GET", "/v1/buses/default/events/a", "").want(t, http.StatusOK)
	s.do("GET", "/v1/buses/default/events/none-"+strings.Repeat("x", 50), "").want(t, http.StatusNotFound)
	s.do("GET", "/nowhere/"+strings.Repeat("y", 50), "").want(t, http.StatusNotFound)
	s.do("PUT", "/v1/targets/x", "{").want(t, http.StatusBadRequest)
	a := s.do("GET", "/metrics", "").want(t, http.StatusOK)
	for _, want := range []string{
		`rialto_http_requests_total{method="POST",route="/v1/buses/{bus}/events",status="2xx"} 1`,
		`rialto_http_requests_total{method="GET",route="/v1/buses/{bus}/events/{id}",status="2xx"} 1`,
		`rialto_http_requests_total{method="GET",route="/v1/buses/{bus}/events/{id}",status="4xx"} 1`,
		`rialto_http_requests_total{method="none",route="other",status="4xx"} 1`,
		`rialto_http_requests_total{method="PUT",route="/v1/targets/{name}",status="4xx"} 1`,
		`rialto_http_problems_total{problem="not-found"} 2`,
		`rialto_http_problems_total{problem="full"} 0`,
		`rialto_http_requests_in_flight 1`,
		`rialto_http_request_duration_seconds_count{method="POST",route="/v1/buses/{bus}/events"} 1`,
	} {
		if !strings.Contains(a.body, want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}
	if strings.Contains(a.body, "xxxx") || strings.Contains(a.body, "yyyy") {
		t.Error("what clients send has become a label")
	}
}

func TestRequestIDs(t *testing.T) {
	s := start(t)
	if a := s.do("GET", "/livez", "", "X-Request-Id", "abc-1.2_Z"); a.header.Get("X-Request-Id") != "abc-1.2_Z" {
		t.Errorf("request id of the client came back as %q", a.header.Get("X-Request-Id"))
	}
	seen := map[string]bool{}
	for _, bad := range []string{"", " ", "a b", strings.Repeat("x", 65), "ü", "<x>", "a\tb"} {
		id := s.do("GET", "/livez", "", "X-Request-Id", bad).header.Get("X-Request-Id")
		if id == bad || len(id) != 13 || seen[id] {
			t.Errorf("request id %q for %q", id, bad)
		}
		seen[id] = true
	}
	p := wantProblem(t, s.do("GET", "/v1/targets/none", "", "X-Request-Id", "find-me"), 404, "not-found")
	if p.RequestID != "find-me" || !strings.Contains(s.log.String(), "requestId=find-me") {
		t.Errorf("requestId = %q; log %s", p.RequestID, s.log)
	}
}

func TestPanics(t *testing.T) {
	s := start(t, func(o *api.Options) {
		o.Checks = func() []bridge.Check { panic("hunter2") }
	})
	a := s.do("GET", "/readyz", "")
	wantProblem(t, a, 500, "internal")
	if strings.Contains(a.body, "hunter2") || !strings.Contains(s.log.String(), "handler panicked") {
		t.Errorf("answer %s; log %s", a.body, s.log)
	}
	s.do("GET", "/livez", "").want(t, http.StatusOK)
	if a := s.do("GET", "/metrics", ""); !strings.Contains(a.body, "rialto_http_requests_in_flight 1\n") {
		t.Error("a request that panicked counts as in flight for ever")
	}
}

func TestLogIsNotFlooded(t *testing.T) {
	s := start(t)
	s.bridge.setFail(fault.New(fault.Full, "the disk has no room"))
	for range 50 {
		wantProblem(t, s.post("default", "x"), 507, "full")
	}
	if n := strings.Count(s.log.String(), "level=WARN"); n < 1 || n > 5 {
		t.Errorf("%d warnings for 50 refusals in a moment", n)
	}
}

func TestPage(t *testing.T) {
	s := start(t)
	s.key = ""
	a := s.do("GET", "/", "").want(t, http.StatusOK)
	if !strings.HasPrefix(a.header.Get("Content-Type"), "text/html") || a.header.Get("Content-Security-Policy") == "" ||
		!strings.Contains(a.body, "127.0.0.1:1883") || !strings.Contains(a.body, "1.2.3") || !strings.Contains(a.body, "-t &lt;topic&gt;") {
		t.Errorf("page = %v %s", a.header, a.body)
	}
}

func TestOpenAPI(t *testing.T) {
	s := start(t)
	s.key = ""
	a := s.do("GET", "/openapi.json", "").want(t, http.StatusOK)
	spec := into[struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			OperationID string
			Responses   map[string]any
			Parameters  []struct{ Name, In string }
			Security    []map[string][]string
		}
		Components struct {
			Schemas map[string]struct {
				Properties map[string]any
			}
		}
	}](t, a)
	if !strings.HasPrefix(spec.OpenAPI, "3.1") {
		t.Errorf("openapi = %q", spec.OpenAPI)
	}
	var described []string
	for path, ops := range spec.Paths {
		for method, op := range ops {
			described = append(described, strings.ToUpper(method)+" "+path)
			if op.OperationID == "" || op.Responses["default"] == nil || op.Security == nil {
				t.Errorf("%s %s lacks an id, the problem or its security", method, path)
			}
			for _, m := range regexp.MustCompile(`\{([a-z]+)\}`).FindAllStringSubmatch(path, -1) {
				if !slices.ContainsFunc(op.Parameters, func(p struct{ Name, In string }) bool { return p.In == "path" && p.Name == m[1] }) {
					t.Errorf("%s %s does not describe {%s}", method, path, m[1])
				}
			}
		}
	}
	routes := s.api.Routes()
	slices.Sort(described)
	slices.Sort(routes)
	if diff := cmp.Diff(routes, described); diff != "" {
		t.Errorf("routes and their description (-routes +described):\n%s", diff)
	}
	for _, kind := range []string{"Bus", "Rule", "Target", "Source", "Device", "Key"} {
		if spec.Components.Schemas[kind].Properties["revision"] == nil {
			t.Errorf("schema %s lacks what the server owns", kind)
		}
	}
	for _, m := range regexp.MustCompile(`"#/components/schemas/([A-Za-z]+)"`).FindAllStringSubmatch(a.body, -1) {
		if _, ok := spec.Components.Schemas[m[1]]; !ok {
			t.Errorf("reference to the schema %s, which is not there", m[1])
		}
	}
}

// TestDocsShowEveryRoute keeps docs/http.md and docs/schemas.md whole: every route is in one of their examples.
func TestDocsShowEveryRoute(t *testing.T) {
	var doc []byte
	for _, name := range []string{"http.md", "schemas.md"} {
		page, err := fs.ReadFile(os.DirFS("../../docs"), name)
		if err != nil {
			t.Fatal(err)
		}
		doc = append(doc, page...)
	}
	var calls []string
	for _, block := range regexp.MustCompile("(?s)```sh http=[0-9]+\n(.*?)```").FindAllStringSubmatch(string(doc), -1) {
		method := "GET"
		if m := regexp.MustCompile(`-X ([A-Z]+)`).FindStringSubmatch(block[1]); m != nil {
			method = m[1]
		}
		for _, m := range regexp.MustCompile(`\$RIALTO_URL(/[^\s'"?]*)`).FindAllStringSubmatch(block[1], -1) {
			calls = append(calls, method+" "+m[1])
		}
	}
	for _, route := range start(t).api.Routes() {
		re := regexp.MustCompile("^" + regexp.MustCompile(`\\\{[a-z]+\\\}`).ReplaceAllString(regexp.QuoteMeta(route), `[^/:]+`) + "$")
		if !slices.ContainsFunc(calls, re.MatchString) {
			t.Errorf("no page has an example of %s", route)
		}
	}
}

func TestOptions(t *testing.T) {
	if _, err := api.New(api.Options{}); err == nil {
		t.Error("New without a bridge, a store and keys has no complaint")
	}
	s := start(t)
	if _, err := api.New(api.Options{Bridge: s.bridge, Store: s.store, Keys: s.keys, Kinds: []api.Kind{{Name: "Key", Plural: "keys"}}}); err == nil {
		t.Error("a second kind Key is taken")
	}
	if _, err := api.New(api.Options{Bridge: s.bridge, Store: s.store, Keys: s.keys, Kinds: []api.Kind{{Name: "Bus", Plural: "buses", Schema: []byte("{")}}}); err == nil {
		t.Error("a schema that is not JSON is taken")
	}
}
