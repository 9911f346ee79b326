// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"fmt"
	"slices"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// loaded is what SESSIONS says, as far as it has been read.
type loaded struct {
	checkpoint momentState
	sessions   map[uint64]*sessionState // by epoch
	fences     map[uint64]uint64
	byKey      map[sessionKey]uint64
	groups     map[string]*groupState
	cuts       []cutState // the last ones
}

// load reads SESSIONS. It is called before anything else runs, and blocks while it reads.
func (g *Gateway) load(ctx context.Context) (*loaded, error) {
	l := &loaded{sessions: map[uint64]*sessionState{}, fences: map[uint64]uint64{}, byKey: map[sessionKey]uint64{}, groups: map[string]*groupState{}}
	var from uint64
	for {
		msgs, err := g.recorder.log.Read(ctx, eventlog.ReadOptions{From: from}, nil)
		if err != nil {
			return nil, fmt.Errorf("read sessions: %w", err)
		}
		if len(msgs) == 0 {
			break
		}
		for _, m := range msgs {
			from = m.Seq + 1
			g.recorder.last = m.Seq
			if m.Gap() {
				continue
			}
			g.recorder.size += int64(len(m.Data))
			checkpoint, err := decodeRecords(m.Data, l.apply)
			if err != nil {
				g.log.Error("session record passed over", "seq", m.Seq, "err", err)
				continue
			}
			l.checkpoint = checkpoint
		}
	}
	return l, nil
}

// apply takes a record in. Records of sessions that are not known, or that another node has taken since, are passed over.
func (l *loaded) apply(r *record) {
	switch r.kind {
	case recordGroup:
		gr := r.group
		l.groups[gr.filter] = &gr
		return
	case recordGroupEnd:
		delete(l.groups, r.group.filter)
		return
	case recordCut:
		if i := slices.IndexFunc(l.cuts, func(c cutState) bool { return slices.Equal(c.moment, r.cut.moment) }); i >= 0 {
			l.cuts[i].made = max(l.cuts[i].made, r.cut.made) // it is in force now
			return
		}
		l.cuts = append(l.cuts, r.cut)
		l.cuts = l.cuts[max(0, len(l.cuts)-maxCuts):]
		return
	}
	if r.fence < l.fences[r.epoch] {
		return
	}
	if gr := l.groups[r.flight.group]; r.kind == recordFlight && gr != nil { // whether or not its member is left
		gr.fly(r.flight)
	}
	if state := r.state; r.kind == recordSession {
		if state.over() { // its key may be another session's
			l.forget(r.epoch)
			l.sessions[r.epoch], l.fences[r.epoch] = &state, r.fence
			return
		}
		if old, ok := l.byKey[state.key]; ok && old != r.epoch {
			l.forget(old)
		}
		l.sessions[r.epoch], l.fences[r.epoch], l.byKey[state.key] = &state, r.fence, r.epoch
		return
	}
	s := l.sessions[r.epoch]
	if s == nil {
		return
	}
	switch r.kind {
	case recordProgress:
		s.progress = r.state.progress
		if !s.armed {
			s.will = nil
		}
	case recordReceived:
		s.use(r.uses)
		s.drop(r.id)
		s.received = append(s.received, receivedState{id: r.id, use: r.uses})
	case recordReleased:
		s.drop(r.id)
	case recordFlight:
		s.fly(r.flight)
	case recordEnd:
		l.forget(r.epoch)
	}
}

// over reports whether nothing but the will, which is on its way, is left of the session.
func (s *sessionState) over() bool { return s.expiry == 0 && s.armed && !s.online }

func (l *loaded) forget(epoch uint64) {
	if s := l.sessions[epoch]; s != nil && l.byKey[s.key] == epoch {
		delete(l.byKey, s.key)
	}
	delete(l.sessions, epoch)
	delete(l.fences, epoch)
}

