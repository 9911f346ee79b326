// SPDX-License-Identifier: Apache-2.0

package targets_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/targets"
)

var noon = time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)

func middle() float64 { return 0.5 } // no jitter

func TestNextFollowsTheDefaultSchedule(t *testing.T) {
	p := targets.DefaultRetryPolicy()
	var got []string
	now := noon
	for attempt := 1; ; attempt++ {
		d := targets.Next(p, attempt, targets.StatusError(503, 0), noon, now, middle)
		if d.Dead() {
			got = append(got, string(d.End))
			break
		}
		got = append(got, d.At.Sub(now).String())
		now = d.At
	}
	want := []string{"5s", "30s", "2m0s", "10m0s", "30m0s", "1h0m0s", "3h0m0s", "6h0m0s", "12h0m0s", "attempts"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("waits of the default policy (-want +got):\n%s", diff)
	}
}

func TestNext(t *testing.T) {
	status := func(code int, rest time.Duration) error { return targets.StatusError(code, rest) }
	policy := targets.RetryPolicy{MaxAttempts: 4, Schedule: []time.Duration{0, time.Minute}}
	for _, c := range []struct {
		name    string
		policy  targets.RetryPolicy
		attempt int
		err     error
		first   time.Time
		want    targets.Decision
	}{
		{"a wait of 0 is at once", policy, 1, status(500, 0), noon,
			targets.Decision{At: noon, Reason: targets.ReasonStatus}},
		{"the last wait repeats", policy, 3, status(500, 0), noon,
			targets.Decision{At: noon.Add(time.Minute), Reason: targets.ReasonStatus}},
		{"attempts used up", policy, 4, status(500, 0), noon,
			targets.Decision{End: targets.EndAttempts, Reason: targets.ReasonStatus}},
		{"an empty schedule means no retries", targets.RetryPolicy{MaxAttempts: 5}, 1, status(500, 0), noon,
			targets.Decision{End: targets.EndAttempts, Reason: targets.ReasonStatus}},
		{"permanent", policy, 1, status(400, 0), noon,
			targets.Decision{End: targets.EndPermanent, Reason: targets.ReasonStatus}},
		{"redirect", policy, 1, status(302, 0), noon,
			targets.Decision{End: targets.EndPermanent, Reason: targets.ReasonRedirect}},
		{"gone", policy, 1, status(410, 0), noon,
			targets.Decision{End: targets.EndPermanent, Reason: targets.ReasonGone}},
		{"400 and then 500 are looked at one by one", policy, 2, status(500, 0), noon.Add(-time.Second),
			targets.Decision{At: noon.Add(time.Minute), Reason: targets.ReasonStatus}},
		{"Retry-After is longer than the wait", policy, 1, status(429, 90*time.Second), noon,
			targets.Decision{At: noon.Add(90 * time.Second), Reason: targets.ReasonStatus, Rest: 90 * time.Second}},
		{"Retry-After is shorter than the wait", policy, 2, status(429, time.Second), noon,
			targets.Decision{At: noon.Add(time.Minute), Reason: targets.ReasonStatus, Rest: time.Second}},
		{"Retry-After is capped", policy, 1, &targets.Error{Reason: targets.ReasonStatus, RetryAfter: 100 * time.Hour}, noon,
			targets.Decision{At: noon.Add(time.Hour), Reason: targets.ReasonStatus, Rest: time.Hour}},
		{"too old", targets.RetryPolicy{MaxAttempts: 9, MaxAge: time.Hour, Schedule: []time.Duration{time.Minute}}, 2,
			status(500, 0), noon.Add(-time.Hour), targets.Decision{End: targets.EndAge, Reason: targets.ReasonStatus}},
		{"just young enough", targets.RetryPolicy{MaxAttempts: 9, MaxAge: time.Hour, Schedule: []time.Duration{time.Minute}}, 2,
			status(500, 0), noon.Add(-59 * time.Minute), targets.Decision{At: noon.Add(time.Minute), Reason: targets.ReasonStatus}},
		{"network", policy, 1, &targets.Error{Reason: targets.ReasonConnect}, noon,
			targets.Decision{At: noon, Reason: targets.ReasonConnect}},
		{"any error", policy, 1, errors.New("boom"), noon, targets.Decision{At: noon, Reason: targets.ReasonInternal}},
		{"a deadline", policy, 1, fmt.Errorf("post: %w", context.DeadlineExceeded), noon,
			targets.Decision{At: noon, Reason: targets.ReasonTimeout}},
		{"a stop is not an attempt", policy, 4, &targets.Error{Reason: targets.ReasonInterrupted, Permanent: true}, noon,
			targets.Decision{At: noon, Reason: targets.ReasonInterrupted, Free: true}},
	} {
		got := targets.Next(c.policy, c.attempt, c.err, c.first, noon, middle)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestNextGrowsExponentially(t *testing.T) {
	p := targets.RetryPolicy{MaxAttempts: 1000, Exponential: &targets.Exponential{Initial: time.Second, Factor: 3, Max: time.Minute, Jitter: 0.5}}
	wait := func(attempt int, rnd float64) time.Duration {
		return targets.Next(p, attempt, targets.StatusError(503, 0), noon, noon, func() float64 { return rnd }).At.Sub(noon)
	}
	for attempt, want := range []time.Duration{time.Second, time.Second, 3 * time.Second, 9 * time.Second, 27 * time.Second, time.Minute, time.Minute} {
		if got := wait(attempt, 0.5); got != want {
			t.Errorf("after attempt %d: %v, want %v", attempt, got, want)
		}
	}
	if low, high, late := wait(1, 0), wait(1, 1), wait(999, 0.5); low != time.Second/2 || high != 3*time.Second/2 || late != time.Minute {
		t.Errorf("jitter reaches from %v to %v, and the last wait is %v", low, high, late)
	}
}

func TestStatusPolicy(t *testing.T) {
	p := targets.StatusPolicy{Permanent: []int{401}, Retry: []int{422}, Disable: []int{410}}
	for _, c := range []struct {
		err                error
		permanent, disable bool
	}{
		{targets.StatusError(401, 0), true, false},
		{targets.StatusError(422, 0), false, false},
		{targets.StatusError(410, 0), true, true},
		{targets.StatusError(400, 0), true, false},
		{targets.StatusError(500, 0), false, false},
		{&targets.Error{Reason: targets.ReasonStatus, Status: 422, Permanent: true, Abort: true}, true, false},
		{&targets.Error{Reason: targets.ReasonStatus, Status: 500, Permanent: true, Abort: true, Disable: true}, true, true},
		{&targets.Error{Reason: targets.ReasonTLS}, false, false},
		{errors.New("x"), false, false},
	} {
		before := c.err.Error()
		got, disable := p.Apply(c.err)
		var te *targets.Error
		permanent := errors.As(got, &te) && te.Permanent
		if permanent != c.permanent || disable != c.disable || got.Error() != before {
			t.Errorf("Apply(%v) = %v, permanent %v, disable %v", c.err, got, permanent, disable)
		}
	}
}

func TestNextJitter(t *testing.T) {
	p := targets.RetryPolicy{MaxAttempts: 2, Schedule: []time.Duration{100 * time.Second}}
	wait := func(rnd func() float64) time.Duration {
		return targets.Next(p, 1, targets.StatusError(500, 0), noon, noon, rnd).At.Sub(noon)
	}
	if low, high := wait(func() float64 { return 0 }), wait(func() float64 { return 1 }); low != 80*time.Second || high != 120*time.Second {
		t.Errorf("jitter reaches from %v to %v, want 80s to 120s", low, high)
	}
	if a, b := wait(rand.New(rand.NewPCG(1, 2)).Float64), wait(rand.New(rand.NewPCG(1, 2)).Float64); a != b {
		t.Errorf("the same random numbers gave %v and %v", a, b)
	}
	// Retry-After is a floor that jitter does not undercut.
	err := targets.StatusError(503, 100*time.Second)
	if d := targets.Next(p, 1, err, noon, noon, func() float64 { return 0 }); d.At.Sub(noon) != 100*time.Second {
		t.Errorf("with Retry-After of 100s the wait is %v", d.At.Sub(noon))
	}
}

func TestStatusError(t *testing.T) {
	for code := 100; code <= 599; code++ {
		e := targets.StatusError(code, time.Minute)
		switch code {
		case 400, 410, 413, 415, 422:
			if e == nil || !e.Permanent || e.RetryAfter != 0 {
				t.Errorf("StatusError(%d) = %+v, want a permanent error without rest", code, e)
			}
			continue
		}
		switch {
		case code >= 200 && code < 300:
			if e != nil {
				t.Errorf("StatusError(%d) = %v, want success", code, e)
			}
		case code >= 300 && code < 400:
			if e == nil || !e.Permanent || e.Reason != targets.ReasonRedirect {
				t.Errorf("StatusError(%d) = %+v, want a permanent redirect", code, e)
			}
		default:
			if e == nil || e.Permanent || e.RetryAfter != time.Minute || e.Status != code {
				t.Errorf("StatusError(%d) = %+v, want a retryable error with rest", code, e)
			}
		}
	}
}

func TestParseRetryAfter(t *testing.T) {
	for _, c := range []struct {
		in   string
		want time.Duration
	}{
		{"", 0},
		{"0", 0},
		{"120", 2 * time.Minute},
		{" 120\t", 2 * time.Minute},
		{"3600", time.Hour},
		{"3601", time.Hour},
		{"99999999999999999999999999", time.Hour},
		{"-1", 0},
		{"+5", 0},
		{"1.5", 0},
		{"soon", 0},
		{noon.Add(10 * time.Second).Format(http.TimeFormat), 10 * time.Second},
		{noon.Add(-10 * time.Second).Format(http.TimeFormat), 0},
		{noon.Add(50 * time.Hour).Format(http.TimeFormat), time.Hour},
		{noon.Add(time.Minute).Format(time.ANSIC), time.Minute},
		{"Mon, 01 Mar 9999 99:99:99 GMT", 0},
	} {
		if got := targets.ParseRetryAfter(c.in, noon); got != c.want {
			t.Errorf("ParseRetryAfter(%q) = %v, want %v", c.in, got, c.want)
		}
	}
}

func FuzzParseRetryAfter(f *testing.F) {
	for _, s := range []string{"120", "-1", "Mon, 01 Mar 2027 12:00:10 GMT", "99999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if d := targets.ParseRetryAfter(s, noon); d < 0 || d > targets.MaxRest {
			t.Errorf("ParseRetryAfter(%q) = %v", s, d)
		}
	})
}

func TestReasonsAreComplete(t *testing.T) {
	seen := map[targets.Reason]bool{}
	for _, r := range targets.Reasons() {
		if r == "" || seen[r] {
			t.Errorf("reason %q is empty or occurs twice", r)
		}
		seen[r] = true
	}
	for _, err := range []error{targets.StatusError(500, 0), targets.StatusError(302, 0), targets.StatusError(410, 0),
		targets.StatusError(413, 0), context.Canceled, context.DeadlineExceeded, errors.New("x")} {
		if r := targets.ReasonOf(err); !seen[r] {
			t.Errorf("ReasonOf(%v) = %q, which Reasons does not have", err, r)
		}
	}
}
