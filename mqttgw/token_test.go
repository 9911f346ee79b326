// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/secret/token"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// in is the server with the failures of a subtest.
func (s *server) in(t *testing.T) *server { return &server{t: t, bus: s.bus, ln: s.ln, dial: s.dial} }

type tokenKey struct {
	*ecdsa.PrivateKey
	id string
}

func newTokenKey(t testing.TB, id string) tokenKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return tokenKey{k, id}
}

func (k tokenKey) pem(t testing.TB) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(k.Public())
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

func (k tokenKey) public() jose.JSONWebKey {
	return jose.JSONWebKey{Key: k.Public(), KeyID: k.id, Algorithm: "ES256", Use: "sig"}
}

func sign(t testing.TB, alg jose.SignatureAlgorithm, key any, kid string, claims map[string]any) string {
	t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: key, KeyID: kid}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.Signed(s).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// claims are good ones with changes; nil takes a claim away.
func claims(changes map[string]any) map[string]any {
	c := map[string]any{"iss": "https://iam", "aud": "rialto", "sub": "box-17", "exp": time.Now().Add(time.Hour).Unix(), "site": "turin"}
	for name, v := range changes {
		c[name] = v
		if v == nil {
			delete(c, name)
		}
	}
	return c
}

func (k tokenKey) token(t testing.TB, changes map[string]any) string {
	t.Helper()
	return sign(t, jose.ES256, k.PrivateKey, k.id, claims(changes))
}

func issuer(t testing.TB, keys any, more string) string {
	t.Helper()
	b, err := json.Marshal(keys)
	if err != nil {
		t.Fatal(err)
	}
	return `{"kind":"TokenIssuer","name":"iam","issuer":"https://iam","audience":["rialto"],"algorithms":["ES256"],"keys":` + string(b) + more + `}`
}

func TestTokenInThePassword(t *testing.T) {
	key, other := newTokenKey(t, ""), newTokenKey(t, "")
	d := defined(t, issuer(t, map[string]string{"pem": key.pem(t)}, `,"attributeClaims":{"site":"site"},"policy":"site","clientIdClaim":"cid"`),
		`{"kind":"DevicePolicy","name":"site","access":{"publish":["${attr.site}/${principal}/#"]}}`)
	s := start(t, with(d), func(o *mqttgw.Options) { o.Limits.MaxFailuresPerMinute = 100 })
	now := time.Now()
	for name, tt := range map[string]struct {
		token string
		want  packet.Reason
	}{
		"good":             {key.token(t, map[string]any{"cid": "c"}), packet.Success},
		"expired":          {key.token(t, map[string]any{"cid": "c", "exp": now.Add(-time.Minute).Unix()}), packet.BadUserOrPassword},
		"not yet":          {key.token(t, map[string]any{"cid": "c", "nbf": now.Add(time.Minute).Unix()}), packet.BadUserOrPassword},
		"without end":      {key.token(t, map[string]any{"cid": "c", "exp": nil}), packet.BadUserOrPassword},
		"other audience":   {key.token(t, map[string]any{"cid": "c", "aud": "shop"}), packet.BadUserOrPassword},
		"no audience":      {key.token(t, map[string]any{"cid": "c", "aud": nil}), packet.BadUserOrPassword},
		"other issuer":     {key.token(t, map[string]any{"cid": "c", "iss": "https://else"}), packet.BadUserOrPassword},
		"no subject":       {key.token(t, map[string]any{"cid": "c", "sub": nil}), packet.BadUserOrPassword},
		"subject number":   {key.token(t, map[string]any{"cid": "c", "sub": 7}), packet.BadUserOrPassword},
		"other client id":  {key.token(t, map[string]any{"cid": "d"}), packet.ClientIDInvalid},
		"no client id":     {key.token(t, nil), packet.ClientIDInvalid},
		"other key":        {other.token(t, map[string]any{"cid": "c"}), packet.BadUserOrPassword},
		"other algorithm":  {sign(t, jose.HS256, []byte(strings.Repeat("k", 32)), "", claims(map[string]any{"cid": "c"})), packet.BadUserOrPassword},
		"public as secret": {sign(t, jose.HS256, []byte(key.pem(t)), "", claims(map[string]any{"cid": "c"})), packet.BadUserOrPassword},
		"attribute is bad": {key.token(t, map[string]any{"cid": "c", "site": "#"}), packet.NotAuthorized},
	} {
		t.Run(name, func(t *testing.T) {
			s := s.in(t)
			c, ack := s.tryConnect(packet.V5, "c", credentials("whoever", tt.token))
			if ack.Code != tt.want {
				t.Fatalf("CONNACK %v, want %v", ack.Code, tt.want)
			}
			if ack.Code != packet.Success {
				return
			}
			c.publish("turin/box-17/t", "x")
			c.send(publish("genoa/box-17/t", "x", 1, 2))
			c.ack(packet.TypePuback, 2, packet.NotAuthorized)
			if p := s.bus.records()[0].MQTT.Principal; p != "box-17" {
				t.Errorf("principal %q", p)
			}
		})
	}
}

