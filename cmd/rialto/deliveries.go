// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/spf13/cobra"

func newDeliveries(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "deliveries",
		Short: "Make deliveries to a target that have ended owed again, by how they ended",
		Args:  arguments(0, 0),
		RunE: func(*cobra.Command, []string) error {
			return usagef("name what to do: rialto deliveries redrive; rialto search finds deliveries")
		},
	}
	cmd.AddCommand(newDeliveriesRedrive(c))
	return cmd
}

func newDeliveriesRedrive(c *cli) *cobra.Command {
	q := jobRequest{verb: "redrive"}
	cmd := &cobra.Command{
		Use:   "redrive --target TARGET --outcome OUTCOME",
		Short: "Make deliveries to a target that ended in one way owed again",
		Long: `Make the deliveries to a target that ended in one way owed again, oldest first: what was cancelled with its rule or
target, or what was delivered and the receiver has lost since. What ends later is left. Nothing is done but to count, until
--yes says so; the count looks at 100 000 events at most. It is a job of the server, as those of dead letters are: rialto
deadletters jobs shows, pauses and cancels it. --from and --to are when the events arrived.`,
		Example: `  rialto deliveries redrive --target ops-webhook --outcome cancelled
  rialto deliveries redrive --target ops-webhook --outcome delivered --from 6h --rate 50 --yes`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if q.filter.target == "" || q.outcome == "" {
				return usagef("redrive needs --target and --outcome")
			}
			return c.startJob(cmd.Context(), q, nil)
		},
	}
	f := cmd.Flags()
	q.filter.flags(f, 0)
	bus := f.Lookup("bus")
	bus.DefValue, bus.Usage, q.filter.bus = defaultBus, "bus of the events", defaultBus
	f.Lookup("fingerprint").Usage = "only what ended of the same, as the count says"
	f.Lookup("reason").Usage = "only what ended for this reason, such as rule_deleted"
	f.StringVar(&q.outcome, "outcome", "", "how they ended: delivered, dead, expired, cancelled or discarded")
	f.StringVar(&q.subject, "subject", "", "only of events about this subject")
	f.StringVar(&q.to, "send-to", "", "another target (default: the same)")
	f.Float64Var(&q.rate, "rate", 0, "deliveries per second (default 100)")
	f.StringVar(&q.why, "why", "", "a note for those who look at the job")
	q.consent(f)
	return cmd
}
