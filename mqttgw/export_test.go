// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"

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
