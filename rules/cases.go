// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// maxCases bounds a file of cases, in bytes.
const maxCases = 64 << 20

// RunCases runs a file of cases and writes a line FAIL <id>: <why> for each that fails, and at the end
// "N passed, N failed". The file is either JSON lines, one case each,
//
//	{"id", "pattern", "event", "expect": true | false | "reject" | "event-error", "others": [...], "deleted": [...]}
//
// with pattern, event, others and deleted as raw JSON texts, or YAML rule tests: documents with a rule (or a pattern,
// with or without a transform) and cases, as docs/patterns.md shows. Below a FAIL there are indented lines with what
// differs. The error is for a file that cannot be read or understood, or a writer that fails; what the cases find is
// in the counts.
func RunCases(r io.Reader, w io.Writer) (passed, failed int, err error) {
	return RunCasesWith(r, w, func(name string) (*Rule, error) {
		return nil, fmt.Errorf("there is no rule %s in this file before its tests", name)
	})
}

// RunCasesWith is RunCases for tests that name a rule (rule: too-warm) which is not in the file itself: lookup finds
// it, in the files beside it or on a server.
func RunCasesWith(r io.Reader, w io.Writer, lookup func(name string) (*Rule, error)) (passed, failed int, err error) {
	src, err := io.ReadAll(io.LimitReader(r, maxCases+1))
	switch {
	case err != nil:
		return 0, 0, fmt.Errorf("read cases: %w", err)
	case len(src) > maxCases:
		return 0, 0, fmt.Errorf("read cases: more than %d bytes", maxCases)
	}
	run := caseRun{w: bufio.NewWriter(w), rules: map[string]*Rule{}, lookup: lookup}
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
	rules          map[string]*Rule // that stand in the file, by name
	lookup         func(name string) (*Rule, error)
	passed, failed int
}

// result counts a case; why is "" if it passed.
func (c *caseRun) result(id, why string) {
	if why == "" {
		c.passed++
		return
	}
	c.failed++
	fmt.Fprintf(c.w, "FAIL %s: %s\n", id, strings.ReplaceAll(why, "\n", "\n    "))
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
