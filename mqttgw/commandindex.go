// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"container/heap"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// order is a command that is not final yet, or is on its way into DOWN. Everything but what it was made with is guarded by commands.mu.
type order struct {
	seq                  uint64 // 0 = it has none yet
	id, principal, topic string
	box                  *mailbox
	created, expires     time.Time
	rec                  *event.Record // until it is committed: DOWN does not give it out before
	stored               chan struct{} // closed when it is in the view, or will not be stored
	session              *session      // in whose flights it is; nil = it waits
	wasSent              bool          // load's: it was sent before the process began
	over                 bool          // its end is on its way into DOWN
	place                int           // in the heap of deadlines
	deadline             time.Time     // when it is looked at again
}

// mailbox is the commands of a device that are not final. Guarded by commands.mu.
type mailbox struct {
	device string
	open   int
	coming []*order // not committed to DOWN yet
	orders []*order // in the order of DOWN; those that have a sequence
}

func (b *mailbox) find(id string) *order {
	for _, list := range [][]*order{b.coming, b.orders} {
		if i := slices.IndexFunc(list, func(o *order) bool { return o.id == id }); i >= 0 {
			return list[i]
		}
	}
	return nil
}

// commands knows the commands that are not final, and makes of DOWN what becomes of them. It uses no positions of
// sessions: a command waits for its device until it expires.
type commands struct {
	g       *Gateway
	down    *Downlink
	view    *CommandView
	changes *changeWriter

	ready   chan struct{}     // closed when the index is made
	untold  atomic.Bool       // DOWN does not say yet what events have told of
	loading map[uint64]*order // by sequence, while sessions are loaded
	flown   uint64            // the highest sequence that a loaded session has in flight

	applied atomic.Uint64 // up to which the view and the index have DOWN

	mu        sync.Mutex          // taken inside the locks of sessions and connections
	boxes     map[string]*mailbox // guarded by mu; by device
	open      int                 // guarded by mu; commands in boxes
	deadlines deadlines           // guarded by mu
	moved     chan struct{}       // guarded by mu; closed when applied moves; nil when nobody waits
}

func newCommands(g *Gateway, down *Downlink, view *CommandView) *commands {
	return &commands{g: g, down: down, view: view, changes: newChangeWriter(g, down), ready: make(chan struct{}), boxes: map[string]*mailbox{}}
}

// box returns the mailbox of a device, and makes it. mu is held.
func (c *commands) box(device string) *mailbox {
	b := c.boxes[device]
	if b == nil {
		b = &mailbox{device: device}
		c.boxes[device] = b
	}
	return b
}

// tidy forgets an empty mailbox. mu is held.
func (c *commands) tidy(b *mailbox) {
	if len(b.coming)+len(b.orders) == 0 {
		delete(c.boxes, b.device)
	}
}

// reserve finds room for a command, which is then on its way into DOWN. If its id is known, it returns the command that
// has it. It waits for one with the same id that is on its way.
func (c *commands) reserve(ctx context.Context, device string, rec *event.Record, chosen bool) (o *order, known *storedCommand, err error) {
	for {
		c.mu.Lock()
		b := c.box(device)
		if chosen {
			o = b.find(rec.Event.ID)
		}
		if o == nil {
			break
		}
		stored, seq := o.stored, o.seq
		c.mu.Unlock()
		select {
		case <-stored:
		case <-ctx.Done():
			return nil, nil, unavailable(context.Cause(ctx))
		}
		if seq > 0 {
			s, ok, err := c.view.at(seq)
			if err != nil || ok {
				return nil, &s, err
			}
		}
		if s, ok, err := c.view.find(device, rec.Event.ID); err != nil || ok {
			return nil, &s, err
		}
		o = nil // it was not stored: this one may be
	}
	b := c.boxes[device]
	err = c.roomFor(b)
	if err == nil {
		o = &order{id: rec.Event.ID, box: b, stored: make(chan struct{})}
		b.coming = append(b.coming, o)
		c.count(b, 1)
	}
	c.tidy(b)
	c.mu.Unlock()
	if !chosen {
		return o, nil, err
	}
	full := err
	s, ok, err := c.view.find(device, rec.Event.ID) // also when there is no room: it may have ended
	if err != nil || ok {
		if o != nil {
			c.release(o)
		}
		return nil, &s, err
	}
	return o, nil, full
}

// roomFor refuses a command that is one too many. mu is held.
func (c *commands) roomFor(b *mailbox) error {
	l := &c.g.limits
	switch {
	case b.open >= l.MaxDeviceCommands:
		return errMailboxFull
	case c.open >= l.MaxCommands:
		return &fault.Error{Kind: fault.RateLimited, Message: "too many commands wait for devices", RetryAfter: time.Minute}
	}
	return nil
}

var errMailboxFull = &fault.Error{Kind: fault.RateLimited, Message: "too many commands wait for this device", RetryAfter: time.Minute}

