// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/egress"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/secret"
	"github.com/rialto-bridge/rialto/internal/secret/token"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/sources"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/function"
	"github.com/rialto-bridge/rialto/targets/region"
	"github.com/rialto-bridge/rialto/web/api"
)

// Names of the kinds of definitions.
const (
	kindBus     = "Bus"
	kindRule    = "Rule"
	kindTarget  = "Target"
	kindDevice  = "Device"
	kindPolicy  = "DevicePolicy"
	kindIssuer  = "TokenIssuer"
	kindMapping = "TopicMapping"
	kindSource  = "Source"
	kindKey     = "Key"
	kindSecret  = "Secret"
	kindSchema  = "Schema" // is in the registry

	kindProvider = "IdentityProvider"
	kindRegion   = "Region"
	kindLink     = "Link"
)

// definitions puts what the store holds in force: buses, targets, rules, devices. It follows the store's feed in one
// goroutine and applies changes in an order in which nothing refers to what is not there yet. A definition that cannot
// be put in force is logged and left out; the others are not held back.
//
// After each change it keeps a snapshot in the data directory, from which it starts when the store is away.
type definitions struct {
	store       store.Store
	bridge      *bridge.Bridge
	devices     *mqttgw.Directory
	topics      *mqttgw.Mappings
	keys        *api.Keys
	providers   *api.Providers
	issuers     token.Env // fetches the keys of issuers of tokens
	kinds       *targets.Catalog
	sourceKinds *sources.Catalog
	sources     *sources.Supervisor
	links       *region.Links
	functions   *function.Library
	guard       *egress.Guard
	vault       *vault
	states      store.Store // of targets
	downlink    targets.Downlink
	snapshot    *snapshot
	log         *slog.Logger

	clients map[string]*targetClients         // by target
	rules   map[string]map[string]*rules.Rule // parsed, by bus and name
	mapped  map[string]*mqttgw.TopicMapping   // parsed, by name
	remap   bool                              // mapped has changed and is not in force
	settle  bool                              // what links that are not defined have left behind is not forgotten yet
	current map[store.Key]store.Document
	dirty   map[store.Key]bool // changed and not in force yet; a key that is not in current was deleted
	version uint64             // revision of the last change seen

	ready chan struct{} // closed when the first full set is in force
	once  sync.Once

	broken atomic.Pointer[string] // why the feed is broken; nil when it is not

	mu      sync.Mutex           // guards all below
	inForce map[store.Key]uint64 // revisions
	moved   chan struct{}        // closed and replaced when inForce changes
}

const (
	// gather is how long changes are collected before they are put in force together.
	gather = 5 * time.Millisecond
	// remapAfter is when topic mappings that could not be put in force are tried again.
	remapAfter = time.Second
	// storeGrace is how long a start waits for the store before it uses the snapshot.
	storeGrace = 3 * time.Second
)

// begin makes what definitions keep besides what they were given.
func (d *definitions) begin() *definitions {
	d.log = d.log.With("component", "definitions")
	d.clients, d.rules, d.mapped = make(map[string]*targetClients), make(map[string]map[string]*rules.Rule), make(map[string]*mqttgw.TopicMapping)
	d.current, d.dirty, d.ready = make(map[store.Key]store.Document), make(map[store.Key]bool), make(chan struct{})
	d.inForce, d.moved = make(map[store.Key]uint64), make(chan struct{})
	return d
}

// await blocks until a definition is in force at a revision or a later one, or, for revision 0, until it is gone; but
// no longer than until ctx is done. A definition that could not be put in force counts as being so: the log says why.
func (d *definitions) await(ctx context.Context, k store.Key, revision uint64) {
	for {
		d.mu.Lock()
		have, ok := d.inForce[k]
		moved := d.moved
		d.mu.Unlock()
		if revision == 0 && !ok || revision > 0 && have >= revision {
			return
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return
		}
	}
}

// settled notes what apply has put in force.
func (d *definitions) settled(changed []store.Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, k := range changed {
		if doc, ok := d.current[k]; ok {
			d.inForce[k] = doc.Revision
		} else {
			delete(d.inForce, k)
		}
	}
	close(d.moved)
	d.moved = make(chan struct{})
}

