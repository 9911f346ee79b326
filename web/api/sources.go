// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
)

const kindSource = "Source"

// Sources is what the API needs of the sources of this process.
type Sources interface {
	// ServeHook answers a request that is for a source. If it returns an error it has written nothing.
	ServeHook(name string, w http.ResponseWriter, r *http.Request) error
	// Reset has a source begin at start: earliest, latest, a time, or "" for what its definition says.
	Reset(ctx context.Context, name, start string) error
}

func (a *API) addSourceRoutes() {
	write := need{area: areaDefinitions, access: accessWrite}
	a.hookRoute = a.add("POST", "/hooks/{source}", need{self: true}, a.serveHook)
	a.add("POST", "/v1/sources/{name}:pause", write, a.pauseSource(true))
	a.add("POST", "/v1/sources/{name}:resume", write, a.pauseSource(false))
	a.add("POST", "/v1/sources/{name}:reset", write, a.resetSource)
}

// serveHook hands a request over to its source, which knows whom it trusts.
func (a *API) serveHook(w *reply, r *http.Request) error {
	if a.o.Sources == nil {
		return errNoRoute
	}
	name := w.hook
	if name == "" { // it came by way of the router
		name = pathParam(r, "source")
	}
	return a.o.Sources.ServeHook(name, w, r)
}

// pauseSource changes the definition of a source, so that the pause lasts.
func (a *API) pauseSource(paused bool) handler {
	return func(w *reply, r *http.Request) error {
		if _, err := noQuery(r); err != nil {
			return err
		}
		d, err := a.editDocument(r.Context(), store.Key{Kind: kindSource, Name: pathParam(r, "name")}, "paused", json.RawMessage("true"), paused)
		if err != nil {
			return err
		}
		a.awaitInForce(r.Context(), d.Key, d.Revision)
		return a.answerSource(w, d)
	}
}

// resetSource has a source begin elsewhere.
func (a *API) resetSource(w *reply, r *http.Request) error {
	if _, err := noQuery(r); err != nil {
		return err
	}
	if a.o.Sources == nil {
		return errNoRoute
	}
	raw, err := a.readBody(r, nil, maxDocument)
	if err != nil {
		return err
	}
	var in struct {
		Start string `json:"start"`
	}
	if len(raw) > 0 {
		if err := checkContentType(r.Header.Get("Content-Type")); err != nil {
			return err
		}
		if err := decodeStrict(raw, &in); err != nil {
			return err
		}
	}
	d, err := a.o.Store.Get(r.Context(), store.Key{Kind: kindSource, Name: pathParam(r, "name")})
	if err != nil {
		return err
	}
	if err := a.o.Sources.Reset(r.Context(), d.Name, in.Start); err != nil {
		return err
	}
	return a.answerSource(w, d)
}

func (a *API) answerSource(w *reply, d store.Document) error {
	k := a.kind(kindSource)
	if k == nil {
		return fault.New(fault.NotFound, "there are no sources here")
	}
	body, err := k.showDoc(d, aside{})
	if err != nil {
		return err
	}
	w.Header().Set("ETag", etagOf(d.Revision))
	return w.send(http.StatusOK, contentJSON, body)
}
