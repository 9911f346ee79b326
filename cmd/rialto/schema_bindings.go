// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rialto-bridge/rialto/schema"
)

func newSchemaExample(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:     "example FILE",
		Short:   "Print a document that is valid for a JSON Schema; no server needed",
		Long:    "Print a document that is valid for the JSON Schema in a file (- is stdin). It is the same each time.",
		Example: "  rialto schema example order.json | rialto publish --type com.example.order --data -",
		Args:    arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := c.compileAlone(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			doc, err := s.Example()
			if err != nil {
				return err
			}
			_, err = c.out.Write(doc)
			return err
		},
	}
}

func newSchemaBindings(c *cli) *cobra.Command {
	var lang, name string
	cmd := &cobra.Command{
		Use:   "bindings FILE",
		Short: "Print code for the documents of a JSON Schema; no server needed",
		Long: `Print types, and what reads and writes them, for the documents of the JSON Schema in a file (- is stdin). The code
needs nothing but the standard library of its language.`,
		Example: "  rialto schema bindings --lang go --name com.example.order order.json > events/order.go",
		Args:    arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := c.compileAlone(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if name == "" {
				name = strings.TrimSuffix(filepath.Base(args[0]), filepath.Ext(args[0]))
			}
			code, err := s.Bindings(lang, name)
			if err != nil {
				return err
			}
			_, err = c.out.Write(code.Source)
			return err
		},
	}
	cmd.Flags().StringVar(&lang, "lang", "go", "one of "+strings.Join(schema.Languages(), ", "))
	cmd.Flags().StringVar(&name, "name", "", "of the schema or the event type (default: the file's)")
	return cmd
}

// compileAlone reads a JSON Schema without references to others.
func (c *cli) compileAlone(ctx context.Context, name string) (*schema.Compiled, error) {
	read := func() ([]byte, error) { return os.ReadFile(name) }
	if name == "-" {
		read = func() ([]byte, error) { return io.ReadAll(c.in) }
	}
	text, err := read()
	if err != nil {
		return nil, err
	}
	s, err := schema.Compile(ctx, schema.JSONSchema, string(text), nil, schema.NoSource)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}
