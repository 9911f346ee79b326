// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
)

const (
	maxSeen  = 10_000    // ids that are known at a time, of about 100 bytes each; more only while a signature of theirs is good
	mostSeen = 100_000   // ids that are known at a time, whatever is good
	seenFor  = time.Hour // how long an id is known if there is room
)

// seen knows the ids that were committed lately: at least as long as a request that is sent again would be proved again, up to
// mostSeen of them. The oldest make room. Safe for concurrent use.
type seen struct {
	now func() time.Time

	mu    sync.Mutex    // guards below
	good  time.Duration // how long a request may be good
	long  time.Duration // how long an id is known
	when  map[event.Key]time.Time
	order []event.Key // the oldest first, from head on
	head  int
}

// newSeen makes one for requests that may be good for so long.
func newSeen(now func() time.Time, good time.Duration) *seen {
	s := &seen{now: now, when: make(map[event.Key]time.Time)}
	s.stay(good)
	return s
}

// stay changes how long a request may be good.
func (s *seen) stay(good time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.good, s.long = good, max(seenFor, good)
}

func (s *seen) has(k event.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.when[k]
	return ok && s.now().Sub(at) < s.long
}

func (s *seen) add(k event.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.forget(now)
	if _, known := s.when[k]; !known {
		s.when[k] = now
		s.order = append(s.order, k)
	}
}

// forget makes room for one more. Called with mu held.
func (s *seen) forget(now time.Time) {
	for s.head < len(s.order) {
		k := s.order[s.head]
		age, n := now.Sub(s.when[k]), len(s.order)-s.head
		if age < s.long && n < maxSeen || age < s.good && n < mostSeen {
			break
		}
		delete(s.when, k)
		s.head++
	}
	if s.head > len(s.order)/2 {
		s.order, s.head = append(s.order[:0], s.order[s.head:]...), 0
	}
}
