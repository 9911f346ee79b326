// SPDX-License-Identifier: Apache-2.0

package schema_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/internal/store/memory"
	"github.com/rialto-bridge/rialto/schema"
)

// discoveries are nodes that discover into one registry, in a bubble of time.
type discoveries struct {
	*testing.T
	registry *schema.Registry
	nodes    []*schema.Discovery
	stop     func()
}

func discover(t *testing.T, nodes int) *discoveries {
	return discoverInto(t, memory.NewSchemas(), nodes)
}

func discoverInto(t *testing.T, schemas schema.Store, nodes int) *discoveries {
	d := &discoveries{T: t, registry: schema.NewRegistry(schema.RegistryOptions{Store: schemas})}
	summaries := store.Records{Store: memory.New(nil)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{}, nodes)
	for range nodes {
		n := schema.NewDiscovery(schema.DiscoveryOptions{Registry: d.registry, Summaries: summaries})
		d.nodes = append(d.nodes, n)
		go func() {
			n.Run(ctx)
			done <- struct{}{}
		}()
	}
	d.stop = func() {
		cancel()
		for range nodes {
			<-done
		}
	}
	return d
}

// see shows events of a type to a node.
func (d *discoveries) see(node, times int, eventType, data string) {
	for range times {
		d.nodes[node].Observe("default", &event.Event{Type: eventType, Data: []byte(data)})
		synctest.Wait()
	}
}

// versions are the texts of what was discovered of a type.
func (d *discoveries) versions(name string) []string {
	d.Helper()
	p, err := d.registry.Store().Versions(context.Background(), schema.Name{Group: "discovered", Schema: name}, "", 0)
	if err != nil {
		d.Fatal(err)
	}
	var out []string
	for _, v := range p.Items {
		if v.State != schema.Discovered {
			d.Errorf("version %s is %s", v.Ref, v.State)
		}
		out = append(out, strings.Join(strings.Fields(v.Text), ""))
	}
	return out
}

func TestDiscovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := discover(t, 1)
		defer d.stop()
		d.see(0, 1, "order.placed", `{"n":1}`)
		time.Sleep(4 * time.Minute)
		if got := d.versions("order.placed"); got != nil {
			t.Fatalf("a version within the quiet period: %v", got)
		}
		d.see(0, 1, "order.placed", `{"n":1.5}`)
		time.Sleep(210 * time.Second)
		got := d.versions("order.placed")
		if len(got) != 1 || !strings.Contains(got[0], `"n":{"type":"number"}`) {
			t.Fatalf("versions %v", got)
		}
		b, err := d.registry.Store().Binding(context.Background(), "order.placed")
		if err != nil || b.Name.String() != "discovered/order.placed" {
			t.Errorf("bound to %v, %v", b.Name, err)
		}
		if _, err := d.registry.Validate(&event.Event{Type: "order.placed", Data: []byte(`"other"`)}); err != nil {
			t.Errorf("a discovered version is enforced: %v", err)
		}
		// The same again is no new version; something else is one, and only one in a quiet period.
		d.see(0, 3, "order.placed", `{"n":2}`)
		time.Sleep(10 * time.Minute)
		d.see(0, 1, "order.placed", `{"n":2,"a":"x y"}`)
		time.Sleep(time.Minute)
		d.see(0, 1, "order.placed", `{"n":2,"b":"x y"}`)
		time.Sleep(time.Minute)
		if got := d.versions("order.placed"); len(got) != 2 {
			t.Fatalf("%d versions, want 2", len(got))
		}
		d.see(0, 1, "order.placed", `{"n":2}`)
		time.Sleep(5 * time.Minute)
		d.see(0, 1, "order.placed", `{"n":2}`)
		time.Sleep(time.Minute)
		if got := d.versions("order.placed"); len(got) != 3 || !strings.Contains(got[2], `"b"`) {
			t.Fatalf("%d versions, want 3", len(got))
		}
		// Promoted, it is enforced.
		if _, err := d.registry.SetState(context.Background(), schema.Ref{Name: b.Name, Version: 3}, schema.Active, 0); err != nil {
			t.Fatal(err)
		}
		_, err = d.registry.Validate(&event.Event{Type: "order.placed", Data: []byte(`{"n":"one"}`)})
		var f *fault.Error
		if !errors.As(err, &f) || f.Details[0].Pointer != "/data/n" {
			t.Errorf("the active version: %v", err)
		}
	})
}

