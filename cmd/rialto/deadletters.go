// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"
)

func newDeadLetters(c *cli) *cobra.Command {
	var bus, rule, target, reason string
	var w window
	cmd := &cobra.Command{
		Use:   "deadletters",
		Short: "List deliveries that ended without success, and why",
		Example: `  rialto deadletters --target ops-webhook --from 24h
  rialto deadletters -o jsonl | jq .event`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{}
			set(query, "bus", bus)
			set(query, "rule", rule)
			set(query, "target", target)
			set(query, "reason", reason)
			if err := w.query(query, c.now()); err != nil {
				return err
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			var items []json.RawMessage
			err = cl.list(cmd.Context(), "/v1/deadletters", query, w.limit, func(item json.RawMessage) error {
				items = append(items, item)
				return nil
			})
			if err != nil {
				return err
			}
			return c.printList(items, func(out io.Writer) error { return writeDeadLetters(out, items, c.now().Location()) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&bus, "bus", "", "only of this bus")
	f.StringVar(&rule, "rule", "", "only of this rule")
	f.StringVar(&target, "target", "", "only for this target")
	f.StringVar(&reason, "reason", "", "only for this reason, such as status or timeout")
	w.flags(f, 50)
	return cmd
}

func writeDeadLetters(out io.Writer, items []json.RawMessage, zone *time.Location) error {
	var rows [][]string
	for _, raw := range items {
		var d struct {
			Last     time.Time `json:"lastAttempt"`
			Rule     string    `json:"rule"`
			Target   string    `json:"target"`
			Position string    `json:"position"`
			EventID  string    `json:"eventId"`
			Reason   string    `json:"reason"`
			Detail   string    `json:"detail"`
			Status   int       `json:"status"`
			Attempts int       `json:"attempts"`
		}
		if err := json.Unmarshal(raw, &d); err != nil {
			return err
		}
		why := d.Reason
		if d.Status != 0 {
			why += " " + strconv.Itoa(d.Status)
		}
		if d.Detail != "" {
			why += ": " + d.Detail
		}
		rows = append(rows, []string{d.Last.In(zone).Format("2006-01-02 15:04:05"), clean(d.Rule), clean(d.Target),
			clean(orDefault(d.EventID, d.Position)), strconv.Itoa(d.Attempts), shorten(clean(why), 60)})
	}
	return writeTable(out, []string{"LAST ATTEMPT", "RULE", "TARGET", "EVENT", "ATTEMPTS", "WHY"}, rows)
}
