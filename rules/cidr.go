// SPDX-License-Identifier: Apache-2.0

package rules

import "net/netip"

// maxAddress is the longest text of an IP address: IPv6 with an embedded IPv4 address.
const maxAddress = len("ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255")

// inBlock reports whether s is an IP address in block. A block knows its family: an IPv4 block holds no IPv6 address,
// also none that maps an IPv4 address, and the other way round.
func inBlock(s []byte, block netip.Prefix) bool {
	if len(s) > maxAddress || !looksLikeAddress(s) {
		return false
	}
	if address, ok := parseIPv4(s); ok {
		return block.Contains(address)
	}
	address, ok := parseIPv6(s)
	return ok && block.Contains(address)
}

// parseIPv6 reads what RFC 4291 section 2.2 allows, without a zone. netip.ParseAddr does that, too, and copies its input.
func parseIPv6(s []byte) (address netip.Addr, ok bool) {
	var parts [16]byte
	n, gap := 0, -1 // bytes so far; where the :: stands
	if len(s) >= 2 && s[0] == ':' && s[1] == ':' {
		gap, s = 0, s[2:]
	}
	for n < 16 && len(s) > 0 {
		x, digits := 0, 0
		for digits < len(s) && digits < 5 && isHex(s[digits]) {
			x = x<<4 | hexValue(s[digits])
			digits++
		}
		switch {
		case digits == 0 || digits > 4:
			return address, false
		case digits < len(s) && s[digits] == '.':
			v4, ok := parseIPv4(s)
			if !ok || n > 12 || gap < 0 && n != 12 {
				return address, false
			}
			b := v4.As4()
			copy(parts[n:], b[:])
			n, s = n+4, nil
			continue
		}
		parts[n], parts[n+1] = byte(x>>8), byte(x)
		n, s = n+2, s[digits:]
		switch {
		case len(s) == 0:
		case s[0] != ':' || len(s) == 1:
			return address, false
		case s[1] != ':':
			s = s[1:]
		case gap >= 0:
			return address, false
		default:
			gap, s = n, s[2:]
		}
	}
	switch {
	case len(s) > 0 || n < 16 && gap < 0 || n == 16 && gap >= 0:
		return address, false
	case gap >= 0:
		tail := n - gap
		copy(parts[16-tail:], parts[gap:n])
		clear(parts[gap : 16-tail])
	}
	return netip.AddrFrom16(parts), true
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func hexValue(c byte) int {
	if c <= '9' {
		return int(c - '0')
	}
	return int(c|0x20-'a') + 10
}

// parseIPv4 reads four decimal octets without leading zeros. It spares the common case the copy that a string costs.
func parseIPv4(s []byte) (address netip.Addr, ok bool) {
	var octets [4]byte
	for i := range octets {
		n, digits := 0, 0
		for digits < len(s) && digits < 4 && '0' <= s[digits] && s[digits] <= '9' {
			n = n*10 + int(s[digits]-'0')
			digits++
		}
		if digits == 0 || n > 255 || digits > 1 && s[0] == '0' {
			return address, false
		}
		octets[i] = byte(n)
		s = s[digits:]
		switch {
		case i == 3:
		case len(s) == 0 || s[0] != '.':
			return address, false
		default:
			s = s[1:]
		}
	}
	return netip.AddrFrom4(octets), len(s) == 0
}

// looksLikeAddress spares ordinary words the cost of a parse that fails. No zone passes it: a block has none.
func looksLikeAddress(s []byte) bool {
	separator := false
	for _, c := range s {
		switch {
		case '0' <= c && c <= '9', 'a' <= c && c <= 'f', 'A' <= c && c <= 'F':
		case c == '.', c == ':':
			separator = true
		default:
			return false
		}
	}
	return separator
}
