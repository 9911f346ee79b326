// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// SessionLog is the stream that sessions are written to. It is safe for concurrent use; *eventlog.Stream is one.
type SessionLog interface {
	// Append commits a message; done is called once, in order, and must not block.
	Append(ctx context.Context, m eventlog.Message, done func(eventlog.Result)) error
	Read(ctx context.Context, o eventlog.ReadOptions, dst []eventlog.Raw) ([]eventlog.Raw, error)
	Trim(ctx context.Context, p eventlog.TrimPolicy) (eventlog.Trimmed, error)
}

// SessionSubject is the subject under which sessions are written.
const SessionSubject = "sessions"

// recorder writes what changes in sessions to the SessionLog: it packs what gathers while the last message is being
// committed, commits it, and then runs what waited for it. One goroutine does all this, so records reach the stream, and
// what waits for them runs, in the order in which they were added. What is added is bounded by the windows of the
// connections, which stop reading.
//
// If the log cannot be written the recorder keeps the message and tries again; if trying cannot help it ends, and what
// waits never runs.
type recorder struct {
	g      *Gateway
	log    SessionLog
	wake   chan struct{}
	broken chan struct{} // closed when the recorder has ended by itself

	mu       sync.Mutex
	full     []batch         // guarded by mu; messages that wait to be committed
	buf      []byte          // guarded by mu; records that gather
	waiting  []func()        // guarded by mu; for the commit of buf
	sessions []*session      // guarded by mu; changed
	groups   []*group        // guarded by mu; changed
	closed   bool            // guarded by mu
	asked    []chan struct{} // guarded by mu; closed when all that has changed is written
	err      error           // guarded by mu; why it has ended

	// QoS 2 publications on their way, by generation; see checkpoint. Guarded by mu.
	generation int
	open       [2]int
	began      [2]moment // the ends of the feeds when the generation began

	// The recorder goroutine's own.
	last     uint64 // sequence of the last message
	size     int64  // bytes written since the last snapshot, which is included
	snapshot int64  // bytes of the last snapshot
	refused  bool   // the log's last refusal was logged
}

// batch is a message of records, without its head, and what waits for its commit.
type batch struct {
	records []byte
	waiting []func()
}

const (
	messageSize  = 256 << 10 // where a message ends: larger by less than a record
	snapshotFrom = 8 << 20   // bytes of records after which a snapshot pays
	minRetry     = 10 * time.Millisecond
	maxRetry     = time.Second
)

var errRecorderEnded = errors.New("sessions are not recorded any more")

func newRecorder(g *Gateway, log SessionLog) *recorder {
	return &recorder{g: g, log: log, wake: make(chan struct{}, 1), broken: make(chan struct{})}
}

// ended reports whether nothing is written any more; a nil recorder never wrote.
func (r *recorder) ended() bool {
	if r == nil {
		return false
	}
	select {
	case <-r.broken:
		return true
	default:
		return false
	}
}

// add adds a record and runs then, if it is not nil, after its commit, in the recorder's goroutine. It does not block.
// then is not called when the recorder has ended.
func (r *recorder) add(rec *record, then func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return
	}
	r.buf = rec.append(r.buf)
	if then != nil {
		r.waiting = append(r.waiting, then)
	}
	if len(r.buf) >= messageSize {
		r.seal()
	}
	r.signal()
}

// flush waits until a message is committed that begins after it was called.
func (r *recorder) flush(ctx context.Context) error {
	done := make(chan struct{})
	r.mu.Lock()
	r.seal()
	r.waiting = append(r.waiting, func() { close(done) })
	r.mu.Unlock()
	r.signal()
	return r.await(ctx, done)
}

// settle waits until all that has changed before it was called is written, with a checkpoint.
func (r *recorder) settle(ctx context.Context) error {
	done := make(chan struct{})
	r.mu.Lock()
	r.asked = append(r.asked, done)
	r.mu.Unlock()
	r.signal()
	return r.await(ctx, done)
}

