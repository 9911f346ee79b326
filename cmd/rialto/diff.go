// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	"github.com/aymanbagabas/go-udiff"
	"github.com/spf13/cobra"
)

func newDiff(c *cli) *cobra.Command {
	var set changeSet
	cmd := &cobra.Command{
		Use:   "diff -f FILE|DIR|- [--prune -l LABELS]",
		Short: "Show what apply would change, as a unified diff",
		Long: `Compare definitions in files with those that the server has, and print what apply would change: what
is there with -, what would be with +. What the server owns (revision, times, status) is left out,
and so are secrets; that one differs is said beside the definition. Nothing is written.

Exit codes: 0 nothing would change, 1 something would, 2 and above errors as everywhere, but 6
where another command would exit with 1.`,
		Example: `  rialto diff -f definitions/
  rialto diff -f definitions/ --prune -l managed-by=git`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := set.check("diff"); err != nil {
				return err
			}
			differs, err := c.diff(cmd.Context(), &set)
			switch {
			case exitCode(err) == exitFailed:
				return &codeError{exitProblems, err}
			case err == nil && differs:
				return &codeError{exitFailed, errQuiet}
			}
			return err
		},
	}
	set.flags(cmd)
	return cmd
}

// diff prints what would change and reports whether anything would.
func (c *cli) diff(ctx context.Context, set *changeSet) (bool, error) {
	docs, results, err := c.send(ctx, set, url.Values{"dryRun": {"true"}, "show": {"true"}})
	if err != nil {
		return false, err
	}
	differs := false
	var lines []json.RawMessage
	for i, result := range results {
		if i < len(docs) {
			c.warn(docs[i], result.Warnings)
		}
		if result.Outcome == "unchanged" {
			continue
		}
		differs = true
		if c.output == "table" {
			if err := c.printDiff(&result); err != nil {
				return true, err
			}
		}
		raw, err := json.Marshal(result)
		if err != nil {
			return true, err
		}
		lines = append(lines, raw)
	}
	if c.output == "table" {
		return differs, nil
	}
	return differs, c.printList(lines, nil)
}

func (c *cli) printDiff(result *applied) error {
	r := result.resource()
	before, err := readable(r.kind, result.Before)
	if err != nil {
		return err
	}
	after, err := readable(r.kind, result.After)
	if err != nil {
		return err
	}
	from, to := "live "+r.String(), "new  "+r.String()
	if result.Before == nil {
		from = "/dev/null"
	}
	if result.After == nil {
		to = "/dev/null"
	}
	paint := palette(c.colour)
	for line := range strings.Lines(udiff.Unified(from, to, before, after)) {
		line = clean(strings.TrimSuffix(line, "\n"))
		switch {
		case strings.HasPrefix(line, "+"):
			line = paint.good(line)
		case strings.HasPrefix(line, "-"):
			line = paint.bad(line)
		}
		if _, err := fmt.Fprintln(c.out, line); err != nil {
			return err
		}
	}
	if result.SecretsDiffer {
		_, err = fmt.Fprintf(c.out, "# %s: a secret differs, and is not shown\n", r)
	}
	return err
}

// readable is a document as YAML, its members in an order that does not depend on how it was written; "" for none.
func readable(k kind, raw json.RawMessage) (string, error) {
	if raw == nil {
		return "", nil
	}
	var v any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return "", err
	}
	sorted, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	if sorted, err = own(k, sorted); err != nil {
		return "", err
	}
	text, err := toYAML(sorted)
	return string(text), err
}
