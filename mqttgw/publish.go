// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// uplink is what a client has published and the log has not settled, and the QoS 2 ids that await a PUBREL. Everything
// is guarded by the connection's mu.
type uplink struct {
	acks  []*publication // QoS 1 and 2, in the order of arrival; acks[:sent] are acknowledged
	sent  int
	bytes int // of all that is not settled, QoS 0 included

	received map[uint16]*publication // QoS 2 ids between PUBLISH and PUBREL
	epoch    string                  // of the session; stands in the ids of QoS 2 events
	uses     uint64                  // QoS 2 messages so far

	abandoned bool // a stop does not wait any longer
}

// publication is a PUBLISH on its way to its acknowledgement.
type publication struct {
	c       *conn
	first   *publication // for a QoS 2 PUBLISH that came again: the one it repeats
	size    int
	id      uint16
	qos     byte
	settled bool
	code    packet.Reason
	detail  string // why not, for the client
}

// overhead is what a message costs beside its payload.
const overhead = 512

// full reports whether no further packet is to be read. mu is held.
func (u *uplink) full(l *Limits) bool {
	return u.bytes >= l.MaxPending || len(u.acks)-u.sent >= l.ReceiveMaximum
}

// incoming is a message as a client sent it, in PUBLISH or as a will.
type incoming struct {
	topic   string
	payload []byte
	qos     byte
	retain  bool
	props   packet.Properties // without those that concern the connection only
}

// record makes the event of a message, as its mapping says (nil = none). The error is what the client is told; nothing of in is kept but the topic and
// the properties.
func (c *conn) record(in *incoming, mapping *TopicMapping) (*event.Record, error) {
	if err := c.checkTopic(in.topic); err != nil {
		return nil, err
	}
	now := c.g.now()
	m := event.MQTTMessage{Topic: in.topic, Payload: in.payload, Version: byte(c.version), QoS: in.qos, Retain: in.retain, Raw: in.props}
	for p := range in.props.All() {
		switch p.ID {
		case packet.ContentType:
			m.ContentType = string(p.Bytes)
		case packet.PayloadFormat:
			m.PayloadUTF8 = p.Int == 1
		case packet.UserProperty:
			m.UserProperties = append(m.UserProperties, [2]string{string(p.Bytes), string(p.Value)})
		}
	}
	defaults := event.MQTTDefaults{Source: c.source, Time: now}
	var levels byte
	if mapping != nil {
		mapping.apply(&defaults, in.topic, c.key)
		levels = byte(mapping.levels)
	}
	ev, minted, err := event.FromMQTT(m, defaults, c.g.opts.EventLimits)
	if err != nil {
		return nil, conversionError(err)
	}
	if minted {
		ev.ID = event.NewID()
	}
	kept := &struct {
		record event.Record
		origin event.Origin
	}{
		event.Record{Event: ev, Received: now, Minted: minted},
		event.Origin{Topic: in.topic, Client: c.key.clientID, Principal: c.key.principal, QoS: in.qos, Retain: in.retain,
			Version: byte(c.version), Levels: levels, Properties: in.props},
	}
	kept.record.MQTT = &kept.origin
	return &kept.record, nil
}

// admitPublish asks whether the client may publish this now. Above its quota an MQTT 5 client is told (0x97); 3.1.1 has no
// way to say it, so its next message is waited with.
func (c *conn) admitPublish(topic string, retain bool) error {
	if !c.rights.Load().mayPublish(topic, retain) {
		return &packet.Error{Code: packet.NotAuthorized, Detail: "the client may not publish to this topic"}
	}
	q := c.quota.Load()
	if q == nil {
		return nil
	}
	wait := q.take(c.g.now())
	switch {
	case wait == 0:
		return nil
	case c.version == packet.V5:
		return &packet.Error{Code: packet.QuotaExceeded, Detail: "more messages than the client may publish"}
	}
	c.pause(wait)
	q.take(c.g.now())
	return nil
}

// pause keeps the reader from reading for a while, or until the connection ends.
func (c *conn) pause(d time.Duration) {
	over := false
	timer := time.AfterFunc(d, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		over = true
		c.room.Broadcast()
	})
	defer timer.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for !over && c.why == nil && !c.out.broken {
		c.wait()
	}
}

// busOf is where the mapping sends a publish.
func (g *Gateway) busOf(m *TopicMapping) string {
	if m == nil || m.Bus == DefaultBus {
		return g.opts.Bus
	}
	return m.Bus
}

