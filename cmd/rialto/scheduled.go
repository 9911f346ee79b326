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

func newScheduled(c *cli) *cobra.Command {
	cmd := newScheduledList(c, "scheduled")
	cmd.Short = "List and cancel events that are scheduled"
	cmd.Long = `Events that were published with --at or --delay and are not due yet. One that is cancelled is never stored; one
that is due in this moment may be stored before the cancel arrives, and then the cancel says that there is none.`
	cmd.Example = `  rialto publish --type com.acme.reminder --id reminder-17 --delay 2h
  rialto scheduled
  rialto scheduled cancel reminder-17`
	cmd.AddCommand(newScheduledList(c, "list"), newScheduledOne(c, "get"), newScheduledOne(c, "cancel"))
	return cmd
}

func newScheduledList(c *cli, use string) *cobra.Command {
	var bus string
	var limit int
	cmd := &cobra.Command{
		Use:   use,
		Short: "List scheduled events",
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 0 {
				return usagef("--limit is not negative")
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			var items []json.RawMessage
			err = cl.list(cmd.Context(), "/v1/scheduled", onBus(bus), limit, func(item json.RawMessage) error {
				items = append(items, item)
				return nil
			})
			if err != nil {
				return err
			}
			return c.printList(items, func(out io.Writer) error { return writeScheduled(out, items, c.now().Location()) })
		},
	}
	cmd.Flags().StringVar(&bus, "bus", "", "only of this bus")
	cmd.Flags().IntVar(&limit, "limit", 100, "at most this many")
	return cmd
}

func writeScheduled(out io.Writer, items []json.RawMessage, zone *time.Location) error {
	var rows [][]string
	for _, raw := range items {
		var k struct {
			ID     string    `json:"id"`
			Bus    string    `json:"bus"`
			Source string    `json:"source"`
			Type   string    `json:"type"`
			At     time.Time `json:"at"`
		}
		if err := json.Unmarshal(raw, &k); err != nil {
			return fmt.Errorf("unreadable answer: %w", err)
		}
		rows = append(rows, []string{k.At.In(zone).Format("2006-01-02 15:04:05"), clean(k.ID), clean(k.Bus), clean(k.Type), clean(k.Source)})
	}
	return writeTable(out, []string{"DUE", "ID", "BUS", "TYPE", "SOURCE"}, rows)
}

// newScheduledOne is get or cancel.
func newScheduledOne(c *cli, verb string) *cobra.Command {
	var bus, source string
	cmd := &cobra.Command{
		Use:     verb + " EVENT-ID",
		Short:   map[string]string{"get": "Show a scheduled event", "cancel": "Cancel a scheduled event"}[verb],
		Example: "  rialto scheduled " + verb + " reminder-17",
		Args:    arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			query := onBus(bus)
			set(query, "source", source)
			method := http.MethodGet
			if verb == "cancel" {
				method = http.MethodDelete
			}
			a, err := cl.do(cmd.Context(), request{Method: method, Path: "/v1/scheduled/" + url.PathEscape(args[0]), Query: query})
			if err != nil {
				return err
			}
			if verb == "cancel" {
				fmt.Fprintf(c.err, "%s is cancelled\n", clean(args[0]))
				return nil
			}
			if c.output == "table" { // there is nothing to put in columns
				c.output = "yaml"
			}
			return c.encode(json.RawMessage(a.Body))
		},
	}
	cmd.Flags().StringVar(&bus, "bus", "", "bus of the event, if several have the id")
	cmd.Flags().StringVar(&source, "source", "", "source of the event, if several have the id")
	return cmd
}