// seal ends the message that gathers. mu is held.
func (r *recorder) seal() {
	if len(r.buf) > 0 || len(r.waiting) > 0 {
		r.full = append(r.full, batch{r.buf, r.waiting})
		r.buf, r.waiting = nil, nil
	}
}

func (r *recorder) noteSession(s *session) {
	r.mu.Lock()
	r.sessions = append(r.sessions, s)
	r.mu.Unlock()
}

func (r *recorder) noteGroup(gr *group) {
	r.mu.Lock()
	r.groups = append(r.groups, gr)
	r.mu.Unlock()
}

func (r *recorder) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// begin counts a QoS 2 publication in, before it is handed to the bus; finish counts it
// out once its record was added. A generation is 1 or 2.
func (r *recorder) begin() (generation int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open[r.generation]++
	return r.generation + 1
}

func (r *recorder) finish(generation int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open[generation-1]--
}

// checkpoint returns a moment before which no QoS 2 event is without its record, given the ends of the feeds now. A
// publication that began in the present generation has an event behind the moment when the generation began; so when none
// of the older one is left, that is the moment. mu is held.
func (r *recorder) checkpoint(end moment) moment {
	now, old := r.generation, 1-r.generation
	if r.open[old] > 0 {
		return r.began[old]
	}
	at := r.began[now]
	if r.open[now] == 0 {
		at = end
	}
	r.generation, r.began[old] = old, end
	return at
}

// run is the recorder's goroutine: it ends after close, when everything is written.
func (r *recorder) run(ctx context.Context) {
	tick := time.NewTicker(r.g.limits.ProgressEvery)
	defer tick.Stop()
	for {
		ticked := false
		select {
		case <-r.wake:
		case <-tick.C:
			ticked = true
		}
		r.mu.Lock()
		closing, asked := r.closed, r.asked
		r.asked = nil
		r.mu.Unlock()
		err := r.write(ctx, ticked || closing || len(asked) > 0)
		if err == nil {
			for _, done := range asked {
				close(done)
			}
		}
		if err == nil && ticked && !closing {
			err = r.compact(ctx)
			if v := r.g.opts.Retained; v != nil {
				if err := v.sync(); err != nil {
					r.g.log.Error("retained messages are not safe from a power loss", "err", err)
				}
			}
		}
		if err != nil {
			r.end(err)
			return
		}
		if closing {
			return
		}
	}
}

// close has everything written and the goroutine ended.
func (r *recorder) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.signal()
}

func (r *recorder) end(err error) {
	r.mu.Lock()
	r.err = err
	r.full, r.waiting, r.buf = nil, nil, nil
	r.mu.Unlock()
	close(r.broken)
	r.g.dropEnded()
	r.g.log.Error("sessions are not recorded any more", "err", err)
}

// await waits until what closes done has run. It gives up when ctx is done, or when the recorder has ended.
func (r *recorder) await(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-r.broken:
		return errRecorderEnded
	}
}

// write commits what has gathered; if flush, with the progress of what has changed and a checkpoint at the end.
func (r *recorder) write(ctx context.Context, flush bool) error {
	var checkpoint moment
	if flush {
		// Sampled before the changed sessions are encoded: whatever began to lag up to here is among them, or was.
		checkpoint = r.g.routedAll()
		end := r.g.ends() // before the generations are looked at
		r.encodeChanged()
		r.mu.Lock()
		recorded := r.checkpoint(end)
		r.mu.Unlock()
		for i := range checkpoint {
			k := &checkpoint[i]
			k.seq = max(min(k.seq, recorded.at(k.feed)), k.feed.marked.Load())
		}
	}
	r.mu.Lock()
	r.seal()
	todo := r.full
	r.full = nil
	r.mu.Unlock()
	if flush && len(todo) == 0 && checkpoint.advances() {
		todo = []batch{{}}
	}
	for i, b := range todo {
		at := r.g.markedAll()
		if i == len(todo)-1 && flush {
			at = checkpoint
		}
		if err := r.commit(ctx, append(beginRecords(make([]byte, 0, 64+len(b.records)), at.state()), b.records...)); err != nil {
			return err
		}
		for _, k := range at {
			k.feed.marked.Store(k.seq)
		}
		for _, then := range b.waiting {
			then()
		}
	}
	return nil
}

