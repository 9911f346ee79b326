// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// RegistryOptions are what a registry is made of. Store is required.
type RegistryOptions struct {
	Store  Store
	Logger *slog.Logger     // nil = none
	Now    func() time.Time // nil = time.Now
	// Compiled is how many compiled versions are kept; 0 = 2000.
	Compiled int
}

// Registry registers schemas and checks events. What it does to schemas goes to the store, which has the last word; events
// are checked against what Run has heard of it, so that a store that is away holds up no event. Safe for concurrent use.
type Registry struct {
	store Store
	log   *slog.Logger
	now   func() time.Time
	view  *view
	cache *compiledCache
}

// maxRaces is how often a write is tried again when another came between.
const maxRaces = 20

// NewRegistry makes a registry. Run must be called for Validate to know anything.
func NewRegistry(o RegistryOptions) *Registry {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Compiled == 0 {
		o.Compiled = 2000
	}
	return &Registry{store: o.Store, log: o.Logger.With("component", "schema"), now: func() time.Time { return o.Now().UTC() },
		view: newView(), cache: newCompiledCache(o.Compiled)}
}

// Store returns the store, for lists.
func (r *Registry) Store() Store { return r.store }

// Registration is a text to be registered.
type Registration struct {
	Name       Name
	Text       string
	References []Reference
	// Format is for the first version of a schema; "" is JSON Schema, or what the schema has.
	Format Format
	// State is Active ("" is that), Draft or Discovered. Only an active one must be compatible.
	State State
}

// Registered is what a registration has come to.
type Registered struct {
	Version Version
	Created bool    // false: the content was there already
	Verdict Verdict // of the comparison with what was there
}

// Register stores a new version, or returns the one that has this content. The error is Invalid when the text is wrong, an
// *IncompatibleError when it may not follow what is there, Conflict when the schema has another format or no room.
func (r *Registry) Register(ctx context.Context, reg Registration) (Registered, error) {
	if reg.State == "" {
		reg.State = Active
	}
	if reg.State != Active && reg.State != Draft && reg.State != Discovered {
		return Registered{}, fault.Invalidf("/state", "a version begins as active, draft or discovered")
	}
	for range maxRaces {
		out, err := r.tryRegister(ctx, reg)
		if fault.KindOf(err) != fault.Conflict || !errors.Is(err, errRace) {
			return out, err
		}
	}
	return Registered{}, fault.New(fault.Conflict, "schema %s is being changed by others all the time", reg.Name)
}

// errRace marks a conflict that is worth another try.
var errRace = errors.New("another write was faster")

// raced marks err as one if it is a conflict.
func raced(err error) error {
	if err != nil && fault.KindOf(err) == fault.Conflict {
		return &fault.Error{Kind: fault.Conflict, Message: err.Error(), Err: errRace}
	}
	return err
}

func (r *Registry) tryRegister(ctx context.Context, reg Registration) (Registered, error) {
	head, c, err := r.prepare(ctx, reg)
	if err != nil {
		return Registered{}, err
	}
	all, err := r.all(ctx, reg.Name)
	if err != nil {
		return Registered{}, err
	}
	verdict, err := r.compare(ctx, head, c, all, 0)
	if err != nil {
		return Registered{}, err
	}
	for _, v := range slices.Backward(all) {
		if v.Hash == c.Hash && v.State != Deleted {
			return r.again(ctx, head, v, reg.State, verdict)
		}
	}
	if reg.State == Active {
		if err := verdict.Err(head.AllowUnknown); err != nil {
			return Registered{Verdict: verdict}, err
		}
	}
	if len(all) >= maxVersions {
		return Registered{}, fault.New(fault.Conflict, "schema %s has %d versions, and may have no more", reg.Name, len(all))
	}
	if head.Revision == 0 || head.Deleted {
		if err := r.putHead(ctx, head); err != nil {
			return Registered{}, raced(err)
		}
	}
	at := r.now()
	v, err := r.store.AddVersion(ctx, Version{Ref: Ref{reg.Name, len(all) + 1}, State: reg.State, Format: c.Format, Dialect: c.Dialect,
		Text: reg.Text, Hash: c.Hash, References: c.References, CreatedAt: at, UpdatedAt: at})
	if err != nil {
		return Registered{}, raced(err)
	}
	r.heard(Change{Version: &v})
	r.log.Info("schema version registered", "schema", v.Ref.String(), "state", v.State)
	return Registered{Version: v, Created: true, Verdict: verdict}, nil
}

