// SPDX-License-Identifier: Apache-2.0

package token_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"go.uber.org/goleak"

	"github.com/rialto-bridge/rialto/internal/secret/token"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// provider is an issuer that publishes keys.
type provider struct {
	*httptest.Server
	asked atomic.Int64
	mu    sync.Mutex // guards reply
	reply http.HandlerFunc
}

func newProvider(t *testing.T) *provider {
	p := &provider{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/.well-known/openid-configuration" {
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":"%s/keys"}`, p.URL, p.URL)
			return
		}
		p.asked.Add(1)
		p.mu.Lock()
		reply := p.reply
		p.mu.Unlock()
		reply(w, r)
	}))
	t.Cleanup(func() {
		p.Client().CloseIdleConnections()
		p.Close()
	})
	return p
}

func (p *provider) answer(h http.HandlerFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reply = h
}

func (p *provider) publish(t *testing.T, keys ...jose.JSONWebKey) {
	set := jwks(t, keys...)
	p.answer(func(w http.ResponseWriter, _ *http.Request) { w.Write(set) })
}

func (p *provider) verifier(t *testing.T, from token.KeysFrom) *token.Verifier {
	t.Helper()
	v, err := token.New(token.Terms{Issuer: p.URL, Audience: []string{"rialto"}, Algorithms: []string{"ES256"}, Keys: from}, token.Env{HTTP: p.Client()})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (p *provider) token(t *testing.T, key *ecdsa.PrivateKey, kid string) string {
	return sign(t, jose.ES256, key, kid, map[string]any{"iss": p.URL, "exp": now.Add(100 * time.Hour).Unix()})
}

// want tries a token and compares the outcome ("" = good, "keys" = no keys, "token" = bad) and how often the issuer
// was asked until now.
func (p *provider) want(t *testing.T, v *token.Verifier, text string, at time.Time, outcome string, asked int64) {
	t.Helper()
	_, err := v.Verify(t.Context(), text, at)
	got := ""
	var bad *token.Error
	var noKeys *token.KeysError
	switch {
	case errors.As(err, &bad):
		got = "token"
	case errors.As(err, &noKeys):
		got = "keys"
	case err != nil:
		got = err.Error()
	}
	if got != outcome || p.asked.Load() != asked {
		t.Errorf("outcome %q (%v) after the issuer was asked %d times; want %q, %d", got, err, p.asked.Load(), outcome, asked)
	}
}

func TestPublishedKeys(t *testing.T) {
	for _, name := range []string{"discovery", "jwksUrl"} {
		t.Run(name, func(t *testing.T) {
			p := newProvider(t)
			from := token.KeysFrom{Discovery: true}
			if name == "jwksUrl" {
				from = token.KeysFrom{JWKSURL: p.URL + "/keys"}
			}
			old, young := newECKey(t, elliptic.P256()), newECKey(t, elliptic.P256())
			publicOld, publicYoung := jose.JSONWebKey{Key: old.Public(), KeyID: "old"}, jose.JSONWebKey{Key: young.Public(), KeyID: "young"}
			v := p.verifier(t, from)
			p.publish(t, publicOld)
			p.want(t, v, p.token(t, old, "old"), now, "", 1)
			p.want(t, v, p.token(t, old, "old"), now.Add(59*time.Minute), "", 1)
			// A kid that is not known asks, once a minute.
			p.want(t, v, p.token(t, young, "young"), now.Add(30*time.Second), "token", 1)
			p.want(t, v, p.token(t, young, "young"), now.Add(time.Minute), "token", 2)
			p.publish(t, publicOld, publicYoung)
			p.want(t, v, p.token(t, young, "young"), now.Add(119*time.Second), "token", 2)
			p.want(t, v, p.token(t, young, "young"), now.Add(2*time.Minute), "", 3)
			// The issuer is away: the keys are good for a day after they were had.
			p.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
			had := now.Add(2 * time.Minute)
			p.want(t, v, p.token(t, young, "young"), had.Add(time.Hour), "", 4)
			p.want(t, v, p.token(t, young, "young"), had.Add(time.Hour+59*time.Second), "", 4)
			p.want(t, v, p.token(t, young, "young"), had.Add(24*time.Hour-time.Second), "", 5)
			p.want(t, v, p.token(t, young, "young"), had.Add(24*time.Hour), "keys", 5)
			// A key that is withdrawn is good for an hour at most.
			p.publish(t, publicYoung)
			p.want(t, v, p.token(t, old, "old"), had.Add(25*time.Hour), "token", 6)
			p.want(t, v, p.token(t, young, "young"), had.Add(25*time.Hour), "", 6)
		})
	}
}

func TestBadKeyServers(t *testing.T) {
	key := newECKey(t, elliptic.P256())
	for name, h := range map[string]http.HandlerFunc{
		"garbage": func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("\x00{[")) },
		"no keys": func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(`{}`)) },
		"a page":  func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", "text/html") },
		"huge":    func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(strings.Repeat(" ", 2<<20))) },
		"cut": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			w.Write([]byte("{"))
		},
		"forever":  func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/keys", http.StatusFound) },
		"not here": http.NotFound,
	} {
		t.Run(name, func(t *testing.T) {
			p := newProvider(t)
			p.answer(h)
			p.Client().CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // as the guarded client does
			v := p.verifier(t, token.KeysFrom{JWKSURL: p.URL + "/keys"})
			text := p.token(t, key, "a")
			p.want(t, v, text, now, "keys", 1)
			p.want(t, v, text, now.Add(4*time.Second), "keys", 1)
			p.publish(t, jose.JSONWebKey{Key: key.Public(), KeyID: "a"})
			p.want(t, v, text, now.Add(5*time.Second), "", 2)
		})
	}
}

