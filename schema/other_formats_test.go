// SPDX-License-Identifier: Apache-2.0

package schema_test

import (
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/schema"
)

func TestAvro(t *testing.T) {
	record := func(fields string) string {
		return `{"type":"record","name":"Order","namespace":"shop","fields":[` + fields + `]}`
	}
	const id, qty, note = `{"name":"id","type":"string"}`, `{"name":"qty","type":"int"}`, `{"name":"note","type":["null","string"],"default":null}`
	for _, c := range []struct {
		name, old, new string
		mode           schema.Mode
		want           schema.Outcome
	}{
		{"the same", record(id), record(id), schema.Full, schema.Compatible},
		{"a field with a default", record(id), record(id + "," + note), schema.Full, schema.Compatible},
		{"a field without", record(id), record(id + "," + qty), schema.Backward, schema.Incompatible},
		{"a field without, forward", record(id), record(id + "," + qty), schema.Forward, schema.Compatible},
		{"a field gone", record(id + "," + qty), record(id), schema.Backward, schema.Compatible},
		{"int to long", `"int"`, `"long"`, schema.Backward, schema.Compatible},
		{"long to int", `"long"`, `"int"`, schema.Backward, schema.Incompatible},
		{"none is no check", `"long"`, `"int"`, schema.None, schema.Compatible},
	} {
		t.Run(c.name, func(t *testing.T) { compared(t, schema.Avro, c.old, c.new, c.mode, schema.Lenient, c.want, "V1") })
	}
	for _, s := range []string{`{"type":"record"}`, `{"type":"unheard"}`, `{`, `"Address"`, strings.Repeat(`{"type":"array","items":`, 100) + `"int"` + strings.Repeat(`}`, 99)} {
		if _, err := schema.Compile(t.Context(), schema.Avro, s, nil, schema.NoSource); err == nil || fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s: %v", s, err)
		}
	}
	shelf := library{
		"shop/Zip/1":     text(schema.Avro, `{"type":"fixed","name":"shop.Zip","size":5}`),
		"shop/Address/1": text(schema.Avro, `{"type":"record","name":"shop.Address","fields":[{"name":"zip","type":"shop.Zip"}]}`, ref("shop.Zip", "shop", "Zip", 1)),
		"shop/Loop/1":    text(schema.Avro, `"int"`, ref("x", "shop", "Loop", 1)),
	}
	to := []schema.Reference{ref("shop.Address", "shop", "Address", 1)}
	if _, err := schema.Compile(t.Context(), schema.Avro, record(`{"name":"to","type":"shop.Address"}`), to, shelf.find); err != nil {
		t.Error(err)
	}
	if _, err := schema.Compile(t.Context(), schema.Avro, `"int"`, []schema.Reference{ref("x", "shop", "Loop", 1)}, shelf.find); err == nil || !strings.Contains(err.Error(), "itself") {
		t.Errorf("references in a circle: %v", err)
	}
}