// again is for content that is there: it is made active if that is wanted.
func (r *Registry) again(ctx context.Context, head Schema, v Version, want State, verdict Verdict) (Registered, error) {
	out := Registered{Version: v, Verdict: verdict}
	if want != Active || v.State.Counts() {
		return out, nil
	}
	if err := verdict.Err(head.AllowUnknown); err != nil {
		return out, err
	}
	v.State, v.UpdatedAt = Active, r.now()
	var err error
	if out.Version, err = r.store.SetState(ctx, v); err == nil {
		r.heard(Change{Version: &out.Version})
	}
	return out, raced(err)
}

// heard takes in what this process has written, so that whoever has the answer can rely on it.
func (r *Registry) heard(c Change) { r.view.apply(c) }

func (r *Registry) putHead(ctx context.Context, head Schema) error {
	head.Deleted, head.UpdatedAt = false, r.now()
	if head.Revision == 0 {
		head.CreatedAt = head.UpdatedAt
	}
	_, err := r.store.PutSchema(ctx, head)
	return err
}

// prepare reads the schema that a text is for, or makes one, and compiles the text.
func (r *Registry) prepare(ctx context.Context, reg Registration) (Schema, *Compiled, error) {
	head, err := r.store.Schema(ctx, reg.Name)
	switch {
	case err != nil && fault.KindOf(err) == fault.NotFound:
		head = Schema{Name: reg.Name, Format: reg.Format}
		if err := head.check(); err != nil {
			return head, nil, err
		}
	case err != nil:
		return head, nil, err
	case reg.Format != "" && reg.Format != head.Format:
		return head, nil, fault.New(fault.Conflict, "schema %s is written in %s", reg.Name, head.Format)
	}
	c, err := Compile(ctx, head.Format, reg.Text, reg.References, r.find)
	if err != nil {
		return head, nil, err
	}
	for _, ref := range c.References {
		v, err := r.store.Version(ctx, ref.Ref()) // its state may have changed since we heard of it
		if err != nil {
			return head, nil, err
		}
		if v.State == Deleted || v.State == Disabled {
			return head, nil, fault.Invalidf("/references", "%s is %s", ref.Ref(), v.State)
		}
	}
	return head, c, nil
}

// Find returns the version of a schema that has a text; NotFound if none has it.
func (r *Registry) Find(ctx context.Context, reg Registration) (Version, error) {
	_, c, err := r.prepare(ctx, reg)
	if err != nil {
		return Version{}, err
	}
	return r.store.FindVersion(ctx, reg.Name, c.Hash)
}

// Latest returns the latest active version of a schema, or the latest deprecated one if none is active.
func (r *Registry) Latest(ctx context.Context, n Name) (Version, error) {
	all, err := r.all(ctx, n)
	if err != nil {
		return Version{}, err
	}
	for _, want := range []State{Active, Deprecated} {
		for _, v := range slices.Backward(all) {
			if v.State == want {
				return v, nil
			}
		}
	}
	return Version{}, fault.New(fault.NotFound, "schema %s has no version that is active", n)
}

// find is the Source of the registry.
func (r *Registry) find(ctx context.Context, ref Ref) (Version, error) {
	if v, ok := r.view.version(ref); ok {
		return v, nil
	}
	return r.store.Version(ctx, ref)
}

// all returns every version of a schema, by number.
func (r *Registry) all(ctx context.Context, n Name) ([]Version, error) {
	var out []Version
	for after := ""; ; {
		p, err := r.store.Versions(ctx, n, after, 0)
		if err != nil {
			return nil, err
		}
		out = append(out, p.Items...)
		if after = p.Cursor; after == "" {
			return out, nil
		}
	}
}

// compare holds a text against the versions that the schema's mode asks for; except is the number of one that is left out.
func (r *Registry) compare(ctx context.Context, head Schema, c *Compiled, all []Version, except int) (Verdict, error) {
	verdict := Verdict{Outcome: Compatible}
	if head.Compatibility == None {
		return verdict, nil
	}
	for _, v := range slices.Backward(all) {
		if !v.State.Counts() || v.Ref.Version == except {
			continue
		}
		older, err := r.compiled(ctx, v)
		if err != nil {
			return verdict, err
		}
		verdict.Join(v.Ref.Version, Compare(older, c, head.Compatibility, head.Policy))
		if !head.Compatibility.Transitive() {
			break
		}
	}
	return verdict, nil
}

// CheckOptions say what a check is held against.
type CheckOptions struct {
	Version       int    // this one only; 0 = those that the mode asks for
	Compatibility Mode   // "" = the schema's
	Policy        Policy // "" = the schema's
}

