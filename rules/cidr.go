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
	address, err := netip.ParseAddr(string(s))
	return err == nil && block.Contains(address)
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
