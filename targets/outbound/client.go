// SPDX-License-Identifier: Apache-2.0

// Package outbound is how the bridge speaks HTTP to strangers.
//
// Client makes a client that connects through the egress guard, follows no redirect, knows no proxy and no cookies, and
// reads no more than it must. Exchange makes one attempt with it: it sends a request, reads a bounded part of the answer,
// and says in the words of package targets what became of it. Signer signs with Standard Webhooks 1.0.
//
// Small messages to http:// URLs go over connections of plain, everything else (https, HTTP/2, large bodies) over the
// transport of net/http.
//
// Everything is safe for concurrent use. No function starts a goroutine of its own; those of net/http end with the
// connections, so whoever made a client calls CloseIdleConnections when it is not needed any more.
package outbound

import (
	"crypto/tls"
	"net/http"
	"time"

	"github.com/rialto-bridge/rialto/internal/egress"
)

// UserAgent is sent with every request.
const UserAgent = "rialto-webhook/1"

const (
	maxHeaderBytes = 64 << 10 // of an answer, all informational answers before it included
	idleTimeout    = 90 * time.Second
	tlsTimeout     = 10 * time.Second
)

// Options configures a client.
type Options struct {
	Concurrency int         // attempts at the same time, as many connections are kept; 0 = 8
	TLS         *tls.Config // cloned; nil = the system's roots. MinVersion is raised to TLS 1.2.
}

// Client returns a client for one target. Whoever calls it bounds each request by its context: the client itself has no
// time limit but for connecting and the TLS handshake (10 s each).
func Client(guard *egress.Guard, o Options) *http.Client {
	conns := o.Concurrency
	if conns <= 0 {
		conns = 8
	}
	cfg := o.TLS.Clone()
	if cfg == nil {
		cfg = &tls.Config{}
	}
	cfg.MinVersion = max(cfg.MinVersion, tls.VersionTLS12)
	dial := timed(guard.DialContext)
	return &http.Client{
		Transport: &plain{dial: dial, keep: conns, look: lookAfter, next: &http.Transport{
			Proxy:                  nil, // a proxy from the environment would hide the address from the guard
			DialContext:            dial,
			TLSClientConfig:        cfg,
			TLSHandshakeTimeout:    tlsTimeout,
			ForceAttemptHTTP2:      true, // a dialer of one's own turns it off otherwise
			MaxIdleConns:           conns,
			MaxIdleConnsPerHost:    conns,
			IdleConnTimeout:        idleTimeout,
			MaxResponseHeaderBytes: maxHeaderBytes,
			DisableCompression:     true, // an answer that is inflated for us could be a bomb
		}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
