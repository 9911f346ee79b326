// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"github.com/rialto-bridge/rialto/internal/fault"
)

const (
	defaultLimit = 100
	maxLimit     = 1000
	watchBatch   = 256 // changes handed to a watcher between two looks at the lock
	// keptDeletions is how many deletions are remembered for watchers that come back.
	keptDeletions = 1000
)

// View is the state of a store as one process sees it, and the fan-out of its feed: the part that implementations
// share. An implementation applies every change it makes or hears of, in order of revision; lists and watchers are
// served from here without asking the store again.
//
// A slow watcher delays nobody and costs no memory: it holds a revision, and of a document that changed many times
// meanwhile it gets the last state only. Safe for concurrent use; Apply has one caller at a time.
type View struct {
	mu       sync.RWMutex
	docs     map[Key]*entry
	kinds    map[string][]*entry // of each kind, sorted by scope and name, without deleted ones
	log      []*entry            // last states and deletions, by revision, with some that are superseded
	limit    int                 // length of log at which it is cleaned
	watchers map[*watcher]bool   // who reads log
	revision uint64              // of the last change applied
	floor    uint64              // every deletion after this revision is in log; implementations tell old ones, too
	ready    bool                // the state is complete
	closed   error               // why the view ended, or nil
	changed  chan struct{}       // closed and replaced when any of the above changes
}

// entry is one state of a document. Everything but superseded is fixed when it is made.
type entry struct {
	Change
	labels     map[string]string
	superseded bool // guarded by View.mu
}

// watcher is a reader of the log.
type watcher struct {
	pos uint64 // revision up to which it has everything; guarded by View.mu
}

// NewView returns an empty view that is not complete yet.
func NewView() *View {
	return &View{docs: map[Key]*entry{}, kinds: map[string][]*entry{}, watchers: map[*watcher]bool{}, changed: make(chan struct{})}
}

// Get returns the document under k as the view knows it.
func (v *View) Get(k Key) (Document, bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	e, ok := v.docs[k]
	if !ok {
		return Document{}, false
	}
	return e.Document, true
}

// Apply takes in changes, all at once. One that is not newer than what the view has of the whole store is ignored, so a
// feed that repeats itself after a reconnect does no harm.
func (v *View) Apply(changes ...Change) {
	entries := make([]*entry, len(changes))
	for i, c := range changes {
		entries[i] = entryOf(c)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, e := range entries {
		v.take(e)
	}
	v.signal()
}

func entryOf(c Change) *entry {
	if c.Deleted {
		return &entry{Change: Change{Document: Document{Key: c.Key, Revision: c.Revision}, Deleted: true}}
	}
	return &entry{Change: c, labels: labelsOf(c.Raw)}
}

// take makes e the state of its document. The caller holds mu.
func (v *View) take(e *entry) {
	if e.Revision <= v.revision {
		return
	}
	old := v.docs[e.Key]
	if old != nil {
		old.superseded = true
	}
	switch {
	case !e.Deleted:
		v.docs[e.Key] = e
		v.index(e)
	case old != nil:
		delete(v.docs, e.Key)
		v.unindex(old)
	}
	v.revision = e.Revision
	v.log = append(v.log, e)
	if len(v.log) > v.limit {
		v.clean()
	}
}

// Revision is that of the last change applied.
func (v *View) Revision() uint64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.revision
}

// Skip takes note of a revision that is no document's, or of one that cannot be read.
func (v *View) Skip(revision uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if revision > v.revision {
		v.revision = revision
		v.signal()
	}
}

// CaughtUp says that the state is complete: watchers get their first documents.
func (v *View) CaughtUp() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.ready {
		v.ready = true
		v.signal()
	}
}

// Close ends every List, Wait and Watch with err, now and later.
func (v *View) Close(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed == nil {
		v.closed = err
		v.signal()
	}
}

// Wait blocks until the state is complete and has the change with this revision.
func (v *View) Wait(ctx context.Context, revision uint64) error {
	return v.until(ctx, func() bool { return v.ready && v.revision >= revision })
}

