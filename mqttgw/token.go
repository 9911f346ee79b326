// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Issuer is a parsed TokenIssuer document: who may vouch for clients with signed tokens (JWT), and how tokens become
// identities. Safe for concurrent use.
type Issuer struct {
	Name string

	issuer     string
	audience   jwt.Audience
	algorithms []jose.SignatureAlgorithm
	principal  string            // claim
	clientID   string            // claim that must be the client id; "" = none
	attributes map[string]string // claims by attribute
	policy     string            // "" = the default one

	keys []jose.JSONWebKey // nil if they come from file or secret
	ref  string            // of a shared secret
	file *keyFile
}

type issuerDocument struct {
	documentHead
	Issuer          string            `json:"issuer"`
	Audience        []string          `json:"audience"`
	Algorithms      []string          `json:"algorithms"`
	Keys            issuerKeys        `json:"keys"`
	PrincipalClaim  string            `json:"principalClaim,omitempty"`
	ClientIDClaim   string            `json:"clientIdClaim,omitempty"`
	AttributeClaims map[string]string `json:"attributeClaims,omitempty"`
	Policy          string            `json:"policy,omitempty"`

	parsed []jose.JSONWebKey
}

// issuerKeys is where the keys of signatures are: exactly one is given.
type issuerKeys struct {
	PEM      string          `json:"pem,omitempty"`
	JWKS     json.RawMessage `json:"jwks,omitempty"`
	JWKSFile string          `json:"jwksFile,omitempty"`
	Secret   *secretRef      `json:"secret,omitempty"`
}

type secretRef struct {
	Ref string `json:"ref"`
}

const (
	maxToken     = 16 << 10 // bytes
	maxKeys      = 32
	maxKeyFile   = 1 << 20
	minSecret    = 32
	tokenLeeway  = 30 * time.Second // of clocks
	defaultClaim = "sub"
)

// tokenAlgorithms are all that an issuer may name. The first letters say what keys they take.
var tokenAlgorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
	jose.ES256, jose.ES384, jose.ES512, jose.EdDSA, jose.HS256, jose.HS384, jose.HS512}

func (d *issuerDocument) check(complain complaint) {
	d.documentHead.check("TokenIssuer", complain)
	if d.Issuer == "" || len(d.Issuer) > maxTemplate {
		complain("/issuer", "must be 1 to %d bytes: what stands in the claim iss", maxTemplate)
	}
	if len(d.Audience) == 0 || len(d.Audience) > maxAccess || slices.Contains(d.Audience, "") {
		complain("/audience", "must be 1 to %d texts, of which the claim aud has to hold one", maxAccess)
	}
	if len(d.Algorithms) == 0 {
		complain("/algorithms", "is required")
	}
	shared := d.Keys.Secret != nil
	for i, a := range d.Algorithms {
		switch at := "/algorithms/" + strconv.Itoa(i); {
		case !slices.Contains(tokenAlgorithms, jose.SignatureAlgorithm(a)):
			complain(at, "must be one of %s", joinAlgorithms())
		case strings.HasPrefix(a, "HS") != shared:
			complain(at, "HS256, HS384 and HS512 go with keys.secret, all others with public keys")
		}
	}
	d.checkKeys(complain.under("/keys"))
	if len(d.AttributeClaims) > maxAttributes {
		complain("/attributeClaims", "must be at most %d", maxAttributes)
	}
	for _, name := range slices.Sorted(maps.Keys(d.AttributeClaims)) {
		if !attributeFormat.MatchString(name) || d.AttributeClaims[name] == "" {
			complain("/attributeClaims", "must map names of attributes (a letter, then letters, digits, _ and -) to claims")
		}
	}
	if d.Policy != "" && !nameFormat.MatchString(d.Policy) {
		complain("/policy", badName)
	}
}

func joinAlgorithms() string {
	var names []string
	for _, a := range tokenAlgorithms {
		names = append(names, string(a))
	}
	return strings.Join(names, ", ")
}

func (d *issuerDocument) checkKeys(complain complaint) {
	given := 0
	var err error
	k := &d.Keys
	if k.PEM != "" {
		given++
		if d.parsed, err = parsePEM(k.PEM); err != nil {
			complain("/pem", "%s", err)
		}
	}
	if k.JWKS != nil {
		given++
		if d.parsed, err = parseJWKS(k.JWKS); err != nil {
			complain("/jwks", "%s", err)
		}
	}
	if k.JWKSFile != "" {
		given++
		if !filepath.IsAbs(k.JWKSFile) || strings.ContainsRune(k.JWKSFile, 0) {
			complain("/jwksFile", "must be an absolute path")
		}
	}
	if k.Secret != nil {
		given++
		if err := checkRef(k.Secret.Ref); err != nil {
			complain("/secret/ref", "%s", err)
		}
	}
	if given != 1 {
		complain("", "must have exactly one of pem, jwks, jwksFile and secret")
	}
}

