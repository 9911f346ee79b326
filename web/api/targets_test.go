// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/rialto-bridge/rialto/bridge"
)

// The answer names a call, and the call can be made as it stands.
func TestEnableTarget(t *testing.T) {
	s := start(t)
	a := s.do("POST", "/v1/targets/ops:enable", "").want(t, http.StatusOK)
	if a.body != `{"target":"ops","disabledAt":"2027-01-01T00:00:00Z","reason":"it answered 410","held":2,"missed":{"total":0,"groups":[]}}` {
		t.Errorf("nothing was missed: %s", a.body)
	}
	if s.bridge.lastQuery() != [2]string{"ops", "admin"} {
		t.Errorf("asked %v", s.bridge.lastQuery())
	}
	s.bridge.dead = []bridge.DeadLetter{{ID: "DEAD:1", Bus: "default"}}
	got := into[struct {
		Missed  struct{ Total int }
		Redrive struct {
			Method, Path string
			Body         json.RawMessage
		}
	}](t, s.do("POST", "/v1/targets/ops:enable", "").want(t, http.StatusOK))
	if got.Missed.Total != 1 {
		t.Errorf("missed %+v", got)
	}
	s.do(got.Redrive.Method, got.Redrive.Path, string(got.Redrive.Body)).want(t, http.StatusAccepted)
	spec, ok := s.bridge.lastQuery().(bridge.JobSpec)
	if !ok || spec.Filter.Target != "ops" || spec.Filter.From.IsZero() || !spec.Filter.To.After(spec.Filter.From) {
		t.Errorf("redriven %+v", spec)
	}
	wantProblem(t, s.do("POST", "/v1/targets/other:enable", ""), 409, "conflict")
	wantProblem(t, s.do("POST", "/v1/targets/ops:enable?now=1", ""), 400, "invalid", "/now")
}
