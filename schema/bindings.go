// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"maps"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// maxBindingTypes bounds what is generated of one schema.
const maxBindingTypes = 500

// Code is source code for one language.
type Code struct {
	File   string // its name, such as order_placed.go
	Source []byte
}

// bindingLanguages has what renders each language.
var bindingLanguages = map[string]func(*bindings) (Code, error){
	"go": renderGo, "ts": renderTypeScript, "python": renderPython, "java": renderJava,
}

// Languages lists the languages that Generate knows.
func Languages() []string { return slices.Sorted(maps.Keys(bindingLanguages)) }

// Generate makes types for the documents of a schema, which must have been compiled. The name, of a schema or an event
// type, names the type of the whole document. Equal schemas give equal code. The code needs nothing but the standard
// library of its language. What a schema says beyond types (lengths, patterns, bounds) is left to validation; fields
// that it does not declare are ignored by the code that reads documents.
//
// Errors are *fault.Error of kind Invalid: the language is not known, or there are too many types.
func Generate(lang, name string, s *jsonschema.Schema) (Code, error) {
	render := bindingLanguages[lang]
	if render == nil {
		return Code{}, fault.Invalidf("/lang", "is not one of %s", strings.Join(Languages(), ", "))
	}
	b := &bindings{named: map[string]*bindDecl{}, used: map[string]bool{}}
	b.rootName = b.unique(rootName(name))
	b.Root = b.typeOf([]*jsonschema.Schema{s}, b.rootName)
	for _, d := range b.Decls { // the name is for the whole document, of which this is a part, or not null
		if d.Name == b.rootName && b.RootIsAlias() {
			d.Name = b.unique(d.Name + "Value")
		}
	}
	if b.full {
		return Code{}, fault.New(fault.Invalid, "the schema makes more than %d types", maxBindingTypes)
	}
	return render(b)
}

// rootName is the name without what stands before the last two parts: com.acme.order.placed is OrderPlaced.
func rootName(name string) string {
	parts := strings.FieldsFunc(name, func(r rune) bool { return r == '.' || r == '/' })
	return typeName(strings.Join(parts[max(0, len(parts)-2):], " "))
}

// bindings is what a schema declares, in terms that all languages share.
type bindings struct {
	Root  bindType
	Decls []*bindDecl // in the order they were met, the whole document first

	rootName string
	named    map[string]*bindDecl // by the schemas they are of
	used     map[string]bool      // names of types
	full     bool
}

// RootName is the name of the type of the whole document.
func (b *bindings) RootName() string { return b.rootName }

// RootIsAlias says whether the whole document is none of the declared types.
func (b *bindings) RootIsAlias() bool { return b.Root.Kind != bindNamed || b.Root.Nullable }

type bindKind int

const (
	bindAny bindKind = iota
	bindString
	bindInteger
	bindNumber
	bindBoolean
	bindArray
	bindMap
	bindNamed
)

// bindType is the type of a value.
type bindType struct {
	Kind     bindKind
	Nullable bool
	Elem     *bindType // of arrays and maps
	Decl     *bindDecl // of named ones
	Literal  string    // of strings: the only value, if HasOne
	HasOne   bool
	Of       []bindType // of any: what it is one of, for languages that can say so
}

type declKind int

const (
	declObject declKind = iota
	declEnum
	declUnion
)

// bindDecl is a type with a name.
type bindDecl struct {
	Name     string
	Kind     declKind
	Doc      string
	Fields   []bindField   // of objects, sorted by name
	Values   []bindValue   // of enumerations
	Tag      string        // of unions: the field that tells the variants apart
	Variants []bindVariant // of unions
	Unions   []*bindDecl   // that an object is a variant of

	open bool // its fields are being listed
}

type bindField struct {
	Name      string // in the document
	Doc       string
	Required  bool
	Recursive bool // its type contains the type it is a field of
	Type      bindType
}

