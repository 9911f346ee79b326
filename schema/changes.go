// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"

	"github.com/rialto-bridge/rialto/internal/event"
)

// What becomes of a place from one version to the next.
const (
	Added    = "added"    // there was nothing
	Removed  = "removed"  // there is nothing any more
	Retyped  = "retyped"  // the types are others
	Loosened = "optional" // it was there wherever what it is in was, and may be missing now
	Bound    = "required" // it is there wherever what it is in is
	Revalued = "values"   // the values of its enum are others
)

// PlaceChange is a place that changes.
type PlaceChange struct {
	Path event.Path `json:"-"`
	What []string   `json:"what"` // of the constants above
	Old  Place      `json:"old"`
	New  Place      `json:"new"`
}

// DiffPlaces says how what is at one place changes; nil if it does not.
func DiffPlaces(older, newer Place) []string {
	switch {
	case len(older.Types) == 0 && len(newer.Types) == 0:
		return nil
	case len(older.Types) == 0:
		return []string{Added}
	case len(newer.Types) == 0:
		return []string{Removed}
	}
	var out []string
	if !slices.Equal(older.Types, newer.Types) {
		out = append(out, Retyped)
	}
	switch {
	case older.Required && !newer.Required:
		out = append(out, Loosened)
	case newer.Required && !older.Required:
		out = append(out, Bound)
	}
	if out == nil || out[0] != Retyped {
		if !slices.EqualFunc(older.Values, newer.Values, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
			out = append(out, Revalued)
		}
	}
	return out
}

// Changes lists the places that change from one version to the next, parents before what is in them; what is in a
// place that comes or goes is not listed. The error is Unsupported for what is no JSON Schema.
func Changes(older, newer *Compiled, p Policy) ([]PlaceChange, error) {
	paths := append(older.Places(p), newer.Places(p)...)
	slices.SortFunc(paths, comparePaths)
	paths = slices.CompactFunc(paths, func(a, b event.Path) bool { return slices.Equal(a, b) })
	var out []PlaceChange
	for _, path := range append([]event.Path{nil}, paths...) {
		if n := len(out); n > 0 && out[n-1].ends() && Inside(path, out[n-1].Path) {
			continue
		}
		was, err := older.Place(p, path, false)
		if err != nil {
			return nil, err
		}
		is, err := newer.Place(p, path, false)
		if err != nil {
			return nil, err
		}
		if what := DiffPlaces(was, is); what != nil {
			out = append(out, PlaceChange{path, what, was, is})
		}
	}
	return out, nil
}

func comparePaths(a, b event.Path) int {
	return slices.CompareFunc(a, b, func(a, b event.Step) int {
		if a.Each != b.Each {
			return cmp.Compare(len(b.Name), len(a.Name)) // Each has no name, and comes last
		}
		return cmp.Compare(a.Name, b.Name)
	})
}

func (c *PlaceChange) ends() bool { return c.What[0] == Added || c.What[0] == Removed }

// Inside reports whether a path is another, or leads on from it.
func Inside(path, from event.Path) bool {
	return len(path) >= len(from) && slices.Equal(path[:len(from)], from)
}
