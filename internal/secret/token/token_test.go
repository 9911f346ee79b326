// SPDX-License-Identifier: Apache-2.0

package token_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/rialto-bridge/rialto/internal/secret"
	"github.com/rialto-bridge/rialto/internal/secret/token"
)

var now = time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)

// sign makes a token; changes replace claims of a good one, and nil takes one away.
func sign(t testing.TB, alg jose.SignatureAlgorithm, key any, kid string, changes map[string]any) string {
	t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: key, KeyID: kid}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	claims := map[string]any{"iss": "https://iam", "aud": "rialto", "sub": "ann", "exp": now.Add(time.Hour).Unix()}
	for name, v := range changes {
		claims[name] = v
		if v == nil {
			delete(claims, name)
		}
	}
	text, err := jwt.Signed(s).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func jwks(t testing.TB, keys ...jose.JSONWebKey) []byte {
	t.Helper()
	b, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func verifier(t testing.TB, keys token.KeysFrom, algorithms ...string) *token.Verifier {
	t.Helper()
	terms := token.Terms{Issuer: "https://iam", Audience: []string{"rialto"}, Algorithms: algorithms, Keys: keys}
	terms.Check(func(pointer, format string, args ...any) { t.Errorf("%s %s", pointer, fmt.Sprintf(format, args...)) })
	v, err := token.New(terms, token.Env{})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func newECKey(t testing.TB, c elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(c, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestEveryAlgorithm(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p256, p384, p521 := newECKey(t, elliptic.P256()), newECKey(t, elliptic.P384()), newECKey(t, elliptic.P521())
	secret := strings.Repeat("s", 64)
	t.Setenv("TEST_TOKEN_SECRET", secret)
	shared := token.KeysFrom{Secret: &token.SecretRef{Ref: "env:TEST_TOKEN_SECRET"}}
	set := token.KeysFrom{JWKS: jwks(t, jose.JSONWebKey{Key: rsaKey.Public(), KeyID: "rsa"}, jose.JSONWebKey{Key: edKey.Public(), KeyID: "ed"},
		jose.JSONWebKey{Key: p256.Public(), KeyID: "p256"}, jose.JSONWebKey{Key: p384.Public(), KeyID: "p384"}, jose.JSONWebKey{Key: p521.Public(), KeyID: "p521"})}
	for _, c := range []struct {
		alg  jose.SignatureAlgorithm
		key  any
		kid  string
		keys token.KeysFrom
	}{
		{jose.RS256, rsaKey, "rsa", set}, {jose.RS384, rsaKey, "rsa", set}, {jose.RS512, rsaKey, "rsa", set},
		{jose.PS256, rsaKey, "rsa", set}, {jose.PS384, rsaKey, "rsa", set}, {jose.PS512, rsaKey, "rsa", set},
		{jose.ES256, p256, "p256", set}, {jose.ES384, p384, "p384", set}, {jose.ES512, p521, "p521", set}, {jose.EdDSA, edKey, "ed", set},
		{jose.HS256, []byte(secret), "", shared}, {jose.HS384, []byte(secret), "", shared}, {jose.HS512, []byte(secret), "", shared},
	} {
		text := sign(t, c.alg, c.key, c.kid, nil)
		claims, err := verifier(t, c.keys, string(c.alg)).Verify(t.Context(), text, now)
		if err != nil || claims.All["sub"] != "ann" || !claims.Expires.Equal(now.Add(time.Hour+30*time.Second)) {
			t.Errorf("%s: %+v, %v", c.alg, claims, err)
		}
		// The same token where its algorithm is not on the list.
		other := "RS256"
		if c.alg == jose.RS256 {
			other = "RS384"
		}
		if _, err := verifier(t, set, other).Verify(t.Context(), text, now); err == nil {
			t.Errorf("%s is taken where only %s is allowed", c.alg, other)
		}
		// One bit of the signature, and of the claims.
		for _, at := range []int{len(text) - 10, strings.IndexByte(text, '.') + 20} {
			b := []byte(text)
			b[at] ^= 1
			if _, err := verifier(t, c.keys, string(c.alg)).Verify(t.Context(), string(b), now); err == nil {
				t.Errorf("%s: a token that was changed at %d is taken", c.alg, at)
			}
		}
	}
}

// Keys of signatures are not looked for in what is the bridge's own.
func TestKeysInOwnFiles(t *testing.T) {
	key := newECKey(t, elliptic.P256())
	dir := t.TempDir()
	file := filepath.Join(dir, "keys")
	if err := os.WriteFile(file, jwks(t, jose.JSONWebKey{Key: key.Public()}), 0o600); err != nil {
		t.Fatal(err)
	}
	for alg, keys := range map[string]token.KeysFrom{"ES256": {JWKSFile: file}, "HS256": {Secret: &token.SecretRef{Ref: "file:" + file}}} {
		for _, own := range []string{"", dir} {
			terms := token.Terms{Issuer: "https://iam", Audience: []string{"rialto"}, Algorithms: []string{alg}, Keys: keys}
			v, err := token.New(terms, token.Env{Secrets: secret.Resolver{Own: []string{own}}})
			if err != nil {
				t.Fatal(err)
			}
			text := sign(t, jose.ES256, key, "", nil)
			if alg == "HS256" {
				text = sign(t, jose.HS256, jwks(t, jose.JSONWebKey{Key: key.Public()}), "", nil)
			}
			_, err = v.Verify(t.Context(), text, now)
			var ke *token.KeysError
			if refused := errors.As(err, &ke) && strings.Contains(err.Error(), "the bridge's own"); refused != (own != "") || own == "" && err != nil {
				t.Errorf("%s with %q as the bridge's own: %v", alg, own, err)
			}
		}
	}
}

func TestBadTokens(t *testing.T) {
	key, stranger := newECKey(t, elliptic.P256()), newECKey(t, elliptic.P256())
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	v := verifier(t, token.KeysFrom{JWKS: jwks(t, jose.JSONWebKey{Key: key.Public(), KeyID: "a"})}, "ES256")
	es := func(changes map[string]any) string { return sign(t, jose.ES256, key, "a", changes) }
	good := es(nil)
	head, rest, _ := strings.Cut(good, ".")
	body, signature, _ := strings.Cut(rest, ".")
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`))
	crit := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"ES256","kid":"a","crit":["x"],"x":1}`))
	second := time.Second
	for _, c := range []struct{ name, text, want string }{
		{"good", good, ""},
		{"without kid", sign(t, jose.ES256, key, "", nil), ""},
		{"aud is a list", es(map[string]any{"aud": []string{"shop", "rialto"}}), ""},
		{"ended within the skew", es(map[string]any{"exp": now.Add(-29 * second).Unix()}), ""},
		{"begins within the skew", es(map[string]any{"nbf": now.Add(29 * second).Unix()}), ""},
		{"expired", es(map[string]any{"exp": now.Add(-31 * second).Unix()}), "exp"},
		{"not yet", es(map[string]any{"nbf": now.Add(31 * second).Unix()}), "nbf"},
		{"of the future", es(map[string]any{"iat": now.Add(31 * second).Unix()}), "iat"},
		{"no end", es(map[string]any{"exp": nil}), "no exp"},
		{"end is a text", es(map[string]any{"exp": "never"}), "signed"},
		{"other audience", es(map[string]any{"aud": "shop"}), "aud"},
		{"no audience", es(map[string]any{"aud": nil}), "aud"},
		{"other issuer", es(map[string]any{"iss": "https://else"}), "iss"},
		{"no issuer", es(map[string]any{"iss": nil}), "iss"},
		{"unknown kid", sign(t, jose.ES256, key, "b", nil), "kid"},
		{"other key", sign(t, jose.ES256, stranger, "a", nil), "no key"},
		{"public key as secret", sign(t, jose.HS256, public, "a", nil), "algorithm"},
		{"none", none + "." + body + ".", "no JWT"},
		{"none with a signature", none + "." + body + "." + signature, "no JWT"},
		{"no signature", head + "." + body + ".", "no key"},
		{"critical extension", crit + "." + body + "." + signature, "no"},
		{"truncated", good[:len(good)-8], "no key"},
		{"half", good[:len(good)/2], "no JWT"},
		{"two dots", "..", "no JWT"},
		{"nothing", "", "no JWT"},
		{"100 KB", es(map[string]any{"x": strings.Repeat("x", 100<<10)}), "longer"},
		{"100 KB of dots", strings.Repeat(".", 100<<10), "longer"},
	} {
		_, err := v.Verify(t.Context(), c.text, now)
		var bad *token.Error
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (!errors.As(err, &bad) || !strings.Contains(bad.Reason, c.want)):
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestCheck(t *testing.T) {
	key := newECKey(t, elliptic.P256())
	set := jwks(t, jose.JSONWebKey{Key: key.Public()})
	exotic := bytes.Replace(set, []byte(`"keys":[`), []byte(`"keys":[{"kty":"AKP","alg":"ML-DSA-44","pub":"x"},{"kty":"OKP","crv":"X25519","x":"x"},{"kty":"RSA","use":"enc"},`), 1)
	for _, c := range []struct {
		name string
		edit func(*token.Terms)
		want string
	}{
		{"good", func(*token.Terms) {}, ""},
		{"keys of other kinds beside it", func(d *token.Terms) { d.Keys.JWKS = exotic }, ""},
		{"a secret in the set", func(d *token.Terms) { d.Keys.JWKS = []byte(`{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}`) }, "/keys/jwks"},
		{"an empty set", func(d *token.Terms) { d.Keys.JWKS = []byte(`{"keys":[]}`) }, "/keys/jwks"},
		{"no keys", func(d *token.Terms) { d.Keys = token.KeysFrom{} }, "/keys"},
		{"two places", func(d *token.Terms) { d.Keys.JWKSFile = "/x" }, "/keys"},
		{"plain http", func(d *token.Terms) { d.Keys = token.KeysFrom{JWKSURL: "http://iam.example/keys"} }, "/keys/jwksUrl"},
		{"http on this machine", func(d *token.Terms) { d.Keys = token.KeysFrom{JWKSURL: "http://127.0.0.1:1/keys"} }, ""},
		{"a name in the URL", func(d *token.Terms) { d.Keys = token.KeysFrom{JWKSURL: "https://a:b@iam.example/keys"} }, "/keys/jwksUrl"},
		{"discovery of a name", func(d *token.Terms) { d.Issuer, d.Keys = "iam", token.KeysFrom{Discovery: true} }, "/keys/discovery"},
		{"discovery", func(d *token.Terms) { d.Keys = token.KeysFrom{Discovery: true} }, ""},
		{"none", func(d *token.Terms) { d.Algorithms = []string{"none"} }, "/algorithms/0"},
		{"secret algorithm", func(d *token.Terms) { d.Algorithms = []string{"ES256", "HS256"} }, "/algorithms/1"},
		{"skew", func(d *token.Terms) { d.ClockSkew = "6m" }, "/clockSkew"},
		{"skew is none", func(d *token.Terms) { d.ClockSkew = "-1s" }, "/clockSkew"},
	} {
		terms := token.Terms{Issuer: "https://iam", Audience: []string{"rialto"}, Algorithms: []string{"ES256"}, Keys: token.KeysFrom{JWKS: set}}
		c.edit(&terms)
		var got []string
		terms.Check(func(pointer, _ string, _ ...any) { got = append(got, pointer) })
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: complaints about %q, want %q", c.name, got, c.want)
		}
		if _, err := token.New(terms, token.Env{}); c.want == "" && err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// FuzzVerify looks for a text that is taken without having been signed.
func FuzzVerify(f *testing.F) {
	key := newECKey(f, elliptic.P256())
	v := verifier(f, token.KeysFrom{JWKS: jwks(f, jose.JSONWebKey{Key: key.Public(), KeyID: "a"})}, "ES256")
	good := sign(f, jose.ES256, key, "a", nil)
	for _, seed := range []string{good, good[1:], "..", "eyJhbGciOiJub25lIn0.e30.", sign(f, jose.HS256, bytes.Repeat([]byte("k"), 32), "a", nil), `{"payload":"e30","signatures":[]}`} {
		f.Add(seed)
	}
	signed, _, _ := strings.Cut(good[strings.IndexByte(good, '.')+1:], ".")
	f.Fuzz(func(t *testing.T, text string) {
		token.IssuerOf(text)
		_, err := v.Verify(t.Context(), text, now)
		var bad *token.Error
		if err == nil && !strings.Contains(text, signed) {
			t.Fatalf("%q is taken", text)
		}
		if err != nil && !errors.As(err, &bad) {
			t.Fatalf("error %v is not about the token", err)
		}
	})
}
