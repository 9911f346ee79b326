// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/secret"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
)

// AccessConfig is what the configs of all kinds that speak HTTP have in common, in the form that access.schema.json describes.
type AccessConfig struct {
	Auth    *AuthConfig                `json:"auth"`
	Headers map[string]json.RawMessage `json:"headers"`
	TLS     *TLSConfig                 `json:"tls"`
}

//go:embed access.schema.json
var accessSchema []byte

// ConfigSchema returns the schema of a kind's config with what it shares with others filled in: where it says
// {"$ref": "shared:NAME"}, NAME of access.schema.json stands.
func ConfigSchema(own []byte) []byte {
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(accessSchema, &parts); err != nil {
		panic(err) // it is a part of the program
	}
	for name, part := range parts {
		own = bytes.ReplaceAll(own, []byte(`{"$ref": "shared:`+name+`"}`), part)
	}
	return own
}

// Access is an AccessConfig that was read: how the bridge shows a far side who it is, and how it connects to it. It is immutable.
type Access struct {
	auth    *AuthConfig
	headers []header // sorted by name
	tls     *TLSConfig
	slots   []slot // all secrets there are
}

// slot is a secret of a config.
type slot struct {
	pointer string
	source  secret.Source
	shown   bool                    // it is no secret, though it may be given as one, such as a certificate
	check   func(text string) error // says what is wrong with it, and repeats nothing of it
}

// AuthType is the type of auth; "" = there is none.
func (a *Access) AuthType() string {
	if a.auth == nil {
		return ""
	}
	return a.auth.Type
}

// Warnings are what the owner of a target should know of it.
func (a *Access) Warnings() (all []rules.Warning) {
	if a.tls != nil && a.tls.InsecureSkipVerify {
		all = append(all, rules.Warning{Pointer: "/config/tls/insecureSkipVerify",
			Message: "whoever is on the way can pose as the target, and read and change what it is sent"})
	}
	return all
}

// SentURL is a URL as it is sent.
func (a *Access) SentURL(u *url.URL) (*url.URL, error) {
	if a.AuthType() == AuthAWS {
		return SignedURL(u)
	}
	return u, nil
}

// slotAt returns the secret with a pointer; nil if there is none.
func (a *Access) slotAt(pointer string) *slot {
	i := slices.IndexFunc(a.slots, func(s slot) bool { return s.pointer == pointer })
	if i < 0 {
		return nil
	}
	return &a.slots[i]
}

// Reader reads a config and gathers what is wrong with it, with pointers into the config, and its secrets.
type Reader struct {
	Access
	details []fault.Detail
}

// Read reads what kinds have in common, for a far side with a URL. take is for Headers.
func (r *Reader) Read(c AccessConfig, to string, take func(name, text string) (bool, error)) {
	r.Auth(c.Auth)
	r.Headers(c.Headers, take)
	r.TLS(c.TLS, to)
}

// Complain notes what is wrong.
func (r *Reader) Complain(pointer, format string, args ...any) {
	r.details = append(r.details, fault.Detail{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
}

// Details returns what is wrong.
func (r *Reader) Details() []fault.Detail { return r.details }

// Secret reads a secret, and checks it if it stands in the config by value. What it is then a Sender knows, by its pointer.
func (r *Reader) Secret(pointer string, raw json.RawMessage, check func(text string) error) {
	s := slot{pointer: pointer, check: check}
	if err := s.source.UnmarshalJSON(raw); err != nil {
		r.Complain(pointer, "%v", err)
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
		r.Complain(pointer, "%v", err)
	}
}

// refuseSecret complains of an object of names that a config gives if it would be taken for a secret, as that of a header whose
// name is value.
func (r *Reader) refuseSecret(pointer string, names any) {
	raw, err := json.Marshal(names)
	switch {
	case err != nil:
		r.Complain(pointer, "is not JSON")
	case secret.LooksLike(raw):
		r.Complain(pointer, "%s", targets.LooksLikeSecret)
	}
}

// CheckURLs complains of URLs that cannot be called, by their pointers, and of that of tokens.
func (r *Reader) CheckURLs(urls map[string]string, checkURL func(url string) error) {
	if r.auth != nil && r.auth.TokenURL != "" {
		urls["/auth/tokenUrl"] = r.auth.TokenURL
	}
	for _, pointer := range slices.Sorted(maps.Keys(urls)) {
		if err := checkURL(urls[pointer]); err != nil {
			r.Complain(pointer, "%v", err)
		}
	}
}
