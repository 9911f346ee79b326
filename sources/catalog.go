// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Catalog is the kinds of source that a process knows. It is immutable and safe for concurrent use.
type Catalog struct {
	kinds  map[string]entry
	names  []string // sorted
	schema []byte   // of a Source document
	form   *jsonschema.Schema
}

type entry struct {
	Kind
	schema *jsonschema.Schema
}

// NewCatalog returns a catalog of kinds. It panics when two have one name, or when a ConfigSchema is not a JSON Schema of
// its own (references to elsewhere are never loaded): both are errors of the program.
func NewCatalog(kinds ...Kind) *Catalog {
	c := &Catalog{kinds: make(map[string]entry, len(kinds))}
	for _, k := range kinds {
		if _, twice := c.kinds[k.Name]; twice || k.Name == "" {
			panic(fmt.Sprintf("sources: kind %q occurs twice or has no name", k.Name))
		}
		schema, err := compileSchema(k.ConfigSchema)
		if err != nil {
			panic(fmt.Sprintf("sources: config schema of kind %q: %v", k.Name, err))
		}
		c.kinds[k.Name] = entry{k, schema}
	}
	c.names = slices.Sorted(maps.Keys(c.kinds))
	c.schema = definitionSchema(c.names)
	var err error
	if c.form, err = compileSchema(c.schema); err != nil {
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
	if details := validate(e.schema, pointer, cfg); len(details) > 0 || !check || e.Check == nil {
		return details
	}
	var fe *fault.Error
	if errors.As(fault.At(pointer, e.Check(cfg)), &fe) {
		return fe.Details
	}
	return nil
}

// validate returns what a schema has against a document.
func validate(schema *jsonschema.Schema, pointer string, raw []byte) []fault.Detail {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return []fault.Detail{{Pointer: pointer, Detail: "is not JSON"}}
	}
	err = schema.Validate(doc)
	var ve *jsonschema.ValidationError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &ve):
		return complaints(pointer, ve, nil)
	}
	return []fault.Detail{{Pointer: pointer, Detail: "cannot be checked against its schema"}}
}
