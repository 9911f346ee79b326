// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
)

// The tests here execute docs/patterns.md.

func readDoc(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../docs/patterns.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// rows returns the cells, without back quotes, of all tables with a header.
func rows(doc string, header ...string) [][]string {
	var found [][]string
	inside := false
	for line := range strings.Lines(doc) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			inside = false
			continue
		}
		var cells []string
		for _, cell := range strings.Split(strings.Trim(line, "|"), " | ") {
			cells = append(cells, strings.Trim(strings.TrimSpace(cell), "`"))
		}
		switch {
		case slices.Equal(cells, header):
			inside = true
		case inside && !strings.HasPrefix(line, "|---"):
			found = append(found, cells)
		}
	}
	return found
}

// block returns the text of the first code block with an info string.
func block(t *testing.T, doc, info string) string {
	t.Helper()
	_, rest, ok := strings.Cut(doc, "```"+info+"\n")
	text, _, closed := strings.Cut(rest, "```")
	if !ok || !closed {
		t.Fatalf("no block %q", info)
	}
	return text
}

func TestDocPatterns(t *testing.T) {
	examples := rows(readDoc(t), "pattern", "event", "matches")
	if len(examples) < 60 {
		t.Fatalf("%d examples; the tables have changed shape", len(examples))
	}
	seen := map[string]bool{}
	for _, cells := range examples {
		pattern, document, want := cells[0], cells[1], cells[2]
		got := "refused"
		if p, err := rules.ParsePattern([]byte(pattern)); err == nil {
			got = "no"
			if matchDocument(t, p, document) {
				got = "yes"
			}
		}
		if got != want {
			t.Errorf("%s on %s: %s, want %s", pattern, document, got, want)
		}
		for _, operator := range []string{"prefix", "suffix", "equals-ignore-case", "wildcard", "anything-but", "numeric", "exists", "cidr", "$or", "exactly"} {
			seen[operator] = seen[operator] || want == "yes" && strings.Contains(pattern, `"`+operator+`"`)
		}
	}
	for operator, ok := range seen {
		if !ok {
			t.Errorf("no example in which %s matches", operator)
		}
	}
}

func TestDocTransforms(t *testing.T) {
	doc := readDoc(t)
	ev, err := event.ParseJSON([]byte(block(t, doc, "json event")), event.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	examples := rows(doc, "transform", "result")
	if len(examples) < 15 {
		t.Fatalf("%d examples; the table has changed shape", len(examples))
	}
	for _, cells := range examples {
		got := "refused"
		if tr, err := rules.ParseTransform([]byte(cells[0])); err == nil {
			out, err := tr.Apply(&ev, rules.RenderContext{})
			if err != nil {
				t.Errorf("%s: %v", cells[0], err)
				continue
			}
			got = string(out.Data)
		}
		if got != cells[1] {
			t.Errorf("%s gives %s, want %s", cells[0], got, cells[1])
		}
	}
}

func TestDocConditions(t *testing.T) {
	doc := readDoc(t)
	ev, err := event.ParseJSON([]byte(block(t, doc, "json event")), event.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"when", "sql"} {
		examples := rows(doc, kind, "holds")
		if len(examples) < 6 {
			t.Fatalf("%d examples of %s; the table has changed shape", len(examples), kind)
		}
		for _, cells := range examples {
			r := &rules.Rule{Pattern: mustPattern(t, `{"type":[{"exists":true}]}`)}
			var err error
			if kind == "when" {
				r.When, err = rules.ParseWhen(cells[0])
			} else {
				r.SQL, err = rules.ParseSQL(cells[0])
			}
			got := "refused"
			if err == nil {
				x, err := rules.Compile([]*rules.Rule{r})
				if err != nil {
					t.Fatal(err)
				}
				matches, err := x.Match(&ev, nil, nil)
				switch {
				case err != nil:
					t.Fatal(err)
				case x.Failures() > 0:
					got = "fails"
				case len(matches) == 1:
					got = "yes"
				default:
					got = "no"
				}
			}
			if got != cells[1] {
				t.Errorf("%s %s: %s (%v), want %s", kind, cells[0], got, err, cells[1])
			}
		}
	}
}

func TestDocLint(t *testing.T) {
	examples := rows(readDoc(t), "list", "warning")
	if len(examples) < 8 {
		t.Fatalf("%d examples; the table has changed shape", len(examples))
	}
	for _, cells := range examples {
		got := rules.Lint(patternRule(t, "r", `{"data":{"x":`+cells[0]+`}}`))
		if len(got) != 1 || !strings.Contains(got[0].Message, cells[1]) {
			t.Errorf("Lint(%s) = %+v, want %s", cells[0], got, cells[1])
		}
	}
}

func TestDocRuleTest(t *testing.T) {
	var out strings.Builder
	passed, failed, err := rules.RunCases(strings.NewReader(block(t, readDoc(t), "yaml test")), &out)
	if err != nil || passed != 2 || failed != 0 {
		t.Errorf("RunCases = %d, %d, %v\n%s", passed, failed, err, out.String())
	}
}
