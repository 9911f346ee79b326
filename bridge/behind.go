// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"time"

	"github.com/rialto-bridge/rialto/internal/journal"
)

// JourneyHead is the first delivery of a key: what else has the key waits behind it.
type JourneyHead struct {
	Position string     `json:"position"`
	Rule     string     `json:"rule"`
	Attempts int        `json:"attempts"`      // made so far
	Due      *time.Time `json:"due,omitempty"` // of the next one; nil while it is queued or under way
}

// whatIsFirst says of a delivery that has an order what has its turn before it.
func (p *path) whatIsFirst(d *JourneyDelivery, seq uint64) error {
	l := p.b.lane(d.Target)
	if l == nil || d.State.Terminal() {
		return nil
	}
	own, _, err := p.b.o.Journal.FindPending(p.name, seq, d.Rule, d.Target)
	if err != nil {
		return err
	}
	key, head := l.lineHead(taskID{p, seq, d.Rule}, own.Key)
	if key == 0 {
		return nil
	}
	if head == nil {
		line, _, err := p.b.o.Journal.LineOf(p.name, d.Target, key, 0)
		if err != nil {
			return err
		}
		head = &line.Head
	}
	if head.Seq == 0 || head.Seq > seq || head.Seq == seq && head.Route.Rule >= d.Rule {
		return nil // it is the first itself
	}
	d.Behind = &JourneyHead{Position: p.position(head.Seq).String(), Rule: head.Route.Rule, Attempts: head.Attempts}
	if !head.Due.IsZero() {
		d.Behind.Due = &head.Due
	}
	return nil
}

// lineHead returns the key of a delivery (key, unless the lane has it in memory), and what of the key is queued or under way;
// nil if nothing is.
func (l *lane) lineHead(id taskID, key uint64) (uint64, *journal.Pending) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.busy[id]; t != nil {
		key = t.key
	}
	ln := l.order.lines[key]
	if ln == nil || ln.head == nil {
		return key, nil
	}
	return key, &journal.Pending{Seq: ln.head.seq, Route: ln.head.route, Attempts: ln.head.attempts}
}
