// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// Place is what the documents of a schema hold at a place, as far as the schema says: they hold no more than that.
type Place struct {
	// Types are the JSON types that there may be: boolean, null, number or integer, string, array, object; none = nothing is
	// ever there.
	Types []string `json:"types"`
	// Values are all the scalars that there may be, if they are few and there is nothing else; nil = they are not known.
	Values []json.RawMessage `json:"values,omitempty"`
	// Always: there is something in every document, in each item of the arrays on the way.
	Always bool `json:"always"`
	// Required: there is something wherever there is what it is in.
	Required bool `json:"required"`
}

// Limits of looking for places.
const (
	maxBranches   = 64   // branches of unions that are looked into at one value; beyond them unions say nothing
	maxPlaceDepth = 32   // arrays in arrays that are looked through
	maxPlaces     = 2000 // places of one schema
	maxPlaceLevel = 16   // how deep they are
)

// Place says what is at a path of the documents that writers by a policy send; by the lenient one, what has properties and no
// type is an object. through: an array, on the way or at the end,
// stands for its items, and a name may have the dots between steps in it, as in patterns. The error is Unsupported for
// what is no JSON Schema.
func (c *Compiled) Place(p Policy, at event.Path, through bool) (Place, error) {
	if c.json == nil {
		return Place{}, fault.New(fault.Unsupported, "data in %s is not looked into", c.Format)
	}
	l := locator{checker: newChecker(p), through: through}
	if c.json.dynamic {
		return l.anything().place(), nil
	}
	return l.at(conj(c.json.root), at, 0).place(), nil
}

// Places lists the paths at which documents may hold something, by name, as far as the schema names them and to a depth of 16.
// An item of an array is Each.
func (c *Compiled) Places(p Policy) []event.Path {
	if c.json == nil || c.json.dynamic {
		return nil
	}
	l := locator{checker: newChecker(p)}
	l.list(conj(c.json.root), nil)
	return l.paths
}

// locator follows paths through a schema.
type locator struct {
	*checker
	through bool
	paths   []event.Path
	listed  map[string]bool
}

// spot is a Place that is being put together from what each branch of a schema says.
type spot struct {
	kinds  kinds
	whole  bool // numbers are
	values []any
	open   bool // there are more values than those
	always bool
	bound  bool // to be there, where what it is in is there
}

func (l *locator) anything() spot {
	if l.through {
		return spot{kinds: allKinds &^ kindArray, open: true}
	}
	return spot{kinds: allKinds, open: true}
}

// or takes in what another branch says.
func (s *spot) or(o spot) {
	if o.kinds&kindNumber != 0 {
		s.whole = o.whole && (s.whole || s.kinds&kindNumber == 0)
	}
	s.kinds |= o.kinds
	s.open = s.open || o.open
	s.values = append(s.values, o.values...)
	s.always, s.bound = s.always && o.always, s.bound && o.bound
}

func (s spot) place() Place {
	out := Place{Types: []string{}, Always: s.always && s.kinds != 0, Required: s.bound && s.kinds != 0}
	for _, name := range []string{"array", "boolean", "null", "number", "object", "string"} {
		if s.kinds&kindNames[name] == 0 {
			continue
		}
		if name == "number" && s.whole {
			name = "integer"
		}
		out.Types = append(out.Types, name)
	}
	if s.open || s.kinds == 0 || s.kinds&(kindArray|kindObject) != 0 {
		return out
	}
	seen := map[string]bool{}
	for _, v := range s.values {
		if b, err := canonicalJSON(v); err == nil && !seen[string(b)] {
			seen[string(b)] = true
			out.Values = append(out.Values, b)
		}
	}
	slices.SortFunc(out.Values, func(a, b json.RawMessage) int { return bytes.Compare(a, b) })
	return out
}

// branches takes unions apart, as long as they are few.
func branches(w *writer) []*writer {
	out := []*writer{w}
	for {
		i := slices.IndexFunc(out, func(w *writer) bool { return len(w.unions) > 0 })
		if i < 0 {
			return out
		}
		split := out[i].split()
		if len(out)+len(split) > maxBranches {
			return []*writer{w}
		}
		out = slices.Replace(out, i, i+1, split...)
	}
}

func (l *locator) at(w *writer, path event.Path, depth int) spot {
	if l.work++; l.work > maxWork || depth > maxPlaceDepth {
		return l.anything()
	}
	var out spot
	first := true
	for _, b := range branches(w) {
		k := l.likely(b)
		if k == 0 { // no document is of this branch
			continue
		}
		s := l.of(b, k, path, depth)
		if first {
			first, out.always, out.bound = false, true, true
		}
		out.or(s)
	}
	return out
}

