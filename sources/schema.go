// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/rialto-bridge/rialto/internal/fault"
)

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
	const url = "urn:rialto:source"
	if err := c.AddResource(url, doc); err != nil {
		return nil, err
	}
	return c.Compile(url)
}

// complaints turns the tree of a validation error into one detail per leaf, sorted by pointer, each once, in words that
// never repeat a value, because a config may hold secrets.
func complaints(pointer string, ve *jsonschema.ValidationError, dst []fault.Detail) []fault.Detail {
	dst = leaves(pointer, ve, dst)
	slices.SortStableFunc(dst, func(a, b fault.Detail) int { return strings.Compare(a.Pointer, b.Pointer) })
	return slices.Compact(dst)
}

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