// drop takes a received QoS 2 id away.
func (s *sessionState) drop(id uint16) {
	for i := range s.received {
		if s.received[i].id == id {
			s.received[i] = s.received[len(s.received)-1]
			s.received = s.received[:len(s.received)-1]
			return
		}
	}
}

// fly puts a QoS 2 message in flight, in place of what had its packet id before.
func (s *sessionState) fly(f flightState) {
	if f.group == "" && f.topic == "" && !f.command {
		st := s.stream(f.feed)
		st.exact = max(st.exact, f.seq)
	}
	for i := range s.flying {
		if s.flying[i].id == f.id {
			if s.flying[i].seq == f.seq && s.flying[i].feed == f.feed {
				s.flying[i] = f
				return
			}
			s.flying = append(s.flying[:i], s.flying[i+1:]...)
			break
		}
	}
	s.flying = append(s.flying, f)
}

// use notes that a use of a packet id is written down. Two messages may be stored on two buses, in either order: the uses
// that are passed over are open.
func (s *sessionState) use(use uint64) {
	s.open = slices.DeleteFunc(s.open, func(u uint64) bool { return u == use })
	if use <= s.uses {
		return
	}
	for u := max(s.uses, use-min(use, maxReceived)) + 1; u < use; u++ {
		s.open = append(s.open, u)
	}
	s.open = s.open[max(0, len(s.open)-maxReceived):]
	s.uses = use
}

// stream returns the position in a feed, and makes it when there is none.
func (s *sessionState) stream(feed string) *streamState {
	for i := range s.streams {
		if s.streams[i].feed == feed {
			return &s.streams[i]
		}
	}
	s.streams = append(s.streams, streamState{feed: feed})
	return &s.streams[len(s.streams)-1]
}

// fly notes that a QoS 2 message was handed out.
func (g *groupState) fly(f flightState) {
	for i := range g.shares {
		if sh := &g.shares[i]; sh.feed == f.feed {
			sh.exact = max(sh.exact, f.seq)
			return
		}
	}
	g.shares = append(g.shares, shareState{streamState: streamState{feed: f.feed, exact: f.seq}})
}

// restore makes the sessions and groups that were loaded: all away, hung in the router. The feeds have begun. It returns those
// sessions whose wills are on their way, for the caller to publish.
func (g *Gateway) restore(l *loaded) (parting []*session) {
	began := g.markedAll()
	g.recorder.began = [2]moment{began, began}
	now := g.now()
	for _, st := range l.cuts {
		g.restoreCut(cut{g.momentOf(st.moment), st.made})
	}
	g.restoreGroups(l)
	missing := map[string]int{}
	var over []*session
	for epoch, st := range l.sessions {
		s := &session{g: g, key: st.key, epoch: epoch, recorded: true, fence: l.fences[epoch], version: packet.Version(st.version), expiry: st.expiry,
			deadline: st.deadline, due: st.due, uses: st.uses, online: st.online}
		s.doubtful = st.online || st.doubtful
		if len(st.open) > 0 {
			s.recovering = &recovering{above: st.uses, open: st.open}
		}
		if st.will != nil {
			s.will = &will{incoming: *st.will, delay: st.delay}
		}
		for _, st := range st.streams {
			if f := g.feeds.named(st.feed); f != nil {
				s.at.of(f).restore(st)
			} else if st.lags {
				s.lose(st, l)
			}
		}
		for _, f := range st.flying {
			if g.strands(&f) {
				gone := s.lose(streamState{feed: f.feed, lags: true, from: f.seq, exact: st.stream(f.feed).exact}, l)
				gone.flying = append(gone.flying, f)
			}
		}
		for _, gone := range s.lost {
			missing[gone.feed]++
		}
		s.at.tidy()
		g.restoreLists(s, st, l)
		g.enrol(s, s.expiry > 0)
		s.mu.Lock()
		if s.online { // its connection ended with the process
			s.park(now)
			s.changed()
		} else if s.will != nil && s.due.IsZero() {
			s.part()
		}
		if s.parting != nil {
			parting = append(parting, s)
		}
		s.mu.Unlock()
		if s.expiry == 0 {
			over = append(over, s)
		}
		g.clock.watch(s)
	}
	for _, s := range over {
		g.endSession(s)
	}
	for bus, n := range missing {
		g.log.Warn("sessions wait for messages of a bus that is not there any more: they end when their clients return", "bus", bus, "sessions", n)
	}
	waiting := map[string]int{}
	for _, gr := range g.router.allGroups() {
		gr.mu.Lock()
		empty := len(gr.members) == 0
		for _, gone := range gr.lost {
			waiting[gone.feed]++
		}
		gr.mu.Unlock()
		if empty { // its members were of sessions that have ended with the process
			g.router.change(nil, nil, func() []*subscription { return []*subscription{{group: gr, filter: gr.filter}} })
		}
	}
	for bus, n := range waiting {
		g.log.Warn("shared groups wait for messages of a bus that is not there any more", "bus", bus, "groups", n)
	}
	return parting
}

