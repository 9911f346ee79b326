// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"io"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
)

func newGet(c *cli) *cobra.Command {
	var bus, labels string
	var watch bool
	cmd := &cobra.Command{
		Use:   "get KIND [NAME]",
		Short: "Show definitions: " + strings.Join(kindNames(), ", "),
		Long: `Show one definition, or all of a kind. With -o yaml the output is what apply takes: the server's own
fields (revision, times, status) are left out. With -o json everything is there.

With --watch every definition of the kind is told, and then each change as it happens, until you stop it:
a line for each, or with -o jsonl {"event": "put" or "delete", "document"}. A stream that breaks goes on
where it was.`,
		Example: `  rialto get rules
  rialto get targets --watch -o jsonl
  rialto get rule too-warm --bus devices -o yaml > too-warm.yaml`,
		Args:              arguments(1, 2),
		ValidArgsFunction: completeAmong(kindNames()),
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := kindNamed(args[0])
			if err != nil {
				return err
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			switch {
			case watch && len(args) == 2:
				return usagef("--watch follows all definitions of a kind; leave the name out")
			case watch && k.inBus && bus == "":
				return usagef("--watch follows the %s of one bus: name it with --bus", k.plural)
			case watch:
				return c.watch(cmd.Context(), cl, k, bus, labels)
			case len(args) == 2:
				return c.getOne(cmd.Context(), cl, resource{kind: k, bus: bus, name: args[1]})
			}
			return c.getAll(cmd.Context(), cl, k, bus, labels)
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "tell changes as they happen")
	cmd.Flags().StringVar(&bus, "bus", "", "bus of the rules (default: all buses)")
	cmd.Flags().StringVarP(&labels, "labels", "l", "", "only those with these labels: a=b,c=d")
	return cmd
}

func (c *cli) getOne(ctx context.Context, cl *client, r resource) error {
	r, err := cl.resolve(ctx, r)
	if err != nil {
		return err
	}
	found, err := cl.fetch(ctx, r)
	if err != nil {
		return err
	}
	docs, err := c.presentable(r.kind, []json.RawMessage{found.raw})
	if err != nil {
		return err
	}
	return c.print(docs[0], func(w io.Writer) error { return r.kind.table(w, c.now(), docs) })
}

func (c *cli) getAll(ctx context.Context, cl *client, k kind, bus, labels string) error {
	buses := []string{bus}
	if k.inBus && bus == "" {
		var err error
		if buses, err = cl.buses(ctx); err != nil {
			return err
		}
	}
	query := url.Values{}
	if labels != "" {
		query.Set("labels", labels)
	}
	var docs []json.RawMessage
	for _, bus := range buses {
		err := cl.list(ctx, k.path(bus), query, 0, func(item json.RawMessage) error {
			docs = append(docs, item)
			return nil
		})
		if err != nil {
			return err
		}
	}
	docs, err := c.presentable(k, docs)
	if err != nil {
		return err
	}
	return c.printList(docs, func(w io.Writer) error { return k.table(w, c.now(), docs) })
}

// presentable makes documents what apply takes when they are printed as YAML.
func (c *cli) presentable(k kind, docs []json.RawMessage) ([]json.RawMessage, error) {
	if c.output != "yaml" {
		return docs, nil
	}
	var bare []json.RawMessage
	for _, doc := range docs {
		b, err := own(k, doc)
		if err != nil {
			return nil, err
		}
		bare = append(bare, b)
	}
	return bare, nil
}
