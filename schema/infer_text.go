// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// inferFormats are the formats that strings are tried for. A string has at most one of them.
var inferFormats = [...]string{"date-time", "date", "uuid", "email", "uri", "ipv4", "ipv6"}

const (
	formatDateTime = iota
	formatDate
	formatUUID
	formatEmail
	formatURI
	formatIPv4
	formatIPv6
)

// formatOf returns the index of the format of s in inferFormats, or -1. It is stricter than the validator everywhere:
// what it accepts is valid.
func formatOf(s string) int {
	switch {
	case len(s) < 2 || len(s) > 2048:
	case len(s) == 10 && isDate(s):
		return formatDate
	case len(s) >= 20 && s[10] == 'T' && isDateTime(s):
		return formatDateTime
	case len(s) == 36 && isUUID(s):
		return formatUUID
	case strings.Contains(s, "://"):
		if isURI(s) {
			return formatURI
		}
	case strings.Contains(s, "@"):
		if isEmail(s) {
			return formatEmail
		}
	case len(s) <= 45 && strings.ContainsAny(s, ".:"):
		return addressFormat(s)
	}
	return -1
}

func isDigits[S string | []byte](s S) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return len(s) > 0
}

// number2 is the number that two digits at i are; -1 if they are none.
func number2[S string | []byte](s S, i int) int {
	if !isDigits(s[i : i+2]) {
		return -1
	}
	return 10*int(s[i]-'0') + int(s[i+1]-'0')
}

func isDate[S string | []byte](s S) bool {
	year, month, day := 100*number2(s, 0)+number2(s, 2), number2(s, 5), number2(s, 8)
	if !isDigits(s[:4]) || s[4] != '-' || s[7] != '-' || month < 1 || month > 12 || day < 1 {
		return false
	}
	return day <= 28 || day <= time.Date(year, time.Month(month)+1, 0, 0, 0, 0, 0, time.UTC).Day()
}

// isDateTime is RFC 3339 with capital letters, without leap seconds.
func isDateTime[S string | []byte](s S) bool {
	if !isDate(s[:10]) || !isClock(s[11:16]) || s[16] != ':' {
		return false
	}
	if second := number2(s, 17); second < 0 || second > 59 {
		return false
	}
	rest := s[19:]
	if rest[0] == '.' {
		end := 1
		for end < len(rest) && rest[end] >= '0' && rest[end] <= '9' {
			end++
		}
		if end == 1 {
			return false
		}
		rest = rest[end:]
	}
	return len(rest) == 1 && rest[0] == 'Z' || len(rest) == 6 && (rest[0] == '+' || rest[0] == '-') && isClock(rest[1:])
}

// isClock reads hh:mm.
func isClock[S string | []byte](s S) bool {
	hour, minute := number2(s, 0), number2(s, 3)
	return hour >= 0 && hour <= 23 && s[2] == ':' && minute >= 0 && minute <= 59
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func isUUID[S string | []byte](s S) bool {
	for i := range len(s) {
		dash := i == 8 || i == 13 || i == 18 || i == 23
		if dash != (s[i] == '-') || !dash && !isHex(s[i]) {
			return false
		}
	}
	return len(s) == 36
}

func isURI(s string) bool {
	if strings.ContainsAny(s, " <>\"{}|\\^`") {
		return false
	}
	u, err := url.Parse(s)
	return err == nil && u.Scheme != "" && u.Host != "" && !strings.Contains(u.Hostname(), ":")
}

func isEmail(s string) bool {
	local, domain, _ := strings.Cut(s, "@")
	if local == "" || len(local) > 64 || len(s) > 254 || local[0] == '.' || local[len(local)-1] == '.' || strings.Contains(local, "..") {
		return false
	}
	for i := range len(local) {
		if !isAlnum(local[i]) && !strings.ContainsRune("._%+-", rune(local[i])) {
			return false
		}
	}
	labels, last := 0, ""
	for l := range strings.SplitSeq(domain, ".") {
		if !isLabel(l) {
			return false
		}
		labels, last = labels+1, l
	}
	return labels > 1 && !isDigits(last)
}

func isAlnum(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func isLabel(l string) bool {
	if l == "" || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' {
		return false
	}
	for i := range len(l) {
		if !isAlnum(l[i]) && l[i] != '-' {
			return false
		}
	}
	return true
}

func addressFormat(s string) int {
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil || a.Zone() != "":
		return -1
	case a.Is4():
		return formatIPv4
	}
	return formatIPv6
}

// isWord says whether a string may be one of an enumeration, such as "paid" or "IN_TRANSIT": short, one word, not a
// number. What people write (names, sentences, addresses) is not, so that it is not kept either.
func isWord(s string) bool {
	letter := false
	for i := range len(s) {
		c := s[i]
		if !isAlnum(c) && c != '_' && c != '-' && c != '.' && c != '/' {
			return false
		}
		letter = letter || c > '9' && isAlnum(c)
	}
	return letter && len(s) <= maxInferWord
}

// looksLikeData says whether the name of a field is a value rather than a name: an id, a number, a date, an address.
func looksLikeData(name string) bool {
	if len(name) > maxInferKey || formatOf(name) >= 0 || strings.Contains(name, "@") {
		return true
	}
	digits, longest, hex := 0, 0, true
	run := 0
	for i := range len(name) {
		if c := name[i]; c >= '0' && c <= '9' {
			digits++
			run++
			longest = max(longest, run)
			continue
		} else if !isHex(c) {
			hex = false
		}
		run = 0
	}
	return digits > 0 && (digits == len(name) || longest >= 5 || hex && len(name) >= 8)
}
