// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/rules"
)

// TestDoubts writes rules that can hardly do what they are meant to: the answer says so, by what is stored as well.
func TestDoubts(t *testing.T) {
	s, _ := start(t, options(t.TempDir()))
	s.must("PUT", "/v1/targets/ops", `{"type":"webhook","config":{"url":"https://ops.example.com/"}}`)
	warnings := func(pattern string) []rules.Warning {
		t.Helper()
		var doc struct {
			Status struct{ Warnings []rules.Warning }
		}
		answer := s.must("PUT", "/v1/buses/default/rules/r?dryRun=true", `{"pattern":`+pattern+`,"targets":[{"target":"ops"}]}`)
		if err := json.Unmarshal([]byte(answer), &doc); err != nil {
			t.Fatal(err)
		}
		return doc.Status.Warnings
	}
	if w := warnings(`{"type":[{"anything-but":"a"},{"anything-but":"b"}]}`); len(w) != 1 || w[0].Pointer != "/pattern/type" || w[0].Fix == "" {
		t.Errorf("always true: %+v", w)
	}
	misspelt := `{"type":["reading"],"data":{"temprature":[1]}}`
	if w := warnings(misspelt); len(w) != 0 {
		t.Errorf("nothing is stored: %+v", w)
	}
	for i := range 20 {
		s.publish("default", fmt.Sprint(i), "reading", `{"temperature":9}`)
	}
	if w := warnings(misspelt); len(w) != 1 || w[0].Pointer != "/pattern/data/temprature" || !strings.Contains(w[0].Message, "data.temperature") {
		t.Errorf("a field that no stored event has: %+v", w)
	}
	if w := warnings(strings.Replace(misspelt, "reading", "unheard.of", 1)); len(w) != 0 {
		t.Errorf("a type of which nothing is stored: %+v", w)
	}
}
