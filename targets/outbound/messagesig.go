// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Algorithms of message signatures (RFC 9421 section 3.3).
const (
	AlgorithmEd25519   = "ed25519"
	AlgorithmHMAC      = "hmac-sha256"
	AlgorithmECDSAP256 = "ecdsa-p256-sha256"
)

// MessageSigner signs messages by RFC 9421: the method, the URL, the body by its digest (RFC 9530), and, where the message has
// them, content-type, webhook-id and all ce- headers, so that nothing of an event can be changed on its way. It is safe for
// concurrent use.
type MessageSigner struct {
	algorithm, keyID string
	sign             func(base []byte) ([]byte, error)
}

// NewMessageSigner returns a signer. keyID tells receivers which key to verify with: 1 to 256 characters of printable ASCII without
// quotes and backslashes. The key is, for hmac-sha256, whsec_ and base64, and otherwise a private key in PEM, or, for ed25519,
// whsk_ and base64, all as Key has them. The error repeats nothing of the key.
func NewMessageSigner(algorithm, keyID, key string) (*MessageSigner, error) {
	if keyID == "" || len(keyID) > 256 || strings.ContainsFunc(keyID, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }) {
		return nil, errors.New("a key id has 1 to 256 characters of printable ASCII, without quotes and backslashes")
	}
	s := &MessageSigner{algorithm: algorithm, keyID: keyID}
	var err error
	switch algorithm {
	case AlgorithmHMAC:
		s.sign, err = hmacOf(key)
	case AlgorithmEd25519:
		s.sign, err = ed25519Of(key)
	case AlgorithmECDSAP256:
		s.sign, err = ecdsaOf(key)
	default:
		err = fmt.Errorf("the algorithm is none of %s, %s, %s", AlgorithmEd25519, AlgorithmHMAC, AlgorithmECDSAP256)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

func hmacOf(key string) (func([]byte) ([]byte, error), error) {
	secret, err := parseSecret(key)
	return func(base []byte) ([]byte, error) {
		mac := hmac.New(sha256.New, secret)
		mac.Write(base)
		return mac.Sum(nil), nil
	}, err
}

func ed25519Of(key string) (func([]byte) ([]byte, error), error) {
	var private ed25519.PrivateKey
	var err error
	if b64, ok := strings.CutPrefix(key, PrivateKeyPrefix); ok {
		private, err = parsePrivateKey(b64)
	} else if private, ok = pemKey(key).(ed25519.PrivateKey); !ok {
		err = errors.New("a key for ed25519 is whsk_ and base64, or a private ed25519 key in PEM")
	}
	return func(base []byte) ([]byte, error) { return ed25519.Sign(private, base), nil }, err
}

func ecdsaOf(key string) (func([]byte) ([]byte, error), error) {
	private, ok := pemKey(key).(*ecdsa.PrivateKey)
	if !ok || private.Curve != elliptic.P256() {
		return nil, errors.New("a key for ecdsa-p256-sha256 is a private key of the curve P-256 in PEM")
	}
	return func(base []byte) ([]byte, error) {
		sum := sha256.Sum256(base)
		r, s, err := ecdsa.Sign(rand.Reader, private, sum[:])
		if err != nil {
			return nil, err
		}
		var out [64]byte // both numbers in 32 bytes (section 3.3.4)
		r.FillBytes(out[:32])
		s.FillBytes(out[32:])
		return out[:], nil
	}, nil
}

// pemKey is the private key of a PEM text; nil if there is none.
func pemKey(text string) any {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil
	}
	if key, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
		return key
	}
	if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
		return key
	}
	return nil
}

// Sign adds Content-Digest, Signature-Input and Signature. What is added to the message afterwards is not covered.
func (s *MessageSigner) Sign(m *Message, created time.Time) error {
	sum := sha256.Sum256(m.Body)
	m.Header["Content-Digest"] = []string{"sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"}

	var base, covered strings.Builder
	cover := func(name, value string) {
		if covered.Len() > 0 {
			covered.WriteByte(' ')
		}
		covered.WriteString(`"` + name + `"`)
		base.WriteString(`"` + name + `": ` + value + "\n")
	}
	cover("@method", m.Method)
	cover("@target-uri", m.URL.Scheme+"://"+m.URL.Host+m.URL.RequestURI())
	for _, name := range slices.Sorted(maps.Keys(m.Header)) {
		if covers(name) {
			cover(strings.ToLower(name), strings.Join(m.Header[name], ", "))
		}
	}
	params := "(" + covered.String() + ");created=" + strconv.FormatInt(created.Unix(), 10) + `;keyid="` + s.keyID + `";alg="` + s.algorithm + `"`
	base.WriteString(`"@signature-params": ` + params)
	sig, err := s.sign([]byte(base.String()))
	if err != nil {
		return err
	}
	m.Header["Signature-Input"] = []string{"sig1=" + params}
	m.Header["Signature"] = []string{"sig1=:" + base64.StdEncoding.EncodeToString(sig) + ":"}
	return nil
}

// covers reports whether a header, in canonical form, is signed.
func covers(name string) bool {
	return name == "Content-Digest" || name == "Content-Type" || name == "Webhook-Id" || strings.HasPrefix(name, "Ce-")
}
