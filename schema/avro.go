// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"context"
	"errors"
	"strings"

	"github.com/twmb/avro"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// avroSchema is a compiled Avro schema.
type avroSchema struct{ schema *avro.Schema }

func (c *Compiled) compileAvro(ctx context.Context, text string, from Source) ([]byte, error) {
	doc, err := decodeJSON([]byte(text), schemaLimits)
	if err != nil {
		return nil, err
	}
	types := &avroTypes{fetcher: newFetcher(ctx, from, Avro), cache: &avro.SchemaCache{}, open: map[Ref]bool{}, done: map[Ref]bool{}}
	if err := types.load(c.References); err != nil {
		return nil, err
	}
	s, err := types.cache.Parse(text)
	if err != nil {
		return nil, avroFault(err)
	}
	c.avro = &avroSchema{s}
	return canonicalJSON(doc)
}

func avroFault(err error) error {
	return &fault.Error{Kind: fault.Invalid, Message: "invalid", Err: err,
		Details: []fault.Detail{{Detail: "is no Avro schema: " + clip(strings.TrimPrefix(err.Error(), "avro: "))}}}
}

// avroTypes parses the types that others are made of, before them.
type avroTypes struct {
	*fetcher
	cache      *avro.SchemaCache
	open, done map[Ref]bool
}

func (t *avroTypes) load(refs []Reference) error {
	for _, r := range refs {
		if t.done[r.Ref()] {
			continue
		}
		if t.open[r.Ref()] {
			return fault.New(fault.Invalid, "%s refers to itself through others", r.Ref())
		}
		t.open[r.Ref()] = true
		v, err := t.fetch(r.Ref())
		if err != nil {
			return err
		}
		if err := t.load(v.References); err != nil {
			return err
		}
		if _, err := t.cache.Parse(v.Text); err != nil {
			return fault.New(fault.Invalid, "%s: %s", r.Ref(), avroFault(err))
		}
		t.done[r.Ref()] = true
	}
	return nil
}

// avroFindings is rule V1: Avro's own resolution of the writer's schema by the reader's.
func avroFindings(w, r *avroSchema) []Finding {
	err := avro.CheckCompatibility(w.schema, r.schema)
	if err == nil {
		return nil
	}
	f := Finding{Outcome: Incompatible, Rule: "V1", Reason: clip(err.Error())}
	var c *avro.CompatibilityError
	if errors.As(err, &c) {
		f.Writer, f.Reader, f.Reason = c.Path, c.Path, c.Detail
		if f.Reason == "" {
			f.Reason = "the reader's " + c.ReaderType + " cannot be read from the writer's " + c.WriterType
		}
	}
	return []Finding{f}
}
