// SPDX-License-Identifier: Apache-2.0

// Package storetest is the conformance suite of the definitions store: what store.Store promises, as tests that every
// implementation runs. An implementation's test is two lines:
//
//	func TestStore(t *testing.T) { storetest.Run(t, func(t *testing.T) store.Store { ... }) }
//
// Stores that several processes share run RunShared as well.
package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
)

// patience bounds every wait of the suite; nothing in it takes a fraction of that.
const patience = 20 * time.Second

// Run runs the suite. open returns an empty store and sees to its end (t.Cleanup); the suite may close it before.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	for _, c := range []struct {
		name string
		test func(*testing.T, store.Store)
	}{
		{"PutAndGet", testPutAndGet},
		{"PutSameBytes", testPutSameBytes},
		{"PutRefuses", testPutRefuses},
		{"Conditions", testConditions},
		{"Revisions", testRevisions},
		{"Delete", testDelete},
		{"Keys", testKeys},
		{"ListOrder", testListOrder},
		{"ListPages", testListPages},
		{"ListLabels", testListLabels},
		{"ListRefuses", testListRefuses},
		{"WatchStory", testWatchStory},
		{"WatchManyChanges", testWatchManyChanges},
		{"WatchWhileWriting", testWatchWhileWriting},
		{"WatchEnds", testWatchEnds},
		{"WatchSince", testWatchSince},
		{"Races", testRaces},
		{"ChangeSet", testChangeSet},
		{"ChangeSetRefuses", testChangeSetRefuses},
		{"ChangeSetRaces", testChangeSetRaces},
		{"Audit", testAudit},
		{"AuditPages", testAuditPages},
		{"Cancelled", testCancelled},
		{"Close", testClose},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.test(t, open(t))
		})
	}
}

// RunShared checks that two stores over the same definitions see each other's writes. open returns both, empty.
func RunShared(t *testing.T, open func(t *testing.T) (a, b store.Store)) {
	t.Run("ReadYourNeighbour", func(t *testing.T) {
		t.Parallel()
		a, b := open(t)
		ctx := bounded(t)
		for i := range 50 {
			k := key("Rule", "b1", fmt.Sprintf("r%02d", i))
			d := put(t, a, k, fmt.Sprintf(`{"n":%d}`, i))
			if diff := cmp.Diff(d, get(t, b, k)); diff != "" {
				t.Fatalf("Get by the other (-written +read):\n%s", diff)
			}
			if p := list(t, b, store.Query{Kind: "Rule", Scope: "b1"}); len(p.Items) != i+1 {
				t.Fatalf("List by the other after %d writes has %d documents", i+1, len(p.Items))
			}
		}
		if err := b.Delete(ctx, key("Rule", "b1", "r00"), store.Condition{}); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Get(ctx, key("Rule", "b1", "r00")); fault.KindOf(err) != fault.NotFound {
			t.Errorf("Get after the other's delete = %v, want not found", err)
		}
	})
	t.Run("WatchTheNeighbour", func(t *testing.T) {
		t.Parallel()
		a, b := open(t)
		f := follow(t, b)
		f.untilMark()
		k := key("Target", "", "hook")
		d := put(t, a, k, `{"a":1}`)
		f.until(func(m mirror) bool { return m[k].Revision == d.Revision })
		if err := a.Delete(bounded(t), k, store.Condition{}); err != nil {
			t.Fatal(err)
		}
		f.until(func(m mirror) bool { return len(m) == 0 })
	})
	t.Run("CompareAndSwap", func(t *testing.T) {
		t.Parallel()
		a, b := open(t)
		counter(t, a, b)
	})
	t.Run("OneWins", func(t *testing.T) {
		t.Parallel()
		a, b := open(t)
		oneWins(t, a, b)
	})
	t.Run("Transfers", func(t *testing.T) {
		t.Parallel()
		a, b := open(t)
		transfers(t, a, b)
	})
}

