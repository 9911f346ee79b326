// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
)

// parcelText is the schema whose changes are tried.
const parcelText = `{"type":"object","properties":{
	"id":{"type":"string"},
	"weight":{"type":"number"},
	"state":{"enum":["new","sent","lost"]},
	"express":{"type":"boolean"},
	"to":{"type":"object","properties":{"city":{"type":"string"},"zip":{"type":"string"}},"required":["city"]},
	"items":{"type":"array","items":{"type":"object","properties":{"sku":{"type":"string"}},"required":["sku"]}}},
	"required":["id","weight","state","to"]}`

type impactAnswer struct {
	Verdict string
	Version int
	Types   []string
	Changes []struct {
		Path string
		What []string
	}
	Consumers []struct {
		Bus, Rule, Target, Verdict string
		Types                      []string
		Reasons                    []struct{ Verdict, Path, By, Reason string }
	}
}

func (s *server) addRule(doc string) {
	s.t.Helper()
	r, err := rules.ParseRule([]byte(doc))
	if err != nil {
		s.t.Fatal(err)
	}
	s.bridge.mu.Lock()
	defer s.bridge.mu.Unlock()
	s.bridge.rules = append(s.bridge.rules, r)
}

// A change of the schema, a rule that reads it, and what becomes of the rule.
func TestImpact(t *testing.T) {
	s := start(t)
	const at = "/v1/schemas/shop/Parcel"
	s.do("POST", at+"/versions", texted(parcelText)).want(t, http.StatusCreated)
	s.do("PUT", at+"/types/parcel", "").want(t, http.StatusOK)
	pattern := func(data string) string {
		return `"pattern":{"type":["parcel"],"data":{` + data + `}},"targets":[{"target":"hook","transform":{"constant":1}}]`
	}
	const every = `"pattern":{"source":[{"exists":true}]}`
	takes := func(transform string) string {
		return every + `,"targets":[{"target":"hook","transform":` + transform + `}]`
	}
	when := func(when string) string {
		return every + `,"when":"` + when + `","targets":[{"target":"hook","transform":{"constant":1}}]`
	}
	for _, c := range []struct {
		name, old, new string // old is replaced by new in the schema
		rule           string
		verdict        string
		path, why      string // of the reason; "" = none
	}{
		{"nothing changes", "", "", pattern(`"state":["new"]`), "unaffected", "", ""},
		{"something else changes", `"express":{"type":"boolean"},`, "", pattern(`"state":["new"]`), "unaffected", "", ""},
		{"attributes are not the schema's", `"express":{"type":"boolean"},`, "", every + `,"sql":"subject = 'a'","targets":[{"target":"hook","transform":{"template":"${subject}"}}]`, "unaffected", "", ""},
		{"a rule of another type", `"id":{"type":"string"},`, `"id":{"type":"integer"},`, `"pattern":{"type":["other"]},"targets":[{"target":"hook"}]`, "", "", ""},

		{"pattern: removed", `"express":{"type":"boolean"},`, "", pattern(`"express":[true]`), "breaks", "/data/express", "nothing is there"},
		{"pattern: removed, in a branch", `"express":{"type":"boolean"},`, "", pattern(`"$or":[{"express":[true]},{"state":["new"]}]`), "mayBreak", "/data/express", "branch"},
		{"pattern: removed, and absence is asked for", `"express":{"type":"boolean"},`, "", pattern(`"express":[{"exists":false}]`), "unaffected", "", ""},
		{"pattern: there always, and absence is asked for", `"required":["id",`, `"required":["id","express",`, pattern(`"express":[{"exists":false}]`), "breaks", "/data/express", "never holds"},
		{"pattern: there always, and absence may be", `"required":["id",`, `"required":["id","express",`, pattern(`"express":[{"exists":false},true]`), "mayBreak", "/data/express", "may be there now"},
		{"pattern: comes, and absence is asked for", `"id":{"type":"string"},`, `"id":{"type":"string"},"note":{"type":"string"},`, pattern(`"note":[{"exists":false}]`), "mayBreak", "/data/note", "may not hold now"},
		{"pattern: another type", `"weight":{"type":"number"}`, `"weight":{"type":"string"}`, pattern(`"weight":[{"numeric":[">",3]}]`), "breaks", "/data/weight", "it is string"},
		{"pattern: another type that will do", `"weight":{"type":"number"}`, `"weight":{"type":"integer"}`, pattern(`"weight":[{"numeric":[">",3]}]`), "unaffected", "", ""},
		{"pattern: one type more", `"weight":{"type":"number"}`, `"weight":{"type":["number","string"]}`, pattern(`"weight":[{"numeric":[">",3]}]`), "mayBreak", "/data/weight", "may be string"},
		{"pattern: any type will do", `"weight":{"type":"number"}`, `"weight":{"type":"string"}`, pattern(`"weight":[{"exists":true}]`), "unaffected", "", ""},
		{"pattern: becomes an object", `"weight":{"type":"number"}`, `"weight":{"type":"object"}`, pattern(`"weight":[{"exists":true}]`), "breaks", "/data/weight", "it is object"},
		{"pattern: becomes a list, which patterns look into", `"weight":{"type":"number"}`, `"weight":{"type":"array","items":{"type":"number"}}`, pattern(`"weight":[{"numeric":[">",3]}]`), "unaffected", "", ""},
		{"pattern: optional", `"required":["id","weight",`, `"required":["id",`, pattern(`"weight":[{"numeric":[">",3]}]`), "mayBreak", "/data/weight", "missing"},
		{"pattern: optional, and exists", `"required":["id","weight",`, `"required":["id",`, pattern(`"weight":[{"exists":true}]`), "mayBreak", "/data/weight", "may not hold"},
		{"pattern: the value goes", `["new","sent","lost"]`, `["new","sent"]`, pattern(`"state":["lost"]`), "breaks", "/data/state", `it is "new" or "sent"`},
		{"pattern: one of the values goes", `["new","sent","lost"]`, `["new","sent"]`, pattern(`"state":["lost","new"]`), "mayBreak", "/data/state", `never "lost"`},
		{"pattern: another value goes", `["new","sent","lost"]`, `["new","sent"]`, pattern(`"state":["new"]`), "unaffected", "", ""},
		{"pattern: a value comes", `["new","sent","lost"]`, `["new","sent","lost","found"]`, pattern(`"state":["new"]`), "unaffected", "", ""},
		{"pattern: a prefix that no value has any more", `["new","sent","lost"]`, `["new","sent"]`, pattern(`"state":[{"prefix":"lo"}]`), "breaks", "/data/state", "never holds"},
		{"pattern: in a list", `"sku":{"type":"string"}`, `"sku":{"type":"integer"}`, pattern(`"items":{"sku":["a"]}`), "breaks", "/data/items/sku", "it is integer"},
		{"pattern: in a list, optional", `"required":["sku"]`, `"required":[]`, pattern(`"items":{"sku":["a"]}`), "mayBreak", "/data/items/sku", "missing"},
		{"pattern: what it is in goes", `"to":{"type":"object","properties":{"city":{"type":"string"},"zip":{"type":"string"}},"required":["city"]},`, "", pattern(`"to":{"city":["Rome"]}`), "breaks", "/data/to/city", "nothing is there"},
		{"pattern: what it is in is optional", `"state","to"]`, `"state"]`, pattern(`"to":{"city":["Rome"]}`), "mayBreak", "/data/to/city", "missing"},

		{"when: removed", `"express":{"type":"boolean"},`, "", when("data.express"), "breaks", "/data/express", "nothing is there"},
		{"when: another type", `"weight":{"type":"number"}`, `"weight":{"type":"string"}`, when("data.weight > 3"), "breaks", "/data/weight", "must be number"},
		{"when: one type more", `"weight":{"type":"number"}`, `"weight":{"type":["number","null"]}`, when("data.weight > 3"), "mayBreak", "/data/weight", "may be null"},
		{"when: optional", `"required":["id","weight",`, `"required":["id",`, when("data.weight > 3"), "mayBreak", "/data/weight", "missing"},
		{"when: a value goes", `["new","sent","lost"]`, `["new","sent"]`, when("data.state == 'lost'"), "mayBreak", "/data/state", `never "lost"`},
		{"when: items", `"sku":{"type":"string"}`, `"sku":{"type":"integer"}`, when("any(data.items, .sku == 'a')"), "breaks", "/data/items/*/sku", "must be string"},

		{"path: removed", `"express":{"type":"boolean"},`, "", takes(`{"path":"$.data.express"}`), "breaks", "/data/express", "nothing is there"},
		{"path: optional", `"required":["id","weight",`, `"required":["id",`, takes(`{"path":"$.data.weight"}`), "mayBreak", "/data/weight", "cannot be delivered"},
		{"path: narrower", `"weight":{"type":"number"}`, `"weight":{"type":"integer"}`, takes(`{"path":"$.data.weight"}`), "unaffected", "", ""},
		{"path: what is in it", `"zip":{"type":"string"}`, `"zip":{"type":"integer"}`, takes(`{"path":"$.data.to"}`), "mayBreak", "/data/to", "/data/to/zip"},
		{"path: what is beside it", `"weight":{"type":"number"}`, `"weight":{"type":"string"}`, takes(`{"path":"$.data.to"}`), "unaffected", "", ""},
		{"template: removed", `"express":{"type":"boolean"},`, "", takes(`{"template":{"x":"${data.express}"}}`), "breaks", "/data/express", "nothing is there"},
		{"template: retyped", `"weight":{"type":"number"}`, `"weight":{"type":"string"}`, takes(`{"template":{"x":"${data.weight}"}}`), "mayBreak", "/data/weight", "may be string now, and was number"},
		{"template: a value comes", `["new","sent","lost"]`, `["new","sent","lost","found"]`, takes(`{"template":{"x":"${data.state}"}}`), "mayBreak", "/data/state", `may be "found" now`},
		{"template: a value goes", `["new","sent","lost"]`, `["new","sent"]`, takes(`{"template":{"x":"${data.state}"}}`), "unaffected", "", ""},
		{"template: the enum goes", `{"enum":["new","sent","lost"]}`, `{"type":"string"}`, takes(`{"template":{"x":"${data.state}"}}`), "mayBreak", "/data/state", "may be another"},
		{"original: removed", `"express":{"type":"boolean"},`, "", takes(`"original"`), "mayBreak", "", "/data/express"},
		{"original: a member comes", `"id":{"type":"string"},`, `"id":{"type":"string"},"note":{"type":"string"},`, takes(`"original"`), "unaffected", "", ""},
		{"original: required", `"required":["id",`, `"required":["id","express",`, takes(`"original"`), "unaffected", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !strings.Contains(parcelText, c.old) {
				t.Fatal("the schema does not hold that")
			}
			s.bridge.rules = nil
			s.addRule(`{"name":"r",` + c.rule + `}`)
			got := into[impactAnswer](t, s.do("POST", at+":impact", texted(strings.Replace(parcelText, c.old, c.new, 1))).want(t, http.StatusOK))
			if c.verdict == "" {
				if len(got.Consumers) > 0 || got.Verdict != "unaffected" {
					t.Errorf("%+v", got)
				}
				return
			}
			if len(got.Consumers) != 1 || got.Verdict != c.verdict || got.Version != 1 || fmt.Sprint(got.Types) != "[parcel]" {
				t.Fatalf("%+v, want %s", got, c.verdict)
			}
			x := got.Consumers[0]
			if x.Verdict != c.verdict || x.Bus != "default" || x.Rule != "r" || x.Target != "hook" || fmt.Sprint(x.Types) != "[parcel]" {
				t.Errorf("%+v", x)
			}
			if c.why == "" {
				if len(x.Reasons) > 0 {
					t.Errorf("reasons %+v", x.Reasons)
				}
				return
			}
			if len(x.Reasons) != 1 || x.Reasons[0].Path != c.path || !strings.Contains(x.Reasons[0].Reason, c.why) || x.Reasons[0].Verdict != c.verdict {
				t.Errorf("reasons %+v, want %s at %s", x.Reasons, c.why, c.path)
			}
		})
	}
}

