// SPDX-License-Identifier: Apache-2.0

package files

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Document is one definition out of a file.
type Document struct {
	File   string // "stdin" for what is none
	Number int    // in its file, from 1; 0 if it is the only one
	Line   int    // where it begins, from 1
	Head   Head
	Raw    json.RawMessage // an object

	text  []byte // what it was read from: a YAML document or a JSON value
	first int    // line of text
	index int    // in the list that text is; -1 if it is none
}

// Head names a definition.
type Head struct {
	Kind  string
	Scope string // the bus of a rule, the group of a schema; "" for all others
	Name  string
}

// defaultBus is the bus of a rule that names none.
const defaultBus = "default"

// String returns kind/name or kind/scope/name.
func (h Head) String() string {
	if h.Scope == "" {
		return h.Kind + "/" + h.Name
	}
	return h.Kind + "/" + h.Scope + "/" + h.Name
}

// Error is what is wrong with a document.
type Error struct {
	File    string
	Line    int    // from 1
	Number  int    // of the document, as Document has it
	Pointer string // into the document; "" is the whole
	Detail  string
}

// Error is file:line (document n): pointer: detail.
func (e *Error) Error() string {
	s := e.File + ":" + strconv.Itoa(e.Line)
	if e.Number > 0 {
		s += " (document " + strconv.Itoa(e.Number) + ")"
	}
	if e.Pointer != "" {
		s += ": " + e.Pointer
	}
	return s + ": " + e.Detail
}

// Complain makes an error about the part of a document that a JSON pointer (RFC 6901) names.
func (d Document) Complain(pointer, detail string) *Error {
	return &Error{File: d.File, Line: d.LineOf(pointer), Number: d.Number, Pointer: pointer, Detail: detail}
}

// Locate says where in the files a complaint about a set of documents is: its pointer is /documents/<n>/..., by their order.
func Locate(docs []Document, d fault.Detail) string {
	if rest, ok := strings.CutPrefix(d.Pointer, "/documents/"); ok {
		number, pointer, inside := strings.Cut(rest, "/")
		if inside {
			pointer = "/" + pointer
		}
		if n, err := strconv.Atoi(number); err == nil && n >= 0 && n < len(docs) {
			return docs[n].Complain(pointer, d.Detail).Error()
		}
	}
	return strings.TrimPrefix(d.Pointer+": "+d.Detail, ": ")
}

// Place is file:line (document n).
func (d Document) Place() string {
	return strings.TrimSuffix((&Error{File: d.File, Line: d.Line, Number: d.Number}).Error(), ": ")
}

// LineOf returns the line of the part that a JSON pointer names, or of the innermost part around it that is there.
func (d Document) LineOf(pointer string) int {
	var doc yamlv3.Node
	if yamlv3.Unmarshal(d.text, &doc) != nil || len(doc.Content) == 0 {
		return d.Line // it was read as JSON, and is no YAML
	}
	node := doc.Content[0]
	if d.index >= 0 && d.index < len(node.Content) {
		node = node.Content[d.index]
	}
	line := d.first + node.Line - 1
	for segment := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		segment = strings.ReplaceAll(strings.ReplaceAll(segment, "~1", "/"), "~0", "~")
		key, value := child(node, segment)
		if value == nil {
			break
		}
		node, line = value, d.first+key.Line-1
	}
	return line
}

// child returns a member or element of a node, and the node that stands for its place; nil if there is none.
func child(n *yamlv3.Node, segment string) (at, value *yamlv3.Node) {
	for n.Kind == yamlv3.AliasNode {
		n = n.Alias
	}
	switch n.Kind {
	case yamlv3.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == segment {
				return n.Content[i], n.Content[i+1]
			}
		}
	case yamlv3.SequenceNode:
		if i, err := strconv.Atoi(segment); err == nil && i >= 0 && i < len(n.Content) {
			return n.Content[i], n.Content[i]
		}
	}
	return nil, nil
}

// Parse reads the documents of a file. The error joins an *Error for each that is wrong; the others are returned.
func Parse(name string, text []byte) ([]Document, error) {
	values, err := split(text)
	if err != nil {
		var e *Error
		if errors.As(err, &e) {
			e.File = name
		}
		return nil, err
	}
	var docs []Document
	var wrong []error
	for i, v := range values {
		d := Document{File: name, Number: i + 1, Line: v.line, Raw: v.raw, text: v.text, first: v.first, index: v.index}
		if len(values) == 1 {
			d.Number = 0
		}
		d.Line = d.LineOf("")
		if err := d.readHead(); err != nil {
			wrong = append(wrong, err)
			continue
		}
		docs = append(docs, d)
	}
	return docs, errors.Join(wrong...)
}

// readHead reads kind and name. It goes by hand, because encoding/json would also take "Name" for name.
func (d *Document) readHead() error {
	fields := map[string]json.RawMessage{}
	if bytes.TrimSpace(d.Raw)[0] != '{' || json.Unmarshal(d.Raw, &fields) != nil {
		return d.Complain("", "a definition is an object with kind and name")
	}
	var bus, group string
	for _, f := range []struct {
		key  string
		into *string
	}{{"kind", &d.Head.Kind}, {"name", &d.Head.Name}, {"bus", &bus}, {"group", &group}} {
		if value, ok := fields[f.key]; ok && json.Unmarshal(value, f.into) != nil {
			return d.Complain("/"+f.key, "is not a text; write it in quotes")
		}
	}
	for _, f := range []struct{ key, value string }{{"kind", d.Head.Kind}, {"name", d.Head.Name}} {
		if f.value == "" {
			return d.Complain("/"+f.key, "is missing")
		}
	}
	switch d.Head.Kind {
	case "Rule":
		if d.Head.Scope = bus; bus == "" {
			d.Head.Scope = defaultBus
		}
	case "Schema":
		d.Head.Scope = group
	}
	return nil
}

// duplicates complains about definitions that are there twice, and names both places.
func duplicates(docs []Document) []error {
	var wrong []error
	seen := make(map[Head]Document, len(docs))
	for _, d := range docs {
		if first, ok := seen[d.Head]; ok {
			wrong = append(wrong, d.Complain("/name", fmt.Sprintf("%s is at %s already", d.Head, first.Place())))
			continue
		}
		seen[d.Head] = d
	}
	return wrong
}
