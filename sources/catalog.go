// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/schema"
)

// Catalog is the kinds of source that a process knows. It is immutable and safe for concurrent use.
type Catalog struct {
	kinds  map[string]entry
	names  []string // sorted
	schema []byte   // of a Source document
	form   *schema.Form
}

type entry struct {
	Kind
	form *schema.Form
}

// NewCatalog returns a catalog of kinds. It panics when two have one name, or when a ConfigSchema is not a JSON Schema of
// its own (references to elsewhere are never loaded): both are errors of the program.
func NewCatalog(kinds ...Kind) *Catalog {
	c := &Catalog{kinds: make(map[string]entry, len(kinds))}
	for _, k := range kinds {
		if _, twice := c.kinds[k.Name]; twice || k.Name == "" {
			panic(fmt.Sprintf("sources: kind %q occurs twice or has no name", k.Name))
		}
		form, err := schema.CompileForm(k.ConfigSchema)
		if err != nil {
			panic(fmt.Sprintf("sources: config schema of kind %q: %v", k.Name, err))
		}
		c.kinds[k.Name] = entry{k, form}
	}
	c.names = slices.Sorted(maps.Keys(c.kinds))
	c.schema = definitionSchema(c.names)
	var err error
	if c.form, err = schema.CompileForm(c.schema); err != nil {
		panic("sources: schema of definitions: " + err.Error())
	}
	return c
}

// Lookup returns a kind by its name.
func (c *Catalog) Lookup(name string) (Kind, bool) {
	e, ok := c.kinds[name]
	return e.Kind, ok
}

// Names returns the names of all kinds, sorted. The slice is not to be changed.
func (c *Catalog) Names() []string { return c.names }

// Schema is the JSON Schema of a Source document, but for its config. It is not to be changed.
func (c *Catalog) Schema() []byte { return c.schema }

// checkConfig returns what is wrong with the config of a kind that exists, with pointers below /config. The kind's Check is
// asked only when the schema has no complaint, so that it need not look at forms.
func (c *Catalog) checkConfig(kind string, cfg json.RawMessage, check bool) []fault.Detail {
	const pointer = "/config"
	e := c.kinds[kind]
	if details := e.form.Complaints(pointer, cfg); len(details) > 0 || !check || e.Check == nil {
		return details
	}
	var fe *fault.Error
	if errors.As(fault.At(pointer, e.Check(cfg)), &fe) {
		return fe.Details
	}
	return nil
}

// definitionSchema is the schema of a Source document, without its config.
func definitionSchema(kinds []string) []byte {
	names, err := json.Marshal(kinds)
	if err != nil {
		panic(err) // strings always marshal
	}
	return fmt.Appendf(nil, `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "required": ["name", "type"],
  "additionalProperties": false,
  "properties": {
    "kind": {"const": "Source"},
    "name": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"},
    "description": {"type": "string", "maxLength": 4096},
    "labels": {"type": "object", "maxProperties": 64, "additionalProperties": {"type": "string", "maxLength": 256}},
    "type": {"enum": %s, "description": "the kind of source; it decides what config holds"},
    "bus": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", "default": "default", "description": "where its events go"},
    "paused": {"type": "boolean", "default": false, "description": "nothing is taken in; hooks answer 503"},
    "start": {"type": "string", "default": "latest", "description": "where it begins when it has no position yet: earliest, latest, or a time such as 2027-01-02T03:04:05Z"},
    "config": {"type": "object", "description": "as the kind says"},
    "revision": {}, "createdAt": {}, "updatedAt": {}, "status": {}
  }
}`, names)
}
