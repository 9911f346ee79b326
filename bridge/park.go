// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"slices"
	"time"

	"github.com/rialto-bridge/rialto/internal/journal"
)

// sweep is the goroutine that parks what has been live for too long, so that the floor moves on.
func (b *Bridge) sweep() {
	defer b.wg.Done()
	tick := time.NewTicker(b.o.Unsettled / 4)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			limit := b.o.Now().Add(-b.o.Unsettled)
			b.park(func(t *task) bool { return t.offered.Before(limit) }, reasonSlow)
		case <-b.ctx.Done():
			return
		}
	}
}

// parkBelow parks what is still live of the events of p below seq.
func (b *Bridge) parkBelow(p *path, seq uint64) {
	b.park(func(t *task) bool { return t.path == p && t.seq < seq }, reasonSlow)
}

func (b *Bridge) park(old func(*task) bool, reason string) {
	for _, l := range b.allLanes() {
		b.parkIn(l, old, reason)
	}
}

func (b *Bridge) parkIn(l *lane, old func(*task) bool, reason string) {
	queued, underWay, timeout := l.overdue(old)
	now := b.o.Now()
	why, due := l.parks(now)
	if why == "" {
		why, due = reason, now
	}
	for _, t := range queued {
		t.path.rec.outcome(t, journal.Outcome{State: journal.Parked, At: now, Due: due, Reason: why})
	}
	for _, t := range underWay {
		// Due only matters after a crash: until the attempt ends the lane knows that it is being made.
		t.path.rec.overtake(t, journal.Outcome{State: journal.Parked, At: now, Due: now.Add(timeout), Reason: reasonUnderWay})
	}
}

// Words of the bridge's own for why a delivery is parked, or has ended without an attempt.
const (
	reasonQueueFull     = "queue_full" // the live queue was full
	reasonSlow          = "slow"       // it waited for its turn too long
	reasonLimited       = "rate_limit" // as slow, because of the target's rate limit
	reasonPaused        = "paused"     // the target is
	reasonDisabled      = "disabled"   // the target is
	reasonBreaker       = "breaker"    // of the target is open
	reasonRest          = "rest"       // the target asked for it
	reasonOrder         = "order"      // something before it, with its key, has its turn first
	reasonUnreadable    = "unreadable" // the event cannot be read at the moment
	reasonUnderWay      = "under_way"  // its attempt is taking long; it goes on
	reasonTargetDeleted = journal.ReasonTargetDeleted
	reasonRuleDeleted   = journal.ReasonRuleDeleted
	reasonEventGone     = "event_gone" // retention or damage took the event
	reasonExpired       = "expirytime" // of the event has passed
)

// overdue takes out of the queue, and returns, the live deliveries for which old is true; under way are those that cannot
// be taken out because an attempt is being made.
func (l *lane) overdue(old func(*task) bool) (queued, underWay []*task, timeout time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.slow = len(queued) > 0 || l.slow && l.head < len(l.live) }()
	if live := l.live[l.head:]; slices.ContainsFunc(live, old) {
		var keep []*task
		for _, t := range live {
			if old(t) {
				queued = append(queued, t)
			} else {
				keep = append(keep, t)
			}
		}
		l.live, l.head = keep, 0
	}
	if len(l.order.lines) > 0 {
		queued = l.overdueLines(queued, old)
	}
	if len(l.busy) == 0 {
		l.busy = nil // a map never gets smaller, and an idle lane keeps little
	}
	if l.workers > 0 {
		waiting := make(map[*task]bool, len(queued)+len(l.live)-l.head)
		for _, t := range queued {
			waiting[t] = true
		}
		for _, t := range l.live[l.head:] {
			waiting[t] = true
		}
		for _, ln := range l.order.lines {
			for _, t := range ln.behind {
				waiting[t] = true
			}
		}
		for _, t := range l.busy {
			if !waiting[t] && !t.settled.Load() && old(t) {
				underWay = append(underWay, t)
			}
		}
	}
	return queued, underWay, l.def.Delivery.Timeout
}

// parks says why the live deliveries of the lane wait, if it is known, and until when.
func (l *lane) parks(now time.Time) (reason string, due time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if reason, due = l.gate.parks(now); reason == "" && l.gate.limiter.room(now) == 0 {
		reason, due = reasonLimited, now
	}
	return reason, due
}
