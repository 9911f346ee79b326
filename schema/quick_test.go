// SPDX-License-Identifier: Apache-2.0

package schema_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/schema"
)

// holdQuick checks the one promise of a quick check: what it lets through is valid. It returns what it said and what is so.
func holdQuick(t *testing.T, c *schema.Compiled, text string, doc []byte) (quick, valid bool) {
	t.Helper()
	quick, _ = c.Quick(doc)
	v, err := schema.Decode(doc)
	if err == nil {
		err = c.Validate(v)
	}
	if quick && err != nil {
		t.Fatalf("a quick check lets a document through that is not valid\nschema %s\ndocument %q\n%v", text, doc, err)
	}
	return quick, err == nil
}

// The keywords that a quick check knows by itself, and what it leaves to the library.
func TestQuick(t *testing.T) {
	deep := strings.Repeat("[", 65) + strings.Repeat("]", 65)
	many := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"m%d":1`, i)
		}
		return "{" + b.String()[1:] + "}"
	}
	for _, c := range []struct {
		name, schema string
		knows        []string // documents that it knows to be valid
		leaves       []string // others, valid or not
	}{
		{"anything", `true`, []string{`1`, ` {"a":[1,{"b":null}]} `, `"\u0041\ud83d\ude00"`, `""`, `-0.5e-12`},
			[]string{``, `{`, `1 2`, `{"a":1,"a":1}`, `{"a":1,"\u0061":1}`, `[{"x":{"a":1,"a":2}}]`, deep, `01`, `"\x"`, "\"\xff\"", `1e401`, `1e100`, strings.Repeat("9", 65), `tru`, `{"a":1,}`, `[1,]`, many(257)}},
		{"nothing", `false`, nil, []string{`1`}},
		{"types", `{"type":["integer","string"]}`, []string{`1`, `"a"`, `1.0`, `-0`, `123456789012345678901234567890`}, []string{`1.5`, `null`, `[]`, `{}`, `true`, `1e2`}},
		{"a number", `{"type":"number"}`, []string{`1`, `1.5`, `1e2`, `-1E-7`}, []string{`"1"`}},
		{"literals", `{"type":["boolean","null"]}`, []string{`true`, `false`, `null`}, []string{`0`}},
		{"lengths in code points", `{"minLength":2,"maxLength":3}`, []string{`"äö"`, `"\u00e4b"`, `"😀😀😀"`, `"\ud83d\ude00\ud83d\ude00"`, `1`}, []string{`"ä"`, `"abcd"`, `"\ud83d\ud83d"`}},
		{"a pattern", `{"pattern":"^[A-Z]{3}$"}`, []string{`"EUR"`, `"\u0045UR"`, `{}`}, []string{`"eur"`, `"EURO"`}},
		{"formats", `{"items":{"anyOf":[{"format":"date-time","minLength":11},{"format":"uuid","minLength":36},{"format":"email","pattern":"@"},{"format":"ipv4"}]}}`,
			[]string{`["2026-11-30T08:30:00Z","2026-02-28T23:59:59.123456789+23:59","0192f7a0-5b1c-7def-8000-0123456789ab","ada@example.com","127.0.0.1"]`},
			[]string{`["2026-02-30T08:30:00Z"]`, `["0192f7a0-5b1c-7def-8000-0123456789ag"]`, `["ada.example.com"]`, `["127.0.0.256"]`}},
		{"an enum", `{"enum":["a",1,1.5,null,true,[1]]}`, []string{`"a"`, `"\u0061"`, `1`, `1.0`, `1.50`, `null`, `true`}, []string{`"b"`, `2`, `false`, `[1]`, `{}`, `15e-1`}},
		{"a const", `{"const":false}`, []string{`false`}, []string{`true`, `0`, `null`}},
		{"a const of a big number", `{"const":12345678901234567890}`, nil, []string{`12345678901234567890`, `12345678901234567891`}},
		{"bounds", `{"minimum":0,"exclusiveMaximum":7.5}`, []string{`0`, `0.0`, `-0`, `7.4999`, `1e-99`, `"x"`}, []string{`7.5`, `7.50`, `7.49999999999999999999`, `-0.1`, `-1e-99`, `8`}},
		{"bounds that are no floats", `{"minimum":9007199254740993,"maximum":9007199254740999}`, []string{`9007199254740996`}, []string{`9007199254740992`, `9007199254740993`, `9007199254741001`}},
		{"members", `{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer"}},"required":["a","c"],"additionalProperties":{"type":"null"}}`,
			[]string{`{"a":"x","c":null}`, `{ "c" : null , "b" : 1, "\u0061" : "x" }`},
			[]string{`{"a":"x"}`, `{"a":"x","c":1}`, `{"a":1,"c":null}`, `{"a":"x","a":"y","c":null}`, `{"a":"x","c":null,"d":0}`, `{"a":"x","c":null,"d":null,"d":null}`}},
		{"a closed object", `{"properties":{"a":{}},"additionalProperties":false}`, []string{`{}`, `{"a":[]}`, `[]`}, []string{`{"b":1}`}},
		{"patterns of names", `{"properties":{"s_a":{"minLength":1}},"patternProperties":{"^s_":{"type":"string"},"a$":{"maxLength":2}},"additionalProperties":{"type":"integer"}}`,
			[]string{`{"s_a":"ab","s_b":"long","x":1}`}, []string{`{"s_a":"abc"}`, `{"s_a":""}`, `{"s_b":1}`, `{"x":"1"}`, `{"\u0073_b":"x"}`}},
		{"numbers of members", `{"minProperties":1,"maxProperties":2}`, []string{`{"a":1}`, `{"a":1,"b":2}`}, []string{`{}`, `{"a":1,"b":2,"c":3}`}},
		{"items", `{"type":"array","minItems":1,"maxItems":3,"prefixItems":[{"type":"string"}],"items":{"type":"integer"}}`, []string{`["a"]`, `["a",1,2]`}, []string{`[]`, `[1]`, `["a","b"]`, `["a",1,2,3]`}},
		{"items of draft 7", `{"$schema":"http://json-schema.org/draft-07/schema#","items":[{"type":"string"}],"additionalItems":false}`, []string{`["a"]`, `[]`}, []string{`["a",1]`}},
		{"a reference of draft 7", `{"$schema":"http://json-schema.org/draft-07/schema#","definitions":{"s":{"type":"string"}},"properties":{"a":{"$ref":"#/definitions/s","maxLength":1}}}`, []string{`{"a":"long"}`}, []string{`{"a":1}`}},
		{"a reference with others", `{"$defs":{"s":{"type":"string"}},"properties":{"a":{"$ref":"#/$defs/s","maxLength":1}}}`, []string{`{"a":"x"}`}, []string{`{"a":"long"}`, `{"a":1}`}},
		{"a tree", `{"type":"object","properties":{"next":{"$ref":"#"},"v":{"type":"integer"}},"required":["v"]}`, []string{`{"v":1,"next":{"v":2,"next":{"v":3}}}`}, []string{`{"v":1,"next":{"next":{"v":3}}}`}},
		{"all of", `{"allOf":[{"required":["a"]},{"properties":{"a":{"type":"string"}}}]}`, []string{`{"a":"x"}`}, []string{`{}`, `{"a":1}`}},
		{"any of", `{"anyOf":[{"type":"string"},{"properties":{"a":{"type":"integer"}},"required":["a"]}]}`, []string{`"x"`, `{"a":1}`}, []string{`{"a":""}`, `{}`}},
		{"one of several types", `{"oneOf":[{"type":"string"},{"type":"null"}]}`, []string{`"x"`, `null`}, []string{`1`}},
		{"one of the same type", `{"oneOf":[{"minimum":1},{"minimum":2}]}`, nil, []string{`1`, `2`}},
		{"a rare keyword in a member that is not there", `{"properties":{"a":{"uniqueItems":true}}}`, []string{`{}`, `{"b":1}`}, []string{`{"a":[1]}`, `{"a":[1,1]}`}},
		{"a rare keyword", `{"not":{"type":"string"}}`, nil, []string{`1`, `""`}},
		{"many members", `{"additionalProperties":{"const":1}}`, []string{many(256)}, []string{many(257)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := compile(t, c.schema)
			for _, doc := range c.knows {
				if known, _ := holdQuick(t, s, c.schema, []byte(doc)); !known {
					t.Errorf("%s is not known to be valid", doc)
				}
			}
			for _, doc := range c.leaves {
				if known, _ := holdQuick(t, s, c.schema, []byte(doc)); known {
					t.Errorf("%s is known to be valid", doc)
				}
			}
		})
	}
}

