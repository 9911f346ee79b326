// SPDX-License-Identifier: Apache-2.0

// Package store is the contract of the definitions store: flat documents by kind, scope and name, each with a
// revision, a feed of changes, and a record of who changed what.
//
// Revisions are numbers of the whole store that only grow: a later write of any document has a larger one. Every write
// is atomic and durable when it returns, and its audit entry with it. Implementations are safe for concurrent use;
// internal/store/storetest is the suite that each must pass.
package store

import (
	"context"
	"encoding/json"
	"time"
)

// Key names a document.
type Key struct {
	Kind  string // such as Rule
	Scope string // the bus for rules; "" for all others
	Name  string
}

// String returns kind/name or kind/scope/name.
func (k Key) String() string {
	if k.Scope == "" {
		return k.Kind + "/" + k.Name
	}
	return k.Kind + "/" + k.Scope + "/" + k.Name
}

// Document is a stored definition. Raw is JSON without server-owned fields and is not to be changed.
type Document struct {
	Key
	Revision  uint64 // of the last write; never 0 for a stored document
	CreatedAt time.Time
	UpdatedAt time.Time
	Raw       json.RawMessage
}

// Condition guards a write. The zero value writes always.
type Condition struct {
	Revision uint64 // if not 0: only if the stored document has this revision (If-Match)
	Absent   bool   // only if there is none (If-None-Match: *)
}

// Write is one change of a change set: what Put or Delete does.
type Write struct {
	Key    Key
	Raw    json.RawMessage // the document
	Delete bool            // instead
	If     Condition
}

// MaxWrites is how many writes a change set may have.
const MaxWrites = 1000

// Change is one entry of the feed. Deleted documents carry their key and revision only.
type Change struct {
	Document
	Deleted bool
}

// Query selects documents of one kind.
type Query struct {
	Kind  string
	Scope string // exact; with AllScopes the scope is not looked at
	// AllScopes lists the documents of every scope, ordered by scope, then name.
	AllScopes bool
	After     string            // cursor: the Cursor of the last page; "" = start
	Limit     int               // 1-1000; 0 = 100
	Labels    map[string]string // each must be in the document's "labels" object with this value
}

// Page is a part of a list. Cursor is "" on the last page.
type Page struct {
	Items  []Document
	Cursor string
}

// Store keeps definitions.
//
// Errors are *fault.Error: NotFound, Conflict (a Condition failed; the message names the key), Unavailable (the store
// is away; try later). Any other error is internal.
type Store interface {
	Get(ctx context.Context, k Key) (Document, error)
	// Put stores raw under k and returns the document. Writing the same bytes (after compaction) changes nothing and
	// returns the stored document.
	Put(ctx context.Context, k Key, raw json.RawMessage, c Condition) (Document, error)
	// Delete removes a document; NotFound if there is none.
	Delete(ctx context.Context, k Key, c Condition) error
	// Apply makes all writes of a change set or none, whatever happens meanwhile, a crash included, and returns the
	// documents in the order of the writes; what was deleted as its key and the revision of the deletion. The error is that
	// of the first write that cannot be made. A set has at most MaxWrites writes, and each key once. Whoever lists or
	// watches may see parts of it for a moment.
	Apply(ctx context.Context, set []Write) ([]Document, error)
	List(ctx context.Context, q Query) (Page, error)
	// Watch calls fn for every document there is, in order of revision, then once with a Change without a key ("caught up"), whose
	// revision is that of the state it was told, and then for every change as it happens, never skipping the last state of a document. It blocks until ctx is done or fn returns an
	// error, which it returns. It reconnects by itself; after a reconnect it may repeat documents.
	Watch(ctx context.Context, fn func(Change) error) error
	// WatchSince is Watch for those who know the state at a revision, which is not 0: what comes before the mark is the last
	// state of every document that has changed since, deleted ones too. It is ErrTooOld when that is not known any more.
	WatchSince(ctx context.Context, since uint64, fn func(Change) error) error
	// Audit lists changes, the newest first. How far back they go is the implementation's to say.
	Audit(ctx context.Context, q AuditQuery) (AuditPage, error)
	// Close releases what the store holds. Calls under way end with an error.
	Close() error
}
