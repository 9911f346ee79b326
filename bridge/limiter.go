// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"math"
	"time"

	"github.com/rialto-bridge/rialto/targets"
)

// limiter bounds how fast attempts begin: a bucket of tokens that fills with time. It is pure: the caller brings the
// clock, and calls it under a lock. The zero value, and one for a zero RateLimit, limits nothing.
type limiter struct {
	rate   targets.RateLimit
	tokens float64
	at     time.Time // when tokens was right; zero = the bucket is full
}

// set changes the limit. What was used up stays used up.
func (l *limiter) set(r targets.RateLimit, now time.Time) {
	if l.rate.PerSecond == 0 {
		*l = limiter{rate: r}
		return
	}
	l.fill(now)
	l.rate = r
	l.tokens = min(l.tokens, float64(r.Burst))
}

func (l *limiter) fill(now time.Time) {
	full := float64(l.rate.Burst)
	switch past := now.Sub(l.at); {
	case l.at.IsZero():
		l.tokens = full
	case past < 0: // the clock was set back: nothing is gained, and nothing is lost for longer than that
	default:
		l.tokens = min(l.tokens+past.Seconds()*l.rate.PerSecond, full)
	}
	l.at = now
}

// room returns how many attempts may begin now.
func (l *limiter) room(now time.Time) int {
	if l.rate.PerSecond == 0 {
		return math.MaxInt32
	}
	l.fill(now)
	return int(l.tokens + grain)
}

// grain makes up for sums that are not exact: a token that has been waited for is there.
const grain = 1e-6

// next returns when the next attempt may begin; now, if there is room.
func (l *limiter) next(now time.Time) time.Time {
	if l.room(now) > 0 {
		return now
	}
	return now.Add(time.Duration(math.Ceil((1 - l.tokens) / l.rate.PerSecond * float64(time.Second))))
}

// take uses up one token, which must be there.
func (l *limiter) take(now time.Time) {
	if l.rate.PerSecond != 0 {
		l.fill(now)
		l.tokens = max(l.tokens-1, 0)
	}
}
