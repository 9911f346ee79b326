// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/secret"
	"github.com/rialto-bridge/rialto/targets"
)

// refresh is how long resolved secrets are used before their references are looked at again, so that a secret that was
// changed is taken up without a restart.
const refresh = time.Minute

// Sender sends messages to one far side as an Access says. It is safe for concurrent use.
type Sender[T any] struct {
	Access
	env    targets.Env
	host   string
	client *http.Client
	own    func(values map[string]string) (T, error)
	tokens *Tokens // nil without OAuth 2
	fixed  bool    // no secret is a reference, so that nothing has to be looked at again
	creds  atomic.Pointer[Credentials[T]]
}

// Credentials is what the secrets of a config resolved to. It is not to be changed.
type Credentials[T any] struct {
	shown
	Own T // what own has made of them
	at  time.Time
}

// shown is what a far side is shown.
type shown struct {
	header       http.Header // what is the same each time; values are shared between requests
	sign         func(ctx context.Context, m *Message, now time.Time) error
	clientSecret string           // to get tokens with
	certificate  *tls.Certificate // nil = none
	roots        *x509.CertPool   // nil = those of the system
	hidden       []string         // what of all that is secret, longer texts before those they hold
}

// NewSender returns a sender to a host. own makes of the secrets, by their pointers, what the kind itself needs; nil makes nothing.
func NewSender[T any](a Access, host string, env targets.Env, own func(values map[string]string) (T, error)) *Sender[T] {
	s := &Sender[T]{Access: a, env: env, host: host, client: env.HTTP, own: own}
	s.fixed = !slices.ContainsFunc(a.slots, func(s slot) bool { return s.source.Ref() != "" })
	if a.tls != nil {
		s.client = env.TLS(s.connections())
	}
	if a.AuthType() == AuthOAuth2 {
		s.tokens = NewTokens(TokenOptions{URL: a.auth.TokenURL, Form: a.auth.tokenForm(), InBody: a.auth.ClientAuth == "body", HTTP: env.HTTP, Now: env.Now})
	}
	return s
}

// Client is what messages are sent with.
func (s *Sender[T]) Client() *http.Client { return s.client }

// hide keeps a text out of what is shown of answers.
func (c *shown) hide(text string) {
	c.hidden = append(c.hidden, text)
	if _, rest, ok := strings.Cut(text, " "); ok { // behind the scheme, such as Bearer
		c.hidden = append(c.hidden, strings.TrimSpace(rest))
	}
	for _, form := range secret.Forms(text) {
		if form != text {
			c.hidden = append(c.hidden, form)
		}
	}
	for _, prefix := range []string{SecretPrefix, PrivateKeyPrefix} {
		if rest, ok := strings.CutPrefix(text, prefix); ok {
			c.hidden = append(c.hidden, rest)
		}
	}
}

// Credentials returns the resolved secrets. While a reference cannot be resolved, what it resolved to before is used; if
// it never did, there is an error, which names the reference.
func (s *Sender[T]) Credentials(now time.Time) (*Credentials[T], error) {
	old := s.creds.Load()
	if old != nil && (s.fixed || now.Sub(old.at) < refresh) {
		return old, nil
	}
	fresh, err := s.resolve()
	if err != nil {
		if old == nil {
			return nil, &targets.Error{Reason: targets.ReasonInternal, Err: err}
		}
		s.env.Logger.Warn("secret not readable, the last one stays in use", slog.Any("err", err))
		kept := *old
		fresh = &kept
	}
	fresh.at = now
	s.creds.Store(fresh)
	if old != nil && s.tls != nil && err == nil {
		s.client.CloseIdleConnections() // they were made with what may be another certificate now
	}
	return fresh, nil
}

func (s *Sender[T]) resolve() (*Credentials[T], error) {
	c := &Credentials[T]{shown: shown{header: make(http.Header, len(s.headers)+1)}}
	values := make(map[string]string, len(s.slots))
	for _, slot := range s.slots {
		v, err := slot.source.Resolve(s.env.Secrets)
		if err != nil {
			return nil, err
		}
		values[slot.pointer] = v.Reveal()
		if !slot.shown {
			c.hide(v.Reveal())
		}
		if err := slot.check(v.Reveal()); err != nil {
			return nil, fmt.Errorf("%s: secret %s: %w", slot.pointer, slot.source, err)
		}
	}
	if err := s.fill(c, values); err != nil {
		return nil, err
	}
	slices.SortFunc(c.hidden, func(x, y string) int { return len(y) - len(x) })
	return c, nil
}

// fill makes of the values of secrets what messages are sent with.
func (s *Sender[T]) fill(c *Credentials[T], values map[string]string) (err error) {
	for _, h := range s.headers {
		value := h.text
		if value == "" {
			value = values[h.slot]
		}
		c.header[h.name] = []string{value}
	}
	if s.auth != nil {
		s.auth.fill(&c.shown, values)
	}
	if s.own != nil {
		if c.Own, err = s.own(values); err != nil {
			return err
		}
	}
	return fillTLS(&c.shown, values)
}

// Prepare puts what is the same each time into a message: who has to sign it signs it afterwards.
func (c *Credentials[T]) Prepare(m *Message) {
	maps.Copy(m.Header, c.header)
	m.Hide = c.hidden
}

// Send sends a message that was prepared, and says what became of it as Ask does. With OAuth 2 it is sent once more, with a new
// token, if the first is refused: it may have been revoked before its time.
func (s *Sender[T]) Send(ctx context.Context, m Message, c *Credentials[T], t Terms) (res targets.Result, ans Answer, err error) {
	if s.tokens == nil {
		if c.sign != nil {
			signed := m // a copy, so that only what is signed costs an allocation
			if err := c.sign(ctx, &signed, s.env.Now()); err != nil {
				return res, ans, &targets.Error{Reason: targets.ReasonInternal, Err: err}
			}
			m = signed
		}
		return Ask(ctx, s.client, m, t, s.env.Now)
	}
	for again := true; ; again = false {
		token, err := s.tokens.Token(ctx, s.auth.ClientID, c.clientSecret)
		if err != nil {
			return res, ans, err
		}
		one := m
		one.Header = maps.Clone(m.Header) // the transport may still be writing it when the answer is there
		one.Header["Authorization"] = []string{"Bearer " + token}
		one.Hide = append([]string{token}, m.Hide...)
		res, ans, err = Ask(ctx, s.client, one, t, s.env.Now)
		if res.Status != http.StatusUnauthorized || !again {
			return res, ans, err
		}
		s.tokens.Refused(token)
	}
}
