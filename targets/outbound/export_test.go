// SPDX-License-Identifier: Apache-2.0

package outbound

import "net/http"

// HeadOf is what an attempt keeps of an answer that says no.
var HeadOf = headOf

// LookAlways makes a client look at each kept connection before it is used.
func LookAlways(c *http.Client) { c.Transport.(*plain).look = 0 }

// Kept returns how many connections without TLS are idle.
func Kept(c *http.Client) int {
	p := c.Transport.(*plain)
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.idle)
}

// MaxPlainBody is the size of the largest message that does not go through net/http's transport.
const MaxPlainBody = maxPlainBody

// ReadToken reads the answer of an issuer.
var ReadToken = readToken
