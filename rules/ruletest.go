// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/rialto-bridge/rialto/internal/event"
)

// testDocument is a YAML document of rule tests: a rule and cases, or a rule and one case in the document itself. The
// rule is a Rule document, or the name of one.
type testDocument struct {
	Rule      json.RawMessage `json:"rule"`
	Pattern   json.RawMessage `json:"pattern"`
	When      string          `json:"when"`
	SQL       string          `json:"sql"`
	Transform json.RawMessage `json:"transform"`
	Cases     []testCase      `json:"cases"`
	testCase
}

// testCase is one case of it. Event is a CloudEvent in JSON form; what it lacks of the required attributes is filled in.
type testCase struct {
	Name    string                     `json:"name"`
	Event   json.RawMessage            `json:"event"`
	Expect  string                     `json:"expect"`  // match or no-match
	Match   *bool                      `json:"match"`   // the same as true or false
	Output  json.RawMessage            `json:"output"`  // of the only target
	Outputs map[string]json.RawMessage `json:"outputs"` // by target
}

func (c *caseRun) documents(src string) error {
	for n, text := range splitDocuments(src) {
		if isSpace([]byte(withoutComments(text))) {
			continue
		}
		asJSON, err := yaml.YAMLToJSONStrict([]byte(text))
		if err == nil {
			err = c.yamlDocument(asJSON)
		}
		if err != nil {
			return fmt.Errorf("document %d: %w", n+1, err)
		}
	}
	return nil
}

// yamlDocument runs the tests of a document, or notes the Rule that it is. Other definitions, which may stand in the
// same file, are passed over.
func (c *caseRun) yamlDocument(asJSON []byte) error {
	var head struct{ Kind string }
	if err := json.Unmarshal(asJSON, &head); err != nil {
		return err
	}
	switch head.Kind {
	case "":
	case "Rule":
		r, err := ParseRule(asJSON)
		if err == nil {
			c.rules[r.Name] = r
		}
		return err
	default:
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(asJSON))
	decoder.DisallowUnknownFields()
	var d testDocument
	if err := decoder.Decode(&d); err != nil {
		return err
	}
	return c.document(&d)
}

// splitDocuments splits YAML at its --- lines. They cannot stand inside a scalar, which would be indented.
func splitDocuments(src string) []string {
	var documents []string
	var current strings.Builder
	for line := range strings.Lines(src) {
		if marker := strings.TrimRight(line, " \t\r\n"); marker == "---" || strings.HasPrefix(line, "--- ") {
			documents = append(documents, current.String())
			current.Reset()
			line = strings.TrimPrefix(line, "---")
		}
		current.WriteString(line)
	}
	return append(documents, current.String())
}

func withoutComments(src string) string {
	var b strings.Builder
	for line := range strings.Lines(src) {
		if !strings.HasPrefix(strings.TrimSpace(line), "#") {
			b.WriteString(line)
		}
	}
	return b.String()
}

func (c *caseRun) document(d *testDocument) error {
	rule, err := c.compile(d)
	if err != nil {
		return err
	}
	index, err := Compile([]*Rule{rule})
	if err != nil {
		return err
	}
	cases := d.Cases
	if d.Event != nil {
		if cases != nil {
			return errors.New("has cases, so it cannot have an event beside them")
		}
		cases = []testCase{d.testCase}
	}
	for i, one := range cases {
		id := one.Name
		if id == "" {
			id = fmt.Sprintf("case %d", i+1)
		}
		if rule.Name != "" {
			id = rule.Name + "/" + id
		}
		c.result(id, c.test(rule, index, &one))
	}
	return nil
}

// compile makes the rule that the cases are about.
func (c *caseRun) compile(d *testDocument) (*Rule, error) {
	var name string
	switch {
	case d.Rule != nil && (d.Pattern != nil || d.Transform != nil || d.When != "" || d.SQL != ""):
		return nil, errors.New("has a rule, so it cannot have a pattern, when, sql or transform beside it")
	case d.Rule != nil && json.Unmarshal(d.Rule, &name) == nil:
		if r := c.rules[name]; r != nil {
			return r, nil
		}
		return c.lookup(name)
	case d.Rule != nil:
		return ParseRule(d.Rule)
	case d.Pattern == nil:
		return nil, errors.New("has neither a rule nor a pattern")
	}
	pattern, err := ParsePattern(rawText(d.Pattern))
	if err != nil {
		return nil, err
	}
	r := &Rule{Pattern: pattern}
	if d.When != "" {
		if r.When, err = ParseWhen(d.When); err != nil {
			return nil, fmt.Errorf("when: %w", err)
		}
	}
	if d.SQL != "" {
		if r.SQL, err = ParseSQL(d.SQL); err != nil {
			return nil, fmt.Errorf("sql: %w", err)
		}
	}
	if d.Transform != nil {
		transform, err := ParseTransform(d.Transform)
		if err != nil {
			return nil, err
		}
		r.Targets = []RuleTarget{{Transform: transform}}
	}
	return r, nil
}

