// SPDX-License-Identifier: Apache-2.0

package token

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/rialto-bridge/rialto/internal/secret"
)

// KeysFrom is where the keys of signatures are: exactly one is given.
type KeysFrom struct {
	PEM       string          `json:"pem,omitempty"`
	JWKS      json.RawMessage `json:"jwks,omitempty"`
	JWKSFile  string          `json:"jwksFile,omitempty"`
	JWKSURL   string          `json:"jwksUrl,omitempty"`
	Discovery bool            `json:"discovery,omitempty"` // <issuer>/.well-known/openid-configuration says where
	Secret    *SecretRef      `json:"secret,omitempty"`
}

// SecretRef names a shared secret, env:NAME or file:PATH.
type SecretRef struct {
	Ref string `json:"ref"`
}

const (
	maxKeys    = 32
	maxKeyFile = 1 << 20 // bytes
)

func (k *KeysFrom) check(issuer string, complain func(pointer, detail string)) {
	given := 0
	look := func(isGiven bool, pointer string, check func() error) {
		if !isGiven {
			return
		}
		given++
		if err := check(); err != nil {
			complain(pointer, err.Error())
		}
	}
	look(k.PEM != "", "/pem", func() error { _, err := parsePEM(k.PEM); return err })
	look(k.JWKS != nil, "/jwks", func() error { _, err := parseJWKS(k.JWKS); return err })
	look(k.JWKSFile != "", "/jwksFile", func() error {
		if !filepath.IsAbs(k.JWKSFile) || strings.ContainsRune(k.JWKSFile, 0) {
			return errors.New("must be an absolute path")
		}
		return nil
	})
	look(k.JWKSURL != "", "/jwksUrl", func() error { return checkURL(k.JWKSURL) })
	look(k.Discovery, "/discovery", func() error {
		if err := checkURL(issuer); err != nil {
			return fmt.Errorf("needs an issuer that %w", err)
		}
		return nil
	})
	look(k.Secret != nil, "/secret/ref", func() error { return secret.CheckOutside(k.Secret.Ref) })
	if given != 1 {
		complain("", "must have exactly one of pem, jwks, jwksFile, jwksUrl, discovery and secret")
	}
}

func (k *KeysFrom) source(issuer string, env Env) (keySource, error) {
	switch {
	case k.JWKSFile != "":
		return &keyFile{path: k.JWKSFile, open: env.Secrets.Open}, nil
	case k.JWKSURL != "" || k.Discovery:
		return newKeyURL(issuer, k.JWKSURL, env.HTTP), nil
	case k.Secret != nil:
		return shared{k.Secret.Ref, env.Secrets}, nil
	case k.JWKS != nil:
		keys, err := parseJWKS(k.JWKS)
		return fixed(keys), err
	}
	keys, err := parsePEM(k.PEM)
	return fixed(keys), err
}

// fixed are keys that a definition holds.
type fixed []jose.JSONWebKey

func (f fixed) load(context.Context, string, time.Time) ([]jose.JSONWebKey, error) { return f, nil }

// parsePEM reads public keys and certificates.
func parsePEM(text string) (keys []jose.JSONWebKey, err error) {
	for rest := []byte(text); ; {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		if block == nil {
			if len(bytes.TrimSpace(rest)) > 0 || len(keys) == 0 {
				return nil, errors.New("must be PEM blocks PUBLIC KEY or CERTIFICATE and nothing else")
			}
			return keys, nil
		}
		var key crypto.PublicKey
		switch block.Type {
		case "PUBLIC KEY":
			key, err = x509.ParsePKIXPublicKey(block.Bytes)
		case "CERTIFICATE":
			var cert *x509.Certificate
			if cert, err = x509.ParseCertificate(block.Bytes); err == nil {
				key = cert.PublicKey
			}
		default:
			err = errors.New("other block")
		}
		jwk := jose.JSONWebKey{Key: key}
		if err != nil || !jwk.Valid() || len(keys) == maxKeys {
			return nil, fmt.Errorf("must be 1 to %d PEM blocks PUBLIC KEY or CERTIFICATE with RSA, ECDSA or Ed25519 keys", maxKeys)
		}
		keys = append(keys, jwk)
	}
}

// parseJWKS reads a set of public keys. Keys for other uses and of kinds that no algorithm here takes are left out.
func parseJWKS(b []byte) (keys []jose.JSONWebKey, err error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(b, &set); err != nil {
		return nil, errors.New("is not a JSON Web Key Set (RFC 7517)")
	}
	for _, raw := range set.Keys {
		var about struct{ Use, Kty, Crv string }
		if json.Unmarshal(raw, &about) == nil && (about.Use != "" && about.Use != "sig" || foreign(about.Kty, about.Crv)) {
			continue
		}
		var k jose.JSONWebKey
		if json.Unmarshal(raw, &k) != nil || !k.Valid() || !k.IsPublic() {
			return nil, errors.New("must hold valid public keys only")
		}
		keys = append(keys, k)
	}
	if len(keys) == 0 || len(keys) > maxKeys {
		return nil, fmt.Errorf("must hold 1 to %d keys for signatures", maxKeys)
	}
	return keys, nil
}

// foreign reports whether a key is for none of the algorithms.
func foreign(kty, crv string) bool {
	switch kty {
	case "RSA", "oct": // the latter is a secret, which is refused
		return false
	case "EC":
		return crv != "P-256" && crv != "P-384" && crv != "P-521"
	case "OKP":
		return crv != "Ed25519"
	}
	return kty != ""
}

// keyFile is a JWKS file. It is read again when it has changed; if it cannot be read then, the last good keys stay in use.
type keyFile struct {
	path string
	open func(path string) (*os.File, error)

	mu      sync.Mutex // guards all below
	keys    []jose.JSONWebKey
	stamp   time.Time
	checked time.Time
}

// recheck is how often the file is looked at.
const recheck = time.Second

func (f *keyFile) load(_ context.Context, _ string, now time.Time) ([]jose.JSONWebKey, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.keys != nil && now.Sub(f.checked) < recheck {
		return f.keys, nil
	}
	f.checked = now
	keys, stamp, err := f.read()
	if err != nil && f.keys == nil {
		return nil, err
	}
	if err == nil && keys != nil {
		f.keys, f.stamp = keys, stamp
	}
	return f.keys, nil
}

// read returns nil keys when the file is the one that was read last.
func (f *keyFile) read() (keys []jose.JSONWebKey, stamp time.Time, err error) {
	file, err := f.open(f.path)
	if err != nil {
		return nil, stamp, fmt.Errorf("%s: %w", f.path, err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	st, err := file.Stat()
	if err != nil {
		return nil, stamp, err
	}
	if f.keys != nil && st.ModTime().Equal(f.stamp) {
		return nil, stamp, nil
	}
	b, err := io.ReadAll(io.LimitReader(file, maxKeyFile+1))
	if err != nil {
		return nil, stamp, err
	}
	if len(b) > maxKeyFile {
		return nil, stamp, fmt.Errorf("%s is larger than %d bytes", f.path, maxKeyFile)
	}
	if keys, err = parseJWKS(b); err != nil {
		return nil, stamp, fmt.Errorf("%s %w", f.path, err)
	}
	return keys, st.ModTime(), nil
}
