// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/internal/store/kv"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets/function"
	"github.com/rialto-bridge/rialto/targets/wasm"
	"github.com/rialto-bridge/rialto/web/api"
)

const functionSchema = `{
  "type": "object",
  "description": "Code that runs in the bridge, as a target or as a transform.",
  "additionalProperties": false,
  "properties": {
    "kind": {"const": "Function"},
    "name": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"},
    "description": {"type": "string", "maxLength": 4096},
    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    "code": {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$", "description": "The version in force, one of those that are kept; default: the one there is."},
    "abi": {"enum": ["handle", "command"], "description": "How the code is spoken to; default: what its exports speak of."},
    "memoryLimit": {"type": ["string", "integer"], "description": "Of an instance, 64KiB to 256MiB.", "default": "32MiB"},
    "timeout": {"type": "string", "description": "Of the work on one event, 1ms to 10s.", "default": "100ms"},
    "maxOutput": {"type": ["string", "integer"], "description": "Of a result, up to 8MiB.", "default": "1MiB"},
    "stateful": {"type": "boolean", "description": "Whether an instance keeps what it has from event to event.", "default": false},
    "instances": {"type": "integer", "minimum": 1, "maximum": 64, "description": "The most at a time.", "default": 4},
    "versions": {"type": "array", "readOnly": true, "description": "What is kept, with the one in force first.", "items": {"type": "object", "properties": {
      "digest": {"type": "string"}, "size": {"type": "integer"}, "at": {"type": "string", "format": "date-time"}}}}
  }
}`

// openFunctions makes what runs functions. Their definitions say which there are.
func (a *App) openFunctions(ctx context.Context) error {
	nc, err := a.log.Connect()
	if err != nil {
		return err
	}
	a.undo("connection of the functions", func(context.Context) error { nc.Close(); return nil })
	var blobs store.Blobs
	if a.postgres != nil {
		blobs = a.postgres.Blobs()
	} else if blobs, err = kv.OpenBlobs(ctx, nc, kv.Options{Logger: a.o.Logger}); err != nil {
		return err
	}
	runtime := wasm.New(wasm.Options{Dir: filepath.Join(a.o.Data, "wasm-cache"), Logger: a.o.Logger, Registerer: a.registry})
	a.undo("functions", func(context.Context) error { runtime.Close(); return nil })
	a.functions = function.NewLibrary(function.Options{Runtime: runtime, Blobs: blobs, Dir: filepath.Join(a.o.Data, "functions"), Logger: a.o.Logger})
	return nil
}

// sweepEvery is how often code that nothing names any more is removed.
const sweepEvery = time.Hour

// sweepCode removes code that neither a function nor a rule names any more until ctx is done.
func (a *App) sweepCode(ctx context.Context) {
	t := time.NewTicker(sweepEvery)
	defer t.Stop()
	for {
		if err := a.sweepCodeOnce(ctx); err != nil && ctx.Err() == nil {
			a.o.Logger.Warn("old code of functions was not removed", "err", err)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

func (a *App) sweepCodeOnce(ctx context.Context) error {
	docs, err := a.allOf(ctx, function.Kind)
	if err != nil {
		return err
	}
	ruleDocs, err := a.allOf(ctx, kindRule)
	if err != nil {
		return err
	}
	var pinned []string
	for _, doc := range ruleDocs {
		r, err := rules.ParseRule(doc.Raw)
		if err != nil {
			return fmt.Errorf("stored %s: %w", doc.Key, err) // which may name any code
		}
		pinned = append(pinned, r.Code()...)
	}
	return a.functions.Sweep(ctx, docs, pinned)
}

// allOf returns all definitions of a kind.
func (a *App) allOf(ctx context.Context, kind string) (docs []store.Document, err error) {
	q := store.Query{Kind: kind, AllScopes: true, Limit: 1000}
	for {
		p, err := a.store.List(ctx, q)
		if err != nil {
			return nil, err
		}
		docs = append(docs, p.Items...)
		if q.After = p.Cursor; q.After == "" {
			return docs, nil
		}
	}
}

// functionKind is the kind of definition.
func functionKind(l *function.Library) api.Kind {
	return api.Kind{
		Name: function.Kind, Plural: "functions", Lasting: true, Schema: []byte(functionSchema),
		Doc:       "A function is code that runs in the bridge, as a target or as a transform.",
		Normalize: l.Normalize,
		Status:    func(name string, _ bool) any { return l.Status(name) },
	}
}

// pinsKeptCode is the kind of rules, which may pin code that is kept, and what they pinned before.
func pinsKeptCode(k api.Kind, l *function.Library) api.Kind {
	normalize := k.Normalize
	k.Normalize = func(ctx context.Context, doc, old []byte) ([]byte, error) {
		doc, err := normalize(ctx, doc, old)
		if err != nil {
			return nil, err
		}
		was := pinsOf(old)
		var bad []fault.Detail
		for i, digest := range pinsOf(doc) {
			if digest == "" || slices.Contains(was, digest) {
				continue
			}
			err := l.CheckCode(ctx, digest)
			if err != nil && fault.KindOf(err) != fault.NotFound {
				return nil, err
			}
			if err != nil {
				bad = append(bad, fault.Detail{Pointer: fmt.Sprintf("/targets/%d/transform/code", i), Detail: "no code with this digest is kept"})
			}
		}
		return doc, fault.Collect(bad)
	}
	return k
}

// pinsOf is, for each target of a rule, the version that its transform pins; "" = none.
func pinsOf(doc []byte) []string {
	var rule struct {
		Targets []struct {
			Transform json.RawMessage `json:"transform"`
		} `json:"targets"`
	}
	if json.Unmarshal(doc, &rule) != nil {
		return nil // there is none before the first write; what is written was checked
	}
	pins := make([]string, len(rule.Targets))
	for i, t := range rule.Targets {
		var transform struct {
			Code string `json:"code"`
		}
		if json.Unmarshal(t.Transform, &transform) == nil { // else it is a word, or missing
			pins[i] = transform.Code
		}
	}
	return pins
}

// applyFunctions puts functions in force, and returns the rules to put in force again: those that use them, since a rule
// keeps the versions that it began with.
func (d *definitions) applyFunctions(changed []store.Key) []store.Key {
	touched := make(map[string]bool)
	d.each(changed, function.Kind, func(k store.Key, doc *store.Document) error {
		touched[k.Name] = true
		if doc == nil {
			return nil // below
		}
		def, err := function.ParseDefinition(doc.Raw)
		if err != nil {
			return err
		}
		def.Name = k.Name
		d.functions.Set(def)
		return nil
	})
	if len(touched) == 0 {
		return nil
	}
	var again []store.Key
	for bus, rs := range d.rules {
		for name, r := range rs {
			k := store.Key{Kind: kindRule, Scope: bus, Name: name}
			if !slices.Contains(changed, k) && slices.ContainsFunc(r.Functions(), func(f string) bool { return touched[f] }) {
				again = append(again, k)
			}
		}
	}
	return again
}

// pinned returns a rule with the versions of its functions that are in force now, and a revision that it has with no
// others: the log keeps the rule by it, and what was routed by it renders the same again.
func (d *definitions) pinned(r *rules.Rule) (*rules.Rule, error) {
	p, err := r.Pinned(d.functions.Digest)
	if err != nil {
		return r, err
	}
	for _, name := range r.Functions() {
		if doc, ok := d.current[store.Key{Kind: function.Kind, Name: name}]; ok {
			p.Revision = max(p.Revision, doc.Revision)
		}
	}
	return p, nil
}