func TestUnsignedTokenIsRefused(t *testing.T) {
	key := newTokenKey(t, "")
	s := start(t, with(defined(t, issuer(t, map[string]string{"pem": key.pem(t)}, ""))))
	body := strings.Split(key.token(t, nil), ".")[1]
	for _, token := range []string{"eyJhbGciOiJub25lIn0." + body + ".", "eyJhbGciOiJub25lIn0." + body + ".x", ".." + body, "a.b.c"} {
		if _, ack := s.tryConnect(packet.V311, "c", credentials("u", token)); ack.Code != 4 {
			t.Errorf("%.30s: CONNACK %v, want 4", token, ack.Code)
		}
	}
}

// A device's password that looks like a token is one still, if nobody issues such tokens.
func TestPasswordThatLooksLikeAToken(t *testing.T) {
	key := newTokenKey(t, "")
	password := key.token(t, map[string]any{"iss": "https://else"})
	s := start(t, with(defined(t, issuer(t, map[string]string{"pem": key.pem(t)}, ""), `{"name":"p","password":{"value":"`+password+`"}}`)))
	s.connect(packet.V5, "c", credentials("p", password))
}

func TestSharedSecretTokens(t *testing.T) {
	secret := strings.Repeat("s", 32)
	t.Setenv("TEST_TOKEN_SECRET", secret)
	s := start(t, with(defined(t, `{"kind":"TokenIssuer","name":"iam","issuer":"https://iam","audience":["rialto"],"algorithms":["HS256"],
		"keys":{"secret":{"ref":"env:TEST_TOKEN_SECRET"}},"principalClaim":"device"}`)))
	s.connect(packet.V5, "c", credentials("u", sign(t, jose.HS256, []byte(secret), "", claims(map[string]any{"device": "d"}))))
	if _, ack := s.tryConnect(packet.V5, "c", credentials("u", sign(t, jose.HS256, []byte(secret+"x"), "", claims(map[string]any{"device": "d"})))); ack.Code != packet.BadUserOrPassword {
		t.Errorf("CONNACK %v", ack.Code)
	}
}

