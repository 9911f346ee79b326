// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// publishCommand stores a message that a mapping says is for one device, as a command. It blocks and calls done as a
// Publisher's Publish does.
func (g *Gateway) publishCommand(ctx context.Context, m *TopicMapping, rec *event.Record, done func(error)) error {
	if g.commands == nil {
		return errNoCommands
	}
	o := rec.MQTT
	if o.Retain {
		return &packet.Error{Code: packet.ImplementationError, Detail: "a message to one device cannot be retained"}
	}
	spec := commandPublished(m.deviceOf(o.Topic, sessionKey{principal: o.Principal, clientID: o.Client}), rec)
	cmd, err := g.commandRecord(&spec)
	if err != nil {
		return err
	}
	// The device gets it as it was published. The client is known by it after a crash.
	cmd.MQTT.Properties, cmd.MQTT.Client, cmd.MQTT.Principal = o.Properties, o.Client, o.Principal
	known, err := g.commands.accept(ctx, spec.Device, cmd, spec.ID != "", func(r eventlog.Result) { done(r.Err) })
	if err != nil || known == nil {
		return err
	}
	if _, err = g.commands.again(ctx, *known, cmd); err == nil {
		done(nil)
	}
	return err
}

// commandPublished is the command that a publish asks for. Its id is the sender's where there is one: of a CloudEvent, or of a
// QoS 2 message, which is sent again after a crash and is to be one command.
func commandPublished(device string, rec *event.Record) CommandSpec {
	o := rec.MQTT
	s := CommandSpec{Device: device, Topic: o.Topic, Payload: rec.Event.Data, QoS: o.QoS, By: strings.ToValidUTF8(o.Client[:min(len(o.Client), maxBy)], "")}
	if (o.QoS == 2 || !rec.Minted) && commandIDFormat.MatchString(rec.Event.ID) {
		s.ID = rec.Event.ID
	}
	if !rec.Minted && structured(o) {
		s.Payload = event.AppendJSON(nil, &rec.Event)
	} else {
		s.ContentType = rec.Event.DataContentType
	}
	ps := packet.Properties(o.Properties)
	if p, ok := ps.Find(packet.MessageExpiry); ok {
		s.Expiry = max(time.Second, time.Duration(p.Int)*time.Second)
	}
	if p, ok := ps.Find(packet.CorrelationData); ok && len(p.Bytes) <= maxCorrelation && utf8.Valid(p.Bytes) && !strings.ContainsRune(string(p.Bytes), 0) {
		s.Correlation = string(p.Bytes)
	}
	return s
}

// receiptOf is what Gateway.recoverReceipt needs of a command; without a topic, it is delivered to nobody.
func receiptOf(cmd *event.Record) *event.Record {
	o := *cmd.MQTT
	o.Topic = ""
	return &event.Record{Event: event.Event{ID: cmd.Event.ID}, Minted: cmd.Minted, MQTT: &o}
}
