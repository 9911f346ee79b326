// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
)

const (
	maxSeen = 10_000    // ids that are known at a time, of about 100 bytes each
	seenFor = time.Hour // how long an id is known
)

// seen knows the ids that were committed lately. It is a ring: the oldest make room. Safe for concurrent use.
type seen struct {
	now func() time.Time

	mu    sync.Mutex // guards below
	when  map[event.Key]time.Time
	order []event.Key
	next  int // of order, once it is full
}

func newSeen(now func() time.Time) *seen {
	return &seen{now: now, when: make(map[event.Key]time.Time)}
}

func (s *seen) has(k event.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.when[k]
	return ok && s.now().Sub(at) < seenFor
}

func (s *seen) add(k event.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.when[k]
	s.when[k] = s.now()
	switch {
	case known:
	case len(s.order) < maxSeen:
		s.order = append(s.order, k)
	default:
		delete(s.when, s.order[s.next])
		s.order[s.next] = k
		s.next = (s.next + 1) % maxSeen
	}
}