// likely says of which kinds documents are.
func (l *locator) likely(w *writer) kinds {
	k, _ := w.kinds()
	if k == allKinds && l.declaredOnly(w) {
		return kindObject
	}
	var out kinds
	k.each(func(one kinds) {
		if values, finite := l.finite(w, one); !finite || len(values) > 0 {
			out |= one
		}
	})
	return out
}

// of is at for one branch, whose documents are of some kinds.
func (l *locator) of(w *writer, k kinds, path event.Path, depth int) spot {
	out := spot{always: true, bound: true}
	k.each(func(one kinds) {
		switch {
		case one == kindArray && (l.through || len(path) > 0):
			out.or(l.inArray(w, path, depth))
		case len(path) == 0:
			out.or(l.here(w, one))
		case one == kindObject:
			out.or(l.inObject(w, path, depth))
		default:
			out.always, out.bound = false, out.bound && len(path) > 1
		}
	})
	return out
}

// here is a value itself.
func (l *locator) here(w *writer, k kinds) spot {
	values, finite := l.finite(w, k)
	_, whole := w.kinds()
	return spot{kinds: k, whole: whole, values: values, open: !finite, always: true, bound: true}
}

func (l *locator) inObject(w *writer, path event.Path, depth int) spot {
	if path[0].Each {
		out := spot{always: true, bound: true}
		for _, name := range w.names() {
			parts, absent := l.member(w, name)
			if !absent {
				out.or(l.at(conj(parts...), path[1:], depth+1))
			}
		}
		if parts, absent := l.rest(w); !absent {
			out.or(l.at(conj(parts...), path[1:], depth+1))
		}
		return out
	}
	out := l.inMember(w, path[0].Name, path[1:], depth)
	for n := 2; l.through && n <= len(path); n++ { // a name with dots in it
		if name := dotted(path[:n]); declares(w.reach(), name) {
			other := l.inMember(w, name, path[n:], depth)
			always, bound := out.always || other.always, out.bound || other.bound
			out.or(other)
			out.always, out.bound = always, bound
		}
	}
	return out
}

func dotted(path event.Path) string {
	names := make([]string, len(path))
	for i, s := range path {
		names[i] = s.Name
	}
	return strings.Join(names, ".")
}

func (l *locator) inMember(w *writer, name string, rest event.Path, depth int) spot {
	parts, absent := l.member(w, name)
	if absent {
		return spot{}
	}
	out := l.at(conj(parts...), rest, depth+1)
	required := w.required()[name]
	out.always, out.bound = out.always && required, out.bound && (required || len(rest) > 0)
	return out
}

func (l *locator) inArray(w *writer, path event.Path, depth int) spot {
	least, most, alike := l.counts(w)
	number, err := -1, error(nil)
	if !l.through {
		if !path[0].Each {
			if number, err = strconv.Atoi(path[0].Name); err != nil || number < 0 || number >= most {
				return spot{}
			}
		}
		path = path[1:]
	}
	out := spot{always: true, bound: true}
	for i := 0; i <= alike && i < most; i++ {
		if number >= 0 && i != min(number, alike) {
			continue
		}
		parts, _ := items(w, i)
		out.or(l.at(conj(parts...), path, depth+1))
	}
	out.bound = out.bound && (least > number || len(path) > 0)
	out.always = out.always && least > number // of an item that is not named, least is above -1
	return out
}

// list appends the paths below a value.
func (l *locator) list(w *writer, at event.Path) {
	if l.work++; l.work > maxWork || len(at) == maxPlaceLevel {
		return
	}
	if l.listed == nil {
		l.listed = map[string]bool{}
	}
	add := func(step event.Step, parts []*js) {
		path := append(slices.Clip(at), step)
		if key := fmt.Sprint(path); !l.listed[key] {
			if len(l.paths) == maxPlaces {
				return
			}
			l.listed[key] = true
			l.paths = append(l.paths, path)
		}
		l.list(conj(parts...), path)
	}
	for _, b := range branches(w) {
		k := l.likely(b)
		if k&kindObject != 0 {
			for _, name := range b.names() {
				if parts, absent := l.member(b, name); !absent {
					add(event.Step{Name: name}, parts)
				}
			}
		}
		if k&kindArray != 0 {
			_, most, alike := l.counts(b)
			for i := 0; i <= alike && i < most; i++ {
				if parts, _ := items(b, i); len(parts) > 0 {
					add(event.Step{Each: true}, parts)
				}
			}
		}
	}
}
