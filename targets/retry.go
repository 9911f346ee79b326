// SPDX-License-Identifier: Apache-2.0

package targets

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// RetryPolicy says how often and when a failed delivery is tried again: after the waits of a schedule, or after waits
// that grow. Neither means no retries.
type RetryPolicy struct {
	MaxAttempts int             // all attempts together, the first included; at least 1
	MaxAge      time.Duration   // no attempt later than this after the first; 0 = no such limit
	Schedule    []time.Duration // waits after the first, second, ... failure; the last one repeats
	Exponential *Exponential    // instead of a schedule
}

// Exponential is a wait that grows by a factor with each failure, up to a limit.
type Exponential struct {
	Initial time.Duration // after the first failure
	Factor  float64       // at least 1
	Max     time.Duration // no wait is longer, jitter aside
	Jitter  float64       // as Jitter; 0 to 1
}

// Jitter is how far a wait may be from its schedule, to either side, so that what failed together does not come back
// together: 0.2 is 20 %.
const Jitter = 0.2

// none reports whether nothing is tried again.
func (p RetryPolicy) none() bool { return len(p.Schedule) == 0 && p.Exponential == nil }

// wait returns the wait after a failed attempt.
func (p RetryPolicy) wait(attempt int, rnd func() float64) time.Duration {
	attempt = max(attempt, 1)
	var wait, jitter float64
	if e := p.Exponential; e != nil {
		wait = min(float64(e.Initial)*math.Pow(e.Factor, float64(attempt-1)), float64(e.Max))
		jitter = e.Jitter
	} else {
		wait, jitter = float64(p.Schedule[min(attempt, len(p.Schedule))-1]), Jitter
	}
	return time.Duration(wait * (1 + jitter*(2*rnd()-1)))
}

// TooLate reports whether an attempt at a time is later than MaxAge after the first.
func (p RetryPolicy) TooLate(first, at time.Time) bool {
	return p.MaxAge > 0 && at.Sub(first) > p.MaxAge
}

// Again returns the wait after a failed attempt that is tried again however often it has failed: as after the last, at least
// a second, and a minute where the policy knows no retries.
func (p RetryPolicy) Again(attempt int, rnd func() float64) time.Duration {
	if p.none() {
		return time.Minute
	}
	return max(p.wait(max(attempt, len(p.Schedule)), rnd), time.Second)
}

// DefaultRetryPolicy returns ten attempts over about a day: the first at once, the others after 5 s, 30 s, 2 m, 10 m,
// 30 m, 1 h, 3 h, 6 h and 12 h.
func DefaultRetryPolicy() RetryPolicy {
	return RetryPolicy{MaxAttempts: 10, Schedule: []time.Duration{
		5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, 30 * time.Minute,
		time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
	}}
}

// End is why a delivery is not tried again: a closed set, so that it can be a metric label.
type End string

// The ends.
const (
	EndSkipped   End = "skipped"   // somebody did not want to wait for it
	EndPermanent End = "permanent" // trying again cannot help
	EndAttempts  End = "attempts"  // MaxAttempts are used up
	EndAge       End = "age"       // the next attempt would be later than MaxAge
)

// Decision is what happens after a failed attempt: another one at At, or, when End is not empty, none.
type Decision struct {
	At     time.Time // when to try again; zero when End is set
	End    End       // "" = try again
	Reason Reason    // why the attempt failed
	// Free says that the attempt was cut off by our own stop: it does not count, and the next one has the same number.
	Free bool
	// Rest is how long the far side asked to be left alone. It concerns the whole target, not only this delivery.
	Rest time.Duration
}

// Dead reports whether the delivery has ended.
func (d Decision) Dead() bool { return d.End != "" }

// Next decides what follows a failed attempt. It is a pure function. attempt is the number of the attempt that failed
// (1 is the first), err its error, first when the first attempt was made; rnd returns a number in [0, 1), from which the
// jitter comes: equal numbers give equal times. A wait is never shorter than the far side's Retry-After.
//
// An interrupted attempt (ReasonInterrupted) is due again at once and not counted. Whoever calls Next must have stopped
// by then, or it would spin: only a context that the caller itself has cancelled leads to that reason.
func Next(p RetryPolicy, attempt int, err error, first, now time.Time, rnd func() float64) Decision {
	d := Decision{Reason: ReasonOf(err)}
	if d.Reason == ReasonInterrupted {
		d.At, d.Free = now, true
		return d
	}
	var te *Error
	if errors.As(err, &te) {
		d.Rest = min(max(te.RetryAfter, 0), MaxRest)
		if te.Permanent {
			d.End = EndPermanent
			return d
		}
	}
	if p.none() || attempt >= p.MaxAttempts {
		d.End = EndAttempts
		return d
	}
	at := now.Add(max(p.wait(attempt, rnd), d.Rest))
	if p.TooLate(first, at) {
		d.End = EndAge
		return d
	}
	d.At = at
	return d
}

// ReasonOf returns why an attempt failed: the reason of a *Error, otherwise timeout or interrupted for a context's error
// and internal for all else.
func ReasonOf(err error) Reason {
	var te *Error
	switch {
	case errors.As(err, &te):
		return te.Reason
	case errors.Is(err, context.DeadlineExceeded):
		return ReasonTimeout
	case errors.Is(err, context.Canceled):
		return ReasonInterrupted
	}
	return ReasonInternal
}

// StatusError says what an HTTP status means for a delivery: nil for 200-299. 3xx is never followed, and, like 400, 410,
// 413, 415 and 422, cannot get better by trying again; everything else can.
func StatusError(status int, retryAfter time.Duration) *Error {
	if status >= 200 && status <= 299 {
		return nil
	}
	e := &Error{Reason: ReasonStatus, Status: status, Err: fmt.Errorf("status %d", status)}
	switch {
	case status >= 300 && status <= 399:
		e.Reason, e.Permanent = ReasonRedirect, true
	case status == 410:
		e.Reason, e.Permanent = ReasonGone, true
	case status == 413:
		e.Reason, e.Permanent = ReasonTooLarge, true
	case status == 400, status == 415, status == 422:
		e.Permanent = true
	default:
		e.RetryAfter = retryAfter
	}
	return e
}
