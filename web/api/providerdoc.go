// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/secret/token"
)

const (
	kindProvider  = "IdentityProvider"
	maxClaimRules = 64
	maxClaim      = 256 // bytes of the name of a claim, or of a value
)

// providerDoc is an IdentityProvider document: who may vouch for users of the API with signed tokens, and what those may
// do. It is for administrators, since it gives rights; a TokenIssuer is for devices.
type providerDoc struct {
	Kind        string            `json:"kind"`
	Name        string            `json:"name"`
	Description string            `json:"description,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	token.Terms
	NameClaim   string      `json:"nameClaim,omitempty"`
	ScopesClaim string      `json:"scopesClaim,omitempty"`
	Rules       []claimsDoc `json:"rules,omitempty"`
}

// claimsDoc is a rule: tokens whose claim is one of some texts, or is a list that has one, get rights.
type claimsDoc struct {
	Claim  string   `json:"claim"`
	Equals string   `json:"equals,omitempty"`
	In     []string `json:"in,omitempty"`
	Scopes []string `json:"scopes"`
}

// check says what is wrong with an identity provider.
func (d *providerDoc) check() error {
	var faults []fault.Detail
	complain := func(pointer, format string, args ...any) {
		faults = append(faults, fault.Detail{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
	}
	d.Terms.Check(complain)
	if len(d.NameClaim) > maxClaim {
		complain("/nameClaim", "must be at most %d bytes", maxClaim)
	}
	if len(d.ScopesClaim) > maxClaim {
		complain("/scopesClaim", "must be at most %d bytes", maxClaim)
	}
	switch {
	case len(d.Rules) > maxClaimRules:
		complain("/rules", "must be at most %d", maxClaimRules)
	case len(d.Rules) == 0 && d.ScopesClaim == "":
		complain("", "must have scopesClaim or rules: without them its tokens may do nothing")
	default:
		for i := range d.Rules {
			d.Rules[i].check("/rules/"+strconv.Itoa(i), complain)
		}
	}
	return fault.Collect(faults)
}

func (r *claimsDoc) check(at string, complain func(pointer, format string, args ...any)) {
	if r.Claim == "" || len(r.Claim) > maxClaim {
		complain(at+"/claim", "must be the name of a claim, or a JSON pointer to one, of at most %d bytes", maxClaim)
	}
	if (r.Equals == "") == (len(r.In) == 0) {
		complain(at, "must have either equals or in")
	}
	if len(r.Equals) > maxClaim || len(r.In) > maxClaimRules || slices.ContainsFunc(r.In, func(s string) bool { return s == "" || len(s) > maxClaim }) {
		complain(at, "must have at most %d texts of 1 to %d bytes", maxClaimRules, maxClaim)
	}
	if len(r.Scopes) == 0 || len(r.Scopes) > maxScopes {
		complain(at+"/scopes", "must be 1 to %d rights, such as events:write:default", maxScopes)
		return
	}
	for i, s := range r.Scopes {
		if _, why := parseScope(s); why != "" {
			complain(at+"/scopes/"+strconv.Itoa(i), "%s", why)
		}
	}
}

// providerKind is the kind of documents that say who vouches for users.
func providerKind() *Kind {
	return &Kind{
		Name: kindProvider, Plural: "identityproviders", Area: areaAdmin, Schema: []byte(providerSchema),
		Doc: "An identity provider vouches for users of this API with signed tokens (JWT), and says by their claims what they may do.",
		Normalize: func(_ context.Context, doc, _ []byte) ([]byte, error) {
			var d providerDoc
			if err := decodeStrict(doc, &d); err != nil {
				return nil, err
			}
			return doc, d.check()
		},
	}
}

const providerSchema = `{
 "type": "object", "additionalProperties": false, "required": ["issuer", "audience", "algorithms", "keys"],
 "properties": {
  "kind": {"const": "IdentityProvider"}, "name": {"type": "string"}, "description": {"type": "string"},
  "labels": {"type": "object", "additionalProperties": {"type": "string"}},
  "issuer": {"type": "string", "minLength": 1, "maxLength": 1024, "description": "What the claim iss must be."},
  "audience": {"type": "array", "minItems": 1, "maxItems": 64, "items": {"type": "string", "minLength": 1}, "description": "The claim aud must have one of these."},
  "algorithms": {"type": "array", "minItems": 1, "items": {"enum": ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "HS256", "HS384", "HS512"]}, "description": "Of signatures; no other is accepted."},
  "clockSkew": {"type": "string", "default": "30s", "description": "How far clocks may be apart, 0s to 5m."},
  "keys": {"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": false,
   "description": "One of: discovery (the issuer's OpenID configuration says where they are), jwksUrl, jwksFile, jwks, pem, secret (for HS256, HS384 and HS512).",
   "properties": {
    "discovery": {"const": true}, "jwksUrl": {"type": "string", "pattern": "^https?://"}, "jwksFile": {"type": "string", "pattern": "^/"},
    "jwks": {"type": "object", "required": ["keys"]}, "pem": {"type": "string", "pattern": "BEGIN"},
    "secret": {"type": "object", "required": ["ref"], "additionalProperties": false, "properties": {"ref": {"type": "string", "description": "env:NAME or file:PATH, of 32 bytes at least"}}}}},
  "nameClaim": {"type": "string", "default": "sub", "description": "The claim that names the user in the audit and the log; a JSON pointer if it begins with /."},
  "scopesClaim": {"type": "string", "description": "A claim with rights, as a list or with blanks between them, such as scope. What is no right is ignored."},
  "rules": {"type": "array", "maxItems": 64, "description": "Rights by claims; those of all rules that apply are added.",
   "items": {"type": "object", "additionalProperties": false, "required": ["claim", "scopes"],
    "properties": {"claim": {"type": "string", "minLength": 1, "description": "Its name, or a JSON pointer such as /realm_access/roles."},
     "equals": {"type": "string", "minLength": 1}, "in": {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
     "scopes": {"type": "array", "minItems": 1, "maxItems": 64, "items": {"type": "string"}}}}}
 }}`
