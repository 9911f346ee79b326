// SPDX-License-Identifier: Apache-2.0

package targets

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// DeliveryPolicy is how a lane treats its target.
type DeliveryPolicy struct {
	Concurrency int           // attempts at the same time, 1-256
	Timeout     time.Duration // of one attempt, connecting and reading included; 1 s to 60 s
	Rate        RateLimit
	Breaker     BreakerPolicy
	Retry       RetryPolicy
	Status      StatusPolicy
	Ordering    *Ordering // nil = events are delivered in any order
}

// RateLimit bounds how fast attempts begin. The zero value does not.
type RateLimit struct {
	PerSecond float64 // 0 = no limit
	Burst     int     // attempts at once after a quiet time; at least 1
}

// Within returns the limit that keeps both r and other: the smaller rate, and the smaller burst.
func (r RateLimit) Within(other RateLimit) RateLimit {
	switch {
	case other.PerSecond <= 0:
		return r
	case r.PerSecond <= 0:
		return other
	}
	return RateLimit{PerSecond: min(r.PerSecond, other.PerSecond), Burst: min(r.Burst, other.Burst)}
}

// BreakerPolicy says when a target is left alone because it fails. The zero value leaves it never alone.
type BreakerPolicy struct {
	Window         time.Duration // what is looked at
	MinAttempts    int           // fewer in the window say nothing; 0 = there is no breaker
	FailurePercent int           // so many of them have failed: the breaker opens
	Open           time.Duration // how long the first time; then twice as long each time
	MaxOpen        time.Duration // at most
}

// StatusPolicy says what statuses mean for this target, where that differs from StatusError. Success is 200-299 always,
// and redirects are never followed.
type StatusPolicy struct {
	Permanent []int // dead letter at once
	Retry     []int // tried again
	Disable   []int // dead letter at once, and the target is disabled
}

// DefaultDeliveryPolicy is what a document without delivery has.
func DefaultDeliveryPolicy() DeliveryPolicy {
	return DeliveryPolicy{Concurrency: 32, Timeout: 15 * time.Second, Retry: DefaultRetryPolicy(), Breaker: DefaultBreakerPolicy(),
		Status: StatusPolicy{Disable: []int{410}}}
}

// DefaultBreakerPolicy opens when 70 % of at least 10 attempts in five minutes have failed, for 30 s and up to ten
// minutes.
func DefaultBreakerPolicy() BreakerPolicy {
	return BreakerPolicy{Window: 5 * time.Minute, MinAttempts: 10, FailurePercent: 70, Open: 30 * time.Second, MaxOpen: 10 * time.Minute}
}

// Apply returns err as the policy sees it, and whether the target is to be disabled, by its status or because it said so. err itself is not changed.
func (p StatusPolicy) Apply(err error) (_ error, disable bool) {
	var te *Error
	if !errors.As(err, &te) || te.Status == 0 {
		return err, false
	}
	if te.Abort || te.Disable {
		return err, te.Disable
	}
	var permanent bool
	switch {
	case slices.Contains(p.Disable, te.Status):
		permanent, disable = true, true
	case slices.Contains(p.Permanent, te.Status):
		permanent = true
	case !slices.Contains(p.Retry, te.Status):
		return err, false
	}
	changed := *te
	changed.Permanent = permanent
	return &changed, disable
}

// Limits of the delivery policy.
const (
	maxConcurrency = 256
	minTimeout     = time.Second
	maxTimeout     = time.Minute
	minRate        = 0.001
	maxRate        = 100_000
	// burstShare: a burst that is smaller than this share of a second would make the clock's grain the limit.
	burstShare     = 100
	minWindow      = time.Second
	maxWindow      = time.Hour
	minOpen        = 100 * time.Millisecond
	maxOpen        = time.Hour
	maxMinAttempts = 10_000
	maxAttempts    = 1000
	maxWait        = 7 * 24 * time.Hour
	maxAge         = 30 * 24 * time.Hour
	maxSchedule    = 100
	minInitial     = time.Millisecond
	maxFactor      = 100
	maxStatuses    = 64
)

func (o *object) delivery(p *DeliveryPolicy) {
	sub := o.object("delivery")
	if sub == nil {
		return
	}
	sub.integer("concurrency", 1, maxConcurrency, &p.Concurrency)
	sub.duration("timeout", minTimeout, maxTimeout, &p.Timeout)
	if r := sub.object("rateLimit"); r != nil {
		r.rateLimit(&p.Rate)
	}
	if r := sub.object("breaker"); r != nil {
		r.breaker(&p.Breaker)
	}
	if r := sub.object("retry"); r != nil {
		r.retry(&p.Retry)
	}
	if r := sub.object("status"); r != nil {
		r.status(&p.Status)
	}
	sub.ordering(&p.Ordering)
	sub.rest()
}

func (o *object) rateLimit(r *RateLimit) {
	if _, ok := o.members["perSecond"]; !ok {
		o.complain("perSecond", "is missing")
	}
	o.number("perSecond", minRate, maxRate, &r.PerSecond)
	r.Burst = max(int(math.Ceil(r.PerSecond)), 1)
	least := max(int(math.Ceil(r.PerSecond/burstShare)), 1)
	o.integer("burst", least, maxRate, &r.Burst)
	o.rest()
}

