// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/mqttgw"
)

const kindDevice = "Device"

// Clients is what the API needs of the MQTT gateway.
type Clients interface {
	// Clients returns the clients of a principal, or all, ordered by principal and client id.
	Clients(principal string, all bool) []mqttgw.Client
	// Disconnect ends the connections of a principal with a client id, or with any.
	Disconnect(principal string, clientID ...string) int
	// DisconnectDevice ends the connections of a device; ok is false if no such device is in force.
	DisconnectDevice(name string) (n int, ok bool)
}

// addDeviceRoutes adds what devices have beside the routes of every kind, and the clients that are connected, whether they
// are defined as devices or come with a certificate or a token.
func (a *API) addDeviceRoutes() {
	read, write := need{area: areaDevices, access: accessRead}, need{area: areaDevices, access: accessWrite}
	a.add("POST", "/v1/devices/{name}:disconnect", write, a.disconnectDevice)
	a.add("POST", "/v1/devices/{name}:block", write, a.blockDevice(true))
	a.add("POST", "/v1/devices/{name}:unblock", write, a.blockDevice(false))
	a.add("GET", "/v1/clients", read, a.listClients)
	a.add("POST", "/v1/clients:disconnect", write, a.disconnectClient)
}

var errNoMQTT = fault.New(fault.Unavailable, "the MQTT listener is off")

// disconnectDevice ends the connections of a device, which may come back.
func (a *API) disconnectDevice(w *reply, r *http.Request) error {
	if _, err := noQuery(r); err != nil {
		return err
	}
	if a.o.Clients == nil {
		return errNoMQTT
	}
	name := pathParam(r, "name")
	n, ok := a.o.Clients.DisconnectDevice(name)
	if !ok {
		return fault.New(fault.NotFound, "no device %q", name)
	}
	return sendJSON(w, http.StatusOK, map[string]int{"disconnected": n})
}

// blockDevice changes the definition of a device, so that the block lasts.
func (a *API) blockDevice(blocked bool) handler {
	return func(w *reply, r *http.Request) error {
		if _, err := noQuery(r); err != nil {
			return err
		}
		k := a.kind(kindDevice)
		if k == nil {
			return errNoRoute
		}
		d, err := a.editDocument(authored(r.Context(), w), store.Key{Kind: kindDevice, Name: pathParam(r, "name")}, "blocked", json.RawMessage("true"), blocked)
		if err != nil {
			return err
		}
		a.awaitInForce(r.Context(), d.Key, d.Revision)
		body, err := k.showDoc(d, aside{})
		if err != nil {
			return err
		}
		w.Header().Set("ETag", etagOf(d.Revision))
		return w.send(http.StatusOK, contentJSON, body)
	}
}

// editDocument sets a member of a document, or takes it out.
func (a *API) editDocument(ctx context.Context, sk store.Key, name string, value json.RawMessage, set bool) (store.Document, error) {
	if err := a.undeclared(sk); err != nil {
		return store.Document{}, err
	}
	leave, err := a.changes.enter(ctx)
	if err != nil {
		return store.Document{}, err
	}
	defer leave()
	for range maxTries {
		d, err := a.o.Store.Get(ctx, sk)
		if err != nil {
			return d, err
		}
		ms, err := members(d.Raw)
		if err != nil {
			return d, err
		}
		ms = slices.DeleteFunc(ms, func(m member) bool { return m.name == name })
		if set {
			ms = append(ms, member{name, value})
		}
		raw, err := join(ms)
		if err != nil {
			return d, err
		}
		if bytes.Equal(raw, d.Raw) {
			return d, nil
		}
		d, err = a.o.Store.Put(ctx, sk, raw, store.Condition{Revision: d.Revision})
		if fault.KindOf(err) == fault.Conflict {
			continue
		}
		return d, err
	}
	return store.Document{}, fault.New(fault.Conflict, "%s is being changed by others all the time", sk)
}

// maxClientsPage is how many clients a page holds if the request does not say.
const maxClientsPage = 100

// listClients answers the clients that are connected, and those that were while the process has been running.
func (a *API) listClients(w *reply, r *http.Request) error {
	q, err := readQuery(r, "principal", "clientId", "online", "limit", "cursor")
	if err != nil {
		return err
	}
	limit := cmp.Or(q.limit(), maxClientsPage)
	principal, all := q.text("principal"), !q.values.Has("principal")
	online, clientID, cursor := q.flag("online"), q.text("clientId"), q.text("cursor")
	decoded, err := base64.RawURLEncoding.DecodeString(cursor)
	after, afterID, ok := strings.Cut(string(decoded), "\x00") // which stands in neither
	if cursor != "" && (err != nil || !ok) {
		q.fault("cursor", "must be the nextCursor of the page before")
	}
	if err := q.err(); err != nil {
		return err
	}
	if a.o.Clients == nil {
		return errNoMQTT
	}
	items := a.o.Clients.Clients(principal, all)
	items = slices.DeleteFunc(items, func(c mqttgw.Client) bool {
		return online && !c.Online || clientID != "" && c.ClientID != clientID ||
			cursor != "" && cmp.Or(cmp.Compare(c.Principal, after), cmp.Compare(c.ClientID, afterID)) <= 0
	})
	page := struct {
		Items      []mqttgw.Client `json:"items"`
		NextCursor string          `json:"nextCursor,omitempty"`
	}{Items: items}
	if len(items) > limit {
		page.Items = items[:limit]
		last := items[limit-1]
		page.NextCursor = base64.RawURLEncoding.EncodeToString([]byte(last.Principal + "\x00" + last.ClientID))
	}
	return sendJSON(w, http.StatusOK, page)
}

// disconnectClient ends the connection of a client, which may come back.
func (a *API) disconnectClient(w *reply, r *http.Request) error {
	if _, err := noQuery(r); err != nil {
		return err
	}
	var principal, clientID string
	there, err := a.readObject(r, map[string]func(*body, string, json.RawMessage){
		"principal": func(b *body, at string, v json.RawMessage) { b.value(at, v, &principal, "a string") },
		"clientId":  func(b *body, at string, v json.RawMessage) { b.value(at, v, &clientID, "a string") },
	})
	if err == nil && !there["principal"] {
		err = fault.Invalidf("/principal", `is required; "" is the principal of anonymous clients`)
	}
	if err != nil {
		return err
	}
	if a.o.Clients == nil {
		return errNoMQTT
	}
	n := 0
	if there["clientId"] {
		n = a.o.Clients.Disconnect(principal, clientID)
	} else {
		n = a.o.Clients.Disconnect(principal)
	}
	return sendJSON(w, http.StatusOK, map[string]int{"disconnected": n})
}
