// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/rialto-bridge/rialto/internal/app"
	"github.com/rialto-bridge/rialto/internal/egress"
)

// startKeys starts a bridge, and returns how to call it with a key.
func startKeys(t *testing.T, allow string) (call func(key string, want int, args ...string) string, admin string) {
	t.Helper()
	entries, err := egress.ParseAllow(allow)
	if err != nil {
		t.Fatal(err)
	}
	a, err := app.Start(t.Context(), app.Options{Data: t.TempDir(), Listen: "127.0.0.1:0", MQTT: "off", Reserve: 1 << 20, EgressAllow: entries})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := a.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return func(key string, want int, args ...string) string {
		t.Helper()
		r := rialtoIn(t, map[string]string{"RIALTO_URL": "http://" + a.HTTPAddr(), "RIALTO_KEY": key}, "", args...)
		if r.code != want {
			t.Fatalf("rialto %s: exit %d, want %d\n%s%s", strings.Join(args, " "), r.code, want, r.out, r.err)
		}
		return strings.TrimSpace(r.out)
	}, a.AdminKey()
}

func TestKeys(t *testing.T) {
	call, admin := startKeys(t, "")
	first := call(admin, exitOK, "keys", "create", "ci", "--scope", "definitions:read", "--expires", "876000h")
	call(first, exitOK, "get", "buses")
	call(admin, exitConflict, "keys", "create", "ci", "--scope", "definitions:read")
	call(admin, exitUsage, "keys", "create", "other")
	call(admin, exitUsage, "keys", "create", "other", "--scope", "admin:*", "--expires", "-1h")
	second := call(admin, exitOK, "keys", "rotate", "ci", "--grace", "1h")
	call(first, exitOK, "get", "buses")
	call(second, exitOK, "get", "buses")
	if out := call(admin, exitOK, "keys"); !strings.Contains(out, "definitions:read") || !strings.Contains(out, "LAST USED") {
		t.Errorf("keys:\n%s", out)
	}
	third := call(admin, exitOK, "keys", "rotate", "ci")
	call(first, exitAuth, "get", "buses")
	call(second, exitAuth, "get", "buses")
	call(third, exitOK, "get", "buses")
	call(admin, exitOK, "keys", "delete", "ci")
	call(third, exitAuth, "get", "buses")
	call(admin, exitNotFound, "keys", "rotate", "ci")
}

// A token is good on a real bridge, whose guarded client asks the issuer for its keys, and not where the guard forbids it.
func TestTokenOfAPublishedKey(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "a"}}})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	issuer := httptest.NewServer(mux)
	defer issuer.Close()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":"%s/keys"}`, issuer.URL, issuer.URL)
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) { w.Write(set) })
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "a"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.Signed(s).Claims(map[string]any{"iss": issuer.URL, "aud": "rialto", "sub": "ann", "exp": time.Now().Add(time.Hour).Unix(), "groups": []string{"ops"}}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	file := t.TempDir() + "/corp.yaml"
	writeFile(t, file, `kind: IdentityProvider
name: corp
issuer: `+issuer.URL+`
audience: [rialto]
algorithms: [ES256]
keys: {discovery: true}
rules:
- {claim: groups, in: [ops], scopes: ["definitions:*"]}
`)
	call, admin := startKeys(t, "127.0.0.1")
	call(text, exitAuth, "get", "buses")
	call(admin, exitOK, "apply", "-f", file)
	call(text, exitOK, "get", "buses")
	call(text, exitAuth, "keys")
	call(admin, exitOK, "delete", "identityprovider", "corp")
	call(text, exitAuth, "get", "buses")

	guarded, admin := startKeys(t, "")
	guarded(admin, exitOK, "apply", "-f", file)
	if r := guarded(text, exitUnreachable, "get", "buses"); r != "" {
		t.Errorf("answered %s", r)
	}
}
