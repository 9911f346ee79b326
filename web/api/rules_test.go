// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/internal/store/memory"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/web/api"
)

const asJSON = "application/json"

// tryRule is what POST /v1/rules:test answers.
type tryRule struct {
	Bus     string
	Matched int
	Results []struct {
		Event       struct{ ID, Source, Type string }
		Position    string
		Matched     bool
		Explanation rules.Explanation
		Outputs     []struct {
			Target, Error string
			Output        *struct {
				ID, Type, DataContentType string
				Data                      json.RawMessage
			}
			Omitted bool
		}
	}
	Warnings []rules.Warning
}

func (s *server) try(body string) answer {
	s.t.Helper()
	return s.do("POST", "/v1/rules:test", body, "Content-Type", asJSON)
}

func TestTryRule(t *testing.T) {
	s := start(t)
	s.post("default", "order-1").want(t, http.StatusAccepted)
	got := into[tryRule](t, s.try(`{"rule":{"name":"warm","pattern":{"data":{"a":[1]}},"when":"data.a < 2",
		"targets":[{"target":"ops"},{"target":"text","transform":{"template":"a is ${data.a}"}},{"target":"list","transform":{"path":"$.data.none"}}]},
		"events":[{"id":"x","data":{"a":"1"}}],"stored":[{"id":"order-1","source":"/test"}]}`).want(t, 200))
	if got.Bus != "default" || got.Matched != 1 || len(got.Results) != 2 {
		t.Fatalf("answer = %+v", got)
	}
	miss, hit := got.Results[0], got.Results[1]
	if miss.Matched || miss.Event.ID != "x" || miss.Event.Source != "/test" || len(miss.Outputs) != 0 || !strings.Contains(miss.Explanation.Clauses[0].Hint, "string") {
		t.Errorf("the event that was sent: %+v", miss)
	}
	if !hit.Matched || hit.Position != "EV_default:1" || hit.Explanation.When.Verdict != rules.Matched || len(hit.Outputs) != 3 {
		t.Fatalf("the stored event: %+v", hit)
	}
	if o := hit.Outputs[0]; o.Target != "ops" || string(o.Output.Data) != `{"a":1}` {
		t.Errorf("original = %+v", o)
	}
	if o := hit.Outputs[1]; o.Target != "text" || string(o.Output.Data) != `"a is 1"` || o.Output.ID != "order-1" {
		t.Errorf("template = %+v", o)
	}
	if o := hit.Outputs[2]; o.Target != "list" || o.Error == "" || o.Output != nil {
		t.Errorf("a path to nothing = %+v", o)
	}

	// A pattern alone, and with a transform.
	got = into[tryRule](t, s.try(`{"pattern":{"type":["test"]},"events":[{},{"type":"other"}]}`).want(t, 200))
	if got.Matched != 1 || got.Results[0].Outputs != nil || got.Results[1].Matched {
		t.Errorf("pattern = %+v", got)
	}
	got = into[tryRule](t, s.try(`{"bus":"devices","pattern":{"type":["test"]},"sql":"type = 'test'","transform":{"constant":"hot"},"events":[{}]}`).want(t, 200))
	if o := got.Results[0].Outputs; got.Bus != "devices" || len(o) != 1 || o[0].Target != "" || o[0].Output == nil {
		t.Errorf("transform = %+v", got)
	}
	if s.bridge.stored("default") != 1 || s.bridge.stored("devices") != 0 {
		t.Error("a test has stored something")
	}
	s.do("GET", "/v1/buses/default/rules/warm", "").want(t, 404)
}

