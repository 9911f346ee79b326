// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/targets/outbound"
)

// refresh is how long resolved secrets are used before their references are looked at again, so that a secret that was
// changed is taken up without a restart.
const refresh = time.Minute

// credentials is what the secrets of a webhook resolved to.
type credentials struct {
	signer       *outbound.Signer        // nil = unsigned
	message      *outbound.MessageSigner // nil = not signed by RFC 9421
	aws          *outbound.AWSSigner     // nil = not signed for AWS
	headers      http.Header             // those that are the same each time; values are shared between requests
	clientSecret string                  // to get tokens with
	certificate  *tls.Certificate        // nil = none is shown
	roots        *x509.CertPool          // nil = those of the system
	hidden       []string                // what of all that is secret, longer texts before those they hold
	at           time.Time
}

// hide keeps a text out of what is shown of answers.
func (c *credentials) hide(text string) {
	c.hidden = append(c.hidden, text)
	if _, rest, ok := strings.Cut(text, " "); ok { // behind the scheme, such as Bearer
		c.hidden = append(c.hidden, strings.TrimSpace(rest))
	}
	for _, prefix := range []string{outbound.SecretPrefix, outbound.PrivateKeyPrefix} {
		if rest, ok := strings.CutPrefix(text, prefix); ok {
			c.hidden = append(c.hidden, rest)
		}
	}
}

// credentials returns the resolved secrets. While a reference cannot be resolved, what it resolved to before is used; if
// it never did, there is an error, which names the reference.
func (w *webhook) credentials(now time.Time) (*credentials, error) {
	old := w.creds.Load()
	if old != nil && (w.fixed || now.Sub(old.at) < refresh) {
		return old, nil
	}
	fresh, err := w.resolve()
	if err != nil {
		if old == nil {
			return nil, err
		}
		w.env.Logger.Warn("secret not readable, the last one stays in use", slog.Any("err", err))
		kept := *old
		fresh = &kept
	}
	fresh.at = now
	w.creds.Store(fresh)
	if old != nil && w.tls != nil && err == nil {
		w.client.CloseIdleConnections() // they were made with what may be another certificate now
	}
	return fresh, nil
}

func (w *webhook) resolve() (*credentials, error) {
	c := &credentials{headers: make(http.Header, len(w.headers)+1)}
	values := make(map[string]string, len(w.slots))
	for _, s := range w.slots {
		v, err := s.source.Resolve(w.env.Secrets)
		if err != nil {
			return nil, err
		}
		values[s.pointer] = v.Reveal()
		if !s.shown {
			c.hide(v.Reveal())
		}
		if err := s.check(v.Reveal()); err != nil {
			return nil, fmt.Errorf("%s: secret %s: %w", s.pointer, s.source, err)
		}
	}
	if err := w.fill(c, values); err != nil {
		return nil, err
	}
	slices.SortFunc(c.hidden, func(x, y string) int { return len(y) - len(x) })
	return c, nil
}

// fill makes of the values of secrets what messages are sent with.
func (s *settings) fill(c *credentials, values map[string]string) (err error) {
	for _, h := range s.headers {
		value := h.text
		if value == "" {
			value = values[h.slot]
		}
		c.headers[h.name] = []string{value}
	}
	if s.auth != nil {
		s.auth.fill(c, values)
	}
	if len(s.keys) > 0 {
		keys := make([]outbound.Key, len(s.keys))
		for i, k := range s.keys {
			keys[i] = outbound.Key{Text: values[k.slot], Until: k.until}
		}
		if c.signer, err = outbound.NewSigner(keys...); err != nil {
			return err
		}
	}
	if s.signature != nil {
		if c.message, err = outbound.NewMessageSigner(s.signature.Algorithm, s.signature.KeyID, values["/signature/key"]); err != nil {
			return err
		}
	}
	return s.fillTLS(c, values)
}
