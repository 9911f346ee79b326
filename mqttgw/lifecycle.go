// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// Types of life-cycle events. Each has data of type LifecycleData and the client's source, and its client id,
// percent-coded, as subject.
const (
	DeviceConnected    = "io.rialto.device.connected"
	DeviceDisconnected = "io.rialto.device.disconnected"
	DeviceSubscribed   = "io.rialto.device.subscribed"
	DeviceUnsubscribed = "io.rialto.device.unsubscribed"
	DeviceAuthFailed   = "io.rialto.device.auth-failed" // at most ten in a second
)

// LifecycleData is the data of life-cycle events.
type LifecycleData struct {
	Version   int64    `json:"version"` // grows from event to event of a client, so that a late one can be dropped
	ClientID  string   `json:"clientId"`
	Principal string   `json:"principal,omitempty"`
	Address   string   `json:"address,omitempty"`
	Via       string   `json:"via,omitempty"`      // connected: anonymous, password, certificate, token
	Protocol  string   `json:"protocol,omitempty"` // connected: 3.1.1 or 5
	Reason    string   `json:"reason,omitempty"`   // disconnected, auth-failed
	ByServer  bool     `json:"byServer,omitempty"` // disconnected: the server ended it
	Filters   []string `json:"filters,omitempty"`  // subscribed, unsubscribed
}

// lifecycle makes life-cycle events. Safe for concurrent use.
type lifecycle struct {
	last atomic.Int64 // version
}

// version is larger than every one before, in this process, and, going by the clock, in those before it.
func (l *lifecycle) version(now time.Time) int64 {
	for {
		last := l.last.Load()
		next := max(last+1, now.UnixMilli())
		if l.last.CompareAndSwap(last, next) {
			return next
		}
	}
}

// tell publishes a life-cycle event. It may wait for room in the log, a moment; the commit is not waited for.
func (g *Gateway) tell(kind, source string, d LifecycleData) {
	if !g.opts.Lifecycle {
		return
	}
	d.Version = g.lifecycle.version(g.now())
	data, err := json.Marshal(d)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), settleTime) // also while the gateway stops
		defer cancel()
		err = g.opts.Publisher.Publish(ctx, g.opts.Bus, g.own(event.Event{Type: kind, Source: source,
			Subject: source[strings.LastIndexByte(source, '/')+1:], DataContentType: "application/json", Data: data}), func(err error) { g.told(kind, err) })
	}
	if err != nil {
		g.told(kind, err)
	}
}

func (g *Gateway) told(kind string, err error) {
	if err != nil {
		g.metrics.lifecycleLost.Inc()
		g.log.Warn("life-cycle event is lost", "eventType", kind, "err", err)
	}
}

// own makes a record of an event of the gateway itself.
func (g *Gateway) own(ev event.Event) *event.Record {
	ev.ID, ev.Time = event.NewID(), g.now()
	if ev.Source == "" {
		ev.Source = strings.TrimSuffix(g.base, "/")
	}
	return &event.Record{Event: ev, Received: ev.Time, Minted: true}
}

// protocolName is how people call a version.
func protocolName(v packet.Version) string {
	if v == packet.V5 {
		return "5"
	}
	return "3.1.1"
}

func (c *conn) report(kind string, d LifecycleData) {
	d.ClientID, d.Principal = c.key.clientID, c.key.principal
	c.g.tell(kind, c.source, d)
}

func (c *conn) announceConnected(id *identity) {
	c.report(DeviceConnected, LifecycleData{Address: c.addr.String(), Via: string(id.via), Protocol: protocolName(c.version)})
}

// announceEnd says that the session ends with its connection.
func (c *conn) announceEnd() {
	if !c.established {
		return
	}
	reason, byServer := c.endReason()
	c.g.metrics.ended(reason)
	c.report(DeviceDisconnected, LifecycleData{Address: c.addr.String(), Reason: reason, ByServer: byServer})
}

// endReasons names why this side has ended a connection.
var endReasons = map[packet.Reason]string{
	packet.Success:                "client",
	packet.ServerShuttingDown:     "stopped",
	packet.KeepAliveTimeout:       "keep-alive",
	packet.SessionTakenOver:       "taken-over",
	packet.AdministrativeAction:   "administrative",
	packet.MaximumConnectTime:     "credentials-expired",
	packet.NotAuthorized:          "not-authorized",
	packet.MalformedPacket:        "protocol-error",
	packet.ProtocolError:          "protocol-error",
	packet.ReceiveMaximumExceeded: "protocol-error",
	packet.TopicAliasInvalid:      "protocol-error",
	packet.PacketTooLarge:         "packet-too-large",
	packet.QuotaExceeded:          "quota-exceeded",
}

// Reasons that are no reason code's.
const (
	endLost    = "connection-lost"
	endStalled = "write-timeout" // the client does not read
	endError   = "error"
)

// endReason says why the connection has ended.
func (c *conn) endReason() (reason string, byServer bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.why == nil:
		return endLost, false
	case c.stalled:
		return endStalled, true
	}
	reason, ok := endReasons[*c.why]
	if !ok {
		reason = endError
	}
	return reason, *c.why != packet.Success
}

func (c *conn) announceSubscribed(subs []*subscription) {
	if len(subs) > 0 {
		c.report(DeviceSubscribed, LifecycleData{Filters: filtersOf(subs)})
	}
}

func (c *conn) announceUnsubscribed(subs []*subscription) {
	if len(subs) > 0 {
		c.report(DeviceUnsubscribed, LifecycleData{Filters: filtersOf(subs)})
	}
}

func filtersOf(subs []*subscription) []string {
	filters := make([]string, len(subs))
	for i, s := range subs {
		filters[i] = s.filter
	}
	return filters
}

// authFailed counts a client that was not let in, and says so on the bus, but no more than ten times in a second.
func (c *conn) authFailed(why, clientID string) {
	g := c.g
	g.metrics.authFailures[why].Inc()
	if g.gate.mayAnnounce(g.now()) {
		g.tell(DeviceAuthFailed, event.MQTTSource(g.opts.Name, clientID), LifecycleData{ClientID: clientID, Address: c.addr.String(), Reason: why})
	}
}