// Check is Register without storing anything. A schema that is not there takes every text that is right.
func (r *Registry) Check(ctx context.Context, reg Registration, o CheckOptions) (Verdict, error) {
	head, c, err := r.prepare(ctx, reg)
	if err != nil {
		return Verdict{}, err
	}
	if o.Compatibility != "" {
		head.Compatibility = o.Compatibility
	}
	if o.Policy != "" {
		head.Policy = o.Policy
	}
	if err := head.check(); err != nil {
		return Verdict{}, err
	}
	if o.Version == 0 {
		all, err := r.all(ctx, reg.Name)
		if err != nil {
			return Verdict{}, err
		}
		return r.compare(ctx, head, c, all, 0)
	}
	v, err := r.store.Version(ctx, Ref{reg.Name, o.Version})
	if err != nil {
		return Verdict{}, err
	}
	older, err := r.compiled(ctx, v)
	if err != nil {
		return Verdict{}, err
	}
	verdict := Verdict{Outcome: Compatible}
	verdict.Join(o.Version, Compare(older, c, head.Compatibility, head.Policy))
	return verdict, nil
}

// Configure stores what the versions of a schema have in common, and makes the schema if it is not there. s.Revision guards
// the write; 0 makes a new schema. The format cannot change once there are versions.
func (r *Registry) Configure(ctx context.Context, s Schema) (Schema, error) {
	if err := s.check(); err != nil {
		return Schema{}, err
	}
	old, err := r.store.Schema(ctx, s.Name)
	switch {
	case err != nil && fault.KindOf(err) != fault.NotFound:
		return Schema{}, err
	case err == nil && old.Format != s.Format:
		if _, err := r.store.Version(ctx, Ref{s.Name, 1}); err == nil || fault.KindOf(err) != fault.NotFound {
			return Schema{}, fault.New(fault.Conflict, "schema %s has versions in %s", s.Name, old.Format)
		}
	}
	if err == nil && old.Revision == s.Revision && sameSettings(old, s) {
		return old, nil
	}
	s.UpdatedAt = r.now()
	s.CreatedAt = s.UpdatedAt
	if err == nil {
		s.CreatedAt = old.CreatedAt
	}
	return r.store.PutSchema(ctx, s)
}

func sameSettings(a, b Schema) bool {
	return a.Format == b.Format && a.Compatibility == b.Compatibility && a.Policy == b.Policy && a.AllowUnknown == b.AllowUnknown &&
		a.Description == b.Description && a.Deleted == b.Deleted && maps.Equal(a.Labels, b.Labels)
}

// SetState changes the state of a version. expect is its revision; 0 is any. A version that becomes active must be
// compatible; one that others refer to cannot be deleted.
func (r *Registry) SetState(ctx context.Context, ref Ref, to State, expect uint64) (Version, error) {
	if bad := oneOf(nil, "/state", to, states); bad != nil {
		return Version{}, fault.Collect(bad)
	}
	v, err := r.store.Version(ctx, ref)
	if err != nil {
		return Version{}, err
	}
	if expect != 0 && v.Revision != expect {
		return Version{}, changed("version %s", ref)
	}
	if v.State == to {
		return v, nil
	}
	if !slices.Contains(next[v.State], to) {
		return Version{}, fault.New(fault.Conflict, "version %s is %s and cannot become %s", ref, v.State, to)
	}
	if err := r.mayBecome(ctx, v, to); err != nil {
		return Version{}, err
	}
	v.State, v.UpdatedAt = to, r.now()
	out, err := r.store.SetState(ctx, v)
	if err == nil {
		r.heard(Change{Version: &out})
		r.log.Info("schema version changed", "schema", ref.String(), "state", to)
	}
	return out, err
}

func (r *Registry) mayBecome(ctx context.Context, v Version, to State) error {
	switch {
	case to == Deleted:
		users, err := r.ReferencedBy(ctx, v.Ref)
		if err != nil {
			return err
		}
		if len(users) > 0 {
			return fault.New(fault.Conflict, "version %s is referred to by %s", v.Ref, users[0])
		}
	case to == Active && !v.State.Counts():
		head, err := r.store.Schema(ctx, v.Ref.Name)
		if err != nil {
			return err
		}
		c, err := r.compiled(ctx, v)
		if err != nil {
			return err
		}
		all, err := r.all(ctx, v.Ref.Name)
		if err != nil {
			return err
		}
		verdict, err := r.compare(ctx, head, c, all, v.Ref.Version)
		if err != nil {
			return err
		}
		return verdict.Err(head.AllowUnknown)
	}
	return nil
}