func conversionError(err error) error {
	code := packet.PayloadFormatInvalid
	var bad *event.Error
	if errors.As(err, &bad) && bad.TooLarge {
		code = packet.QuotaExceeded
	}
	return &packet.Error{Code: code, Detail: err.Error()}
}

func (c *conn) checkTopic(topic string) error {
	switch {
	case strings.HasPrefix(topic, "$"):
		return &packet.Error{Code: packet.NotAuthorized, Detail: "topics that begin with $ are the server's"}
	case len(topic) > c.g.limits.MaxTopic || strings.Count(topic, "/") >= c.g.limits.MaxLevels:
		return &packet.Error{Code: packet.TopicNameInvalid, Detail: "topic is longer, or has more levels, than allowed"}
	}
	return nil
}

// passedOn are the properties that belong to the message; the others are between the client and this server.
func passedOn(ps packet.Properties) packet.Properties {
	if len(ps) == 0 {
		return nil
	}
	kept := make(packet.Properties, 0, len(ps))
	for p := range ps.All() {
		switch p.ID {
		case packet.PayloadFormat, packet.MessageExpiry, packet.ContentType, packet.ResponseTopic, packet.CorrelationData, packet.UserProperty:
			kept = append(kept, p.Raw...)
		}
	}
	return kept
}

func (c *conn) takePublish(first byte, body []byte) error {
	var p packet.Publish
	if err := p.Decode(first, body, c.version); err != nil {
		return err
	}
	topic, err := c.resolveTopic(&p)
	if err != nil {
		return err
	}
	if p.Retain && c.version == packet.V5 {
		return &packet.Error{Code: packet.RetainNotSupported, Detail: "retained messages are not kept"} // CONNACK has said so
	}
	pub := &publication{c: c, id: p.PacketID, qos: p.QoS, size: len(body) + overhead}
	if fresh, err := c.expect(pub); err != nil || !fresh {
		return err
	}
	if err := c.admitPublish(topic, p.Retain); err != nil {
		c.g.metrics.published(p.QoS, resultRefused)
		pub.settle(err)
		return nil
	}
	maps := c.g.opts.Mappings
	maps.mu.RLock()
	defer maps.mu.RUnlock()
	mapping := maps.find(topic)
	rec, err := c.record(&incoming{topic: topic, payload: p.Payload, qos: p.QoS, retain: p.Retain, props: passedOn(p.Properties)}, mapping)
	if err != nil {
		c.g.metrics.published(p.QoS, resultRefused)
		pub.settle(err)
		return nil
	}
	if p.QoS == 2 && rec.Minted {
		rec.Event.ID = c.exactID(pub)
	}
	if err := c.g.opts.Publisher.Publish(c.g.life, c.g.busOf(mapping), rec, pub.done); err != nil {
		pub.done(err)
	}
	return nil
}

// resolveTopic returns the topic of a PUBLISH and follows its alias.
func (c *conn) resolveTopic(p *packet.Publish) (string, error) {
	if c.version != packet.V5 {
		return string(p.Topic), nil
	}
	if _, ok := p.Properties.Find(packet.SubscriptionID); ok {
		return "", &packet.Error{Code: packet.ProtocolError, Detail: "subscription identifier from a client"}
	}
	alias := uint16(p.Properties.Int(packet.TopicAlias, 0))
	switch {
	case alias == 0:
		return string(p.Topic), nil
	case int(alias) > c.g.limits.MaxTopicAlias:
		return "", &packet.Error{Code: packet.TopicAliasInvalid, Detail: "topic alias above the maximum"}
	case len(p.Topic) == 0:
		topic, ok := c.aliases[alias]
		if !ok {
			return "", &packet.Error{Code: packet.ProtocolError, Detail: "topic alias that was not set"}
		}
		return topic, nil
	}
	topic := string(p.Topic)
	if len(topic) <= c.g.limits.MaxTopic { // a longer one is refused, and not kept
		if c.aliases == nil {
			c.aliases = map[uint16]string{}
		}
		c.aliases[alias] = topic
	}
	return topic, nil
}

