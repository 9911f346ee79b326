// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
)

// cli is what every command works with. Tests put buffers, an environment and a clock of their own in it.
type cli struct {
	in     io.Reader
	out    io.Writer // what was asked for
	err    io.Writer // everything else
	getenv func(string) string
	http   *http.Client
	now    func() time.Time
	colour bool // whether out is a terminal that may be coloured
	screen bool // whether out is a terminal
	// hangups delivers SIGHUP until stop is called, which then ends the process again; nil in tests.
	hangups func() (signals <-chan os.Signal, stop func())

	url, key, output string // the global flags
}

// run executes one command line and returns its exit code. It returns early, with exitFailed, when ctx is done.
func run(ctx context.Context, c *cli, args []string) int {
	root := newRoot(c)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	c.complain(err)
	return exitCode(err)
}

func newRoot(c *cli) *cobra.Command {
	root := &cobra.Command{
		Use:   "rialto",
		Short: "An event bridge: MQTT and HTTP in, one durable log, rules, webhooks out",
		Long: `Rialto takes events from devices (MQTT) and applications (HTTP), stores each once, and routes
them by rules. The same binary is the server and the client.

Start with:   rialto demo cold-chain       the whole bridge at work, for looking at
              rialto serve                 a bridge, with its data in ./rialto-data

Exit codes:   0 ok, 1 failed or different, 2 usage, 3 not found, 4 not allowed, 5 conflict,
              6 a test found problems, 7 the server cannot be reached`,
		Args:          arguments(0, 0),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return c.settle()
		},
	}
	root.SetIn(c.in)
	root.SetOut(c.out)
	root.SetErr(c.err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	flags := root.PersistentFlags()
	flags.StringVar(&c.url, "url", "", "address of the server (RIALTO_URL; default "+defaultURL+")")
	flags.StringVar(&c.key, "key", "", "bearer key (RIALTO_KEY; default, for a server on this machine: admin.key in RIALTO_DATA or ./"+defaultData+")")
	flags.StringVarP(&c.output, "output", "o", "table", "how to print: table, json, jsonl or yaml")

	root.AddGroup(&cobra.Group{ID: "server", Title: "The bridge:"}, &cobra.Group{ID: "definitions", Title: "Definitions:"},
		&cobra.Group{ID: "events", Title: "Events:"})
	add := func(group string, commands ...*cobra.Command) {
		for _, cmd := range commands {
			cmd.GroupID = group
			root.AddCommand(cmd)
		}
	}
	add("server", newServe(c), newDemo(c), newRegions(c), newMigrate(c), newExport(c), newImport(c))
	add("definitions", newApply(c), newDiff(c), newValidate(c), newGet(c), newDelete(c), newEnable(c), newPause(c), newResume(c), newReset(c), newDevices(c), newKeys(c), newExplain(c), newTest(c), newAudit(c), newSchema(c), newFunction(c))
	add("events", newPublish(c), newScheduled(c), newTail(c), newSearch(c), newJourney(c), newDeadLetters(c), newDeliveries(c), newRedrive(c), newSkip(c), newLedger(c))
	root.AddCommand(newVersion(c))
	return root
}

// settle checks the global flags and fills in what they leave to the environment.
func (c *cli) settle() error {
	switch c.output {
	case "table", "json", "jsonl", "yaml":
	default:
		return usagef("--output is table, json, jsonl or yaml, not %q", c.output)
	}
	if c.url == "" {
		c.url = c.getenv("RIALTO_URL")
	}
	if c.url == "" {
		c.url = defaultURL
	}
	if c.key == "" {
		c.key = c.getenv("RIALTO_KEY")
	}
	return nil
}

// arguments accepts from min to max arguments; a negative max is no limit.
func arguments(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usagef("%s takes more arguments: %s", cmd.CommandPath(), cmd.UseLine())
		case most >= 0 && len(args) > most && cmd.HasSubCommands() && most == 0:
			return usagef("%s has no command %q; %s --help lists them", cmd.CommandPath(), args[0], cmd.CommandPath())
		case most >= 0 && len(args) > most:
			return usagef("%s takes fewer arguments: %s", cmd.CommandPath(), cmd.UseLine())
		}
		return nil
	}
}

// complain says on stderr what went wrong, with a way on where we know one.
func (c *cli) complain(err error) {
	if errors.Is(err, errQuiet) {
		return
	}
	fmt.Fprintf(c.err, "rialto: %v\n", err)
	var p *problem
	if errors.As(err, &p) {
		for _, e := range p.Errors {
			fmt.Fprintf(c.err, "  %s: %s\n", orDefault(e.Pointer, "(the whole)"), e.Detail)
		}
		if p.RequestID != "" && p.Status >= 500 {
			fmt.Fprintf(c.err, "  request %s, see the server's log\n", p.RequestID)
		}
		if p.Status == http.StatusUnauthorized {
			fmt.Fprintf(c.err, "  give a key with --key or RIALTO_KEY; the first start of a server wrote one to <data>/admin.key\n")
		}
	}
}

func orDefault(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
