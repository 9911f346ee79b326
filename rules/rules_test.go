// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"os"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/rules"
)

func TestPatternCases(t *testing.T) {
	f, err := os.Open("testdata/patterns.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out strings.Builder
	passed, failed, err := rules.RunCases(f, &out)
	if err != nil || failed != 0 || passed != 337 {
		t.Fatalf("RunCases = %d, %d, %v; want 337 passed\n%s", passed, failed, err, out.String())
	}
}