func (o *object) breaker(b *BreakerPolicy) {
	enabled := true
	o.boolean("enabled", &enabled)
	o.duration("window", minWindow, maxWindow, &b.Window)
	o.integer("minAttempts", 1, maxMinAttempts, &b.MinAttempts)
	o.integer("failurePercent", 1, 100, &b.FailurePercent)
	o.duration("open", minOpen, maxOpen, &b.Open)
	_, given := o.members["maxOpen"]
	o.duration("maxOpen", minOpen, maxOpen, &b.MaxOpen)
	if b.MaxOpen < b.Open {
		if given {
			o.complain("maxOpen", "is shorter than open")
		}
		b.MaxOpen = b.Open
	}
	o.rest()
	if !enabled {
		*b = BreakerPolicy{}
	}
}

func (o *object) retry(p *RetryPolicy) {
	attempts := 0
	o.integer("maxAttempts", 1, maxAttempts, &attempts)
	o.duration("maxAge", time.Second, maxAge, &p.MaxAge)
	raw, listed := o.take("schedule")
	if listed {
		var waits []json.RawMessage
		if json.Unmarshal(raw, &waits) != nil {
			o.complain("schedule", "is not a list of durations")
		} else {
			o.schedule(waits, p)
		}
	}
	if e := o.object("exponential"); e != nil {
		if listed {
			o.complain("exponential", "stands beside schedule: one of them says when to try again")
		}
		p.Schedule, p.Exponential = nil, e.exponential()
	}
	switch {
	case attempts > 1 && p.none():
		o.complain("maxAttempts", "is more than 1, but schedule is empty, which means no retries")
	case attempts != 0:
		p.MaxAttempts = attempts
	case p.Exponential == nil: // as many as the schedule has waits
		p.MaxAttempts = len(p.Schedule) + 1
	}
	o.rest()
}

func (o *object) schedule(waits []json.RawMessage, p *RetryPolicy) {
	if len(waits) > maxSchedule {
		o.complain("schedule", "has more than %d waits", maxSchedule)
		return
	}
	p.Schedule = make([]time.Duration, len(waits))
	for i, raw := range waits {
		d, ok := parseDuration(raw)
		if !ok || d < 0 || d > maxWait {
			o.complainOf("schedule", i, "is not a duration from 0 to %s, such as 30s or 1h30m", short(maxWait))
		}
		p.Schedule[i] = d
	}
}

func (o *object) exponential() *Exponential {
	e := &Exponential{Initial: 5 * time.Second, Factor: 2, Max: 12 * time.Hour, Jitter: Jitter}
	o.duration("initial", minInitial, maxWait, &e.Initial)
	o.number("factor", 1, maxFactor, &e.Factor)
	_, given := o.members["max"]
	o.duration("max", minInitial, maxWait, &e.Max)
	if e.Max < e.Initial {
		if given {
			o.complain("max", "is shorter than initial")
		}
		e.Max = e.Initial
	}
	o.number("jitter", 0, 1, &e.Jitter)
	o.rest()
	return e
}

func (o *object) status(p *StatusPolicy) {
	seen := make(map[int]string)
	for _, list := range []struct {
		name string
		to   *[]int
	}{{"permanent", &p.Permanent}, {"retry", &p.Retry}, {"disable", &p.Disable}} {
		o.statuses(list.name, list.to, seen)
	}
	if _, default410 := seen[410]; default410 && seen[410] != "disable" { // it is one of the others by the user's wish
		p.Disable = slices.DeleteFunc(p.Disable, func(n int) bool { return n == 410 })
	}
	o.rest()
}

// statuses reads one list. A target says with 408, 425, 429 and 5xx that it is there and busy, or broken for a while:
// nobody can want it disabled for that.
func (o *object) statuses(name string, to *[]int, seen map[int]string) {
	raw, ok := o.take(name)
	if !ok {
		return
	}
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil || len(items) > maxStatuses {
		o.complain(name, "is not a list of at most %d statuses", maxStatuses)
		return
	}
	*to = make([]int, 0, len(items))
	for i, item := range items {
		var n int
		switch err := json.Unmarshal(item, &n); {
		case err != nil || n < 400 || n > 599:
			o.complainOf(name, i, "is not a status from 400 to 599")
			continue
		case name == "disable" && (n >= 500 || n == 408 || n == 425 || n == 429):
			o.complainOf(name, i, "is the answer of a target that will be back: it cannot disable it")
			continue
		case seen[n] != "":
			o.complainOf(name, i, "stands in %s already", seen[n])
			continue
		}
		seen[n] = name
		*to = append(*to, n)
	}
}

// complainOf complains of an item of a list.
func (o *object) complainOf(name string, i int, format string, args ...any) {
	*o.details = append(*o.details, fault.Detail{Pointer: fmt.Sprintf("%s%s/%d", o.pointer, fault.Pointer(name), i),
		Detail: fmt.Sprintf(format, args...)})
}
