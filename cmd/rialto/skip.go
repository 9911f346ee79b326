// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

func newSkip(c *cli) *cobra.Command {
	var bus, source, rule, target string
	cmd := &cobra.Command{
		Use:   "skip EVENT-ID",
		Short: "End a delivery that holds up its key",
		Long: `End a delivery that has failed and holds up what follows it: the first of its key at a target with ordering: key. It
becomes a dead letter, which can be redriven, and the next has its turn. rialto get target NAME lists what is held up.
--rule and --target choose among several deliveries.`,
		Example: "  rialto skip order-17 --target ops-webhook",
		Args:    arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := map[string]string{}
			for name, text := range map[string]string{"source": source, "rule": rule, "target": target} {
				if text != "" {
					body[name] = text
				}
			}
			a, err := c.onEvent(cmd.Context(), bus, args[0], "skip", body)
			if err != nil {
				return err
			}
			var answer struct{ DeadLetter string }
			if err := json.Unmarshal(a.Body, &answer); err != nil {
				return err
			}
			return c.print(json.RawMessage(a.Body), func(out io.Writer) error {
				_, err := fmt.Fprintf(out, "%s is dead letter %s\n", clean(args[0]), clean(answer.DeadLetter))
				return err
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&bus, "bus", defaultBus, "bus of the event")
	f.StringVar(&source, "source", "", "which event, if several have the id")
	f.StringVar(&rule, "rule", "", "rule of the delivery")
	f.StringVar(&target, "target", "", "target of the delivery")
	return cmd
}
