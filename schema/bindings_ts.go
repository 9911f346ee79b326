// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"bytes"
	"encoding/json"
	"strings"
	"text/template"
)

// typeScriptTemplate renders a module of types: JSON.parse returns what they describe.
var typeScriptTemplate = template.Must(template.New("ts").Funcs(template.FuncMap{
	"quote": jsonQuote, "type": typeScriptType, "isObject": isKind(declObject), "isEnum": isKind(declEnum), "key": typeScriptKey,
}).Parse(`// Code generated from a JSON Schema. DO NOT EDIT.
{{if .RootIsAlias}}
/** The whole document. */
export type {{.RootName}} = {{type .Root}};
{{end}}
{{- range .Decls}}
{{if .Doc}}/** {{.Doc}} */
{{end}}
{{- if isEnum .}}export type {{.Name}} =
{{- range .Values}}
  | {{quote .Text}}
{{- end}};
{{else if isObject .}}export interface {{.Name}} {
{{- range .Fields}}
	{{- if .Doc}}
  /** {{.Doc}} */
	{{- end}}
  {{key .Name}}{{if not .Required}}?{{end}}: {{type .Type}};
{{- end}}
}
{{else}}export type {{.Name}} =
{{- range .Variants}}
  | {{.Decl.Name}}
{{- end}};
{{end}}
{{- end}}`))

func renderTypeScript(b *bindings) (Code, error) {
	var out bytes.Buffer
	err := typeScriptTemplate.Execute(&out, b)
	return Code{File: snakeName(b.rootName) + ".ts", Source: out.Bytes()}, err
}

// jsonQuote is a string literal of JSON, which is also one of TypeScript and Python.
func jsonQuote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings always encode
	}
	return string(b)
}

// typeScriptKey is the name of a field, quoted if it is not an identifier.
func typeScriptKey(name string) string {
	for i := range len(name) {
		if c := name[i]; !isAlnum(c) && c != '_' && c != '$' || i == 0 && c >= '0' && c <= '9' {
			return jsonQuote(name)
		}
	}
	if name == "" {
		return `""`
	}
	return name
}

func typeScriptType(t bindType) string {
	name := typeScriptPlainType(t)
	if t.Nullable && name != "unknown" {
		return name + " | null"
	}
	return name
}

func typeScriptPlainType(t bindType) string {
	switch t.Kind {
	case bindString:
		if t.HasOne {
			return jsonQuote(t.Literal)
		}
		return "string"
	case bindInteger, bindNumber:
		return "number"
	case bindBoolean:
		return "boolean"
	case bindArray:
		return "(" + typeScriptType(*t.Elem) + ")[]"
	case bindMap:
		return "{ [name: string]: " + typeScriptType(*t.Elem) + " }"
	case bindNamed:
		return t.Decl.Name
	}
	var of []string
	for _, o := range t.Of {
		of = append(of, typeScriptType(o))
	}
	if len(of) == 0 {
		return "unknown"
	}
	return strings.Join(of, " | ")
}
