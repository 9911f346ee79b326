// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/rialto-bridge/rialto/rules"
)

func newApply(c *cli) *cobra.Command {
	var files []string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "apply -f FILE|DIR|-",
		Short: "Write definitions from files; what is there already stays as it is",
		Long: `Write definitions. A file holds YAML documents separated by ---, or JSON; a folder stands for every
.yaml, .yml and .json below it; - is stdin. Buses, targets, devices and keys are written before
rules, whatever their order in the files. All files are read before anything is written; after
that a document that is refused does not stop the others.`,
		Example: `  rialto apply -f bridge.yaml
  rialto get rules -o yaml | rialto apply -f - --dry-run`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files) == 0 {
				return usagef("apply needs -f FILE, -f DIR or -f -")
			}
			return c.apply(cmd.Context(), files, dryRun)
		},
	}
	cmd.Flags().StringSliceVarP(&files, "filename", "f", nil, "file, folder or - for stdin; may be given more than once")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "let the server check everything and write nothing")
	return cmd
}

// applied is what became of one document.
type applied struct {
	Kind    string `json:"kind"`
	Bus     string `json:"bus,omitempty"`
	Name    string `json:"name"`
	Outcome string `json:"outcome"`          // created, configured, unchanged, failed
	Secret  string `json:"secret,omitempty"` // of a key that was created: shown this once
	Error   string `json:"error,omitempty"`

	Warnings []warning `json:"warnings,omitempty"` // it was taken, and can hardly do what it is meant to
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
		fmt.Fprintf(c.err, "warning: %s (%s): %s: %s\n", doc, doc.from, clean(orDefault(w.Pointer, "(the whole)")), clean(w.Message))
		if w.Fix != "" {
			fmt.Fprintf(c.err, "  write instead: %s\n", clean(w.Fix))
		}
	}
}

func (c *cli) apply(ctx context.Context, files []string, dryRun bool) error {
	docs, err := c.readDocuments(files)
	if err != nil {
		return err
	}
	cl, err := c.client()
	if err != nil {
		return err
	}
	var first error
	var results []json.RawMessage
	fresh := map[string]bool{} // what a dry run would have made
	for _, doc := range docs {
		result, err := cl.applyOne(ctx, doc, dryRun)
		if err != nil && dryRun && onlyMissing(err, doc, fresh) {
			result.Outcome, err = "created", nil
		}
		fresh[doc.kind.name+"/"+doc.name] = result.Outcome == "created"
		if err != nil {
			result.Outcome, result.Error = "failed", err.Error()
			c.complain(fmt.Errorf("%s (%s): %w", doc, doc.from, err))
			if first == nil {
				first = err
			}
		}
		c.warn(doc, result.Warnings)
		if c.output == "table" && err == nil {
			suffix := ""
			if dryRun {
				suffix = " (dry run)"
			}
			fmt.Fprintf(c.out, "%s %s%s\n", doc, result.Outcome, suffix)
			if result.Secret != "" {
				fmt.Fprintf(c.out, "  its secret, shown this once: %s\n", result.Secret)
			}
		}
		raw, marshalErr := json.Marshal(result)
		if marshalErr != nil {
			return marshalErr
		}
		results = append(results, raw)
		if exitCode(err) == exitUnreachable {
			break // the others would say the same
		}
	}
	if c.output != "table" {
		if err := c.printList(results, nil); err != nil {
			return err
		}
	}
	if first != nil {
		return &codeError{exitCode(first), errQuiet}
	}
	return nil
}

// applyOne writes one document, unless it is there already, and only if nobody else changes it meanwhile.
func (cl *client) applyOne(ctx context.Context, doc document, dryRun bool) (applied, error) {
	result := applied{Kind: doc.kind.name, Bus: doc.bus, Name: doc.name}
	header := http.Header{"Content-Type": {"application/json"}}
	before, err := cl.fetch(ctx, doc.resource)
	switch {
	case err == nil && before.etag != "":
		header.Set("If-Match", before.etag)
	case exitCode(err) == exitNotFound:
		header.Set("If-None-Match", "*")
	case err != nil:
		return result, err
	}
	created := err != nil

	r := request{Method: http.MethodPut, Path: doc.path(), Header: header, Body: doc.raw}
	if created && doc.kind.name == "Key" {
		// Only the answer to a POST holds the secret.
		r.Method, r.Path = http.MethodPost, doc.kind.path("")
		header.Del("If-None-Match")
	}
	if dryRun {
		r.Query = url.Values{"dryRun": {"true"}}
	}
	after, err := cl.do(ctx, r)
	if err != nil {
		return result, err
	}
	var aside struct {
		Secret string `json:"secret"`
		Status struct {
			Warnings []warning `json:"warnings"`
		} `json:"status"`
	}
	if err := json.Unmarshal(after.Body, &aside); err != nil {
		return result, fmt.Errorf("unreadable answer: %w", err)
	}
	result.Warnings = aside.Status.Warnings
	switch {
	case created:
		result.Outcome = "created"
		if doc.kind.name == "Key" && !dryRun {
			result.Secret = aside.Secret
		}
	case sameDocument(doc.kind, before.raw, after.Body):
		result.Outcome = "unchanged"
	default:
		result.Outcome = "configured"
	}
	return result, nil
}

// onlyMissing reports whether a dry run refused a rule for nothing but what the same run would make before it: its bus
// or its targets.
func onlyMissing(err error, doc document, fresh map[string]bool) bool {
	var p *problem
	if doc.kind.name != "Rule" || !errors.As(err, &p) {
		return false
	}
	if p.Status == http.StatusNotFound && fresh["Bus/"+doc.bus] {
		_, err := rules.ParseRule(doc.raw) // the server had not looked into it yet
		return err == nil
	}
	var rule struct {
		Targets []struct{ Target string }
	}
	if p.Status != http.StatusBadRequest || len(p.Errors) == 0 || json.Unmarshal(doc.raw, &rule) != nil {
		return false
	}
	for _, e := range p.Errors {
		var i int
		if _, err := fmt.Sscanf(e.Pointer, "/targets/%d/target", &i); err != nil || i < 0 || i >= len(rule.Targets) || !fresh["Target/"+rule.Targets[i].Target] {
			return false
		}
	}
	return true
}
