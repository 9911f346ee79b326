// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store/memory"
	"github.com/rialto-bridge/rialto/schema"
)

// schemas starts a registry in which each text is the schema of a type, the first that of "order". It stops with the test.
func schemas(t testing.TB, texts ...string) *schema.Registry {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := memory.NewSchemas()
	for i, text := range texts {
		n := schema.Name{Group: "shop", Schema: fmt.Sprint("s", i)}
		if _, err := s.AddVersion(ctx, schema.Version{Ref: schema.Ref{Name: n, Version: 1}, State: schema.Active, Format: schema.JSONSchema, Text: text, Hash: "x"}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Bind(ctx, schema.Binding{EventType: typeOf(i), Name: n}); err != nil {
			t.Fatal(err)
		}
	}
	e := schema.NewRegistry(schema.RegistryOptions{Store: s})
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	<-e.Ready()
	return e
}

func typeOf(i int) string {
	if i == 0 {
		return "order"
	}
	return fmt.Sprint("order", i)
}

// bus sets a bus.
func (f *fixture) bus(doc string) {
	f.t.Helper()
	d, err := bridge.ParseBus([]byte(doc))
	f.must(err)
	f.must(f.SetBus(context.Background(), d))
	f.must(f.SetRules(d.Name, f.rev, nil))
}

// order is an event of the type that has a schema.
func order(id, data string) *event.Record {
	return &event.Record{Event: event.Event{ID: id, Source: "/test", Type: "order", Data: []byte(data)}}
}

const orderNeedsN = `{"required":["n"],"properties":{"n":{"type":"integer"}}}`

// policyFixture is a bridge whose bus default has a policy, and a bus for quarantine.
func policyFixture(t *testing.T, policy string) (*fixture, *prometheus.Registry) {
	f := newFixture(t)
	reg := prometheus.NewRegistry()
	f.opts.Registerer = reg
	f.opts.Schemas = schemas(t, orderNeedsN)
	f.start()
	f.bus(`{"name":"quarantine"}`)
	f.bus(`{"name":"default",` + policy + `}`)
	return f, reg
}

// checks are the counts of what was found about the events of a bus.
func checks(t *testing.T, reg *prometheus.Registry, bus string) string {
	t.Helper()
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, family := range all {
		if family.GetName() != "rialto_schema_checks_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			if labels := m.GetLabel(); labels[0].GetValue() == bus { // sorted: bus, result
				out = append(out, fmt.Sprint(labels[1].GetValue(), "=", m.GetCounter().GetValue()))
			}
		}
	}
	return strings.Join(out, " ")
}

func TestSchemaPolicyReject(t *testing.T) {
	f, reg := policyFixture(t, `"schemaPolicy":"reject"`)
	defer f.stop(time.Second)
	ctx := context.Background()
	_, err := f.Ingest(ctx, "default", []*event.Record{order("a", `{"n":"x"}`)})
	var told *fault.Error
	if !errors.As(err, &told) || told.Kind != fault.Unfit || len(told.Details) != 1 || told.Details[0].Pointer != "/data/n" {
		t.Fatalf("Ingest = %v", err)
	}
	// All of a batch or nothing, and the pointers say which.
	_, err = f.Ingest(ctx, "default", []*event.Record{order("b", `{"n":1}`), order("c", `{}`), order("d", `[`)})
	if !errors.As(err, &told) || told.Kind != fault.Unfit || len(told.Details) != 2 || told.Details[0].Pointer != "/1/data" || told.Details[1].Pointer != "/2/data" {
		t.Fatalf("Ingest of a batch = %v", err)
	}
	got, err := f.Ingest(ctx, "default", []*event.Record{order("b", `{"n":1}`), {Event: event.Event{ID: "e", Source: "/test", Type: "other", Data: []byte("x")}}})
	if err != nil || got[0].Pos.Seq != 1 || got[1].Pos.Seq != 2 {
		t.Fatalf("Ingest = %+v, %v", got, err)
	}
	if _, err := f.Find(ctx, "default", "a", ""); fault.KindOf(err) != fault.NotFound {
		t.Errorf("the refused event: %v", err)
	}
	if l := f.balanced(); l.Events.Accepted != 2 {
		t.Errorf("account %+v", l.Events)
	}
	if got, want := checks(t, reg, "default"), "failed=0 fits=2 none=1 violates=3"; got != want {
		t.Errorf("counted %s, want %s", got, want)
	}
}

