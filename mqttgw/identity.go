// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"maps"
	"time"

	"github.com/rialto-bridge/rialto/internal/secret/token"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// way is how a client has shown who it is.
type way string

const (
	viaNothing     way = "anonymous"
	viaPassword    way = "password"
	viaCertificate way = "certificate"
	viaToken       way = "token"
)

// identity is who a client has shown to be. Immutable.
type identity struct {
	via        way
	principal  string // "" = anonymous
	device     string // name of the Device whose password was good; "" for other ways
	policy     string // of the token's issuer; "" = none
	attributes map[string]string
	expires    time.Time // zero = never
}

// unnamed is the identity of clients that have shown none.
var unnamed = &identity{via: viaNothing}

// CertificateName is a place of a certificate in which an identity may stand.
type CertificateName string

// The names, in the order that is used when none is chosen.
const (
	SANURI     CertificateName = "uri"
	SANDNS     CertificateName = "dns"
	CommonName CertificateName = "cn"
)

// CertificateNames is the default order.
func CertificateNames() []CertificateName { return []CertificateName{SANURI, SANDNS, CommonName} }

// certificateIdentity is the first of the names that the certificate has; "" if it has none that could be one.
func certificateIdentity(cert *x509.Certificate, names []CertificateName) string {
	for _, name := range names {
		found := ""
		switch name {
		case SANURI:
			if len(cert.URIs) > 0 {
				found = cert.URIs[0].String()
			}
		case SANDNS:
			if len(cert.DNSNames) > 0 {
				found = cert.DNSNames[0]
			}
		case CommonName:
			found = cert.Subject.CommonName
		}
		if found != "" {
			if len(found) > maxPrincipal {
				return ""
			}
			return found
		}
	}
	return ""
}

// peerCertificate is the verified certificate that the client has shown; nil if it has not.
func (c *conn) peerCertificate() *x509.Certificate {
	s, ok := c.nc.(interface{ ConnectionState() tls.ConnectionState })
	if !ok {
		return nil
	}
	if chains := s.ConnectionState().VerifiedChains; len(chains) > 0 {
		return chains[0][0]
	}
	return nil
}

// tokenMethod is the Authentication Method of MQTT 5 with which a client sends a token, at CONNECT and again later.
const tokenMethod = "JWT"

// identify finds out who the client is. why is "" for success, else a reason of authFailures. It may take as long as a
// password hash and the queue for it.
func (c *conn) identify(p *packet.Connect, clientID string) (id *identity, why string) {
	method, enhanced := p.Properties.Find(packet.AuthenticationMethod)
	if cert := c.peerCertificate(); cert != nil {
		name := certificateIdentity(cert, c.g.opts.CertificateNames)
		switch {
		case enhanced:
			return nil, authMethod // the certificate says it already
		case name == "":
			return nil, authCertificate
		}
		return &identity{via: viaCertificate, principal: name}, ""
	}
	switch {
	case enhanced && string(method.Bytes) != tokenMethod:
		return nil, authMethod
	case enhanced:
		return c.identifyToken(p.Properties.Bytes(packet.AuthenticationData), clientID)
	case p.HasPass && c.g.opts.Directory.issues(p.Password):
		return c.identifyToken(p.Password, clientID)
	case p.HasUser:
		ctx, cancel := context.WithTimeoutCause(c.g.life, authTime, errors.New("too many log-ins at once"))
		defer cancel()
		dev, why := c.g.authenticate(ctx, c.addr, string(p.Username), p.Password, clientID)
		if why != "" {
			return nil, why
		}
		return &identity{via: viaPassword, principal: dev.Principal, device: dev.Name}, ""
	case c.g.opts.Anonymous:
		return unnamed, ""
	}
	return nil, authMissing
}

// identifyToken is identify for a token.
func (c *conn) identifyToken(text []byte, clientID string) (*identity, string) {
	asUser := "\x00" + clientID // which is no device's principal
	if c.g.failures.blocked(c.addr, asUser, c.g.now()) {
		return nil, authBlocked
	}
	issuer, _ := token.IssuerOf(string(text))
	s := c.g.opts.Directory.issuer(issuer)
	err := errNoIssuer
	if s != nil {
		ctx, cancel := context.WithTimeoutCause(c.g.life, authTime, errors.New("the keys of the issuer take too long"))
		defer cancel()
		var id *identity
		if id, err = s.verify(ctx, text, clientID, c.g.now()); err == nil {
			return id, ""
		}
	}
	var keys *token.KeysError
	if errors.As(err, &keys) {
		c.g.log.Warn("tokens cannot be checked", "err", err)
		return nil, authBusy // says nothing about the token
	}
	c.g.failures.note(c.addr, asUser, c.g.now())
	c.g.log.Debug("token refused", "clientId", clientID, "err", err)
	if errors.Is(err, errTokenClientID) {
		return nil, authClientID
	}
	return nil, authToken
}

var errNoIssuer = errors.New("token: no TokenIssuer with this iss")

// standing is what the directory says of a client.
type standing struct {
	device *Device // nil = none
	access *access // nil = everything
	rate   *rateDocument
}

