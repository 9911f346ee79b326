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
	address, err := netip.ParseAddr(string(s))
	return err == nil && block.Contains(address)
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
