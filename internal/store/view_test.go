// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

func TestViewForgetsWhatNobodyNeeds(t *testing.T) {
	v := NewView()
	v.CaughtUp()
	var revision uint64
	change := func(name string, deleted bool) {
		revision++
		v.Apply(Change{Document: Document{Key: Key{Kind: "Bus", Name: name}, Revision: revision, Raw: []byte(`{}`)}, Deleted: deleted})
	}
	for i := range 5000 {
		change(fmt.Sprint("b", i), false)
		change(fmt.Sprint("b", i), true)
		change("same", false)
	}
	if n := len(v.log); n > 2*keptDeletions+200 {
		t.Errorf("one document, and a log of %d states", n)
	}

	// A watcher in the middle keeps the deletions that it has not seen, and nothing else.
	w := &watcher{}
	if _, _, err := v.join(w, 0); err != nil {
		t.Fatal(err)
	}
	for i := range 5000 {
		change(fmt.Sprint("c", i%100), i%2 == 0)
	}
	if n := len(v.log); n < 51 || n > 20000 {
		t.Errorf("log of %d states for a watcher that stands still", n)
	}
	got := map[string]bool{}
	for {
		batch, _, _ := v.next(w, make([]*entry, 0, 10))
		if len(batch) == 0 {
			break
		}
		for _, e := range batch {
			got[e.Name] = !e.Deleted
		}
	}
	for i := range 100 {
		name := fmt.Sprint("c", i)
		if there, told := got[name]; !told || there != (i%2 == 1) {
			t.Errorf("%s: told %v, there %v", name, told, there)
		}
	}
	v.leave(w)
	for range 200 {
		change("same", false)
	}
	if n := len(v.log); n > 2*keptDeletions+400 {
		t.Errorf("log of %d states after the watcher has left", n)
	}
}

// Who comes back is told every deletion meanwhile, or that too many are forgotten.
func TestViewSince(t *testing.T) {
	v := NewView()
	var revision uint64
	change := func(name string, deleted bool) {
		revision++
		v.Apply(Change{Document: Document{Key: Key{Kind: "Bus", Name: name}, Revision: revision, Raw: []byte(`{}`)}, Deleted: deleted})
	}
	change("a", false)
	change("b", false)
	v.CaughtUp()
	deleted := func(since uint64) (n int, err error) {
		stop := errors.New("enough")
		err = v.WatchSince(t.Context(), since, func(c Change) error {
			switch {
			case c.Key == (Key{}):
				return stop
			case c.Revision <= since:
				t.Errorf("since %d: told revision %d", since, c.Revision)
			case c.Deleted:
				n++
			}
			return nil
		})
		if errors.Is(err, stop) {
			err = nil
		}
		return n, err
	}
	for i := range keptDeletions {
		change(fmt.Sprint("c", i), false)
		change(fmt.Sprint("c", i), true)
	}
	if n, err := deleted(2); n != keptDeletions || err != nil {
		t.Errorf("%d deletions, %v; want %d", n, err, keptDeletions)
	}
	for i := range 2 * keptDeletions {
		change(fmt.Sprint("d", i), false)
		change(fmt.Sprint("d", i), true)
	}
	if _, err := deleted(2); !errors.Is(err, ErrTooOld) {
		t.Errorf("after many deletions: %v", err)
	}
	if n, err := deleted(revision - 20); n != 10 || err != nil {
		t.Errorf("%d deletions, %v; want 10", n, err)
	}
	if _, err := deleted(revision + 1); !errors.Is(err, ErrTooOld) {
		t.Errorf("a revision to come: %v", err)
	}
}

func TestViewIgnoresOldNews(t *testing.T) {
	v := NewView()
	k := Key{Kind: "Bus", Name: "b"}
	v.Apply(Change{Document: Document{Key: k, Revision: 5, Raw: []byte(`{"n":5}`)}})
	v.Apply(Change{Document: Document{Key: k, Revision: 4, Raw: []byte(`{"n":4}`)}})
	v.Apply(Change{Document: Document{Key: k, Revision: 5}, Deleted: true})
	if d, ok := v.Get(k); !ok || string(d.Raw) != `{"n":5}` {
		t.Errorf("Get = %s, %v after old news", d.Raw, ok)
	}
	v.Skip(9)
	v.Skip(7)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := v.Wait(ctx, 9); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait before the state is complete = %v", err)
	}
	v.CaughtUp()
	if err := v.Wait(t.Context(), 9); err != nil {
		t.Errorf("Wait for a revision that was skipped = %v", err)
	}
}
