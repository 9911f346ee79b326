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
