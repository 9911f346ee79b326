// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"
)

func newLedger(c *cli) *cobra.Command {
	var bus string
	var w window
	cmd := &cobra.Command{
		Use:   "ledger",
		Short: "Account for every accepted event; exit code 1 if it does not add up",
		Long: `Show how many events were accepted, what became of them, and how many deliveries are owed and were
made. Every line adds up; a difference is a bug of the bridge and ends the command with exit code 1.`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{}
			set(query, "bus", bus)
			if err := w.query(query, c.now()); err != nil {
				return err
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			a, err := cl.do(cmd.Context(), request{Method: "GET", Path: "/v1/ledger", Query: query})
			if err != nil {
				return err
			}
			var account ledger
			if err := json.Unmarshal(a.Body, &account); err != nil {
				return fmt.Errorf("unreadable answer: %w", err)
			}
			err = c.print(json.RawMessage(a.Body), func(out io.Writer) error { return account.write(out, palette(c.colour)) })
			if err == nil && account.differs() {
				err = &codeError{exitFailed, errors.New("the ledger does not add up: please report this")}
			}
			return err
		},
	}
	cmd.Flags().StringVar(&bus, "bus", "", "only this bus")
	w.flags(cmd.Flags(), 0)
	return cmd
}

// ledger is the account as the server keeps it.
type ledger struct {
	Buses []struct {
		Bus    string `json:"bus"`
		Events struct {
			Accepted, Unmatched, Matched, Unrouted int64
		} `json:"events"`
		Deliveries []struct {
			Rule, Target                                                  string
			Owed, Delivered, Dead, Expired, Cancelled, Discarded, Pending int64
		} `json:"deliveries"`
		Difference int64 `json:"difference"`
	} `json:"buses"`
}

func (l ledger) differs() bool {
	for _, b := range l.Buses {
		if b.Difference != 0 {
			return true
		}
	}
	return false
}

func (l ledger) write(out io.Writer, paint palette) error {
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	for i, b := range l.Buses {
		if i > 0 {
			fmt.Fprintln(out)
		}
		verdict := paint.good("adds up")
		if b.Difference != 0 {
			verdict = paint.bad("differs by " + n(b.Difference))
		}
		e := b.Events
		_, err := fmt.Fprintf(out, "%s  %d accepted = %d matched + %d unmatched + %d not routed yet: %s\n", paint.bold(clean(b.Bus)),
			e.Accepted, e.Matched, e.Unmatched, e.Unrouted, verdict)
		if err != nil {
			return err
		}
		if len(b.Deliveries) == 0 {
			continue
		}
		var rows [][]string
		for _, d := range b.Deliveries {
			rows = append(rows, []string{clean(d.Rule), clean(d.Target), n(d.Owed), n(d.Delivered), n(d.Pending), n(d.Dead),
				n(d.Expired + d.Cancelled + d.Discarded)})
		}
		fmt.Fprintln(out)
		headings := []string{"RULE", "TARGET", "OWED", "DELIVERED", "PENDING", "DEAD", "ENDED OTHERWISE"}
		if err := writeTable(out, headings, rows); err != nil {
			return err
		}
	}
	return nil
}
