// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/targets"
)

var noon = time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)

func TestLimiter(t *testing.T) {
	var l limiter
	if n := l.room(noon); n != math.MaxInt32 || !l.next(noon).Equal(noon) {
		t.Errorf("without a limit: room for %d", n)
	}
	l.set(targets.RateLimit{PerSecond: 2, Burst: 3}, noon)
	for i := range 3 {
		if n := l.room(noon); n != 3-i {
			t.Errorf("room for %d, want %d", n, 3-i)
		}
		l.take(noon)
	}
	if at := l.next(noon); l.room(noon) != 0 || !at.Equal(noon.Add(500*time.Millisecond)) {
		t.Errorf("the next is at %v", at)
	}
	if n := l.room(l.next(noon)); n != 1 {
		t.Errorf("room for %d when it was waited for, want 1", n)
	}
	if n := l.room(noon.Add(time.Hour)); n != 3 {
		t.Errorf("room for %d after an hour, want the burst", n)
	}
	l.take(noon.Add(time.Hour))
	if n := l.room(noon); n != 2 { // the clock was set back: it does not stand still for an hour
		t.Errorf("room for %d, want 2", n)
	}
	if n := l.room(noon.Add(500 * time.Millisecond)); n != 3 {
		t.Errorf("room for %d half a second later, want 3", n)
	}
	l.set(targets.RateLimit{PerSecond: 1, Burst: 1}, noon.Add(time.Second))
	if n := l.room(noon.Add(time.Second)); n != 1 {
		t.Errorf("room for %d after the burst was lowered, want 1", n)
	}
	l.set(targets.RateLimit{}, noon)
	l.take(noon)
	if n := l.room(noon); n != math.MaxInt32 {
		t.Errorf("without a limit again: room for %d", n)
	}
}

// However it is asked, no more begins than the rate and the burst allow, and whoever waits until next always finds room.
func TestLimiterHoldsItsRate(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		rate := targets.RateLimit{PerSecond: math.Exp(rnd.Float64()*14 - 4), Burst: 1 + rnd.IntN(20)}
		var l limiter
		l.set(rate, noon)
		now, taken := noon, 0
		for range 2000 {
			if l.room(now) == 0 {
				if rnd.IntN(2) == 0 {
					now = now.Add(l.next(now).Sub(now) / 3)
					continue
				}
				if now = l.next(now); l.room(now) == 0 {
					t.Fatalf("seed %d, %+v: no room at the time that next named", seed, rate)
				}
			}
			l.take(now)
			taken++
		}
		if most := float64(rate.Burst) + now.Sub(noon).Seconds()*rate.PerSecond + 0.01; float64(taken) > most {
			t.Errorf("seed %d, %+v: %d taken, at most %.2f allowed", seed, rate, taken, most)
		}
	}
}
