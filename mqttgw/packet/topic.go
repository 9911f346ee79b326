// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"strings"
)

// ValidTopic reports whether b, a text already, is a topic name: not empty, no wildcard (MQTT-3.3.2-2, MQTT-4.7.3-1).
func ValidTopic(b []byte) bool {
	return len(b) > 0 && bytes.IndexByte(b, '+') < 0 && bytes.IndexByte(b, '#') < 0
}

// ValidFilter reports whether f is a topic filter: not empty, each wildcard a whole level, # only at the end
// (MQTT-4.7.1-1, -2), and the form $share/<name>/<filter> for shared ones (MQTT-4.8.2-1, -2).
func ValidFilter(f string) bool {
	if rest, shared := strings.CutPrefix(f, "$share/"); shared {
		name, filter, ok := strings.Cut(rest, "/")
		if !ok || name == "" || strings.ContainsAny(name, "+#") {
			return false
		}
		f = filter
	}
	if f == "" || f == "$share" {
		return false
	}
	for {
		level, rest, more := strings.Cut(f, "/")
		if len(level) > 1 && strings.ContainsAny(level, "+#") || level == "#" && more {
			return false
		}
		if !more {
			return true
		}
		f = rest
	}
}
