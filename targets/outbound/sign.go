// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Prefixes of keys (Standard Webhooks 1.0.0).
const (
	SecretPrefix     = "whsec_" // symmetric: scheme v1
	PrivateKeyPrefix = "whsk_"  // of a pair: scheme v1a
)

// MaxKeys is how many keys a message can be signed with at once.
const MaxKeys = 8

// Key is a key to sign with: whsec_ and the base64 of 24 to 64 bytes, or whsk_ and the base64 of an ed25519 private key, which is
// its seed of 32 bytes, or the seed and the public key.
type Key struct {
	Text  string
	Until time.Time // it does not sign from then on; zero = no end
}

// Signer signs messages by Standard Webhooks 1.0.0, over id, timestamp and body: with v1, HMAC-SHA256, for a secret, and with v1a,
// ed25519, for a private key. It is safe for concurrent use.
type Signer struct {
	keys []signingKey
}

// signingKey is one of macs and private.
type signingKey struct {
	macs    *macs
	private ed25519.PrivateKey
	until   int64 // seconds since 1970; 0 = no end
}

// NewSigner returns a signer that signs with every given key that has not ended, so that receivers can change theirs one by one.
func NewSigner(keys ...Key) (*Signer, error) {
	if len(keys) == 0 || len(keys) > MaxKeys {
		return nil, fmt.Errorf("a message is signed with 1 to %d keys", MaxKeys)
	}
	s := &Signer{}
	for _, k := range keys {
		key, err := parseKey(k.Text)
		if err != nil {
			return nil, err
		}
		if !k.Until.IsZero() {
			key.until = k.Until.Unix()
		}
		s.keys = append(s.keys, key)
	}
	return s, nil
}

// CheckKey says whether text has the form of a key. The error does not repeat it.
func CheckKey(text string) error {
	_, err := parseKey(text)
	return err
}

func parseKey(text string) (signingKey, error) {
	if b64, ok := strings.CutPrefix(text, PrivateKeyPrefix); ok {
		key, err := parsePrivateKey(b64)
		return signingKey{private: key}, err
	}
	key, err := parseSecret(text)
	if err != nil {
		return signingKey{}, err
	}
	return signingKey{macs: newMACs(key)}, nil
}

func parseSecret(text string) ([]byte, error) {
	b64, ok := strings.CutPrefix(text, SecretPrefix)
	if !ok {
		return nil, errors.New("a signing secret starts with whsec_, a private key with whsk_")
	}
	key, err := decodeKey(b64)
	if err != nil {
		return nil, errors.New("a signing secret is base64 after whsec_")
	}
	if len(key) < 24 || len(key) > 64 {
		return nil, errors.New("a signing secret has 24 to 64 bytes behind its base64")
	}
	return key, nil
}

func parsePrivateKey(b64 string) (ed25519.PrivateKey, error) {
	b, err := decodeKey(b64)
	if err != nil {
		return nil, errors.New("a private key is base64 after whsk_")
	}
	if len(b) != ed25519.SeedSize && len(b) != ed25519.PrivateKeySize {
		return nil, errors.New("a private key has 32 or 64 bytes behind its base64")
	}
	key := ed25519.NewKeyFromSeed(b[:ed25519.SeedSize])
	if len(b) == ed25519.PrivateKeySize && !bytes.Equal(b, key) {
		return nil, errors.New("a private key of 64 bytes ends with the public key of its first 32")
	}
	return key, nil
}

func decodeKey(b64 string) ([]byte, error) {
	if strings.ContainsAny(b64, "\r\n") {
		return nil, errors.New("line break in base64")
	}
	return base64.StdEncoding.Strict().DecodeString(b64)
}

// Sign returns the value of webhook-signature: a signature for each key that has not ended, separated by blanks; "" if all have.
// timestamp is in seconds since 1970 and is that of the attempt.
func (s *Signer) Sign(id string, timestamp int64, body []byte) string {
	const most = len("v1a,") + 88 + 1 // a signature, and a blank between two
	buf := make([]byte, 0, most*MaxKeys)
	for _, k := range s.keys {
		if k.until != 0 && timestamp >= k.until {
			continue
		}
		if len(buf) > 0 {
			buf = append(buf, ' ')
		}
		if k.private == nil {
			buf = k.macs.appendSum(append(buf, "v1,"...), id, timestamp, body)
			continue
		}
		signed := append(signedPrefix(nil, id, timestamp), body...)
		buf = base64.StdEncoding.AppendEncode(append(buf, "v1a,"...), ed25519.Sign(k.private, signed))
	}
	return string(buf)
}

// signedPrefix appends what is signed in front of the body.
func signedPrefix(b []byte, id string, timestamp int64) []byte {
	b = append(append(b, id...), '.')
	return append(strconv.AppendInt(b, timestamp, 10), '.')
}

// macs keeps the states of one key: hashing the key pads is a third of the work for a short message.
type macs struct{ pool sync.Pool }

type mac struct {
	hash.Hash
	buf [128]byte
}

func newMACs(key []byte) *macs {
	return &macs{pool: sync.Pool{New: func() any { return &mac{Hash: hmac.New(sha256.New, key)} }}}
}

// appendSum appends the base64 of the HMAC of id.timestamp.body.
func (k *macs) appendSum(dst []byte, id string, timestamp int64, body []byte) []byte {
	m := k.pool.Get().(*mac)
	defer k.pool.Put(m)
	m.Reset()
	m.Write(signedPrefix(m.buf[:0], id, timestamp))
	m.Write(body)
	return base64.StdEncoding.AppendEncode(dst, m.Sum(m.buf[:0]))
}
