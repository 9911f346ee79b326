// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
)

const schemaPrefix = "#/components/schemas/"

// newSpec is the description before any route is in it.
func newSpec(version string, registry huma.Registry) *huma.OpenAPI {
	if version == "" {
		version = "dev"
	}
	registry.Schema(reflect.TypeFor[Problem](), true, "Problem")
	return &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{Title: "Rialto", Version: version, Description: "The HTTP API of the Rialto event bridge. " +
			"Errors are problem documents (RFC 9457) whose type is urn:rialto:problem:<slug>: " + strings.Join(slugs(), ", ") + ".",
			License: &huma.License{Name: "Apache-2.0", Identifier: "Apache-2.0"}},
		Components: &huma.Components{
			Schemas:         registry,
			SecuritySchemes: map[string]*huma.SecurityScheme{"key": {Type: "http", Scheme: "bearer", Description: "A key, which POST /v1/keys makes, or a signed token (JWT) of an IdentityProvider."}},
		},
	}
}

func slugs() []string {
	var out []string
	for _, k := range problemKinds {
		out = append(out, k.slug)
	}
	return out
}

func security(n need) []map[string][]string {
	if n.open || n.self {
		return []map[string][]string{}
	}
	return []map[string][]string{{"key": {n.area + ":" + n.access}}}
}

func ref(name string) *huma.Schema { return &huma.Schema{Ref: schemaPrefix + name} }

func jsonContent(s *huma.Schema) map[string]*huma.MediaType {
	return map[string]*huma.MediaType{"application/json": {Schema: s}}
}

func problemResponse() *huma.Response {
	return &huma.Response{Description: "A problem", Content: map[string]*huma.MediaType{"application/problem+json": {Schema: ref("Problem")}}}
}

func documentResponses(k *Kind, statuses ...int) map[string]*huma.Response {
	out := map[string]*huma.Response{"default": problemResponse()}
	for _, s := range statuses {
		out[strconv.Itoa(s)] = &huma.Response{Description: k.Name, Content: jsonContent(ref(k.Name))}
	}
	return out
}

func listResponses(k *Kind) map[string]*huma.Response {
	content := jsonContent(pageSchema(ref(k.Name)))
	content["text/event-stream"] = &huma.MediaType{Schema: text("with watch")}
	return map[string]*huma.Response{"default": problemResponse(), "200": {Description: "A page, or with watch a stream", Content: content}}
}

func noContentResponses() map[string]*huma.Response {
	return map[string]*huma.Response{"default": problemResponse(), "204": {Description: "Deleted"}}
}

func documentBody(k *Kind) *huma.RequestBody {
	return &huma.RequestBody{Required: true, Content: jsonContent(ref(k.Name))}
}

func pageSchema(item *huma.Schema) *huma.Schema {
	return object([]string{"items"}, map[string]*huma.Schema{
		"items":      {Type: "array", Items: item},
		"nextCursor": {Type: "string", Description: "cursor of the next page; absent on the last"},
	})
}

func object(required []string, props map[string]*huma.Schema) *huma.Schema {
	return &huma.Schema{Type: "object", Required: required, Properties: props}
}

func text(description string) *huma.Schema {
	return &huma.Schema{Type: "string", Description: description}
}

func pathParamDoc(name, description string) *huma.Param {
	return &huma.Param{Name: name, In: "path", Required: true, Description: description, Schema: &huma.Schema{Type: "string"}}
}

func nameParam(k *Kind) *huma.Param {
	return pathParamDoc("name", "name of the "+strings.ToLower(k.Name))
}

func pathParams(k *Kind, item bool) []*huma.Param {
	var out []*huma.Param
	if k.Scoped {
		out = append(out, pathParamDoc("bus", "name of the bus"))
	}
	if item {
		out = append(out, nameParam(k))
	}
	return out
}

func queryDoc(name, description string, schema *huma.Schema) *huma.Param {
	if schema == nil {
		schema = &huma.Schema{Type: "string"}
	}
	return &huma.Param{Name: name, In: "query", Description: description, Schema: schema}
}

