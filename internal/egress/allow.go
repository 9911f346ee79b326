// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Entry is one of the operator's list: addresses, and the ports at them, that may be connected to.
type Entry struct {
	Prefix      netip.Prefix
	First, Last uint16 // ports, both included; both 0 = every port
}

// ParseAllow reads the operator's list: networks and single addresses, each with a port or a range of ports if it is not
// meant for all of them, separated by commas: 10.1.0.0/16, 10.1.2.0/24:8443, 10.1.2.3:8000-8099, [fd00::/8]:443. The error
// names the entry that it is about.
func ParseAllow(list string) ([]Entry, error) {
	var out []Entry
	for item := range strings.SplitSeq(list, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		e, err := parseEntry(item)
		if err != nil {
			return nil, fmt.Errorf("%q %w", item, err)
		}
		out = append(out, e)
	}
	return out, nil
}

func parseEntry(item string) (e Entry, err error) {
	network, ports, err := splitPorts(item)
	if err != nil {
		return e, err
	}
	if ports != "" {
		if e.First, e.Last, err = parsePorts(ports); err != nil {
			return e, err
		}
	}
	if e.Prefix, err = netip.ParsePrefix(network); err != nil {
		addr, addrErr := netip.ParseAddr(network)
		if addrErr != nil || addr.Zone() != "" {
			return e, errors.New("is neither a network such as 10.1.0.0/16 or [fd00::/8]:443 nor an address")
		}
		e.Prefix = netip.PrefixFrom(addr, addr.BitLen())
	}
	if e.Prefix.Addr().Is4In6() {
		return e, errors.New("is an IPv4 network in IPv6 form; write it as IPv4")
	}
	if e.Prefix != e.Prefix.Masked() {
		return e, fmt.Errorf("has bits behind its mask; write %s", Entry{e.Prefix.Masked(), e.First, e.Last})
	}
	return e, nil
}

// splitPorts splits an entry into its network and its ports; those are "" if it names none.
func splitPorts(item string) (network, ports string, err error) {
	if inner, ok := strings.CutPrefix(item, "["); ok {
		network, rest, _ := strings.Cut(inner, "]")
		if ports, ok = strings.CutPrefix(rest, ":"); !ok || ports == "" || !strings.Contains(network, ":") {
			return "", "", errors.New("is not of the form [fd00::/8]:443")
		}
		return network, ports, nil
	}
	switch strings.Count(item, ":") {
	case 0:
		return item, "", nil
	case 1:
		network, ports, _ = strings.Cut(item, ":")
		if ports == "" {
			return "", "", errors.New("has a colon and no port")
		}
		return network, ports, nil
	}
	if _, bits, ok := strings.Cut(item, "/"); ok && strings.Contains(bits, ":") {
		bits, ports, _ := strings.Cut(bits, ":")
		addr, _, _ := strings.Cut(item, "/")
		return "", "", fmt.Errorf("has a port behind an IPv6 network; write [%s/%s]:%s", addr, bits, ports)
	}
	return item, "", nil
}

func parsePorts(text string) (first, last uint16, err error) {
	from, to, isRange := strings.Cut(text, "-")
	if !isRange {
		to = from
	}
	if first, err = parsePort(from); err == nil {
		last, err = parsePort(to)
	}
	if err != nil || first > last {
		return 0, 0, errors.New("has no valid port: one from 1 to 65535, or two with a - between them, the lower first")
	}
	return first, last, nil
}

func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || text[0] == '0' {
		return 0, strconv.ErrRange
	}
	return uint16(n), nil
}

// Contains reports whether the entry is about a connection to addr, which has neither a zone nor IPv4 in its mapped form.
func (e Entry) Contains(addr netip.AddrPort) bool {
	return e.Prefix.Contains(addr.Addr()) && (e.Last == 0 || addr.Port() >= e.First && addr.Port() <= e.Last)
}

// String returns the entry as ParseAllow reads it.
func (e Entry) String() string {
	network := e.Prefix.String()
	if e.Prefix.IsSingleIP() {
		network = e.Prefix.Addr().String()
	}
	if e.Last == 0 {
		return network
	}
	if e.Prefix.Addr().Is6() {
		network = "[" + network + "]"
	}
	if e.First == e.Last {
		return fmt.Sprintf("%s:%d", network, e.First)
	}
	return fmt.Sprintf("%s:%d-%d", network, e.First, e.Last)
}

// How closely an entry says what it opens.
func (e Entry) any() bool    { return true }
func (e Entry) single() bool { return e.Prefix.IsSingleIP() }
func (e Entry) exact() bool  { return e.single() && e.Last != 0 && e.First == e.Last }