// lose notes that a session needs a message of a bus that is not there, and all that follow.
func (s *session) lose(st streamState, l *loaded) *loss {
	i := slices.IndexFunc(s.lost, func(gone loss) bool { return gone.feed == st.feed })
	if i < 0 {
		i, s.lost = len(s.lost), append(s.lost, loss{streamState: st})
	}
	gone := &s.lost[i]
	gone.from, gone.exact = min(gone.from, st.from), max(gone.exact, st.exact)
	gone.n = l.known(st.feed, gone.from)
	return gone
}

// strands reports whether a message is in flight to a client alone, and its bus is not there.
func (g *Gateway) strands(f *flightState) bool {
	return f.topic == "" && f.group == "" && !f.command && f.stage != stageReleased && g.feeds.named(f.feed) == nil
}

// known is how many sequences there are from one on, as far as the checkpoint says.
func (l *loaded) known(feed string, from uint64) uint64 {
	end, _ := l.checkpoint.at(feed)
	return max(end, from) - from + 1
}

// restoreGroups makes the groups that were loaded, without members.
func (g *Gateway) restoreGroups(l *loaded) {
	for filter, st := range l.groups {
		gr := newGroup(g, filter, nil)
		for _, sh := range st.shares {
			f := g.feeds.named(sh.feed)
			switch {
			case f != nil:
				gr.of(f).resume(sh)
			case sh.lags || len(sh.returned) > 0:
				gr.lose(sh, l)
			}
		}
		gr.ended = true // until it has a member
		g.router.mu.Lock()
		g.router.groupOf(filter, func(string) *group { return gr })
		g.router.mu.Unlock()
	}
}

// resume sets the share from what was written down. There are two records of one if its bus was gone and came again: what waited
// then waits still.
func (sh *share) resume(st shareState) {
	end := sh.feed.recovered
	exact := max(sh.exact, min(st.exact, end))
	if st.lags || !sh.position.lagging() && st.from >= sh.liveFrom {
		sh.restore(st.streamState)
	}
	sh.exact = exact
	sh.returned = slices.Concat(sh.returned, st.returned)
	slices.Sort(sh.returned)
	sh.returned = slices.DeleteFunc(slices.Compact(sh.returned), func(seq uint64) bool { return seq > end })
}

// lose notes that messages wait for a member on a bus that is not there. Nothing else runs yet.
func (gr *group) lose(st shareState, l *loaded) {
	i := slices.IndexFunc(gr.lost, func(gone lostShare) bool { return gone.feed == st.feed })
	if i < 0 {
		i, gr.lost = len(gr.lost), append(gr.lost, lostShare{shareState: shareState{streamState: st.streamState}})
	}
	gone := &gr.lost[i]
	gone.exact = max(gone.exact, st.exact)
	gone.returned = slices.Concat(gone.returned, st.returned)
	slices.Sort(gone.returned)
	first := gone.from
	if len(gone.returned) > 0 && (!gone.lags || gone.returned[0] < first) {
		first = gone.returned[0]
	}
	gone.loss = loss{streamState: streamState{feed: st.feed, from: first}, n: l.known(st.feed, first)}
	gr.changed()
}

