// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/sources"
)

//go:embed config.schema.json
var configSchema []byte

// config is the config of a schedule, in the form that config.schema.json describes.
type config struct {
	Cron      string          `json:"cron"`
	Every     string          `json:"every"`
	At        string          `json:"at"`
	TimeZone  string          `json:"timeZone"`
	Missed    string          `json:"missed"`
	MaxMissed int             `json:"maxMissed"`
	Type      string          `json:"type"`
	Subject   string          `json:"subject"`
	Data      json.RawMessage `json:"data"`
}

const (
	defaultType      = "io.rialto.schedule.tick"
	defaultMaxMissed = 100
	// grace is how late a tick may be and is not missed yet.
	grace = 30 * time.Second
	// look is how long a wait is at most: a clock that is set is noticed then.
	look = time.Minute
	// ahead is how far a clock may be set back and its schedules wait for the time that they were at.
	ahead = time.Minute
	// maxBatch is how many ticks are stored together.
	maxBatch = 100
)

// What becomes of ticks that passed while nobody was there.
const (
	missedSkip = "skip"
	missedLast = "last"
	missedAll  = "all"
)

// Kind is the kind of source.
func Kind() sources.Kind {
	return sources.Kind{
		Name: "schedule", Starts: true, Endless: true, ConfigSchema: configSchema, New: newSource,
		Doc: "An event when it is time: by a cron expression in a time zone (`cron`), at a steady pace (`every`), or once (`at`). Each tick is " +
			"one event, in a cluster as well, and after a crash: its id follows from the tick, and what may have been stored before the crash is looked for in the log.",
		Example: "kind: Source\nname: nightly\ntype: schedule\nbus: default\nconfig:\n  cron: \"30 2 * * *\"\n  timeZone: Europe/Berlin\n  missed: last\n" +
			"  type: com.acme.report.due\n  data: {report: daily}\n",
		Check: func(cfg json.RawMessage) error {
			_, _, err := parse(cfg)
			return err
		},
	}
}

// parse reads a config that the schema has accepted. The error is a *fault.Error with pointers.
func parse(raw json.RawMessage) (config, ticks, error) {
	var c config
	if err := json.Unmarshal(raw, &c); err != nil {
		return c, nil, fault.Invalidf("", "is not a schedule")
	}
	c.Missed, c.MaxMissed, c.Type = cmp.Or(c.Missed, missedLast), cmp.Or(c.MaxMissed, defaultMaxMissed), cmp.Or(c.Type, defaultType)
	t, err := parseTicks(&c)
	if err != nil {
		return c, nil, err
	}
	probe := event.Event{ID: "1", Source: "/", Type: c.Type, Subject: c.Subject}
	if err := probe.Validate(event.Limits{}); err != nil {
		return c, nil, fault.Invalidf("", "%s", err)
	}
	return c, t, nil
}

type source struct {
	env    sources.Env
	c      config
	t      ticks
	timing string // a hash of what t follows from
}

func newSource(raw json.RawMessage, env sources.Env) (sources.Source, error) {
	c, t, err := parse(raw)
	if err != nil {
		return nil, err
	}
	return &source{env, c, t, c.timing()}, nil
}

// timing is a hash of what the ticks follow from.
func (c *config) timing() string {
	sum := sha256.Sum256([]byte(strings.Join([]string{c.Cron, c.Every, c.At, c.TimeZone}, "\x00")))
	return hex.EncodeToString(sum[:4])
}

// Run is sources.Source.Run.
func (s *source) Run(ctx context.Context, emit sources.Emit) error {
	last, doubt, err := s.begin(ctx)
	if err != nil {
		return err
	}
	for {
		now := s.env.Now()
		if s.ahead(last, now) {
			last = now.Truncate(time.Second)
			if err := s.save(ctx, last); err != nil {
				return err
			}
		}
		if due := s.due(last, now); len(due) > 0 {
			if err := s.fire(ctx, due, doubt, emit); err != nil {
				return err
			}
			doubt = false
		}
		// What is not due any more by the rule for missed ticks is behind us as well.
		if newest := s.newest(last, now); newest.After(last) {
			last = newest
			if err := s.save(ctx, last); err != nil {
				return err
			}
		}
		s.env.Lag(0)
		if err := s.sleep(ctx, last); err != nil {
			return err
		}
	}
}

