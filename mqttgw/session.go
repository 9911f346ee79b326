// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// never is the session expiry of a session that does not expire (MQTT 5 section 3.1.2.11.2).
const never = math.MaxUint32

// session is what a client is subscribed to and where its deliveries are. It is a small record with positions in the
// log: messages are not kept in it. It outlives its connection if expiry says so; DESIGN.md has the life of it.
//
// Everything but the first three fields and those from holder on is guarded by mu. The connection's mu is taken inside it.
type session struct {
	g     *Gateway
	key   sessionKey
	epoch uint64 // names the session in records and in the ids of its QoS 2 events; random

	mu       sync.Mutex
	conn     *conn // nil while the client is away
	ended    bool
	online   bool // a connection has it, or is about to
	recorded bool // has a record in SESSIONS
	dirty    bool // is in the recorder's list of changed sessions
	claimed  bool // by this process
	fence    uint64
	version  packet.Version
	expiry   uint32    // seconds after the connection; 0 = with it
	deadline time.Time // when it ends; zero = connected, or never
	will     *will     // nil = none, or not the session's any more
	parting  *parting  // the will is on its way to its bus; nil = none is
	due      time.Time // of the will; zero = with the connection

	subs  []*subscription // one for each filter; few, so that a map does not pay
	scans []retainedScan  // retained messages that are still to be sent
	fresh map[string]bool // topics that had a retained message while a batch of a scan is on its way; nil = none is

	flying    []flight // QoS 1 and 2 without PUBACK or PUBCOMP, oldest first
	resends   int      // of flying, those to be sent again on this connection
	downs     int      // of flying, those of DOWN
	maxFlying int
	lastID    uint16
	topics    map[uint16]string // of retained messages in flight
	at        positions
	latest    bool   // a subscription asks for the latest first
	lost      []loss // what was on buses that are not there any more: it ends when its client returns
	doubtful  bool   // messages that were in their feed at the start of the process may have been sent before a crash

	orders bool // a command may be sent that was not looked at yet

	received map[uint16]*receipt // QoS 2 ids between PUBLISH and PUBREL
	uses     uint64              // QoS 2 messages so far

	recovering *recovering // nil = nothing is being recovered

	holder atomic.Pointer[conn] // conn, for those who do not hold mu: whose rights count at delivery

	alarm int // place in the clock's heap, from 1; 0 = none; guarded by the clock's mu

	hit place // the tails'
}

// loss is where a subscriber would have to read on, and cannot: n sequences, as far as is known, and what a session has in flight.
type loss struct {
	streamState
	n      uint64
	flying []flightState
}

// recovering is which QoS 2 messages of a client a start has to look for: those that SESSIONS does not know of.
type recovering struct {
	above uint64   // uses above were not written down
	open  []uint64 // nor these
}

// find returns the index of a filter's subscription, or -1. mu is held.
func (s *session) find(filter string) int {
	return slices.IndexFunc(s.subs, func(sub *subscription) bool { return sub.filter == filter })
}

// waits returns the first position in a bus that lags and that the session has to read on from itself; nil when there is none. mu
// is held.
func (s *session) waits() *position {
	for i := range s.at {
		if p := &s.at[i]; p.feed.lane == laneUp && p.lagging() && !p.riding && !s.heldBack(p.feed, p.next()) {
			return p
		}
	}
	return nil
}

// goOn starts the writer if there is something to catch up with. mu is held.
func (s *session) goOn() {
	c := s.conn
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy() {
		c.startWriter()
	}
}

// durable reports whether the session outlives its connection and a crash, so that what is promised exactly once has to
// be written down first. mu is held.
func (s *session) durable() bool { return s.recorded && s.expiry > 0 }

// changed has the recorder write down, within a second, what has changed. mu is held.
func (s *session) changed() {
	if s.recorded && !s.dirty {
		s.dirty = true
		s.g.recorder.noteSession(s)
	}
}

// record adds a record of the session and runs then, if it is not nil, after its commit. mu is held.
func (s *session) record(r *record, then func()) {
	r.epoch, r.fence = s.epoch, s.fence
	s.g.recorder.add(r, then)
}

