// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
)

const tooWarm = `{"kind":"Rule","name":"too-warm","bus":"devices","labels":{"team":"cold-chain"},"description":"warm boxes","disabled":false,
"pattern":{"type":["com.acme.telemetry"],"data":{"temperature":[{"numeric":[">",8]}],"door":[{"anything-but":"open"}]}},
"targets":[{"target":"ops-webhook","transform":{"template":{"text":"Box ${subject} is at ${data.temperature} C","at":"${time}"}}},{"target":"archive"}],
"revision":7,"createdAt":"2026-11-30T12:00:00Z","updatedAt":"2026-11-30T12:00:00Z","status":{"x":1}}`

func mustRule(t testing.TB, doc string) *rules.Rule {
	t.Helper()
	r, err := rules.ParseRule([]byte(doc))
	if err != nil {
		t.Fatalf("ParseRule(%s): %v", doc, err)
	}
	return r
}

// patternRule is a rule of one pattern.
func patternRule(t testing.TB, name, pattern string) *rules.Rule {
	t.Helper()
	return mustRule(t, fmt.Sprintf(`{"name":%q,"targets":[{"target":"t"}],"pattern":%s}`, name, pattern))
}

func TestParseRule(t *testing.T) {
	doc := []byte(tooWarm)
	r, err := rules.ParseRule(doc)
	if err != nil {
		t.Fatal(err)
	}
	clear(doc)
	if r.Name != "too-warm" || r.Bus != "devices" || r.Revision != 0 || r.Disabled || r.Description != "warm boxes" || string(r.Raw) != tooWarm {
		t.Errorf("ParseRule = %+v", r)
	}
	if diff := cmp.Diff(map[string]string{"team": "cold-chain"}, r.Labels); diff != "" {
		t.Error(diff)
	}
	if len(r.Targets) != 2 || r.Targets[0].Target != "ops-webhook" || r.Targets[0].Transform == nil || r.Targets[1].Transform != nil {
		t.Errorf("Targets = %+v", r.Targets)
	}
	if want := `{"type":["com.acme.telemetry"],"data":{"temperature":[{"numeric":[">",8]}],"door":[{"anything-but":"open"}]}}`; r.Pattern.String() != want {
		t.Errorf("Pattern = %s, want %s", r.Pattern, want)
	}
	if r := patternRule(t, "a", `{"type":["x"]}`); r.Bus != "default" {
		t.Errorf("Bus = %q, want default", r.Bus)
	}
}

func TestRuleRefused(t *testing.T) {
	with := func(member string) string {
		return `{"name":"a","pattern":{"type":["x"]},"targets":[{"target":"t"}],` + member + `}`
	}
	pattern := func(p string) string { return `{"name":"a","targets":[{"target":"t"}],"pattern":` + p + `}` }
	targets := func(list string) string { return `{"name":"a","pattern":{"type":["x"]},"targets":` + list + `}` }
	many := strings.Repeat(`{"target":"t"},`, 100) + `{"target":"t"}`
	for _, tt := range []struct{ name, doc, pointer, detail string }{
		{"not JSON", `{`, "", "not valid JSON"},
		{"not an object", `[]`, "", "this is an array"},
		{"too large", with(`"description":"` + strings.Repeat("x", rules.MaxRule) + `"`), "", "at most 262144"},
		{"nothing: name", `{}`, "/name", "missing"},
		{"nothing: pattern", `{}`, "/pattern", `{"source":[{"exists":true}]}`},
		{"nothing: targets", `{}`, "/targets", "missing"},
		{"kind", with(`"kind":"Bus"`), "/kind", "must be Rule"},
		{"name", `{"name":"Too Warm","pattern":{"type":["x"]},"targets":[{"target":"t"}]}`, "/name", "a-z, 0-9 and -"},
		{"bus", with(`"bus":"-x"`), "/bus", "a-z, 0-9 and -"},
		{"twice", with(`"name":"b"`), "/name", "twice"},
		{"typo", with(`"descripton":"x"`), "/descripton", "did you mean description?"},
		{"unknown", with(`"zzzzzzzzzz":"x"`), "/zzzzzzzzzz", "kind, name, bus"},
		{"description", with(`"description":"` + strings.Repeat("x", 4097) + `"`), "/description", "at most 4096"},
		{"disabled", with(`"disabled":"no"`), "/disabled", "true or false"},
		{"when", with(`"when":["data.x > 1"]`), "/when", "this is an array"},
		{"when that is none", with(`"when":"data.x >"`), "/when", "column 8"},
		{"sql", with(`"sql":1`), "/sql", "this is a number"},
		{"sql that is none", with(`"sql":"x ="`), "/sql", "not CESQL"},
		{"labels", with(`"labels":["x"]`), "/labels", "this is an array"},
		{"label", with(`"labels":{"a":5}`), "/labels/a", "must be a string"},
		{"label twice", with(`"labels":{"a":"5","a":"6"}`), "/labels/a", "twice"},
		{"label name", with(`"labels":{"":"5"}`), "/labels/", "1 to 63"},
		{"empty pattern", pattern(`{}`), "/pattern", `{"source":[{"exists":true}]}`},
		{"pattern", pattern(`{"type":"x"}`), "/pattern/type", `write ["x"]`},
		{"AWS detail", pattern(`{"detail":{"state":["x"]}}`), "/pattern/detail/state", "under data"},
		{"AWS detail-type", pattern(`{"detail-type":["x"]}`), "/pattern/detail-type", "attribute type"},
		{"upper case", pattern(`{"Type":["x"]}`), "/pattern/Type", "cannot be an attribute"},
		{"binary", pattern(`{"data_base64":["x"]}`), "/pattern/data_base64", "binary"},
		{"below an attribute", pattern(`{"subject":{"x":["y"]}}`), "/pattern/subject/x", "one value"},
		{"in $or", pattern(`{"$or":[{"type":["x"]},{"Subject":["y"]}]}`), "/pattern/$or/1/Subject", "cannot be an attribute"},
		{"targets", targets(`{"target":"t"}`), "/targets", "list of"},
		{"no targets", targets(`[]`), "/targets", "at least one"},
		{"many targets", targets(`[` + many + `]`), "/targets", "101 targets"},
		{"target twice", targets(`[{"target":"t"},{"target":"t"}]`), "/targets/1/target", "twice"},
		{"target not an object", targets(`["t"]`), "/targets/0", "this is a string"},
		{"target without name", targets(`[{"transform":"original"}]`), "/targets/0/target", "missing"},
		{"target's name", targets(`[{"target":"A"}]`), "/targets/0/target", "a-z"},
		{"target's typo", targets(`[{"target":"t","transfrom":"original"}]`), "/targets/0/transfrom", "did you mean transform?"},
		{"transform", targets(`[{"target":"t","transform":{"path":"x"}}]`), "/targets/0/transform/path", "not a JSONPath"},
		{"template", targets(`[{"target":"t","transform":{"template":{"a":["${x"]}}}]`), "/targets/0/transform/template/a/0", "not closed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := rules.ParseRule([]byte(tt.doc))
			checkRefused(t, err, tt.pointer, tt.detail)
		})
	}
}