func testPutAndGet(t *testing.T, s store.Store) {
	before := time.Now().Add(-time.Minute)
	k := key("Rule", "default", "too-warm")
	d := put(t, s, k, " {\n \"b\" : 1.10, \"a\":\"<x>\" }\n")
	if d.Key != k || d.Revision == 0 {
		t.Errorf("Put returned %v at revision %d", d.Key, d.Revision)
	}
	if got, want := string(d.Raw), `{"b":1.10,"a":"<x>"}`; got != want {
		t.Errorf("Raw = %s, want it compact and otherwise as written: %s", got, want)
	}
	if d.CreatedAt.Before(before) || !d.CreatedAt.Equal(d.UpdatedAt) {
		t.Errorf("createdAt = %v, updatedAt = %v of a new document", d.CreatedAt, d.UpdatedAt)
	}
	if diff := cmp.Diff(d, get(t, s, k)); diff != "" {
		t.Errorf("Get (-put +got):\n%s", diff)
	}
	e := put(t, s, k, `{"b":2}`)
	if e.Revision <= d.Revision || !e.CreatedAt.Equal(d.CreatedAt) || e.UpdatedAt.Before(d.UpdatedAt) {
		t.Errorf("second Put: revision %d -> %d, createdAt %v -> %v, updatedAt %v -> %v",
			d.Revision, e.Revision, d.CreatedAt, e.CreatedAt, d.UpdatedAt, e.UpdatedAt)
	}
	if diff := cmp.Diff(e, get(t, s, k)); diff != "" {
		t.Errorf("Get after the second Put (-put +got):\n%s", diff)
	}
	wantKind(t, "Get of nothing", second(s.Get(bounded(t), key("Rule", "default", "none"))), fault.NotFound)
	wantKind(t, "Get in another scope", second(s.Get(bounded(t), key("Rule", "devices", "too-warm"))), fault.NotFound)
	wantKind(t, "Get of what cannot be", second(s.Get(bounded(t), key("Rule", "\xff", "a\x00b"))), fault.NotFound)
	wantKind(t, "Delete of what cannot be", s.Delete(bounded(t), key("Rule", "\xff", "a\x00b"), store.Condition{}), fault.NotFound)
	wantKind(t, "Get of another kind", second(s.Get(bounded(t), key("Bus", "default", "too-warm"))), fault.NotFound)
}

func testPutSameBytes(t *testing.T, s store.Store) {
	k := key("Bus", "", "default")
	d := put(t, s, k, `{"a":1,"b":[2]}`)
	if diff := cmp.Diff(d, put(t, s, k, "{ \"a\": 1,\n\"b\": [ 2 ] }")); diff != "" {
		t.Errorf("Put of the same, with other blanks, changed the document:\n%s", diff)
	}
	e, err := s.Put(bounded(t), k, json.RawMessage(`{"a":1,"b":[2]}`), store.Condition{Revision: d.Revision})
	if err != nil || e.Revision != d.Revision {
		t.Errorf("Put of the same under its revision = %d, %v", e.Revision, err)
	}
	_, err = s.Put(bounded(t), k, json.RawMessage(`{"a":1,"b":[2]}`), store.Condition{Absent: true})
	wantKind(t, "Put of the same, only if absent", err, fault.Conflict)
	if e := put(t, s, k, `{"b":[2],"a":1}`); e.Revision <= d.Revision {
		t.Errorf("Put with members in another order is other bytes, but the revision stayed %d", e.Revision)
	}
}

func testPutRefuses(t *testing.T, s store.Store) {
	for _, raw := range []string{"", "{", "{} {}", `{"a":01}`} {
		_, err := s.Put(bounded(t), key("Bus", "", "b"), json.RawMessage(raw), store.Condition{})
		wantKind(t, fmt.Sprintf("Put(%q)", raw), err, fault.Invalid)
	}
	wantKind(t, "Put of what is not UTF-8", second(s.Put(bounded(t), key("Bus", "", "b"), json.RawMessage("\"\xff\""), store.Condition{})), fault.Invalid)
	for _, k := range []store.Key{{Kind: "Bus"}, {Name: "b"}, {}, key("Bus", "", "a\x00b"), key("Bus", "\xff", "b")} {
		_, err := s.Put(bounded(t), k, json.RawMessage("{}"), store.Condition{})
		wantKind(t, fmt.Sprintf("Put under %q", k), err, fault.Invalid)
	}
	if p := list(t, s, store.Query{Kind: "Bus"}); len(p.Items) != 0 {
		t.Errorf("%d documents after refused writes", len(p.Items))
	}
}

