// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"strconv"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
)

// An id is known for as long as its request would be proved again, however many come; up to a bound. Longer than that it is known
// while there is room, and an hour at most.
func TestIDsAreKnownWhileTheyAreGood(t *testing.T) {
	now := time.Unix(1e9, 0)
	s := newSeen(func() time.Time { return now }, 10*time.Minute)
	key := func(i int) event.Key { return (&event.Event{Source: "/s", ID: strconv.Itoa(i)}).Key() }
	next := 0
	add := func(n int) {
		for range n {
			s.add(key(next))
			next++
		}
	}
	oldest := func(want int) {
		t.Helper()
		for _, i := range []int{want, want + 1, next - 1} {
			if !s.has(key(i)) {
				t.Errorf("id %d of %d is forgotten", i, next)
			}
		}
		if want > 0 && s.has(key(want-1)) {
			t.Errorf("id %d of %d is known", want-1, next)
		}
		if len(s.when) != len(s.order)-s.head || len(s.order) > 2*mostSeen {
			t.Errorf("%d ids, %d in order from %d on", len(s.when), len(s.order), s.head)
		}
	}
	add(3 * maxSeen)
	oldest(0)
	now = now.Add(10*time.Minute - time.Nanosecond)
	add(1)
	oldest(0)
	now = now.Add(time.Nanosecond) // the first are good no longer, and there are more than need be
	add(1)
	oldest(2*maxSeen + 2)
	add(2 * mostSeen)
	oldest(next - mostSeen)
	now = now.Add(time.Hour - time.Nanosecond)
	add(1)
	oldest(next - maxSeen)
	now = now.Add(time.Nanosecond)
	add(1)
	oldest(next - 2)
	if s.add(key(next - 1)); len(s.order)-s.head != 2 {
		t.Errorf("an id that is known is there twice: %d", len(s.order)-s.head)
	}
}

// A tolerance of more than half an hour is longer than the hour that ids are known else.
func TestIDsAreKnownForALongTolerance(t *testing.T) {
	now := time.Unix(1e9, 0)
	s := newSeen(func() time.Time { return now }, 2*time.Hour)
	k := (&event.Event{Source: "/s", ID: "1"}).Key()
	s.add(k)
	if now = now.Add(2*time.Hour - time.Nanosecond); !s.has(k) {
		t.Error("an id is forgotten while it is good")
	}
}