// whole is the record of the whole session. mu is held.
func (s *session) whole() *record {
	r := &record{kind: recordSession, epoch: s.epoch, fence: s.fence}
	r.state = sessionState{key: s.key, version: byte(s.version), expiry: s.expiry, uses: s.uses, progress: s.progress()}
	for _, sub := range s.subs {
		r.state.subs = append(r.state.subs, sub.state())
	}
	for id, rc := range s.received {
		if rc.stored {
			r.state.received = append(r.state.received, receivedState{id: id, use: rc.use})
		} else {
			r.state.open = append(r.state.open, rc.use)
		}
	}
	if s.recovering != nil {
		r.state.open = append(r.state.open, s.recovering.open...)
	}
	if w := s.anyWill(); w != nil {
		r.state.will, r.state.delay = &w.incoming, w.delay
	}
	return r
}

// recordEnd adds the record that the session has ended; while its will is on its way, what there is of it without a connection. mu is
// held.
func (s *session) recordEnd() {
	switch {
	case !s.recorded:
	case s.parting != nil:
		s.record(s.whole(), nil)
	default:
		s.record(&record{kind: recordEnd}, func() { s.g.drop(s) }) // without a recorder dropEnded does
	}
}

// progress is what changes in a session while it is used. mu is held.
func (s *session) progress() progress {
	p := progress{online: s.online && s.parting == nil, doubtful: s.doubtful, armed: s.anyWill() != nil, deadline: s.deadline, due: s.due, streams: s.at.states()}
	for i := range s.lost { // found again by the next start, which may have the bus
		p.streams, p.flying = append(p.streams, s.lost[i].streamState), append(p.flying, s.lost[i].flying...)
	}
	for i := range s.flying {
		p.flying = append(p.flying, s.flightState(&s.flying[i]))
	}
	for _, sc := range s.scans {
		p.scans = append(p.scans, scanState{filter: sc.sub.filter, after: sc.after, upTo: sc.upTo.state()})
	}
	return p
}

// lapsed reports whether the session's time is over. mu is held.
func (s *session) lapsed(now time.Time) bool { return !s.deadline.IsZero() && !now.Before(s.deadline) }

// next is the next moment at which something is due; zero = none. mu is held.
func (s *session) next() time.Time {
	switch {
	case s.will == nil || s.due.IsZero():
		return s.deadline
	case s.deadline.IsZero() || s.due.Before(s.deadline):
		return s.due
	}
	return s.deadline
}

// park is called when the session has lost its connection, or was found without one: it says when what is due. It
// returns the will, if that is due at once and on its way from now on. mu is held.
func (s *session) park(now time.Time) *parting {
	s.conn, s.online = nil, false
	s.holder.Store(nil)
	s.deadline, s.due = time.Time{}, time.Time{}
	if s.expiry != never {
		s.deadline = now.Add(time.Duration(s.expiry) * time.Second)
	}
	if s.will == nil {
		return nil
	}
	if s.expiry == 0 || s.will.delay == 0 {
		return s.part()
	}
	s.due = now.Add(time.Duration(s.will.delay) * time.Second)
	return nil
}

// awayState is what a session without a connection has of the last one.
type awayState struct {
	version       packet.Version
	expiry        uint32
	deadline, due time.Time
	will          *will
	maxFlying     int
}

// awayState returns what a connection that is about to have the session changes. mu is held.
func (s *session) awayState() awayState {
	return awayState{s.version, s.expiry, s.deadline, s.due, s.will, s.maxFlying}
}

// goBack is called when a connection was refused after all: the session is away as it was, its will and its end are due when they
// were, and what the connection brought does not count. mu is held.
func (s *session) goBack(a awayState) {
	s.conn, s.online = nil, false
	s.holder.Store(nil)
	s.version, s.expiry, s.deadline, s.due, s.will, s.maxFlying = a.version, a.expiry, a.deadline, a.due, a.will, a.maxFlying
	if s.recorded {
		s.record(s.whole(), nil) // the one before may say otherwise, and be committed yet
	}
}

