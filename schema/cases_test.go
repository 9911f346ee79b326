// SPDX-License-Identifier: Apache-2.0

package schema_test

import (
	"os"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/schema"
)

func TestRunCases(t *testing.T) {
	f, err := os.Open("testdata/compat.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out strings.Builder
	passed, failed, err := schema.RunCases(f, &out)
	if err != nil || failed != 0 || passed != 69 || !strings.HasSuffix(out.String(), "69 passed, 0 failed\n") {
		t.Errorf("%d passed, %d failed, %v\n%s", passed, failed, err, &out)
	}
	out.Reset()
	passed, failed, err = schema.RunCases(strings.NewReader(`
{"id":"ok","old":"{\"type\":\"integer\"}","new":{"type":"number"},"expect":"COMPATIBLE"}
{"id":"avro","format":"avro","old":{"type":"long"},"new":{"type":"int"},"expect":"INCOMPATIBLE"}
{"id":"wrong","old":{"type":"number"},"new":{"type":"integer"},"expect":"COMPATIBLE"}
{"id":"text","old":{"type":7},"new":{},"expect":"COMPATIBLE"}
{"id":"mode","mode":"x","old":{},"new":{},"expect":"COMPATIBLE"}
{"id":"policy","policy":"x","old":{},"new":{},"expect":"COMPATIBLE"}
{"id":"writer","old":{"type":"number"},"new":{"type":"integer"},"expect":"INCOMPATIBLE","witness":"x","witness_writer":"old"}
{"id":"reader","old":{"type":"number"},"new":{"type":"integer"},"expect":"INCOMPATIBLE","witness":1,"witness_writer":"old"}
`), &out)
	if err != nil || passed != 2 || failed != 6 {
		t.Errorf("%d passed, %d failed, %v", passed, failed, err)
	}
	for _, line := range []string{"FAIL wrong: INCOMPATIBLE, want COMPATIBLE\n    T1: ", "FAIL text: old is refused: ", "FAIL mode: ", "FAIL policy: ",
		"FAIL writer: the witness is not the writer's", "FAIL reader: the witness is valid for the reader\n", "2 passed, 6 failed\n"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("output lacks %q:\n%s", line, &out)
		}
	}
	for _, bad := range []string{`{`, `{"id":"x","expect":"MAYBE"}`} {
		if _, _, err := schema.RunCases(strings.NewReader(bad), &out); err == nil || !strings.Contains(err.Error(), "line 1") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
