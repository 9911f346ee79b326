// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
)

// Limits of what is kept of a bus's traffic.
const (
	trafficTypes   = 1000
	trafficSources = 16 // of a type
	trafficHours   = 24
	trafficRoom    = time.Minute      // how often room is made when there are more types
	trafficForgets = time.Hour        // without an event, if room is needed
	trafficAge     = 10 * time.Second // of what the log says of itself
)

// Traffic is what is known of the events of a bus by type.
type Traffic struct {
	Since time.Time     // this process has routed events since then: Routed, Hours and Sources are about those
	Types []TypeTraffic // by name
	Other uint64        // events routed that are not counted by type, since there were too many types
}

// TypeTraffic is what is known of the events of a type.
type TypeTraffic struct {
	Type        string
	Stored      uint64 // events in the log; 0 too where the log does not know the type any more
	Routed      uint64
	Last        time.Time // when the latest of them was accepted
	Hours       []HourTraffic
	Sources     []string // in the order of their coming, 16 at most
	MoreSources bool     // there are more
}

// HourTraffic is how many events of an hour were routed; hours without events are left out.
type HourTraffic struct {
	Hour   time.Time
	Events uint64
}

// traffic counts the events of a bus that its router has seen.
type traffic struct {
	since time.Time // when the counting began

	mu    sync.Mutex // guards what follows
	types map[string]*typeCount
	other uint64
	swept time.Time

	asked  time.Time         // when stored was read
	stored map[string]uint64 // what the log holds, by type
}

type typeCount struct {
	routed  uint64
	last    time.Time
	hours   [trafficHours]HourTraffic // by hour of the day
	sources []string
	more    bool
}

// saw counts an event. Only the router calls it.
func (t *traffic) saw(ev *event.Event, received time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.types[ev.Type]
	if c == nil {
		if len(t.types) >= trafficTypes && !t.makeRoom(received) {
			t.other++
			return
		}
		c = &typeCount{}
		t.types[strings.Clone(ev.Type)] = c // the event's own is part of a larger text
	}
	c.routed++
	if received.After(c.last) {
		c.last = received
	}
	start := received.UTC().Truncate(time.Hour)
	switch hour := &c.hours[start.Hour()]; {
	case hour.Hour.Equal(start):
		hour.Events++
	case hour.Hour.Before(start):
		*hour = HourTraffic{start, 1}
	}
	if c.more || slices.Contains(c.sources, ev.Source) {
		return
	}
	if len(c.sources) == trafficSources {
		c.more = true
		return
	}
	c.sources = append(c.sources, strings.Clone(ev.Source))
}

// makeRoom forgets types that have not come for an hour.
func (t *traffic) makeRoom(now time.Time) bool {
	if now.Sub(t.swept) < trafficRoom {
		return false
	}
	t.swept = now
	for name, c := range t.types {
		if now.Sub(c.last) > trafficForgets {
			t.other += c.routed
			delete(t.types, name)
		}
	}
	return len(t.types) < trafficTypes
}

// Traffic returns what is known of the events of a bus by type. What the log holds is up to ten seconds old.
func (b *Bridge) Traffic(ctx context.Context, bus string) (Traffic, error) {
	p, err := b.path(bus)
	if err != nil {
		return Traffic{}, err
	}
	stored, err := p.storedTypes(ctx)
	if err != nil {
		return Traffic{}, err
	}
	t := &p.traffic
	t.mu.Lock()
	defer t.mu.Unlock()
	out := Traffic{Since: t.since, Other: t.other}
	for name, c := range t.types {
		out.Types = append(out.Types, c.shown(name, stored[name], b.o.Now()))
	}
	for name, n := range stored {
		if t.types[name] == nil && name != "" {
			out.Types = append(out.Types, TypeTraffic{Type: name, Stored: n})
		}
	}
	slices.SortFunc(out.Types, func(a, b TypeTraffic) int { return cmp.Compare(a.Type, b.Type) })
	return out, nil
}

func (c *typeCount) shown(name string, stored uint64, now time.Time) TypeTraffic {
	out := TypeTraffic{Type: name, Stored: stored, Routed: c.routed, Last: c.last, Sources: slices.Clone(c.sources), MoreSources: c.more}
	for _, h := range c.hours {
		if h.Events > 0 && now.Sub(h.Hour) < trafficHours*time.Hour {
			out.Hours = append(out.Hours, h)
		}
	}
	slices.SortFunc(out.Hours, func(a, b HourTraffic) int { return a.Hour.Compare(b.Hour) })
	return out
}

// storedTypes is how many events of each type the log holds.
func (p *path) storedTypes(ctx context.Context) (map[string]uint64, error) {
	t, now := &p.traffic, p.b.o.Now()
	t.mu.Lock()
	stored, fresh := t.stored, now.Sub(t.asked) < trafficAge
	t.mu.Unlock()
	if stored != nil && fresh {
		return stored, nil
	}
	stored, err := p.log.Types(ctx)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stored, t.asked = stored, now
	return stored, nil
}

// Rules returns the rules of a bus that are in force, disabled ones included, by name.
func (b *Bridge) Rules(ctx context.Context, bus string) ([]*rules.Rule, error) {
	rs, err := b.inForce(ctx, bus)
	if err != nil {
		return nil, err
	}
	out := make([]*rules.Rule, 0, len(rs.byName))
	for _, r := range rs.byName {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b *rules.Rule) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// TargetReads lists what a target looks at in the events that it is sent, with pointers into its definition.
func (b *Bridge) TargetReads(target string) []rules.Read {
	l := b.lane(target)
	if l == nil {
		return nil
	}
	l.mu.Lock()
	t, ok := l.target.(targets.Reading)
	l.mu.Unlock()
	if !ok {
		return nil
	}
	return t.Reads()
}

// Ordering returns how a target's deliveries are ordered; nil if they are not, or there is no such target.
func (b *Bridge) Ordering(target string) *targets.Ordering {
	if l := b.lane(target); l != nil {
		return l.ordering.Load()
	}
	return nil
}
