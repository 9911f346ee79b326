// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"fmt"
	"strings"
)

// maxDifferences bounds the lines of a comparison.
const maxDifferences = 20

// differences compares two JSON texts as values: numbers by value, members in any order. Each line names a place, as a
// JSON pointer, and what is there. It is nil if they are the same.
func differences(got, want []byte) []string {
	var c comparison
	i, err := c.got.parse(got)
	if err != nil {
		return []string{"got what is " + err.Error()}
	}
	j, err := c.want.parse(want)
	if err != nil {
		return []string{"want what is " + err.Error()}
	}
	c.gotText, c.wantText = got, want
	c.compare(i, j, "")
	if c.more > 0 {
		c.lines = append(c.lines, fmt.Sprintf("and %d more", c.more))
	}
	return c.lines
}

type comparison struct {
	got, want         document
	gotText, wantText []byte
	lines             []string
	more              int
}

func (c *comparison) differ(pointer, got, want string) {
	if pointer == "" {
		pointer = "the whole"
	}
	if len(c.lines) == maxDifferences {
		c.more++
		return
	}
	c.lines = append(c.lines, fmt.Sprintf("%s: got %s, want %s", pointer, got, want))
}

// text is a node as it is written, short.
func (d *document) text(src []byte, i int32) string {
	n := &d.nodes[i]
	return shorten(string(src[n.start:n.end]), 120)
}

func (c *comparison) compare(i, j int32, pointer string) {
	n, m := &c.got.nodes[i], &c.want.nodes[j]
	switch {
	case n.kind != m.kind,
		n.kind == kindString && !bytes.Equal(n.text, m.text),
		n.kind == kindNumber && parseNumber(n.text).compare(parseNumber(m.text)) != 0:
		c.differ(pointer, c.got.text(c.gotText, i), c.want.text(c.wantText, j))
	case n.kind == kindArray:
		c.elements(i, j, pointer)
	case n.kind == kindObject:
		c.members(i, j, pointer)
	}
}

func (c *comparison) elements(i, j int32, pointer string) {
	var got, want []int32
	c.got.children(i, func(_ int, child int32) { got = append(got, child) })
	c.want.children(j, func(_ int, child int32) { want = append(want, child) })
	for k := range max(len(got), len(want)) {
		at := pointer + pointerAt(k)
		switch {
		case k >= len(got):
			c.differ(at, "nothing", c.want.text(c.wantText, want[k]))
		case k >= len(want):
			c.differ(at, c.got.text(c.gotText, got[k]), "nothing")
		default:
			c.compare(got[k], want[k], at)
		}
	}
}

func (c *comparison) members(i, j int32, pointer string) {
	names := map[string]bool{}
	c.got.children(i, func(_ int, child int32) {
		name := string(c.got.nodes[child].key)
		names[name] = true
		at := pointer + pointerTo(name)
		if other, ok := c.want.memberNamed(j, name); ok {
			c.compare(child, other, at)
		} else {
			c.differ(at, c.got.text(c.gotText, child), "nothing")
		}
	})
	c.want.children(j, func(_ int, child int32) {
		if name := string(c.want.nodes[child].key); !names[name] {
			c.differ(pointer+pointerTo(name), "nothing", c.want.text(c.wantText, child))
		}
	})
}

// lineDifferences compares two texts: what is common at the start and at the end is left out, the lines between are
// shown as - wanted and + got.
func lineDifferences(got, want string) []string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	start := 0
	for start < len(g) && start < len(w) && g[start] == w[start] {
		start++
	}
	end := 0
	for end < len(g)-start && end < len(w)-start && g[len(g)-1-end] == w[len(w)-1-end] {
		end++
	}
	var lines []string
	for k, line := range w[start : len(w)-end] {
		lines = append(lines, fmt.Sprintf("-%d %s", start+1+k, shorten(line, 200)))
	}
	for k, line := range g[start : len(g)-end] {
		lines = append(lines, fmt.Sprintf("+%d %s", start+1+k, shorten(line, 200)))
	}
	if len(lines) > maxDifferences {
		lines = append(lines[:maxDifferences], fmt.Sprintf("and %d more lines", len(lines)-maxDifferences))
	}
	return lines
}
