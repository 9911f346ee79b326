// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"math"
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

// quota bounds how fast a client publishes. It is the reader's.
type quota struct {
	perSecond, burst float64
	bucket           bucket
}

// newQuota returns a full quota; nil for none.
func newQuota(r *rateDocument, now time.Time) *quota {
	if r == nil {
		return nil
	}
	q := &quota{perSecond: r.PerSecond, burst: float64(r.Burst)}
	if r.Burst == 0 {
		q.burst = math.Ceil(r.PerSecond)
	}
	q.bucket = bucket{tokens: q.burst, at: now}
	return q
}

func (q *quota) take(now time.Time) time.Duration { return q.bucket.take(q.perSecond, q.burst, now) }
