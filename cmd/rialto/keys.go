// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"
)

func newKeys(c *cli) *cobra.Command {
	cmd := newKeyList(c, "keys")
	cmd.Short = "List, make, rotate and delete keys of the HTTP API"
	cmd.Long = `Keys of the HTTP API: what they may do, until when, and when they were last used. The secret of a key is shown once,
by "create" and "rotate", as the only line on stdout.`
	cmd.Example = `  rialto keys
  rialto keys create ci --scope events:write:default --scope definitions:read --expires 720h
  rialto keys rotate ci --grace 1h
  rialto keys delete ci`
	cmd.AddCommand(newKeyList(c, "list"), newKeyCreate(c), newKeyRotate(c), newKeyDelete(c))
	return cmd
}

func newKeyList(c *cli, use string) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: "List keys",
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := kindNamed("Key")
			if err != nil {
				return err
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			var items []json.RawMessage
			err = cl.list(cmd.Context(), k.path(""), nil, 0, func(item json.RawMessage) error {
				items = append(items, item)
				return nil
			})
			if err != nil {
				return err
			}
			return c.printList(items, func(out io.Writer) error { return k.table(out, c.now(), items) })
		},
	}
}

func newKeyCreate(c *cli) *cobra.Command {
	var scopes []string
	var expires time.Duration
	cmd := &cobra.Command{
		Use:     "create NAME --scope SCOPE...",
		Short:   "Make a key and show its secret",
		Example: `  rialto keys create ci --scope events:write:default --expires 720h`,
		Args:    arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(scopes) == 0 {
				return usagef("say with --scope what the key may do, such as --scope events:write:default")
			}
			doc := map[string]any{"kind": "Key", "name": args[0], "scopes": scopes}
			if cmd.Flags().Changed("expires") {
				if expires <= 0 {
					return usagef("--expires is a time from now on, such as 720h")
				}
				doc["expiresAt"] = c.now().Add(expires).UTC().Format(time.RFC3339)
			}
			return c.showSecret(cmd, "/v1/keys", nil, doc)
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&scopes, "scope", nil, "what it may do, <events|definitions|devices|queues|admin>:<read|write|*>[:<bus>]; may be repeated")
	f.DurationVar(&expires, "expires", 0, "after how long it expires; default: never")
	return cmd
}

func newKeyRotate(c *cli) *cobra.Command {
	var grace time.Duration
	cmd := &cobra.Command{
		Use:     "rotate NAME",
		Short:   "Give a key a new secret and show it",
		Example: `  rialto keys rotate ci --grace 1h`,
		Args:    arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.showSecret(cmd, "/v1/keys/"+url.PathEscape(args[0])+":rotate", url.Values{"grace": {grace.String()}}, nil)
		},
	}
	cmd.Flags().DurationVar(&grace, "grace", 0, "how long the old secret is good beside the new one, 720h at most")
	return cmd
}

func newKeyDelete(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete a key: it is good for nothing from then on",
		Args:  arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			if _, err := cl.do(cmd.Context(), request{Method: http.MethodDelete, Path: "/v1/keys/" + url.PathEscape(args[0])}); err != nil {
				return err
			}
			fmt.Fprintf(c.err, "key/%s deleted\n", clean(args[0]))
			return nil
		},
	}
}

// showSecret posts what makes a secret and prints that alone, unless the whole document is asked for.
func (c *cli) showSecret(cmd *cobra.Command, path string, query url.Values, body any) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	r := request{Method: http.MethodPost, Path: path, Query: query}
	if body != nil {
		if r.Body, err = json.Marshal(body); err != nil {
			return err
		}
		r.Header = http.Header{"Content-Type": {"application/json"}}
	}
	a, err := cl.do(cmd.Context(), r)
	if err != nil {
		return err
	}
	var key struct {
		Secret string `json:"secret"`
	}
	if err := json.Unmarshal(a.Body, &key); err != nil {
		return fmt.Errorf("unreadable answer: %w", err)
	}
	return c.print(json.RawMessage(a.Body), func(out io.Writer) error {
		_, err := fmt.Fprintln(out, key.Secret)
		return err
	})
}
