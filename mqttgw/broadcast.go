// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// BroadcastSubject is the subject under which broadcasts are written, in a stream of their own.
const BroadcastSubject = "broadcasts"

// States of a broadcast.
const (
	BroadcastRunning   = "running"
	BroadcastPaused    = "paused"
	BroadcastDone      = "done"
	BroadcastCancelled = "cancelled" // what was sent by then stays so
)

// BroadcastSpec is one command for many devices.
type BroadcastSpec struct {
	Select  Selection
	Command CommandSpec // without device and id; a topic may hold ${device}
	Rate    float64     // commands a second; 0 = 100
	Batch   int         // commands on their way into the log at a time; 0 = 100
	Why     string      // for people
}

// Broadcast is a broadcast and how far it has come. It goes on after a restart where it was.
type Broadcast struct {
	ID      string    `json:"id"`
	State   string    `json:"state"`
	Waiting string    `json:"waiting,omitempty"` // why it gets no further at the moment
	Select  Selection `json:"select"`
	Topic   string    `json:"topic,omitempty"`
	Rate    float64   `json:"rate"`
	Batch   int       `json:"batch"`
	By      string    `json:"by,omitempty"`
	Why     string    `json:"why,omitempty"`

	Total    int            `json:"total"`             // devices that were selected when it was made
	Sent     int            `json:"sent"`              // commands stored so far
	Skipped  int            `json:"skipped,omitempty"` // devices that cannot get it
	Skip     string         `json:"skipReason,omitempty"`
	Statuses map[string]int `json:"statuses,omitempty"` // how the commands stand

	CreatedAt time.Time `json:"createdAt"`
	ChangedAt time.Time `json:"changedAt"` // of the state
}

// broadcast is a Broadcast as it is written down, whole when it is made.
type broadcast struct {
	Broadcast
	N       uint64      `json:"n"`      // the sequence of its first message, which itself says 0
	Cursor  string      `json:"cursor"` // devices up to this one had their turn
	Command CommandSpec `json:"command"`

	whole   uint64        // the sequence of its last message that has all of it
	writing chan struct{} // held while it is written
	wake    chan struct{} // its state has changed
	active  bool          // its goroutine exists
}

// broadcastProgress is what is written down of a broadcast that goes on: the list of its devices and its payload may be large, and stay.
type broadcastProgress struct {
	Of        uint64    `json:"of"` // its number
	State     string    `json:"state"`
	Sent      int       `json:"sent"`
	Skipped   int       `json:"skipped,omitempty"`
	Skip      string    `json:"skipReason,omitempty"`
	Cursor    string    `json:"cursor"`
	ChangedAt time.Time `json:"changedAt"`
}

// Limits of broadcasts.
const (
	maxBroadcasts       = 1000 // that are known
	maxActiveBroadcasts = 20
	maxListed           = 10_000 // devices
	maxListedBytes      = 512 << 10
	maxBroadcastRate    = 10_000
	maxBatch            = 1000
	broadcastKept       = 31 * 24 * time.Hour
	broadcastCheckpoint = 5 * time.Second // what is sent twice after a crash is the same command
	broadcastRetry      = 250 * time.Millisecond
	broadcastTurn       = 250 * time.Millisecond // commands of this time go together, if Batch allows
)

// broadcasts is the list of broadcasts, kept in a stream, and runs them.
type broadcasts struct {
	g      *Gateway
	log    SessionLog
	ctx    context.Context // of serve; ends their work
	cancel context.CancelFunc
	wg     sync.WaitGroup
	ready  chan struct{} // closed when the list is read

	mu     sync.Mutex // guards all, and of each broadcast what writing does not
	all    map[uint64]*broadcast
	closed bool
}

func newBroadcasts(g *Gateway, log SessionLog) *broadcasts {
	b := &broadcasts{g: g, log: log, ready: make(chan struct{}), all: map[uint64]*broadcast{}}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// load reads the broadcasts that were before.
func (b *broadcasts) load(ctx context.Context) error {
	for from := uint64(1); ; {
		msgs, err := b.log.Read(ctx, eventlog.ReadOptions{From: from}, nil)
		if err != nil || len(msgs) == 0 {
			return err
		}
		for _, m := range msgs {
			from = m.Seq + 1
			if m.Gap() {
				continue
			}
			if err := b.take(m.Data, m.Seq); err != nil {
				b.g.log.Error("broadcast passed over", "seq", m.Seq, "err", err)
			}
		}
	}
}

// take takes in what was written of a broadcast. Nothing runs yet.
func (b *broadcasts) take(data []byte, seq uint64) error {
	var p broadcastProgress
	if err := json.Unmarshal(data, &p); err != nil {
		return err
	}
	if p.Of == 0 {
		var r broadcast
		if err := json.Unmarshal(data, &r); err != nil {
			return err
		}
		b.put(&r, seq)
		return nil
	}
	if r := b.all[p.Of]; r != nil { // else it is forgotten
		r.State, r.Sent, r.Skipped, r.Skip, r.Cursor, r.ChangedAt = p.State, p.Sent, p.Skipped, p.Skip, p.Cursor, p.ChangedAt
	}
	return nil
}

// put takes a broadcast in as it was written. mu is held, or nothing runs yet.
func (b *broadcasts) put(r *broadcast, seq uint64) *broadcast {
	if r.N == 0 {
		r.N = seq
	}
	r.ID = "broadcast-" + strconv.FormatUint(r.N, 10)
	r.whole, r.writing, r.wake = seq, make(chan struct{}, 1), make(chan struct{}, 1)
	b.all[r.N] = r
	var ended []uint64
	for n, x := range b.all {
		if !x.open() {
			ended = append(ended, n)
		}
	}
	slices.Sort(ended)
	for len(b.all) > maxBroadcasts && len(ended) > 0 { // the oldest first
		delete(b.all, ended[0])
		ended = ended[1:]
	}
	return r
}

func (r *broadcast) open() bool { return r.State == BroadcastRunning || r.State == BroadcastPaused }

// start goes on with those that were running.
func (b *broadcasts) start() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.ready)
	for _, r := range b.all {
		b.run(r)
	}
}

