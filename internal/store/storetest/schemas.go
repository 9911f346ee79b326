// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/schema"
)

// RunSchemas runs the suite of schema.Store. open returns two stores over the same schemas, empty, and sees to their end;
// they may be one.
func RunSchemas(t *testing.T, open func(t *testing.T) (a, b schema.Store)) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, a, b schema.Store)
	}{
		{"Schemas", testSchemas},
		{"SchemaLists", testSchemaLists},
		{"Versions", testVersions},
		{"VersionNumbers", testVersionNumbers},
		{"VersionStates", testVersionStates},
		{"VersionRaces", testVersionRaces},
		{"Bindings", testBindings},
		{"WatchSchemas", testWatchSchemas},
		{"CancelledSchemas", testCancelledSchemas},
		{"CloseSchemas", testCloseSchemas},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a, b := open(t)
			c.test(t, a, b)
		})
	}
}

var (
	orders = schema.Name{Group: "shop", Schema: "com.example.Order"}
	boxes  = schema.Name{Group: "cold-chain", Schema: "Box"}
	stamp  = time.Date(2026, 11, 30, 6, 0, 0, 123456000, time.UTC)
)

func head(n schema.Name) schema.Schema {
	return schema.Schema{Name: n, Format: schema.JSONSchema, Compatibility: schema.FullTransitive, Policy: schema.Strict,
		Description: "<x> & y", Labels: map[string]string{"team": n.Group}, CreatedAt: stamp, UpdatedAt: stamp}
}

func version(n schema.Name, number int, text string) schema.Version {
	return schema.Version{Ref: schema.Ref{Name: n, Version: number}, State: schema.Active, Format: schema.JSONSchema, Dialect: "2020-12",
		Text: text, Hash: "hash of " + text, CreatedAt: stamp, UpdatedAt: stamp,
		References: []schema.Reference{{Name: "box.json", Group: boxes.Group, Schema: boxes.Schema, Version: 1}}}
}