// run follows the store until ctx is done.
func (d *definitions) run(ctx context.Context) {
	changes := make(chan store.Change)
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		d.follow(ctx, changes)
	}()
	defer wg.Wait()
	defer func() {
		for _, c := range d.clients {
			c.close()
		}
	}()

	caughtUp := false
	d.settle = true
	seen := make(map[store.Key]bool) // in the first round, so that deletions while we were away are noticed
	grace := time.NewTimer(storeGrace)
	defer grace.Stop()
	apply := time.NewTimer(time.Hour)
	apply.Stop()
	defer apply.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-changes:
			if c.Key == (store.Key{}) { // caught up
				if !caughtUp {
					for k := range d.current {
						if !seen[k] {
							d.change(store.Change{Document: store.Document{Key: k}, Deleted: true})
						}
					}
				}
				caughtUp = true
				apply.Reset(0)
				continue
			}
			seen[c.Key] = true
			d.change(c)
			if caughtUp {
				apply.Reset(gather)
			}
		case <-grace.C:
			if !caughtUp && d.snapshot.load(d.change) {
				d.log.Warn("the store does not answer: starting from the last snapshot")
				d.apply(ctx)
			}
		case <-apply.C:
			d.apply(ctx)
			d.snapshot.save(d.version, d.current)
			if d.settle && caughtUp { // a snapshot may not know all links
				d.settleLinks(ctx)
			}
			if d.remap || d.settle {
				apply.Reset(remapAfter)
			}
		}
	}
}