func TestExplainRules(t *testing.T) {
	s := start(t)
	for i, pattern := range []string{`{"type":["other"],"source":["x"]}`, `{"type":["com.example.tests"],"data":{"a":[1]}}`, `{"data":{"a":[1]}}`} {
		r, err := rules.ParseRule(fmt.Appendf(nil, `{"kind":"Rule","name":"r%d","pattern":%s,"targets":[{"target":"t"}]}`, i, pattern))
		if err != nil {
			t.Fatal(err)
		}
		s.bridge.rules = append(s.bridge.rules, r)
	}
	s.post("default", "a/b").want(t, http.StatusAccepted)
	type why struct {
		Bus       string
		Event     struct{ ID, Source, Type string }
		Position  string
		Rules     []rules.RuleExplanation
		RulesMore int
	}
	ask := func(body string) why {
		t.Helper()
		return into[why](t, s.do("POST", "/v1/rules:explain", body, "Content-Type", asJSON).want(t, 200))
	}
	names := func(w why) (out []string) {
		for _, r := range w.Rules {
			out = append(out, fmt.Sprintf("%s %t", r.Rule, r.Matched))
		}
		return out
	}
	all := ask(`{"id":"a/b"}`)
	if diff := cmp.Diff([]string{"r2 true", "r1 false", "r0 false"}, names(all)); diff != "" || all.RulesMore != 7 || all.Position != "EV_default:1" || all.Event.Type != "com.example.test" {
		t.Errorf("all rules: %+v\n%s", all, diff)
	}
	one := ask(`{"bus":"default","rule":"r1","event":{"data":{"a":1}}}`)
	if diff := cmp.Diff([]string{"r1 false"}, names(one)); diff != "" || one.Position != "" || one.RulesMore != 0 {
		t.Errorf("one rule: %+v\n%s", one, diff)
	}
	if c := one.Rules[0].Explanation.Clauses[0]; c.Verdict != rules.Failed || c.Path != "type" {
		t.Errorf("clause = %+v", c)
	}
}

