// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/rialto-bridge/rialto/internal/event"
)

// maxCases bounds a file of cases, in bytes.
const maxCases = 64 << 20

// RunCases runs a file of cases and writes a line FAIL <id>: <why> for each that fails, and at the end
// "N passed, N failed". The file is either JSON lines, one case each,
//
//	{"id", "pattern", "event", "expect": true | false | "reject" | "event-error", "others": [...], "deleted": [...]}
//
// with pattern, event, others and deleted as raw JSON texts, or YAML rule tests: documents with a rule (or a pattern,
// with or without a transform) and a list of cases, as docs/patterns.md shows. The error is for a file that cannot be
// read or understood, or a writer that fails; what the cases find is in the counts.
func RunCases(r io.Reader, w io.Writer) (passed, failed int, err error) {
	src, err := io.ReadAll(io.LimitReader(r, maxCases+1))
	switch {
	case err != nil:
		return 0, 0, fmt.Errorf("read cases: %w", err)
	case len(src) > maxCases:
		return 0, 0, fmt.Errorf("read cases: more than %d bytes", maxCases)
	}
	run := caseRun{w: bufio.NewWriter(w)}
	if trimmed := bytes.TrimSpace(src); len(trimmed) > 0 && trimmed[0] == '{' {
		err = run.lines(src)
	} else {
		err = run.documents(string(src))
	}
	if err == nil {
		fmt.Fprintf(run.w, "%d passed, %d failed\n", run.passed, run.failed)
	}
	return run.passed, run.failed, errors.Join(err, run.w.Flush())
}

// caseRun counts cases as they are run.
type caseRun struct {
	w              *bufio.Writer // keeps its first error until Flush
	scratch        Scratch
	passed, failed int
}

// result counts a case; why is "" if it passed.
func (c *caseRun) result(id, why string) {
	if why == "" {
		c.passed++
		return
	}
	c.failed++
	fmt.Fprintf(c.w, "FAIL %s: %s\n", id, why)
}

// lineCase is a case in JSON lines.
type lineCase struct {
	ID      string          `json:"id"`
	Pattern string          `json:"pattern"`
	Event   string          `json:"event"`
	Expect  json.RawMessage `json:"expect"`
	Others  []string        `json:"others"`
	Deleted []string        `json:"deleted"`
}

func (c *caseRun) lines(src []byte) error {
	for n, line := range bytes.Split(src, []byte("\n")) {
		if isSpace(line) {
			continue
		}
		var one lineCase
		if err := json.Unmarshal(line, &one); err != nil {
			return fmt.Errorf("line %d: %w", n+1, err)
		}
		switch expect := string(one.Expect); expect {
		case "true", "false", `"reject"`, `"event-error"`:
			c.result(one.ID, c.line(&one, strings.Trim(expect, `"`)))
		default:
			return fmt.Errorf("line %d: expect must be true, false, \"reject\" or \"event-error\"", n+1)
		}
	}
	return nil
}

// line runs one case and returns what is wrong.
func (c *caseRun) line(one *lineCase, expect string) string {
	pattern, err := ParsePattern([]byte(one.Pattern))
	switch {
	case expect == "reject" && err == nil:
		return "the pattern is accepted, want it refused"
	case expect == "reject":
		return ""
	case err != nil:
		return "the pattern is refused: " + err.Error()
	}
	rules, deleted, why := besides(one)
	if why != "" {
		return why
	}
	rules = append(rules, &Rule{Name: "case", Pattern: pattern})
	if _, err := Compile(append(deleted, rules...)); err != nil {
		return err.Error()
	}
	index, err := Compile(rules)
	if err != nil {
		return err.Error()
	}
	matches, err := index.MatchDocument([]byte(one.Event), &c.scratch, nil)
	got := "false"
	for _, m := range matches {
		if m.Rule.Pattern == pattern {
			got = "true"
		}
	}
	switch {
	case err != nil && expect == "event-error":
		return ""
	case err != nil:
		return "the event is refused: " + err.Error()
	case got != expect:
		return fmt.Sprintf("got %s, want %s", got, expect)
	}
	return ""
}

// besides compiles the rules that a case loads beside its own.
func besides(one *lineCase) (others, deleted []*Rule, why string) {
	for i, source := range append(one.Others, one.Deleted...) {
		pattern, err := ParsePattern([]byte(source))
		if err != nil {
			return nil, nil, "a pattern beside it is refused: " + err.Error()
		}
		r := &Rule{Name: fmt.Sprintf("beside-%d", i), Pattern: pattern}
		if i < len(one.Others) {
			others = append(others, r)
		} else {
			deleted = append(deleted, r)
		}
	}
	return others, deleted, ""
}

