// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sigv4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/targettest"
)

func TestAuthWithAHeader(t *testing.T) {
	for auth, want := range map[string]string{
		`{"type": "bearer", "token": {"ref": "env:TOKEN"}}`:                                "Authorization: Bearer tkn-1",
		`{"type": "basic", "username": "rialto", "password": {"value": "päss:word"}}`:      "Authorization: Basic cmlhbHRvOnDDpHNzOndvcmQ=",
		`{"type": "apiKey", "header": "x-api-key", "key": {"value": "a key with blanks"}}`: "X-Api-Key: a key with blanks",
	} {
		srv, got := receiver(t, nil)
		now := time.Now()
		deliver(t, target(t, fmt.Sprintf(`{"url": "%s", "auth": %s}`, srv.URL, auth), env(t, &now, map[string]string{"env:TOKEN": "tkn-1"})), targettest.Delivery())
		name, value, _ := strings.Cut(want, ": ")
		if is := (*got)[0].request.Header.Get(name); is != value {
			t.Errorf("%s sends %q, want %q", auth, is, value)
		}
	}
}

// What is sent to AWS is signed as its own library signs what has arrived.
func TestAuthForAWS(t *testing.T) {
	srv, got := receiver(t, nil)
	now := time.Now().UTC().Truncate(time.Second)
	w := target(t, fmt.Sprintf(`{"url": "%s/2015-03-31/functions/a%%20b:1/invocations?Qualifier=x&A=b", "auth": {"type": "awsSigV4", "region": "eu-central-1", "service": "lambda",
		"accessKeyId": {"value": "AKIDEXAMPLE"}, "secretAccessKey": {"value": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"}, "sessionToken": {"ref": "env:SESSION"}}}`, srv.URL),
		env(t, &now, map[string]string{"env:SESSION": "session-1"}))
	deliver(t, w, targettest.Delivery())
	r := (*got)[0]
	auth := r.request.Header.Get("Authorization")
	_, list, _ := strings.Cut(auth, "SignedHeaders=")
	list, _, _ = strings.Cut(list, ",")
	again, err := http.NewRequest(r.request.Method, "http://"+r.request.Host+r.request.URL.RequestURI(), strings.NewReader(string(r.body)))
	if err != nil {
		t.Fatal(err)
	}
	signed := map[string]bool{}
	for name := range strings.SplitSeq(list, ";") {
		if v := r.request.Header.Get(name); v != "" {
			again.Header.Set(name, v)
		}
		signed[name] = true
	}
	for _, name := range []string{"host", "content-type", "content-length", "x-amz-date", "x-amz-security-token", "ce-id", "ce-type", "webhook-id"} {
		if !signed[name] {
			t.Errorf("%s is not signed: %s", name, list)
		}
	}
	sum := sha256.Sum256(r.body)
	creds := aws.Credentials{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", SessionToken: "session-1"}
	if err := sigv4.NewSigner().SignHTTP(t.Context(), creds, again, hex.EncodeToString(sum[:]), "lambda", "eu-central-1", now); err != nil {
		t.Fatal(err)
	}
	if want := again.Header.Get("Authorization"); auth != want {
		t.Errorf("signed as\n%s, want\n%s", auth, want)
	}
}

// issuer gives tokens as RFC 6749 says, and counts how often it is asked.
type issuer struct {
	*httptest.Server
	asked  atomic.Int64
	mu     sync.Mutex // guards all below
	form   url.Values
	basic  string
	answer func(w http.ResponseWriter, n int64)
}

func newIssuer(t *testing.T) *issuer {
	is := &issuer{answer: func(w http.ResponseWriter, n int64) {
		fmt.Fprintf(w, `{"access_token":"token-%d","token_type":"Bearer","expires_in":3600}`, n)
	}}
	is.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		user, password, _ := r.BasicAuth()
		is.mu.Lock()
		is.form, is.basic = r.PostForm, user+" "+password
		answer := is.answer
		is.mu.Unlock()
		answer(w, is.asked.Add(1))
	}))
	t.Cleanup(is.Close)
	return is
}