// More than 64 members that are declared, and more than 64 that are required.
func TestQuickManyMembers(t *testing.T) {
	var declared, required, doc []string
	for i := range 100 {
		declared = append(declared, fmt.Sprintf(`"m%d":{"type":"integer"}`, i))
		required = append(required, fmt.Sprintf(`"m%d"`, i))
		doc = append(doc, fmt.Sprintf(`"m%d":%d`, i, i))
	}
	all := "{" + strings.Join(doc, ",") + "}"
	text := fmt.Sprintf(`{"properties":{%s},"required":[%s],"additionalProperties":false}`, strings.Join(declared, ","), strings.Join(required[:50], ","))
	s := compile(t, text)
	if known, _ := holdQuick(t, s, text, []byte(all)); !known {
		t.Error("all members, and it is not known to be valid")
	}
	for _, bad := range []string{"{" + strings.Join(doc[1:], ",") + "}", "{" + strings.Join(append(slices.Clone(doc), `"m99":1`), ",") + "}",
		"{" + strings.Join(append(slices.Clone(doc), `"m0":1`), ",") + "}"} {
		if _, valid := holdQuick(t, s, text, []byte(bad)); valid {
			t.Errorf("%s is valid", bad)
		}
	}
	if _, there := compile(t, fmt.Sprintf(`{"required":[%s]}`, strings.Join(required, ","))).Quick(nil); there {
		t.Error("there is a quick check of a hundred required members")
	}
}

