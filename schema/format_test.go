// SPDX-License-Identifier: Apache-2.0

package schema_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/schema"
)

// library is a Source of texts by group/schema/version.
type library map[string]schema.Version

func (l library) find(_ context.Context, r schema.Ref) (schema.Version, error) {
	v, ok := l[r.String()]
	if !ok {
		return schema.Version{}, fault.New(fault.NotFound, "schema %s has no version %d", r.Name, r.Version)
	}
	v.Ref = r
	return v, nil
}

func text(f schema.Format, s string, refs ...schema.Reference) schema.Version {
	return schema.Version{Format: f, Text: s, References: refs, State: schema.Active}
}

func ref(name, group, of string, version int) schema.Reference {
	return schema.Reference{Name: name, Group: group, Schema: of, Version: version}
}

// doubling is a schema of n definitions, each of which looks at its value by the next one twice.
func doubling(n int, step string) string {
	var b strings.Builder
	b.WriteString(`{"$ref":"#/$defs/d0","$defs":{`)
	for i := range n {
		fmt.Fprintf(&b, `"d%d":`+step+`,`, i, i+1, i+1)
	}
	fmt.Fprintf(&b, `"d%d":{"type":"object"}}}`, n)
	return b.String()
}

func TestJSONSchemaRefused(t *testing.T) {
	for _, c := range []struct{ name, text, pointer, detail string }{
		{"no JSON", `{"type":`, "", "not JSON"},
		{"two values", `{} {}`, "", "not JSON"},
		{"a member twice", `{"properties":{"a":{},"a":{}}}`, "/properties/a", "twice"},
		{"a list", `[]`, "", "object, true or false"},
		{"another draft", `{"$schema":"http://json-schema.org/draft-03/schema#"}`, "/$schema", "2020-12"},
		{"no draft", `{"$schema":7}`, "/$schema", "2020-12"},
		{"a wrong keyword", `{"properties":{"a":{"type":"strin"}}}`, "/properties/a/type", ""},
		{"a wrong limit", `{"minLength":-1}`, "/minLength", "at least 0"},
		{"look-ahead", `{"properties":{"a":{"pattern":"^(?=x)"}}}`, "/properties/a/pattern", "RE2"},
		{"a back reference", `{"pattern":"(a)\\1"}`, "/pattern", "RE2"},
		{"a wrong name pattern", `{"patternProperties":{"(":{}}}`, "/patternProperties", "name is not allowed"},
		{"a pattern that repeats too much", `{"pattern":"((a{100}){100}){100}"}`, "/pattern", "RE2"},
		{"a long pattern", `{"pattern":"` + strings.Repeat("a", 1001) + `"}`, "/pattern", "1000 bytes"},
		{"a large enum", `{"properties":{"a":{"enum":[` + strings.TrimSuffix(numbers(1001), ",") + `]}}}`, "/properties/a/enum", "1000 values"},
		{"many values", `{"enum":[[` + strings.TrimSuffix(numbers(10001), ",") + `]]}`, "", "10000 values"},
		{"deep", strings.Repeat(`{"not":`, 200) + `{}` + strings.Repeat(`}`, 200), strings.Repeat("/not", 129), "128 levels"},
		{"a huge number", `{"maximum":1e999999999}`, "/maximum", "exponent"},
		{"a long number", `{"maximum":` + strings.Repeat("9", 1001) + `}`, "/maximum", "digits"},
		{"itself", `{"$ref":"#"}`, "", "itself"},
		{"itself by others", `{"properties":{"a":{"$ref":"#/$defs/x"}},"$defs":{"x":{"allOf":[{"$ref":"#/$defs/y"}]},"y":{"anyOf":[{"$ref":"#/$defs/x"}]}}}`, "/$defs/", "itself"},
		{"nowhere", `{"properties":{"a":{"$ref":"#/$defs/none"}}}`, "/properties/a/$ref", "nowhere"},
		{"no anchor", `{"items":{"$ref":"#none"}}`, "/items/$ref", "nowhere"},
		{"the network", `{"items":{"$ref":"https://example.com/a.json"}}`, "/items/$ref", "not among the references"},
		{"a file", `{"items":{"$ref":"file:///etc/hostname"}}`, "/items/$ref", "not among the references"},
		{"a relative name", `{"items":{"$ref":"address.json"}}`, "/items/$ref", "not among the references"},
		{"a version that is not there", `{"items":{"$ref":"/v1/schemas/shop/Address/versions/9"}}`, "/items/$ref", "has no version 9"},
		{"a metaschema from elsewhere", `{"$defs":{"x":{"$id":"https://example.com/x","$schema":"https://example.com/meta"}},"$ref":"#/$defs/x"}`, "", "not among the references"},
		{"allOf that doubles", doubling(20, `{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]}`), "", "too large"},
		{"members that double", doubling(20, `{"anyOf":[{"properties":{"a":{"$ref":"#/$defs/d%d"}}},{"properties":{"a":{"$ref":"#/$defs/d%d"}}}]}`), "", "too large"},
	} {
		t.Run(c.name, func(t *testing.T) {
			start := time.Now()
			_, err := schema.Compile(t.Context(), schema.JSONSchema, c.text, nil, schema.NoSource)
			refused(t, err, c.pointer, c.detail)
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
	_, err := schema.Compile(t.Context(), schema.JSONSchema, `{"description":"`+strings.Repeat("x", 256<<10)+`"}`, nil, schema.NoSource)
	if fault.KindOf(err) != fault.TooLarge {
		t.Errorf("a text of more than 256 KiB: %v", err)
	}
}

func numbers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%d,", i)
	}
	return b.String()
}

// refused checks that err is about a pointer and says some words, one of those between |.
func refused(t *testing.T, err error, pointer, words string) {
	t.Helper()
	var f *fault.Error
	if !errors.As(err, &f) || f.Kind != fault.Invalid {
		t.Fatalf("err = %v, want an invalid one", err)
	}
	if len(f.Details) == 0 || !strings.HasPrefix(f.Details[0].Pointer, pointer) {
		t.Fatalf("err = %v at %+v, want it at %q", err, f.Details, pointer)
	}
	for w := range strings.SplitSeq(words, "|") {
		if strings.Contains(err.Error(), w) {
			return
		}
	}
	t.Errorf("err = %v, want it to say %q", err, words)
}

// A reference to a server that is there, or a file that is there, is refused without a look at it.
func TestReferencesTouchNothing(t *testing.T) {
	var asked atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		fmt.Fprint(w, `{"type":"string"}`)
	}))
	defer srv.Close()
	file := filepath.Join(t.TempDir(), "a.json")
	if err := os.WriteFile(file, []byte(`{"type":"string"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, u := range []string{srv.URL + "/a.json", "file://" + file, file, "//" + strings.TrimPrefix(srv.URL, "http://") + "/a.json"} {
		for _, s := range []string{`{"$ref":%q}`, `{"properties":{"x":{"$ref":"%s#/x"}}}`, `{"$id":%q,"items":{"$ref":"b.json"}}`, `{"$dynamicRef":%q}`} {
			if _, err := schema.Compile(t.Context(), schema.JSONSchema, fmt.Sprintf(s, u), nil, schema.NoSource); fault.KindOf(err) != fault.Invalid || err == nil {
				t.Errorf("%s to %s: %v", s, u, err)
			}
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("the server was asked %d times", n)
	}
}

func TestJSONSchemaReferences(t *testing.T) {
	shelf := library{
		"shop/Address/1": text(schema.JSONSchema, `{"$id":"https://example.com/address.json","type":"object","properties":{"zip":{"$ref":"zip.json"}}}`, ref("zip.json", "shop", "Zip", 2)),
		"shop/Zip/2":     text(schema.JSONSchema, `{"type":"string","pattern":"^[0-9]{5}$"}`),
		"shop/Zip/3":     text(schema.JSONSchema, `{"type":"integer"}`),
		"shop/Row/1":     text(schema.Avro, `{"type":"record","name":"Row","fields":[]}`),
	}
	for _, c := range []struct {
		name, text string
		refs       []schema.Reference
	}{
		{"by name", `{"properties":{"to":{"$ref":"address.json"}}}`, []schema.Reference{ref("address.json", "shop", "Address", 1)}},
		{"by URL", `{"properties":{"to":{"$ref":"https://example.com/address.json"}}}`, []schema.Reference{ref("https://example.com/address.json", "shop", "Address", 1)}},
		{"beside its own id", `{"$id":"https://example.com/order.json","properties":{"to":{"$ref":"address.json#"}}}`, []schema.Reference{ref("address.json", "shop", "Address", 1)}},
		{"by the path of the version", `{"properties":{"to":{"$ref":"/v1/schemas/shop/Address/versions/1"}}}`, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := schema.Compile(t.Context(), schema.JSONSchema, c.text, c.refs, shelf.find)
			if err != nil {
				t.Fatal(err)
			}
			if len(s.References) != 1 || s.References[0].Ref().String() != "shop/Address/1" {
				t.Errorf("references = %+v", s.References)
			}
			if err := s.Validate(decode(t, `{"to":{"zip":"12345"}}`)); err != nil {
				t.Error(err)
			}
			refused(t, s.Validate(decode(t, `{"to":{"zip":"secret"}}`)), "/to/zip", "must match")
		})
	}
	for _, c := range []struct {
		name, text, words string
		refs              []schema.Reference
	}{
		{"not there", `{"$ref":"a.json"}`, "has no version 7", []schema.Reference{ref("a.json", "shop", "Address", 7)}},
		{"another format", `{"$ref":"a.json"}`, "written in avro", []schema.Reference{ref("a.json", "shop", "Row", 1)}},
		{"one name for two", `{"$id":"https://example.com/o","allOf":[{"$ref":"address.json"},{"$ref":"zip.json"}]}`, "means two versions",
			[]schema.Reference{ref("address.json", "shop", "Address", 1), ref("zip.json", "shop", "Zip", 3)}},
		{"twice", `{}`, "be there once", []schema.Reference{ref("a", "shop", "Address", 1), ref("a", "shop", "Zip", 2)}},
		{"no name", `{}`, "1 to 1024", []schema.Reference{ref("", "shop", "Address", 1)}},
		{"no version", `{}`, "must name", []schema.Reference{ref("a", "shop", "Address", 0)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := schema.Compile(t.Context(), schema.JSONSchema, c.text, c.refs, shelf.find)
			if err == nil || !strings.Contains(err.Error(), c.words) {
				t.Errorf("err = %v, want it to say %q", err, c.words)
			}
		})
	}
	down := fault.New(fault.Unavailable, "the store is away")
	_, err := schema.Compile(t.Context(), schema.JSONSchema, `{"$ref":"a.json"}`, []schema.Reference{ref("a.json", "shop", "Zip", 2)},
		func(context.Context, schema.Ref) (schema.Version, error) { return schema.Version{}, down })
	if fault.KindOf(err) != fault.Unavailable {
		t.Errorf("a store that is away = %v", err)
	}
}

func decode(t testing.TB, s string) any {
	t.Helper()
	v, err := schema.Decode([]byte(s))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestDialects(t *testing.T) {
	for _, c := range []struct{ text, dialect, good, bad string }{
		{`{"$schema":"http://json-schema.org/draft-04/schema#","type":"number","maximum":3,"exclusiveMaximum":true}`, "draft-04", `2`, `3`},
		{`{"$schema":"http://json-schema.org/draft-06/schema#","const":1}`, "draft-06", `1.0`, `2`},
		{`{"$schema":"http://json-schema.org/draft-07/schema#","if":{"type":"string"},"then":{"maxLength":1}}`, "draft-07", `"a"`, `"ab"`},
		{`{"$schema":"https://json-schema.org/draft/2019-09/schema","dependentRequired":{"a":["b"]}}`, "2019-09", `{"b":1}`, `{"a":1}`},
		{`{"$schema":"https://json-schema.org/draft/2020-12/schema","prefixItems":[{"type":"string"}]}`, "2020-12", `["a"]`, `[1]`},
		{`{"format":"date-time"}`, "2020-12", `"2026-11-30T06:00:00Z"`, `"yesterday"`},
		{`true`, "2020-12", `1`, ``},
	} {
		s := compile(t, c.text)
		if s.Dialect != c.dialect {
			t.Errorf("%s is %s, want %s", c.text, s.Dialect, c.dialect)
		}
		if err := s.Validate(decode(t, c.good)); err != nil {
			t.Errorf("%s: %v", c.text, err)
		}
		if c.bad != "" && s.Validate(decode(t, c.bad)) == nil {
			t.Errorf("%s takes %s", c.text, c.bad)
		}
	}
}

func TestValidateSaysWhereAndNotWhat(t *testing.T) {
	s := compile(t, `{"type":"object","required":["id","at"],"additionalProperties":false,"properties":{
		"id":{"type":"string","pattern":"^o-"},"at":{"format":"date-time"},"n":{"type":"integer","minimum":1},
		"kind":{"enum":["card","wire"]},"lines":{"items":{"type":"object","properties":{"sku":{"maxLength":3}}},"uniqueItems":true},
		"pay":{"oneOf":[{"type":"string"},{"type":"number"},{"const":7}]},"a/b":false}}`)
	err := s.Validate(decode(t, `{"id":"hunter2","n":0.5,"kind":"hunter2","lines":[{"sku":"hunter2"},{"sku":"hunter2"}],"pay":7,"a/b":"hunter2","more":"hunter2"}`))
	var f *fault.Error
	if !errors.As(err, &f) {
		t.Fatal(err)
	}
	want := []fault.Detail{
		{Pointer: "", Detail: `has members that are not allowed: "more"`},
		{Pointer: "", Detail: `lacks "at"`},
		{Pointer: "/a~1b", Detail: "is not allowed here"},
		{Pointer: "/id", Detail: "must match ^o-"},
		{Pointer: "/kind", Detail: "must be one of the values of the enum"},
		{Pointer: "/lines", Detail: "has equal items, 0 and 1"},
		{Pointer: "/lines/0/sku", Detail: "must have at most 3 characters"},
		{Pointer: "/lines/1/sku", Detail: "must have at most 3 characters"},
		{Pointer: "/n", Detail: "must be integer, and is number"},
		{Pointer: "/pay", Detail: "fits two schemas of oneOf, 1 and 2"},
	}
	if diff := cmp.Diff(want, f.Details); diff != "" {
		t.Errorf("details (-want +got):\n%s", diff)
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the error repeats the document: %v", err)
	}
}

// What recurs in several branches is checked to a depth that keeps the work bounded, and no deeper.
func TestRecursionIsBounded(t *testing.T) {
	tree := compile(t, `{"type":"object","properties":{"kids":{"items":{"$ref":"#"}},"left":{"$ref":"#"},"right":{"$ref":"#"}}}`)
	if tree.Deepest() != 0 {
		t.Errorf("a tree is checked to the depth %d; each member is looked at once", tree.Deepest())
	}
	if err := tree.Validate(decode(t, strings.Repeat(`{"left":`, 900)+`{}`+strings.Repeat(`}`, 900))); err != nil {
		t.Error(err)
	}
	branching := compile(t, `{"anyOf":[{"properties":{"x":{"$ref":"#"}}},{"properties":{"x":{"$ref":"#"}}},{"additionalProperties":{"$ref":"#"}}]}`)
	if d := branching.Deepest(); d < 5 || d > 20 {
		t.Errorf("a schema that looks three times is checked to the depth %d", d)
	}
	start := time.Now()
	refused(t, branching.Validate(decode(t, strings.Repeat(`{"x":`, 500)+`1`+strings.Repeat(`}`, 500))), "", "nested deeper")
	if err := branching.Validate(decode(t, strings.Repeat(`{"x":`, branching.Deepest())+`1`+strings.Repeat(`}`, branching.Deepest()))); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, c := range []struct{ doc, pointer, words string }{
		{`{"a":[1e500]}`, "/a/0", "exponent"},
		{`{"a":1,"a":2}`, "/a", "twice"},
		{strings.Repeat("[", 1002) + strings.Repeat("]", 1002), strings.Repeat("/0", 1001), "1000 levels"},
		{`[1,]`, "", "not JSON"},
		{``, "", "not JSON"},
	} {
		_, err := schema.Decode([]byte(c.doc))
		refused(t, err, c.pointer, c.words)
	}
}

func TestSameContent(t *testing.T) {
	hash := func(f schema.Format, s string, refs ...schema.Reference) string {
		t.Helper()
		c, err := schema.Compile(t.Context(), f, s, refs, library{"shop/A/1": text(f, stub[f]), "shop/A/2": text(f, stub[f])}.find)
		if err != nil {
			t.Fatal(err)
		}
		return c.Hash
	}
	for _, c := range []struct {
		f    schema.Format
		a, b string
		same bool
	}{
		{schema.JSONSchema, `{"type":"object","title":"<x>"}`, "{\n \"title\" : \"<x>\", \"type\":\"object\" }\n", true},
		{schema.JSONSchema, `{"enum":[1,2]}`, `{"enum":[2,1]}`, false},
		{schema.JSONSchema, `{"type":"object"}`, `{"type":"object","title":"x"}`, false},
		{schema.Avro, `{"type":"record","name":"A","fields":[]}`, `{"fields":[],"name":"A","type":"record"}`, true},
		{schema.Avro, `"int"`, `"long"`, false},
		{schema.Protobuf, "syntax = \"proto3\";\nmessage A { int32 a = 1; }", "// x\nsyntax=\"proto3\"; message A {\n  int32 a=1;\n}", true},
		{schema.Protobuf, `syntax = "proto3"; message A { int32 a = 1; }`, `syntax = "proto3"; message A { int32 b = 1; }`, false},
	} {
		if same := hash(c.f, c.a) == hash(c.f, c.b); same != c.same {
			t.Errorf("%s and %s: same content = %v", c.a, c.b, same)
		}
	}
	one := hash(schema.JSONSchema, `{"$ref":"a"}`, ref("a", "shop", "A", 1))
	if one == hash(schema.JSONSchema, `{"$ref":"a"}`, ref("a", "shop", "A", 2)) {
		t.Error("a reference to another version is other content")
	}
}

var stub = map[schema.Format]string{schema.JSONSchema: `{}`, schema.Avro: `"int"`, schema.Protobuf: `syntax = "proto3";`}

// FuzzDecode holds Decode against encoding/json: it takes less, and what it takes it reads alike.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{"a":[1,-0.5e+3,true,false,null,"x\n\u00e9\ud83d\ude00",{}],"":[]}`, " [ 1 , 2 ] \n", `"\xff"`, `"\ud800"`, `{"a":1,"a":2}`, `{"a":1e9999}`, `[[[]]]`, `1`, ` `, "\"\xff\"", `{"é":"ü"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := schema.Decode(b)
		dec := json.NewDecoder(bytes.NewReader(b))
		dec.UseNumber()
		var want any
		wantErr := dec.Decode(&want)
		if wantErr == nil && !json.Valid(b) {
			wantErr = errors.New("more follows")
		}
		switch {
		case err == nil && wantErr != nil:
			t.Fatalf("Decode(%q) takes what is no JSON: %v", b, wantErr)
		case err != nil && wantErr == nil && !strings.Contains(err.Error(), "twice") && !strings.Contains(err.Error(), "number") && !strings.Contains(err.Error(), "deeper"):
			t.Fatalf("Decode(%q) = %v", b, err)
		case err == nil:
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("Decode(%q) (-encoding/json +ours):\n%s", b, diff)
			}
		}
	})
}
