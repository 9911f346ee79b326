// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/app"
)

// TestSchemaCommands tells the story of a schema against a real bridge.
func TestSchemaCommands(t *testing.T) {
	dir := t.TempDir()
	a, err := app.Start(t.Context(), app.Options{Data: filepath.Join(dir, "data"), Listen: "127.0.0.1:0", MQTT: "off", Reserve: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := a.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	file := func(name, text string) string {
		name = filepath.Join(dir, name)
		writeFile(t, name, text)
		return name
	}
	one := file("one.json", `{"type":"object","properties":{"id":{"type":"string"}},"required":["id"]}`)
	two := file("two.json", `{"type":"object","properties":{"id":{"type":"string"},"at":{"$ref":"at.json"}},"required":["id"]}`)
	wrong := file("wrong.json", `{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}`)
	at := file("at.json", `{"type":"string","format":"date-time"}`)
	row := file("row.avsc", `{"type":"record","name":"Row","fields":[]}`)
	broken := file("broken.json", `{"properties":{"id":{"type":"strin"}}}`)
	env := map[string]string{"RIALTO_URL": "http://" + a.HTTPAddr(), "RIALTO_KEY": a.AdminKey()}
	for _, c := range []struct {
		args string
		code int
		want []string // of stdout and stderr together
	}{
		{"check " + one, exitOK, []string{"is a schema in jsonschema"}},
		{"check " + broken, exitProblems, []string{"/properties/id/type"}},
		{"check " + one + " --old " + one, exitOK, []string{"COMPATIBLE\n"}},
		{"check " + wrong + " --old " + one, exitProblems, []string{"INCOMPATIBLE\n", "T1: ", `for example {"id":"`, "reader /properties/id"}},
		{"check " + wrong + " --old " + one + " --mode none", exitOK, []string{"COMPATIBLE\n"}},
		{"check " + one + " --mode sideways", exitUsage, []string{"--mode"}},
		{"check " + one + " --old " + one + " --policy mild", exitUsage, []string{"--policy"}},
		{"register shop/Order " + one, exitOK, []string{"shop/Order version 1 registered, active, id 1\n"}},
		{"register shop/Order " + one, exitOK, []string{"version 1 is there already"}},
		{"register shop/At " + at, exitOK, []string{"shop/At version 1 registered, active, id 2\n"}},
		{"register shop/Order " + two + " --reference at.json=shop/At/1", exitOK, []string{"version 2 registered"}},
		{"register shop/Order " + two, exitFailed, []string{"/schema/properties/at/$ref", "not among the references"}},
		{"register shop/Order " + wrong, exitFailed, []string{"is not compatible", "/properties/id: T1"}},
		{"check " + wrong + " --name shop/Order", exitProblems, []string{"INCOMPATIBLE\n", "(version 2)"}},
		{"check " + wrong + " --name shop/Order --mode none", exitOK, []string{"COMPATIBLE\n"}},
		{"register shop/Order " + wrong + " --draft", exitOK, []string{"version 3 registered, draft"}},
		{"activate shop/Order 3", exitFailed, []string{"is not compatible"}},
		{"register shop/Row " + row, exitOK, []string{"version 1 registered"}},
		{"register shop/Row " + one + " --format jsonschema", exitConflict, []string{"written in avro"}},
		{"register shop " + one, exitUsage, []string{"GROUP/NAME"}},
		{"list", exitOK, []string{"SCHEMA", "shop/At ", "shop/Order ", "shop/Row ", "avro"}},
		{"list none -o json", exitOK, []string{"[]"}},
		{"versions shop/Order", exitOK, []string{"VERSION", "draft"}},
		{"get shop/Order 1", exitOK, []string{`"required":["id"]`}},
		{"get shop/Order -o json", exitOK, []string{`"version": 2`, `"hash": "sha256:`}},
		{"get shop/None", exitNotFound, nil},
		{"deprecate shop/Order 1", exitOK, []string{"version 1 changed, deprecated"}},
		{"disable shop/Order 1", exitOK, []string{"disabled"}},
		{"activate shop/Order 1", exitOK, []string{"active"}},
		{"delete shop/At 1", exitConflict, []string{"referred to by shop/Order/2"}},
		{"bind shop/Order com.example/order placed", exitUsage, []string{"fewer arguments"}},
		{"bind shop/Order com.example/order", exitOK, []string{"com.example/order are bound to shop/Order"}},
		{"delete shop/Order", exitConflict, []string{"are bound to"}},
		{"unbind shop/Order com.example/order", exitOK, []string{"no longer bound"}},
		{"delete shop/Order 3", exitOK, []string{"shop/Order version 3 deleted\n"}},
		{"delete shop/Order", exitOK, []string{"shop/Order deleted\n"}},
		{"versions shop/Order", exitNotFound, nil},
	} {
		r := rialtoIn(t, env, "", append([]string{"schema"}, strings.Fields(c.args)...)...)
		if r.code != c.code {
			t.Errorf("schema %s = %d, want %d\n%s%s", c.args, r.code, c.code, r.out, r.err)
		}
		for _, w := range c.want {
			if !strings.Contains(r.out+r.err, w) {
				t.Errorf("schema %s does not say %q:\n%s%s", c.args, w, r.out, r.err)
			}
		}
	}
	var verdict struct{ Outcome string }
	for _, kind := range []string{"schema", "SchemaVersion"} {
		if r := rialtoIn(t, env, "", "audit", "--kind", kind); r.code != exitOK || !strings.Contains(r.out, "shop") || strings.Contains(r.out, "(the bridge)") || !strings.Contains(r.out, "admin") {
			t.Errorf("audit of %s: exit %d\n%s%s", kind, r.code, r.out, r.err)
		}
	}
	if r := rialtoIn(t, env, "", "audit", "--limit", "3", "-o", "json"); r.code != exitOK || !strings.Contains(r.out, `"Schema`) {
		t.Errorf("the whole audit does not begin with schemas:\n%s%s", r.out, r.err)
	}
	if r := rialtoIn(t, env, "", "schema", "check", wrong, "--old", one, "-o", "json"); json.Unmarshal([]byte(r.out), &verdict) != nil || verdict.Outcome != "INCOMPATIBLE" {
		t.Errorf("as JSON: %s", r.out)
	}
}

// The exit code of schema impact says whether something breaks.
func TestSchemaImpactCommand(t *testing.T) {
	dir := t.TempDir()
	a, err := app.Start(t.Context(), app.Options{Data: filepath.Join(dir, "data"), Listen: "127.0.0.1:0", MQTT: "off", Reserve: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := a.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	env := map[string]string{"RIALTO_URL": "http://" + a.HTTPAddr(), "RIALTO_KEY": a.AdminKey()}
	order := func(total string) string {
		return `{"type":"object","properties":{"id":{"type":"string"},"total":{"type":"` + total + `"}},"required":["id"]}`
	}
	const definitions = `kind: Target
name: hook
type: webhook
config: {url: "https://example.com/hook"}
---
kind: Rule
name: large
pattern: {type: [order], data: {total: [{numeric: [">", 1000]}]}}
targets: [{target: hook, transform: {path: $.data.id}}]
`
	for _, c := range []struct {
		args, in string
		code     int
		want     string
	}{
		{"schema impact - --name shop/Order", order("number"), exitNotFound, ""},
		{"schema register shop/Order -", order("number"), exitOK, ""},
		{"schema bind shop/Order order", "", exitOK, ""},
		{"apply -f -", definitions, exitOK, ""},
		{"schema impact - --name shop/Order", order("number"), exitOK, "unaffected: rule large on bus default, target hook\n"},
		{"schema impact - --name shop/Order", order("string"), exitFailed, "  /data/total: retyped\nbreaks: rule large on bus default, target hook\n  /data/total, read by /pattern/data/total: never holds any more"},
		{"schema impact - --name shop/Order", strings.Replace(order("number"), `["id"]`, `[]`, 1), exitOK, "may break: rule large on bus default, target hook\n  /data/id, read by /targets/0/transform/path: may be missing now"},
		{"schema impact - --name shop/Order -o json", order("string"), exitFailed, `"verdict": "breaks"`},
		{"schema impact -", order("string"), exitUsage, "--name"},
		{"schema impact - --name shop", order("string"), exitUsage, "GROUP/NAME"},
	} {
		r := rialtoIn(t, env, c.in, strings.Fields(c.args)...)
		if r.code != c.code || !strings.Contains(r.out+r.err, c.want) {
			t.Errorf("%s = %d, want %d and %q\n%s%s", c.args, r.code, c.code, c.want, r.out, r.err)
		}
	}
}

func TestSchemaTestCommand(t *testing.T) {
	const good, bad = `{"id":"a","old":{"type":"integer"},"new":{"type":"number"},"expect":"COMPATIBLE"}`, `{"id":"b","old":{"type":"integer"},"new":{"type":"string"},"expect":"COMPATIBLE"}`
	if r := rialto(t, nil, good+"\n", "schema", "test", "-"); r.code != exitOK || r.out != "1 passed, 0 failed\n" {
		t.Errorf("good: %+v", r)
	}
	if r := rialto(t, nil, good+"\n"+bad+"\n", "schema", "test", "-"); r.code != exitProblems || !strings.HasPrefix(r.out, "FAIL b: INCOMPATIBLE, want COMPATIBLE\n") || !strings.HasSuffix(r.out, "1 passed, 1 failed\n") {
		t.Errorf("bad: %+v", r)
	}
	name := filepath.Join(t.TempDir(), "pairs.jsonl")
	writeFile(t, name, good)
	if r := rialto(t, nil, "", "schema", "test", name, name); r.code != exitOK || !strings.HasSuffix(r.out, "2 passed, 0 failed\n") {
		t.Errorf("two files: %+v", r)
	}
	if r := rialto(t, nil, "{", "schema", "test", "-"); r.code != exitFailed || !strings.Contains(r.err, "line 1") {
		t.Errorf("no cases: %+v", r)
	}
}