func TestJWKSFileIsReadAgain(t *testing.T) {
	old, young := newTokenKey(t, "old"), newTokenKey(t, "young")
	file := filepath.Join(t.TempDir(), "jwks.json")
	written := time.Now().Add(-time.Hour)
	write := func(text string) {
		t.Helper()
		written = written.Add(time.Minute) // so that the change shows however coarse the clock of the disk is
		if err := errors.Join(os.WriteFile(file, []byte(text), 0o600), os.Chtimes(file, written, written)); err != nil {
			t.Fatal(err)
		}
	}
	set := func(keys ...tokenKey) string {
		var s jose.JSONWebKeySet
		for _, k := range keys {
			s.Keys = append(s.Keys, k.public())
		}
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	write(set(old))
	var ahead atomic.Int64
	s := start(t, with(defined(t, issuer(t, map[string]string{"jwksFile": file}, ""))), func(o *mqttgw.Options) {
		o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	try := func(k tokenKey, want packet.Reason) {
		t.Helper()
		ahead.Add(int64(2 * time.Second))
		if _, ack := s.tryConnect(packet.V5, "c", credentials("u", k.token(t, nil))); ack.Code != want {
			t.Errorf("key %s: CONNACK %v, want %v", k.id, ack.Code, want)
		}
	}
	try(old, packet.Success)
	try(young, packet.BadUserOrPassword)
	write(set(old, young))
	try(young, packet.Success)
	write("{")
	try(young, packet.Success) // the last good keys
	never := start(t, with(defined(t, issuer(t, map[string]string{"jwksFile": file}, ""))))
	if _, ack := never.tryConnect(packet.V5, "c", credentials("u", young.token(t, nil))); ack.Code != packet.ServerBusy {
		t.Errorf("no good keys yet: CONNACK %v, want 0x89", ack.Code)
	}
	write(set(young))
	try(old, packet.BadUserOrPassword)
}

func TestTokenEndsTheConnection(t *testing.T) {
	key := newTokenKey(t, "")
	// The gateway's clock is ahead: what is left of the token is what counts.
	s := start(t, with(defined(t, issuer(t, map[string]string{"pem": key.pem(t)}, ""))), func(o *mqttgw.Options) {
		o.Now = func() time.Time { return time.Now().Add(time.Hour + 29*time.Second) }
	})
	versions(t, func(t *testing.T, v packet.Version) {
		s.connect(v, "c", credentials("u", key.token(t, nil))).closed(packet.MaximumConnectTime)
	})
}

func enhanced(token string) func(*packet.Connect) {
	return props(packet.Properties(nil).AppendString(packet.AuthenticationMethod, "JWT").AppendString(packet.AuthenticationData, token))
}

func auth(code packet.Reason, method, token string) *packet.Disconnect {
	return &packet.Disconnect{Kind: packet.TypeAuth, Code: code,
		Properties: packet.Properties(nil).AppendString(packet.AuthenticationMethod, method).AppendString(packet.AuthenticationData, token)}
}

func TestEnhancedAuthentication(t *testing.T) {
	key := newTokenKey(t, "")
	d := defined(t, issuer(t, map[string]string{"pem": key.pem(t)}, `,"attributeClaims":{"site":"site"},"policy":"site"`),
		`{"kind":"DevicePolicy","name":"site","access":{"publish":["${attr.site}/#"]}}`)
	s := start(t, with(d))
	c, ack := s.tryConnect(packet.V5, "c", enhanced(key.token(t, nil)))
	if ack.Code != packet.Success || string(ack.Properties.Bytes(packet.AuthenticationMethod)) != "JWT" {
		t.Fatalf("CONNACK %+v", ack)
	}
	c.publish("turin/t", "x")
	c.send(auth(packet.ReAuthenticate, "JWT", key.token(t, map[string]any{"site": "genoa"})))
	if a := recv[*packet.Disconnect](c); a.Kind != packet.TypeAuth || a.Code != packet.Success || string(a.Properties.Bytes(packet.AuthenticationMethod)) != "JWT" {
		t.Fatalf("got %+v", a)
	}
	c.publish("genoa/t", "x")
	c.send(publish("turin/t", "x", 1, 1))
	c.ack(packet.TypePuback, 1, packet.NotAuthorized)

	for name, tt := range map[string]struct {
		send *packet.Disconnect
		want packet.Reason
	}{
		"another principal": {auth(packet.ReAuthenticate, "JWT", key.token(t, map[string]any{"sub": "other"})), packet.NotAuthorized},
		"bad token":         {auth(packet.ReAuthenticate, "JWT", "x"), packet.NotAuthorized},
		"another method":    {auth(packet.ReAuthenticate, "SCRAM", "x"), packet.ProtocolError},
		"not asked for":     {auth(packet.ContinueAuthentication, "JWT", "x"), packet.ProtocolError},
	} {
		t.Run(name, func(t *testing.T) {
			s := s.in(t)
			c := s.connect(packet.V5, "d", enhanced(key.token(t, nil)))
			c.send(tt.send)
			c.closed(tt.want)
		})
	}
	plain := s.connect(packet.V5, "e", credentials("u", key.token(t, nil)))
	plain.send(auth(packet.ReAuthenticate, "JWT", key.token(t, nil)))
	plain.closed(packet.ProtocolError)
	if _, ack := s.tryConnect(packet.V5, "f", enhanced("")); ack.Code != packet.BadUserOrPassword {
		t.Errorf("without a token: CONNACK %v", ack.Code)
	}
	other := props(packet.Properties(nil).AppendString(packet.AuthenticationMethod, "SCRAM-SHA-1"))
	if _, ack := s.tryConnect(packet.V5, "f", other); ack.Code != packet.BadAuthenticationMethod {
		t.Errorf("another method: CONNACK %v", ack.Code)
	}
}

// A device that is defined decides what its token may do, and can be blocked.
func TestDeviceOfAToken(t *testing.T) {
	key := newTokenKey(t, "")
	d := defined(t, issuer(t, map[string]string{"pem": key.pem(t)}, ""), `{"name":"d","principal":"box-17","clientIds":["c"],"access":{"publish":["x"]}}`)
	s := start(t, with(d))
	c := s.connect(packet.V5, "c", credentials("u", key.token(t, nil)))
	c.publish("x", "x")
	c.send(publish("y", "x", 1, 2))
	c.ack(packet.TypePuback, 2, packet.NotAuthorized)
	if _, ack := s.tryConnect(packet.V5, "other", credentials("u", key.token(t, nil))); ack.Code != packet.ClientIDInvalid {
		t.Errorf("CONNACK %v", ack.Code)
	}
	if _, ack := s.tryConnect(packet.V5, "c", credentials("box-17", "")); ack.Code != packet.BadUserOrPassword {
		t.Errorf("a device without a password lets one in: CONNACK %v", ack.Code)
	}
	define(t, d, `{"name":"d","principal":"box-17","blocked":true}`)
	d.Enforce()
	c.closed(packet.AdministrativeAction)
}

func TestParseIssuer(t *testing.T) {
	key := newTokenKey(t, "a")
	private, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.PrivateKey}}})
	if err != nil {
		t.Fatal(err)
	}
	good := issuer(t, map[string]string{"pem": key.pem(t)}, "")
	for _, tt := range []struct {
		name, doc string
		want      []string
	}{
		{"good", good, nil},
		{"JWKS", issuer(t, map[string]any{"jwks": jose.JSONWebKeySet{Keys: []jose.JSONWebKey{key.public()}}}, ""), nil},
		{"empty", `{}`, []string{"/name", "/issuer", "/audience", "/algorithms", "/keys"}},
		{"no algorithm", strings.Replace(good, "ES256", "none", 1), []string{"/algorithms/0"}},
		{"secret algorithm with a public key", strings.Replace(good, "ES256", "HS256", 1), []string{"/algorithms/0"}},
		{"private key", issuer(t, map[string]json.RawMessage{"jwks": private}, ""), []string{"/keys/jwks"}},
		{"no PEM", issuer(t, map[string]string{"pem": "x"}, ""), []string{"/keys/pem"}},
		{"relative file", issuer(t, map[string]string{"jwksFile": "x"}, ""), []string{"/keys/jwksFile"}},
		{"secret in the document", issuer(t, map[string]any{"secret": map[string]string{"value": "x"}}, ""), []string{"/value"}},
		{"name of a Secret", strings.Replace(issuer(t, map[string]any{"secret": map[string]string{"ref": "ops"}}, ""), "ES256", "HS256", 1), []string{"/keys/secret/ref"}},
		{"attributes and policy", issuer(t, map[string]string{"pem": key.pem(t)}, `,"attributeClaims":{"1":"x"},"policy":"X"`), []string{"/attributeClaims", "/policy"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := mqttgw.ParseIssuer([]byte(tt.doc), token.Env{})
			var got []string
			var fe *fault.Error
			if errors.As(err, &fe) {
				for _, d := range fe.Details {
					got = append(got, d.Pointer)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("pointers (-want +got):\n%s", d)
			}
		})
	}
}

func FuzzParseIssuer(f *testing.F) {
	key := newTokenKey(f, "a")
	f.Add(issuer(f, map[string]string{"pem": key.pem(f)}, ""))
	f.Add(issuer(f, map[string]any{"jwks": jose.JSONWebKeySet{Keys: []jose.JSONWebKey{key.public()}}}, `,"policy":"x"`))
	f.Add(`{"name":"a","issuer":"i","audience":["a"],"algorithms":["HS256"],"keys":{"secret":{"ref":"env:A"}}}`)
	f.Fuzz(func(t *testing.T, doc string) {
		if _, err := mqttgw.ParseIssuer([]byte(doc), token.Env{}); err != nil && fault.KindOf(err) != fault.Invalid {
			t.Fatalf("error %v is not Invalid", err)
		}
	})
}
