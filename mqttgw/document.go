// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// documentHead is what every definition begins with.
type documentHead struct {
	Kind        string            `json:"kind"`
	Name        string            `json:"name"`
	Description string            `json:"description,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
}

var nameFormat = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

const (
	maxLabels = 64
	badName   = "must be 1 to 63 of a-z, 0-9 and -, not starting or ending with -"
)

// complaint notes what is wrong with a document.
type complaint func(pointer, format string, args ...any)

// under puts a pointer in front of those of a part.
func (c complaint) under(pointer string) complaint {
	return func(p, format string, args ...any) { c(pointer+p, format, args...) }
}

func (h *documentHead) check(kind string, complain complaint) {
	if h.Kind != "" && h.Kind != kind {
		complain("/kind", "must be %s", kind)
	}
	if !nameFormat.MatchString(h.Name) {
		complain("/name", badName)
	}
	if len(h.Labels) > maxLabels {
		complain("/labels", "must be at most %d", maxLabels)
	}
}

// decodeDocument reads one JSON object into to, a pointer to a struct, and has it checked. It is strict; errors are
// *fault.Error of kind Invalid with JSON pointers and repeat no value.
func decodeDocument(doc []byte, kind string, to interface{ check(complaint) }) error {
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.DisallowUnknownFields()
	if err := dec.Decode(to); err != nil {
		return documentError(err, kind, to)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fault.Invalidf("", "more than one JSON value")
	}
	var details []fault.Detail
	to.check(func(pointer, format string, args ...any) {
		details = append(details, fault.Detail{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
	})
	return fault.Collect(details)
}

// documentError turns an error of encoding/json into one with a pointer.
func documentError(err error, kind string, to any) error {
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) {
		pointer := ""
		if field := strings.TrimPrefix(strings.TrimPrefix(wrongType.Field, "documentHead."), "Terms."); field != "" {
			pointer = "/" + strings.ReplaceAll(field, ".", "/")
		}
		return fault.Invalidf(pointer, "must be a %s", wrongType.Type)
	}
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		if name, uerr := strconv.Unquote(field); uerr == nil {
			return fault.Invalidf(fault.Pointer(name), "is not a field of a %s (%s) or of what it holds", kind,
				strings.Join(fieldsOf(reflect.TypeOf(to).Elem()), ", "))
		}
	}
	return fault.Invalidf("", "is not a JSON object")
}

// fieldsOf lists the JSON names of a struct's fields.
func fieldsOf(t reflect.Type) (names []string) {
	for f := range t.Fields() {
		if f.Anonymous {
			names = append(names, fieldsOf(f.Type)...)
			continue
		}
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	return names
}