func (is *issuer) answers(answer func(w http.ResponseWriter, n int64)) {
	is.mu.Lock()
	defer is.mu.Unlock()
	is.answer = answer
}

func oauth(is *issuer, more string) string {
	return `{"type": "oauth2", "tokenUrl": "` + is.URL + `/token", "clientId": "cl:ient", "clientSecret": {"value": "s3cr+t hunter2"}` + more + `}`
}

// A token is got once for many deliveries at once, and again shortly before it expires.
func TestOAuthTokensAreKept(t *testing.T) {
	is := newIssuer(t)
	var mu sync.Mutex
	seen := map[string]int{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen[r.Header.Get("Authorization")]++
		w.WriteHeader(http.StatusAccepted)
	}))
	defer srv.Close()
	now := time.Now()
	w := target(t, fmt.Sprintf(`{"url": "%s", "auth": %s}`, srv.URL, oauth(is, `, "scope": "a b", "parameters": {"audience": "https://x/"}`)), env(t, &now, nil))
	all := func() {
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				if _, err := w.Deliver(t.Context(), targettest.Delivery()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	all()
	now = now.Add(time.Hour - 361*time.Second) // a tenth before the end it is still good
	all()
	now = now.Add(2 * time.Second)
	all()
	if want := map[string]int{"Bearer token-1": 32, "Bearer token-2": 16}; !maps.Equal(seen, want) {
		t.Errorf("sent with %v, want %v", seen, want)
	}
	if is.basic != "cl%3Aient s3cr%2Bt+hunter2" || is.form.Encode() != "audience=https%3A%2F%2Fx%2F&grant_type=client_credentials&scope=a+b" {
		t.Errorf("asked with %q, %q", is.basic, is.form.Encode())
	}
}

// A token that is refused is got anew within the attempt, once.
func TestOAuthTokensAreRenewedOnce(t *testing.T) {
	is := newIssuer(t)
	good := "token-2"
	srv, got := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+good {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, "you sent ", r.Header.Get("Authorization"))
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})
	now := time.Now()
	w := target(t, fmt.Sprintf(`{"url": "%s", "auth": %s}`, srv.URL, oauth(is, `, "clientAuth": "body"`)), env(t, &now, nil))
	deliver(t, w, targettest.Delivery())
	if len(*got) != 2 || is.asked.Load() != 2 || string((*got)[0].body) != string((*got)[1].body) {
		t.Fatalf("%d requests, %d tokens", len(*got), is.asked.Load())
	}
	if is.form.Get("client_id") != "cl:ient" || is.form.Get("client_secret") != "s3cr+t hunter2" || is.basic != " " {
		t.Errorf("asked with %v, %q", is.form, is.basic)
	}
	good = "none"
	res, err := w.Deliver(t.Context(), targettest.Delivery())
	if err == nil || res.Status != http.StatusUnauthorized || is.asked.Load() != 3 || len(*got) != 4 {
		t.Errorf("%+v, %v after %d requests and %d tokens", res, err, len(*got), is.asked.Load())
	}
	if strings.Contains(res.Head, "token-") {
		t.Errorf("the answer that is kept shows a token: %q", res.Head)
	}
}

