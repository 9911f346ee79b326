// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// appliedSize is how many targets, and how many rules, a generation has.
const appliedSize = 25

// generation is a change set that puts targets and rules in the place of those of the generation before.
func generation(n int) string {
	var docs []string
	for i := range appliedSize {
		docs = append(docs, fmt.Sprintf(`{"kind":"Rule","name":"g%d-r%d","labels":{"by":"test"},"pattern":{"type":["t"]},"targets":[{"target":"g%d-t%d"}]}`, n, i, n, i),
			fmt.Sprintf(`{"kind":"Target","name":"g%d-t%d","type":"webhook","labels":{"by":"test"},"config":{"url":"https://example.com"}}`, n, i))
	}
	return `{"documents":[` + strings.Join(docs, ",") + `],"prune":{"labels":"by=test"}}`
}

// generations is how many targets and rules of each generation there are.
func (s *server) generations() map[int]int {
	s.t.Helper()
	found := map[int]int{}
	for _, path := range []string{"/v1/targets?limit=1000", "/v1/buses/default/rules?limit=1000"} {
		var page struct{ Items []struct{ Name string } }
		if err := json.Unmarshal([]byte(s.must("GET", path, "")), &page); err != nil {
			s.t.Fatal(err)
		}
		for _, item := range page.Items {
			var n int
			if _, err := fmt.Sscanf(item.Name, "g%d-", &n); err != nil {
				s.t.Fatalf("%s: %v", item.Name, err)
			}
			found[n]++
		}
	}
	return found
}

// TestKillApply kills a bridge at random moments while change sets come one after the other. After each start there is one
// generation, whole, and none that is older than the last that was acknowledged.
func TestKillApply(t *testing.T) {
	for name, dsn := range map[string]func(*testing.T) string{
		"Embedded": func(*testing.T) string { return "" },
		"Postgres": func(t *testing.T) string { return databases.Empty(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(childPostgres, dsn(t))
			dir, acked := t.TempDir(), 0
			for range 5 {
				s, cmd := spawn(t, dir)
				// What is there is as good as acknowledged: the one after it may be there, not acknowledged, when this one is killed.
				acked = s.wholeGeneration(acked)
				kill := time.AfterFunc(time.Duration(20+rand.IntN(300))*time.Millisecond, func() { cmd.Process.Kill() })
				for n := acked + 1; ; n++ {
					status, body := s.call("POST", "/v1/definitions:apply", generation(n))
					if status == 0 {
						break // killed
					}
					if status != http.StatusOK {
						t.Fatalf("generation %d: %d %s", n, status, body)
					}
					acked = n
				}
				kill.Stop()
				cmd.Wait() // killed: the error is known
			}
			s, _ := spawn(t, dir)
			s.wholeGeneration(acked)
		})
	}
}

// wholeGeneration returns the one that is there, which is acked or the next one; 0 for none.
func (s *server) wholeGeneration(acked int) int {
	s.t.Helper()
	found := s.generations()
	if len(found) == 0 && acked == 0 {
		return 0
	}
	there := slices.Collect(maps.Keys(found))
	if len(there) != 1 || found[there[0]] != 2*appliedSize || there[0] < acked || there[0] > acked+1 {
		s.t.Fatalf("after generation %d there is %v", acked, found)
	}
	return there[0]
}
