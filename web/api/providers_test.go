// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/rialto-bridge/rialto/internal/secret/token"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/web/api"
)

// idp is an identity provider whose key is in its definition.
type idp struct {
	t   *testing.T
	key *ecdsa.PrivateKey
	now time.Time
}

func newIDP(t *testing.T, now time.Time) idp {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return idp{t, key, now}
}

// document is its definition, with more members.
func (p idp) document(more string) string {
	p.t.Helper()
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: p.key.Public(), KeyID: "a"}}})
	if err != nil {
		p.t.Fatal(err)
	}
	return `{"issuer":"https://login","audience":["rialto"],"algorithms":["ES256"],"keys":{"jwks":` + string(set) + `}` + more + `}`
}

func (p idp) token(claims map[string]any) string {
	p.t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: p.key, KeyID: "a"}}, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	all := map[string]any{"iss": "https://login", "aud": "rialto", "sub": "ann@example.com", "exp": p.now.Add(time.Hour).Unix()}
	maps.Copy(all, claims)
	text, err := jwt.Signed(s).Claims(all).Serialize()
	if err != nil {
		p.t.Fatal(err)
	}
	return text
}

// startWithProvider is start with an identity provider in force, and a clock.
func startWithProvider(t *testing.T, more string) (*server, idp, *time.Time, *api.Providers) {
	t.Helper()
	now := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	p, providers := newIDP(t, now), api.NewProviders(token.Env{})
	s := start(t, func(o *api.Options) {
		o.Providers = providers
		o.Now = func() time.Time { return now }
	})
	s.do("PUT", "/v1/identityproviders/corp", p.document(more)).want(t, http.StatusCreated)
	d, err := s.store.Get(t.Context(), store.Key{Kind: "IdentityProvider", Name: "corp"})
	if err != nil {
		t.Fatal(err)
	}
	if err := providers.Set(d); err != nil {
		t.Fatal(err)
	}
	return s, p, &now, providers
}

