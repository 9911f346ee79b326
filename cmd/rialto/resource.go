// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// kind is one sort of definition and where the server keeps it.
type kind struct {
	name   string // as documents say it
	plural string // as paths say it
	inBus  bool   // belongs to a bus
}

var (
	ruleKind     = kind{name: "Rule", plural: "rules", inBus: true}
	functionKind = kind{name: "Function", plural: "functions"}
)

// kinds are in the order in which they are applied: what is referred to comes before what refers to it.
var kinds = []kind{
	{name: "Bus", plural: "buses"},
	{name: "Secret", plural: "secrets"},
	functionKind,
	{name: "Target", plural: "targets"},
	{name: "DevicePolicy", plural: "devicepolicies"},
	{name: "TokenIssuer", plural: "tokenissuers"},
	{name: "TopicMapping", plural: "topicmappings"},
	{name: "Device", plural: "devices"},
	{name: "Key", plural: "keys"},
	{name: "IdentityProvider", plural: "identityproviders"},
	ruleKind,
	{name: "Source", plural: "sources"},
	{name: "Region", plural: "regions"},
	{name: "Link", plural: "links"},
}

// schemaKind is the kind of schemas, which apply takes as it takes definitions, and which have commands of their own for
// everything else. The bus of such a resource is its group.
var schemaKind = kind{name: "Schema", plural: "schemas"}

// defaultBus is the bus of what does not name one.
const defaultBus = "default"

// serverOwned are the fields that the server returns and ignores on write.
var serverOwned = []string{"revision", "createdAt", "updatedAt", "status"}

var resourceName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// kindNamed finds a kind by its name, singular or plural, in any case.
func kindNamed(s string) (kind, error) {
	for _, k := range kinds {
		if strings.EqualFold(s, k.name) || strings.EqualFold(s, k.plural) {
			return k, nil
		}
	}
	return kind{}, usagef("%q is no kind of definition; there are %s", clean(s), strings.Join(kindNames(), ", "))
}

// documentKinds are the kinds as documents say them.
func documentKinds() []string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return append(names, schemaKind.name)
}

func kindNames() []string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.plural)
	}
	return names
}

// resource names one definition.
type resource struct {
	kind kind
	bus  string // of what belongs to a bus
	name string
}

// String is kind/name, as every command prints it.
func (r resource) String() string {
	if r.kind == schemaKind {
		return "schema/" + r.bus + "/" + r.name
	}
	s := strings.ToLower(r.kind.name) + "/" + r.name
	if r.kind.inBus && r.bus != defaultBus {
		s += " on " + r.bus
	}
	return s
}

// path is where the server keeps it.
func (r resource) path() string {
	if r.kind == schemaKind {
		return "/v1/schemas/" + url.PathEscape(r.bus) + "/" + url.PathEscape(r.name)
	}
	return r.kind.path(r.bus) + "/" + url.PathEscape(r.name)
}

// path is where the server lists the kind; bus matters only for what belongs to a bus.
func (k kind) path(bus string) string {
	if k.inBus {
		return "/v1/buses/" + url.PathEscape(bus) + "/" + k.plural
	}
	return "/v1/" + k.plural
}

// stored is a definition as the server has it.
type stored struct {
	raw  json.RawMessage
	etag string
}

// fetch reads one definition.
func (cl *client) fetch(ctx context.Context, r resource) (stored, error) {
	a, err := cl.do(ctx, request{Method: http.MethodGet, Path: r.path()})
	if err != nil {
		return stored{}, err
	}
	return stored{raw: a.Body, etag: a.Header.Get("ETag")}, nil
}

// buses returns the names of all buses.
func (cl *client) buses(ctx context.Context) ([]string, error) {
	var names []string
	err := cl.list(ctx, "/v1/buses", nil, 0, func(item json.RawMessage) error {
		var doc struct {
			Name string `json:"name"`
		}
		err := json.Unmarshal(item, &doc)
		names = append(names, doc.Name)
		return err
	})
	return names, err
}

