// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"bytes"
	"go/format"
	"strconv"
	"strings"
	"text/template"
)

// goTemplate renders a Go package (Go 1.24 or later, for omitzero). A union is a struct with one pointer a variant, of
// which one is set.
var goTemplate = template.Must(template.New("go").Funcs(template.FuncMap{
	"quote": strconv.Quote, "type": goType, "field": goFieldType, "tag": goTag, "idents": goIdents, "isObject": isKind(declObject),
	"isEnum": isKind(declEnum), "isUnion": isKind(declUnion), "nameable": goNameable, "only": goOnly,
}).Parse(`// Code generated from a JSON Schema. DO NOT EDIT.

package events
{{if .HasUnions}}
import (
	"encoding/json"
	"fmt"
)
{{end}}
{{- if .RootIsAlias}}
// {{.RootName}} is the whole document.
type {{.RootName}} {{if .Root.Nullable}}= {{end}}{{type .Root}}
{{end}}
{{- range $d := .Decls}}
{{if .Doc}}// {{.Name}}: {{.Doc}}
{{end}}
{{- if isEnum .}}type {{.Name}} string

const (
{{- range .Values}}
	{{.Ident}} {{$d.Name}} = {{quote .Text}}
{{- end}}
)
{{else if isObject .}}type {{.Name}} struct {
{{- $idents := idents .}}
{{- range .Fields}}
	{{- if nameable .Name}}
	{{- if .Doc}}
	// {{.Doc}}
	{{- end}}
	{{index $idents .Name}} {{field .}} {{tag .}}
	{{- else}}
	// A field has a name that struct tags cannot hold: {{quote .Name}}.
	{{- end}}
{{- end}}
}
{{else}}// One of the fields is set, by the value of {{quote .Tag}}.
type {{.Name}} struct {
{{- range .Variants}}
	{{.Decl.Name}} *{{.Decl.Name}} // {{quote .Value}}
{{- end}}
}

func (u {{.Name}}) MarshalJSON() ([]byte, error) {
	switch {
{{- range .Variants}}
	case u.{{.Decl.Name}} != nil:
		v := *u.{{.Decl.Name}}
		v.{{only .Decl $d.Tag}} = {{quote .Value}}
		return json.Marshal(v)
{{- end}}
	}
	return []byte("null"), nil
}

func (u *{{.Name}}) UnmarshalJSON(b []byte) error {
	var tag map[string]json.RawMessage
	if err := json.Unmarshal(b, &tag); err != nil || tag == nil {
		return err
	}
	var value string
	if err := json.Unmarshal(tag[{{quote .Tag}}], &value); err != nil {
		return fmt.Errorf("%s: %w", {{quote .Tag}}, err)
	}
	*u = {{.Name}}{}
	switch value {
{{- range .Variants}}
	case {{quote .Value}}:
		u.{{.Decl.Name}} = new({{.Decl.Name}})
		return json.Unmarshal(b, u.{{.Decl.Name}})
{{- end}}
	}
	return fmt.Errorf("%s: %q is not known", {{quote .Tag}}, value)
}
{{end}}
{{- end}}`))

func isKind(k declKind) func(*bindDecl) bool {
	return func(d *bindDecl) bool { return d.Kind == k }
}

// HasUnions is for the imports.
func (b *bindings) HasUnions() bool {
	for _, d := range b.Decls {
		if d.Kind == declUnion {
			return true
		}
	}
	return false
}

func renderGo(b *bindings) (Code, error) {
	var out bytes.Buffer
	if err := goTemplate.Execute(&out, b); err != nil {
		return Code{}, err
	}
	code, err := format.Source(out.Bytes())
	return Code{File: snakeName(b.rootName) + ".go", Source: code}, err
}

// goType is the type of a value that is always there.
func goType(t bindType) string {
	name := goPlainType(t)
	if t.Nullable && goHasNoNil(t) {
		return "*" + name
	}
	return name
}

func goPlainType(t bindType) string {
	switch t.Kind {
	case bindString:
		return "string"
	case bindInteger:
		return "int64"
	case bindNumber:
		return "float64"
	case bindBoolean:
		return "bool"
	case bindArray:
		return "[]" + goType(*t.Elem)
	case bindMap:
		return "map[string]" + goType(*t.Elem)
	case bindNamed:
		return t.Decl.Name
	}
	return "any"
}

// goHasNoNil says whether null needs a pointer.
func goHasNoNil(t bindType) bool {
	return t.Kind != bindArray && t.Kind != bindMap && t.Kind != bindAny
}

func goFieldType(f bindField) string {
	if (f.optional() || f.Recursive) && goHasNoNil(f.Type) {
		return "*" + goPlainType(f.Type)
	}
	return goPlainType(f.Type)
}

func goTag(f bindField) string {
	tag := f.Name
	switch {
	case !f.Required:
		tag += ",omitzero"
	case tag == "-":
		tag += ","
	}
	return "`json:" + strconv.Quote(tag) + "`"
}

// goNameable says whether a struct tag can hold the name of a field.
func goNameable(name string) bool {
	if name == "" {
		return false
	}
	for _, r := range name {
		if r < ' ' || r == ',' || r == '"' || r == '\\' || r == '\'' || r == '`' || r > '~' {
			return false
		}
	}
	return true
}

func goIdents(d *bindDecl) map[string]string {
	return fieldIdents(d.Fields, goName, nil)
}

// goName is the name in Pascal case with the initialisms that Go spells in capitals.
func goName(name string) string {
	var b strings.Builder
	for _, w := range words(name) {
		switch w {
		case "id", "url", "uri", "uuid", "http", "json", "ip", "api":
			b.WriteString(strings.ToUpper(w))
		default:
			b.WriteString(strings.ToUpper(w[:1]) + w[1:])
		}
	}
	out := b.String()
	if out == "" || out[0] >= '0' && out[0] <= '9' {
		return "N" + out
	}
	return out
}

// goOnly is the name of a field in Go.
func goOnly(d *bindDecl, name string) string { return goIdents(d)[name] }
