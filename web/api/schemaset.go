// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/schema"
)

const schemaKind = "Schema"

// Limits of the types of a schema in a change set.
const (
	maxSchemaTypes = 1000
	maxTypeBytes   = 1024
)

// schemaItem is a document of kind Schema in a change set: what the versions of a schema have in common, the text that is
// to be its latest version, and the types of events that have it.
//
//	kind: Schema
//	group: acme
//	name: telemetry
//	compatibility: backward
//	types: [com.acme.telemetry]
//	schema: {type: object, properties: {temperature: {type: number}}}
type schemaItem struct {
	head  schema.Schema
	reg   *schema.Registration // nil = there is no text
	types []string             // nil = they stay as they are

	old     schema.Schema
	there   bool
	latest  schema.Version // if it is there and has an active one
	bound   []string       // types, now
	version int            // that has the text; 0 = none has it yet
	bind    []string
	unbind  []string
	changes bool
	outcome string // once it was registered
}

// readSchemaItem reads a document. The error is Invalid.
func readSchemaItem(ms []member) (*schemaItem, error) {
	var text json.RawMessage
	var references []schema.Reference
	s := &schemaItem{}
	var faults []fault.Detail
	rest := slices.DeleteFunc(slices.Clone(ms), func(m member) bool {
		switch m.name {
		case "schema":
			text = m.value
		case "references":
			if decodeStrict(m.value, &references) != nil {
				faults = append(faults, fault.Detail{Pointer: "/references", Detail: "must be a list of objects with name, group, schema and version"})
			}
		case "types":
			s.types = []string{}
			if json.Unmarshal(m.value, &s.types) != nil || len(s.types) > maxSchemaTypes ||
				slices.ContainsFunc(s.types, func(t string) bool { return t == "" || len(t) > maxTypeBytes }) {
				faults = append(faults, fault.Detail{Pointer: "/types", Detail: "must be a list of at most 1000 event types of 1 to 1024 bytes"})
			}
		default:
			return false
		}
		return true
	})
	group, _ := textOf(ms, "group")
	name, _ := textOf(ms, "name")
	n := schema.Name{Group: group, Schema: name}
	if err := n.Check(); err != nil {
		for _, d := range detailsOf(err) {
			if d.Pointer == "/schema" {
				d.Pointer = "/name"
			}
			faults = append(faults, d)
		}
	}
	if err := fault.Collect(faults); err != nil {
		return nil, err
	}
	doc, err := join(rest)
	if err != nil {
		return nil, err
	}
	if s.head, err = readSchema(doc, n); err != nil {
		return nil, err
	}
	if text != nil {
		s.reg = &schema.Registration{Name: n, Text: schemaText(text), References: references, Format: s.head.Format}
	}
	return s, nil
}

// schemaText is a text that stands in JSON as a string, or as the JSON itself.
func schemaText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}

func detailsOf(err error) []fault.Detail {
	if f, ok := err.(*fault.Error); ok { //nolint:errorlint // what is wrapped is told as a whole
		return f.Details
	}
	return []fault.Detail{{Detail: err.Error()}}
}

// resolve holds the document against the registry.
func (s *schemaItem) resolve(ctx context.Context, r *schema.Registry) error {
	if s.outcome != "" {
		return nil // it was registered by the try before
	}
	var err error
	s.old, err = r.Store().Schema(ctx, s.head.Name)
	if err != nil && fault.KindOf(err) != fault.NotFound {
		return err
	}
	s.there = err == nil && !s.old.Deleted
	s.settle()
	if s.there && s.head.Format != s.old.Format {
		return fault.Invalidf("/format", "cannot change: the schema is written in %s", s.old.Format)
	}
	if err := s.resolveText(ctx, r); err != nil {
		return err
	}
	if err := s.resolveTypes(ctx, r); err != nil {
		return err
	}
	same := s.there && s.old.Compatibility == s.head.Compatibility && s.old.Policy == s.head.Policy && s.old.AllowUnknown == s.head.AllowUnknown &&
		s.old.Description == s.head.Description && maps.Equal(s.old.Labels, s.head.Labels)
	s.changes = !same || s.reg != nil && s.version == 0 || len(s.bind)+len(s.unbind) > 0
	return nil
}

// settle fills in what the document leaves out, as the registry does.
func (s *schemaItem) settle() {
	s.head.Revision = s.old.Revision
	if s.head.Format == "" && s.there {
		s.head.Format = s.old.Format
	}
	s.head.Format = cmp.Or(s.head.Format, schema.JSONSchema)
	s.head.Compatibility = cmp.Or(s.head.Compatibility, schema.Backward)
	s.head.Policy = cmp.Or(s.head.Policy, schema.Lenient)
}

