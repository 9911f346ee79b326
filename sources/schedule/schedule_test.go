// SPDX-License-Identifier: Apache-2.0

package schedule_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/sources"
	"github.com/rialto-bridge/rialto/sources/schedule"
	"github.com/rialto-bridge/rialto/sources/sourcetest"
)

// place is a position in memory.
type place struct {
	mu sync.Mutex // guards at
	at string
}

func (p *place) Load(context.Context) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at, nil
}

func (p *place) Save(_ context.Context, at string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at = at
	return nil
}

// unknown is a log that has nothing.
func unknown(context.Context, *event.Event) (bool, error) { return false, nil }

// run runs a schedule for a while and returns its ticks. It is for a bubble, whose clock begins in the year 2000.
func run(t *testing.T, config string, p *place, start sources.Start, length time.Duration) (got []string) {
	t.Helper()
	src, err := schedule.Kind().New(json.RawMessage(config), sources.Env{Name: "s", Now: time.Now, Position: p, Start: start, Lag: func(int64) {}, Stored: unknown})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	err = src.Run(ctx, func(_ context.Context, evs ...event.Event) error {
		for _, ev := range evs {
			if err := ev.Validate(event.Limits{}); err != nil {
				t.Error(err)
			}
			got = append(got, ev.Time.Format(time.RFC3339))
		}
		return nil
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it ended with %v", err)
	}
	return got
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		name, config string
		start        sources.Start
		length       time.Duration
		want         []string
	}{
		{"cron in UTC", `{"cron":"*/20 * * * *"}`, sources.Start{}, time.Hour + time.Second, []string{"2000-01-01T00:20:00Z", "2000-01-01T00:40:00Z", "2000-01-01T01:00:00Z"}},
		{"cron in a zone", `{"cron":"30 2 * * *","timeZone":"Asia/Kolkata"}`, sources.Start{}, 48 * time.Hour, []string{"2000-01-01T21:00:00Z", "2000-01-02T21:00:00Z"}},
		{"pace", `{"every":"7s"}`, sources.Start{}, 20 * time.Second, []string{"2000-01-01T00:00:02Z", "2000-01-01T00:00:09Z", "2000-01-01T00:00:16Z"}},
		{"once", `{"at":"2000-01-01T12:00:00+02:00"}`, sources.Start{}, 24 * time.Hour, []string{"2000-01-01T10:00:00Z"}},
		{"once, past", `{"at":"1999-12-31T12:00:00Z"}`, sources.Start{}, 24 * time.Hour, nil},
		{"once, past, from before", `{"at":"1999-12-31T12:00:00Z"}`, sources.Start{Time: time.Date(1999, 12, 31, 12, 0, 0, 0, time.UTC)}, time.Hour, []string{"1999-12-31T12:00:00Z"}},
		{"weekly", `{"cron":"@weekly"}`, sources.Start{}, 9 * 24 * time.Hour, []string{"2000-01-02T00:00:00Z", "2000-01-09T00:00:00Z"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if diff := cmp.Diff(c.want, run(t, c.config, &place{}, c.start, c.length)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// Clocks are put forward on 26 March 2000 at 2:00, and back on 29 October at 3:00, in Berlin.
func TestSummerTime(t *testing.T) {
	for _, c := range []struct {
		from string
		want []string
	}{
		{"2000-03-25T12:00:00Z", []string{"2000-03-27T00:30:00Z"}},
		{"2000-10-28T12:00:00Z", []string{"2000-10-29T00:30:00Z", "2000-10-29T01:30:00Z", "2000-10-30T01:30:00Z"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			from, err := time.Parse(time.RFC3339, c.from)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Until(from)) // of the bubble's clock
			if diff := cmp.Diff(c.want, run(t, `{"cron":"30 2 * * *","timeZone":"Europe/Berlin"}`, &place{}, sources.Start{}, 44*time.Hour)); diff != "" {
				t.Errorf("from %s (-want +got):\n%s", c.from, diff)
			}
		})
	}
}

// What becomes of the ticks that passed while nobody was there.
func TestMissedTicks(t *testing.T) {
	for _, c := range []struct {
		config string
		want   []string
	}{
		{`{"cron":"0 * * * *","missed":"skip"}`, []string{"2000-01-01T06:00:00Z"}},
		{`{"cron":"0 * * * *"}`, []string{"2000-01-01T05:00:00Z", "2000-01-01T06:00:00Z"}},
		{`{"cron":"0 * * * *","missed":"all"}`, []string{"2000-01-01T02:00:00Z", "2000-01-01T03:00:00Z", "2000-01-01T04:00:00Z", "2000-01-01T05:00:00Z", "2000-01-01T06:00:00Z"}},
		{`{"cron":"0 * * * *","missed":"all","maxMissed":2}`, []string{"2000-01-01T04:00:00Z", "2000-01-01T05:00:00Z", "2000-01-01T06:00:00Z"}},
		{`{"every":"1h","missed":"all","maxMissed":2}`, []string{"2000-01-01T04:00:00Z", "2000-01-01T05:00:00Z", "2000-01-01T06:00:00Z"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := &place{}
			if got := run(t, c.config, p, sources.Start{}, 70*time.Minute); len(got) != 1 {
				t.Errorf("%s: %v at first", c.config, got)
			}
			time.Sleep(4*time.Hour + 20*time.Minute)
			if diff := cmp.Diff(c.want, run(t, c.config, p, sources.Start{}, time.Hour)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.config, diff)
			}
		})
	}
}

// A schedule that is changed begins with what its new timing has from then on, whatever it does with what it has missed. One of
// which something else is changed goes on, as one does that an earlier version has run.
func TestChangedTiming(t *testing.T) {
	for _, c := range []struct {
		name, at, config string
		start            time.Time
		want             []string
	}{
		{"cron", "", `{"cron":"*/10 * * * *","missed":"all"}`, time.Time{}, []string{"05:30", "05:40"}},
		{"zone", "", `{"cron":"0 * * * *","timeZone":"Asia/Kolkata","missed":"all"}`, time.Time{}, []string{"05:30"}},
		{"every", "", `{"every":"20m","missed":"all"}`, time.Time{}, []string{"05:40"}},
		{"at, to a time that is past", "", `{"at":"2000-01-01T04:00:00Z"}`, time.Time{}, nil},
		{"at", "", `{"at":"2000-01-01T05:31:00Z"}`, time.Time{}, []string{"05:31"}},
		{"with a start that is past", "", `{"every":"20m","missed":"all"}`, time.Date(2000, 1, 1, 4, 0, 0, 0, time.UTC), []string{"05:40"}},
		{"with a start to come", "", `{"cron":"*/5 * * * *"}`, time.Date(2000, 1, 1, 5, 35, 0, 0, time.UTC), []string{"05:35", "05:40", "05:45"}},
		{"another type of events", "", `{"cron":"0 * * * *","missed":"all","type":"com.acme.t"}`, time.Time{}, []string{"02:00", "03:00", "04:00", "05:00"}},
		{"an earlier version", "2000-01-01T04:00:00Z", `{"cron":"0 * * * *","missed":"all"}`, time.Time{}, []string{"05:00"}},
		{"another kind of source", `["up/#"]`, `{"cron":"*/10 * * * *","missed":"all"}`, time.Time{}, []string{"05:30", "05:40"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := &place{}
			run(t, `{"cron":"0 * * * *","missed":"all"}`, p, sources.Start{}, 70*time.Minute)
			if c.at != "" {
				p.at = c.at
			}
			time.Sleep(4*time.Hour + 20*time.Minute - time.Second)
			var got []string
			for _, at := range run(t, c.config, p, sources.Start{Time: c.start}, 15*time.Minute+2*time.Second) {
				got = append(got, at[len("2000-01-01T"):][:5])
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.name, diff)
			}
		})
	}
}

// After years away a schedule of every minute is ready at once, with the ticks that it may have.
func TestYearsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &place{at: "1980-01-01T00:00:00Z"}
		got := run(t, `{"cron":"* * * * *","missed":"all","maxMissed":3}`, p, sources.Start{}, time.Second)
		if diff := cmp.Diff([]string{"1999-12-31T23:58:00Z", "1999-12-31T23:59:00Z", "2000-01-01T00:00:00Z"}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// A schedule that was run by a clock which was ahead goes on when the clock is right again. One that is to start later waits for that.
func TestTheClockWasAhead(t *testing.T) {
	for _, c := range []struct {
		name, at string
		start    time.Time
		want     []string
	}{
		{"ten years", "2010-01-01T00:00:00Z", time.Time{}, []string{"2000-01-01T00:01:00Z", "2000-01-01T00:02:00Z"}},
		{"ten years, and it has begun long ago", "2010-01-01T00:00:00Z", time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC), []string{"2000-01-01T00:01:00Z", "2000-01-01T00:02:00Z"}},
		{"half a minute", "2000-01-01T00:00:30Z", time.Time{}, []string{"2000-01-01T00:01:00Z", "2000-01-01T00:02:00Z"}},
		{"it starts in an hour", "2000-01-01T00:59:59Z", time.Date(2000, 1, 1, 1, 0, 0, 0, time.UTC), nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			if diff := cmp.Diff(c.want, run(t, `{"every":"1m"}`, &place{at: c.at}, sources.Start{Time: c.start}, 150*time.Second)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.name, diff)
			}
		})
	}
}