func TestRuleQuestionsRefused(t *testing.T) {
	s := start(t)
	many := strings.Repeat(`{},`, 100) + `{}`
	big := `{"data":"` + strings.Repeat("x", 900<<10) + `"}`
	crowd := make([]string, 100)
	for i := range crowd {
		crowd[i] = fmt.Sprintf(`{"target":"t%d"}`, i)
	}
	for _, c := range []struct {
		path, name, body string
		status           int
		slug             string
		pointers         []string
	}{
		{"test", "not JSON", `{`, 400, "invalid", []string{""}},
		{"test", "no object", `[]`, 400, "invalid", []string{""}},
		{"test", "twice", `{"bus":"a","bus":"b"}`, 400, "invalid", []string{"/bus"}},
		{"test", "unknown and wrong", `{"ruel":1,"bus":7,"events":{},"Stored":[]}`, 400, "invalid", []string{"/ruel", "/bus", "/events", "/Stored"}},
		{"test", "no rule", `{"events":[{}]}`, 400, "invalid", []string{"/pattern"}},
		{"test", "rule and pattern", `{"rule":{},"pattern":{},"when":"","events":[{}]}`, 400, "invalid", []string{"/pattern", "/when"}},
		{"test", "a rule that is none", `{"rule":7,"events":[{}]}`, 400, "invalid", []string{"/rule"}},
		{"test", "a bad rule", `{"rule":{"name":"A","pattern":{"type":"x"},"when":"data.","targets":[]},"events":[{}]}`, 400, "invalid", []string{"/rule/name", "/rule/pattern/type", "/rule/when", "/rule/targets"}},
		{"test", "a bad pattern", `{"pattern":{"detail-type":["x"]},"events":[{}]}`, 400, "invalid", []string{"/pattern/detail-type"}},
		{"test", "a bad transform", `{"pattern":{"type":["x"]},"transform":{"path":"$$"},"events":[{}]}`, 400, "invalid", []string{"/transform/path"}},
		{"test", "a when that is no text", `{"pattern":{"type":["x"]},"when":5,"events":[{}]}`, 400, "invalid", []string{"/when"}},
		{"test", "no events", `{"pattern":{"type":["x"]}}`, 400, "invalid", []string{"/events"}},
		{"test", "a bad event", `{"pattern":{"type":["x"]},"events":[{},{"time":"yesterday"}]}`, 400, "invalid", []string{"/events/1/time"}},
		{"test", "an event that is none", `{"pattern":{"type":["x"]},"events":[null]}`, 400, "invalid", []string{"/events/0"}},
		{"test", "a stored one without id", `{"pattern":{"type":["x"]},"stored":[{"source":"/x"}]}`, 400, "invalid", []string{"/stored/0/id"}},
		{"test", "a stored one with more", `{"pattern":{"type":["x"]},"stored":[{"id":"x","bus":"y"}]}`, 400, "invalid", []string{"/stored/0/bus"}},
		{"test", "a stored one that is not there", `{"pattern":{"type":["x"]},"stored":[{"id":"x"}]}`, 404, "not-found", []string{"/stored/0/id"}},
		{"test", "two buses", `{"bus":"devices","rule":{"bus":"default"},"events":[{}]}`, 400, "invalid", []string{"/rule/bus"}},
		{"test", "no name of a bus", `{"bus":"A b","pattern":{"type":["x"]},"events":[{}]}`, 400, "invalid", []string{"/bus"}},
		{"test", "no bus", `{"bus":"none","pattern":{"type":["x"]},"events":[{}]}`, 404, "not-found", nil},
		{"test", "many events", `{"pattern":{"type":["x"]},"events":[` + many + `]}`, 413, "too-large", nil},
		{"test", "a large event", `{"pattern":{"type":["x"]},"events":[{"data":"` + strings.Repeat("x", 1<<20) + `"}]}`, 413, "too-large", []string{"/events/0/data"}},
		{"test", "a large body", `{"pattern":"` + strings.Repeat("x", 5<<20) + `"}`, 413, "too-large", nil},
		{"test", "much work", `{"rule":{"pattern":{"type":["x"]},"targets":[` + strings.Join(crowd, ",") + `]},"events":[` + big + `]}`, 413, "too-large", nil},
		{"explain", "nothing", `{}`, 400, "invalid", []string{"/event"}},
		{"explain", "both", `{"event":{},"id":"x"}`, 400, "invalid", []string{"/id"}},
		{"explain", "source of nothing", `{"event":{},"source":"x"}`, 400, "invalid", []string{"/source"}},
		{"explain", "a bad event", `{"event":{"type":""}}`, 400, "invalid", []string{"/event/type"}},
		{"explain", "not there", `{"id":"x"}`, 404, "not-found", []string{"/id"}},
		{"explain", "no rule", `{"event":{},"rule":"x"}`, 404, "not-found", nil},
		{"explain", "no bus", `{"event":{},"bus":"none"}`, 404, "not-found", nil},
		{"explain", "unknown", `{"event":{},"rules":"x"}`, 400, "invalid", []string{"/rules"}},
	} {
		t.Run(c.path+"/"+c.name, func(t *testing.T) {
			a := s.do("POST", "/v1/rules:"+c.path, c.body, "Content-Type", asJSON)
			wantProblem(t, a, c.status, c.slug, c.pointers...)
		})
	}
	wantProblem(t, s.do("POST", "/v1/rules:test", `{}`, "Content-Type", "text/plain"), 415, "unsupported")
	wantProblem(t, s.do("POST", "/v1/rules:test?dryRun=true", `{}`, "Content-Type", asJSON), 400, "invalid", "/dryRun")
}

