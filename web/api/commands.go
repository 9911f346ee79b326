// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/mqttgw"
)

// Commander is what the API needs of the MQTT gateway to command devices.
type Commander interface {
	// SendCommand stores a command and returns when that is committed.
	SendCommand(ctx context.Context, spec mqttgw.CommandSpec) (mqttgw.Command, error)
	// Command returns a command of a device, Commands a page of them, newest first.
	Command(ctx context.Context, device, id string) (mqttgw.Command, error)
	Commands(ctx context.Context, device, status, cursor string, limit int) (mqttgw.CommandPage, error)
	// CancelCommand cancels a command that was not sent yet.
	CancelCommand(ctx context.Context, device, id, by string) (mqttgw.Command, error)

	// Broadcast starts a broadcast; PlanBroadcast says how many devices it would be for.
	Broadcast(ctx context.Context, spec mqttgw.BroadcastSpec) (mqttgw.Broadcast, error)
	PlanBroadcast(ctx context.Context, spec mqttgw.BroadcastSpec) (int, error)
	Broadcasts(ctx context.Context) ([]mqttgw.Broadcast, error)
	BroadcastByID(ctx context.Context, id string) (mqttgw.Broadcast, error)
	// SetBroadcast pauses, resumes or cancels a broadcast.
	SetBroadcast(ctx context.Context, id, state, by string) (mqttgw.Broadcast, error)
}

// addCommandRoutes adds commands to devices. A device is the name of a Device, or a client id.
func (a *API) addCommandRoutes() {
	read, write := need{area: areaDevices, access: accessRead}, need{area: areaDevices, access: accessWrite}
	a.add("POST", "/v1/devices/{name}/commands", write, a.sendCommand)
	a.add("GET", "/v1/devices/{name}/commands", read, a.listCommands)
	a.add("GET", "/v1/devices/{name}/commands/{command}", read, a.getCommand)
	a.add("DELETE", "/v1/devices/{name}/commands/{command}", write, a.cancelCommand)
	a.add("POST", "/v1/broadcasts", write, a.startBroadcast)
	a.add("GET", "/v1/broadcasts", read, a.listBroadcasts)
	a.add("GET", "/v1/broadcasts/{id}", read, a.getBroadcast)
	a.add("POST", "/v1/broadcasts/{id}:pause", write, a.setBroadcast(mqttgw.BroadcastPaused))
	a.add("POST", "/v1/broadcasts/{id}:resume", write, a.setBroadcast(mqttgw.BroadcastRunning))
	a.add("POST", "/v1/broadcasts/{id}:cancel", write, a.setBroadcast(mqttgw.BroadcastCancelled))
}

const maxCommandsPage = 100

// sendCommand takes a command in.
func (a *API) sendCommand(w *reply, r *http.Request) error {
	if _, err := noQuery(r); err != nil {
		return err
	}
	c := commandBody{spec: mqttgw.CommandSpec{Device: pathParam(r, "name"), QoS: 1, By: w.caller()}}
	members := c.members()
	members["id"] = asText(&c.spec.ID)
	members["principal"] = asText(&c.spec.Principal)
	if _, err := a.readObject(r, members); err != nil {
		return err
	}
	if err := c.check(); err != nil {
		return err
	}
	if a.o.Commands == nil {
		return errNoMQTT
	}
	sent, err := a.o.Commands.SendCommand(r.Context(), c.spec)
	if err != nil {
		return err
	}
	w.Header().Set("Location", r.URL.EscapedPath()+"/"+sent.ID)
	return sendJSON(w, http.StatusAccepted, sent)
}

// commandBody reads what a command says of itself.
type commandBody struct {
	spec     mqttgw.CommandSpec
	payloads []string // the members that were there of those of which there may be one
}

// asText reads a member that is a string.
func asText(to *string) func(*body, string, json.RawMessage) {
	return func(b *body, at string, v json.RawMessage) { b.value(at, v, to, "a string") }
}

