// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"fmt"
	"testing"
	"time"
)

// What a device has used up is remembered until it is there again, and then nothing is.
func TestQuotaOutlivesConnections(t *testing.T) {
	var s quotas
	now := time.Unix(1000, 0)
	key := quotaKey{device: "box", rate: rateDocument{PerSecond: 0.5, Burst: 3}}
	one, two := s.hold(key, now), s.hold(key, now)
	if one != two {
		t.Fatal("two connections have two quotas")
	}
	for i := range 3 {
		if wait := one.take(now); wait != 0 {
			t.Fatalf("message %d waits %s", i, wait)
		}
	}
	s.drop(one, now)
	s.drop(two, now)
	now = now.Add(2 * time.Second)
	back := s.hold(key, now)
	if first, second := back.take(now), back.take(now); first != 0 || second != 2*time.Second {
		t.Errorf("back after 2s: %s and %s, want one message", first, second)
	}
	s.drop(back, now)
	if other := s.hold(quotaKey{principal: "p", clientID: "box", rate: key.rate}, now); other == back {
		t.Error("a client that is no device shares the quota of one")
	}
	now = now.Add(5 * time.Second)
	if s.drop(nil, now); s.all[key] == nil {
		t.Error("forgotten before it is full")
	}
	now = now.Add(time.Second)
	s.drop(s.hold(quotaKey{device: "x", rate: key.rate}, now), now)
	if s.all[key] != nil || len(s.all) != 1 || len(s.idle) != 0 {
		t.Errorf("%d quotas are kept, %d of them idle", len(s.all), len(s.idle))
	}
}

// However long a refill takes, the quotas of those who have gone are bounded; the fullest are forgotten first.
func TestIdleQuotasAreBounded(t *testing.T) {
	var s quotas
	now := time.Unix(1000, 0)
	rate := rateDocument{PerSecond: 1e-9, Burst: 10}
	empty := quotaKey{device: "empty", rate: rate}
	q := s.hold(empty, now)
	for range 10 {
		q.take(now)
	}
	s.drop(q, now)
	for i := range maxIdleQuotas + 10 {
		q := s.hold(quotaKey{clientID: fmt.Sprint(i), rate: rate}, now)
		q.take(now)
		s.drop(q, now)
	}
	if len(s.all) != maxIdleQuotas || s.all[empty] == nil {
		t.Errorf("%d quotas are kept, that of the empty one: %v", len(s.all), s.all[empty] != nil)
	}
}
