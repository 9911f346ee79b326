// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxCases bounds a file of cases, in bytes.
const maxCases = 64 << 20

// pairCase is a line of a file of cases.
type pairCase struct {
	ID            string          `json:"id"`
	Policy        Policy          `json:"policy"`
	Mode          string          `json:"mode"`
	Format        Format          `json:"format"` // "" = JSON Schema
	Old           json.RawMessage `json:"old"`
	New           json.RawMessage `json:"new"`
	Expect        Outcome         `json:"expect"`
	Witness       json.RawMessage `json:"witness"`
	WitnessWriter string          `json:"witness_writer"`
}

// RunCases compares the pairs of a file, one in each line,
//
//	{"id", "policy", "mode", "format", "old", "new", "expect": "COMPATIBLE" | "INCOMPATIBLE" | "UNKNOWN", "witness", "witness_writer"}
//
// with the texts as JSON or as strings, and writes a line FAIL <id>: <why> for each that is not as expected, and at the
// end "N passed, N failed". A witness must be valid for its writer ("old" or "new") and not for the other. The error is for
// a file that cannot be read or understood, or a writer that fails.
func RunCases(r io.Reader, w io.Writer) (passed, failed int, err error) {
	src, err := io.ReadAll(io.LimitReader(r, maxCases+1))
	switch {
	case err != nil:
		return 0, 0, fmt.Errorf("read cases: %w", err)
	case len(src) > maxCases:
		return 0, 0, fmt.Errorf("read cases: more than %d bytes", maxCases)
	}
	out := bufio.NewWriter(w)
	for n, line := range bytes.Split(src, []byte("\n")) {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var c pairCase
		if err := json.Unmarshal(line, &c); err != nil {
			return passed, failed, fmt.Errorf("line %d: %w", n+1, err)
		}
		if c.Expect.rank() < 0 {
			return passed, failed, fmt.Errorf("line %d: expect must be COMPATIBLE, INCOMPATIBLE or UNKNOWN", n+1)
		}
		if why := c.run(); why != "" {
			failed++
			fmt.Fprintf(out, "FAIL %s: %s\n", c.ID, why)
			continue
		}
		passed++
	}
	fmt.Fprintf(out, "%d passed, %d failed\n", passed, failed)
	return passed, failed, errors.Join(err, out.Flush())
}

// run returns what is wrong with a case.
func (c *pairCase) run() string {
	mode, err := ParseMode(c.Mode)
	if err != nil {
		return err.Error()
	}
	if c.Format == "" {
		c.Format = JSONSchema
	}
	if c.Policy == "" {
		c.Policy = Lenient
	}
	if bad := oneOf(nil, "/policy", c.Policy, policies); bad != nil {
		return "policy " + bad[0].Detail
	}
	older, why := c.compile("old", c.Old)
	if why != "" {
		return why
	}
	newer, why := c.compile("new", c.New)
	if why != "" {
		return why
	}
	v := Compare(older, newer, mode, c.Policy)
	if v.Outcome != c.Expect {
		why := fmt.Sprintf("%s, want %s", v.Outcome, c.Expect)
		for _, f := range v.Findings {
			why += "\n    " + f.String()
		}
		return why
	}
	if c.Witness == nil {
		return ""
	}
	if c.WitnessWriter == sideNew {
		return c.shown(newer, older)
	}
	return c.shown(older, newer)
}

func (c *pairCase) compile(side string, raw json.RawMessage) (*Compiled, string) {
	text := string(raw)
	if json.Unmarshal(raw, &text) != nil {
		text = string(raw)
	}
	out, err := Compile(context.Background(), c.Format, text, nil, NoSource)
	if err != nil {
		return nil, side + " is refused: " + err.Error()
	}
	return out, ""
}

func (c *pairCase) shown(writer, reader *Compiled) string {
	doc, err := Decode(c.Witness)
	if err != nil {
		return "the witness: " + err.Error()
	}
	if err := writer.Validate(doc); err != nil {
		return "the witness is not the writer's: " + err.Error()
	}
	if reader.Validate(doc) == nil {
		return "the witness is valid for the reader"
	}
	return ""
}
