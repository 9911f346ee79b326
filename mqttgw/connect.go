// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// refusal is a CONNECT that is answered by a CONNACK with a failure.
type refusal struct {
	code packet.Reason
	v3   packet.Reason // return code of 3.1.1
	why  string        // label of the refused metric
}

func (r *refusal) Error() string { return "connect refused: " + r.why }

// The return codes of 3.1.1 (section 3.2.2.3).
const (
	v3Version     packet.Reason = 1
	v3ClientID    packet.Reason = 2
	v3Unavailable packet.Reason = 3
	v3Credentials packet.Reason = 4
	v3Forbidden   packet.Reason = 5
)

// connect takes the CONNECT and answers it. It reports whether the connection is established; if not, it has counted
// why and left finish the rest.
func (c *conn) connect() bool {
	if !c.setDeadline(time.Now().Add(c.g.limits.ConnectTimeout)) {
		return false
	}
	first, body, err := c.in.Next(c.g.limits.MaxConnect)
	if err != nil {
		c.connectFailed(err)
		return false
	}
	var p packet.Connect
	if packet.TypeOf(first) != packet.TypeConnect {
		c.g.metrics.refused(refusedMalformed)
		return false
	}
	if err := p.Decode(first, body, 0); err != nil {
		c.connectFailed(err)
		return false
	}
	c.version = p.Version
	answer, err := c.accept(&p)
	if err != nil {
		c.refuseConnect(err)
		return false
	}
	if !c.takeOver() {
		c.refuseConnect(&refusal{packet.ServerBusy, v3Unavailable, refusedTimeout})
		return false
	}
	c.setDeadline(time.Time{})
	present, err := c.openSession(&p)
	if err != nil {
		c.refuseConnect(err)
		return false
	}
	c.reconsider() // a change may have come between the answer of the directory and the claim
	c.mu.Lock()
	who := c.who
	c.mu.Unlock()
	c.awaitExpiry(who)
	c.established = true
	c.g.gate.establish(c.addr)
	c.g.metrics.connections.Inc()
	answer.SessionPresent = present
	c.attach(answer)
	c.announceConnected(who)
	c.g.log.Debug("connected", "clientId", c.key.clientID, "principal", c.key.principal, "address", c.addr.String(), "version", int(c.version))
	return true
}

// setDeadline sets the deadline of the socket, unless the connection is to end already.
func (c *conn) setDeadline(t time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why != nil {
		return false
	}
	if err := c.nc.SetDeadline(t); err != nil {
		c.g.log.Debug("set deadline", "err", err)
		return false
	}
	return true
}

// connectFailed is for what came instead of a CONNECT. Only an unknown version can be answered.
func (c *conn) connectFailed(err error) {
	var refused *packet.Error
	switch {
	case errors.As(err, &refused) && refused.Code == packet.UnsupportedVersion && refused.Level > 0:
		c.version = packet.V311
		if refused.Level > byte(packet.V5) {
			c.version = packet.V5
		}
		c.refuseConnect(&refusal{packet.UnsupportedVersion, v3Version, refusedVersion})
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.g.metrics.refused(refusedTimeout)
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
	default:
		c.g.metrics.refused(refusedMalformed)
		c.g.log.Debug("no connect", "address", c.addr.String(), "err", err)
	}
}

// refuseConnect sends a CONNACK with a failure and ends the connection.
func (c *conn) refuseConnect(err error) {
	r := &refusal{packet.UnspecifiedError, v3Unavailable, refusedMalformed}
	var broken *packet.Error
	if !errors.As(err, &r) && errors.As(err, &broken) {
		r = &refusal{broken.Code, v3Unavailable, refusedMalformed}
	}
	c.g.metrics.refused(r.why)
	c.g.log.Debug("connect refused", "address", c.addr.String(), "reason", r.why)
	code := r.code
	if c.version != packet.V5 {
		code = r.v3
	}
	c.send(&packet.Connack{Code: code})
	c.end(packet.UnspecifiedError)
}

