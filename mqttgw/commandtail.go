// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
)

// load makes the index of what the view and DOWN say. It is called before anything else runs, and blocks while it reads.
// It returns the commands by sequence, for the sessions that have them in flight.
func (c *commands) load(ctx context.Context) (map[uint64]*order, error) {
	last := max(c.view.position.Load(), c.view.announced.Load())
	if err := c.down.o.Log.SkipTo(ctx, last); err != nil { // after damage: a sequence that the view knows is not used again
		return nil, err
	}
	c.down.catchUp()
	var entries []downEntry
	for next := c.view.position.Load() + 1; next <= c.down.Committed(); {
		from := next
		var err error
		if entries, next, err = c.down.read(ctx, from, tailEntries, entries[:0]); err != nil {
			return nil, err
		}
		if err := c.view.apply(entries, next, c.damaged); err != nil {
			return nil, err
		}
		if next == from {
			break
		}
	}
	c.applied.Store(c.down.Committed())
	open := map[uint64]*order{}
	err := c.view.eachOpen(func(s storedCommand) {
		o := c.admit(&s)
		open[s.seq] = o
		if s.state == commandSent {
			o.wasSent = true
		}
	})
	return open, err
}

// tally says how the commands of a broadcast stand.
func (c *commands) tally(b *Broadcast) error {
	n, err := c.view.tally(c.view.db, b.ID)
	if err != nil {
		return err
	}
	for state := range commandTold {
		if n[state] > 0 {
			if b.Statuses == nil {
				b.Statuses = map[string]int{}
			}
			b.Statuses[state.String()] += int(n[state]) //nolint:gosec // counts devices
		}
	}
	return nil
}

// resume has the orders that were sent, and that no session has in flight, sent again. A session may have a command in flight that a loss of power
// has taken from DOWN before it was committed; its sequence is not used again.
func (c *commands) resume(ctx context.Context) error {
	if err := c.down.o.Log.SkipTo(ctx, c.flown); err != nil {
		return err
	}
	c.down.catchUp()
	open := c.loading
	c.loading = nil
	defer close(c.ready)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range open {
		if o.wasSent && o.session == nil {
			c.settle(o, commandQueued, reasonRestarted, nil)
		}
	}
	return nil
}

func (c *commands) damaged(seq uint64, err error) {
	c.g.log.Error("changes of commands passed over", "seq", seq, "err", err)
}

// serve runs what commands need until ctx is done. What it returns has everything written down, and waits.
func (c *commands) serve(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	writing, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	var own, writer sync.WaitGroup
	writer.Go(func() { c.changes.run(writing) })
	own.Go(func() { c.repeat(ctx, "commands wait: the log cannot be read", c.follow) })
	own.Go(func() { c.repeat(ctx, "events about commands wait", c.announce) })
	own.Go(func() { c.keep(ctx) })
	return func() {
		timer := time.AfterFunc(stopTime, giveUp)
		c.changes.close()
		writer.Wait()
		c.down.settle(writing)
		timer.Stop()
		giveUp()
		cancel()
		own.Wait()
	}
}

