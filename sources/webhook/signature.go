// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"hash"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/secret"
)

// scheme is a way of signing with a shared secret: the HMAC of some bytes stands in a header.
type scheme struct {
	header  string // where the signature stands
	hash    func() hash.Hash
	base64  bool                                                   // instead of hex
	prefix  string                                                 // before each signature
	list    string                                                 // what separates several signatures; "" = there is one
	key     func(secret string) []byte                             // what the secret stands for; nil = its bytes
	signed  func(r *request, ts string) []([]byte)                 // what is signed; nil = the raw body
	stamped func(r *request, header string) (ts string, err error) // when it was signed, as text; nil = it is not said
}

// hashes are the names of hash functions in a config.
var hashes = map[string]func() hash.Hash{"sha1": sha1.New, "sha256": sha256.New, "sha512": sha512.New}

// schemes are the products that only differ in this.
var (
	githubScheme  = scheme{header: "X-Hub-Signature-256", hash: sha256.New, prefix: "sha256="}
	shopifyScheme = scheme{header: "X-Shopify-Hmac-Sha256", hash: sha256.New, base64: true}
	pagerScheme   = scheme{header: "X-Pagerduty-Signature", hash: sha256.New, prefix: "v1=", list: ","}
	slackScheme   = scheme{header: "X-Slack-Signature", hash: sha256.New, prefix: "v0=",
		stamped: func(r *request, _ string) (string, error) { return r.header("X-Slack-Request-Timestamp") },
		signed:  func(r *request, ts string) [][]byte { return [][]byte{[]byte("v0:" + ts + ":"), r.body} }}
	stripeScheme = scheme{header: "Stripe-Signature", hash: sha256.New, prefix: "v1=", list: ",",
		stamped: func(_ *request, header string) (string, error) { return member(header, ",", "t="), nil },
		signed:  func(r *request, ts string) [][]byte { return [][]byte{[]byte(ts + "."), r.body} }}
)

// member finds what follows a prefix in a list.
func member(list, separator, prefix string) string {
	for part := range strings.SplitSeq(list, separator) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(part), prefix); ok {
			return v
		}
	}
	return ""
}

// maxSignatures bounds how many signatures of one header are looked at.
const maxSignatures = 16

// verify reads the body and checks a request against every secret there is. The time depends on what the sender signed only by
// its length; a header that holds no signature, or too old a one, is refused before the body is read.
func (s *scheme) verify(h *hook, r *request) error {
	header, err := r.header(s.header)
	if err != nil {
		return err
	}
	ts := ""
	if s.stamped != nil {
		if ts, err = s.stamped(r, header); err != nil {
			return err
		}
		n, err := strconv.ParseInt(ts, 10, 64)
		if err != nil {
			return errTimestamp
		}
		if err := h.fresh(r, time.Unix(n, 0)); err != nil {
			return err
		}
	}
	given := s.given(header)
	if len(given) == 0 {
		return errSignature
	}
	if err := r.read(); err != nil {
		return err
	}
	secrets, err := h.s.secrets.get(h.env)
	if err != nil {
		return err
	}
	signed := [][]byte{r.body}
	if s.signed != nil {
		signed = s.signed(r, ts)
	}
	good := 0
	for _, sec := range secrets {
		good |= h.macs.match(s, sec, signed, given)
	}
	if good == 0 {
		return errSignature
	}
	r.stamp = ts
	return nil
}

// macs keeps the HMACs of a hook's secrets for use again: to set one up costs more than a short body does.
type macs struct {
	bySecret sync.Map // *sync.Pool of *keyed
	kept     atomic.Int32
}

// keyed is an HMAC that has its key, and room for a sum.
type keyed struct {
	hash.Hash
	sum [sha512.Size]byte
}

// maxMacs is how many secrets have HMACs that are kept. A hook has few at a time; those that were replaced are forgotten when
// there are so many.
const maxMacs = 32

// match is 1 if one of the signatures is that of what is signed, and 0 else; in constant time.
func (m *macs) match(s *scheme, secret string, signed, given [][]byte) (good int) {
	pool := m.pool(s, secret)
	mac := pool.Get().(*keyed)
	defer pool.Put(mac)
	mac.Reset()
	for _, part := range signed {
		mac.Write(part)
	}
	want := mac.Sum(mac.sum[:0])
	for _, g := range given {
		good |= subtle.ConstantTimeCompare(g, want)
	}
	return good
}

func (m *macs) pool(s *scheme, secret string) *sync.Pool {
	if p, ok := m.bySecret.Load(secret); ok {
		return p.(*sync.Pool)
	}
	key := []byte(secret)
	if s.key != nil {
		key = s.key(secret)
	}
	if m.kept.Add(1) > maxMacs {
		m.kept.Store(1)
		m.bySecret.Clear()
	}
	p, _ := m.bySecret.LoadOrStore(secret, &sync.Pool{New: func() any { return &keyed{Hash: hmac.New(s.hash, key)} }})
	return p.(*sync.Pool)
}

// given decodes the signatures of a header. What is none is left out.
func (s *scheme) given(header string) [][]byte {
	parts := []string{header}
	if s.list != "" {
		parts = strings.SplitN(header, s.list, maxSignatures+1)
	}
	var out [][]byte
	for _, p := range parts[:min(len(parts), maxSignatures)] {
		text, ok := strings.CutPrefix(strings.TrimSpace(p), s.prefix)
		if !ok {
			continue
		}
		var sum []byte
		var err error
		if s.base64 {
			sum, err = base64.StdEncoding.DecodeString(text)
		} else {
			sum, err = hex.DecodeString(text)
		}
		if err == nil {
			out = append(out, sum)
		}
	}
	return out
}

// equalAny compares a token with every secret in constant time.
func equalAny(secrets []string, token string) bool {
	given := sha256.Sum256([]byte(token))
	good := 0
	for _, s := range secrets {
		want := sha256.Sum256([]byte(s))
		good |= subtle.ConstantTimeCompare(given[:], want[:])
	}
	return good == 1
}

// secrets resolves references, and again after a while, so that a file or variable may change under way.
type secrets struct {
	sources []secret.Source

	mu   sync.Mutex // guards below
	at   time.Time
	text []string
}

// resolveAfter is how long resolved secrets are used.
const resolveAfter = 10 * time.Second

// get returns the secrets. What cannot be resolved is left out as long as one can.
func (s *secrets) get(env environment) ([]string, error) {
	now := env.Now()
	s.mu.Lock()
	text, at := s.text, s.at
	s.mu.Unlock()
	if text != nil && now.Sub(at) < resolveAfter {
		return text, nil
	}
	return s.resolve(env, now)
}

func (s *secrets) resolve(env environment, now time.Time) ([]string, error) {
	var text []string
	var failed error
	for _, src := range s.sources {
		v, err := src.Resolve(env.Secrets)
		if err != nil {
			failed = err
			continue
		}
		text = append(text, v.Reveal())
	}
	if len(text) == 0 {
		return nil, &fault.Error{Kind: fault.Unavailable, Message: "the secret of this source cannot be read", RetryAfter: resolveAfter, Err: failed}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at, s.text = now, text
	return text, nil
}