// accept checks a CONNECT, sets what the connection takes from it, and returns the CONNACK.
func (c *conn) accept(p *packet.Connect) (*packet.Connack, error) {
	ack := &packet.Connack{}
	id := string(p.ClientID)
	switch {
	case len(id) > c.g.limits.MaxClientID:
		return nil, &refusal{packet.ClientIDInvalid, v3ClientID, refusedClientID}
	case id == "" && p.Version != packet.V5 && !p.CleanStart:
		return nil, &refusal{packet.ClientIDInvalid, v3ClientID, refusedClientID} // MQTT-3.1.3-8 of 3.1.1
	case id == "":
		id = "auto-" + strings.ToLower(rand.Text())
		ack.Properties = ack.Properties.AppendString(packet.AssignedClientID, id)
	}
	who, err := c.authorize(p, id)
	if err != nil {
		return nil, err
	}
	if _, c.enhanced = p.Properties.Find(packet.AuthenticationMethod); c.enhanced {
		ack.Properties = ack.Properties.AppendString(packet.AuthenticationMethod, tokenMethod)
	}
	c.since = c.g.now().UnixNano()
	c.key = sessionKey{principal: who.principal, clientID: id}
	c.source = event.MQTTSource(c.g.opts.Name, id)
	if err := c.takeWill(p); err != nil {
		return nil, err
	}
	if n := p.Properties.Int(packet.MaximumPacketSize, 0); n > 0 {
		c.maxPacket = int(min(n, 1<<28))
	}
	c.tellWhy = p.Properties.Int(packet.RequestProblemInfo, 1) == 1
	asked := p.Properties.Int(packet.SessionExpiry, 0)
	c.expiring = asked > 0
	c.aliasMax = uint16(min(p.Properties.Int(packet.TopicAliasMaximum, 0), uint32(c.g.limits.MaxTopicAlias)))
	keepAlive := time.Duration(p.KeepAlive) * time.Second
	if most := c.g.limits.MaxKeepAlive; most > 0 && p.Version == packet.V5 && (keepAlive == 0 || keepAlive > most) {
		keepAlive = most
		ack.Properties = ack.Properties.AppendInt(packet.ServerKeepAlive, uint32(most/time.Second))
	}
	c.keepAlive = keepAlive * 3 / 2
	if p.Version == packet.V5 {
		ack.Properties = c.announce(ack.Properties, asked)
		if p.Properties.Int(packet.RequestResponseInfo, 0) == 1 && packet.ValidTopic([]byte(id)) {
			ack.Properties = ack.Properties.AppendString(packet.ResponseInfo, responsePrefix+id)
		}
	}
	return ack, nil
}

// responsePrefix is where a client that asks for it is told to have responses sent: below response/<client id>.
const responsePrefix = "response/"

// announce appends what an MQTT 5 client has to know. asked is the session expiry that it asks for.
func (c *conn) announce(ps packet.Properties, asked uint32) packet.Properties {
	expiry := c.g.limits.sessionExpiry(asked)
	if c.g.recorder == nil {
		expiry = 0 // sessions end with the connection
	}
	if expiry != asked {
		ps = ps.AppendInt(packet.SessionExpiry, expiry)
	}
	ps = ps.AppendInt(packet.ReceiveMaximum, uint32(c.g.limits.ReceiveMaximum)).
		AppendInt(packet.MaximumPacketSize, uint32(c.g.limits.MaxPacket)).
		AppendInt(packet.TopicAliasMaximum, uint32(c.g.limits.MaxTopicAlias))
	if c.g.opts.Retained == nil {
		ps = ps.AppendInt(packet.RetainAvailable, 0)
	}
	return ps
}

// authorize finds out who the client is and what it may do.
func (c *conn) authorize(p *packet.Connect, id string) (*identity, error) {
	who, why := c.identify(p, id)
	if why == "" {
		why = c.judge(who, id)
	}
	if why == "" {
		return who, nil
	}
	c.authFailed(why, id)
	code, v3 := packet.BadUserOrPassword, v3Credentials
	switch why {
	case authClientID:
		code, v3 = packet.ClientIDInvalid, v3ClientID
	case authBusy:
		code, v3 = packet.ServerBusy, v3Unavailable
	case authBlocked:
		code, v3 = packet.ConnectionRateExceeded, v3Unavailable
	case authBanned:
		code, v3 = packet.Banned, v3Forbidden
	case authMissing, authCertificate, authRights:
		code, v3 = packet.NotAuthorized, v3Forbidden
	case authMethod:
		code, v3 = packet.BadAuthenticationMethod, v3Forbidden
	}
	return nil, &refusal{code, v3, refusedAuth}
}

// takeOver ends the connection that holds the client id and waits until its session has ended, so that its will is in
// the log before anything of the new one. If that takes too long, because the old one waits for the log, it keeps the client id.
func (c *conn) takeOver() bool {
	old := c.g.claim(c)
	if old == nil {
		return true
	}
	timer := time.NewTimer(c.g.limits.ConnectTimeout)
	defer timer.Stop()
	for ; old != nil; old = c.g.heldBefore(c) {
		old.end(packet.SessionTakenOver)
		select {
		case <-old.whenDetached():
			continue
		case <-c.g.life.Done():
		case <-timer.C:
		}
		c.g.release(c)
		return false
	}
	return true
}

