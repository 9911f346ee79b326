// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
)

// addressOf is what limits by address count under: the IP, for IPv6 its /64. The zero Addr stands for connections
// without an IP.
func addressOf(nc net.Conn) netip.Addr {
	ap, err := netip.ParseAddrPort(nc.RemoteAddr().String())
	if err != nil {
		return netip.Addr{}
	}
	a := ap.Addr().Unmap().WithZone("")
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			a = p.Masked().Addr()
		}
	}
	return a
}

// gate counts connections, in all and by address, and how fast they come.
type gate struct {
	limits Limits

	mu        sync.Mutex
	total     int                   // guarded by mu
	byAddr    map[netip.Addr]counts // guarded by mu
	announced bucket                // guarded by mu; of events about clients that were refused
	rate      bucket                // guarded by mu; of all
	rates     map[netip.Addr]bucket // guarded by mu; those that are not full, and some that are
	sweepAt   int                   // guarded by mu; size of rates at which the full ones are forgotten
}

// Bursts, in seconds of the rate: a fleet that was cut off comes back at once.
const (
	rateBurst     = 2
	addrRateBurst = 20
)

// pace takes a place among the new connections and returns 0, or takes none and returns how long to wait for one.
func (g *gate) pace(now time.Time) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	perSecond := float64(g.limits.MaxConnectRate)
	if g.rate.at.IsZero() {
		g.rate = bucket{tokens: rateBurst * perSecond, at: now}
	}
	return g.rate.take(perSecond, rateBurst*perSecond, now)
}

// mayAnnounce reports whether another event about a client that was refused may be published.
func (g *gate) mayAnnounce(now time.Time) bool {
	const perSecond, burst = 10, 100
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.announced.at.IsZero() {
		g.announced = bucket{tokens: burst, at: now}
	}
	return g.announced.take(perSecond, burst, now) == 0
}

// tooFast counts a new connection of an address and reports whether it is one too many. mu is held.
func (g *gate) tooFast(a netip.Addr, now time.Time) bool {
	perSecond := float64(g.limits.MaxConnectRatePerIP)
	burst := addrRateBurst * perSecond
	b, ok := g.rates[a]
	if !ok {
		b = bucket{tokens: burst, at: now}
	}
	wait := b.take(perSecond, burst, now)
	if g.rates == nil {
		g.rates, g.sweepAt = map[netip.Addr]bucket{}, minSweep
	}
	g.rates[a] = b
	if len(g.rates) >= g.sweepAt {
		for addr, b := range g.rates {
			if now.Sub(b.at) > addrRateBurst*time.Second {
				delete(g.rates, addr) // it would be full by now
			}
		}
		g.sweepAt = max(minSweep, 2*len(g.rates))
	}
	return wait > 0
}

const minSweep = 1024

// pacedListener accepts as fast as the gate allows.
type pacedListener struct {
	net.Listener
	g   *Gateway
	ctx context.Context // of Serve: ends the wait
}

// Accept waits for a connection and for its turn.
func (l *pacedListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	for {
		wait := l.g.gate.pace(l.g.now())
		if wait == 0 {
			return nc, nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-l.ctx.Done():
			timer.Stop()
			return nil, errors.Join(net.ErrClosed, nc.Close())
		case <-timer.C:
		}
	}
}

type counts struct{ open, connecting int }

// enter counts a connection in, as connecting, or says which limit is in the way.
func (g *gate) enter(a netip.Addr, now time.Time) (why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.byAddr[a]
	switch {
	case g.total >= g.limits.MaxConnections:
		return refusedTotal
	case p.open >= g.limits.MaxConnectionsPerIP:
		return refusedAddress
	case p.connecting >= g.limits.MaxConnectingPerIP:
		return refusedConnecting
	case g.tooFast(a, now):
		return refusedRate
	}
	if g.byAddr == nil {
		g.byAddr = map[netip.Addr]counts{}
	}
	g.total++
	g.byAddr[a] = counts{open: p.open + 1, connecting: p.connecting + 1}
	return ""
}

// establish says that a connection is not connecting any more.
func (g *gate) establish(a netip.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.byAddr[a]
	p.connecting--
	g.byAddr[a] = p
}

// leave counts a connection out.
func (g *gate) leave(a netip.Addr, connecting bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.total--
	p := g.byAddr[a]
	p.open--
	if connecting {
		p.connecting--
	}
	if p == (counts{}) {
		delete(g.byAddr, a)
		return
	}
	g.byAddr[a] = p
}

// failures counts failed log-ins by address and by address and user name, a minute at a time. Its size is bounded: when
// it is full, what it knows is forgotten early, which costs an attacker's attempts some hashing and nobody else anything.
type failures struct {
	perUser, perAddr int

	mu     sync.Mutex
	minute int64              // guarded by mu; the minute that is counted
	byUser map[attempt]int    // guarded by mu
	byAddr map[netip.Addr]int // guarded by mu
}

type attempt struct {
	addr netip.Addr
	user string
}

const maxFailures = 50_000

func newFailures(l Limits) *failures {
	return &failures{perUser: l.MaxFailuresPerMinute, perAddr: l.MaxFailuresPerAddress, byUser: map[attempt]int{}, byAddr: map[netip.Addr]int{}}
}

// turn starts a new minute. mu is held.
func (f *failures) turn(now time.Time) {
	if m := now.Unix() / 60; m != f.minute || len(f.byUser) >= maxFailures || len(f.byAddr) >= maxFailures {
		f.minute = m
		clear(f.byUser)
		clear(f.byAddr)
	}
}

// blocked reports whether an attempt is not to be looked at.
func (f *failures) blocked(a netip.Addr, user string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.turn(now)
	return f.byUser[attempt{a, user}] >= f.perUser || f.byAddr[a] >= f.perAddr
}

// note counts a failure.
func (f *failures) note(a netip.Addr, user string, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.turn(now)
	f.byUser[attempt{a, user}]++
	f.byAddr[a]++
}
