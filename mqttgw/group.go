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

	mu       sync.Mutex
	members  []*subscription // in the order of their turns
	pos      position
	returned []uint64 // QoS 1 messages that a member did not acknowledge, to be sent again; before pos
	out      []uint64 // QoS 1 messages that members have
	feeding  bool     // a writer reads the log for it
	dirty    bool
	ended    bool // without members
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

// newGroup returns a group that gets what comes after a position.
func newGroup(g *Gateway, filter string, since uint64) *group {
	gr := &group{g: g, filter: filter}
	gr.inner, _ = innerFilter(filter)
	gr.pos.liveFrom = since + 1
	gr.sub = &subscription{filter: gr.inner, group: gr}
	return gr
}

// lagging reports whether something waits for a member. mu is held.
func (gr *group) lagging() bool { return len(gr.returned) > 0 || gr.pos.lagging() }

// changed keeps lags right and has the recorder write the group down. mu is held.
func (gr *group) changed() {
	gr.lags.Store(gr.lagging())
	if gr.g.recorder != nil && !gr.dirty {
		gr.dirty = true
		gr.g.recorder.noteGroup(gr)
	}
}

// record is the group as it is written down: what members have is to be sent again if the process ends. mu is held.
func (gr *group) record() *record {
	all := slices.Concat(gr.returned, gr.out)
	slices.Sort(all)
	return &record{kind: recordGroup, group: groupState{filter: gr.filter, position: gr.pos.state(), returned: slices.Compact(all)}}
}

// deliver is called by the tail: a member gets the message, or it waits. It returns a connection whose writer the caller
// has to start; its place is reserved.
func (gr *group) deliver(m *message) (start *conn) {
	gr.mu.Lock()
	defer gr.mu.Unlock()
	if gr.ended || m.seq < gr.pos.liveFrom && m.origin.QoS > 0 {
		return nil
	}
	if m.origin.QoS > 0 && gr.pos.lagging() {
		gr.wait(m.seq)
		return nil
	}
	best, start := gr.hand(m)
	if best == later {
		gr.wait(m.seq)
	}
	return start
}

// wait keeps the position of a message for which no member has room. mu is held.
func (gr *group) wait(seq uint64) {
	gr.pos.postpone(seq, gr.g.limits.MaxWaiting)
	gr.changed()
}

// outcome is what became of an offer to a member.
type outcome byte

const (
	unwanted outcome = iota // or the member is away, and gets QoS 0 only
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
	if best == full {
		gr.g.metrics.drop(droppedSlow)
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
	case qos == 0 && (ending || c.out.size >= c.g.limits.MaxOutbound):
		return full, nil
	case qos == 0:
		c.put(m, &h, 0)
	case ending || s.resends > 0 || !c.hasRoom():
		return later, nil
	case qos == 2 && m.seq <= gr.pos.exact: // was sent before a crash
		return taken, nil
	case c.launch(m, &h, qos, gr):
		if qos == 2 {
			gr.pos.exact = m.seq
		} else {
			gr.out = append(gr.out, m.seq)
		}
		gr.changed()
	}
	if !c.out.writing {
		c.out.writing, start = true, c
	}
	return taken, start
}

// settled is called when a member has acknowledged a message with QoS 1, or finished one with QoS 2.
func (gr *group) settled(seq uint64) {
	gr.mu.Lock()
	defer gr.mu.Unlock()
	if i := slices.Index(gr.out, seq); i >= 0 {
		gr.out = slices.Delete(gr.out, i, i+1)
		gr.changed()
	}
}

// putBack is called when a member is gone without having acknowledged a message.
func (gr *group) putBack(seq uint64) {
	gr.mu.Lock()
	if i := slices.Index(gr.out, seq); i >= 0 {
		gr.out = slices.Delete(gr.out, i, i+1)
	}
	i, _ := slices.BinarySearch(gr.returned, seq)
	gr.returned = slices.Insert(gr.returned, i, seq)
	gr.changed()
	members := slices.Clone(gr.members)
	gr.mu.Unlock()
	wakeMembers(members)
}

// wakeMembers starts the writers of members, which take what waits as they have room.
func wakeMembers(members []*subscription) {
	for _, sub := range members {
		s := sub.session
		s.mu.Lock()
		if c := s.conn; c != nil {
			c.mu.Lock()
			if c.busy() {
				c.startWriter()
			}
			c.mu.Unlock()
		}
		s.mu.Unlock()
	}
}

// feed is called by a member's writer, without locks: it hands out what waits while members have room. One writer at a
// time does so.
func (gr *group) feed() error {
	var entries []eventlog.Entry
	for {
		gr.mu.Lock()
		if gr.feeding || gr.ended || !gr.lagging() {
			gr.mu.Unlock()
			return nil
		}
		one := len(gr.returned) > 0 || len(gr.pos.waiting) > 0
		from, most := gr.pos.behind, scanEntries
		if len(gr.returned) > 0 {
			from = gr.returned[0]
		} else if one {
			from = gr.pos.waiting[0]
		}
		if one {
			most = 1
		}
		gr.feeding = true
		gr.mu.Unlock()

		r, err := gr.g.readLog(from, most, entries[:0])
		entries = r.entries
		if err == nil && r.gone > 0 {
			gr.g.lost(sessionKey{}, gr.filter, from, r.gone)
		}
		gr.mu.Lock()
		gr.feeding = false
		more := false
		var start []*conn
		if err == nil {
			start, more = gr.fed(from, one, r)
		}
		gr.mu.Unlock()
		clear(entries)
		for _, c := range start {
			go c.write() // its place is reserved
		}
		if err != nil || !more {
			return err
		}
	}
}

// fed hands out what was read. more reports whether members had room for all of it. mu is held.
func (gr *group) fed(from uint64, one bool, r reading) (start []*conn, more bool) {
	for _, e := range r.entries {
		m := gr.g.messageOf(e)
		if one && e.Seq != from || m == nil || m.origin.QoS == 0 || !one && !matches(gr.inner, m.origin.Topic) {
			continue
		}
		best, c := gr.hand(m)
		if c != nil {
			start = append(start, c)
		}
		if best == later {
			if !one {
				gr.pos.behind = e.Seq
			}
			gr.changed()
			return start, false
		}
	}
	switch i := slices.Index(gr.returned, from); {
	case one && i >= 0:
		gr.returned = slices.Delete(gr.returned, i, i+1)
	case one:
		gr.pos.popWaiting()
	case gr.g.tailPos.Load() < r.next || r.next <= from:
		gr.pos.behind, gr.pos.liveFrom = 0, r.next
	default:
		gr.pos.behind = r.next
	}
	gr.changed()
	return start, true
}
