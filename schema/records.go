// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Records is a store of JSON documents by kind, scope and name, with revisions and compare-and-swap of one document. An
// expected revision of 0 means that there must be none. What it promises otherwise is what Store does.
type Records interface {
	GetRecord(ctx context.Context, kind, scope, name string) (raw []byte, revision uint64, err error)
	PutRecord(ctx context.Context, kind, scope, name string, raw []byte, expect uint64) (revision uint64, err error)
	DeleteRecord(ctx context.Context, kind, scope, name string, expect uint64) error
	// ListRecords calls fn for the documents of a kind, by scope, then name: of one scope, or of all. The labels are those in
	// the member "labels" of documents.
	ListRecords(ctx context.Context, q RecordQuery, fn func(scope, name string, raw []byte, revision uint64) error) (cursor string, err error)
	// WatchRecords is Store.Watch; raw is nil for a deleted document, and kind "" says that all there was has been told.
	WatchRecords(ctx context.Context, fn func(kind, scope, name string, raw []byte, revision uint64) error) error
	Close() error
}

// RecordQuery selects records.
type RecordQuery = struct {
	Kind, Scope string
	AllScopes   bool
	Labels      map[string]string
	After       string
	Limit       int
}

// OnRecords returns a Store whose records are documents. Every write is one compare-and-swap: a version is the document
// that only one can make under its number, and a binding the one under its event type. The store closes r.
func OnRecords(r Records) Store { return &recordStore{r} }

type recordStore struct{ r Records }

// Kinds of records.
const (
	recSchema  = "schema"        // scope group, name schema
	recVersion = "schemaversion" // scope group/schema, name the number in four digits
	recID      = "schemaid"      // name the id: which version it may be; an id whose version says otherwise is unused
	recCounter = "schemacounter" // name "id": the last id that was given
	recBinding = "schemabinding" // name the event type
)

// idRecord is what stands under an id.
type idRecord struct {
	Group   string `json:"group"`
	Schema  string `json:"schema"`
	Version int    `json:"version"`
}

func numberName(n int) string { return fmt.Sprintf("%04d", n) }

// get reads a record into v.
func (s *recordStore) get(ctx context.Context, kind, scope, name string, v any, absent error) (uint64, error) {
	raw, revision, err := s.r.GetRecord(ctx, kind, scope, name)
	if err != nil {
		if fault.KindOf(err) == fault.NotFound {
			return 0, absent
		}
		return 0, err
	}
	return revision, unmarshal(kind, scope, name, raw, v)
}

func unmarshal(kind, scope, name string, raw []byte, v any) error {
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("record %s %s %s: %w", kind, scope, name, err)
	}
	return nil
}

func (s *recordStore) put(ctx context.Context, kind, scope, name string, v any, expect uint64, taken error) (uint64, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return 0, err
	}
	revision, err := s.r.PutRecord(ctx, kind, scope, name, raw, expect)
	if fault.KindOf(err) == fault.Conflict {
		return 0, taken
	}
	return revision, err
}

func (s *recordStore) Schema(ctx context.Context, n Name) (out Schema, err error) {
	out.Revision, err = s.get(ctx, recSchema, n.Group, n.Schema, &out, noSchema(n))
	out.Name = n
	if err != nil {
		return Schema{}, err
	}
	return out, nil
}

func (s *recordStore) PutSchema(ctx context.Context, c Schema) (Schema, error) {
	revision, err := s.put(ctx, recSchema, c.Name.Group, c.Name.Schema, c, c.Revision, changed("schema %s", c.Name))
	if err != nil {
		return Schema{}, err
	}
	c.Revision = revision
	return c, nil
}

func changed(format string, args ...any) error {
	return fault.New(fault.Conflict, format+" has changed", args...)
}

func (s *recordStore) Schemas(ctx context.Context, q Query) (Page[Schema], error) {
	rq := RecordQuery{Kind: recSchema, Scope: q.Group, AllScopes: q.Group == "", Labels: q.Labels, After: q.After, Limit: q.Limit}
	return collect(ctx, s.r, rq, func(scope, name string, raw []byte, revision uint64) (Schema, bool, error) {
		c := Schema{}
		err := unmarshal(recSchema, scope, name, raw, &c)
		c.Name, c.Revision = Name{scope, name}, revision
		return c, q.Deleted || !c.Deleted, err
	})
}

