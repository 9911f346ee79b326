// SPDX-License-Identifier: Apache-2.0

package targets

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// MaxRest is the longest rest that a far side can ask for; what is longer is cut to it, so that one bad header does not
// silence a target for days.
const MaxRest = time.Hour

// ParseRetryAfter reads a Retry-After header (RFC 9110 section 10.2.3): whole seconds, or an HTTP date that is compared
// with now. What is absent, malformed, negative or past is 0; what is longer than MaxRest is MaxRest.
func ParseRetryAfter(value string, now time.Time) time.Duration {
	value = strings.Trim(value, " \t")
	if value == "" {
		return 0
	}
	if isDigits(value) {
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n > int64(MaxRest/time.Second) {
			return MaxRest
		}
		return time.Duration(n) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), MaxRest)
}

func isDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}
