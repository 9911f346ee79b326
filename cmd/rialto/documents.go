// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	yamlv2 "go.yaml.in/yaml/v2"
	"sigs.k8s.io/yaml"
)

const maxDocuments = 64 << 20 // bytes of one file of definitions

// document is one definition out of a file.
type document struct {
	resource
	from string // file and number, for messages
	raw  json.RawMessage
}

// readDocuments reads the definitions of files, of every .yaml, .yml and .json below folders, and of stdin for "-",
// in the order of kinds. It stops at the first file that cannot be read; what is wrong with single documents is
// collected.
func (c *cli) readDocuments(names []string) ([]document, error) {
	var docs []document
	var complaints []error
	add := func(name string, text []byte) {
		found, err := parseDocuments(name, text)
		if err != nil {
			complaints = append(complaints, err)
		}
		docs = append(docs, found...)
	}
	for _, name := range names {
		if name == "-" {
			text, err := readAll(c.in)
			if err != nil {
				return nil, fmt.Errorf("stdin: %w", err)
			}
			add("stdin", text)
			continue
		}
		files, err := definitionFiles(name)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			f, err := os.Open(file)
			if err != nil {
				return nil, err
			}
			text, err := readAll(f)
			f.Close()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			add(file, text)
		}
	}
	if err := errors.Join(complaints...); err != nil {
		return nil, err
	}
	if len(docs) == 0 {
		return nil, usagef("there is no definition in %s", strings.Join(names, ", "))
	}
	slices.SortStableFunc(docs, func(a, b document) int { return rank(a.kind) - rank(b.kind) })
	return docs, nil
}

func rank(k kind) int { return slices.Index(kinds, k) }

func readAll(r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxDocuments+1))
	if err == nil && len(text) > maxDocuments {
		err = fmt.Errorf("larger than %d MiB", maxDocuments>>20)
	}
	return text, err
}

// definitionEndings are how the names of files end that folders are searched for.
var definitionEndings = []string{".yaml", ".yml", ".json"}

// definitionFiles is name itself, or the definition files below it when it is a folder; hidden ones are left out.
func definitionFiles(name string) ([]string, error) {
	info, err := os.Stat(name)
	if err != nil || !info.IsDir() {
		return []string{name}, err
	}
	var files []string
	err = filepath.WalkDir(name, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		hidden := strings.HasPrefix(d.Name(), ".") && path != name
		switch {
		case d.IsDir() && hidden:
			return fs.SkipDir
		case !d.IsDir() && !hidden && slices.Contains(definitionEndings, filepath.Ext(path)):
			files = append(files, path)
		}
		return nil
	})
	return files, err
}

// parseDocuments reads YAML documents, JSON values one after the other, or JSON lists of either.
func parseDocuments(from string, text []byte) ([]document, error) {
	values, err := splitDocuments(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	var docs []document
	var complaints []error
	for i, value := range values {
		where := from
		if len(values) > 1 {
			where = fmt.Sprintf("%s, document %d", from, i+1)
		}
		doc, err := parseDocument(value)
		if err != nil {
			complaints = append(complaints, fmt.Errorf("%s: %w", where, err))
			continue
		}
		doc.from = where
		docs = append(docs, doc)
	}
	return docs, errors.Join(complaints...)
}

// splitDocuments returns the documents of a file as JSON. Empty ones are left out.
func splitDocuments(text []byte) ([]json.RawMessage, error) {
	text = bytes.TrimSpace(bytes.TrimPrefix(text, []byte("\uFEFF")))
	if len(text) == 0 || text[0] != '{' && text[0] != '[' {
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
func splitYAML(text []byte) ([]json.RawMessage, error) {
	var values []json.RawMessage
	for i, part := range cutYAML(text) {
		value, err := yaml.YAMLToJSONStrict(part)
		if err == nil {
			err = nothingAfter(part)
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %s", i+1, strings.TrimPrefix(err.Error(), "yaml: "))
		}
		if values, err = appendValue(values, value); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// nothingAfter is an error for a part that goes on after its document, which YAML readers pass over in silence.
func nothingAfter(part []byte) error {
	var value any
	dec := yamlv2.NewDecoder(bytes.NewReader(part))
	for range 2 {
		if err := dec.Decode(&value); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return errors.New("something stands after its end")
}

// splitJSON reads values one after the other, as they are written: numbers keep their form, and the server sees keys
// that stand twice.
func splitJSON(text []byte) ([]json.RawMessage, error) {
	var values []json.RawMessage
	for dec := json.NewDecoder(bytes.NewReader(text)); ; {
		var value json.RawMessage
		err := dec.Decode(&value)
		if errors.Is(err, io.EOF) {
			return values, nil
		}
		if err != nil {
			return nil, err
		}
		if values, err = appendValue(values, value); err != nil {
			return nil, err
		}
	}
}

// appendValue appends a document, or each of a list of them.
func appendValue(values []json.RawMessage, value json.RawMessage) ([]json.RawMessage, error) {
	value = bytes.TrimSpace(value)
	if string(value) == "null" {
		return values, nil
	}
	if value[0] != '[' {
		return append(values, value), nil
	}
	var list []json.RawMessage
	err := json.Unmarshal(value, &list)
	return append(values, list...), err
}

// cutYAML cuts at the lines that separate documents.
func cutYAML(text []byte) [][]byte {
	var parts [][]byte
	var part []byte
	for line := range bytes.Lines(text) {
		bare := bytes.TrimRight(line, " \t\r\n")
		if string(bare) == "---" || bytes.HasPrefix(line, []byte("--- ")) || string(bare) == "..." {
			parts = append(parts, part)
			part = nil
			if rest, ok := bytes.CutPrefix(line, []byte("--- ")); ok {
				part = append(part, rest...)
			}
			continue
		}
		part = append(part, line...)
	}
	return append(parts, part)
}

func parseDocument(raw json.RawMessage) (document, error) {
	// Read by hand, because encoding/json would also take "Name" for name.
	fields, _, err := objectFields(raw)
	if err != nil {
		return document{}, errors.New("a definition is an object with kind and name")
	}
	var head struct{ Kind, Name, Bus string }
	for key, field := range map[string]*string{"kind": &head.Kind, "name": &head.Name, "bus": &head.Bus} {
		if value, ok := fields[key]; ok {
			if err := json.Unmarshal(value, field); err != nil {
				return document{}, fmt.Errorf("%s is not a text; write it in quotes", key)
			}
		}
	}
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == head.Kind })
	if i < 0 {
		return document{}, fmt.Errorf("kind %q: there are %s", clean(head.Kind), strings.Join(documentKinds(), ", "))
	}
	if !resourceName.MatchString(head.Name) {
		return document{}, fmt.Errorf("name %q: a name is 1 to 63 of a-z, 0-9 and -, and starts and ends with a letter or digit", clean(head.Name))
	}
	r := resource{kind: kinds[i], name: head.Name}
	if r.kind.inBus {
		r.bus = orDefault(head.Bus, defaultBus)
		if !resourceName.MatchString(r.bus) {
			return document{}, fmt.Errorf("%s: bus %q is no name of a bus", r.name, clean(r.bus))
		}
	}
	return document{resource: r, raw: raw}, nil
}
