// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// State is what a source does on this node.
type State string

// The states.
const (
	Starting State = "starting"
	Running  State = "running"
	Standby  State = "standby" // it waits for the lease, which another node has
	Failing  State = "failing" // it ended and is tried again
	Paused   State = "paused"
	Stopped  State = "stopped"
)

// Status is where a source stands on this node.
type Status struct {
	State     State      `json:"state"`
	Since     time.Time  `json:"since"`
	Node      string     `json:"node,omitempty"`     // that has the source; of pulled sources
	Hook      string     `json:"hook,omitempty"`     // path that it is sent to
	Position  string     `json:"position,omitempty"` // upstream, in words of its kind
	Lag       *int64     `json:"lag,omitempty"`      // events that are known to wait upstream
	Rate      float64    `json:"rate"`               // events stored a second, over the last minute
	Stored    uint64     `json:"stored"`             // events since the process began, and so on
	Duplicate uint64     `json:"duplicates"`         // dropped as known
	Refused   uint64     `json:"refused"`            // cannot be stored: each is an event io.rialto.source.refused, but for what was too large to be verified (413)
	Rejected  uint64     `json:"rejected"`           // requests that were not proved: 401 or 403, nothing of them is kept
	LastEvent *time.Time `json:"lastEvent,omitempty"`
	LastError *LastError `json:"lastError,omitempty"`
}

// LastError is why a source ended last, or why its hook did not take the last request (413, 500, 503, 507).
type LastError struct {
	At      time.Time `json:"at"`
	Message string    `json:"message"`
}

// holderWithin bounds the question who has a lease.
const holderWithin = time.Second

func (in *instance) status() Status {
	in.mu.Lock()
	st := Status{State: in.state, Since: in.since, Position: in.at, LastError: in.last}
	if in.lag >= 0 {
		lag := in.lag
		st.Lag = &lag
	}
	in.mu.Unlock()
	if in.kind.Hook {
		st.Hook = "/hooks/" + in.def.Name
	}
	switch {
	case in.kind.Hook:
	case st.State == Running:
		st.Node = in.s.o.Leases.Node()
	case st.State == Standby:
		ctx, cancel := context.WithTimeout(in.ctx, holderWithin)
		defer cancel()
		if node, err := in.s.o.Leases.Holder(ctx, "source."+in.def.Name); err == nil {
			st.Node = node
		}
	}
	in.tally.fill(&st, in.s.o.Now())
	return st
}

// tally counts what a source has taken in.
type tally struct {
	metrics    sourceMetrics
	stored     atomic.Uint64
	duplicates atomic.Uint64
	refused    atomic.Uint64
	rejected   atomic.Uint64

	mu      sync.Mutex // guards below
	last    time.Time
	seconds [60]uint32 // events of each of the last seconds, by unix time modulo 60
	newest  int64      // unix time of the newest of seconds
	warned  warned
}

// warned is when something was logged last that may come in floods.
type warned struct{ rejected, refused, untaken time.Time }

func newTally(m sourceMetrics) *tally { return &tally{metrics: m} }

func (t *tally) add(now time.Time) {
	t.stored.Add(1)
	t.metrics.stored.Inc()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = now
	t.turn(now.Unix())
	t.seconds[now.Unix()%60]++
}

func (t *tally) duplicate(n uint64) {
	t.duplicates.Add(n)
	t.metrics.duplicates.Add(float64(n))
}

// refuse counts an event that cannot be stored, and says whether it is to be logged.
func (t *tally) refuse(now time.Time) (log bool) {
	t.refused.Add(1)
	t.metrics.refused.Inc()
	return t.warn(&t.warned.refused, now)
}

// reject counts a request that was not proved, and says whether it is to be logged.
func (t *tally) reject(now time.Time) (log bool) {
	t.rejected.Add(1)
	return t.warn(&t.warned.rejected, now)
}

// warnAfter is how often the same of one source is logged.
const warnAfter = 10 * time.Second

// warn notes that something is logged now, unless it was a short while ago: a flood of it does not flood the log.
func (t *tally) warn(last *time.Time, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(*last) < warnAfter {
		return false
	}
	*last = now
	return true
}

// turn clears the seconds that have passed. Called with mu held.
func (t *tally) turn(now int64) {
	for s := max(t.newest+1, now-59); s <= now; s++ {
		t.seconds[s%60] = 0
	}
	t.newest = max(t.newest, now)
}

func (t *tally) fill(st *Status, now time.Time) {
	st.Stored, st.Duplicate, st.Refused, st.Rejected = t.stored.Load(), t.duplicates.Load(), t.refused.Load(), t.rejected.Load()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.last.IsZero() {
		last := t.last
		st.LastEvent = &last
	}
	t.turn(now.Unix())
	var sum uint64
	for _, n := range t.seconds {
		sum += uint64(n)
	}
	st.Rate = float64(sum) / 60
}