func testConditions(t *testing.T, s store.Store) {
	put(t, s, key("Target", "", "before"), `{}`) // so that one less than a revision is one, too
	k := key("Target", "", "hook")
	tryPut := func(raw string, c store.Condition) error {
		return second(s.Put(bounded(t), k, json.RawMessage(raw), c))
	}
	wantKind(t, "Put of nothing under a revision", tryPut(`{}`, store.Condition{Revision: 1}), fault.Conflict)
	if err := tryPut(`{"n":1}`, store.Condition{Absent: true}); err != nil {
		t.Fatal(err)
	}
	err := tryPut(`{"n":2}`, store.Condition{Absent: true})
	wantKind(t, "Put over a document, only if absent", err, fault.Conflict)
	if err != nil && !strings.Contains(err.Error(), k.String()) {
		t.Errorf("conflict %q does not name %s", err, k)
	}
	d := get(t, s, k)
	wantKind(t, "Put under a revision that is too old", tryPut(`{"n":3}`, store.Condition{Revision: d.Revision - 1}), fault.Conflict)
	wantKind(t, "Put under a revision to come", tryPut(`{"n":3}`, store.Condition{Revision: d.Revision + 1}), fault.Conflict)
	wantKind(t, "Delete under a wrong revision", s.Delete(bounded(t), k, store.Condition{Revision: d.Revision + 1}), fault.Conflict)
	if got := string(get(t, s, k).Raw); got != `{"n":1}` {
		t.Errorf("after refused writes the document is %s", got)
	}
	if err := tryPut(`{"n":4}`, store.Condition{Revision: d.Revision}); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "the same Put again", tryPut(`{"n":5}`, store.Condition{Revision: d.Revision}), fault.Conflict)
	if err := s.Delete(bounded(t), k, store.Condition{Revision: get(t, s, k).Revision}); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "Put under a revision after the delete", tryPut(`{}`, store.Condition{Revision: d.Revision}), fault.Conflict)
	if err := tryPut(`{"n":6}`, store.Condition{Absent: true}); err != nil {
		t.Errorf("Put only if absent after a delete: %v", err)
	}
}

func testRevisions(t *testing.T, s store.Store) {
	var last uint64
	grown := func(what string, r uint64) {
		t.Helper()
		if r <= last {
			t.Fatalf("%s has revision %d, the write before it had %d", what, r, last)
		}
		last = r
	}
	for i := range 3 {
		for _, k := range []store.Key{key("Bus", "", "a"), key("Rule", "a", "r"), key("Rule", "b", "r"), key("Key", "", "ci")} {
			grown(k.String(), put(t, s, k, fmt.Sprintf(`{"i":%d}`, i)).Revision)
		}
	}
	k := key("Bus", "", "a")
	if err := s.Delete(bounded(t), k, store.Condition{}); err != nil {
		t.Fatal(err)
	}
	d := put(t, s, k, `{"i":0}`)
	grown("a document that is new again", d.Revision)
	if !d.CreatedAt.Equal(d.UpdatedAt) {
		t.Errorf("a document that is new again was created %v, updated %v", d.CreatedAt, d.UpdatedAt)
	}
}

func testDelete(t *testing.T, s store.Store) {
	k, other := key("Rule", "a", "r"), key("Rule", "b", "r")
	wantKind(t, "Delete of nothing", s.Delete(bounded(t), k, store.Condition{}), fault.NotFound)
	wantKind(t, "Delete of nothing under a revision", s.Delete(bounded(t), k, store.Condition{Revision: 7}), fault.NotFound)
	put(t, s, k, `{}`)
	put(t, s, other, `{}`)
	if err := s.Delete(bounded(t), k, store.Condition{}); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "Get after the delete", second(s.Get(bounded(t), k)), fault.NotFound)
	wantKind(t, "a second Delete", s.Delete(bounded(t), k, store.Condition{}), fault.NotFound)
	get(t, s, other)
	if p := list(t, s, store.Query{Kind: "Rule", AllScopes: true}); len(p.Items) != 1 || p.Items[0].Key != other {
		t.Errorf("List after the delete = %v", keysOf(p))
	}
}

