// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Selection says which devices a broadcast is for: those that are listed, or those for which everything else holds that
// is there. They are Devices that are defined and, but for labels, clients that have been connected or have a session; a
// client that is a Device counts as that Device, so that it gets one command. In a list that is so if the Device is in it too; a
// client id alone stands for the client.
type Selection struct {
	Devices  []string          `json:"devices,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`   // of the Device
	ClientID string            `json:"clientId,omitempty"` // the name of a Device, a client id that it is known by or that stands in its definition, or that of a client without Device; * stands for any text
	Online   bool              `json:"online,omitempty"`
	All      bool              `json:"all,omitempty"` // there is no condition on purpose
}

func (s *Selection) check(complain complaint) {
	size := 0
	for _, d := range s.Devices {
		size += len(d)
	}
	conditions := len(s.Labels) > 0 || s.ClientID != "" || s.Online
	switch {
	case len(s.Devices) > maxListed || size > maxListedBytes:
		complain("/devices", "must be at most %d, and %d bytes together", maxListed, maxListedBytes)
	case len(s.Devices) > 0 && (len(s.Labels) > 0 || s.ClientID != "" || s.All):
		complain("/devices", "stands alone, or beside online")
	case len(s.Devices) == 0 && !conditions && !s.All:
		complain("", "must say which devices: devices, labels, clientId, online, or all")
	case s.All && conditions:
		complain("/all", "stands alone")
	}
	if len(s.ClientID) > maxPrincipal || len(s.Labels) > maxLabels {
		complain("/clientId", "must be at most %d bytes, and labels at most %d", maxPrincipal, maxLabels)
	}
}

// distinct is a list of devices without the client ids of Devices that are in it as well, since both are mailboxes of one client. A
// client id that others use too stays.
func (g *Gateway) distinct(list []string) []string {
	listed := make(map[string]bool, len(list))
	for _, name := range list {
		listed[name] = true
	}
	users := g.users(func(clientID string) bool { return listed[clientID] })
	return slices.DeleteFunc(slices.Clone(list), func(clientID string) bool {
		all := users[clientID]
		return len(all) > 0 && !slices.ContainsFunc(all, func(device string) bool { return device == "" || !listed[device] })
	})
}

// users are the Devices that have one of some client ids, by what is defined and by who is, or was, connected; "" is among them for a
// client that is no Device.
func (g *Gateway) users(wanted func(clientID string) bool) map[string][]string {
	users, d := map[string][]string{}, g.opts.Directory
	for _, key := range g.keys(func(key sessionKey) bool { return wanted(key.clientID) }) {
		users[key.clientID] = append(users[key.clientID], d.addresses(key)[0])
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	for name, dev := range d.devices {
		for _, id := range dev.ClientIDs {
			if !strings.Contains(id, "*") && wanted(id) {
				users[id] = append(users[id], name)
			}
		}
	}
	for id := range users {
		if d.devices[id] != nil { // its name, whoever uses it as a client id
			delete(users, id)
		}
	}
	return users
}

// selected returns the devices of a selection above a name, in the order of names.
func (g *Gateway) selected(s *Selection, after string) []string {
	found := map[string]bool{}
	for _, name := range s.Devices {
		found[name] = true
	}
	if len(s.Devices) == 0 {
		g.match(s, found)
	}
	if s.Online {
		online := g.onlineDevices()
		maps.DeleteFunc(found, func(name string, _ bool) bool { return !online[name] })
	}
	maps.DeleteFunc(found, func(name string, _ bool) bool { return name <= after })
	return slices.Sorted(maps.Keys(found))
}

// match adds the devices for which the conditions of a selection hold, but for online.
func (g *Gateway) match(s *Selection, found map[string]bool) {
	d := g.opts.Directory
	var clients []sessionKey
	if len(s.Labels) == 0 || s.ClientID != "" { // else no client says more than the Devices
		clients = g.keys(func(sessionKey) bool { return true })
	}
	for _, key := range clients {
		names := d.addresses(key) // both are mailboxes of one client, which is to get one command
		name := cmp.Or(names[0], names[1])
		if name != "" && (s.names(name) || s.names(key.clientID)) && d.labelled(names[0], s.Labels) {
			found[name] = true
		}
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	for name, dev := range d.devices {
		if (s.names(name) || slices.ContainsFunc(dev.ClientIDs, s.namesOne)) && dev.labelled(s.Labels) {
			found[name] = true
		}
	}
}

// namesOne reports whether a selection is for a client id of a definition, if that is one and no pattern.
func (s *Selection) namesOne(clientID string) bool {
	return !strings.Contains(clientID, "*") && s.names(clientID)
}

// labelled reports whether there are no labels to have, or the Device of a name has them.
func (d *Directory) labelled(name string, labels map[string]string) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	dev := d.devices[name]
	return len(labels) == 0 || dev != nil && dev.labelled(labels)
}

// names reports whether a selection is for a name.
func (s *Selection) names(name string) bool {
	return s.ClientID == "" || globPieces(strings.Split(s.ClientID, "*"), name)
}

func (d *Device) labelled(labels map[string]string) bool {
	for name, v := range labels {
		if have, ok := d.labels[name]; !ok || have != v {
			return false
		}
	}
	return true
}

// onlineDevices are the devices that are connected.
func (g *Gateway) onlineDevices() map[string]bool {
	g.mu.Lock()
	holders := slices.Collect(maps.Values(g.holders))
	g.mu.Unlock()
	online := make(map[string]bool, len(holders))
	for _, c := range holders {
		c.mu.Lock()
		names := c.addresses()
		c.mu.Unlock()
		for _, name := range names {
			online[name] = true
		}
	}
	return online
}
