// SPDX-License-Identifier: Apache-2.0

// Package memory keeps definitions in memory: for tests, and for processes whose definitions come from files alone.
//
// It keeps every promise of store.Store but one: nothing outlives the process.
package memory

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/store"
)

// Store is a store.Store in memory.
type Store struct {
	now  func() time.Time
	view *store.View

	mu       sync.Mutex // guards what follows, and makes writes one after the other
	revision uint64
	audit    []store.AuditEntry // the newest last; a few more than are shown
	closed   bool
}

var _ store.Store = (*Store)(nil)

// maxAudit is how many changes are remembered.
const maxAudit = 10_000

// New returns an empty store. The clock stamps documents; nil is time.Now.
func New(now func() time.Time) *Store {
	if now == nil {
		now = time.Now
	}
	s := &Store{now: now, view: store.NewView()}
	s.view.CaughtUp()
	return s
}

// Get is store.Store.Get.
func (s *Store) Get(ctx context.Context, k store.Key) (store.Document, error) {
	if err := s.enter(ctx); err != nil {
		return store.Document{}, err
	}
	defer s.mu.Unlock()
	d, ok := s.view.Get(k)
	if !ok {
		return store.Document{}, store.NotFound(k)
	}
	return d, nil
}

// Put is store.Store.Put.
func (s *Store) Put(ctx context.Context, k store.Key, raw json.RawMessage, c store.Condition) (store.Document, error) {
	ds, err := s.Apply(ctx, []store.Write{{Key: k, Raw: raw, If: c}})
	if err != nil {
		return store.Document{}, err
	}
	return ds[0], nil
}

// Delete is store.Store.Delete.
func (s *Store) Delete(ctx context.Context, k store.Key, c store.Condition) error {
	_, err := s.Apply(ctx, []store.Write{{Key: k, Delete: true, If: c}})
	return err
}

// Apply is store.Store.Apply.
func (s *Store) Apply(ctx context.Context, set []store.Write) ([]store.Document, error) {
	set, err := store.Prepare(set)
	if err != nil {
		return nil, err
	}
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	at, by, revision := s.now().UTC(), store.AuthorOf(ctx), s.revision
	docs := make([]store.Document, len(set))
	var changes []store.Change
	var entries []store.AuditEntry
	for i, w := range set {
		old := s.current(w.Key)
		d, changed, err := w.On(old, at)
		if err != nil {
			return nil, err
		}
		if changed {
			revision++
			d.Revision = revision
			changes = append(changes, store.Change{Document: d, Deleted: w.Delete})
			entries = append(entries, store.EntryOf(by, at, old, d))
		}
		docs[i] = d
	}
	s.revision = revision
	s.view.Apply(changes...)
	s.audit = append(s.audit, entries...)
	if over := len(s.audit) - maxAudit; over > maxAudit/10 { // not for each change
		s.audit = slices.Delete(s.audit, 0, over)
	}
	return docs, nil
}

// Audit is store.Store.Audit, over the last 10,000 changes.
func (s *Store) Audit(ctx context.Context, q store.AuditQuery) (store.AuditPage, error) {
	if err := s.enter(ctx); err != nil {
		return store.AuditPage{}, err
	}
	entries := slices.Clone(s.audit[max(0, len(s.audit)-maxAudit):])
	s.mu.Unlock()
	return q.Select(func(yield func(store.AuditEntry) bool) {
		for _, e := range slices.Backward(entries) {
			if !yield(e) {
				return
			}
		}
	})
}

// List is store.Store.List.
func (s *Store) List(ctx context.Context, q store.Query) (store.Page, error) {
	if err := ctx.Err(); err != nil {
		return store.Page{}, err
	}
	return s.view.List(q)
}

// Watch is store.Store.Watch.
func (s *Store) Watch(ctx context.Context, fn func(store.Change) error) error {
	return s.view.Watch(ctx, fn)
}

// WatchSince is store.Store.WatchSince.
func (s *Store) WatchSince(ctx context.Context, since uint64, fn func(store.Change) error) error {
	return s.view.WatchSince(ctx, since, fn)
}

// Close is store.Store.Close.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.view.Close(store.ErrClosed)
	return nil
}

// enter takes the lock unless the store is closed or the caller has gone.
func (s *Store) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return store.ErrClosed
	}
	return nil
}

func (s *Store) current(k store.Key) *store.Document {
	d, ok := s.view.Get(k)
	if !ok {
		return nil
	}
	return &d
}
