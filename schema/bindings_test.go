// SPDX-License-Identifier: Apache-2.0

package schema_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/schema"
)

// bindingCase is a schema of which all languages make code that compiles and that reads and writes its documents.
type bindingCase struct {
	name   string
	schema string
	more   []string // documents besides the example
	odd    bool     // has fields that the code of some languages cannot name
}

var bindingCases = []bindingCase{
	{name: "com.acme.order.placed", schema: bindingOrder, more: []string{
		`{"id":"o-1","placedAt":"2026-01-15T09:30:00Z","status":"open","total":1.5,"express":true,"coupon":null,
		  "customer":{"id":7,"address":{"city":"Ulm"}},"lines":[{"sku":"a","quantity":1}],"payment":{"kind":"transfer","iban":"DE00"},"labels":{}}`,
		`{"id":"o-1","placedAt":"2026-01-15T09:30:00Z","status":"paid","total":1,"express":false,"coupon":"X",
		  "customer":{"id":7,"address":{"city":"Ulm"},"billing":{"city":"Bonn","next":{"city":"Kiel"}}},"lines":[],
		  "payment":{"kind":"card","number":"4","expires":{"month":1}},"labels":{"a":["x","y"]},"matrix":[[1,2],[3]]}`}},
	{name: "scalar", schema: `{"type":"string"}`},
	{name: "list", schema: `{"type":"array","items":{"type":"object","properties":{"n":{"type":["integer","null"]}},"required":["n"]}}`,
		more: []string{`[{"n":null},{"n":3}]`, `[]`}},
	{name: "map", schema: `{"type":"object","additionalProperties":{"type":["number","null"]}}`, more: []string{`{"a":1.5,"b":null}`}},
	{name: "map of maps", schema: `{"type":"object","additionalProperties":{"type":"object","additionalProperties":{"type":"array","items":{"type":"boolean"}}}}`,
		more: []string{`{"a":{"b":[true,false]}}`}},
	{name: "anything", schema: `true`, more: []string{`{"a":[1,null]}`, `7`}},
	{name: "union", schema: `{"oneOf":[{"$ref":"#/$defs/on"},{"$ref":"#/$defs/off"},{"type":"null"}],"$defs":{
		"on":{"type":"object","required":["type","level"],"properties":{"type":{"const":"on"},"level":{"type":"integer"}}},
		"off":{"type":"object","required":["type"],"properties":{"type":{"enum":["off"]},"why":{"type":"string"}}}}}`,
		more: []string{`{"type":"off"}`, `{"type":"off","why":"x"}`, `{"type":"on","level":3}`, `null`}},
	{name: "union with fields beside it", schema: `{"type":"object","required":["id","op"],"properties":{"id":{"type":"string"}},"oneOf":[
		{"properties":{"op":{"const":"add"},"value":{"type":"number"}},"required":["value"]},{"properties":{"op":{"const":"remove"}}}]}`,
		more: []string{`{"id":"1","op":"remove"}`, `{"id":"1","op":"add","value":2}`}},
	{name: "union of scalars", schema: `{"type":"object","properties":{"v":{"type":["string","integer","null"]},"w":{"anyOf":[{"type":"string"},{"type":"array","items":{"type":"integer"}}]}}}`,
		more: []string{`{"v":"x","w":[1]}`, `{"v":3,"w":"y"}`}},
	{name: "tree", schema: `{"type":"object","required":["name"],"properties":{"name":{"type":"string"},"left":{"$ref":"#"},"children":{"type":"array","items":{"$ref":"#"}}}}`,
		more: []string{`{"name":"a","left":{"name":"b"},"children":[{"name":"c","children":[]}]}`}},
	{name: "enumerations", schema: `{"type":"object","properties":{"a":{"enum":["a-b","a_b","","1","class"]},"b":{"enum":[1,2]},"c":{"enum":["x",1,null]},
		"d":{"type":["string","null"],"enum":["on","off",null]},"e":{"const":true},"f":{"type":"array","items":{"enum":["x","y"]}}}}`,
		more: []string{`{"a":"","b":2,"c":1,"d":"off","e":true,"f":["y","x"]}`}},
	{name: "names", schema: `{"type":"object","required":["class","order-id","class_"],"properties":{"class":{"type":"string"},"class_":{"type":"string"},"order-id":{"type":"integer"},
		"order_id":{"type":"integer"},"orderId":{"type":"integer"},"1st":{"type":"string"},"-":{"type":"string"},"$ref2":{"type":"string"},"from":{"type":"string"},
		"toString":{"type":"string"},"self":{"type":"string"},"text":{"type":"string"},"type":{"type":"string"},"func":{"type":"string"},"None":{"type":"string"},
		"String":{"type":"object","properties":{"Any":{"type":"object","properties":{"x":{"type":"integer"}}}}},"wait":{"type":"boolean"},"from_dict":{"type":"number"}}}`},
	{name: "names that need quotes", odd: true, schema: `{"type":"object","properties":{"a\"b\\u0022":{"type":"string"},"":{"type":"integer"},"größe":{"type":"integer"},
		"a,b":{"type":"string"},"new\nline":{"type":"string"},"x'y` + "`" + `z":{"type":"string"},"*/":{"enum":["*/","\"\\u0022\n","${x}"]}}}`},
	{name: "descriptions that try to get out", schema: `{"type":"object","title":"*/ import x; /*","properties":{"a":{"type":"string","description":"ends */ here \"\"\" and\nthere \\u002a/ \u2028x"},
		"b":{"type":"object","description":"\"\"\"\nimport os","properties":{"c":{"enum":["p","q"],"description":"*/"}}}}}`},
	{name: "allOf", schema: `{"allOf":[{"$ref":"#/$defs/base"},{"type":"object","properties":{"extra":{"type":"integer"}},"required":["extra"]}],
		"$defs":{"base":{"type":"object","properties":{"id":{"type":"string"}},"required":["id"]}}}`, more: []string{`{"id":"a","extra":1}`}},
	{name: "draft 7", schema: `{"$schema":"http://json-schema.org/draft-07/schema#","definitions":{"money":{"type":"object","required":["amount"],
		"properties":{"amount":{"type":"number"}}}},"type":"object","properties":{"price":{"$ref":"#/definitions/money"},"tax":{"$ref":"#/definitions/money"},
		"pair":{"type":"array","items":[{"type":"string"},{"type":"integer"}]}}}`, more: []string{`{"price":{"amount":1.5},"pair":["a",1]}`}},
	{name: "required and nullable", schema: `{"type":"object","required":["a","b","c","d","e"],"properties":{"a":{"type":["string","null"]},"b":{"type":["integer","null"]},
		"c":{"type":["array","null"],"items":{"type":["string","null"]}},"d":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/p"}]},"e":{"type":["boolean","null"]}},
		"$defs":{"p":{"type":"object","required":["x"],"properties":{"x":{"type":"number"}}}}}`,
		more: []string{`{"a":null,"b":null,"c":null,"d":null,"e":null}`, `{"a":"x","b":1,"c":["y",null],"d":{"x":1},"e":true}`}},
	{name: "the list is called like its items", schema: `{"type":"array","items":{"$ref":"#/$defs/items"},"$defs":{"items":{"type":"object","properties":{"Items":{"type":"string"}}}}}`},
}