// describe adds to the description what huma does not know: the plain routes and the kinds' schemas; and renders it.
func (a *API) describe() error {
	spec := a.huma.OpenAPI()
	schemas := spec.Components.Schemas.Map()
	delete(schemas, "ErrorModel") // huma's own errors never leave
	delete(schemas, "ErrorDetail")
	for _, k := range a.kinds {
		s, err := kindSchema(k)
		if err != nil {
			return err
		}
		schemas[k.Name] = s
	}
	schemas["Event"] = &huma.Schema{Type: "object", Description: "A CloudEvent in JSON format (CloudEvents 1.0.2).",
		Required:   []string{"specversion", "id", "source", "type"},
		Properties: map[string]*huma.Schema{"specversion": text("1.0"), "id": text(""), "source": text(""), "type": text("")}}
	schemas["KeptEvent"] = object([]string{"id", "bus", "source", "type", "keptAt"}, map[string]*huma.Schema{
		"id": text("of the event"), "token": text("of a prepared one"), "bus": text(""), "source": text(""), "type": text(""), "subject": text(""),
		"at":     {Type: "string", Format: "date-time", Description: "when a scheduled one is stored"},
		"keptAt": {Type: "string", Format: "date-time"}, "checkBack": text("scheme and host of the URL that is asked when no decision comes"), "checkAfter": text("such as 1m0s"),
		"expires": {Type: "string", Format: "date-time", Description: "when a prepared one is rolled back by itself"}, "event": ref("Event")})
	schemas["Decision"] = object([]string{"state", "id"}, map[string]*huma.Schema{
		"state": text("committed or rolledback"), "id": text("of the event"), "position": text("<stream>:<sequence>, if it was committed")})
	schemas["StoredEvent"] = object([]string{"event", "position", "received"}, map[string]*huma.Schema{
		"event": ref("Event"), "position": text("<stream>:<sequence>"), "received": {Type: "string", Format: "date-time"},
		"status":  text("one of " + strings.Join(states, ", ")),
		"origin":  {Type: "object", Description: "how it was published over MQTT"},
		"hops":    {Type: "array", Items: text(""), Description: "where it stood before, of one that a link has forwarded: <instance>/<stream>:<sequence>, the first one first"},
		"others":  {Type: "array", Items: text(""), Description: "positions of other events with this id"},
		"journey": ref("Journey"),
	})
	moment := &huma.Schema{Type: "string", Format: "date-time"}
	ms := func(description string) *huma.Schema { return &huma.Schema{Type: "number", Description: description} }
	schemas["Journey"] = &huma.Schema{Type: "object", Description: "which rules matched, and every attempt to deliver it", Required: []string{"state", "rules", "deliveries"},
		Properties: map[string]*huma.Schema{"state": text("pending, unmatched or routed"), "routedAt": moment, "ruleset": {Type: "integer"},
			"rules":         {Type: "array", Items: &huma.Schema{Type: "object", Description: "rule, revision, matched and explanation"}},
			"rulesMore":     {Type: "integer", Description: "rules in force that are not listed"},
			"recordsMore":   {Type: "integer", Description: "older records, which were left out"},
			"nextCursor":    text("the page that tells the next older records; absent: none were left out"),
			"responsesMore": {Type: "integer", Description: "the first attempts of the page, whose response was left out: it tells 512 KiB of them"},
			"deliveries": {Type: "array", Items: object([]string{"rule", "revision", "target", "state", "attempts"}, map[string]*huma.Schema{
				"rule": text(""), "revision": {Type: "integer"}, "target": text(""), "state": text("live, " + strings.Join(bridge.Outcomes, ", ")),
				"reason": text("why it is in that state"), "due": moment, "attempts": {Type: "array", Items: ref("Attempt")},
				"behind":     {Type: "object", Description: "what of its key has its turn first: position, rule, attempts and due"},
				"deadLetter": text("its id"), "redrives": {Type: "array", Items: &huma.Schema{Type: "object"}}, "discarded": {Type: "object"}})}}}
	schemas["Attempt"] = object([]string{"n", "at", "durationMs", "ok"}, map[string]*huma.Schema{
		"n": {Type: "integer"}, "at": moment, "durationMs": ms("altogether"), "ok": {Type: "boolean"}, "status": {Type: "integer"},
		"reason": text("why it failed: " + reasonList()), "detail": text("for people"),
		"remote": text("the address that was dialled, such as 192.0.2.7:443"), "reused": {Type: "boolean", Description: "over a connection that was there"},
		"timings": object(nil, map[string]*huma.Schema{"dnsMs": ms("the name"), "connectMs": ms("the connection"), "tlsMs": ms("its handshake"),
			"firstByteMs": ms("from the start of the attempt until an answer began")}),
		"response": text("how the answer of a failed attempt began, at most 16 KiB: status, headers, an empty line, body. Control characters and " +
			"what may be secret are taken out; never that of an address that is not allowed"),
		"next": {Type: "string", Format: "date-time", Description: "when the next attempt was due then"}})
	schemas["DeadCount"] = object([]string{"total", "groups"}, map[string]*huma.Schema{
		"total":   {Type: "integer"},
		"groups":  {Type: "array", Items: &huma.Schema{Type: "object"}, Description: "by fingerprint, the most frequent first"},
		"more":    {Type: "integer", Description: "in groups that are not listed"},
		"partial": {Type: "boolean", Description: "there are more, which were not looked at"}})
	schemas["Job"] = object([]string{"id", "kind", "state", "total", "handled"}, map[string]*huma.Schema{
		"id": text(""), "kind": text("redrive or discard"), "state": text("running, paused, done or cancelled"),
		"waiting": text("why it gets no further at the moment"), "filter": {Type: "object"}, "by": text("the key that asked for it"), "why": text(""),
		"total": {Type: "integer", Description: "selected when it was made"}, "partial": {Type: "boolean", Description: "there are more than total; it handles them too"},
		"handled": {Type: "integer", Description: "redriven or discarded so far"},
		"skipped": {Type: "integer", Description: "left as they are"}, "pending": {Type: "integer"}, "delivered": {Type: "integer"},
		"dead": {Type: "integer"}, "endedOtherwise": {Type: "integer"},
		"createdAt": {Type: "string", Format: "date-time"}, "changedAt": {Type: "string", Format: "date-time"}})
	schemas["Explanation"] = object([]string{"matched", "clauses"}, map[string]*huma.Schema{
		"matched": {Type: "boolean"},
		"clauses": {Type: "array", Items: object([]string{"pointer", "path", "expected", "actual", "verdict"}, map[string]*huma.Schema{
			"pointer": text("into the pattern"), "path": text("of the value"), "expected": text("what the pattern wants"),
			"actual": text("what is there"), "verdict": text("matched, failed or unneeded"), "hint": text("a near miss")})},
		"when": {Type: "object", Description: "expression, actual and verdict of the when"},
		"sql":  {Type: "object", Description: "expression, actual and verdict of the sql"},
		"note": text("what no clause says"),
	})
	commandSchemas(schemas)
	ops := a.plainOperations()
	for _, rt := range a.routes {
		id := rt.method + " " + rt.pattern
		op, ok := ops[id]
		if !ok {
			continue // huma has it
		}
		op.Method, op.Path = rt.method, rt.pattern
		if op.Security == nil {
			op.Security = security(rt.need)
		}
		if op.Responses["default"] == nil {
			op.Responses["default"] = problemResponse()
		}
		spec.AddOperation(op)
		delete(ops, id)
	}
	for id := range ops {
		return fmt.Errorf("api: %s is described and no route", id)
	}
	b, err := json.Marshal(spec)
	a.spec = b
	return err
}

