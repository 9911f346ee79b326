// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"container/heap"
	"math"
	"sync"
	"time"
)

// bucket is a token bucket. It is not safe for concurrent use.
type bucket struct {
	tokens float64
	at     time.Time // when tokens was true
}

// take takes one token and returns 0, or takes none and returns how long it is until there is one.
func (b *bucket) take(perSecond, burst float64, now time.Time) time.Duration {
	if gone := now.Sub(b.at); gone > 0 {
		b.tokens = min(burst, b.tokens+gone.Seconds()*perSecond)
		b.at = now
	}
	if b.tokens >= 1 {
		b.tokens--
		return 0
	}
	return time.Duration(math.Ceil((1 - b.tokens) / perSecond * float64(time.Second)))
}

// quotaKey is what a quota is for: a Device, or a principal's client id that is none. A device that gets another rate gets another
// quota.
type quotaKey struct {
	device              string
	principal, clientID string // without a device
	rate                rateDocument
}

func newQuotaKey(s *standing, who *subject) quotaKey {
	if s.device != nil {
		return quotaKey{device: s.device.Name, rate: *s.rate}
	}
	return quotaKey{principal: who.principal, clientID: who.clientID, rate: *s.rate}
}

// quota bounds how fast a device publishes, over all its connections. It is safe for concurrent use.
type quota struct {
	key              quotaKey
	perSecond, burst float64

	users int       // guarded by quotas.mu; connections
	full  time.Time // guarded by quotas.mu; without users: when nothing is left to remember
	place int       // guarded by quotas.mu; in quotas.idle

	mu     sync.Mutex // taken inside quotas.mu
	bucket bucket     // guarded by mu
}

// take takes one message, and returns 0, or takes none and returns how long it is until there is one.
func (q *quota) take(now time.Time) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bucket.take(q.perSecond, q.burst, now)
}

// refilled is when everything that was taken is there again.
func (q *quota) refilled() time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	missing := (q.burst - q.bucket.tokens) / q.perSecond
	return q.bucket.at.Add(time.Duration(min(missing*float64(time.Second), math.MaxInt64/2)))
}

// maxIdleQuotas bounds the quotas that are kept for devices without a connection. Of more, the one that is full first is forgotten.
const maxIdleQuotas = 100_000

// quotas has the quotas of the devices that are connected, and of those that have gone until these are full again: who comes
// back finds what is left. The zero value is ready. It is safe for concurrent use.
type quotas struct {
	mu   sync.Mutex          // taken inside the locks of connections
	all  map[quotaKey]*quota // guarded by mu
	idle idleQuotas          // guarded by mu; those without users
}

// hold returns the quota of a key for one more connection, and makes it when there is none. drop gives it back.
func (s *quotas) hold(key quotaKey, now time.Time) *quota {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(now, maxIdleQuotas)
	q := s.all[key]
	switch {
	case q == nil:
		q = &quota{key: key, perSecond: key.rate.PerSecond, burst: float64(key.rate.Burst)}
		if key.rate.Burst == 0 {
			q.burst = math.Ceil(q.perSecond)
		}
		q.bucket = bucket{tokens: q.burst, at: now}
		if s.all == nil {
			s.all = map[quotaKey]*quota{}
		}
		s.all[key] = q
	case q.users == 0:
		heap.Remove(&s.idle, q.place)
	}
	q.users++
	return q
}

// drop ends a connection's use of a quota; nil is none.
func (s *quotas) drop(q *quota, now time.Time) {
	if q == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.users--; q.users == 0 {
		q.full = q.refilled()
		heap.Push(&s.idle, q)
	}
	s.forget(now, maxIdleQuotas)
}

// forget takes out what is full, and what is more than most. mu is held.
func (s *quotas) forget(now time.Time, most int) {
	for len(s.idle) > 0 && (len(s.idle) > most || !now.Before(s.idle[0].full)) {
		q := heap.Pop(&s.idle).(*quota) //nolint:forcetypeassert // of this file only
		delete(s.all, q.key)
	}
}

// idleQuotas is a heap of quotas by the time at which they are full.
type idleQuotas []*quota

func (h idleQuotas) Len() int           { return len(h) }
func (h idleQuotas) Less(i, j int) bool { return h[i].full.Before(h[j].full) }
func (h idleQuotas) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push implements heap.Interface.
func (h *idleQuotas) Push(x any) {
	q := x.(*quota) //nolint:forcetypeassert // of this file only
	q.place = len(*h)
	*h = append(*h, q)
}

// Pop implements heap.Interface.
func (h *idleQuotas) Pop() any {
	last := len(*h) - 1
	q := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return q
}
