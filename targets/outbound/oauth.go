// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/targets"
)

const (
	maxToken = 16 << 10
	// tokenLife is how long a token is used whose issuer does not say how long it is good.
	tokenLife = 5 * time.Minute
	// A token is not used any more for the last tenth of its life, or, if that is longer, the last tokenMargin; but for half of its
	// life it is.
	tokenMargin = 30 * time.Second
	// tokenPause is how long a failure is the answer for everyone, so that a lane does not run an issuer over.
	tokenPause = time.Second
)

// Tokens gets access tokens by the client credentials grant of OAuth 2.0 (RFC 6749 section 4.4) and keeps the last one until shortly
// before it expires. However many ask, one request is under way at a time. It is safe for concurrent use and starts no goroutine.
type Tokens struct {
	o    TokenOptions
	turn chan struct{} // held by who asks the issuer

	mu      sync.Mutex // guards all below
	token   string
	until   time.Time // it is used
	failure *targets.Error
	failed  time.Time // when failure happened
}

// TokenOptions says where tokens come from.
type TokenOptions struct {
	URL    string
	Form   url.Values   // sent with each request: scope, audience, resource
	InBody bool         // the client's id and secret are sent in the form, and not as HTTP Basic
	HTTP   *http.Client // guarded
	Now    func() time.Time
}

// NewTokens returns tokens. No request is made yet.
func NewTokens(o TokenOptions) *Tokens { return &Tokens{o: o, turn: make(chan struct{}, 1)} }

// Token returns a token that is good, and blocks until it has one or ctx is done. An error is a *targets.Error that may be tried
// again and never shows the secret.
func (t *Tokens) Token(ctx context.Context, clientID, secret string) (string, error) {
	if token, err := t.kept(); token != "" || err != nil {
		return token, err
	}
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return "", failure(ctx, ctx.Err())
	}
	if token, err := t.kept(); token != "" || err != nil { // of who had the turn before
		return token, err
	}
	token, life, err := t.ask(ctx, clientID, secret)
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.o.Now()
	if err != nil {
		if ctx.Err() == nil {
			t.failure, t.failed = err, now
		}
		return "", err
	}
	t.token, t.until, t.failure = token, now.Add(life-min(max(tokenMargin, life/10), life/2)), nil
	return token, nil
}

// kept returns the token that is there, or the failure that is the answer for now.
func (t *Tokens) kept() (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.o.Now()
	if t.token != "" && now.Before(t.until) {
		return t.token, nil
	}
	if age := now.Sub(t.failed); t.failure != nil && age >= 0 && age < tokenPause {
		return "", t.failure
	}
	return "", nil
}

// Refused says that a token was not accepted: it is not used any more.
func (t *Tokens) Refused(token string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token == token {
		t.token = ""
	}
}

// ask makes one request.
func (t *Tokens) ask(ctx context.Context, clientID, secret string) (token string, life time.Duration, _ *targets.Error) {
	m, err := t.request(clientID, secret)
	if err != nil {
		return "", 0, refusedToken(errors.New("token URL cannot be used"))
	}
	resp, body, e := Fetch(ctx, t.o.HTTP, m)
	if e != nil {
		e.Err = fmt.Errorf("token URL: %w", e.Err)
		return "", 0, e
	}
	if token, life, err = readToken(resp.StatusCode, body, secret); err != nil {
		return "", 0, refusedToken(err)
	}
	return token, life, nil
}

// refusedToken is the failure of an attempt for which there is no token. It has no status: that would be the target's.
func refusedToken(err error) *targets.Error {
	return &targets.Error{Reason: targets.ReasonAuth, Err: err}
}

func (t *Tokens) request(clientID, secret string) (Message, error) {
	form := url.Values{"grant_type": {"client_credentials"}}
	for name, values := range t.o.Form {
		form[name] = values
	}
	if t.o.InBody {
		form.Set("client_id", clientID)
		form.Set("client_secret", secret)
	}
	u, err := url.Parse(t.o.URL)
	if err != nil {
		return Message{}, err
	}
	m := Message{Method: http.MethodPost, URL: u, Body: []byte(form.Encode()),
		Header: http.Header{"Content-Type": {"application/x-www-form-urlencoded"}, "Accept": {"application/json"}}}
	if !t.o.InBody { // each is encoded as a form first (RFC 6749 section 2.3.1)
		m.Header["Authorization"] = []string{Basic(url.QueryEscape(clientID), url.QueryEscape(secret))}
	}
	return m, nil
}

// Basic is the value of Authorization for a user (RFC 7617).
func Basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// errorCode is what an error of an issuer may be (RFC 6749 section 5.2).
var errorCode = regexp.MustCompile(`^[a-z_]{1,64}$`)

// readToken reads the answer of an issuer. Of one that says no it repeats the code alone.
func readToken(status int, body []byte, secret string) (token string, life time.Duration, err error) {
	var a struct {
		AccessToken string      `json:"access_token"`
		TokenType   string      `json:"token_type"`
		ExpiresIn   json.Number `json:"expires_in"`
		Error       string      `json:"error"`
	}
	err = json.Unmarshal(body, &a)
	switch {
	case status != http.StatusOK && err == nil && errorCode.MatchString(a.Error) && !strings.Contains(a.Error, secret):
		return "", 0, fmt.Errorf("token URL answered %d: %s", status, a.Error)
	case status != http.StatusOK:
		return "", 0, fmt.Errorf("token URL answered %d", status)
	case err != nil:
		return "", 0, errors.New("token URL answered what is no token answer (RFC 6749)")
	case a.TokenType != "" && !strings.EqualFold(a.TokenType, "bearer"):
		return "", 0, errors.New("token URL answered a token that is no bearer token")
	case !isBearer(a.AccessToken):
		return "", 0, errors.New("token URL answered no access token that can be sent")
	}
	life = tokenLife
	if n, err := strconv.ParseInt(a.ExpiresIn.String(), 10, 64); err == nil && n > 0 {
		life = time.Duration(min(n, int64(30*24*time.Hour/time.Second))) * time.Second
	}
	return a.AccessToken, life, nil
}

// isBearer reports whether a token can stand behind Bearer: printable ASCII without blanks.
func isBearer(s string) bool {
	return s != "" && len(s) <= maxToken && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}