// Ten events on each of two nodes are twenty: enough to say what is always there.
func TestDiscoveryMergesWhatNodesSee(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := discover(t, 2)
		for node := range 2 {
			d.see(node, 10, "order", `{"n":1}`)
		}
		time.Sleep(4 * time.Minute) // within the quiet period, so both have merged what they saw
		d.see(0, 1, "order", `{"n":1}`)
		time.Sleep(150 * time.Second)
		if got := d.versions("order"); len(got) != 1 || !strings.Contains(got[0], `"required":["n"]`) {
			t.Errorf("versions %v", got)
		}
		d.stop()
	})
}

// What was seen when a node stops is not lost.
func TestDiscoveryKeepsWhatItHasSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := discover(t, 1)
		summaries := store.Records{Store: memory.New(nil)}
		run := func(times int) {
			n := schema.NewDiscovery(schema.DiscoveryOptions{Registry: d.registry, Summaries: summaries})
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() {
				defer close(done)
				n.Run(ctx)
			}()
			d.nodes = append(d.nodes, n)
			d.see(len(d.nodes)-1, times, "order", `{"n":1}`)
			cancel()
			<-done
		}
		run(19)
		time.Sleep(6 * time.Minute)
		run(1)
		if got := d.versions("order"); len(got) != 1 || !strings.Contains(got[0], `"required":["n"]`) {
			t.Errorf("versions %v", got)
		}
		d.stop()
	})
}

// away is a store that does not take a version, or a binding, the first time.
type away struct {
	schema.Store
	version, binding bool // was tried
}

func (a *away) AddVersion(ctx context.Context, v schema.Version) (schema.Version, error) {
	if !a.version {
		a.version = true
		return v, fault.New(fault.Unavailable, "the store is away")
	}
	return a.Store.AddVersion(ctx, v)
}

func (a *away) Bind(ctx context.Context, b schema.Binding) (schema.Binding, error) {
	if !a.binding {
		a.binding = true
		return b, fault.New(fault.Unavailable, "the store is away")
	}
	return a.Store.Bind(ctx, b)
}

// A version that cannot be stored, or not be bound, is made when the store is back, though all events look as before.
func TestDiscoveryTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := discoverInto(t, &away{Store: memory.NewSchemas()}, 1)
		defer d.stop()
		d.see(0, 3, "order", `{"n":1}`)
		time.Sleep(20 * time.Minute)
		if got := d.versions("order"); len(got) != 1 {
			t.Errorf("versions %v", got)
		}
		if b, err := d.registry.Store().Binding(context.Background(), "order"); err != nil || b.Name.String() != "discovered/order" {
			t.Errorf("bound to %v, %v", b.Name, err)
		}
	})
}

// What has no schema is left alone, and types have names that schemas can have.
func TestDiscoveryNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := discover(t, 1)
		defer d.stop()
		d.nodes[0].Observe("default", &event.Event{Type: "text", DataContentType: "text/plain", Data: []byte(`1`)})
		d.nodes[0].Observe("default", &event.Event{Type: "nothing"})
		d.see(0, 1, "broken", `{`)
		d.see(0, 1, "urn:a/b ü", `1`)
		time.Sleep(6 * time.Minute)
		d.see(0, 1, "urn:a/b ü", `1`)
		time.Sleep(150 * time.Second)
		p, err := d.registry.Store().Schemas(context.Background(), schema.Query{})
		if err != nil || len(p.Items) != 1 || !strings.HasPrefix(p.Items[0].Name.Schema, "xurn-a-b") {
			t.Errorf("schemas %+v, %v", p.Items, err)
		}
	})
}

// A type that comes often costs no more than its sample.
func TestDiscoveryTakesSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := discover(t, 1)
		defer d.stop()
		d.see(0, 20, "order", `{"n":1}`)
		d.see(0, 20, "order", `{"m":1}`) // within the same second
		time.Sleep(6 * time.Minute)
		d.see(0, 1, "order", `{"n":1}`)
		time.Sleep(150 * time.Second)
		if got := d.versions("order"); len(got) != 1 || strings.Contains(got[0], `"m"`) {
			t.Errorf("versions %v", got)
		}
	})
}