func testKeys(t *testing.T, s store.Store) {
	odd := []store.Key{
		key("Rule", "a", "b"), key("Rule", "", "a-b"), key("Rule", "a.b", "c"), key("Rule", "a", "b.c"), key("Rule", "a/b", "c"),
		key("Rule", "a", "b/c"), key("Rule", "A", "b"), key("Rule", "a", "B"), key("Rule", "=", "="), key("Rule", "", "="),
		key("Rule", "*", ">"), key("Rule", " ", "a b"), key("Rule", "ü", "日本"), key("Rule", "$", "%41"), key("Rule", "=41", "x"),
		key("Device", "", "box-17"), key("Device", "", strings.Repeat("n", 63)),
	}
	for i, k := range odd {
		put(t, s, k, fmt.Sprintf(`{"i":%d}`, i))
	}
	for i, k := range odd {
		if got, want := string(get(t, s, k).Raw), fmt.Sprintf(`{"i":%d}`, i); got != want {
			t.Errorf("Get(%q) = %s, want %s", k, got, want)
		}
	}
	f := follow(t, s)
	f.untilMark()
	if got := len(f.state()); got != len(odd) {
		t.Errorf("Watch shows %d documents of %d", got, len(odd))
	}
}

func testListOrder(t *testing.T, s store.Store) {
	for _, k := range []store.Key{key("Rule", "b", "z"), key("Rule", "a", "y"), key("Rule", "b", "a"), key("Rule", "a", "x"),
		key("Rule", "a-1", "m"), key("Target", "", "t"), key("Bus", "", "b"), key("Bus", "", "a")} {
		put(t, s, k, `{}`)
	}
	for _, c := range []struct {
		q    store.Query
		want []string
	}{
		{store.Query{Kind: "Rule", AllScopes: true}, []string{"Rule/a/x", "Rule/a/y", "Rule/a-1/m", "Rule/b/a", "Rule/b/z"}},
		{store.Query{Kind: "Rule", Scope: "a"}, []string{"Rule/a/x", "Rule/a/y"}},
		{store.Query{Kind: "Rule", Scope: "c"}, nil},
		{store.Query{Kind: "Rule"}, nil},
		{store.Query{Kind: "Bus"}, []string{"Bus/a", "Bus/b"}},
		{store.Query{Kind: "Bus", AllScopes: true}, []string{"Bus/a", "Bus/b"}},
		{store.Query{Kind: "Device"}, nil},
		{store.Query{}, nil},
	} {
		p := list(t, s, c.q)
		if diff := cmp.Diff(c.want, keysOf(p)); diff != "" || p.Cursor != "" {
			t.Errorf("List(%+v), cursor %q (-want +got):\n%s", c.q, p.Cursor, diff)
		}
	}
	p := list(t, s, store.Query{Kind: "Bus"})
	if diff := cmp.Diff(get(t, s, key("Bus", "", "a")), p.Items[0]); diff != "" {
		t.Errorf("a listed document is not the document (-got +listed):\n%s", diff)
	}
}

func testListPages(t *testing.T, s store.Store) {
	var want []string
	for i := range 23 {
		k := key("Rule", fmt.Sprintf("s%d", i/10), fmt.Sprintf("r%02d", i))
		put(t, s, k, `{}`)
		want = append(want, k.String())
	}
	for _, limit := range []int{1, 5, 22, 23, 1000, 0} {
		var got []string
		q := store.Query{Kind: "Rule", AllScopes: true, Limit: limit}
		for pages := 0; ; pages++ {
			p := list(t, s, q)
			got = append(got, keysOf(p)...)
			if limit > 0 && len(p.Items) > limit || pages > 23 {
				t.Fatalf("limit %d: page %d with %d documents", limit, pages, len(p.Items))
			}
			if p.Cursor == "" {
				break
			}
			if len(p.Items) == 0 {
				t.Fatalf("limit %d: an empty page with a cursor", limit)
			}
			q.After = p.Cursor
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("limit %d (-want +got):\n%s", limit, diff)
		}
	}
	// A page goes on behind its cursor whatever happens to the document that the cursor was made of.
	p := list(t, s, store.Query{Kind: "Rule", Scope: "s0", Limit: 4})
	if err := s.Delete(bounded(t), p.Items[3].Key, store.Condition{}); err != nil {
		t.Fatal(err)
	}
	put(t, s, key("Rule", "s0", "r00-before"), `{}`)
	rest := list(t, s, store.Query{Kind: "Rule", Scope: "s0", After: p.Cursor})
	if diff := cmp.Diff(want[4:10], keysOf(rest)); diff != "" {
		t.Errorf("the page after a deleted document (-want +got):\n%s", diff)
	}
}

