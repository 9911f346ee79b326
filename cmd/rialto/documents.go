// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/rialto-bridge/rialto/internal/store/files"
)

const maxDocuments = 64 << 20 // bytes of one file of cases, events or schemas

func readAll(r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxDocuments+1))
	if err == nil && len(text) > maxDocuments {
		err = fmt.Errorf("larger than %d MiB", maxDocuments>>20)
	}
	return text, err
}

// document is one definition out of a file.
type document struct {
	resource
	files.Document
}

// String is the resource's.
func (d document) String() string { return d.resource.String() }

// readDocuments reads the definitions of files, of every .yaml, .yml and .json below folders, and of stdin for "-",
// in the order of kinds. All that is wrong with them is said at once.
func (c *cli) readDocuments(names []string) ([]document, error) {
	read, err := files.Read(names, c.in)
	if err != nil {
		return nil, err
	}
	var docs []document
	var complaints []error
	for _, d := range read {
		r, err := resourceOf(d)
		if err != nil {
			complaints = append(complaints, err)
			continue
		}
		docs = append(docs, document{r, d})
	}
	if err := errors.Join(complaints...); err != nil {
		return nil, err
	}
	if len(docs) == 0 {
		return nil, usagef("there is no definition in %s", strings.Join(names, ", "))
	}
	slices.SortStableFunc(docs, func(a, b document) int { return rank(a.kind) - rank(b.kind) })
	return docs, nil
}

// rank is the place of a kind in the order in which definitions are written. Schemas come first.
func rank(k kind) int { return slices.Index(kinds, k) }

// resourceOf is what a document defines.
func resourceOf(d files.Document) (resource, error) {
	r := resource{kind: schemaKind, bus: d.Head.Scope, name: d.Head.Name}
	if d.Head.Kind == schemaKind.name {
		return r, nil
	}
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == d.Head.Kind })
	if i < 0 {
		return r, d.Complain("/kind", "kind "+clean(d.Head.Kind)+": there are "+strings.Join(documentKinds(), ", "))
	}
	r.kind = kinds[i]
	for _, part := range []struct{ pointer, value string }{{"/name", r.name}, {"/bus", orDefault(r.bus, defaultBus)}} {
		if !resourceName.MatchString(part.value) {
			return r, d.Complain(part.pointer, clean(part.value)+" is no name: a name is 1 to 63 of a-z, 0-9 and -, and starts and ends with a letter or digit")
		}
	}
	return r, nil
}
