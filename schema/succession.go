// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"context"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Succession is a text that may become the next version of a schema, and the version before it.
type Succession struct {
	Before   Version
	Old, New *Compiled
	Policy   Policy
}

// Succession compiles a text and finds the version that it would follow: the latest that is active, or the one that o names.
// Nothing is stored. NotFound when there is no such version, Conflict when it is in another format.
func (r *Registry) Succession(ctx context.Context, reg Registration, o CheckOptions) (Succession, error) {
	head, c, err := r.prepare(ctx, reg)
	if err != nil {
		return Succession{}, err
	}
	out := Succession{New: c, Policy: head.Policy}
	if o.Policy != "" {
		head.Policy, out.Policy = o.Policy, o.Policy
	}
	if err := head.check(); err != nil {
		return out, err
	}
	if o.Version == 0 {
		out.Before, err = r.Latest(ctx, reg.Name)
	} else if out.Before, err = r.store.Version(ctx, Ref{reg.Name, o.Version}); err == nil && out.Before.State == Deleted {
		err = fault.New(fault.NotFound, "version %s is deleted", out.Before.Ref)
	}
	if err != nil {
		return out, err
	}
	out.Old, err = r.compiled(ctx, out.Before)
	return out, err
}

// TypesOf lists the event types that are bound to a schema, by name.
func (r *Registry) TypesOf(ctx context.Context, n Name) ([]string, error) {
	var out []string
	for after := ""; ; {
		p, err := r.store.Bindings(ctx, n, after, 1000)
		if err != nil {
			return nil, err
		}
		for _, b := range p.Items {
			out = append(out, b.EventType)
		}
		if after = p.Cursor; after == "" {
			return out, nil
		}
	}
}

// BoundTo returns the version that events of a type are held against, as far as this process has heard. Its number is 0 if
// the schema has none that is enforced.
func (r *Registry) BoundTo(eventType string) (at Ref, bound bool) { return r.view.of(eventType) }
