// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/schema"
)

// Outcomes of a document in a change set.
const (
	outcomeCreated    = "created"
	outcomeConfigured = "configured"
	outcomeUnchanged  = "unchanged"
	outcomePruned     = "pruned"
)

// Changes makes change sets of definitions: documents are checked together, as if each saw all others, and then all are
// written or none. Safe for concurrent use.
//
// The registry of schemas is another store. Documents of kind Schema are checked with the set and registered right before
// it is written, which they survive if it fails then: a version that nobody asks for does nothing, and the same set again
// finds it there.
type Changes struct {
	store   store.Store
	kinds   []*Kind
	schemas *schema.Registry // nil = documents of kind Schema are refused
	writing chan struct{}    // one set, or one definition, is checked and written at a time, so that references hold
}

// NewChanges makes change sets in s of documents of some kinds, and of keys and identity providers. schemas may be nil.
func NewChanges(s store.Store, kinds []Kind, schemas *schema.Registry) *Changes {
	c := &Changes{store: s, schemas: schemas, writing: make(chan struct{}, 1)}
	for _, k := range kinds {
		c.kinds = append(c.kinds, &k)
	}
	c.kinds = append(c.kinds, keyKind(NewKeys()), providerKind())
	return c
}

// ChangeSet is what is to become of definitions.
type ChangeSet struct {
	// Documents are as users write them, each with kind and name; the bus of a rule is default if it names none.
	Documents []json.RawMessage
	Prune     *Prune // nil = nothing is removed
	DryRun    bool   // check everything, and store nothing
	Show      bool   // have Before and After in the answer

	// Permit refuses a change of a definition, or a look at it; nil permits all.
	Permit func(store.Key) error
	// Observed reports whether stored events of a bus may be asked about the doubts of its rules; nil asks none.
	Observed func(bus string) bool
}

// Prune says which definitions are removed: those that are not among the documents, and
type Prune struct {
	Kinds  []string                  // are of one of these kinds
	Labels map[string]string         // have all of these labels
	Keep   func(store.Document) bool // and are not kept; nil keeps none
}

// Changed is what became of one definition.
type Changed struct {
	Kind        string `json:"kind"`
	Bus         string `json:"bus,omitempty"`   // of what belongs to a bus
	Group       string `json:"group,omitempty"` // of a schema
	Name        string `json:"name"`
	Outcome     string `json:"outcome"`               // created, configured, unchanged or pruned
	OldRevision uint64 `json:"oldRevision,omitempty"` // 0 = there was none
	Revision    uint64 `json:"revision,omitempty"`    // of the change, or of what is there; 0 where a dry run would give one
	Version     int    `json:"version,omitempty"`     // of a schema: the one that has the text
	Secret      string `json:"secret,omitempty"`      // of a key that was made: this once

	Warnings []rules.Warning `json:"warnings,omitempty"`

	// Before and After are the document without what is secret and what the server owns, for what changes.
	Before        json.RawMessage `json:"before,omitempty"`
	After         json.RawMessage `json:"after,omitempty"`
	SecretsDiffer bool            `json:"secretsDiffer,omitempty"` // what is not shown of both

	doc store.Document // as it is stored now; of kind Schema none
}

// Apply carries a change set out. The error has all that is wrong with all documents, with pointers /documents/<n>/...;
// then nothing was stored.
func (c *Changes) Apply(ctx context.Context, set ChangeSet) ([]Changed, error) {
	p, err := c.read(set)
	if err != nil {
		return nil, err
	}
	docs, err := c.write(ctx, p)
	if err != nil {
		return nil, err
	}
	return p.changed(ctx, docs), nil
}

// write checks a set and stores it, unless it is a dry run.
func (c *Changes) write(ctx context.Context, p *plan) ([]store.Document, error) {
	leave, err := c.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	for range maxTries {
		if err := p.resolve(ctx); err != nil {
			return nil, err
		}
		if err := fault.Collect(p.complaints()); err != nil {
			return nil, err
		}
		if p.set.DryRun {
			return nil, nil
		}
		if err := p.register(ctx); err != nil {
			return nil, err
		}
		docs, err := c.store.Apply(ctx, p.writes())
		switch fault.KindOf(err) {
		case fault.Conflict, fault.NotFound:
			continue // another process was faster: look again
		}
		return docs, err
	}
	return nil, fault.New(fault.Conflict, "the definitions are being changed by others all the time")
}

// Check says what is wrong with documents as far as that can be known without a server: what they name must be among
// them, or is a warning. Pointers are as those of Apply. The error is one of the store's.
func (c *Changes) Check(ctx context.Context, documents []json.RawMessage) (wrong, doubts []fault.Detail, err error) {
	p, err := c.read(ChangeSet{Documents: documents, DryRun: true})
	if err != nil {
		return nil, nil, err
	}
	p.alone = true
	if err := p.resolve(ctx); err != nil {
		return nil, nil, err
	}
	if wrong := p.complaints(); len(wrong) > 0 {
		return wrong, p.missing, nil
	}
	for _, it := range p.items {
		for _, w := range it.lint(ctx, false) {
			p.missing = append(p.missing, fault.Detail{Pointer: it.at(w.Pointer), Detail: w.Message})
		}
	}
	return nil, p.missing, nil
}

// enter waits until nothing else is written through c.
func (c *Changes) enter(ctx context.Context) (leave func(), err error) {
	select {
	case c.writing <- struct{}{}:
		return func() { <-c.writing }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *Changes) kind(name string) *Kind {
	if i := slices.IndexFunc(c.kinds, func(k *Kind) bool { return k.Name == name }); i >= 0 {
		return c.kinds[i]
	}
	return nil
}

// Prunable are the kinds whose definitions are removed with a change set that does not say which: all but those that last.
func (c *Changes) Prunable() []string {
	var names []string
	for _, k := range c.kinds {
		if !k.Lasting {
			names = append(names, k.Name)
		}
	}
	return names
}

// current returns what is stored under a key, nil if nothing.
func current(ctx context.Context, s store.Store, k store.Key) (*store.Document, error) {
	d, err := s.Get(ctx, k)
	switch {
	case err == nil:
		return &d, nil
	case fault.KindOf(err) == fault.NotFound:
		return nil, nil
	}
	return nil, err
}

// each calls fn for every stored definition of a kind that has some labels.
func (c *Changes) each(ctx context.Context, kind string, labels map[string]string, fn func(store.Document)) error {
	q := store.Query{Kind: kind, AllScopes: true, Limit: 1000, Labels: labels}
	for {
		page, err := c.store.List(ctx, q)
		if err != nil {
			return err
		}
		for _, d := range page.Items {
			fn(d)
		}
		if page.Cursor == "" {
			return nil
		}
		q.After = page.Cursor
	}
}