func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func testSchemas(t *testing.T, a, b schema.Store) {
	ctx := bounded(t)
	wantKind(t, "Schema that was never made", second(a.Schema(ctx, orders)), fault.NotFound)
	made := must[schema.Schema](t)(a.PutSchema(ctx, head(orders)))
	want := head(orders)
	want.Revision = made.Revision
	if diff := cmp.Diff(want, made); diff != "" || made.Revision == 0 {
		t.Errorf("PutSchema (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(made, must[schema.Schema](t)(b.Schema(ctx, orders))); diff != "" {
		t.Errorf("Schema (-put +got):\n%s", diff)
	}
	wantKind(t, "PutSchema over what is there", second(b.PutSchema(ctx, head(orders))), fault.Conflict)
	next := made
	next.Description, next.Deleted = "", true
	next = must[schema.Schema](t)(b.PutSchema(ctx, next))
	if next.Revision <= made.Revision {
		t.Errorf("revision %d after %d", next.Revision, made.Revision)
	}
	wantKind(t, "PutSchema over what has changed", second(a.PutSchema(ctx, made)), fault.Conflict)
	if diff := cmp.Diff(next, must[schema.Schema](t)(a.Schema(ctx, orders))); diff != "" {
		t.Errorf("a deleted schema is there (-put +got):\n%s", diff)
	}
	lost := head(boxes)
	lost.Revision = made.Revision
	wantKind(t, "PutSchema over what is not there", second(a.PutSchema(ctx, lost)), fault.Conflict)
}

func testSchemaLists(t *testing.T, a, b schema.Store) {
	ctx := bounded(t)
	var want []schema.Schema
	for i := range 9 {
		s := head(schema.Name{Group: fmt.Sprintf("g%d", i/4), Schema: fmt.Sprintf("s%d", i)})
		s.Labels["odd"] = fmt.Sprint(i%2 == 1)
		s.Deleted = i == 2
		want = append(want, must[schema.Schema](t)(a.PutSchema(ctx, s)))
	}
	keep := func(ok func(schema.Schema) bool) (out []schema.Schema) {
		for _, s := range want {
			if ok(s) {
				out = append(out, s)
			}
		}
		return out
	}
	for _, c := range []struct {
		q    schema.Query
		want []schema.Schema
	}{
		{schema.Query{Deleted: true}, want},
		{schema.Query{}, keep(func(s schema.Schema) bool { return !s.Deleted })},
		{schema.Query{Group: "g1"}, keep(func(s schema.Schema) bool { return s.Name.Group == "g1" })},
		{schema.Query{Group: "none"}, nil},
		{schema.Query{Labels: map[string]string{"odd": "true"}}, keep(func(s schema.Schema) bool { return s.Labels["odd"] == "true" })},
		{schema.Query{Labels: map[string]string{"odd": "true", "team": "g0"}}, keep(func(s schema.Schema) bool { return s.Labels["odd"] == "true" && s.Name.Group == "g0" })},
	} {
		for _, limit := range []int{0, 1, 2, 3, 1000} {
			var got []schema.Schema
			q := c.q
			q.Limit = limit
			for {
				p := must[schema.Page[schema.Schema]](t)(b.Schemas(ctx, q))
				if limit > 0 && len(p.Items) > limit {
					t.Fatalf("%+v: %d items", q, len(p.Items))
				}
				got = append(got, p.Items...)
				if q.After = p.Cursor; q.After == "" {
					break
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("Schemas(%+v), limit %d (-want +got):\n%s", c.q, limit, diff)
			}
		}
	}
	for _, q := range []schema.Query{{Limit: -1}, {Limit: 1001}, {After: "!"}} {
		wantKind(t, fmt.Sprintf("Schemas(%+v)", q), second(a.Schemas(ctx, q)), fault.Invalid)
	}
}

func testVersions(t *testing.T, a, b schema.Store) {
	ctx := bounded(t)
	wantKind(t, "Version that was never made", second(a.Version(ctx, schema.Ref{Name: orders, Version: 1})), fault.NotFound)
	wantKind(t, "VersionByID that was never given", second(a.VersionByID(ctx, 7)), fault.NotFound)
	wantKind(t, "FindVersion of nothing", second(a.FindVersion(ctx, orders, "x")), fault.NotFound)
	var want []schema.Version
	ids := map[int]bool{}
	for i := range 12 {
		v := must[schema.Version](t)(a.AddVersion(ctx, version(orders, i+1, fmt.Sprintf("{\"a\": \"<%d>\"}\n", i/2))))
		if ids[v.ID] || v.ID < 1 || v.Revision == 0 {
			t.Errorf("version %s has id %d, revision %d", v.Ref, v.ID, v.Revision)
		}
		ids[v.ID] = true
		plain := version(orders, i+1, v.Text)
		plain.ID, plain.Revision = v.ID, v.Revision
		if diff := cmp.Diff(plain, v); diff != "" {
			t.Errorf("AddVersion (-want +got):\n%s", diff)
		}
		want = append(want, v)
	}
	other := must[schema.Version](t)(b.AddVersion(ctx, version(boxes, 1, "{}")))
	if ids[other.ID] {
		t.Errorf("id %d is given twice", other.ID)
	}
	for _, v := range append(slices.Clone(want), other) {
		if diff := cmp.Diff(v, must[schema.Version](t)(b.Version(ctx, v.Ref))); diff != "" {
			t.Errorf("Version (-added +got):\n%s", diff)
		}
		if diff := cmp.Diff(v, must[schema.Version](t)(b.VersionByID(ctx, v.ID))); diff != "" {
			t.Errorf("VersionByID (-added +got):\n%s", diff)
		}
	}
	for _, limit := range []int{0, 1, 5, 12} {
		var got []schema.Version
		for after := ""; ; {
			p := must[schema.Page[schema.Version]](t)(b.Versions(ctx, orders, after, limit))
			got = append(got, p.Items...)
			if after = p.Cursor; after == "" {
				break
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Versions, limit %d (-want +got):\n%s", limit, diff)
		}
	}
	if p := must[schema.Page[schema.Version]](t)(a.Versions(ctx, schema.Name{Group: "shop", Schema: "none"}, "", 0)); len(p.Items) != 0 {
		t.Errorf("a schema that is not there has %d versions", len(p.Items))
	}
	if v := must[schema.Version](t)(b.FindVersion(ctx, orders, want[3].Hash)); v.Ref.Version != 4 {
		t.Errorf("FindVersion = %s of two with this hash, want the later", v.Ref)
	}
	wantKind(t, "FindVersion in another schema", second(a.FindVersion(ctx, boxes, want[3].Hash)), fault.NotFound)
}

func testVersionNumbers(t *testing.T, a, b schema.Store) {
	ctx := bounded(t)
	wantKind(t, "AddVersion 2 before 1", second(a.AddVersion(ctx, version(orders, 2, "x"))), fault.Conflict)
	one := must[schema.Version](t)(a.AddVersion(ctx, version(orders, 1, "x")))
	wantKind(t, "AddVersion 1 again", second(b.AddVersion(ctx, version(orders, 1, "y"))), fault.Conflict)
	wantKind(t, "AddVersion 3 before 2", second(b.AddVersion(ctx, version(orders, 3, "y"))), fault.Conflict)
	one.State = schema.Deleted
	must[schema.Version](t)(a.SetState(ctx, one))
	wantKind(t, "AddVersion 1 after it was deleted", second(b.AddVersion(ctx, version(orders, 1, "x"))), fault.Conflict)
	must[schema.Version](t)(b.AddVersion(ctx, version(orders, 2, "x")))
	if v := must[schema.Version](t)(a.Version(ctx, one.Ref)); v.State != schema.Deleted || v.Text != "x" {
		t.Errorf("the tombstone is %+v", v)
	}
}

func testVersionStates(t *testing.T, a, b schema.Store) {
	ctx := bounded(t)
	v := version(orders, 1, "x")
	v.State = schema.Draft
	v = must[schema.Version](t)(a.AddVersion(ctx, v))
	changed := v
	changed.State, changed.UpdatedAt = schema.Active, stamp.Add(time.Hour)
	changed.Text, changed.Hash, changed.References = "other", "other", nil // is not what SetState is for
	got := must[schema.Version](t)(b.SetState(ctx, changed))
	want := v
	want.State, want.UpdatedAt, want.Revision = schema.Active, stamp.Add(time.Hour), got.Revision
	if diff := cmp.Diff(want, got); diff != "" || got.Revision <= v.Revision {
		t.Errorf("SetState, revision %d -> %d (-want +got):\n%s", v.Revision, got.Revision, diff)
	}
	if diff := cmp.Diff(want, must[schema.Version](t)(a.Version(ctx, v.Ref))); diff != "" {
		t.Errorf("Version (-want +got):\n%s", diff)
	}
	wantKind(t, "SetState of what has changed", second(a.SetState(ctx, v)), fault.Conflict)
	wantKind(t, "SetState of nothing", second(a.SetState(ctx, version(orders, 2, "x"))), fault.NotFound)
	got.State = schema.Deleted
	must[schema.Version](t)(a.SetState(ctx, got))
	wantKind(t, "FindVersion of a deleted one", second(b.FindVersion(ctx, orders, v.Hash)), fault.NotFound)
	must[schema.Version](t)(b.VersionByID(ctx, v.ID))
}

func testVersionRaces(t *testing.T, a, b schema.Store) {
	// Each of many adds its texts by looking and trying again; no number is given twice, and no id.
	const adders, each = 4, 5
	var wg sync.WaitGroup
	for i := range adders {
		s := a
		if i%2 == 1 {
			s = b
		}
		wg.Go(func() {
			for j := range each {
				number := 1
				for {
					_, err := s.AddVersion(bounded(t), version(orders, number, fmt.Sprintf("%d/%d", i, j)))
					if err == nil {
						break
					}
					if fault.KindOf(err) != fault.Conflict {
						t.Error(err)
						return
					}
					number++
				}
			}
		})
	}
	wg.Wait()
	all := must[schema.Page[schema.Version]](t)(a.Versions(bounded(t), orders, "", 1000)).Items
	texts, ids := map[string]bool{}, map[int]bool{}
	for i, v := range all {
		texts[v.Text], ids[v.ID] = true, true
		if v.Ref.Version != i+1 {
			t.Errorf("version %d is numbered %d", i+1, v.Ref.Version)
		}
	}
	if len(all) != adders*each || len(texts) != len(all) || len(ids) != len(all) {
		t.Errorf("%d versions, %d texts, %d ids of %d", len(all), len(texts), len(ids), adders*each)
	}
}

func testBindings(t *testing.T, a, b schema.Store) {
	ctx := bounded(t)
	const odd = "com.example/order placed*.ü"
	wantKind(t, "Binding of nothing", second(a.Binding(ctx, odd)), fault.NotFound)
	wantKind(t, "Unbind of nothing", a.Unbind(ctx, schema.Binding{EventType: odd, Revision: 3}), fault.NotFound)
	one := must[schema.Binding](t)(a.Bind(ctx, schema.Binding{EventType: odd, Name: orders}))
	if diff := cmp.Diff(one, must[schema.Binding](t)(b.Binding(ctx, odd))); diff != "" {
		t.Errorf("Binding (-bound +got):\n%s", diff)
	}
	wantKind(t, "Bind of what is bound", second(b.Bind(ctx, schema.Binding{EventType: odd, Name: boxes})), fault.Conflict)
	two := must[schema.Binding](t)(b.Bind(ctx, schema.Binding{EventType: odd, Name: boxes, Revision: one.Revision}))
	wantKind(t, "Bind over what has changed", second(a.Bind(ctx, one)), fault.Conflict)
	wantKind(t, "Unbind of what has changed", a.Unbind(ctx, one), fault.Conflict)
	three := must[schema.Binding](t)(a.Bind(ctx, schema.Binding{EventType: "a", Name: orders}))
	for _, c := range []struct {
		of   schema.Name
		want []schema.Binding
	}{{schema.Name{}, []schema.Binding{three, two}}, {orders, []schema.Binding{three}}, {schema.Name{Group: "x", Schema: "y"}, nil}} {
		p := must[schema.Page[schema.Binding]](t)(b.Bindings(ctx, c.of, "", 0))
		if diff := cmp.Diff(c.want, p.Items); diff != "" || p.Cursor != "" {
			t.Errorf("Bindings of %s, cursor %q (-want +got):\n%s", c.of, p.Cursor, diff)
		}
	}
	if err := b.Unbind(ctx, two); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "Binding after Unbind", second(a.Binding(ctx, odd)), fault.NotFound)
	must[schema.Binding](t)(a.Bind(ctx, schema.Binding{EventType: odd, Name: orders}))
}

// registryMirror is what a watcher knows.
type registryMirror struct {
	mu       sync.Mutex
	schemas  map[schema.Name]schema.Schema
	versions map[schema.Ref]schema.Version
	bindings map[string]schema.Binding
	marks    int
	changed  chan struct{}
}

func (m *registryMirror) apply(c schema.Change) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case c.CaughtUp():
		m.marks++
	case c.Schema != nil:
		m.schemas[c.Schema.Name] = *c.Schema
	case c.Version != nil:
		m.versions[c.Version.Ref] = *c.Version
	case c.Binding != nil:
		m.bindings[c.Binding.EventType] = *c.Binding
	default:
		delete(m.bindings, c.Unbound)
	}
	close(m.changed)
	m.changed = make(chan struct{})
	return nil
}