// ParseIssuer reads a TokenIssuer document (JSON). Errors are *fault.Error of kind Invalid with JSON pointers.
func ParseIssuer(doc []byte) (*Issuer, error) {
	var d issuerDocument
	if err := decodeDocument(doc, "TokenIssuer", &d); err != nil {
		return nil, err
	}
	s := &Issuer{Name: d.Name, issuer: d.Issuer, audience: d.Audience, principal: d.PrincipalClaim, clientID: d.ClientIDClaim,
		attributes: d.AttributeClaims, policy: d.Policy, keys: d.parsed}
	for _, a := range d.Algorithms {
		s.algorithms = append(s.algorithms, jose.SignatureAlgorithm(a))
	}
	if s.principal == "" {
		s.principal = defaultClaim
	}
	if d.Keys.Secret != nil {
		s.ref = d.Keys.Secret.Ref
	}
	if d.Keys.JWKSFile != "" {
		s.file = &keyFile{path: d.Keys.JWKSFile}
	}
	return s, nil
}

// parsePEM reads public keys and certificates.
func parsePEM(text string) (keys []jose.JSONWebKey, err error) {
	for rest := []byte(text); ; {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		if block == nil {
			if len(bytes.TrimSpace(rest)) > 0 || len(keys) == 0 {
				return nil, errors.New("must be PEM blocks PUBLIC KEY or CERTIFICATE and nothing else")
			}
			return keys, nil
		}
		var key crypto.PublicKey
		switch block.Type {
		case "PUBLIC KEY":
			key, err = x509.ParsePKIXPublicKey(block.Bytes)
		case "CERTIFICATE":
			var cert *x509.Certificate
			if cert, err = x509.ParseCertificate(block.Bytes); err == nil {
				key = cert.PublicKey
			}
		default:
			err = errors.New("other block")
		}
		jwk := jose.JSONWebKey{Key: key}
		if err != nil || !jwk.Valid() || len(keys) == maxKeys {
			return nil, fmt.Errorf("must be 1 to %d PEM blocks PUBLIC KEY or CERTIFICATE with RSA, ECDSA or Ed25519 keys", maxKeys)
		}
		keys = append(keys, jwk)
	}
}

// parseJWKS reads a set of public keys. Keys for other uses are left out.
func parseJWKS(b []byte) (keys []jose.JSONWebKey, err error) {
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(b, &set); err != nil {
		return nil, errors.New("is not a JSON Web Key Set (RFC 7517)")
	}
	for _, k := range set.Keys {
		if k.Use != "" && k.Use != "sig" {
			continue
		}
		if !k.Valid() || !k.IsPublic() {
			return nil, errors.New("must hold public keys only")
		}
		keys = append(keys, k)
	}
	if len(keys) == 0 || len(keys) > maxKeys {
		return nil, fmt.Errorf("must hold 1 to %d keys for signatures", maxKeys)
	}
	return keys, nil
}

// keyFile is a JWKS file. It is read again when it has changed; if it cannot be read then, the last good keys stay in use.
type keyFile struct {
	path string

	mu      sync.Mutex // guards all below
	keys    []jose.JSONWebKey
	stamp   time.Time
	checked time.Time
}

// recheck is how often the file is looked at.
const recheck = time.Second

func (f *keyFile) load(now time.Time) ([]jose.JSONWebKey, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.keys != nil && now.Sub(f.checked) < recheck {
		return f.keys, nil
	}
	f.checked = now
	keys, stamp, err := f.read()
	if err != nil && f.keys == nil {
		return nil, err
	}
	if err == nil && keys != nil {
		f.keys, f.stamp = keys, stamp
	}
	return f.keys, nil
}

