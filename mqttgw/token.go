// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/secret/token"
)

// Issuer is a parsed TokenIssuer document: who may vouch for clients with signed tokens (JWT), and how tokens become
// identities. Safe for concurrent use.
type Issuer struct {
	Name string

	tokens     *token.Verifier
	principal  string            // claim
	clientID   string            // claim that must be the client id; "" = none
	attributes map[string]string // claims by attribute
	policy     string            // "" = the default one
}

type issuerDocument struct {
	documentHead
	token.Terms
	PrincipalClaim  string            `json:"principalClaim,omitempty"`
	ClientIDClaim   string            `json:"clientIdClaim,omitempty"`
	AttributeClaims map[string]string `json:"attributeClaims,omitempty"`
	Policy          string            `json:"policy,omitempty"`
}

const defaultClaim = "sub"

func (d *issuerDocument) check(complain complaint) {
	d.documentHead.check("TokenIssuer", complain)
	d.Terms.Check(complain)
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

// ParseIssuer reads a TokenIssuer document (JSON). Keys that are elsewhere are fetched with env. Errors are
// *fault.Error of kind Invalid with JSON pointers.
func ParseIssuer(doc []byte, env token.Env) (*Issuer, error) {
	var d issuerDocument
	if err := decodeDocument(doc, "TokenIssuer", &d); err != nil {
		return nil, err
	}
	s := &Issuer{Name: d.Name, principal: d.PrincipalClaim, clientID: d.ClientIDClaim, attributes: d.AttributeClaims, policy: d.Policy}
	if s.principal == "" {
		s.principal = defaultClaim
	}
	var err error
	if s.tokens, err = token.New(d.Terms, env); err != nil {
		return nil, err
	}
	return s, nil
}

// verify checks a token and returns whom it is about. Errors are for the log; a *token.KeysError says nothing about the
// token.
func (s *Issuer) verify(ctx context.Context, text []byte, clientID string, now time.Time) (*identity, error) {
	claims, err := s.tokens.Verify(ctx, string(text), now)
	if err != nil {
		return nil, err
	}
	all := claims.All
	id := &identity{via: viaToken, policy: s.policy, expires: claims.Expires}
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

var errTokenClientID = errors.New("token: is for another client id")
