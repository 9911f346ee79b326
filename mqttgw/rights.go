// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"slices"
	"strings"
)

// rights are what one client may do: its access with the templates filled in. They are immutable, safe for concurrent
// use, and asking them allocates nothing. A nil *rights allows everything.
type rights struct {
	publish, subscribe, receive, retain, will, latest []string // filters

	publishExcept, subscribeExcept []string
}

// grant fills the access in for a client. The error is an *unfitError. Whether the client id itself is allowed, mayConnect
// says.
func (a *access) grant(s *subject) (*rights, error) {
	if a == nil {
		return nil, nil
	}
	r := &rights{}
	for _, list := range []struct {
		from []template
		to   *[]string
	}{{a.publish, &r.publish}, {a.subscribe, &r.subscribe}, {a.receive, &r.receive}, {a.retain, &r.retain}, {a.will, &r.will}, {a.latest, &r.latest},
		{a.publishExcept, &r.publishExcept}, {a.subscribeExcept, &r.subscribeExcept}} {
		for _, t := range list.from {
			f, err := t.filter(s)
			if err != nil {
				return nil, err
			}
			*list.to = append(*list.to, f)
		}
	}
	if a.receive == nil {
		r.receive = r.subscribe
	}
	if a.retain == nil {
		r.retain = r.publish
	}
	if a.will == nil {
		r.will = r.publish
	}
	return r, nil
}

// mayConnect reports whether the client id is one of those that the access names.
func (a *access) mayConnect(s *subject) bool {
	if a == nil || a.connect == nil {
		return true
	}
	for _, t := range a.connect {
		if t.matchesClientID(s.clientID, s) {
			return true
		}
	}
	return false
}

func (r *rights) mayPublish(topic string, retain bool) bool {
	return r == nil || anyMatches(r.publish, topic) && (!retain || anyMatches(r.retain, topic)) && !anyMatches(r.publishExcept, topic)
}

func (r *rights) mayWill(topic string, retain bool) bool {
	return r == nil || anyMatches(r.will, topic) && (!retain || anyMatches(r.retain, topic)) && !anyMatches(r.publishExcept, topic)
}

func (r *rights) mayReceive(topic string) bool {
	return r == nil || anyMatches(r.receive, topic) && !anyMatches(r.subscribeExcept, topic)
}

// mayReceive reports whether the client of the session may receive a message of the topic. While it is away that is left
// open: what it is allowed when it is back counts.
func (s *session) mayReceive(topic string) bool {
	c := s.holder.Load()
	return c == nil || c.rights.Load().mayReceive(topic)
}

// maySubscribe reports whether everything that the filter matches may be subscribed to, but for exceptions, which are not
// delivered; a filter that matches nothing else is refused. The filter of a shared subscription is judged without its group.
func (r *rights) maySubscribe(filter string) bool {
	if r == nil {
		return true
	}
	if shared, ok := strings.CutPrefix(filter, "$share/"); ok {
		_, filter, _ = strings.Cut(shared, "/")
	}
	return anyCovers(r.subscribe, filter) && !anyCovers(r.subscribeExcept, filter)
}

// latestFirst reports whether a subscription that says nothing of it gets the latest first.
func (r *rights) latestFirst(filter string) bool { return r != nil && anyCovers(r.latest, filter) }

func anyCovers(filters []string, narrow string) bool {
	return slices.ContainsFunc(filters, func(f string) bool { return covers(f, narrow) })
}

func anyMatches(filters []string, topic string) bool {
	for _, f := range filters {
		if matches(f, topic) {
			return true
		}
	}
	return false
}

// covers reports whether a filter matches every topic that another one matches. It may say no where that takes more than
// one look at each level: # is not covered by +/#.
func covers(wide, narrow string) bool {
	if strings.HasPrefix(narrow, "$") && (strings.HasPrefix(wide, "+") || strings.HasPrefix(wide, "#")) {
		return false
	}
	for {
		w, wrest, wmore := strings.Cut(wide, "/")
		if w == "#" {
			return true
		}
		n, nrest, nmore := strings.Cut(narrow, "/")
		if n == "#" || w != "+" && w != n {
			return false
		}
		switch {
		case !wmore && !nmore:
			return true
		case !wmore:
			return false
		case !nmore:
			return wrest == "#" // a/# matches a as well
		}
		wide, narrow = wrest, nrest
	}
}
