// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/sources"
	"github.com/rialto-bridge/rialto/sources/mqttclient"
	"github.com/rialto-bridge/rialto/sources/schedule"
	"github.com/rialto-bridge/rialto/sources/webhook"
	"github.com/rialto-bridge/rialto/targets/outbound"
	"github.com/rialto-bridge/rialto/web/api"
)

// nodeName is this process among those that share the state plane. The embedded one is shared with nobody.
const nodeName = "rialto"

// SourceKinds is the list of kinds of source of this process.
func SourceKinds() *sources.Catalog {
	return sources.NewCatalog(mqttclient.Kind(), schedule.Kind(), webhook.Kind())
}

// startSources makes what runs the sources. Their definitions set them going.
func (a *App) startSources(ctx context.Context) error {
	nc, err := a.log.Connect()
	if err != nil {
		return err
	}
	a.undo("connection of the sources", func(context.Context) error { nc.Close(); return nil })
	leases, err := eventlog.OpenLeases(ctx, nc, eventlog.LeaseOptions{Node: nodeName})
	if err != nil {
		return err
	}
	positions, err := sources.OpenPositions(ctx, nc, "sources")
	if err != nil {
		return err
	}
	client := outbound.Client(a.guard, outbound.Options{})
	a.sources, err = sources.NewSupervisor(sources.Options{
		Catalog: a.sourceKinds, Ingester: a.bridge, Leases: leases, Positions: positions, Limits: event.Limits{MaxData: a.o.MaxData},
		Env: func(*sources.Definition) sources.Env {
			return sources.Env{HTTP: client, Dial: a.guard.DialContext, Secrets: a.vault.resolve}
		},
		Logger: a.o.Logger, Registerer: a.registry})
	if err != nil {
		return err
	}
	a.undo("sources", func(ctx context.Context) error {
		defer client.CloseIdleConnections()
		return a.sources.Close(ctx)
	})
	return nil
}

// sourceKind is the kind of definition.
func sourceKind(catalog *sources.Catalog, s *sources.Supervisor) api.Kind {
	return api.Kind{
		Name: kindSource, Plural: "sources", Schema: sourceSchema(catalog),
		Doc: "A source is a way in beside HTTP ingest and MQTT: where events come from.",
		Normalize: func(_ context.Context, doc, _ []byte) ([]byte, error) {
			return checked(doc, func(doc []byte) (*sources.Definition, error) { return sources.ParseDefinition(doc, catalog) })
		},
		Refs: sourceRefs,
		Status: func(name string, _ bool) any {
			st, ok := s.Status(name)
			if !ok {
				return nil
			}
			return st
		},
	}
}

// sourceRefs is the bus that a source sends to.
func sourceRefs(doc []byte) []api.Ref {
	var d struct {
		Bus string `json:"bus"`
	}
	if json.Unmarshal(doc, &d) != nil || d.Bus == "" {
		return nil // what it is then always exists
	}
	return []api.Ref{{Kind: kindBus, Name: d.Bus, Pointer: "/bus"}}
}

// sourceSchema describes a source of any of the kinds there are; what its config holds is the kind's own schema.
func sourceSchema(catalog *sources.Catalog) []byte {
	var schema map[string]any
	err := json.Unmarshal(catalog.Schema(), &schema)
	var configs []json.RawMessage
	for _, name := range catalog.Names() {
		if k, ok := catalog.Lookup(name); ok {
			configs = append(configs, withoutRefs(k.ConfigSchema))
		}
	}
	properties, _ := schema["properties"].(map[string]any)
	delete(schema, "$schema")
	schema["required"] = []string{"type"}
	properties["config"] = map[string]any{"anyOf": configs}
	properties["status"] = json.RawMessage(sourceStatusSchema)
	for _, name := range []string{"revision", "createdAt", "updatedAt"} {
		delete(properties, name)
	}
	b, err2 := json.Marshal(schema)
	if err != nil || err2 != nil {
		panic(fmt.Sprintf("app: schema of sources: %v %v", err, err2)) // it is made of constants
	}
	return b
}

// The API takes the supervisor as it is.
var _ api.Sources = (*sources.Supervisor)(nil)

// sourceStatusSchema describes sources.Status.
const sourceStatusSchema = `{
  "type": "object",
  "readOnly": true,
  "required": ["state", "since", "rate", "stored", "duplicates", "refused", "rejected"],
  "properties": {
    "state": {"enum": ["starting", "running", "standby", "failing", "paused", "stopped"], "description": "standby: another node has it; failing: it ended and is tried again"},
    "since": {"type": "string", "format": "date-time"},
    "node": {"type": "string", "description": "that has the source, if it is fetched from upstream"},
    "hook": {"type": "string", "description": "the path that it is sent to"},
    "position": {"type": "string", "description": "where it is upstream, in words of its type"},
    "lag": {"type": "integer", "description": "events that are known to wait upstream"},
    "rate": {"type": "number", "description": "events stored a second, over the last minute"},
    "stored": {"type": "integer", "description": "events since the process began"},
    "duplicates": {"type": "integer", "description": "events that were known already"},
    "refused": {"type": "integer", "description": "events that can never be stored; an event io.rialto.source.refused stands for each, but for bodies of hooks that were too large to be verified"},
    "rejected": {"type": "integer", "description": "requests that were not proved, answered with 401 or 403"},
    "lastEvent": {"type": "string", "format": "date-time"},
    "lastError": {"type": "object", "description": "why it ended last; of a hook, why the last request was not taken (413, 500, 503, 507), until one is", "properties": {"at": {"type": "string", "format": "date-time"}, "message": {"type": "string"}}}
  }
}`