// List answers q from the state as it is now.
func (v *View) List(q Query) (Page, error) {
	limit, err := pageLimit(q.Limit)
	if err != nil {
		return Page{}, err
	}
	after, err := parseCursor(q.After)
	if err != nil {
		return Page{}, err
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.closed != nil {
		return Page{}, v.closed
	}
	all := v.kinds[q.Kind]
	start, _ := slices.BinarySearchFunc(all, Key{Scope: q.Scope}, compareKey)
	if q.AllScopes {
		start = 0
	}
	if q.After != "" {
		i, found := slices.BinarySearchFunc(all, after, compareKey)
		if found {
			i++
		}
		start = max(start, i)
	}
	var p Page
	for _, e := range all[start:] {
		if !q.AllScopes && e.Scope != q.Scope {
			break
		}
		if !hasLabels(e.labels, q.Labels) {
			continue
		}
		if len(p.Items) == limit {
			p.Cursor = cursorOf(p.Items[limit-1].Key)
			break
		}
		p.Items = append(p.Items, e.Document)
	}
	return p, nil
}

func pageLimit(limit int) (int, error) {
	switch {
	case limit == 0:
		return defaultLimit, nil
	case limit < 0 || limit > maxLimit:
		return 0, fault.Invalidf("/limit", "must be from 1 to %d", maxLimit)
	}
	return limit, nil
}

// Watch is Store.Watch.
func (v *View) Watch(ctx context.Context, fn func(Change) error) error {
	return v.WatchSince(ctx, 0, fn)
}

// WatchSince is Store.WatchSince.
func (v *View) WatchSince(ctx context.Context, since uint64, fn func(Change) error) error {
	if err := v.until(ctx, func() bool { return v.ready }); err != nil {
		return err
	}
	w := &watcher{}
	defer v.leave(w)
	// What there is must be whole when the mark comes, so it is one cut, not a read that later changes overtake.
	start, revision, err := v.join(w, since)
	if err != nil {
		return err
	}
	for _, e := range start {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := fn(e.Change); err != nil {
			return err
		}
	}
	start = nil
	if err := fn(Change{Document: Document{Revision: revision}}); err != nil {
		return err
	}
	batch := make([]*entry, 0, watchBatch)
	for {
		var changed <-chan struct{}
		var closed error
		batch, changed, closed = v.next(w, batch[:0])
		for _, e := range batch {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := fn(e.Change); err != nil {
				return err
			}
		}
		if len(batch) > 0 {
			continue
		}
		if closed != nil {
			return closed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// until waits for a condition, which is evaluated under the lock.
func (v *View) until(ctx context.Context, done func() bool) error {
	for {
		v.mu.RLock()
		ok, closed, changed := done(), v.closed, v.changed
		v.mu.RUnlock()
		if closed != nil {
			return closed
		}
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// join makes w a watcher and returns what has become of documents since a revision, and the revision of that state. After
// 0 that is every document there is.
func (v *View) join(w *watcher, since uint64) ([]*entry, uint64, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if since != 0 && (since < v.floor || since > v.revision) {
		return nil, 0, ErrTooOld
	}
	i, _ := slices.BinarySearchFunc(v.log, since+1, func(e *entry, r uint64) int { return cmp.Compare(e.Revision, r) })
	changes := make([]*entry, 0, len(v.log)-i)
	for _, e := range v.log[i:] {
		if !e.superseded && (since != 0 || !e.Deleted) {
			changes = append(changes, e)
		}
	}
	w.pos = v.revision
	v.watchers[w] = true
	return changes, v.revision, nil
}

func (v *View) leave(w *watcher) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.watchers, w)
	v.limit = 0 // what was kept for w alone goes with the next change
}

// next returns up to cap(dst) changes that w has not had, and what is closed when there are more.
func (v *View) next(w *watcher, dst []*entry) ([]*entry, <-chan struct{}, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	i, _ := slices.BinarySearchFunc(v.log, w.pos+1, func(e *entry, r uint64) int { return cmp.Compare(e.Revision, r) })
	for _, e := range v.log[i:] {
		if len(dst) == cap(dst) {
			return dst, v.changed, v.closed
		}
		w.pos = e.Revision
		if !e.superseded {
			dst = append(dst, e)
		}
	}
	return dst, v.changed, v.closed
}

// clean drops from the log what no watcher needs: superseded states, and deletions that all have seen, but for the last
// ones, which are for those who come back. The caller holds mu.
func (v *View) clean() {
	seen, deletions := v.revision, 0
	for w := range v.watchers {
		seen = min(seen, w.pos)
	}
	for _, e := range v.log {
		if e.Deleted && !e.superseded {
			deletions++
		}
	}
	v.log = slices.DeleteFunc(v.log, func(e *entry) bool {
		if e.superseded || !e.Deleted {
			return e.superseded
		}
		if deletions <= keptDeletions || e.Revision > seen {
			return false
		}
		deletions--
		v.floor = max(v.floor, e.Revision)
		return true
	})
	v.limit = 2*len(v.log) + 64
}

// signal wakes all who wait. The caller holds mu.
func (v *View) signal() {
	close(v.changed)
	v.changed = make(chan struct{})
}

func (v *View) index(e *entry) {
	all := v.kinds[e.Kind]
	i, found := slices.BinarySearchFunc(all, e.Key, compareKey)
	if found {
		all[i] = e
		return
	}
	v.kinds[e.Kind] = slices.Insert(all, i, e)
}

func (v *View) unindex(e *entry) {
	all := v.kinds[e.Kind]
	if i, found := slices.BinarySearchFunc(all, e.Key, compareKey); found {
		v.kinds[e.Kind] = slices.Delete(all, i, i+1)
	}
}

func compareKey(e *entry, k Key) int {
	if c := strings.Compare(e.Scope, k.Scope); c != 0 {
		return c
	}
	return strings.Compare(e.Name, k.Name)
}

func labelsOf(raw json.RawMessage) map[string]string {
	var doc struct {
		Labels map[string]string `json:"labels"`
	}
	// A document whose labels are not strings has none: what a label may be is decided where it is written.
	if json.Unmarshal(raw, &doc) != nil {
		return nil
	}
	return doc.Labels
}

func hasLabels(have, want map[string]string) bool {
	for k, w := range want {
		if h, ok := have[k]; !ok || h != w {
			return false
		}
	}
	return true
}

func cursorOf(k Key) string {
	return base64.RawURLEncoding.EncodeToString([]byte(k.Scope + "\x00" + k.Name))
}

func parseCursor(s string) (Key, error) {
	if s == "" {
		return Key{}, nil
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	scope, name, ok := strings.Cut(string(b), "\x00")
	if err != nil || !ok {
		return Key{}, fault.Invalidf("/cursor", "is not a cursor of this list")
	}
	return Key{Scope: scope, Name: name}, nil
}
