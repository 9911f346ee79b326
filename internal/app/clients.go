// SPDX-License-Identifier: Apache-2.0

package app

import (
	"crypto/tls"
	"net/http"

	"github.com/rialto-bridge/rialto/internal/egress"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

// targetClients is the HTTP clients of one target.
type targetClients struct {
	guard       *egress.Guard
	concurrency int
	all         []*http.Client
}

// make makes a client with settings of its own for TLS, or none.
func (c *targetClients) make(cfg *tls.Config) *http.Client {
	client := outbound.Client(c.guard, outbound.Options{Concurrency: c.concurrency, TLS: cfg})
	c.all = append(c.all, client)
	return client
}

// close closes the connections that are idle.
func (c *targetClients) close() {
	for _, client := range c.all {
		client.CloseIdleConnections()
	}
}
