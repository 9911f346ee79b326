// SPDX-License-Identifier: Apache-2.0

// Package token checks signed tokens (JWT, RFC 7519) of issuers that somebody has defined: of MQTT clients and of users of
// the HTTP API alike. It says whether a token is good and what it claims; what follows from that is the caller's.
//
// A token is good if a key of the issuer has signed it with an algorithm of the issuer's list, iss and aud are what was
// agreed, exp is there and has not come, and nbf and iat are not in the future. Algorithms with a shared secret go with a
// secret and all others with public keys, so that no public key is ever taken for a secret; unsigned tokens are none.
//
// Keys are in the definition, in a file, or at a URL, which is asked when they are needed: no goroutine is behind this.
// Everything is safe for concurrent use.
package token

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/rialto-bridge/rialto/internal/secret"
)

// MaxSize is the size in bytes of the largest token that is looked at.
const MaxSize = 16 << 10

const (
	maxIssuer   = 1024 // bytes
	maxAudience = 64
	defaultSkew = 30 * time.Second
	maxSkew     = 5 * time.Minute
	minSecret   = 32 // bytes
)

// algorithms are all that an issuer may name. The first letters say what keys they take.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
	jose.ES256, jose.ES384, jose.ES512, jose.EdDSA, jose.HS256, jose.HS384, jose.HS512}

// Terms is the part of a definition that says which tokens are good. It is embedded in documents.
type Terms struct {
	Issuer     string   `json:"issuer"`
	Audience   []string `json:"audience"`
	Algorithms []string `json:"algorithms"`
	Keys       KeysFrom `json:"keys"`
	ClockSkew  string   `json:"clockSkew,omitempty"` // how far clocks may be apart; "" = 30s
}

// Check says what is wrong with t, with JSON pointers into the document.
func (t *Terms) Check(complain func(pointer, format string, args ...any)) {
	if t.Issuer == "" || len(t.Issuer) > maxIssuer {
		complain("/issuer", "must be 1 to %d bytes: what stands in the claim iss", maxIssuer)
	}
	if len(t.Audience) == 0 || len(t.Audience) > maxAudience || slices.Contains(t.Audience, "") {
		complain("/audience", "must be 1 to %d texts, of which the claim aud has to hold one", maxAudience)
	}
	if len(t.Algorithms) == 0 {
		complain("/algorithms", "is required")
	}
	for i, a := range t.Algorithms {
		switch at := "/algorithms/" + strconv.Itoa(i); {
		case !slices.Contains(algorithms, jose.SignatureAlgorithm(a)):
			complain(at, "must be one of %s", joinAlgorithms())
		case strings.HasPrefix(a, "HS") != (t.Keys.Secret != nil):
			complain(at, "HS256, HS384 and HS512 go with keys.secret, all others with public keys")
		}
	}
	t.Keys.check(t.Issuer, func(pointer, detail string) { complain("/keys"+pointer, "%s", detail) })
	if _, err := t.skew(); err != nil {
		complain("/clockSkew", "%s", err)
	}
}

func (t *Terms) skew() (time.Duration, error) {
	if t.ClockSkew == "" {
		return defaultSkew, nil
	}
	d, err := time.ParseDuration(t.ClockSkew)
	if err != nil || d < 0 || d > maxSkew {
		return 0, fmt.Errorf("must be a duration from 0s to %s, such as 30s", maxSkew)
	}
	return d, nil
}

func joinAlgorithms() string {
	var names []string
	for _, a := range algorithms {
		names = append(names, string(a))
	}
	return strings.Join(names, ", ")
}

// Verifier checks the tokens of one issuer.
type Verifier struct {
	issuer     string
	audience   jwt.Audience
	algorithms []jose.SignatureAlgorithm
	skew       time.Duration
	keys       keySource
}

// keySource is where keys come from. kid is the one that is looked for; "" = any. It may block for as long as it takes to
// ask for them, fetchTime at most.
type keySource interface {
	load(ctx context.Context, kid string, now time.Time) ([]jose.JSONWebKey, error)
}

// Env is what keys that are not in a definition are fetched with.
type Env struct {
	HTTP    *http.Client // for keys at a URL: should be guarded and follow no redirect; with nil such keys cannot be had
	Secrets secret.Resolver
}

// New returns the verifier of t, which has passed Check.
func New(t Terms, env Env) (*Verifier, error) {
	v := &Verifier{issuer: t.Issuer, audience: t.Audience}
	for _, a := range t.Algorithms {
		v.algorithms = append(v.algorithms, jose.SignatureAlgorithm(a))
	}
	var err, keysErr error
	v.skew, err = t.skew()
	v.keys, keysErr = t.Keys.source(t.Issuer, env)
	return v, errors.Join(err, keysErr)
}