// stop ends their work and waits for it.
func (b *broadcasts) stop() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.cancel()
	b.wg.Wait()
}

// run makes the goroutine of a broadcast, if it should have one. mu is held.
func (b *broadcasts) run(r *broadcast) {
	if r.State == BroadcastRunning && !r.active && !b.closed {
		r.active = true
		b.wg.Go(func() { b.work(r) })
	}
}

// write writes down a broadcast, or how far it is, and waits for the commit.
func (b *broadcasts) write(ctx context.Context, what any) (uint64, error) {
	data, err := json.Marshal(what)
	if err != nil {
		return 0, err
	}
	done := make(chan eventlog.Result, 1)
	if err := b.log.Append(ctx, eventlog.Message{Subject: BroadcastSubject, Data: data}, func(r eventlog.Result) { done <- r }); err != nil {
		return 0, unavailable(err)
	}
	res := <-done // it is always called
	return res.Seq, unavailable(res.Err)
}

// Broadcast starts a broadcast, and returns once it is written down: from then on it will be done. PlanBroadcast says how
// many devices it would be for, and refuses what this refuses.
func (g *Gateway) Broadcast(ctx context.Context, spec BroadcastSpec) (Broadcast, error) {
	names, err := g.planBroadcast(ctx, &spec)
	if err != nil {
		return Broadcast{}, err
	}
	b, now := g.broadcasts, g.now()
	if b.openOnes() >= maxActiveBroadcasts {
		return Broadcast{}, &fault.Error{Kind: fault.RateLimited, Message: "there are too many broadcasts that have not ended", RetryAfter: time.Minute}
	}
	r := broadcast{Command: spec.Command, Broadcast: Broadcast{State: BroadcastRunning, Select: spec.Select, Topic: spec.Command.Topic,
		Rate: spec.Rate, Batch: spec.Batch, By: spec.Command.By, Why: spec.Why, Total: len(names), CreatedAt: now, ChangedAt: now}}
	seq, err := b.write(ctx, r)
	if err != nil {
		return Broadcast{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	made := b.put(&r, seq)
	b.run(made)
	g.log.Info("broadcast started", "job", made.ID, "key", made.By, "count", made.Total)
	return made.Broadcast, nil
}

// PlanBroadcast says how many devices a broadcast would be for.
func (g *Gateway) PlanBroadcast(ctx context.Context, spec BroadcastSpec) (int, error) {
	names, err := g.planBroadcast(ctx, &spec)
	return len(names), err
}

func (g *Gateway) planBroadcast(ctx context.Context, spec *BroadcastSpec) ([]string, error) {
	if _, err := g.openBroadcasts(ctx); err != nil {
		return nil, err
	}
	if err := g.checkBroadcast(spec); err != nil {
		return nil, err
	}
	spec.Select.Devices = g.distinct(spec.Select.Devices)
	return g.selected(&spec.Select, ""), nil
}

// openBroadcasts waits until the list is read.
func (g *Gateway) openBroadcasts(ctx context.Context) (*broadcasts, error) {
	if g.broadcasts == nil {
		return nil, errNoCommands
	}
	select {
	case <-g.broadcasts.ready:
		return g.broadcasts, nil
	case <-ctx.Done():
		return nil, unavailable(context.Cause(ctx))
	case <-g.life.Done():
		return nil, errStopping
	}
}

func (g *Gateway) checkBroadcast(spec *BroadcastSpec) error {
	var bad []fault.Detail
	complain := func(pointer, format string, args ...any) {
		bad = append(bad, fault.Detail{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
	}
	spec.Rate, spec.Batch = cmp.Or(spec.Rate, 100), cmp.Or(spec.Batch, 100)
	if !(spec.Rate >= 0.01 && spec.Rate <= maxBroadcastRate) {
		complain("/rate", "must be 0.01 to %d commands a second", maxBroadcastRate)
	}
	if spec.Batch < 1 || spec.Batch > maxBatch {
		complain("/batch", "must be 1 to %d", maxBatch)
	}
	if len(spec.Why) > maxBy {
		complain("/why", "must be at most %d bytes", maxBy)
	}
	spec.Select.check(complaint(complain).under("/select"))
	if len(spec.Command.Payload) > maxListedBytes {
		complain("/payload", "must be at most %d bytes for many devices", maxListedBytes)
	}
	sample := spec.Command
	sample.Device, sample.Topic = "device", topicFor(spec.Command.Topic, "device")
	if _, err := g.checkCommand(&sample); err != nil {
		var f *fault.Error
		if !errors.As(err, &f) || f.Kind != fault.Invalid {
			return err
		}
		bad = append(bad, f.Details...)
	}
	return fault.Collect(bad)
}

// topicFor fills a device into a topic.
func topicFor(topic, device string) string { return strings.ReplaceAll(topic, "${device}", device) }

func (b *broadcasts) openOnes() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.all {
		if r.open() {
			n++
		}
	}
	return n
}

// Broadcasts lists the broadcasts, newest first. Those that ended are kept for 31 days.
func (g *Gateway) Broadcasts(ctx context.Context) ([]Broadcast, error) {
	b, err := g.openBroadcasts(ctx)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	all := slices.Collect(maps.Values(b.all))
	slices.SortFunc(all, func(x, y *broadcast) int { return cmp.Compare(y.N, x.N) })
	out := make([]Broadcast, len(all))
	for i, r := range all {
		out[i] = r.Broadcast
	}
	b.mu.Unlock()
	for i := range out {
		if err := g.commands.tally(&out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// BroadcastByID returns a broadcast. The error is NotFound if there is none.
func (g *Gateway) BroadcastByID(ctx context.Context, id string) (Broadcast, error) {
	b, err := g.openBroadcasts(ctx)
	if err != nil {
		return Broadcast{}, err
	}
	b.mu.Lock()
	r, err := b.find(id)
	if err != nil {
		b.mu.Unlock()
		return Broadcast{}, err
	}
	out := r.Broadcast
	b.mu.Unlock()
	return out, g.commands.tally(&out)
}

// find is called with mu held.
func (b *broadcasts) find(id string) (*broadcast, error) {
	for _, r := range b.all {
		if r.ID == id {
			return r, nil
		}
	}
	return nil, fault.New(fault.NotFound, "no broadcast with this id")
}

// SetBroadcast pauses, resumes or cancels a broadcast, and returns once that is committed. One that is in the state already
// is left alone; one that has ended is a Conflict.
func (g *Gateway) SetBroadcast(ctx context.Context, id, state, by string) (Broadcast, error) {
	b, err := g.openBroadcasts(ctx)
	if err != nil {
		return Broadcast{}, err
	}
	b.mu.Lock()
	r, err := b.find(id)
	b.mu.Unlock()
	if err == nil {
		err = b.change(ctx, r, func(r *broadcast) error {
			if r.State != state && !r.open() {
				return fault.New(fault.Conflict, "the broadcast is %s", r.State)
			}
			r.State = state
			return nil
		})
	}
	if err != nil {
		return Broadcast{}, err
	}
	g.log.Info("broadcast changed", "job", id, "key", by, "state", state)
	return g.BroadcastByID(ctx, id)
}

// change writes a broadcast with what fn makes of it, and then puts it in force.
func (b *broadcasts) change(ctx context.Context, r *broadcast, fn func(*broadcast) error) error {
	select {
	case r.writing <- struct{}{}:
	case <-ctx.Done():
		return unavailable(context.Cause(ctx))
	}
	defer func() { <-r.writing }()
	b.mu.Lock()
	next := *r
	b.mu.Unlock()
	old := next.State
	if err := fn(&next); err != nil {
		return err
	}
	if old != next.State {
		next.ChangedAt, next.Waiting = b.g.now(), ""
	}
	if _, err := b.write(ctx, broadcastProgress{next.N, next.State, next.Sent, next.Skipped, next.Skip, next.Cursor, next.ChangedAt}); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	r.State, r.ChangedAt = next.State, next.ChangedAt // what its goroutine has done meanwhile stands
	if old != next.State {
		r.Waiting = ""
	}
	b.run(r)
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return nil
}

// trimBroadcasts applies the retention of broadcasts.
func (g *Gateway) trimBroadcasts(ctx context.Context) error {
	if g.broadcasts == nil {
		return nil
	}
	return g.broadcasts.trim(ctx, g.now())
}

// trim forgets old broadcasts that have ended.
func (b *broadcasts) trim(ctx context.Context, now time.Time) error {
	b.mu.Lock()
	protect := uint64(1) << 62
	for _, r := range b.all {
		if r.open() || now.Sub(r.ChangedAt) < broadcastKept {
			protect = min(protect, r.whole)
		}
	}
	b.mu.Unlock()
	gone, err := b.log.Trim(ctx, eventlog.TrimPolicy{MaxAge: broadcastKept, Protect: protect, Now: now})
	if err != nil || gone.Blocks == 0 {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for n, r := range b.all {
		if r.whole < gone.First {
			delete(b.all, n)
			err = errors.Join(err, b.g.commands.view.forget(r.ID))
		}
	}
	return err
}
