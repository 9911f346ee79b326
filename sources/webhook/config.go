// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/secret"
	"github.com/rialto-bridge/rialto/sources"
)

type environment = sources.Env

//go:embed config.schema.json
var baseSchema []byte

// config is the config of a source, in the form that config.schema.json describes.
type config struct {
	Provider  string       `json:"provider"`
	Secret    secretList   `json:"secret"`
	Tolerance string       `json:"tolerance"`
	AllowFrom []string     `json:"allowFrom"`
	PublicURL string       `json:"publicUrl"`
	Source    string       `json:"source"`
	Token     secretList   `json:"token"`
	AESKey    secretList   `json:"aesKey"`
	OwnerKey  string       `json:"ownerKey"`
	Topics    []string     `json:"topics"`
	Regions   []string     `json:"regions"`
	Signature *ownScheme   `json:"signature"`
	Basic     *basic       `json:"basic"`
	Bearer    secretList   `json:"bearer"`
	Cert      *certificate `json:"clientCertificate"`
	Event     mapping      `json:"event"`
}

// ownScheme is a scheme as a config writes it.
type ownScheme struct {
	Header          string `json:"header"`
	Hash            string `json:"hash"`
	Encoding        string `json:"encoding"`
	Prefix          string `json:"prefix"`
	Separator       string `json:"separator"`
	Signed          string `json:"signed"`
	TimestampHeader string `json:"timestampHeader"`
}

type basic struct {
	Username string     `json:"username"`
	Password secretList `json:"password"`
}

type certificate struct {
	Names []string `json:"names"`
}

// mapping says how an event is made of a payload that nobody knows: JSONPath, header:<name>, or text.
type mapping struct {
	ID      string `json:"id"`
	Source  string `json:"source"`
	Type    string `json:"type"`
	Subject string `json:"subject"`
	Time    string `json:"time"`
}

// secretList is one secret or several.
type secretList []secret.Source

// UnmarshalJSON reads one secret or a list of them.
func (l *secretList) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '[' {
		return json.Unmarshal(b, (*[]secret.Source)(l))
	}
	var one secret.Source
	if err := one.UnmarshalJSON(b); err != nil {
		return err
	}
	*l = secretList{one}
	return nil
}

// settings is a config that has been read.
type settings struct {
	config
	provider  *provider
	secrets   *secrets
	tolerance time.Duration
	allowFrom []netip.Prefix
}

const (
	defaultTolerance = 5 * time.Minute
	maxTolerance     = time.Hour
)

// parse reads a config that the schema has accepted. The error is a *fault.Error with pointers.
func parse(raw json.RawMessage) (settings, error) {
	var s settings
	if err := json.Unmarshal(raw, &s.config); err != nil {
		return s, fault.Invalidf("", "a secret is not one: %s", secretWords(err))
	}
	i := slices.IndexFunc(providers, func(p *provider) bool { return p.name == s.Provider })
	if i < 0 {
		return s, fault.Invalidf("/provider", "is not known")
	}
	s.provider = providers[i]
	s.secrets = &secrets{sources: s.Secret}
	var details []fault.Detail
	complain := func(pointer, format string, args ...any) {
		details = append(details, fault.Detail{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
	}
	s.tolerance = defaultTolerance
	if s.Tolerance != "" {
		var err error
		if s.tolerance, err = time.ParseDuration(s.Tolerance); err != nil || s.tolerance < time.Second || s.tolerance > maxTolerance {
			complain("/tolerance", "is not a duration from 1s to 1h, such as 5m")
		}
	}
	for i, text := range s.AllowFrom {
		p, err := parsePrefix(text)
		if err != nil {
			complain(fmt.Sprintf("/allowFrom/%d", i), "is not an address or a network such as 192.0.2.0/24")
			continue
		}
		s.allowFrom = append(s.allowFrom, p)
	}
	if s.PublicURL != "" && !isBase(s.PublicURL) {
		complain("/publicUrl", "is not an http or https URL without query, such as https://hooks.example.com")
	}
	s.PublicURL = strings.TrimRight(s.PublicURL, "/")
	if s.provider.check != nil {
		if err := s.provider.check(&s.config); err != nil {
			details = append(details, detailsOf(err)...)
		}
	}
	return s, fault.Collect(details)
}

// secretWords keeps what package secret says, which repeats nothing; other errors of JSON may.
func secretWords(err error) string {
	if strings.HasPrefix(err.Error(), "a ") || strings.HasPrefix(err.Error(), "the ") || strings.HasPrefix(err.Error(), "this ") {
		return err.Error()
	}
	return "not of the form that the schema says"
}

func detailsOf(err error) []fault.Detail {
	if fe, ok := fault.At("", err).(*fault.Error); ok { //nolint:errorlint // At returns nothing else
		return fe.Details
	}
	return nil
}

func parsePrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 { // clients are compared as IPv4
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p.Masked(), err
}

func isBase(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && u.RawQuery == "" && u.Fragment == "" && u.User == nil
}

// Kind is the kind of source.
func Kind() sources.Kind {
	return sources.Kind{
		Name: "webhook", Hook: true, ConfigSchema: schema(), New: newHook,
		Doc: "Another product sends its webhooks to `POST /hooks/<name of the source>`. The signature is checked on the raw body, the " +
			"answer comes after the commit, and the whole payload becomes the data of an event whose attributes follow from it.",
		Example: "kind: Source\nname: github\ntype: webhook\nbus: default\nconfig:\n  provider: github\n  secret: {ref: \"env:GITHUB_WEBHOOK_SECRET\"}\n",
		Check: func(cfg json.RawMessage) error {
			_, err := parse(cfg)
			return err
		},
	}
}

// common are the members of a config that every provider has.
var common = []string{"provider", "allowFrom", "tolerance"}

// schema is config.schema.json with what each provider needs.
func schema() []byte {
	var s map[string]any
	if err := json.Unmarshal(baseSchema, &s); err != nil {
		panic("webhook: config schema: " + err.Error()) // it is a constant
	}
	properties, _ := s["properties"].(map[string]any)
	var names []string
	var conditions []any
	for _, p := range providers {
		names = append(names, p.name)
		foreign := map[string]any{}
		for name := range properties {
			if !slices.Contains(common, name) && !slices.Contains(p.fields, name) && !slices.Contains(p.optional, name) {
				foreign[name] = false
			}
		}
		then := map[string]any{"properties": foreign}
		if len(p.fields) > 0 {
			then["required"] = p.fields
		}
		conditions = append(conditions, map[string]any{
			"if":   map[string]any{"properties": map[string]any{"provider": map[string]any{"const": p.name}}, "required": []string{"provider"}},
			"then": then})
	}
	of, _ := properties["provider"].(map[string]any)
	of["enum"] = names
	s["allOf"] = conditions
	b, err := json.Marshal(s)
	if err != nil {
		panic("webhook: config schema: " + err.Error())
	}
	return b
}

// providers is the list of products that are known.
var providers = []*provider{github, gitlab, stripe, slack, shopify, pagerduty, twilio, dingtalk, feishu, sns, standard, eventbridge, generic}

// Provider is what the documentation says of a product.
type Provider struct {
	Name, Title, Doc string
	Fields, Optional []string // of the config, beside those that all have
}

// Providers lists the products that are known.
func Providers() []Provider {
	out := make([]Provider, len(providers))
	for i, p := range providers {
		out[i] = Provider{p.name, p.title, p.doc, p.fields, p.optional}
	}
	return out
}
