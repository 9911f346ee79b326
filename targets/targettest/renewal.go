// SPDX-License-Identifier: Apache-2.0

package targettest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/targets"
)

// Renews tries what a kind whose URL is a secret does while that is replaced: an answer that refuses who we are leaves the message to
// be tried again after a rest, and the next attempt is made with what the secret is by then. refuses is such an answer.
func Renews(t *testing.T, k targets.Kind, accepts, refuses string) {
	t.Helper()
	s := NewSink(t, refuses)
	env := Env(t)
	at := "/old"
	env.Secrets = func(ref string) (string, error) {
		if ref != "robot" {
			return "", fmt.Errorf("secret %s: is not set", ref)
		}
		return s.URL + at, nil
	}
	to := Make(t, k, `{"url": {"ref": "robot"}}`, env)
	_, err := to.Deliver(t.Context(), Delivery())
	if got := Verdict(err); !strings.HasPrefix(got, "auth after 1m0s: ") || !strings.HasPrefix(s.Path, "/old") {
		t.Errorf("at %s: %s", s.Path, got)
	}
	at, s.Answer = "/new", accepts
	if _, err := to.Deliver(t.Context(), Delivery()); err != nil || !strings.HasPrefix(s.Path, "/new") {
		t.Errorf("at %s: %v", s.Path, err)
	}
	at = "/newer"
	if _, err := to.Deliver(t.Context(), Delivery()); err != nil || !strings.HasPrefix(s.Path, "/new?") && s.Path != "/new" {
		t.Errorf("a secret that was taken is looked at again: at %s, %v", s.Path, err)
	}
}
