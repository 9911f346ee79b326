// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"
)

func newSchemaList(c *cli) *cobra.Command {
	var labels string
	cmd := &cobra.Command{
		Use:   "list [GROUP]",
		Short: "List schemas",
		Args:  arguments(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := url.Values{}
			if len(args) == 1 {
				q.Set("group", args[0])
			}
			if labels != "" {
				q.Set("labels", labels)
			}
			return c.listOf(cmd.Context(), "/v1/schemas", q, []string{"SCHEMA", "FORMAT", "COMPATIBILITY", "POLICY", "CHANGED"}, func(d map[string]any) []string {
				return []string{cell(d["group"]) + "/" + cell(d["name"]), cell(d["format"]), cell(d["compatibility"]), cell(d["policy"]), ago(c.now(), cell(d["updatedAt"]))}
			})
		},
	}
	cmd.Flags().StringVarP(&labels, "labels", "l", "", "only those with these labels: a=b,c=d")
	return cmd
}

// listOf prints a list of documents.
func (c *cli) listOf(ctx context.Context, path string, q url.Values, headings []string, row func(map[string]any) []string) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	var items []json.RawMessage
	var rows [][]string
	err = cl.list(ctx, path, q, 0, func(item json.RawMessage) error {
		var d map[string]any
		if err := json.Unmarshal(item, &d); err != nil {
			return err
		}
		items, rows = append(items, item), append(rows, row(d))
		return nil
	})
	if err != nil {
		return err
	}
	return c.printList(items, func(w io.Writer) error { return writeTable(w, headings, rows) })
}

func newSchemaVersions(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "versions GROUP/NAME",
		Short: "List the versions of a schema",
		Args:  arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := schemaNamed(args[0])
			if err != nil {
				return err
			}
			return c.listOf(cmd.Context(), schemaAddress(n)+"/versions", nil, []string{"VERSION", "ID", "STATE", "MADE"}, func(d map[string]any) []string {
				return []string{whole(d["version"]), whole(d["id"]), cell(d["state"]), ago(c.now(), cell(d["createdAt"]))}
			})
		},
	}
}

// whole is a number as JSON had it.
func whole(v any) string {
	if f, ok := v.(float64); ok {
		return strconv.FormatInt(int64(f), 10)
	}
	return cell(v)
}

func newSchemaGet(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "get GROUP/NAME [VERSION]",
		Short: "Print the text of a version, the latest if none is named",
		Long:  "Print the text of a version as it was registered. With -o json or yaml all that is known of it is printed.",
		Args:  arguments(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := schemaNamed(args[0])
			if err != nil {
				return err
			}
			version := "latest"
			if len(args) == 2 {
				version = args[1]
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			a, err := cl.do(cmd.Context(), request{Method: http.MethodGet, Path: schemaAddress(n) + "/versions/" + url.PathEscape(version)})
			if err != nil {
				return err
			}
			return c.print(json.RawMessage(a.Body), func(w io.Writer) error {
				var v struct{ Text string }
				if err := json.Unmarshal(a.Body, &v); err != nil {
					return err
				}
				_, err := fmt.Fprintln(w, v.Text)
				return err
			})
		},
	}
}

func newSchemaState(c *cli, verb, state, short string) *cobra.Command {
	return &cobra.Command{
		Use:   verb + " GROUP/NAME VERSION",
		Short: short,
		Args:  arguments(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := c.onSchema(cmd.Context(), args[0], http.MethodPut, "/versions/"+url.PathEscape(args[1])+"/state", fmt.Appendf(nil, `{"state":%q}`, state))
			if err != nil {
				return err
			}
			return c.sayVersion(a.Body, "changed")
		},
	}
}

// onSchema calls something below the address of a schema.
func (c *cli) onSchema(ctx context.Context, name, method, suffix string, body []byte) (*answer, error) {
	n, err := schemaNamed(name)
	if err != nil {
		return nil, err
	}
	cl, err := c.client()
	if err != nil {
		return nil, err
	}
	r := request{Method: method, Path: schemaAddress(n) + suffix, Body: body}
	if body != nil {
		r.Header = http.Header{"Content-Type": {"application/json"}}
	}
	return cl.do(ctx, r)
}

func newSchemaDelete(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "delete GROUP/NAME [VERSION]",
		Short: "Delete a version, or a schema with all of them",
		Long: `Delete. What is deleted stays as a tombstone, so that its numbers are not given again and events that name it can be
read. What others refer to, or event types are bound to, cannot be deleted.`,
		Args: arguments(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			suffix, what := "", args[0]
			if len(args) == 2 {
				suffix, what = "/versions/"+url.PathEscape(args[1]), what+" version "+args[1]
			}
			if _, err := c.onSchema(cmd.Context(), args[0], http.MethodDelete, suffix, nil); err != nil {
				return err
			}
			fmt.Fprintf(c.out, "%s deleted\n", clean(what))
			return nil
		},
	}
}

func newSchemaBind(c *cli, bind bool) *cobra.Command {
	verb, method, said, short := "bind", http.MethodPut, "bound to", "Say that the events of a type have a schema"
	if !bind {
		verb, method, said, short = "unbind", http.MethodDelete, "no longer bound to", "End that the events of a type have a schema"
	}
	return &cobra.Command{
		Use:   verb + " GROUP/NAME TYPE",
		Short: short,
		Args:  arguments(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := c.onSchema(cmd.Context(), args[0], method, "/types/"+url.PathEscape(args[1]), nil); err != nil {
				return err
			}
			fmt.Fprintf(c.out, "events of type %s are %s %s\n", clean(args[1]), said, clean(args[0]))
			return nil
		},
	}
}