// A tick that was stored and not noted comes again, as the same event.
func TestRepeatedTickIsTheSameEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var evs []event.Event
		for range 2 {
			src, err := schedule.Kind().New(json.RawMessage(`{"every":"1m","type":"com.acme.t","subject":"x","data":{"a":1}}`), sources.Env{Name: "s", Now: time.Now,
				Position: &place{at: "1999-12-31T23:59:00Z"}, Lag: func(int64) {}, Stored: unknown})
			if err != nil {
				t.Fatal(err)
			}
			crash := errors.New("crash")
			if err := src.Run(t.Context(), func(_ context.Context, all ...event.Event) error { evs = append(evs, all...); return crash }); !errors.Is(err, crash) {
				t.Errorf("it ended with %v", err)
			}
			time.Sleep(time.Second)
		}
		if diff := cmp.Diff(evs[0], evs[1]); diff != "" || evs[0].ID != "s-20000101T000000Z" || string(evs[0].Data) != `{"a":1}` {
			t.Errorf("%+v\n%s", evs[0], diff)
		}
	})
}

// The suite of sources without an upstream, at one tick a second.
func TestScheduleIsASource(t *testing.T) {
	sourcetest.RunOwn(t, sourcetest.Own{Kind: schedule.Kind(), Config: `{"every":"1s","missed":"all"}`,
		Follows: func(a, b *event.Event) bool { return b.Time.Sub(a.Time) == time.Second }})
}

