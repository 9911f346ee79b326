// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"bytes"
	"fmt"
	"strings"
	"text/template"
	"unicode/utf16"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// javaTemplate renders records (Java 17) inside one class. They read and write the maps, lists and values that every
// JSON library has, so that none is needed.
var javaTemplate = template.Must(template.New("java").Funcs(template.FuncMap{
	"quote": javaQuote, "type": javaType, "boxed": javaBoxed, "isObject": isKind(declObject), "isEnum": isKind(declEnum),
	"idents": javaIdents, "decode": javaDecode, "encode": javaEncode, "constant": pythonConstant,
}).Parse(`// Code generated from a JSON Schema. DO NOT EDIT.

package events;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;

/** Types of a document. Undeclared fields are ignored. */
public final class {{.ClassName}} {
    private {{.ClassName}}() {}

    /** Reads a document from the Map, List, String, Number, Boolean or null that a JSON parser returns. */
    public static {{boxed .Root}} decode(Object value) {
        return {{decode .Root "value" 0}};
    }

    /** Returns a document of Map, List, String, Number, Boolean and null. */
    public static Object encode({{boxed .Root}} value) {
        return {{encode .Root "value" 0}};
    }
{{range $d := .Decls}}
{{- if .Doc}}
    /** {{.Doc}} */
{{- end}}
{{- if isEnum .}}
    public enum {{.Name}} {
{{- $constant := constant .}}
{{- range $i, $v := .Values}}{{if $i}},{{end}}
        {{index $constant .Text}}({{quote .Text}})
{{- end}};

        private final String value;

        {{.Name}}(String value) {
            this.value = value;
        }

        public String value() {
            return value;
        }

        public static {{.Name}} from(Object value) {
            for ({{.Name}} each : values()) {
                if (each.value.equals(value)) {
                    return each;
                }
            }
            throw new IllegalArgumentException("not one of the values of {{.Name}}");
        }
    }
{{else if isObject .}}
{{- $idents := idents .}}
    public record {{.Name}}(
{{- range $i, $f := .Fields}}{{if $i}},{{end}}
            {{type .}} {{index $idents .Name}}{{if .Doc}} /* {{.Doc}} */{{end}}
{{- end}}){{range $i, $u := .Unions}}{{if $i}}, {{else}} implements {{end}}{{$u.Name}}{{end}} {
        public static {{.Name}} from(Object value) {
            Map<String, Object> fields = object(value);
            return new {{.Name}}(
{{- range $i, $f := .Fields}}{{if $i}},{{end}}
                {{if .Required}}{{decode .Type (print "required(fields, " (quote .Name) ")") 0}}{{else}}optional(fields.get({{quote .Name}}), v -> {{decode .Type "v" 0}}){{end}}
{{- end}});
        }

        public Map<String, Object> toMap() {
            Map<String, Object> fields = new LinkedHashMap<>();
{{- range .Fields}}
{{- if .Required}}
            fields.put({{quote .Name}}, {{encode .Type (index $idents .Name) 0}});
{{- else}}
            if ({{index $idents .Name}} != null) {
                fields.put({{quote .Name}}, {{encode .Type (index $idents .Name) 0}});
            }
{{- end}}
{{- end}}
            return fields;
        }
    }
{{else}}
    public sealed interface {{.Name}} permits {{range $i, $v := .Variants}}{{if $i}}, {{end}}{{$v.Decl.Name}}{{end}} {
        Map<String, Object> toMap();

        static {{.Name}} from(Object value) {
            Object tag = required(object(value), {{quote .Tag}});
{{- range .Variants}}
            if ({{quote .Value}}.equals(tag)) {
                return {{.Decl.Name}}.from(value);
            }
{{- end}}
            throw new IllegalArgumentException({{quote .Tag}} + ": " + tag + " is not known");
        }
    }
{{end}}
{{- end}}
    private static IllegalArgumentException not(String kind, Object value) {
        String found = value == null ? "null" : value.getClass().getSimpleName();
        return new IllegalArgumentException("is not " + kind + ": " + found);
    }

    private static Object required(Map<String, Object> fields, String name) {
        if (!fields.containsKey(name)) {
            throw new IllegalArgumentException(name + ": is missing");
        }
        return fields.get(name);
    }

    private static <T> T optional(Object value, Function<Object, T> read) {
        return value == null ? null : read.apply(value);
    }

    private static <T> Object write(T value, Function<T, Object> write) {
        return value == null ? null : write.apply(value);
    }

    @SuppressWarnings("unchecked")
    private static Map<String, Object> object(Object value) {
        if (value instanceof Map<?, ?>) {
            return (Map<String, Object>) value;
        }
        throw not("an object", value);
    }

    private static <T> Map<String, T> map(Object value, Function<Object, T> read) {
        Map<String, T> out = new LinkedHashMap<>();
        object(value).forEach((name, each) -> out.put(name, read.apply(each)));
        return out;
    }

    private static <T> Map<String, Object> writeMap(Map<String, T> value, Function<T, Object> write) {
        Map<String, Object> out = new LinkedHashMap<>();
        value.forEach((name, each) -> out.put(name, write.apply(each)));
        return out;
    }

    private static <T> List<T> list(Object value, Function<Object, T> read) {
        if (!(value instanceof List<?> all)) {
            throw not("an array", value);
        }
        List<T> out = new ArrayList<>();
        for (Object each : all) {
            out.add(read.apply(each));
        }
        return out;
    }

    private static <T> List<Object> writeList(List<T> value, Function<T, Object> write) {
        List<Object> out = new ArrayList<>();
        for (T each : value) {
            out.add(write.apply(each));
        }
        return out;
    }

    private static String text(Object value) {
        if (value instanceof String s) {
            return s;
        }
        throw not("a string", value);
    }

    private static Boolean flag(Object value) {
        if (value instanceof Boolean b) {
            return b;
        }
        throw not("a boolean", value);
    }

    private static Double number(Object value) {
        if (value instanceof Number n) {
            return n.doubleValue();
        }
        throw not("a number", value);
    }

    private static Long whole(Object value) {
        if (value instanceof Number n && (n instanceof Long || n.doubleValue() == n.longValue())) {
            return n.longValue();
        }
        throw not("an integer", value);
    }
}
`))

