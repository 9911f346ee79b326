// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"math"
	"strings"
	"time"
	_ "time/tzdata" // machines without a time zone database have zones as well

	"github.com/robfig/cron/v3"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// ticks are points in time, whole seconds.
type ticks interface {
	// next is the first tick after t; zero if there is none.
	next(t time.Time) time.Time
	// before is a time from which there are at least n ticks up to t, if there are so many; it may be earlier than needed.
	before(t time.Time, n int) time.Time
}

// between returns the last n ticks after from, up to to.
func between(t ticks, from, to time.Time, n int) []time.Time {
	if b := t.before(to, n); b.After(from) {
		from = b
	}
	var out []time.Time
	for at := t.next(from); !at.IsZero() && !at.After(to); at = t.next(at) {
		if len(out) == n {
			out = append(out[:0], out[1:]...)
		}
		out = append(out, at)
	}
	return out
}

// parseTicks reads cron, every or at. The error is a *fault.Error with a pointer.
func parseTicks(c *config) (ticks, error) {
	said := 0
	for _, text := range []string{c.Cron, c.Every, c.At} {
		if text != "" {
			said++
		}
	}
	if said != 1 {
		return nil, fault.Invalidf("", "has exactly one of cron, every and at")
	}
	if c.TimeZone != "" && c.Cron == "" {
		return nil, fault.Invalidf("/timeZone", "goes with cron")
	}
	zone, err := time.LoadLocation(c.TimeZone) // "" is UTC
	if err != nil || c.TimeZone == "Local" {
		return nil, fault.Invalidf("/timeZone", "is not a time zone such as Europe/Berlin")
	}
	switch {
	case c.Cron != "":
		return parseCron(c.Cron, zone)
	case c.Every != "":
		d, err := time.ParseDuration(c.Every)
		if err != nil || d < time.Second || d > 366*24*time.Hour || d%time.Second != 0 {
			return nil, fault.Invalidf("/every", "is not a duration of whole seconds from 1s to 8784h, such as 15m")
		}
		return pace(d), nil
	}
	t, err := time.Parse(time.RFC3339, c.At)
	if err != nil || t.Year() < 1970 || t.Year() > 9998 {
		return nil, fault.Invalidf("/at", "is not a time such as 2027-01-02T03:04:05Z")
	}
	return once(t.Truncate(time.Second)), nil
}

// maxYears is how far ahead the next tick of a cron expression may be.
const maxYears = 5

func parseCron(text string, zone *time.Location) (ticks, error) {
	wrong := func() error {
		return fault.Invalidf("/cron", "is not a cron expression: minute, hour, day of month, month, day of week, such as 30 2 * * 1-5, or @hourly, @daily, @weekly, @monthly, @yearly")
	}
	switch {
	case strings.ContainsRune(text, '='): // the parser reads a zone there, and has one way to fall over it
		return nil, fault.Invalidf("/cron", "has no time zone in it: say timeZone")
	case strings.HasPrefix(text, "@every"):
		return nil, fault.Invalidf("/cron", "does not know @every: say every")
	}
	s, err := cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor).Parse(text)
	if err != nil {
		return nil, wrong()
	}
	spec, ok := s.(*cron.SpecSchedule)
	if !ok {
		return nil, wrong()
	}
	spec.Location = zone
	c := &crontab{spec}
	if c.next(time.Date(2027, 1, 1, 0, 0, 0, 0, zone)).IsZero() {
		return nil, fault.Invalidf("/cron", "is never: no tick within %d years", maxYears)
	}
	return c, nil
}

// crontab are the ticks of a cron expression. It knows no seconds, so there is at most one in a minute.
type crontab struct{ spec *cron.SpecSchedule }

// next looks at the minutes as they come, and leaves out hours and most of a day where none can be: what clocks show when they are put
// forward or back is nothing to calculate with. (cron.SpecSchedule.Next does, and misses days on which that happens at midnight or by
// half an hour.)
func (c *crontab) next(t time.Time) time.Time {
	at := t.Truncate(time.Minute).Add(time.Minute)
	last := at.In(c.spec.Location).Year() + maxYears
	for {
		local := at.In(c.spec.Location)
		switch {
		case local.Year() > last:
			return time.Time{}
		case !c.onDay(local) && local.Hour() < lateHour:
			at = at.Add(time.Duration(lateHour-local.Hour()) * time.Hour)
		case !c.onDay(local) || c.spec.Hour&(1<<local.Hour()) == 0:
			at = at.Add(time.Duration(60-local.Minute()) * time.Minute)
		case c.spec.Minute&(1<<local.Minute()) == 0:
			at = at.Add(time.Minute)
		default:
			return at
		}
	}
}

// lateHour is so long before midnight that a clock which is put forward on the way there does not show the next day.
const lateHour = 21

// onDay reports whether there are ticks on the day of t. Of day of month and day of week either is enough, unless one of them is a star.
func (c *crontab) onDay(t time.Time) bool {
	const star = 1 << 63
	dom, dow := c.spec.Dom&(1<<t.Day()) != 0, c.spec.Dow&(1<<t.Weekday()) != 0
	if (c.spec.Dom|c.spec.Dow)&star != 0 {
		return c.spec.Month&(1<<t.Month()) != 0 && dom && dow
	}
	return c.spec.Month&(1<<t.Month()) != 0 && (dom || dow)
}

// before looks back in steps that grow: rare ticks cost few steps, frequent ones are near.
func (c *crontab) before(t time.Time, n int) time.Time {
	for _, back := range []time.Duration{time.Hour, 24 * time.Hour, 31 * 24 * time.Hour} {
		from := t.Add(-back)
		at, have := c.next(from), 0
		for ; have < n && !at.IsZero() && !at.After(t); at = c.next(at) {
			have++
		}
		if have == n {
			return from
		}
	}
	return t.AddDate(-maxYears, 0, 0)
}

// pace are ticks at multiples of a duration since 1970.
type pace time.Duration

func (p pace) next(t time.Time) time.Time {
	step := int64(time.Duration(p) / time.Second)
	return time.Unix((t.Unix()/step+1)*step, 0).UTC()
}

func (p pace) before(t time.Time, n int) time.Time {
	if int64(n) > math.MaxInt64/int64(p) { // a Duration ends at 292 years
		return time.Unix(0, 0).UTC()
	}
	return t.Add(-time.Duration(p) * time.Duration(n))
}

// once is one tick.
type once time.Time

func (o once) next(t time.Time) time.Time {
	if at := time.Time(o); at.After(t) {
		return at
	}
	return time.Time{}
}

func (once) before(time.Time, int) time.Time { return time.Time{} }
