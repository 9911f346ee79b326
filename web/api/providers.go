// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/secret/token"
	"github.com/rialto-bridge/rialto/internal/store"
)

const (
	// keptTokens is how many verified tokens are remembered.
	keptTokens = 4096
	// keptFor is for how long at most, so that a key which its issuer withdraws is missed soon.
	keptFor = 5 * time.Minute
	// maxCallerName is the length in bytes of the longest name that a token may give.
	maxCallerName = 256
)

// Providers is the directory of identity providers that tokens are checked against: kept in memory, fed from the
// store's changes. Safe for concurrent use; a token that was verified before is found by its hash.
type Providers struct {
	env token.Env

	mu     sync.Mutex // guards byName
	byName map[string]*provider
	state  atomic.Pointer[providersState] // replaced with every change, so that no verdict outlives its definition
}

// providersState is what requests see of a directory.
type providersState struct {
	byIssuer map[string]*provider // by the claim iss

	mu    sync.Mutex // guards known
	known map[[sha256.Size]byte]*knownToken
}

// knownToken is a token that was found good.
type knownToken struct {
	grant *grant
	until time.Time
}

// NewProviders returns an empty directory. Keys that are not in the documents are fetched with env; its connections are the
// caller's to close.
func NewProviders(env token.Env) *Providers {
	p := &Providers{env: env, byName: map[string]*provider{}}
	p.publish()
	return p
}

// Set takes in an IdentityProvider document as it is stored. An error means that it is damaged; its tokens are then good
// for nothing. Of two with one issuer, the later name counts.
func (p *Providers) Set(d store.Document) error {
	v, err := newProvider(d, p.env)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		delete(p.byName, d.Name)
	} else {
		p.byName[d.Name] = v
	}
	p.publish()
	return err
}

// Remove forgets a provider. Its tokens are good for nothing from then on.
func (p *Providers) Remove(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byName, name)
	p.publish()
}

// publish makes byName visible to requests. The caller holds mu, or is the only one who knows p.
func (p *Providers) publish() {
	s := &providersState{byIssuer: make(map[string]*provider, len(p.byName)), known: map[[sha256.Size]byte]*knownToken{}}
	for _, name := range slices.Sorted(maps.Keys(p.byName)) {
		v := p.byName[name]
		s.byIssuer[v.tokens.Issuer()] = v
	}
	p.state.Store(s)
}

// errNoToken is for what is not a token of anybody.
var errNoToken = errors.New("no token")

// lookup returns the grant of a token. The error is errNoToken, a *token.Error or a *token.KeysError. It may block for as
// long as it takes to ask an issuer for its keys.
func (p *Providers) lookup(ctx context.Context, text string, now time.Time) (*grant, error) {
	s := p.state.Load()
	if len(s.byIssuer) == 0 || strings.Count(text, ".") != 2 {
		return nil, errNoToken
	}
	sum := sha256.Sum256([]byte(text))
	if g := s.recall(sum, now); g != nil {
		return g, nil
	}
	if len(text) > token.MaxSize {
		return nil, &token.Error{Reason: "it is too long"}
	}
	iss, ok := token.IssuerOf(text)
	if !ok {
		return nil, &token.Error{Reason: "it is no signed JWT with iss"}
	}
	v := s.byIssuer[iss]
	if v == nil {
		return nil, &token.Error{Reason: "no identity provider is defined for its iss"}
	}
	claims, err := v.tokens.Verify(ctx, text, now)
	if err != nil {
		return nil, err
	}
	g, err := v.grantOf(claims)
	if err != nil {
		return nil, err
	}
	s.remember(sum, &knownToken{grant: g, until: earlier(claims.Expires, now.Add(keptFor))})
	return g, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func (s *providersState) recall(sum [sha256.Size]byte, now time.Time) *grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.known[sum]
	switch {
	case k == nil:
		return nil
	case !now.Before(k.until):
		delete(s.known, sum)
		return nil
	}
	return k.grant
}