// While one waits for a slow issuer, tokens with a key that is known do not, and neither do those who have gone away.
func TestSlowKeyServer(t *testing.T) {
	key := newECKey(t, elliptic.P256())
	p := newProvider(t)
	p.publish(t, jose.JSONWebKey{Key: key.Public(), KeyID: "a"})
	v := p.verifier(t, token.KeysFrom{JWKSURL: p.URL + "/keys"})
	known, unknown := p.token(t, key, "a"), p.token(t, key, "b")
	p.want(t, v, known, now, "", 1)
	entered, release := make(chan struct{}), make(chan struct{})
	p.answer(func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		<-release
		w.Write(jwks(t, jose.JSONWebKey{Key: key.Public(), KeyID: "b"}))
	})
	later := now.Add(2 * time.Hour)
	done := make(chan error, 1)
	gone, leave := context.WithCancel(t.Context())
	go func() {
		_, err := v.Verify(gone, unknown, later)
		done <- err
	}()
	<-entered
	p.want(t, v, known, later, "", 2)
	leave() // it asks for the others, too
	waiter, giveUp := context.WithCancel(t.Context())
	giveUp()
	if _, err := v.Verify(waiter, unknown, later); !errors.Is(err, context.Canceled) {
		t.Errorf("who has gone away waits: %v", err)
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
	p.want(t, v, unknown, later, "", 2)
}

func TestDiscoveryOfAnother(t *testing.T) {
	p := newProvider(t)
	key := newECKey(t, elliptic.P256())
	p.publish(t, jose.JSONWebKey{Key: key.Public()})
	terms := token.Terms{Issuer: p.URL + "/", Audience: []string{"rialto"}, Algorithms: []string{"ES256"}, Keys: token.KeysFrom{Discovery: true}}
	v, err := token.New(terms, token.Env{HTTP: p.Client()})
	if err != nil {
		t.Fatal(err)
	}
	_, err = v.Verify(t.Context(), sign(t, jose.ES256, key, "", map[string]any{"iss": p.URL + "/"}), now)
	if err == nil || !strings.Contains(err.Error(), "another issuer") {
		t.Errorf("configuration of another issuer: %v", err)
	}
}