func TestTokenRights(t *testing.T) {
	s, p, _, _ := startWithProvider(t, `,"scopesClaim":"scope","rules":[
		{"claim":"groups","in":["ops","sre"],"scopes":["admin:*"]},
		{"claim":"/realm/access~1roles","equals":"reader","scopes":["definitions:read"]}]`)
	for name, c := range map[string]struct {
		claims             map[string]any
		admin, read, write int // GET keys, GET targets, POST events
	}{
		"nothing":        {nil, 403, 403, 403},
		"scope":          {map[string]any{"scope": "openid events:write:default profile"}, 403, 403, 202},
		"list of scopes": {map[string]any{"scope": []any{"events:write", "definitions:read", 7}}, 403, 200, 202},
		"not a scope":    {map[string]any{"scope": "admin:everything admin"}, 403, 403, 403},
		"scope is odd":   {map[string]any{"scope": map[string]any{"admin:*": true}}, 403, 403, 403},
		"group":          {map[string]any{"groups": []string{"all", "sre"}}, 200, 200, 202},
		"other group":    {map[string]any{"groups": []string{"ops2", "OPS"}}, 403, 403, 403},
		"group as text":  {map[string]any{"groups": "ops"}, 200, 200, 202},
		"blanks":         {map[string]any{"groups": "x ops"}, 403, 403, 403},
		"pointer":        {map[string]any{"realm": map[string]any{"access/roles": []string{"reader"}}}, 403, 200, 403},
		"both":           {map[string]any{"scope": "events:write", "realm": map[string]any{"access/roles": "reader"}}, 403, 200, 202},
	} {
		s.key = p.token(c.claims)
		got := [3]int{s.do("GET", "/v1/keys", "").status, s.do("GET", "/v1/targets", "").status, s.post("default", "x"+strings.ReplaceAll(name, " ", "-")).status}
		if want := [3]int{c.admin, c.read, c.write}; got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	s.key = p.token(nil)
	if pr := wantProblem(t, s.do("GET", "/v1/audit", ""), 403, "forbidden"); pr.Detail != "the token lacks the right admin:read" {
		t.Errorf("detail %q", pr.Detail)
	}
}

func TestTokenNamesItsHolder(t *testing.T) {
	s, p, _, _ := startWithProvider(t, `,"nameClaim":"email","rules":[{"claim":"iss","equals":"https://login","scopes":["admin:*"]}]`)
	s.key = p.token(map[string]any{"email": "admin"})
	s.do("PUT", "/v1/targets/hook", `{"config":{"url":"https://a.example"}}`).want(t, http.StatusCreated)
	if page := into[auditPage](t, s.do("GET", "/v1/audit?kind=Target", "").want(t, http.StatusOK)); page.Items[0].By != "corp/admin" {
		t.Errorf("audit says %q", page.Items[0].By)
	}
	for _, email := range []any{nil, "", 7, strings.Repeat("x", 257), "a\nb", "a\x00"} {
		s.key = p.token(map[string]any{"email": email})
		wantProblem(t, s.do("GET", "/v1/targets", ""), 401, "unauthorized")
	}
}

func TestBadTokens(t *testing.T) {
	s, p, now, providers := startWithProvider(t, `,"scopesClaim":"scope"`)
	good := p.token(map[string]any{"scope": "definitions:read"})
	admin := s.key
	s.key = good
	s.do("GET", "/v1/targets", "").want(t, http.StatusOK)
	stranger := newIDP(t, p.now)
	s.key = ""
	for name, c := range map[string]struct{ text, want string }{
		"other key":    {stranger.token(nil), "signed it"},
		"other issuer": {p.token(map[string]any{"iss": "https://else"}), "iss"},
		"audience":     {p.token(map[string]any{"aud": "shop"}), "(aud)"},
		"expired":      {p.token(map[string]any{"exp": p.now.Add(-time.Minute).Unix()}), "(exp)"},
		"not yet":      {p.token(map[string]any{"nbf": p.now.Add(time.Minute).Unix()}), "(nbf)"},
		"unsigned":     {"eyJhbGciOiJub25lIn0." + strings.Split(good, ".")[1] + ".", "signed JWT"},
		"changed":      {good[:len(good)-6] + "AAAAAA", "signed it"},
	} {
		a := s.do("GET", "/v1/targets", "", "Authorization", "Bearer "+c.text)
		pr := wantProblem(t, a, 401, "unauthorized")
		challenge := a.header.Get("WWW-Authenticate")
		if !strings.Contains(pr.Detail, c.want) || !strings.Contains(challenge, `error="invalid_token", error_description="`) || !strings.Contains(challenge, c.want) {
			t.Errorf("%s: %q, %q; want %q in both", name, pr.Detail, challenge, c.want)
		}
	}
	// What is too long never gets that far.
	if a := s.do("GET", "/v1/targets", "", "Authorization", "Bearer "+p.token(map[string]any{"x": strings.Repeat("x", 20<<10)})); a.status != 401 {
		t.Errorf("a long token: %d", a.status)
	}
	s.key = good
	s.do("GET", "/v1/targets", "").want(t, http.StatusOK)
	*now = p.now.Add(time.Hour + 31*time.Second)
	wantProblem(t, s.do("GET", "/v1/targets", ""), 401, "unauthorized")
	*now = p.now
	s.do("GET", "/v1/targets", "").want(t, http.StatusOK)
	providers.Remove("corp") // a token that was good before is not remembered
	wantProblem(t, s.do("GET", "/v1/targets", ""), 401, "unauthorized")
	if log := s.log.String(); strings.Contains(log, good) || strings.Contains(log, strings.Split(good, ".")[2]) {
		t.Error("a token is in the log")
	}
	s.key = admin
	s.do("GET", "/v1/targets", "").want(t, http.StatusOK)
}

// Keys that cannot be had say nothing about a token.
func TestKeysOfAProviderAreAway(t *testing.T) {
	s, p, _, providers := startWithProvider(t, `,"scopesClaim":"scope"`)
	raw := `{"issuer":"https://login","audience":["rialto"],"algorithms":["ES256"],"keys":{"jwksFile":"/nonexistent"},"scopesClaim":"scope"}`
	if err := providers.Set(s.put(store.Key{Kind: "IdentityProvider", Name: "corp"}, raw)); err != nil {
		t.Fatal(err)
	}
	s.key = p.token(nil)
	a := s.do("GET", "/v1/targets", "")
	if wantProblem(t, a, 503, "unavailable"); a.header.Get("Retry-After") == "" || strings.Contains(a.body, "nonexistent") {
		t.Errorf("%v %s", a.header, a.body)
	}
}

func TestProviderDocuments(t *testing.T) {
	s := start(t)
	p := newIDP(t, time.Now())
	for doc, pointer := range map[string]string{
		p.document(``): ``,
		p.document(`,"rules":[{"claim":"","equals":"a","scopes":["admin:*"]}]`):                  `/rules/0/claim`,
		p.document(`,"rules":[{"claim":"a","scopes":["admin:*"]}]`):                              `/rules/0`,
		p.document(`,"rules":[{"claim":"a","equals":"a","in":["b"],"scopes":["admin:*"]}]`):      `/rules/0`,
		p.document(`,"rules":[{"claim":"a","equals":"a","scopes":["admin:*","all"]}]`):           `/rules/0/scopes/1`,
		p.document(`,"rules":[{"claim":"a","equals":"a","scopes":[]}]`):                          `/rules/0/scopes`,
		p.document(`,"scopesClaim":"scope","clockSkew":"1h"`):                                    `/clockSkew`,
		p.document(`,"scopesClaim":"scope","policy":"x"`):                                        `/policy`,
		strings.Replace(p.document(`,"scopesClaim":"scope"`), `"ES256"`, `"HS256"`, 1):           `/algorithms/0`,
		strings.Replace(p.document(`,"scopesClaim":"scope"`), `"https://login"`, `""`, 1):        `/issuer`,
		`{"issuer":"a","audience":["b"],"algorithms":["ES256"],"keys":{},"scopesClaim":"scope"}`: `/keys`,
	} {
		pr := wantProblem(t, s.do("PUT", "/v1/identityproviders/corp", doc), 400, "invalid")
		if len(pr.Errors) != 1 || pr.Errors[0].Pointer != pointer {
			t.Errorf("%s: %+v, want %q", doc, pr.Errors, pointer)
		}
	}
	// It gives rights, so it is for administrators alone.
	s.key = s.addKey("dev", "devices:*", "definitions:*")
	wantProblem(t, s.do("PUT", "/v1/identityproviders/corp", p.document(`,"scopesClaim":"scope"`)), 403, "forbidden")
	if err := api.NewProviders(token.Env{}).Set(store.Document{Key: store.Key{Name: "x"}, Raw: []byte(`{}`)}); err == nil {
		t.Error("a damaged provider is taken")
	}
}
