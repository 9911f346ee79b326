// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"time"
)

// How full a bus is.
const (
	BusRoom     = "room"     // it takes events; one that is full with the policy oldest makes room
	BusPriority = "priority" // it takes those that match its priority
	BusFull     = "full"     // it takes none
)

// BusStates returns all of them.
func BusStates() []string { return []string{BusRoom, BusPriority, BusFull} }

// BusStatus is what a bus holds.
type BusStatus struct {
	State    string            `json:"state"`    // one of BusStates
	Bytes    int64             `json:"bytes"`    // on disk
	MaxBytes int64             `json:"maxBytes"` // what is in force: its own limit, or its share of the store
	Events   uint64            `json:"events"`
	First    *BusEnd           `json:"first,omitempty"` // absent if it is empty, or in a list
	Last     *BusEnd           `json:"last,omitempty"`
	Refused  map[string]uint64 `json:"refused"` // events since the start of the process, by reason
}

// BusEnd is an event at an end of a bus.
type BusEnd struct {
	Position string     `json:"position"`
	Time     *time.Time `json:"time,omitempty"` // when it came; absent if damage has taken it
}

// BusStatus returns what a bus holds; brief leaves out its ends. The error is NotFound if there is no such bus.
func (b *Bridge) BusStatus(ctx context.Context, bus string, brief bool) (BusStatus, error) {
	p, err := b.path(bus)
	if err != nil {
		return BusStatus{}, err
	}
	info := p.log.Info()
	s := BusStatus{State: p.overflow.state(info.Bytes), Bytes: info.Bytes, MaxBytes: p.maxBytes(p.doc.Load()), Events: info.Msgs, Refused: p.refusals.snapshot()}
	if brief || info.Msgs == 0 {
		return s, nil
	}
	if s.First, err = p.end(ctx, info.First); err != nil {
		return s, err
	}
	s.Last, err = p.end(ctx, info.Last)
	return s, err
}

// end describes the event at a sequence.
func (p *path) end(ctx context.Context, seq uint64) (*BusEnd, error) {
	e := &BusEnd{Position: p.position(seq).String()}
	entry, err := p.log.Bus.Get(ctx, seq)
	switch {
	case err == nil:
		e.Time = &entry.Record.Received
	case !isGone(err): // trimmed meanwhile, or lost
		return nil, err
	}
	return e, nil
}

// state says what a bus with a number of bytes takes.
func (o *overflow) state(size int64) string {
	l := o.limit.Load()
	if l == nil {
		return BusRoom
	}
	state := int(o.refusing.Load()) // a large event may be refused where a small one has room
	switch size += o.going.Load(); {
	case size >= l.full:
		state = len(BusStates()) - 1
	case size >= l.low:
		state = max(state, 1)
	}
	return BusStates()[state]
}