// The key of a target's order is read, too; the worst comes first; what cannot be judged is said.
func TestImpactOfMany(t *testing.T) {
	s := start(t)
	const at = "/v1/schemas/shop/Parcel"
	s.do("POST", at+":impact", texted(parcelText)).want(t, http.StatusNotFound)
	s.do("POST", at+"/versions", texted(parcelText)).want(t, http.StatusCreated)
	s.do("PUT", at+"/types/parcel", "").want(t, http.StatusOK)
	s.addRule(`{"name":"one","pattern":{"data":{"weight":[1]}},"targets":[{"target":"a"},{"target":"b","transform":{"constant":1}}]}`)
	s.addRule(`{"name":"two","bus":"devices","pattern":{"type":[{"prefix":"par"}],"data":{"id":["x"]}},"targets":[{"target":"ordered","transform":{"constant":1}}]}`)
	def, err := targets.ParseDefinition([]byte(`{"kind":"Target","name":"ordered","type":"webhook","config":{},"delivery":{"ordering":"key","orderBy":"data.express"}}`),
		targets.NewCatalog(targets.Kind{Name: "webhook", ConfigSchema: []byte(`{"type":"object"}`)}))
	if err != nil {
		t.Fatal(err)
	}
	s.bridge.ordering = map[string]*targets.Ordering{"ordered": def.Delivery.Ordering}
	next := strings.Replace(strings.Replace(parcelText, `"express":{"type":"boolean"},`, "", 1), `"required":["id",`, `"required":[`, 1)
	got := into[impactAnswer](t, s.do("POST", at+":impact", texted(next)).want(t, http.StatusOK))
	var lines []string
	for _, c := range got.Consumers {
		lines = append(lines, fmt.Sprint(c.Bus, " ", c.Rule, " ", c.Target, " ", c.Verdict, " ", len(c.Reasons)))
	}
	if want := "devices two ordered breaks 2;default one a mayBreak 1;default one b unaffected 0"; strings.Join(lines, ";") != want {
		t.Errorf("consumers %q, want %q", strings.Join(lines, ";"), want)
	}
	if fmt.Sprint(got.Changes) != "[{/data/express [removed]} {/data/id [optional]}]" {
		t.Errorf("changes %+v", got.Changes)
	}
	wantProblem(t, s.do("POST", at+":impact", `{"schema":{"type":"nonsense"}}`), 400, "invalid", "/schema/type")
	wantProblem(t, s.do("POST", at+":impact", `{"schema":{},"compatibility":"full"}`), 400, "invalid", "")
	s.do("POST", at+":impact", `{"schema":{},"version":7}`).want(t, http.StatusNotFound)
	s.do("POST", "/v1/schemas/shop/Row/versions", `{"format":"avro","schema":{"type":"record","name":"r","fields":[]}}`).want(t, http.StatusCreated)
	s.do("POST", "/v1/schemas/shop/Row:impact", `{"schema":{"type":"record","name":"r","fields":[]}}`).want(t, http.StatusUnsupportedMediaType)
}