// testDocument is a YAML document of rule tests.
type testDocument struct {
	Rule      json.RawMessage `json:"rule"`
	Pattern   json.RawMessage `json:"pattern"`
	Transform json.RawMessage `json:"transform"`
	Cases     []testCase      `json:"cases"`
}

// testCase is one case of it. Event is a CloudEvent in JSON form; what it lacks of the required attributes is filled in.
type testCase struct {
	Name    string                     `json:"name"`
	Event   json.RawMessage            `json:"event"`
	Match   *bool                      `json:"match"`
	Output  json.RawMessage            `json:"output"`  // of the only target
	Outputs map[string]json.RawMessage `json:"outputs"` // by target
}

func (c *caseRun) documents(src string) error {
	for n, text := range splitDocuments(src) {
		if isSpace([]byte(withoutComments(text))) {
			continue
		}
		asJSON, err := yaml.YAMLToJSONStrict([]byte(text))
		if err != nil {
			return fmt.Errorf("document %d: %w", n+1, err)
		}
		decoder := json.NewDecoder(bytes.NewReader(asJSON))
		decoder.DisallowUnknownFields()
		var d testDocument
		if err := decoder.Decode(&d); err != nil {
			return fmt.Errorf("document %d: %w", n+1, err)
		}
		if err := c.document(&d); err != nil {
			return fmt.Errorf("document %d: %w", n+1, err)
		}
	}
	return nil
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
	rule, err := d.compile()
	if err != nil {
		return err
	}
	index, err := Compile([]*Rule{rule})
	if err != nil {
		return err
	}
	for i, one := range d.Cases {
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
func (d *testDocument) compile() (*Rule, error) {
	switch {
	case d.Rule != nil && (d.Pattern != nil || d.Transform != nil):
		return nil, errors.New("has a rule, so it cannot have a pattern or a transform beside it")
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
	if d.Transform != nil {
		transform, err := ParseTransform(d.Transform)
		if err != nil {
			return nil, err
		}
		r.Targets = []RuleTarget{{Transform: transform}}
	}
	return r, nil
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
	if one.Match == nil && one.Output == nil && one.Outputs == nil {
		return "says neither match nor output"
	}
	if want := one.Match == nil || *one.Match; want != (len(matches) > 0) {
		return fmt.Sprintf("got match: %t, want %t%s", len(matches) > 0, want, because(rule, ev, want))
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

// because names the first clause that kept a rule from matching.
func because(rule *Rule, ev *event.Event, want bool) string {
	if !want {
		return ""
	}
	x := rule.Explain(ev)
	for _, clause := range x.Clauses {
		if clause.Verdict == Failed {
			return fmt.Sprintf("; %s: expected %s, got %s", clause.Path, clause.Expected, clause.Actual)
		}
	}
	return "; " + x.Note
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
	if !event.IsJSON(out.DataContentType) {
		if string(out.Data) != string(rawText(want)) {
			return fmt.Sprintf("got output %s, want %s", shorten(string(out.Data), 500), shorten(string(rawText(want)), 500))
		}
		return ""
	}
	if !sameJSON(out.Data, want) {
		return fmt.Sprintf("got output %s, want %s", shorten(string(out.Data), 500), shorten(string(want), 500))
	}
	return ""
}

// sameJSON reports whether two texts are the same JSON value: numbers by value, members in any order.
func sameJSON(a, b []byte) bool {
	var left, right document
	i, err := left.parse(a)
	if err != nil {
		return false
	}
	j, err := right.parse(b)
	return err == nil && sameNode(&left, i, &right, j)
}

func sameNode(a *document, i int32, b *document, j int32) bool {
	n, m := &a.nodes[i], &b.nodes[j]
	if n.kind != m.kind {
		return false
	}
	switch n.kind {
	case kindString:
		return bytes.Equal(n.text, m.text)
	case kindNumber:
		return parseNumber(n.text).compare(parseNumber(m.text)) == 0
	case kindArray, kindObject:
		return sameChildren(a, i, b, j)
	}
	return true
}

func sameChildren(a *document, i int32, b *document, j int32) bool {
	count, same := 0, true
	b.children(j, func(int, int32) { count++ })
	a.children(i, func(k int, child int32) {
		count--
		var other int32
		var ok bool
		if a.nodes[i].kind == kindObject {
			other, ok = b.memberNamed(j, string(a.nodes[child].key))
		} else {
			other, ok = b.elementAt(j, k)
		}
		same = same && ok && sameNode(a, child, b, other)
	})
	return same && count == 0
}