func testListLabels(t *testing.T, s store.Store) {
	docs := map[string]string{
		"a": `{"labels":{"team":"cold-chain","env":"prod"}}`,
		"b": `{"labels":{"team":"cold-chain","env":"test"}}`,
		"c": `{"labels":{"team":"billing"}}`,
		"d": `{"labels":{}}`,
		"e": `{"x":{"labels":{"team":"cold-chain"}}}`,
		"f": `{"labels":"team"}`,
		"g": `{"labels":{"team":""}}`,
	}
	for _, name := range slices.Sorted(maps.Keys(docs)) {
		put(t, s, key("Target", "", name), docs[name])
	}
	for _, c := range []struct {
		labels map[string]string
		want   []string
	}{
		{map[string]string{"team": "cold-chain"}, []string{"Target/a", "Target/b"}},
		{map[string]string{"team": "cold-chain", "env": "test"}, []string{"Target/b"}},
		{map[string]string{"team": "cold-chain", "env": "none"}, nil},
		{map[string]string{"team": ""}, []string{"Target/g"}},
		{map[string]string{"none": ""}, nil},
	} {
		if diff := cmp.Diff(c.want, keysOf(list(t, s, store.Query{Kind: "Target", Labels: c.labels}))); diff != "" {
			t.Errorf("labels %v (-want +got):\n%s", c.labels, diff)
		}
	}
	// The limit counts what is found, and a filtered list ends without a cursor.
	p := list(t, s, store.Query{Kind: "Target", Labels: map[string]string{"team": "cold-chain"}, Limit: 1})
	if p.Cursor == "" {
		t.Fatal("no cursor although a second document has the label")
	}
	p = list(t, s, store.Query{Kind: "Target", Labels: map[string]string{"team": "cold-chain"}, Limit: 1, After: p.Cursor})
	if diff := cmp.Diff([]string{"Target/b"}, keysOf(p)); diff != "" || p.Cursor != "" {
		t.Errorf("second page, cursor %q (-want +got):\n%s", p.Cursor, diff)
	}
	put(t, s, key("Target", "", "a"), `{"labels":{"team":"billing"}}`)
	if diff := cmp.Diff([]string{"Target/a", "Target/c"}, keysOf(list(t, s, store.Query{Kind: "Target", Labels: map[string]string{"team": "billing"}}))); diff != "" {
		t.Errorf("after a label changed (-want +got):\n%s", diff)
	}
}

func testListRefuses(t *testing.T, s store.Store) {
	for _, q := range []store.Query{{Kind: "Bus", Limit: -1}, {Kind: "Bus", Limit: 1001}, {Kind: "Bus", After: "!"}, {Kind: "Bus", After: "YQ"}} {
		_, err := s.List(bounded(t), q)
		wantKind(t, fmt.Sprintf("List(%+v)", q), err, fault.Invalid)
	}
}

