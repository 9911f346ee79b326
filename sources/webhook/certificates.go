// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
)

const (
	maxCertificate  = 64 << 10
	maxCertificates = 32
	certificateFor  = time.Hour
	fetchWithin     = 2 * time.Second
)

// certificates fetches the public keys of those who sign with RSA, through the guarded client, and keeps them for a while.
// Which URLs may be asked is the caller's to decide.
type certificates struct {
	client *http.Client
	now    func() time.Time

	mu   sync.Mutex // guards kept
	kept map[string]keptKey
}

type keptKey struct {
	key *rsa.PublicKey
	at  time.Time
}

func newCertificates(env environment) *certificates {
	return &certificates{client: env.HTTP, now: env.Now, kept: make(map[string]keptKey)}
}

// get returns the key behind a URL. That it cannot be fetched is unavailable: the sender tries again.
func (c *certificates) get(ctx context.Context, url string) (*rsa.PublicKey, error) {
	c.mu.Lock()
	k, ok := c.kept[url]
	c.mu.Unlock()
	if ok && c.now().Sub(k.at) < certificateFor {
		return k.key, nil
	}
	key, err := c.fetch(ctx, url)
	if err != nil {
		return nil, &fault.Error{Kind: fault.Unavailable, Message: "the certificate of the sender cannot be fetched", RetryAfter: time.Second, Err: err}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.kept) >= maxCertificates {
		clear(c.kept)
	}
	c.kept[url] = keptKey{key, c.now()}
	return key, nil
}

func (c *certificates) fetch(ctx context.Context, url string) (*rsa.PublicKey, error) {
	b, err := fetch(ctx, c.client, url)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, errors.New("the certificate is not PEM")
	}
	var public any
	if block.Type == "PUBLIC KEY" {
		public, err = x509.ParsePKIXPublicKey(block.Bytes)
	} else {
		var cert *x509.Certificate
		if cert, err = x509.ParseCertificate(block.Bytes); err == nil {
			public = cert.PublicKey
			if now := c.now(); now.Before(cert.NotBefore) || now.After(cert.NotAfter) {
				err = errors.New("the certificate is not valid now")
			}
		}
	}
	if err != nil {
		return nil, err
	}
	key, ok := public.(*rsa.PublicKey)
	if !ok {
		return nil, errors.New("the certificate has no RSA key")
	}
	return key, nil
}

// fetch gets what is behind a URL. Redirects are not followed.
func fetch(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, fetchWithin, errors.New("no answer in time"))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() // only read
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxCertificate))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", resp.StatusCode)
	}
	return b, err
}
