// SPDX-License-Identifier: Apache-2.0

// Package memory keeps definitions in memory: for tests, and for processes whose definitions come from files alone.
//
// It keeps every promise of store.Store but one: nothing outlives the process.
package memory

import (
	"bytes"
	"context"
	"encoding/json"
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
	closed   bool
}

var _ store.Store = (*Store)(nil)

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
	if err := store.CheckKey(k); err != nil {
		return store.Document{}, err
	}
	raw, err := store.Compact(raw)
	if err != nil {
		return store.Document{}, err
	}
	if err := s.enter(ctx); err != nil {
		return store.Document{}, err
	}
	defer s.mu.Unlock()
	old := s.current(k)
	if err := c.Check(k, old); err != nil {
		return store.Document{}, err
	}
	if old != nil && bytes.Equal(old.Raw, raw) {
		return *old, nil
	}
	s.revision++
	at := s.now().UTC()
	d := store.Document{Key: k, Revision: s.revision, CreatedAt: at, UpdatedAt: at, Raw: raw}
	if old != nil {
		d.CreatedAt = old.CreatedAt
	}
	s.view.Apply(store.Change{Document: d})
	return d, nil
}

// Delete is store.Store.Delete.
func (s *Store) Delete(ctx context.Context, k store.Key, c store.Condition) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	old := s.current(k)
	if old == nil {
		return store.NotFound(k)
	}
	if err := c.Check(k, old); err != nil {
		return err
	}
	s.revision++
	s.view.Apply(store.Change{Document: store.Document{Key: k, Revision: s.revision}, Deleted: true})
	return nil
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
