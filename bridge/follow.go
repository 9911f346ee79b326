// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"

	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// FollowOptions say what to follow.
type FollowOptions struct {
	Bus  string
	From uint64 // first sequence; 0 = what comes from now on
	Type string // only this type; "" = all
}

// Follow calls fn for the events of a bus as they are committed, in order, and blocks until ctx is done or fn fails. A
// slow fn delays nobody: it reads further behind.
func (b *Bridge) Follow(ctx context.Context, o FollowOptions, fn func(eventlog.Entry) error) error {
	p, err := b.path(o.Bus)
	if err != nil {
		return err
	}
	next := o.From
	if next == 0 {
		next = p.log.Committed() + 1
	}
	next = max(next, p.log.First())
	stop, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.ctx, func() { cancel(fault.New(fault.Unavailable, "the bridge is stopping")) })()
	var buf []eventlog.Entry
	for {
		if p.log.Wait(stop, next-1) != nil {
			return context.Cause(stop)
		}
		entries, after, err := p.log.Read(stop, next, 256, buf[:0])
		if err != nil {
			if stop.Err() != nil {
				return context.Cause(stop)
			}
			return err
		}
		for _, e := range entries {
			if o.Type != "" && e.Record.Event.Type != o.Type {
				continue
			}
			if err := fn(e); err != nil {
				return err
			}
		}
		buf, next = entries, after
	}
}
