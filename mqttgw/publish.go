// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// uplink is what a client has published and the log has not settled. Everything is guarded by the connection's mu.
type uplink struct {
	acks  []*publication // QoS 1 and 2, in the order of arrival; acks[:sent] are acknowledged
	sent  int
	bytes int // of all that is not settled, QoS 0 included
	held  int // QoS 2 messages of this connection whose PUBREC is out and whose PUBREL has not come

	abandoned bool // a stop does not wait any longer
}

// publication is a PUBLISH on its way to its acknowledgement.
type publication struct {
	c          *conn
	receipt    *receipt // QoS 2
	size       int
	generation int // of the recorder
	id         uint16
	qos        byte
	dup        bool
	repeated   bool // a QoS 2 PUBLISH that came again: receipt is that of the first
	settled    bool
	code       packet.Reason
	detail     string // why not, for the client
}

// receipt is a QoS 2 message between PUBLISH and PUBREL. It belongs to the session and is guarded by its mu.
type receipt struct {
	use      uint64 // which use of a packet id by the session; stands in the event's id
	by       *conn  // the connection that sent it
	stored   bool   // its event is committed
	settled  bool   // that is recorded too: PUBREC may be sent
	doubtful bool   // found in the log after a crash: a PUBLISH without DUP is another message
	repeats  []*publication
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
	by      *identity         // of a will: whose rights count if it comes after its connection; nil = no more than the principal is known
}

// eventOf makes the event of a client's message, as its mapping says (nil = none). The error is what the client is told;
// nothing of in is kept but the topic and the properties.
func (g *Gateway) eventOf(k sessionKey, v packet.Version, source string, in *incoming, mapping *TopicMapping) (*event.Record, error) {
	if err := g.checkTopic(in.topic); err != nil {
		return nil, err
	}
	now := g.now()
	m := event.MQTTMessage{Topic: in.topic, Payload: in.payload, Version: byte(v), QoS: in.qos, Retain: in.retain, Raw: in.props}
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
	defaults := event.MQTTDefaults{Source: source, Time: now}
	var levels byte
	if mapping != nil {
		mapping.apply(&defaults, in.topic, k)
		levels = byte(mapping.levels)
	}
	ev, minted, err := event.FromMQTT(m, defaults, g.opts.EventLimits)
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
		event.Origin{Topic: in.topic, Client: k.clientID, Principal: k.principal, QoS: in.qos, Retain: in.retain,
			Version: byte(v), Levels: levels, Properties: in.props},
	}
	kept.record.MQTT = &kept.origin
	if mapping != nil && mapping.Sparkplug {
		g.births.describe(&kept.record)
	}
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
	for wait > 0 && c.version != packet.V5 && c.pause(wait) { // then another connection may have been quicker
		wait = q.take(c.g.now())
	}
	if wait > 0 {
		return &packet.Error{Code: packet.QuotaExceeded, Detail: "more messages than the client may publish"}
	}
	return nil
}

// pause keeps the reader from reading for a while, or until the connection ends. It reports whether the time has passed.
func (c *conn) pause(d time.Duration) bool {
	over := false
	timer := time.AfterFunc(d, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		over = true
		c.wake()
	})
	defer timer.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for !over && c.why == nil && !c.out.broken {
		c.wait()
	}
	return over
}

// store hands an event to the stream that its mapping sends it to, as Publisher.Publish does.
func (g *Gateway) store(ctx context.Context, m *TopicMapping, rec *event.Record, done func(error)) error {
	switch {
	case m == nil:
		return g.opts.Publisher.Publish(ctx, g.opts.Bus, rec, done)
	case !m.Down:
		err := g.opts.Publisher.Publish(ctx, g.busNamed(m.Bus), rec, done)
		if err == nil && rec.MQTT.Sparkplug != nil {
			g.births.keep(ctx, rec)
		}
		return err
	case g.opts.Down == nil:
		return fault.New(fault.Unavailable, "messages to devices are not kept here")
	case m.device != nil:
		return g.publishCommand(ctx, m, rec, done)
	}
	return g.opts.Down.Publish(ctx, rec, done)
}

// feedFor returns the feed that a mapping sends events to; nil if nobody is served from there.
func (g *Gateway) feedFor(m *TopicMapping) *feed { return g.feeds.named(g.streamOf(m)) }

// streamOf names the bus that a mapping sends events to (nil = the gateway's own), or DOWN.
func (g *Gateway) streamOf(m *TopicMapping) string {
	switch {
	case m == nil:
		return g.opts.Bus
	case m.Down:
		return DownlinkStream
	}
	return g.busNamed(m.Bus)
}

// busNamed is the bus that a document calls by a name.
func (g *Gateway) busNamed(name string) string {
	if name == DefaultBus {
		return g.opts.Bus
	}
	return name
}

func conversionError(err error) error {
	code := packet.PayloadFormatInvalid
	var bad *event.Error
	if errors.As(err, &bad) && bad.TooLarge {
		code = packet.QuotaExceeded
	}
	return &packet.Error{Code: code, Detail: err.Error()}
}

