// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/targets/region"
)

const (
	kindLink   = "Link"
	kindRegion = "Region"
)

// Inlets is what the API needs of what takes in the events that links of other regions forward.
type Inlets interface {
	// Serve makes a WebSocket of the request, and returns when that has ended. If it returns an error it has written nothing.
	Serve(w http.ResponseWriter, r *http.Request, bus, by string, good func() error) error
	Forget(ctx context.Context, bus, instance, link string) error
	Status(bus string) []region.InletStatus
	Translate(ctx context.Context, bus string, there event.Hop, from uint64) (region.Translated, error)
}

// Links is what the API needs of the links of this process.
type Links interface {
	// Reset has a link begin at start: earliest, latest, a time, or "" for what its definition says.
	Reset(ctx context.Context, name, start string) error
	// Accounts says what became of the events of a bus, by link.
	Accounts(bus string) []region.Account
}

func (a *API) addLinkRoutes() {
	const bus = "/v1/buses/{bus}"
	a.add("GET", bus+"/link", onBus(areaEvents, accessWrite), a.serveLink)
	a.add("GET", bus+"/inlets", onBus(areaEvents, accessRead), a.listInlets)
	a.add("DELETE", bus+"/inlets/{instance}/{link}", onBus(areaEvents, accessWrite), a.forgetInlet)
	a.add("GET", bus+"/position", onBus(areaEvents, accessRead), a.translate)
	write := need{area: areaDefinitions, access: accessWrite}
	a.add("POST", "/v1/links/{name}:pause", write, a.pause(kindLink, true))
	a.add("POST", "/v1/links/{name}:resume", write, a.pause(kindLink, false))
	a.add("POST", "/v1/links/{name}:reset", write, a.reset(kindLink, a.o.Links.Reset))
	a.add("POST", "/v1/regions/{name}:pause", write, a.pause(kindRegion, true))
	a.add("POST", "/v1/regions/{name}:resume", write, a.pause(kindRegion, false))
}

// serveLink takes in what a link of another region forwards.
func (a *API) serveLink(w *reply, r *http.Request) error {
	w.long = true
	bus := w.bus
	again := r.Clone(context.WithoutCancel(r.Context()))
	return a.o.Inlets.Serve(w, r, bus, w.key, func() error {
		who, err := a.identify(&reply{ResponseWriter: w.ResponseWriter}, again)
		if err == nil {
			err = who.permit(areaEvents, accessWrite, bus)
		}
		var told *httpError
		if errors.As(err, &told) && (told.kind == problemForbidden || told.kind == problemUnauthorized) {
			return &fault.Error{Kind: fault.Forbidden, Message: "the key is not good any more", Err: err}
		}
		return nil // who cannot be asked says nothing
	})
}

