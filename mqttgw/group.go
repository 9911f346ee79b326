// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// group is a shared subscription: its members take turns with the messages that match. It has a position of its own, so
// a member that is away holds nothing back, and while all are away it waits for whoever comes first.
//
// mu is taken before a session's.
type group struct {
	g      *Gateway
	filter string        // $share/<name>/<topic filter>
	inner  string        // the topic filter
	sub    *subscription // hangs in the trie for all members
	lags   atomic.Bool   // something waits for a member with room

	mu      sync.Mutex
	members []*subscription // in the order of their turns
	at      []share         // one for each feed in which there is something to say
	lost    []lostShare     // what waits on buses that are not there any more, until a member is told
	feeding bool            // a writer reads the log for it
	dirty   bool
	ended   bool // without members
}

// share is where a group is in a feed.
type share struct {
	position
	returned []uint64 // QoS 1 messages that a member did not acknowledge, to be sent again; before position
	out      []uint64 // QoS 1 messages that members have
}

// lostShare is a share in a bus that a start has not found. It is written down as it was, for the next start may have the bus.
type lostShare struct {
	shareState
	loss loss
}

// lagging reports whether something waits for a member.
func (sh *share) lagging() bool { return len(sh.returned) > 0 || sh.position.lagging() }

// idle reports whether the share says nothing. A group has no other note of when it began: while the checkpoint is older, a start
// would give it what came before.
func (sh *share) idle() bool {
	return !sh.lagging() && len(sh.out) == 0 && sh.position.idle() && sh.liveFrom <= sh.feed.marked.Load()+1
}

// find returns the share in a feed; nil when there is none. It is good until the next call of of. mu is held.
func (gr *group) find(f *feed) *share {
	for i := range gr.at {
		if gr.at[i].feed == f {
			return &gr.at[i]
		}
	}
	return nil
}

// of returns the share in a feed, and makes it when there is none. mu is held.
func (gr *group) of(f *feed) *share {
	if sh := gr.find(f); sh != nil {
		return sh
	}
	i := 0
	for i < len(gr.at) && gr.at[i].feed.rank < f.rank {
		i++
	}
	gr.at = slices.Insert(gr.at, i, share{position: position{feed: f}})
	return &gr.at[i]
}

// tidy forgets the shares that say nothing any more. mu is held.
func (gr *group) tidy() {
	gr.at = slices.DeleteFunc(gr.at, func(sh share) bool { return sh.idle() })
}

// waits returns the first share that lags; nil when there is none. mu is held.
func (gr *group) waits() *share {
	for i := range gr.at {
		if gr.at[i].lagging() {
			return &gr.at[i]
		}
	}
	return nil
}

// innerFilter returns the topic filter of a shared subscription's.
func innerFilter(filter string) (inner string, shared bool) {
	rest, shared := strings.CutPrefix(filter, "$share/")
	if !shared {
		return filter, false
	}
	_, inner, _ = strings.Cut(rest, "/")
	return inner, true
}

// newGroup returns a group that gets what comes after a moment.
func newGroup(g *Gateway, filter string, since moment) *group {
	gr := &group{g: g, filter: filter}
	gr.inner, _ = innerFilter(filter)
	for _, k := range since {
		gr.of(k.feed).liveFrom = k.seq + 1
	}
	gr.sub = &subscription{filter: gr.inner, group: gr}
	return gr
}

// noteLag keeps lags right. mu is held.
func (gr *group) noteLag() { gr.lags.Store(gr.waits() != nil || len(gr.lost) > 0) }

// changed keeps lags right and has the recorder write the group down. mu is held.
func (gr *group) changed() {
	gr.noteLag()
	if gr.g.recorder != nil && !gr.dirty {
		gr.dirty = true
		gr.g.recorder.noteGroup(gr)
	}
}

// record is the group as it is written down: what members have is to be sent again if the process ends. mu is held.
func (gr *group) record() *record {
	st := groupState{filter: gr.filter}
	for i := range gr.at {
		sh := &gr.at[i]
		all := slices.Concat(sh.returned, sh.out)
		slices.Sort(all)
		st.shares = append(st.shares, shareState{sh.state(), slices.Compact(all)})
	}
	for i := range gr.lost {
		st.shares = append(st.shares, gr.lost[i].shareState)
	}
	return &record{kind: recordGroup, group: st}
}

