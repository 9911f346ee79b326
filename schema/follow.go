// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// view is what a registry has heard of its store.
type view struct {
	mu       sync.RWMutex // guards what follows
	versions map[Ref]Version
	latest   map[Name]int // number of the latest active version, or of the latest deprecated one if none is active
	highest  map[Name]int
	bindings map[string]Binding
	held     map[string]holding // by event type; what of the rest was put together before, empty after each change
	changes  uint64

	ready chan struct{} // closed when all there was has been heard
	once  sync.Once
}

// holding is what the events of a bound type are held against.
type holding struct {
	at Ref
	c  *Compiled
}

func newView() *view {
	return &view{held: map[string]holding{}, versions: map[Ref]Version{}, latest: map[Name]int{}, highest: map[Name]int{}, bindings: map[string]Binding{}, ready: make(chan struct{})}
}

func (v *view) apply(c Change) {
	v.mu.Lock()
	defer v.mu.Unlock()
	clear(v.held)
	v.changes++
	switch {
	case c.CaughtUp():
		v.once.Do(func() { close(v.ready) })
	case c.Version != nil:
		if old, ok := v.versions[c.Version.Ref]; ok && old.Revision >= c.Version.Revision {
			break
		}
		n := c.Version.Ref.Name
		v.versions[c.Version.Ref] = *c.Version
		v.highest[n] = max(v.highest[n], c.Version.Ref.Version)
		v.latest[n] = v.latestOf(n)
	case c.Binding != nil:
		if v.bindings[c.Binding.EventType].Revision < c.Binding.Revision {
			v.bindings[c.Binding.EventType] = *c.Binding
		}
	case c.Unbound != "":
		delete(v.bindings, c.Unbound)
	}
}

// keep forgets all bindings but some.
func (v *view) keep(some map[string]bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	clear(v.held)
	v.changes++
	maps.DeleteFunc(v.bindings, func(eventType string, _ Binding) bool { return !some[eventType] })
}

func (v *view) latestOf(n Name) int {
	deprecated := 0
	for i := v.highest[n]; i > 0; i-- {
		switch v.versions[Ref{n, i}].State {
		case Active:
			return i
		case Deprecated:
			deprecated = max(deprecated, i)
		}
	}
	return deprecated
}

func (v *view) version(r Ref) (Version, bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	x, ok := v.versions[r]
	return x, ok
}

// of returns what events of a type are bound to, and the version that counts; number 0 if none does.
func (v *view) of(eventType string) (r Ref, bound bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	b, ok := v.bindings[eventType]
	return Ref{b.Name, v.latest[b.Name]}, ok
}

// holds returns what events of a type that name no schema are held against, if that was asked before.
func (v *view) holds(eventType string) (h holding, ok bool, changes uint64) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	h, ok = v.held[eventType]
	return h, ok, v.changes
}

// hold keeps that, unless something has changed meanwhile. At most as many are kept as there are compiled versions.
func (v *view) hold(eventType string, h holding, changes uint64, most int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.changes != changes {
		return
	}
	if len(v.held) >= most {
		clear(v.held)
	}
	v.held[eventType] = h
}

// Run follows the store until ctx is done, and begins again when the feed breaks.
func (r *Registry) Run(ctx context.Context) {
	const first, most = 100 * time.Millisecond, 5 * time.Second
	wait := first
	for ctx.Err() == nil {
		seen := map[string]bool{} // bindings, so that those which ended while the feed was broken are noticed
		err := r.store.Watch(ctx, func(c Change) error {
			wait = first
			switch {
			case c.Binding != nil:
				seen[c.Binding.EventType] = true
			case c.CaughtUp():
				r.view.keep(seen)
			}
			r.view.apply(c)
			return nil
		})
		if ctx.Err() != nil {
			return
		}
		r.log.Warn("feed of schemas broke, following again", "err", err, "retryIn", wait)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait = min(2*wait, most)
	}
}

// Ready is closed once Run has heard of everything there was.
func (r *Registry) Ready() <-chan struct{} { return r.view.ready }

// Result says what an event was held against.
type Result struct {
	Schema Ref  // the version; number 0 if nothing is known of such events
	Bound  bool // the event's type is bound to a schema
}

