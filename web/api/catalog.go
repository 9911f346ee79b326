// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"context"
	"encoding/base64"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/schema"
)

// catalogEntry is a type of events on a bus: where they come from, what they look like, how many there are and who gets them.
type catalogEntry struct {
	Bus         string        `json:"bus,omitempty"` // absent: a type with a schema that no bus has seen
	Type        string        `json:"type"`
	Stored      uint64        `json:"stored"` // events in the log
	Routed      uint64        `json:"routed"` // since Since, and so are Hours and Sources
	Since       *time.Time    `json:"since,omitempty"`
	Last        *time.Time    `json:"last,omitempty"`
	Hours       []hourDoc     `json:"hours"`
	Sources     []string      `json:"sources"`
	MoreSources bool          `json:"moreSources,omitempty"`
	Schema      *boundDoc     `json:"schema,omitempty"`
	Consumers   []consumerDoc `json:"consumers"`
	More        int           `json:"more,omitempty"` // consumers that are not listed
}

type hourDoc struct {
	Hour   time.Time `json:"hour"`
	Events uint64    `json:"events"`
}

// boundDoc is the schema of a type; version 0 is none that is enforced.
type boundDoc struct {
	Group   string `json:"group"`
	Schema  string `json:"schema"`
	Version int    `json:"version,omitempty"`
}

