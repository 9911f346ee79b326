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
	a.add("POST", "/v1/sources/{name}:pause", write, a.pause(kindSource, true))
	a.add("POST", "/v1/sources/{name}:resume", write, a.pause(kindSource, false))
	a.add("POST", "/v1/sources/{name}:reset", write, a.reset(kindSource, func(ctx context.Context, name, start string) error {
		if a.o.Sources == nil {
			return errNoRoute
		}
		return a.o.Sources.Reset(ctx, name, start)
	}))
}

// serveHook hands a request over to its source, which knows whom it trusts. The answer to one that is refused may be held back.
func (a *API) serveHook(w *reply, r *http.Request) error {
	if a.o.Sources == nil {
		return errNoRoute
	}
	name := w.hook
	if name == "" { // it came by way of the router
		name = pathParam(r, "source")
	}
	err := a.o.Sources.ServeHook(name, w, r)
	if unproved(err) && !proxied(r.Header) && a.tarpit.hold(r.Context(), w.Header()) {
		w.long = true
		a.metrics.held.Inc()
	}
	return err
}

// pause changes a definition, so that the pause lasts.
func (a *API) pause(kind string, paused bool) handler {
	return func(w *reply, r *http.Request) error {
		if _, err := noQuery(r); err != nil {
			return err
		}
		d, err := a.editDocument(authored(r.Context(), w), store.Key{Kind: kind, Name: pathParam(r, "name")}, "paused", json.RawMessage("true"), paused)
		if err != nil {
			return err
		}
		a.awaitInForce(r.Context(), d.Key, d.Revision)
		return a.answerDocument(w, d)
	}
}

// reset has what a definition describes begin elsewhere.
func (a *API) reset(kind string, reset func(ctx context.Context, name, start string) error) handler {
	return func(w *reply, r *http.Request) error {
		start, err := a.readStart(r)
		if err != nil {
			return err
		}
		d, err := a.o.Store.Get(r.Context(), store.Key{Kind: kind, Name: pathParam(r, "name")})
		if err != nil {
			return err
		}
		if err := reset(r.Context(), d.Name, start); err != nil {
			return err
		}
		return a.answerDocument(w, d)
	}
}

// readStart reads where something is to begin; "" if the request does not say.
func (a *API) readStart(r *http.Request) (string, error) {
	if _, err := noQuery(r); err != nil {
		return "", err
	}
	raw, err := a.readBody(r, nil, maxDocument)
	if err != nil || len(raw) == 0 {
		return "", err
	}
	if err := checkContentType(r.Header.Get("Content-Type")); err != nil {
		return "", err
	}
	var in struct {
		Start string `json:"start"`
	}
	err = decodeStrict(raw, &in)
	return in.Start, err
}

// answerDocument answers a definition as it stands now.
func (a *API) answerDocument(w *reply, d store.Document) error {
	k := a.kind(d.Kind)
	if k == nil {
		return fault.New(fault.NotFound, "there is no kind %s here", d.Kind)
	}
	body, err := k.showDoc(d, aside{})
	if err != nil {
		return err
	}
	w.Header().Set("ETag", etagOf(d.Revision))
	return w.send(http.StatusOK, contentJSON, body)
}
