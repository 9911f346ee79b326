// SPDX-License-Identifier: Apache-2.0

package schema_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/schema"
)

// pair is a line of testdata/compat.jsonl.
type pair struct {
	ID            string          `json:"id"`
	Policy        schema.Policy   `json:"policy"`
	Mode          string          `json:"mode"`
	Old           json.RawMessage `json:"old"`
	New           json.RawMessage `json:"new"`
	Expect        schema.Outcome  `json:"expect"`
	Reason        string          `json:"reason"`
	Witness       json.RawMessage `json:"witness"`
	WitnessWriter string          `json:"witness_writer"`
}

func pairs(t testing.TB, file string) []pair {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []pair
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		var p pair
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

func compile(t testing.TB, text string) *schema.Compiled {
	t.Helper()
	c, err := schema.Compile(t.Context(), schema.JSONSchema, text, nil, schema.NoSource)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return c
}

func TestCompatibilityCases(t *testing.T) {
	for _, p := range pairs(t, "testdata/compat.jsonl") {
		t.Run(p.ID, func(t *testing.T) {
			older, newer := compile(t, string(p.Old)), compile(t, string(p.New))
			mode, err := schema.ParseMode(p.Mode)
			if err != nil {
				t.Fatal(err)
			}
			v := schema.Compare(older, newer, mode, p.Policy)
			if v.Outcome != p.Expect {
				t.Errorf("%s, want %s: %s\n%+v", v.Outcome, p.Expect, p.Reason, v.Findings)
			}
			for _, f := range v.Findings {
				shows(t, older, newer, f)
				if f.Outcome == schema.Incompatible && f.Witness == nil && p.Witness != nil {
					t.Errorf("no document shows %s; there is %s", f, p.Witness)
				}
				if f.Reader == "" && f.Writer == "" && strings.Contains(string(p.Old), "properties") {
					t.Logf("%s has no pointers", f)
				}
			}
		})
	}
}

// shows checks that a finding's document is valid for the writer and not for the reader.
func shows(t *testing.T, older, newer *schema.Compiled, f schema.Finding) {
	t.Helper()
	if f.Witness == nil {
		return
	}
	w, r := older, newer
	if f.WriterIs == "new" {
		w, r = newer, older
	}
	doc, err := schema.Decode(f.Witness)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Validate(doc); err != nil {
		t.Errorf("%s: the writer refuses it: %v", f, err)
	}
	if r.Validate(doc) == nil {
		t.Errorf("%s: the reader takes it", f)
	}
}
