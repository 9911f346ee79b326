// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// will is a message that is published when the connection ends otherwise than by a normal DISCONNECT.
type will struct {
	incoming
	delay uint32 // seconds
}

// size is how many bytes a will takes, about.
func (w *will) size() int { return 512 + len(w.topic) + len(w.payload) + len(w.props) }

// parting is a will on its way to its bus. Until its fate is known it stands in the records of its session: after a kill the next
// process publishes it, once more if need be.
type parting struct {
	s        *session
	will     *will
	recorded bool          // it stands in SESSIONS
	known    chan struct{} // closed when its fate is

	last  bool // guarded by lateWills.mu; its client is back: it does not wait any more
	tried bool // guarded by lateWills.mu; after it has waited
}

// part sends the will on its way. The caller hands it to the log. mu is held.
func (s *session) part() *parting {
	s.parting = &parting{s: s, will: s.will, recorded: s.recorded, known: make(chan struct{})}
	s.will = nil
	return s.parting
}

// partIfDue is part if the delay of the will of an away session has passed; else it returns nil. mu is held.
func (s *session) partIfDue(now time.Time) *parting {
	if s.will == nil || s.due.IsZero() || now.Before(s.due) {
		return nil
	}
	return s.part()
}

// parted is called when the fate of the will on its way is known.
func (s *session) parted() {
	s.mu.Lock()
	p := s.parting
	s.parting = nil
	if s.ended {
		s.recordEnd()
	} else {
		s.changed()
	}
	s.mu.Unlock()
	close(p.known)
	if s.g.recorder.ended() {
		s.g.dropEnded()
	}
}

// anyWill is the will that is not published yet, as far as is known; nil = none. mu is held.
func (s *session) anyWill() *will {
	if s.parting != nil {
		return s.parting.will
	}
	return s.will
}

// awaitWill waits until the fate of a will on its way is known; one that waits for its bus is tried a last time. A client is not told
// that it is connected before that: the next process might publish the will after what the client publishes now.
func (c *conn) awaitWill(s *session) error {
	s.mu.Lock()
	p, recorded := s.parting, s.recorded
	s.mu.Unlock()
	if p == nil || !recorded {
		return nil
	}
	if c.g.late.take(p) {
		c.g.publishWill(s)
	}
	timer := time.NewTimer(c.g.limits.ConnectTimeout)
	defer timer.Stop()
	select {
	case <-p.known:
		return nil
	case <-c.g.life.Done():
		return context.Cause(c.g.life)
	case <-timer.C:
		c.g.late.release(p)
		return errors.New("the will of the last connection is not stored yet")
	}
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
	c.mu.Lock()
	defer c.mu.Unlock()
	w.by = c.who
	c.will = w
	return nil
}

// keepWill has a will that comes later judged by what the client has shown last, with AUTH. The session's mu is held.
func (c *conn) keepWill() {
	s := c.session
	c.mu.Lock()
	who := c.who
	c.mu.Unlock()
	if s.will == nil || s.will.by == who {
		return
	}
	w := *s.will // what it was may be on its way to SESSIONS
	w.by, s.will = who, &w
	if s.recorded {
		s.record(s.whole(), nil)
	}
}

// publishWill is storeWill for a will that comes later than the end of its connection: the rights may be others by now.
func (g *Gateway) publishWill(s *session) {
	s.mu.Lock()
	w := s.parting.will
	s.mu.Unlock()
	if g.mayWill(s.key, w) {
		g.storeWill(s)
		return
	}
	g.refuseWill(s.key, w)
	s.parted()
}

// mayWill reports whether the client of a will, which is away, may publish it now. One that may not even connect may not.
func (g *Gateway) mayWill(k sessionKey, w *will) bool {
	by := w.by
	if by == nil {
		by = &identity{principal: k.principal}
	}
	s, why := g.opts.Directory.standing(by, k.clientID)
	if why != "" {
		return false
	}
	who := s.subject(by, k.clientID)
	if !s.access.mayConnect(&who) {
		return false
	}
	r, err := s.access.grant(&who)
	return err == nil && r.mayWill(w.topic, w.retain)
}

func (g *Gateway) refuseWill(k sessionKey, w *will) {
	g.metrics.published(w.qos, resultRefused)
	g.log.Warn("will is not allowed any more", "clientId", k.clientID)
}

// storeWill hands the will that is on its way to the log, or has it wait if its bus is behind with wills.
func (g *Gateway) storeWill(s *session) {
	s.mu.Lock()
	p, version := s.parting, s.version
	s.mu.Unlock()
	w := p.will
	mappings := g.opts.Mappings
	mappings.mu.RLock()
	defer mappings.mu.RUnlock()
	mapping := mappings.find(w.topic)
	bus := g.streamOf(mapping)
	if g.late.join(bus, p) {
		return
	}
	rec, err := g.eventOf(s.key, version, event.MQTTSource(g.opts.Name, s.key.clientID), &w.incoming, mapping)
	if err != nil {
		g.willDone(s, w.qos, err)
		s.parted()
		return
	}
	settled := g.handOver(p)
	done := func(err error) {
		defer settled()
		if err != nil && passing(err) && g.late.add(bus, p, err) {
			return
		}
		g.willDone(s, w.qos, err)
		s.parted()
	}
	// The gateway may be stopping, and then above all the will is due.
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	if err := g.store(ctx, mapping, rec, done); err != nil {
		done(err)
	}
}

// handOver notes a will that the log gets, until it has said what became of it.
func (g *Gateway) handOver(p *parting) (settled func()) {
	known := make(chan struct{})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wills[p] = known
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.wills[p] == known { // else it is tried again already
			delete(g.wills, p)
		}
		close(known)
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
