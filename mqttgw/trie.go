// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"strings"
	"sync"

	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// subscription is one filter of one session. Everything but the place in the trie is immutable; SUBSCRIBE for a filter
// that is there replaces it.
type subscription struct {
	conn    *conn
	filter  string
	qos     byte // granted: 0 or 1
	noLocal bool
	retain  bool              // retain as published
	id      packet.Properties // the encoded subscription identifier; nil = none
	since   uint64            // events up to this sequence are before the subscription

	node  *node // where it hangs
	index int   // in node.subs
}

// node is a level of the topic trie.
type node struct {
	parent   *node
	level    string
	children map[string]*node
	subs     []*subscription
}

// router finds the subscriptions of a topic. The cost of a match depends on the levels of the topic and on the
// subscriptions that match, not on those that do not.
type router struct {
	mu   sync.RWMutex
	root node // guarded by mu
}

// change replaces subscriptions by others at one moment. commit is called under the lock, so that nothing is routed
// between it and the change; it returns the sequence that the new subscriptions start after. One with a since keeps it.
func (r *router) change(remove, add []*subscription, commit func() uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	since := commit()
	for _, s := range remove {
		s.unhang()
	}
	for _, s := range add {
		if s.since == 0 {
			s.since = since
		}
		n := &r.root
		for rest, more := s.filter, true; more; {
			var level string
			level, rest, more = strings.Cut(rest, "/")
			n = n.child(level)
		}
		s.node, s.index = n, len(n.subs)
		n.subs = append(n.subs, s)
	}
}

func (n *node) child(level string) *node {
	c := n.children[level]
	if c == nil {
		if n.children == nil {
			n.children = map[string]*node{}
		}
		c = &node{parent: n, level: strings.Clone(level)}
		n.children[c.level] = c
	}
	return c
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
	for n.parent != nil && len(n.subs) == 0 && len(n.children) == 0 {
		delete(n.parent.children, n.level)
		n = n.parent
	}
}

// match calls yield with the subscriptions of each matching filter. The router's lock is held.
// It goes down the trie. first is for the first level: a topic that begins with $ is not matched by a wildcard there
// (MQTT-4.7.2-1).
func (n *node) match(rest string, first bool, yield func([]*subscription)) {
	if n.children == nil {
		return
	}
	wild := !first || !strings.HasPrefix(rest, "$")
	if wild {
		n.children["#"].emit(yield)
	}
	level, rest, more := strings.Cut(rest, "/")
	n.children[level].descend(rest, more, yield)
	if wild {
		n.children["+"].descend(rest, more, yield)
	}
}

func (n *node) descend(rest string, more bool, yield func([]*subscription)) {
	switch {
	case n == nil:
	case more:
		n.match(rest, false, yield)
	default:
		n.emit(yield)
		n.children["#"].emit(yield) // a/# matches a as well
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
