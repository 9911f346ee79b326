// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/rialto-bridge/rialto/rules"
)

func newTest(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "test FILE...",
		Short: "Run rule cases; no server needed",
		Long: `Run the rule cases of files (- is stdin) and print those that fail. A file holds JSON lines of
{"id", "pattern", "event", "expect": true|false|"reject"|"event-error"}, or rule tests in YAML.
The last line counts them; the exit code is 6 when one fails.`,
		Args: arguments(1, -1),
		RunE: func(_ *cobra.Command, args []string) error {
			var passed, failed int
			for _, name := range args {
				p, f, err := c.testFile(name)
				passed, failed = passed+p, failed+f
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
			if len(args) > 1 {
				fmt.Fprintf(c.out, "%d passed, %d failed\n", passed, failed)
			}
			if failed > 0 {
				return &codeError{exitProblems, errQuiet}
			}
			return nil
		},
	}
}

func (c *cli) testFile(name string) (passed, failed int, err error) {
	r := io.NopCloser(c.in)
	if name != "-" {
		if r, err = os.Open(name); err != nil {
			return 0, 0, err
		}
	}
	passed, failed, err = rules.RunCases(r, c.out)
	return passed, failed, errors.Join(err, r.Close())
}
