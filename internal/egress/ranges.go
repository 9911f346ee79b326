// SPDX-License-Identifier: Apache-2.0

package egress

import "net/netip"

// span is a range of addresses that is not the public internet, and what it is for.
type span struct {
	prefix netip.Prefix
	why    string
}

func spans(why string, prefixes ...string) []span {
	out := make([]span, len(prefixes))
	for i, p := range prefixes {
		out[i] = span{netip.MustParsePrefix(p), why}
	}
	return out
}

// denied is the special-purpose registries of IANA, without what is covered by "outside 2000::/3". Ranges that wrap an
// IPv4 address are here as a whole, whatever address they wrap: nobody's webhook lives there.
var denied = concat(
	spans("this host", "0.0.0.0/8"),
	spans("loopback", "127.0.0.0/8", "::1/128"),
	spans("private network", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),
	spans("shared address space", "100.64.0.0/10"),
	spans("link-local", "169.254.0.0/16", "fe80::/10"),
	spans("protocol assignments", "192.0.0.0/24", "2001::/23"),
	spans("documentation", "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20"),
	spans("6to4", "192.88.99.0/24", "2002::/16"),
	spans("benchmarking", "198.18.0.0/15"),
	spans("multicast", "224.0.0.0/4", "ff00::/8"),
	spans("reserved", "240.0.0.0/4"),
	spans("IPv4 in IPv6", "::/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48"),
)

// wrappers are the ranges whose addresses carry an IPv4 address, and at which byte. A gateway on the way unwraps it.
var wrappers = []struct {
	prefix netip.Prefix
	at     int
	flip   byte // each byte is combined with it
}{
	{prefix: netip.MustParsePrefix("::/96"), at: 12},
	{prefix: netip.MustParsePrefix("::ffff:0:0:0/96"), at: 12},
	{prefix: netip.MustParsePrefix("64:ff9b::/96"), at: 12},
	{prefix: netip.MustParsePrefix("64:ff9b:1::/48"), at: 12},
	{prefix: netip.MustParsePrefix("2002::/16"), at: 2},
	{prefix: netip.MustParsePrefix("2001::/32"), at: 12, flip: 0xff}, // Teredo hides it from naive translators
}

// unwrap returns the IPv4 address that an IPv6 address carries.
func unwrap(addr netip.Addr) (netip.Addr, bool) {
	if addr.IsLoopback() || addr.IsUnspecified() { // in ::/96, and still themselves
		return netip.Addr{}, false
	}
	for _, w := range wrappers {
		if w.prefix.Contains(addr) {
			whole := addr.As16()
			inner := [4]byte(whole[w.at : w.at+4])
			for i := range inner {
				inner[i] ^= w.flip
			}
			return netip.AddrFrom4(inner), true
		}
	}
	return netip.Addr{}, false
}

// metadata is the addresses at which clouds answer questions about the machine, credentials included. A range on the
// allow-list does not open them: only an entry for the very address does.
var metadata = addresses(
	"169.254.169.254", "fd00:ec2::254", // several clouds
	"169.254.170.2", "169.254.170.23", "fd00:ec2::23", // container and pod credentials
	"169.254.0.23",    // Tencent
	"100.100.100.200", // Alibaba
	"100.96.0.96",     // Volcengine
	"192.0.0.192",     // Oracle
	"168.63.129.16",   // Azure; a public address
)

// globalUnicast is all that is given out of IPv6 so far; the rest is refused unseen.
var globalUnicast = netip.MustParsePrefix("2000::/3")

func concat(lists ...[]span) (all []span) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

func addresses(texts ...string) map[netip.Addr]bool {
	m := make(map[netip.Addr]bool, len(texts))
	for _, t := range texts {
		m[netip.MustParseAddr(t)] = true
	}
	return m
}
