// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"context"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Store keeps schemas. It stores what it is given: names, texts and changes of state are checked by the Registry.
//
// Every write is atomic and durable when it returns, and a read shows every write that was finished before it, by
// whatever process. Revisions are of the whole store and only grow. Errors are *fault.Error: NotFound, Conflict (another
// write came first; the message names what), Unavailable (the store is away; try later); any other is internal.
// Implementations are safe for concurrent use; internal/store/storetest is the suite that each must pass.
type Store interface {
	// Schema returns a schema, also a deleted one; NotFound if the name was never used.
	Schema(ctx context.Context, n Name) (Schema, error)
	// PutSchema stores s over the record with s.Revision, or makes it when that is 0, and returns it with its new revision.
	// Conflict when something else is stored by now.
	PutSchema(ctx context.Context, s Schema) (Schema, error)
	// Schemas lists schemas by group, then name.
	Schemas(ctx context.Context, q Query) (Page[Schema], error)

	// Version returns a version in whatever state; NotFound if the number was not given yet.
	Version(ctx context.Context, r Ref) (Version, error)
	// VersionByID is Version by the number in the whole registry.
	VersionByID(ctx context.Context, id int) (Version, error)
	// AddVersion stores a new version and gives it an ID that no version had before. v.Ref.Version must follow the latest
	// (1 for the first), whatever became of that; Conflict when it is taken by now, or leaves a gap. A call that fails may
	// use up an ID.
	AddVersion(ctx context.Context, v Version) (Version, error)
	// SetState changes the state of the version with this revision and its UpdatedAt, and nothing else.
	SetState(ctx context.Context, v Version) (Version, error)
	// Versions lists the versions of a schema by number, in every state. It does not say whether the schema exists.
	Versions(ctx context.Context, n Name, after string, limit int) (Page[Version], error)
	// FindVersion returns the latest version of a schema with this hash that is not deleted; NotFound if there is none.
	FindVersion(ctx context.Context, n Name, hash string) (Version, error)

	// Binding returns what the events of a type are; NotFound if they are bound to nothing.
	Binding(ctx context.Context, eventType string) (Binding, error)
	// Bind stores b over the binding with b.Revision, or makes it when that is 0.
	Bind(ctx context.Context, b Binding) (Binding, error)
	// Unbind removes the binding with b.Revision.
	Unbind(ctx context.Context, b Binding) error
	// Bindings lists bindings by event type; those of one schema if its name is given.
	Bindings(ctx context.Context, of Name, after string, limit int) (Page[Binding], error)

	// Watch calls fn for everything there is, then once with the zero Change ("caught up"), and then for every change as it
	// happens, never skipping the last state of anything. It blocks until ctx is done or fn returns an error, which it
	// returns. After a reconnect it may repeat itself.
	Watch(ctx context.Context, fn func(Change) error) error
	// Close releases what the store holds. Calls under way end with an error.
	Close() error
}

// Query selects schemas.
type Query struct {
	Group   string            // "" = all
	Labels  map[string]string // each must be there with this value
	Deleted bool              // deleted ones, too
	After   string            // Cursor of the page before; "" = start
	Limit   int               // 1-1000; 0 = 100
}

// Page is a part of a list. Cursor is "" on the last page.
type Page[T any] struct {
	Items  []T
	Cursor string
}

// Change is one entry of the feed: what is stored now, in the one member that is not nil.
type Change struct {
	Schema  *Schema
	Version *Version
	Binding *Binding
	Unbound string // event type whose binding is gone
}

// CaughtUp reports whether everything that was there has been told.
func (c Change) CaughtUp() bool { return c == Change{} }

func noSchema(n Name) error { return fault.New(fault.NotFound, "there is no schema %s", n) }
func noVersion(r Ref) error {
	return fault.New(fault.NotFound, "schema %s has no version %d", r.Name, r.Version)
}
func noID(id int) error { return fault.New(fault.NotFound, "no version has the id %d", id) }
func noBinding(eventType string) error {
	return fault.New(fault.NotFound, "no schema is bound to events of type %q", eventType)
}
