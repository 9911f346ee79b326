// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// TopicMapping is a parsed TopicMapping document: which events the publishes to some topics become. Immutable.
type TopicMapping struct {
	Name   string
	Filter string
	Bus    string // where they go; "" = to devices
	Down   bool   // they are messages to devices, and on no bus

	// Sparkplug says that payloads are Sparkplug B: rules and readers see them decoded, and births are kept.
	Sparkplug bool

	Revision uint64 // set by the caller of ParseTopicMapping; stands in the mark of a change

	levels     int    // of the topic in the log's subject; 0 = the log's default
	kind       mapped // type
	subject    mapped // nil = the topic
	device     mapped // of a message to one device; nil = it is for every subscription
	extensions []mappedExtension
}

type mappedExtension struct {
	name  string
	value mapped
}

type mappingDocument struct {
	documentHead
	Filter        string            `json:"filter"`
	Bus           string            `json:"bus,omitempty"`
	Type          string            `json:"type,omitempty"`
	Subject       string            `json:"subject,omitempty"`
	Extensions    map[string]string `json:"extensions,omitempty"`
	SubjectLevels int               `json:"subjectLevels,omitempty"`
	Lane          string            `json:"lane,omitempty"`
	Device        string            `json:"device,omitempty"`
	Decode        string            `json:"decode,omitempty"`

	parsed TopicMapping
}

const (
	maxMappingExtensions = 32
	maxSubjectLevels     = 8
)

// ParseTopicMapping reads a TopicMapping document (JSON). Errors are *fault.Error of kind Invalid with JSON pointers.
func ParseTopicMapping(doc []byte) (*TopicMapping, error) {
	var d mappingDocument
	if err := decodeDocument(doc, "TopicMapping", &d); err != nil {
		return nil, err
	}
	return &d.parsed, nil
}

// The lanes of a mapping.
const (
	laneNameUp   = "up"
	laneNameDown = "down"
)

// decodeSparkplug is what a mapping can have decoded.
const decodeSparkplug = "sparkplug"

// DefaultBus is where publishes go that no mapping sends elsewhere.
const DefaultBus = "devices"