type bindValue struct {
	Ident string // unique among all types and values
	Text  string
}

type bindVariant struct {
	Value string // of the field Tag
	Decl  *bindDecl
}

// optional says whether code must be able to leave the field out or empty.
func (f bindField) optional() bool { return !f.Required || f.Type.Nullable }

func (b *bindings) unique(name string) string {
	return uniqueName(name, "", b.used)
}

// declare makes a type for the schemas, or returns the one there is.
func (b *bindings) declare(all []*jsonschema.Schema, name string, kind declKind) (d *bindDecl, isNew bool) {
	var key strings.Builder
	for _, s := range all {
		key.WriteString(s.Location + "\n")
	}
	if d = b.named[key.String()]; d != nil {
		return d, false
	}
	if name != b.rootName || len(b.Decls) > 0 {
		name = b.unique(name)
	}
	d = &bindDecl{Name: name, Kind: kind, Doc: docOf(all)}
	if len(b.Decls) >= maxBindingTypes {
		b.full = true
		return d, false
	}
	b.named[key.String()] = d
	b.Decls = append(b.Decls, d)
	return d, true
}

// docOf is the first description or title, in one line.
func docOf(all []*jsonschema.Schema) string {
	for _, s := range all {
		for _, text := range []string{s.Description, s.Title} {
			if text != "" {
				return docLine(text)
			}
		}
	}
	return ""
}

// typeOf is the type of a value that all the schemas hold for. A new type is called name, unless a reference has a
// name of its own.
func (b *bindings) typeOf(all []*jsonschema.Schema, name string) bindType {
	if len(all) == 1 && name != b.rootName {
		if named := referenceName(all[0]); named != "" {
			name = named
		}
	}
	all = together(all)
	all = slices.DeleteFunc(all, func(s *jsonschema.Schema) bool { return isPlainReference(s) })
	if b.full || len(all) == 0 {
		return bindType{}
	}
	if t, ok := b.valuesType(all, name); ok {
		return t
	}
	if t, ok := b.unionType(all, name); ok {
		return t
	}
	kinds, nullable := valueKinds(all)
	t := bindType{}
	switch {
	case len(kinds) == 1:
		t = b.kindType(kinds[0], all, name)
	case len(kinds) > 1:
		for _, k := range kinds {
			t.Of = append(t.Of, b.kindType(k, all, name))
		}
	}
	t.Nullable = nullable
	return t
}

// referenceName is the name of what a schema refers to, when that is part of a list of definitions.
func referenceName(s *jsonschema.Schema) string {
	for s.Ref != nil && isPlainReference(s) {
		s = s.Ref
		_, pointer, _ := strings.Cut(s.Location, "#")
		parts := strings.Split(pointer, "/")
		if len(parts) > 2 && (parts[len(parts)-2] == "$defs" || parts[len(parts)-2] == "definitions") {
			return typeName(parts[len(parts)-1])
		}
	}
	return ""
}

// isPlainReference says whether a schema is nothing but a reference or an allOf, so far as types go.
func isPlainReference(s *jsonschema.Schema) bool {
	refers := s.Ref != nil || s.DynamicRef != nil || s.RecursiveRef != nil || len(s.AllOf) > 0
	return refers && s.Types == nil && s.Enum == nil && s.Const == nil && len(s.OneOf)+len(s.AnyOf) == 0 && spokenOf(s) == "" &&
		s.AdditionalProperties == nil && s.Description == "" && s.Title == ""
}

