// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"strconv"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// direct is what the evaluator works on: an event, or a bare document, as nodes.
type direct struct {
	doc   document
	refs  []ref
	terms []*term

	event  *event.Event // nil when a bare document is loaded
	loaded bool         // data has been looked at
	opaque string       // why data cannot be matched; "" when it can, is absent, or has not been looked at
}

// loadEvent makes node 0 an object with the attributes of ev. Its data follows when a path asks for it.
func (s *direct) loadEvent(ev *event.Event) {
	s.doc.reset()
	s.event, s.loaded, s.opaque = ev, false, ""
	s.doc.nodes = append(s.doc.nodes, node{value: value{kind: kindObject}})
	for i := range len(attributeNames) - 1 {
		if text := attribute(ev, i); text != "" {
			s.push(attributeKeys[i], value{kindString, s.doc.keep(text)})
		}
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

// attribute is the text of attributeNames[i], "" when it is absent. time, the last, is none of its cases.
func attribute(ev *event.Event, i int) string {
	switch i {
	case 0:
		return specVersion
	case 1:
		return ev.ID
	case 2:
		return ev.Source
	case 3:
		return ev.Type
	case 4:
		return ev.Subject
	case 5:
		return ev.DataContentType
	}
	return ev.DataSchema
}

func (s *direct) extension(a *event.Attribute) {
	key := s.doc.keep(a.Name)
	if v, ok := s.doc.extension(a); ok {
		s.push(key, v)
	}
}

// extension is the value of an extension attribute.
func (d *document) extension(a *event.Attribute) (v value, ok bool) {
	switch x := a.Value.(type) {
	case string:
		return value{kindString, d.keep(x)}, true
	case bool:
		return value{kind: kindOf(x)}, true
	case int32:
		from := len(d.arena)
		d.arena = strconv.AppendInt(d.arena, int64(x), 10)
		return value{kindNumber, d.tail(from)}, true
	}
	return v, false
}

func (s *direct) push(key []byte, v value) {
	s.doc.nodes = append(s.doc.nodes, node{value: v, next: int32(len(s.doc.nodes)) + 1, key: key})
}

// loadData adds the data of the event to node 0, once, if it is JSON.
func (s *direct) loadData() {
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
func (s *direct) loadDocument(json []byte) error {
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
	if contentType == "" || contentType == jsonType || event.IsJSON(contentType) {
		return ""
	}
	return "the data is " + shorten(contentType, 80) + ", not JSON"
}