// What is looked at by many parts is not read without end.
func TestQuickReadsAgainWithinBounds(t *testing.T) {
	text := `{"allOf":[` + strings.TrimSuffix(strings.Repeat(`{"minProperties":0},`, 50), ",") + `]}`
	s := compile(t, text)
	if known, valid := holdQuick(t, s, text, []byte(`{"a":"`+strings.Repeat("x", 1000)+`"}`)); known || !valid {
		t.Errorf("known %v, valid %v", known, valid)
	}
}

// TestQuickIsSound holds random schemas against random documents in odd spellings.
func TestQuickIsSound(t *testing.T) {
	checks, known, valid := 0, 0, 0
	for seed := range uint64(300) {
		m := newMaker(seed)
		text := asJSON(m.document())
		s, err := schema.Compile(t.Context(), schema.JSONSchema, text, nil, schema.NoSource)
		if err != nil {
			continue
		}
		_, there := s.Quick(nil)
		docs := s.Samples(schema.Lenient)
		for range 20 {
			docs = append(docs, m.value(3))
		}
		for _, doc := range docs[:min(len(docs), 60)] {
			for _, d := range []any{doc, m.bent(doc)} {
				k, v := holdQuick(t, s, text, []byte(m.spelled(d)))
				if there && v {
					valid++
				}
				if k {
					known++
				}
				checks++
			}
		}
	}
	t.Logf("%d checks; of %d valid documents of schemas with a quick check %d were known", checks, valid, known)
	if checks < 1000 || known < valid/2 {
		t.Errorf("%d checks prove too little: %d of %d valid ones were known", checks, known, valid)
	}
}

// spelled writes a document in one of the many ways to write it; now and then in one that is wrong.
func (m maker) spelled(v any) string {
	out := m.text(v)
	if i := m.IntN(len(out)); m.chance(3) {
		out = out[:i] + pick(m, []string{"", " ", ",", "\"", "}", "\xc3", "0", "\\"}) + out[i+1:]
	}
	return out
}

