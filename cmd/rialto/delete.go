// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/spf13/cobra"
)

func newDelete(c *cli) *cobra.Command {
	var files []string
	var bus string
	var ignoreMissing bool
	cmd := &cobra.Command{
		Use:   "delete KIND NAME... | delete -f FILE|DIR|-",
		Short: "Delete definitions, by name or all that a file holds",
		Long: `Delete definitions. What waits for a rule or target that is deleted ends as cancelled. With -f, rules go
first, then what they refer to.`,
		Example: `  rialto delete rule too-warm --bus devices
  rialto delete -f bridge.yaml`,
		Args:              arguments(0, -1),
		ValidArgsFunction: completeAmong(kindNames()),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(files) == 0 && len(args) < 2 || len(files) > 0 && len(args) > 0 {
				return usagef("delete takes KIND and NAME, or -f FILE")
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			doomed, err := c.doomed(cmd.Context(), cl, args, bus, files)
			if err != nil {
				return err
			}
			return c.delete(cmd.Context(), cl, doomed, ignoreMissing)
		},
	}
	cmd.Flags().StringSliceVarP(&files, "filename", "f", nil, "file, folder or - for stdin")
	cmd.Flags().StringVar(&bus, "bus", "", "bus of the rule (default: the one bus that has it)")
	cmd.Flags().BoolVar(&ignoreMissing, "ignore-not-found", false, "what is not there counts as deleted")
	return cmd
}

// doomed lists what a command line asks to delete, in the order in which it can go.
func (c *cli) doomed(ctx context.Context, cl *client, args []string, bus string, files []string) ([]resource, error) {
	var all []resource
	if len(files) > 0 {
		docs, err := c.readDocuments(files)
		for _, doc := range slices.Backward(docs) {
			all = append(all, doc.resource)
		}
		return all, err
	}
	k, err := kindNamed(args[0])
	if err != nil {
		return nil, err
	}
	for _, name := range args[1:] {
		r, err := cl.resolve(ctx, resource{kind: k, bus: bus, name: name})
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

func (c *cli) delete(ctx context.Context, cl *client, doomed []resource, ignoreMissing bool) error {
	var errs []error
	var results []json.RawMessage
	for _, r := range doomed {
		outcome := "deleted"
		_, err := cl.do(ctx, request{Method: http.MethodDelete, Path: r.path()})
		if err != nil && ignoreMissing && exitCode(err) == exitNotFound {
			outcome, err = "not there", nil
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", r, err))
			if exitCode(err) == exitUnreachable {
				break // the others would say the same
			}
			continue
		}
		if c.output == "table" {
			fmt.Fprintf(c.out, "%s %s\n", r, outcome)
		}
		raw, err := json.Marshal(applied{Kind: r.kind.name, Bus: r.bus, Name: r.name, Outcome: outcome})
		if err != nil {
			return err
		}
		results = append(results, raw)
	}
	if c.output != "table" {
		if err := c.printList(results, nil); err != nil {
			return err
		}
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}