// resolve finds the bus of a resource whose bus was not given: the one bus that has it.
func (cl *client) resolve(ctx context.Context, r resource) (resource, error) {
	if !r.kind.inBus || r.bus != "" {
		return r, nil
	}
	names, err := cl.buses(ctx)
	if err != nil {
		return r, err
	}
	var on []string
	for _, bus := range names {
		_, err := cl.fetch(ctx, resource{kind: r.kind, bus: bus, name: r.name})
		switch {
		case err == nil:
			on = append(on, bus)
		case exitCode(err) != exitNotFound:
			return r, err
		}
	}
	switch len(on) {
	case 0:
		return r, &codeError{exitNotFound, fmt.Errorf("no bus has a rule %s", clean(r.name))}
	case 1:
		r.bus = on[0]
		return r, nil
	}
	return r, usagef("buses %s all have a rule %s: say which with --bus", strings.Join(on, ", "), clean(r.name))
}

// own returns the document without what the server owns, and with kind, name and bus in front.
func own(k kind, raw json.RawMessage) (json.RawMessage, error) {
	fields, order, err := objectFields(raw)
	if err != nil {
		return nil, err
	}
	if _, ok := fields["kind"]; !ok {
		name, err := json.Marshal(k.name)
		if err != nil {
			return nil, err
		}
		fields["kind"] = name
		order = append(order, "kind")
	}
	var keys []string
	first := []string{"kind", "name", "bus"}
	for _, key := range first {
		if _, ok := fields[key]; ok {
			keys = append(keys, key)
		}
	}
	for _, key := range order {
		if !slices.Contains(first, key) && !slices.Contains(serverOwned, key) {
			keys = append(keys, key)
		}
	}
	return writeObject(fields, keys)
}

// writeObject is the way back from objectFields, for some keys.
func writeObject(fields map[string]json.RawMessage, keys []string) (json.RawMessage, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, key := range keys {
		if i > 0 {
			b.WriteByte(',')
		}
		quoted, err := json.Marshal(key)
		if err != nil {
			return nil, err
		}
		b.Write(quoted)
		b.WriteByte(':')
		b.Write(fields[key])
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// objectFields splits a JSON object into its fields and their order.
func objectFields(raw json.RawMessage) (map[string]json.RawMessage, []string, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return nil, nil, fmt.Errorf("a definition is a JSON object")
	}
	fields, order := map[string]json.RawMessage{}, []string(nil)
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return nil, nil, err
		}
		key, _ := tok.(string) // the decoder lets only strings be keys
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, nil, err
		}
		if _, ok := fields[key]; !ok {
			order = append(order, key)
		}
		fields[key] = value
	}
	return fields, order, nil
}

// columns are what the table of a kind shows; each takes its cell out of the document.
type column struct {
	heading string
	cell    func(doc map[string]any) string
}