// begin returns the last tick that is behind us, and whether an earlier run may have stored the next ones without noting them: then
// those that are due first are in doubt. A schedule that is new says so at once, so that it knows what it has missed when it comes
// back. One whose timing is another by now, or that was paused, has missed nothing: it begins now.
func (s *source) begin(ctx context.Context) (last time.Time, doubt bool, err error) {
	at, err := s.env.Position.Load(ctx)
	if err != nil {
		return time.Time{}, false, err
	}
	if t, ok := s.parsePosition(at); ok && !s.env.Resumed {
		return t, true, nil
	}
	last = s.env.Now().Truncate(time.Second)
	if t := s.env.Start.Time; !t.IsZero() && (at == "" || t.After(last)) {
		last = t.Truncate(time.Second).Add(-time.Second) // a tick at that time is one
	}
	return last, false, s.save(ctx, last)
}

// parsePosition reads the tick that is behind us; false if the position is that of another timing, or of another kind of source.
func (s *source) parsePosition(at string) (time.Time, bool) {
	at, timing, said := strings.Cut(at, " ")
	t, err := time.Parse(time.RFC3339, at)
	return t, err == nil && (!said || timing == s.timing)
}

// save notes the last tick that is behind us, and what it is a tick of.
func (s *source) save(ctx context.Context, last time.Time) error {
	return s.env.Position.Save(ctx, last.UTC().Format(time.RFC3339)+" "+s.timing)
}

// ahead reports whether a tick is behind us that has not come yet: the clock was ahead when it was noted, and the schedule would
// wait until it is there again. What was fired for such a time comes again, as the same events.
func (s *source) ahead(last, now time.Time) bool {
	return last.After(now.Add(ahead)) && last.After(s.env.Start.Time)
}

// due returns the ticks after last, up to now, for which there is to be an event; in order.
func (s *source) due(last, now time.Time) []time.Time {
	switch s.c.Missed {
	case missedSkip:
		if from := now.Add(-grace); from.After(last) {
			last = from
		}
		return between(s.t, last, now, defaultMaxMissed)
	case missedAll:
		return between(s.t, last, now, s.c.MaxMissed)
	}
	return between(s.t, last, now, 1)
}

// newest is the last tick up to now, or last if there is none.
func (s *source) newest(last, now time.Time) time.Time {
	if t := between(s.t, last, now, 1); len(t) > 0 {
		return t[0]
	}
	return last
}

// fire stores the events of ticks, and notes after each part how far it is. Those in doubt it looks for first: whoever stored them
// may have been killed before noting it, and longer ago than the bus remembers ids.
func (s *source) fire(ctx context.Context, due []time.Time, doubt bool, emit sources.Emit) error {
	for len(due) > 0 {
		s.env.Lag(int64(len(due)))
		part := due[:min(len(due), maxBatch)]
		evs := make([]event.Event, 0, len(part))
		for _, t := range part {
			ev, there := s.event(t), false
			if doubt {
				var err error
				if there, err = s.env.Stored(ctx, &ev); err != nil {
					return err
				}
			}
			if !there {
				evs = append(evs, ev)
			}
		}
		if len(evs) > 0 {
			if err := emit(ctx, evs...); err != nil {
				return err
			}
		}
		if err := s.save(ctx, part[len(part)-1]); err != nil {
			return err
		}
		due = due[len(part):]
	}
	return nil
}

// event is the event of a tick. All of it follows from the definition and the tick.
func (s *source) event(t time.Time) event.Event {
	t = t.UTC()
	data := []byte(s.c.Data)
	if data == nil {
		data = fmt.Appendf(nil, `{"tick":%q}`, t.Format(time.RFC3339))
	}
	return event.Event{ID: s.env.Name + "-" + t.Format("20060102T150405Z"), Source: "/sources/" + s.env.Name, Type: s.c.Type, Subject: s.c.Subject,
		Time: t, DataContentType: "application/json", Data: data}
}

// sleep waits for the next tick, but no longer than for look, or until ctx is done.
func (s *source) sleep(ctx context.Context, last time.Time) error {
	wait := look
	if next := s.t.next(last); !next.IsZero() {
		wait = min(look, max(0, next.Sub(s.env.Now())))
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
