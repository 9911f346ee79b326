// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// golden compares text with a file, line by line no wider than a page.
func golden(t *testing.T, name, got string) {
	t.Helper()
	if *update {
		writeFile(t, name, got)
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got)\n%s", name, diff)
	}
	for line := range strings.Lines(got) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > pageWidth {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// Two files need no server: there is none.
func TestExplainFiles(t *testing.T) {
	const rules = "testdata/explain/rules.yaml"
	for _, name := range []string{"spelling", "expression", "match"} {
		file := "testdata/explain/" + name + ".json"
		got := rialtoIn(t, nil, "", "explain", "--rule", rules, "--event", file)
		if got.code != exitOK || got.err != "" {
			t.Fatalf("%s: exit %d, stderr %q", name, got.code, got.err)
		}
		golden(t, "testdata/explain/"+name+".txt", got.out)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if piped := rialtoIn(t, nil, string(text), "explain", "--rule", rules, "--event", "-"); piped.out != got.out {
			t.Errorf("%s from stdin differs: %s", name, cmp.Diff(got.out, piped.out))
		}
	}
	var v verdicts
	got := rialtoIn(t, nil, "", "explain", "--rule", rules, "--event", "testdata/explain/match.json", "--bus", "devices", "-o", "json")
	if err := json.Unmarshal([]byte(got.out), &v); err != nil || len(v.Rules) != 2 || !v.Rules[0].Matched || v.Bus != "devices" || v.Event.ID != "e-1" || strings.Contains(got.out, `\u003e`) {
		t.Errorf("-o json: %v\n%s", err, got.out)
	}
}

func TestExplainBadFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		writeFile(t, name, text)
		return name
	}
	rule := write("rule.yaml", `{kind: Rule, name: r, pattern: {type: [a]}, targets: [{target: t}]}`)
	ev := write("event.yaml", "type: a\n")
	for _, c := range []struct {
		name, rule, event string
		more              []string
		code              int
		says              string
	}{
		{name: "good", rule: rule, event: ev, code: exitOK},
		{name: "event is no event", rule: rule, event: write("list.json", `[1]`), code: exitFailed, says: "an event is a JSON object"},
		{name: "event is two", rule: rule, event: write("two.json", `{}{}`), code: exitFailed, says: "2 events"},
		{name: "event is empty", rule: rule, event: write("none.json", ``), code: exitFailed, says: "0 events"},
		{name: "event is refused", rule: rule, event: write("bad.json", `{"time":"noon"}`), code: exitFailed, says: "time: "},
		{name: "rule is not there", rule: rule + ".none", event: ev, code: exitFailed, says: "no such file"},
		{name: "rule is none", rule: write("bus.yaml", `{kind: Bus, name: b}`), event: ev, code: exitUsage, says: "there is no rule in"},
		{name: "rule is on another bus", rule: rule, event: ev, more: []string{"--bus", "devices"}, code: exitUsage, says: "there is no rule in"},
		{name: "rule is refused", rule: write("bad.yaml", `{kind: Rule, name: r, pattern: {typ: {}}, targets: []}`), event: ev, code: exitFailed, says: "/targets: "},
	} {
		got := rialtoIn(t, nil, "", append([]string{"explain", "--rule", c.rule, "--event", c.event}, c.more...)...)
		if got.code != c.code || !strings.Contains(got.err, c.says) || (got.out != "") != (c.code == exitOK) {
			t.Errorf("%s: exit %d, stdout %q, stderr %q; want exit %d and %q", c.name, got.code, got.out, got.err, c.code, c.says)
		}
	}
}

