// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
)

// Words for where a target stands.
const (
	TargetActive   = "active"
	TargetPaused   = "paused"   // by its owner
	TargetOpen     = "open"     // its breaker is open: it is left alone because it fails
	TargetDisabled = "disabled" // it said that it is gone, or has failed for days; a changed definition enables it
	TargetLimited  = "limited"  // what there is waits for its rate, or for the rest it asked for
)

// TargetStates returns all of them.
func TargetStates() []string {
	return []string{TargetActive, TargetPaused, TargetOpen, TargetDisabled, TargetLimited}
}

// TargetStatus is where a target stands and what it is owed.
type TargetStatus struct {
	State       string          `json:"state"`           // one of TargetStates
	Since       *time.Time      `json:"since,omitempty"` // when that began, if it is known
	Reason      string          `json:"reason,omitempty"`
	Live        int             `json:"live"`                  // deliveries waiting in memory or under way
	Parked      int             `json:"parked"`                // deliveries waiting on disk, over all buses
	Ranged      int             `json:"ranged,omitempty"`      // of those, how many wait in ranges
	BlockedKeys int             `json:"blockedKeys,omitempty"` // with ordering: key, how many wait because their first has failed
	Blocked     []BlockedHead   `json:"blocked,omitempty"`     // some of them
	NextDue     *time.Time      `json:"nextDue,omitempty"`     // when the next of them is tried; absent while none will be
	Warnings    []rules.Warning `json:"warnings,omitempty"`    // what its owner should know of it
}

// TargetStatus returns where a target stands; brief leaves out Blocked. The error is NotFound if there is no such target.
func (b *Bridge) TargetStatus(name string, brief bool) (TargetStatus, error) {
	l := b.lane(name)
	if l == nil {
		return TargetStatus{}, fault.New(fault.NotFound, "no target %q", name)
	}
	var s TargetStatus
	now := b.o.Now()
	due, err := b.o.Journal.NextDue(name)
	if err != nil {
		return s, err
	}
	if !brief {
		if s.Blocked, err = l.blockedHeads(); err != nil {
			return s, err
		}
	}
	s.Ranged = l.waiting.Ranged()
	s.Parked = l.waiting.Parked() + s.Ranged
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.order.heads) > 0 { // what has an order is not among what the views list by its time
		due = sooner(due, l.order.heads[0].due)
	}
	if s.Ranged > 0 && due.IsZero() {
		due = now
	}
	var since time.Time
	if s.State, since, s.Reason = l.state(); !since.IsZero() {
		s.Since = &since
	}
	if w, ok := l.target.(targets.Warner); ok {
		s.Warnings = w.Warnings()
	}
	s.BlockedKeys = l.blocked()
	s.Live = max(len(l.busy)-len(l.ready), 0)
	if due.IsZero() || l.target == nil || l.gate.halted() {
		return s, nil
	}
	if at := l.gate.opens(now); at.After(due) {
		due = at
	}
	s.NextDue = &due
	return s, nil
}

// state is the gate's. Called with mu held.
func (l *lane) state() (state string, since time.Time, reason string) {
	if l.target == nil {
		return TargetPaused, time.Time{}, "its definition cannot be used"
	}
	return l.gate.state(l.b.o.Now(), len(l.live) > l.head || len(l.ready) > 0)
}
