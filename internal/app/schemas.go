// SPDX-License-Identifier: Apache-2.0

package app

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/targets"
)

// The JSON Schemas (2020-12) of the definitions, for /openapi.json. They describe; what checks a document is its parser,
// which says more. TestSchemasAgree holds the two together.

var busSchema = fmt.Appendf(nil, `{
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
        "maxBytes": {"type": ["string", "integer"], "description": "How much they may take, such as 20GiB; default: the bus's share of half of the store."},
        "overflow": {"enum": ["oldest", "newest", "priority"], "description": "What happens when it is full: the oldest events go; or what a link or a delivery has still to read stays, and new events are refused; or the same, and the last room is for events that match priority.", "default": "oldest"},
        "priority": {"type": "object", "description": "The pattern of overflow priority, as rules have it.", "minProperties": 1},
        "reserve": {"type": "string", "pattern": "^([1-9]|[1-8][0-9]|90)%%$", "description": "The share of maxBytes that overflow priority keeps for what matches.", "default": "20%%"}
      }
    },
    "dedupWindow": {"type": "string", "description": "How long source and id of an event are remembered; 0s switches it off.", "default": "2m"},
    "schemaPolicy": {"enum": ["off", "warn", "quarantine", "reject"], "description": "What becomes of an event that does not fit its schema.", "default": "off"},
    "schemaSample": {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "description": "The share of the events that warn looks at.", "default": 1},
    "quarantineBus": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", "description": "Where quarantine stores what does not fit; made when it is not there.", "default": "quarantine"},
    "schemaDiscovery": {"type": "boolean", "description": "Whether schemas are made of the events that are seen.", "default": false},
    "status": %s
  }
}`, busStatusSchema)

