// SPDX-License-Identifier: Apache-2.0

package token

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	freshFor  = time.Hour       // keys are asked for again after that
	staleFor  = 24 * time.Hour  // and are good for no longer than that if the issuer does not answer
	askEvery  = time.Minute     // at most, also when tokens name keys that nobody knows
	firstAsk  = 5 * time.Second // the same while there are no keys at all
	fetchTime = 5 * time.Second // for all that has to be asked
	maxURL    = 2048            // bytes
)

// keyURL are the keys that an issuer publishes. They are asked for when a token needs them, by one caller at a time;
// others go on with the keys that are there, if those have the one they look for. Keys are good for an hour, and then for
// as long as the issuer does not answer, 24 hours after the last answer at most. A kid that is not among them asks again
// at most once a minute.
type keyURL struct {
	issuer string
	url    string // "" = the issuer's configuration says it (OpenID Connect Discovery 1.0)
	client *http.Client
	turn   chan struct{} // holds one while somebody asks

	mu    sync.Mutex // guards all below
	keys  []jose.JSONWebKey
	at    time.Time // when keys were had
	asked time.Time
	err   error // of the last time
}

func newKeyURL(issuer, url string, client *http.Client) *keyURL {
	return &keyURL{issuer: issuer, url: url, client: client, turn: make(chan struct{}, 1)}
}

func (u *keyURL) load(ctx context.Context, kid string, now time.Time) ([]jose.JSONWebKey, error) {
	keys, due, err := u.state(kid, now)
	if !due {
		return keys, err
	}
	select {
	case u.turn <- struct{}{}:
	default:
		if err == nil && has(keys, kid) {
			return keys, nil
		}
		select {
		case u.turn <- struct{}{}:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	defer func() { <-u.turn }()
	if _, due, _ := u.state(kid, now); due {
		u.ask(ctx, now)
	}
	keys, _, err = u.state(kid, now)
	return keys, err
}

// state returns the keys that are good now, and whether it is time to ask for them.
func (u *keyURL) state(kid string, now time.Time) (keys []jose.JSONWebKey, due bool, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	every := askEvery
	if u.keys == nil {
		every = firstAsk
	}
	age := now.Sub(u.at)
	wanted := u.keys == nil || age >= freshFor || !has(u.keys, kid)
	due = wanted && (u.asked.IsZero() || now.Sub(u.asked) >= every)
	if u.keys == nil || age >= staleFor {
		return nil, due, errors.Join(errors.New("have not been had"), u.err)
	}
	return u.keys, due, nil
}

func has(keys []jose.JSONWebKey, kid string) bool {
	for i := range keys {
		if fits(&keys[i], kid) {
			return true
		}
	}
	return false
}

// ask gets the keys. A caller who goes away does not end it, since others wait for what comes.
func (u *keyURL) ask(ctx context.Context, now time.Time) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), fetchTime, fmt.Errorf("no answer within %s", fetchTime))
	defer cancel()
	keys, err := u.fetch(ctx)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.asked, u.err = now, err
	if err == nil {
		u.keys, u.at = keys, now
	}
}

func (u *keyURL) fetch(ctx context.Context) ([]jose.JSONWebKey, error) {
	from := u.url
	if from == "" {
		var err error
		if from, err = u.discover(ctx); err != nil {
			return nil, err
		}
	}
	b, err := u.get(ctx, from)
	if err != nil {
		return nil, err
	}
	keys, err := parseJWKS(b)
	if err != nil {
		return nil, fmt.Errorf("what %s answers %w", from, err)
	}
	return keys, nil
}

// discover asks the issuer where its keys are (OpenID Connect Discovery 1.0, section 4).
func (u *keyURL) discover(ctx context.Context) (string, error) {
	at := strings.TrimSuffix(u.issuer, "/") + "/.well-known/openid-configuration"
	b, err := u.get(ctx, at)
	if err != nil {
		return "", err
	}
	var c struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return "", fmt.Errorf("what %s answers is not JSON", at)
	}
	if c.Issuer != u.issuer {
		return "", fmt.Errorf("%s is about another issuer", at)
	}
	if err := checkURL(c.Keys); err != nil {
		return "", fmt.Errorf("jwks_uri of %s %w", at, err)
	}
	return c.Keys, nil
}

// get reads a document of maxKeyFile bytes at most.
func (u *keyURL) get(ctx context.Context, from string) (b []byte, err error) {
	if u.client == nil {
		return nil, errors.New("there is nothing to ask with")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json, application/jwk-set+json")
	resp, err := u.client.Do(req)
	if err != nil {
		return nil, errors.Join(err, context.Cause(ctx))
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %d", from, resp.StatusCode)
	}
	if t, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err == nil && t == "text/html" {
		return nil, fmt.Errorf("%s answers a page", from)
	}
	b, err = io.ReadAll(io.LimitReader(resp.Body, maxKeyFile+1))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read %s: %w", from, err), context.Cause(ctx))
	}
	if len(b) > maxKeyFile {
		return nil, fmt.Errorf("%s answers more than %d bytes", from, maxKeyFile)
	}
	return b, nil
}

// checkURL says why keys must not be had from a URL: who can change them on the way can make tokens.
func checkURL(raw string) error {
	u, err := url.Parse(raw)
	if err != nil || len(raw) > maxURL || u.Host == "" || u.User != nil || u.Fragment != "" {
		return errors.New("must be a URL such as https://login.example.com/keys")
	}
	if u.Scheme == "https" || u.Scheme == "http" && isLoopback(u.Host) {
		return nil
	}
	return errors.New("must begin with https:// (http:// for this machine only)")
}

func isLoopback(hostPort string) bool {
	host := hostPort
	if h, _, err := net.SplitHostPort(hostPort); err == nil {
		host = h
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && ip.IsLoopback()
}
