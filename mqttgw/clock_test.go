// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"testing"
	"time"
)

// A client that comes and goes all day long must not leave an alarm behind each time.
func TestASessionHasOneAlarm(t *testing.T) {
	k := newClock(nil)
	var all []*session
	start := time.Unix(1_700_000_000, 0)
	for range 5 {
		all = append(all, &session{})
	}
	for i := range 1000 {
		s := all[i%len(all)]
		s.deadline = start.Add(time.Duration(i*7919%1000) * time.Second)
		k.watch(s)
	}
	if len(k.heap) != len(all) {
		t.Fatalf("%d alarms for %d sessions", len(k.heap), len(all))
	}
	all[3].deadline = time.Time{} // never ends
	k.watch(all[3])
	k.forget(all[1])
	k.forget(all[1])
	for i, a := range k.heap {
		if a.s.alarm != i+1 || !a.at.Equal(a.s.deadline) {
			t.Errorf("the alarm at %d is for %v of a session that waits for %v at place %d", i, a.at, a.s.deadline, a.s.alarm)
		}
	}
	if len(k.heap) != 3 || all[1].alarm != 0 || all[3].alarm != 0 {
		t.Errorf("%d alarms, of which one was forgotten and one taken back; want 3", len(k.heap))
	}
}