// Delete deletes a schema and all its versions, which stay as tombstones. Conflict when event types are bound to it or
// another schema refers to it. expect is its revision; 0 is any.
func (r *Registry) Delete(ctx context.Context, n Name, expect uint64) error {
	head, err := r.store.Schema(ctx, n)
	if err != nil {
		return err
	}
	if head.Deleted {
		return noSchema(n)
	}
	if expect != 0 && head.Revision != expect {
		return changed("schema %s", n)
	}
	bound, err := r.store.Bindings(ctx, n, "", 1)
	if err != nil {
		return err
	}
	if len(bound.Items) > 0 {
		return fault.New(fault.Conflict, "events of type %q are bound to schema %s", bound.Items[0].EventType, n)
	}
	all, err := r.all(ctx, n)
	if err != nil {
		return err
	}
	users, err := r.users(ctx, func(ref Ref) bool { return ref.Name == n })
	if err != nil {
		return err
	}
	users = slices.DeleteFunc(users, func(u Ref) bool { return u.Name == n })
	if len(users) > 0 {
		return fault.New(fault.Conflict, "schema %s is referred to by %s", n, users[0])
	}
	for _, v := range all {
		if v.State == Deleted {
			continue
		}
		v.State, v.UpdatedAt = Deleted, r.now()
		v, err := r.store.SetState(ctx, v)
		if err != nil {
			return err
		}
		r.heard(Change{Version: &v})
	}
	head.Deleted, head.UpdatedAt = true, r.now()
	_, err = r.store.PutSchema(ctx, head)
	return err
}

// ReferencedBy lists the versions, deleted ones apart, that refer to one.
func (r *Registry) ReferencedBy(ctx context.Context, ref Ref) ([]Ref, error) {
	return r.users(ctx, func(x Ref) bool { return x == ref })
}

func (r *Registry) users(ctx context.Context, of func(Ref) bool) ([]Ref, error) {
	var out []Ref
	q := Query{Limit: 1000}
	for {
		p, err := r.store.Schemas(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, s := range p.Items {
			all, err := r.all(ctx, s.Name)
			if err != nil {
				return nil, err
			}
			for _, v := range all {
				if v.State != Deleted && slices.ContainsFunc(v.References, func(x Reference) bool { return of(x.Ref()) }) {
					out = append(out, v.Ref)
				}
			}
		}
		if q.After = p.Cursor; q.After == "" {
			return out, nil
		}
	}
}

// Bind says that the events of a type have a schema. What was bound before is replaced.
func (r *Registry) Bind(ctx context.Context, eventType string, n Name) (Binding, error) {
	if eventType == "" || len(eventType) > maxEventType {
		return Binding{}, fault.Invalidf("/type", "has 1 to %d bytes", maxEventType)
	}
	head, err := r.store.Schema(ctx, n)
	if err == nil && head.Deleted {
		err = noSchema(n)
	}
	if err != nil {
		return Binding{}, err
	}
	for range maxRaces {
		old, err := r.store.Binding(ctx, eventType)
		if err != nil && fault.KindOf(err) != fault.NotFound {
			return Binding{}, err
		}
		if err == nil && old.Name == n {
			return old, nil
		}
		b, err := r.store.Bind(ctx, Binding{eventType, n, old.Revision})
		if err == nil {
			r.heard(Change{Binding: &b})
		}
		if err == nil || fault.KindOf(err) != fault.Conflict {
			return b, err
		}
	}
	return Binding{}, fault.New(fault.Conflict, "the binding of %q is being changed by others all the time", eventType)
}

// Unbind ends the binding of an event type to a schema; NotFound if it is bound to another, or to none.
func (r *Registry) Unbind(ctx context.Context, eventType string, n Name) error {
	b, err := r.store.Binding(ctx, eventType)
	if err != nil {
		return err
	}
	if b.Name != n {
		return noBinding(eventType)
	}
	if err := r.store.Unbind(ctx, b); err != nil {
		return err
	}
	r.heard(Change{Unbound: eventType})
	return nil
}

// Compiled returns a version ready for use.
func (r *Registry) Compiled(ctx context.Context, ref Ref) (*Compiled, error) {
	v, err := r.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	return r.compiled(ctx, v)
}

func (r *Registry) compiled(ctx context.Context, v Version) (*Compiled, error) {
	return r.cache.get(v.Ref, func() (*Compiled, error) { return Compile(ctx, v.Format, v.Text, v.References, r.find) })
}
