// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"errors"
	"slices"
	"strings"
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

func checkFieldValue(s string) error {
	if !isFieldValue(s) {
		return errBadValue
	}
	return nil
}
