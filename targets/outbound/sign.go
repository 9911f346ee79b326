// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"strconv"
	"strings"
	"sync"
)

// SecretPrefix stands in front of a symmetric secret (Standard Webhooks 1.0.0).
const SecretPrefix = "whsec_"

// MaxSecrets is how many secrets a message can be signed with at once.
const MaxSecrets = 8

// Signer signs messages with scheme v1 of Standard Webhooks 1.0.0: HMAC-SHA256 over id, timestamp and body. It is safe
// for concurrent use.
type Signer struct {
	keys []*macs
}

// NewSigner returns a signer that signs with every given secret, so that receivers can change theirs one by one. A
// secret is whsec_ and the base64 of 24 to 64 bytes.
func NewSigner(secrets ...string) (*Signer, error) {
	if len(secrets) == 0 || len(secrets) > MaxSecrets {
		return nil, fmt.Errorf("a message is signed with 1 to %d secrets", MaxSecrets)
	}
	s := &Signer{}
	for _, text := range secrets {
		key, err := parseSecret(text)
		if err != nil {
			return nil, err
		}
		s.keys = append(s.keys, newMACs(key))
	}
	return s, nil
}

// CheckSecret says whether text has the form of a secret. The error does not repeat it.
func CheckSecret(text string) error {
	_, err := parseSecret(text)
	return err
}

func parseSecret(text string) ([]byte, error) {
	b64, ok := strings.CutPrefix(text, SecretPrefix)
	if !ok {
		return nil, errors.New("a signing secret starts with whsec_")
	}
	key, err := base64.StdEncoding.Strict().DecodeString(b64)
	if err != nil || strings.ContainsAny(b64, "\r\n") {
		return nil, errors.New("a signing secret is base64 after whsec_")
	}
	if len(key) < 24 || len(key) > 64 {
		return nil, errors.New("a signing secret has 24 to 64 bytes behind its base64")
	}
	return key, nil
}

// Sign returns the value of webhook-signature: one v1 signature for each secret, separated by blanks. timestamp is in
// seconds since 1970 and is that of the attempt.
func (s *Signer) Sign(id string, timestamp int64, body []byte) string {
	const one = len("v1,") + 44 // and a blank between two
	buf := make([]byte, 0, (one+1)*MaxSecrets)
	for i, k := range s.keys {
		if i > 0 {
			buf = append(buf, ' ')
		}
		buf = append(buf, "v1,"...)
		buf = k.appendSum(buf, id, timestamp, body)
	}
	return string(buf)
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
	b := append(m.buf[:0], id...)
	b = append(b, '.')
	b = strconv.AppendInt(b, timestamp, 10)
	b = append(b, '.')
	m.Write(b)
	m.Write(body)
	return base64.StdEncoding.AppendEncode(dst, m.Sum(m.buf[:0]))
}
