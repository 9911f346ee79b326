// SPDX-License-Identifier: Apache-2.0

package schema_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/rialto-bridge/rialto/schema"
)

// compiled makes a validator of a schema that asserts formats too.
func compiled(t testing.TB, doc []byte) *jsonschema.Schema {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(string(doc)))
	if err != nil {
		t.Fatalf("schema %s: %v", doc, err)
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(jsonschema.SchemeURLLoader{})
	c.AssertFormat()
	if err := c.AddResource("test:schema", v); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("test:schema")
	if err != nil {
		t.Fatalf("schema %s: %v", doc, err)
	}
	return s
}

func summaryOf(t testing.TB, samples ...string) *schema.Summary {
	t.Helper()
	s := schema.NewSummary()
	for _, doc := range samples {
		if err := s.AddJSON([]byte(doc)); err != nil {
			t.Fatalf("AddJSON(%s): %v", doc, err)
		}
	}
	return s
}

// times lists n samples, in which # stands for the number of the sample.
func times(n int, sample string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = strings.ReplaceAll(sample, "#", fmt.Sprint(i))
	}
	return out
}

func keyed(n int, entry string) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = strings.ReplaceAll(entry, "#", string(rune('a'+i/26))+string(rune('a'+i%26)))
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func TestInferredSchema(t *testing.T) {
	statuses := slices.Clip(slices.Concat(times(30, `{"s":"paid"}`), times(30, `{"s":"open"}`)))
	for _, c := range []struct {
		name    string
		samples []string
		want    string // without $schema
	}{
		{"nothing", nil, `{}`},
		{"null only", []string{`{"a":null}`}, `{"type":"object","properties":{"a":{"type":"null"}}}`},
		{"null and text", []string{`{"a":null}`, `{"a":"x y"}`}, `{"type":"object","properties":{"a":{"type":["null","string"]}}}`},
		{"empty array", []string{`{"a":[]}`}, `{"type":"object","properties":{"a":{"type":"array"}}}`},
		{"array", []string{`[1]`, `[]`}, `{"type":"array","items":{"type":"integer"}}`},
		{"integers among numbers", []string{`1`, `1.5`}, `{"type":"number"}`},
		{"20.0 is a number", []string{`20.0`}, `{"type":"number"}`},
		{"several types", []string{`{"a":1}`, `{"a":"x y"}`, `{"a":[true]}`},
			`{"type":"object","properties":{"a":{"type":["integer","string","array"],"items":{"type":"boolean"}}}}`},
		{"nineteen are not enough to require", times(19, `{"a":1}`), `{"type":"object","properties":{"a":{"type":"integer"}}}`},
		{"required", times(20, `{"a":1}`), `{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}`},
		{"optional", append(times(40, `{"a":1}`), `{}`), `{"type":"object","properties":{"a":{"type":"integer"}}}`},
		{"one value is no enumeration", times(60, `{"s":"X"}`),
			`{"type":"object","properties":{"s":{"type":"string"}},"required":["s"]}`},
		{"enumeration", statuses, `{"type":"object","properties":{"s":{"type":"string","enum":["open","paid"]}},"required":["s"]}`},
		{"enumeration with null", append(statuses, `{"s":null}`),
			`{"type":"object","properties":{"s":{"type":["null","string"],"enum":["open","paid",null]}},"required":["s"]}`},
		{"no enumeration beside numbers", append(statuses, `{"s":7}`),
			`{"type":"object","properties":{"s":{"type":["integer","string"]}},"required":["s"]}`},
		{"too many different ones for so few", times(60, `{"s":"v#"}`),
			`{"type":"object","properties":{"s":{"type":"string"}},"required":["s"]}`},
		{"names of people are none", slices.Concat(times(30, `{"s":"Ada L"}`), times(30, `{"s":"Bob M"}`)),
			`{"type":"object","properties":{"s":{"type":"string"}},"required":["s"]}`},
		{"date-time", []string{`"2026-11-29T08:30:00Z"`, `"2026-11-29T08:30:00.123+01:00"`}, `{"type":"string","format":"date-time"}`},
		{"not a date-time each time", []string{`"2026-11-29T08:30:00Z"`, `"soon"`}, `{"type":"string"}`},
		{"date", []string{`"2026-02-28"`}, `{"type":"string","format":"date"}`},
		{"no such day", []string{`"2026-02-30"`}, `{"type":"string"}`},
		{"uuid", []string{`"0192f7a0-5b1c-7def-8000-0123456789ab"`}, `{"type":"string","format":"uuid"}`},
		{"email", []string{`"ada@example.com"`}, `{"type":"string","format":"email"}`},
		{"uri", []string{`"https://example.com/a?b=c"`}, `{"type":"string","format":"uri"}`},
		{"addresses", []string{`{"a":"10.0.0.1","b":"2001:db8::1"}`},
			`{"type":"object","properties":{"a":{"type":"string","format":"ipv4"},"b":{"type":"string","format":"ipv6"}}}`},
		{"ids as names", []string{`{"0192f7a0-5b1c-7def-8000-0123456789ab":{"n":1}}`},
			`{"type":"object","additionalProperties":{"type":"object","properties":{"n":{"type":"integer"}}}}`},
		{"numbers as names", []string{`{"17":1,"18":2.5}`}, `{"type":"object","additionalProperties":{"type":"number"}}`},
		{"many names for one thing", []string{keyed(25, `"#":1`)}, `{"type":"object","additionalProperties":{"type":"integer"}}`},
		{"a record and stray ids", []string{`{"a":1,"2026-11-29":2}`}, `{"type":"object","properties":{"a":{"type":"integer"}}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got, want map[string]any
			if err := json.Unmarshal(summaryOf(t, c.samples...).Schema(), &got); err != nil {
				t.Fatal(err)
			}
			if got["$schema"] != "https://json-schema.org/draft/2020-12/schema" {
				t.Errorf("$schema is %v", got["$schema"])
			}
			delete(got, "$schema")
			if err := json.Unmarshal([]byte(c.want), &want); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// A wide record whose fields are always there stays a record.
func TestInferredWideRecord(t *testing.T) {
	doc := keyed(20, `"n#":1`)
	doc = doc[:len(doc)-1] + "," + keyed(20, `"s#":"some text"`)[1:]
	s := compiled(t, summaryOf(t, doc, doc, doc).Schema())
	if len(s.Properties) != 40 {
		t.Errorf("%d properties, want 40", len(s.Properties))
	}
}

func TestInferredFields(t *testing.T) {
	s := summaryOf(t, `{"id":"10.0.0.1","lines":[{"sku":"a","n":1},{"sku":"b"}]}`, `{"id":"10.0.0.2"}`)
	want := []schema.Field{
		{Path: "/id", Types: []string{"string"}, Format: "ipv4", Present: 2, Total: 2, Fill: 1},
		{Path: "/lines", Types: []string{"array"}, Present: 1, Total: 2, Fill: 0.5},
		{Path: "/lines/*", Types: []string{"object"}, Present: 2, Total: 2, Fill: 1},
		{Path: "/lines/*/n", Types: []string{"integer"}, Present: 1, Total: 2, Fill: 0.5},
		{Path: "/lines/*/sku", Types: []string{"string"}, Present: 2, Total: 2, Fill: 1},
	}
	if d := cmp.Diff(want, s.Fields()); d != "" {
		t.Error(d)
	}
}

func TestInferRefusesWhatIsNotJSON(t *testing.T) {
	s := schema.NewSummary()
	for _, doc := range []string{``, `{`, `{} {}`, `nope`, `{"a":1}]`} {
		if err := s.AddJSON([]byte(doc)); err == nil {
			t.Errorf("AddJSON(%q) = nil", doc)
		}
	}
	if s.Count() != 0 {
		t.Errorf("Count() = %d after refusals", s.Count())
	}
}

// generator makes payloads that run into every limit of a summary now and then.
type generator struct{ *rand.Rand }

func (g generator) text() string {
	switch g.IntN(9) {
	case 0:
		return "2026-11-29T08:30:00Z"
	case 1:
		return "0192f7a0-5b1c-7def-8000-0123456789ab"
	case 2:
		return "ada@example.com"
	case 3:
		return "https://example.com/" + fmt.Sprint(g.IntN(9))
	case 4:
		return "2026-11-29"
	case 5:
		return "some words of text"
	}
	return string(rune('a'+g.IntN(26))) + string(rune('a'+g.IntN(2)))
}

func (g generator) name() string {
	switch g.IntN(12) {
	case 0:
		return fmt.Sprint(g.IntN(100))
	case 1:
		return "device-" + fmt.Sprint(10000+g.IntN(100))
	}
	return string(rune('a' + g.IntN(5)))
}

func (g generator) value(depth int) any {
	switch n := g.IntN(12); {
	case n == 0:
		return nil
	case n == 1:
		return g.IntN(2) == 0
	case n == 2:
		return json.Number(fmt.Sprint(g.IntN(100)))
	case n == 3:
		return json.Number(fmt.Sprintf("%d.5", g.IntN(100)))
	case n < 6 || depth == 0:
		return g.text()
	case n < 7:
		items := make([]any, g.IntN(4))
		for i := range items {
			items[i] = g.value(depth - 1)
		}
		return items
	default:
		return g.object(depth - 1)
	}
}

func (g generator) object(depth int) map[string]any {
	out := map[string]any{}
	if g.IntN(20) == 0 { // more names than a record has
		for range 60 + g.IntN(60) {
			out[fmt.Sprintf("k%c%c", 'a'+g.IntN(26), 'a'+g.IntN(8))] = g.value(min(depth, 2))
		}
		return out
	}
	for range g.IntN(6) {
		out[g.name()] = g.value(depth)
	}
	return out
}

// chain is deeper than a summary goes.
func (g generator) chain() any {
	v := any("end")
	for range 10 + g.IntN(20) {
		v = map[string]any{g.name(): v}
	}
	return v
}

func (g generator) payload() any {
	if g.IntN(8) == 0 {
		return g.chain()
	}
	return g.value(7)
}

// It does not matter who saw which payload: any way of adding and merging gives the same summary.
func TestInferMergeLaws(t *testing.T) {
	beyond := 0
	for seed := range uint64(50) {
		g := generator{rand.New(rand.NewPCG(seed, 1))}
		payloads := make([]any, 1+g.IntN(60))
		parts := make([]*schema.Summary, 3)
		for i := range parts {
			parts[i] = schema.NewSummary()
		}
		all := schema.NewSummary()
		for i := range payloads {
			payloads[i] = g.payload()
			all.Add(payloads[i])
			parts[g.IntN(3)].Add(payloads[i])
		}
		want := string(all.Encode(nil))
		if want[1] < schema.MaxInferDepth {
			beyond++
		}
		sum := func(order ...int) string {
			s := schema.NewSummary()
			for _, i := range order {
				s.Merge(parts[i])
			}
			return string(s.Encode(nil))
		}
		right := schema.NewSummary()
		right.Merge(parts[1])
		right.Merge(parts[2])
		left := schema.NewSummary()
		left.Merge(parts[0])
		left.Merge(right)
		for i, got := range []string{sum(0, 1, 2), sum(2, 1, 0), sum(1, 0, 2), string(left.Encode(nil))} {
			if got != want {
				t.Fatalf("seed %d, order %d: merged is not what was added one by one", seed, i)
			}
		}
	}
	if beyond < 5 {
		t.Errorf("only %d of the runs went beyond the limits", beyond)
	}
}

// Every payload that went in is valid against what comes out, also beyond the limits, also after a merge.
func TestInferredSchemaHoldsForItsSamples(t *testing.T) {
	for seed := range uint64(30) {
		g := generator{rand.New(rand.NewPCG(seed, 2))}
		a, b := schema.NewSummary(), schema.NewSummary()
		payloads := make([]any, 1+g.IntN(150))
		for i := range payloads {
			payloads[i] = g.payload()
			if i%2 == 0 {
				a.Add(payloads[i])
			} else {
				b.Add(payloads[i])
			}
		}
		a.Merge(b)
		s := compiled(t, a.Schema())
		for _, p := range payloads {
			if err := s.Validate(p); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	}
}

func TestInferLimits(t *testing.T) {
	s := schema.NewSummary()
	for i := range 300 { // names and shapes without end
		s.Add(map[string]any{
			fmt.Sprintf("%c%c%c", 'a'+i%26, 'a'+i/26, 'x'): map[string]any{fmt.Sprintf("f%c%c", 'a'+i%26, 'a'+i/26): map[string]any{"z": "w"}},
			"stable": map[string]any{"n": json.Number("1")},
		})
	}
	if n := len(s.Encode(nil)); n > 64<<10 {
		t.Errorf("a summary of 300 names takes %d bytes", n)
	}
	if n := len(s.Fields()); n > schema.MaxInferPaths {
		t.Errorf("%d fields", n)
	}
}

func TestInferEncodesItself(t *testing.T) {
	for seed := range uint64(40) {
		g := generator{rand.New(rand.NewPCG(seed, 3))}
		s := schema.NewSummary()
		for range g.IntN(60) {
			s.Add(g.payload())
		}
		b := s.Encode(nil)
		back, err := schema.DecodeSummary(b)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if string(back.Encode(nil)) != string(b) || string(back.Schema()) != string(s.Schema()) {
			t.Fatalf("seed %d: decoding changes it", seed)
		}
	}
}

// No text of a payload is in a summary, except names of fields and words of what may be an enumeration.
func TestInferKeepsNoPayload(t *testing.T) {
	s := summaryOf(t, `{"name":"Ada Lovelace","mail":"ada@example.com","seen":{"bob@example.com":"+49 30 1234"},"state":"paid"}`)
	b := string(s.Encode(nil)) + string(s.Schema())
	for _, text := range []string{"Ada", "Lovelace", "example.com", "bob", "1234"} {
		if strings.Contains(b, text) {
			t.Errorf("the summary holds %q", text)
		}
	}
	if !strings.Contains(b, "paid") || !strings.Contains(b, "mail") {
		t.Error("the summary holds neither words nor names")
	}
}

func FuzzDecodeSummary(f *testing.F) {
	f.Add([]byte{})
	f.Add(schema.NewSummary().Encode(nil))
	for seed := range uint64(8) {
		g := generator{rand.New(rand.NewPCG(seed, 4))}
		s := schema.NewSummary()
		for range 5 {
			s.Add(g.value(3))
		}
		f.Add(s.Encode(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := schema.DecodeSummary(b)
		if err != nil {
			return
		}
		if got := s.Encode(nil); string(got) != string(b) {
			t.Fatalf("%x decodes and encodes to %x", b, got)
		}
		compiled(t, s.Schema())
		twice := schema.NewSummary()
		twice.Merge(s)
		twice.Merge(s)
		if _, err := schema.DecodeSummary(twice.Encode(nil)); err != nil {
			t.Fatalf("merged with itself: %v", err)
		}
	})
}

func FuzzInfer(f *testing.F) {
	for _, doc := range []string{`{"a":[1,2.5,null]}`, `"2026-11-29T08:30:00Z"`, `"a@b.c"`, `"x://y"`, `{"1":{"":"::1"}}`, `1e5`} {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		s := schema.NewSummary()
		if s.AddJSON(doc) != nil {
			return
		}
		var v any
		dec := json.NewDecoder(strings.NewReader(string(doc)))
		dec.UseNumber()
		if err := dec.Decode(&v); err != nil {
			t.Fatal(err)
		}
		if err := compiled(t, s.Schema()).Validate(v); err != nil {
			t.Fatalf("%s: %v", doc, err)
		}
	})
}

func BenchmarkInferAdd(b *testing.B) {
	var v any
	if err := json.Unmarshal([]byte(orderEvent), &v); err != nil {
		b.Fatal(err)
	}
	s := schema.NewSummary()
	b.ReportAllocs()
	for b.Loop() {
		s.Add(v)
	}
}

// orderEvent has fifteen fields on two levels.
const orderEvent = `{"orderId":"0192f7a0-5b1c-7def-8000-0123456789ab","placedAt":"2026-11-29T08:30:00Z","status":"paid",
"currency":"EUR","total":129.9,"coupon":null,"express":false,"note":"leave it at the door",
"customer":{"id":"c-1042","email":"ada@example.com","country":"DE"},
"lines":[{"sku":"A-1","quantity":2,"price":49.95},{"sku":"B-7","quantity":1,"price":30}]}`