// full is an event that has everything.
func full() *event.Event {
	return &event.Event{
		ID: "42", Source: "/box/17", Type: "com.acme.telemetry", Subject: "truck/17", DataContentType: "application/json", DataSchema: "https://acme.example/s",
		Time:       time.Date(2026, 11, 30, 13, 0, 0, 0, time.FixedZone("", 3600)),
		Extensions: []event.Attribute{{Name: "attempt", Value: int32(3)}, {Name: "test", Value: true}, {Name: "zone", Value: "north"}},
		Data:       []byte(`{"temperature":9.1,"door":"closed"}`),
	}
}

func TestMatchEvent(t *testing.T) {
	data := func(contentType, text string) *event.Event {
		ev := full()
		ev.DataContentType, ev.Data = contentType, []byte(text)
		return ev
	}
	bare := full()
	bare.Data, bare.Subject, bare.Time = nil, "", time.Time{}
	for _, tt := range []struct {
		name, pattern string
		ev            *event.Event
		want          bool
	}{
		{"id", `{"id":["42"]}`, full(), true},
		{"source and type", `{"source":[{"prefix":"/box/"}],"type":["com.acme.telemetry"]}`, full(), true},
		{"subject", `{"subject":[{"wildcard":"truck/*"}]}`, full(), true},
		{"absent subject", `{"subject":[{"exists":false}]}`, bare, true},
		{"specversion", `{"specversion":["1.0"]}`, full(), true},
		{"time", `{"time":["2026-11-30T13:00:00+01:00"]}`, full(), true},
		{"absent time", `{"time":[{"exists":false}]}`, bare, true},
		{"content type and schema", `{"datacontenttype":["application/json"],"dataschema":[{"suffix":"/s"}]}`, full(), true},
		{"integer extension", `{"attempt":[{"numeric":[">=",3]}]}`, full(), true},
		{"integer extension is no string", `{"attempt":["3"]}`, full(), false},
		{"boolean extension", `{"test":[true]}`, full(), true},
		{"string extension", `{"zone":["north"]}`, full(), true},
		{"extension called detail", `{"detail":[{"exists":false}]}`, full(), true},
		{"payload", `{"data":{"temperature":[{"numeric":[">",8]}],"door":[{"anything-but":"open"}]}}`, full(), true},
		{"payload by dots", `{"data.door":["closed"]}`, full(), true},
		{"attribute fails first", `{"data":{"door":["closed"]},"type":["other"]}`, full(), false},
		{"no payload", `{"data":{"door":[{"exists":true}]}}`, bare, false},
		{"no payload, absent", `{"data":{"door":[{"exists":false}]}}`, bare, true},
		{"payload is a scalar", `{"data":[5]}`, data("application/json", " 5.0 "), true},
		{"payload is a list", `{"data":{"x":[2]}}`, data("application/json", `[{"x":1},{"x":2}]`), true},
		{"suffix of the type", `{"data":{"x":[1]}}`, data("application/vnd.acme+json; charset=utf-8", `{"x":1}`), true},
		{"no type", `{"data":{"x":[1]}}`, data("", `{"x":1}`), true},
		{"no type, no JSON", `{"data":{"x":[{"exists":false}]}}`, data("", `x=1`), true},
		{"text that looks like JSON", `{"data":{"x":[1]}}`, data("text/plain", `{"x":1}`), false},
		{"not what it says", `{"data":{"x":[1]}}`, data("application/json", `{"x":1`), false},
		{"not what it says, attributes", `{"type":["com.acme.telemetry"],"data":{"x":[{"exists":false}]}}`, data("application/json", `{"x":1`), true},
		{"not UTF-8", `{"data":{"x":[{"exists":false}]}}`, data("application/json", "{\"x\":\"\xff\"}"), true},
		{"$or over attributes and payload", `{"$or":[{"type":["x"]},{"data":{"door":["closed"]}}]}`, full(), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x, err := rules.Compile([]*rules.Rule{patternRule(t, "r", tt.pattern)})
			if err != nil {
				t.Fatal(err)
			}
			matches, err := x.Match(tt.ev, nil, nil)
			if err != nil || len(matches) == 1 != tt.want {
				t.Errorf("Match(%s) = %v, %v; want %t", tt.pattern, matches, err, tt.want)
			}
		})
	}
}

