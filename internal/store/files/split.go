// SPDX-License-Identifier: Apache-2.0

package files

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"

	yamlv2 "go.yaml.in/yaml/v2"
	"sigs.k8s.io/yaml"
)

// value is a document that is not looked into yet.
type value struct {
	raw   json.RawMessage
	line  int    // where it begins
	text  []byte // what it was read from
	first int    // line of text
	index int    // in the list that text is; -1 if it is none
}

// Split returns the values of a text as JSON. Empty ones are left out.
func Split(text []byte) ([]json.RawMessage, error) {
	values, err := split(text)
	if err != nil {
		var e *Error
		if errors.As(err, &e) {
			return nil, errors.New("line " + strconv.Itoa(e.Line) + ": " + e.Detail)
		}
		return nil, err
	}
	raws := make([]json.RawMessage, len(values))
	for i, v := range values {
		raws[i] = v.raw
	}
	return raws, nil
}

// split takes a text apart. The error is an *Error without a file.
func split(text []byte) ([]value, error) {
	text = bytes.TrimPrefix(text, []byte("\uFEFF"))
	start := bytes.TrimSpace(text)
	if len(start) == 0 || start[0] != '{' && start[0] != '[' {
		return splitYAML(text)
	}
	values, err := splitJSON(text)
	if err == nil {
		return values, nil
	}
	// YAML has braces, too.
	if values, yamlErr := splitYAML(text); yamlErr == nil {
		return values, nil
	}
	return nil, err
}

// splitYAML reads documents that stand between lines of ---.
func splitYAML(text []byte) ([]value, error) {
	var values []value
	for _, part := range cutYAML(text) {
		raw, err := yaml.YAMLToJSONStrict(part.text)
		if err == nil {
			err = nothingAfter(part.text)
		}
		if err != nil {
			return nil, yamlError(part, err)
		}
		part.raw = raw
		if values, err = appendValue(values, part); err != nil {
			return nil, yamlError(part, err)
		}
	}
	return values, nil
}

var yamlLine = regexp.MustCompile(`line (\d+): `)

// yamlError says where in the file something is wrong: YAML readers count the lines of the part.
func yamlError(part value, err error) *Error {
	detail := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "), "yaml: ")
	line := part.line
	if m := yamlLine.FindStringSubmatch(detail); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			line = part.first + n - 1
			detail = strings.Replace(detail, m[0], "", 1)
		}
	}
	detail = strings.TrimPrefix(strings.TrimSpace(detail), "unmarshal errors:")
	return &Error{Line: line, Detail: strings.Join(strings.Fields(detail), " ")}
}

// nothingAfter is an error for a part that goes on after its document, which YAML readers pass over in silence.
func nothingAfter(part []byte) error {
	var v any
	dec := yamlv2.NewDecoder(bytes.NewReader(part))
	for range 2 {
		if err := dec.Decode(&v); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return errors.New("something stands after its end")
}

// splitJSON reads values one after the other, as they are written: numbers keep their form, and the server sees keys
// that stand twice.
func splitJSON(text []byte) ([]value, error) {
	var values []value
	line, counted := 1, 0
	for dec := json.NewDecoder(bytes.NewReader(text)); ; {
		var v value
		err := dec.Decode(&v.raw)
		if errors.Is(err, io.EOF) {
			return values, nil
		}
		end := int(dec.InputOffset())
		var syntax *json.SyntaxError
		switch {
		case errors.As(err, &syntax):
			end = min(int(syntax.Offset), len(text))
		case err != nil:
			end = len(bytes.TrimSpace(text))
		}
		start := end - len(v.raw)
		if err != nil {
			return nil, &Error{Line: line + bytes.Count(text[counted:max(end, counted)], []byte("\n")), Detail: err.Error()}
		}
		line += bytes.Count(text[counted:start], []byte("\n"))
		counted = start
		v.text, v.line, v.first = v.raw, line, line
		if values, err = appendValue(values, v); err != nil {
			return nil, &Error{Line: line, Detail: err.Error()}
		}
	}
}

// appendValue appends a document, or each of a list of them.
func appendValue(values []value, v value) ([]value, error) {
	v.raw, v.index = bytes.TrimSpace(v.raw), -1
	if string(v.raw) == "null" {
		return values, nil
	}
	if v.raw[0] != '[' {
		return append(values, v), nil
	}
	var list []json.RawMessage
	err := json.Unmarshal(v.raw, &list)
	for i, raw := range list {
		v.raw, v.index = bytes.TrimSpace(raw), i
		values = append(values, v)
	}
	return values, err
}

// cutYAML cuts at the lines that separate documents.
func cutYAML(text []byte) []value {
	var parts []value
	part, number := value{first: 1}, 0
	for line := range bytes.Lines(text) {
		number++
		bare := bytes.TrimRight(line, " \t\r\n")
		rest, marked := bytes.CutPrefix(line, []byte("--- "))
		if marked || string(bare) == "---" || string(bare) == "..." {
			parts = append(parts, part)
			part = value{first: number + 1}
			if marked {
				part.first, part.text = number, append(part.text, rest...)
			}
		} else {
			part.text = append(part.text, line...)
		}
		if part.line == 0 && !blank(line) {
			part.line = number
		}
	}
	parts = append(parts, part)
	for i := range parts {
		parts[i].line = max(parts[i].line, parts[i].first)
	}
	return parts
}

// blank reports whether nothing, or a comment, stands on a line, or what separates documents.
func blank(line []byte) bool {
	line = bytes.TrimSpace(line)
	return len(line) == 0 || line[0] == '#' || string(line) == "---" || string(line) == "..."
}
