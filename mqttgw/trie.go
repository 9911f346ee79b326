// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// subscription is one filter of one session, or what hangs in the trie for a shared group. Everything but the place in the
// trie is immutable; SUBSCRIBE for a filter that is there replaces it.
type subscription struct {
	session *session // nil for what hangs for a group
	group   *group   // nil for an ordinary one
	filter  string
	qos     byte // granted
	noLocal bool
	retain  bool              // retain as published
	latest  bool              // new messages are sent before those that the session is behind with
	id      packet.Properties // the encoded subscription identifier; nil = none
	since   moment            // events up to there are before the subscription; a member's group has its own position

	node  *node // where it hangs
	index int   // in node.subs
}

// node is a level of the topic trie. Most nodes have one child and would pay 300 bytes for a map, so that comes with the
// ninth only.
type node struct {
	parent *node
	level  string
	few    []*node
	many   map[string]*node // nil while few holds the children
	subs   []*subscription
}

const fewChildren = 8

// child returns the child of a level, or nil.
func (n *node) child(level string) *node {
	if n.many != nil {
		return n.many[level]
	}
	for _, c := range n.few {
		if c.level == level {
			return c
		}
	}
	return nil
}

// grow returns the child of a level and makes it when there is none.
func (n *node) grow(level string) *node {
	if c := n.child(level); c != nil {
		return c
	}
	c := &node{parent: n, level: strings.Clone(level)}
	if n.many == nil && len(n.few) == fewChildren {
		n.many = make(map[string]*node, 2*fewChildren)
		for _, old := range n.few {
			n.many[old.level] = old
		}
		n.few = nil
	}
	if n.many != nil {
		n.many[c.level] = c
	} else {
		n.few = append(n.few, c)
	}
	return c
}

// cut removes a child.
func (n *node) cut(c *node) {
	delete(n.many, c.level)
	if len(n.many) == 0 {
		n.many = nil
	}
	n.few = slices.DeleteFunc(n.few, func(x *node) bool { return x == c })
}

func (n *node) bare() bool { return len(n.few)+len(n.many)+len(n.subs) == 0 }

// router finds the subscriptions of a topic. The cost of a match depends on the levels of the topic and on the
// subscriptions that match, not on those that do not.
type router struct {
	mu     sync.RWMutex
	root   node              // guarded by mu
	groups map[string]*group // guarded by mu; by filter
}

// change replaces subscriptions by others at one moment. commit is called under the lock, so that nothing is routed
// between it and the change; it returns those to remove. A subscription that is to be a member of a group has no group
// yet: make returns a new one for its filter.
func (r *router) change(add []*subscription, make func(filter string) *group, commit func() (remove []*subscription)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range add {
		if _, shared := innerFilter(s.filter); shared {
			s.group = r.groupOf(s.filter, make)
		}
	}
	for _, s := range commit() {
		if s.group != nil {
			r.part(s)
		} else {
			s.unhang()
		}
	}
	for _, s := range add {
		if s.group != nil {
			r.join(s)
		} else {
			r.hang(s)
		}
	}
}

// groupOf returns the group of a filter, and makes it when there is none. mu is held.
func (r *router) groupOf(filter string, make func(string) *group) *group {
	gr := r.groups[filter]
	if gr == nil {
		if r.groups == nil {
			r.groups = map[string]*group{}
		}
		gr = make(filter)
		r.groups[filter] = gr
		r.hang(gr.sub)
	}
	return gr
}

// join makes a subscription a member of its group. mu is held.
func (r *router) join(s *subscription) {
	gr := s.group
	if r.groups[gr.filter] != gr { // ended when the subscription that this one replaces was taken out
		r.groups[gr.filter] = gr
		r.hang(gr.sub)
	}
	gr.mu.Lock()
	defer gr.mu.Unlock()
	gr.ended = false
	gr.members = append(gr.members, s)
	gr.changed()
	if len(gr.members) == 1 && gr.g.recorder != nil { // before anything is said of what it hands out
		gr.g.recorder.add(gr.record(), nil)
	}
}

// part takes a member out of its group, and ends a group that has none left. mu is held.
func (r *router) part(s *subscription) {
	gr := s.group
	gr.mu.Lock()
	defer gr.mu.Unlock()
	gr.members = slices.DeleteFunc(gr.members, func(m *subscription) bool { return m == s })
	if len(gr.members) > 0 {
		return
	}
	gr.ended = true
	gr.lags.Store(false)
	gr.sub.unhang()
	delete(r.groups, gr.filter)
	if gr.g.recorder != nil {
		gr.g.recorder.add(&record{kind: recordGroupEnd, group: groupState{filter: gr.filter}}, nil)
	}
}

// allGroups returns the groups, in no order.
func (r *router) allGroups() []*group {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Collect(maps.Values(r.groups))
}

// hang puts a subscription into the trie. mu is held.
func (r *router) hang(s *subscription) {
	n := &r.root
	for rest, more := s.filter, true; more; {
		var level string
		level, rest, more = strings.Cut(rest, "/")
		n = n.grow(level)
	}
	s.node, s.index = n, len(n.subs)
	n.subs = append(n.subs, s)
}

// unhang takes a subscription out, and the nodes that nothing hangs on any more.
func (s *subscription) unhang() {
	n, last := s.node, len(s.node.subs)-1
	n.subs[s.index] = n.subs[last]
	n.subs[s.index].index = s.index
	n.subs[last] = nil
	n.subs = n.subs[:last]
	if len(n.subs) == 0 {
		n.subs = nil
	}
	for n.parent != nil && n.bare() {
		n.parent.cut(n)
		n = n.parent
	}
}

// match calls yield with the subscriptions of each matching filter. The router's lock is held.
// It goes down the trie. first is for the first level: a topic that begins with $ is not matched by a wildcard there
// (MQTT-4.7.2-1).
func (n *node) match(rest string, first bool, yield func([]*subscription)) {
	if len(n.few)+len(n.many) == 0 {
		return
	}
	wild := !first || !strings.HasPrefix(rest, "$")
	if wild {
		n.child("#").emit(yield)
	}
	level, rest, more := strings.Cut(rest, "/")
	n.child(level).descend(rest, more, yield)
	if wild {
		n.child("+").descend(rest, more, yield)
	}
}

func (n *node) descend(rest string, more bool, yield func([]*subscription)) {
	switch {
	case n == nil:
	case more:
		n.match(rest, false, yield)
	default:
		n.emit(yield)
		n.child("#").emit(yield) // a/# matches a as well
	}
}

func (n *node) emit(yield func([]*subscription)) {
	if n != nil && len(n.subs) > 0 {
		yield(n.subs)
	}
}

// matches reports whether a filter matches a topic: the rule of the trie for one filter.
func matches(filter, topic string) bool {
	if strings.HasPrefix(topic, "$") && (strings.HasPrefix(filter, "+") || strings.HasPrefix(filter, "#")) {
		return false
	}
	for {
		f, frest, fmore := strings.Cut(filter, "/")
		if f == "#" {
			return true
		}
		t, trest, tmore := strings.Cut(topic, "/")
		if f != "+" && f != t {
			return false
		}
		switch {
		case !fmore && !tmore:
			return true
		case !fmore:
			return false
		case !tmore:
			return frest == "#"
		}
		filter, topic = frest, trest
	}
}
