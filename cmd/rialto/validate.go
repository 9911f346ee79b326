// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rialto-bridge/rialto/internal/app"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store/files"
)

func newValidate(c *cli) *cobra.Command {
	var names []string
	cmd := &cobra.Command{
		Use:   "validate -f FILE|DIR|-",
		Short: "Check definitions without a server",
		Long: `Check definitions as a server would: what each kind allows, patterns, expressions, templates, schemas, and
whether what they name is there. What they name and is not in the files is a warning, since the server may
have it. Only a server knows whether a target's address is one that it may call, whether references to
secrets (env:, file:) can be resolved, and whether a schema is compatible with its versions before.

Exit codes: 0 nothing is wrong (there may be warnings), 6 something is, 2 usage, 1 a file cannot be read.`,
		Example: `  rialto validate -f definitions/`,
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(names) == 0 {
				return usagef("validate needs -f FILE, -f DIR or -f -")
			}
			return c.validate(cmd.Context(), names)
		},
	}
	cmd.Flags().StringSliceVarP(&names, "filename", "f", nil, "file, folder or - for stdin; may be given more than once")
	return cmd
}

func (c *cli) validate(ctx context.Context, names []string) error {
	docs, err := c.readDocuments(names)
	if err != nil {
		var wrong *files.Error
		if errors.As(err, &wrong) {
			return &codeError{exitProblems, err}
		}
		return err
	}
	var raws []json.RawMessage
	for _, d := range docs {
		raws = append(raws, d.Raw)
	}
	wrong, doubts, err := app.CheckDefinitions(ctx, raws)
	if err != nil {
		return err
	}
	for _, d := range doubts {
		fmt.Fprintf(c.err, "warning: %s\n", clean(placed(docs, d)))
	}
	for _, d := range wrong {
		fmt.Fprintf(c.err, "%s\n", clean(placed(docs, d)))
	}
	if len(wrong) > 0 {
		return &codeError{exitProblems, fmt.Errorf("%s of %s", count(len(wrong), "mistake"), count(len(docs), "document"))}
	}
	_, err = fmt.Fprintf(c.out, "%s, nothing wrong\n", count(len(docs), "document"))
	return err
}

// placed is a complaint about a document of a set, with its file and line.
func placed(docs []document, d fault.Detail) string {
	var from []files.Document
	for _, doc := range docs {
		from = append(from, doc.Document)
	}
	return files.Locate(from, d)
}