func (d *mappingDocument) check(complain complaint) {
	d.documentHead.check("TopicMapping", complain)
	m := TopicMapping{Name: d.Name, Filter: d.Filter, Bus: DefaultBus, Down: d.Lane == laneNameDown, Sparkplug: d.Decode == decodeSparkplug, levels: d.SubjectLevels}
	wildcards := strings.Count(d.Filter, "+") + strings.Count(d.Filter, "#")
	switch {
	case !packet.ValidFilter(d.Filter) || len(d.Filter) > maxTemplate:
		complain("/filter", "must be a topic filter of 1 to %d bytes: + and # stand alone in a level, # in the last", maxTemplate)
	case strings.HasPrefix(d.Filter, "$"):
		complain("/filter", "topics that begin with $ are the server's, and $share belongs to subscriptions")
	}
	if d.Bus != "" {
		if m.Bus = d.Bus; !nameFormat.MatchString(d.Bus) {
			complain("/bus", badName)
		}
	}
	part := func(pointer, text string) mapped {
		if text == "" {
			return nil
		}
		p, err := parseMapped(text, wildcards)
		if err != nil {
			complain(pointer, "%s", err)
		}
		return p
	}
	m.kind, m.subject, m.device = part("/type", d.Type), part("/subject", d.Subject), part("/device", d.Device)
	if len(d.Extensions) > maxMappingExtensions {
		complain("/extensions", "must be at most %d", maxMappingExtensions)
	}
	for _, name := range slices.Sorted(maps.Keys(d.Extensions)) {
		at := complain.under("/extensions/" + strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1"))
		sample := event.Event{ID: "x", Source: "x", Type: "x", Extensions: []event.Attribute{{Name: name, Value: "x"}}}
		if err := sample.Validate(event.Limits{MaxName: 20}); err != nil {
			var bad *event.Error
			if errors.As(err, &bad) {
				at("", "the name %s", bad.Reason)
			}
			continue
		}
		if d.Extensions[name] == "" {
			at("", "must not be empty")
			continue
		}
		m.extensions = append(m.extensions, mappedExtension{name, part("/extensions/"+name, d.Extensions[name])})
	}
	if d.SubjectLevels < 0 || d.SubjectLevels > maxSubjectLevels {
		complain("/subjectLevels", "must be 1 to %d; absent or 0 is %d", maxSubjectLevels, maxSubjectLevels)
	}
	if d.Lane != "" && d.Lane != laneNameUp && d.Lane != laneNameDown {
		complain("/lane", "must be up, from devices, or down, to devices")
	}
	if d.Decode != "" && d.Decode != decodeSparkplug {
		complain("/decode", "must be sparkplug, or left out")
	}
	d.checkLane(&m, complain)
	d.parsed = m
}

// checkLane complains about what does not go with the lane.
func (d *mappingDocument) checkLane(m *TopicMapping, complain complaint) {
	if !m.Down {
		if d.Device != "" {
			complain("/device", "goes with lane down: only messages to devices are for one of them")
		}
		return
	}
	m.Bus = ""
	if d.Bus != "" {
		complain("/bus", "must be left out with lane down: messages to devices are on no bus")
	}
	if d.SubjectLevels != 0 {
		complain("/subjectLevels", "must be left out with lane down")
	}
	if d.Decode != "" {
		complain("/decode", "must be left out with lane down: rules do not see messages to devices")
	}
	if d.Device == "" {
		return
	}
	// A command has a type and a subject of its own.
	if d.Type != "" {
		complain("/type", "must be left out with a device")
	}
	if d.Subject != "" {
		complain("/subject", "must be left out with a device")
	}
	if len(d.Extensions) > 0 {
		complain("/extensions", "must be left out with a device")
	}
}

// mapped is a text with {1}, {2}, ... in it, which stand for what the wildcards of the filter match, and {topic}, {clientid}
// and {principal}.
type mapped []mappedPart

// mappedPart is a literal; or a wildcard, counted from 1; or a name.
type mappedPart struct {
	literal  string
	wildcard int
	name     string
}

func parseMapped(s string, wildcards int) (mapped, error) {
	if len(s) > maxTemplate {
		return nil, fmt.Errorf("must be at most %d bytes", maxTemplate)
	}
	var m mapped
	for s != "" {
		literal, rest, found := strings.Cut(s, "{")
		sample := event.Event{ID: "x", Source: "x", Type: "x" + literal}
		if strings.Contains(literal, "}") || sample.Validate(event.Limits{MaxAttribute: 2 * maxTemplate}) != nil {
			return nil, errors.New("holds a } without a {, or what no CloudEvents text may hold")
		}
		if literal != "" {
			m = append(m, mappedPart{literal: literal})
		}
		if !found {
			break
		}
		name, after, closed := strings.Cut(rest, "}")
		n, err := strconv.Atoi(name)
		switch {
		case closed && (name == "topic" || name == varClientID || name == varPrincipal):
			m = append(m, mappedPart{name: name})
		case closed && err == nil && n >= 1 && strconv.Itoa(n) == name:
			if n > wildcards {
				return nil, fmt.Errorf("has {%d}, and the filter has %d wildcards", n, wildcards)
			}
			m = append(m, mappedPart{wildcard: n})
		default:
			return nil, errors.New("has {...} that is none of {1}, {2}, ... for the wildcards of the filter, {topic}, {clientid} and {principal}")
		}
		s = after
	}
	return m, nil
}

// String writes what parseMapped reads.
func (m mapped) String() string {
	var b strings.Builder
	for _, p := range m {
		switch {
		case p.wildcard > 0:
			b.WriteString("{" + strconv.Itoa(p.wildcard) + "}")
		case p.name != "":
			b.WriteString("{" + p.name + "}")
		default:
			b.WriteString(p.literal)
		}
	}
	return b.String()
}

// render fills the text in. captured are what the wildcards match.
func (m mapped) render(topic string, key sessionKey, captured []string) string {
	if len(m) == 1 && m[0].wildcard == 0 && m[0].name == "" {
		return m[0].literal
	}
	var b strings.Builder
	for _, p := range m {
		switch {
		case p.wildcard > 0:
			b.WriteString(captured[p.wildcard-1])
		case p.name == "topic":
			b.WriteString(topic)
		case p.name == varClientID:
			b.WriteString(key.clientID)
		case p.name == varPrincipal:
			b.WriteString(key.principal)
		default:
			b.WriteString(p.literal)
		}
	}
	return b.String()
}

// captures appends what the wildcards of a filter match in a topic that it matches: a level for each +, the levels that are
// left for #.
func captures(dst []string, filter, topic string) []string {
	for more := true; more; {
		var f string
		f, filter, more = strings.Cut(filter, "/")
		if f == "#" {
			return append(dst, topic)
		}
		var level string
		level, topic, _ = strings.Cut(topic, "/")
		if f == "+" {
			dst = append(dst, level)
		}
	}
	return dst
}

// apply puts what the mapping says into the defaults of a publish.
func (m *TopicMapping) apply(d *event.MQTTDefaults, topic string, key sessionKey) {
	var few [8]string
	captured := captures(few[:0], m.Filter, topic)
	d.Type = m.kind.render(topic, key, captured)
	d.Subject = m.subject.render(topic, key, captured)
	for _, x := range m.extensions {
		if v := x.value.render(topic, key, captured); v != "" {
			d.Extensions = append(d.Extensions, event.Attribute{Name: x.name, Value: v})
		}
	}
}

// deviceOf is the device that a publish is for; m has a template for it.
func (m *TopicMapping) deviceOf(topic string, key sessionKey) string {
	var few [8]string
	return m.device.render(topic, key, captures(few[:0], m.Filter, topic))
}

// mappingNode is a level of the filters of mappings.
type mappingNode struct {
	children map[string]*mappingNode // + and # among them
	mapping  *TopicMapping           // of the filter that ends here; nil = none
}

// find returns the mapping of a topic whose filter says most: at the first level in which two filters differ, text comes
// before +, and + before #. It is nil if there is none.
func (n *mappingNode) find(topic string) *TopicMapping {
	level, rest, more := strings.Cut(topic, "/")
	for _, name := range [2]string{level, "+"} {
		c := n.children[name]
		if c == nil {
			continue
		}
		if more {
			if m := c.find(rest); m != nil {
				return m
			}
			continue
		}
		if c.mapping != nil {
			return c.mapping
		}
		if h := c.children["#"]; h != nil { // a/# matches a as well
			return h.mapping
		}
	}
	if h := n.children["#"]; h != nil {
		return h.mapping
	}
	return nil
}

// indexMappings makes the tree. Of two mappings with one filter the one whose name comes first counts.
func indexMappings(all []*TopicMapping) *mappingNode {
	root := &mappingNode{}
	for _, m := range slices.SortedFunc(slices.Values(all), func(a, b *TopicMapping) int { return strings.Compare(a.Name, b.Name) }) {
		n := root
		for level := range strings.SplitSeq(m.Filter, "/") {
			if n.children == nil {
				n.children = map[string]*mappingNode{}
			}
			c := n.children[level]
			if c == nil {
				c = &mappingNode{}
				n.children[level] = c
			}
			n = c
		}
		if n.mapping == nil {
			n.mapping = m
		}
	}
	return root
}
