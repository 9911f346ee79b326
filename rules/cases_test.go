// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/rules"
)

func runFile(t *testing.T, name string) (passed, failed int, out string) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b strings.Builder
	passed, failed, err = rules.RunCases(f, &b)
	if err != nil {
		t.Fatal(err)
	}
	return passed, failed, b.String()
}

func TestPatternCases(t *testing.T) {
	passed, failed, out := runFile(t, "testdata/patterns.jsonl")
	if passed != 337 || failed != 0 || out != "337 passed, 0 failed\n" {
		t.Errorf("RunCases = %d, %d; want 337 passed\n%s", passed, failed, out)
	}
}

func TestYAMLCases(t *testing.T) {
	passed, failed, out := runFile(t, "testdata/too-warm.yaml")
	if passed != 9 || failed != 0 {
		t.Errorf("RunCases = %d, %d; want 9 passed\n%s", passed, failed, out)
	}
}

func TestCasesFail(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"lines", `{"id":"a","pattern":"{\"x\":[1]}","event":"{\"x\":2}","expect":true}
{"id":"b","pattern":"{\"x\":[1]}","event":"{\"x\":1}","expect":false}
{"id":"c","pattern":"{\"x\":[1]}","event":"{\"x\":1}","expect":"reject"}
{"id":"d","pattern":"{\"x\":1}","event":"{\"x\":1}","expect":true}
{"id":"e","pattern":"{\"x\":[1]}","event":"{\"x\":1","expect":true}
{"id":"f","pattern":"{\"x\":[1]}","event":"{\"x\":1}","expect":"event-error"}
{"id":"g","pattern":"{\"x\":[1]}","event":"{\"x\":1}","expect":true,"others":["{}"]}

{"id":"h","pattern":"{\"x\":[1]}","event":"{\"x\":1}","expect":true,"deleted":["{\"x\":[1]}"]}
`, `FAIL a: got false, want true
FAIL b: got true, want false
FAIL c: the pattern is accepted, want it refused
FAIL d: the pattern is refused: invalid pattern: /x: a field takes a list of values: write [1] instead of 1
FAIL e: the event is refused: invalid document: not valid JSON at byte 6: the text ends inside an object
FAIL f: got true, want event-error
FAIL g: a pattern beside it is refused: invalid pattern: an empty pattern is refused because it would match every event; if that is meant, write {"source":[{"exists":true}]}
1 passed, 7 failed
`},
		{"YAML", `# comment
---
pattern: {data: {x: [{numeric: [">", 8]}]}}
transform: {template: {x: "${data.x}"}}
cases:
  - {name: less, match: true, event: {data: {x: 7}}}
  - {name: more, match: false, event: {data: {x: 9}}}
  - {name: output, event: {data: {x: 9}}, output: {x: 10}}
  - {event: {data: {x: 9}}}
  - {name: none, match: true}
  - {name: target, event: {data: {x: 9}}, outputs: {t: 1}}
--- # text
pattern: '{"data":{"x":[1]}}'
transform: {template: "x is ${data.x}"}
cases:
  - {name: text, event: '{"data":{"x":1.0}}', output: x is 1}
  - {name: fine, event: '{"data":{"x":1.0}}', output: x is 1.0}
`, `FAIL less: got no-match, want match
    data.x: expected [{"numeric":[">",8]}], got 7
FAIL more: got match, want no-match
FAIL output: the output differs
    /x: got 9, want 10
FAIL case 4: says neither expect nor output
FAIL none: the event is refused: is missing
FAIL target: the rule has no target t
FAIL text: the output differs
    -1 x is 1
    +1 x is 1.0
1 passed, 7 failed
`},
		{"by name", `kind: Target
name: t
---
kind: Rule
name: r
pattern: {data: {x: [{exists: true}]}}
when: data.x > 8
targets:
  - {target: a, transform: {template: {x: "${data.x}", list: "${data.l}", gone: 1}}}
---
rule: r
event: {data: {x: 9, l: [1, {a: 1}]}}
expect: match
output: {x: 9.0, list: [1, {a: 2}, 3], new: [1]}
---
rule: r
cases:
  - {name: less, event: {data: {x: 8}}, expect: match}
  - {name: typo, event: {data: {z: 8}}, expect: match}
  - {name: text, event: {data: {x: a}}, expect: match}
  - {name: fine, event: {data: {x: 8}}, expect: no-match}
  - {name: both, event: {data: {x: 8}}, expect: match, match: true}
  - {name: word, event: {data: {x: 8}}, expect: yes it does}
---
pattern: {type: [t]}
sql: subject = 'x'
transform: {template: "one\n${subject}\nthree"}
name: lines
event: {type: t, subject: x}
output: "one\ntwo\nthree"
`, `FAIL r/case 1: the output differs
    /gone: got 1, want nothing
    /list/1/a: got 1, want 2
    /list/2: got nothing, want 3
    /new: got nothing, want [1]
FAIL r/less: got no-match, want match
    data.x > 8: false
    the pattern matches, but when does not hold
FAIL r/typo: got no-match, want match
    data.x: expected [{"exists":true}], got absent (the event has: data.z)
FAIL r/text: got no-match, want match
    data.x > 8: failed: invalid operation: string > int (line 1, column 8)
    the pattern matches, but when does not hold
FAIL r/both: says both expect and match
FAIL r/word: expect must be match or no-match, this is "yes it does"
FAIL lines: the output differs
    -2 two
    +2 x
1 passed, 7 failed
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b strings.Builder
			if _, _, err := rules.RunCases(strings.NewReader(tt.in), &b); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, b.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCasesOfARuleElsewhere(t *testing.T) {
	lookup := func(name string) (*rules.Rule, error) { return patternRule(t, name, `{"data":{"x":[1]}}`), nil }
	var b strings.Builder
	passed, failed, err := rules.RunCasesWith(strings.NewReader("rule: elsewhere\nevent: {data: {x: 1}}\nexpect: match\n"), &b, lookup)
	if err != nil || passed != 1 || failed != 0 {
		t.Errorf("RunCasesWith = %d, %d, %v\n%s", passed, failed, err, b.String())
	}
}

func TestCasesNotUnderstood(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"line", "{\"id\":\"a\"", "line 1: "},
		{"expect", `{"id":"a","pattern":"{}","expect":"maybe"}`, "line 1: expect must be"},
		{"YAML", "a: [", "document 1: "},
		{"second document", "pattern: {x: [1]}\ncases: []\n---\nrules: {}\n", "document 2: "},
		{"nothing to test", "cases: []", "document 1: has neither a rule nor a pattern"},
		{"both", "pattern: {x: [1]}\nrule: {name: a}\n", "document 1: has a rule"},
		{"bad rule", "rule: {name: a}\n", "document 1: invalid rule: /pattern"},
		{"event and cases", "pattern: {x: [1]}\nevent: {}\ncases: []\n", "document 1: has cases"},
		{"unknown rule", "rule: nobody\nevent: {}\n", "document 1: there is no rule nobody"},
		{"bad when", "pattern: {x: [1]}\nwhen: a >\n", "document 1: when: "},
		{"bad sql", "pattern: {x: [1]}\nsql: a >\n", "document 1: sql: "},
		{"bad Rule", "kind: Rule\nname: a\n", "document 1: invalid rule: /pattern"},
		{"key twice", "pattern: {x: [1]}\npattern: {x: [2]}\n", "document 1: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b strings.Builder
			_, _, err := rules.RunCases(strings.NewReader(tt.in), &b)
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) || b.Len() > 0 {
				t.Errorf("RunCases = %v and %q, want %q", err, b.String(), tt.want)
			}
		})
	}
	broken := errors.New("broken")
	if _, _, err := rules.RunCases(iotest.ErrReader(broken), &strings.Builder{}); !errors.Is(err, broken) {
		t.Errorf("RunCases = %v, want the reader's error", err)
	}
}
