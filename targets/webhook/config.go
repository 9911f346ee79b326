// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	_ "embed"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

//go:embed config.schema.json
var configSchema []byte

// config is the config of a webhook, in the form that config.schema.json describes.
type config struct {
	outbound.AccessConfig
	URL          string           `json:"url"`
	Mode         string           `json:"mode"`
	Batch        *batchConfig     `json:"batch"`
	HeaderCoding string           `json:"headerCoding"`
	Secret       json.RawMessage  `json:"secret"`
	Signature    *signatureConfig `json:"signature"`
	Handshake    *handshakeConfig `json:"handshake"`
}

// signatureConfig says how messages are signed by RFC 9421.
type signatureConfig struct {
	Algorithm string          `json:"algorithm"`
	KeyID     string          `json:"keyId"`
	Key       json.RawMessage `json:"key"`
}

// settings is a config that has been read.
type settings struct {
	url       string
	mode      string
	gather    *gatherer // of mode batch
	raw       bool      // headers of binary mode are not percent-encoded where they need not be
	keys      []keySlot
	signature *signatureConfig
	handshake *handshakeConfig // nil = off
}

// keySlot is a key to sign with.
type keySlot struct {
	slot  string
	until time.Time
}

// reader reads a config.
type reader struct {
	settings
	outbound.Reader
}

func parse(raw json.RawMessage) *reader {
	var c config
	if err := json.Unmarshal(raw, &c); err != nil {
		r := new(reader)
		r.Complain("", "is not a webhook config")
		return r
	}
	r := &reader{settings: settings{url: c.URL, mode: c.Mode, raw: c.HeaderCoding == "raw", signature: c.Signature}}
	if c.Mode == modeBatch || c.Batch != nil {
		r.batching(c.Batch)
	}
	if r.raw && c.Mode != "" && c.Mode != modeBinary {
		r.Complain("/headerCoding", "is for mode binary")
	}
	r.signing(c.Secret)
	if c.Signature != nil {
		r.messageSigning(c.Signature)
	}
	r.Read(c.AccessConfig, c.URL, nil)
	if c.Handshake != nil {
		r.handshaking(c.Handshake)
	}
	return r
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
		r.Complain("/secret", "has an end (until) for every key: one must be without, or nothing could be signed some day")
	}
}

// key reads a secret that may have a member until beside the others.
func (r *reader) key(pointer string, raw json.RawMessage) {
	members := map[string]json.RawMessage{}
	k := keySlot{slot: pointer}
	if json.Unmarshal(raw, &members) == nil && members["until"] != nil {
		if json.Unmarshal(members["until"], &k.until) != nil || k.until.IsZero() {
			r.Complain(pointer+"/until", "is no time, such as 2027-03-01T12:00:00Z")
		}
		delete(members, "until")
		var err error
		if raw, err = json.Marshal(members); err != nil {
			r.Complain(pointer, "is not a secret")
			return
		}
	}
	r.keys = append(r.keys, k)
	r.Secret(pointer, raw, outbound.CheckKey)
}

func (r *reader) messageSigning(c *signatureConfig) {
	r.Secret("/signature/key", c.Key, func(text string) error {
		_, err := outbound.NewMessageSigner(c.Algorithm, c.KeyID, text)
		return err
	})
}

// check returns a *fault.Error for what the schema cannot say.
func check(raw json.RawMessage, checkURL func(string) error) error {
	r := parse(raw)
	r.CheckURLs(map[string]string{"/url": r.url}, checkURL)
	return fault.Collect(r.Details())
}

// signers is what requests are signed with.
type signers struct {
	webhook *outbound.Signer        // nil = unsigned
	message *outbound.MessageSigner // nil = not signed by RFC 9421
}

// signers makes them of the values of secrets.
func (s *settings) signers(values map[string]string) (out signers, err error) {
	if len(s.keys) > 0 {
		keys := make([]outbound.Key, len(s.keys))
		for i, k := range s.keys {
			keys[i] = outbound.Key{Text: values[k.slot], Until: k.until}
		}
		if out.webhook, err = outbound.NewSigner(keys...); err != nil {
			return out, err
		}
	}
	if s.signature != nil {
		out.message, err = outbound.NewMessageSigner(s.signature.Algorithm, s.signature.KeyID, values["/signature/key"])
	}
	return out, err
}
