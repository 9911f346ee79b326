// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
)

// The reference says what array consistency, absence and $or mean in the words of the definition and not of an
// algorithm: it lists every scalar with the array elements it lies in, and tries every way to give each field a scalar
// or an absence. It costs exponential time, knows only some operators, and no repeated names.

// leaf is a scalar of an event.
type leaf struct {
	path  string
	trail []element // the elements of arrays of objects that it lies in
	value any
}

type element struct {
	array string // where the array is, which no other array shares
	index int
}

// leaves lists the scalars below v. trail has the elements above v, of which the last open ones are arrays that v is
// directly in: they bind v only if it is an object.
func leaves(v any, path []string, place string, trail []element, bound int, out []leaf) []leaf {
	switch v := v.(type) {
	case map[string]any:
		for key, child := range v {
			steps := append(slices.Clone(path), strings.Split(key, ".")...)
			out = leaves(child, steps, place+"/"+key, trail, len(trail), out)
		}
	case []any:
		for i, child := range v {
			inner := append(slices.Clone(trail), element{place, i})
			out = leaves(child, path, fmt.Sprintf("%s/%d", place, i), inner, bound, out)
		}
	default:
		out = append(out, leaf{strings.Join(path, "."), trail[:bound], v})
	}
	return out
}

// expand turns a pattern into its alternatives: each maps a path to the list of values there.
func expand(group map[string]any, prefix string) []map[string][]any {
	result := []map[string][]any{{}}
	combine := func(with []map[string][]any) {
		var next []map[string][]any
		for _, a := range result {
			for _, b := range with {
				both := map[string][]any{}
				for path, list := range a {
					both[path] = list
				}
				for path, list := range b {
					both[path] = list
				}
				next = append(next, both)
			}
		}
		result = next
	}
	for key, v := range group {
		switch v := v.(type) {
		case map[string]any:
			combine(expand(v, prefix+key+"."))
		case []any:
			if key != "$or" {
				combine([]map[string][]any{{prefix + key: v}})
				continue
			}
			var branches []map[string][]any
			for _, branch := range v {
				branches = append(branches, expand(branch.(map[string]any), prefix)...)
			}
			combine(branches)
		}
	}
	return result
}

func consistent(trail []element, bound map[string]int) bool {
	for _, e := range trail {
		if i, ok := bound[e.array]; ok && i != e.index {
			return false
		}
	}
	return true
}

func holdsFor(list []any, v any) bool {
	for _, entry := range list {
		operator, ok := entry.(map[string]any)
		switch {
		case !ok && entry == v:
			return true
		case ok && operator["exists"] == true:
			return true
		case ok && operator["anything-but"] != nil && operator["anything-but"] != v:
			return true
		}
	}
	return false
}

func wantsAbsent(list []any) bool {
	for _, entry := range list {
		if operator, ok := entry.(map[string]any); ok && operator["exists"] == false {
			return true
		}
	}
	return false
}

// satisfiable tries to give each of the paths a scalar, or to leave it absent.
func satisfiable(paths []string, fields map[string][]any, event []leaf, bound map[string]int, absent []string) bool {
	if len(paths) == 0 {
		for _, l := range event {
			if slices.Contains(absent, l.path) && consistent(l.trail, bound) {
				return false
			}
		}
		return true
	}
	path, rest := paths[0], paths[1:]
	if wantsAbsent(fields[path]) && satisfiable(rest, fields, event, bound, append(slices.Clone(absent), path)) {
		return true
	}
	for _, l := range event {
		if l.path != path || !holdsFor(fields[path], l.value) || !consistent(l.trail, bound) {
			continue
		}
		with := map[string]int{}
		for array, i := range bound {
			with[array] = i
		}
		for _, e := range l.trail {
			with[e.array] = e.index
		}
		if satisfiable(rest, fields, event, with, absent) {
			return true
		}
	}
	return false
}

func reference(pattern, event string) bool {
	var group, document map[string]any
	if json.Unmarshal([]byte(pattern), &group) != nil || json.Unmarshal([]byte(event), &document) != nil {
		panic("the generator writes JSON")
	}
	all := leaves(document, nil, "", nil, 0, nil)
	for _, fields := range expand(group, "") {
		var paths []string
		for path := range fields {
			paths = append(paths, path)
		}
		if satisfiable(paths, fields, all, map[string]int{}, nil) {
			return true
		}
	}
	return false
}

// generator makes small patterns and events over few names and values, so that they meet often.
type generator struct{ *rand.Rand }

func (g generator) pick(list ...string) string { return list[g.IntN(len(list))] }