// forgetInlet forgets what a link of another region has brought.
func (a *API) forgetInlet(w *reply, r *http.Request) error {
	if _, err := noQuery(r); err != nil {
		return err
	}
	if err := a.o.Inlets.Forget(r.Context(), w.bus, pathParam(r, "instance"), pathParam(r, "link")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// listInlets answers which links of other regions forward to a bus.
func (a *API) listInlets(w *reply, r *http.Request) error {
	q, err := readQuery(r, "limit", "cursor")
	if err != nil {
		return err
	}
	limit, after := cmp.Or(q.limit(), defaultInlets), q.text("cursor")
	if err := q.err(); err != nil {
		return err
	}
	if _, err := a.o.Bridge.Position(w.bus); err != nil {
		return err
	}
	page := struct {
		Items []region.InletStatus `json:"items"`
		Next  string               `json:"nextCursor,omitempty"`
	}{Items: []region.InletStatus{}}
	name := func(s region.InletStatus) string { return s.Instance + "/" + s.Link }
	for _, s := range a.o.Inlets.Status(w.bus) { // by instance and link
		if after != "" && !behind(name(s), after) {
			continue
		}
		if len(page.Items) == limit {
			page.Next = name(page.Items[limit-1])
			break
		}
		page.Items = append(page.Items, s)
	}
	return sendJSON(w, http.StatusOK, page)
}

// defaultInlets is how many are listed in a page that does not say.
const defaultInlets = 100

// behind reports whether a name, an instance and a link, comes behind another one.
func behind(name, other string) bool {
	i, l, _ := strings.Cut(name, "/")
	oi, ol, _ := strings.Cut(other, "/")
	return cmp.Or(cmp.Compare(i, oi), cmp.Compare(l, ol)) > 0
}

// translate answers where a consumer goes on that has read a bus of another region up to a position.
func (a *API) translate(w *reply, r *http.Request) error {
	q, err := readQuery(r, "of", "from")
	if err != nil {
		return err
	}
	instance, place, _ := strings.Cut(q.text("of"), "/")
	at, err := event.ParsePosition(place)
	if err != nil || !event.IsInstance(instance) {
		q.fault("of", "must be <instance>/<stream>:<sequence>, such as k3v9/EV_default:48213")
	}
	var from uint64
	if s := q.text("from"); s != "" {
		if from, err = strconv.ParseUint(s, 10, 64); err != nil {
			q.fault("from", "must be a sequence")
		}
	}
	if err := q.err(); err != nil {
		return err
	}
	found, err := a.o.Inlets.Translate(r.Context(), w.bus, event.Hop{Instance: instance, Position: at}, from)
	if err != nil {
		return err
	}
	return sendJSON(w, http.StatusOK, found)
}

// linkOperations describe the routes.
func linkOperations(bus, limit, cursor *huma.Param, ok func(description, media string, s *huma.Schema) map[string]*huma.Response) map[string]*huma.Operation {
	name := pathParamDoc("name", "of the link")
	whole := &huma.Schema{Type: "integer"}
	inlet := object([]string{"instance", "link", "stream", "bus", "connected", "through", "gaps", "stored", "known", "refused"}, map[string]*huma.Schema{
		"instance": text("of the bridge that forwards"), "link": text("its name there"), "stream": text("that it reads there"), "bus": text(""), "key": text("by which it forwards; no other may"),
		"connected": {Type: "boolean"}, "through": {Type: "integer", Description: "the highest sequence of that stream that is done"},
		"gaps":   {Type: "integer", Description: "runs of sequences before it that are not done yet"},
		"stored": {Type: "integer", Description: "events, since the process began"}, "known": {Type: "integer", Description: "that were there already"},
		"refused": {Type: "integer", Description: "that can never be stored here"}, "lastAt": {Type: "string", Format: "date-time"}, "inFlight": whole})
	return map[string]*huma.Operation{
		"GET /v1/buses/{bus}/link": {
			OperationID: "take-link", Tags: []string{"links"}, Summary: "Take in what a link of another region forwards",
			Description: "Becomes a WebSocket (" + region.Protocol + "). Links of another bridge call it, and nobody else.",
			Parameters: []*huma.Param{bus, queryDoc("instance", "of the bridge that forwards", nil), queryDoc("link", "its name there", nil),
				queryDoc("epoch", "the life of the link", nil), queryDoc("stream", "that it reads there", nil)},
			Responses: map[string]*huma.Response{"101": {Description: "It is a WebSocket now"}},
		},
		"GET /v1/buses/{bus}/inlets": {
			OperationID: "list-inlets", Tags: []string{"links"}, Summary: "List the links of other regions that forward to a bus",
			Parameters: []*huma.Param{bus, limit, cursor},
			Responses:  ok("A page, by instance and link", "application/json", pageSchema(inlet)),
		},
		"DELETE /v1/buses/{bus}/inlets/{instance}/{link}": {
			OperationID: "forget-inlet", Tags: []string{"links"}, Summary: "Forget what a link of another region has brought",
			Description: "So that another key may forward as that link. What it forwards again is recognised within the deduplication window only. 409 while it is connected.",
			Parameters:  []*huma.Param{bus, pathParamDoc("instance", "of the bridge that forwards"), pathParamDoc("link", "its name there")},
			Responses:   noContentResponses(),
		},
		"GET /v1/buses/{bus}/position": {
			OperationID: "translate-position", Tags: []string{"links"}, Summary: "Find where a consumer of another region goes on here",
			Description: "next is the first position here of an event that stood behind the given position there. If it is absent and done is false, not all " +
				"of the bus was looked at: ask again with from one above scanned.",
			Parameters: []*huma.Param{bus, {Name: "of", In: "query", Required: true, Description: "<instance>/<stream>:<sequence>, the last position that was handled there", Schema: &huma.Schema{Type: "string"}},
				queryDoc("from", "sequence of this bus to begin at; default: the oldest", whole)},
			Responses: ok("Where", "application/json", object([]string{"scanned", "done"}, map[string]*huma.Schema{
				"next": text("<stream>:<sequence>"), "scanned": text("looked at up to here"), "done": {Type: "boolean"}})),
		},
		"POST /v1/links/{name}:pause": {
			OperationID: "pause-link", Tags: []string{"link"}, Summary: "Pause a link", Parameters: []*huma.Param{name},
			Responses: ok("The link", "application/json", ref(kindLink)),
		},
		"POST /v1/links/{name}:resume": {
			OperationID: "resume-link", Tags: []string{"link"}, Summary: "Let a paused link go on where it was", Parameters: []*huma.Param{name},
			Responses: ok("The link", "application/json", ref(kindLink)),
		},
		"POST /v1/regions/{name}:pause": {
			OperationID: "pause-region", Tags: []string{"region"}, Summary: "Let no link forward to a region",
			Parameters: []*huma.Param{pathParamDoc("name", "of the region")}, Responses: ok("The region", "application/json", ref(kindRegion)),
		},
		"POST /v1/regions/{name}:resume": {
			OperationID: "resume-region", Tags: []string{"region"}, Summary: "Let links to a paused region go on where they were",
			Parameters: []*huma.Param{pathParamDoc("name", "of the region")}, Responses: ok("The region", "application/json", ref(kindRegion)),
		},
		"POST /v1/links/{name}:reset": {
			OperationID: "reset-link", Tags: []string{"link"}, Summary: "Have a link begin elsewhere",
			Description: "What is forwarded again may be stored again. The account begins anew.",
			Parameters:  []*huma.Param{name},
			RequestBody: &huma.RequestBody{Content: jsonContent(object(nil, map[string]*huma.Schema{
				"start": text("earliest, latest or a time; default: what the definition says")}))},
			Responses: ok("The link", "application/json", ref(kindLink)),
		},
	}
}
