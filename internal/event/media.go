// SPDX-License-Identifier: Apache-2.0

package event

import "strings"

// IsJSON reports whether a media type declares JSON: its subtype is json or ends in +json (JSON format section 3.1.1).
func IsJSON(mediaType string) bool {
	_, sub := splitMediaType(mediaType)
	return strings.EqualFold(sub, "json") || hasSuffixFold(sub, "+json")
}

// isText reports whether data of a media type is text that a JSON string holds without loss when it is UTF-8.
func isText(mediaType string) bool {
	kind, sub := splitMediaType(mediaType)
	switch {
	case strings.EqualFold(kind, "text"):
	case strings.EqualFold(kind, "application"):
		switch strings.ToLower(sub) {
		case "xml", "yaml", "javascript", "x-www-form-urlencoded":
		default:
			if !hasSuffixFold(sub, "+xml") && !hasSuffixFold(sub, "+yaml") {
				return false
			}
		}
	default:
		return hasSuffixFold(sub, "+xml")
	}
	_, params, _ := strings.Cut(mediaType, ";")
	for p := range strings.SplitSeq(params, ";") {
		name, charset, ok := strings.Cut(p, "=")
		if ok && strings.EqualFold(strings.TrimSpace(name), "charset") {
			charset = strings.Trim(charset, ` "`)
			return strings.EqualFold(charset, "utf-8") || strings.EqualFold(charset, "us-ascii")
		}
	}
	return true
}

// splitMediaType returns type and subtype, without parameters and blanks.
func splitMediaType(s string) (kind, sub string) {
	s, _, _ = strings.Cut(s, ";")
	kind, sub, _ = strings.Cut(strings.TrimSpace(s), "/")
	return kind, sub
}

func hasSuffixFold(s, suffix string) bool {
	return len(s) >= len(suffix) && strings.EqualFold(s[len(s)-len(suffix):], suffix)
}

// isMediaType reports whether s is type/subtype, alone or with parameters after a semicolon. The parameters are carried
// and not looked into.
func isMediaType(s string) bool {
	kind, rest, ok := strings.Cut(s, "/")
	if !ok || kind == "" || !all(kind, mediaToken) {
		return false
	}
	i := 0
	for i < len(rest) && class[rest[i]]&mediaToken != 0 {
		i++
	}
	params := strings.TrimLeft(rest[i:], " ")
	return i > 0 && (params == "" || params[0] == ';') && all(params, mediaParams)
}