// restoreLists makes the subscriptions, scans, flights and receipts of a session.
func (g *Gateway) restoreLists(s *session, st *sessionState, l *loaded) {
	for _, sub := range st.subs {
		s.subs = append(s.subs, newSubscription(s, sub))
	}
	// A group that is not written down yet begins where its first member has subscribed.
	g.router.change(s.subs, func(filter string) *group { return newGroup(g, filter, s.subs[s.find(filter)].since) },
		func() []*subscription { return nil })
	g.metrics.filters.Add(float64(len(s.subs)))
	s.latest = slices.ContainsFunc(s.subs, func(sub *subscription) bool { return sub.latest && sub.group == nil })
	for _, sc := range st.scans {
		if i := s.find(sc.filter); i >= 0 {
			s.scans = append(s.scans, retainedScan{sub: s.subs[i], after: sc.after, upTo: g.momentOf(sc.upTo)})
		}
	}
	for _, f := range st.flying {
		if g.strands(&f) {
			continue
		}
		fl := flight{feed: g.feeds.named(f.feed), seq: f.seq, id: f.id, stage: f.stage, stored: f.topic != "", command: f.command}
		anew := fl.feed != nil && !fl.stored && !fl.command && fl.seq > fl.feed.recovered     // of a bus that was there before this one
		gone := anew || fl.feed == nil && !fl.stored || fl.command && !g.restoreOrder(s, &fl) // of a bus that is gone, or a command that has ended
		if f.group != "" {
			i := s.find(f.group)
			if gone = gone || f.stage == stageQoS1 || i < 0; !gone { // with QoS 1 the group has it
				fl.group = s.subs[i].group
			} else if fl.feed == nil && f.stage == stageQoS2 && i >= 0 {
				s.subs[i].group.lose(shareState{streamState{feed: f.feed, exact: f.seq}, []uint64{f.seq}}, l)
			}
		}
		if gone && fl.stage == stageQoS1 {
			continue
		}
		if gone { // the client may know the packet id
			fl.stage = stageReleased
		}
		if fl.stored {
			if s.topics == nil {
				s.topics = map[uint16]string{}
			}
			s.topics[f.id] = f.topic
		}
		s.enter(fl)
		s.lastID = f.id
	}
	for _, r := range st.received {
		if s.received == nil {
			s.received = map[uint16]*receipt{}
		}
		s.received[r.id] = &receipt{use: r.use, stored: true, settled: true}
	}
}

// recoverReceipt looks at an event that the tail reads at a start: one that a kept session has sent with QoS 2 and that
// the session does not know is a message whose PUBREC was not sent.
func (g *Gateway) recoverReceipt(rec *event.Record) {
	o := rec.MQTT
	if o == nil || o.QoS != 2 || !rec.Minted {
		return
	}
	epoch, id, use, ok := parseExactID(rec.Event.ID)
	if !ok {
		return
	}
	s := g.sessionOf(sessionKey{principal: o.Principal, clientID: o.Client})
	if s == nil || s.epoch != epoch {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.recovering
	if r == nil {
		r = &recovering{above: s.uses}
	}
	known := len(r.open)
	r.open = slices.DeleteFunc(r.open, func(u uint64) bool { return u == use })
	if s.ended || use <= r.above && len(r.open) == known {
		return
	}
	s.recovering = r
	s.uses = max(s.uses, use)
	if s.received == nil {
		s.received = map[uint16]*receipt{}
	}
	s.received[id] = &receipt{use: use, stored: true, settled: true, doubtful: true}
	s.record(&record{kind: recordReceived, id: id, uses: use}, nil)
}