func (g *Gateway) checkTopic(topic string) error {
	switch {
	case topic == "$SYS" || strings.HasPrefix(topic, "$SYS/"):
		return &packet.Error{Code: packet.NotAuthorized, Detail: "topics below $SYS are the server's"}
	case topic == "$sparkplug" || strings.HasPrefix(topic, "$sparkplug/"):
		return &packet.Error{Code: packet.NotAuthorized, Detail: "topics below $sparkplug are the server's"}
	case len(topic) > g.limits.MaxTopic || strings.Count(topic, "/") >= g.limits.MaxLevels:
		return &packet.Error{Code: packet.TopicNameInvalid, Detail: fmt.Sprintf("topic has more than %d bytes or %d levels", g.limits.MaxTopic, g.limits.MaxLevels)}
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
	if p.Retain && c.version == packet.V5 && c.g.opts.Retained == nil {
		return &packet.Error{Code: packet.RetainNotSupported, Detail: "retained messages are not kept"} // CONNACK has said so
	}
	pub := &publication{c: c, id: p.PacketID, qos: p.QoS, dup: p.Dup, size: len(body) + overhead}
	if fresh, err := c.expect(pub); err != nil || !fresh {
		return err
	}
	if err := c.admitPublish(topic, p.Retain); err != nil {
		c.g.metrics.published(p.QoS, resultRefused)
		pub.finish(err)
		return nil
	}
	maps := c.g.opts.Mappings
	maps.mu.RLock()
	defer maps.mu.RUnlock()
	mapping := maps.find(topic)
	in := &incoming{topic: topic, payload: p.Payload, qos: p.QoS, retain: p.Retain, props: passedOn(p.Properties)}
	rec, err := c.g.eventOf(c.key, c.version, c.source, in, mapping)
	if err == nil && p.Retain {
		err = c.g.checkRetain(topic, rec)
	}
	if err != nil {
		c.g.metrics.published(p.QoS, resultRefused)
		pub.finish(err)
		return nil
	}
	if p.QoS == 2 && rec.Minted {
		rec.Event.ID = exactID(c.session.epoch, p.PacketID, pub.receipt.use)
		rec.Minted = c.g.feedFor(mapping) != nil // what is not read after a crash the bus has to deduplicate by its id
	}
	if err := c.g.store(c.g.life, mapping, rec, pub.done); err != nil {
		pub.done(err)
	}
	return nil
}

// checkRetain refuses a retained message for which there is no place.
func (g *Gateway) checkRetain(topic string, rec *event.Record) error {
	if g.opts.Retained == nil || emptied(rec) {
		return nil
	}
	v := g.opts.Retained
	full, err := v.full(topic, g.limits.MaxRetained)
	if full && err == nil {
		if err = v.sweep(g.now()); err == nil {
			full, err = v.full(topic, g.limits.MaxRetained)
		}
	}
	if err != nil {
		g.log.Error("retained messages cannot be read", "err", err)
	}
	if full {
		return &packet.Error{Code: packet.QuotaExceeded, Detail: "too many retained messages"}
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
	if pub.qos < 2 {
		c.mu.Lock()
		defer c.mu.Unlock()
		return true, c.book(pub)
	}
	s := c.session
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.received[pub.id]
	if known != nil && known.doubtful && !pub.dup {
		known = nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if known != nil {
		pub.receipt, pub.repeated, pub.settled = known, true, known.settled
		if !pub.settled {
			known.repeats = append(known.repeats, pub)
		}
		c.uplink.acks = append(c.uplink.acks, pub)
		c.acknowledge()
		return false, nil
	}
	if len(s.received) >= maxReceived {
		return false, &packet.Error{Code: packet.ReceiveMaximumExceeded, Detail: "too many QoS 2 messages without PUBREL"}
	}
	if err := c.book(pub); err != nil {
		return false, err
	}
	if s.received == nil {
		s.received = map[uint16]*receipt{}
	}
	s.uses++
	pub.receipt = &receipt{use: s.uses, by: c}
	s.received[pub.id] = pub.receipt
	if s.durable() {
		pub.generation = c.g.recorder.begin()
	}
	return true, nil
}

// maxReceived bounds the QoS 2 ids of a session: 3.1.1 clients know of no receive maximum.
const maxReceived = 4096

// book puts a publication into the window. mu is held.
func (c *conn) book(pub *publication) error {
	u := &c.uplink
	if pub.qos > 0 {
		// ready has waited until there was room for another acknowledgement, so only PUBRELs can be missing here.
		if c.version == packet.V5 && len(u.acks)-u.sent+u.held >= c.g.limits.ReceiveMaximum {
			return &packet.Error{Code: packet.ReceiveMaximumExceeded, Detail: "more messages than the receive maximum"}
		}
		u.acks = append(u.acks, pub)
	}
	u.bytes += pub.size
	return nil
}

// exactID is the id of a QoS 2 event: session epoch, packet id, use count. It is the same whenever the client sends the
// message again, and after a crash it tells which message of which session an event is.
func exactID(epoch uint64, id uint16, use uint64) string {
	b := make([]byte, 0, 40)
	b = hex.AppendEncode(b, binary.BigEndian.AppendUint64(nil, epoch))
	b = strconv.AppendUint(append(b, '-'), uint64(id), 10)
	return string(strconv.AppendUint(append(b, '-'), use, 10))
}

// parseExactID is the inverse of exactID.
func parseExactID(s string) (epoch uint64, id uint16, use uint64, ok bool) {
	head, rest, _ := strings.Cut(s, "-")
	middle, tail, _ := strings.Cut(rest, "-")
	e, err1 := strconv.ParseUint(head, 16, 64)
	i, err2 := strconv.ParseUint(middle, 10, 16)
	u, err3 := strconv.ParseUint(tail, 10, 64)
	if errors.Join(err1, err2, err3) != nil || i == 0 || s != exactID(e, uint16(i), u) {
		return 0, 0, 0, false
	}
	return e, uint16(i), u, true
}

// done is called with the outcome of a publication, from the log's committer or from the reader. It does not block.
func (p *publication) done(err error) {
	if err == nil {
		p.c.g.metrics.published(p.qos, resultStored)
	} else {
		p.c.g.metrics.published(p.qos, resultFailed)
		if !errors.Is(err, context.Canceled) {
			p.c.g.log.Warn("publish not stored", "clientId", p.c.key.clientID, "err", err)
		}
	}
	p.finish(err)
}

// finish settles a publication, one with QoS 2 after its id is recorded.
func (p *publication) finish(err error) {
	if p.qos < 2 {
		p.settle(err)
		return
	}
	s, rc := p.c.session, p.receipt
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.generation > 0 {
		defer p.c.g.recorder.finish(p.generation)
	}
	if err != nil {
		if s.received[p.id] == rc {
			delete(s.received, p.id)
		}
		p.settleAll(err)
		return
	}
	rc.stored = true
	if !s.durable() || s.ended {
		p.settleAll(nil)
		return
	}
	s.record(&record{kind: recordReceived, id: p.id, uses: rc.use}, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		p.settleAll(nil)
	})
}

// settleAll settles a QoS 2 publication and those that repeat it. The session's mu is held.
func (p *publication) settleAll(err error) {
	p.receipt.settled = true
	p.settle(err)
	for _, again := range p.receipt.repeats {
		again.settle(err)
	}
	p.receipt.repeats = nil
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
	case fault.Unfit:
		return packet.PayloadFormatInvalid
	case fault.Invalid, fault.Unsupported, fault.NotFound, fault.Conflict:
		return packet.ImplementationError
	}
	return packet.UnspecifiedError
}

// settle notes the outcome, nil for stored, and acknowledges what is due.
func (p *publication) settle(err error) {
	c := p.c
	c.mu.Lock()
	defer c.mu.Unlock()
	p.settled = true
	if err != nil {
		p.code, p.detail = refusalCode(err), detailOf(err)
	}
	if !p.repeated {
		c.uplink.bytes -= p.size
	}
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
		if p.code.Failed() && c.version != packet.V5 {
			c.endLocked(p.code) // 3.1.1 has no way to refuse, and an acknowledgement would be a lie
			return
		}
		kind := packet.TypePuback
		if p.qos == 2 {
			kind = packet.TypePubrec
			if !p.repeated && !p.code.Failed() {
				u.held++
			}
		}
		c.queue(&packet.Ack{Kind: kind, PacketID: p.id, Code: p.code, Properties: c.because(p.detail)})
		u.acks[u.sent] = nil
		u.sent++
	}
	switch {
	case u.sent == len(u.acks):
		u.acks, u.sent = u.acks[:0], 0
		if cap(u.acks) > 64 {
			u.acks = nil
		}
	case u.sent >= 64 && u.sent*2 >= len(u.acks):
		n := copy(u.acks, u.acks[u.sent:])
		clear(u.acks[n:])
		u.acks, u.sent = u.acks[:n], 0
	}
}

// takePubrel frees the id of a QoS 2 message, and says so once that is recorded.
func (c *conn) takePubrel(first byte, body []byte) error {
	var p packet.Ack
	if err := p.Decode(first, body, c.version); err != nil {
		return err
	}
	s := c.session
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := packet.Ack{Kind: packet.TypePubcomp, PacketID: p.PacketID}
	switch known := s.received[p.PacketID]; {
	case known == nil:
		answer.Code = packet.PacketIDNotFound
	case !known.settled:
		return &packet.Error{Code: packet.ProtocolError, Detail: "PUBREL before the PUBREC"}
	default:
		delete(s.received, p.PacketID)
		if known.by == c {
			c.mu.Lock()
			c.uplink.held--
			c.mu.Unlock()
		}
	}
	// Also when the id is not known: its release may be on its way to the log, and the client would use the id again.
	c.afterRecord(&record{kind: recordReleased, id: p.PacketID}, func() { c.send(&answer) })
	return nil
}
