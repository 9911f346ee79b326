// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Redrives and discards are in the audit among the changes of definitions, and pages go over both.
func TestRedrivesAreInTheAudit(t *testing.T) {
	s, _ := start(t, options(t.TempDir()))
	s.must("POST", "/v1/deadletters:discard?bus=default", `{"filter":{"target":"ops"},"why":"test data"}`, "X-Request-Id", "one")
	s.must("PUT", "/v1/buses/orders", `{}`, "X-Request-Id", "two")
	var started struct{ Job struct{ ID string } }
	if err := json.Unmarshal([]byte(s.must("POST", "/v1/buses/orders/deliveries:redrive", `{"filter":{"target":"ops","outcome":"cancelled"},"why":"it is back"}`, "X-Request-Id", "three")), &started); err != nil {
		t.Fatal(err)
	}
	type entry struct {
		By, Action, Kind, Bus, Name, RequestID string
		Detail                                 struct {
			Filter struct{ Target, Outcome string }
			Why    string
		}
	}
	var got []entry
	for cursor := ""; len(got) < 4; {
		var page struct {
			Items      []entry
			NextCursor string
		}
		if err := json.Unmarshal([]byte(s.must("GET", "/v1/audit?limit=1&cursor="+cursor, "")), &page); err != nil || len(page.Items) != 1 {
			t.Fatalf("page %+v, %v", page, err)
		}
		got = append(got, page.Items...)
		if cursor = page.NextCursor; cursor == "" {
			break
		}
	}
	want := []entry{{By: "admin", Action: "created", Kind: "Redrive", Bus: "orders", Name: started.Job.ID, RequestID: "three"},
		{By: "admin", Action: "created", Kind: "Bus", Name: "orders", RequestID: "two"},
		{By: "admin", Action: "created", Kind: "Discard", Bus: "default", Name: "discard-1", RequestID: "one"}}
	want[0].Detail.Filter.Target, want[0].Detail.Filter.Outcome, want[0].Detail.Why = "ops", "cancelled", "it is back"
	want[2].Detail.Filter.Target, want[2].Detail.Why = "ops", "test data"
	if d := cmp.Diff(want, got[:min(len(want), len(got))]); d != "" {
		t.Errorf("audit (-want +got):\n%s", d)
	}
	if status, answer := s.call("GET", "/v1/audit?cursor=r1.-.-.-", ""); status != http.StatusBadRequest {
		t.Errorf("a cursor of fewer lists: %d %s", status, answer)
	}
}
