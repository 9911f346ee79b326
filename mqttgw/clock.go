// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// clock ends sessions whose time is over, publishes wills whose delay has passed, and gives back claims. A session has one
// alarm at most, however often it comes and goes. An alarm that no longer fits its session is passed over, so that a return
// costs nothing.
type clock struct {
	g    *Gateway
	wake chan struct{}

	mu     sync.Mutex
	heap   alarms  // guarded by mu
	claims []claim // guarded by mu; to be given back
}

type claim struct {
	key   sessionKey
	fence uint64
}

type alarm struct {
	at time.Time
	s  *session
}

// alarms is a heap in which each session knows its place: session.alarm, guarded by the clock's mu.
type alarms []alarm

func (a alarms) Len() int           { return len(a) }
func (a alarms) Less(i, j int) bool { return a[i].at.Before(a[j].at) }
func (a alarms) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].s.alarm, a[j].s.alarm = i+1, j+1
}

// Push adds an alarm, for heap.Push.
func (a *alarms) Push(x any) {
	*a = append(*a, x.(alarm)) //nolint:forcetypeassert // of this file only
	(*a)[len(*a)-1].s.alarm = len(*a)
}

// Pop takes the last alarm out, for heap.Pop.
func (a *alarms) Pop() any {
	last := len(*a) - 1
	x := (*a)[last]
	x.s.alarm = 0
	(*a)[last] = alarm{}
	*a = (*a)[:last]
	return x
}

func newClock(g *Gateway) *clock { return &clock{g: g, wake: make(chan struct{}, 1)} }

// watch waits for what is due in an away session, in place of what it waited for before.
func (k *clock) watch(s *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.next()
	if at.IsZero() || s.ended {
		k.forget(s)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if i := s.alarm - 1; i >= 0 {
		k.heap[i].at = at
		heap.Fix(&k.heap, i)
	} else {
		heap.Push(&k.heap, alarm{at, s})
	}
	if k.heap[0].s == s {
		k.signal()
	}
}

// forget waits for nothing in a session any more.
func (k *clock) forget(s *session) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if i := s.alarm - 1; i >= 0 {
		heap.Remove(&k.heap, i)
	}
}

// giveUp gives back the claim of a session that has ended.
func (k *clock) giveUp(key sessionKey, fence uint64) {
	k.mu.Lock()
	k.claims = append(k.claims, claim{key, fence})
	k.mu.Unlock()
	k.signal()
}

func (k *clock) signal() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// run is the clock's goroutine.
func (k *clock) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-timer.C:
		}
		if wait, any := k.ring(ctx, k.g.now()); any {
			timer.Reset(wait)
		}
		k.release(ctx)
	}
}

// ring does what is due and returns the time until the next alarm. When ctx is done it leaves the rest to the next start.
func (k *clock) ring(ctx context.Context, now time.Time) (wait time.Duration, any bool) {
	for ctx.Err() == nil {
		k.mu.Lock()
		if len(k.heap) == 0 {
			k.mu.Unlock()
			return 0, false
		}
		if first := k.heap[0].at; now.Before(first) {
			k.mu.Unlock()
			return first.Sub(now), true
		}
		s := heap.Pop(&k.heap).(alarm).s //nolint:forcetypeassert // of this file only
		k.mu.Unlock()
		k.g.overdue(s, now)
	}
	return 0, false
}

// overdue looks whether something is due in a session.
func (g *Gateway) overdue(s *session, now time.Time) {
	s.mu.Lock()
	if s.ended || s.online {
		s.mu.Unlock()
		return
	}
	if s.lapsed(now) {
		r := s.finish()
		s.mu.Unlock()
		g.bury(s, r)
		return
	}
	w := s.partIfDue(now)
	s.mu.Unlock()
	if w != nil {
		g.publishWill(s)
	}
	g.clock.watch(s)
}

// release gives claims back. One that cannot be given back now is taken over by whoever takes the session next.
func (k *clock) release(ctx context.Context) {
	k.mu.Lock()
	claims := k.claims
	k.claims = nil
	k.mu.Unlock()
	for _, c := range claims {
		if err := k.g.opts.Owners.Release(ctx, c.key.principal, c.key.clientID, c.fence); err != nil && ctx.Err() == nil {
			k.g.log.Warn("claim of a session not given back", "clientId", c.key.clientID, "err", err)
		}
	}
}
