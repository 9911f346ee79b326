// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"context"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Example is Example of a compiled text. Only JSON Schemas have examples; the error is Unsupported for others.
func (c *Compiled) Example() ([]byte, error) {
	if c.json == nil {
		return nil, fault.New(fault.Unsupported, "%s schemas have no examples in JSON", c.Format)
	}
	return Example(c.json.root)
}

// Bindings is Generate of a compiled text. Only JSON Schemas have bindings; the error is Unsupported for others.
func (c *Compiled) Bindings(lang, name string) (Code, error) {
	if c.json == nil {
		return Code{}, fault.New(fault.Unsupported, "no code is made of %s schemas: their own tools do that", c.Format)
	}
	return Generate(lang, name, c.json.root)
}

// Example returns a document that is valid for a version.
func (r *Registry) Example(ctx context.Context, ref Ref) ([]byte, error) {
	c, err := r.compiledOf(ctx, ref)
	if err != nil {
		return nil, err
	}
	return c.Example()
}

// Bindings returns code for the documents of a version, in one of Languages.
func (r *Registry) Bindings(ctx context.Context, ref Ref, lang string) (Code, error) {
	c, err := r.compiledOf(ctx, ref)
	if err != nil {
		return Code{}, err
	}
	return c.Bindings(lang, ref.Schema)
}

func (r *Registry) compiledOf(ctx context.Context, ref Ref) (*Compiled, error) {
	v, err := r.store.Version(ctx, ref)
	if err != nil {
		return nil, err
	}
	if v.State == Deleted {
		return nil, fault.New(fault.NotFound, "version %s is deleted", ref)
	}
	return r.compiled(ctx, v)
}