func TestIndex(t *testing.T) {
	a, b, c := patternRule(t, "a", `{"type":[{"prefix":"com."}]}`), patternRule(t, "b", `{"data":{"door":["open"]}}`), patternRule(t, "c", `{"data":{"door":["closed"]}}`)
	off := mustRule(t, `{"name":"off","disabled":true,"pattern":{"type":[{"exists":true}]},"targets":[{"target":"t"}]}`)
	x, err := rules.Compile([]*rules.Rule{off, a, b, c})
	if err != nil {
		t.Fatal(err)
	}
	if len(x.Rules()) != 4 {
		t.Errorf("Rules() = %v, want all four", x.Rules())
	}
	before := rules.Match{Rule: off}
	matches, err := x.Match(full(), new(rules.Scratch), []rules.Match{before})
	if err != nil || len(matches) != 3 || matches[0] != before || matches[1].Rule != a || matches[2].Rule != c {
		t.Errorf("Match = %v, %v; want what was there, a and c", matches, err)
	}
	if _, err := rules.Compile([]*rules.Rule{a, a}); err == nil {
		t.Error("Compile takes one rule twice")
	}
	if _, err := rules.Compile([]*rules.Rule{{Name: "x"}}); err == nil {
		t.Error("Compile takes a rule without a pattern")
	}
	if _, err := x.MatchDocument([]byte(`{"type":`+strings.Repeat(" ", rules.MaxDocument)+`"com."}`), nil, nil); err == nil {
		t.Error("MatchDocument takes a document beyond the limit")
	}
}

func TestMatchIsSafeForConcurrentUse(t *testing.T) {
	x := threeFields(t, 20)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			var s rules.Scratch
			var dst []rules.Match
			for i := range 200 {
				n := (g*31 + i) % 20
				var err error
				dst, err = x.Match(reading(n), &s, dst[:0])
				if err != nil || len(dst) != 1 || dst[0].Rule.Name != fmt.Sprintf("r%d", n) {
					t.Errorf("Match(%d) = %v, %v", n, dst, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestScratchForgets holds that one large event does not leave a scratch large for ever, and not small at once.
func TestScratchForgets(t *testing.T) {
	x, err := rules.Compile([]*rules.Rule{patternRule(t, "a", `{"data":{"w":["x"],"r":{"k":[1],"v":[{"exists":false}]}}}`)})
	if err != nil {
		t.Fatal(err)
	}
	large := full()
	large.Data = []byte(`{"w":["x"` + strings.Repeat(`,"y"`, 200_000) + `],"r":[{"k":1}]}`)
	var s rules.Scratch
	match := func(ev *event.Event) int {
		got, err := x.Match(ev, &s, nil)
		if err != nil {
			t.Fatal(err)
		}
		return len(got)
	}
	if match(large) != 1 || s.Holds() < 200_000 {
		t.Fatalf("the large event does not match, or the scratch holds only %d values", s.Holds())
	}
	small := full()
	small.Data = []byte(`{"w":"x","r":[{"k":1}]}`)
	match(small)
	if s.Holds() < 200_000 {
		t.Error("the scratch has forgotten at once")
	}
	for range 200 {
		match(small)
	}
	if s.Holds() > 50_000 {
		t.Errorf("the scratch holds %d values", s.Holds())
	}
}
