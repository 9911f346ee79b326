// SPDX-License-Identifier: Apache-2.0

package api_test

import "testing"

// TestGateIngestAllocations holds the cost of taking one event in: the event itself has most of the allocations.
func TestGateIngestAllocations(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector allocates by itself")
		return
	}
	if got := testing.AllocsPerRun(1000, ingester(t)); got > 12 {
		t.Errorf("%v allocations for one event, at most 12 are allowed", got)
	}
}

// TestGateRefusedHookAllocations holds the cost of a hook that is not proved, since they may come in floods.
func TestGateRefusedHookAllocations(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector allocates by itself")
		return
	}
	for i, send := range refused(t) {
		most := 12.0
		if refusals[i].name == "wrong_signature" { // it is the only one whose body is read and signed
			most = 20
		}
		if got := testing.AllocsPerRun(1000, send); got > most {
			t.Errorf("%s: %v allocations, at most %v are allowed", refusals[i].name, got, most)
		}
	}
}
