// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/rules"
)

const (
	// setLint is how long the answer to a change set waits for doubts about its documents.
	setLint = time.Second
	// maxObserved is of how many changed documents stored events are asked.
	maxObserved = 20
)

// changed is the answer to a set: the documents in the order of the request, and then what was pruned. docs is what the
// store has made of writes; nil for a dry run.
func (p *plan) changed(ctx context.Context, docs []store.Document) []Changed {
	stored := make(map[store.Key]store.Document, len(docs))
	for _, d := range docs {
		stored[d.Key] = d
	}
	out := make([]Changed, 0, len(p.items)+len(p.pruned))
	ctx, cancel := context.WithTimeout(ctx, setLint)
	defer cancel()
	observed := 0
	for _, it := range p.items {
		if it.schema != nil {
			out = append(out, it.schema.changed(p.set.Show))
			continue
		}
		done := Changed{Kind: it.key.Kind, Bus: it.key.Scope, Name: it.key.Name, Outcome: it.outcome, doc: stored[it.key], Revision: stored[it.key].Revision}
		if it.old != nil {
			done.OldRevision = it.old.Revision
		}
		if it.outcome == outcomeUnchanged {
			done.Revision = done.OldRevision
		}
		if !p.set.DryRun {
			done.Secret = it.secret
		}
		look := it.outcome != outcomeUnchanged && observed < maxObserved && p.set.Observed != nil && p.set.Observed(it.key.Scope)
		if look {
			observed++
		}
		done.Warnings = it.lint(ctx, look)
		if p.set.Show && it.outcome != outcomeUnchanged {
			done.show(it.kind, it.old, it.raw)
		}
		out = append(out, done)
	}
	for _, key := range p.prunedKeys() {
		d := p.pruned[key]
		done := Changed{Kind: key.Kind, Bus: key.Scope, Name: key.Name, Outcome: outcomePruned, OldRevision: d.Revision, doc: stored[key], Revision: stored[key].Revision}
		if p.set.Show {
			done.show(p.c.kind(key.Kind), &d, nil)
		}
		out = append(out, done)
	}
	return out
}

// lint returns what is doubtful about a document that was taken.
func (it *item) lint(ctx context.Context, observed bool) []rules.Warning {
	if it.schema != nil || it.kind.Lint == nil {
		return nil
	}
	return it.kind.Lint(ctx, it.raw, observed)
}

// show fills in what changes, less what is secret.
func (c *Changed) show(k *Kind, old *store.Document, raw []byte) {
	redact := func(doc []byte) json.RawMessage {
		if k.Redact != nil {
			return k.Redact(doc)
		}
		return doc
	}
	if old != nil {
		c.Before = redact(old.Raw)
	}
	if raw != nil {
		c.After = redact(raw)
	}
	if c.Before == nil || c.After == nil {
		return
	}
	was, is := hiddenOf(old.Raw, c.Before), hiddenOf(raw, c.After)
	for pointer, secret := range was {
		if other, ok := is[pointer]; ok && other != secret {
			c.SecretsDiffer = true
		}
	}
}

// hiddenOf is what a document holds where the form of it that is shown says something else, by JSON pointer.
func hiddenOf(stored, shown []byte) map[string]string {
	out := map[string]string{}
	var a, b any
	if json.Unmarshal(stored, &a) == nil && json.Unmarshal(shown, &b) == nil {
		addHidden(out, "", a, b)
	}
	return out
}

func addHidden(out map[string]string, at string, stored, shown any) {
	switch s := stored.(type) {
	case map[string]any:
		if other, ok := shown.(map[string]any); ok {
			for name, v := range s {
				addHidden(out, at+fault.Pointer(name), v, other[name])
			}
			return
		}
	case []any:
		if other, ok := shown.([]any); ok && len(other) == len(s) {
			for i, v := range s {
				addHidden(out, at+"/"+strconv.Itoa(i), v, other[i])
			}
			return
		}
	}
	if !reflect.DeepEqual(stored, shown) {
		out[at] = fmt.Sprint(stored)
	}
}