// Ticks that an earlier run has stored without noting it are looked for, those that are due first in a run only.
func TestStoredTickIsNotStoredAgain(t *testing.T) {
	for _, c := range []struct {
		name, config, at string
		stored           []string
		want, asked      []string
	}{
		{"the last one", `{"cron":"0 * * * *"}`, "1999-12-31T23:00:00Z", []string{"s-20000101T000000Z"}, []string{"01:00", "02:00"}, []string{"s-20000101T000000Z"}},
		{"not the last one", `{"cron":"0 * * * *"}`, "1999-12-31T22:00:00Z", []string{"s-19991231T230000Z"}, []string{"00:00", "01:00", "02:00"}, []string{"s-20000101T000000Z"}},
		{"some of all", `{"cron":"0 * * * *","missed":"all"}`, "1999-12-31T21:00:00Z", []string{"s-19991231T220000Z", "s-19991231T230000Z"}, []string{"00:00", "01:00", "02:00"},
			[]string{"s-19991231T220000Z", "s-19991231T230000Z", "s-20000101T000000Z"}},
		{"one of the future", `{"cron":"0 * * * *"}`, "2000-01-01T00:00:00Z", []string{"s-20000101T010000Z"}, []string{"02:00"}, []string{"s-20000101T010000Z"}}, // the clock was set back
		{"none, after a reset", `{"cron":"0 * * * *"}`, "", []string{"s-20000101T010000Z"}, []string{"01:00", "02:00"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var asked, got []string
				env := sources.Env{Name: "s", Now: time.Now, Position: &place{at: c.at}, Lag: func(int64) {}, Stored: func(_ context.Context, ev *event.Event) (bool, error) {
					asked = append(asked, ev.ID)
					return slices.Contains(c.stored, ev.ID), nil
				}}
				src, err := schedule.Kind().New(json.RawMessage(c.config), env)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour+time.Minute)
				defer cancel()
				if err := src.Run(ctx, func(_ context.Context, evs ...event.Event) error {
					for _, ev := range evs {
						got = append(got, ev.Time.Format("15:04"))
					}
					return nil
				}); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("it ended with %v", err)
				}
				if diff := cmp.Diff(c.want, got) + cmp.Diff(c.asked, asked); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// While the log cannot be asked, nothing is stored.
func TestUnknownTickIsNotStored(t *testing.T) {
	down := errors.New("the log cannot be read")
	src, err := schedule.Kind().New(json.RawMessage(`{"every":"1s"}`), sources.Env{Name: "s", Now: time.Now, Position: &place{at: "2000-01-01T00:00:00Z"}, Lag: func(int64) {},
		Stored: func(context.Context, *event.Event) (bool, error) { return false, down }})
	if err != nil {
		t.Fatal(err)
	}
	if err := src.Run(t.Context(), func(context.Context, ...event.Event) error { t.Error("a tick is stored"); return nil }); !errors.Is(err, down) {
		t.Errorf("it ended with %v", err)
	}
}

// Ticks have no first one: who says earliest does not get latest. One that was stored so goes on.
func TestEarliestIsRefused(t *testing.T) {
	kinds := sources.NewCatalog(schedule.Kind())
	doc := []byte(`{"name":"s","type":"schedule","start":"earliest","config":{"every":"1h"}}`)
	if _, err := sources.ParseDefinition(doc, kinds); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "/start: is earliest") {
		t.Errorf("the definition gives %v", err)
	}
	if _, err := sources.LoadDefinition(doc, kinds); err != nil {
		t.Errorf("loading gives %v", err)
	}
	s, _ := sourcetest.Node(t, "one", sourcetest.State(t), sourcetest.NewLog(), nil, schedule.Kind())
	sourcetest.Define(t, s, `{"name":"s","type":"schedule","config":{"every":"1h"}}`, schedule.Kind())
	if err := s.Reset(t.Context(), "s", "earliest"); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "/start: is earliest") {
		t.Errorf("the reset gives %v", err)
	}
	if err := s.Reset(t.Context(), "s", "latest"); err != nil {
		t.Error(err)
	}
}

