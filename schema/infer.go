// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Limits of a summary. What is beyond them makes the inferred schema wider, never wrong.
const (
	MaxInferDepth    = 16   // levels below the payload whose shape is kept
	MaxInferPaths    = 2000 // paths of one summary
	maxInferKeys     = 128  // names of one object; with more of them it is a map
	maxInferDistinct = 32   // different words of one path; with more of them it is no enumeration
	maxInferWord     = 24   // bytes of a word that may be part of an enumeration
	maxInferKey      = 64   // bytes of a name; what is longer is taken for data
	maxInferCount    = 1 << 53
)

// Summary is what is remembered of many payloads, so that a schema can be made of them: counts by path, and no payload.
// The only texts it holds are names of fields that do not look like data, and, until a path has shown more than 32 of
// them, short words such as "paid" (what an enumeration is made of).
//
// Merge is associative and commutative, also beyond the limits, and adding payloads one by one is merging summaries of
// one payload each: it does not matter which node saw which event. The zero value is not usable; see NewSummary. A
// Summary must not be used from several goroutines at a time.
type Summary struct {
	depth int // levels below the root that are kept; what was seen below them is forgotten
	root  *inferNode
}

// NewSummary returns a summary of nothing.
func NewSummary() *Summary {
	return &Summary{depth: MaxInferDepth, root: &inferNode{}}
}

// Count is how many payloads went in.
func (s *Summary) Count() uint64 { return s.root.total() }

// AddJSON adds one payload. The error is a *fault.Error of kind Invalid when it is not one JSON value, and then nothing
// was added.
func (s *Summary) AddJSON(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return &fault.Error{Kind: fault.Invalid, Message: "the payload is not JSON", Err: err}
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fault.New(fault.Invalid, "the payload is more than one JSON value")
	}
	s.Add(v)
	return nil
}

// Add adds one payload as encoding/json decodes it, with numbers as json.Number or float64. It keeps nothing of v.
func (s *Summary) Add(v any) {
	if s.root.observe(v, s.depth) {
		s.fit()
	}
}

// Merge adds what other holds. It does not change other, and keeps nothing of it.
func (s *Summary) Merge(other *Summary) {
	s.depth = min(s.depth, other.depth)
	s.root.cut(s.depth)
	s.root.merge(other.root, s.depth)
	s.fit()
}

// fit forgets the deepest levels until the paths are few enough. The result depends on all that went in and not on its
// order, because the weight of a tree never falls when something is added to it.
func (s *Summary) fit() {
	depth := s.depth
	for s.root.weight(depth) > MaxInferPaths {
		depth--
	}
	if depth < s.depth {
		s.depth = depth
		s.root.cut(depth)
	}
}

// kinds are the JSON types as payloads write them: 20 is an integer, 20.0 a number.
const (
	inferNull = iota
	inferBoolean
	inferInteger
	inferNumber
	inferString
	inferArray
	inferObject
	inferKinds
)

var inferKindNames = [inferKinds]string{"null", "boolean", "integer", "number", "string", "array", "object"}

// inferNode is what was seen at one path.
type inferNode struct {
	kinds   [inferKinds]uint64
	formats [len(inferFormats)]uint64 // of the strings
	strings extent                    // lengths in characters
	arrays  extent                    // numbers of items

	words map[string]struct{} // the different strings, while they look like an enumeration
	prose bool                // they do not: words is empty for good

	items  *inferNode            // of all arrays
	fields map[string]*inferNode // of all objects, by name
	values *inferNode            // of the names that look like data, and of all names of a map
	isMap  bool                  // more names than a record has: fields is empty for good
}

// extent is the smallest and the largest of some numbers. It is empty while nothing was counted.
type extent struct{ min, max int }

func (s *extent) add(n int, first bool) {
	if first {
		s.min, s.max = n, n
		return
	}
	s.min, s.max = min(s.min, n), max(s.max, n)
}

func (n *inferNode) total() uint64 {
	sum := uint64(0)
	for _, c := range n.kinds {
		sum = countAdd(sum, c)
	}
	return sum
}

// countAdd stops at the largest count, so that adding stays associative.
func countAdd(a, b uint64) uint64 { return min(a+b, maxInferCount) }

// observe adds a value whose shape is kept for depth levels below it, and says whether there are more paths now.
func (n *inferNode) observe(v any, depth int) (grown bool) {
	switch v := v.(type) {
	case nil:
		n.count(inferNull)
	case bool:
		n.count(inferBoolean)
	case json.Number:
		if strings.ContainsAny(string(v), ".eE") {
			n.count(inferNumber)
		} else {
			n.count(inferInteger)
		}
	case float64:
		if v == math.Trunc(v) {
			n.count(inferInteger)
		} else {
			n.count(inferNumber)
		}
	case string:
		n.strings.add(utf8.RuneCountInString(v), n.kinds[inferString] == 0)
		n.count(inferString)
		n.observeText(v)
	case []any:
		n.arrays.add(len(v), n.kinds[inferArray] == 0)
		n.count(inferArray)
		return depth > 0 && n.observeItems(v, depth)
	case map[string]any:
		n.count(inferObject)
		return depth > 0 && n.observeFields(v, depth)
	}
	return false
}