// asked is a server that knows one event on devices and what rules of default and devices say.
func asked(t *testing.T) (env map[string]string, bodies *[]string) {
	bodies = &[]string{}
	s := serve(t, map[string]http.HandlerFunc{
		"GET /v1/buses":                      says(200, `{"items":[{"name":"default"},{"name":"devices"}]}`),
		"GET /v1/buses/default/rules/orders": says(200, `{"kind":"Rule","name":"orders"}`),
		"GET /v1/buses/{bus}/rules/{rule}":   says(404, `{"detail":"no such rule"}`),
		"GET /v1/buses/default/events/{id}":  says(404, `{"detail":"no event with this id"}`),
		"GET /v1/buses/devices/events/{id}":  says(404, `{"detail":"no event with this id"}`),
		"GET /v1/buses/devices/events/e-1":   says(200, `{"event":{"specversion":"1.0","id":"e-1","source":"/box","type":"t","data":{"a":1}},"position":"EV_devices:7"}`),
		"GET /v1/buses/devices/rules/{rule}": says(404, `{"detail":"no such rule"}`),
		"POST /v1/rules:explain": func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			*bodies = append(*bodies, string(body))
			var q struct{ Bus, Rule string }
			if err := json.Unmarshal(body, &q); err != nil {
				t.Error(err)
			}
			const clause = `"clauses":[{"pointer":"/type","path":"type","expected":"[\"x\"]","actual":"\"t\"","verdict":"failed"}]`
			switch {
			case q.Rule != "" && (q.Rule != "orders" || q.Bus != "default"):
				says(404, `{"detail":"bus has no such rule in force"}`)(w, r)
			case q.Rule != "":
				says(200, `{"bus":"default","event":{"id":"e-1"},"rules":[{"rule":"orders","bus":"default","matched":false,`+clause+`}]}`)(w, r)
			default:
				many := ""
				for i := range 15 {
					many += fmt.Sprintf(`,{"rule":"r%d","matched":false,%s}`, i, clause)
				}
				says(200, `{"bus":"`+q.Bus+`","event":{"id":"e-1"},"position":"EV_devices:7","rules":[{"rule":"hit","matched":true,"clauses":[]},
					{"rule":"off","disabled":true,"matched":true,"clauses":[],"note":"the rule is disabled, so it matches nothing"}`+many+`],"rulesMore":3}`)(w, r)
			}
		},
	})
	return map[string]string{"RIALTO_URL": s.URL, "RIALTO_KEY": "k"}, bodies
}

func TestExplainAsks(t *testing.T) {
	env, bodies := asked(t)
	file := filepath.Join(t.TempDir(), "e.json")
	writeFile(t, file, `{"id":"f"}`)
	const inline = `{"bus":"default","event":{"specversion":"1.0","id":"e-1","source":"/box","type":"t","data":{"a":1}},"rule":"orders"}`
	for _, c := range []struct {
		line   string
		code   int
		bodies []string
		out    []string
	}{
		{"--event e-1", exitOK, []string{`{"bus":"devices","id":"e-1","source":"/box"}`},
			[]string{"1 of 20 rules on devices would take it", "hit ·", "the rule is disabled", "and 7 more that did not match\n", "stored   EV_devices:7"}},
		{"--event e-1 --rule orders", exitOK, []string{`{"bus":"devices","id":"e-1","rule":"orders","source":"/box"}`, inline},
			[]string{"the event is on bus devices and the rule on bus default", `✗ type: "t"`}},
		{"--event e-1 --rule none", exitNotFound, []string{`{"bus":"devices","id":"e-1","rule":"none","source":"/box"}`}, nil},
		{"--event e-1 --rule orders --bus default", exitNotFound, nil, nil},
		{"--event none.json", exitNotFound, nil, nil},
		{"--event FILE", exitOK, []string{`{"bus":"default","event":{"id":"f","specversion":"1.0","source":"/test","type":"test"}}`}, []string{"would take it"}},
		{"--event FILE --rule orders", exitOK, []string{`{"bus":"default","event":{"id":"f","specversion":"1.0","source":"/test","type":"test"},"rule":"orders"}`}, []string{"no match"}},
		{"--event FILE --rule nowhere", exitNotFound, nil, nil},
		{"--event FILE --rule orders --bus devices", exitNotFound, []string{`{"bus":"devices","event":{"id":"f","specversion":"1.0","source":"/test","type":"test"},"rule":"orders"}`}, nil},
	} {
		*bodies = nil
		got := rialtoIn(t, env, "", append([]string{"explain"}, strings.Fields(strings.ReplaceAll(c.line, "FILE", file))...)...)
		if got.code != c.code {
			t.Errorf("%s: exit %d, stderr %q; want %d", c.line, got.code, got.err, c.code)
		}
		if diff := cmp.Diff(c.bodies, *bodies); diff != "" {
			t.Errorf("%s asks (-want +got)\n%s", c.line, diff)
		}
		for _, want := range c.out {
			if !strings.Contains(got.out, want) {
				t.Errorf("%s does not say %q:\n%s", c.line, want, got.out)
			}
		}
	}
	got := rialtoIn(t, env, "", "explain", "--event", "e-1", "--rule", "orders", "-o", "jsonl")
	if !strings.HasPrefix(got.out, `{"bus":"default"`) || !strings.Contains(got.err, "a rule takes events of its own bus only") {
		t.Errorf("-o jsonl: %s, stderr %q", got.out, got.err)
	}
	if got := rialtoIn(t, env, "", "explain", "--event", "none.json"); !strings.Contains(got.err, "there is no such file, and no event with this id") {
		t.Errorf("neither a file nor an id: %q", got.err)
	}
}
