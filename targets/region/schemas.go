// SPDX-License-Identifier: Apache-2.0

package region

import (
	"sync"

	"github.com/rialto-bridge/rialto/schema"
)

// secretSchema is a secret.Source.
const secretSchema = `{
      "type": "object",
      "minProperties": 1,
      "maxProperties": 1,
      "additionalProperties": false,
      "properties": {"ref": {"type": "string"}, "value": {"type": "string", "writeOnly": true}}
    }`

// RegionSchema is the JSON Schema of a Region document.
const RegionSchema = `{
  "type": "object",
  "description": "Another Rialto, which links forward to.",
  "additionalProperties": false,
  "required": ["name", "url", "key"],
  "properties": {
    "kind": {"const": "Region"},
    "name": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"},
    "description": {"type": "string", "maxLength": 4096},
    "labels": {"type": "object", "maxProperties": 64, "additionalProperties": {"type": "string", "maxLength": 256}},
    "url": {"type": "string", "minLength": 1, "maxLength": 2048, "description": "Of its HTTP API, such as https://eu.example.com; http:// only to this host or a private address."},
    "key": ` + secretSchema + `,
    "tls": {
      "type": "object",
      "description": "What differs from TLS 1.2 or later with the certificates of the system.",
      "additionalProperties": false,
      "properties": {
        "ca": ` + secretSchema + `,
        "certificate": ` + secretSchema + `,
        "key": ` + secretSchema + `,
        "serverName": {"type": "string", "minLength": 1, "maxLength": 253, "description": "The name that its certificate must have; default: that of the URL."}
      }
    },
    "bandwidth": {"type": ["string", "integer"], "description": "Bytes a second that all links to it may send together, such as 1MiB, from 1KiB to 10GiB; default: no limit."},
    "paused": {"type": "boolean", "default": false, "description": "No link to it forwards; the log keeps what waits, as long as retention allows."},
    "revision": {}, "createdAt": {}, "updatedAt": {}, "status": {}
  }
}`

// LinkSchema is the JSON Schema of a Link document.
const LinkSchema = `{
  "type": "object",
  "description": "Forwards a bus, or what a pattern takes of it, to a bus of a region.",
  "additionalProperties": false,
  "required": ["name", "region"],
  "properties": {
    "kind": {"const": "Link"},
    "name": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"},
    "description": {"type": "string", "maxLength": 4096},
    "labels": {"type": "object", "maxProperties": 64, "additionalProperties": {"type": "string", "maxLength": 256}},
    "region": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", "description": "The region it forwards to."},
    "bus": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", "default": "default", "description": "The bus here."},
    "to": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", "description": "The bus there; default: the one of the same name."},
    "pattern": {"type": "object", "minProperties": 1, "description": "What is forwarded, as in a rule; default: everything."},
    "when": {"type": "string", "minLength": 1, "description": "An expression that must be true as well; as in a rule."},
    "transform": {"type": ["object", "string"], "description": "What is forwarded instead of the event's own data; as in a target of a rule."},
    "ordering": {"enum": ["none", "log"], "default": "none", "description": "none: after a cut fresh events go before those that have waited. log: strictly in the order of the log."},
    "urgent": {"type": "object", "minProperties": 1, "description": "A pattern; what it takes of what is forwarded goes before all else. Not with ordering: log."},
    "start": {"type": "string", "default": "latest", "description": "Where a new link begins: latest, earliest, or a time such as 2027-01-02T03:04:05Z."},
    "paused": {"type": "boolean", "default": false, "description": "Nothing is forwarded; the log keeps what waits, as long as retention allows."},
    "revision": {}, "createdAt": {}, "updatedAt": {}, "status": {}
  }
}`

// errorSchema is a LinkError.
const errorSchema = `{"type": "object", "required": ["message", "at"], "properties": {"message": {"type": "string"}, "at": {"type": "string", "format": "date-time"}}}`