// javaTaken are keywords and the methods that a record has anyway.
var javaTaken = nameSet(`abstract assert boolean break byte case catch char class const continue default do double else enum extends
	final finally float for goto if implements import instanceof int interface long native new package private protected public
	return short static strictfp super switch synchronized this throw throws transient try void volatile while true false null
	clone finalize getClass hashCode notify notifyAll toString wait equals toMap from value fields v record var yield sealed permits
	not required optional write object map writeMap list writeList text flag number whole`)

// maxJavaFields keeps a record below the 255 slots that its constructor has; long and double take two.
const maxJavaFields = 120

func renderJava(b *bindings) (Code, error) {
	for _, d := range b.Decls {
		if len(d.Fields) > maxJavaFields {
			return Code{}, fault.New(fault.Invalid, "%s has %d fields, and a Java record has %d at most", d.Name, len(d.Fields), maxJavaFields)
		}
	}
	var out bytes.Buffer
	outer := struct {
		*bindings
		ClassName string
	}{b, b.unique(b.rootName + "Document")}
	err := javaTemplate.Execute(&out, outer)
	return Code{File: outer.ClassName + ".java", Source: out.Bytes()}, err
}

// javaQuote is a string literal in ASCII. Escapes of Unicode are read before anything else in Java: none is written for
// what could end the literal.
func javaQuote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, u := range utf16.Encode([]rune(s)) {
		switch {
		case u == '"' || u == '\\':
			b.WriteByte('\\')
			b.WriteByte(byte(u))
		case u >= ' ' && u <= '~':
			b.WriteByte(byte(u))
		case u < ' ':
			fmt.Fprintf(&b, `\%03o`, u)
		default:
			fmt.Fprintf(&b, `\u%04x`, u)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func javaIdents(d *bindDecl) map[string]string { return fieldIdents(d.Fields, camelName, javaTaken) }

func javaType(f bindField) string {
	if !f.optional() {
		switch f.Type.Kind {
		case bindInteger:
			return "long"
		case bindNumber:
			return "double"
		case bindBoolean:
			return "boolean"
		}
	}
	return javaBoxed(f.Type)
}

func javaBoxed(t bindType) string {
	switch t.Kind {
	case bindString:
		return "String"
	case bindInteger:
		return "Long"
	case bindNumber:
		return "Double"
	case bindBoolean:
		return "Boolean"
	case bindArray:
		return "List<" + javaBoxed(*t.Elem) + ">"
	case bindMap:
		return "Map<String, " + javaBoxed(*t.Elem) + ">"
	case bindNamed:
		return t.Decl.Name
	}
	return "Object"
}

// javaDecode is an expression that reads a value. Parameters of nested functions have their level in their name.
func javaDecode(t bindType, value string, level int) string {
	if t.Nullable && t.Kind != bindAny {
		t.Nullable = false
		inner := fmt.Sprintf("n%d", level)
		return "optional(" + value + ", " + inner + " -> " + javaDecode(t, inner, level+1) + ")"
	}
	inner := fmt.Sprintf("e%d", level)
	each := func(name string) string {
		return name + "(" + value + ", " + inner + " -> " + javaDecode(*t.Elem, inner, level+1) + ")"
	}
	switch t.Kind {
	case bindString:
		return "text(" + value + ")"
	case bindInteger:
		return "whole(" + value + ")"
	case bindNumber:
		return "number(" + value + ")"
	case bindBoolean:
		return "flag(" + value + ")"
	case bindArray:
		return each("list")
	case bindMap:
		return each("map")
	case bindNamed:
		return t.Decl.Name + ".from(" + value + ")"
	}
	return value
}

func javaEncode(t bindType, value string, level int) string {
	inner := fmt.Sprintf("n%d", level)
	each := func(name string) string {
		return name + "(" + value + ", " + inner + " -> " + javaEncode(*t.Elem, inner, level+1) + ")"
	}
	if t.Nullable && (t.Kind == bindArray || t.Kind == bindMap || t.Kind == bindNamed) {
		t.Nullable = false
		return "write(" + value + ", " + inner + " -> " + javaEncode(t, inner, level+1) + ")"
	}
	switch t.Kind {
	case bindArray:
		return each("writeList")
	case bindMap:
		return each("writeMap")
	case bindNamed:
		if t.Decl.Kind == declEnum {
			return value + ".value()"
		}
		return value + ".toMap()"
	}
	return value
}
