// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

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

// jsonDecoder reads one value and keeps where it is.
type jsonDecoder struct {
	dec    *json.Decoder
	limits jsonLimits
	nodes  int
	path   []string
}

func decodeJSON(data []byte, l jsonLimits) (any, error) {
	d := jsonDecoder{dec: json.NewDecoder(bytes.NewReader(data)), limits: l}
	d.dec.UseNumber()
	v, err := d.value()
	if err != nil {
		return nil, err
	}
	if _, err := d.dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fault.Invalidf("", "something follows the JSON value")
	}
	return v, nil
}

func (d *jsonDecoder) bad(format string, args ...any) error {
	var at strings.Builder
	for _, p := range d.path {
		at.WriteString(fault.Pointer(p))
	}
	return fault.Invalidf(at.String(), format, args...)
}

func (d *jsonDecoder) token() (json.Token, error) {
	t, err := d.dec.Token()
	var syntax *json.SyntaxError
	switch {
	case err == nil:
		return t, nil
	case errors.As(err, &syntax):
		return nil, fault.Invalidf("", "is not JSON: wrong at byte %d", syntax.Offset)
	}
	return nil, fault.Invalidf("", "is not JSON: it ends too early")
}

func (d *jsonDecoder) value() (any, error) {
	if d.nodes++; d.nodes > d.limits.nodes {
		return nil, fault.Invalidf("", "has more than %d values", d.limits.nodes)
	}
	if len(d.path) > d.limits.depth {
		return nil, d.bad("is nested deeper than %d levels", d.limits.depth)
	}
	t, err := d.token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Number:
		if why := numberFault(string(t)); why != "" {
			return nil, d.bad("%s", why)
		}
		return t, nil
	case json.Delim:
		if t == '{' {
			return d.object()
		}
		return d.array()
	}
	return t, nil
}

func (d *jsonDecoder) object() (any, error) {
	out := map[string]any{}
	for d.dec.More() {
		t, err := d.token()
		if err != nil {
			return nil, err
		}
		name := t.(string) // where a name stands, the decoder gives nothing else
		d.path = append(d.path, name)
		if _, twice := out[name]; twice {
			return nil, d.bad("is there twice")
		}
		if out[name], err = d.value(); err != nil {
			return nil, err
		}
		d.path = d.path[:len(d.path)-1]
	}
	_, err := d.token()
	return out, err
}

func (d *jsonDecoder) array() (any, error) {
	out := []any{}
	for d.dec.More() {
		d.path = append(d.path, strconv.Itoa(len(out)))
		v, err := d.value()
		if err != nil {
			return nil, err
		}
		out = append(out, v)
		d.path = d.path[:len(d.path)-1]
	}
	_, err := d.token()
	return out, err
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
