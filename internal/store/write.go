// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// ErrClosed is what calls on a closed store end with.
var ErrClosed error = fault.New(fault.Unavailable, "the definitions store is closed")

// ErrTooOld is the error of WatchSince for a revision that is too old, or that the store has not given: who gets it begins
// again with Watch.
var ErrTooOld error = fault.New(fault.Conflict, "what has changed since that revision is not known any more")

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

// Compact returns a copy of raw as it is stored, without blanks between tokens; Invalid when it is not one JSON value
// in UTF-8.
func Compact(raw json.RawMessage) (json.RawMessage, error) {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return nil, &fault.Error{Kind: fault.Invalid, Message: "not a JSON document", Err: err}
	}
	if !utf8.Valid(b.Bytes()) {
		return nil, fault.New(fault.Invalid, "not a JSON document: it is not in UTF-8")
	}
	return b.Bytes(), nil
}

// CheckKey refuses keys that name nothing, and those that not every store can keep.
func CheckKey(k Key) error {
	if k.Kind == "" || k.Name == "" {
		return fault.New(fault.Invalid, "a definition needs a kind and a name")
	}
	if !Storable(k) {
		return fault.New(fault.Invalid, "the key of a definition is text in UTF-8 without NUL")
	}
	return nil
}

// Storable reports whether there can be a document under k.
func Storable(k Key) bool {
	for _, part := range [...]string{k.Kind, k.Scope, k.Name} {
		if !utf8.ValidString(part) || strings.ContainsRune(part, 0) {
			return false
		}
	}
	return true
}

// Prepare checks a change set by itself and returns it with its documents compact.
func Prepare(set []Write) ([]Write, error) {
	if len(set) > MaxWrites {
		return nil, fault.New(fault.TooLarge, "a change set has at most %d writes, not %d", MaxWrites, len(set))
	}
	out := make([]Write, len(set))
	seen := make(map[Key]bool, len(set))
	for i, w := range set {
		if seen[w.Key] {
			return nil, fault.New(fault.Invalid, "%s is there twice in one change set", w.Key)
		}
		seen[w.Key] = true
		out[i] = w
		if w.Delete {
			if CheckKey(w.Key) != nil {
				return nil, NotFound(w.Key)
			}
			continue
		}
		if err := CheckKey(w.Key); err != nil {
			return nil, err
		}
		var err error
		if out[i].Raw, err = Compact(w.Raw); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// On says what w makes of what is stored (nil = nothing) at a time: the document, whose revision is the store's to set,
// and whether that is a change at all. The error is NotFound or Conflict.
func (w Write) On(old *Document, at time.Time) (d Document, changed bool, err error) {
	if w.Delete && old == nil {
		return Document{}, false, NotFound(w.Key)
	}
	if err := w.If.Check(w.Key, old); err != nil {
		return Document{}, false, err
	}
	switch {
	case w.Delete:
		return Document{Key: w.Key}, true, nil
	case old == nil:
		return Document{Key: w.Key, CreatedAt: at, UpdatedAt: at, Raw: w.Raw}, true, nil
	case bytes.Equal(old.Raw, w.Raw):
		return *old, false, nil
	}
	return Document{Key: w.Key, CreatedAt: old.CreatedAt, UpdatedAt: at, Raw: w.Raw}, true, nil
}
