// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Source finds the versions that references lead to.
type Source func(ctx context.Context, r Ref) (Version, error)

// NoSource is a Source without versions.
func NoSource(_ context.Context, r Ref) (Version, error) { return Version{}, noVersion(r) }

// Compiled is a text that was checked and made ready. It is immutable and safe for concurrent use.
type Compiled struct {
	Format     Format
	Dialect    string      // of a JSON Schema
	Hash       string      // of the canonical text and what it refers to
	References []Reference // those given, and those that the text makes by itself

	json  *jsonSchema
	avro  *avroSchema
	proto *protoSchema
}

// Compile checks a text: its size, its language, and that all that it refers to is there. refs say which versions the
// names in it mean; from finds them. The error is a *fault.Error: Invalid, with pointers into the text where the format
// has such, or what from returned.
func Compile(ctx context.Context, f Format, text string, refs []Reference, from Source) (*Compiled, error) {
	if len(text) > maxText {
		return nil, fault.New(fault.TooLarge, "a schema has at most %d KiB", maxText>>10)
	}
	if err := checkReferences(refs); err != nil {
		return nil, err
	}
	c := &Compiled{Format: f, References: slices.Clone(refs)}
	var canonical []byte
	var err error
	switch f {
	case JSONSchema:
		canonical, err = c.compileJSON(ctx, text, from)
	case Avro:
		canonical, err = c.compileAvro(ctx, text, from)
	case Protobuf:
		canonical, err = c.compileProto(ctx, text, from)
	default:
		return nil, fault.Collect(oneOf(nil, "/format", f, formats))
	}
	if err != nil {
		return nil, err
	}
	c.Hash = hashOf(f, canonical, c.References)
	return c, nil
}

func checkReferences(refs []Reference) error {
	if len(refs) > maxReferences {
		return fault.Invalidf("/references", "has at most %d entries", maxReferences)
	}
	var bad []fault.Detail
	seen := map[string]bool{}
	for i, r := range refs {
		at := fmt.Sprintf("/references/%d", i)
		if r.Name == "" || len(r.Name) > 1024 || seen[r.Name] {
			bad = append(bad, fault.Detail{Pointer: at + "/name", Detail: "must have 1 to 1024 bytes and be there once"})
		}
		seen[r.Name] = true
		if r.Ref().Name.Check() != nil || r.Version < 1 {
			bad = append(bad, fault.Detail{Pointer: at, Detail: "must name a group, a schema and a version"})
		}
	}
	return fault.Collect(bad)
}

// hashOf is the identity of content.
func hashOf(f Format, canonical []byte, refs []Reference) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%d\n", f, len(canonical))
	h.Write(canonical)
	lines := make([]string, len(refs))
	for i, r := range refs {
		lines[i] = fmt.Sprintf("\n%q %s", r.Name, r.Ref())
	}
	slices.Sort(lines)
	h.Write([]byte(strings.Join(lines, "")))
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// fetcher finds references for a compilation, each once, and no more than a bounded number.
type fetcher struct {
	ctx    context.Context
	from   Source
	format Format
	loaded map[Ref]Version
}

func newFetcher(ctx context.Context, from Source, f Format) *fetcher {
	return &fetcher{ctx: ctx, from: from, format: f, loaded: map[Ref]Version{}}
}

func (l *fetcher) fetch(r Ref) (Version, error) {
	if v, ok := l.loaded[r]; ok {
		return v, nil
	}
	if len(l.loaded) >= maxReferences {
		return Version{}, fault.New(fault.Invalid, "a schema leads to at most %d others", maxReferences)
	}
	v, err := l.from(l.ctx, r)
	if err != nil {
		return Version{}, err
	}
	if v.Format != l.format {
		return Version{}, fault.New(fault.Invalid, "%s is written in %s, and is referred to from %s", r, v.Format, l.format)
	}
	l.loaded[r] = v
	return v, nil
}
