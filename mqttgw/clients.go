// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"cmp"
	"slices"
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
	LastSeen  time.Time `json:"lastSeen"`         // the last packet, or the end of the connection; within a keep-alive
	Reason    string    `json:"reason,omitempty"` // why it is offline

	// Only while it is online.
	Since         *time.Time `json:"since,omitempty"`
	Via           string     `json:"via,omitempty"` // anonymous, password, certificate, token
	Protocol      string     `json:"protocol,omitempty"`
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
	g.mu.Lock()
	var online []*conn
	var out []Client
	for key, c := range g.sessions {
		if all || key.principal == principal {
			online = append(online, c)
		}
	}
	for key, s := range g.seen {
		if _, ok := g.sessions[key]; !ok && (all || key.principal == principal) {
			out = append(out, Client{Principal: key.principal, ClientID: key.clientID, Address: s.address, LastSeen: s.at, Reason: s.reason})
		}
	}
	g.mu.Unlock()
	for _, c := range online {
		out = append(out, c.describe())
	}
	for i := range out {
		out[i].Device = g.opts.Directory.deviceOf(out[i].Principal, out[i].ClientID)
	}
	slices.SortFunc(out, func(a, b Client) int {
		return cmp.Or(cmp.Compare(a.Principal, b.Principal), cmp.Compare(a.ClientID, b.ClientID))
	})
	return out
}

// Disconnect ends the connections of a principal with a client id, or with any if none is given (MQTT 5: 0x98), and returns
// how many there were. The clients may come back.
func (g *Gateway) Disconnect(principal string, clientID ...string) int {
	g.mu.Lock()
	var found []*conn
	for key, c := range g.sessions {
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
	defer c.mu.Unlock()
	since := c.since
	d := Client{Principal: c.key.principal, ClientID: c.key.clientID, Online: true, Address: c.addr.String(), Since: &since,
		LastSeen: time.Unix(0, c.lastSeen.Load()), Protocol: protocolName(c.version), Subscriptions: filtersOf(c.session.subs),
		InFlight: len(c.session.flying), Queued: len(c.session.waiting), Behind: c.session.behind != 0}
	if c.who != nil {
		d.Via = string(c.who.via)
	}
	return d
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
