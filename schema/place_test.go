// SPDX-License-Identifier: Apache-2.0

package schema_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/schema"
)

// pathTo reads a path with slashes in which * is each.
func pathTo(s string) event.Path {
	var out event.Path
	for name := range strings.SplitSeq(strings.TrimPrefix(s, "/"), "/") {
		if s != "" {
			out = append(out, event.Step{Name: strings.TrimSuffix(name, "*"), Each: name == "*"})
		}
	}
	return out
}

func shownPlace(p schema.Place) string {
	out := strings.Join(p.Types, ",")
	if p.Values != nil {
		var all []string
		for _, v := range p.Values {
			all = append(all, string(v))
		}
		out += " of " + strings.Join(all, ",")
	}
	if p.Always {
		out += " always"
	}
	return out
}

func TestPlaces(t *testing.T) {
	const all = "array,boolean,null,number,object,string"
	for _, c := range []struct{ schema, path, want, through string }{
		{`{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}`, "", "object always", ""},
		{`{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}`, "/a", "string always", "string always"},
		{`{"type":"object","properties":{"a":{"type":["string","null"]}}}`, "/a", "null,string", "null,string"},
		{`{"properties":{"a":{"type":"string"}},"required":["a"]}`, "/a", "string always", "string always"},
		{`{"type":"object","properties":{"a":{"type":"string"}}}`, "/b", "", ""},
		{`{"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":{"type":"integer"}}`, "/b", "integer", "integer"},
		{`{"type":"object"}`, "/a", all, "boolean,null,number,object,string"},
		{`{"type":"object","properties":{"a":{"enum":["x","y",1]}}}`, "/a", `number,string of "x","y",1`, `number,string of "x","y",1`},
		{`{"type":"object","properties":{"a":{"const":false}},"required":["a"]}`, "/a", `boolean of false always`, `boolean of false always`},
		{`{"type":"object","properties":{"a":{"type":"object","properties":{"b":{"type":"number"}},"required":["b"]}},"required":["a"]}`, "/a/b", "number always", "number always"},
		{`{"type":"object","properties":{"a":{"$ref":"#/$defs/x"}},"$defs":{"x":{"type":"integer"}}}`, "/a", "integer", "integer"},
		{`{"type":"object","properties":{"l":{"type":"array","minItems":1,"items":{"type":"object","properties":{"s":{"type":"string"}},"required":["s"]}}},"required":["l"]}`, "/l/*/s", "string always", ""},
		{`{"type":"object","properties":{"l":{"type":"array","minItems":1,"items":{"type":"object","properties":{"s":{"type":"string"}},"required":["s"]}}},"required":["l"]}`, "/l/0/s", "string always", ""},
		{`{"type":"object","properties":{"l":{"type":"array","minItems":1,"items":{"type":"object","properties":{"s":{"type":"string"}},"required":["s"]}}},"required":["l"]}`, "/l/1/s", "string", ""},
		{`{"type":"object","properties":{"l":{"type":"array","minItems":1,"items":{"type":"object","properties":{"s":{"type":"string"}},"required":["s"]}}},"required":["l"]}`, "/l/s", "", "string always"},
		{`{"type":"object","properties":{"l":{"type":"array","items":{"type":"array","items":{"type":"integer"}}}}}`, "/l", "array", "integer"},
		{`{"type":"object","properties":{"l":{"type":"array","prefixItems":[{"type":"string"}],"items":{"type":"integer"}}}}`, "/l/0", "string", ""},
		{`{"type":"object","properties":{"l":{"type":"array","prefixItems":[{"type":"string"}],"items":{"type":"integer"}}}}`, "/l/7", "integer", ""},
		{`{"type":"object","properties":{"l":{"type":"array","prefixItems":[{"type":"string"}],"items":false}}}`, "/l/7", "", ""},
		{`{"type":"object","properties":{"a.b":{"type":"string"}}}`, "/a/b", "", "string"},
		{`{"oneOf":[{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]},{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}]}`, "/a", "integer,string always", "integer,string always"},
		{`{"oneOf":[{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]},{"type":"object","properties":{"b":{"type":"integer"}},"required":["b"]}]}`, "/a", "string", "string"},
		{`{"type":"object","properties":{"a":{"anyOf":[{"type":"string"},{"type":"null"}]}}}`, "/a", "null,string", "null,string"},
		{`{"type":"object","properties":{"a":{"anyOf":[{"const":"x"},{"type":"integer"}]}}}`, "/a", "integer,string", "integer,string"},
		{`{"allOf":[{"type":"object","required":["a"]},{"properties":{"a":{"type":"string"}}}]}`, "/a", "string always", "string always"},
		{`{"type":"object","properties":{"next":{"$ref":"#"},"v":{"type":"integer"}},"required":["v"]}`, "/next/next/v", "integer", "integer"},
		{`{"type":"string"}`, "/a", "", ""},
		{`false`, "", "", ""},
		{`{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer"}},"additionalProperties":false}`, "/*", "integer,string always", ""},
		{`{"type":"object","patternProperties":{"^t_":{"type":"number"}}}`, "/t_x", "number", "number"},
	} {
		s := compile(t, c.schema)
		for _, through := range []bool{false, true} {
			want := c.want
			if through {
				want = c.through
			}
			if through && (strings.ContainsAny(c.path, "*0123456789") || c.path == "") {
				continue // patterns have no such paths
			}
			got, err := s.Place(schema.Lenient, pathTo(c.path), through)
			if err != nil {
				t.Fatal(err)
			}
			if shownPlace(got) != want {
				t.Errorf("%s at %s (through %v): %q, want %q", c.schema, c.path, through, shownPlace(got), want)
			}
		}
	}
}