// What does not fit into the answer is left out, and the answer says so.
func TestTryRuleRoom(t *testing.T) {
	s := start(t)
	event := `{"data":"` + strings.Repeat("x", 700<<10) + `"}`
	targets := `[{"target":"a"},{"target":"b"},{"target":"c"}]`
	got := into[tryRule](t, s.try(`{"rule":{"pattern":{"type":["test"]},"targets":`+targets+`},"events":[`+event+`,`+event+`,`+event+`]}`).want(t, 200))
	shown, omitted := 0, 0
	for _, r := range got.Results {
		for _, o := range r.Outputs {
			switch {
			case o.Output != nil && !o.Omitted:
				shown++
			case o.Output == nil && o.Omitted:
				omitted++
			}
		}
	}
	if shown != 5 || omitted != 4 {
		t.Errorf("%d outputs are shown and %d omitted, want 5 and 4", shown, omitted)
	}
}

func TestRuleQuestionRights(t *testing.T) {
	s := start(t)
	s.post("default", "x").want(t, http.StatusAccepted)
	given := `{"event":{}}`
	stored := `{"id":"x"}`
	trying := `{"pattern":{"type":["t"]},"events":[{}]}`
	running := `{"pattern":{"type":["t"]},"transform":{"function":"f"},"events":[{}]}`
	tryingStored := `{"pattern":{"type":["t"]},"stored":[{"id":"x"}]}`
	for _, c := range []struct {
		scopes              []string
		path, body, lacking string
	}{
		{[]string{"definitions:read"}, "explain", given, ""},
		{[]string{"definitions:read:default"}, "explain", given, ""},
		{[]string{"definitions:read:default"}, "explain", stored, "events:read:default"},
		{[]string{"definitions:read:devices", "events:*"}, "explain", given, "definitions:read:default"},
		{[]string{"definitions:read:default", "events:read:default"}, "explain", stored, ""},
		{[]string{"definitions:read:default"}, "test", trying, ""},
		{[]string{"definitions:read:default"}, "test", tryingStored, "events:read:default"},
		{[]string{"definitions:read", "events:read"}, "test", tryingStored, ""},
		{[]string{"events:*"}, "test", trying, "definitions:read:default"},
		{[]string{"definitions:write"}, "test", trying, "definitions:read:default"},
		{[]string{"definitions:read"}, "test", running, "definitions:write:default"},
		{[]string{"definitions:*:default"}, "test", running, ""},
	} {
		s.key = s.addKey("test", c.scopes...)
		a := s.do("POST", "/v1/rules:"+c.path, c.body, "Content-Type", asJSON)
		if c.lacking == "" {
			a.want(t, 200)
		} else if p := wantProblem(t, a, 403, "forbidden"); !strings.Contains(p.Detail, c.lacking) {
			t.Errorf("%v: %s: %q does not name %s", c.scopes, c.path, p.Detail, c.lacking)
		}
	}
	s.key = ""
	wantProblem(t, s.do("POST", "/v1/rules:test", `{`, "Content-Type", asJSON), 401, "unauthorized")
}