// An issuer that fails is a failed attempt that may be tried again, says why, and never shows the secret.
func TestOAuthIssuersThatFail(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter, n int64)
		reason targets.Reason
		text   string
	}{
		"refuses": {func(w http.ResponseWriter, _ int64) {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error":"invalid_client","error_description":"s3cr+t hunter2 is wrong"}`)
		}, targets.ReasonAuth, "token URL answered 401: invalid_client"},
		"is gone":      {func(w http.ResponseWriter, _ int64) { w.WriteHeader(http.StatusGone) }, targets.ReasonAuth, "token URL answered 410"},
		"redirects":    {func(w http.ResponseWriter, _ int64) { w.Header().Set("Location", "/"); w.WriteHeader(http.StatusFound) }, targets.ReasonAuth, "token URL answered 302"},
		"is no issuer": {func(w http.ResponseWriter, _ int64) { fmt.Fprint(w, `<html>s3cr+t hunter2`) }, targets.ReasonAuth, "token URL answered what is no token answer (RFC 6749)"},
		"other type": {func(w http.ResponseWriter, _ int64) { fmt.Fprint(w, `{"access_token":"a","token_type":"DPoP"}`) }, targets.ReasonAuth,
			"token URL answered a token that is no bearer token"},
		"no token":   {func(w http.ResponseWriter, _ int64) { fmt.Fprint(w, `{"access_token":"a\r\nX: y"}`) }, targets.ReasonAuth, "token URL answered no access token that can be sent"},
		"breaks off": {func(http.ResponseWriter, int64) { panic(http.ErrAbortHandler) }, targets.ReasonReset, "token URL: EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			is := newIssuer(t)
			is.answers(c.answer)
			now := time.Now()
			srv, got := receiver(t, nil)
			w := target(t, fmt.Sprintf(`{"url": "%s", "auth": %s}`, srv.URL, oauth(is, "")), env(t, &now, nil))
			for range 3 { // the failure is the answer for a while
				res, err := w.Deliver(t.Context(), targettest.Delivery())
				te, ok := err.(*targets.Error)
				if !ok || te.Reason != c.reason || te.Permanent || te.Status != 0 || res.Status != 0 || te.Err.Error() != c.text {
					t.Fatalf("%+v, %v; want %s: %s", res, err, c.reason, c.text)
				}
			}
			if n := is.asked.Load(); n != 1 {
				t.Errorf("the issuer was asked %d times", n)
			}
			is.answers(func(w http.ResponseWriter, _ int64) { fmt.Fprint(w, `{"access_token":"good","expires_in":"20"}`) })
			now = now.Add(time.Second)
			deliver(t, w, targettest.Delivery())
			now = now.Add(10*time.Second - 1)
			deliver(t, w, targettest.Delivery())
			if len(*got) != 2 || is.asked.Load() != 2 {
				t.Errorf("%d requests, %d tokens", len(*got), is.asked.Load())
			}
		})
	}
}

// The address of an issuer is guarded as that of a target is, and who waits for a token waits no longer than for an answer.
func TestOAuthIssuersAreGuarded(t *testing.T) {
	now := time.Now()
	srv, _ := receiver(t, nil)
	kinds := targets.NewCatalog(kind())
	d, err := targets.LoadDefinition([]byte(`{"name":"ops","type":"webhook","config":{"url":"`+srv.URL+`","auth":{"type":"oauth2","tokenUrl":"http://10.0.0.1:9/","clientId":"a","clientSecret":{"value":"b"}}}}`), kinds)
	if err != nil {
		t.Fatal(err)
	}
	w, err := kinds.New(d, env(t, &now, nil))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Deliver(t.Context(), targettest.Delivery()); targets.ReasonOf(err) != targets.ReasonBlockedAddress {
		t.Errorf("Deliver = %v, want a blocked address", err)
	}
	is := newIssuer(t)
	release := make(chan struct{})
	defer close(release)
	is.answers(func(http.ResponseWriter, int64) { <-release })
	w = target(t, fmt.Sprintf(`{"url": "%s", "auth": %s}`, srv.URL, oauth(is, "")), env(t, &now, nil))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := w.Deliver(ctx, targettest.Delivery()); targets.ReasonOf(err) != targets.ReasonTimeout {
				t.Errorf("Deliver = %v, want a timeout", err)
			}
		})
	}
	wg.Wait()
}