// standing finds what is defined for a client. why is "" if it may connect.
func (d *Directory) standing(id *identity, clientID string) (s standing, why string) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	defined := d.byUser[id.principal]
	for _, dev := range defined {
		if !dev.allowsClientID(clientID) {
			continue
		}
		if dev.Blocked {
			return standing{}, authBanned
		}
		if s.device == nil && id.device == "" || dev.Name == id.device {
			s.device = dev
		}
	}
	switch {
	case id.device != "" && s.device == nil:
		return standing{}, authBanned // deleted, or given to another principal
	case len(defined) > 0 && s.device == nil:
		return standing{}, authClientID
	}
	name := id.policy
	if s.device != nil {
		s.access, s.rate = s.device.access, s.device.rate
		if s.device.policy != "" {
			name = s.device.policy
		}
	}
	p := d.policies[DefaultPolicy]
	if name != "" {
		if p = d.policies[name]; p == nil {
			p = nothing
		}
	}
	if p != nil && s.access == nil {
		s.access = p.access
	}
	if p != nil && s.rate == nil {
		s.rate = p.rate
	}
	if id.via == viaCertificate && (s.device == nil || len(s.device.ClientIDs) == 0) && (s.access == nil || s.access.connect == nil) &&
		clientID != id.principal {
		return standing{}, authClientID // a certificate is for one client, unless somebody says otherwise
	}
	return s, ""
}

// nothing stands in for a policy that is named and not there.
var nothing = &Policy{access: &access{}}

// judge puts in force what the directory says of an identity. why is "" if the client may be connected. It is called by
// the reader, and by Directory.Enforce once the connection holds its client id.
func (c *conn) judge(id *identity, clientID string) (why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.judgeLocked(id, clientID)
}

// judgeLocked is judge with mu held, so that of two judgements at the same time the one that holds has asked the directory last.
func (c *conn) judgeLocked(id *identity, clientID string) (why string) {
	s, why := c.g.opts.Directory.standing(id, clientID)
	if why != "" {
		return why
	}
	if c.who == id && c.standing == s {
		return ""
	}
	who := s.subject(id, clientID)
	if !s.access.mayConnect(&who) {
		return authClientID
	}
	r, err := s.access.grant(&who)
	var unfit *unfitError
	switch {
	case errors.As(err, &unfit) && unfit.name == varClientID:
		return authClientID
	case err != nil:
		c.g.log.Debug("no rights for a client", "clientId", clientID, "principal", id.principal, "err", err)
		return authRights
	}
	c.limit(&s, &who)
	c.rights.Store(r)
	c.who, c.standing = id, s
	return ""
}

// subject is who rights are asked for. What a Device says counts more than what the client has shown.
func (s *standing) subject(id *identity, clientID string) subject {
	who := subject{principal: id.principal, clientID: clientID, attributes: id.attributes}
	if s.device != nil && len(s.device.attributes) > 0 {
		who.attributes = make(map[string]string, len(id.attributes)+len(s.device.attributes))
		maps.Copy(who.attributes, id.attributes)
		maps.Copy(who.attributes, s.device.attributes)
	}
	return who
}

// limit puts the quota of a standing in force. A connection that has ended needs none. mu is held.
func (c *conn) limit(s *standing, who *subject) {
	old := c.quota.Load()
	var q *quota
	if s.rate != nil && !c.detached {
		q = c.g.quotas.hold(newQuotaKey(s, who), c.g.now())
	}
	c.quota.Store(q)
	c.g.quotas.drop(old, c.g.now())
}

// reconsider is judge for a connection that has been judged before. It ends it if it may not stay.
func (c *conn) reconsider() {
	c.mu.Lock()
	id := c.who
	why := c.judgeLocked(id, c.key.clientID)
	c.mu.Unlock()
	if why != "" {
		c.g.log.Info("client may not stay", "clientId", c.key.clientID, "principal", c.key.principal, "reason", why)
		c.end(packet.AdministrativeAction)
		return
	}
	c.lookAgain()
}

// lookAgain has the writer look for commands: what the client may receive may be more than before.
func (c *conn) lookAgain() {
	if c.g.commands.waitsFor(c) {
		c.wakeOrders()
	}
}

// awaitExpiry ends the connection when its identity does. It is called by the reader.
func (c *conn) awaitExpiry(id *identity) {
	if c.expiry != nil {
		c.expiry.Stop()
		c.expiry = nil
	}
	if !id.expires.IsZero() {
		c.expiry = time.AfterFunc(id.expires.Sub(c.g.now()), func() { c.end(packet.MaximumConnectTime) })
	}
}

// takeAuth is for AUTH, with which a client that has connected with a token shows a new one (MQTT 5 section 4.12.1).
func (c *conn) takeAuth(first byte, body []byte) error {
	var p packet.Disconnect
	if err := p.Decode(first, body, c.version); err != nil {
		return err
	}
	if !c.enhanced {
		return &packet.Error{Code: packet.ProtocolError, Detail: "AUTH without an authentication method in CONNECT"}
	}
	if string(p.Properties.Bytes(packet.AuthenticationMethod)) != tokenMethod {
		return &packet.Error{Code: packet.ProtocolError, Detail: "another method than in CONNECT"}
	}
	if p.Code != packet.ReAuthenticate {
		return &packet.Error{Code: packet.ProtocolError, Detail: "AUTH that is not asked for"}
	}
	id, why := c.identifyToken(p.Properties.Bytes(packet.AuthenticationData), c.key.clientID)
	if why == "" && id.principal != c.key.principal {
		why = authToken
	}
	if why == "" {
		why = c.judge(id, c.key.clientID)
	}
	if why != "" {
		c.authFailed(why, c.key.clientID)
		return &packet.Error{Code: packet.NotAuthorized, Detail: "the token does not let this client stay"}
	}
	c.awaitExpiry(id)
	c.lookAgain()
	c.send(&packet.Disconnect{Kind: packet.TypeAuth, Properties: packet.Properties(nil).AppendString(packet.AuthenticationMethod, tokenMethod)})
	return nil
}
