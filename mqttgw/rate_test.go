// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"net/netip"
	"testing"
	"time"
)

func TestConnectionRates(t *testing.T) {
	g := gate{limits: Limits{MaxConnectRate: 100, MaxConnectRatePerIP: 10}.withDefaults()}
	now := time.Unix(1000, 0)
	one, two := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	come := func(a netip.Addr) string {
		why := g.enter(a, now)
		if why == "" {
			g.leave(a, true)
		}
		return why
	}
	for i := range 200 {
		if why := come(one); why != "" {
			t.Fatalf("connection %d: %s", i, why)
		}
	}
	if why := come(one); why != refusedRate {
		t.Errorf("connection 201: %q, want %q", why, refusedRate)
	}
	if why := come(two); why != "" {
		t.Errorf("another address: %s", why)
	}
	now = now.Add(100 * time.Millisecond)
	if first, second := come(one), come(one); first != "" || second != refusedRate {
		t.Errorf("after 100 ms: %q and %q, want one", first, second)
	}
	for i := range 200 {
		if wait := g.pace(now); wait != 0 {
			t.Fatalf("turn %d waits %s", i, wait)
		}
	}
	wait := g.pace(now)
	if wait <= 0 || wait > 10*time.Millisecond {
		t.Errorf("turn 201 waits %s, want 10ms", wait)
	}
	now = now.Add(wait)
	if wait := g.pace(now); wait != 0 {
		t.Errorf("and then %s", wait)
	}
}

// What is known of addresses that come no more is forgotten.
func TestConnectionRatesAreForgotten(t *testing.T) {
	g := gate{limits: Limits{}.withDefaults()}
	now := time.Unix(1000, 0)
	for i := range 100_000 {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		if why := g.enter(a, now); why != "" {
			t.Fatal(why)
		}
		g.leave(a, true)
		now = now.Add(100 * time.Millisecond)
	}
	if n := len(g.rates); n > 2*minSweep {
		t.Errorf("%d addresses are kept", n)
	}
}
