// SPDX-License-Identifier: Apache-2.0

package targets

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Catalog is the kinds of target that a process knows. It is immutable and safe for concurrent use.
type Catalog struct {
	kinds map[string]entry
	names []string // sorted
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
		if _, twice := c.kinds[k.Name]; twice || !namePattern.MatchString(k.Name) {
			panic(fmt.Sprintf("targets: kind %q occurs twice or has no valid name", k.Name))
		}
		schema, err := compileSchema(k.ConfigSchema)
		if err != nil {
			panic(fmt.Sprintf("targets: config schema of kind %q: %v", k.Name, err))
		}
		c.kinds[k.Name] = entry{Kind: k, schema: schema}
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
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(cfg))
	if err != nil {
		return []fault.Detail{{Pointer: pointer, Detail: "is not JSON"}}
	}
	if err := e.schema.Validate(doc); err != nil {
		var ve *jsonschema.ValidationError
		if !errors.As(err, &ve) {
			return []fault.Detail{{Pointer: pointer, Detail: "cannot be checked against the schema of its kind"}}
		}
		return complaints(pointer, ve, nil)
	}
	if !check || e.Check == nil {
		return nil
	}
	err = fault.At(pointer, e.Check(cfg))
	var fe *fault.Error
	if errors.As(err, &fe) {
		return fe.Details
	}
	return nil
}

// denyAll loads nothing: a schema that refers to a file or an address does not compile.
type denyAll struct{}

func (denyAll) Load(url string) (any, error) {
	return nil, fmt.Errorf("%s is not part of the schema", url)
}

func compileSchema(raw []byte) (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(denyAll{})
	const url = "urn:rialto:config"
	if err := c.AddResource(url, doc); err != nil {
		return nil, err
	}
	return c.Compile(url)
}

// complaints turns the tree of a validation error into one detail per leaf, in words that never repeat a value, because
// a config may hold secrets. Where alternatives were tried, only the nearest one speaks.
func complaints(pointer string, ve *jsonschema.ValidationError, dst []fault.Detail) []fault.Detail {
	at := pointer
	for _, tok := range ve.InstanceLocation {
		at += fault.Pointer(tok)
	}
	switch k := ve.ErrorKind.(type) {
	case *kind.AdditionalProperties:
		for _, name := range k.Properties {
			dst = append(dst, fault.Detail{Pointer: at + fault.Pointer(name), Detail: "is not a known field"})
		}
		return dst
	case *kind.Required:
		for _, name := range k.Missing {
			dst = append(dst, fault.Detail{Pointer: at + fault.Pointer(name), Detail: "is missing"})
		}
		return dst
	case *kind.OneOf, *kind.AnyOf:
		if nearest := nearest(ve.Causes); nearest != nil {
			return complaints(pointer, nearest, dst)
		}
		return append(dst, fault.Detail{Pointer: at, Detail: "has none of the allowed forms"})
	}
	if len(ve.Causes) == 0 {
		return append(dst, fault.Detail{Pointer: at, Detail: phrase(ve.ErrorKind)})
	}
	for _, cause := range ve.Causes {
		dst = complaints(pointer, cause, dst)
	}
	return dst
}

// nearest returns the alternative whose type fits, when there is exactly one: the one that was meant.
func nearest(causes []*jsonschema.ValidationError) *jsonschema.ValidationError {
	var found *jsonschema.ValidationError
	for _, c := range causes {
		leaf := c
		for len(leaf.Causes) == 1 {
			leaf = leaf.Causes[0]
		}
		if _, wrongType := leaf.ErrorKind.(*kind.Type); wrongType && len(leaf.InstanceLocation) == len(c.InstanceLocation) {
			continue
		}
		if found != nil {
			return nil
		}
		found = c
	}
	return found
}

// phrase says what a keyword asks for.
func phrase(k jsonschema.ErrorKind) string {
	switch k := k.(type) {
	case *kind.Type:
		return "is not of type " + strings.Join(k.Want, " or ")
	case *kind.Enum:
		words := make([]string, len(k.Want))
		for i, w := range k.Want {
			words[i] = fmt.Sprint(w)
		}
		return "is not one of: " + strings.Join(words, ", ")
	case *kind.MinLength:
		return "is shorter than " + strconv.Itoa(k.Want) + " characters"
	case *kind.MaxLength:
		return "is longer than " + strconv.Itoa(k.Want) + " characters"
	case *kind.MinItems:
		return "has fewer than " + strconv.Itoa(k.Want) + " items"
	case *kind.MaxItems:
		return "has more than " + strconv.Itoa(k.Want) + " items"
	case *kind.MinProperties:
		return "has fewer than " + strconv.Itoa(k.Want) + " fields"
	case *kind.MaxProperties:
		return "has more than " + strconv.Itoa(k.Want) + " fields"
	case *kind.Pattern:
		return "does not match " + k.Want
	case *kind.Minimum:
		return "is less than " + k.Want.RatString()
	case *kind.Maximum:
		return "is more than " + k.Want.RatString()
	case *kind.UniqueItems:
		return "has an item twice"
	}
	if p := k.KeywordPath(); len(p) > 0 {
		return "does not fit the schema's " + strings.Join(p, "/")
	}
	return "does not fit the schema"
}
