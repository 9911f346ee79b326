// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
)

func explain(t *testing.T, pattern, contentType, data string) rules.Explanation {
	t.Helper()
	ev := full()
	ev.DataContentType, ev.Data = contentType, []byte(data)
	return patternRule(t, "r", pattern).Explain(ev)
}

func TestExplain(t *testing.T) {
	got := explain(t, `{"type":["com.acme.telemetry"],"data":{"temperature":[{"numeric":[">",8]}],"door":["open"]}}`, "application/json", `{"temperature":9.1,"door":"closed"}`)
	want := rules.Explanation{Clauses: []rules.Clause{
		{Pointer: "/type", Path: "type", Expected: `["com.acme.telemetry"]`, Actual: `"com.acme.telemetry"`, Verdict: rules.Matched},
		{Pointer: "/data/temperature", Path: "data.temperature", Expected: `[{"numeric":[">",8]}]`, Actual: `9.1`, Verdict: rules.Matched},
		{Pointer: "/data/door", Path: "data.door", Expected: `["open"]`, Actual: `"closed"`, Verdict: rules.Failed},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestExplainClause(t *testing.T) {
	long := strings.Repeat("é", 300)
	for _, tt := range []struct{ name, pattern, data, actual, hint string }{
		{"absent", `{"data":{"x":[1]}}`, `{"other":1}`, "absent", "the event has: data.other"},
		{"absent among many", `{"data":{"x":[1]}}`, `{"k1":1,"k2":2,"k3":3,"k4":4,"k5":5,"k6":6}`, "absent", "the event has: data.k1, data.k2, data.k3, data.k4, data.k5, …"},
		{"absent, the nearest first", `{"data":{"temperature":[1]}}`, `{"door":1,"tmp":2,"temp":3,"temperatur":4}`, "absent", "the event has: data.temperatur, data.temp"},
		{"absent, with nothing there", `{"data":{"x":{"y":[1]}}}`, `{"x":{}}`, "absent", ""},
		{"absent, nearly there", `{"data":{"temperature":[1]}}`, `{"temprature":1}`, "absent", "the event has: data.temprature"},
		{"absent, in an array", `{"data":{"list":{"code":[1]}}}`, `{"list":[{"cod":1},{}]}`, "absent", "the event has: data.list.cod"},
		{"absent attribute", `{"subjec":["x"]}`, `{}`, "absent", "the event has: subject"},
		{"below a scalar", `{"data":{"x":{"y":[1]}}}`, `{"x":5}`, "absent: data.x is not an object", ""},
		{"an object", `{"data":{"x":[1]}}`, `{"x":{"y":1}}`, "an object or an empty list: no value of its own", ""},
		{"anything-but and absent", `{"data":{"door":[{"anything-but":"open"}]}}`, `{"x":1}`, "absent", `anything-but needs a value; add {"exists":false} to the list if an absent field should match too`},
		{"several values", `{"data":{"x":[9]}}`, `{"x":[1,"a",null,true,[2],3,4]}`, `1, "a", null, true, 2, … (7 values)`, ""},
		{"in elements", `{"data":{"r":{"k":["z"]}}}`, `{"r":[{"k":"a"},{"k":["b"]},{"r":[{}]}]}`, `data.r[0].k: "a", data.r[1].k[0]: "b"`, ""},
		{"a string of digits", `{"data":{"x":[5]}}`, `{"x":"5"}`, `"5"`, `the value is the string "5", and the pattern wants a number`},
		{"a string for a range", `{"data":{"x":[{"numeric":[">",1]}]}}`, `{"x":"5"}`, `"5"`, `the value is the string "5", and the pattern wants a number`},
		{"a number for a string", `{"data":{"x":["5"]}}`, `{"x":5}`, `5`, `the value is 5, and the pattern wants the string "5"`},
		{"a boolean for a string", `{"data":{"x":["true"]}}`, `{"x":true}`, `true`, `the value is true, and the pattern wants the string "true"`},
		{"a string for null", `{"data":{"x":[null]}}`, `{"x":"null"}`, `"null"`, `the value is the string "null", and the pattern wants null`},
		{"case", `{"data":{"x":["Open"]}}`, `{"x":"OPEN"}`, `"OPEN"`, `only the case differs; {"equals-ignore-case":...} would match`},
		{"case of a prefix", `{"data":{"x":[{"prefix":"Op"}]}}`, `{"x":"open"}`, `"open"`, `only the case differs; {"prefix":{"equals-ignore-case":...}} would match`},
		{"space", `{"data":{"x":["open"]}}`, `{"x":"open "}`, `"open "`, "only white space at an end differs"},
		{"a star", `{"data":{"x":["op*"]}}`, `{"x":"open"}`, `"open"`, `a * is a star in a plain string; {"wildcard":...} would match`},
		{"long", `{"data":{"x":["y"]}}`, `{"x":"` + long + `"}`, `"` + strings.Repeat("é", 100) + `"… (600 bytes)`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := explain(t, tt.pattern, "application/json", tt.data)
			if got.Matched || len(got.Clauses) != 1 {
				t.Fatalf("Explain = %+v, want one clause", got)
			}
			if c := got.Clauses[0]; c.Verdict != rules.Failed || c.Actual != tt.actual || c.Hint != tt.hint {
				t.Errorf("clause = %s, %q, hint %q; want failed, %q, %q", c.Verdict, c.Actual, c.Hint, tt.actual, tt.hint)
			}
		})
	}
}

func TestExplainOr(t *testing.T) {
	verdicts := func(x rules.Explanation) string {
		var list []string
		for _, c := range x.Clauses {
			list = append(list, fmt.Sprintf("%s %s", c.Pointer, c.Verdict))
		}
		return strings.Join(list, ", ")
	}
	const pattern = `{"data":{"$or":[{"a":[1],"b":[1]},{"c":[1]}]}}`
	got := explain(t, pattern, "application/json", `{"b":1,"c":1}`)
	if want := "/data/$or matched, /data/$or/0/a unneeded, /data/$or/0/b matched, /data/$or/1/c matched"; !got.Matched || verdicts(got) != want {
		t.Errorf("Explain = %t, %s; want %s", got.Matched, verdicts(got), want)
	}
	if got.Clauses[0].Actual != "1 of 2 hold" || got.Clauses[0].Expected != "one of 2 branches" {
		t.Errorf("clause = %+v", got.Clauses[0])
	}
	got = explain(t, pattern, "application/json", `{"b":1}`)
	if want := "/data/$or/0 comes closest: 1 of 2 clauses hold"; got.Clauses[0].Hint != want {
		t.Errorf("hint = %q, want %q", got.Clauses[0].Hint, want)
	}
	if want := "/data/$or failed, /data/$or/0/a failed, /data/$or/0/b matched, /data/$or/1/c failed"; got.Matched || verdicts(got) != want {
		t.Errorf("Explain = %t, %s; want %s", got.Matched, verdicts(got), want)
	}
}

func TestExplainNote(t *testing.T) {
	for _, tt := range []struct{ name, pattern, contentType, data, want string }{
		{"nothing to say", `{"data":{"x":[1]}}`, "application/json", `{"x":1}`, ""},
		{"other type", `{"data":{"x":[1]}}`, "text/csv", `x,1`, "the data is text/csv, not JSON, so only attributes can match"},
		{"not what it says", `{"data":{"x":[1]}}`, "application/json", `{"x":tru}`, "the data is not valid JSON at byte 5: expected a value, so only attributes can match"},
		{"nobody asked", `{"type":["x"]}`, "text/csv", `x,1`, ""},
		{"elements", `{"data":{"r":{"k":["a"],"v":[2]}}}`, "application/json", `{"r":[{"k":"a"},{"v":2}]}`, "each clause holds by itself, but not all of them in the same element of an array; data.r[0] comes closest: v does not hold there"},
		{"closest element", `{"data":{"r":{"a":[1],"b":[1],"c":[1]}}}`, "application/json", `{"r":[{"a":1},{"a":1,"c":1},{"b":2}]}`, "data.r[1] comes closest: b does not hold there"},
		{"closest of inner elements", `{"data":{"m":{"r":{"k":["a"],"v":[2],"w":[{"exists":false}]}}}}`, "application/json", `{"m":{"r":[[{"k":"b"}],[{"k":"a","v":3}]]}}`, "data.m.r[1] comes closest: v does not hold there"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := explain(t, tt.pattern, tt.contentType, tt.data); got.Note != tt.want {
				t.Errorf("Note = %q, want %q", got.Note, tt.want)
			}
		})
	}
	bare := full()
	bare.Data = nil
	if got := patternRule(t, "r", `{"data":{"x":[1]}}`).Explain(bare); got.Note != "the event has no data" {
		t.Errorf("Note = %q", got.Note)
	}
	off := mustRule(t, `{"name":"off","disabled":true,"pattern":{"type":[{"exists":true}]},"targets":[{"target":"t"}]}`)
	if got := off.Explain(full()); !got.Matched || got.Note != "the rule is disabled, so it matches nothing" {
		t.Errorf("Explain = %+v", got)
	}
}

func TestExplainIsBounded(t *testing.T) {
	var pattern, data strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&pattern, `,"f%d":["%d"]`, i, i)
		fmt.Fprintf(&data, `,"f%d":"%s"`, i, strings.Repeat("x", 1000))
	}
	got := explain(t, `{"data":{"a":[1]`+pattern.String()+`}}`, "application/json", `{"a":2`+data.String()+`}`)
	b, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Clauses) != 200 || len(b) > 200_000 || got.Note != "only the first 200 clauses are shown" {
		t.Errorf("%d clauses, %d bytes, note %q", len(got.Clauses), len(b), got.Note)
	}
}