// deliver is called by the tail: a member gets the message, or it waits. It returns a connection whose writer the caller
// has to start; its place is reserved.
func (gr *group) deliver(m *message) (start *conn) {
	gr.mu.Lock()
	defer gr.mu.Unlock()
	sh := gr.find(m.feed)
	if gr.ended || m.origin.QoS > 0 && sh != nil && m.seq < sh.liveFrom {
		return nil
	}
	if m.origin.QoS > 0 && sh != nil && sh.position.lagging() {
		gr.wait(m)
		return nil
	}
	if m.origin.QoS == 0 {
		_, start = gr.hand(m)
		return start
	}
	gr.lags.Store(true) // before members are asked: one that gets room after that looks whether something waits
	best, start := gr.hand(m)
	if best == later {
		gr.wait(m)
	} else {
		gr.noteLag()
	}
	return start
}

// wait keeps the position of a message for which no member has room. mu is held.
func (gr *group) wait(m *message) {
	gr.of(m.feed).postpone(m.seq, gr.g.limits.MaxWaiting)
	gr.changed()
}

// outcome is what became of an offer to a member.
type outcome byte

const (
	unwanted outcome = iota // or the member is away, and gets QoS 0 only
	barred                  // the member may not receive it
	full                    // QoS 0, and no room
	later                   // QoS 1 or 2, and no room or away
	taken
)

// hand gives a message to the next member that can take it, and returns the best of the outcomes. mu is held.
func (gr *group) hand(m *message) (best outcome, start *conn) {
	for i, sub := range gr.members {
		got, start := sub.session.offer(m, sub, gr)
		if got == taken {
			gr.members = append(slices.Delete(gr.members, i, i+1), sub)
			return taken, start
		}
		best = max(best, got)
	}
	switch best {
	case full:
		gr.g.metrics.drop(droppedSlow)
	case barred:
		gr.g.metrics.drop(droppedBarred)
	}
	return best, nil
}