// count counts open commands of a device in or out. mu is held.
func (c *commands) count(b *mailbox, n int) {
	b.open += n
	c.open += n
	c.g.metrics.commandsWaiting.Set(float64(c.open))
}

// release takes back a reservation: the command was refused, or could not be committed.
func (c *commands) release(o *order) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := o.box
	i := slices.Index(b.coming, o)
	if i < 0 {
		return
	}
	b.coming = slices.Delete(b.coming, i, i+1)
	close(o.stored)
	if o.seq > 0 {
		c.drop(o)
		return
	}
	c.count(b, -1)
	c.tidy(b)
}

// send makes a command that has its sequence one that waits, and has its device look for it. The log's writer calls it,
// in the order of DOWN, while the log makes the command durable: who is connected need not wait for that.
func (c *commands) send(o *order, rec *event.Record, device string, seq uint64) {
	s := commandOf(downEntry{seq: seq, rec: rec, device: device})
	c.mu.Lock()
	o.rec = rec
	c.queue(o, &s)
	c.mu.Unlock()
	c.notify(device)
}

// queue makes a command one that waits. mu is held.
func (c *commands) queue(o *order, s *storedCommand) {
	o.seq, o.principal, o.topic, o.created, o.expires, o.deadline = s.seq, s.principal, s.topic, s.created, s.expires, s.expires
	o.box.orders = append(o.box.orders, o)
	heap.Push(&c.deadlines, o)
}

// admit takes in a command that is committed. It is called in the order of DOWN, after the view has it. It returns nil for one that waits
// already, or has ended.
func (c *commands) admit(s *storedCommand) *order {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.box(s.device)
	i := slices.IndexFunc(b.coming, func(o *order) bool { return o.seq == s.seq })
	if i < 0 { // of another process
		o := &order{id: s.id, box: b, stored: make(chan struct{})}
		close(o.stored)
		c.count(b, 1)
		c.queue(o, s)
		return o
	}
	o := b.coming[i]
	b.coming = slices.Delete(b.coming, i, i+1)
	o.rec = nil
	close(o.stored)
	c.tidy(b)
	return nil
}

// settle writes down what becomes of a command and runs then, if it is not nil, after the commit. A final command is out of the index
// at once. It reports whether the command was open. mu is held.
func (c *commands) settle(o *order, state commandState, reason string, then func()) bool {
	if o.over {
		return false
	}
	switch {
	case state.final():
		c.drop(o)
	case state == commandQueued:
		o.session = nil
	}
	c.g.metrics.command(state)
	c.changes.add(change{state: state, seq: o.seq, at: c.g.now(), reason: reason}, then)
	return true
}

// drop takes a command out of the index. mu is held.
func (c *commands) drop(o *order) {
	if o.over {
		return
	}
	b := o.box
	if i := slices.Index(b.orders, o); i >= 0 {
		b.orders = slices.Delete(b.orders, i, i+1)
	}
	heap.Remove(&c.deadlines, o.place)
	o.over, o.session = true, nil
	c.count(b, -1)
	c.tidy(b)
}

// end is settle without the lock.
func (c *commands) end(o *order, state commandState, reason string, then func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.settle(o, state, reason, then)
}

// cancel cancels a command that waits, and runs then after the commit. It reports whether there was one.
func (c *commands) cancel(device, id, by string, then func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.boxes[device]
	if b == nil {
		return false
	}
	i := slices.IndexFunc(b.orders, func(o *order) bool { return o.id == id })
	if i < 0 || b.orders[i].session != nil {
		return false
	}
	reason := ""
	if by != "" {
		reason = reasonCancelled + by
	}
	return c.settle(b.orders[i], commandCancelled, reason, then)
}

// waits reports whether anything waits for a device.
func (c *commands) waits(device string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.boxes[device]
	return b != nil && len(b.orders) > 0
}

// waiting counts the commands that wait for a device, MaxDeviceCommands at most.
func (c *commands) waiting(device string) (n int) {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.boxes[device]; b != nil {
		for _, o := range b.orders {
			if o.session == nil {
				n++
			}
		}
	}
	return n
}

// deadlines is a heap of commands by the time at which they are looked at.
type deadlines []*order

func (h deadlines) Len() int           { return len(h) }
func (h deadlines) Less(i, j int) bool { return h[i].deadline.Before(h[j].deadline) }
func (h deadlines) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// fix puts the first one into its place after its deadline was changed.
func (h *deadlines) fix() { heap.Fix(h, 0) }

// Push implements heap.Interface.
func (h *deadlines) Push(x any) {
	o := x.(*order)
	o.place = len(*h)
	*h = append(*h, o)
}

// Pop implements heap.Interface.
func (h *deadlines) Pop() any {
	last := len(*h) - 1
	o := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return o
}
