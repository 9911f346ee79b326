// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// State is what a link does on this node.
type State string

// The states.
const (
	Connecting State = "connecting" // no connection yet, or not any more; tried again all the time
	Running    State = "running"
	Waiting    State = "waiting" // the other side has no room
	Refused    State = "refused" // the other side does not let it in; tried again every few seconds
	Standby    State = "standby" // another node has the lease
	Paused     State = "paused"
	Failing    State = "failing" // something here, or in its definition, does not work
	Idle       State = "idle"    // of a region: no link forwards to it
)

// LinkStatus is where a link stands on this node.
type LinkStatus struct {
	State          State      `json:"state"`
	Since          time.Time  `json:"since"`
	Error          *LinkError `json:"error,omitempty"` // why it is not running, or why it was not before
	Region         string     `json:"region"`
	Instance       string     `json:"instance,omitempty"` // of the other side, as it said last
	Lag            Lag        `json:"lag"`
	Rate           float64    `json:"rate"`           // events stored there a second, over the last minute
	BytesPerSecond float64    `json:"bytesPerSecond"` // on the wire, over the last minute
	InFlight       int        `json:"inFlight"`       // events that were sent and are not acknowledged
	Gaps           int        `json:"gaps"`           // stretches that wait behind what is fresh
	Epoch          string     `json:"epoch,omitempty"`
	Account        *Account   `json:"account,omitempty"`
}

// Lag is what a link has still to do.
type Lag struct {
	Events  uint64  `json:"events"`  // sequences of the log that are not done
	Seconds float64 `json:"seconds"` // age of the oldest of them
}

// LinkError is what was wrong last.
type LinkError struct {
	Message string    `json:"message"`
	At      time.Time `json:"at"`
}

// RegionStatus is how the links to a region stand on this node: the best of their states, and the last error.
type RegionStatus struct {
	State          State      `json:"state"`
	Links          int        `json:"links"`
	Connected      int        `json:"connected"`
	Instance       string     `json:"instance,omitempty"`
	BytesPerSecond float64    `json:"bytesPerSecond"`
	Error          *LinkError `json:"error,omitempty"`
}

// snapshot is what others see of a running link. It is immutable.
type snapshot struct {
	st             state
	bus            *eventlog.Bus
	needed         uint64 // lowest sequence that is not done, of what is written down
	inFlight, gaps int
}

// account is the account up to now.
func (s *snapshot) account(name string) Account {
	a := s.st.account(name)
	a.Pending, _ = s.st.waiting(s.bus)
	return a
}

// readWithin bounds how long a status waits for the log.
const readWithin = time.Second

// lag is what is not done up to now.
func (s *snapshot) lag(ctx context.Context, now time.Time) Lag {
	n, oldest := s.st.waiting(s.bus)
	lag := Lag{Events: n}
	if n == 0 {
		return lag
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	if at, ok := received(ctx, s.bus, oldest); ok {
		lag.Seconds = max(0, now.Sub(at).Seconds())
	}
	return lag
}

// received returns when the first event from seq on was accepted.
func received(ctx context.Context, bus *eventlog.Bus, seq uint64) (time.Time, bool) {
	entries, _, err := bus.Read(ctx, seq, 1, nil)
	if err != nil || len(entries) == 0 {
		return time.Time{}, false
	}
	return entries[0].Record.Received, true
}

func (l *link) status() LinkStatus {
	st := LinkStatus{Region: l.def.Region}
	l.mu.Lock()
	st.State, st.Since, st.Error = l.state, l.since, l.last
	l.mu.Unlock()
	now := l.ls.o.Now()
	st.Rate, st.BytesPerSecond = l.events.perSecond(now), l.bytes.perSecond(now)
	s := l.snap.Load()
	if s == nil {
		return st
	}
	st.Instance, st.Epoch, st.InFlight, st.Gaps = s.st.Instance, s.st.Epoch, s.inFlight, s.gaps
	a := s.account("")
	a.Region, a.Bus, a.To, a.Epoch = "", "", "", "" // the status and the definition say them
	st.Account = &a
	if !l.foreign.Load() {
		st.Lag = s.lag(l.ls.ctx, now)
	}
	return st
}

// best orders states for a region.
var best = []State{Running, Waiting, Refused, Failing, Connecting, Standby, Paused, Idle}

func regionStatus(r *Region, links []*link) RegionStatus {
	out := RegionStatus{State: Idle, Links: len(links)}
	for _, l := range links {
		st := l.status()
		if slices.Index(best, st.State) < slices.Index(best, out.State) {
			out.State = st.State
		}
		if st.State == Running {
			out.Connected++
		}
		if st.Instance != "" {
			out.Instance = st.Instance
		}
		if st.Error != nil && (out.Error == nil || st.Error.At.After(out.Error.At)) {
			out.Error = st.Error
		}
		out.BytesPerSecond += st.BytesPerSecond
	}
	if r.Paused {
		out.State = Paused
	}
	return out
}

func sortAccounts(all []Account) {
	slices.SortFunc(all, func(a, b Account) int { return strings.Compare(a.Link, b.Link) })
}

// meter counts what came in the last minute. Safe for concurrent use.
type meter struct {
	mu      sync.Mutex // guards below
	seconds [60]uint64 // by unix time modulo 60
	newest  int64      // unix time of the newest of seconds
}

// turn clears the seconds that have passed. Called with mu held.
func (m *meter) turn(now int64) {
	if now < m.newest-60 { // the clock was set back
		m.seconds, m.newest = [60]uint64{}, now
	}
	for s := max(m.newest+1, now-59); s <= now; s++ {
		m.seconds[s%60] = 0
	}
	m.newest = max(m.newest, now)
}

func (m *meter) add(now time.Time, n uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turn(now.Unix())
	m.seconds[now.Unix()%60] += n
}

func (m *meter) perSecond(now time.Time) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turn(now.Unix())
	var sum uint64
	for _, n := range m.seconds {
		sum += n
	}
	return float64(sum) / 60
}
