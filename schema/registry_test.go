// SPDX-License-Identifier: Apache-2.0

package schema_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store/memory"
	"github.com/rialto-bridge/rialto/schema"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// registry starts a registry on a store in memory and waits until it has caught up.
func registry(t testing.TB) *schema.Registry {
	t.Helper()
	s := memory.NewSchemas()
	r := schema.NewRegistry(schema.RegistryOptions{Store: s})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { r.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		s.Close()
	})
	<-r.Ready()
	return r
}

var order = schema.Name{Group: "shop", Schema: "Order"}

func versionOf(n schema.Name, number int) schema.Ref { return schema.Ref{Name: n, Version: number} }

func register(t testing.TB, r *schema.Registry, reg schema.Registration) schema.Registered {
	t.Helper()
	out, err := r.Register(t.Context(), reg)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

const (
	orderOne   = `{"type":"object","properties":{"id":{"type":"string"}},"required":["id"]}`
	orderTwo   = `{"type":"object","properties":{"id":{"type":"string"},"note":{"type":"string"}},"required":["id"]}`
	orderWrong = `{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}`
)

func wantKind(t *testing.T, what string, err error, k fault.Kind) {
	t.Helper()
	if err == nil || fault.KindOf(err) != k {
		t.Errorf("%s: %v, want %s", what, err, k)
	}
}

func second[T any](_ T, err error) error { return err }

func TestRegister(t *testing.T) {
	r, ctx := registry(t), t.Context()
	one := register(t, r, schema.Registration{Name: order, Text: orderOne})
	if v := one.Version; !one.Created || v.Ref != versionOf(order, 1) || v.State != schema.Active || v.ID < 1 || v.Text != orderOne || v.Dialect != "2020-12" {
		t.Errorf("the first version: %+v", one)
	}
	again := register(t, r, schema.Registration{Name: order, Text: "{ \"required\" : [\"id\"], \"type\":\"object\",\n\"properties\":{\"id\":{\"type\":\"string\"}}}"})
	if again.Created || again.Version.Ref != one.Version.Ref {
		t.Errorf("the same content again: %+v", again)
	}
	two := register(t, r, schema.Registration{Name: order, Text: orderTwo})
	if two.Version.Ref.Version != 2 || two.Version.ID == one.Version.ID || two.Verdict.Outcome != schema.Compatible {
		t.Errorf("the second version: %+v", two)
	}
	_, err := r.Register(ctx, schema.Registration{Name: order, Text: orderWrong})
	var bad *schema.IncompatibleError
	if !errors.As(err, &bad) || bad.Verdict.Findings[0].Version != 2 || bad.Verdict.Findings[0].Witness == nil {
		t.Errorf("what does not fit: %v", err)
	}
	wantKind(t, "what does not fit", err, fault.Invalid)
	draft := register(t, r, schema.Registration{Name: order, Text: orderWrong, State: schema.Draft})
	if draft.Version.Ref.Version != 3 || draft.Verdict.Outcome != schema.Incompatible {
		t.Errorf("a draft is stored with its verdict: %+v", draft)
	}
	_, err = r.SetState(ctx, draft.Version.Ref, schema.Active, 0)
	if !errors.As(err, &bad) {
		t.Errorf("a draft that does not fit becomes active: %v", err)
	}
	if _, err := r.Register(ctx, schema.Registration{Name: order, Text: orderWrong}); !errors.As(err, &bad) {
		t.Errorf("what does not fit, and is there as a draft: %v", err)
	}
	for what, reg := range map[string]schema.Registration{
		"a wrong group":  {Name: schema.Name{Group: "Shop", Schema: "x"}, Text: `{}`},
		"a wrong name":   {Name: schema.Name{Group: "shop", Schema: "a b"}, Text: `{}`},
		"a wrong format": {Name: schema.Name{Group: "shop", Schema: "x"}, Text: `{}`, Format: "xsd"},
		"a wrong state":  {Name: order, Text: `{}`, State: schema.Deleted},
		"a wrong text":   {Name: order, Text: `{"type":7}`},
		"no such ref":    {Name: order, Text: `{"$ref":"a"}`, References: []schema.Reference{ref("a", "shop", "A", 0)}},
	} {
		wantKind(t, what, second(r.Register(ctx, reg)), fault.Invalid)
	}
	wantKind(t, "another format", second(r.Register(ctx, schema.Registration{Name: order, Text: `"int"`, Format: schema.Avro})), fault.Conflict)
	wantKind(t, "no such version", second(r.Register(ctx, schema.Registration{Name: order, Text: `{"$ref":"a"}`, References: []schema.Reference{ref("a", "shop", "A", 1)}})), fault.Invalid)
}

func TestRegisterAtOnce(t *testing.T) {
	r := registry(t)
	if _, err := r.Configure(t.Context(), schema.Schema{Name: order, Compatibility: schema.None}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			for j := range 3 {
				if _, err := r.Register(t.Context(), schema.Registration{Name: order, Text: fmt.Sprintf(`{"const":%d}`, (i+j)%4)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	p, err := r.Store().Versions(t.Context(), order, "", 0)
	if err != nil || len(p.Items) != 4 {
		t.Errorf("%d versions of four texts, %v", len(p.Items), err)
	}
}

func TestModes(t *testing.T) {
	// Of three versions the first had a member that the second has given up and the third has with another type.
	const first, middle, last = `{"properties":{"a":{"type":"string"}}}`, `{"properties":{"b":{}}}`, `{"properties":{"a":{"type":"integer"},"b":{}}}`
	for _, c := range []struct {
		mode schema.Mode
		ok   bool
	}{{schema.None, true}, {schema.Backward, true}, {schema.BackwardTransitive, false}, {schema.Forward, true}, {schema.ForwardTransitive, false}, {schema.Full, true}, {schema.FullTransitive, false}} {
		r := registry(t)
		if _, err := r.Configure(t.Context(), schema.Schema{Name: order, Compatibility: c.mode}); err != nil {
			t.Fatal(err)
		}
		register(t, r, schema.Registration{Name: order, Text: first})
		register(t, r, schema.Registration{Name: order, Text: middle})
		verdict, err := r.Check(t.Context(), schema.Registration{Name: order, Text: last}, schema.CheckOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if ok := verdict.Outcome == schema.Compatible; ok != c.ok {
			t.Errorf("%s: %+v", c.mode, verdict)
		}
		verdict, err = r.Check(t.Context(), schema.Registration{Name: order, Text: last}, schema.CheckOptions{Version: 1, Compatibility: schema.Full})
		if err != nil || verdict.Outcome != schema.Incompatible || verdict.Findings[0].Version != 1 {
			t.Errorf("%s, against version 1: %+v, %v", c.mode, verdict, err)
		}
	}
}

func TestAllowUnknown(t *testing.T) {
	r := registry(t)
	const older, newer = `{"properties":{"a":{"type":"string"}}}`, `{"properties":{"a":{"type":"string"}},"if":{"required":["a"]},"then":{"properties":{"a":{"maxLength":9}}}}`
	register(t, r, schema.Registration{Name: order, Text: older})
	_, err := r.Register(t.Context(), schema.Registration{Name: order, Text: newer})
	if err == nil || !strings.Contains(err.Error(), "cannot be shown") || !strings.Contains(err.Error(), "C5") {
		t.Fatalf("what is not known is refused: %v", err)
	}
	head, err := r.Store().Schema(t.Context(), order)
	if err != nil {
		t.Fatal(err)
	}
	head.AllowUnknown = true
	if _, err := r.Configure(t.Context(), head); err != nil {
		t.Fatal(err)
	}
	if out := register(t, r, schema.Registration{Name: order, Text: newer}); out.Verdict.Outcome != schema.Unknown {
		t.Errorf("verdict %+v", out.Verdict)
	}
}

func TestStates(t *testing.T) {
	r, ctx := registry(t), t.Context()
	one := register(t, r, schema.Registration{Name: order, Text: orderOne}).Version
	user := register(t, r, schema.Registration{Name: schema.Name{Group: "shop", Schema: "Basket"}, Text: `{"items":{"$ref":"/v1/schemas/shop/Order/versions/1"}}`}).Version
	wantKind(t, "delete of what is referred to", second(r.SetState(ctx, one.Ref, schema.Deleted, 0)), fault.Conflict)
	wantKind(t, "delete of a schema that is referred to", r.Delete(ctx, order, 0), fault.Conflict)
	if users, err := r.ReferencedBy(ctx, one.Ref); err != nil || len(users) != 1 || users[0] != user.Ref {
		t.Errorf("referred to by %v, %v", users, err)
	}
	wantKind(t, "back to draft", second(r.SetState(ctx, one.Ref, schema.Draft, 0)), fault.Conflict)
	wantKind(t, "an unknown state", second(r.SetState(ctx, one.Ref, "gone", 0)), fault.Invalid)
	wantKind(t, "over another revision", second(r.SetState(ctx, one.Ref, schema.Disabled, one.Revision+100)), fault.Conflict)
	off, err := r.SetState(ctx, one.Ref, schema.Disabled, one.Revision)
	if err != nil || off.State != schema.Disabled {
		t.Fatalf("%+v, %v", off, err)
	}
	wantKind(t, "a reference to what is disabled", second(r.Register(ctx, schema.Registration{Name: schema.Name{Group: "shop", Schema: "Other"}, Text: `{"$ref":"/v1/schemas/shop/Order/versions/1"}`})), fault.Invalid)
	if _, err := r.SetState(ctx, user.Ref, schema.Deleted, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := r.SetState(ctx, one.Ref, schema.Deleted, 0); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "back from deleted", second(r.SetState(ctx, one.Ref, schema.Active, 0)), fault.Conflict)
	// The same content is a new version now, with a number of its own.
	if v := register(t, r, schema.Registration{Name: order, Text: orderOne}).Version; v.Ref.Version != 2 {
		t.Errorf("after a deletion the next version is %d", v.Ref.Version)
	}
	if err := r.Delete(ctx, order, 0); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "a second delete", r.Delete(ctx, order, 0), fault.NotFound)
	if v := register(t, r, schema.Registration{Name: order, Text: orderOne}).Version; v.Ref.Version != 3 {
		t.Errorf("after the schema was deleted the next version is %d", v.Ref.Version)
	}
}

func TestConfigure(t *testing.T) {
	r, ctx := registry(t), t.Context()
	s, err := r.Configure(ctx, schema.Schema{Name: order, Labels: map[string]string{"team": "shop"}})
	if err != nil || s.Format != schema.JSONSchema || s.Compatibility != schema.Backward || s.Policy != schema.Lenient {
		t.Fatalf("defaults: %+v, %v", s, err)
	}
	if same, err := r.Configure(ctx, s); err != nil || same.Revision != s.Revision {
		t.Errorf("the same again: revision %d -> %d, %v", s.Revision, same.Revision, err)
	}
	wantKind(t, "made twice", second(r.Configure(ctx, schema.Schema{Name: order, Description: "x"})), fault.Conflict)
	register(t, r, schema.Registration{Name: order, Text: orderOne})
	s.Format = schema.Avro
	wantKind(t, "another format", second(r.Configure(ctx, s)), fault.Conflict)
	for _, bad := range []schema.Schema{{Name: order, Compatibility: "sideways"}, {Name: order, Policy: "mild"}, {Name: order, Format: "xsd"}, {Name: order, Description: strings.Repeat("x", 5000)}} {
		wantKind(t, fmt.Sprintf("%+v", bad), second(r.Configure(ctx, bad)), fault.Invalid)
	}
}

// heard waits until the registry validates an event as it should.
func heard(t *testing.T, r *schema.Registry, ev *event.Event, ok func(schema.Result, error) bool) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		res, err := r.Validate(ev)
		if ok(res, err) {
			return
		}
		select {
		case <-limit:
			t.Fatalf("Validate = %+v, %v", res, err)
		case <-time.After(time.Millisecond):
		}
	}
}

func TestValidateEvents(t *testing.T) {
	r, ctx := registry(t), t.Context()
	one := register(t, r, schema.Registration{Name: order, Text: orderOne}).Version
	if _, err := r.Bind(ctx, "order.placed", order); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "bind to nothing", second(r.Bind(ctx, "x", schema.Name{Group: "shop", Schema: "None"})), fault.NotFound)
	wantKind(t, "bind nothing", second(r.Bind(ctx, "", order)), fault.Invalid)
	wantKind(t, "delete of what is bound", r.Delete(ctx, order, 0), fault.Conflict)
	ev := func(typ, named, data string) *event.Event {
		return &event.Event{ID: "1", Source: "/s", Type: typ, DataSchema: named, DataContentType: "application/json", Data: []byte(data)}
	}
	heard(t, r, ev("order.placed", "", `{"id":7}`), func(res schema.Result, err error) bool { return err != nil && res.Schema == one.Ref })
	other := register(t, r, schema.Registration{Name: schema.Name{Group: "shop", Schema: "Any"}, Text: `{}`}).Version
	register(t, r, schema.Registration{Name: schema.Name{Group: "shop", Schema: "Seen"}, Text: `{"type":"null"}`, State: schema.Discovered})
	const host = "https://bridge.example.com"
	heard(t, r, ev("free", host+"/v1/schemas/shop/Any/versions/1", `{}`), func(res schema.Result, err error) bool { return err == nil && res.Schema == other.Ref })
	heard(t, r, ev("free", host+"/v1/schemas/shop/Seen/versions/1", `{}`), func(res schema.Result, err error) bool { return err == nil && res.Schema.Version == 0 })

	res, err := r.Validate(ev("order.placed", "", `{"id":"a"}`))
	if err != nil || !res.Bound || res.Schema != one.Ref {
		t.Errorf("a good event: %+v, %v", res, err)
	}
	for _, c := range []struct {
		name, pointer string
		ev            *event.Event
	}{
		{"a wrong member", "/data/id", ev("order.placed", "", `{"id":7}`)},
		{"no JSON", "/data", ev("order.placed", "", `{`)},
		{"no data", "/data", &event.Event{Type: "order.placed"}},
		{"another type of content", "/datacontenttype", &event.Event{Type: "order.placed", DataContentType: "text/plain", Data: []byte("x")}},
		{"another schema", "/dataschema", ev("order.placed", "/v1/schemas/shop/Any/versions/1", `{"id":7}`)},
		{"no such version", "/dataschema", ev("order.placed", "/v1/schemas/shop/Order/versions/9", `{"id":"a"}`)},
		{"no such version, not bound", "/dataschema", ev("free", "/v1/schemas/shop/Order/versions/9", `{"id":"a"}`)},
	} {
		_, err := r.Validate(c.ev)
		var f *fault.Error
		if !errors.As(err, &f) || f.Kind != fault.Invalid || f.Details[0].Pointer != c.pointer {
			t.Errorf("%s: %v, want %s", c.name, err, c.pointer)
		}
	}
	for name, free := range map[string]*event.Event{"not bound": ev("free", "", `{`), "another dataschema": ev("free", "https://example.com/s.json", `{`)} {
		if res, err := r.Validate(free); err != nil || res.Schema.Version != 0 {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
	}
	// The latest active version counts; one that is named may be an older one, unless it is disabled.
	two := register(t, r, schema.Registration{Name: order, Text: `{"type":"object","properties":{"id":{"type":["string","integer"]}},"required":["id"]}`}).Version
	heard(t, r, ev("order.placed", "", `{"id":7}`), func(res schema.Result, err error) bool { return err == nil && res.Schema == two.Ref })
	if _, err := r.Validate(ev("order.placed", "/v1/schemas/shop/Order/versions/1", `{"id":7}`)); err == nil {
		t.Error("an event that names version 1 is not held against it")
	}
	if _, err := r.SetState(ctx, one.Ref, schema.Disabled, 0); err != nil {
		t.Fatal(err)
	}
	heard(t, r, ev("order.placed", "/v1/schemas/shop/Order/versions/1", `{"id":"a"}`), func(_ schema.Result, err error) bool {
		return err != nil && strings.Contains(err.Error(), "disabled")
	})
	wantKind(t, "unbind from another", r.Unbind(ctx, "order.placed", other.Ref.Name), fault.NotFound)
	if err := r.Unbind(ctx, "order.placed", order); err != nil {
		t.Fatal(err)
	}
	heard(t, r, ev("order.placed", "", `{`), func(res schema.Result, err error) bool { return err == nil && !res.Bound })
}

// A registry forgets what it has compiled when there is too much, and compiles it again.
func TestCompiledVersionsAreBounded(t *testing.T) {
	s := memory.NewSchemas()
	defer s.Close()
	r := schema.NewRegistry(schema.RegistryOptions{Store: s, Compiled: 3})
	for i := range 10 {
		register(t, r, schema.Registration{Name: schema.Name{Group: "g", Schema: fmt.Sprintf("s%d", i)}, Text: fmt.Sprintf(`{"const":%d}`, i)})
	}
	for range 2 {
		for i := range 10 {
			c, err := r.Compiled(t.Context(), versionOf(schema.Name{Group: "g", Schema: fmt.Sprintf("s%d", i)}, 1))
			if err != nil || c.Validate(decode(t, fmt.Sprint(i))) != nil || c.Validate(decode(t, "99")) == nil {
				t.Errorf("version %d: %v", i, err)
			}
		}
	}
	wantKind(t, "no such version", second(r.Compiled(t.Context(), versionOf(order, 1))), fault.NotFound)
}
