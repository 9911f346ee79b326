// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// Client is what the gateway knows of a principal's client id.
type Client struct {
	Principal string    `json:"principal"`
	ClientID  string    `json:"clientId"`
	Device    string    `json:"device,omitempty"` // name of the Device it is, if there is one
	Online    bool      `json:"online"`
	Address   string    `json:"address,omitempty"`
	LastSeen  time.Time `json:"lastSeen,omitzero"` // the last packet, or the end of the connection; within a keep-alive; zero = before the process
	Reason    string    `json:"reason,omitempty"`  // why it is offline

	// Only while it is online, or has a session.
	Since         *time.Time `json:"since,omitempty"`
	Via           string     `json:"via,omitempty"`           // anonymous, password, certificate, token
	Protocol      string     `json:"protocol,omitempty"`      // that of the last connection
	Subscriptions []string   `json:"subscriptions,omitempty"` // filters
	InFlight      int        `json:"inFlight,omitempty"`      // messages that it has not acknowledged
	Queued        int        `json:"queued,omitempty"`        // messages that wait for it, as far as they are counted
	Behind        bool       `json:"behind,omitempty"`        // more wait in the log than are counted
}

// maxSeen bounds the clients that are offline and remembered.
const maxSeen = 100_000

// seen is what is remembered of a client that is gone. It is for people who look, and lost with the process.
type seen struct {
	at      time.Time
	address string
	reason  string
}

// Clients returns the clients of a principal that are online, and those that have been since the process began, ordered by
// client id. all returns those of every principal.
func (g *Gateway) Clients(principal string, all bool) []Client {
	return g.clientsOf(g.keys(func(k sessionKey) bool { return all || k.principal == principal }))
}

// keys returns those of the clients that are, or were, connected.
func (g *Gateway) keys(wanted func(sessionKey) bool) (keys []sessionKey) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key := range g.holders {
		if wanted(key) {
			keys = append(keys, key)
		}
	}
	for key := range g.sessions {
		if _, online := g.holders[key]; !online && wanted(key) {
			keys = append(keys, key)
		}
	}
	for key := range g.seen {
		if g.sessions[key] != nil {
			continue
		}
		if _, online := g.holders[key]; !online && wanted(key) {
			keys = append(keys, key)
		}
	}
	return keys
}

func (g *Gateway) clientsOf(keys []sessionKey) []Client {
	out := make([]Client, 0, len(keys))
	for _, key := range keys {
		g.mu.Lock()
		c, s, kept := g.holders[key], g.seen[key], g.sessions[key]
		g.mu.Unlock()
		d := Client{Principal: key.principal, ClientID: key.clientID, Address: s.address, LastSeen: s.at, Reason: s.reason}
		d.Device = g.opts.Directory.deviceOf(key.principal, key.clientID)
		switch {
		case c != nil:
			d = c.describe()
		case kept != nil:
			kept.describe(&d)
		}
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b Client) int {
		return cmp.Or(cmp.Compare(a.Principal, b.Principal), cmp.Compare(a.ClientID, b.ClientID))
	})
	return out
}

// DeviceStatus is what the gateway knows of the clients that are a device.
type DeviceStatus struct {
	Online  bool     `json:"online"`
	Clients []Client `json:"clients"`
	More    int      `json:"more,omitempty"` // clients that are not listed

	// WaitingCommands are those that were not sent, or wait again. They are counted for a device alone.
	WaitingCommands int `json:"waitingCommands,omitempty"`
}

// How many clients of a device are listed, alone and in a list of devices.
const (
	maxDeviceClients = 1000
	maxBriefClients  = 5
)

// DeviceStatus returns where a device stands; ok is false if no such device is in force. brief says that it is one of many:
// then what is known may be a second old, and few clients are listed.
func (g *Gateway) DeviceStatus(name string, brief bool) (s DeviceStatus, ok bool) {
	d := g.opts.Directory
	d.mu.RLock()
	dev := d.devices[name]
	d.mu.RUnlock()
	if dev == nil {
		return s, false
	}
	most := maxDeviceClients
	var all []Client
	if brief {
		most = maxBriefClients
		all = g.clientsOf(g.presence.of(dev, g))
	} else {
		all = g.Clients(dev.Principal, false)
		s.WaitingCommands = g.commands.waiting(name)
	}
	s.Clients = []Client{}
	for _, c := range all {
		if c.Device != name {
			continue
		}
		s.Online = s.Online || c.Online
		if len(s.Clients) < most {
			s.Clients = append(s.Clients, c)
		} else {
			s.More++
		}
	}
	return s, true
}