// collect fills a page with the records that keep says belong to it.
func collect[T any](ctx context.Context, r Records, q RecordQuery, keep func(scope, name string, raw []byte, revision uint64) (T, bool, error)) (Page[T], error) {
	var p Page[T]
	want := q.Limit
	if want == 0 {
		want = 100
	}
	for {
		if q.Limit >= 0 { // what is out of range the records refuse
			q.Limit = want - len(p.Items)
		}
		cursor, err := r.ListRecords(ctx, q, func(scope, name string, raw []byte, revision uint64) error {
			item, ok, err := keep(scope, name, raw, revision)
			if err == nil && ok {
				p.Items = append(p.Items, item)
			}
			return err
		})
		if err != nil {
			return Page[T]{}, err
		}
		if cursor == "" || len(p.Items) == want {
			p.Cursor = cursor
			return p, nil
		}
		q.After = cursor
	}
}

func (s *recordStore) Version(ctx context.Context, r Ref) (v Version, err error) {
	v.Revision, err = s.get(ctx, recVersion, r.Name.String(), numberName(r.Version), &v, noVersion(r))
	v.Ref = r
	if err != nil {
		return Version{}, err
	}
	return v, nil
}

func (s *recordStore) VersionByID(ctx context.Context, id int) (Version, error) {
	var at idRecord
	if _, err := s.get(ctx, recID, "", strconv.Itoa(id), &at, noID(id)); err != nil {
		return Version{}, err
	}
	v, err := s.Version(ctx, Ref{Name{at.Group, at.Schema}, at.Version})
	if fault.KindOf(err) == fault.NotFound || err == nil && v.ID != id {
		return Version{}, noID(id)
	}
	return v, err
}

func (s *recordStore) AddVersion(ctx context.Context, v Version) (Version, error) {
	taken := changed("the latest version of schema %s", v.Ref.Name)
	if v.Ref.Version > 1 {
		_, err := s.Version(ctx, Ref{v.Ref.Name, v.Ref.Version - 1})
		if fault.KindOf(err) == fault.NotFound {
			return Version{}, taken
		}
		if err != nil {
			return Version{}, err
		}
	}
	// Looked at before an ID is spent; who is faster from here on is found out by the write.
	if _, err := s.Version(ctx, v.Ref); err == nil {
		return Version{}, taken
	} else if fault.KindOf(err) != fault.NotFound {
		return Version{}, err
	}
	id, err := s.newID(ctx)
	if err != nil {
		return Version{}, err
	}
	// The way from the id to the version comes first: a version that cannot be found by its id must not be.
	at := idRecord{v.Ref.Group, v.Ref.Schema, v.Ref.Version}
	if _, err := s.put(ctx, recID, "", strconv.Itoa(id), at, 0, changed("id %d", id)); err != nil {
		return Version{}, err
	}
	v.ID = id
	v.Revision, err = s.put(ctx, recVersion, v.Ref.Name.String(), numberName(v.Ref.Version), v, 0, taken)
	if err != nil {
		return Version{}, err
	}
	return v, nil
}

// newID takes the next number from the counter.
func (s *recordStore) newID(ctx context.Context) (int, error) {
	none, lost := errors.New("no counter yet"), errors.New("another was faster")
	for ctx.Err() == nil {
		var last int
		revision, err := s.get(ctx, recCounter, "", "id", &last, none)
		if err != nil && !errors.Is(err, none) {
			return 0, err
		}
		_, err = s.put(ctx, recCounter, "", "id", last+1, revision, lost)
		if !errors.Is(err, lost) {
			return last + 1, err
		}
	}
	return 0, ctx.Err()
}

func (s *recordStore) SetState(ctx context.Context, v Version) (Version, error) {
	now, err := s.Version(ctx, v.Ref)
	if err != nil {
		return Version{}, err
	}
	taken := changed("version %s", v.Ref)
	if now.Revision != v.Revision {
		return Version{}, taken
	}
	now.State, now.UpdatedAt = v.State, v.UpdatedAt
	now.Revision, err = s.put(ctx, recVersion, v.Ref.Name.String(), numberName(v.Ref.Version), now, v.Revision, taken)
	if err != nil {
		return Version{}, err
	}
	return now, nil
}

