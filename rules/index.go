// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"strconv"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// MaxDocument is the largest text, in bytes, that MatchDocument takes. Events are bounded where they come in.
const MaxDocument = 16 << 20

// dataName is where the payload of an event stands in its JSON form.
const dataName = "data"

// Index is a set of rules that events are matched against. It is immutable and safe for concurrent use, each goroutine
// with its own Scratch. It evaluates every enabled rule, one after the other; they share the document that the payload
// is parsed into.
type Index struct {
	rules   []*Rule
	enabled []*Rule
}

// Compile builds an index over rules, in this order. The rules must not change afterwards. A rule without a pattern, or
// two of one name on one bus, are refused.
func Compile(rules []*Rule) (*Index, error) {
	x := &Index{rules: rules}
	seen := make(map[[2]string]bool, len(rules))
	for i, r := range rules {
		name := [2]string{r.Bus, r.Name}
		switch {
		case r.Pattern == nil:
			return nil, fault.Invalidf(pointerAt(i), "rule %q has no pattern", r.Name)
		case seen[name]:
			return nil, fault.Invalidf(pointerAt(i), "rule %q stands twice on bus %q", r.Name, r.Bus)
		}
		seen[name] = true
		if !r.Disabled {
			x.enabled = append(x.enabled, r)
		}
	}
	return x, nil
}

// Rules returns the rules of the index, disabled ones too, in the order they were given. The caller must not change
// the slice.
func (x *Index) Rules() []*Rule { return x.rules }

// Match is one rule that matched.
type Match struct{ Rule *Rule }

// Match appends the enabled rules that match ev to dst, in the order of the index. It does not block. The error is
// reserved for evaluations that can fail; a pattern cannot. With a reused dst and s nothing is allocated, but for s to
// grow. A nil s is allowed and costs a new one.
func (x *Index) Match(ev *event.Event, s *Scratch, dst []Match) ([]Match, error) {
	if s == nil {
		s = new(Scratch)
	}
	s.loadEvent(ev)
	return x.match(s, dst), nil
}

// MatchDocument matches a bare JSON document instead of an event: its own members are what paths begin with. The error
// is a *fault.Error of kind Invalid when json is not one JSON object. json must not change during the call.
func (x *Index) MatchDocument(json []byte, s *Scratch, dst []Match) ([]Match, error) {
	if s == nil {
		s = new(Scratch)
	}
	if err := s.loadDocument(json); err != nil {
		return dst, err
	}
	return x.match(s, dst), nil
}

func (x *Index) match(s *Scratch, dst []Match) []Match {
	for _, r := range x.enabled {
		if s.matches(r.Pattern) {
			dst = append(dst, Match{r})
		}
	}
	return dst
}

// Scratch is the memory that matching works in. The zero value is ready. It may be used for any number of events and
// indexes, one after the other, and not by two goroutines at once. Between calls it holds on to the last event.
type Scratch struct {
	doc   document
	refs  []ref
	terms []*term

	event  *event.Event // nil when a bare document is loaded
	loaded bool         // data has been looked at
	opaque string       // why data cannot be matched; "" when it can, is absent, or has not been looked at
}

// loadEvent makes node 0 an object with the attributes of ev. Its data follows when a path asks for it.
func (s *Scratch) loadEvent(ev *event.Event) {
	s.doc.reset()
	s.event, s.loaded, s.opaque = ev, false, ""
	s.doc.nodes = append(s.doc.nodes, node{value: value{kind: kindObject}})
	s.attribute(0, specVersion)
	for i, text := range [...]string{ev.ID, ev.Source, ev.Type, ev.Subject, ev.DataContentType, ev.DataSchema} {
		s.attribute(i+1, text)
	}
	if !ev.Time.IsZero() {
		from := len(s.doc.arena)
		s.doc.arena = appendTime(s.doc.arena, ev.Time)
		s.push(attributeKeys[len(attributeKeys)-1], value{kindString, s.doc.tail(from)})
	}
	for i := range ev.Extensions {
		s.extension(&ev.Extensions[i])
	}
	s.doc.nodes[0].next = int32(len(s.doc.nodes))
}

// attributeNames are those of the specification, in the order of loadEvent. attributeKeys are the same.
var (
	attributeNames = []string{"specversion", "id", "source", "type", "subject", "datacontenttype", "dataschema", "time"}
	attributeKeys  = func() (keys [][]byte) {
		for _, name := range attributeNames {
			keys = append(keys, []byte(name))
		}
		return keys
	}()
)

// attribute adds an attribute unless it is absent.
func (s *Scratch) attribute(i int, text string) {
	if text != "" {
		s.push(attributeKeys[i], value{kindString, s.doc.keep(text)})
	}
}

func (s *Scratch) extension(a *event.Attribute) {
	key := s.doc.keep(a.Name)
	switch v := a.Value.(type) {
	case string:
		s.push(key, value{kindString, s.doc.keep(v)})
	case bool:
		s.push(key, value{kind: kindOf(v)})
	case int32:
		from := len(s.doc.arena)
		s.doc.arena = strconv.AppendInt(s.doc.arena, int64(v), 10)
		s.push(key, value{kindNumber, s.doc.tail(from)})
	}
}

func (s *Scratch) push(key []byte, v value) {
	s.doc.nodes = append(s.doc.nodes, node{value: v, next: int32(len(s.doc.nodes)) + 1, key: key})
}

// loadData adds the data of the event to node 0, once, if it is JSON.
func (s *Scratch) loadData() {
	if s.event == nil || s.loaded {
		return
	}
	s.loaded = true
	if s.event.Data == nil {
		return
	}
	if s.opaque = notJSON(s.event.DataContentType); s.opaque != "" {
		return
	}
	i, err := s.doc.parse(s.event.Data)
	if err != nil {
		s.opaque = "the data is " + err.Error()
		return
	}
	s.doc.nodes[i].key = dataKey
	s.doc.nodes[0].next = s.doc.nodes[i].next
}

var dataKey = []byte(dataName)

// loadDocument makes node 0 the object that json is.
func (s *Scratch) loadDocument(json []byte) error {
	s.doc.reset()
	s.event, s.loaded, s.opaque = nil, false, ""
	if len(json) > MaxDocument {
		return fault.New(fault.TooLarge, "the document has %d bytes; at most %d are allowed", len(json), MaxDocument)
	}
	if _, err := s.doc.parse(json); err != nil {
		return &fault.Error{Kind: fault.Invalid, Message: "invalid document", Details: []fault.Detail{{Detail: err.Error()}}}
	}
	if k := s.doc.nodes[0].kind; k != kindObject {
		return &fault.Error{Kind: fault.Invalid, Message: "invalid document", Details: []fault.Detail{{Detail: "must be an object, this is " + k.String()}}}
	}
	return nil
}

// specVersion is the value of the attribute that an event.Event leaves out.
const specVersion = "1.0"

func kindOf(b bool) kind {
	if b {
		return kindTrue
	}
	return kindFalse
}

// appendTime appends t as the JSON form of an event has it.
func appendTime(dst []byte, t time.Time) []byte {
	if _, offset := t.Zone(); offset%60 != 0 || offset <= -24*3600 || offset >= 24*3600 {
		t = t.UTC() // RFC 3339 cannot say this offset
	}
	return t.AppendFormat(dst, time.RFC3339Nano)
}

// notJSON says why data with this content type is not looked at; "" when it is. Without a content type it is tried.
func notJSON(contentType string) string {
	if contentType == "" || event.IsJSON(contentType) {
		return ""
	}
	return "the data is " + shorten(contentType, 80) + ", not JSON"
}
