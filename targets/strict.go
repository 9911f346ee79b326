// SPDX-License-Identifier: Apache-2.0

package targets

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Limits of a definition document.
const (
	maxDocument = 256 << 10
	maxDepth    = 64
)

// checkDocument refuses what a decoder would silently accept: a name that occurs twice, text after the value, invalid
// UTF-8; and what is too large or too deep.
func checkDocument(doc []byte) error {
	if len(doc) > maxDocument {
		return fault.Invalidf("", "the document is longer than %d bytes", maxDocument)
	}
	if !utf8.Valid(doc) {
		return fault.Invalidf("", "the document is not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	if err := checkValue(dec, "", 0); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fault.Invalidf("", "there is text after the document")
	}
	return nil
}

// checkValue reads one value and everything in it.
func checkValue(dec *json.Decoder, pointer string, depth int) error {
	if depth > maxDepth {
		return fault.Invalidf(pointer, "nested deeper than %d levels", maxDepth)
	}
	tok, err := dec.Token()
	if err != nil {
		return syntaxError(pointer, err)
	}
	delim, ok := tok.(json.Delim)
	if !ok {
		return nil
	}
	if delim == '[' {
		for i := 0; dec.More(); i++ {
			if err := checkValue(dec, pointer+"/"+strconv.Itoa(i), depth+1); err != nil {
				return err
			}
		}
	} else {
		seen := map[string]bool{}
		for dec.More() {
			tok, err := dec.Token()
			if err != nil {
				return syntaxError(pointer, err)
			}
			name, _ := tok.(string) // inside an object, between values, a token is a name
			at := pointer + fault.Pointer(name)
			if seen[name] {
				return fault.Invalidf(at, "occurs more than once")
			}
			seen[name] = true
			if err := checkValue(dec, at, depth+1); err != nil {
				return err
			}
		}
	}
	if _, err := dec.Token(); err != nil { // the closing bracket
		return syntaxError(pointer, err)
	}
	return nil
}

func syntaxError(pointer string, err error) error {
	var se *json.SyntaxError
	if errors.As(err, &se) {
		return fault.Invalidf(pointer, "not JSON: syntax error at byte %d", se.Offset)
	}
	return fault.Invalidf(pointer, "not JSON: it ends too early")
}
