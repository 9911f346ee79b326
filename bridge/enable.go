// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/targets"
)

// Enabled says what happens now that a target is enabled, and what is left to be done.
type Enabled struct {
	Target     string    `json:"target"`
	DisabledAt time.Time `json:"disabledAt"`
	Reason     string    `json:"reason"` // why it was disabled
	// Held are the deliveries that came meanwhile, or were to be tried again: they are made now.
	Held int `json:"held"`
	// Missed are the deliveries that ended as dead letters since the target began to fail. Filter selects them and no other.
	Missed DeadCount  `json:"missed"`
	Filter DeadFilter `json:"-"`
}

// EnableTarget enables a target that was disabled, as a change of its definition would. It blocks until that is committed; the event
// about it follows. The errors are NotFound, Conflict if the target is not disabled, and Unavailable if it is enabled now but a
// restart may find it disabled.
func (b *Bridge) EnableTarget(ctx context.Context, name, by string) (Enabled, error) {
	s, err := b.TargetStatus(name, true)
	if err != nil {
		return Enabled{}, err
	}
	was, written, err := b.enable(name)
	if err != nil {
		return Enabled{}, err
	}
	b.log.Info("target is enabled", "targetId", name, "key", by)
	now := b.o.Now()
	out := Enabled{Target: name, DisabledAt: was.DisabledAt, Reason: disabledBecause(was), Held: s.Parked,
		// Dead letters have the millisecond of their last attempt.
		Filter: DeadFilter{Target: name, From: was.FailingSince.Truncate(time.Millisecond), To: now.UTC().Round(0)}}
	select {
	case err = <-written:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return out, &fault.Error{Kind: fault.Unavailable, Message: "the target is enabled, but that is not written down: after a restart it may be disabled again",
			RetryAfter: time.Second, Err: err}
	}
	out.Missed, err = b.CountDead(ctx, out.Filter)
	return out, err
}

// Consent takes the consent of the far side of a target, as targets.Consenter does. The error is NotFound as well for a target that
// has asked nobody.
func (b *Bridge) Consent(ctx context.Context, name, token, rate string) error {
	var target targets.Target
	if l := b.lane(name); l != nil {
		l.mu.Lock()
		target = l.target
		l.mu.Unlock()
	}
	c, ok := target.(targets.Consenter)
	if !ok {
		return fault.New(fault.NotFound, "no target has asked for this consent")
	}
	return c.Consent(ctx, token, rate)
}

func (b *Bridge) enable(name string) (standing, <-chan error, error) {
	b.mu.RLock() // Close waits for what was added before it
	defer b.mu.RUnlock()
	l := b.lanes[name]
	switch {
	case b.closed:
		return standing{}, nil, errStopping
	case l == nil:
		return standing{}, nil, fault.New(fault.NotFound, "no target %q", name)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.gate.enable()
	if !was.disabled() {
		state, _, _ := l.state()
		return was, nil, fault.New(fault.Conflict, "the target is not disabled: it is %s", state)
	}
	written := l.tell(targetEnabled, was, nil)
	l.start()
	return was, written, nil
}
