// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"net/http"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/mqttgw"
)

// startBroadcast starts a broadcast of a command, or says how many devices it would be for.
func (a *API) startBroadcast(w *reply, r *http.Request) error {
	if _, err := noQuery(r); err != nil {
		return err
	}
	c := commandBody{spec: mqttgw.CommandSpec{QoS: 1, By: w.caller()}}
	var spec mqttgw.BroadcastSpec
	dry := false
	members := c.members()
	members["select"] = func(b *body, at string, v json.RawMessage) { b.selection(at, v, &spec.Select) }
	members["rate"] = func(b *body, at string, v json.RawMessage) {
		if b.value(at, v, &spec.Rate, "a number") && spec.Rate <= 0 {
			b.fault(at, "must be more than 0")
		}
	}
	members["batch"] = func(b *body, at string, v json.RawMessage) {
		if b.value(at, v, &spec.Batch, "a whole number") && spec.Batch <= 0 {
			b.fault(at, "must be more than 0")
		}
	}
	members["why"] = asText(&spec.Why)
	members["dryRun"] = func(b *body, at string, v json.RawMessage) { b.value(at, v, &dry, "true or false") }
	there, err := a.readObject(r, members)
	if err == nil && !there["select"] {
		err = fault.Invalidf("/select", `is required; {"all": true} selects every device`)
	}
	if err == nil {
		err = c.check()
	}
	if err != nil {
		return err
	}
	if a.o.Commands == nil {
		return errNoMQTT
	}
	spec.Command = c.spec
	if dry {
		n, err := a.o.Commands.PlanBroadcast(r.Context(), spec)
		if err != nil {
			return err
		}
		return sendJSON(w, http.StatusOK, map[string]int{"total": n})
	}
	made, err := a.o.Commands.Broadcast(r.Context(), spec)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/broadcasts/"+made.ID)
	return sendJSON(w, http.StatusAccepted, made)
}

func (b *body) selection(pointer string, raw json.RawMessage, to *mqttgw.Selection) {
	b.object(pointer, raw, map[string]func(*body, string, json.RawMessage){
		"devices": func(b *body, at string, v json.RawMessage) {
			if b.value(at, v, &to.Devices, "a list of devices") && len(to.Devices) == 0 {
				b.fault(at, "must not be empty")
			}
		},
		"labels":   func(b *body, at string, v json.RawMessage) { b.value(at, v, &to.Labels, "an object of strings") },
		"clientId": asText(&to.ClientID),
		"online":   func(b *body, at string, v json.RawMessage) { b.value(at, v, &to.Online, "true or false") },
		"all":      func(b *body, at string, v json.RawMessage) { b.value(at, v, &to.All, "true or false") },
	})
}

func (a *API) listBroadcasts(w *reply, r *http.Request) error {
	if _, err := noQuery(r); err != nil {
		return err
	}
	if a.o.Commands == nil {
		return errNoMQTT
	}
	all, err := a.o.Commands.Broadcasts(r.Context())
	if err != nil {
		return err
	}
	return sendJSON(w, http.StatusOK, map[string][]mqttgw.Broadcast{"items": all})
}

func (a *API) getBroadcast(w *reply, r *http.Request) error {
	if _, err := noQuery(r); err != nil {
		return err
	}
	if a.o.Commands == nil {
		return errNoMQTT
	}
	b, err := a.o.Commands.BroadcastByID(r.Context(), pathParam(r, "id"))
	if err != nil {
		return err
	}
	return sendJSON(w, http.StatusOK, b)
}

// setBroadcast pauses, resumes or cancels a broadcast.
func (a *API) setBroadcast(state string) handler {
	return func(w *reply, r *http.Request) error {
		if _, err := noQuery(r); err != nil {
			return err
		}
		if a.o.Commands == nil {
			return errNoMQTT
		}
		b, err := a.o.Commands.SetBroadcast(r.Context(), pathParam(r, "id"), state, w.caller())
		if err != nil {
			return err
		}
		return sendJSON(w, http.StatusOK, b)
	}
}
