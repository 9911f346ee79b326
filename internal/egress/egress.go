// SPDX-License-Identifier: Apache-2.0

// Package egress keeps outbound connections on the public internet.
//
// Users name the addresses that the bridge connects to, so that a definition could otherwise reach what only the bridge
// can: its own API, the database beside it, the metadata service of the cloud. A Guard refuses every address that is
// not public, unless the operator has allowed it. It looks at the address that is about to be dialled, after all
// names are resolved, so that no spelling, alias or change of mind of a name server gets around it. CheckURL tells a
// user the same when a definition is written; it is a courtesy, the dialer is the wall.
//
// The broader an entry of the operator's list, the less it was thought about. So a network opens neither metadata services
// nor, in an IPv6 address that wraps an IPv4 one, what the wrapped address may not be; an entry for the very address
// does. What is protected, such as the listeners of this process, is opened only by an entry for address and port.
//
// A Guard is safe for concurrent use. Only Protect changes it.
package egress

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// Guard decides which addresses may be connected to, and dials them.
type Guard struct {
	allow  []Entry
	dialer net.Dialer

	mu  sync.RWMutex // guards own
	own map[netip.AddrPort]string
}

// Options configures a Guard. The zero value allows the public internet only.
type Options struct {
	Allow    []Entry       // what is allowed although it is not public
	Resolver *net.Resolver // nil = the system's name servers, through Go's own resolver
}

// New returns a Guard.
func New(o Options) *Guard {
	g := &Guard{allow: o.Allow, own: make(map[netip.AddrPort]string)}
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

// Setting is the flag, and without its dashes the key of the configuration file, by which the operator allows addresses.
const Setting = "--egress-allow"

// BlockedError is why an address was refused.
type BlockedError struct {
	Addr netip.AddrPort // as it would have been dialled, without zone; not valid if it was no address of TCP
	Why  string         // what the address is, such as loopback
}

// Error names the address, what it is, and the entry by which the operator would allow it.
func (e *BlockedError) Error() string {
	if !e.Addr.IsValid() {
		return "the address is not allowed (" + e.Why + ")"
	}
	return fmt.Sprintf("address %s is not allowed (%s); %s %s allows it (config key %s)", e.Addr.Addr(), e.Why, Setting, e.Entry(), Setting[2:])
}

// Entry returns what has to be on the operator's list for this address and port, and no other, to be allowed.
func (e *BlockedError) Entry() Entry {
	a := e.Addr.Addr()
	return Entry{Prefix: netip.PrefixFrom(a, a.BitLen()), First: e.Addr.Port(), Last: e.Addr.Port()}
}

// Protect refuses addresses whatever networks are allowed, and whether they are public or not: listeners of this process,
// other members of its cluster. what says what they are. An address that is unspecified, as that of a listener on all
// interfaces, stands for every address that this host has at the moment of a connection.
func (g *Guard) Protect(what string, addrs ...netip.AddrPort) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, ap := range addrs {
		addr := plain(ap.Addr())
		if !addr.IsValid() || addr.IsUnspecified() { // a listener on 0.0.0.0 and one on [::] differ by what we need not know
			addr = netip.IPv6Unspecified()
		}
		g.own[netip.AddrPortFrom(addr, ap.Port())] = what
	}
}

// protected returns what an address is that only an entry of its own opens; "" if it is none.
func (g *Guard) protected(ap netip.AddrPort) string {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if what := g.own[ap]; what != "" {
		return what
	}
	if addr := ap.Addr(); addr.IsUnspecified() { // connects to this host, by whichever of its addresses
		for own, what := range g.own {
			if own.Port() == ap.Port() {
				return what
			}
		}
	}
	if what := g.own[netip.AddrPortFrom(netip.IPv6Unspecified(), ap.Port())]; what != "" && isOurs(ap.Addr()) {
		return what
	}
	return ""
}

// isOurs reports whether an address is one of this host. It asks the system each time: addresses come and go, and this
// is asked only of connections to a port of our own.
func isOurs(addr netip.Addr) bool {
	if addr.IsLoopback() {
		return true
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return true
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			if ours, ok := netip.AddrFromSlice(n.IP); ok && plain(ours) == addr {
				return true
			}
		}
	}
	return false
}

// plain returns the form of an address that comparisons are made with.
func plain(addr netip.Addr) netip.Addr { return addr.WithZone("").Unmap() }

// Check returns a *BlockedError unless a connection to addr may be made.
func (g *Guard) Check(addr netip.AddrPort) error {
	addr = netip.AddrPortFrom(plain(addr.Addr()), addr.Port())
	if what := g.protected(addr); what != "" {
		if g.allows(addr, Entry.exact) {
			return nil
		}
		return &BlockedError{Addr: addr, Why: what}
	}
	return g.checkPublic(addr, addr.Addr())
}

// checkPublic checks what kind of address one is: that of a connection, or one that is wrapped in it.
func (g *Guard) checkPublic(conn netip.AddrPort, addr netip.Addr) error {
	why := classify(addr)
	at := netip.AddrPortFrom(addr, conn.Port())
	switch {
	case why == "", g.allows(at, Entry.single):
		return nil
	case metadata[addr] || !g.allows(at, Entry.any):
		return &BlockedError{Addr: conn, Why: why}
	}
	if inner, ok := unwrap(addr); ok { // a network is allowed, but not all that is reached by way of it
		return g.checkPublic(conn, inner)
	}
	return nil
}

// allows reports whether an entry for addr is of the kind that is asked for.
func (g *Guard) allows(addr netip.AddrPort, kind func(Entry) bool) bool {
	for _, e := range g.allow {
		if e.Contains(addr) && kind(e) {
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
	return g.Check(ap)
}
