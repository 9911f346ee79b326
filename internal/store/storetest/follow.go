// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
)

// mirror is the state of a store as a watcher has pieced it together.
type mirror map[store.Key]store.Document

// follower is a watcher that keeps everything it was told.
type follower struct {
	t       *testing.T
	mu      sync.Mutex // guards what follows
	changes []store.Change
	docs    mirror
	marks   int
	news    chan struct{} // closed and replaced at every change
}

// follow watches s until the test ends. before runs ahead of each change.
func follow(t *testing.T, s store.Store, before ...func(store.Change)) *follower {
	t.Helper()
	f := &follower{t: t, docs: mirror{}, news: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := s.Watch(ctx, func(c store.Change) error {
			for _, b := range before {
				b(c)
			}
			f.take(c)
			return nil
		})
		if ctx.Err() == nil {
			t.Errorf("Watch ended by itself: %v", err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return f
}

func (f *follower) take(c store.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes = append(f.changes, c)
	switch {
	case c.Key == (store.Key{}):
		f.marks++
	case c.Deleted:
		delete(f.docs, c.Key)
	default:
		f.docs[c.Key] = c.Document
	}
	close(f.news)
	f.news = make(chan struct{})
}

// until waits for a state.
func (f *follower) until(ok func(mirror) bool) {
	f.t.Helper()
	f.wait(func() bool { return ok(f.docs) })
}

func (f *follower) untilMark() {
	f.t.Helper()
	f.wait(func() bool { return f.marks > 0 })
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.marks != 1 {
		f.t.Errorf("%d marks", f.marks)
	}
}

func (f *follower) wait(ok func() bool) {
	f.t.Helper()
	deadline := time.After(patience)
	for {
		f.mu.Lock()
		done, news := ok(), f.news
		f.mu.Unlock()
		if done {
			return
		}
		select {
		case <-news:
		case <-deadline:
			f.t.Fatalf("the watcher does not get there; it was told %v", f.names())
		}
	}
}

func (f *follower) state() mirror {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.docs)
}

func (f *follower) last() store.Change {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changes[len(f.changes)-1]
}

// names is what was told so far: keys, with a minus for deletions.
func (f *follower) names() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, c := range f.changes {
		switch {
		case c.Key == (store.Key{}):
			out = append(out, "mark")
		case c.Deleted:
			out = append(out, "-"+c.Key.String())
		default:
			out = append(out, c.Key.String())
		}
	}
	return out
}

// testWatchSince is about a watcher that comes back.
func testWatchSince(t *testing.T, s store.Store) {
	kept, gone, late := key("Bus", "", "kept"), key("Bus", "", "gone"), key("Bus", "", "late")
	put(t, s, kept, `{}`)
	put(t, s, gone, `{}`)
	since := put(t, s, key("Bus", "", "since"), `{}`).Revision
	if err := s.Delete(bounded(t), gone, store.Condition{}); err != nil {
		t.Fatal(err)
	}
	last := put(t, s, late, `{}`).Revision
	enough := errors.New("enough")
	var told []string
	err := s.WatchSince(bounded(t), since, func(c store.Change) error {
		switch {
		case c.Key == (store.Key{}):
			if c.Revision != last {
				t.Errorf("the mark is at revision %d, and the state at %d", c.Revision, last)
			}
			return enough
		case c.Deleted:
			told = append(told, "-"+c.Name)
		default:
			told = append(told, c.Name)
		}
		return nil
	})
	if !errors.Is(err, enough) || !slices.Equal(told, []string{"-gone", "late"}) {
		t.Errorf("told %v, %v", told, err)
	}
	err = s.WatchSince(bounded(t), last+1000, func(store.Change) error { return nil })
	if !errors.Is(err, store.ErrTooOld) {
		t.Errorf("a revision to come: %v", err)
	}
}

func key(kind, scope, name string) store.Key { return store.Key{Kind: kind, Scope: scope, Name: name} }

func put(t *testing.T, s store.Store, k store.Key, raw string) store.Document {
	t.Helper()
	d, err := s.Put(bounded(t), k, json.RawMessage(raw), store.Condition{})
	if err != nil {
		t.Fatalf("Put(%s): %v", k, err)
	}
	return d
}

func get(t *testing.T, s store.Store, k store.Key) store.Document {
	t.Helper()
	d, err := s.Get(bounded(t), k)
	if err != nil {
		t.Fatalf("Get(%s): %v", k, err)
	}
	return d
}

func list(t *testing.T, s store.Store, q store.Query) store.Page {
	t.Helper()
	p, err := s.List(bounded(t), q)
	if err != nil {
		t.Fatalf("List(%+v): %v", q, err)
	}
	return p
}

func keysOf(p store.Page) []string {
	var out []string
	for _, d := range p.Items {
		out = append(out, d.Key.String())
	}
	return out
}

func second[T any](_ T, err error) error { return err }

func wantKind(t *testing.T, what string, err error, want fault.Kind) {
	t.Helper()
	if err == nil || fault.KindOf(err) != want {
		t.Errorf("%s = %v, want an error of kind %s", what, err, want)
	}
}

func wait(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("no %s within %v", what, patience)
	}
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}