func (m *registryMirror) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.After(patience)
	for {
		m.mu.Lock()
		done, changed := ok(), m.changed
		m.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("waiting for %s in vain", what)
		}
	}
}

func watchSchemas(t *testing.T, s schema.Store) *registryMirror {
	m := &registryMirror{schemas: map[schema.Name]schema.Schema{}, versions: map[schema.Ref]schema.Version{},
		bindings: map[string]schema.Binding{}, changed: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Watch(ctx, m.apply); !errors.Is(err, context.Canceled) {
			t.Errorf("Watch = %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return m
}

func testWatchSchemas(t *testing.T, a, b schema.Store) {
	ctx := bounded(t)
	s := must[schema.Schema](t)(a.PutSchema(ctx, head(orders)))
	v := must[schema.Version](t)(a.AddVersion(ctx, version(orders, 1, "x")))
	bound := must[schema.Binding](t)(a.Bind(ctx, schema.Binding{EventType: "t", Name: orders}))
	m := watchSchemas(t, b)
	m.until(t, "the mark", func() bool { return m.marks == 1 })
	if diff := cmp.Diff([]any{s, v, bound}, []any{m.schemas[orders], m.versions[v.Ref], m.bindings["t"]}); diff != "" {
		t.Errorf("what there is (-want +got):\n%s", diff)
	}
	s.Description = "new"
	s = must[schema.Schema](t)(a.PutSchema(ctx, s))
	v.State = schema.Deprecated
	v = must[schema.Version](t)(a.SetState(ctx, v))
	two := must[schema.Version](t)(a.AddVersion(ctx, version(orders, 2, "y")))
	if err := a.Unbind(ctx, bound); err != nil {
		t.Fatal(err)
	}
	m.until(t, "the last change", func() bool { return len(m.bindings) == 0 })
	if diff := cmp.Diff([]any{s, v, two}, []any{m.schemas[orders], m.versions[v.Ref], m.versions[two.Ref]}); diff != "" {
		t.Errorf("after changes (-want +got):\n%s", diff)
	}
	stop := errors.New("enough")
	if err := a.Watch(ctx, func(schema.Change) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("Watch whose function fails = %v", err)
	}
}

func schemaCalls(ctx context.Context, s schema.Store) map[string]error {
	return map[string]error{
		"Schema": second(s.Schema(ctx, orders)), "PutSchema": second(s.PutSchema(ctx, head(orders))), "Schemas": second(s.Schemas(ctx, schema.Query{})),
		"Version": second(s.Version(ctx, schema.Ref{Name: orders, Version: 1})), "VersionByID": second(s.VersionByID(ctx, 1)),
		"AddVersion": second(s.AddVersion(ctx, version(orders, 1, "x"))), "SetState": second(s.SetState(ctx, version(orders, 1, "x"))),
		"Versions": second(s.Versions(ctx, orders, "", 0)), "FindVersion": second(s.FindVersion(ctx, orders, "x")),
		"Binding": second(s.Binding(ctx, "t")), "Bind": second(s.Bind(ctx, schema.Binding{EventType: "t", Name: orders})),
		"Unbind": s.Unbind(ctx, schema.Binding{EventType: "t", Revision: 1}), "Bindings": second(s.Bindings(ctx, schema.Name{}, "", 0)),
		"Watch": s.Watch(ctx, func(schema.Change) error { return nil }),
	}
}

func testCancelledSchemas(t *testing.T, a, b schema.Store) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for what, err := range schemaCalls(ctx, a) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s under a cancelled context = %v", what, err)
		}
	}
	wantKind(t, "Version after a cancelled AddVersion", second(b.Version(bounded(t), schema.Ref{Name: orders, Version: 1})), fault.NotFound)
}

func testCloseSchemas(t *testing.T, a, _ schema.Store) {
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	for what, err := range schemaCalls(bounded(t), a) {
		wantKind(t, what+" after Close", err, fault.Unavailable)
	}
	if err := a.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}