// Each mistake in a config is refused when it is written, with its place.
func TestSecurityConfigsThatAreRefused(t *testing.T) {
	for config, want := range map[string]string{
		`"auth": {"type": "bearer"}`:                                                                                                                  "/config/auth/token: is missing",
		`"auth": {"type": "magic"}`:                                                                                                                   "/config/auth/type: is not one of",
		`"auth": {"type": "bearer", "token": {"value": "a b"}}`:                                                                                       "/config/auth/token: is not printable ASCII without blanks",
		`"auth": {"type": "bearer", "token": {"ref": "env:A"}, "username": "a"}`:                                                                      "/config/auth/username: is not for auth of type bearer",
		`"auth": {"type": "basic", "username": "a:b", "password": {"value": "x"}}`:                                                                    "/config/auth/username: has a colon",
		`"auth": {"type": "apiKey", "header": "Host", "key": {"value": "x"}}`:                                                                         "/config/auth/header: is not a header",
		`"auth": {"type": "apiKey", "header": "X-Key", "key": {"value": "x"}}, "headers": {"x-key": "y"}`:                                             "/config/headers/x-key: is what auth sets",
		`"auth": {"type": "bearer", "token": {"ref": "env:A"}}, "headers": {"Authorization": {"ref": "env:B"}}`:                                       "/config/headers/Authorization: is what auth sets",
		`"auth": {"type": "oauth2", "tokenUrl": "http://10.0.0.1/", "clientId": "a", "clientSecret": {"value": "b"}}`:                                 "/config/auth/tokenUrl: ",
		`"auth": {"type": "oauth2", "tokenUrl": "https://a/", "clientId": "a", "clientSecret": {"value": "b"}, "parameters": {"client_secret": "x"}}`: "/config/auth/parameters/client_secret: ",
		`"auth": {"type": "awsSigV4", "region": "EU", "service": "lambda", "accessKeyId": {"value": "a"}, "secretAccessKey": {"value": "b"}}`:         "/config/auth/region: does not match",
		`"secret": [{"value": "` + secretA + `", "until": "2027-01-01T00:00:00Z"}]`:                                                                   "/config/secret: has an end (until) for every key",
		`"secret": {"value": "` + secretA + `", "until": "tomorrow"}`:                                                                                 "/config/secret/until: is no time",
		`"secret": [{"ref": "env:A"}, {"value": "whsk_AA=="}]`:                                                                                        "/config/secret/1: a private key has 32 or 64 bytes",
		`"secret": {"until": "2027-01-01T00:00:00Z"}`:                                                                                                 "/config/secret: a secret is",
		`"signature": {"algorithm": "ed25519", "keyId": "a", "key": {"value": "` + secretA + `"}}`:                                                    "/config/signature/key: a key for ed25519 is",
		`"signature": {"algorithm": "ecdsa-p256-sha256", "keyId": "a", "key": {"value": "` + secretA + `"}}`:                                          "/config/signature/key: a key for ecdsa",
		`"signature": {"algorithm": "hmac-sha256", "keyId": "a\"b", "key": {"value": "` + secretA + `"}}`:                                             "/config/signature/key: a key id has",
		`"signature": {"algorithm": "rsa", "keyId": "a", "key": {"value": "` + secretA + `"}}`:                                                        "/config/signature/algorithm: is not one of",
		`"mode": "structured", "headerCoding": "raw"`:                                                                                                 "/config/headerCoding: is for mode binary",
		`"tls": {"certificate": {"ref": "file:/a"}}`:                                                                                                  "/config/tls/key: is missing",
		`"tls": {"ca": {"value": "x"}}`:                                                                                                               "/config/tls/ca: holds no certificate",
		`"tls": {"minVersion": "1.1"}`:                                                                                                                "/config/tls/minVersion: is not one of",
		`"tls": {"insecureSkipVerify": true, "serverName": "a"}`:                                                                                      "/config/tls/insecureSkipVerify: leaves nothing",
	} {
		_, err := targets.ParseDefinition([]byte(`{"name": "ops", "type": "webhook", "config": {"url": "https://ops.example.com/", `+config+`}}`), targets.NewCatalog(kind()))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s gives %v, want %s", config, err, want)
		}
	}
	if _, err := targets.ParseDefinition([]byte(`{"name": "ops", "type": "webhook", "config": {"url": "http://ops.example.com/", "tls": {"minVersion": "1.3"}}}`), targets.NewCatalog(kind())); err == nil ||
		!strings.Contains(err.Error(), "/config/tls: ") {
		t.Errorf("tls for http gives %v", err)
	}
}
