// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/mqttgw/sparkplug"
	"github.com/rialto-bridge/rialto/targets/function"
	"github.com/rialto-bridge/rialto/targets/region"
	"github.com/rialto-bridge/rialto/web/api"
)

// instanceFile is in the data directory: the name of this bridge among those that it is linked with. A directory that is copied
// to begin another bridge with must not take it along.
const instanceFile = "instance"

// openInstance reads the name of this bridge, which the first start makes.
func (a *App) openInstance() error {
	file := filepath.Join(a.o.Data, instanceFile)
	b, err := os.ReadFile(file)
	if err == nil {
		a.instance = strings.TrimSpace(string(b))
		if !event.IsInstance(a.instance) {
			return fmt.Errorf("%s: must be 1 to 32 of a-z and 0-9", file)
		}
		return nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	a.instance = strings.ReplaceAll(uuid.NewString(), "-", "")[:20]
	return writeFile(file, []byte(a.instance+"\n"))
}

// startRegions makes what forwards to other regions, and what takes in from them. Definitions set the links going.
func (a *App) startRegions(ctx context.Context) error {
	if err := a.openInstance(); err != nil {
		return err
	}
	nc, err := a.log.Connect()
	if err != nil {
		return err
	}
	a.undo("connection of the links", func(context.Context) error { nc.Close(); return nil })
	a.inlets, err = region.OpenInlets(ctx, region.InletOptions{Instance: a.instance, Log: a.bridge, Conn: nc,
		Limits: event.Limits{MaxData: a.o.MaxData}, Logger: a.o.Logger, Registerer: a.registry})
	if err != nil {
		return err
	}
	a.undo("links of other regions", a.inlets.Close)
	leases, err := eventlog.OpenLeases(ctx, nc, eventlog.LeaseOptions{Node: nodeName})
	if err != nil {
		return err
	}
	states, err := region.OpenStates(ctx, nc, "links")
	if err != nil {
		return err
	}
	a.links, err = region.NewLinks(region.LinksOptions{Instance: a.instance, Log: a.bridge, View: sparkplug.View, States: states, Leases: leases,
		Dial: a.guard.DialContext, Secrets: a.vault.resolve, Emit: emitter(a.bridge), Functions: a.callForLinks, Logger: a.o.Logger, Registerer: a.registry})
	if err != nil {
		return err
	}
	a.bridge.SetFollowers(a.links)
	a.undo("links", a.links.Close)
	return nil
}

// linkCall is how long a function may take for a link. Retention, which asks the link at times, waits as long.
const linkCall = 5 * time.Second

// callForLinks has a function make the data of an event that a link forwards.
func (a *App) callForLinks(ctx context.Context, name, code string, ev *event.Event) ([]byte, string, error) {
	ctx, cancel := context.WithTimeout(ctx, linkCall)
	defer cancel()
	return a.functions.Transform(ctx, name, code, fmt.Sprintf("link-%x", ev.Key()), ev)
}

// emitter publishes events that the bridge itself, or a target, makes.
func emitter(b *bridge.Bridge) func(ctx context.Context, bus string, evs ...event.Event) error {
	return func(ctx context.Context, bus string, evs ...event.Event) error {
		recs := make([]*event.Record, len(evs))
		for i := range evs {
			recs[i] = &event.Record{Event: evs[i]}
		}
		_, err := b.Ingest(ctx, bus, recs)
		return err
	}
}

// regionKind is the kind of definition.
func regionKind(links *region.Links) api.Kind {
	return api.Kind{
		Name: kindRegion, Plural: "regions", Schema: []byte(region.RegionSchema),
		Doc:       "A region is another Rialto: where links lead.",
		Normalize: func(_ context.Context, doc, _ []byte) ([]byte, error) { return checked(doc, region.ParseRegion) },
		Status: func(name string, _ bool) any {
			s, ok := links.RegionStatus(name)
			if !ok {
				return nil
			}
			return s
		},
	}
}

// linkKind is the kind of definition.
func linkKind(links *region.Links) api.Kind {
	return api.Kind{
		Name: kindLink, Plural: "links", Schema: []byte(region.LinkSchema),
		Doc:       "A link forwards a bus, or what a pattern takes of it, to a bus in another region.",
		Normalize: func(_ context.Context, doc, _ []byte) ([]byte, error) { return checked(doc, region.ParseLink) },
		Refs:      linkRefs,
		Status: func(name string, _ bool) any {
			s, ok := links.Status(name)
			if !ok {
				return nil
			}
			return s
		},
	}
}

// linkRefs lists the region and the bus that a link names.
func linkRefs(doc []byte) []api.Ref {
	var d struct {
		Region, Bus string
		Transform   json.RawMessage
	}
	if json.Unmarshal(doc, &d) != nil {
		return nil // it was checked before it was stored
	}
	refs := []api.Ref{{Kind: kindRegion, Name: d.Region, Pointer: "/region"}}
	if d.Bus != "" {
		refs = append(refs, api.Ref{Kind: kindBus, Name: d.Bus, Pointer: "/bus"})
	}
	var transform struct{ Function string }
	if json.Unmarshal(d.Transform, &transform) == nil && transform.Function != "" { // else it is a word, or names none
		refs = append(refs, api.Ref{Kind: function.Kind, Name: transform.Function, Pointer: "/transform/function"})
	}
	return refs
}

// settleLinks forgets the positions of links that were deleted while this process was down.
func (d *definitions) settleLinks(ctx context.Context) {
	err := d.links.Settle(ctx, func(name string) bool {
		_, ok := d.current[store.Key{Kind: kindLink, Name: name}]
		return ok
	})
	if err != nil {
		d.log.Warn("positions of deleted links are left", "err", err)
		return
	}
	d.settle = false
}

// applyLinks puts regions and links in force, after the buses that they read.
func (d *definitions) applyLinks(changed []store.Key) {
	d.each(changed, kindRegion, func(k store.Key, doc *store.Document) error {
		if doc == nil {
			d.links.RemoveRegion(k.Name)
			return nil
		}
		raw, err := d.vault.open(k, doc.Raw)
		if err != nil {
			return err
		}
		r, err := region.ParseRegion(raw)
		if err != nil {
			return err
		}
		d.links.SetRegion(r)
		return nil
	})
	d.each(changed, kindLink, func(k store.Key, doc *store.Document) error {
		if doc == nil {
			d.links.Remove(k.Name)
			return nil
		}
		l, err := region.ParseLink(doc.Raw)
		if err != nil {
			return err
		}
		l.Revision = doc.Revision
		d.links.Set(l)
		return nil
	})
}
