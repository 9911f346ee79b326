// SPDX-License-Identifier: Apache-2.0

package outbound_test

import (
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/targets/outbound"
)

// Whatever an issuer answers: what is taken for a token can be sent, is good for a while, and no error repeats the answer.
func FuzzReadToken(f *testing.F) {
	for _, s := range []string{`{"access_token":"a","token_type":"Bearer","expires_in":3600}`, `{"access_token":"a","expires_in":"60"}`, `{"error":"invalid_client"}`,
		`{"access_token":"a b"}`, `{"expires_in":1e400}`, `[]`, ``} {
		f.Add(200, []byte(s))
		f.Add(400, []byte(s))
	}
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		const secret = "hunter2"
		token, life, err := outbound.ReadToken(status, body, secret)
		switch {
		case err == nil && (token == "" || strings.ContainsAny(token, " \r\n") || life <= 0 || life > 30*24*time.Hour || status != 200):
			t.Errorf("%q for %v", token, life)
		case err != nil && (strings.Contains(err.Error(), secret) || len(err.Error()) > 120 || token != ""):
			t.Errorf("%q, %v", token, err)
		}
	})
}
