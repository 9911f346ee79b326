// SPDX-License-Identifier: Apache-2.0

// Package egress keeps outbound connections on the public internet.
//
// Users name the addresses that the bridge connects to, so that a definition could otherwise reach what only the bridge
// can: its own API, the database beside it, the metadata service of the cloud. A Guard refuses every address that is
// not public, unless the operator has allowed it. It looks at the address that is about to be dialled, after all
// names are resolved, so that no spelling, alias or change of mind of a name server gets around it. CheckURL tells a
// user the same when a definition is written; it is a courtesy, the dialer is the wall.
//
// A Guard is immutable and safe for concurrent use.
package egress

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"
)

// Guard decides which addresses may be connected to, and dials them.
type Guard struct {
	allow  []netip.Prefix
	dialer net.Dialer
}

// Options configures a Guard. The zero value allows the public internet only.
type Options struct {
	Allow    []netip.Prefix // addresses that are allowed although they are not public
	Resolver *net.Resolver  // nil = the system's name servers, through Go's own resolver
}

// New returns a Guard.
func New(o Options) *Guard {
	g := &Guard{allow: o.Allow}
	resolver := o.Resolver
	if resolver == nil {
		// The C library takes 127.1 and 0x7f000001 for addresses; Go's resolver does not.
		resolver = &net.Resolver{PreferGo: true}
	}
	g.dialer = net.Dialer{
		Timeout:   10 * time.Second,
		KeepAlive: 30 * time.Second,
		Resolver:  resolver,
		ControlContext: func(_ context.Context, network, address string, _ syscall.RawConn) error {
			return g.checkDial(network, address)
		},
	}
	return g
}

// ParseAllow reads an allow-list: networks such as 10.1.0.0/16 and single addresses, separated by commas.
func ParseAllow(list string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for item := range strings.SplitSeq(list, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		p, err := netip.ParsePrefix(item)
		if err != nil {
			addr, addrErr := netip.ParseAddr(item)
			if addrErr != nil || addr.Zone() != "" {
				return nil, fmt.Errorf("%q is neither a network such as 10.1.0.0/16 nor an address", item)
			}
			p = netip.PrefixFrom(addr, addr.BitLen())
		}
		if p.Addr().Is4In6() {
			return nil, fmt.Errorf("%q is an IPv4 network in IPv6 form; write it as IPv4", item)
		}
		if p != p.Masked() {
			return nil, fmt.Errorf("%q has bits behind its mask; write %s", item, p.Masked())
		}
		out = append(out, p)
	}
	return out, nil
}

// BlockedError is why an address was refused.
type BlockedError struct {
	Addr netip.Addr // as it would have been dialled, without zone
	Why  string     // what the address is, such as loopback
}

// Error names the address and what it is.
func (e *BlockedError) Error() string {
	return fmt.Sprintf("address %s is not allowed (%s)", e.Addr, e.Why)
}

// Check returns a *BlockedError unless addr may be connected to.
func (g *Guard) Check(addr netip.Addr) error {
	addr = addr.WithZone("").Unmap()
	why := classify(addr)
	if why == "" || g.allows(addr) {
		return nil
	}
	return &BlockedError{Addr: addr, Why: why}
}

func (g *Guard) allows(addr netip.Addr) bool {
	for _, p := range g.allow {
		if p.Contains(addr) && (!metadata[addr] || p.IsSingleIP()) {
			return true
		}
	}
	return false
}

// classify returns what keeps addr from being public; "" when nothing does.
func classify(addr netip.Addr) string {
	if !addr.IsValid() {
		return "no address"
	}
	if metadata[addr] {
		return "metadata service"
	}
	for _, s := range denied {
		if s.prefix.Contains(addr) {
			return s.why
		}
	}
	if addr.Is6() && !globalUnicast.Contains(addr) {
		return "not in use on the internet"
	}
	return ""
}

// DialContext connects like net.Dialer.DialContext, over TCP only, to an address that Check allows. Of a name with
// several addresses the allowed ones are tried. The error wraps a *BlockedError when an address was refused.
func (g *Guard) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return g.dialer.DialContext(ctx, network, address)
}

// checkDial is called with the final address, just before connect.
func (g *Guard) checkDial(network, address string) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil || network != "tcp4" && network != "tcp6" {
		return &BlockedError{Why: "not an address of TCP"}
	}
	return g.Check(ap.Addr())
}