// presence is which client ids a principal has, as far as a list needs it.
type presence struct {
	mu   sync.Mutex
	at   time.Time               // guarded by mu; when keys were gathered
	keys map[string][]sessionKey // guarded by mu; by principal
}

// presenceAge is how old it may be. Gathering takes milliseconds for 100,000 clients.
const presenceAge = time.Second

// of returns the clients that may be a device, 2 * maxDeviceClients at most.
func (p *presence) of(dev *Device, g *Gateway) (keys []sessionKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := g.now(); p.keys == nil || now.Sub(p.at) > presenceAge {
		p.at, p.keys = now, map[string][]sessionKey{}
		for _, key := range g.keys(func(sessionKey) bool { return true }) {
			p.keys[key.principal] = append(p.keys[key.principal], key)
		}
	}
	for _, key := range p.keys[dev.Principal] {
		if len(keys) < 2*maxDeviceClients && dev.allowsClientID(key.clientID) {
			keys = append(keys, key)
		}
	}
	return keys
}

// DisconnectDevice ends the connections of the clients that are a device; ok is false if no such device is in force.
func (g *Gateway) DisconnectDevice(name string) (n int, ok bool) {
	d := g.opts.Directory
	d.mu.RLock()
	dev := d.devices[name]
	d.mu.RUnlock()
	if dev == nil {
		return 0, false
	}
	for _, c := range g.Clients(dev.Principal, false) {
		if c.Online && c.Device == name {
			n += g.Disconnect(c.Principal, c.ClientID)
		}
	}
	return n, true
}

// Disconnect ends the connections of a principal with a client id, or with any if none is given (MQTT 5: 0x98), and returns
// how many there were. The clients may come back.
func (g *Gateway) Disconnect(principal string, clientID ...string) int {
	g.mu.Lock()
	var found []*conn
	for key, c := range g.holders {
		if key.principal == principal && (len(clientID) == 0 || slices.Contains(clientID, key.clientID)) {
			found = append(found, c)
		}
	}
	g.mu.Unlock()
	for _, c := range found {
		c.end(packet.AdministrativeAction)
	}
	return len(found)
}

// remember keeps what is known of a client that goes. g.mu is held.
func (g *Gateway) remember(c *conn, reason string) {
	if len(g.seen) >= maxSeen {
		for key := range g.seen { // any: those who have gone are many, and nobody depends on one
			delete(g.seen, key)
			break
		}
	}
	g.seen[c.key] = seen{at: g.now(), address: c.addr.String(), reason: reason}
}

func (c *conn) describe() Client {
	c.mu.Lock()
	since := time.Unix(0, c.since)
	d := Client{Principal: c.key.principal, ClientID: c.key.clientID, Online: true, Address: c.addr.String(), Since: &since,
		LastSeen: time.Unix(0, c.lastSeen.Load()), Protocol: protocolName(c.version)}
	if c.who != nil {
		d.Via = string(c.who.via)
	}
	if c.standing.device != nil {
		d.Device = c.standing.device.Name
	}
	s := c.held
	c.mu.Unlock()
	if s != nil {
		s.describe(&d)
	}
	return d
}

// describe adds what a session knows.
func (s *session) describe(d *Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.Protocol = protocolName(s.version)
	d.Subscriptions = filtersOf(s.subs)
	d.InFlight = len(s.flying)
	for i := range s.at {
		d.Queued += len(s.at[i].waiting)
		d.Behind = d.Behind || s.at[i].behind != 0
	}
}

// deviceOf returns the name of the device that a client is; "" if none is defined.
func (d *Directory) deviceOf(principal, clientID string) string {
	for _, dev := range d.lookup(principal) {
		if dev.allowsClientID(clientID) {
			return dev.Name
		}
	}
	return ""
}

// kin are the connections of each principal, in lists that go through the connections: a map for each of a hundred thousand
// principals that have one connection would be a waste.
type kin map[string]*conn

// kinship is a connection's place in a list.
type kinship struct {
	prev, next *conn
	linked     bool
}

func (k kin) link(c *conn) {
	first := k[c.key.principal]
	c.kin = kinship{next: first, linked: true}
	if first != nil {
		first.kin.prev = c
	}
	k[c.key.principal] = c
}

func (k kin) unlink(c *conn) {
	if !c.kin.linked {
		return
	}
	switch prev, next := c.kin.prev, c.kin.next; {
	case prev != nil:
		prev.kin.next = next
	case next != nil:
		k[c.key.principal] = next
	default:
		delete(k, c.key.principal)
	}
	if c.kin.next != nil {
		c.kin.next.kin.prev = c.kin.prev
	}
	c.kin = kinship{}
}