// busStatusSchema describes bridge.BusStatus.
var busStatusSchema = fmt.Sprintf(`{
  "type": "object",
  "readOnly": true,
  "description": "What the bus holds.",
  "required": ["state", "bytes", "maxBytes", "events", "refused"],
  "properties": {
    "state": {"enum": ["%s"], "description": "Whether it takes events, only those that match its priority, or none."},
    "bytes": {"type": "integer", "description": "What it takes on disk."},
    "maxBytes": {"type": "integer", "description": "What it may take: its own limit, or its share of the store."},
    "events": {"type": "integer"},
    "first": {"type": "object", "description": "The oldest event; not in lists.", "properties": {"position": {"type": "string"}, "time": {"type": "string", "format": "date-time"}}},
    "last": {"type": "object", "description": "The newest event; not in lists.", "properties": {"position": {"type": "string"}, "time": {"type": "string", "format": "date-time"}}},
    "refused": {"type": "object", "description": "Events that were refused since the start of the process, by reason.", "additionalProperties": {"type": "integer"}}
  }
}`, strings.Join(bridge.BusStates(), `", "`))

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
          "transform": {"description": "What is delivered instead of the event's own data: original, path, constant, template, or the function that makes it.", "type": ["object", "string"]}
        }
      }
    }
  }
}`

// accessSchema is what devices and policies have in common.
const accessSchema = `    "access": {
      "type": "object",
      "description": "What it may do: topic filters with ${principal}, ${clientid} and ${attr.NAME}.",
      "additionalProperties": false,
      "properties": {
        "connect": {"type": "array", "maxItems": 64, "items": {"type": "string", "minLength": 1, "maxLength": 1024}, "description": "Client ids, * stands for any text; default: any."},
        "publish": {"type": "array", "maxItems": 64, "items": {"type": "string", "minLength": 1, "maxLength": 1024}, "description": "Default: nothing."},
        "subscribe": {"type": "array", "maxItems": 64, "items": {"type": "string", "minLength": 1, "maxLength": 1024}, "description": "Default: nothing."},
        "receive": {"type": "array", "maxItems": 64, "items": {"type": "string", "minLength": 1, "maxLength": 1024}, "description": "Default: as subscribe."},
        "retain": {"type": "array", "maxItems": 64, "items": {"type": "string", "minLength": 1, "maxLength": 1024}, "description": "Default: as publish."},
        "will": {"type": "array", "maxItems": 64, "items": {"type": "string", "minLength": 1, "maxLength": 1024}, "description": "Default: as publish."},
        "publishExcept": {"type": "array", "maxItems": 64, "items": {"type": "string", "minLength": 1, "maxLength": 1024}, "description": "Not to be published to, whatever the lists say; default: nothing."},
        "subscribeExcept": {"type": "array", "maxItems": 64, "items": {"type": "string", "minLength": 1, "maxLength": 1024}, "description": "Not to be subscribed to or received; default: nothing."},
        "latestFirst": {"type": "array", "maxItems": 64, "items": {"type": "string", "minLength": 1, "maxLength": 1024}, "description": "No right: subscriptions to these get new messages before those that they are behind with."}
      }
    },
    "publishRate": {
      "type": "object",
      "description": "How fast each of its connections may publish; default: no limit.",
      "additionalProperties": false,
      "required": ["perSecond"],
      "properties": {
        "perSecond": {"type": "number", "minimum": 0.001, "maximum": 100000},
        "burst": {"type": "integer", "minimum": 0, "maximum": 100000, "description": "Messages at once after a quiet time; default: perSecond, rounded up."}
      }
    }`

const deviceSchema = `{
  "type": "object",
  "description": "An MQTT client: how it logs in, and what it may do.",
  "additionalProperties": false,
  "properties": {
    "kind": {"const": "Device"},
    "name": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"},
    "description": {"type": "string"},
    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    "principal": {"type": "string", "minLength": 1, "maxLength": 256, "description": "Who it is: its user name, or what its certificate or token says; default: the name."},
    "clientIds": {"type": "array", "maxItems": 64, "items": {"type": "string", "minLength": 1, "maxLength": 256}, "description": "Client ids it may use, * stands for any text; default: any, for certificates the principal."},
    "password": {
      "type": "object",
      "description": "One of: value (stored as a salted hash), hash (argon2id or bcrypt), ref (env:NAME or file:PATH). Without, it needs a certificate or a token.",
      "minProperties": 1,
      "maxProperties": 1,
      "additionalProperties": false,
      "properties": {"value": {"type": "string", "writeOnly": true}, "hash": {"type": "string"}, "ref": {"type": "string"}}
    },
    "attributes": {"type": "object", "maxProperties": 64, "additionalProperties": {"type": "string", "maxLength": 256}, "description": "For ${attr.NAME} in access."},
    "policy": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", "description": "Name of the DevicePolicy; default: the one named default, if there is one, else everything is allowed."},
` + accessSchema + `,
    "blocked": {"type": "boolean", "default": false, "description": "It is refused, and cut off at once."},
    "status": {
      "type": "object",
      "readOnly": true,
      "description": "The clients that are this device, as this process knows them.",
      "required": ["online", "clients"],
      "properties": {
        "online": {"type": "boolean"},
        "clients": {"type": "array", "items": {"type": "object"}},
        "more": {"type": "integer", "description": "Clients that are not listed."}
      }
    }
  }
}`

const policySchema = `{
  "type": "object",
  "description": "What MQTT clients may do.",
  "additionalProperties": false,
  "anyOf": [{"required": ["access"]}, {"required": ["publishRate"]}],
  "properties": {
    "kind": {"const": "DevicePolicy"},
    "name": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"},
    "description": {"type": "string"},
    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
` + accessSchema + `
  }
}`

const issuerSchema = `{
  "type": "object",
  "description": "Vouches for MQTT clients with signed tokens (JWT).",
  "additionalProperties": false,
  "required": ["issuer", "audience", "algorithms", "keys"],
  "properties": {
    "kind": {"const": "TokenIssuer"},
    "name": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"},
    "description": {"type": "string"},
    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    "issuer": {"type": "string", "minLength": 1, "maxLength": 1024, "description": "What the claim iss must be."},
    "audience": {"type": "array", "minItems": 1, "maxItems": 64, "items": {"type": "string", "minLength": 1}, "description": "The claim aud must have one of these."},
    "algorithms": {"type": "array", "minItems": 1, "items": {"enum": ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "HS256", "HS384", "HS512"]}, "description": "Of signatures; no other is accepted."},
    "keys": {
      "type": "object",
      "description": "One of: pem (PUBLIC KEY or CERTIFICATE blocks), jwks (a JSON Web Key Set), jwksFile (the path of one, which is read again when it changes), jwksUrl (where one is published), discovery (true: the issuer's OpenID configuration says where), secret (for HS256, HS384 and HS512).",
      "minProperties": 1,
      "maxProperties": 1,
      "additionalProperties": false,
      "properties": {
        "pem": {"type": "string", "pattern": "BEGIN"},
        "jwks": {"type": "object", "required": ["keys"]},
        "jwksFile": {"type": "string", "pattern": "^/"},
        "jwksUrl": {"type": "string", "pattern": "^https?://"},
        "discovery": {"const": true},
        "secret": {"type": "object", "required": ["ref"], "additionalProperties": false, "properties": {"ref": {"type": "string", "description": "env:NAME or file:PATH, of 32 bytes at least"}}}
      }
    },
    "clockSkew": {"type": "string", "default": "30s", "description": "How far clocks may be apart, 0s to 5m."},
    "principalClaim": {"type": "string", "default": "sub", "description": "The claim that says who the client is."},
    "clientIdClaim": {"type": "string", "description": "The claim that must be the client id; default: none."},
    "attributeClaims": {"type": "object", "maxProperties": 64, "additionalProperties": {"type": "string", "minLength": 1}, "description": "The claims that become attributes, by attribute."},
    "policy": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", "description": "Name of the DevicePolicy; default: the one named default, if there is one, else everything is allowed."}
  }
}`

const mappingSchema = `{
  "type": "object",
  "description": "Which events the publishes to some MQTT topics become. {1}, {2}, ... stand for what the wildcards of the filter match; there are {topic}, {clientid} and {principal} too.",
  "additionalProperties": false,
  "required": ["filter"],
  "properties": {
    "kind": {"const": "TopicMapping"},
    "name": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"},
    "description": {"type": "string"},
    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    "filter": {"type": "string", "minLength": 1, "maxLength": 1024, "pattern": "^[^$]", "description": "A topic filter. Of several that match a topic the most specific counts."},
    "bus": {"type": "string", "default": "devices"},
    "type": {"type": "string", "maxLength": 1024, "description": "Default: io.rialto.mqtt.publish."},
    "subject": {"type": "string", "maxLength": 1024, "description": "Default: the topic."},
    "extensions": {"type": "object", "maxProperties": 32, "propertyNames": {"pattern": "^[a-z0-9]{1,20}$"}, "additionalProperties": {"type": "string", "minLength": 1, "maxLength": 1024}},
    "subjectLevels": {"type": "integer", "minimum": 0, "maximum": 8, "default": 8, "description": "Levels of the topic by which events are found fast."},
    "lane": {"enum": ["up", "down"], "default": "up", "description": "down: they are messages to devices. They are on no bus, and reach their subscribers before what comes from devices."},
    "device": {"type": "string", "maxLength": 1024, "description": "With lane down: the device that the messages are for, such as {1}. They are commands to it then, and nobody else gets them."},
    "decode": {"const": "sparkplug", "description": "The payloads are Sparkplug B: rules and readers see them as JSON. MQTT subscribers get them as they were published."}
  },
  "allOf": [
    {
      "if": {"properties": {"lane": {"const": "down"}}, "required": ["lane"]},
      "then": {"properties": {"bus": false, "subjectLevels": false, "decode": false}},
      "else": {"properties": {"device": false}}
    },
    {"if": {"required": ["device"]}, "then": {"properties": {"type": false, "subject": false, "extensions": false}}}
  ]
}`

// deliverySchema describes how a lane treats its target.
const deliverySchema = `{
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "concurrency": {"type": "integer", "minimum": 1, "maximum": 256, "default": 32, "description": "Attempts at the same time."},
    "timeout": {"type": "string", "default": "15s", "description": "Of one attempt, 1s to 60s."},
    "rateLimit": {
      "type": "object",
      "description": "How fast attempts may begin; default: no limit. To wait for it is no attempt.",
      "additionalProperties": false,
      "required": ["perSecond"],
      "properties": {
        "perSecond": {"type": "number", "minimum": 0.001, "maximum": 100000},
        "burst": {"type": "integer", "minimum": 1, "maximum": 100000, "description": "Attempts at once after a quiet time, at least a hundredth of perSecond; default: perSecond, rounded up."}
      }
    },
    "breaker": {
      "type": "object",
      "description": "When a failing target is left alone. What comes meanwhile waits, and that is no attempt.",
      "additionalProperties": false,
      "properties": {
        "enabled": {"type": "boolean", "default": true},
        "window": {"type": "string", "default": "5m", "description": "What is looked at, 1s to 1h."},
        "minAttempts": {"type": "integer", "minimum": 1, "maximum": 10000, "default": 10, "description": "Fewer in the window say nothing."},
        "failurePercent": {"type": "integer", "minimum": 1, "maximum": 100, "default": 70, "description": "If so many have failed it opens."},
        "open": {"type": "string", "default": "30s", "description": "How long the first time, 100ms to 1h; then twice as long each time."},
        "maxOpen": {"type": "string", "default": "10m", "description": "How long at most."}
      }
    },
    "ordering": {"enum": ["none", "key"], "default": "none", "description": "key: events with the same key are delivered in the order in which they were stored, one at a time."},
    "orderBy": {"type": "string", "maxLength": 4096, "description": "What the key of an event is: partitionkey, subject, source, or an expression over the event; default: the first of these three that it has. An event without one has no order."},
    "onFailure": {"enum": ["skip", "block"], "default": "skip", "description": "With ordering: key. skip: what fails for good is a dead letter, and the next of its key has its turn. block: it is tried on, and its key waits."},
    "retry": {
      "type": "object",
      "additionalProperties": false,
      "not": {"required": ["schedule", "exponential"]},
      "properties": {
        "maxAttempts": {"type": "integer", "minimum": 1, "maximum": 1000, "description": "All attempts together; default: one more than schedule has waits, 10 with exponential."},
        "maxAge": {"type": "string", "description": "No attempt later than this after the first; default: no such limit."},
        "schedule": {"type": "array", "maxItems": 100, "items": {"anyOf": [{"type": "string"}, {"const": 0}]}, "description": "Waits after the first, second, ... failure; the last one repeats; 0 = at once, empty = no retries."},
        "exponential": {
          "type": "object",
          "description": "Waits that grow, instead of a schedule.",
          "additionalProperties": false,
          "properties": {
            "initial": {"type": "string", "default": "5s", "description": "After the first failure."},
            "factor": {"type": "number", "minimum": 1, "maximum": 100, "default": 2},
            "max": {"type": "string", "default": "12h", "description": "No wait is longer, jitter aside."},
            "jitter": {"type": "number", "minimum": 0, "maximum": 1, "default": 0.2, "description": "How far a wait may be off by chance, as a share of it."}
          }
        }
      }
    },
    "status": {
      "type": "object",
      "description": "What statuses of answers mean, where that differs from the default. Each may stand in one list.",
      "additionalProperties": false,
      "properties": {
        "permanent": {"type": "array", "maxItems": 64, "items": {"type": "integer", "minimum": 400, "maximum": 599}, "description": "Dead letter at once."},
        "retry": {"type": "array", "maxItems": 64, "items": {"type": "integer", "minimum": 400, "maximum": 599}, "description": "Tried again."},
        "disable": {"type": "array", "maxItems": 64, "items": {"type": "integer", "minimum": 400, "maximum": 499, "not": {"enum": [408, 425, 429]}}, "default": [410], "description": "Dead letter at once, and the target is disabled."}
      }
    }
  }
}`

// targetStatusSchema describes bridge.TargetStatus.
var targetStatusSchema = fmt.Sprintf(`{
  "type": "object",
  "readOnly": true,
  "description": "Where the target stands, and what it is owed.",
  "required": ["state", "live", "parked"],
  "properties": {
    "state": {"enum": ["%s"]},
    "since": {"type": "string", "format": "date-time"},
    "reason": {"type": "string"},
    "live": {"type": "integer", "description": "Deliveries waiting in memory or under way."},
    "parked": {"type": "integer", "description": "Deliveries waiting on disk."},
    "ranged": {"type": "integer", "description": "Of those, the ones that have no record of their own yet, because so many wait."},
    "blockedKeys": {"type": "integer", "description": "With ordering: key, how many keys wait because their first delivery has failed."},
    "blocked": {"type": "array", "description": "Some of them, the oldest first; not in lists.", "items": {"type": "object", "properties": {
      "bus": {"type": "string"}, "eventId": {"type": "string"}, "position": {"type": "string"}, "rule": {"type": "string"}, "attempts": {"type": "integer"},
      "nextTry": {"type": "string", "format": "date-time"}, "followers": {"type": "integer", "description": "Deliveries that wait for it, up to 1000."}}}},
    "nextDue": {"type": "string", "format": "date-time", "description": "When the next of them is tried; absent while none will be."},
    "warnings": {"type": "array", "items": {"type": "object", "properties": {"pointer": {"type": "string"}, "message": {"type": "string"}}}, "description": "What its owner should know, such as that certificates are not verified."}
  }
}`, strings.Join(bridge.TargetStates(), `", "`))

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
			"paused":      map[string]any{"type": "boolean", "default": false, "description": "Nothing is attempted; what is owed is kept."},
			"delivery":    json.RawMessage(deliverySchema),
			"status":      json.RawMessage(targetStatusSchema),
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