func TestPlaceOfOtherFormats(t *testing.T) {
	c, err := schema.Compile(t.Context(), schema.Avro, `{"type":"record","name":"r","fields":[]}`, nil, schema.NoSource)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Place(schema.Lenient, nil, false)
	wantKind(t, "a place in Avro", err, fault.Unsupported)
	_, err = schema.Changes(c, c, schema.Lenient)
	wantKind(t, "changes in Avro", err, fault.Unsupported)
}

// TestPlacesAreTrue holds what is said of random schemas against their documents: nothing is there that is not said.
func TestPlacesAreTrue(t *testing.T) {
	looked, there := 0, 0
	for seed := range uint64(400) {
		m := newMaker(seed)
		text := asJSON(m.document())
		s, err := schema.Compile(t.Context(), schema.JSONSchema, text, nil, schema.NoSource)
		if err != nil {
			continue
		}
		docs := s.Samples(schema.Strict)
		for range 10 {
			docs = append(docs, m.value(3))
		}
		for _, path := range append(s.Places(schema.Strict), pathTo("a"), pathTo("a/b"), pathTo("b/0")) {
			place, err := s.Place(schema.Strict, path, false)
			if err != nil {
				t.Fatal(err)
			}
			for _, doc := range docs {
				if s.Validate(doc) != nil {
					continue
				}
				found, missing := valuesAt(doc, path)
				looked, there = looked+1, there+len(found)
				if why := untrue(place, found, missing); why != "" {
					t.Fatalf("%s: %s is said to be %q\nschema %s\ndocument %s", why, path, shownPlace(place), text, asJSON(doc))
				}
			}
		}
	}
	t.Logf("%d places in documents, %d values", looked, there)
	if looked < 2000 || there < 500 {
		t.Error("that proves too little")
	}
}

// valuesAt is what a document holds at a path, and whether it is missing where it could be.
func valuesAt(doc any, path event.Path) (values []any, missing bool) {
	if len(path) == 0 {
		return []any{doc}, false
	}
	missing = !path[0].Each
	take := func(name string, v any) {
		if !path[0].Each && path[0].Name != name {
			return
		}
		below, none := valuesAt(v, path[1:])
		values, missing = append(values, below...), none || path[0].Each && missing
	}
	switch v := doc.(type) {
	case map[string]any:
		for name, m := range v {
			take(name, m)
		}
	case []any:
		for i, m := range v {
			take(fmt.Sprint(i), m)
		}
	default:
		missing = true
	}
	return values, missing
}

// untrue says what is wrong with a place that has some values; "" if nothing is.
func untrue(p schema.Place, values []any, missing bool) string {
	if p.Always && missing {
		return "nothing is there"
	}
	for _, v := range values {
		text := asJSON(v)
		types := map[string][]string{"{": {"object"}, "[": {"array"}, `"`: {"string"}, "n": {"null"}, "t": {"boolean"}, "f": {"boolean"}}[text[:1]]
		if types == nil {
			if types = []string{"number"}; !strings.Contains(text, ".") || strings.HasSuffix(text, ".0") {
				types = append(types, "integer")
			}
		}
		if !slices.ContainsFunc(types, func(t string) bool { return slices.Contains(p.Types, t) }) {
			return text + " is of another type"
		}
		if p.Values != nil && !slices.ContainsFunc(p.Values, func(w json.RawMessage) bool { return string(w) == text }) {
			return text + " is another value"
		}
	}
	return ""
}

func TestChanges(t *testing.T) {
	const base = `{"type":"object","properties":{"id":{"type":"string"},"n":{"type":"integer"},"state":{"enum":["new","paid"]},"old":{"type":"object","properties":{"x":{"type":"string"}}},
		"lines":{"type":"array","items":{"type":"object","properties":{"sku":{"type":"string"}},"required":["sku"]}}},"required":["id","n"]}`
	for _, c := range []struct {
		name, old, new string // what is replaced by what in base
		want           string
	}{
		{"nothing", "", "", ""},
		{"a title", `{"type":"string"},"n"`, `{"type":"string","title":"the id"},"n"`, ""},
		{"a member goes, with what is in it", `"old":{"type":"object","properties":{"x":{"type":"string"}}},`, "", "/old removed\n"},
		{"a member comes", `"n":{"type":"integer"}`, `"n":{"type":"integer"},"m":{"type":"object","properties":{"y":{}}}`, "/m added\n"},
		{"another type", `"n":{"type":"integer"}`, `"n":{"type":"string"}`, "/n retyped\n"},
		{"a wider type", `"n":{"type":"integer"}`, `"n":{"type":"number"}`, "/n retyped\n"},
		{"optional, and another type", `"n":{"type":"integer"}`, `"n":{"type":"null"}`, "/n retyped\n"},
		{"optional", `["id","n"]`, `["id"]`, "/n optional\n"},
		{"required", `["id","n"]`, `["id","n","state"]`, "/state required\n"},
		{"an enum grows", `["new","paid"]`, `["new","paid","sent"]`, "/state values\n"},
		{"an enum is in another order", `["new","paid"]`, `["paid","new"]`, ""},
		{"an enum ends", `{"enum":["new","paid"]}`, `{"type":"string"}`, "/state values\n"},
		{"in the items of a list", `["sku"]`, `[]`, "/lines/*/sku optional\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !strings.Contains(base, c.old) {
				t.Fatal("base does not hold it")
			}
			changes, err := schema.Changes(compile(t, base), compile(t, strings.Replace(base, c.old, c.new, 1)), schema.Lenient)
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for _, ch := range changes {
				fmt.Fprintf(&got, "%s %s\n", ch.Path, strings.Join(ch.What, ","))
			}
			if diff := cmp.Diff(c.want, got.String()); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}