// compared compiles two texts and checks what is said of them, in both orders of what mode looks at.
func compared(t *testing.T, f schema.Format, older, newer string, m schema.Mode, p schema.Policy, want schema.Outcome, rule string) {
	t.Helper()
	var c [2]*schema.Compiled
	for i, s := range []string{older, newer} {
		var err error
		if c[i], err = schema.Compile(t.Context(), f, s, nil, schema.NoSource); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	v := schema.Compare(c[0], c[1], m, p)
	if v.Outcome != want {
		t.Fatalf("%s, want %s: %+v", v.Outcome, want, v.Findings)
	}
	if want == schema.Compatible {
		if len(v.Findings) > 0 || v.Err(false) != nil {
			t.Errorf("compatible with findings %+v", v.Findings)
		}
		return
	}
	if v.Findings[0].Rule != rule || v.Findings[0].Reason == "" || v.Err(true) == nil && want == schema.Incompatible {
		t.Errorf("findings = %+v, want rule %s", v.Findings, rule)
	}
}

func TestProtobufRules(t *testing.T) {
	three := func(body string) string { return "syntax = \"proto3\";\npackage shop;\n" + body }
	two := func(body string) string { return "syntax = \"proto2\";\npackage shop;\n" + body }
	const compatible, incompatible = schema.Compatible, schema.Incompatible
	for _, c := range []struct {
		name, old, new string
		policy         schema.Policy
		want           schema.Outcome
		rule           string
	}{
		{"a field added", three(`message A { int32 a = 1; }`), three(`message A { int32 a = 1; string b = 2; }`), schema.Strict, compatible, ""},
		{"a message added", three(`message A {}`), three(`message A {} message B {}`), schema.Strict, compatible, ""},
		{"a message gone", three(`message A {} message B {}`), three(`message A {}`), schema.Lenient, incompatible, "P1"},
		{"a nested message gone", three(`message A { message B {} }`), three(`message A {}`), schema.Lenient, incompatible, "P1"},
		{"an enum gone", three(`message A {} enum E { X = 0; }`), three(`message A {}`), schema.Lenient, incompatible, "P1"},
		{"int32 to int64", three(`message A { int32 a = 1; }`), three(`message A { int64 a = 1; }`), schema.Strict, compatible, ""},
		{"int64 to int32", three(`message A { int64 a = 1; }`), three(`message A { int32 a = 1; }`), schema.Lenient, incompatible, "P2"},
		{"int32 to sint32", three(`message A { int32 a = 1; }`), three(`message A { sint32 a = 1; }`), schema.Lenient, incompatible, "P2"},
		{"string to bytes", three(`message A { string a = 1; }`), three(`message A { bytes a = 1; }`), schema.Lenient, compatible, ""},
		{"bytes to string", three(`message A { bytes a = 1; }`), three(`message A { string a = 1; }`), schema.Lenient, incompatible, "P2"},
		{"a message of a field", three(`message A { B a = 1; } message B { int32 x = 1; } message C { string x = 1; }`),
			three(`message A { C a = 1; } message B { int32 x = 1; } message C { string x = 1; }`), schema.Lenient, incompatible, "P2"},
		{"a recursive message", three(`message A { A a = 1; int32 b = 2; }`), three(`message A { A a = 1; int64 b = 2; }`), schema.Lenient, compatible, ""},
		{"a new name", three(`message A { int32 a = 1; }`), three(`message A { int32 b = 1; }`), schema.Lenient, compatible, ""},
		{"a new name, strict", three(`message A { int32 a = 1; }`), three(`message A { int32 b = 1; }`), schema.Strict, incompatible, "P3"},
		{"one to many", three(`message A { string a = 1; }`), three(`message A { repeated string a = 1; }`), schema.Lenient, compatible, ""},
		{"many to one", three(`message A { repeated string a = 1; }`), three(`message A { string a = 1; }`), schema.Lenient, incompatible, "P4"},
		{"a map to a list", three(`message A { map<string, int32> a = 1; }`), three(`message A { repeated string a = 1; }`), schema.Lenient, incompatible, "P4"},
		{"values of a map", three(`message A { map<string, int64> a = 1; }`), three(`message A { map<string, int32> a = 1; }`), schema.Lenient, incompatible, "P2"},
		{"into one oneof", three(`message A { int32 a = 1; int32 b = 2; }`), three(`message A { oneof x { int32 a = 1; int32 b = 2; } }`), schema.Lenient, incompatible, "P5"},
		{"into a oneof of its own", three(`message A { int32 a = 1; }`), three(`message A { oneof x { int32 a = 1; int32 b = 2; } }`), schema.Lenient, compatible, ""},
		{"the same oneof", three(`message A { oneof x { int32 a = 1; int32 b = 2; } }`), three(`message A { oneof x { int32 a = 1; int32 b = 2; int32 c = 3; } }`), schema.Strict, compatible, ""},
		{"required", two(`message A { optional int32 a = 1; }`), two(`message A { required int32 a = 1; }`), schema.Lenient, incompatible, "P6"},
		{"required and new", two(`message A {}`), two(`message A { required int32 a = 1; }`), schema.Lenient, incompatible, "P6"},
		{"required no more", two(`message A { required int32 a = 1; }`), two(`message A { optional int32 a = 1; }`), schema.Strict, compatible, ""},
		{"a field gone", three(`message A { int32 a = 1; }`), three(`message A {}`), schema.Lenient, compatible, ""},
		{"a field gone, strict", three(`message A { int32 a = 1; }`), three(`message A {}`), schema.Strict, incompatible, "P7"},
		{"a field gone, its number reserved", three(`message A { int32 a = 1; }`), three(`message A { reserved 1; }`), schema.Strict, compatible, ""},
		{"a reserved number", three(`message A { reserved 1; }`), three(`message A { int32 a = 1; }`), schema.Lenient, incompatible, "P7"},
		{"a value gone of an open enum", three(`enum E { X = 0; Y = 1; }`), three(`enum E { X = 0; }`), schema.Lenient, compatible, ""},
		{"a value gone of a closed enum", two(`enum E { X = 0; Y = 1; }`), two(`enum E { X = 0; }`), schema.Lenient, incompatible, "P8"},
		{"a value with a new name", three(`enum E { X = 0; Y = 1; }`), three(`enum E { X = 0; Z = 1; }`), schema.Strict, incompatible, "P8"},
		{"another package", three(`message A {}`), strings.Replace(three(`message A {}`), "shop", "store", 1), schema.Lenient, incompatible, "P9"},
	} {
		t.Run(c.name, func(t *testing.T) {
			compared(t, schema.Protobuf, c.old, c.new, schema.Backward, c.policy, c.want, c.rule)
		})
	}
}

func TestProtobufRefused(t *testing.T) {
	for _, c := range []struct{ name, text, words string }{
		{"no Protobuf", `{"type":"object"}`, "line 1"},
		{"an unknown type", `syntax = "proto3"; message A { B b = 1; }`, "line 1, column 32"},
		{"a number twice", `syntax = "proto3"; message A { int32 a = 1; int32 b = 1; }`, "line 1"},
		{"a file", `syntax = "proto3"; import "/etc/hostname"; message A {}`, "not among the references"},
		{"deep", `syntax = "proto3";` + strings.Repeat("message A {", 200) + strings.Repeat("}", 200), "128 levels"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := schema.Compile(t.Context(), schema.Protobuf, c.text, nil, schema.NoSource)
			refused(t, err, "", c.words)
		})
	}
	shelf := library{"shop/Money/2": text(schema.Protobuf, `syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto"; message Money { int64 cents = 1; google.protobuf.Timestamp at = 2; }`)}
	refs := []schema.Reference{ref("shop/money.proto", "shop", "Money", 2)}
	const order = `syntax = "proto3"; package shop; import "shop/money.proto"; message Order { Money total = 1; }`
	if _, err := schema.Compile(t.Context(), schema.Protobuf, order, refs, shelf.find); err != nil {
		t.Error(err)
	}
	if _, err := schema.Compile(t.Context(), schema.Protobuf, order, nil, shelf.find); err == nil {
		t.Error("an import without a reference is taken")
	}
}

