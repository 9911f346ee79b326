// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"bytes"
	"encoding/json"
	"maps"
	"math"
	"slices"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// From how many payloads on a summary says more than the types it has seen.
const (
	inferRequiredFrom = 20 // objects, all of which have the field
	inferEnumFrom     = 50 // strings
	inferEnumMax      = 12 // different ones, and not more than the square root of their number
	inferMapFrom      = 24 // names, above which an object that does not look like a record is a map
)

// inferred is an inferred schema. It never closes an object: a field that was not seen yet is not an error.
type inferred struct {
	Schema               string               `json:"$schema,omitempty"`
	Type                 any                  `json:"type,omitempty"` // a name or several; none if nothing was seen
	Format               string               `json:"format,omitempty"`
	Enum                 []any                `json:"enum,omitempty"`
	Properties           map[string]*inferred `json:"properties,omitempty"`
	Required             []string             `json:"required,omitempty"`
	AdditionalProperties *inferred            `json:"additionalProperties,omitempty"`
	Items                *inferred            `json:"items,omitempty"`
}

// Schema returns a JSON Schema (2020-12) that every payload that went in is valid against. Equal summaries give equal
// bytes.
func (s *Summary) Schema() []byte {
	doc := s.root.schema()
	doc.Schema = "https://json-schema.org/draft/2020-12/schema"
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(doc); err != nil {
		panic(err) // strings, slices and maps of them always encode
	}
	return b.Bytes()
}

func (n *inferNode) schema() *inferred {
	out := &inferred{Type: n.types(), Format: n.format(), Enum: n.enum()}
	if n.items != nil {
		out.Items = n.items.schema()
	}
	switch {
	case n.looksLikeMap():
		out.AdditionalProperties = n.allValues().schema()
	case len(n.fields) > 0:
		out.Properties = make(map[string]*inferred, len(n.fields))
		for name, child := range n.fields {
			out.Properties[name] = child.schema()
		}
		out.Required = n.required()
	}
	return out
}

// types is the keyword type: integers among numbers are numbers.
func (n *inferNode) types() any {
	var names []string
	for kind, c := range n.kinds {
		if c > 0 && (kind != inferInteger || n.kinds[inferNumber] == 0) {
			names = append(names, inferKindNames[kind])
		}
	}
	switch len(names) {
	case 0:
		return nil
	case 1:
		return names[0]
	}
	return names
}

// format is the format of all strings, if they have one.
func (n *inferNode) format() string {
	for i, c := range n.formats {
		if c > 0 && c == n.kinds[inferString] {
			return inferFormats[i]
		}
	}
	return ""
}

// enum lists the strings, if they were few and came often, and nothing but null was seen beside them.
func (n *inferNode) enum() []any {
	count, different := n.kinds[inferString], len(n.words)
	others := n.total() - count - n.kinds[inferNull]
	if count < inferEnumFrom || others > 0 || different < 2 || different > inferEnumMax || float64(different) > math.Sqrt(float64(count)) {
		return nil
	}
	var out []any
	for _, w := range slices.Sorted(maps.Keys(n.words)) {
		out = append(out, w)
	}
	if n.kinds[inferNull] > 0 {
		out = append(out, nil)
	}
	return out
}

func (n *inferNode) required() []string {
	objects := n.kinds[inferObject]
	if objects < inferRequiredFrom {
		return nil
	}
	var names []string
	for name, child := range n.fields {
		if child.total() == objects {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// looksLikeMap says whether the names of the objects are data. Of many names, those of a record are mostly there, and
// stand for different things; those of a map come and go, or all stand for the same.
func (n *inferNode) looksLikeMap() bool {
	if n.isMap || n.values != nil && len(n.fields) == 0 {
		return true
	}
	if len(n.fields) <= inferMapFrom {
		return false
	}
	present := uint64(0)
	var kinds [inferKinds]uint64
	for _, child := range n.fields {
		present += child.total()
		for i, c := range child.kinds {
			kinds[i] = countAdd(kinds[i], c)
		}
	}
	sparse := float64(present) < float64(n.kinds[inferObject])*float64(len(n.fields))/2
	return sparse || isUniform(kinds)
}

// isUniform says whether there is one type, apart from null; integers are numbers.
func isUniform(kinds [inferKinds]uint64) bool {
	kinds[inferNumber] = countAdd(kinds[inferNumber], kinds[inferInteger])
	kinds[inferInteger], kinds[inferNull] = 0, 0
	used := 0
	for _, c := range kinds {
		if c > 0 {
			used++
		}
	}
	return used <= 1
}

// allValues is one node for what all names of a map lead to.
func (n *inferNode) allValues() *inferNode {
	all := &inferNode{}
	if n.values != nil {
		all.merge(n.values, MaxInferDepth)
	}
	for _, child := range n.fields {
		all.merge(child, MaxInferDepth)
	}
	return all
}

// Field is how often, and as what, one field was seen.
type Field struct {
	Path    string   `json:"path"`             // a JSON pointer in which * stands for any item or name
	Types   []string `json:"types"`            // as payloads write them
	Format  string   `json:"format,omitempty"` // of all strings
	Present uint64   `json:"present"`          // how often it was there
	Total   uint64   `json:"total"`            // how often it could have been there; = Present below a *
	Fill    float64  `json:"fill"`             // Present / Total
}

// Fields lists all fields, sorted by path.
func (s *Summary) Fields() []Field {
	out := s.root.fieldsBelow("", nil)
	slices.SortFunc(out, func(a, b Field) int { return bytes.Compare([]byte(a.Path), []byte(b.Path)) })
	return out
}

func (n *inferNode) fieldsBelow(path string, out []Field) []Field {
	add := func(path string, child *inferNode, total uint64) {
		f := Field{Path: path, Format: child.format(), Present: child.total(), Total: total}
		for kind, c := range child.kinds {
			if c > 0 {
				f.Types = append(f.Types, inferKindNames[kind])
			}
		}
		f.Fill = float64(f.Present) / float64(f.Total)
		out = child.fieldsBelow(path, append(out, f))
	}
	if n.items != nil {
		add(path+"/*", n.items, n.items.total())
	}
	if n.looksLikeMap() {
		all := n.allValues()
		add(path+"/*", all, all.total())
		return out
	}
	for name, child := range n.fields {
		add(path+fault.Pointer(name), child, n.kinds[inferObject])
	}
	return out
}