// Doubts about a rule are answered with it, and only then.
func TestWarnings(t *testing.T) {
	s := start(t, func(o *api.Options) {
		for i := range o.Kinds {
			if o.Kinds[i].Name == "Rule" {
				o.Kinds[i].Lint = func(_ context.Context, doc []byte, observed bool) []rules.Warning {
					if !strings.Contains(string(doc), "anything-but") {
						return nil
					}
					doubts := []rules.Warning{{Pointer: "/pattern/type", Message: "matches <everything>", Fix: "write one list"}}
					if observed && strings.Contains(string(doc), "look") {
						doubts = append(doubts, rules.Warning{Pointer: "/pattern/type", Message: "no stored event has that"})
					}
					return doubts
				}
			}
		}
	})
	s.do("PUT", "/v1/targets/ops", `{"config":{"url":"http://127.0.0.1:9/"}}`).want(t, 201)
	doubtful := `{"pattern":{"type":[{"anything-but":"a"},{"anything-but":"b"}]},"targets":[{"target":"ops"}]}`
	const path = "/v1/buses/default/rules/r"
	want := []rules.Warning{{Pointer: "/pattern/type", Message: "matches <everything>", Fix: "write one list"}}
	type answered struct {
		Status *struct{ Warnings []rules.Warning }
	}
	for _, c := range []struct {
		query  string
		status int
	}{{"?dryRun=true", 201}, {"", 201}, {"?dryRun=true", 200}, {"", 200}} {
		a := into[answered](t, s.do("PUT", path+c.query, doubtful).want(t, c.status))
		if a.Status == nil || cmp.Diff(want, a.Status.Warnings) != "" {
			t.Errorf("PUT%s has the status %+v, want the warning", c.query, a.Status)
		}
	}
	if a := s.do("GET", path, "").want(t, 200); strings.Contains(a.body, "status") {
		t.Errorf("what was not written now has a status: %s", a.body)
	}
	if a := s.do("PUT", path, `{"pattern":{"type":["a"]},"targets":[{"target":"ops"}],"status":{"warnings":[]}}`).want(t, 200); strings.Contains(a.body, "status") {
		t.Errorf("nothing doubtful has a status: %s", a.body)
	}
	got := into[tryRule](t, s.try(`{"rule":`+doubtful+`,"events":[{}]}`).want(t, 200))
	looking := strings.Replace(doubtful, "{", `{"description":"look",`, 1)
	for _, c := range []struct {
		scopes   []string
		observed bool
	}{{[]string{"definitions:*"}, false}, {[]string{"definitions:*", "events:read:devices"}, false}, {[]string{"definitions:*", "events:read:default"}, true}} {
		s.key = s.addKey("writer", c.scopes...)
		for _, ask := range []func() answer{
			func() answer { return s.do("PUT", path+"?dryRun=true", looking) },
			func() answer { return s.try(`{"rule":` + looking + `,"events":[{}]}`) },
		} {
			if a := ask().want(t, 200); strings.Contains(a.body, "no stored event") != c.observed {
				t.Errorf("%v: stored events are asked: %t, want %t: %s", c.scopes, !c.observed, c.observed, a.body)
			}
		}
	}
	if want[0].Pointer = "/rule/pattern/type"; cmp.Diff(want, got.Warnings) != "" {
		t.Errorf("test warns of %v", got.Warnings)
	}
}

// FuzzTryRule sends anything: the answer is JSON, and nothing is stored.
func FuzzTryRule(f *testing.F) {
	f.Add(`{"pattern":{"type":["test"]},"transform":{"template":"${type}"},"events":[{}]}`)
	f.Add(`{"rule":{"pattern":{"type":["x"]},"targets":[{"target":"t"}]},"stored":[{"id":"x"}]}`)
	f.Add(`{"event":{"time":"2027-01-01T00:00:00Z","data":{"a":[{"b":1}]}},"rule":"r"}`)
	f.Add(`{"events":[null,1,{"data_base64":"!"}],"pattern":[],"sql":""}`)
	b, definitions := newFakeBridge(), memory.New(nil)
	defer definitions.Close()
	if _, err := definitions.Put(f.Context(), store.Key{Kind: "Bus", Name: "default"}, json.RawMessage(`{}`), store.Condition{}); err != nil {
		f.Fatal(err)
	}
	a, err := api.New(api.Options{Bridge: b, Store: definitions, Keys: api.NewKeys(), Kinds: kinds(), Anonymous: true})
	if err != nil {
		f.Fatal(err)
	}
	defer a.Close()
	f.Fuzz(func(t *testing.T, body string) {
		for _, path := range []string{"test", "explain"} {
			w := httptest.NewRecorder()
			r := httptest.NewRequest("POST", "http://localhost/v1/rules:"+path, strings.NewReader(body))
			a.ServeHTTP(w, r)
			if !json.Valid(w.Body.Bytes()) || w.Code >= 500 {
				t.Fatalf("%q is answered %d %s", body, w.Code, w.Body)
			}
		}
		if b.stored("default")+b.stored("devices") != 0 {
			t.Fatal("something is stored")
		}
	})
}