func TestFormatsDoNotMix(t *testing.T) {
	a, err := schema.Compile(t.Context(), schema.Avro, `"int"`, nil, schema.NoSource)
	if err != nil {
		t.Fatal(err)
	}
	if v := schema.Compare(compile(t, `{}`), a, schema.Backward, schema.Lenient); v.Outcome != schema.Incompatible || v.Findings[0].Rule != "F1" {
		t.Errorf("JSON Schema to Avro: %+v", v)
	}
	if err := a.Validate(1); fault.KindOf(err) != fault.Unsupported {
		t.Errorf("Avro validates JSON: %v", err)
	}
	if _, err := schema.Compile(t.Context(), "xsd", `x`, nil, schema.NoSource); err == nil || !strings.Contains(err.Error(), "jsonschema, avro, protobuf") {
		t.Errorf("an unknown format: %v", err)
	}
}

func FuzzCompile(f *testing.F) {
	for _, s := range []string{`{"type":"object"}`, `{"$ref":"#/$defs/a","$defs":{"a":{"allOf":[{"$ref":"#"}]}}}`, `{"anyOf":[{"properties":{"x":{"$ref":"#"}}},{"items":{"$ref":"#"}}]}`,
		`{"$dynamicRef":"#a","$defs":{"x":{"$dynamicAnchor":"a","items":{"$dynamicRef":"#a"}}}}`, `{"enum":[1e400,-0]}`, `{"type":"record","name":"A","fields":[{"name":"a","type":["null","A"]}]}`,
		"syntax = \"proto3\"; message A { map<int32, A> a = 1; oneof x { string s = 2; } }", `{"$id":"http://[::1","$ref":"a"}`, `{"$schema":"http://json-schema.org/draft-04/schema","id":"#x","items":[{"$ref":"#x"}]}`} {
		for _, format := range []schema.Format{schema.JSONSchema, schema.Avro, schema.Protobuf} {
			f.Add(string(format), s, `{"x":[1,{"a":null}]}`)
		}
	}
	f.Fuzz(func(t *testing.T, format, s, doc string) {
		c, err := schema.Compile(t.Context(), schema.Format(format), s, nil, schema.NoSource)
		if err != nil {
			if k := fault.KindOf(err); k != fault.Invalid && k != fault.TooLarge && k != fault.NotFound {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		again, err := schema.Compile(t.Context(), c.Format, s, c.References, schema.NoSource)
		if err != nil || again.Hash != c.Hash {
			t.Fatalf("%q is not the same content as itself: %v", s, err)
		}
		if v, err := schema.Decode([]byte(doc)); err == nil && c.Format == schema.JSONSchema {
			_ = c.Validate(v)
		}
		if v := schema.Compare(c, again, schema.Full, schema.Strict); v.Outcome != schema.Compatible {
			t.Fatalf("%q is not compatible with itself: %+v", s, v)
		}
	})
}