// valueKinds lists the types that all schemas allow, but null.
func valueKinds(all []*jsonschema.Schema) (kinds []string, nullable bool) {
	typed := false
	hint := ""
	for _, s := range all {
		typed = typed || s.Types != nil
		if hint == "" {
			hint = spokenOf(s)
		}
		if _, isSchema := s.AdditionalProperties.(*jsonschema.Schema); hint == "" && isSchema {
			hint = "object"
		}
	}
	if !typed {
		if hint == "" {
			return nil, false
		}
		return []string{hint}, false
	}
	kinds = kindsOf(all)
	slices.Sort(kinds)
	number := slices.ContainsFunc(all, func(s *jsonschema.Schema) bool {
		return s.Types != nil && !slices.Contains(s.Types.ToStrings(), "number")
	})
	kinds = slices.DeleteFunc(kinds, func(k string) bool {
		nullable = nullable || k == "null"
		return k == "null" || k == "integer" && !number
	})
	return kinds, nullable
}

func (b *bindings) kindType(kind string, all []*jsonschema.Schema, name string) bindType {
	switch kind {
	case "string":
		return bindType{Kind: bindString}
	case "integer":
		return bindType{Kind: bindInteger}
	case "number":
		return bindType{Kind: bindNumber}
	case "boolean":
		return bindType{Kind: bindBoolean}
	case "array":
		return b.arrayType(all, name)
	case "object":
		return b.objectType(all, name)
	}
	return bindType{}
}

// arrayType is an array of what its items are; of tuples, of anything.
func (b *bindings) arrayType(all []*jsonschema.Schema, name string) bindType {
	var items []*jsonschema.Schema
	tuple := false
	for _, s := range all {
		if of, ok := s.Items.(*jsonschema.Schema); ok {
			items = append(items, of)
		}
		if s.Items2020 != nil {
			items = append(items, s.Items2020)
		}
		_, several := s.Items.([]*jsonschema.Schema)
		tuple = tuple || several || len(s.PrefixItems) > 0
	}
	elem := bindType{}
	if len(items) > 0 && !tuple {
		elem = b.typeOf(items, name+"Item")
	}
	return bindType{Kind: bindArray, Elem: &elem}
}

// objectType is a type of its own if there are declared fields, else a map.
func (b *bindings) objectType(all []*jsonschema.Schema, name string) bindType {
	names, required := fieldNames(all)
	if len(names) == 0 {
		return b.mapType(all, name)
	}
	d, isNew := b.declare(all, name, declObject)
	if !isNew {
		return bindType{Kind: bindNamed, Decl: d}
	}
	d.open = true
	for _, field := range slices.Sorted(maps.Keys(names)) {
		below, allowed := schemasOf(all, field)
		if !allowed {
			continue
		}
		f := bindField{Name: field, Doc: docOf(together(below)), Required: required[field], Type: b.typeOf(below, d.Name+typeName(field))}
		f.Recursive = f.Type.Decl != nil && f.Type.Decl.open
		f.Doc = joinDocs(f.Doc, formatNote(below), deprecationNote(below))
		d.Fields = append(d.Fields, f)
	}
	d.open = false
	return bindType{Kind: bindNamed, Decl: d}
}

func (b *bindings) mapType(all []*jsonschema.Schema, name string) bindType {
	var values []*jsonschema.Schema
	for _, s := range all {
		if rest, ok := s.AdditionalProperties.(*jsonschema.Schema); ok {
			values = append(values, rest)
		}
		for _, re := range sortedPatterns(s) {
			values = append(values, s.PatternProperties[re])
		}
	}
	elem := bindType{}
	if len(values) == 1 { // of several, each holds for some of the names
		elem = b.typeOf(values, name+"Value")
	}
	return bindType{Kind: bindMap, Elem: &elem}
}

func joinDocs(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), " ")
}

// formatNote says how a string is to be read.
func formatNote(all []*jsonschema.Schema) string {
	for _, s := range together(all) {
		if s.Format != nil {
			return "(" + docLine(s.Format.Name) + ")"
		}
	}
	return ""
}

func deprecationNote(all []*jsonschema.Schema) string {
	if slices.ContainsFunc(together(all), func(s *jsonschema.Schema) bool { return s.Deprecated }) {
		return "Deprecated."
	}
	return ""
}
