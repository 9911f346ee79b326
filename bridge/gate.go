// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"errors"
	"strconv"
	"time"

	"github.com/rialto-bridge/rialto/targets"
)

// gate says whether and how many attempts may begin at a target: its owner may have paused it, it may have asked for
// rest, its rate is limited, its breaker may be open. Waiting at the gate is no attempt. It is pure, as its parts are,
// and belongs to a lane, whose lock guards it.
type gate struct {
	paused      bool
	pausedSince time.Time
	revision    uint64    // of the definition in force
	rest        time.Time // no attempts before: the target asked for it
	limiter     limiter
	breaker     breaker
	standing    *standing // nil = in good standing
	noted       *standing // how it stood when that was last written down, or is being written
}

// configure puts a definition in force, but for the rate, which is the lane's to say. A changed target is tried at once; if it was disabled, it is enabled by that,
// unless it is paused, and was tells how it stood. One that is only told again, such as with a new value of its secret, still has the rest that it asked for.
func (g *gate) configure(def *targets.Definition, now time.Time) (was standing) {
	if def.Paused && !g.paused {
		g.pausedSince = now
	}
	if def.Revision != g.revision {
		g.rest = time.Time{}
	}
	g.paused, g.revision = def.Paused, def.Revision
	g.breaker.set(def.Delivery.Breaker)
	if g.standing == nil || g.standing.Revision == def.Revision || g.disabled() && g.paused {
		return standing{}
	}
	was = g.enable()
	g.standing = nil
	return was
}

// enable puts a target that is disabled back into good standing, and returns how it stood; the zero standing if it is not.
// What began before says nothing any more.
func (g *gate) enable() (was standing) {
	if !g.disabled() {
		return standing{}
	}
	was, g.standing = *g.standing, nil
	g.breaker.set(g.breaker.policy)
	if g.breaker.enabled() {
		g.breaker.recover() // it has been away for long, and much may wait for it
	}
	return was
}

func (g *gate) disabled() bool { return g.standing != nil && g.standing.disabled() }

// stands returns how the target stands, as it is written down.
func (g *gate) stands(now time.Time) standing {
	if g.standing == nil {
		return standing{}
	}
	return g.standing.notable(now)
}

// note remembers how it stands, and reports whether that is news.
func (g *gate) note(s standing) (news bool) {
	var before standing
	if g.noted != nil {
		before = *g.noted
	}
	if g.noted = nil; s != (standing{}) {
		g.noted = &s
	}
	return s != before
}

// halted reports whether no attempt begins until somebody changes the definition.
func (g *gate) halted() bool { return g.paused || g.disabled() }

// room returns how many attempts may begin now.
func (g *gate) room(now time.Time) int {
	if g.halted() || now.Before(g.rest) {
		return 0
	}
	return min(g.limiter.room(now), g.breaker.room(now))
}

// opens returns when there may be room again, if there is none now; zero if that does not come with time alone.
func (g *gate) opens(now time.Time) time.Time {
	if g.halted() {
		return time.Time{}
	}
	at := g.limiter.next(now)
	if g.rest.After(at) {
		at = g.rest
	}
	switch {
	case g.breaker.resting(now):
		if g.breaker.until.After(at) {
			at = g.breaker.until
		}
	case g.breaker.room(now) == 0:
		return time.Time{} // an attempt that is under way decides
	}
	return at
}

// begin says that an attempt begins, for which there is room. The answer belongs to end.
func (g *gate) begin(now time.Time) (term uint32) {
	g.limiter.take(now)
	return g.breaker.begin()
}

// end says what an attempt of a term has found. opened says that the breaker has opened, disabled that the target was
// disabled by it, changed that what is written down of the target is not right any more.
func (g *gate) end(term uint32, f finding, def *targets.Definition, now time.Time) (opened, disabled, changed bool) {
	fresh := term == g.breaker.term
	opened = g.breaker.end(term, f.verdict, def.Delivery.Concurrency, now)
	if before := g.disabled(); (fresh || f.delivered) && (g.standing != nil || f.verdict == failing || f.disable) {
		var s standing
		if g.standing != nil {
			s = *g.standing
		}
		s.note(f, def.Revision, now)
		if g.standing = nil; s != (standing{}) {
			g.standing = &s
		}
		disabled = !before && g.disabled()
	}
	return opened, disabled, g.note(g.stands(now))
}

// parks says why live deliveries are not to wait for the gate, and until when they are parked; "" if they may wait.
func (g *gate) parks(now time.Time) (reason string, due time.Time) {
	switch {
	case g.disabled():
		return reasonDisabled, now
	case g.paused:
		return reasonPaused, now
	case g.breaker.resting(now) && !g.breaker.until.Before(g.rest):
		return reasonBreaker, g.breaker.until
	case now.Before(g.rest):
		return reasonRest, g.rest
	}
	return "", time.Time{}
}

// state says where the target stands, since when (zero = not known), and why. waiting says that there is something for
// it to do.
func (g *gate) state(now time.Time, waiting bool) (state string, since time.Time, reason string) {
	switch {
	case g.disabled():
		return TargetDisabled, g.standing.DisabledAt, disabledBecause(*g.standing)
	case g.paused:
		return TargetPaused, g.pausedSince, "by its definition"
	case g.breaker.state == breakerOpen:
		return TargetOpen, g.breaker.since, "too many attempts failed"
	case now.Before(g.rest):
		return TargetLimited, time.Time{}, "it asked for rest"
	case waiting && g.limiter.room(now) == 0:
		return TargetLimited, time.Time{}, "its rate limit"
	case g.breaker.state == breakerRecovering:
		return TargetActive, g.breaker.since, "recovering"
	}
	return TargetActive, time.Time{}, ""
}

func disabledBecause(s standing) string {
	why := "it answered " + strconv.Itoa(s.Status)
	if s.Status == 0 {
		why = "the last attempt failed: " + s.Reason
	}
	if s.DisabledAt.Sub(s.FailingSince) >= disableAfter && !s.FailingSince.IsZero() {
		why = "nothing but failures since " + s.FailingSince.UTC().Format(time.RFC3339) + "; " + why
	}
	return why
}

// finding is what the end of an attempt tells of the target.
type finding struct {
	verdict   verdict
	delivered bool
	disable   bool // the status disables it
	reason    string
	status    int
	event     string // position of the event, if the verdict is failing
	began     time.Time
	stepped   bool         // the clock was set a short time ago
	last      *lastAttempt // what there is to tell of it, if it failed
}

// nothing is found when no attempt was made.
var nothing = finding{}

// find says what the error of an attempt tells; disable as StatusPolicy.Apply says.
func find(err error, disable bool) finding {
	f := finding{verdict: verdictOf(err), delivered: err == nil, disable: disable}
	var te *targets.Error
	if errors.As(err, &te) {
		f.status = te.Status
	}
	if err != nil {
		f.reason = string(targets.ReasonOf(err))
	}
	return f
}

// verdictOf says what the end of an attempt tells of the target.
func verdictOf(err error) verdict {
	if err == nil {
		return well
	}
	var te *targets.Error
	if errors.As(err, &te) && te.Status != 0 && te.Permanent {
		return well // it has read the event and does not want it
	}
	switch targets.ReasonOf(err) {
	case targets.ReasonTransform, targets.ReasonInternal, targets.ReasonInterrupted:
		return silent
	}
	if te != nil && te.Status == 429 && te.RetryAfter > 0 {
		return silent // it works, and says how fast
	}
	return failing
}