// kindSchema is the schema of a kind with what the server owns.
func kindSchema(k *Kind) (*huma.Schema, error) {
	doc := map[string]any{"type": "object"}
	if k.Schema != nil {
		if err := json.Unmarshal(k.Schema, &doc); err != nil {
			return nil, fmt.Errorf("api: schema of kind %s: %w", k.Name, err)
		}
	}
	props, _ := doc["properties"].(map[string]any)
	if props == nil {
		props = map[string]any{}
	}
	for name, s := range map[string]any{
		"revision":  map[string]any{"type": "integer", "readOnly": true, "description": "grows with every change"},
		"createdAt": map[string]any{"type": "string", "format": "date-time", "readOnly": true},
		"updatedAt": map[string]any{"type": "string", "format": "date-time", "readOnly": true},
		"status": map[string]any{"type": "object", "readOnly": true, "properties": map[string]any{"warnings": map[string]any{
			"type": "array", "description": "what is doubtful about the document that was just written", "items": map[string]any{
				"type": "object", "required": []string{"pointer", "message"}, "properties": map[string]any{
					"pointer": map[string]any{"type": "string"}, "message": map[string]any{"type": "string"},
					"fix": map[string]any{"type": "string", "description": "what to write at pointer instead, as JSON"}}}}}},
	} {
		if props[name] == nil {
			props[name] = s
		}
	}
	doc["properties"] = props
	return &huma.Schema{Extensions: doc}, nil
}

