// SPDX-License-Identifier: Apache-2.0

package schema_test

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/rialto-bridge/rialto/schema"
)

// maker makes random schemas and documents of a small world, in which they meet often.
type maker struct{ *rand.Rand }

func newMaker(seed uint64) maker { return maker{rand.New(rand.NewPCG(seed, 1))} }

var (
	someNames    = []string{"a", "b", "c", "s_a", "s_b"}
	somePatterns = []string{"^s_", "^a", "b$", "^[ab]$"}
	someScalars  = []any{nil, true, false, 0, 1, 2, 3, 4, 1.5, -1, 10, "", "a", "ab", "abc", "s_a", "b", "2026-01-02", "a@b.cd"}
)

func pick[T any](m maker, list []T) T { return list[m.IntN(len(list))] }

func (m maker) chance(percent int) bool { return m.IntN(100) < percent }

// value makes a document.
func (m maker) value(depth int) any {
	switch n := m.IntN(10); {
	case depth > 0 && n < 3:
		o := map[string]any{}
		for range m.IntN(4) {
			o[pick(m, append(slices.Clone(someNames), "z"))] = m.value(depth - 1)
		}
		return o
	case depth > 0 && n < 5:
		a := []any{}
		for range m.IntN(4) {
			a = append(a, m.value(depth-1))
		}
		return a
	}
	return pick(m, someScalars)
}

// schema makes a schema whose references lead to $defs d0 to d2.
func (m maker) schema(depth int) any {
	if m.chance(5) {
		return m.chance(80)
	}
	s := map[string]any{}
	if m.chance(60) {
		s["type"] = pick(m, []any{"object", "object", "array", "string", "integer", "number", "null", "boolean",
			[]any{"string", "null"}, []any{"integer", "string"}, []any{"object", "array"}, []any{"number", "object"}})
	}
	for range 1 + m.IntN(3) {
		m.keyword(s, depth)
	}
	return s
}

func (m maker) schemas(depth int) []any {
	var out []any
	for range 1 + m.IntN(3) {
		out = append(out, m.schema(depth-1))
	}
	return out
}

func (m maker) named(depth int, names []string) map[string]any {
	out := map[string]any{}
	for range m.IntN(4) {
		out[pick(m, names)] = m.schema(depth - 1)
	}
	return out
}

func (m maker) values() []any {
	out := []any{pick(m, someScalars)}
	for range m.IntN(4) {
		if v := m.value(1); !slices.ContainsFunc(out, func(o any) bool { return asJSON(o) == asJSON(v) }) {
			out = append(out, v)
		}
	}
	return out
}

func asJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func (m maker) subset() []any {
	var out []any
	for _, n := range someNames[:3] {
		if m.chance(40) {
			out = append(out, n)
		}
	}
	return append([]any{}, out...)
}

// keyword sets one keyword, often one that goes with the others.
func (m maker) keyword(s map[string]any, depth int) {
	if depth <= 0 || m.chance(35) {
		m.assertion(s)
		return
	}
	switch m.IntN(22) {
	case 0, 1, 2, 3:
		s["properties"] = m.named(depth, someNames)
		if m.chance(50) {
			s["required"] = m.subset()
		}
	case 4:
		s["patternProperties"] = m.named(depth, somePatterns)
	case 5, 6:
		s["additionalProperties"] = pick(m, []any{true, false, false, m.schema(depth - 1)})
	case 7:
		s["unevaluatedProperties"] = pick(m, []any{true, false, m.schema(depth - 1)})
	case 8:
		s["items"] = m.schema(depth - 1)
	case 9:
		s["prefixItems"] = m.schemas(depth)
	case 10:
		s["contains"] = m.schema(depth - 1)
		if m.chance(40) {
			s["minContains"] = m.IntN(3)
		}
		if m.chance(30) {
			s["maxContains"] = m.IntN(3)
		}
	case 11:
		s["unevaluatedItems"] = pick(m, []any{true, false, m.schema(depth - 1)})
	case 12:
		s["allOf"] = m.schemas(depth)
	case 13, 14:
		s["anyOf"] = m.schemas(depth)
	case 15, 16:
		s["oneOf"] = m.schemas(depth)
	case 17:
		s["not"] = m.schema(depth - 1)
	case 18:
		s["if"] = m.schema(depth - 1)
		s[pick(m, []string{"then", "else"})] = m.schema(depth - 1)
	case 19:
		s["dependentSchemas"] = m.named(depth, someNames)
	case 20:
		s["propertyNames"] = pick(m, []any{map[string]any{"maxLength": 1}, map[string]any{"pattern": "^s_"}, map[string]any{"enum": []any{"a", "b"}}, m.schema(0)})
	case 21:
		s["$ref"] = "#/$defs/d" + strconv.Itoa(m.IntN(3))
	}
}

func (m maker) assertion(s map[string]any) {
	switch m.IntN(16) {
	case 0:
		s["const"] = m.value(1)
	case 1:
		s["enum"] = m.values()
	case 2:
		s["minimum"] = pick(m, []any{-1, 0, 1, 1.5, 2})
	case 3:
		s["maximum"] = pick(m, []any{0, 1, 2.5, 3, 10})
	case 4:
		s["exclusiveMinimum"] = pick(m, []any{-1, 0, 1, 1.5})
	case 5:
		s["exclusiveMaximum"] = pick(m, []any{1, 2, 2.5, 4})
	case 6:
		s["multipleOf"] = pick(m, []any{1, 2, 0.5, 3, 0.1})
	case 7:
		s["minLength"] = m.IntN(3)
	case 8:
		s["maxLength"] = m.IntN(4)
	case 9:
		s["pattern"] = pick(m, append(slices.Clone(somePatterns), "^a?b?$"))
	case 10:
		s["format"] = pick(m, []any{"date", "email", "unheard-of"})
	case 11:
		s["minItems"] = m.IntN(3)
	case 12:
		s["maxItems"] = m.IntN(4)
	case 13:
		s["uniqueItems"] = m.chance(80)
	case 14:
		s[pick(m, []string{"minProperties", "maxProperties"})] = m.IntN(4)
	case 15:
		s["dependentRequired"] = map[string]any{pick(m, someNames): m.subset()}
	}
}