// Validate checks an event: against the version that its dataschema names, or the latest of the schema to which its type is
// bound. An event of which nothing is known is valid. The error is Invalid with pointers into the event: /data and
// below, /dataschema. It never asks the store.
//
// An event whose type is bound must not name the version of another schema: nobody chooses by what it is measured. Versions
// that were discovered or are drafts are not enforced. Data in Avro or Protobuf is not looked into.
func (r *Registry) Validate(ev *event.Event) (Result, error) {
	h, ok, changes := r.view.holds(ev.Type)
	if ok && ev.DataSchema == "" {
		return r.validateData(ev, Result{Schema: h.at, Bound: true}, h.c)
	}
	at, bound := r.view.of(ev.Type)
	out := Result{Schema: at, Bound: bound}
	if named, ok := ParseVersionURL(ev.DataSchema); ev.DataSchema != "" && ok {
		if bound && named.Name != at.Name {
			return out, fault.Invalidf("/dataschema", "must be a version of %s, to which events of this type are bound", at.Name)
		}
		v, known := r.view.version(named)
		switch {
		case !known:
			return out, fault.Invalidf("/dataschema", "names version %s, which is not registered", named)
		case v.State == Deleted || v.State == Disabled:
			return out, fault.Invalidf("/dataschema", "names version %s, which is %s", named, v.State)
		case v.State.Counts():
			out.Schema = named
		}
	}
	if out.Schema.Version == 0 {
		return out, nil
	}
	v, ok := r.view.version(out.Schema)
	if !ok || v.Format != JSONSchema {
		return out, nil
	}
	c, err := r.cache.get(v.Ref, func() (*Compiled, error) {
		return Compile(context.Background(), v.Format, v.Text, v.References, r.known)
	})
	if err != nil {
		return out, &fault.Error{Kind: fault.Internal, Message: "schema " + v.Ref.String() + " cannot be used", Err: errors.New(err.Error())}
	}
	if bound && ev.DataSchema == "" {
		r.view.hold(strings.Clone(ev.Type), holding{out.Schema, c}, changes, r.cache.most)
	}
	return r.validateData(ev, out, c)
}

// known is a Source that does not ask the store.
func (r *Registry) known(_ context.Context, ref Ref) (Version, error) {
	v, ok := r.view.version(ref)
	if !ok {
		return v, noVersion(ref)
	}
	return v, nil
}

func (r *Registry) validateData(ev *event.Event, out Result, c *Compiled) (Result, error) {
	if ev.DataContentType != "" && !event.IsJSON(ev.DataContentType) {
		return out, fault.Invalidf("/datacontenttype", "must be JSON, as the schema %s is", out.Schema)
	}
	if ev.Data == nil {
		return out, fault.Invalidf("/data", "is missing, and the schema %s is about it", out.Schema)
	}
	return out, fault.At("/data", c.ValidateJSON(ev.Data))
}

// compiledCache keeps compiled versions, which never change. Each is compiled once, however many ask at a time.
type compiledCache struct {
	mu   sync.RWMutex // guards all
	all  map[Ref]*compiling
	most int
}

// compiling is a version that is, or was, compiled.
type compiling struct {
	done chan struct{} // closed when the rest is set
	c    *Compiled
	err  error
}

func newCompiledCache(most int) *compiledCache {
	return &compiledCache{all: map[Ref]*compiling{}, most: most}
}

func (k *compiledCache) get(r Ref, compile func() (*Compiled, error)) (*Compiled, error) {
	k.mu.RLock()
	e, ok := k.all[r]
	k.mu.RUnlock()
	if !ok {
		e, ok = k.enter(r)
	}
	if ok {
		<-e.done
		return e.c, e.err
	}
	e.c, e.err = compile()
	if e.err != nil { // the store may have been away: the next one tries again
		k.mu.Lock()
		delete(k.all, r)
		k.mu.Unlock()
	}
	close(e.done)
	return e.c, e.err
}

// enter makes a place for r, unless there is one by now.
func (k *compiledCache) enter(r Ref) (e *compiling, there bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e, ok := k.all[r]; ok {
		return e, true
	}
	for old := range k.all { // any will do: what is needed comes back
		if len(k.all) < k.most {
			break
		}
		delete(k.all, old)
	}
	e = &compiling{done: make(chan struct{})}
	k.all[r] = e
	return e, false
}