// A reset to a time to come holds until then, over a restart as well.
func TestResetToATimeToCome(t *testing.T) {
	const doc = `{"name":"s","type":"schedule","config":{"every":"1s"}}`
	state, log, begun := sourcetest.State(t), sourcetest.NewLog(), make(chan sources.Start, 1)
	kind := schedule.Kind()
	one, stop := sourcetest.Node(t, "n", state, log, nil, kind)
	sourcetest.Define(t, one, doc, kind)
	log.Await(t, "it ticks", func() bool { return len(log.Events()) > 0 })
	start := time.Now().Add(time.Hour).Truncate(time.Second).UTC()
	if err := one.Reset(t.Context(), "s", start.Format(time.RFC3339)); err != nil {
		t.Fatal(err)
	}
	before := start.Add(-time.Second).Format(time.RFC3339)
	waits := func(s *sources.Supervisor) func() bool {
		return func() bool {
			st, _ := s.Status("s")
			return st.State == sources.Running && strings.HasPrefix(st.Position, before)
		}
	}
	sourcetest.Await(t, "it waits", nil, waits(one))
	stop()
	again := kind
	again.New = func(cfg json.RawMessage, env sources.Env) (sources.Source, error) {
		begun <- env.Start
		return kind.New(cfg, env)
	}
	two, _ := sourcetest.Node(t, "n", state, log, nil, again)
	sourcetest.Define(t, two, doc, again)
	if got := <-begun; !got.Time.Equal(start) {
		t.Errorf("after a restart it begins at %v, want %v", got, start)
	}
	sourcetest.Await(t, "it still waits", nil, waits(two))
}