// plainOperations describes the routes that are not huma's.
func (a *API) plainOperations() map[string]*huma.Operation {
	bus := pathParamDoc("bus", "name of the bus")
	limit := queryDoc("limit", "how many at most", &huma.Schema{Type: "integer", Minimum: f64(1), Maximum: f64(1000), Default: 100})
	cursor := queryDoc("cursor", "nextCursor of the page before", nil)
	from := queryDoc("from", "not before", &huma.Schema{Type: "string", Format: "date-time"})
	to := queryDoc("to", "not after", &huma.Schema{Type: "string", Format: "date-time"})
	ok := func(description, media string, s *huma.Schema) map[string]*huma.Response {
		return map[string]*huma.Response{"200": {Description: description, Content: map[string]*huma.MediaType{media: {Schema: s}}}}
	}
	plain := &huma.Schema{Type: "string"}
	onlyBus := queryDoc("bus", "only of this bus; needed by a key whose right is for a bus", nil)
	whichSource := queryDoc("source", "which, if several events have the id", nil)
	sent := &huma.Schema{Type: "object", Description: "A CloudEvent in JSON format. What it lacks of the required attributes is filled in."}
	ops := map[string]*huma.Operation{
		"POST /v1/definitions:apply": applyOperation(),
		"POST /v1/buses/{bus}/events": {
			OperationID: "ingest-events", Tags: []string{"events"}, Summary: "Take events in", Parameters: append([]*huma.Param{bus}, asideParamDocs()...),
			Description: "CloudEvents in binary, structured or batch mode (HTTP binding 1.0.2). 202 means that every event is in the log. " +
				"An event that is there already, by source and id, is answered with the position it got first. With deliverAt, delay or prepare the events " +
				"are kept for later, all of them alike, and the answer is {\"scheduled\": [{id, at}]} or {\"prepared\": [{id, token}]}.",
			RequestBody: &huma.RequestBody{Content: map[string]*huma.MediaType{
				"application/cloudevents+json":       {Schema: ref("Event")},
				"application/cloudevents-batch+json": {Schema: &huma.Schema{Type: "array", Items: ref("Event")}},
				"*/*":                                {Schema: &huma.Schema{Description: "binary mode: the data; attributes stand in ce- headers"}},
			}},
			Responses: map[string]*huma.Response{"202": {Description: "All events are stored", Content: jsonContent(
				object([]string{"accepted"}, map[string]*huma.Schema{"accepted": {Type: "array", Items: object([]string{"id", "position"},
					map[string]*huma.Schema{"id": text("of the event"), "position": text("<stream>:<sequence>"),
						"duplicate": {Type: "boolean", Description: "it was there already"}})}}))}},
		},
		"GET /v1/buses/{bus}/events": {
			OperationID: "search-events", Tags: []string{"events"}, Summary: "Search events, newest first",
			Description: "A page may be short, or empty, and still have a nextCursor: a search looks at so many events and no more.",
			Parameters: []*huma.Param{bus, queryDoc("type", "exactly this type", nil), queryDoc("source", "exactly this source", nil),
				queryDoc("subject", "exactly this subject", nil), queryDoc("status", "one of "+strings.Join(states, ", "), nil),
				queryDoc("target", "with a delivery to this target that is parked or has ended", nil),
				queryDoc("outcome", "with target: how that delivery stands, one of "+strings.Join(bridge.Outcomes, ", "), nil), from, to, limit, cursor},
			Responses: ok("A page", "application/json", pageSchema(ref("StoredEvent"))),
		},
		"GET /v1/buses/{bus}/events/{id}": {
			OperationID: "get-event", Tags: []string{"events"}, Summary: "Get an event and its journey",
			Description: "An event can be read as soon as it was accepted. The id is percent-encoded once, so it may hold / ? # and %. " +
				"A long journey comes in pages, the newest first: each says how the deliveries stand now, and what its records tell of attempts, redrives and who discarded.",
			Parameters: []*huma.Param{bus, pathParamDoc("id", "of the event"), queryDoc("source", "which, if several events have the id; default: the newest", nil),
				queryDoc("limit", "how many records of its journey at most", &huma.Schema{Type: "integer", Minimum: f64(1), Maximum: f64(1000), Default: 1000}),
				queryDoc("cursor", "nextCursor of the journey of the page before", nil)},
			Responses: ok("The event", "application/json", ref("StoredEvent")),
		},
		"GET /v1/stream": {
			OperationID: "stream", Tags: []string{"events"}, Summary: "Follow events as they are stored (server-sent events)",
			Security: security(need{area: areaEvents, access: accessRead}),
			Description: "Messages of type event have {bus, position, received, event} as data. A message of type error has a problem and ends the " +
				"stream. Coming back with the last id as Last-Event-ID goes on exactly there. Needs events:read on each bus.",
			Parameters: []*huma.Param{
				{Name: "topics", In: "query", Required: true, Description: "events:<bus>,events:<bus>,...", Schema: plain},
				queryDoc("from", "position to start at, or now (the default)", nil), queryDoc("type", "only events of this type", nil),
				{Name: "Last-Event-ID", In: "header", Description: "id of the last message that was received", Schema: plain}},
			Responses: ok("The stream", "text/event-stream", plain),
		},
		"GET /v1/scheduled": {
			OperationID: "list-scheduled", Tags: []string{"events"}, Summary: "List events that are scheduled",
			Parameters: []*huma.Param{onlyBus, limit, cursor}, Responses: ok("A page", "application/json", pageSchema(ref("KeptEvent"))),
		},
		"GET /v1/scheduled/{id}": {
			OperationID: "get-scheduled", Tags: []string{"events"}, Summary: "Get a scheduled event",
			Description: "404 if it was stored by now, or cancelled. 409 if several have the id.",
			Parameters:  []*huma.Param{pathParamDoc("id", "of the event"), onlyBus, whichSource}, Responses: ok("The event", "application/json", ref("KeptEvent")),
		},
		"DELETE /v1/scheduled/{id}": {
			OperationID: "cancel-scheduled", Tags: []string{"events"}, Summary: "Cancel a scheduled event",
			Description: "After 204 it will not be stored. 404 if it was stored before.",
			Parameters:  []*huma.Param{pathParamDoc("id", "of the event"), onlyBus, whichSource}, Responses: noContentResponses(),
		},
		"GET /v1/prepared": {
			OperationID: "list-prepared", Tags: []string{"events"}, Summary: "List events that are prepared",
			Parameters: []*huma.Param{onlyBus, limit, cursor}, Responses: ok("A page", "application/json", pageSchema(ref("KeptEvent"))),
		},
		"GET /v1/prepared/{token}": {
			OperationID: "get-prepared", Tags: []string{"events"}, Summary: "Get a prepared event",
			Parameters: []*huma.Param{pathParamDoc("token", "that the answer to prepare had"), onlyBus}, Responses: ok("The event", "application/json", ref("KeptEvent")),
		},
		"POST /v1/prepared/{token}:commit": {
			OperationID: "commit-prepared", Tags: []string{"events"}, Summary: "Store a prepared event",
			Description: "It is stored once, however often this is asked. 404 if it was rolled back, or never prepared.",
			Parameters:  []*huma.Param{pathParamDoc("token", "that the answer to prepare had"), onlyBus}, Responses: ok("It is stored", "application/json", ref("Decision")),
		},
		"POST /v1/prepared/{token}:rollback": {
			OperationID: "roll-back-prepared", Tags: []string{"events"}, Summary: "Forget a prepared event",
			Description: "It may be asked again. 409 if the event was committed.",
			Parameters:  []*huma.Param{pathParamDoc("token", "that the answer to prepare had"), onlyBus}, Responses: ok("It is forgotten", "application/json", ref("Decision")),
		},
		"GET /v1/deadletters": {
			OperationID: "list-deadletters", Tags: []string{"deliveries"}, Summary: "List dead letters, newest first",
			Parameters: append(deadParams(from, to), limit, cursor),
			Responses:  ok("A page", "application/json", pageSchema(&huma.Schema{Type: "object", Description: "a delivery that ended without success"})),
		},
		"GET /v1/deadletters:count": {
			OperationID: "count-deadletters", Tags: []string{"deliveries"}, Summary: "Count dead letters by what they died of",
			Description: "Those with one fingerprint have the same reason and status, and a detail that differs in words with digits at most.",
			Parameters:  deadParams(from, to), Responses: ok("The count", "application/json", ref("DeadCount")),
		},
		"GET /v1/deadletters/{id}": {
			OperationID: "get-deadletter", Tags: []string{"deliveries"}, Summary: "Get a dead letter with its event",
			Parameters: []*huma.Param{pathParamDoc("id", "such as DEAD:7"), onlyBus},
			Responses:  ok("The dead letter", "application/json", &huma.Schema{Type: "object"}),
		},
		"POST /v1/deadletters:redrive": {
			OperationID: "redrive-deadletters", Tags: []string{"deliveries"}, Summary: "Make dead letters owed again",
			Description: "A job hands over what the filter selects at the time of the call, at a rate. The deliveries keep their ids, are rendered by " +
				"their rules as these are now (a rule that was deleted: as it was when the event was routed), and their events have the extension rialtoredrive. An edited event is for one dead letter, " +
				"which the filter names. With dryRun the answer is 200 and a count, and nothing is done.",
			Parameters: []*huma.Param{onlyBus},
			RequestBody: &huma.RequestBody{Required: true, Content: jsonContent(object([]string{"filter"}, map[string]*huma.Schema{
				"filter": deadFilterSchema(), "to": text("another target; default: the same"),
				"rate":  {Type: "number", Description: "deliveries a second", Default: 100},
				"event": ref("Event"), "why": text("for people"), "dryRun": {Type: "boolean"}}))},
			Responses: jobResponses(),
		},
		"POST /v1/deadletters:discard": {
			OperationID: "discard-deadletters", Tags: []string{"deliveries"}, Summary: "Write dead letters off",
			Description: "A job discards what the filter selects at the time of the call. The job and each journey say who did it, when and why.",
			Parameters:  []*huma.Param{onlyBus},
			RequestBody: &huma.RequestBody{Required: true, Content: jsonContent(object([]string{"filter", "why"}, map[string]*huma.Schema{
				"filter": deadFilterSchema(), "why": text("at most 256 bytes"), "dryRun": {Type: "boolean"}}))},
			Responses: jobResponses(),
		},
		"POST /v1/buses/{bus}/deliveries:redrive": {
			OperationID: "redrive-deliveries", Tags: []string{"deliveries"}, Summary: "Make deliveries to a target that have ended owed again",
			Description: "A job hands over the deliveries that have ended in one way, oldest first, at a rate: what a subscriber has lost, or what was " +
				"cancelled with its rule or target. Those that end after the call are left. With dryRun the answer is 200 and a count, which looks at " +
				"100 000 events at most, and nothing is done.",
			Parameters: []*huma.Param{bus},
			RequestBody: &huma.RequestBody{Required: true, Content: jsonContent(object([]string{"filter"}, map[string]*huma.Schema{
				"filter": endedFilterSchema(), "to": text("another target; default: the same"),
				"rate": {Type: "number", Description: "deliveries a second", Default: 100}, "why": text("for people"), "dryRun": {Type: "boolean"}}))},
			Responses: jobResponses(),
		},
		"POST /v1/buses/{bus}/events/{id}:redrive": {
			OperationID: "redrive-event", Tags: []string{"deliveries"}, Summary: "Make a delivery that has ended owed again",
			Description: "It may be dead, expired, cancelled or discarded, and, if the request says so, delivered. rule and target may be left out if " +
				"the event has one delivery. If its rule was deleted, it is rendered by the rule as it was when the event was routed; if its target " +
				"was deleted, it needs to.",
			Parameters: []*huma.Param{bus, pathParamDoc("id", "of the event")},
			RequestBody: &huma.RequestBody{Required: true, Content: jsonContent(object(nil, map[string]*huma.Schema{
				"source": text("which, if several events have the id"), "rule": text(""), "target": text(""),
				"to": text("another target; default: the same"), "delivered": {Type: "boolean"}, "event": ref("Event")}))},
			Responses: map[string]*huma.Response{"202": {Description: "It is owed", Content: jsonContent(
				object([]string{"delivery"}, map[string]*huma.Schema{"delivery": text("its id, as the target sees it")}))}},
		},
		"GET /consents/{target}/{token}":  consentDoc("grant-consent-by-get"),
		"POST /consents/{target}/{token}": consentDoc("grant-consent"),
		"POST /v1/targets/{name}:enable": {
			OperationID: "enable-target", Tags: []string{"target"}, Summary: "Enable a target that was disabled",
			Description: "What was held for it is delivered by itself. What ended as a dead letter since it began to fail is counted (missed), and redrive " +
				"is the call that makes exactly that owed again. 409 if the target is not disabled.",
			Parameters: []*huma.Param{pathParamDoc("name", "of the target")},
			Responses: ok("It is enabled", "application/json", object([]string{"target", "disabledAt", "reason", "held", "missed"}, map[string]*huma.Schema{
				"target": text(""), "disabledAt": {Type: "string", Format: "date-time"}, "reason": text("why it was disabled"),
				"held":   {Type: "integer", Description: "deliveries that were parked, and are made now"},
				"missed": ref("DeadCount"),
				"redrive": object([]string{"method", "path", "body"}, map[string]*huma.Schema{
					"method": text(""), "path": text(""), "body": {Type: "object"}})})),
		},
		"POST /v1/targets/{name}:pause": {
			OperationID: "pause-target", Tags: []string{"target"}, Summary: "Attempt nothing to a target",
			Description: "Its definition says so from then on. What is owed to it is kept.",
			Parameters:  []*huma.Param{pathParamDoc("name", "of the target")}, Responses: ok("The target", "application/json", ref(kindTarget)),
		},
		"POST /v1/targets/{name}:resume": {
			OperationID: "resume-target", Tags: []string{"target"}, Summary: "Go on with a target that is paused",
			Parameters: []*huma.Param{pathParamDoc("name", "of the target")}, Responses: ok("The target", "application/json", ref(kindTarget)),
		},
		"POST /v1/buses/{bus}/events/{id}:skip": {
			OperationID: "skip-event", Tags: []string{"deliveries"}, Summary: "End a delivery that holds up its key",
			Description: "It is parked, and the first of its key at a target that keeps order. It becomes a dead letter, and the next has its turn. " +
				"rule and target may be left out if the event has one delivery.",
			Parameters: []*huma.Param{bus, pathParamDoc("id", "of the event")},
			RequestBody: &huma.RequestBody{Required: true, Content: jsonContent(object(nil, map[string]*huma.Schema{
				"source": text("which, if several events have the id"), "rule": text(""), "target": text("")}))},
			Responses: ok("It is a dead letter", "application/json", object([]string{"deadLetter"}, map[string]*huma.Schema{"deadLetter": text("its id")})),
		},
		"GET /v1/jobs": {
			OperationID: "list-jobs", Tags: []string{"deliveries"}, Summary: "List jobs, newest first", Parameters: []*huma.Param{onlyBus},
			Description: "Those that have ended are kept for 31 days, and at most 1000 of all.",
			Responses:   ok("The jobs", "application/json", object([]string{"items"}, map[string]*huma.Schema{"items": {Type: "array", Items: ref("Job")}})),
		},
		"GET /v1/jobs/{id}": {
			OperationID: "get-job", Tags: []string{"deliveries"}, Summary: "Get a job and how far it is",
			Parameters: []*huma.Param{pathParamDoc("id", "of the job"), onlyBus}, Responses: ok("The job", "application/json", ref("Job")),
		},
		"POST /v1/jobs/{id}:pause": {
			OperationID: "pause-job", Tags: []string{"deliveries"}, Summary: "Pause a job",
			Parameters: []*huma.Param{pathParamDoc("id", "of the job"), onlyBus}, Responses: ok("The job", "application/json", ref("Job")),
		},
		"POST /v1/jobs/{id}:resume": {
			OperationID: "resume-job", Tags: []string{"deliveries"}, Summary: "Go on with a job that is paused",
			Parameters: []*huma.Param{pathParamDoc("id", "of the job"), onlyBus}, Responses: ok("The job", "application/json", ref("Job")),
		},
		"POST /v1/jobs/{id}:cancel": {
			OperationID: "cancel-job", Tags: []string{"deliveries"}, Summary: "End a job",
			Description: "What it has handed over by then stays so.",
			Parameters:  []*huma.Param{pathParamDoc("id", "of the job"), onlyBus}, Responses: ok("The job", "application/json", ref("Job")),
		},
		"POST /v1/devices/{name}:disconnect": {
			OperationID: "disconnect-device", Tags: []string{"devices"}, Summary: "End the connections of a device",
			Description: "They may come back.", Parameters: []*huma.Param{pathParamDoc("name", "of the device")},
			Responses: ok("How many there were", "application/json", disconnectedSchema()),
		},
		"POST /v1/devices/{name}:block": {
			OperationID: "block-device", Tags: []string{"devices"}, Summary: "Block a device",
			Description: "Its definition says so from then on. It is refused at CONNECT, and cut off at once.",
			Parameters:  []*huma.Param{pathParamDoc("name", "of the device")}, Responses: ok("The device", "application/json", ref(kindDevice)),
		},
		"POST /v1/devices/{name}:unblock": {
			OperationID: "unblock-device", Tags: []string{"devices"}, Summary: "Let a blocked device in again",
			Parameters: []*huma.Param{pathParamDoc("name", "of the device")}, Responses: ok("The device", "application/json", ref(kindDevice)),
		},
		"POST /hooks/{source}": {
			OperationID: "receive-hook", Tags: []string{"sources"}, Summary: "Where another product sends its webhooks",
			Description: "The source of that name says who may: what is not signed as it asks for is answered with 401 or 403 and is not stored. " +
				"The answer to what is good comes after it is committed, and is what the sender expects.",
			Parameters:  []*huma.Param{pathParamDoc("source", "name of the source")},
			RequestBody: &huma.RequestBody{Content: map[string]*huma.MediaType{"*/*": {Schema: &huma.Schema{}}}},
			Responses:   map[string]*huma.Response{"200": {Description: "It is stored, or known already, or was a question that is answered"}},
		},
		"POST /v1/sources/{name}:pause": {
			OperationID: "pause-source", Tags: []string{"sources"}, Summary: "Take nothing more in from a source",
			Description: "Its definition says so from then on. Hooks are answered with 503.",
			Parameters:  []*huma.Param{pathParamDoc("name", "of the source")}, Responses: ok("The source", "application/json", ref(kindSource)),
		},
		"POST /v1/sources/{name}:resume": {
			OperationID: "resume-source", Tags: []string{"sources"}, Summary: "Go on with a source that is paused",
			Parameters: []*huma.Param{pathParamDoc("name", "of the source")}, Responses: ok("The source", "application/json", ref(kindSource)),
		},
		"POST /v1/sources/{name}:reset": {
			OperationID: "reset-source", Tags: []string{"sources"}, Summary: "Have a source begin elsewhere",
			Description: "Its position is forgotten, and it begins at start, or without it where its definition says. 409 if its type has no position.",
			Parameters:  []*huma.Param{pathParamDoc("name", "of the source")},
			RequestBody: &huma.RequestBody{Content: jsonContent(object(nil, map[string]*huma.Schema{
				"start": text("earliest, latest, or a time such as 2027-01-02T03:04:05Z")}))},
			Responses: ok("The source", "application/json", ref(kindSource)),
		},
		"GET /v1/clients": {
			OperationID: "list-clients", Tags: []string{"devices"}, Summary: "List MQTT clients",
			Description: "Those that are connected to this process, and those that were since it started, by principal and client id.",
			Parameters: []*huma.Param{queryDoc("principal", "only of this principal; empty: anonymous clients", nil), queryDoc("clientId", "only with this client id", nil),
				queryDoc("online", "only those that are connected", &huma.Schema{Type: "boolean"}), limit, cursor},
			Responses: ok("A page", "application/json", pageSchema(object([]string{"principal", "clientId", "online"}, map[string]*huma.Schema{
				"principal": text(""), "clientId": text(""), "device": text("name of the Device, if one is defined"), "online": {Type: "boolean"},
				"address": text(""), "lastSeen": {Type: "string", Format: "date-time", Description: "left out if that was before the process began"}, "reason": text("why it is offline"),
				"since": {Type: "string", Format: "date-time"}, "via": text("anonymous, password, certificate or token"), "protocol": text("3.1.1 or 5; like all that follows, only while it is online or has a session"),
				"subscriptions": {Type: "array", Items: text("a filter")}, "inFlight": {Type: "integer", Description: "messages that it has not acknowledged"},
				"queued": {Type: "integer", Description: "messages that wait for it, as far as they are counted"}, "behind": {Type: "boolean", Description: "more wait in the log than are counted"}}))),
		},
		"POST /v1/clients:disconnect": {
			OperationID: "disconnect-client", Tags: []string{"devices"}, Summary: "End the connections of an MQTT client",
			Description: "They may come back.",
			RequestBody: &huma.RequestBody{Required: true, Content: jsonContent(object([]string{"principal"}, map[string]*huma.Schema{
				"principal": text(""), "clientId": text("default: all of the principal")}))},
			Responses: ok("How many there were", "application/json", disconnectedSchema()),
		},
		"GET /v1/audit": {
			OperationID: "list-audit", Tags: []string{"operations"}, Summary: "Who changed which definition, redrove and discarded, the newest first",
			Description: "Embedded, the last 16 changes of each definition are kept; in Postgres, all of them. Entries of the kinds Redrive and Discard are " +
				"kept for 31 days, the last 10 000 of them.",
			Parameters: []*huma.Param{queryDoc("kind", "only of this kind, such as Rule", nil), queryDoc("name", "only of this name", nil), from, to, limit, cursor},
			Responses: ok("A page", "application/json", pageSchema(object([]string{"at", "action", "kind", "name", "revision"}, map[string]*huma.Schema{
				"at": {Type: "string", Format: "date-time"}, "by": text("name of the key, or anonymous; absent: the bridge itself"),
				"action": {Type: "string", Enum: []any{store.Created, store.Changed, store.Deleted}}, "kind": text(""), "bus": text("of a rule"), "name": text(""),
				"oldRevision": {Type: "integer", Description: "absent: there was none"}, "revision": {Type: "integer", Description: "of the change"},
				"requestId": text("as the answer and the log had it"),
				"detail":    {Type: "object", Description: "of a Redrive or Discard: filter and count, or source, rule and target of the event's delivery; to, why, state"}}))),
		},
		"GET /v1/ledger": {
			OperationID: "get-ledger", Tags: []string{"deliveries"}, Summary: "The account of every event and delivery",
			Parameters: []*huma.Param{queryDoc("bus", "only of this bus", nil), from, to},
			Responses: ok("The account", "application/json", object([]string{"balanced", "buses"}, map[string]*huma.Schema{
				"balanced": {Type: "boolean"}, "buses": {Type: "array", Items: &huma.Schema{Type: "object"}}})),
		},
		"POST /v1/rules:test": {
			OperationID: "test-rule", Tags: []string{"rules"}, Summary: "Try a rule on events; nothing is stored",
			Description: "A rule document, or a pattern with or without when, sql and transform. " +
				"Needs definitions:read on the bus, events:read where stored events are named, and definitions:write where a function is. At most " +
				strconv.Itoa(maxTried) + " events; functions have " + maxTriedTime.String() + " together.",
			Security: security(need{area: areaDefinitions, access: accessRead}),
			RequestBody: &huma.RequestBody{Required: true, Content: jsonContent(object(nil, map[string]*huma.Schema{
				"bus": text("of the rule and of stored events; default: the rule's, else default"), "rule": ref(kindRule),
				"pattern": {Type: "object"}, "when": text(""), "sql": text(""), "transform": {Description: "as in a rule"},
				"events": {Type: "array", Items: sent},
				"stored": {Type: "array", Items: object([]string{"id"}, map[string]*huma.Schema{"id": text("of a stored event"), "source": text("of a stored event")})},
			}))},
			Responses: ok("What the rule would do", "application/json", object([]string{"bus", "matched", "results"}, map[string]*huma.Schema{
				"bus": text(""), "matched": {Type: "integer", Description: "how many events"},
				"results": {Type: "array", Items: object([]string{"event", "matched", "explanation"}, map[string]*huma.Schema{
					"event": {Type: "object", Description: "its id, source and type"}, "position": text("of a stored event"),
					"matched": {Type: "boolean"}, "explanation": ref("Explanation"),
					"outputs": {Type: "array", Items: object(nil, map[string]*huma.Schema{"target": text(""), "output": ref("Event"),
						"error": text("why nothing could be rendered"), "omitted": {Type: "boolean", Description: "the answer has no room for it"}})}})},
				"warnings": {Type: "array", Items: &huma.Schema{Type: "object", Description: "pointer, message and fix"}}})),
		},
		"POST /v1/rules:explain": {
			OperationID: "explain-rules", Tags: []string{"rules"}, Summary: "Why the rules in force match an event, or do not",
			Description: "One rule, or all rules of the bus: those that match first, then those that nearly do, at most " + strconv.Itoa(rules.MaxExplained) + ". " +
				"Needs definitions:read on the bus, and events:read for a stored event.",
			Security: security(need{area: areaDefinitions, access: accessRead}),
			RequestBody: &huma.RequestBody{Required: true, Content: jsonContent(object(nil, map[string]*huma.Schema{
				"bus": text("default: default"), "event": sent, "id": text("of a stored event, instead of event"),
				"source": text("of the stored event"), "rule": text("only this rule"),
			}))},
			Responses: ok("Why", "application/json", object([]string{"bus", "event", "rules"}, map[string]*huma.Schema{
				"bus": text(""), "event": {Type: "object", Description: "its id, source and type"}, "position": text("of a stored event"),
				"rules":     {Type: "array", Items: ref("Explanation"), Description: "each with rule, revision and disabled"},
				"rulesMore": {Type: "integer", Description: "rules that are not listed"}})),
		},
		"GET /livez": {OperationID: "livez", Tags: []string{"operations"}, Summary: "Whether the process answers",
			Responses: ok("It does", "text/plain", plain)},
		"GET /readyz": {OperationID: "readyz", Tags: []string{"operations"}, Summary: "Whether everything works",
			Parameters: []*huma.Param{queryDoc("verbose", "list every check", &huma.Schema{Type: "boolean"})},
			Responses: map[string]*huma.Response{
				"200": {Description: "Everything works", Content: map[string]*huma.MediaType{"text/plain": {Schema: plain}}},
				"503": {Description: "Something does not", Content: map[string]*huma.MediaType{"text/plain": {Schema: plain}}}}},
		"GET /metrics": {OperationID: "metrics", Tags: []string{"operations"}, Summary: "Metrics in the format of Prometheus",
			Responses: ok("Metrics", "text/plain", plain)},
		"GET /openapi.json": {OperationID: "openapi", Tags: []string{"operations"}, Summary: "This description",
			Responses: ok("OpenAPI 3.1", "application/json", &huma.Schema{Type: "object"})},
		"GET /": {OperationID: "page", Tags: []string{"operations"}, Summary: "A page that says what listens where",
			Responses: ok("The page", "text/html", plain)},
	}
	maps.Copy(ops, commandOperations(limit, cursor))
	if a.o.Functions != nil {
		maps.Copy(ops, functionOperations())
	}
	if a.o.Links != nil {
		maps.Copy(ops, linkOperations(bus, limit, cursor, ok))
	}
	return ops
}