// wanted says whether a case wants a match.
func (t *testCase) wanted() (want bool, why string) {
	switch {
	case t.Expect != "" && t.Match != nil:
		return false, "says both expect and match"
	case t.Match != nil:
		return *t.Match, ""
	case t.Expect == "" && t.Output == nil && t.Outputs == nil:
		return false, "says neither expect nor output"
	case t.Expect == "" || t.Expect == "match":
		return true, ""
	case t.Expect == "no-match":
		return false, ""
	}
	return false, fmt.Sprintf("expect must be match or no-match, this is %q", shorten(t.Expect, 40))
}

// rawText returns the text inside a JSON string, for what may be given as raw JSON text; else b itself.
func rawText(b json.RawMessage) []byte {
	var s string
	if err := json.Unmarshal(b, &s); err == nil {
		return []byte(s)
	}
	return b
}

// test runs one case of a document and returns what is wrong.
func (c *caseRun) test(rule *Rule, index *Index, one *testCase) string {
	ev, err := testEvent(one.Event)
	if err != nil {
		return "the event is refused: " + err.Error()
	}
	matches, err := index.Match(ev, &c.scratch, nil)
	if err != nil {
		return err.Error()
	}
	want, why := one.wanted()
	if why != "" {
		return why
	}
	if want != (len(matches) > 0) {
		return fmt.Sprintf("got %s, want %s%s", verdictWord(len(matches) > 0), verdictWord(want), because(rule, ev, want))
	}
	if one.Output != nil {
		if len(rule.Targets) != 1 {
			return fmt.Sprintf("output is for a rule with one target, this has %d; use outputs", len(rule.Targets))
		}
		if why := checkOutput(rule, &rule.Targets[0], ev, one.Output); why != "" {
			return why
		}
	}
	for _, name := range slices.Sorted(maps.Keys(one.Outputs)) {
		target := rule.target(name)
		if target == nil {
			return fmt.Sprintf("the rule has no target %s", name)
		}
		if why := checkOutput(rule, target, ev, one.Outputs[name]); why != "" {
			return name + ": " + why
		}
	}
	return ""
}

func (r *Rule) target(name string) *RuleTarget {
	for i := range r.Targets {
		if r.Targets[i].Target == name {
			return &r.Targets[i]
		}
	}
	return nil
}

func verdictWord(match bool) string {
	if match {
		return "match"
	}
	return "no-match"
}

// because tells, a line each, what kept a rule from matching.
func because(rule *Rule, ev *event.Event, want bool) string {
	if !want {
		return ""
	}
	var b strings.Builder
	x := rule.Explain(ev)
	for _, clause := range x.Clauses {
		if clause.Verdict != Failed {
			continue
		}
		fmt.Fprintf(&b, "\n%s: expected %s, got %s", clause.Path, clause.Expected, clause.Actual)
		if clause.Hint != "" {
			fmt.Fprintf(&b, " (%s)", clause.Hint)
		}
	}
	for _, c := range []*Condition{x.When, x.SQL} {
		if c != nil && c.Verdict == Failed {
			fmt.Fprintf(&b, "\n%s: %s", c.Expression, c.Actual)
		}
	}
	if x.Note != "" {
		fmt.Fprintf(&b, "\n%s", x.Note)
	}
	return b.String()
}

// testEvent reads a CloudEvent in JSON form and fills in the required attributes that it lacks.
func testEvent(raw json.RawMessage) (*event.Event, error) {
	if raw == nil {
		return nil, errors.New("is missing")
	}
	members := map[string]json.RawMessage{}
	if err := json.Unmarshal(rawText(raw), &members); err != nil {
		return nil, err
	}
	for name, value := range map[string]string{"specversion": specVersion, "id": "test", "source": "/test", "type": "test"} {
		if _, ok := members[name]; !ok {
			members[name] = appendString(nil, value)
		}
	}
	text, err := json.Marshal(members)
	if err != nil {
		return nil, err
	}
	ev, err := event.ParseJSON(text, event.Limits{})
	if err != nil {
		return nil, err
	}
	return &ev, nil
}

func checkOutput(rule *Rule, target *RuleTarget, ev *event.Event, want json.RawMessage) string {
	out, err := target.Transform.Apply(ev, RenderContext{Rule: rule.Name, Bus: rule.Bus, Received: ev.Time})
	if err != nil {
		return err.Error()
	}
	var lines []string
	if event.IsJSON(out.DataContentType) {
		lines = differences(out.Data, want)
	} else if text := rawText(want); string(out.Data) != string(text) {
		lines = lineDifferences(string(out.Data), string(text))
	}
	if lines == nil {
		return ""
	}
	return "the output differs\n" + strings.Join(lines, "\n")
}
