// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"fmt"
	"strings"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// PublishTo stores a message for one device.
func PublishTo(d *Downlink, device string, rec *event.Record, done func(error)) error {
	rec.Event.Subject = device
	return d.publish(context.Background(), device, rec, nil, func(r eventlog.Result) { done(r.Err) })
}

// Feeds are the names of the buses that subscribers are served from.
func (g *Gateway) Feeds() (names []string) {
	for _, f := range g.feeds.all() {
		names = append(names, f.name)
	}
	return names
}

// Delivered waits until everything that is stored was offered to subscribers.
func (g *Gateway) Delivered(ctx context.Context) error { return g.awaitTails(ctx, g.ends()) }

// Behind returns what waits, as SUBSCRIBE does, until n more messages were offered to subscribers in each feed than there are now.
func (g *Gateway) Behind(n uint64) (wait func(context.Context) error) {
	m := g.momentBy(func(f *feed) uint64 { return f.tail.Committed() + n })
	return func(ctx context.Context) error { return g.awaitTails(ctx, m) }
}

// MarkTold writes down what events have told of commands, as is done from time to time.
func (g *Gateway) MarkTold() bool { return g.commands.mark() }

// Matches reports whether a topic matches a filter.
func Matches(filter, topic string) bool { return matches(filter, topic) }

// Dump is how groups and sessions stand, for a test that has failed.
func (g *Gateway) Dump() string {
	var b strings.Builder
	at := func(p *position) {
		fmt.Fprintf(&b, " %s[tail %d of %d, live from %d, behind %d, waiting %d, exact %d]", p.feed.name, p.feed.routed.Load(), p.feed.tail.Committed(), p.liveFrom, p.behind, p.waiting, p.exact)
	}
	for _, gr := range g.router.allGroups() {
		gr.mu.Lock()
		fmt.Fprintf(&b, "group %s, ended %t, feeding %t, %d members:", gr.filter, gr.ended, gr.feeding, len(gr.members))
		for i := range gr.at {
			at(&gr.at[i].position)
			fmt.Fprintf(&b, " returned %d out %d", gr.at[i].returned, gr.at[i].out)
		}
		b.WriteString("\n")
		gr.mu.Unlock()
	}
	for _, s := range g.everySession() {
		s.mu.Lock()
		fmt.Fprintf(&b, "session %s, ended %t, connected %t, resends %d, %d in flight, subscriptions", s.key.clientID, s.ended, s.conn != nil, s.resends, len(s.flying))
		for _, sub := range s.subs {
			fmt.Fprintf(&b, " %s", sub.filter)
		}
		for i := range s.at {
			at(&s.at[i])
		}
		for i := range s.flying {
			fmt.Fprintf(&b, " (%d QoS %d id %d)", s.flying[i].seq, s.flying[i].stage, s.flying[i].id)
		}
		b.WriteString("\n")
		s.mu.Unlock()
	}
	return b.String()
}
