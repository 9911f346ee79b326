// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/rialto-bridge/rialto/rules"
)

func newTest(c *cli) *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:   "test FILE...",
		Short: "Run rule cases; no server needed",
		Long: `Run the rule cases of files (- is stdin) and print those that fail. A file holds JSON lines of
{"id", "pattern", "event", "expect": true|false|"reject"|"event-error"}, or rule tests in YAML.
The last line counts them; the exit code is 6 when one fails. With --watch they are run again
whenever a file changes, until Ctrl-C; the exit code is that of the last run.`,
		Example: `  rialto test rules/*.test.yaml
  rialto test --watch too-warm.test.yaml`,
		Args: arguments(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if watch {
				return c.watchFiles(cmd.Context(), args)
			}
			return c.testFiles(args)
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "run again whenever a file changes")
	return cmd
}

// testFiles runs the cases of files.
func (c *cli) testFiles(names []string) error {
	var passed, failed int
	for _, name := range names {
		p, f, err := c.testFile(name)
		passed, failed = passed+p, failed+f
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if len(names) > 1 {
		fmt.Fprintf(c.out, "%d passed, %d failed\n", passed, failed)
	}
	if failed > 0 {
		return &codeError{exitProblems, errQuiet}
	}
	return nil
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

// watchEvery is how often files are looked at.
const watchEvery = 300 * time.Millisecond

// clearScreen clears a terminal and goes to its first line.
const clearScreen = "\x1b[2J\x1b[3J\x1b[H"

// watchFiles is testFiles again and again, until ctx is done.
func (c *cli) watchFiles(ctx context.Context, names []string) error {
	if slices.Contains(names, "-") {
		return usagef("--watch watches files, and - is stdin")
	}
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		seen := stampsOf(names) // before the files are read: what changes meanwhile is seen next time
		if c.screen {
			fmt.Fprint(c.out, clearScreen)
		}
		err := c.testFiles(names)
		if err != nil {
			c.complain(err) // a file that is half written is no reason to stop
		}
		fmt.Fprintf(c.err, "watching %s\n", count(len(names), "file"))
		for slices.Equal(seen, stampsOf(names)) {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				if err != nil {
					return &codeError{exitCode(err), errQuiet}
				}
				return nil
			}
		}
	}
}

// fileStamp is what is compared to see that a file has changed. The zero value is a file that cannot be looked at.
type fileStamp struct {
	changed time.Time
	size    int64
}

func stampsOf(names []string) []fileStamp {
	list := make([]fileStamp, len(names))
	for i, name := range names {
		if info, err := os.Stat(name); err == nil {
			list[i] = fileStamp{info.ModTime(), info.Size()}
		}
	}
	return list
}
