// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"fmt"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
)

// What is kept of the traffic is bounded, whatever comes.
func TestTrafficIsBounded(t *testing.T) {
	at := time.Date(2027, 3, 1, 12, 10, 0, 0, time.UTC)
	c := &traffic{types: map[string]*typeCount{}}
	see := func(eventType, source string) { c.saw(&event.Event{Type: eventType, Source: source}, at) }
	for i := range trafficTypes + 50 {
		see(fmt.Sprint("t", i), "/s")
	}
	if len(c.types) != trafficTypes || c.other != 50 {
		t.Errorf("%d types, %d others", len(c.types), c.other)
	}
	for i := range 3 * trafficSources {
		see("t0", fmt.Sprint("/s", i))
	}
	if got := c.types["t0"].shown("t0", 7, at); len(got.Sources) != trafficSources || !got.MoreSources || got.Routed != 3*trafficSources+1 || got.Stored != 7 {
		t.Errorf("%+v", got)
	}
	// Types that do not come any more make room, those that do stay.
	at = at.Add(trafficForgets + time.Minute)
	for i := range 10 {
		c.types[fmt.Sprint("t", i)].last = at
	}
	see("new", "/s")
	if len(c.types) != 11 || c.types["new"] == nil || c.types["t3"] == nil || c.other != 50+trafficTypes-10 {
		t.Errorf("%d types, %d others", len(c.types), c.other)
	}
}

func TestTrafficByHour(t *testing.T) {
	start := time.Date(2027, 3, 1, 12, 59, 59, 0, time.UTC)
	c := &traffic{types: map[string]*typeCount{}}
	for _, after := range []time.Duration{0, 0, 2 * time.Second, 24 * time.Hour, 0 /* late */} {
		c.saw(&event.Event{Type: "t", Source: "/s"}, start.Add(after))
	}
	hours := func(now time.Time) string {
		out := ""
		for _, h := range c.types["t"].shown("t", 0, now).Hours {
			out += fmt.Sprintf("%s=%d ", h.Hour.Format("02T15"), h.Events)
		}
		return out
	}
	if got := hours(start.Add(24 * time.Hour)); got != "01T13=1 02T12=1 " {
		t.Errorf("a day later: %q", got)
	}
	if got := hours(start.Add(48 * time.Hour)); got != "" {
		t.Errorf("two days later: %q", got)
	}
	if last := c.types["t"].last; !last.Equal(start.Add(24 * time.Hour)) {
		t.Errorf("the latest came at %s", last)
	}
}
