// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/targettest"
)

// A far side that refuses and repeats what it was sent does not get its credentials into the journey.
func TestCredentialsThatAreEchoedAreNotKept(t *testing.T) {
	const token, apiKey = "tkn-5f1c0b7a3d9e4c21", "quite a secret"
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Echo", "you sent "+r.Header.Get("X-Tenant"))
		w.Header().Set("WWW-Authenticate", "Bearer")
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprintf(w, "got %q, team %s\n", r.Header, r.Header.Get("X-Team"))
		fmt.Fprintf(w, "bad token %s.", token)
		// Where what is kept of the answer ends.
		_, err := io.WriteString(w, strings.Repeat(strings.Repeat("x", 7)+apiKey, 2000))
		if err != nil {
			return // the reader has had enough
		}
	}))
	defer srv.Close()
	now := time.Now()
	w, err := kind().New(fmt.Appendf(nil, `{"url":%q,"headers":{"X-Team":"cold-chain","Authorization":{"ref":"env:TOKEN"},"X-Tenant":{"value":%q},"X-Short":{"value":"ops"}}}`,
		srv.URL, apiKey), env(t, &now, map[string]string{"env:TOKEN": "Bearer " + token}))
	if err != nil {
		t.Fatal(err)
	}
	res, err := w.Deliver(t.Context(), targettest.Delivery())
	if err == nil || res.Status != http.StatusUnauthorized {
		t.Fatalf("%+v, %v", res, err)
	}
	for _, secret := range []string{token, apiKey, apiKey[:4]} {
		if i := strings.Index(res.Head, secret); i >= 0 {
			t.Errorf("the answer that is kept has %q at %d of %d", secret, i, len(res.Head))
		}
	}
	for _, told := range []string{"X-Echo: you sent [redacted]\n", "Authenticate: Bearer\n", "bad token [redacted].", "team cold-chain", `"Authorization":["[redacted]"]`} {
		if !strings.Contains(res.Head, told) {
			t.Errorf("the answer that is kept has no %q: %q", told, res.Head[:500])
		}
	}
	if len(res.Head) > targets.MaxHead {
		t.Errorf("%d bytes are kept", len(res.Head))
	}
}