// What a target looks at itself counts as well, unless a transform has made other data of the event.
func TestImpactOnTargets(t *testing.T) {
	s := start(t)
	const at = "/v1/schemas/shop/Parcel"
	s.do("POST", at+"/versions", texted(parcelText)).want(t, http.StatusCreated)
	s.do("PUT", at+"/types/parcel", "").want(t, http.StatusOK)
	s.addRule(`{"name":"as-it-is","pattern":{"type":["parcel"]},"targets":[{"target":"sms"}]}`)
	s.addRule(`{"name":"made","pattern":{"type":["parcel"]},"targets":[{"target":"sms","transform":{"template":{"id":"${data.id}"}}}]}`)
	text, err := rules.ParseText("https://sms.example.com/${data.state}?by=${subject}", rules.FormURL, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.bridge.reads = map[string][]rules.Read{"sms": text.Reads("/config/url")}
	next := strings.Replace(parcelText, `"state":{"enum":["new","sent","lost"]},`, "", 1)
	if next == parcelText {
		t.Fatal("the schema does not hold that")
	}
	got := into[impactAnswer](t, s.do("POST", at+":impact", texted(next)).want(t, http.StatusOK))
	verdicts := map[string]string{}
	for _, c := range got.Consumers {
		verdicts[c.Rule] = c.Verdict
		for _, r := range c.Reasons {
			if c.Rule == "as-it-is" && r.Verdict == "breaks" && (r.Path != "/data/state" || r.By != "/config/url") {
				t.Errorf("%+v", r)
			}
		}
	}
	if fmt.Sprint(verdicts) != "map[as-it-is:breaks made:unaffected]" {
		t.Errorf("%+v", got.Consumers)
	}
}

func TestCatalog(t *testing.T) {
	s := start(t)
	const at = "/v1/schemas/shop/Parcel"
	s.do("POST", at+"/versions", texted(parcelText)).want(t, http.StatusCreated)
	s.do("PUT", at+"/types/parcel", "").want(t, http.StatusOK)
	s.do("PUT", at+"/types/unseen", "").want(t, http.StatusOK)
	s.bridge.traffic = map[string][]bridge.TypeTraffic{
		"default": {{Type: "invoice", Stored: 4}, {Type: "parcel", Stored: 3, Routed: 2, Last: arrived, Hours: []bridge.HourTraffic{{Hour: arrived, Events: 2}}, Sources: []string{"/a"}, MoreSources: true}},
		"devices": {{Type: "parcel", Stored: 1}},
	}
	s.addRule(`{"name":"heavy","pattern":{"type":["parcel","unseen"],"data":{"weight":[{"numeric":[">",3]}]}},"targets":[{"target":"hook","transform":{"path":"$.data.id"}},{"target":"log"}]}`)
	type entry struct {
		Bus, Type      string
		Stored, Routed int
		Since, Last    string
		Hours          []struct{ Events int }
		Sources        []string
		MoreSources    bool
		More           int
		Schema         *struct {
			Group, Schema string
			Version       int
		}
		Consumers []struct {
			Bus, Rule, Target string
			Reads             []struct {
				Path, By  string
				Operators []string
				Whole     bool
			}
		}
	}
	list := func(query string) []entry {
		return into[pageAnswer[entry]](t, s.do("GET", "/v1/catalog"+query, "").want(t, http.StatusOK)).Items
	}
	names := func(entries []entry) string {
		var out []string
		for _, e := range entries {
			out = append(out, e.Bus+":"+e.Type)
		}
		return strings.Join(out, " ")
	}
	for query, want := range map[string]string{"": "default:invoice default:parcel devices:parcel :unseen", "?bus=devices": "devices:parcel", "?type=parcel": "default:parcel devices:parcel",
		"?schema=shop/Parcel": "default:parcel devices:parcel :unseen", "?schema=shop/None": "", "?target=hook": "default:parcel :unseen", "?target=none": ""} {
		if got := names(list(query)); got != want {
			t.Errorf("%q: %q, want %q", query, got, want)
		}
	}
	var paged []entry
	for cursor := ""; ; {
		p := into[pageAnswer[entry]](t, s.do("GET", "/v1/catalog?limit=1&cursor="+cursor, "").want(t, http.StatusOK))
		paged = append(paged, p.Items...)
		if cursor = p.NextCursor; cursor == "" {
			break
		}
	}
	if got := names(paged); got != "default:invoice default:parcel devices:parcel :unseen" {
		t.Errorf("by pages: %q", got)
	}
	e := paged[1]
	if e.Stored != 3 || e.Routed != 2 || e.Since == "" || e.Last == "" || len(e.Hours) != 1 || e.Hours[0].Events != 2 || fmt.Sprint(e.Sources) != "[/a]" || !e.MoreSources ||
		e.Schema == nil || e.Schema.Version != 1 || e.Schema.Schema != "Parcel" {
		t.Errorf("parcel: %+v", e)
	}
	if len(e.Consumers) != 2 || e.Consumers[0].Target != "hook" || e.Consumers[0].Bus != "" || len(e.Consumers[0].Reads) != 3 || e.Consumers[0].Reads[1].Path != "/data/weight" ||
		e.Consumers[0].Reads[2].By != "/targets/0/transform/path" || e.Consumers[1].Reads[2].Path != "" || !e.Consumers[1].Reads[2].Whole {
		t.Errorf("consumers: %+v", e.Consumers)
	}
	if unseen := paged[3]; len(unseen.Consumers) != 2 || unseen.Consumers[0].Bus != "default" {
		t.Errorf("of a type that was not seen: %+v", unseen)
	}
	for i := range 1003 {
		s.addRule(fmt.Sprintf(`{"name":"r%d","pattern":{"type":["invoice"]},"targets":[{"target":"log"}]}`, i))
	}
	if many := list("?type=invoice"); len(many) != 1 || len(many[0].Consumers) != 1000 || many[0].More != 3 || paged[1].More != 0 {
		t.Errorf("of many consumers %d are listed, and %d more are said to be", len(many[0].Consumers), many[0].More)
	}
	s.do("GET", "/v1/catalog?bus=none", "").want(t, http.StatusNotFound)
	s.do("GET", "/v1/catalog?cursor=*", "").want(t, http.StatusBadRequest)
	s.key = s.addKey("narrow", "definitions:read:default")
	s.do("GET", "/v1/catalog", "").want(t, http.StatusForbidden)
}
