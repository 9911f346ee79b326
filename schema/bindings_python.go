// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"text/template"
)

// pythonTemplate renders a module of dataclasses that read and write what the json module does.
var pythonTemplate = template.Must(template.New("python").Funcs(template.FuncMap{
	"quote": jsonQuote, "type": pythonType, "isObject": isKind(declObject), "isEnum": isKind(declEnum), "isUnion": isKind(declUnion),
	"idents": pythonIdents, "fields": pythonFields, "decode": pythonDecode, "encode": pythonEncode, "constant": pythonConstant,
}).Parse(`# Code generated from a JSON Schema. DO NOT EDIT.

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Dict, List, Optional, Union


def decode(value: Any) -> {{type .Root}}:
    """Reads a document, as json.loads returns it. Raises ValueError if it is another kind of document."""
    return {{decode .Root "value" 0}}


def encode(value: {{type .Root}}) -> Any:
    """Returns a document that json.dumps can write."""
    return {{encode .Root "value" 0}}
{{range $d := .Decls}}
{{if isEnum .}}
class {{.Name}}(str, Enum):
{{- if .Doc}}
    """{{.Doc}}"""
{{end}}
{{- $constant := constant .}}
{{- range .Values}}
    {{index $constant .Text}} = {{quote .Text}}
{{- end}}
{{else if isObject .}}
@dataclass
class {{.Name}}:
{{- if .Doc}}
    """{{.Doc}}"""
{{end}}
{{- $idents := idents .}}
{{- range fields .}}
	{{- if .Doc}}
    # {{.Doc}}
	{{- end}}
    {{index $idents .Name}}: {{if and .Required (not .Type.Nullable)}}{{type .Type}}{{else}}Optional[{{type .Type}}]{{end}}{{if not .Required}} = None{{end}}
{{- else}}
    pass
{{- end}}

    @classmethod
    def from_dict(cls, value: Any) -> {{.Name}}:
        fields = _object(value)
        return cls(
{{- range fields .}}
            {{index $idents .Name}}={{if .Required}}{{decode .Type (print "_required(fields, " (quote .Name) ")") 0}}{{else}}_optional(fields, {{quote .Name}}, lambda v: {{decode .Type "v" 0}}){{end}},
{{- end}}
        )

    def to_dict(self) -> Dict[str, Any]:
        fields: Dict[str, Any] = {}
{{- range fields .}}
{{- if .Required}}
        fields[{{quote .Name}}] = {{encode .Type (print "self." (index $idents .Name)) 0}}
{{- else}}
        if self.{{index $idents .Name}} is not None:
            fields[{{quote .Name}}] = {{encode .Type (print "self." (index $idents .Name)) 0}}
{{- end}}
{{- end}}
        return fields
{{else}}
def _decode_{{.Name}}(value: Any) -> {{.Name}}:
    tag = _required(_object(value), {{quote .Tag}})
{{- range .Variants}}
    if tag == {{quote .Value}}:
        return {{.Decl.Name}}.from_dict(value)
{{- end}}
    raise ValueError("%s: %r is not known" % ({{quote .Tag}}, tag))
{{end}}
{{- end}}
{{range .Decls}}{{if isUnion .}}
{{.Name}} = Union[{{range $i, $v := .Variants}}{{if $i}}, {{end}}{{$v.Decl.Name}}{{end}}]
{{end}}{{end}}

def _required(fields: Dict[str, Any], name: str) -> Any:
    if name not in fields:
        raise ValueError("%s: is missing" % name)
    return fields[name]


def _optional(fields: Dict[str, Any], name: str, read: Any) -> Any:
    value = fields.get(name)
    return None if value is None else read(value)


def _object(value: Any) -> Dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("is not an object: %s" % type(value).__name__)
    return value


def _list(value: Any) -> List[Any]:
    if not isinstance(value, list):
        raise ValueError("is not an array: %s" % type(value).__name__)
    return value


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("is not a string: %s" % type(value).__name__)
    return value


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("is not a boolean: %s" % type(value).__name__)
    return value


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("is not a number: %s" % type(value).__name__)
    return value


def _int(value: Any) -> int:
    if _float(value) != int(value):
        raise ValueError("is not an integer")
    return int(value)
`))

