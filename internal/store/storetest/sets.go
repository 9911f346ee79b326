// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
)

func write(k store.Key, raw string) store.Write {
	return store.Write{Key: k, Raw: json.RawMessage(raw)}
}

func testChangeSet(t *testing.T, s store.Store) {
	a, b, c, d := key("Bus", "", "a"), key("Rule", "a", "b"), key("Target", "", "c"), key("Target", "", "d")
	old := put(t, s, a, `{"n":1}`)
	same := put(t, s, c, `{"n":1}`)
	gone := put(t, s, d, `{"n":1}`)
	got, err := s.Apply(bounded(t), []store.Write{
		{Key: a, Raw: json.RawMessage(` {"n":2}`), If: store.Condition{Revision: old.Revision}},
		{Key: b, Raw: json.RawMessage(`{"n":2}`), If: store.Condition{Absent: true}},
		{Key: c, Raw: json.RawMessage(`{"n":1}`), If: store.Condition{Revision: same.Revision}},
		{Key: d, Delete: true, If: store.Condition{Revision: gone.Revision}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, k := range []store.Key{a, b, c} {
		if diff := cmp.Diff(get(t, s, k), got[i]); diff != "" {
			t.Errorf("Apply returned another document than is there (-there +returned):\n%s", diff)
		}
	}
	if diff := cmp.Diff(same, got[2]); diff != "" {
		t.Errorf("a document that was written as it is changed:\n%s", diff)
	}
	if got[3].Key != d || got[3].Raw != nil || got[3].Revision <= gone.Revision {
		t.Errorf("a deletion is returned as %+v", got[3])
	}
	if !got[0].CreatedAt.Equal(old.CreatedAt) || got[0].Revision <= gone.Revision || got[1].Revision <= gone.Revision || got[0].Revision == got[1].Revision {
		t.Errorf("revisions after %d: %+v", gone.Revision, got)
	}
	wantKind(t, "Get of what a set deleted", second(s.Get(bounded(t), d)), fault.NotFound)
	f := follow(t, s)
	f.untilMark()
	if diff := cmp.Diff(mirror{a: got[0], b: got[1], c: same}, f.state()); diff != "" {
		t.Errorf("watched after a set (-want +got):\n%s", diff)
	}
	if got, err := s.Apply(bounded(t), nil); err != nil || len(got) != 0 {
		t.Errorf("Apply of nothing = %v, %v", got, err)
	}
	if got, err := s.Apply(bounded(t), []store.Write{write(c, `{"n":1}`), write(b, `{"n":2}`)}); err != nil || got[0].Revision != same.Revision {
		t.Errorf("Apply that changes nothing = %v, %v", got, err)
	}
	wide := make([]store.Write, store.MaxWrites)
	for i := range wide {
		wide[i] = write(key("Device", "", fmt.Sprint("d", i)), `{}`)
	}
	if got, err := s.Apply(bounded(t), wide); err != nil || len(got) != len(wide) {
		t.Errorf("Apply of %d writes = %d documents, %v", len(wide), len(got), err)
	}
	if p := list(t, s, store.Query{Kind: "Device", Limit: 1000}); len(p.Items) != len(wide) {
		t.Errorf("%d documents after a set of %d", len(p.Items), len(wide))
	}
}

func testChangeSetRefuses(t *testing.T, s store.Store) {
	a, b := key("Bus", "", "a"), key("Bus", "", "b")
	d := put(t, s, a, `{"n":1}`)
	for what, c := range map[string]struct {
		set  []store.Write
		want fault.Kind
	}{
		"a stale revision at the end":     {[]store.Write{write(b, `{}`), {Key: a, Raw: json.RawMessage(`{"n":2}`), If: store.Condition{Revision: d.Revision + 1}}}, fault.Conflict},
		"a stale revision of the same":    {[]store.Write{write(b, `{}`), {Key: a, Raw: json.RawMessage(`{"n":1}`), If: store.Condition{Revision: d.Revision + 1}}}, fault.Conflict},
		"a document that is there":        {[]store.Write{write(b, `{}`), {Key: a, Raw: json.RawMessage(`{}`), If: store.Condition{Absent: true}}}, fault.Conflict},
		"a deletion of nothing":           {[]store.Write{write(b, `{}`), {Key: key("Bus", "", "none"), Delete: true}}, fault.NotFound},
		"a key twice":                     {[]store.Write{write(b, `{}`), write(b, `{"n":1}`)}, fault.Invalid},
		"what is no JSON":                 {[]store.Write{write(b, `{}`), write(a, `{`)}, fault.Invalid},
		"a key without a name":            {[]store.Write{write(b, `{}`), write(key("Bus", "", ""), `{}`)}, fault.Invalid},
		"more writes than a set may have": {make([]store.Write, store.MaxWrites+1), fault.TooLarge},
	} {
		docs, err := s.Apply(bounded(t), c.set)
		wantKind(t, "Apply with "+what, err, c.want)
		if docs != nil {
			t.Errorf("Apply with %s returned documents", what)
		}
	}
	p := list(t, s, store.Query{Kind: "Bus"})
	if len(p.Items) != 1 || string(p.Items[0].Raw) != `{"n":1}` {
		t.Errorf("after refused sets there is %v", keysOf(p))
	}
}

func testChangeSetRaces(t *testing.T, s store.Store) {
	t.Run("OneWins", func(t *testing.T) { oneWins(t, s, s) })
	t.Run("Transfers", func(t *testing.T) { transfers(t, s, s) })
}

// oneWins lets many write sets that all need one document to be as it was.
func oneWins(t *testing.T, a, b store.Store) {
	const writers = 8
	guard := key("Bus", "", "guard")
	d := put(t, a, guard, `{}`)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var winner []string
	for i := range writers {
		s := a
		if i%2 == 1 {
			s = b
		}
		wg.Go(func() {
			own := key("Target", "", fmt.Sprint("own", i))
			_, err := s.Apply(bounded(t), []store.Write{write(own, `{}`),
				{Key: guard, Raw: json.RawMessage(fmt.Sprintf(`{"by":%d}`, i)), If: store.Condition{Revision: d.Revision}}})
			switch {
			case err == nil:
				mu.Lock()
				winner = append(winner, own.String())
				mu.Unlock()
			case fault.KindOf(err) != fault.Conflict:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if diff := cmp.Diff(winner, keysOf(list(t, a, store.Query{Kind: "Target"}))); len(winner) != 1 || diff != "" {
		t.Errorf("%d of %d sets with one condition won, and there is more or less (-won +there):\n%s", len(winner), writers, diff)
	}
}

// transfers moves amounts between accounts; the sum stays, and nobody sees another one but for a moment.
func transfers(t *testing.T, a, b store.Store) {
	const accounts, movers, each = 4, 5, 6
	account := func(i int) store.Key { return key("Account", "", fmt.Sprint("a", i%accounts)) }
	for i := range accounts {
		put(t, a, account(i), "100")
	}
	move := func(s store.Store, from, to store.Key) error {
		var set []store.Write
		for k, amount := range map[store.Key]int{from: -1, to: 1} {
			d, err := s.Get(bounded(t), k)
			if err != nil {
				return err
			}
			var n int
			if err := json.Unmarshal(d.Raw, &n); err != nil {
				return err
			}
			set = append(set, store.Write{Key: k, Raw: fmt.Append(nil, n+amount), If: store.Condition{Revision: d.Revision}})
		}
		_, err := s.Apply(bounded(t), set)
		return err
	}
	f := follow(t, b)
	var wg sync.WaitGroup
	for i := range movers {
		s := a
		if i%2 == 1 {
			s = b
		}
		wg.Go(func() {
			for n := 0; n < each; {
				err := move(s, account(i+n), account(i+n+1))
				var f *fault.Error
				switch {
				case err == nil:
					n++
				case !errors.As(err, &f) || f.Kind != fault.Conflict:
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	sum := 0
	want := mirror{}
	for i := range accounts {
		d := get(t, a, account(i))
		want[d.Key] = d
		var n int
		if err := json.Unmarshal(d.Raw, &n); err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	if sum != accounts*100 {
		t.Errorf("the sum is %d, and was %d", sum, accounts*100)
	}
	f.until(func(m mirror) bool {
		return !slices.ContainsFunc(slices.Collect(maps.Values(want)), func(d store.Document) bool { return !cmp.Equal(m[d.Key], d) })
	})
}

func testAudit(t *testing.T, s store.Store) {
	before := time.Now().Add(-time.Minute)
	a, b := key("Rule", "default", "a"), key("Target", "", "b")
	by := store.Author{Name: "ci", RequestID: "request-1"}
	ctx := store.WithAuthor(bounded(t), by)
	var want []store.AuditEntry
	note := func(k store.Key, by store.Author, action string, old, revision uint64) {
		want = append([]store.AuditEntry{{Key: k, By: by, Action: action, OldRevision: old, Revision: revision}}, want...)
	}
	one := put(t, s, a, `{"n":1}`)
	note(a, store.Author{}, store.Created, 0, one.Revision)
	two, err := s.Put(ctx, a, json.RawMessage(`{"n":2}`), store.Condition{})
	if err != nil {
		t.Fatal(err)
	}
	note(a, by, store.Changed, one.Revision, two.Revision)
	if _, err := s.Put(ctx, a, json.RawMessage(`{"n":2}`), store.Condition{}); err != nil {
		t.Fatal(err)
	}
	_, err = s.Put(ctx, a, json.RawMessage(`{"n":3}`), store.Condition{Absent: true})
	wantKind(t, "Put over a document, only if absent", err, fault.Conflict)
	set, err := s.Apply(ctx, []store.Write{write(b, `{}`), {Key: a, Delete: true}})
	if err != nil {
		t.Fatal(err)
	}
	note(b, by, store.Created, 0, set[0].Revision)
	note(a, by, store.Deleted, two.Revision, set[1].Revision)
	three := put(t, s, a, `{"n":1}`)
	note(a, store.Author{}, store.Created, 0, three.Revision)

	audit := func(q store.AuditQuery) []store.AuditEntry {
		t.Helper()
		p, err := s.Audit(bounded(t), q)
		if err != nil || p.Cursor != "" {
			t.Errorf("Audit(%+v): cursor %q, %v", q, p.Cursor, err)
		}
		for i := range p.Items {
			if at := p.Items[i].At; at.Before(before) || at.After(time.Now().Add(time.Minute)) {
				t.Errorf("entry of %v", at)
			}
			p.Items[i].At = time.Time{}
		}
		return p.Items
	}
	if diff := cmp.Diff(want, audit(store.AuditQuery{})); diff != "" {
		t.Errorf("who changed what (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want[2:3], audit(store.AuditQuery{Kind: "Target"})); diff != "" {
		t.Errorf("changes of targets (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]store.AuditEntry{want[0], want[1], want[3], want[4]}, audit(store.AuditQuery{Name: "a", From: before, To: time.Now().Add(time.Hour)})); diff != "" {
		t.Errorf("changes of a (-want +got):\n%s", diff)
	}
	for _, q := range []store.AuditQuery{{Name: "none"}, {From: time.Now().Add(time.Hour)}, {To: before}, {Kind: "a.b>*\x00\xff"}} {
		if got := audit(q); len(got) != 0 {
			t.Errorf("Audit(%+v) has %d entries", q, len(got))
		}
	}
	for _, q := range []store.AuditQuery{{Limit: -1}, {Limit: 1001}, {After: "!"}, {After: "r"}, {After: "7"}} {
		wantKind(t, fmt.Sprintf("Audit(%+v)", q), second(s.Audit(bounded(t), q)), fault.Invalid)
	}
}

func testAuditPages(t *testing.T, s store.Store) {
	const changes = 23
	var want []uint64
	for i := range changes {
		want = append([]uint64{put(t, s, key("Bus", "", fmt.Sprint("b", i%3)), fmt.Sprintf(`{"i":%d}`, i)).Revision}, want...)
		put(t, s, key("Target", "", "t"), fmt.Sprintf(`{"i":%d}`, i))
	}
	var got []uint64
	q := store.AuditQuery{Kind: "Bus", Limit: 5}
	for pages := 1; ; pages++ {
		p, err := s.Audit(bounded(t), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range p.Items {
			got = append(got, e.Revision)
		}
		put(t, s, key("Bus", "", "b3"), fmt.Sprintf(`{"page":%d}`, pages)) // what comes meanwhile disturbs nobody
		if q.After = p.Cursor; q.After == "" {
			break
		}
		if pages > changes {
			t.Fatal("there is no end")
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pages together (-want +got):\n%s", diff)
	}
}
