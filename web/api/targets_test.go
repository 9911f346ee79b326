// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/web/api"
)

// Who was asked for consent needs no key, and may be told the host by another name.
func TestConsents(t *testing.T) {
	s := start(t, func(o *api.Options) { o.Anonymous = true })
	s.key = ""
	for _, c := range []struct {
		method, path, rate string
		status             int
	}{
		{"GET", "/consents/ops/good", "", http.StatusNoContent},
		{"POST", "/consents/ops/good", "120", http.StatusNoContent},
		{"GET", "/consents/ops/bad", "", http.StatusNotFound},
		{"GET", "/consents/other/good", "", http.StatusNotFound},
		{"PUT", "/consents/ops/good", "", http.StatusMethodNotAllowed},
	} {
		if a := s.do(c.method, c.path, "", "Host", "rialto.example.com", "WebHook-Allowed-Rate", c.rate); a.status != c.status {
			t.Errorf("%s %s: %d %s", c.method, c.path, a.status, a.body)
		}
	}
	if got := strings.Join(s.bridge.consents, ","); got != ",120" {
		t.Errorf("rates %q", got)
	}
}

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