func TestSchemaPolicyQuarantine(t *testing.T) {
	f, _ := policyFixture(t, `"schemaPolicy":"quarantine"`)
	defer f.stop(time.Second)
	ctx := context.Background()
	got, err := f.Ingest(ctx, "default", []*event.Record{order("a", `{"n":1}`), order("b", `{"n":"x"}`), order("c", `{}`)})
	if err != nil || got[0].Pos.String() != "EV_default:1" || got[1].Pos.String() != "EV_quarantine:1" || got[2].Pos.String() != "EV_quarantine:2" {
		t.Fatalf("Ingest = %+v, %v", got, err)
	}
	found, err := f.Find(ctx, "quarantine", "b", "")
	f.must(err)
	why, _ := found.Event.Extension("schemaviolation")
	from, _ := found.Event.Extension("quarantinedfrom")
	if why != "/data/n must be integer, and is string" || from != "default" || string(found.Event.Data) != `{"n":"x"}` {
		t.Errorf("in quarantine: %+v", found.Event)
	}
	for _, c := range []struct {
		id, source string
		want       bool
	}{{"a", "/test", true}, {"b", "/test", true}, {"a", "/other", false}, {"z", "/test", false}} {
		if got, err := f.Stored(ctx, "default", c.source, c.id); err != nil || got != c.want {
			t.Errorf("Stored(%s, %s) = %v, %v", c.source, c.id, got, err)
		}
	}
	if _, err := f.Stored(ctx, "nowhere", "/test", "a"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("Stored of a bus that is not there: %v", err)
	}
	if l := f.balanced(); l.Events.Accepted != 1 {
		t.Errorf("account %+v", l.Events)
	}
	// Without a bus to go to the event is not stored at all, and the producer told.
	f.must(f.RemoveBus("quarantine"))
	if _, err := f.Ingest(ctx, "default", []*event.Record{order("d", `{}`)}); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("without a quarantine: %v", err)
	}
}

func TestSchemaPolicyWarn(t *testing.T) {
	f, _ := policyFixture(t, `"schemaPolicy":"warn"`)
	defer f.stop(time.Second)
	ctx := context.Background()
	shared := []event.Attribute{{Name: "a", Value: "x"}, {Name: "z", Value: true}}
	rec := order("a", `{}`)
	rec.Event.Extensions = shared
	got, err := f.Ingest(ctx, "default", []*event.Record{rec})
	if err != nil || got[0].Pos.String() != "EV_default:1" {
		t.Fatalf("Ingest = %+v, %v", got, err)
	}
	found, err := f.Find(ctx, "default", "a", "")
	f.must(err)
	if why, _ := found.Event.Extension("schemaviolation"); why != `/data lacks "n"` {
		t.Errorf("the mark: %v", why)
	}
	if ext := found.Event.Extensions; len(ext) != 3 || ext[0].Name != "a" || ext[2].Name != "z" || len(shared) != 2 || shared[1].Name != "z" {
		t.Errorf("extensions %v of %v", ext, shared)
	}
	if f.send("order", "b"); len(f.journey("b", bridge.StateUnmatched).Event.Extensions) != 0 {
		t.Error("an event that fits has a mark")
	}
}

// A sample of one in four is exactly that.
func TestSchemaPolicyWarnSample(t *testing.T) {
	f, reg := policyFixture(t, `"schemaPolicy":"warn","schemaSample":0.25`)
	defer f.stop(time.Second)
	for _, id := range ids("e", 40) {
		_, err := f.Ingest(context.Background(), "default", []*event.Record{order(id, `{}`)})
		f.must(err)
	}
	if got, want := checks(t, reg, "default"), "failed=0 fits=0 none=0 violates=10"; got != want {
		t.Errorf("counted %s, want %s", got, want)
	}
}

// When nobody can say whether an event fits, it is refused where that matters, and taken where it does not.
func TestSchemaPolicyWithoutSchemas(t *testing.T) {
	f := newFixture(t)
	f.opts.Schemas = schema.NewRegistry(schema.RegistryOptions{Store: memory.NewSchemas()}) // which nobody runs
	f.start()
	defer f.stop(time.Second)
	f.bus(`{"name":"quarantine"}`)
	for policy, want := range map[string]fault.Kind{"warn": fault.Internal, "quarantine": fault.Unavailable, "reject": fault.Unavailable} {
		f.bus(`{"name":"default","schemaPolicy":"` + policy + `"}`)
		_, err := f.Ingest(context.Background(), "default", []*event.Record{order(policy, `{}`)})
		if fault.KindOf(err) != want || (err == nil) != (policy == "warn") {
			t.Errorf("%s: %v", policy, err)
		}
	}
}

// The reasons that become an attribute are bounded and printable, whatever members are called.
func TestSchemaViolationIsAnAttribute(t *testing.T) {
	f := newFixture(t)
	f.opts.Schemas = schemas(t, `{"additionalProperties":{"type":"string"}}`)
	f.start()
	defer f.stop(time.Second)
	f.bus(`{"name":"default","schemaPolicy":"warn"}`)
	members := make([]string, 60)
	for i := range members {
		members[i] = fmt.Sprintf(`"%d\u0000\n%s":%d`, i, strings.Repeat("ü", 40), i)
	}
	_, err := f.Ingest(context.Background(), "default", []*event.Record{order("a", "{"+strings.Join(members, ",")+"}")})
	f.must(err)
	found, err := f.Find(context.Background(), "default", "a", "")
	f.must(err)
	why, _ := found.Event.Extension("schemaviolation")
	if s, ok := why.(string); !ok || len(s) > 1024 || len(s) < 900 || strings.ContainsAny(s, "\x00\n") || !strings.HasSuffix(s, "...") {
		t.Errorf("%d bytes: %q", len(s), why)
	}
}
