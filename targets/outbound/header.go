// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/rialto-bridge/rialto/internal/fault"
)

var errBadValue = errors.New("is not printable ASCII of at most 4096 bytes, or has blanks at its ends")

// reservedNames and reservedPrefixes are headers that belong to the connection, to the event, or to infrastructure on
// the way that trusts them.
var (
	reservedNames = map[string]bool{
		"host": true, "connection": true, "keep-alive": true, "te": true, "trailer": true, "transfer-encoding": true,
		"upgrade": true, "content-length": true, "content-type": true, "content-encoding": true, "user-agent": true,
		"expect": true, "cookie": true, "traceparent": true, "tracestate": true, "forwarded": true, "via": true,
		"accept-encoding": true, "idempotency-key": true, "x-idempotency-key": true, "x-real-ip": true, "date": true,
		"metadata": true, "signature": true, "signature-input": true, "content-digest": true, "x-call-id": true,
	}
	reservedPrefixes = []string{"proxy-", "ce-", "webhook-", "x-forwarded-", "x-amz-", "x-amzn-", "x-goog-", "x-google",
		"x-azure-", "x-envoy-", "metadata-", "x-acs-", "x-fc-"}
)

// operations are the headers that say to services of a cloud what is asked of them, and nothing to anyone else, by the type of auth
// that goes with them.
var operations = map[string][]string{AuthAWS: {"x-amz-target"}, AuthAlibaba: {"x-acs-action", "x-acs-version"}}

// reserved reports whether a header cannot be given beside auth of a type.
func reserved(name, auth string) bool {
	name = strings.ToLower(name)
	if slices.Contains(operations[auth], name) {
		return false
	}
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

func checkFieldValue(s string) error {
	if !isFieldValue(s) {
		return errBadValue
	}
	return nil
}

// header is a static header.
type header struct {
	name string // canonical
	text string // "" = the secret in the slot with this pointer
	slot string
}

// Headers reads static headers; Auth comes before. What take takes, which is called with the canonical name of a header that is
// given as text, is not among them: the caller sends it. It says why a text is refused. nil takes none.
func (r *Reader) Headers(given map[string]json.RawMessage, take func(name, text string) (taken bool, err error)) {
	r.refuseSecret("/headers", given)
	seen := map[string]bool{}
	auth := ""
	if r.auth != nil {
		auth = r.auth.Type
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		at := "/headers" + fault.Pointer(name)
		h := header{name: http.CanonicalHeaderKey(name), slot: at}
		taken := false
		switch {
		case !isToken(name):
			r.Complain(at, "is not the name of a header")
		case reserved(name, auth):
			r.Complain(at, "is set by the bridge or by HTTP itself, and cannot be given")
		case h.name == r.authHeader():
			r.Complain(at, "is what auth sets")
		case seen[h.name]:
			r.Complain(at, "occurs more than once; names differ in more than case")
		case bytes.HasPrefix(given[name], []byte("{")):
			r.Secret(at, given[name], checkFieldValue)
		case json.Unmarshal(given[name], &h.text) != nil || !isFieldValue(h.text):
			r.Complain(at, "%v", errBadValue)
		case h.name == "Authorization":
			r.Complain(at, `is a secret: write it as {"ref": "env:NAME"} or {"value": "..."}, so that it is never shown`)
		case take != nil:
			var err error
			if taken, err = take(h.name, h.text); err != nil {
				r.Complain(at, "%v", err)
			}
		}
		seen[h.name] = true
		if !taken {
			r.headers = append(r.headers, h)
		}
	}
}

// CheckFieldValue says why a text cannot be the value of a header; nil if it can.
func CheckFieldValue(s string) error { return checkFieldValue(s) }
