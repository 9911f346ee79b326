// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/secret"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

//go:embed config.schema.json
var configSchema []byte

// config is the config of a webhook, in the form that config.schema.json describes.
type config struct {
	URL     string                     `json:"url"`
	Mode    string                     `json:"mode"`
	Secret  json.RawMessage            `json:"secret"`
	Headers map[string]json.RawMessage `json:"headers"`
}

// header is a static header: text, or a secret.
type header struct {
	name   string // canonical
	text   string
	secret secret.Source
}

// settings is a config that has been read.
type settings struct {
	url        string
	structured bool
	secrets    []secret.Source
	headers    []header // sorted by name
}

// parse reads a config and returns what is wrong with it, with pointers into the config.
func parse(raw json.RawMessage) (s settings, details []fault.Detail) {
	var c config
	if err := json.Unmarshal(raw, &c); err != nil {
		return s, []fault.Detail{{Detail: "is not a webhook config"}}
	}
	s = settings{url: c.URL, structured: c.Mode == "structured"}
	complain := func(pointer, text string) {
		details = append(details, fault.Detail{Pointer: pointer, Detail: text})
	}
	for _, at := range secretList(c.Secret) {
		src, why := parseSecret(at.raw)
		if why != "" {
			complain(at.pointer, why)
		}
		s.secrets = append(s.secrets, src)
	}
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		at := "/headers" + fault.Pointer(name)
		h, why := parseHeader(name, c.Headers[name])
		if why == "" && seen[h.name] {
			why = "occurs more than once; names differ in more than case"
		}
		if why != "" {
			complain(at, why)
		}
		seen[h.name] = true
		s.headers = append(s.headers, h)
	}
	return s, details
}

type placed struct {
	pointer string
	raw     json.RawMessage
}

// secretList returns the one secret or the list of them.
func secretList(raw json.RawMessage) []placed {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return []placed{{"/secret", raw}}
	}
	out := make([]placed, len(list))
	for i, one := range list {
		out[i] = placed{"/secret/" + strconv.Itoa(i), one}
	}
	return out
}

func parseSecret(raw json.RawMessage) (src secret.Source, why string) {
	if err := src.UnmarshalJSON(raw); err != nil {
		return src, err.Error()
	}
	if src.Ref() != "" {
		return src, ""
	}
	v, err := src.Resolve(nil)
	if err == nil {
		err = outbound.CheckSecret(v.Reveal())
	}
	if err != nil {
		return src, err.Error()
	}
	return src, ""
}

func parseHeader(name string, raw json.RawMessage) (h header, why string) {
	h.name = http.CanonicalHeaderKey(name)
	switch {
	case !isToken(name):
		return h, "is not the name of a header"
	case reserved(name):
		return h, "is set by the bridge or by HTTP itself, and cannot be given"
	}
	if bytes.HasPrefix(raw, []byte("{")) {
		if err := h.secret.UnmarshalJSON(raw); err != nil {
			return h, err.Error()
		}
		if h.secret.Ref() == "" {
			v, err := h.secret.Resolve(nil)
			if err != nil || !isFieldValue(v.Reveal()) {
				return h, badValue
			}
		}
		return h, ""
	}
	if json.Unmarshal(raw, &h.text) != nil || !isFieldValue(h.text) {
		return h, badValue
	}
	if h.name == "Authorization" {
		return h, `is a secret: write it as {"ref": "env:NAME"} or {"value": "..."}, so that it is never shown`
	}
	return h, ""
}

const badValue = "is not printable ASCII of at most 4096 bytes, or has blanks at its ends"

// reservedNames and reservedPrefixes are headers that belong to the connection, to the event, or to infrastructure on
// the way that trusts them.
var (
	reservedNames = map[string]bool{
		"host": true, "connection": true, "keep-alive": true, "te": true, "trailer": true, "transfer-encoding": true,
		"upgrade": true, "content-length": true, "content-type": true, "content-encoding": true, "user-agent": true,
		"expect": true, "cookie": true, "traceparent": true, "tracestate": true, "forwarded": true, "via": true,
		"accept-encoding": true, "idempotency-key": true, "x-idempotency-key": true, "x-real-ip": true, "date": true,
		"metadata": true, "signature": true, "signature-input": true, "content-digest": true,
	}
	reservedPrefixes = []string{"proxy-", "ce-", "webhook-", "x-forwarded-", "x-amz-", "x-amzn-", "x-goog-", "x-google",
		"x-azure-", "x-envoy-", "metadata-"}
)

func reserved(name string) bool {
	name = strings.ToLower(name)
	return reservedNames[name] || slices.ContainsFunc(reservedPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// isToken reports whether s is a token (RFC 9110 section 5.6.2).
func isToken(s string) bool {
	const others = "!#$%&'*+-.^_`|~"
	for i := range len(s) {
		c := s[i] | 0x20 // lower case; what is no letter is looked at as it is
		if (c < 'a' || c > 'z') && (s[i] < '0' || s[i] > '9') && strings.IndexByte(others, s[i]) < 0 {
			return false
		}
	}
	return s != "" && len(s) <= 128
}

func isFieldValue(s string) bool {
	for i := range len(s) {
		if (s[i] < ' ' && s[i] != '\t') || s[i] > '~' {
			return false
		}
	}
	return s != "" && len(s) <= 4096 && strings.Trim(s, " \t") == s
}

// check returns a *fault.Error for what the schema cannot say.
func check(raw json.RawMessage, checkURL func(string) error) error {
	s, details := parse(raw)
	if err := checkURL(s.url); err != nil {
		details = append(details, fault.Detail{Pointer: "/url", Detail: err.Error()})
	}
	return fault.Collect(details)
}