// offer sends a message of a shared group, if the client is there and has room. The group's mu is held.
func (s *session) offer(m *message, sub *subscription, gr *group) (o outcome, start *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	qos := min(sub.qos, m.origin.QoS)
	if s.ended || !sub.suits(m) {
		return unwanted, nil
	}
	if !s.mayReceive(m.origin.Topic) {
		return barred, nil
	}
	c := s.conn
	if c == nil {
		if qos > 0 && s.expiry > 0 {
			return later, nil
		}
		return unwanted, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	ending := c.ended || c.out.broken || c.why != nil
	switch h := (hit{session: s, qos: sub.qos, retain: sub.retain, ids: sub.id}); {
	case qos == 0 && (ending || c.full(m.feed.lane)):
		return full, nil
	case qos == 0:
		c.put(m, &h, 0)
	case ending || s.resends > 0 || !c.hasRoom(m.feed.lane):
		return later, nil
	case qos == 2 && gr.sent(m):
		return taken, nil
	case c.launch(m, &h, qos, gr):
		if sh := gr.of(m.feed); qos == 2 {
			sh.exact = m.seq
		} else {
			sh.out = append(sh.out, m.seq)
		}
		gr.changed()
	}
	if !c.out.writing {
		c.out.writing, start = true, c
	}
	return taken, start
}

// sent reports whether a QoS 2 message was sent before a crash. mu is held.
func (gr *group) sent(m *message) bool {
	sh := gr.find(m.feed)
	return sh != nil && m.seq <= sh.exact
}

// settled is called when a member has acknowledged a message with QoS 1, or finished one with QoS 2.
func (gr *group) settled(f flight) {
	gr.mu.Lock()
	defer gr.mu.Unlock()
	if sh := gr.find(f.feed); sh != nil && sh.back(f.seq) {
		gr.changed()
	}
}

// back takes a message from those that members have.
func (sh *share) back(seq uint64) bool {
	i := slices.Index(sh.out, seq)
	if i >= 0 {
		sh.out = slices.Delete(sh.out, i, i+1)
	}
	return i >= 0
}

// putBack is called when a member is gone without having acknowledged a message.
func (gr *group) putBack(f flight) {
	gr.mu.Lock()
	sh := gr.of(f.feed)
	sh.back(f.seq)
	i, _ := slices.BinarySearch(sh.returned, f.seq)
	sh.returned = slices.Insert(sh.returned, i, f.seq)
	gr.changed()
	gr.mu.Unlock()
	gr.wake()
}

// wake starts the writers of the members, which take what waits as they have room.
func (gr *group) wake() {
	gr.mu.Lock()
	members := slices.Clone(gr.members)
	gr.mu.Unlock()
	wakeMembers(members)
}

// wakeMembers starts the writers of members, which take what waits as they have room.
func wakeMembers(members []*subscription) {
	for _, sub := range members {
		s := sub.session
		s.mu.Lock()
		s.goOn()
		s.mu.Unlock()
	}
}

// tellLost says, when a member is there, what no member will get because its bus is not.
func (gr *group) tellLost() {
	gr.mu.Lock()
	gone := gr.lost
	if gr.ended || len(gone) == 0 {
		gr.mu.Unlock()
		return
	}
	gr.lost = nil
	gr.changed()
	gr.mu.Unlock()
	for i := range gone {
		gr.g.lost(sessionKey{}, gr.filter, gone[i].loss)
	}
}

// turn is one reading on for a group.
type turn struct {
	feed *feed
	from uint64
	one  bool // the message at from, and no more
}

// far reports whether the shared scan has to read for it.
func (t *turn) far() bool { return t.feed != nil && !t.one && t.from < t.feed.tail.Hot() }

// begin begins the next turn, if it is far or not as is asked for. One is under way at a time.
func (gr *group) begin(far bool) (t turn, ok bool) {
	gr.mu.Lock()
	defer gr.mu.Unlock()
	sh := gr.waits()
	if gr.feeding || gr.ended || sh == nil {
		return t, false
	}
	t = turn{sh.feed, sh.behind, len(sh.returned) > 0 || len(sh.waiting) > 0}
	if len(sh.returned) > 0 {
		t.from = sh.returned[0]
	} else if t.one {
		t.from = sh.waiting[0]
	}
	gr.feeding = t.far() == far
	return t, gr.feeding
}

// finish hands out what a turn has read. more reports whether members had room for all of it.
func (gr *group) finish(t *turn, r reading, err error) (more bool) {
	if t.one {
		r.gone = min(r.gone, 1)
	}
	if err == nil && r.gone > 0 {
		t.feed.lost(sessionKey{}, gr.filter, t.from, r.gone)
	}
	start, more := gr.fed(t, r, err)
	for _, c := range start {
		go c.write() // its place is reserved
	}
	return more
}

// feed is called by a member's writer, without locks: it reads on once, one message or some that are in memory, and hands
// out what it finds while members have room. What is far behind it leaves to the shared scan. more reports whether they
// had room for all of it, and more may wait.
func (gr *group) feed() (more bool, err error) {
	gr.tellLost()
	t, ok := gr.begin(false)
	if !ok {
		if t.far() {
			t.feed.scan.readFor(gr)
		}
		return false, nil
	}
	most := scanEntries
	if t.one {
		most = 1
	}
	r, err := t.feed.read(t.from, most, nil)
	return gr.finish(&t, r, err), err
}

// scanOn is feed for what is far behind. It is called by the scan, and also returns how many bytes were read from disk.
func (gr *group) scanOn() (looked int, more bool, err error) {
	t, ok := gr.begin(true)
	if !ok {
		gr.wake() // what is left is for a writer
		return 0, false, nil
	}
	r, err := t.feed.scanFrom(eventlog.ScanOptions{From: t.from, Max: scanEntries, Topics: []string{gr.inner}}, nil)
	return r.looked, gr.finish(&t, r, err), err
}

// fed hands out what was read, unless that has failed. more reports whether members had room for all of it.
func (gr *group) fed(t *turn, r reading, err error) (start []*conn, more bool) {
	gr.mu.Lock()
	defer gr.mu.Unlock() // the tail needs it, whatever goes wrong here
	gr.feeding = false
	if err != nil {
		return nil, false
	}
	for _, e := range r.entries {
		m := t.feed.messageOf(e)
		if t.one && e.Seq != t.from || m == nil || m.origin.QoS == 0 || !t.one && !matches(gr.inner, m.origin.Topic) {
			continue
		}
		best, c := gr.hand(m)
		if c != nil {
			start = append(start, c)
		}
		if best == later {
			if !t.one {
				gr.of(t.feed).behind = e.Seq
			}
			gr.changed()
			return start, false
		}
	}
	sh := gr.of(t.feed)
	switch i := slices.Index(sh.returned, t.from); {
	case t.one && i >= 0:
		sh.returned = slices.Delete(sh.returned, i, i+1)
	case t.one:
		sh.popWaiting()
	default:
		sh.arrive(r.next)
	}
	gr.changed()
	return start, true
}
