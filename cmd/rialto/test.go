// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/rialto-bridge/rialto/internal/store/files"
	"github.com/rialto-bridge/rialto/rules"
)

func newTest(c *cli) *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:   "test FILE...",
		Short: "Run rule cases; no server needed",
		Long: `Run the rule cases of files (- is stdin) and print those that fail. A file holds JSON lines of
{"id", "pattern", "event", "expect": true|false|"reject"|"event-error"}, or rule tests in YAML, which
may name a rule that stands in the file before them or in a definition file beside it.
The last line counts them; the exit code is 6 when one fails. With --watch they are run again
whenever a file changes, until Ctrl-C; the exit code is that of the last run.`,
		Example: `  rialto test rules/*.test.yaml
  rialto test --watch too-warm.test.yaml`,
		Args: arguments(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if watch {
				return c.watchFiles(cmd.Context(), args)
			}
			return c.testFiles(args, &library{})
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "run again whenever a file changes")
	return cmd
}

// testFiles runs the cases of files. Rules that they name are taken from lib.
func (c *cli) testFiles(names []string, lib *library) error {
	var passed, failed int
	for _, name := range names {
		p, f, err := c.testFile(name, lib)
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

func (c *cli) testFile(name string, lib *library) (passed, failed int, err error) {
	r, dir := io.NopCloser(c.in), "."
	if name != "-" {
		if r, err = os.Open(name); err != nil {
			return 0, 0, err
		}
		dir = filepath.Dir(name)
	}
	passed, failed, err = rules.RunCasesWith(r, c.out, func(rule string) (*rules.Rule, error) { return lib.rule(dir, rule) })
	return passed, failed, errors.Join(err, r.Close())
}

// library finds rules by name in the definition files of folders. The zero value is ready.
type library struct {
	read   []string                // files that were looked into, and their folders
	stamps []fileStamp             // of those, from before they were read
	found  map[string][]*shelfRule // by folder
}

func (l *library) reads(name string) {
	l.read, l.stamps = append(l.read, name), append(l.stamps, stampsOf([]string{name})...)
}

type shelfRule struct {
	name, file string
	raw        json.RawMessage
}

// rule returns the one rule of a name in the files of a folder. Files that hold something else are passed over.
func (l *library) rule(dir, name string) (*rules.Rule, error) {
	shelf, ok := l.found[dir]
	if !ok {
		var err error
		if shelf, err = l.load(dir); err != nil {
			return nil, err
		}
		if l.found == nil {
			l.found = map[string][]*shelfRule{}
		}
		l.found[dir] = shelf
	}
	var hit *shelfRule
	for _, r := range shelf {
		switch {
		case r.name != name:
		case hit != nil:
			return nil, fmt.Errorf("rule %s stands in %s and in %s", name, hit.file, r.file)
		default:
			hit = r
		}
	}
	if hit == nil {
		return nil, fmt.Errorf("there is no rule %s in the file before its tests, nor in the files beside it", clean(name))
	}
	r, err := rules.ParseRule(hit.raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", hit.file, err)
	}
	return r, nil
}

// load reads the rules of the definition files that stand in a folder itself.
func (l *library) load(dir string) ([]*shelfRule, error) {
	l.reads(dir) // a new file may have what is missing
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var shelf []*shelfRule
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		if !e.Type().IsRegular() || !slices.Contains(files.Endings, filepath.Ext(name)) {
			continue
		}
		l.reads(name)
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		text, err := readAll(f)
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		values, err := files.Split(text)
		if err != nil {
			continue // some other file
		}
		for _, value := range values {
			var head struct{ Kind, Name string }
			if json.Unmarshal(value, &head) == nil && head.Kind == "Rule" {
				shelf = append(shelf, &shelfRule{name: head.Name, file: name, raw: value})
			}
		}
	}
	return shelf, nil
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
		var lib library
		seen := stampsOf(names) // before the files are read: what changes meanwhile is seen next time
		if c.screen {
			fmt.Fprint(c.out, clearScreen)
		}
		err := c.testFiles(names, &lib)
		if err != nil {
			c.complain(err) // a file that is half written is no reason to stop
		}
		all := slices.Concat(names, lib.read)
		seen = append(seen, lib.stamps...)
		fmt.Fprintf(c.err, "watching %s\n", count(len(names), "file"))
		for slices.Equal(seen, stampsOf(all)) {
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
