// SPDX-License-Identifier: Apache-2.0

package app

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// watched is what was made of files. It is made again when the files change; if that fails, the last good one stays in use.
type watched[T any] struct {
	files []string
	load  func() (T, error)

	mu      sync.Mutex // guards all below
	loaded  bool
	value   T
	stamp   []time.Time
	checked time.Time
}

// recheck is how often the files are looked at.
const recheck = time.Second

func (w *watched[T]) get() (T, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.loaded && time.Since(w.checked) < recheck {
		return w.value, nil
	}
	w.checked = time.Now()
	stamp := make([]time.Time, len(w.files))
	for i, name := range w.files {
		st, err := os.Stat(name)
		if err != nil {
			return w.kept(err)
		}
		stamp[i] = st.ModTime()
	}
	if w.loaded && slices.Equal(stamp, w.stamp) {
		return w.value, nil
	}
	v, err := w.load()
	if err != nil {
		return w.kept(err)
	}
	w.value, w.stamp, w.loaded = v, stamp, true
	return v, nil
}

func (w *watched[T]) kept(err error) (T, error) {
	if w.loaded {
		return w.value, nil
	}
	return w.value, err
}

// keyPairs are certificates in files, of which a client gets the first that is for the name it asks for (SNI), else the
// first of all.
type keyPairs []*watched[*tls.Certificate]

func newKeyPairs(certs, keys []string) keyPairs {
	var p keyPairs
	for i := range certs {
		cert, key := certs[i], keys[i]
		p = append(p, &watched[*tls.Certificate]{files: []string{cert, key}, load: func() (*tls.Certificate, error) {
			c, err := tls.LoadX509KeyPair(cert, key)
			return &c, err
		}})
	}
	return p
}

// check loads all of them.
func (p keyPairs) check() error {
	for _, w := range p {
		if _, err := w.get(); err != nil {
			return fmt.Errorf("certificate: %w", err)
		}
	}
	return nil
}

func (p keyPairs) get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	first, err := p[0].get()
	if err != nil || len(p) == 1 || hello.SupportsCertificate(first) == nil {
		return first, err
	}
	for _, w := range p[1:] {
		if c, err := w.get(); err == nil && hello.SupportsCertificate(c) == nil {
			return c, nil
		}
	}
	return first, nil
}

// clientCA has clients judged by the CAs of a file: base is the configuration without.
func clientCA(base *tls.Config, file string, auth tls.ClientAuthType) (*tls.Config, error) {
	w := &watched[*tls.Config]{files: []string{file}, load: func() (*tls.Config, error) {
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		cfg := base.Clone()
		cfg.ClientCAs, cfg.ClientAuth = x509.NewCertPool(), auth
		if !cfg.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New(file + " holds no certificate")
		}
		return cfg, nil
	}}
	first, err := w.get()
	if err != nil {
		return nil, fmt.Errorf("client CA: %w", err)
	}
	outer := first.Clone()
	outer.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return w.get() }
	return outer, nil
}