// TestExplainMatchesRuleCases compares Explain with Match on the cases that are about documents.
func TestExplainAgreesOnCases(t *testing.T) {
	for _, tt := range documentCases {
		p, err := rules.ParsePattern([]byte(`{"data":` + tt.pattern + `}`))
		if err != nil {
			t.Fatal(err)
		}
		r := &rules.Rule{Pattern: p}
		got := r.Explain(&event.Event{ID: "1", Source: "/s", Type: "t", Data: []byte(tt.document)})
		if got.Matched != tt.want {
			t.Errorf("%s: Explain = %+v, want %t", tt.name, got, tt.want)
		}
	}
}

func TestExplainAll(t *testing.T) {
	ev := full() // temperature 9.1, door closed
	list := []*rules.Rule{
		patternRule(t, "far", `{"type":["x"],"data":{"door":["open"],"temperature":[1]}}`),
		patternRule(t, "one-off", `{"type":["com.acme.telemetry"],"data":{"door":["open"]}}`),
		patternRule(t, "one-off-of-three", `{"type":["com.acme.telemetry"],"data":{"door":["open"],"temperature":[{"numeric":[">",8]}]}}`),
		patternRule(t, "matches", `{"data":{"door":["closed"]}}`),
		patternRule(t, "one-off-in-or", `{"$or":[{"type":["x"],"subject":["y"]},{"data":{"door":["closed"],"temperature":[1],"$or":[{"a":[{"exists":false}]},{"b":[1]}]}}]}`),
		mustRule(t, `{"name":"off","disabled":true,"pattern":{"data":{"door":["closed"]}},"targets":[{"target":"t"}]}`),
		mustRule(t, `{"name":"when","pattern":{"data":{"door":["closed"]}},"when":"data.temperature > 20","targets":[{"target":"t"}]}`),
	}
	x, err := rules.Compile(list)
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, e := range x.ExplainAll(ev) {
		order = append(order, e.Rule)
		if e.Matched != (e.Rule == "matches" || e.Rule == "off") || e.Disabled != (e.Rule == "off") {
			t.Errorf("ExplainAll = %+v", e)
		}
	}
	if want := []string{"matches", "off", "when", "one-off-of-three", "one-off-in-or", "one-off", "far"}; !slices.Equal(order, want) {
		t.Errorf("ExplainAll = %v, want %v", order, want)
	}
	var many []*rules.Rule
	for i := range 2000 {
		many = append(many, patternRule(t, fmt.Sprintf("r%d", i), fmt.Sprintf(`{"data":{"door":["d%d"],"temperature":[%d]}}`, i, i)))
	}
	if x, err = x.With(many, []string{"far"}); err != nil {
		t.Fatal(err)
	}
	if got := x.ExplainAll(ev); len(got) != rules.MaxExplained || got[0].Rule != "matches" || got[5].Rule != "one-off" {
		t.Errorf("ExplainAll = %d explanations, want %d, the nearest first", len(got), rules.MaxExplained)
	}
}