const bindingOrder = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "An order that was placed", "type": "object",
  "required": ["id", "placedAt", "status", "total", "express", "coupon", "customer", "lines", "payment", "labels"],
  "properties": {
    "id": {"type": "string"}, "placedAt": {"type": "string", "format": "date-time"}, "status": {"enum": ["open", "paid", "sent"]},
    "total": {"type": "number"}, "express": {"type": "boolean"}, "coupon": {"type": ["string", "null"]}, "note": {"type": "string", "deprecated": true},
    "count": {"type": "integer", "minimum": 1},
    "customer": {"type": "object", "required": ["id", "address"], "properties": {
      "id": {"type": "integer"}, "address": {"$ref": "#/$defs/address"}, "billing": {"$ref": "#/$defs/address"}}},
    "lines": {"type": "array", "items": {"type": "object", "required": ["sku", "quantity"], "properties": {"sku": {"type": "string"}, "quantity": {"type": "integer"}}}},
    "payment": {"oneOf": [
      {"title": "Card", "type": "object", "required": ["kind", "number"], "properties": {"kind": {"const": "card"}, "number": {"type": "string"},
        "expires": {"type": "object", "properties": {"month": {"type": "integer"}}}}},
      {"type": "object", "required": ["kind", "iban"], "properties": {"kind": {"const": "transfer"}, "iban": {"type": "string"}}}]},
    "labels": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}},
    "matrix": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}
  },
  "$defs": {"address": {"type": "object", "description": "Where someone lives.", "required": ["city"], "properties": {
    "city": {"type": "string"}, "next": {"$ref": "#/$defs/address"}}}}
}`

// documents of a case: its example and what stands in the table, all valid.
func (c bindingCase) documents(t *testing.T) []string {
	t.Helper()
	s := compiled(t, []byte(c.schema))
	example, err := schema.Example(s)
	if err != nil {
		t.Fatal(err)
	}
	docs := []string{compact(t, example)}
	for _, doc := range c.more {
		mustHold(t, s, []byte(doc))
		docs = append(docs, compact(t, []byte(doc)))
	}
	return docs
}

func bind(t *testing.T, lang string, c bindingCase) schema.Code {
	t.Helper()
	b, err := schema.Generate(lang, c.name, compiled(t, []byte(c.schema)))
	if err != nil {
		t.Fatalf("%s: %v", c.name, err)
	}
	again, err := schema.Generate(lang, c.name, compiled(t, []byte(c.schema)))
	if err != nil || !bytes.Equal(again.Source, b.Source) {
		t.Errorf("%s: another time the code is another, or %v", c.name, err)
	}
	return b
}

func write(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// run runs a command in a folder and returns what it writes.
func run(t *testing.T, dir string, command ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(command, " "), err, out, stderr.Bytes())
	}
	return string(out)
}

// mustBeSame compares what a program has read and written with the documents, line by line.
func mustBeSame(t *testing.T, output string, docs []string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(output), "\n")
	if len(lines) != len(docs) {
		t.Fatalf("%d documents came back of %d: %s", len(lines), len(docs), output)
	}
	for i, line := range lines {
		var got, want any
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if err := json.Unmarshal([]byte(docs[i]), &want); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s came back otherwise:\n%s", docs[i], d)
		}
	}
}

func TestBindingsOfGo(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "go.mod"), []byte("module bound\n\ngo 1.26.0\n"))
	imports, calls := "", ""
	var docs []string
	for i, c := range bindingCases {
		b := bind(t, "go", c)
		write(t, filepath.Join(dir, fmt.Sprintf("p%d", i), b.File), b.Source)
		if c.odd { // struct tags cannot hold such names: it compiles, and leaves them out
			imports += fmt.Sprintf("\t_ \"bound/p%d\"\n", i)
			continue
		}
		imports += fmt.Sprintf("\tp%d \"bound/p%d\"\n", i, i)
		for _, doc := range c.documents(t) {
			calls += fmt.Sprintf("\tsame[p%d.%s](%q)\n", i, rootType(t, b.Source), doc)
			docs = append(docs, doc)
		}
	}
	write(t, filepath.Join(dir, "main.go"), []byte(`package main