// read returns nil keys when the file is the one that was read last.
func (f *keyFile) read() (keys []jose.JSONWebKey, stamp time.Time, err error) {
	file, err := os.Open(f.path)
	if err != nil {
		return nil, stamp, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	st, err := file.Stat()
	if err != nil {
		return nil, stamp, err
	}
	if f.keys != nil && st.ModTime().Equal(f.stamp) {
		return nil, stamp, nil
	}
	b, err := io.ReadAll(io.LimitReader(file, maxKeyFile+1))
	if err != nil {
		return nil, stamp, err
	}
	if len(b) > maxKeyFile {
		return nil, stamp, fmt.Errorf("%s is larger than %d bytes", f.path, maxKeyFile)
	}
	if keys, err = parseJWKS(b); err != nil {
		return nil, stamp, fmt.Errorf("%s %w", f.path, err)
	}
	return keys, st.ModTime(), nil
}

func (s *Issuer) verificationKeys(now time.Time) ([]jose.JSONWebKey, error) {
	switch {
	case s.file != nil:
		return s.file.load(now)
	case s.ref != "":
		secret, err := resolveRef(s.ref)
		if err != nil {
			return nil, err
		}
		if len(secret) < minSecret {
			return nil, fmt.Errorf("%s holds less than %d bytes", s.ref, minSecret)
		}
		return []jose.JSONWebKey{{Key: secret}}, nil
	}
	return s.keys, nil
}

// issuerOf returns what a text says of itself in the claim iss, if it is a token; nothing is verified.
func issuerOf(text []byte) (issuer string, isToken bool) {
	if len(text) > maxToken || bytes.Count(text, []byte(".")) != 2 {
		return "", false
	}
	tok, err := jwt.ParseSigned(string(text), tokenAlgorithms)
	if err != nil {
		return "", false
	}
	var claims jwt.Claims
	if tok.UnsafeClaimsWithoutVerification(&claims) != nil {
		return "", false
	}
	return claims.Issuer, claims.Issuer != ""
}

// verify checks a token and returns whom it is about. It must be signed by a key of the issuer with an algorithm of its
// list, be for its audience, and have an end that has not come. Errors are for the log.
func (s *Issuer) verify(text []byte, clientID string, now time.Time) (*identity, error) {
	tok, err := jwt.ParseSigned(string(text), s.algorithms)
	if err != nil {
		return nil, fmt.Errorf("token: %w", err)
	}
	keys, err := s.verificationKeys(now)
	if err != nil {
		return nil, &keysError{s.Name, err}
	}
	var std jwt.Claims
	var all map[string]any
	if !verifiedBy(tok, keys, &std, &all) {
		return nil, errors.New("token: no key of the issuer has signed it")
	}
	if std.Expiry == nil {
		return nil, errors.New("token: has no exp")
	}
	if err := std.ValidateWithLeeway(jwt.Expected{Issuer: s.issuer, AnyAudience: s.audience, Time: now}, tokenLeeway); err != nil {
		return nil, fmt.Errorf("token: %w", err)
	}
	id := &identity{via: viaToken, policy: s.policy, expires: std.Expiry.Time().Add(tokenLeeway)}
	var ok bool
	if id.principal, ok = all[s.principal].(string); !ok || id.principal == "" || len(id.principal) > maxPrincipal || strings.ContainsRune(id.principal, 0) {
		return nil, fmt.Errorf("token: claim %s is not a text of 1 to %d bytes without U+0000", s.principal, maxPrincipal)
	}
	if s.clientID != "" && all[s.clientID] != clientID {
		return nil, errTokenClientID
	}
	for name, claim := range s.attributes {
		if v, ok := all[claim].(string); ok && len(v) <= maxAttribute {
			if id.attributes == nil {
				id.attributes = map[string]string{}
			}
			id.attributes[name] = v
		}
	}
	return id, nil
}

// keysError is that the keys of an issuer cannot be had, which is the operator's to mend.
type keysError struct {
	issuer string
	err    error
}

func (e *keysError) Error() string { return "keys of issuer " + e.issuer + ": " + e.err.Error() }
func (e *keysError) Unwrap() error { return e.err }

var errTokenClientID = errors.New("token: is for another client id")

// verifiedBy reports whether one of the keys has signed the token: those that have its kid, or all if it has none.
func verifiedBy(tok *jwt.JSONWebToken, keys []jose.JSONWebKey, claims ...any) bool {
	head := tok.Headers[0] // ParseSigned takes exactly one signature
	for i := range keys {
		k := &keys[i]
		if head.KeyID != "" && k.KeyID != "" && k.KeyID != head.KeyID || k.Algorithm != "" && k.Algorithm != head.Algorithm {
			continue
		}
		if tok.Claims(k.Key, claims...) == nil {
			return true
		}
	}
	return false
}
