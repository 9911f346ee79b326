// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

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
			return c.ledger(cmd.Context(), cl, query)
		},
	}
	cmd.Flags().StringVar(&bus, "bus", "", "only this bus")
	w.flags(cmd.Flags(), 0)
	return cmd
}

func (c *cli) ledger(ctx context.Context, cl *client, query url.Values) error {
	a, err := cl.do(ctx, request{Method: "GET", Path: "/v1/ledger", Query: query})
	if err != nil {
		return err
	}
	var all struct {
		Balanced bool          `json:"balanced"`
		Buses    []account     `json:"buses"`
		Links    []linkAccount `json:"links"`
	}
	if err := json.Unmarshal(a.Body, &all); err != nil {
		return fmt.Errorf("unreadable answer: %w", err)
	}
	err = c.print(json.RawMessage(a.Body), func(out io.Writer) error {
		if err := writeLedger(out, all.Buses, palette(c.colour)); err != nil {
			return err
		}
		return writeLinkAccounts(out, all.Links)
	})
	if err != nil || all.Balanced {
		return err
	}
	var differs []string
	for _, a := range all.Buses {
		if !a.Balanced {
			differs = append(differs, clean(a.Bus))
		}
	}
	for _, l := range all.Links {
		if l.Difference != 0 {
			differs = append(differs, "link "+clean(l.Link))
		}
	}
	return fmt.Errorf("the ledger of %s does not add up: this is a bug, please report it", strings.Join(differs, ", "))
}

// account is the ledger of one bus, as the server keeps it.
type account struct {
	Bus        string `json:"bus"`
	Balanced   bool   `json:"balanced"`
	Difference int64  `json:"difference"`
	Events     struct {
		Accepted     uint64 `json:"accepted"`
		Matched      uint64 `json:"matched"`
		Unmatched    uint64 `json:"unmatched"`
		NotYetRouted uint64 `json:"notYetRouted"`
		Lost         uint64 `json:"lost"`
	} `json:"events"`
	Deliveries []struct {
		Rule      string `json:"rule"`
		Target    string `json:"target"`
		Owed      uint64 `json:"owed"`
		Delivered uint64 `json:"delivered"`
		Dead      uint64 `json:"dead"`
		Expired   uint64 `json:"expired"`
		Cancelled uint64 `json:"cancelled"`
		Discarded uint64 `json:"discarded"`
		Pending   uint64 `json:"pending"`
		Live      uint64 `json:"live"`
		Parked    uint64 `json:"parked"`
	} `json:"deliveries"`
}

// writeLedger prints what was accepted and what became of it, bus by bus.
func writeLedger(out io.Writer, accounts []account, paint palette) error {
	n := func(v uint64) string { return strconv.FormatUint(v, 10) }
	var b strings.Builder
	for i, a := range accounts {
		if i > 0 {
			b.WriteByte('\n')
		}
		verdict := paint.good("adds up")
		if !a.Balanced {
			verdict = paint.bad(fmt.Sprintf("differs by %d", a.Difference))
		}
		e := a.Events
		fmt.Fprintf(&b, "%s: %d accepted = %d matched + %d unmatched + %d not routed yet", paint.bold(clean(a.Bus)), e.Accepted,
			e.Matched, e.Unmatched, e.NotYetRouted)
		if e.Lost > 0 {
			fmt.Fprintf(&b, " + %s", paint.bad(n(e.Lost)+" lost with the disk"))
		}
		fmt.Fprintf(&b, ", %s\n", verdict)
		if len(a.Deliveries) == 0 {
			continue
		}
		var rows [][]string
		for _, d := range a.Deliveries {
			rows = append(rows, []string{clean(d.Rule), clean(d.Target), n(d.Owed), n(d.Delivered), n(d.Live), n(d.Parked),
				n(d.Dead), n(d.Expired + d.Cancelled + d.Discarded)})
		}
		headings := []string{"RULE", "TARGET", "OWED", "DELIVERED", "UNDER WAY", "PARKED", "DEAD", "ENDED OTHERWISE"}
		if err := writeTable(&b, headings, rows); err != nil {
			return err
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// linkAccount is what became of the events of a bus by way of a link.
type linkAccount struct {
	Link       string    `json:"link"`
	Region     string    `json:"region"`
	Bus        string    `json:"bus"`
	Main       laneSums  `json:"main"`
	Urgent     *laneSums `json:"urgent"`
	Pending    uint64    `json:"pending"`
	Difference int64     `json:"difference"`
}

type laneSums struct {
	Forwarded uint64 `json:"forwarded"`
	Known     uint64 `json:"known"`
	Filtered  uint64 `json:"filtered"`
	Looped    uint64 `json:"looped"`
	Refused   uint64 `json:"refused"`
	Failed    uint64 `json:"failed"`
	Dropped   uint64 `json:"dropped"`
	Gaps      uint64 `json:"gaps"`
}

// writeLinkAccounts prints what links have done with the events of their buses.
func writeLinkAccounts(out io.Writer, links []linkAccount) error {
	if len(links) == 0 {
		return nil
	}
	n := func(v uint64) string { return strconv.FormatUint(v, 10) }
	var rows [][]string
	for _, l := range links {
		s := l.Main
		if u := l.Urgent; u != nil { // what is urgent is not on main
			s.Forwarded, s.Known, s.Looped, s.Refused = s.Forwarded+u.Forwarded, s.Known+u.Known, s.Looped+u.Looped, s.Refused+u.Refused
			s.Filtered, s.Failed, s.Dropped = s.Filtered+u.Filtered, s.Failed+u.Failed, s.Dropped+u.Dropped
		}
		verdict := "adds up"
		if l.Difference != 0 {
			verdict = fmt.Sprintf("differs by %d", l.Difference)
		}
		rows = append(rows, []string{clean(l.Link), clean(l.Bus), clean(l.Region), n(s.Forwarded + s.Known), n(s.Filtered + s.Looped), n(s.Refused + s.Failed),
			n(s.Dropped), n(s.Gaps), n(l.Pending), verdict})
	}
	if _, err := io.WriteString(out, "\n"); err != nil {
		return err
	}
	return writeTable(out, []string{"LINK", "BUS", "REGION", "FORWARDED", "NOT TAKEN", "REFUSED", "DROPPED", "LOST", "PENDING", ""}, rows)
}