// document makes a whole schema. The references of definitions go down the list, or into members, so that they end.
func (m maker) document() map[string]any {
	s, ok := m.schema(3).(map[string]any)
	if !ok {
		s = map[string]any{"type": "object"}
	}
	defs := map[string]any{}
	for i := range 3 {
		defs["d"+strconv.Itoa(i)] = m.schema(1)
	}
	if m.chance(20) {
		defs["d0"] = map[string]any{"type": "object", "properties": map[string]any{"a": m.schema(0), "b": map[string]any{"$ref": "#/$defs/d0"}}}
	}
	s["$defs"] = defs
	return s
}

// changed makes a variation of a schema: some member somewhere is taken out, or another is put in.
func (m maker) changed(v any, depth int) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for _, k := range sortedNames(v) {
			switch {
			case m.chance(8) && k != "$defs":
			case m.chance(60):
				out[k] = m.changed(v[k], depth-1)
			default:
				out[k] = v[k]
			}
		}
		if m.chance(25) && depth < 3 {
			m.assertion(out)
		}
		return out
	case []any:
		out := slices.Clone(v)
		for i := range out {
			if m.chance(60) {
				out[i] = m.changed(out[i], depth-1)
			}
		}
		return out
	case int:
		return max(v+m.IntN(3)-1, 0)
	case bool:
		return v != m.chance(20)
	}
	return v
}

func sortedNames(v map[string]any) []string {
	var out []string
	for k := range v {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// bent is a document near another.
func (m maker) bent(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for _, k := range sortedNames(v) {
			if !m.chance(15) {
				out[k] = v[k]
			}
			if m.chance(25) {
				out[k] = m.bent(v[k])
			}
		}
		if m.chance(30) {
			out[pick(m, someNames)] = m.value(1)
		}
		return out
	case []any:
		out := slices.Clone(v)
		if len(out) > 0 {
			i := m.IntN(len(out))
			out[i] = m.bent(out[i])
		}
		if m.chance(30) {
			out = append(out, m.value(1))
		}
		return out
	}
	return m.value(0)
}

// tally counts what one run of pairs has come to.
type tally struct{ pairs, compatible, unknown, incompatible, shown, documents int }

// try makes a pair of schemas and holds what is said of them against documents.
func (c *tally) try(t *testing.T, seed uint64, policy schema.Policy) {
	m := newMaker(seed)
	one := m.document()
	two := m.document()
	if m.chance(70) {
		two = m.changed(one, 3).(map[string]any)
	}
	w, errW := schema.Compile(t.Context(), schema.JSONSchema, asJSON(one), nil, schema.NoSource)
	r, errR := schema.Compile(t.Context(), schema.JSONSchema, asJSON(two), nil, schema.NoSource)
	if errW != nil || errR != nil {
		return // $ref in a circle, most likely
	}
	c.pairs++
	v := schema.Compare(w, r, schema.Backward, policy)
	for _, f := range v.Findings {
		shows(t, w, r, f)
	}
	switch v.Outcome {
	case schema.Compatible:
		c.compatible++
		c.hold(t, m, w, r, policy, one, two)
	case schema.Unknown:
		c.unknown++
	case schema.Incompatible:
		c.incompatible++
		if v.Findings[0].Witness != nil {
			c.shown++
		}
	}
}

// hold tries documents of w on r, which takes them all as has been said.
func (c *tally) hold(t *testing.T, m maker, w, r *schema.Compiled, policy schema.Policy, one, two any) {
	docs := w.Samples(policy)
	for i := range 60 {
		if len(docs) > 0 && i%3 > 0 {
			docs = append(docs, m.bent(docs[m.IntN(len(docs))]))
		} else {
			docs = append(docs, m.value(3))
		}
	}
	for _, d := range docs {
		doc, err := schema.Decode([]byte(asJSON(d)))
		if err != nil {
			t.Fatal(err)
		}
		if w.Validate(doc) != nil || !w.Writes(policy, doc) {
			continue
		}
		c.documents++
		if err := r.Validate(doc); err != nil {
			t.Fatalf("%s is said to be compatible, and the reader refuses a document\nwriter %s\nreader %s\ndocument %s\n%v", policy, asJSON(one), asJSON(two), asJSON(doc), err)
		}
	}
}

// TestCompatibilityIsSound compares random pairs of schemas. RIALTO_SCHEMA_PAIRS is how many; 100 without it.
func TestCompatibilityIsSound(t *testing.T) {
	pairs := 100
	if s := os.Getenv("RIALTO_SCHEMA_PAIRS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		pairs = n
	}
	for _, policy := range []schema.Policy{schema.Strict, schema.Lenient} {
		var c tally
		for seed := range uint64(pairs) {
			c.try(t, seed, policy)
		}
		t.Logf("%s: %+v", policy, c)
		if c.compatible < c.pairs/10 || c.documents < 5*c.compatible || c.shown < c.incompatible/2 {
			t.Errorf("%s: the pairs prove too little: %+v", policy, c)
		}
	}
}

func FuzzCompatibility(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seed, seed%2 == 0)
	}
	f.Fuzz(func(t *testing.T, seed uint64, strict bool) {
		policy := schema.Lenient
		if strict {
			policy = schema.Strict
		}
		var c tally
		c.try(t, seed, policy)
	})
}