import (
	"encoding/json"
	"fmt"
	"strings"
`+imports+`)

func same[T any](doc string) {
	var v T
	dec := json.NewDecoder(strings.NewReader(doc))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		panic(doc + ": " + err.Error())
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(b))
}

func main() {
`+calls+"}\n"))
	mustBeSame(t, run(t, dir, "go", "run", "."), docs)
}

// rootType is the first type of a Go file, which is that of the whole document.
func rootType(t *testing.T, code []byte) string {
	t.Helper()
	_, rest, ok := strings.Cut(string(code), "\ntype ")
	if !ok {
		t.Fatalf("no type in %s", code)
	}
	name, _, _ := strings.Cut(rest, " ")
	return name
}

func TestBindingsOfPython(t *testing.T) {
	dir := t.TempDir()
	program := "import json\n"
	var docs []string
	for i, c := range bindingCases {
		b := bind(t, "python", c)
		write(t, filepath.Join(dir, fmt.Sprintf("m%d.py", i)), b.Source)
		program += fmt.Sprintf("import m%d\n", i)
		for _, doc := range c.documents(t) {
			program += fmt.Sprintf("print(json.dumps(m%d.encode(m%d.decode(json.loads(%s)))))\n", i, i, quoted(t, doc))
			docs = append(docs, doc)
		}
	}
	program += refusals(`try:
    m0.decode(json.loads(%s))
    raise SystemExit("accepted: " + %[1]s)
except ValueError:
    pass
`, t)
	write(t, filepath.Join(dir, "main.py"), []byte(program))
	mustBeSame(t, run(t, dir, "python3", "-B", "main.py"), docs)
}

// refusals writes out a piece of program for documents that the order is not.
func refusals(piece string, t *testing.T) string {
	t.Helper()
	out := ""
	for _, doc := range []string{`{}`, `[]`, `null`, `{"id":1}`,
		`{"id":"o","placedAt":"x","status":"none","total":1,"express":true,"coupon":null,"customer":{"id":1,"address":{"city":"x"}},"lines":[],"payment":{"kind":"card","number":"1"},"labels":{}}`,
		`{"id":"o","placedAt":"x","status":"open","total":1,"express":true,"coupon":null,"customer":{"id":1,"address":{"city":"x"}},"lines":[],"payment":{"kind":"cash"},"labels":{}}`,
		`{"id":"o","placedAt":"x","status":"open","total":"1","express":true,"coupon":null,"customer":{"id":1,"address":{"city":"x"}},"lines":[],"payment":{"kind":"card","number":"1"},"labels":{}}`,
	} {
		out += fmt.Sprintf(piece, quoted(t, doc))
	}
	return out
}

func quoted(t *testing.T, s string) string {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TypeScript has no run time of ours: the documents must be assignable to the types.
func TestBindingsOfTypeScript(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "package.json"), []byte(`{"private":true,"devDependencies":{"typescript":"5.9.3"}}`))
	run(t, dir, "npm", "install", "--no-audit", "--no-fund", "--prefer-offline", "--loglevel=error")
	for i, c := range bindingCases {
		b := bind(t, "ts", c)
		code := string(b.Source)
		_, rest, ok := strings.Cut(code, "\nexport ")
		if !ok {
			t.Fatalf("no type in %s", code)
		}
		root := strings.Fields(rest)[1]
		for n, doc := range c.documents(t) {
			code += fmt.Sprintf("const doc%d: %s = %s;\n", n, root, doc)
		}
		write(t, filepath.Join(dir, fmt.Sprintf("m%d.ts", i)), []byte(code))
	}
	// And what is not such a document is not assignable.
	wrong := string(bind(t, "ts", bindingCases[0]).Source) + refusals("// @ts-expect-error\n{ const v: OrderPlaced = JSON_OF(%s); }\n", t)
	for strings.Contains(wrong, "JSON_OF(") {
		before, rest, _ := strings.Cut(wrong, "JSON_OF(")
		literal, after, _ := strings.Cut(rest, "); }")
		var doc string
		if err := json.Unmarshal([]byte(literal), &doc); err != nil {
			t.Fatal(err)
		}
		wrong = before + doc + "; }" + after
	}
	write(t, filepath.Join(dir, "wrong.ts"), []byte(wrong))
	check := []string{"node_modules/.bin/tsc", "--noEmit", "--strict", "--target", "es2022", "--module", "esnext", "--lib", "es2022", "wrong.ts"}
	for i := range bindingCases {
		check = append(check, fmt.Sprintf("m%d.ts", i))
	}
	run(t, dir, check...)
}

// Java is compiled and run where there is a compiler; where there is none, only that code is made is checked.
func TestBindingsOfJava(t *testing.T) {
	dir := t.TempDir()
	sources, calls := []string{"-d", dir, filepath.Join(dir, "Main.java")}, ""
	var docs []string
	for i, c := range bindingCases {
		b := bind(t, "java", c)
		pkg := fmt.Sprintf("p%d", i)
		file := filepath.Join(dir, pkg, b.File)
		write(t, file, bytes.Replace(b.Source, []byte("package events;"), []byte("package "+pkg+";"), 1))
		sources = append(sources, file)
		class := pkg + "." + strings.TrimSuffix(b.File, ".java")
		for _, doc := range c.documents(t) {
			var v any
			if err := json.Unmarshal([]byte(doc), &v); err != nil {
				t.Fatal(err)
			}
			calls += fmt.Sprintf("        print(%s.encode(%s.decode(%s)));\n", class, class, javaValue(t, v))
			docs = append(docs, doc)
		}
	}
	if _, err := exec.LookPath("javac"); err != nil {
		t.Log("no javac here: the code was made and not compiled")
		return
	}
	write(t, filepath.Join(dir, "Main.java"), []byte(strings.Replace(javaMain, "CALLS", calls, 1)))
	run(t, dir, append([]string{"javac", "-J-XX:TieredStopAtLevel=1", "-encoding", "UTF-8", "-Xlint:all", "-Werror"}, sources...)...)
	mustBeSame(t, run(t, dir, "java", "-cp", dir, "Main"), docs)
}

// javaValue is a Java expression of what a JSON parser would return.
func javaValue(t *testing.T, v any) string {
	t.Helper()
	switch v := v.(type) {
	case nil:
		return "(Object) null"
	case bool:
		return fmt.Sprint(v)
	case float64:
		return fmt.Sprintf("%v", v) + "d"
	case string:
		return javaText(v)
	case []any:
		parts := []string{}
		for _, e := range v {
			parts = append(parts, javaValue(t, e))
		}
		return "l(" + strings.Join(parts, ", ") + ")"
	case map[string]any:
		parts := []string{}
		for k, e := range v {
			parts = append(parts, javaText(k), javaValue(t, e))
		}
		return "m(" + strings.Join(parts, ", ") + ")"
	}
	t.Fatalf("%T", v)
	return ""
}

func javaText(s string) string {
	out := "\"\""
	for _, r := range s {
		out += fmt.Sprintf(" + (char) %d", r)
	}
	return "(" + out + ")"
}

const javaMain = `
import java.util.*;

public final class Main {
    static Object m(Object... pairs) {
        Map<String, Object> out = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            out.put((String) pairs[i], pairs[i + 1]);
        }
        return out;
    }

    static Object l(Object... items) {
        return new ArrayList<>(Arrays.asList(items));
    }

    static String text(Object v) {
        if (v instanceof String s) {
            StringBuilder out = new StringBuilder("\"");
            for (char c : s.toCharArray()) {
                out.append(String.format("\\u%04x", (int) c));
            }
            return out.append('"').toString();
        }
        StringJoiner out;
        if (v instanceof Map<?, ?> all) {
            out = new StringJoiner(",", "{", "}");
            all.forEach((k, e) -> out.add(text(k) + ":" + text(e)));
            return out.toString();
        }
        if (v instanceof List<?> all) {
            out = new StringJoiner(",", "[", "]");
            all.forEach(e -> out.add(text(e)));
            return out.toString();
        }
        return String.valueOf(v);
    }

    static void print(Object v) {
        System.out.println(text(v));
    }

    public static void main(String[] args) {
CALLS
    }
}
`

func TestGenerateRefuses(t *testing.T) {
	if got := schema.Languages(); !slices.Equal(got, []string{"go", "java", "python", "ts"}) {
		t.Errorf("Languages() = %v", got)
	}
	if _, err := schema.Generate("cobol", "x", compiled(t, []byte(`{}`))); fault.KindOf(err) != fault.Invalid {
		t.Errorf("an unknown language: %v", err)
	}
	fields := make([]string, 600)
	for i := range fields {
		fields[i] = fmt.Sprintf(`"f%d":{"type":"object","properties":{"a":{"type":"integer"}}}`, i)
	}
	wide := compiled(t, []byte(`{"properties":{`+strings.Join(fields, ",")+`}}`))
	for _, lang := range schema.Languages() {
		if _, err := schema.Generate(lang, "x", wide); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s: 600 types: %v", lang, err)
		}
	}
}