func (g generator) event(depth int) string {
	var members []string
	for _, name := range []string{"a", "b", "c"} {
		if g.IntN(4) > 0 {
			members = append(members, fmt.Sprintf("%q:%s", name, g.value(depth-1)))
		}
	}
	return "{" + strings.Join(members, ",") + "}"
}

func (g generator) value(depth int) string {
	switch k := g.IntN(8); {
	case depth > 0 && k < 2:
		return g.event(depth)
	case depth > 0 && k < 6:
		var elements []string
		for range g.IntN(4) {
			if g.IntN(5) == 0 {
				elements = append(elements, g.value(depth-1))
			} else {
				elements = append(elements, g.event(depth))
			}
		}
		return "[" + strings.Join(elements, ",") + "]"
	}
	return g.pick(`"1"`, `"2"`, `"3"`, "null")
}

func (g generator) pattern(depth int) string {
	var members []string
	for _, name := range []string{"a", "b", "c"} {
		switch g.IntN(4) {
		case 0, 1:
			members = append(members, fmt.Sprintf("%q:%s", name, g.list()))
		case 2:
			if depth > 0 {
				members = append(members, fmt.Sprintf("%q:%s", name, g.pattern(depth-1)))
			}
		}
	}
	if g.IntN(4) == 0 || len(members) == 0 {
		var branches []string
		for range 2 + g.IntN(2) {
			branches = append(branches, g.pattern(depth-1))
		}
		members = append(members, `"$or":[`+strings.Join(branches, ",")+"]")
	}
	return "{" + strings.Join(members, ",") + "}"
}

func (g generator) list() string {
	entries := []string{g.pick(`"1"`, `"2"`, `"3"`, "null", `{"exists":true}`, `{"exists":false}`, `{"exists":false}`, `{"anything-but":"1"}`)}
	if g.IntN(3) == 0 {
		entries = append(entries, g.pick(`"1"`, `"2"`, `{"exists":false}`))
	}
	return "[" + strings.Join(entries, ",") + "]"
}

// agree compares the evaluator with the reference on a generated pair, and the explanation with both. It returns what
// they say and whether the pattern was one.
func agree(t *testing.T, g generator) (matched, valid bool) {
	t.Helper()
	pattern, document := g.pattern(3), g.event(4)
	p, err := rules.ParsePattern([]byte(pattern))
	if err != nil {
		return false, false
	}
	inData, err := rules.ParsePattern([]byte(`{"data":` + pattern + `}`))
	if err != nil {
		t.Fatal(err)
	}
	rule := &rules.Rule{Name: "in-data", Pattern: inData}
	want := reference(pattern, document)
	if got := matchDocument(t, p, document); got != want {
		t.Fatalf("MatchDocument = %t, the reference says %t\npattern %s\nevent   %s", got, want, pattern, document)
	}
	ev := &event.Event{ID: "1", Source: "/s", Type: "t", DataContentType: "application/json", Data: []byte(document)}
	x, err := rules.Compile([]*rules.Rule{rule})
	if err != nil {
		t.Fatal(err)
	}
	if matches, err := x.Match(ev, nil, nil); err != nil || len(matches) == 1 != want {
		t.Fatalf("Match = %v, %v, the reference says %t\npattern %s\nevent   %s", matches, err, want, pattern, document)
	}
	why := rule.Explain(ev)
	failed := slices.ContainsFunc(why.Clauses, func(c rules.Clause) bool { return c.Verdict == rules.Failed })
	if why.Matched != want || want && (failed || why.Note != "") || !want && !failed && why.Note == "" {
		t.Fatalf("Explain = %+v, the reference says %t\npattern %s\nevent   %s", why, want, pattern, document)
	}
	return want, true
}

func matchDocument(t *testing.T, p *rules.Pattern, document string) bool {
	t.Helper()
	x, err := rules.Compile([]*rules.Rule{{Pattern: p}})
	if err != nil {
		t.Fatal(err)
	}
	matches, err := x.MatchDocument([]byte(document), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return len(matches) == 1
}

func TestAgreesWithReference(t *testing.T) {
	g := generator{rand.New(rand.NewPCG(1, 2))}
	valid, matched := 0, 0
	for range 4000 {
		m, ok := agree(t, g)
		if ok {
			valid++
		}
		if m {
			matched++
		}
	}
	if valid < 1000 || matched < 200 {
		t.Errorf("%d valid patterns and %d matches; the generator is too narrow", valid, matched)
	}
}

func FuzzReference(f *testing.F) {
	f.Add(uint64(1), uint64(1))
	f.Fuzz(func(t *testing.T, a, b uint64) {
		agree(t, generator{rand.New(rand.NewPCG(a, b))})
	})
}