// repeat runs step until ctx is done, with a pause after a failure.
func (c *commands) repeat(ctx context.Context, failed string, step func(context.Context) error) {
	for ctx.Err() == nil {
		err := step(ctx)
		if err == nil || ctx.Err() != nil {
			continue
		}
		c.g.log.Error(failed, "err", err)
		timer := time.NewTimer(tailPause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// follow takes in what was committed to DOWN: it goes into the view, then new commands into the index, and to devices that
// are connected.
func (c *commands) follow(ctx context.Context) error {
	from := c.applied.Load() + 1
	if err := c.down.Wait(ctx, from-1); err != nil {
		return err
	}
	entries, next, err := c.down.read(ctx, from, tailEntries, nil)
	if err != nil || next == from {
		return err
	}
	if err := c.view.apply(entries, next, c.damaged); err != nil {
		return err
	}
	for _, e := range entries {
		if e.rec != nil && e.device != "" {
			s := commandOf(e)
			if c.admit(&s) != nil {
				c.notify(e.device)
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.applied.Store(next - 1)
	if c.moved != nil {
		close(c.moved)
		c.moved = nil
	}
	return nil
}

// opened waits until the index is made.
func (c *commands) opened(ctx context.Context) error {
	select {
	case <-c.ready:
		return nil
	case <-ctx.Done():
		return unavailable(context.Cause(ctx))
	case <-c.g.life.Done():
		return errStopping
	}
}

// settled waits until the view has everything that is committed.
func (c *commands) settled(ctx context.Context) error {
	if err := c.opened(ctx); err != nil {
		return err
	}
	end := c.down.Committed()
	for {
		c.mu.Lock()
		if c.applied.Load() >= end {
			c.mu.Unlock()
			return nil
		}
		if c.moved == nil {
			c.moved = make(chan struct{})
		}
		moved := c.moved
		c.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return unavailable(context.Cause(ctx))
		case <-c.g.life.Done():
			return errStopping
		}
	}
}

// CommandData is the data of events about commands, which have the type io.rialto.command.<status> and the device,
// percent-coded, as subject. An event that is repeated, because the process has ended before it was noted, has the same
// id.
type CommandData struct {
	ID          string `json:"id"`
	Device      string `json:"device"`
	Topic       string `json:"topic"`
	Status      string `json:"status"`
	Reason      string `json:"reason,omitempty"`
	Correlation string `json:"correlation,omitempty"`
	Position    string `json:"position"`
}

// announce makes events of what has become of commands, at least once each.
func (c *commands) announce(ctx context.Context) error {
	from := c.view.announced.Load() + 1
	if err := c.down.Wait(ctx, from-1); err != nil {
		return err
	}
	entries, next, err := c.down.read(ctx, from, tailEntries, nil)
	if err != nil || next == from {
		return err
	}
	if err := c.awaitApplied(ctx, next-1); err != nil {
		return err
	}
	var told sync.WaitGroup
	var mu sync.Mutex
	var failed error // guarded by mu
	done := func(err error) {
		mu.Lock()
		failed = errors.Join(failed, err)
		mu.Unlock()
		told.Done()
	}
	for _, e := range entries {
		n := 0
		tell := func(ch change) {
			n++
			if ch.state == commandTold {
				return
			}
			c.untold.Store(true)
			rec, rerr := c.eventOf(e.seq, n, ch)
			if rerr != nil || rec == nil {
				err = errors.Join(err, rerr)
				return
			}
			told.Add(1)
			if perr := c.g.opts.Publisher.Publish(ctx, c.g.opts.Bus, rec, done); perr != nil {
				done(perr)
			}
		}
		if e.changes == nil {
			continue
		}
		if derr := decodeChanges(e.changes, tell); derr != nil {
			c.g.log.Debug("changes of commands passed over", "seq", e.seq, "err", derr) // follow has told of the damage
		}
	}
	told.Wait()
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	return c.view.tell(next - 1)
}

// awaitApplied waits until the view has a sequence.
func (c *commands) awaitApplied(ctx context.Context, seq uint64) error {
	for c.applied.Load() < seq {
		if err := c.settled(ctx); err != nil {
			return err
		}
	}
	return nil
}

// eventOf is the event of a change; nil for a command that is known no more.
func (c *commands) eventOf(seq uint64, n int, ch change) (*event.Record, error) {
	s, ok, err := c.view.at(ch.seq)
	if err != nil || !ok {
		return nil, err
	}
	data, err := json.Marshal(CommandData{ID: s.id, Device: s.device, Topic: s.topic, Status: ch.state.String(), Reason: ch.reason,
		Correlation: s.correlation, Position: event.Position{Stream: DownlinkStream, Seq: s.seq}.String()})
	if err != nil {
		return nil, err
	}
	source := event.MQTTSource(c.g.opts.Name, s.device)
	return &event.Record{Received: c.g.now(), Event: event.Event{ID: "command-" + strconv.FormatUint(seq, 10) + "-" + strconv.Itoa(n), Source: source,
		Type: commandType + "." + ch.state.String(), Subject: source[strings.LastIndexByte(source, '/')+1:], Time: ch.at,
		DataContentType: "application/json", Data: data}}, nil
}

const (
	keepEvery   = 250 * time.Millisecond // how late the end of a command may be noticed
	trimEvery   = 30 * time.Second
	markEvery   = 10 * time.Second // what is told again if the view is deleted
	expiredMost = 1000             // in one go
	lookAgain   = 10 * time.Second // at a command whose time is over and that is in flight
)

// keep ends commands whose time is over, and trims DOWN.
func (c *commands) keep(ctx context.Context) {
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	trimmed, marked := time.Now(), time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		c.expire()
		if now := time.Now(); now.Sub(marked) >= markEvery && c.mark() {
			marked = now
		}
		if now := time.Now(); now.Sub(trimmed) >= trimEvery {
			trimmed = now
			if err := errors.Join(c.trim(ctx), c.g.trimBroadcasts(ctx)); err != nil && ctx.Err() == nil {
				c.g.log.Error("retention failed", "stream", DownlinkStream, "err", err)
			}
		}
	}
}

// mark writes down what events have told of, and reports whether there was something to be written.
func (c *commands) mark() bool {
	seq := c.view.announced.Load()
	if seq == 0 || !c.untold.Swap(false) {
		return false
	}
	c.changes.add(change{state: commandTold, seq: seq, at: c.g.now()}, nil)
	return true
}

// expire ends the commands whose time is over.
func (c *commands) expire() {
	now := c.g.now()
	var flying []*order
	c.mu.Lock()
	for n := 0; n < expiredMost && len(c.deadlines) > 0 && !now.Before(c.deadlines[0].deadline); n++ {
		o := c.deadlines[0]
		if o.session == nil {
			c.settle(o, commandExpired, "", nil)
			continue
		}
		flying = append(flying, o)
		o.deadline = now.Add(lookAgain)
		c.deadlines.fix()
	}
	c.mu.Unlock()
	for _, o := range flying {
		c.expireFlight(o, now)
	}
}

// expireFlight ends a command that is in flight and whose time is over, if its device has gone: with QoS 1, or when the
// log is about to forget it. What a connected device has it may still acknowledge.
func (c *commands) expireFlight(o *order, now time.Time) {
	c.mu.Lock()
	s := o.session
	c.mu.Unlock()
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.flying {
		f := &s.flying[i]
		if f.order != o {
			continue
		}
		switch {
		case s.conn == nil && f.stage == stageQoS1:
			s.land(f.id)
			s.changed()
		case now.Sub(o.created) >= c.down.o.MaxAge:
			f.order = nil // the flight goes on: its packet id is in use
		default:
			return
		}
		c.end(o, commandExpired, reasonUnacknowledged, nil)
		return
	}
}

// trim removes what DOWN need not keep any more.
func (c *commands) trim(ctx context.Context) error {
	protect := min(c.view.position.Load(), c.view.announced.Load()) + 1
	if err := c.view.flush(); err != nil {
		return err
	}
	oldest, ok, err := c.view.oldest()
	if err != nil {
		return err
	}
	if ok {
		protect = min(protect, oldest)
	}
	first := c.down.First()
	if err := c.down.trim(ctx, protect, c.g.now()); err != nil {
		return err
	}
	if now := c.down.First(); now > first {
		if err := c.view.trim(now); err != nil {
			return fmt.Errorf("forget commands: %w", err)
		}
	}
	return nil
}