func (n *inferNode) count(kind int) { n.kinds[kind] = countAdd(n.kinds[kind], 1) }

func (n *inferNode) observeText(v string) {
	if f := formatOf(v); f >= 0 {
		n.formats[f] = countAdd(n.formats[f], 1)
		n.addWord("", false)
		return
	}
	n.addWord(v, isWord(v))
}

// addWord adds one of the different strings; what is no word ends the enumeration.
func (n *inferNode) addWord(v string, ok bool) {
	if n.prose {
		return
	}
	if n.words == nil {
		n.words = map[string]struct{}{}
	}
	if ok {
		n.words[strings.Clone(v)] = struct{}{}
	}
	if !ok || len(n.words) > maxInferDistinct {
		n.prose, n.words = true, nil
	}
}

func (n *inferNode) observeItems(items []any, depth int) (grown bool) {
	for _, v := range items {
		if n.items == nil {
			n.items, grown = &inferNode{}, true
		}
		grown = n.items.observe(v, depth-1) || grown
	}
	return grown
}

func (n *inferNode) observeFields(fields map[string]any, depth int) (grown bool) {
	for name, v := range fields {
		child, isNew := n.field(name)
		grown = child.observe(v, depth-1) || grown || isNew
	}
	if len(n.fields) > maxInferKeys {
		n.fold(depth)
		grown = true
	}
	return grown
}

// field returns where values of a name are counted.
func (n *inferNode) field(name string) (child *inferNode, isNew bool) {
	if n.isMap || looksLikeData(name) {
		if n.values == nil {
			n.values, isNew = &inferNode{}, true
		}
		return n.values, isNew
	}
	if child = n.fields[name]; child != nil {
		return child, false
	}
	if n.fields == nil {
		n.fields = map[string]*inferNode{}
	}
	child = &inferNode{}
	n.fields[strings.Clone(name)] = child
	return child, true
}

// fold makes a map of an object with too many names.
func (n *inferNode) fold(depth int) {
	if n.values == nil {
		n.values = &inferNode{}
	}
	for _, child := range n.fields {
		n.values.merge(child, depth-1)
	}
	n.fields, n.isMap = nil, true
}

// merge adds what other holds, of which depth levels are kept.
func (n *inferNode) merge(other *inferNode, depth int) {
	if other.kinds[inferString] > 0 {
		n.strings.add(other.strings.min, n.kinds[inferString] == 0)
		n.strings.add(other.strings.max, false)
		n.mergeWords(other)
	}
	if other.kinds[inferArray] > 0 {
		n.arrays.add(other.arrays.min, n.kinds[inferArray] == 0)
		n.arrays.add(other.arrays.max, false)
	}
	for i, c := range other.kinds {
		n.kinds[i] = countAdd(n.kinds[i], c)
	}
	for i, c := range other.formats {
		n.formats[i] = countAdd(n.formats[i], c)
	}
	if depth > 0 {
		n.mergeBelow(other, depth)
	}
}

func (n *inferNode) mergeWords(other *inferNode) {
	if other.prose {
		n.addWord("", false)
	}
	for w := range other.words {
		n.addWord(w, true)
	}
}

func (n *inferNode) mergeBelow(other *inferNode, depth int) {
	if other.items != nil {
		n.items = n.items.orNew()
		n.items.merge(other.items, depth-1)
	}
	if other.values != nil {
		n.values = n.values.orNew()
		n.values.merge(other.values, depth-1)
	}
	if other.isMap && !n.isMap {
		n.fold(depth)
	}
	for name, theirs := range other.fields {
		ours, _ := n.field(name)
		ours.merge(theirs, depth-1)
	}
	if len(n.fields) > maxInferKeys {
		n.fold(depth)
	}
}

func (n *inferNode) orNew() *inferNode {
	if n == nil {
		return &inferNode{}
	}
	return n
}

// cut forgets what is more than depth levels below.
func (n *inferNode) cut(depth int) {
	if depth == 0 {
		n.items, n.fields, n.values, n.isMap = nil, nil, nil, false
		return
	}
	if n.items != nil {
		n.items.cut(depth - 1)
	}
	if n.values != nil {
		n.values.cut(depth - 1)
	}
	for _, child := range n.fields {
		child.cut(depth - 1)
	}
}

// weight is the number of paths with depth levels. A map counts as if it still had all the names that made it one:
// otherwise a tree could become lighter by growing, and what is forgotten would depend on the order of merging. It
// stops counting at the limit.
func (n *inferNode) weight(depth int) int {
	sum := 1
	if depth == 0 {
		return sum
	}
	if n.items != nil {
		sum += n.items.weight(depth - 1)
	}
	if n.values != nil {
		w := n.values.weight(depth - 1)
		if n.isMap {
			w *= maxInferKeys + 1
		}
		sum += w
	}
	for _, child := range n.fields {
		if sum > MaxInferPaths {
			break
		}
		sum += child.weight(depth - 1)
	}
	return min(sum, MaxInferPaths+1)
}