func (c *commandBody) members() map[string]func(*body, string, json.RawMessage) {
	s := &c.spec
	payload := func(name string, read func(b *body, at string, v json.RawMessage)) func(*body, string, json.RawMessage) {
		return func(b *body, at string, v json.RawMessage) {
			c.payloads = append(c.payloads, name)
			read(b, at, v)
		}
	}
	return map[string]func(*body, string, json.RawMessage){
		"topic": asText(&s.Topic), "contentType": asText(&s.ContentType), "correlation": asText(&s.Correlation), "responseTopic": asText(&s.ResponseTopic),
		"payload": payload("payload", func(b *body, at string, v json.RawMessage) {
			var t string
			if b.value(at, v, &t, "a string; payloadBase64 is for bytes, and data for JSON") {
				s.Payload, s.UTF8 = []byte(t), true
			}
		}),
		"payloadBase64": payload("payloadBase64", func(b *body, at string, v json.RawMessage) {
			var t string
			if !b.value(at, v, &t, "a string") {
				return
			}
			var err error
			if s.Payload, err = base64.StdEncoding.DecodeString(t); err != nil {
				b.fault(at, "must be base64")
			}
		}),
		"data": payload("data", func(b *body, at string, v json.RawMessage) {
			var out bytes.Buffer
			if json.Compact(&out, v) != nil {
				b.fault(at, "must be JSON")
			}
			s.Payload, s.UTF8 = out.Bytes(), true
		}),
		"qos": func(b *body, at string, v json.RawMessage) {
			if b.value(at, v, &s.QoS, "0, 1 or 2") && s.QoS > 2 {
				b.fault(at, "must be 0, 1 or 2")
			}
		},
		"expiry": func(b *body, at string, v json.RawMessage) {
			var t string
			if !b.value(at, v, &t, "a duration such as 90s or 12h") {
				return
			}
			var err error
			if s.Expiry, err = time.ParseDuration(t); err != nil || s.Expiry < time.Second {
				b.fault(at, "must be a duration of a second at least, such as 90s or 12h")
			}
		},
		"userProperties": func(b *body, at string, v json.RawMessage) {
			var props map[string]string
			if b.value(at, v, &props, "an object of strings") {
				for _, name := range slices.Sorted(maps.Keys(props)) {
					s.UserProperties = append(s.UserProperties, [2]string{name, props[name]})
				}
			}
		},
	}
}

// check finishes a command that was read.
func (c *commandBody) check() error {
	if len(c.payloads) > 1 {
		return fault.Invalidf("/"+c.payloads[1], "cannot be there beside %s: a command has one payload", c.payloads[0])
	}
	if len(c.payloads) == 1 && c.payloads[0] == "data" {
		c.spec.ContentType = cmp.Or(c.spec.ContentType, "application/json")
	}
	return nil
}

// listCommands answers the commands of a device, newest first.
func (a *API) listCommands(w *reply, r *http.Request) error {
	q, err := readQuery(r, "status", "limit", "cursor")
	if err != nil {
		return err
	}
	limit, status := cmp.Or(q.limit(), maxCommandsPage), q.text("status")
	if all := mqttgw.CommandStatuses(); status != "" && !slices.Contains(all, status) {
		q.fault("status", "must be one of "+strings.Join(all, ", "))
	}
	if err := q.err(); err != nil {
		return err
	}
	if a.o.Commands == nil {
		return errNoMQTT
	}
	page, err := a.o.Commands.Commands(r.Context(), pathParam(r, "name"), status, q.text("cursor"), limit)
	if err != nil {
		return err
	}
	return sendPage(w, page.Items, func(b *bytes.Buffer, c *mqttgw.Command) error { return encodeJSON(b, c) }, page.NextCursor)
}

func (a *API) getCommand(w *reply, r *http.Request) error {
	if _, err := noQuery(r); err != nil {
		return err
	}
	if a.o.Commands == nil {
		return errNoMQTT
	}
	c, err := a.o.Commands.Command(r.Context(), pathParam(r, "name"), pathParam(r, "command"))
	if err != nil {
		return err
	}
	return sendJSON(w, http.StatusOK, c)
}

// cancelCommand cancels a command that was not sent yet, and answers it as it is then.
func (a *API) cancelCommand(w *reply, r *http.Request) error {
	if _, err := noQuery(r); err != nil {
		return err
	}
	if a.o.Commands == nil {
		return errNoMQTT
	}
	c, err := a.o.Commands.CancelCommand(r.Context(), pathParam(r, "name"), pathParam(r, "command"), w.caller())
	if err != nil {
		return err
	}
	return sendJSON(w, http.StatusOK, c)
}