type catalogIn struct {
	Bus    string `query:"bus" maxLength:"63" doc:"only types on this bus"`
	Type   string `query:"type" maxLength:"1024" doc:"only this type"`
	Schema string `query:"schema" maxLength:"200" doc:"only types with this schema: GROUP/NAME"`
	Target string `query:"target" maxLength:"63" doc:"only types of which this target may get events"`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"how many at most"`
	Cursor string `query:"cursor" maxLength:"2048" doc:"nextCursor of the page before"`
}

// catalog answers the types of events there are, by bus and name; those that no bus has seen come last.
func (a *API) catalog(ctx context.Context, in *catalogIn) (*documentOut, error) {
	after, err := base64.RawURLEncoding.DecodeString(in.Cursor)
	if err != nil {
		return nil, fault.Invalidf("/cursor", "is no nextCursor of a page before")
	}
	entries, err := a.catalogEntries(ctx, in.Bus)
	if err != nil {
		return nil, err
	}
	list, err := a.busRules(ctx, a.o.Bridge.Buses())
	if err != nil {
		return nil, err
	}
	page := schema.Page[catalogEntry]{}
	for _, e := range entries {
		if e.key() <= string(after) || in.Type != "" && e.Type != in.Type || in.Schema != "" && (e.Schema == nil || e.Schema.Group+"/"+e.Schema.Schema != in.Schema) {
			continue
		}
		if in.Target != "" && !hasTarget(list, e.Bus, e.Type, in.Target) {
			continue
		}
		if len(page.Items) == in.Limit {
			page.Cursor = base64.RawURLEncoding.EncodeToString([]byte(page.Items[in.Limit-1].key()))
			break
		}
		e.Consumers, e.More = a.consumersOf(list, e.Bus, e.Type)
		page.Items = append(page.Items, e)
	}
	return pageOut(page, func(e catalogEntry) catalogEntry { return e })
}

// key is the place of an entry in the list.
func (e *catalogEntry) key() string { return cmp.Or(e.Bus, "~") + "\n" + e.Type }

// catalogEntries lists all types, without their consumers; those of one bus if it is named.
func (a *API) catalogEntries(ctx context.Context, bus string) ([]catalogEntry, error) {
	buses := a.o.Bridge.Buses()
	if bus != "" {
		buses = []string{bus}
	}
	var out []catalogEntry
	seen := map[string]bool{}
	for _, b := range buses {
		t, err := a.o.Bridge.Traffic(ctx, b)
		if err != nil {
			return nil, err
		}
		for _, of := range t.Types {
			seen[of.Type] = true
			out = append(out, a.entryOf(b, t.Since, of))
		}
	}
	if bus == "" && a.o.Schemas != nil {
		bound, err := a.o.Schemas.TypesOf(ctx, schema.Name{})
		if err != nil {
			return nil, err
		}
		for _, eventType := range bound {
			if !seen[eventType] {
				out = append(out, catalogEntry{Type: eventType, Hours: []hourDoc{}, Sources: []string{}, Schema: a.boundTo(eventType)})
			}
		}
	}
	slices.SortFunc(out, func(a, b catalogEntry) int { return strings.Compare(a.key(), b.key()) })
	return out, nil
}

func (a *API) entryOf(bus string, since time.Time, t bridge.TypeTraffic) catalogEntry {
	e := catalogEntry{Bus: bus, Type: t.Type, Stored: t.Stored, Routed: t.Routed, Since: &since, Hours: []hourDoc{}, Sources: append([]string{}, t.Sources...),
		MoreSources: t.MoreSources, Schema: a.boundTo(t.Type)}
	if !t.Last.IsZero() {
		e.Last = &t.Last
	}
	for _, h := range t.Hours {
		e.Hours = append(e.Hours, hourDoc{h.Hour, h.Events})
	}
	return e
}

func (a *API) boundTo(eventType string) *boundDoc {
	if a.o.Schemas == nil {
		return nil
	}
	at, bound := a.o.Schemas.BoundTo(eventType)
	if !bound {
		return nil
	}
	return &boundDoc{at.Group, at.Schema, at.Version}
}

// addCatalog adds the route of the catalog, and what it and the impact of a schema answer.
func (a *API) addCatalog() {
	answer := map[string]*huma.Response{"default": problemResponse(), "200": {Description: "A page", Content: jsonContent(pageSchema(ref("CatalogEntry")))}}
	control(a, huma.Operation{OperationID: "get-catalog", Method: http.MethodGet, Path: "/v1/catalog", Tags: []string{"schemas"},
		Summary: "List the types of events: how many, where from, their schema, and who gets and reads what of them", Responses: answer},
		need{area: areaDefinitions, access: accessRead}, a.catalog)
	schemas := a.huma.OpenAPI().Components.Schemas.Map()
	list := func(of *huma.Schema) *huma.Schema { return &huma.Schema{Type: "array", Items: of} }
	number, truth := &huma.Schema{Type: "integer"}, &huma.Schema{Type: "boolean"}
	moment := &huma.Schema{Type: "string", Format: "date-time"}
	schemas["Read"] = object([]string{"path", "by"}, map[string]*huma.Schema{"path": text("JSON pointer into the event; * is each item or member, empty the whole event"),
		"by": text("JSON pointer into the rule, or, for /delivery/orderBy, into the target"), "whole": {Type: "boolean", Description: "all that is below, too, or what of it cannot be told"},
		"needed": {Type: "boolean", Description: "an event without it cannot be delivered"}, "either": {Type: "boolean", Description: "in a branch of $or"},
		"absent": {Type: "boolean", Description: "holds where there is nothing"}, "types": list(text("a JSON type")), "operators": list(text(""))})
	schemas["CatalogEntry"] = object([]string{"type", "stored", "routed", "hours", "sources", "consumers"}, map[string]*huma.Schema{
		"bus": text("absent: no bus has seen the type"), "type": text(""), "stored": {Type: "integer", Description: "events in the log"},
		"routed": {Type: "integer", Description: "events since the process has started"}, "since": moment, "last": moment,
		"hours":   list(object([]string{"hour", "events"}, map[string]*huma.Schema{"hour": moment, "events": number})),
		"sources": list(text("")), "moreSources": truth,
		"schema":    object([]string{"group", "schema"}, map[string]*huma.Schema{"group": text(""), "schema": text(""), "version": number}),
		"consumers": list(object([]string{"rule", "target", "reads"}, map[string]*huma.Schema{"bus": text("if the entry has none"), "rule": text(""), "target": text(""), "reads": list(ref("Read"))})),
		"more":      {Type: "integer", Description: "consumers that are not listed"}})
	place := object([]string{"types", "always", "required"}, map[string]*huma.Schema{"types": list(text("a JSON type, or integer")), "values": list(&huma.Schema{}),
		"always": {Type: "boolean", Description: "in every document"}, "required": {Type: "boolean", Description: "wherever what it is in is there"}})
	verdict := text("unaffected, mayBreak or breaks")
	schemas["SchemaImpact"] = object([]string{"group", "schema", "version", "verdict", "types", "changes", "consumers"}, map[string]*huma.Schema{
		"group": text(""), "schema": text(""), "version": {Type: "integer", Description: "that the text was compared with"}, "verdict": verdict, "types": list(text("bound to the schema")),
		"changes": list(object([]string{"path", "what", "old", "new"}, map[string]*huma.Schema{"path": text(""), "what": list(text("added, removed, retyped, optional, required or values")), "old": place, "new": place})),
		"consumers": list(object([]string{"bus", "rule", "target", "types", "verdict", "reasons"}, map[string]*huma.Schema{"bus": text(""), "rule": text(""), "target": text(""),
			"types": list(text("of events that it may get")), "verdict": verdict,
			"reasons": list(object([]string{"verdict", "path", "by", "reason"}, map[string]*huma.Schema{"verdict": verdict, "path": text(""), "by": text(""), "reason": text("")}))})),
		"more": number})
}
