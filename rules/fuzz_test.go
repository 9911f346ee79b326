// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/rules"
)

// eachCase calls f with the pattern and event of every shared case that is not huge.
func eachCase(tb testing.TB, f func(pattern, event string)) {
	tb.Helper()
	src, err := os.ReadFile("testdata/patterns.jsonl")
	if err != nil {
		tb.Fatal(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(src))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c struct{ Pattern, Event string }
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			tb.Fatal(err)
		}
		if len(c.Pattern)+len(c.Event) < 2000 {
			f(c.Pattern, c.Event)
		}
	}
	for _, c := range documentCases {
		f(c.pattern, c.document)
	}
}

// FuzzPattern holds that a text is refused with pointers or has a canonical form that is its own canonical form.
func FuzzPattern(f *testing.F) {
	eachCase(f, func(pattern, _ string) { f.Add(pattern) })
	f.Fuzz(func(t *testing.T, pattern string) {
		p, err := rules.ParsePattern([]byte(pattern))
		if err != nil {
			var refused *fault.Error
			if !errors.As(err, &refused) || refused.Kind != fault.Invalid || len(refused.Details) == 0 {
				t.Fatalf("ParsePattern = %v, want details", err)
			}
			for _, d := range refused.Details {
				if d.Pointer != "" && d.Pointer[0] != '/' {
					t.Errorf("pointer %q", d.Pointer)
				}
			}
			return
		}
		canonical := p.String()
		again, err := rules.ParsePattern([]byte(canonical))
		if err != nil && len(canonical) <= rules.MaxPattern {
			t.Fatalf("ParsePattern(%s) = %v, of %s", canonical, err, pattern)
		}
		if err == nil && again.String() != canonical {
			t.Errorf("String() = %s, then %s", canonical, again)
		}
		if !json.Valid([]byte(canonical)) {
			t.Errorf("String() = %s, which is not JSON", canonical)
		}
	})
}

// FuzzMatch holds that a pattern says the same of a document, of the same document written another way, and of an
// event that carries it, and that Explain agrees.
func FuzzMatch(f *testing.F) {
	eachCase(f, func(pattern, document string) { f.Add(pattern, document) })
	f.Fuzz(func(t *testing.T, pattern, document string) {
		p, err := rules.ParsePattern([]byte(pattern))
		if err != nil {
			return
		}
		x, err := rules.Compile([]*rules.Rule{{Pattern: p}})
		if err != nil {
			t.Fatal(err)
		}
		matches, err := x.MatchDocument([]byte(document), nil, nil)
		if valid := json.Valid([]byte(document)) && utf8.ValidString(document) && strings.HasPrefix(strings.TrimLeft(document, " \t\r\n"), "{"); valid != (err == nil) {
			if strings.Count(document, "{")+strings.Count(document, "[") <= 1000 {
				t.Fatalf("MatchDocument(%q) = %v, a JSON object: %t", document, err, valid)
			}
			return
		}
		if err != nil {
			return
		}
		var spaced bytes.Buffer
		if err := json.Indent(&spaced, []byte(document), " ", "\t"); err != nil {
			t.Fatal(err)
		}
		again, err := x.MatchDocument(spaced.Bytes(), nil, nil)
		if err != nil || len(again) != len(matches) {
			t.Fatalf("MatchDocument = %d matches, %d and %v when indented\npattern %s\ndocument %s", len(matches), len(again), err, pattern, document)
		}
		wrapped, err := rules.ParsePattern([]byte(`{"data":` + pattern + `}`))
		if err != nil {
			return // longer or deeper than allowed
		}
		rule := &rules.Rule{Pattern: wrapped}
		if x, err = rules.Compile([]*rules.Rule{rule}); err != nil {
			t.Fatal(err)
		}
		ev := &event.Event{ID: "1", Source: "/s", Type: "t", DataContentType: "application/json", Data: []byte(document)}
		carried, err := x.Match(ev, nil, nil)
		if err != nil || len(carried) != len(matches) {
			t.Fatalf("Match = %d matches and %v, MatchDocument %d\npattern %s\ndocument %s", len(carried), err, len(matches), pattern, document)
		}
		why := rule.Explain(ev)
		failed := false
		for _, c := range why.Clauses {
			failed = failed || c.Verdict == rules.Failed
			if !utf8.ValidString(c.Actual) || !utf8.ValidString(c.Expected) {
				t.Errorf("clause %+v is not UTF-8", c)
			}
		}
		if why.Matched != (len(matches) == 1) || why.Matched && failed || !why.Matched && !failed && why.Note == "" {
			t.Errorf("Explain = %+v, %d matches\npattern %s\ndocument %s", why, len(matches), pattern, document)
		}
	})
}

// FuzzTemplate holds that what a transform renders as JSON is JSON, the same each time, whatever the event says.
func FuzzTemplate(f *testing.F) {
	for _, transform := range []string{
		`{"template":{"text":"Box ${subject} is at ${data.temperature} C","at":"${time}"}}`,
		`{"template":"{\"a\": ${data.x}, \"b\": \"- ${data.x}\", \"c\":[${data}]}"}`,
		`{"template":"[${data.x}, \"\\\\${data.y}\"]"}`, `{"template":"${data.x} $${y}"}`,
		`{"paths":{"x":"$.data.x","all":"$.data.*"},"template":"{\"a\": <x>, \"b\": \"<x> <all>\", \"c\": <aws.events.event.json>}"}`,
		`{"paths":{"x":"$.data.x"},"template":"\"<x> \\u0041<x>\""}`, `{"path":"$.data.items[?@.n > 1].sku"}`, `{"path":"$..x"}`, `{"constant":{"a":1}}`,
		`{"template":{"a":"${$.data['}']}","b":"${rialto.event}"}}`,
		`{"template":{"a":"${data.x + 1}","b":"- ${keys(data)} ${ {'z': data, 'a': subject} }"}}`, `{"template":"[${map(data.y, {#})}, \"${toJSON(data)}\"]"}`,
	} {
		for _, data := range []string{`{"x":"a\"b\\","y":[1,{"z":null}]}`, `{"x":{"x":"\u2028\ud800"}}`, `"\u0000"`, `not JSON`, ``} {
			f.Add(transform, "su\"bj\\ect\n", data)
		}
	}
	f.Fuzz(func(t *testing.T, transform, subject, data string) {
		tr, err := rules.ParseTransform([]byte(transform))
		if err != nil {
			return
		}
		ev := &event.Event{ID: "1", Source: "/s", Type: "t", Subject: subject, DataContentType: "application/json", Data: []byte(data)}
		out, err := tr.Apply(ev, orderContext)
		if err != nil || out == ev {
			return
		}
		if out.DataContentType == asJSON && !json.Valid(out.Data) {
			t.Errorf("Apply = %s, which is not JSON\ntransform %s\ndata %s", out.Data, transform, data)
		}
		again, err := tr.Apply(ev, orderContext)
		if err != nil || !bytes.Equal(out.Data, again.Data) {
			t.Errorf("Apply = %s, then %s, %v", out.Data, again.Data, err)
		}
	})
}
