// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"slices"

	"github.com/rialto-bridge/rialto/internal/event"
)

// newSession returns a session without anything, which nobody knows yet.
func (g *Gateway) newSession(k sessionKey) *session {
	var b [8]byte
	rand.Read(b[:]) //nolint:errcheck // crypto/rand.Read never fails
	return &session{g: g, key: k, epoch: binary.BigEndian.Uint64(b[:])}
}

// sessionOf returns the kept session of a client, or one that has ended and whose end is not written down yet; nil when there is none.
func (g *Gateway) sessionOf(k sessionKey) *session {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := g.sessions[k]; s != nil {
		return s
	}
	return g.ending[k]
}

// enrol takes a session that is recorded into the books: one that outlives its connection under its key.
func (g *Gateway) enrol(s *session, kept bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !kept {
		g.mortal[s] = struct{}{}
		return
	}
	g.sessions[s.key] = s
	g.metrics.sessions.Set(float64(len(g.sessions)))
}

func (g *Gateway) keptSessions() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.sessions)
}

// resumable reports whether an away session can go on where it was. One whose time is over cannot, nor one that retention
// has overtaken, or whose messages were on a bus that is not there any more: its client is told by Session Present 0, and everybody by
// an event.
func (g *Gateway) resumable(s *session) bool {
	now := g.now()
	s.mu.Lock()
	over := s.ended || s.lapsed(now)
	gone := slices.Clone(s.lost)
	for i := range s.at {
		if p := &s.at[i]; p.lagging() && p.next() < p.feed.tail.First() {
			gone = append(gone, loss{streamState: p.state(), n: p.feed.tail.First() - p.next()})
		}
	}
	var groups []*group
	for _, sub := range s.subs {
		if sub.group != nil {
			groups = append(groups, sub.group)
		}
	}
	s.mu.Unlock()
	if over {
		return false
	}
	for _, l := range gone {
		g.lost(s.key, s.key.clientID, l)
	}
	if len(gone) > 0 {
		for _, gr := range groups { // which end with the session, if it is their last
			gr.tellLost()
		}
	}
	return len(gone) == 0
}

// everySubscriber is the subscriber in a gap that nobody can say whom it concerns.
const everySubscriber = "#"

// EventGap is the type of the event that says that a client has missed messages because they had left the log.
const EventGap = "io.rialto.device.gap"

// announce publishes that a subscriber has missed messages.
func (g *Gateway) announce(ctx context.Context, k sessionKey, who, bus string, from, n uint64) {
	data, err := json.Marshal(map[string]any{"clientId": k.clientID, "principal": k.principal, "subscriber": who, "bus": bus, "from": from, "to": from + n - 1})
	if err != nil {
		g.log.Error("gap not announced", "err", err)
		return
	}
	rec := &event.Record{Minted: true, Received: g.now(), Event: event.Event{ID: event.NewID(), Source: g.base, Type: EventGap,
		Subject: who, Time: g.now(), DataContentType: "application/json", Data: data}}
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	done := func(err error) {
		if err != nil {
			g.log.Error("gap not announced", "err", err)
		}
	}
	if err := g.opts.Publisher.Publish(ctx, g.opts.Bus, rec, done); err != nil {
		done(err)
	}
}
