// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	yamlv2 "go.yaml.in/yaml/v2"
)

// print writes one value: as a table (a person's view, written by table), or as JSON or YAML for programs.
func (c *cli) print(value any, table func(io.Writer) error) error {
	if c.output == "table" {
		return table(c.out)
	}
	return c.encode(value)
}

// printList writes items: JSON is one array, JSONL a line each, YAML a document each.
func (c *cli) printList(items []json.RawMessage, table func(io.Writer) error) error {
	switch c.output {
	case "table":
		return table(c.out)
	case "json":
		if items == nil {
			items = []json.RawMessage{}
		}
		return c.encode(items)
	}
	for i, item := range items {
		if c.output == "yaml" && i > 0 {
			if _, err := io.WriteString(c.out, "---\n"); err != nil {
				return err
			}
		}
		if err := c.encode(item); err != nil {
			return err
		}
	}
	return nil
}

// encode writes value as JSON, as one line of JSON, or as YAML.
func (c *cli) encode(value any) error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if c.output == "json" {
		enc.SetIndent("", "  ")
	}
	if err := enc.Encode(value); err != nil {
		return err
	}
	text := buf.Bytes()
	if c.output == "yaml" {
		var err error
		if text, err = toYAML(text); err != nil {
			return err
		}
	}
	_, err := c.out.Write(text)
	return err
}

// toYAML turns JSON into YAML and keeps the order of the keys.
func toYAML(doc []byte) ([]byte, error) {
	doc = bytes.TrimSpace(doc)
	if len(doc) > 0 && doc[0] == '{' {
		var object yamlv2.MapSlice
		if err := yamlv2.Unmarshal(doc, &object); err != nil {
			return nil, err
		}
		return yamlv2.Marshal(object)
	}
	var value any
	if err := yamlv2.Unmarshal(doc, &value); err != nil {
		return nil, err
	}
	return yamlv2.Marshal(value)
}

// writeTable prints rows under their headings, in columns as wide as they need to be, the last one free.
func writeTable(w io.Writer, headings []string, rows [][]string) error {
	widths := make([]int, len(headings))
	for _, row := range append([][]string{headings}, rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range append([][]string{headings}, rows...) {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " "))
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// clean makes text from outside safe for a terminal: no control characters, no bytes that are not text.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r >= 0x7f && r < 0xa0 || r == utf8.RuneError || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return '\uFFFD'
		}
		return r
	}, s)
}

// shorten cuts s to at most n characters, the last of which then says so.
func shorten(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:max(n-1, 0)]) + "…"
}

// colourWanted reports whether f is a terminal whose user has not asked for plain text.
func colourWanted(f *os.File, getenv func(string) string) bool {
	return isTerminal(f) && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// palette paints text, or leaves it as it is.
type palette bool

func (p palette) paint(code, s string) string {
	if !p || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p palette) good(s string) string { return p.paint("32", s) }
func (p palette) bad(s string) string  { return p.paint("31", s) }
func (p palette) wait(s string) string { return p.paint("33", s) }
func (p palette) dim(s string) string  { return p.paint("2", s) }
func (p palette) bold(s string) string { return p.paint("1", s) }

// count writes "1 event", "2 events".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