// follow feeds changes from the store and begins again when the feed breaks.
func (d *definitions) follow(ctx context.Context, to chan<- store.Change) {
	backoff := 100 * time.Millisecond
	for ctx.Err() == nil {
		err := d.store.Watch(ctx, func(c store.Change) error {
			backoff = 100 * time.Millisecond
			d.broken.Store(nil)
			select {
			case to <- c:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		if ctx.Err() != nil {
			return
		}
		why := err.Error()
		if d.broken.Swap(&why) == nil {
			d.log.Warn("the store's feed broke, following again", "err", err)
		}
		select {
		case <-time.After(backoff):
		case <-ctx.Done():
		}
		backoff = min(2*backoff, 5*time.Second)
	}
}

// change notes a change.
func (d *definitions) change(c store.Change) {
	d.version = max(d.version, c.Revision)
	if c.Deleted {
		if _, ok := d.current[c.Key]; ok {
			delete(d.current, c.Key)
			d.dirty[c.Key] = true
		}
		return
	}
	if old, ok := d.current[c.Key]; ok && old.Revision == c.Revision {
		return
	}
	d.current[c.Key] = c.Document
	d.dirty[c.Key] = true
}

// apply puts what has changed in force: targets before rules, rules before the removal of targets.
func (d *definitions) apply(ctx context.Context) {
	d.applySecrets()
	changed := slices.SortedFunc(maps.Keys(d.dirty), func(a, b store.Key) int { return cmp.Compare(a.String(), b.String()) })
	clear(d.dirty)
	changed = append(changed, d.applyFunctions(changed)...)
	d.each(changed, kindTarget, func(k store.Key, doc *store.Document) error {
		if doc == nil {
			return nil // below
		}
		held := targets.HeldDefinition(k.Name, doc.Raw)
		raw, err := d.vault.open(k, doc.Raw)
		if err != nil {
			return errors.Join(err, d.bridge.HoldTarget(held))
		}
		def, err := targets.LoadDefinition(raw, d.kinds)
		if err != nil {
			return errors.Join(err, d.bridge.HoldTarget(held))
		}
		def.Revision = doc.Revision
		client := &targetClients{guard: d.guard, concurrency: def.Delivery.Concurrency}
		t, err := d.kinds.New(def, targets.Env{HTTP: client.make(nil), TLS: client.make, Dial: d.guard.DialContext, Secrets: d.vault.resolve, State: targetState{d.states, k.Name}, Downlink: d.downlink, Emit: emitter(d.bridge), Logger: d.log, Now: time.Now})
		if err != nil {
			return errors.Join(err, d.bridge.HoldTarget(held))
		}
		if old := d.clients[k.Name]; old != nil {
			defer old.close()
		}
		d.clients[k.Name] = client
		return d.bridge.SetTarget(def, t)
	})
	buses := make(map[string]bool)
	d.each(changed, kindBus, func(k store.Key, doc *store.Document) error {
		if doc == nil {
			return d.bridge.RemoveBus(k.Name)
		}
		def, err := bridge.ParseBus(doc.Raw)
		if err != nil {
			return err
		}
		buses[k.Name] = true
		return errors.Join(d.makeQuarantine(ctx, def), d.bridge.SetBus(ctx, def))
	})
	d.each(changed, kindRule, func(k store.Key, doc *store.Document) error {
		buses[k.Scope] = true
		if d.rules[k.Scope] == nil {
			d.rules[k.Scope] = make(map[string]*rules.Rule)
		}
		delete(d.rules[k.Scope], k.Name)
		if doc == nil {
			return nil
		}
		r, err := rules.ParseRule(doc.Raw)
		if err != nil {
			// It is there, and what is pending for it goes on by the revision it met; it matches nothing new.
			d.rules[k.Scope][k.Name] = &rules.Rule{Name: k.Name, Bus: k.Scope, Disabled: true}
			return err
		}
		r.Revision = doc.Revision
		d.rules[k.Scope][k.Name], err = d.pinned(r)
		return err
	})
	for bus := range buses {
		d.applyRules(bus)
	}
	d.applyAccess(changed)
	d.applyMappings(ctx, changed)
	d.each(changed, kindKey, func(k store.Key, doc *store.Document) error {
		if doc == nil {
			d.keys.Remove(k.Name)
			return nil
		}
		return d.keys.Set(*doc)
	})
	d.each(changed, kindProvider, func(k store.Key, doc *store.Document) error {
		if doc == nil {
			d.providers.Remove(k.Name)
			return nil
		}
		return d.providers.Set(*doc)
	})
	d.each(changed, kindTarget, func(k store.Key, doc *store.Document) error {
		if doc == nil {
			d.bridge.RemoveTarget(k.Name)
			if old := d.clients[k.Name]; old != nil {
				old.close()
				delete(d.clients, k.Name)
			}
			return targetState{d.states, k.Name}.drop(ctx)
		}
		return nil
	})
	d.applyLinks(changed)
	d.applySources(changed)
	d.each(changed, function.Kind, func(k store.Key, doc *store.Document) error {
		if doc == nil {
			d.functions.Remove(k.Name)
		}
		return nil
	})
	d.settled(changed)
	d.once.Do(func() { close(d.ready) })
}

// applySecrets puts Secrets in force, and has everything made anew that refers to one that has changed.
func (d *definitions) applySecrets() {
	changed := make(map[string]bool)
	d.each(slices.Collect(maps.Keys(d.dirty)), kindSecret, func(k store.Key, doc *store.Document) error {
		err := d.vault.set(k.Name, doc)
		changed[k.Name] = !errors.Is(err, secret.ErrNoKey)
		return err
	})
	if len(changed) == 0 {
		return
	}
	for k, doc := range d.current {
		if k.Kind == kindSecret || !slices.Contains(sealedKinds, k.Kind) {
			continue
		}
		for _, r := range secretRefs(k.Kind, doc.Raw) {
			if changed[r.Name] {
				d.dirty[k] = true
			}
		}
	}
}

// makeQuarantine makes the bus that a bus needs for events that do not fit, if there is none.
func (d *definitions) makeQuarantine(ctx context.Context, def *bridge.BusDoc) error {
	k := store.Key{Kind: kindBus, Name: def.QuarantineBus}
	if _, ok := d.current[k]; ok || def.SchemaPolicy != bridge.PolicyQuarantine {
		return nil
	}
	doc, err := d.store.Put(ctx, k, fmt.Appendf(nil, `{"kind":"Bus","name":%q}`, k.Name), store.Condition{Absent: true})
	if fault.KindOf(err) == fault.Conflict {
		return nil // another process was faster, and the feed will say so
	}
	if err != nil {
		return fmt.Errorf("make bus %s: %w", k.Name, err)
	}
	d.change(store.Change{Document: doc})
	made, err := bridge.ParseBus(doc.Raw)
	if err != nil {
		return err
	}
	return d.bridge.SetBus(ctx, made) // its rules follow with the feed
}

// each calls fn for the changed definitions of a kind; doc is nil for a deleted one.
func (d *definitions) each(changed []store.Key, kind string, fn func(k store.Key, doc *store.Document) error) {
	for _, k := range changed {
		if k.Kind != kind {
			continue
		}
		var doc *store.Document
		if c, ok := d.current[k]; ok {
			doc = &c
		}
		if err := fn(k, doc); err != nil {
			d.log.Error("definition is not in force", "kind", k.Kind, "name", k.Name, "err", err)
		}
	}
}

func (d *definitions) applyRules(bus string) {
	rs := slices.Collect(maps.Values(d.rules[bus]))
	slices.SortFunc(rs, func(a, b *rules.Rule) int { return cmp.Compare(a.Name, b.Name) })
	err := d.bridge.SetRules(bus, d.version, rs)
	var f *fault.Error
	if errors.As(err, &f) && f.Kind == fault.NotFound {
		return // rules of a bus that was removed
	}
	if err != nil {
		d.log.Error("rules are not in force", "bus", bus, "err", err)
	}
}

// applyAccess puts in force who may connect by MQTT and what they may do: policies and issuers before the devices that
// depend on them, and then all of it for the connections that exist.
func (d *definitions) applyAccess(changed []store.Key) {
	touched := false
	d.each(changed, kindPolicy, func(k store.Key, doc *store.Document) error {
		touched = true
		if doc == nil {
			d.devices.RemovePolicy(k.Name)
			return nil
		}
		p, err := mqttgw.ParsePolicy(doc.Raw)
		if err != nil {
			d.devices.ClosePolicy(k.Name)
			return err
		}
		d.devices.SetPolicy(k.Name, p)
		return nil
	})
	d.each(changed, kindIssuer, func(k store.Key, doc *store.Document) error {
		touched = true
		if doc == nil {
			d.devices.RemoveIssuer(k.Name)
			return nil
		}
		s, err := mqttgw.ParseIssuer(doc.Raw, d.issuers)
		if err != nil {
			d.devices.RemoveIssuer(k.Name)
			return err
		}
		d.devices.SetIssuer(k.Name, s)
		return nil
	})
	d.each(changed, kindDevice, func(k store.Key, doc *store.Document) error {
		touched = true
		if doc == nil {
			d.devices.Remove(k.Name)
			return nil
		}
		dev, err := mqttgw.ParseDevice(doc.Raw)
		if err != nil {
			return err
		}
		d.devices.Set(k.Name, dev)
		return nil
	})
	if touched {
		d.devices.Enforce()
	}
}

// applySources puts sources in force, last of all: what they take in meets the rules.
func (d *definitions) applySources(changed []store.Key) {
	d.each(changed, kindSource, func(k store.Key, doc *store.Document) error {
		if doc == nil {
			d.sources.Remove(k.Name)
			return nil
		}
		raw, err := d.vault.open(k, doc.Raw)
		if err != nil {
			return err
		}
		def, err := sources.LoadDefinition(raw, d.sourceKinds)
		if err != nil {
			return err
		}
		def.Revision = doc.Revision
		d.sources.Set(def)
		return nil
	})
}

// applyMappings puts topic mappings in force. If their change cannot be marked in the log, which is tried again, those
// before stay in force.
func (d *definitions) applyMappings(ctx context.Context, changed []store.Key) {
	d.each(changed, kindMapping, func(k store.Key, doc *store.Document) error {
		d.remap = true
		delete(d.mapped, k.Name)
		if doc == nil {
			return nil
		}
		m, err := mqttgw.ParseTopicMapping(doc.Raw)
		if err != nil {
			return err
		}
		m.Revision = doc.Revision
		d.mapped[k.Name] = m
		return nil
	})
	if !d.remap {
		return
	}
	if err := d.topics.Set(ctx, d.version, slices.Collect(maps.Values(d.mapped))); err != nil {
		d.log.Error("topic mappings are not in force yet", "err", err)
		return
	}
	d.remap = false
}

// checks adds the definitions to what the bridge says of its readiness.
func (a *App) checks() []bridge.Check {
	c := bridge.Check{Name: "definitions", OK: true}
	why := a.defs.broken.Load()
	if a.postgres != nil && why == nil {
		if err := a.postgres.Broken(); err != nil {
			text := err.Error()
			why = &text
		}
	}
	if why != nil {
		// Not a reason to send requests elsewhere: what is in force stays so.
		c.Detail = "the store does not answer, changes wait: " + *why
	}
	if a.declared == nil {
		return []bridge.Check{c}
	}
	return []bridge.Check{c, a.declared.check()}
}