func reasonList() string {
	var list []string
	for _, r := range targets.Reasons() {
		list = append(list, string(r))
	}
	return strings.Join(list, ", ")
}

func deadParams(from, to *huma.Param) []*huma.Param {
	return []*huma.Param{queryDoc("bus", "only of this bus", nil), queryDoc("rule", "only of this rule", nil),
		queryDoc("target", "only of this target", nil), queryDoc("reason", "only with this reason", nil),
		queryDoc("fingerprint", "only with this fingerprint", nil), from, to}
}

func disconnectedSchema() *huma.Schema {
	return object([]string{"disconnected"}, map[string]*huma.Schema{"disconnected": {Type: "integer"}})
}

func f64(f float64) *float64 { return &f }

// showSpec answers the description of the API.
func (a *API) showSpec(w *reply, r *http.Request) error {
	if _, err := noQuery(r); err != nil {
		return err
	}
	return w.send(http.StatusOK, contentJSON, a.spec)
}

// consentDoc describes what the far side of a target calls to agree.
func consentDoc(id string) *huma.Operation {
	return &huma.Operation{
		OperationID: id, Tags: []string{"target"}, Summary: "Agree to be sent events",
		Description: "Where a target that has asked for it (handshake) takes the consent of its far side, which knows the token. The header " +
			"WebHook-Allowed-Rate says how many requests a minute it allows.",
		Parameters: []*huma.Param{pathParamDoc("target", "name of the target"), pathParamDoc("token", "what the far side was sent")},
		Responses:  map[string]*huma.Response{"204": {Description: "Events are sent from now on"}},
	}
}
