// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"encoding/json"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// ErrClosed is what calls on a closed store end with.
var ErrClosed error = fault.New(fault.Unavailable, "the definitions store is closed")

// Check says whether a write of k may go on when current (nil = none) is what is stored: nil or a Conflict.
func (c Condition) Check(k Key, current *Document) error {
	switch {
	case c.Absent && current != nil:
		return fault.New(fault.Conflict, "%s exists already", k)
	case c.Revision != 0 && current == nil:
		return fault.New(fault.Conflict, "%s does not exist", k)
	case c.Revision != 0 && current.Revision != c.Revision:
		return fault.New(fault.Conflict, "%s has changed: it is at revision %d", k, current.Revision)
	}
	return nil
}

// NotFound is the error for a document that is not there.
func NotFound(k Key) error { return fault.New(fault.NotFound, "%s does not exist", k) }

// Compact returns a copy of raw as it is stored, without blanks between tokens; Invalid when it is not one JSON value.
func Compact(raw json.RawMessage) (json.RawMessage, error) {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return nil, &fault.Error{Kind: fault.Invalid, Message: "not a JSON document", Err: err}
	}
	return b.Bytes(), nil
}

// CheckKey refuses keys that name nothing.
func CheckKey(k Key) error {
	if k.Kind == "" || k.Name == "" {
		return fault.New(fault.Invalid, "a definition needs a kind and a name")
	}
	return nil
}
