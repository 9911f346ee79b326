// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// pausable are the kinds that may be paused, and movable those that may begin elsewhere.
var (
	pausable = []string{"targets", "sources", "links", "regions"}
	movable  = []string{"sources", "links"}
)

func newPause(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "pause KIND NAME",
		Short: "Pause a target, source, link or region until it is resumed",
		Long: `Pause something. Its definition says so from then on, also after a restart.

To a paused target nothing is attempted, and what is owed to it is kept. A paused source takes nothing in: hooks are
answered with 503, so that senders come again. A paused link forwards nothing, nor does any link to a paused region.`,
		Example: `  rialto pause target ops-webhook
  rialto pause source github`,
		Args:              arguments(2, 2),
		ValidArgsFunction: completeAmong(pausable),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.act(cmd, pausable, args[0], args[1], "pause", nil)
		},
	}
}

func newResume(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:               "resume KIND NAME",
		Short:             "Let a paused target, source, link or region go on where it was",
		Example:           `  rialto resume target ops-webhook`,
		Args:              arguments(2, 2),
		ValidArgsFunction: completeAmong(pausable),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.act(cmd, pausable, args[0], args[1], "resume", nil)
		},
	}
}

func newReset(c *cli) *cobra.Command {
	var start string
	cmd := &cobra.Command{
		Use:   "reset KIND NAME",
		Short: "Have a source or link begin elsewhere",
		Long: `Have a source or link begin elsewhere: its position is forgotten. What it has brought before and brings again is
stored again, unless it is still recognised by source and id. The account of a link begins anew.`,
		Example: `  rialto reset source nightly --start 2027-01-02T03:04:05Z
  rialto reset link alarms-up --start latest`,
		Args:              arguments(2, 2),
		ValidArgsFunction: completeAmong(movable),
		RunE: func(cmd *cobra.Command, args []string) error {
			body, err := json.Marshal(map[string]string{"start": start})
			if err != nil {
				return err
			}
			return c.act(cmd, movable, args[0], args[1], "reset", body)
		},
	}
	cmd.Flags().StringVar(&start, "start", "", "earliest, latest or a time; default: what its definition says")
	return cmd
}

// act has the server do something with a definition of one of some kinds, and prints it as it stands then.
func (c *cli) act(cmd *cobra.Command, among []string, kind, name, verb string, body json.RawMessage) error {
	k, err := kindNamed(kind)
	if err != nil {
		return err
	}
	if !slices.Contains(among, k.plural) {
		return usagef("%s is for %s, not for %s", verb, strings.Join(among, ", "), k.plural)
	}
	cl, err := c.client()
	if err != nil {
		return err
	}
	r := request{Method: http.MethodPost, Path: k.path("") + "/" + url.PathEscape(name) + ":" + verb}
	if body != nil {
		r.Body, r.Header = body, http.Header{"Content-Type": {"application/json"}}
	}
	a, err := cl.do(cmd.Context(), r)
	if err != nil {
		return err
	}
	docs, err := c.presentable(k, []json.RawMessage{a.Body})
	if err != nil {
		return err
	}
	return c.print(docs[0], func(w io.Writer) error { return k.table(w, c.now(), docs) })
}

// completeAmong offers kinds as the first argument.
func completeAmong(kinds []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return kinds, cobra.ShellCompDirectiveNoFileComp
	}
}
