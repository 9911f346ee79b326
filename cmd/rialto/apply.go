// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// changeSet is what the flags of apply and diff say.
type changeSet struct {
	files      []string
	prune      bool
	labels     string
	pruneKinds []string
}

func (s *changeSet) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringSliceVarP(&s.files, "filename", "f", nil, "file, folder or - for stdin; may be given more than once")
	f.BoolVar(&s.prune, "prune", false, "remove what has the labels of -l and is in none of the files")
	f.StringVarP(&s.labels, "labels", "l", "", "with --prune: a=b,c=d")
	f.StringSliceVar(&s.pruneKinds, "prune-kinds", nil, "kinds that --prune removes (default: all but keys, secrets, functions and devices)")
}

// check refuses flags that do not go together.
func (s *changeSet) check(command string) error {
	switch {
	case len(s.files) == 0:
		return usagef("%s needs -f FILE, -f DIR or -f -", command)
	case s.prune && s.labels == "":
		return usagef("--prune removes only what has labels that you name: -l team=cold-chain")
	case !s.prune && (s.labels != "" || len(s.pruneKinds) > 0):
		return usagef("-l and --prune-kinds go with --prune")
	}
	return nil
}

// body is the set as the server takes it.
func (s *changeSet) body(docs []document) ([]byte, error) {
	type prune struct {
		Labels string   `json:"labels"`
		Kinds  []string `json:"kinds,omitempty"`
	}
	var set struct {
		Documents []json.RawMessage `json:"documents"`
		Prune     *prune            `json:"prune,omitempty"`
	}
	for _, d := range docs {
		set.Documents = append(set.Documents, d.Raw)
	}
	if s.prune {
		set.Prune = &prune{Labels: s.labels}
		for _, name := range s.pruneKinds {
			k, err := kindNamed(name)
			if err != nil {
				return nil, err
			}
			set.Prune.Kinds = append(set.Prune.Kinds, k.name)
		}
	}
	return json.Marshal(set)
}

func newApply(c *cli) *cobra.Command {
	var set changeSet
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "apply -f FILE|DIR|- [--prune -l LABELS]",
		Short: "Write definitions from files, all of them or none",
		Long: `Write definitions. A file holds YAML documents separated by ---, or JSON; a folder stands for every
.yaml, .yml and .json below it; - is stdin. All documents are checked together, so a rule may name a
target of the same files, whatever their order; when one is wrong, every complaint is told with file
and line, and nothing is written. What is there already stays as it is.

With --prune, definitions that have all of the labels of -l and are in none of the files are removed
by the same change. Keys, secrets, functions and devices are only removed when --prune-kinds names them; the buses
default and devices, and schemas, never are.

A set has at most 500 documents, those that are removed among them, and 16 MiB.`,
		Example: `  rialto apply -f bridge.yaml
  rialto apply -f definitions/ --prune -l managed-by=git
  rialto get rules -o yaml | rialto apply -f - --dry-run`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := set.check("apply"); err != nil {
				return err
			}
			return c.apply(cmd.Context(), &set, dryRun)
		},
	}
	set.flags(cmd)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "let the server check everything and write nothing")
	return cmd
}

// applied is what became of one document.
type applied struct {
	Kind        string `json:"kind"`
	Bus         string `json:"bus,omitempty"`
	Group       string `json:"group,omitempty"`
	Name        string `json:"name"`
	Outcome     string `json:"outcome"` // created, configured, unchanged, pruned
	OldRevision uint64 `json:"oldRevision,omitempty"`
	Revision    uint64 `json:"revision,omitempty"`
	Version     int    `json:"version,omitempty"` // of a schema
	Secret      string `json:"secret,omitempty"`  // of a key that was created: shown this once

	Warnings []warning `json:"warnings,omitempty"` // it was taken, and can hardly do what it is meant to

	Before        json.RawMessage `json:"before,omitempty"`
	After         json.RawMessage `json:"after,omitempty"`
	SecretsDiffer bool            `json:"secretsDiffer,omitempty"`
}

// resource is what it is about.
func (a *applied) resource() resource {
	for _, k := range kinds {
		if k.name == a.Kind {
			return resource{kind: k, bus: a.Bus, name: a.Name}
		}
	}
	if a.Kind == schemaKind.name {
		return resource{kind: schemaKind, bus: a.Group, name: a.Name}
	}
	return resource{kind: kind{name: a.Kind}, name: a.Name} // of a newer server
}

// warning is a doubt of the server about a document.
type warning struct {
	Pointer string `json:"pointer"`
	Message string `json:"message"`
	Fix     string `json:"fix,omitempty"` // as JSON
}

// warn says on stderr what is doubtful about a document.
func (c *cli) warn(doc document, warnings []warning) {
	for _, w := range warnings {
		fmt.Fprintf(c.err, "warning: %s: %s\n", doc, clean(doc.Complain(w.Pointer, w.Message).Error()))
		if w.Fix != "" {
			fmt.Fprintf(c.err, "  write instead: %s\n", clean(w.Fix))
		}
	}
}

func (c *cli) apply(ctx context.Context, set *changeSet, dryRun bool) error {
	query := url.Values{}
	if dryRun {
		query.Set("dryRun", "true")
	}
	docs, results, err := c.send(ctx, set, query)
	if err != nil {
		return err
	}
	var lines []json.RawMessage
	for i, result := range results {
		if i < len(docs) {
			c.warn(docs[i], result.Warnings)
		}
		if c.output == "table" {
			c.printApplied(&result, dryRun)
		}
		raw, err := json.Marshal(result)
		if err != nil {
			return err
		}
		lines = append(lines, raw)
	}
	if c.output == "table" {
		return nil
	}
	return c.printList(lines, nil)
}

func (c *cli) printApplied(result *applied, dryRun bool) {
	suffix := ""
	if dryRun {
		suffix = " (dry run)"
	}
	fmt.Fprintf(c.out, "%s %s%s\n", result.resource(), clean(result.Outcome), suffix)
	if result.Secret != "" {
		fmt.Fprintf(c.out, "  its secret, shown this once: %s\n", result.Secret)
	}
}

// send reads the files of a set and has the server carry it out. The results are of the documents, in their order, and then
// of what is pruned.
func (c *cli) send(ctx context.Context, set *changeSet, query url.Values) ([]document, []applied, error) {
	docs, err := c.readDocuments(set.files)
	if err != nil {
		return nil, nil, err
	}
	body, err := set.body(docs)
	if err != nil {
		return nil, nil, err
	}
	cl, err := c.client()
	if err != nil {
		return nil, nil, err
	}
	a, err := cl.do(ctx, request{Method: http.MethodPost, Path: "/v1/definitions:apply", Query: query,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: body})
	if err != nil {
		return nil, nil, inFiles(docs, err)
	}
	var answer struct {
		Results []applied `json:"results"`
	}
	if err := json.Unmarshal(a.Body, &answer); err != nil || len(answer.Results) < len(docs) {
		return nil, nil, errors.Join(errors.New("unreadable answer"), err)
	}
	return docs, answer.Results, nil
}

// inFiles turns complaints of the server about documents of a set into such about files.
func inFiles(docs []document, err error) error {
	var p *problem
	if !errors.As(err, &p) || len(p.Errors) == 0 {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "nothing was written: %s", p)
	for _, e := range p.Errors {
		b.WriteString("\n  " + clean(placed(docs, fault.Detail{Pointer: e.Pointer, Detail: e.Detail})))
	}
	return &codeError{p.exitCode(), errors.New(b.String())}
}