// remember keeps a verdict. When there is no room, any other goes: it costs one signature to have it again.
func (s *providersState) remember(sum [sha256.Size]byte, k *knownToken) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= keptTokens {
		for other := range s.known {
			delete(s.known, other)
			break
		}
	}
	s.known[sum] = k
}

// provider is an IdentityProvider in force. Immutable.
type provider struct {
	name        string
	tokens      *token.Verifier
	nameClaim   string
	scopesClaim string // "" = none
	rules       []claimRule
}

// claimRule gives rights to tokens whose claim is, or holds, one of some texts.
type claimRule struct {
	claim  string
	values []string
	scopes []scope
}

func newProvider(d store.Document, env token.Env) (*provider, error) {
	var doc providerDoc
	if err := json.Unmarshal(d.Raw, &doc); err != nil {
		return nil, err
	}
	if err := doc.check(); err != nil {
		return nil, err
	}
	v := &provider{name: d.Name, nameClaim: cmp.Or(doc.NameClaim, "sub"), scopesClaim: doc.ScopesClaim}
	for _, r := range doc.Rules {
		rule := claimRule{claim: r.Claim, values: r.In}
		if r.Equals != "" {
			rule.values = []string{r.Equals}
		}
		for _, text := range r.Scopes {
			sc, _ := parseScope(text) // checked
			rule.scopes = append(rule.scopes, sc)
		}
		v.rules = append(v.rules, rule)
	}
	var err error
	v.tokens, err = token.New(doc.Terms, env)
	return v, err
}

// grantOf is what a good token may do. Its name is that of the provider, a slash and the claim: no key can be called so.
func (v *provider) grantOf(c *token.Claims) (*grant, error) {
	name, ok := claimAt(c.All, v.nameClaim).(string)
	if !ok || name == "" || len(name) > maxCallerName || strings.ContainsFunc(name, unprintable) {
		return nil, &token.Error{Reason: "the claim that names its holder is not a printable text of at most 256 bytes"}
	}
	g := &grant{name: v.name + "/" + name, token: true, expires: c.Expires}
	if v.scopesClaim != "" {
		for _, text := range textsOf(claimAt(c.All, v.scopesClaim), true) {
			if sc, why := parseScope(text); why == "" && len(g.scopes) < maxScopes { // others are for somebody else
				g.scopes = append(g.scopes, sc)
			}
		}
	}
	for _, r := range v.rules {
		texts := textsOf(claimAt(c.All, r.claim), false)
		if slices.ContainsFunc(r.values, func(want string) bool { return slices.Contains(texts, want) }) {
			g.scopes = append(g.scopes, r.scopes...)
		}
	}
	return g, nil
}

func unprintable(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }

// claimAt finds a claim by its name, or by a JSON pointer (RFC 6901) if that is what the text is. nil if there is none.
func claimAt(claims map[string]any, at string) any {
	if !strings.HasPrefix(at, "/") {
		return claims[at]
	}
	var v any = claims
	for step := range strings.SplitSeq(at[1:], "/") {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[strings.NewReplacer("~1", "/", "~0", "~").Replace(step)]
	}
	return v
}

// textsOf are the texts of a claim: those of a list, or the one, which split takes for several with blanks between them
// (RFC 8693, section 4.2).
func textsOf(v any, split bool) []string {
	switch v := v.(type) {
	case string:
		if split {
			return strings.Fields(v)
		}
		return []string{v}
	case []any:
		var out []string
		for _, e := range v {
			if s, ok := e.(string); ok {
				out = append(out, s)
			}
		}
		return out
	}
	return nil
}

// tokenFault is what a client is told of a token that is not good. It repeats nothing of it.
func tokenFault(err error) error {
	if e, ok := errors.AsType[*token.Error](err); ok {
		return unauthorized("the token is no good: "+e.Reason, "invalid_token", e.Reason)
	}
	if _, ok := errors.AsType[*token.KeysError](err); ok {
		return &fault.Error{Kind: fault.Unavailable, Message: "the keys of the token's issuer cannot be had", Err: err}
	}
	return unauthorized("the key is not known here", "invalid_token", "")
}