func (s *recordStore) Versions(ctx context.Context, n Name, after string, limit int) (Page[Version], error) {
	rq := RecordQuery{Kind: recVersion, Scope: n.String(), After: after, Limit: limit}
	return collect(ctx, s.r, rq, func(_, name string, raw []byte, revision uint64) (Version, bool, error) {
		v, err := versionOf(n, name, raw, revision)
		return v, true, err
	})
}

func versionOf(n Name, name string, raw []byte, revision uint64) (Version, error) {
	v := Version{}
	if err := unmarshal(recVersion, n.String(), name, raw, &v); err != nil {
		return v, err
	}
	number, err := strconv.Atoi(name)
	v.Ref, v.Revision = Ref{n, number}, revision
	return v, err
}

func (s *recordStore) FindVersion(ctx context.Context, n Name, hash string) (Version, error) {
	var found *Version
	for after := ""; ; {
		p, err := s.Versions(ctx, n, after, 100)
		if err != nil {
			return Version{}, err
		}
		for _, v := range p.Items {
			if v.Hash == hash && v.State != Deleted {
				found = &v
			}
		}
		if after = p.Cursor; after == "" {
			break
		}
	}
	if found == nil {
		return Version{}, fault.New(fault.NotFound, "schema %s has no version with this content", n)
	}
	return *found, nil
}

// bindingRecord is what stands under an event type.
type bindingRecord struct {
	Group  string `json:"group"`
	Schema string `json:"schema"`
}

func (s *recordStore) Binding(ctx context.Context, eventType string) (Binding, error) {
	var at bindingRecord
	revision, err := s.get(ctx, recBinding, "", eventType, &at, noBinding(eventType))
	if err != nil {
		return Binding{}, err
	}
	return Binding{eventType, Name(at), revision}, nil
}

func (s *recordStore) Bind(ctx context.Context, b Binding) (Binding, error) {
	revision, err := s.put(ctx, recBinding, "", b.EventType, bindingRecord(b.Name), b.Revision, changed("the binding of event type %q", b.EventType))
	if err != nil {
		return Binding{}, err
	}
	b.Revision = revision
	return b, nil
}

func (s *recordStore) Unbind(ctx context.Context, b Binding) error {
	err := s.r.DeleteRecord(ctx, recBinding, "", b.EventType, b.Revision)
	switch fault.KindOf(err) {
	case fault.NotFound:
		return noBinding(b.EventType)
	case fault.Conflict:
		return changed("the binding of event type %q", b.EventType)
	}
	return err
}

func (s *recordStore) Bindings(ctx context.Context, of Name, after string, limit int) (Page[Binding], error) {
	rq := RecordQuery{Kind: recBinding, After: after, Limit: limit}
	return collect(ctx, s.r, rq, func(_, name string, raw []byte, revision uint64) (Binding, bool, error) {
		b, err := bindingOf(name, raw, revision)
		return b, of == Name{} || of == b.Name, err
	})
}

func bindingOf(eventType string, raw []byte, revision uint64) (Binding, error) {
	var at bindingRecord
	err := unmarshal(recBinding, "", eventType, raw, &at)
	return Binding{eventType, Name(at), revision}, err
}

func (s *recordStore) Watch(ctx context.Context, fn func(Change) error) error {
	return s.r.WatchRecords(ctx, func(kind, scope, name string, raw []byte, revision uint64) error {
		c, err := changeOf(kind, scope, name, raw, revision)
		if err != nil || c.CaughtUp() && kind != "" {
			return err
		}
		return fn(c)
	})
}

// changeOf is what a record says; the zero Change of records that are nobody's business.
func changeOf(kind, scope, name string, raw []byte, revision uint64) (Change, error) {
	switch {
	case kind == recBinding && raw == nil:
		return Change{Unbound: name}, nil
	case kind == recBinding:
		b, err := bindingOf(name, raw, revision)
		return Change{Binding: &b}, err
	case kind == recSchema && raw != nil:
		c := Schema{Name: Name{scope, name}, Revision: revision}
		err := unmarshal(kind, scope, name, raw, &c)
		return Change{Schema: &c}, err
	case kind == recVersion && raw != nil:
		v, err := versionOf(splitName(scope), name, raw, revision)
		return Change{Version: &v}, err
	}
	return Change{}, nil
}

func (s *recordStore) Close() error { return s.r.Close() }