// resolveText finds the version that has the text, or checks whether it may be the next one.
func (s *schemaItem) resolveText(ctx context.Context, r *schema.Registry) error {
	if s.there {
		v, err := r.Latest(ctx, s.head.Name)
		if err != nil && fault.KindOf(err) != fault.NotFound {
			return err
		}
		s.latest = v
	}
	if s.reg == nil {
		return nil
	}
	s.reg.Format = s.head.Format
	v, err := r.Find(ctx, *s.reg)
	switch {
	case err == nil && v.State.Counts():
		s.version = v.Ref.Version
		return nil
	case err != nil && fault.KindOf(err) != fault.NotFound:
		return inText(err)
	}
	verdict, err := r.Check(ctx, *s.reg, schema.CheckOptions{Compatibility: s.head.Compatibility, Policy: s.head.Policy})
	if err != nil {
		return inText(err)
	}
	return fault.At("/schema", verdict.Err(s.head.AllowUnknown))
}

// resolveTypes finds out which types are to be bound, and which not any more.
func (s *schemaItem) resolveTypes(ctx context.Context, r *schema.Registry) error {
	s.bound, s.bind, s.unbind = nil, nil, nil
	for after := ""; ; {
		p, err := r.Store().Bindings(ctx, s.head.Name, after, 0)
		if err != nil {
			return err
		}
		for _, b := range p.Items {
			s.bound = append(s.bound, b.EventType)
		}
		if after = p.Cursor; after == "" {
			break
		}
	}
	if s.types == nil {
		return nil
	}
	for _, t := range s.types {
		if !slices.Contains(s.bound, t) {
			s.bind = append(s.bind, t)
		}
	}
	for _, t := range s.bound {
		if !slices.Contains(s.types, t) {
			s.unbind = append(s.unbind, t)
		}
	}
	return nil
}

// register registers the schemas of the set that change.
func (p *plan) register(ctx context.Context) error {
	for _, it := range p.items {
		if it.schema == nil || it.schema.outcome != "" {
			continue
		}
		if err := it.schema.register(ctx, p.c.schemas); err != nil {
			if !tellable(err) {
				return err
			}
			return fault.Collect(p.complain(nil, it, err))
		}
	}
	return nil
}

func (s *schemaItem) register(ctx context.Context, r *schema.Registry) error {
	outcome := s.would()
	if s.changes {
		head, err := r.Configure(ctx, s.head)
		if err != nil {
			return err
		}
		s.head = head
	} else {
		s.head = s.old
	}
	if s.reg != nil && s.version == 0 {
		done, err := r.Register(ctx, *s.reg)
		if err != nil {
			return inText(err)
		}
		s.version = done.Version.Ref.Version
	}
	for _, t := range s.bind {
		if _, err := r.Bind(ctx, t, s.head.Name); err != nil {
			return fault.At("/types", err)
		}
	}
	for _, t := range s.unbind {
		if err := r.Unbind(ctx, t, s.head.Name); err != nil && fault.KindOf(err) != fault.NotFound {
			return fault.At("/types", err)
		}
	}
	s.outcome = outcome
	return nil
}

// would is what becomes of the schema.
func (s *schemaItem) would() string {
	switch {
	case !s.there:
		return outcomeCreated
	case s.changes:
		return outcomeConfigured
	}
	return outcomeUnchanged
}

// changed is the answer about it.
func (s *schemaItem) changed(show bool) Changed {
	n := s.head.Name
	done := Changed{Kind: schemaKind, Group: n.Group, Name: n.Schema, Outcome: cmp.Or(s.outcome, s.would()), Version: s.version}
	if s.there {
		done.OldRevision = s.old.Revision
	}
	if s.outcome != "" || done.Outcome == outcomeUnchanged {
		done.Revision = s.head.Revision
	}
	if !show || done.Outcome == outcomeUnchanged {
		return done
	}
	text, references, types := s.latest.Text, s.latest.References, s.bound
	if s.there {
		done.Before = schemaView(s.old, text, references, types)
	}
	if s.reg != nil {
		text, references = s.reg.Text, s.reg.References
	}
	if s.types != nil {
		types = s.types
	}
	done.After = schemaView(s.head, text, references, types)
	return done
}

// schemaView is a schema as a document of a change set, with all that it may leave out.
func schemaView(head schema.Schema, text string, references []schema.Reference, types []string) json.RawMessage {
	body := json.RawMessage(text)
	if head.Format == schema.Protobuf || !json.Valid(body) {
		body = appendJSONString(nil, text)
	}
	types = slices.Sorted(slices.Values(types))
	doc, err := marshalDoc(struct {
		Kind          string             `json:"kind"`
		Group         string             `json:"group"`
		Name          string             `json:"name"`
		Format        schema.Format      `json:"format"`
		Compatibility schema.Mode        `json:"compatibility"`
		Policy        schema.Policy      `json:"policy"`
		AllowUnknown  bool               `json:"allowUnknown,omitempty"`
		Description   string             `json:"description,omitempty"`
		Labels        map[string]string  `json:"labels,omitempty"`
		Types         []string           `json:"types,omitempty"`
		References    []schema.Reference `json:"references,omitempty"`
		Schema        json.RawMessage    `json:"schema"`
	}{schemaKind, head.Name.Group, head.Name.Schema, head.Format, head.Compatibility, head.Policy, head.AllowUnknown, head.Description, head.Labels,
		types, references, body})
	if err != nil {
		return nil // it is made of strings, and of JSON
	}
	return doc
}