// statesSchema is a State.
const statesSchema = `{"enum": ["connecting", "running", "waiting", "refused", "standby", "paused", "failing"]}`

// laneSchema is a LaneAccount.
const laneSchema = `{
      "type": "object",
      "properties": {
        "from": {"type": "integer", "description": "The first sequence that the lane has to do with."},
        "covered": {"type": "integer", "description": "Sequences from there on that need no more work: the sum of all that follows."},
        "forwarded": {"type": "integer", "description": "Stored there."},
        "known": {"type": "integer", "description": "Were there already, such as after a crash of either side."},
        "filtered": {"type": "integer", "description": "The pattern does not take them."},
        "looped": {"type": "integer", "description": "Have been there before they came here."},
        "refused": {"type": "integer", "description": "Can never be stored there."},
        "failed": {"type": "integer", "description": "Could not be transformed."},
        "dropped": {"type": "integer", "description": "Retention took them before they were forwarded."},
        "gaps": {"type": "integer", "description": "No event stands there: it was lost to damage."},
        "urgent": {"type": "integer", "description": "Go the other way: they are urgent."},
        "others": {"type": "integer", "description": "Of the urgent lane: all that is not urgent."}
      }
    }`

// LinkStatusSchema is the JSON Schema of a LinkStatus.
const LinkStatusSchema = `{
  "type": "object",
  "readOnly": true,
  "description": "Where the link stands on this node.",
  "required": ["state", "since", "region"],
  "properties": {
    "state": ` + statesSchema + `,
    "since": {"type": "string", "format": "date-time"},
    "error": ` + errorSchema + `,
    "region": {"type": "string"},
    "instance": {"type": "string", "description": "Of the other Rialto, as it said last."},
    "lag": {
      "type": "object",
      "properties": {
        "events": {"type": "integer", "description": "Sequences of the log that are not done."},
        "seconds": {"type": "number", "description": "Age of the oldest of them."}
      }
    },
    "rate": {"type": "number", "description": "Events stored there a second, over the last minute."},
    "bytesPerSecond": {"type": "number", "description": "On the wire, over the last minute."},
    "inFlight": {"type": "integer", "description": "Events that were sent and are not acknowledged yet."},
    "gaps": {"type": "integer", "description": "Stretches of the log that wait behind what is fresh."},
    "epoch": {"type": "string", "description": "Names one life of the link, up to a reset."},
    "account": {
      "type": "object",
      "properties": {
        "main": ` + laneSchema + `,
        "urgent": ` + laneSchema + `,
        "pending": {"type": "integer"},
        "lost": {"type": "integer", "description": "Sequences that the other side once had, has lost, and that are no longer here."},
        "difference": {"type": "integer", "description": "What does not add up; other than 0 it is a bug."}
      }
    }
  }
}`

// RegionStatusSchema is the JSON Schema of a RegionStatus.
const RegionStatusSchema = `{
  "type": "object",
  "readOnly": true,
  "description": "How the links to it stand on this node.",
  "required": ["state", "links", "connected"],
  "properties": {
    "state": {"enum": ["idle", "connecting", "running", "waiting", "refused", "standby", "paused", "failing"]},
    "links": {"type": "integer"},
    "connected": {"type": "integer", "description": "Of the links, those with a connection."},
    "instance": {"type": "string"},
    "bytesPerSecond": {"type": "number"},
    "error": ` + errorSchema + `
  }
}`

// forms check documents. They are compiled when the first is read.
var (
	regionForm = sync.OnceValue(func() *schema.Form { return mustForm(RegionSchema) })
	linkForm   = sync.OnceValue(func() *schema.Form { return mustForm(LinkSchema) })
)

func mustForm(text string) *schema.Form {
	f, err := schema.CompileForm([]byte(text))
	if err != nil {
		panic("region: schema: " + err.Error()) // it is a constant
	}
	return f
}
