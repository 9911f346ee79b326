// SPDX-License-Identifier: Apache-2.0

package schema_test

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/schema"
)

func TestExample(t *testing.T) {
	const draft4 = `"$schema":"http://json-schema.org/draft-04/schema#"`
	for _, c := range []struct{ name, schema, want string }{
		{"anything", `{}`, `"text"`},
		{"true", `true`, `"text"`},
		{"types", `{"type":["null","boolean"]}`, `true`},
		{"null", `{"type":"null"}`, `null`},
		{"object", `{"properties":{"b":{"type":"integer"},"a":{"type":"string"}},"required":["b"]}`, `{"a":"text","b":1}`},
		{"required, not declared", `{"required":["x"]}`, `{"x":"text"}`},
		{"own examples first", `{"type":"integer","examples":["no","7",7],"default":3}`, `7`},
		{"default", `{"type":"integer","default":3}`, `3`},
		{"enum", `{"enum":["b","a"]}`, `"b"`},
		{"const", `{"const":{"a":[1]}}`, `{"a":[1]}`},
		{"formats", `{"properties":{"at":{"format":"date-time"},"id":{"format":"uuid"}}}`,
			`{"at":"2026-01-15T09:30:00Z","id":"018bcfe5-6800-7000-8000-000000000001"}`},
		{"pattern", `{"type":"string","pattern":"^[A-Z]{3}-[0-9]+$","minLength":8}`, `"AAA-00000"`},
		{"lengths", `{"type":"string","minLength":6,"maxLength":6}`, `"textxx"`},
		{"short", `{"type":"string","maxLength":2}`, `"te"`},
		{"bounds", `{"type":"number","exclusiveMinimum":0,"maximum":0.5}`, `0.25`},
		{"multiples", `{"type":"integer","minimum":10,"multipleOf":7}`, `14`},
		{"two multiples", `{"allOf":[{"multipleOf":4},{"multipleOf":6}],"type":"number","minimum":1}`, `12`},
		{"exclusive in draft 4", `{` + draft4 + `,"type":"integer","minimum":5,"exclusiveMinimum":true}`, `6`},
		{"array", `{"type":"array","items":{"type":"integer"}}`, `[1]`},
		{"unique items", `{"type":"array","items":{"type":"integer"},"minItems":3,"uniqueItems":true}`, `[1,2,0]`},
		{"unique words", `{"type":"array","items":{"enum":["a","b","c"]},"minItems":3,"uniqueItems":true}`, `["a","b","c"]`},
		{"tuple", `{"type":"array","prefixItems":[{"type":"integer"},{"const":"x"}],"items":false}`, `[1,"x"]`},
		{"tuple of draft 4", `{` + draft4 + `,"type":"array","items":[{"type":"integer"},{"enum":["x"]}],"minItems":2,"additionalItems":false}`, `[1,"x"]`},
		{"contains", `{"type":"array","contains":{"const":5}}`, `[5]`},
		{"no items", `{"type":"array","maxItems":0}`, `[]`},
		{"map", `{"type":"object","additionalProperties":{"type":"number"}}`, `{"text":1}`},
		{"map of names", `{"type":"object","propertyNames":{"pattern":"^x-"},"additionalProperties":{"type":"number"}}`, `{"x-":1}`},
		{"pattern properties", `{"type":"object","patternProperties":{"^s-[0-9]":{"const":1}},"additionalProperties":false,"minProperties":2}`,
			`{"s-0":1,"s-02":1}`},
		{"closed", `{"allOf":[{"properties":{"a":true}}],"properties":{"b":{"const":1}},"additionalProperties":false}`, `{"b":1}`},
		{"reference", `{"$defs":{"m":{"type":"object","properties":{"v":{"type":"integer"}}}},"properties":{"x":{"$ref":"#/$defs/m"},"y":{"$ref":"#/$defs/m"}}}`,
			`{"x":{"v":1},"y":{"v":1}}`},
		{"recursion", `{"type":"object","properties":{"name":{"type":"string"},"next":{"$ref":"#"},"all":{"type":"array","items":{"$ref":"#"}}}}`,
			`{"all":[{"name":"text"}],"name":"text"}`},
		{"allOf", `{"allOf":[{"type":"object","required":["a"]},{"properties":{"a":{"minimum":3}}}]}`, `{"a":3}`},
		{"oneOf", `{"oneOf":[{"properties":{"k":{"const":"a"},"n":{"type":"integer"}},"required":["k","n"]},{"properties":{"k":{"const":"b"}},"required":["k"]}]}`,
			`{"k":"a","n":1}`},
		{"oneOf whose first branches exclude each other", `{"oneOf":[{"type":"integer"},{"type":"integer","minimum":0},{"type":"string"}]}`, `-1`},
		{"anyOf beside oneOf", `{"type":"object","anyOf":[{"required":["a"]},{"required":["b"]}],"oneOf":[{"properties":{"c":{"const":2}},"required":["c"]}]}`,
			`{"a":"text","c":2}`},
		{"if then", `{"if":{"properties":{"k":{"const":"x"}},"required":["k"]},"then":{"required":["m"]},"else":false}`, `{"k":"x","m":"text"}`},
		{"not", `{"type":"string","not":{"const":"text"}}`, `"text2"`},
		{"depends on", `{"properties":{"a":{"type":"integer"}},"dependentRequired":{"a":["b"]}}`, `{}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := compiled(t, []byte(c.schema))
			got, err := schema.Example(s)
			if err != nil {
				t.Fatal(err)
			}
			if b := compact(t, got); b != c.want {
				t.Errorf("Example = %s, want %s", b, c.want)
			}
			mustHold(t, s, got)
			if again, err := schema.Example(s); err != nil || !bytes.Equal(again, got) {
				t.Errorf("another time: %s, %v", again, err)
			}
		})
	}
}

func compact(t testing.TB, doc []byte) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, doc); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func mustHold(t testing.TB, s *jsonschema.Schema, doc []byte) {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(doc))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(v); err != nil {
		t.Errorf("%s: %v", doc, err)
	}
}

// A schema without documents is an error in bounded time, however many ways there seem to be.
func TestExampleOfContradictions(t *testing.T) {
	for _, doc := range []string{
		`false`,
		`{"type":"string","minLength":3,"maxLength":2}`,
		`{"type":"object","required":["a"],"properties":{"a":false}}`,
		`{"$defs":{"n":{"type":"object","required":["n"],"properties":{"n":{"$ref":"#/$defs/n"}}}},"$ref":"#/$defs/n"}`,
		`{"type":"integer","exclusiveMinimum":1,"exclusiveMaximum":2}`,
		`{"allOf":[{"anyOf":[{"const":1},{"const":2},{"const":3}]},{"anyOf":[{"const":4},{"const":5},{"const":6}]},` +
			`{"oneOf":[{"const":4},{"const":5},{"const":6}]},{"oneOf":[{"const":4},{"const":5},{"const":6}]}]}`,
		`{"type":"array","minItems":1000000000}`,
		`{"type":"string","minLength":1000000000}`,
		`{"type":"object","minProperties":1000000000}`,
	} {
		if got, err := schema.Example(compiled(t, []byte(doc))); fault.KindOf(err) != fault.Invalid {
			t.Errorf("Example(%s) = %.100s, %v; want an error of kind Invalid", doc, got, err)
		}
	}
}

// What is inferred has examples.
func TestExampleOfInferred(t *testing.T) {
	for seed := range uint64(30) {
		g := generator{rand.New(rand.NewPCG(seed, 5))}
		s := schema.NewSummary()
		for range 40 {
			s.Add(g.object(3))
		}
		sch := compiled(t, s.Schema())
		doc, err := schema.Example(sch)
		if err != nil {
			t.Fatalf("seed %d: %v in %s", seed, err, s.Schema())
		}
		mustHold(t, sch, doc)
	}
}