// expect books a publication. fresh is false for a QoS 2 message that is known; it is acknowledged in its turn.
func (c *conn) expect(pub *publication) (fresh bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := &c.uplink
	known := u.received[pub.id]
	if pub.qos == 2 && known != nil {
		pub.first, pub.settled = known, true
		u.acks = append(u.acks, pub)
		c.acknowledge()
		return false, nil
	}
	if pub.qos > 0 {
		// ready has waited until there was room for another acknowledgement, so only PUBRELs can be missing here.
		if c.version == packet.V5 && len(u.acks)-u.sent+c.unreleased() >= c.g.limits.ReceiveMaximum {
			return false, &packet.Error{Code: packet.ReceiveMaximumExceeded, Detail: "more messages than the receive maximum"}
		}
		u.acks = append(u.acks, pub)
	}
	if pub.qos == 2 {
		if u.received == nil {
			u.received = map[uint16]*publication{}
			u.epoch = newEpoch()
		}
		u.received[pub.id] = pub
		u.uses++
	}
	u.bytes += pub.size
	return true, nil
}

// unreleased counts the QoS 2 messages whose PUBREC is out. mu is held.
func (c *conn) unreleased() int {
	n := len(c.uplink.received)
	for _, p := range c.uplink.acks[c.uplink.sent:] {
		if p.qos == 2 && p.first == nil {
			n--
		}
	}
	return n
}

func newEpoch() string {
	var b [8]byte
	rand.Read(b[:]) //nolint:errcheck // crypto/rand.Read never fails
	return hex.EncodeToString(b[:])
}

// exactID is the id of a QoS 2 event: session epoch, packet id, use count. It is the same whenever the client sends the
// message again, which the log's deduplication needs once sessions outlive connections.
func (c *conn) exactID(pub *publication) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.uplink.epoch + "-" + strconv.Itoa(int(pub.id)) + "-" + strconv.FormatUint(c.uplink.uses, 10)
}

// done is called with the outcome of a publication, from the log's committer or from the reader. It does not block.
func (p *publication) done(err error) {
	if err == nil {
		p.c.g.metrics.published(p.qos, resultStored)
		p.settle(nil)
		return
	}
	p.c.g.metrics.published(p.qos, resultFailed)
	if !errors.Is(err, context.Canceled) {
		p.c.g.log.Warn("publish not stored", "clientId", p.c.key.clientID, "err", err)
	}
	p.settle(err)
}

// detailOf is the text of an error that a client may see.
func detailOf(err error) string {
	var refused *packet.Error
	var failed *fault.Error
	switch {
	case errors.As(err, &refused):
		return refused.Detail
	case errors.As(err, &failed):
		return failed.Error()
	}
	return ""
}

// maxDetail bounds a reason string.
const maxDetail = 256

// because is a reason string, for a client that wants them.
func (c *conn) because(detail string) packet.Properties {
	fits := len(detail) <= maxDetail && len(detail)+16 <= c.maxPacket
	if detail == "" || !c.tellWhy || c.version != packet.V5 || !fits || !utf8.ValidString(detail) || strings.ContainsRune(detail, 0) {
		return nil
	}
	return packet.Properties(nil).AppendString(packet.ReasonString, detail)
}

// refusalCode is what a client is told about a message that was not stored (codes of PUBACK and PUBREC).
func refusalCode(err error) packet.Reason {
	var refused *packet.Error
	if errors.As(err, &refused) {
		return refused.Code
	}
	switch fault.KindOf(err) {
	case fault.Full, fault.RateLimited, fault.TooLarge:
		return packet.QuotaExceeded
	case fault.Unauthorized, fault.Forbidden:
		return packet.NotAuthorized
	case fault.Invalid, fault.Unsupported, fault.NotFound, fault.Conflict:
		return packet.ImplementationError
	}
	return packet.UnspecifiedError
}

// settle records the outcome, nil for stored, and acknowledges what is due.
func (p *publication) settle(err error) {
	c := p.c
	c.mu.Lock()
	defer c.mu.Unlock()
	p.settled = true
	if err != nil {
		p.code, p.detail = refusalCode(err), detailOf(err)
	}
	c.uplink.bytes -= p.size
	if p.qos > 0 {
		c.acknowledge()
	}
	c.wake()
}

