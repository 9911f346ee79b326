// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
)

// As with dead letters, the bus is a query parameter: one check of rights before anything is read.

func (a *API) addAsideRoutes() {
	read, write := onQueryBus(areaEvents, accessRead), onQueryBus(areaEvents, accessWrite)
	a.add("GET", "/v1/scheduled", read, a.listKept(false))
	a.add("GET", "/v1/scheduled/{id}", read, a.getScheduled)
	a.add("DELETE", "/v1/scheduled/{id}", write, a.cancelScheduled)
	a.add("GET", "/v1/prepared", read, a.listKept(true))
	a.add("GET", "/v1/prepared/{token}", read, a.getPrepared)
	a.add("POST", "/v1/prepared/{token}:commit", write, a.decidePrepared(true))
	a.add("POST", "/v1/prepared/{token}:rollback", write, a.decidePrepared(false))
}

// asideParams are the parameters of an ingest that keeps events for later.
var asideParams = []string{"deliverAt", "delay", "prepare", "checkBack", "checkAfter"}

const (
	defaultMaxDelay = 365 * 24 * time.Hour
	minCheckAfter   = time.Second
	maxCheckAfter   = 24 * time.Hour
)

// readAside reads why the events of a request are to be kept for later; nil = they are not.
func readAside(r *http.Request, now time.Time, maxDelay time.Duration) (*bridge.AsideRequest, error) {
	q, err := readQuery(r, asideParams...)
	if err != nil {
		return nil, err
	}
	out := &bridge.AsideRequest{Prepare: q.flag("prepare"), CheckBack: q.text("checkBack")}
	at, delayed := q.dueTime(now, maxDelay)
	out.At = at
	if s := q.text("checkAfter"); s != "" {
		out.CheckAfter = q.duration("checkAfter", minCheckAfter, maxCheckAfter)
	}
	switch {
	case out.Prepare && delayed:
		q.fault("prepare", "does not go with deliverAt and delay")
	case !out.Prepare && out.CheckBack != "":
		q.fault("checkBack", "goes with prepare=true")
	case q.text("checkAfter") != "" && out.CheckBack == "":
		q.fault("checkAfter", "goes with checkBack")
	}
	if err := q.err(); err != nil || !out.Prepare && !delayed {
		return nil, err
	}
	return out, nil
}

// dueTime reads deliverAt or delay.
func (q *query) dueTime(now time.Time, maxDelay time.Duration) (at time.Time, delayed bool) {
	_, timed := q.values["deliverAt"]
	_, delayed = q.values["delay"]
	switch {
	case timed && delayed:
		q.fault("delay", "does not go with deliverAt")
	case timed:
		if at = q.time("deliverAt"); at.After(now.Add(maxDelay)) {
			q.fault("deliverAt", "must be at most "+maxDelay.String()+" from now")
		} else if q.text("deliverAt") == "" {
			q.fault("deliverAt", "must be a time like 2027-06-01T00:00:00Z")
		}
	case delayed:
		at = now.Add(q.duration("delay", 0, maxDelay))
	}
	return at, timed || delayed
}

// duration reads a time span.
func (q *query) duration(name string, lo, hi time.Duration) time.Duration {
	d, err := time.ParseDuration(q.text(name))
	if err != nil || d < lo || d > hi {
		q.fault(name, "must be a duration such as 90s or 2h, from "+lo.String()+" to "+hi.String())
		return 0
	}
	return d
}

// setAside keeps events for later and answers what names them.
func (a *API) setAside(w *reply, r *http.Request, recs []*event.Record) error {
	kept, err := a.o.Bridge.SetAside(r.Context(), w.bus, recs, *w.aside)
	if err != nil {
		return err
	}
	type item struct {
		ID        string     `json:"id"`
		At        *time.Time `json:"at,omitempty"`
		Token     string     `json:"token,omitempty"`
		Duplicate bool       `json:"duplicate,omitempty"`
	}
	items := make([]item, len(kept))
	for i, k := range kept {
		items[i] = item{k.ID, k.At, k.Token, k.Duplicate}
	}
	name := "scheduled"
	if w.aside.Prepare {
		name = "prepared"
	}
	return sendJSON(w, http.StatusAccepted, map[string][]item{name: items})
}

// listKept answers a list of what is kept for later.
func (a *API) listKept(prepared bool) handler {
	return func(w *reply, r *http.Request) error {
		q, err := readQuery(r, "bus", "limit", "cursor")
		if err != nil {
			return err
		}
		k := bridge.KeptQuery{Prepared: prepared, Bus: q.text("bus"), Limit: q.limit(), Cursor: q.text("cursor")}
		if err := q.err(); err != nil {
			return err
		}
		page, err := a.o.Bridge.Kept(r.Context(), k)
		if err != nil {
			return err
		}
		return sendPage(w, page.Items, func(b *bytes.Buffer, k *bridge.Kept) error { return encodeJSON(b, k) }, page.NextCursor)
	}
}

// sendKept answers one kept event with all of it.
func sendKept(w *reply, k bridge.Kept) error {
	return sendJSON(w, http.StatusOK, struct {
		bridge.Kept
		Event json.RawMessage `json:"event"`
	}{k, event.AppendJSON(nil, k.Event)})
}

func (a *API) getScheduled(w *reply, r *http.Request) error {
	bus, source, err := queryOne(r)
	if err != nil {
		return err
	}
	k, err := a.o.Bridge.Scheduled(r.Context(), bus, pathParam(r, "id"), source)
	if err != nil {
		return err
	}
	return sendKept(w, k)
}

// cancelScheduled forgets a scheduled event; 404 says that it was stored before.
func (a *API) cancelScheduled(w *reply, r *http.Request) error {
	bus, source, err := queryOne(r)
	if err != nil {
		return err
	}
	if err := a.o.Bridge.Cancel(r.Context(), bus, pathParam(r, "id"), source); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// queryOne reads which event is meant, if several have its id.
func queryOne(r *http.Request) (bus, source string, err error) {
	q, err := readQuery(r, "bus", "source")
	if err != nil {
		return "", "", err
	}
	return q.text("bus"), q.text("source"), q.err()
}

func (a *API) getPrepared(w *reply, r *http.Request) error {
	bus, err := queryBus(r)
	if err != nil {
		return err
	}
	k, err := a.o.Bridge.Prepared(r.Context(), bus, pathParam(r, "token"))
	if err != nil {
		return err
	}
	return sendKept(w, k)
}

// decidePrepared commits a prepared event, or rolls it back.
func (a *API) decidePrepared(commit bool) handler {
	return func(w *reply, r *http.Request) error {
		bus, err := queryBus(r)
		if err != nil {
			return err
		}
		d, err := a.o.Bridge.Decide(r.Context(), bus, pathParam(r, "token"), commit)
		if err != nil {
			return err
		}
		return sendJSON(w, http.StatusOK, d)
	}
}

// asideParamDocs are the parameters that keep events for later.
func asideParamDocs() []*huma.Param {
	return []*huma.Param{
		queryDoc("deliverAt", "when the events are stored; a time that has passed means at once", &huma.Schema{Type: "string", Format: "date-time"}),
		queryDoc("delay", "instead, how long from now, such as 90s or 2h", nil),
		queryDoc("prepare", "they are stored when they are committed", &huma.Schema{Type: "boolean"}),
		queryDoc("checkBack", "with prepare: URL that is asked when no decision comes", nil),
		queryDoc("checkAfter", "with checkBack: how long a decision may take before the first question, 1s to 24h; default 60s", nil),
	}
}
