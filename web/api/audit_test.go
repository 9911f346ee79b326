// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// auditEntry is an entry as clients see it.
type auditEntry struct {
	At                    time.Time
	By, Action            string
	Kind, Bus, Name       string
	OldRevision, Revision uint64
	RequestID             string
}

type auditPage struct {
	Items      []auditEntry
	NextCursor string
}

func TestAudit(t *testing.T) {
	s := start(t)
	named := func(id string) []string { return []string{"X-Request-Id", id} }
	s.do("PUT", "/v1/targets/hook", `{"config":{"url":"https://a.example"}}`, named("one")...).want(t, http.StatusCreated)
	s.do("PUT", "/v1/buses/default/rules/all", `{"pattern":{"type":["t"]},"targets":[{"target":"hook"}]}`, named("two")...).want(t, http.StatusCreated)
	s.do("PUT", "/v1/buses/default/rules/all", `{"pattern":{"type":["t"]},"targets":[{"target":"hook"}]}`, named("same")...).want(t, http.StatusOK)
	s.do("PUT", "/v1/buses/default/rules/all?dryRun=true", `{"pattern":{"type":["u"]},"targets":[{"target":"hook"}]}`, named("dry")...).want(t, http.StatusOK)
	s.do("PUT", "/v1/targets/hook", `{"config":{"url":"https://b.example"}}`, named("three")...).want(t, http.StatusOK)
	s.do("DELETE", "/v1/targets/hook", "", named("refused")...).want(t, http.StatusConflict)
	s.do("DELETE", "/v1/buses/default/rules/all", "", named("four")...).want(t, http.StatusNoContent)
	s.do("POST", "/v1/keys", `{"kind":"Key","name":"ci","scopes":["events:write"]}`, named("five")...).want(t, http.StatusCreated)
	s.do("POST", "/v1/keys/ci:rotate", "", named("six")...).want(t, http.StatusOK)
	s.do("PUT", "/v1/devices/box", `{}`, named("seven")...).want(t, http.StatusCreated)
	s.do("POST", "/v1/devices/box:block", "", named("eight")...).want(t, http.StatusOK)
	s.do("PUT", "/v1/targets/crm", `{"config":{"url":"https://c.example"}}`, named("nine")...).want(t, http.StatusCreated)
	s.do("POST", "/v1/targets/crm:pause", "", named("ten")...).want(t, http.StatusOK)

	audit := func(query string) auditPage {
		t.Helper()
		return into[auditPage](t, s.do("GET", "/v1/audit"+query, "").want(t, http.StatusOK))
	}
	want := []auditEntry{
		{By: "admin", Action: "changed", Kind: "Target", Name: "crm", RequestID: "ten"},
		{By: "admin", Action: "created", Kind: "Target", Name: "crm", RequestID: "nine"},
		{By: "admin", Action: "changed", Kind: "Device", Name: "box", RequestID: "eight"},
		{By: "admin", Action: "created", Kind: "Device", Name: "box", RequestID: "seven"},
		{By: "admin", Action: "changed", Kind: "Key", Name: "ci", RequestID: "six"},
		{By: "admin", Action: "created", Kind: "Key", Name: "ci", RequestID: "five"},
		{By: "admin", Action: "deleted", Kind: "Rule", Bus: "default", Name: "all", RequestID: "four"},
		{By: "admin", Action: "changed", Kind: "Target", Name: "hook", RequestID: "three"},
		{By: "admin", Action: "created", Kind: "Rule", Bus: "default", Name: "all", RequestID: "two"},
		{By: "admin", Action: "created", Kind: "Target", Name: "hook", RequestID: "one"},
	}
	all := audit("?limit=10")
	if all.NextCursor == "" {
		t.Error("what the test wrote without a request is not on the next page")
	}
	got := all.Items
	for i, e := range got {
		if e.At.IsZero() || e.Revision == 0 || (e.OldRevision == 0) != (e.Action == "created") || e.OldRevision >= e.Revision {
			t.Errorf("entry %d: %+v", i, e)
		}
		got[i].At, got[i].Revision, got[i].OldRevision = time.Time{}, 0, 0
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("who changed what (-want +got):\n%s", diff)
	}
	if p := audit("?limit=100&cursor=" + all.NextCursor); len(p.Items) == 0 || p.Items[0].By != "" || p.NextCursor != "" {
		t.Errorf("the page after: %+v", p)
	}
	if p := audit("?kind=Target&name=hook&from=2020-01-01T00:00:00Z&to=2999-01-01T00:00:00Z"); len(p.Items) != 2 {
		t.Errorf("changes of the target: %+v", p)
	}
	for _, query := range []string{"?limit=0", "?cursor=x", "?from=yesterday", "?who=me", "?kind=a&kind=b"} {
		s.do("GET", "/v1/audit"+query, "").want(t, http.StatusBadRequest)
	}
	s.key = s.addKey("reader", "definitions:read", "devices:read")
	s.do("GET", "/v1/audit", "").want(t, http.StatusForbidden)
}
