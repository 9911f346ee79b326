// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"testing"
	"time"
)

// When a target that fails is disabled. Steps are hours since the first, the event, and how its attempt ended.
func TestWhenFailuresDisable(t *testing.T) {
	type step struct {
		hour  float64
		event string
		f     finding
	}
	fails, works := finding{verdict: failing, reason: "status", status: 503}, finding{verdict: well, delivered: true}
	refuses, gone := finding{verdict: well}, finding{verdict: well, disable: true, reason: "gone", status: 410}
	for _, c := range []struct {
		name  string
		steps []step
		want  bool
	}{
		{"nothing", nil, false},
		{"gone", []step{{0, "a", gone}}, true},
		{"gone, and then a late success", []step{{0, "a", gone}, {0, "b", works}}, true},
		{"five days of failures", []step{{0, "a", fails}, {1, "b", fails}, {119, "c", fails}, {120, "d", fails}}, true},
		{"not quite five days", []step{{0, "a", fails}, {1, "b", fails}, {119, "c", fails}}, false},
		{"a success between", []step{{0, "a", fails}, {1, "b", fails}, {60, "c", works}, {61, "d", fails}, {62, "e", fails}, {130, "f", fails}}, false},
		{"events that it refuses say nothing", []step{{0, "a", fails}, {1, "b", fails}, {60, "c", refuses}, {120, "d", fails}}, true},
		{"one event alone", []step{{0, "a", fails}, {1, "a", fails}, {24, "a", fails}, {130, "a", fails}}, false},
		{"one event, silence, and another", []step{{0, "a", fails}, {24, "a", fails}, {150, "b", fails}, {150.1, "b", fails}}, false},
		{"and then for twelve hours", []step{{0, "a", fails}, {24, "a", fails}, {150, "b", fails}, {163, "b", fails}}, true},
	} {
		var s standing
		for _, st := range c.steps {
			at := noon.Add(time.Duration(st.hour * float64(time.Hour)))
			st.f.event, st.f.began = st.event, at
			s.note(st.f, 7, at)
		}
		if s.disabled() != c.want || s != (standing{}) && s.Revision != 7 {
			t.Errorf("%s: %+v, want disabled %v", c.name, s, c.want)
		}
	}
}
