// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rialto-bridge/rialto/internal/app"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store/postgres"
)

// place is where definitions are: in a data directory or in Postgres.
type place struct{ data, postgres string }

func (p *place) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.data, "data", defaultData, "data directory of a bridge that does not run (RIALTO_DATA)")
	cmd.Flags().StringVar(&p.postgres, "postgres", "", "database instead (RIALTO_POSTGRES)")
}

// settle fills in what the command line leaves to the environment. A data directory that it names wins over a database
// that only the environment does.
func (p *place) settle(c *cli, cmd *cobra.Command) error {
	named, database := cmd.Flags().Changed("data"), cmd.Flags().Changed("postgres")
	if named && database {
		return usagef("--data and --postgres are two places: name one")
	}
	if err := fillFlags(cmd.Flags(), "", c.getenv); err != nil {
		return err
	}
	if named {
		p.postgres = ""
	}
	return p.check()
}

func (p *place) check() error {
	if p.postgres != "" {
		if err := postgres.CheckDSN(p.postgres); err != nil {
			return usagef("--postgres: %v", err)
		}
	}
	return nil
}

// with runs do on the stores of a place. Its errors have the exit codes of a client's.
func (p *place) with(ctx context.Context, c *cli, makeData bool, do func(*app.Transfer) error) error {
	log := slog.New(slog.NewTextHandler(c.err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	t, err := app.OpenTransfer(ctx, p.data, p.postgres, makeData, log)
	if err != nil {
		return err
	}
	return withCode(errors.Join(do(t), t.Close()))
}

// withCode gives an error of a store the exit code that the same answer of a server has.
func withCode(err error) error {
	var f *fault.Error
	if !errors.As(err, &f) {
		return err
	}
	switch f.Kind {
	case fault.Conflict:
		return &codeError{exitConflict, err}
	case fault.Unavailable:
		if f.Err != nil {
			err = fmt.Errorf("%w: %w", err, f.Err)
		}
		return &codeError{exitUnreachable, err}
	}
	return err
}

func newExport(c *cli) *cobra.Command {
	var from place
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write all definitions and schemas, sealed secrets included, to stdout",
		Long: `Write everything that a bridge is told: definitions of every kind, keys and passwords as the hashes that are stored,
secrets as they are sealed, and schemas. import brings it into another place; together they move a bridge between its data
directory and Postgres. Events are not in it.

It reads the store itself, not the server: a data directory must not be in use, a database may be.`,
		Example: `  (umask 077; rialto export --data /var/lib/rialto > definitions.jsonl)
  rialto export --postgres postgres://rialto@db.example.com/rialto | rialto import --data /var/lib/rialto -`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := from.settle(c, cmd); err != nil {
				return err
			}
			return from.with(cmd.Context(), c, false, func(t *app.Transfer) error {
				n, err := t.Export(cmd.Context(), c.out)
				if err == nil {
					fmt.Fprintf(c.err, "%s\n", count(n, "document"))
				}
				return err
			})
		},
	}
	from.flags(cmd)
	return cmd
}

func newImport(c *cli) *cobra.Command {
	var to place
	var replace bool
	cmd := &cobra.Command{
		Use:   "import FILE|-",
		Short: "Bring what export has written into a data directory or a database",
		Long: `Write the documents of an export as they are. Nothing is written if the export is not whole, or if something is there
already with another content (exit code 5), unless --replace says that the export is right. What is there and not in the
export stays. The same import again changes nothing.

It writes to the store itself, not to the server: a data directory must not be in use (one that is not there is made), a
database is migrated first if need be.`,
		Example: `  rialto import --postgres postgres://rialto@db.example.com/rialto definitions.jsonl`,
		Args:    arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := to.settle(c, cmd); err != nil {
				return err
			}
			in := c.in
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				in = f
			}
			return to.with(cmd.Context(), c, true, func(t *app.Transfer) error { return c.importInto(cmd.Context(), t, in, replace) })
		},
	}
	to.flags(cmd)
	cmd.Flags().BoolVar(&replace, "replace", false, "write over what is there with another content")
	return cmd
}

func (c *cli) importInto(ctx context.Context, t *app.Transfer, in io.Reader, replace bool) error {
	done, err := t.Import(ctx, in, replace)
	if err != nil && done.Written > 0 {
		fmt.Fprintf(c.err, "%s written before it failed; the same import again goes on from there\n", count(done.Written, "document"))
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(c.err, "%s written, %d unchanged\n", count(done.Written, "document"), done.Unchanged)
	return nil
}

func newMigrate(c *cli) *cobra.Command {
	var to place
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Make or update the tables in Postgres",
		Long: `Bring the tables up to what this version needs. serve does the same when it starts; this command is for a role that
may make tables where the one that serves may not. Any number of both may run at a time. A migration that fails leaves
everything as it was before it. There is no way back.`,
		Example: `  rialto migrate --postgres postgres://owner@db.example.com/rialto`,
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := fillFlags(cmd.Flags(), "", c.getenv); err != nil {
				return err
			}
			if to.postgres == "" {
				return usagef("migrate needs --postgres DSN or RIALTO_POSTGRES")
			}
			if err := to.check(); err != nil {
				return err
			}
			return c.migrate(cmd.Context(), to.postgres)
		},
	}
	cmd.Flags().StringVar(&to.postgres, "postgres", "", "database (RIALTO_POSTGRES)")
	return cmd
}

func (c *cli) migrate(ctx context.Context, dsn string) error {
	done, err := postgres.Migrate(ctx, dsn)
	if len(done) > 0 {
		var numbers []string
		for _, n := range done {
			numbers = append(numbers, fmt.Sprint(n))
		}
		fmt.Fprintf(c.out, "migrated: %s\n", strings.Join(numbers, ", "))
	}
	switch {
	case err != nil && postgres.Away(err):
		return &codeError{exitUnreachable, err}
	case err == nil && len(done) == 0:
		fmt.Fprintln(c.out, "nothing to do")
	}
	return err
}