// pythonTaken are keywords and what dataclasses of ours have themselves.
var pythonTaken = nameSet(`and as assert async await break class continue def del elif else except finally for from global if
	import in is lambda nonlocal not or pass raise return try while with from_dict to_dict fields value self cls mro name`)

func renderPython(b *bindings) (Code, error) {
	var out bytes.Buffer
	err := pythonTemplate.Execute(&out, b)
	return Code{File: snakeName(b.rootName) + ".py", Source: out.Bytes()}, err
}

func pythonIdents(d *bindDecl) map[string]string {
	return fieldIdents(d.Fields, snakeName, pythonTaken)
}

// pythonConstant names the members of an enumeration, by their text.
func pythonConstant(d *bindDecl) map[string]string {
	used, out := map[string]bool{}, map[string]string{}
	for _, v := range d.Values {
		out[v.Text] = uniqueName(strings.ToUpper(snakeName(v.Text)), "_", used)
	}
	return out
}

// pythonFields lists the fields without defaults first, as dataclasses want it.
func pythonFields(d *bindDecl) []bindField {
	out := slices.Clone(d.Fields)
	slices.SortStableFunc(out, func(a, b bindField) int {
		switch {
		case a.Required == b.Required:
			return 0
		case a.Required:
			return -1
		}
		return 1
	})
	return out
}

func pythonType(t bindType) string {
	name := "Any"
	switch t.Kind {
	case bindString:
		name = "str"
	case bindInteger:
		name = "int"
	case bindNumber:
		name = "float"
	case bindBoolean:
		name = "bool"
	case bindArray:
		name = "List[" + pythonType(*t.Elem) + "]"
	case bindMap:
		name = "Dict[str, " + pythonType(*t.Elem) + "]"
	case bindNamed:
		name = t.Decl.Name
	}
	if t.Nullable && name != "Any" {
		return "Optional[" + name + "]"
	}
	return name
}

// pythonDecode is an expression that reads a value. Variables of nested loops have their level in their name.
func pythonDecode(t bindType, value string, level int) string {
	inner := fmt.Sprintf("v%d", level)
	read := ""
	switch t.Kind {
	case bindAny:
		return value
	case bindString:
		read = "_str(%s)"
	case bindInteger:
		read = "_int(%s)"
	case bindNumber:
		read = "_float(%s)"
	case bindBoolean:
		read = "_bool(%s)"
	case bindArray:
		read = "[" + escapePercent(pythonDecode(*t.Elem, inner, level+1)) + " for " + inner + " in _list(%s)]"
	case bindMap:
		read = "{k: " + escapePercent(pythonDecode(*t.Elem, inner, level+1)) + " for k, " + inner + " in _object(%s).items()}"
	case bindNamed:
		switch t.Decl.Kind {
		case declObject:
			read = t.Decl.Name + ".from_dict(%s)"
		case declEnum:
			read = t.Decl.Name + "(%s)"
		case declUnion:
			read = "_decode_" + t.Decl.Name + "(%s)"
		}
	}
	read = fmt.Sprintf(read, value)
	if t.Nullable {
		return fmt.Sprintf("(None if %s is None else %s)", value, read)
	}
	return read
}

func escapePercent(s string) string { return strings.ReplaceAll(s, "%", "%%") }

// pythonEncode is an expression that turns a value into what json.dumps writes.
func pythonEncode(t bindType, value string, level int) string {
	inner := fmt.Sprintf("v%d", level)
	out := value
	switch t.Kind {
	case bindArray:
		out = "[" + pythonEncode(*t.Elem, inner, level+1) + " for " + inner + " in " + value + "]"
	case bindMap:
		out = "{k: " + pythonEncode(*t.Elem, inner, level+1) + " for k, " + inner + " in " + value + ".items()}"
	case bindNamed:
		if t.Decl.Kind == declEnum {
			out = value + ".value"
		} else {
			out = value + ".to_dict()"
		}
	}
	if t.Nullable && out != value {
		return fmt.Sprintf("(None if %s is None else %s)", value, out)
	}
	return out
}