// encodeChanged adds the records of what has changed. Groups come first: what they have handed out is in flight in a
// session whose state is newer then.
func (r *recorder) encodeChanged() {
	r.mu.Lock()
	sessions, groups := r.sessions, r.groups
	r.sessions, r.groups = nil, nil
	r.mu.Unlock()
	for _, gr := range groups {
		gr.mu.Lock()
		gr.dirty = false
		gr.tidy()
		if !gr.ended {
			r.add(gr.record(), nil)
		}
		gr.mu.Unlock()
	}
	for _, s := range sessions {
		s.mu.Lock()
		s.dirty = false
		s.at.tidy()
		if !s.ended {
			r.add(&record{kind: recordProgress, epoch: s.epoch, fence: s.fence, state: sessionState{progress: s.progress()}}, nil)
		}
		s.mu.Unlock()
	}
}

// commit appends a message and waits for its commit. The error says that no later attempt can help.
func (r *recorder) commit(ctx context.Context, msg []byte) error {
	pause := minRetry
	for {
		err := r.append(ctx, msg)
		if err == nil {
			r.size += int64(len(msg))
			r.refused = false
			return nil
		}
		if k := fault.KindOf(err); k != fault.Full && k != fault.Unavailable || ctx.Err() != nil {
			return fmt.Errorf("append session records: %w", err)
		}
		if !r.refused {
			r.refused = true
			r.g.log.Warn("sessions cannot be written, trying again", "err", err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
		pause = min(2*pause, maxRetry)
	}
}

func (r *recorder) append(ctx context.Context, msg []byte) error {
	done := make(chan eventlog.Result, 1)
	err := r.log.Append(ctx, eventlog.Message{Subject: SessionSubject, Data: msg}, func(res eventlog.Result) { done <- res })
	if err != nil {
		return err
	}
	select {
	case res := <-done:
		if res.Err == nil {
			r.last = res.Seq
		}
		return res.Err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// compact writes everything anew and trims what came before, when enough has been written since the last time. A session
// is written in its turn among the records of its changes, so a crash in between leaves what is true.
func (r *recorder) compact(ctx context.Context) error {
	if r.size < snapshotFrom || r.size < r.snapshot+r.snapshot/2 {
		return nil
	}
	first := r.last + 1
	r.size = 0
	for _, cut := range r.g.cuts.all() {
		r.add(&record{kind: recordCut, cut: cut.state()}, nil)
	}
	for _, gr := range r.g.router.allGroups() {
		gr.mu.Lock()
		if !gr.ended {
			r.add(gr.record(), nil)
		}
		gr.mu.Unlock()
	}
	for _, s := range r.g.allSessions() {
		s.mu.Lock()
		if s.recorded && (!s.ended || s.parting != nil) {
			r.add(s.whole(), nil)
		}
		s.mu.Unlock()
		r.mu.Lock()
		full := len(r.full) > 0
		r.mu.Unlock()
		if full {
			if err := r.write(ctx, false); err != nil {
				return err
			}
		}
	}
	if err := r.write(ctx, true); err != nil {
		return err
	}
	if r.last < first { // what is trimmed may hold the last checkpoint
		if err := r.commit(ctx, beginRecords(nil, r.g.markedAll().state())); err != nil {
			return err
		}
	}
	r.snapshot = r.size
	if _, err := r.log.Trim(ctx, eventlog.TrimPolicy{MaxBytes: 1, Protect: first}); err != nil {
		r.g.log.Error("old session records cannot be trimmed", "err", err) // the next time, then
	}
	return nil
}

// allSessions returns the sessions that are recorded, in no order.
func (g *Gateway) allSessions() []*session {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]*session, 0, len(g.sessions)+len(g.mortal))
	for _, s := range g.sessions {
		all = append(all, s)
	}
	for s := range g.mortal {
		if g.sessions[s.key] != s {
			all = append(all, s)
		}
	}
	return all
}