// leave takes the connection off its session. The will is dropped if clean, else handed to the log or to the clock.
func (c *conn) leave(clean bool) {
	s := c.session
	if s == nil {
		return
	}
	s.mu.Lock()
	for i := range s.at {
		s.at[i].feed.scan.off(s, &s.at[i])
	}
	if clean {
		s.will = nil
	}
	if s.will != nil && !c.rights.Load().mayWill(s.will.topic, s.will.retain) { // not any more
		c.g.refuseWill(s.key, s.will)
		s.will = nil
	}
	s.fresh = nil // of a scan that this connection may still be at
	c.keepWill()
	w := s.park(c.g.now())
	s.at.fold()
	back := s.giveBack()
	s.dropLate()
	s.doubtful = s.doubtful && s.at.lags()
	s.changed()
	over := s.expiry == 0
	s.mu.Unlock()
	for _, f := range back {
		f.group.putBack(f)
	}
	if w != nil {
		c.g.storeWill(s)
	}
	if over {
		c.g.endSession(s)
		return
	}
	c.g.clock.watch(s)
}

// giveBack takes the QoS 1 messages of shared groups out of flight: another member gets them. mu is held.
func (s *session) giveBack() (back []flight) {
	s.flying = slices.DeleteFunc(s.flying, func(f flight) bool {
		mine := f.group == nil || f.stage != stageQoS1
		if !mine {
			back = append(back, f)
			if f.resend {
				s.resends--
			}
			if f.down() {
				s.downs--
			}
		}
		return !mine
	})
	return back
}

// remains is what an ended session leaves to be done.
type remains struct {
	subs   []*subscription
	will   *parting // that is due by the end
	fence  uint64
	orders []string // devices whose commands it had in flight: they wait again
}

// finish makes the session an ended one. mu is held.
func (s *session) finish() (r remains) {
	r = remains{subs: s.subs, fence: s.fence, orders: s.returnOrders()}
	if s.will != nil {
		r.will = s.part()
	}
	s.ended, s.expiry = true, 0
	s.subs, s.scans, s.flying, s.received, s.topics, s.recovering = nil, nil, nil, nil, nil, nil
	s.at, s.downs, s.lost = nil, 0, nil
	s.deadline, s.due = time.Time{}, time.Time{}
	return r
}

// endSession ends a session that has no connection: its will is due, and nothing of it is left.
func (g *Gateway) endSession(s *session) {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return
	}
	r := s.finish()
	s.mu.Unlock()
	g.bury(s, r)
}

// bury does what is left to do for an ended session.
func (g *Gateway) bury(s *session, r remains) {
	g.mu.Lock()
	if g.sessions[s.key] == s {
		delete(g.sessions, s.key)
		g.metrics.sessions.Set(float64(len(g.sessions)))
	}
	if s.recorded {
		g.mortal[s], g.ending[s.key] = struct{}{}, s // until its end is written down
	}
	g.mu.Unlock()
	g.clock.forget(s)
	g.unhang(r.subs)
	for _, device := range r.orders {
		g.commands.notify(device)
	}
	s.mu.Lock()
	s.recordEnd()
	s.mu.Unlock()
	if g.recorder.ended() {
		g.dropEnded()
	}
	if r.will != nil {
		g.publishWill(s)
	}
	if r.fence != 0 && g.opts.Owners != nil {
		g.clock.giveUp(s.key, r.fence)
	}
}

// dropEnded drops the sessions that have ended and whose end nobody writes down any more.
func (g *Gateway) dropEnded() {
	g.mu.Lock()
	ending := slices.Collect(maps.Values(g.ending))
	g.mu.Unlock()
	for _, s := range ending {
		s.mu.Lock()
		over := s.parting == nil
		s.mu.Unlock()
		if over {
			g.drop(s)
		}
	}
}

// drop takes a session of which nothing is left, in SESSIONS either, out of the books.
func (g *Gateway) drop(s *session) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.mortal, s)
	if g.ending[s.key] == s {
		delete(g.ending, s.key)
	}
}
