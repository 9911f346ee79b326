// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/bridge"
)

// Who redrove and discarded is known after a restart as before: jobs, who changed their state, and single deliveries.
func TestRedrivesAreNoted(t *testing.T) {
	f := newFixture(t).start()
	defer func() { f.stop(time.Second) }()
	f.refusing("ops")
	f.rule("all", "reading", "ops")
	f.dead("a", "b")
	redrive := f.startJob(bridge.JobSpec{Kind: bridge.JobRedrive, Filter: bridge.DeadFilter{Bus: "default", Target: "ops"}, Rate: 0.01, By: "ci", RequestID: "one", Why: "mended"})
	_, err := f.SetJob(t.Context(), bridge.JobChange{ID: redrive.ID, State: bridge.JobCancelled, By: "me", RequestID: "two"})
	f.must(err)
	_, err = f.SetJob(t.Context(), bridge.JobChange{ID: redrive.ID, State: bridge.JobCancelled, By: "me again", RequestID: "nothing"})
	f.must(err)
	f.eventually(func() (string, bool) {
		n := len(f.deadLetters(bridge.DeadFilter{}))
		return fmt.Sprint(n, " dead letters"), n == 2
	})
	_, err = f.Redrive(t.Context(), bridge.RedriveRequest{Bus: "default", ID: "b", By: "me", RequestID: "three"})
	f.must(err)
	f.eventually(func() (string, bool) {
		n := len(f.deadLetters(bridge.DeadFilter{}))
		return fmt.Sprint(n, " dead letters"), n == 2
	})
	discard := f.startJob(bridge.JobSpec{Kind: bridge.JobDiscard, Why: "test data", By: "ci", RequestID: "four"})
	f.job(discard.ID, bridge.JobDone)
	if _, err := f.Redrive(t.Context(), bridge.RedriveRequest{Bus: "default", ID: "none", By: "me"}); err == nil {
		t.Error("a redrive of nothing succeeded")
	}
	ops := bridge.JobFilter{DeadFilter: bridge.DeadFilter{Bus: "default", Target: "ops"}}
	want := []bridge.RedriveEntry{
		{By: "ci", Kind: "discard", Name: discard.ID, Filter: &bridge.JobFilter{}, Count: 2, Why: "test data", RequestID: "four"},
		{By: "me", Kind: "redrive", Bus: "default", Name: "b", Source: "/test", Rule: "all", Target: "ops", Was: "dead", Count: 1, RequestID: "three"},
		{By: "me", Kind: "redrive", Bus: "default", Name: redrive.ID, State: "cancelled", RequestID: "two"},
		{By: "ci", Kind: "redrive", Bus: "default", Name: redrive.ID, Filter: &ops, Count: 2, Why: "mended", RequestID: "one"},
	}
	var before []bridge.RedriveEntry
	for life := range 2 {
		got := f.RedriveEntries()
		for i := range got {
			if e := got[i]; e.Seq == 0 || i > 0 && (e.Seq >= got[i-1].Seq || e.At.After(got[i-1].At)) {
				t.Errorf("entry %d: %+v", i, e)
			}
		}
		if life == 0 {
			before = got
		} else if d := cmp.Diff(before, got); d != "" {
			t.Errorf("after a restart (-before +after):\n%s", d)
		}
		bare := make([]bridge.RedriveEntry, len(got))
		for i, e := range got {
			e.Seq, e.At = 0, time.Time{}
			bare[i] = e
		}
		if d := cmp.Diff(want, bare); d != "" {
			t.Errorf("life %d (-want +got):\n%s", life, d)
		}
		f.stop(time.Second)
		f.start()
	}
}
