// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Limits of JSON. Those of documents are generous: they keep a validator from being made to work for hours.
const (
	maxText     = 256 << 10 // bytes of a schema in any format
	maxNodes    = 10000     // values in a schema
	maxNesting  = 128       // of a schema
	maxDepth    = 1000      // of a document
	maxDigits   = 1000      // of a number
	maxExponent = 400       // of a number: 1e400 is beyond every float
)

// jsonLimits bound what decode takes.
type jsonLimits struct{ nodes, depth int }

var (
	schemaLimits   = jsonLimits{maxNodes, maxNesting}
	documentLimits = jsonLimits{1 << 30, maxDepth}
)

// Decode reads a JSON document as validation wants it: numbers as json.Number. It refuses what the validator could not
// bear: nesting beyond 1000 levels, numbers of a thousand digits, a member that is there twice.
func Decode(data []byte) (any, error) { return decodeJSON(data, documentLimits) }

// jsonDecoder reads a text that is known to be JSON.
type jsonDecoder struct {
	text   []byte
	at     int
	limits jsonLimits
	nodes  int
	path   []step
}

// step is a member by its name, or an item by its number.
type step struct {
	name string
	item int // from 1; 0 = a member
}

func decodeJSON(data []byte, l jsonLimits) (any, error) {
	if !json.Valid(data) {
		var syntax *json.SyntaxError
		var v json.RawMessage
		if errors.As(json.Unmarshal(data, &v), &syntax) {
			return nil, fault.Invalidf("", "is not JSON: wrong at byte %d", syntax.Offset)
		}
		return nil, fault.Invalidf("", "is not JSON")
	}
	d := jsonDecoder{text: data, limits: l}
	return d.value()
}

func (d *jsonDecoder) bad(format string, args ...any) error {
	var at strings.Builder
	for _, p := range d.path {
		if p.item > 0 {
			p.name = strconv.Itoa(p.item - 1)
		}
		at.WriteString(fault.Pointer(p.name))
	}
	return fault.Invalidf(at.String(), format, args...)
}

// next skips blanks and returns the byte there.
func (d *jsonDecoder) next() byte {
	for {
		switch c := d.text[d.at]; c {
		case ' ', '\t', '\r', '\n':
			d.at++
		default:
			return c
		}
	}
}

func (d *jsonDecoder) value() (any, error) {
	if d.nodes++; d.nodes > d.limits.nodes {
		return nil, fault.Invalidf("", "has more than %d values", d.limits.nodes)
	}
	if len(d.path) > d.limits.depth {
		return nil, d.bad("is nested deeper than %d levels", d.limits.depth)
	}
	switch d.next() {
	case '{':
		return d.object()
	case '[':
		return d.array()
	case '"':
		return d.str(), nil
	case 't':
		d.at += len("true")
		return true, nil
	case 'f':
		d.at += len("false")
		return false, nil
	case 'n':
		d.at += len("null")
		return nil, nil
	}
	return d.number()
}

func (d *jsonDecoder) number() (any, error) {
	start := d.at
	for d.at < len(d.text) && bytes.IndexByte([]byte("+-.eE0123456789"), d.text[d.at]) >= 0 {
		d.at++
	}
	s := string(d.text[start:d.at])
	if why := numberFault(s); why != "" {
		return nil, d.bad("%s", why)
	}
	return json.Number(s), nil
}

// str reads a string; what is no UTF-8 in it becomes U+FFFD.
func (d *jsonDecoder) str() string {
	start := d.at
	plain := true
	for d.at++; d.text[d.at] != '"'; d.at++ {
		if c := d.text[d.at]; c == '\\' {
			plain = false
			d.at++
		} else if c >= utf8.RuneSelf {
			plain = false
		}
	}
	d.at++
	if plain {
		return string(d.text[start+1 : d.at-1])
	}
	var s string
	_ = json.Unmarshal(d.text[start:d.at], &s) // a string of valid JSON is one
	return s
}

func (d *jsonDecoder) object() (any, error) {
	out := map[string]any{}
	d.at++
	for d.next() != '}' {
		name := d.str()
		d.next()
		d.at++ // the colon
		d.path = append(d.path, step{name: name})
		if _, twice := out[name]; twice {
			return nil, d.bad("is there twice")
		}
		v, err := d.value()
		if err != nil {
			return nil, err
		}
		out[name] = v
		d.path = d.path[:len(d.path)-1]
		if d.next() == ',' {
			d.at++
		}
	}
	d.at++
	return out, nil
}

func (d *jsonDecoder) array() (any, error) {
	out := []any{}
	d.at++
	d.path = append(d.path, step{})
	for d.next() != ']' {
		d.path[len(d.path)-1].item = len(out) + 1
		v, err := d.value()
		if err != nil {
			return nil, err
		}
		out = append(out, v)
		if d.next() == ',' {
			d.at++
		}
	}
	d.path = d.path[:len(d.path)-1]
	d.at++
	return out, nil
}

// numberFault says why exact arithmetic cannot take a number.
func numberFault(s string) string {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(s), "e")
	if len(mantissa) > maxDigits {
		return fmt.Sprintf("is a number of more than %d digits", maxDigits)
	}
	if n, err := strconv.Atoi(exponent); exponent != "" && (err != nil || n > maxExponent || n < -maxExponent) {
		return fmt.Sprintf("is a number whose exponent is beyond %d", maxExponent)
	}
	return ""
}

// depthOf is how deep a decoded document is nested: 0 for a value without members.
func depthOf(v any) int {
	deepest := 0
	switch v := v.(type) {
	case map[string]any:
		for _, m := range v {
			deepest = max(deepest, 1+depthOf(m))
		}
	case []any:
		for _, m := range v {
			deepest = max(deepest, 1+depthOf(m))
		}
	}
	return deepest
}

// canonicalJSON writes a decoded value in one way: members by name, no blanks.
func canonicalJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
