// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/web/api"
)

// keyAnswer is a key as it is answered.
type keyAnswer struct {
	Secret, Hash, PreviousHash string
	Status                     struct{ LastUsedAt, PreviousUntil time.Time }
}

func TestRotateWithGrace(t *testing.T) {
	now := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	s := start(t, func(o *api.Options) { o.Now = func() time.Time { return now } })
	admin := s.key
	try := func(secret string, want int) {
		t.Helper()
		s.key = secret
		if got := s.do("GET", "/v1/targets", "").status; got != want {
			t.Errorf("%d, want %d", got, want)
		}
		s.key = admin
	}
	rotate := func(query string) keyAnswer {
		t.Helper()
		return into[keyAnswer](t, s.do("POST", "/v1/keys/ci:rotate"+query, "").want(t, http.StatusOK))
	}
	first := into[keyAnswer](t, s.do("POST", "/v1/keys", `{"kind":"Key","name":"ci","scopes":["definitions:read"]}`).want(t, http.StatusCreated)).Secret
	second := rotate("?grace=1h")
	if second.Hash != "" || second.PreviousHash != "" || !second.Status.PreviousUntil.Equal(now.Add(time.Hour)) {
		t.Errorf("%+v", second)
	}
	try(first, http.StatusOK)
	try(second.Secret, http.StatusOK)
	// Other rights hold for both secrets; neither ends by that.
	s.do("PUT", "/v1/keys/ci", `{"scopes":["events:read"]}`).want(t, http.StatusOK)
	try(first, http.StatusForbidden)
	try(second.Secret, http.StatusForbidden)
	s.do("PUT", "/v1/keys/ci", `{"scopes":["definitions:read"]}`).want(t, http.StatusOK)
	now = now.Add(time.Hour)
	try(first, http.StatusUnauthorized)
	try(second.Secret, http.StatusOK)
	if seen := into[keyAnswer](t, s.do("GET", "/v1/keys/ci", "").want(t, http.StatusOK)).Status.LastUsedAt; !seen.Equal(now) {
		t.Errorf("last used at %s, want %s", seen, now)
	}
	third := rotate("?grace=1h").Secret
	fourth := rotate("?grace=1h").Secret // the one before the last ends with it
	try(second.Secret, http.StatusUnauthorized)
	try(third, http.StatusOK)
	fifth := rotate("").Secret
	try(third, http.StatusUnauthorized)
	try(fourth, http.StatusUnauthorized)
	try(fifth, http.StatusOK)
	rotate("?grace=1h")
	s.do("DELETE", "/v1/keys/ci", "").want(t, http.StatusNoContent)
	try(fifth, http.StatusUnauthorized)
	for _, query := range []string{"?grace=-1s", "?grace=721h", "?grace=x", "?grace=1"} {
		wantProblem(t, s.do("POST", "/v1/keys/admin:rotate"+query, ""), 400, "invalid")
	}
	wantProblem(t, s.do("PUT", "/v1/keys/admin", `{"scopes":["admin:*"],"previousHash":"00"}`), 400, "invalid")
}
