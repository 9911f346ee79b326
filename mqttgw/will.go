// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"bytes"
	"context"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// will is a message that is published when the connection ends otherwise than by a normal DISCONNECT.
type will struct {
	incoming
	delay uint32 // seconds
}

// takeWill checks the will of a CONNECT. A will that could not be published is refused there and then.
func (c *conn) takeWill(p *packet.Connect) error {
	if p.Will == nil {
		return nil
	}
	if p.Will.Retain && c.g.opts.Retained == nil && c.version == packet.V5 {
		return &refusal{packet.RetainNotSupported, v3Forbidden, refusedWill}
	}
	w := &will{incoming: incoming{topic: string(p.Will.Topic), payload: bytes.Clone(p.Will.Payload), qos: p.Will.QoS, retain: p.Will.Retain,
		props: passedOn(p.Will.Properties)}, delay: p.Will.Properties.Int(packet.WillDelay, 0)}
	if !c.rights.Load().mayWill(w.topic, w.retain) {
		return &refusal{packet.NotAuthorized, v3Forbidden, refusedWill}
	}
	if _, err := c.g.eventOf(c.key, c.version, c.source, &w.incoming, nil); err != nil {
		return &refusal{refusalCode(err), v3Forbidden, refusedWill}
	}
	c.will = w
	return nil
}

// publishWill hands a will to the log; then, if it is not nil, runs when its fate is known.
func (g *Gateway) publishWill(s *session, w *will, then func()) {
	done := func(err error) {
		g.willDone(s, w.qos, err)
		if then != nil {
			then()
		}
	}
	maps := g.opts.Mappings
	maps.mu.RLock()
	defer maps.mu.RUnlock()
	mapping := maps.find(w.topic)
	rec, err := g.eventOf(s.key, s.version, event.MQTTSource(g.opts.Name, s.key.clientID), &w.incoming, mapping)
	if err == nil {
		// The gateway may be stopping, and then above all the will is due.
		ctx, cancel := context.WithTimeout(context.Background(), settleTime)
		defer cancel()
		err = g.store(ctx, mapping, rec, done)
	}
	if err != nil {
		done(err)
	}
}

func (g *Gateway) willDone(s *session, qos byte, err error) {
	if err == nil {
		g.metrics.published(qos, resultStored)
		return
	}
	g.metrics.published(qos, resultFailed)
	g.log.Error("will is lost", "clientId", s.key.clientID, "err", err)
}
