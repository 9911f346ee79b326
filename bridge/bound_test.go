// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"strings"
	"testing"
)

// What a journey leaves out of its responses are the first, and it says how many.
func TestAJourneyCountsResponsesThatItLeavesOut(t *testing.T) {
	half := strings.Repeat("x", maxResponses/2)
	j := &Journey{Deliveries: []JourneyDelivery{{Attempts: []Attempt{{N: 1, Response: "first"}, {N: 2}, {N: 3, Response: half}, {N: 4, Response: half}}}}}
	j.bound()
	a := j.Deliveries[0].Attempts
	if j.ResponsesMore != 1 || a[0].Response != "" || a[2].Response != half || a[3].Response != half {
		t.Errorf("%d are left out, the first is %q", j.ResponsesMore, a[0].Response)
	}
	j = &Journey{Deliveries: []JourneyDelivery{{Attempts: []Attempt{{N: 1, Response: half}}}}}
	if j.bound(); j.ResponsesMore != 0 || j.Deliveries[0].Attempts[0].Response != half {
		t.Errorf("%d are left out of one", j.ResponsesMore)
	}
}