// acknowledge queues the acknowledgements that are due, in order. mu is held.
func (c *conn) acknowledge() {
	u := &c.uplink
	for u.sent < len(u.acks) && u.acks[u.sent].settled {
		p := u.acks[u.sent]
		code, detail := p.code, p.detail
		if p.first != nil {
			code, detail = p.first.code, p.first.detail
		}
		if code.Failed() {
			if c.version != packet.V5 {
				c.endLocked(code) // 3.1.1 has no way to refuse, and an acknowledgement would be a lie
				return
			}
			if p.qos == 2 && u.received[p.id] == p {
				delete(u.received, p.id)
			}
		}
		kind := packet.TypePuback
		if p.qos == 2 {
			kind = packet.TypePubrec
		}
		c.queue(&packet.Ack{Kind: kind, PacketID: p.id, Code: code, Properties: c.because(detail)})
		u.acks[u.sent] = nil
		u.sent++
	}
	switch {
	case u.sent == len(u.acks):
		u.acks, u.sent = u.acks[:0], 0
		if cap(u.acks) > 64 && len(u.received) == 0 {
			u.acks = nil
		}
	case u.sent >= 64 && u.sent*2 >= len(u.acks):
		n := copy(u.acks, u.acks[u.sent:])
		clear(u.acks[n:])
		u.acks, u.sent = u.acks[:n], 0
	}
}

func (c *conn) takePubrel(first byte, body []byte) error {
	var p packet.Ack
	if err := p.Decode(first, body, c.version); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	answer := packet.Ack{Kind: packet.TypePubcomp, PacketID: p.PacketID}
	switch known := c.uplink.received[p.PacketID]; {
	case known == nil:
		answer.Code = packet.PacketIDNotFound
	case !known.settled:
		return &packet.Error{Code: packet.ProtocolError, Detail: "PUBREL before the PUBREC"}
	default:
		delete(c.uplink.received, p.PacketID)
	}
	c.queue(&answer)
	return nil
}

// takeStray answers a PUBREC or PUBCOMP: nothing is sent with QoS 2, so it is left over from a session of another server
// or time.
func (c *conn) takeStray(first byte, body []byte) error {
	var p packet.Ack
	if err := p.Decode(first, body, c.version); err != nil {
		return err
	}
	if p.Kind == packet.TypePubrec && !p.Code.Failed() {
		c.send(&packet.Ack{Kind: packet.TypePubrel, PacketID: p.PacketID, Code: packet.PacketIDNotFound})
	}
	return nil
}

// takeWill keeps the will of a CONNECT, if there is one that could be published.
func (c *conn) takeWill(p *packet.Connect) error {
	if p.Will == nil {
		return nil
	}
	if p.Will.Retain && c.version == packet.V5 {
		return &refusal{packet.RetainNotSupported, v3Forbidden, refusedWill}
	}
	w := &incoming{topic: string(p.Will.Topic), payload: bytes.Clone(p.Will.Payload), qos: p.Will.QoS, retain: p.Will.Retain,
		props: passedOn(p.Will.Properties)}
	if !c.rights.Load().mayWill(w.topic, w.retain) {
		return &refusal{packet.NotAuthorized, v3Forbidden, refusedWill}
	}
	if _, err := c.record(w, nil); err != nil {
		return &refusal{refusalCode(err), v3Forbidden, refusedWill}
	}
	c.will = w
	return nil
}

// publishWill hands the will to the log. A will delay is at its end, because the session is (MQTT-3.1.2-8).
func (c *conn) publishWill() {
	if !c.rights.Load().mayWill(c.will.topic, c.will.retain) { // not any more
		c.g.metrics.published(c.will.qos, resultRefused)
		c.g.log.Warn("will is not allowed any more", "clientId", c.key.clientID)
		return
	}
	maps := c.g.opts.Mappings
	maps.mu.RLock()
	defer maps.mu.RUnlock()
	mapping := maps.find(c.will.topic)
	rec, err := c.record(c.will, mapping)
	if err == nil {
		// The gateway may be stopping, and then above all the will is due.
		ctx, cancel := context.WithTimeout(context.Background(), settleTime)
		defer cancel()
		qos := c.will.qos
		err = c.g.opts.Publisher.Publish(ctx, c.g.busOf(mapping), rec, func(err error) { c.willDone(qos, err) })
	}
	if err != nil {
		c.willDone(c.will.qos, err)
	}
}

func (c *conn) willDone(qos byte, err error) {
	if err == nil {
		c.g.metrics.published(qos, resultStored)
		return
	}
	c.g.metrics.published(qos, resultFailed)
	c.g.log.Error("will is lost", "clientId", c.key.clientID, "err", err)
}
