// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"net/url"
	"time"

	"github.com/spf13/cobra"
)

func newSearch(c *cli) *cobra.Command {
	var bus, eventType, source, subject, status, target, outcome string
	var w window
	cmd := &cobra.Command{
		Use:   "search",
		Short: "Find stored events by time, type, source, subject, status, or by what became of them at a target",
		Example: `  rialto search --bus devices --type com.acme.telemetry --from 15m
  rialto search --status dead --limit 5
  rialto search --target ops-webhook --outcome parked
  rialto search --subject order-4711 -o json`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{}
			set(query, "type", eventType)
			set(query, "source", source)
			set(query, "subject", subject)
			set(query, "status", status)
			set(query, "target", target)
			set(query, "outcome", outcome)
			if err := w.query(query, c.now()); err != nil {
				return err
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			var items []json.RawMessage
			err = cl.list(cmd.Context(), "/v1/buses/"+url.PathEscape(bus)+"/events", query, w.limit, func(item json.RawMessage) error {
				items = append(items, item)
				return nil
			})
			if err != nil {
				return err
			}
			return c.printList(items, func(out io.Writer) error { return writeEvents(out, items, c.now().Location()) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&bus, "bus", defaultBus, "bus to look in")
	f.StringVar(&eventType, "type", "", "only events of this type")
	f.StringVar(&source, "source", "", "only events of this source")
	f.StringVar(&subject, "subject", "", "only events about this subject")
	f.StringVar(&status, "status", "", "only events that are pending, unmatched, delivered, dead, expired or cancelled")
	f.StringVar(&target, "target", "", "only events with a delivery to this target that is parked or has ended")
	f.StringVar(&outcome, "outcome", "", "with --target: only where it is parked, delivered, dead, expired, cancelled or discarded")
	w.flags(f, 50)
	return cmd
}

// writeEvents prints found events as a table.
func writeEvents(out io.Writer, items []json.RawMessage, zone *time.Location) error {
	var rows [][]string
	for _, raw := range items {
		var s eventStory
		if err := json.Unmarshal(raw, &s); err != nil {
			return err
		}
		var e struct{ ID, Type, Subject string }
		if err := json.Unmarshal(s.Event, &e); err != nil {
			return err
		}
		rows = append(rows, []string{s.Received.In(zone).Format("2006-01-02 15:04:05.000"), clean(e.Type),
			orDefault(clean(e.Subject), "-"), orDefault(clean(s.Status), "-"), clean(s.Position), clean(e.ID)})
	}
	return writeTable(out, []string{"RECEIVED", "TYPE", "SUBJECT", "STATUS", "POSITION", "ID"}, rows)
}
