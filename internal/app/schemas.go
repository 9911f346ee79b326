// SPDX-License-Identifier: Apache-2.0

package app

import (
	"encoding/json"
	"fmt"

	"github.com/rialto-bridge/rialto/targets"
)

// The JSON Schemas (2020-12) of the definitions, for /openapi.json. They describe; what checks a document is its parser,
// which says more. TestSchemasAgree holds the two together.

const busSchema = `{
  "type": "object",
  "description": "A named log with its own retention.",
  "additionalProperties": false,
  "properties": {
    "kind": {"const": "Bus"},
    "name": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"},
    "description": {"type": "string"},
    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    "retention": {
      "type": "object",
      "additionalProperties": false,
      "properties": {
        "maxAge": {"type": "string", "description": "How long events are kept, such as 168h.", "default": "168h"},
        "maxBytes": {"type": ["string", "integer"], "description": "How much they may take, such as 20GiB; default: the bus's share of half of the disk."}
      }
    },
    "dedupWindow": {"type": "string", "description": "How long source and id of an event are remembered; 0s switches it off.", "default": "2m"},
    "schemaPolicy": {"const": "off"}
  }
}`

const ruleSchema = `{
  "type": "object",
  "description": "Picks events of a bus by a pattern and sends them to targets.",
  "additionalProperties": false,
  "required": ["pattern", "targets"],
  "properties": {
    "kind": {"const": "Rule"},
    "name": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"},
    "bus": {"type": "string"},
    "description": {"type": "string"},
    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    "disabled": {"type": "boolean", "description": "A disabled rule matches nothing."},
    "pattern": {"type": "object", "description": "Over the CloudEvent in JSON form; see docs/patterns.md.", "minProperties": 1},
    "when": {"type": "string", "minLength": 1, "description": "An expression that must be true as well, once the pattern has matched; see docs/patterns.md."},
    "sql": {"type": "string", "minLength": 1, "description": "A CESQL expression over the attributes that must hold as well."},
    "targets": {
      "type": "array",
      "minItems": 1,
      "items": {
        "type": "object",
        "additionalProperties": false,
        "required": ["target"],
        "properties": {
          "target": {"type": "string"},
          "transform": {"description": "What is delivered instead of the event's own data.", "type": ["object", "string"]}
        }
      }
    }
  }
}`

const deviceSchema = `{
  "type": "object",
  "description": "An MQTT client that may connect.",
  "additionalProperties": false,
  "required": ["password"],
  "properties": {
    "kind": {"const": "Device"},
    "name": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"},
    "description": {"type": "string"},
    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    "principal": {"type": "string", "description": "The user name it connects with; default: the name."},
    "clientIds": {"type": "array", "items": {"type": "string"}, "description": "Client ids it may use, * stands for any text; default: any."},
    "password": {
      "type": "object",
      "description": "One of: value (stored as a salted hash), hash, ref (env:NAME or file:PATH).",
      "minProperties": 1,
      "maxProperties": 1,
      "additionalProperties": false,
      "properties": {"value": {"type": "string", "writeOnly": true}, "hash": {"type": "string"}, "ref": {"type": "string"}}
    }
  }
}`

// targetSchema describes a target of any of the kinds there are; what its config holds is the kind's own schema.
func targetSchema(catalog *targets.Catalog) []byte {
	configs := make([]json.RawMessage, 0, len(catalog.Names()))
	for _, name := range catalog.Names() {
		if k, ok := catalog.Lookup(name); ok {
			configs = append(configs, withoutRefs(k.ConfigSchema))
		}
	}
	list, err := json.Marshal(map[string]any{
		"type": "object", "description": "A way out: where and how deliveries are made.", "additionalProperties": false,
		"required": []string{"type", "config"},
		"properties": map[string]any{
			"kind":        map[string]any{"const": kindTarget},
			"name":        map[string]any{"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"},
			"description": map[string]any{"type": "string"},
			"labels":      map[string]any{"type": "object", "additionalProperties": map[string]any{"type": "string"}},
			"type":        map[string]any{"enum": catalog.Names()},
			"config":      map[string]any{"anyOf": configs},
			"delivery": json.RawMessage(`{"type":"object","additionalProperties":false,"properties":{
				"concurrency":{"type":"integer","minimum":1,"maximum":256,"default":8,"description":"Attempts at the same time."},
				"timeout":{"type":"string","default":"15s","description":"Of one attempt, 1s to 60s."},
				"retry":{"type":"object","additionalProperties":false,"properties":{
					"maxAttempts":{"type":"integer","minimum":1},
					"maxAge":{"type":"string"},
					"schedule":{"type":"array","items":{"type":"string"},"description":"Waits after the first, second, ... failure; the last one repeats; empty = no retries."}}}}}`),
		},
	})
	if err != nil {
		panic(fmt.Sprintf("app: schema of targets: %v", err)) // it is made of constants
	}
	return list
}

// withoutRefs returns a config schema with what it refers to put in place: inside another document its references
// would point at nothing.
func withoutRefs(schema []byte) json.RawMessage {
	var root map[string]any
	if err := json.Unmarshal(schema, &root); err != nil {
		panic(fmt.Sprintf("app: config schema: %v", err)) // the catalog has read it
	}
	defs, _ := root["$defs"].(map[string]any)
	delete(root, "$defs")
	delete(root, "$schema")
	var inline func(v any) any
	inline = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			if name, ok := v["$ref"].(string); ok && len(name) > len("#/$defs/") {
				return inline(defs[name[len("#/$defs/"):]])
			}
			for k := range v {
				v[k] = inline(v[k])
			}
		case []any:
			for i := range v {
				v[i] = inline(v[i])
			}
		}
		return v
	}
	b, err := json.Marshal(inline(root))
	if err != nil {
		panic(fmt.Sprintf("app: config schema: %v", err))
	}
	return b
}
