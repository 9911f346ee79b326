// SPDX-License-Identifier: Apache-2.0

package secret

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Keyring seals secrets for the store, with AES-256-GCM. The first of its keys seals; the others open what they have sealed before.
// It is safe for concurrent use.
//
// Sealing is deterministic: the nonce is an HMAC of what is sealed, so that a document that is written again is the same, and no
// nonce is used for two texts. What that gives away is whether a secret has changed. A sealed text says which key it needs, and
// opens only in the context that it was sealed for.
type Keyring struct{ keys []*sealer }

// sealer is one key.
type sealer struct {
	id     string // the start of a hash of the key
	aead   cipher.AEAD
	nonces []byte // key of the HMAC that nonces are
	prints []byte // key of the HMAC that fingerprints are
}

const (
	keySize    = 32
	sealedForm = "v1" // of sealed texts: form.key.base64
)

// ErrNoKey says that a text was sealed with a key that is not in the keyring.
var ErrNoKey = errors.New("is sealed with a key that this bridge does not have")

// NewKey returns a new key as ParseKeys reads it.
func NewKey() string {
	var b [keySize]byte
	rand.Read(b[:]) // never fails
	return base64.StdEncoding.EncodeToString(b[:])
}

// ParseKeys reads keys, each the base64 of 32 bytes, separated by blanks, commas or line breaks. The errors repeat nothing of them.
func ParseKeys(text string) (*Keyring, error) {
	k := &Keyring{}
	for i, word := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\r\n,", r) }) {
		key, err := base64.StdEncoding.DecodeString(word)
		if err != nil || len(key) != keySize {
			return nil, fmt.Errorf("key %d is not the base64 of %d bytes", i+1, keySize)
		}
		s, err := newSealer(key)
		if err != nil {
			return nil, err
		}
		k.keys = append(k.keys, s)
	}
	if len(k.keys) == 0 {
		return nil, errors.New("there is no key")
	}
	return k, nil
}

func newSealer(key []byte) (*sealer, error) {
	derive := func(purpose string) ([]byte, error) {
		return hkdf.Key(sha256.New, key, nil, "rialto secret "+purpose, keySize)
	}
	encryption, err := derive("encryption")
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(encryption)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(append([]byte("rialto secret id"), key...))
	s := &sealer{id: hex.EncodeToString(sum[:4])}
	if s.aead, err = cipher.NewGCM(block); err != nil {
		return nil, err
	}
	if s.nonces, err = derive("nonces"); err != nil {
		return nil, err
	}
	s.prints, err = derive("fingerprints")
	return s, err
}

// Join returns a keyring with the keys of both; the first of k seals. other may be nil.
func (k *Keyring) Join(other *Keyring) *Keyring {
	if other == nil {
		return k
	}
	return &Keyring{append(append([]*sealer(nil), k.keys...), other.keys...)}
}

// Seal seals a text for a context, such as the name of the document that it stands in.
func (k *Keyring) Seal(context, text string) string {
	s := k.keys[0]
	nonce := mac(s.nonces, context, text)[:s.aead.NonceSize()]
	sealed := s.aead.Seal(nonce, nonce, []byte(text), []byte(context))
	return sealedForm + "." + s.id + "." + base64.RawURLEncoding.EncodeToString(sealed)
}

// Open returns a sealed text. The errors repeat nothing of it.
func (k *Keyring) Open(context, sealed string) (string, error) {
	form, rest, _ := strings.Cut(sealed, ".")
	id, b64, ok := strings.Cut(rest, ".")
	b, err := base64.RawURLEncoding.DecodeString(b64)
	if form != sealedForm || !ok || err != nil {
		return "", errors.New("is not a sealed secret")
	}
	for _, s := range k.keys {
		if s.id != id {
			continue
		}
		n := s.aead.NonceSize()
		if len(b) < n {
			return "", errors.New("is not a sealed secret")
		}
		text, err := s.aead.Open(nil, b[:n], b[n:], []byte(context))
		if err != nil {
			return "", errors.New("was sealed for another place, or was changed")
		}
		return string(text), nil
	}
	return "", fmt.Errorf("%w (key %.8s)", ErrNoKey, strings.ToValidUTF8(id, ""))
}

// Fingerprint names a text in a context by 16 hexadecimal digits, which tell those who do not have the key nothing but whether it has
// changed.
func (k *Keyring) Fingerprint(context, text string) string {
	return hex.EncodeToString(mac(k.keys[0].prints, context, text)[:8])
}

func mac(key []byte, context, text string) []byte {
	m := hmac.New(sha256.New, key)
	fmt.Fprintf(m, "%d:%s", len(context), context) // as it is a hash, it takes everything
	m.Write([]byte(text))
	return m.Sum(nil)
}

// SealDocument returns doc with every secret that stands in it by value sealed: {"value": ...} becomes {"sealed": ...}.
func (k *Keyring) SealDocument(context string, doc json.RawMessage) (json.RawMessage, error) {
	return k.convert(doc, "value", "sealed", func(s string) (string, error) { return k.Seal(context, s), nil })
}

// OpenDocument is the way back. What was stored before it could be sealed stays as it is.
func (k *Keyring) OpenDocument(context string, doc json.RawMessage) (json.RawMessage, error) {
	return k.convert(doc, "sealed", "value", func(s string) (string, error) { return k.Open(context, s) })
}

func (k *Keyring) convert(doc json.RawMessage, from, to string, text func(string) (string, error)) (json.RawMessage, error) {
	if !bytes.Contains(doc, []byte(`"`+from+`"`)) && !bytes.ContainsRune(doc, '\\') { // a name may be written with escapes
		return doc, nil
	}
	v, err := decode(doc)
	if err != nil {
		return nil, err
	}
	var errs []error
	changed := false
	each(v, nil, func(path []any, o map[string]any) bool {
		s, ok := secretIn(o, from)
		if !ok {
			return false
		}
		out, err := text(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("secret at %s: %w", pointerOf(path), err))
			return true
		}
		delete(o, from)
		o[to] = out
		changed = true
		return true
	})
	if len(errs) > 0 || !changed {
		return doc, errors.Join(errs...)
	}
	return encode(v)
}
