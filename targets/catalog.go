// SPDX-License-Identifier: Apache-2.0

package targets

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/schema"
)

// Catalog is the kinds of target that a process knows. It is immutable and safe for concurrent use.
type Catalog struct {
	kinds map[string]entry
	names []string // sorted
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
		if _, twice := c.kinds[k.Name]; twice || !namePattern.MatchString(k.Name) {
			panic(fmt.Sprintf("targets: kind %q occurs twice or has no valid name", k.Name))
		}
		form, err := schema.CompileForm(k.ConfigSchema)
		if err != nil {
			panic(fmt.Sprintf("targets: config schema of kind %q: %v", k.Name, err))
		}
		c.kinds[k.Name] = entry{Kind: k, form: form}
	}
	c.names = slices.Sorted(maps.Keys(c.kinds))
	return c
}

// Lookup returns a kind by its name.
func (c *Catalog) Lookup(name string) (Kind, bool) {
	e, ok := c.kinds[name]
	return e.Kind, ok
}

// Names returns the names of all kinds, sorted. The slice is not to be changed.
func (c *Catalog) Names() []string { return c.names }

// New makes the target that a definition describes.
func (c *Catalog) New(d *Definition, env Env) (Target, error) {
	e, ok := c.kinds[d.Type]
	if !ok {
		return nil, fmt.Errorf("target %s: no kind %q", d.Name, d.Type)
	}
	env.Target = d.Name
	t, err := e.Kind.New(d.Config, env)
	if err != nil {
		return nil, fmt.Errorf("target %s: %w", d.Name, err)
	}
	return t, nil
}

// checkConfig returns what is wrong with a config, with pointers below pointer. The kind's Check is asked only when the
// schema has no complaint, so that it need not look at forms.
func (c *Catalog) checkConfig(name, pointer string, cfg json.RawMessage, check bool) []fault.Detail {
	e := c.kinds[name]
	if details := e.form.Complaints(pointer, cfg); len(details) > 0 || !check || e.Check == nil {
		return details
	}
	err := fault.At(pointer, e.Check(cfg))
	var fe *fault.Error
	if errors.As(err, &fe) {
		return fe.Details
	}
	return nil
}