// expiryOf is how long the session is to outlive the connection.
func (c *conn) expiryOf(p *packet.Connect) uint32 {
	switch {
	case c.g.recorder == nil:
		return 0
	case c.version == packet.V5:
		return c.g.limits.sessionExpiry(p.Properties.Int(packet.SessionExpiry, 0))
	case p.CleanStart:
		return 0
	}
	return c.g.limits.sessionExpiry(never)
}

// openSession finds the session of the client, or makes one, and has it written down. present reports whether it was
// there. The connection holds the client id, so nobody else does this for it.
func (c *conn) openSession(p *packet.Connect) (present bool, err error) {
	s := c.g.sessionOf(c.key)
	expiry := c.expiryOf(p)
	var away awayState
	if s != nil && !p.CleanStart && c.g.resumable(s) {
		away, present = c.comeBack(s)
	}
	if s != nil && !present {
		c.g.endSession(s)
		if err := c.awaitEnd(s); err != nil {
			c.g.log.Warn("end of a session not written down", "clientId", c.key.clientID, "err", err)
			return false, &refusal{packet.ServerUnavailable, v3Unavailable, refusedSessions}
		}
	}
	if !present {
		if expiry > 0 && c.g.keptSessions() >= c.g.limits.MaxSessions {
			return false, &refusal{packet.QuotaExceeded, v3Unavailable, refusedSessions}
		}
		s = c.g.newSession(c.key)
	}
	if err = c.awaitWill(s); err == nil {
		err = c.writeDown(s, p, expiry)
	}
	if err != nil {
		c.g.log.Warn("session not written down", "clientId", c.key.clientID, "err", err)
		s.mu.Lock()
		if present {
			s.goBack(away)
		} else {
			s.expiry, s.will = 0, nil // nobody was connected, so nobody is missed
			s.park(c.g.now())
		}
		s.mu.Unlock()
		if present {
			c.g.clock.watch(s)
		} else {
			c.g.endSession(s)
		}
		return false, &refusal{packet.ServerUnavailable, v3Unavailable, refusedSessions}
	}
	c.session = s
	c.mu.Lock()
	c.held = s
	c.mu.Unlock()
	return present, nil
}

// comeBack has nothing become due any more in an away session, and returns what is. What is due already, and the clock has not come to,
// is done. present is false if the session has ended at this moment.
func (c *conn) comeBack(s *session) (away awayState, present bool) {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return away, false
	}
	w := s.partIfDue(c.g.now())
	away, s.online = s.awayState(), true
	s.mu.Unlock()
	if w != nil {
		c.g.publishWill(s)
	}
	return away, true
}

// awaitEnd waits until it is written down that a session has ended: CONNACK will say that it is gone, and neither it nor its will
// may be there again after a crash.
func (c *conn) awaitEnd(s *session) error {
	if err := c.awaitWill(s); err != nil {
		return err
	}
	s.mu.Lock()
	if !s.recorded {
		s.mu.Unlock()
		return nil
	}
	done := make(chan struct{})
	s.record(&record{kind: recordEnd}, func() { close(done) })
	s.mu.Unlock()
	return c.g.recorder.await(c.g.life, done)
}

// writeDown sets in a session what CONNECT says, claims it, and waits until it is recorded.
func (c *conn) writeDown(s *session, p *packet.Connect, expiry uint32) error {
	s.mu.Lock()
	s.online, s.version, s.expiry, s.will, s.deadline, s.due = true, c.version, expiry, c.will, time.Time{}, time.Time{}
	s.recovering = nil // the tails have seen everything
	s.maxFlying = min(c.g.limits.MaxInFlight, int(p.Properties.Int(packet.ReceiveMaximum, 65535)))
	s.recorded = s.recorded || c.g.recorder != nil && (expiry > 0 || c.will != nil)
	recorded, fence, claimed := s.recorded, s.fence, s.claimed
	s.mu.Unlock()
	if !recorded {
		return nil
	}
	if expiry > 0 && c.g.opts.Owners != nil && !claimed {
		var err error
		if fence, err = c.g.opts.Owners.Claim(c.g.life, c.key.principal, c.key.clientID); err != nil {
			return err
		}
		claimed = true
	}
	c.g.enrol(s, expiry > 0)
	done := make(chan struct{})
	s.mu.Lock()
	s.fence, s.claimed = fence, claimed
	s.record(s.whole(), func() { close(done) })
	s.mu.Unlock()
	return c.g.recorder.await(c.g.life, done)
}

// attach joins the connection and its session: the CONNACK is the first packet, then comes what is due.
func (c *conn) attach(answer *packet.Connack) {
	s := c.session
	s.mu.Lock()
	defer s.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queueFirst(answer)
	s.conn = c
	s.holder.Store(c)
	s.orders = c.g.commands != nil
	s.resends = len(s.flying)
	for i := range s.flying {
		s.flying[i].resend = true
	}
	c.startWriter()
}