// Issuer is the claim iss of the tokens that v checks.
func (v *Verifier) Issuer() string { return v.issuer }

// Claims are what a good token says.
type Claims struct {
	Expires time.Time // when the token ends, with what clocks may be apart
	All     map[string]any
}

// Error is what is wrong with a token. The reason repeats nothing of it.
type Error struct{ Reason string }

func (e *Error) Error() string { return "token: " + e.Reason }

// KeysError is that the keys of an issuer cannot be had, which is the operator's to mend and says nothing about a token.
type KeysError struct {
	Issuer string
	Err    error
}

func (e *KeysError) Error() string { return "keys of issuer " + e.Issuer + ": " + e.Err.Error() }
func (e *KeysError) Unwrap() error { return e.Err }

// IssuerOf returns what a text says of itself in the claim iss, if it is a token; nothing is verified.
func IssuerOf(text string) (issuer string, isToken bool) {
	if len(text) > MaxSize || strings.Count(text, ".") != 2 {
		return "", false
	}
	tok, err := jwt.ParseSigned(text, algorithms)
	if err != nil {
		return "", false
	}
	var claims jwt.Claims
	if tok.UnsafeClaimsWithoutVerification(&claims) != nil {
		return "", false
	}
	return claims.Issuer, claims.Issuer != ""
}

// Verify checks a token. The error is an *Error or a *KeysError. It may block while keys are asked for.
func (v *Verifier) Verify(ctx context.Context, text string, now time.Time) (*Claims, error) {
	if len(text) > MaxSize {
		return nil, &Error{fmt.Sprintf("it is longer than %d bytes", MaxSize)}
	}
	tok, err := jwt.ParseSigned(text, v.algorithms)
	if err != nil {
		return nil, &Error{"it is no JWT that is signed with an algorithm of the issuer's list"}
	}
	keys, err := v.keys.load(ctx, tok.Headers[0].KeyID, now) // ParseSigned takes exactly one signature
	if err != nil {
		return nil, &KeysError{v.issuer, err}
	}
	var std jwt.Claims
	c := &Claims{}
	if err := verified(tok, keys, &std, &c.All); err != nil {
		return nil, err
	}
	if std.Expiry == nil {
		return nil, &Error{"it has no exp"}
	}
	if err := std.ValidateWithLeeway(jwt.Expected{Issuer: v.issuer, AnyAudience: v.audience, Time: now}, v.skew); err != nil {
		return nil, &Error{reasonOf(err)}
	}
	c.Expires = std.Expiry.Time().Add(v.skew)
	return c, nil
}

func reasonOf(err error) string {
	switch {
	case errors.Is(err, jwt.ErrExpired):
		return "it has expired (exp)"
	case errors.Is(err, jwt.ErrNotValidYet):
		return "it is not valid yet (nbf)"
	case errors.Is(err, jwt.ErrIssuedInTheFuture):
		return "it was issued in the future (iat)"
	case errors.Is(err, jwt.ErrInvalidAudience):
		return "it is for another audience (aud)"
	case errors.Is(err, jwt.ErrInvalidIssuer):
		return "it is of another issuer (iss)"
	}
	return "its claims are not valid"
}

// verified reads the claims of a token that one of the keys has signed: those that have its kid, or all if it has none.
func verified(tok *jwt.JSONWebToken, keys []jose.JSONWebKey, claims ...any) error {
	head := tok.Headers[0]
	asked := false
	for i := range keys {
		k := &keys[i]
		if !fits(k, head.KeyID) || k.Algorithm != "" && k.Algorithm != head.Algorithm {
			continue
		}
		asked = true
		if tok.Claims(k.Key, claims...) == nil {
			return nil
		}
	}
	if !asked {
		return &Error{"no key of the issuer has its kid and algorithm"}
	}
	return &Error{"no key of the issuer has signed it"}
}

// fits reports whether a key may be the one that a token names.
func fits(k *jose.JSONWebKey, kid string) bool { return kid == "" || k.KeyID == "" || k.KeyID == kid }

// shared is a secret that is looked up each time.
type shared struct {
	ref     string
	secrets secret.Resolver
}

func (s shared) load(context.Context, string, time.Time) ([]jose.JSONWebKey, error) {
	text, err := s.secrets.Resolve(s.ref)
	if err != nil {
		return nil, err
	}
	if len(text) < minSecret {
		return nil, fmt.Errorf("%s holds less than %d bytes", s.ref, minSecret)
	}
	return []jose.JSONWebKey{{Key: []byte(text)}}, nil
}
