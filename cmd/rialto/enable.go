// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"
)

// enabled is what the server says of a target that it has enabled.
type enabled struct {
	Target     string    `json:"target"`
	DisabledAt time.Time `json:"disabledAt"`
	Reason     string    `json:"reason"`
	Held       int       `json:"held"`
	Missed     deadCount `json:"missed"`
	Redrive    *struct {
		Body struct {
			Filter struct {
				From string `json:"from"`
				To   string `json:"to"`
			} `json:"filter"`
		} `json:"body"`
	} `json:"redrive"`
}

func newEnable(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "enable TARGET",
		Short: "Enable a target that was disabled because it failed",
		Long: `Enable a target that was disabled because it answered 410, or failed for days. What was held for it is delivered
then; what ended as a dead letter since it began to fail is counted, and the command that redrives exactly that is shown.`,
		Example: `  rialto enable ops-webhook`,
		Args:    arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			a, err := cl.do(cmd.Context(), request{Method: http.MethodPost, Path: "/v1/targets/" + url.PathEscape(args[0]) + ":enable"})
			if err != nil {
				return err
			}
			var e enabled
			if err := json.Unmarshal(a.Body, &e); err != nil {
				return fmt.Errorf("unreadable answer: %w", err)
			}
			if err := c.print(json.RawMessage(a.Body), func(out io.Writer) error { return e.write(out, c.now().Location()) }); err != nil {
				return err
			}
			if r := e.Redrive; r != nil {
				fmt.Fprintf(c.err, "to deliver what was missed: rialto deadletters redrive --target %s --from %s --to %s --yes\n",
					clean(e.Target), clean(r.Body.Filter.From), clean(r.Body.Filter.To))
			}
			return nil
		},
	}
}

func (e *enabled) write(out io.Writer, zone *time.Location) error {
	return writeTable(out, []string{"TARGET", "DISABLED", "HELD", "MISSED", "WHY"}, [][]string{{clean(e.Target),
		e.DisabledAt.In(zone).Format("2006-01-02 15:04:05"), strconv.Itoa(e.Held), strconv.FormatUint(e.Missed.Total, 10), shorten(clean(e.Reason), 80)}})
}
