// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
)

// Records is a Store by plain values, for what keeps records of its own and is not a definition, such as schemas: see
// schema.Records, which it is without naming it.
type Records struct{ Store }

// GetRecord returns a document and its revision.
func (r Records) GetRecord(ctx context.Context, kind, scope, name string) ([]byte, uint64, error) {
	d, err := r.Get(ctx, Key{kind, scope, name})
	return d.Raw, d.Revision, err
}

// PutRecord writes a document over the one with this revision, or where there is none if it is 0.
func (r Records) PutRecord(ctx context.Context, kind, scope, name string, raw []byte, expect uint64) (uint64, error) {
	d, err := r.Put(ctx, Key{kind, scope, name}, raw, Condition{Revision: expect, Absent: expect == 0})
	return d.Revision, err
}

// DeleteRecord removes the document with this revision.
func (r Records) DeleteRecord(ctx context.Context, kind, scope, name string, expect uint64) error {
	return r.Delete(ctx, Key{kind, scope, name}, Condition{Revision: expect})
}

// ListRecords calls fn for a page of documents and returns the cursor of the next.
func (r Records) ListRecords(ctx context.Context, q struct {
	Kind, Scope string
	AllScopes   bool
	Labels      map[string]string
	After       string
	Limit       int
}, fn func(scope, name string, raw []byte, revision uint64) error) (string, error) {
	p, err := r.List(ctx, Query{Kind: q.Kind, Scope: q.Scope, AllScopes: q.AllScopes, Labels: q.Labels, After: q.After, Limit: q.Limit})
	if err != nil {
		return "", err
	}
	for _, d := range p.Items {
		if err := fn(d.Scope, d.Name, d.Raw, d.Revision); err != nil {
			return "", err
		}
	}
	return p.Cursor, nil
}

// WatchRecords is Store.Watch: raw is nil for a deleted document, and kind "" says that all there was has been told.
func (r Records) WatchRecords(ctx context.Context, fn func(kind, scope, name string, raw []byte, revision uint64) error) error {
	return r.Watch(ctx, func(c Change) error {
		raw := []byte(c.Raw)
		if c.Deleted {
			raw = nil
		}
		return fn(c.Kind, c.Scope, c.Name, raw, c.Revision)
	})
}
