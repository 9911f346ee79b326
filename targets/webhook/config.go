// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/secret"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

//go:embed config.schema.json
var configSchema []byte

// config is the config of a webhook, in the form that config.schema.json describes.
type config struct {
	URL          string                     `json:"url"`
	Mode         string                     `json:"mode"`
	Batch        *batchConfig               `json:"batch"`
	HeaderCoding string                     `json:"headerCoding"`
	Secret       json.RawMessage            `json:"secret"`
	Signature    *signatureConfig           `json:"signature"`
	Auth         *authConfig                `json:"auth"`
	Headers      map[string]json.RawMessage `json:"headers"`
	TLS          *tlsConfig                 `json:"tls"`
	Handshake    *handshakeConfig           `json:"handshake"`
}

// signatureConfig says how messages are signed by RFC 9421.
type signatureConfig struct {
	Algorithm string          `json:"algorithm"`
	KeyID     string          `json:"keyId"`
	Key       json.RawMessage `json:"key"`
}

// header is a static header.
type header struct {
	name string // canonical
	text string // "" = the secret in the slot with this pointer
	slot string
}

// slot is a secret of a config.
type slot struct {
	pointer string
	source  secret.Source
	shown   bool                    // it is no secret, though it may be given as one, such as a certificate
	check   func(text string) error // says what is wrong with it, and repeats nothing of it
}

// settings is a config that has been read.
type settings struct {
	url       string
	mode      string
	gather    *gatherer // of mode batch
	raw       bool      // headers of binary mode are not percent-encoded where they need not be
	keys      []keySlot
	signature *signatureConfig
	auth      *authConfig
	headers   []header // sorted by name
	tls       *tlsConfig
	handshake *handshakeConfig // nil = off
	slots     []slot           // all secrets there are
}

// keySlot is a key to sign with.
type keySlot struct {
	slot  string
	until time.Time
}

// reader reads a config and gathers what is wrong with it, with pointers into the config.
type reader struct {
	settings
	details []fault.Detail
}

func parse(raw json.RawMessage) (settings, []fault.Detail) {
	var c config
	if err := json.Unmarshal(raw, &c); err != nil {
		return settings{}, []fault.Detail{{Detail: "is not a webhook config"}}
	}
	r := &reader{settings: settings{url: c.URL, mode: c.Mode, raw: c.HeaderCoding == "raw", signature: c.Signature, auth: c.Auth, tls: c.TLS}}
	if c.Mode == modeBatch || c.Batch != nil {
		r.batching(c.Batch)
	}
	if r.raw && c.Mode != "" && c.Mode != modeBinary {
		r.complain("/headerCoding", "is for mode binary")
	}
	r.signing(c.Secret)
	if c.Signature != nil {
		r.messageSigning(c.Signature)
	}
	if c.Auth != nil {
		r.authentication(c.Auth)
	}
	r.staticHeaders(c.Headers)
	if c.TLS != nil {
		r.transport(c.TLS)
	}
	if c.Handshake != nil {
		r.handshaking(c.Handshake)
	}
	return r.settings, r.details
}

func (r *reader) complain(pointer, format string, args ...any) {
	r.details = append(r.details, fault.Detail{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
}

// secret reads a secret, and checks it if it stands in the config by value.
func (r *reader) secret(pointer string, raw json.RawMessage, check func(text string) error) {
	s := slot{pointer: pointer, check: check}
	if err := s.source.UnmarshalJSON(raw); err != nil {
		r.complain(pointer, "%v", err)
		return
	}
	r.slots = append(r.slots, s)
	if s.source.Ref() != "" {
		return
	}
	v, err := s.source.Resolve(nil)
	if err == nil {
		err = check(v.Reveal())
	}
	if err != nil {
		r.complain(pointer, "%v", err)
	}
}

// slotAt returns the secret with a pointer; nil if there is none.
func (s *settings) slotAt(pointer string) *slot {
	i := slices.IndexFunc(s.slots, func(s slot) bool { return s.pointer == pointer })
	if i < 0 {
		return nil
	}
	return &s.slots[i]
}

// signing reads the one key or the list of them.
func (r *reader) signing(raw json.RawMessage) {
	if len(raw) == 0 || string(raw) == "null" {
		return
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		r.key("/secret", raw)
	}
	for i, one := range list {
		r.key("/secret/"+strconv.Itoa(i), one)
	}
	if len(r.keys) > 0 && !slices.ContainsFunc(r.keys, func(k keySlot) bool { return k.until.IsZero() }) {
		r.complain("/secret", "has an end (until) for every key: one must be without, or nothing could be signed some day")
	}
}

// key reads a secret that may have a member until beside the others.
func (r *reader) key(pointer string, raw json.RawMessage) {
	members := map[string]json.RawMessage{}
	k := keySlot{slot: pointer}
	if json.Unmarshal(raw, &members) == nil && members["until"] != nil {
		if json.Unmarshal(members["until"], &k.until) != nil || k.until.IsZero() {
			r.complain(pointer+"/until", "is no time, such as 2027-03-01T12:00:00Z")
		}
		delete(members, "until")
		var err error
		if raw, err = json.Marshal(members); err != nil {
			r.complain(pointer, "is not a secret")
			return
		}
	}
	r.keys = append(r.keys, k)
	r.secret(pointer, raw, outbound.CheckKey)
}

func (r *reader) messageSigning(c *signatureConfig) {
	r.secret("/signature/key", c.Key, func(text string) error {
		_, err := outbound.NewMessageSigner(c.Algorithm, c.KeyID, text)
		return err
	})
}

func (r *reader) staticHeaders(given map[string]json.RawMessage) {
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		at := "/headers" + fault.Pointer(name)
		h := header{name: http.CanonicalHeaderKey(name), slot: at}
		switch {
		case !isToken(name):
			r.complain(at, "is not the name of a header")
		case reserved(name):
			r.complain(at, "is set by the bridge or by HTTP itself, and cannot be given")
		case h.name == r.authHeader():
			r.complain(at, "is what auth sets")
		case seen[h.name]:
			r.complain(at, "occurs more than once; names differ in more than case")
		case bytes.HasPrefix(given[name], []byte("{")):
			r.secret(at, given[name], checkFieldValue)
		case json.Unmarshal(given[name], &h.text) != nil || !isFieldValue(h.text):
			r.complain(at, "%v", errBadValue)
		case h.name == "Authorization":
			r.complain(at, `is a secret: write it as {"ref": "env:NAME"} or {"value": "..."}, so that it is never shown`)
		}
		seen[h.name] = true
		r.headers = append(r.headers, h)
	}
}

// check returns a *fault.Error for what the schema cannot say.
func check(raw json.RawMessage, checkURL func(string) error) error {
	s, details := parse(raw)
	urls := map[string]string{"/url": s.url}
	if s.auth != nil && s.auth.TokenURL != "" {
		urls["/auth/tokenUrl"] = s.auth.TokenURL
	}
	for _, pointer := range slices.Sorted(maps.Keys(urls)) {
		if err := checkURL(urls[pointer]); err != nil {
			details = append(details, fault.Detail{Pointer: pointer, Detail: err.Error()})
		}
	}
	return fault.Collect(details)
}
