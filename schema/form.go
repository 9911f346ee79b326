// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Form is a JSON Schema of the program's own, of what users write: a definition, or the config of a kind. It is not of the
// registry. Since the schema is ours, a complaint may name what is allowed, and what is missing has a pointer of its own. It is
// immutable and safe for concurrent use.
type Form struct{ root *jsonschema.Schema }

// CompileForm reads a JSON Schema 2020-12 that stands by itself: references to elsewhere are never loaded.
func CompileForm(raw []byte) (*Form, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(denyAll{})
	const url = "urn:rialto:form"
	if err := c.AddResource(url, doc); err != nil {
		return nil, err
	}
	root, err := c.Compile(url)
	if err != nil {
		return nil, err
	}
	return &Form{root}, nil
}

// denyAll loads nothing: a schema that refers to a file or an address does not compile.
type denyAll struct{}

func (denyAll) Load(url string) (any, error) {
	return nil, fmt.Errorf("%s is not part of the schema", url)
}

// Complaints returns what the form has against a document that stands at pointer: sorted by pointer, each once, in words that
// never repeat a value, because a config may hold secrets. nil if there is nothing.
func (f *Form) Complaints(pointer string, raw []byte) []fault.Detail {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return []fault.Detail{{Pointer: pointer, Detail: "is not JSON"}}
	}
	err = f.root.Validate(doc)
	var ve *jsonschema.ValidationError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &ve):
		return []fault.Detail{{Pointer: pointer, Detail: "cannot be checked against its schema"}}
	}
	out := leaves(pointer, ve, nil)
	slices.SortStableFunc(out, func(a, b fault.Detail) int { return strings.Compare(a.Pointer, b.Pointer) })
	return slices.Compact(out)
}

// leaves turns the tree of an error into one detail per leaf. Where alternatives were tried, only the nearest one speaks.
func leaves(pointer string, ve *jsonschema.ValidationError, dst []fault.Detail) []fault.Detail {
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
			return leaves(pointer, nearest, dst)
		}
		return append(dst, fault.Detail{Pointer: at, Detail: "has none of the allowed forms"})
	}
	if len(ve.Causes) == 0 {
		return append(dst, fault.Detail{Pointer: at, Detail: phrase(ve.ErrorKind)})
	}
	for _, cause := range ve.Causes {
		dst = leaves(pointer, cause, dst)
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
	case *kind.FalseSchema:
		return "does not go with the other fields here"
	case *kind.Type:
		return "is not of type " + strings.Join(k.Want, " or ")
	case *kind.Enum:
		words := make([]string, len(k.Want))
		for i, w := range k.Want {
			words[i] = fmt.Sprint(w)
		}
		return "is not one of: " + strings.Join(words, ", ")
	case *kind.Const:
		return fmt.Sprint("is not ", k.Want)
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