func testWatchStory(t *testing.T, s store.Store) {
	a, b, c := key("Bus", "", "a"), key("Rule", "a", "b"), key("Target", "", "c")
	put(t, s, c, `{"n":1}`)
	put(t, s, a, `{"n":1}`)
	put(t, s, b, `{"n":1}`)
	put(t, s, c, `{"n":2}`)
	if err := s.Delete(bounded(t), b, store.Condition{}); err != nil {
		t.Fatal(err)
	}
	f := follow(t, s)
	f.untilMark()
	if diff := cmp.Diff([]string{"Bus/a", "Target/c", "mark"}, f.names()); diff != "" {
		t.Errorf("what there is, in order of revision (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(get(t, s, c), f.state()[c]); diff != "" {
		t.Errorf("a watched document is not the document:\n%s", diff)
	}
	d := put(t, s, b, `{"n":3}`)
	f.until(func(m mirror) bool { return m[b].Revision == d.Revision })
	if err := s.Delete(bounded(t), a, store.Condition{}); err != nil {
		t.Fatal(err)
	}
	f.until(func(m mirror) bool { _, there := m[a]; return !there })
	gone := f.last()
	if gone.Key != a || !gone.Deleted || gone.Revision <= d.Revision || gone.Raw != nil {
		t.Errorf("deletion = %+v after revision %d, want key and revision only", gone, d.Revision)
	}
	d = put(t, s, a, `{"n":4}`)
	f.until(func(m mirror) bool { return m[a].Revision == d.Revision })
	if diff := cmp.Diff([]string{"Bus/a", "Target/c", "mark", "Rule/a/b", "-Bus/a", "Bus/a"}, f.names()); diff != "" {
		t.Errorf("the whole feed (-want +got):\n%s", diff)
	}
}

func testWatchManyChanges(t *testing.T, s store.Store) {
	// A watcher that does not come back in time still ends with the last state of everything.
	gate := make(chan struct{})
	lift := sync.OnceFunc(func() { close(gate) })
	f := follow(t, s, func(store.Change) { <-gate })
	t.Cleanup(lift)
	want := mirror{}
	for i := range 200 {
		k := key("Target", "", fmt.Sprintf("t%d", i%7))
		if i%11 == 10 {
			err := s.Delete(bounded(t), k, store.Condition{})
			if err != nil && fault.KindOf(err) != fault.NotFound {
				t.Fatal(err)
			}
			delete(want, k)
			continue
		}
		want[k] = put(t, s, k, fmt.Sprintf(`{"i":%d}`, i))
	}
	end := key("Target", "", "end")
	want[end] = put(t, s, end, `{}`)
	lift()
	f.until(func(m mirror) bool { return m[end].Revision != 0 })
	if diff := cmp.Diff(want, f.state()); diff != "" {
		t.Errorf("state after 200 changes (-want +got):\n%s", diff)
	}
}

func testWatchWhileWriting(t *testing.T, s store.Store) {
	// Watchers that start in the middle of writes miss nothing, and see what a list then shows.
	const writers, each = 4, 60
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				k := key("Rule", fmt.Sprintf("w%d", w), fmt.Sprintf("r%d", i%9))
				if i%5 == 4 {
					err := s.Delete(bounded(t), k, store.Condition{})
					if err != nil && fault.KindOf(err) != fault.NotFound {
						t.Error(err)
					}
					continue
				}
				if _, err := s.Put(bounded(t), k, json.RawMessage(fmt.Sprintf(`{"i":%d}`, i)), store.Condition{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	var followers []*follower
	for range 5 {
		f := follow(t, s)
		f.untilMark()
		followers = append(followers, f)
	}
	wg.Wait()
	end := put(t, s, key("Rule", "z", "end"), `{}`)
	want := mirror{}
	for _, d := range list(t, s, store.Query{Kind: "Rule", AllScopes: true, Limit: 1000}).Items {
		want[d.Key] = d
	}
	for i, f := range followers {
		f.until(func(m mirror) bool { return m[end.Key].Revision == end.Revision })
		if diff := cmp.Diff(want, f.state()); diff != "" {
			t.Errorf("watcher %d (-list +watched):\n%s", i, diff)
		}
		f.mu.Lock()
		for j := 1; j < len(f.changes); j++ {
			if p, q := f.changes[j-1], f.changes[j]; p.Revision != 0 && q.Revision != 0 && q.Revision < p.Revision {
				t.Errorf("watcher %d: revision %d after %d", i, q.Revision, p.Revision)
			}
		}
		f.mu.Unlock()
	}
}

func testWatchEnds(t *testing.T, s store.Store) {
	put(t, s, key("Bus", "", "a"), `{}`)
	put(t, s, key("Bus", "", "b"), `{}`)
	stop := errors.New("enough")
	calls := 0
	if err := s.Watch(bounded(t), func(store.Change) error { calls++; return stop }); err != stop || calls != 1 {
		t.Errorf("Watch whose function fails = %v after %d calls, want its error after one", err, calls)
	}
	if err := s.Watch(bounded(t), func(c store.Change) error {
		if c.Key == (store.Key{}) {
			return stop
		}
		return nil
	}); err != stop {
		t.Errorf("Watch whose function fails at the mark = %v", err)
	}
	ctx, cancel := context.WithCancel(bounded(t))
	err := s.Watch(ctx, func(c store.Change) error {
		if c.Key == (store.Key{}) {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Watch that was cancelled = %v", err)
	}
}

func testRaces(t *testing.T, s store.Store) {
	t.Run("CompareAndSwap", func(t *testing.T) { counter(t, s, s) })
	t.Run("Absent", func(t *testing.T) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		won := 0
		for i := range 12 {
			wg.Go(func() {
				_, err := s.Put(bounded(t), key("Bus", "", "race"), json.RawMessage(fmt.Sprintf(`{"i":%d}`, i)), store.Condition{Absent: true})
				switch {
				case err == nil:
					mu.Lock()
					won++
					mu.Unlock()
				case fault.KindOf(err) != fault.Conflict:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if won != 1 {
			t.Errorf("%d of 12 made the document that was absent", won)
		}
	})
	t.Run("Unconditional", func(t *testing.T) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		seen := map[uint64]bool{}
		for i := range 8 {
			wg.Go(func() {
				for j := range 5 {
					d, err := s.Put(bounded(t), key("Bus", "", "busy"), json.RawMessage(fmt.Sprintf(`{"i":%d,"j":%d}`, i, j)), store.Condition{})
					if err != nil {
						t.Error(err)
						continue
					}
					mu.Lock()
					if seen[d.Revision] {
						t.Errorf("two writes have revision %d", d.Revision)
					}
					seen[d.Revision] = true
					mu.Unlock()
				}
			})
		}
		wg.Wait()
	})
}

func testCancelled(t *testing.T, s store.Store) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	k := key("Bus", "", "a")
	_, getErr := s.Get(ctx, k)
	_, putErr := s.Put(ctx, k, json.RawMessage(`{}`), store.Condition{})
	_, listErr := s.List(ctx, store.Query{Kind: "Bus"})
	for what, err := range map[string]error{
		"Get": getErr, "Put": putErr, "List": listErr, "Delete": s.Delete(ctx, k, store.Condition{}),
		"Watch": s.Watch(ctx, func(store.Change) error { return nil }),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s under a cancelled context = %v", what, err)
		}
	}
	wantKind(t, "Get after a cancelled Put", second(s.Get(bounded(t), k)), fault.NotFound)
}

func testClose(t *testing.T, s store.Store) {
	ended := make(chan error, 1)
	marked := make(chan struct{})
	go func() {
		ended <- s.Watch(context.Background(), func(store.Change) error { close(marked); return nil })
	}()
	wait(t, marked, "the mark of an empty store")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err == nil {
			t.Error("Watch under way ended without an error")
		}
	case <-time.After(patience):
		t.Fatal("Watch goes on after Close")
	}
	k := key("Bus", "", "a")
	_, getErr := s.Get(bounded(t), k)
	_, putErr := s.Put(bounded(t), k, json.RawMessage(`{}`), store.Condition{})
	_, listErr := s.List(bounded(t), store.Query{Kind: "Bus"})
	for what, err := range map[string]error{
		"Get": getErr, "Put": putErr, "List": listErr, "Delete": s.Delete(bounded(t), k, store.Condition{}),
		"Watch": s.Watch(bounded(t), func(store.Change) error { return nil }),
	} {
		wantKind(t, what+" after Close", err, fault.Unavailable)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

// counter lets many add to one number by compare-and-swap, through two stores that are one.
func counter(t *testing.T, a, b store.Store) {
	const adders, each = 6, 5
	k := key("Bus", "", "counter")
	put(t, a, k, `0`)
	var wg sync.WaitGroup
	for i := range adders {
		s := a
		if i%2 == 1 {
			s = b
		}
		wg.Go(func() {
			for range each {
				for {
					d, err := s.Get(bounded(t), k)
					if err != nil {
						t.Error(err)
						return
					}
					var n int
					if err := json.Unmarshal(d.Raw, &n); err != nil {
						t.Error(err)
						return
					}
					_, err = s.Put(bounded(t), k, json.RawMessage(fmt.Sprint(n+1)), store.Condition{Revision: d.Revision})
					if err == nil {
						break
					}
					if fault.KindOf(err) != fault.Conflict {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if got, want := string(get(t, a, k).Raw), fmt.Sprint(adders*each); got != want {
		t.Errorf("counter = %s, want %s", got, want)
	}
}
