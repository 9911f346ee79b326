// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/sources/sourcetest"
	"github.com/rialto-bridge/rialto/sources/webhook"
)

func TestEverySenderPassesTheSuite(t *testing.T) {
	for _, s := range senders {
		t.Run(s.name, func(t *testing.T) {
			sourcetest.RunHook(t, sourcetest.Hook{Kind: webhook.Kind(), Config: s.config, Timed: s.timed, Enclosed: s.enclosed, BodyOnly: s.bodyOnly, State: state, Edit: (&vault{}).edit,
				Request: func(t testing.TB, url string, i int, at time.Time) *http.Request {
					body, header := s.payload(i, at)
					return s.sign(t, url, body, header, at)
				}})
		})
	}
}