func (m maker) text(v any) string {
	blank := func() string { return pick(m, []string{"", "", "", " ", "\n\t"}) }
	switch v := v.(type) {
	case map[string]any:
		var parts []string
		for _, k := range sortedNames(v) {
			parts = append(parts, blank()+m.word(k)+blank()+":"+m.text(v[k]))
			if m.chance(2) {
				parts = append(parts, m.word(k)+":"+m.text(v[k]))
			}
		}
		return "{" + strings.Join(parts, ",") + blank() + "}"
	case []any:
		var parts []string
		for _, x := range v {
			parts = append(parts, blank()+m.text(x))
		}
		return "[" + strings.Join(parts, ",") + blank() + "]" + blank()
	case string:
		return m.word(v) + blank()
	case int, float64, json.Number:
		return m.numeral(fmt.Sprint(v)) + blank()
	}
	return blank() + asJSON(v) + blank()
}

func (m maker) word(s string) string {
	if !m.chance(20) {
		return asJSON(s)
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		if r > 0xffff {
			return asJSON(s)
		}
		fmt.Fprintf(&b, "\\u%04x", r)
	}
	return b.String() + `"`
}

func (m maker) numeral(s string) string {
	if strings.ContainsAny(s, "eE") || !m.chance(30) {
		return s
	}
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s + pick(m, []string{"", "0", "000000000000000000", "e0", "E+00"})
}

func FuzzQuick(f *testing.F) {
	for _, p := range pairs(f, "testdata/compat.jsonl") {
		doc := p.Witness
		if doc == nil {
			doc = p.Old
		}
		f.Add(string(p.New), []byte(doc))
	}
	f.Add(orderSchema, []byte(orderDoc))
	for seed := range uint64(20) {
		m := newMaker(seed)
		f.Add(asJSON(m.document()), []byte(m.spelled(m.value(3))))
	}
	for _, bound := range []string{"9007199254740993", "0.1", "1e300", "-1e-300", "123456789012345"} {
		f.Add(`{"minimum":`+bound+`,"exclusiveMaximum":1e308}`, []byte(bound))
		f.Add(`{"enum":[`+bound+`]}`, []byte(bound+"0"))
	}
	f.Fuzz(func(t *testing.T, text string, doc []byte) {
		if s, err := schema.Compile(t.Context(), schema.JSONSchema, text, nil, schema.NoSource); err == nil {
			holdQuick(t, s, strconv.Quote(text), doc)
		}
	})
}

// The quick check of an event of fifteen fields builds nothing.
func TestGateQuickAllocations(t *testing.T) {
	s := compile(t, orderSchema)
	doc := []byte(orderDoc)
	if known, _ := s.Quick(doc); !known {
		t.Fatal("the document is not known to be valid")
	}
	if n := testing.AllocsPerRun(200, func() {
		if err := s.ValidateJSON(doc); err != nil {
			t.Error(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// What a quick check takes for a date or a time the library does.
func TestQuickDates(t *testing.T) {
	s := compile(t, `{"items":{"anyOf":[{"maxLength":10,"format":"date"},{"minLength":11,"format":"date-time"}]}}`)
	known := 0
	for _, year := range []string{"0000", "1900", "2000", "2023", "2024", "20x4", "-024"} {
		for month := range 14 {
			for day := range 33 {
				date := fmt.Sprintf("%s-%02d-%02d", year, month, day)
				for _, tail := range []string{"", "T00:00:00Z", "T23:59:59.5+23:59", "T23:59:60Z", "T24:00:00Z", "T12:00:00.Z", "t12:00:00z", "T12:00:00+24:00", "T1:00:00Z   ", "T12:60:00-00:00"} {
					if k, _ := holdQuick(t, s, "dates", []byte(`["`+date+tail+`"]`)); k {
						known++
					}
				}
			}
		}
	}
	if want := 3 * (366 + 365 + 366 + 365 + 366); known != want {
		t.Errorf("%d are known, want %d", known, want)
	}
}