func TestConfigs(t *testing.T) {
	kinds := sources.NewCatalog(schedule.Kind())
	for _, c := range []struct{ config, want string }{
		{`{}`, "/config: has exactly one of cron, every and at"},
		{`{"cron":"* * * * *","every":"1m"}`, "/config: has exactly one of cron, every and at"},
		{`{"every":"1m","timeZone":"Europe/Berlin"}`, "/config/timeZone: goes with cron"},
		{`{"cron":"* * * *"}`, "/config/cron: is not a cron expression"},
		{`{"cron":"61 * * * *"}`, "/config/cron: is not a cron expression"},
		{`{"cron":"TZ=0"}`, "/config/cron: has no time zone in it"},
		{`{"cron":"@every 1s"}`, "/config/cron: does not know @every"},
		{`{"cron":"0 0 31 2 *"}`, "/config/cron: is never"},
		{`{"cron":"0 0 * * *","timeZone":"Mars/Base"}`, "/config/timeZone: is not a time zone"},
		{`{"every":"1ms"}`, "/config/every: is not a duration"},
		{`{"at":"tomorrow"}`, "/config/at: is not a time"},
		{`{"at":"2027-01-02T03:04:05Z","type":"a\nb"}`, "/config: type"},
		{`{"every":"1m","missed":"some"}`, "/config/missed: is not one of: skip, last, all"},
	} {
		_, err := sources.ParseDefinition(fmt.Appendf(nil, `{"name":"s","type":"schedule","config":%s}`, c.config), kinds)
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.config, err, c.want)
		}
	}
}

// Whatever the config says, it is refused, or its ticks go forward.
func FuzzConfig(f *testing.F) {
	for _, c := range []string{`{"cron":"*/5 1-3 * * MON"}`, `{"every":"7s"}`, `{"at":"2027-01-02T03:04:05Z"}`, `{"cron":"TZ="}`, `{"cron":"@daily","timeZone":"Europe/Berlin"}`} {
		f.Add(c)
	}
	kinds := sources.NewCatalog(schedule.Kind())
	f.Fuzz(func(t *testing.T, config string) {
		d, err := sources.ParseDefinition(fmt.Appendf(nil, `{"name":"s","type":"schedule","config":%s}`, config), kinds)
		if err != nil {
			return
		}
		src, err := schedule.Kind().New(d.Config, sources.Env{Name: "s", Now: time.Now, Position: &place{at: time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)}, Lag: func(int64) {}, Stored: unknown})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		last := time.Time{}
		_ = src.Run(ctx, func(_ context.Context, evs ...event.Event) error { // it ends with the context
			for _, ev := range evs {
				if !ev.Time.After(last) {
					t.Errorf("after %s comes %s", last, ev.Time)
				}
				last = ev.Time
			}
			return nil
		})
	})
}