func (k kind) columns(now time.Time) []column {
	text := func(path ...string) func(map[string]any) string {
		return func(doc map[string]any) string { return cell(dig(doc, path...)) }
	}
	age := column{"CHANGED", func(doc map[string]any) string { return ago(now, cell(dig(doc, "updatedAt"))) }}
	name := column{"NAME", text("name")}
	switch k.name {
	case "Bus":
		return []column{name, {"MAX AGE", text("retention", "maxAge")}, {"MAX SIZE", text("retention", "maxBytes")},
			{"DEDUP", text("dedupWindow")}, age}
	case "Target":
		return []column{name, {"TYPE", text("type")}, {"STATE", text("status", "state")}, age, {"TO", func(doc map[string]any) string {
			return shorten(cell(dig(doc, "config", "url")), 48)
		}}}
	case "Source":
		return []column{name, {"TYPE", text("type")}, {"BUS", func(doc map[string]any) string { return orDefault(cell(dig(doc, "bus")), defaultBus) }},
			{"STATE", text("status", "state")}, {"RATE/S", func(doc map[string]any) string {
				rate, ok := dig(doc, "status", "rate").(float64)
				if !ok {
					return ""
				}
				return strconv.FormatFloat(rate, 'g', 3, 64)
			}}, {"LAG", text("status", "lag")}, {"LAST EVENT", func(doc map[string]any) string { return ago(now, cell(dig(doc, "status", "lastEvent"))) }}, age}
	case "Region":
		return []column{name, {"URL", text("url")}, {"BANDWIDTH", text("bandwidth")}, {"STATE", text("status", "state")}, age}
	case "Link":
		return []column{name, {"BUS", func(doc map[string]any) string { return orDefault(cell(dig(doc, "bus")), defaultBus) }}, {"REGION", text("region")},
			{"STATE", text("status", "state")}, {"BEHIND", text("status", "lag", "events")}, age}
	case "Rule":
		return []column{{"BUS", func(doc map[string]any) string { return orDefault(cell(dig(doc, "bus")), defaultBus) }}, name, {"STATE", func(doc map[string]any) string {
			if off, _ := dig(doc, "disabled").(bool); off {
				return "disabled"
			}
			return "active"
		}}, age, {"TARGETS", func(doc map[string]any) string {
			var names []string
			list, _ := dig(doc, "targets").([]any)
			for _, t := range list {
				entry, _ := t.(map[string]any)
				names = append(names, cell(entry["target"]))
			}
			return strings.Join(names, ", ")
		}}}
	case "Device":
		return []column{name, {"PRINCIPAL", text("principal")}, {"STATE", func(doc map[string]any) string {
			if blocked, _ := dig(doc, "blocked").(bool); blocked {
				return "blocked"
			}
			if online, _ := dig(doc, "status", "online").(bool); online {
				return "online"
			}
			return "offline"
		}}, {"POLICY", text("policy")}, age}
	case "TokenIssuer":
		return []column{name, {"ISSUER", text("issuer")}, {"POLICY", text("policy")}, age}
	case "IdentityProvider":
		return []column{name, {"ISSUER", text("issuer")}, age}
	case "TopicMapping":
		return []column{name, {"FILTER", text("filter")}, {"BUS", text("bus")}, {"TYPE", text("type")}, age}
	case "Key":
		return []column{name, {"EXPIRES", text("expiresAt")}, {"LAST USED", func(doc map[string]any) string { return ago(now, cell(dig(doc, "status", "lastUsedAt"))) }}, age, {"SCOPES", func(doc map[string]any) string {
			var scopes []string
			list, _ := dig(doc, "scopes").([]any)
			for _, s := range list {
				scopes = append(scopes, cell(s))
			}
			return strings.Join(scopes, " ")
		}}}
	}
	return []column{name, age}
}

// table writes documents of one kind as a table.
func (k kind) table(w io.Writer, now time.Time, docs []json.RawMessage) error {
	columns := k.columns(now)
	var headings []string
	for _, col := range columns {
		headings = append(headings, col.heading)
	}
	var rows [][]string
	for _, raw := range docs {
		var doc map[string]any
		if err := json.Unmarshal(raw, &doc); err != nil {
			return err
		}
		var row []string
		for _, col := range columns {
			row = append(row, orDefault(col.cell(doc), "-"))
		}
		rows = append(rows, row)
	}
	return writeTable(w, headings, rows)
}

// dig follows keys into nested objects; nil when there is nothing.
func dig(doc any, keys ...string) any {
	for _, key := range keys {
		object, _ := doc.(map[string]any)
		doc = object[key]
	}
	return doc
}

// cell is a value as a table shows it.
func cell(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return clean(v)
	case float64: // a number of JSON, which Sprint writes as 1e+06
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return clean(fmt.Sprint(v))
}

// ago says how long a time in RFC 3339 is past.
func ago(now time.Time, stamp string) string {
	t, err := time.Parse(time.RFC3339, stamp)
	if err != nil {
		return ""
	}
	return span(now.Sub(t)) + " ago"
}

// span is a duration in its largest unit.
func span(d time.Duration) string {
	switch d = d.Abs(); {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	case d >= time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d >= time.Minute:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return fmt.Sprintf("%ds", d/time.Second)
}
