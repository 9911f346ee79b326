// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// deadFilter is what selects dead letters on a command line.
type deadFilter struct {
	bus, rule, target, reason, print string
	w                                window
}

func (d *deadFilter) flags(f *pflag.FlagSet, limit int) {
	f.StringVar(&d.bus, "bus", "", "only of this bus")
	f.StringVar(&d.rule, "rule", "", "only of this rule")
	f.StringVar(&d.target, "target", "", "only for this target")
	f.StringVar(&d.reason, "reason", "", "only for this reason, such as status or timeout")
	f.StringVar(&d.print, "fingerprint", "", "only what died of the same, as deadletters count says")
	d.w.flags(f, limit)
}

func (d *deadFilter) query(now time.Time) (url.Values, error) {
	query := url.Values{}
	set(query, "bus", d.bus)
	set(query, "rule", d.rule)
	set(query, "target", d.target)
	set(query, "reason", d.reason)
	set(query, "fingerprint", d.print)
	return query, d.w.query(query, now)
}

func newDeadLetters(c *cli) *cobra.Command {
	cmd := newDeadList(c, "deadletters")
	cmd.Short = "List, redrive and discard deliveries that ended without success"
	cmd.Long = `Deliveries that ended without success, newest first, with the reason. They can be made owed again (redrive), to
the same target or another, or be written off (discard). Both are jobs of the server, which go on after a restart.`
	cmd.Example = `  rialto deadletters --target ops-webhook --from 24h
  rialto deadletters count
  rialto deadletters redrive --target ops-webhook --rate 50 --yes
  rialto deadletters -o jsonl | jq .event`
	cmd.AddCommand(newDeadList(c, "list"), newDeadCount(c), newDeadGet(c), newDeadRedrive(c), newDeadDiscard(c), newJobs(c))
	return cmd
}

func newDeadList(c *cli, use string) *cobra.Command {
	var d deadFilter
	cmd := &cobra.Command{
		Use:   use,
		Short: "List dead letters, newest first",
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			query, err := d.query(c.now())
			if err != nil {
				return err
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			var items []json.RawMessage
			err = cl.list(cmd.Context(), "/v1/deadletters", query, d.w.limit, func(item json.RawMessage) error {
				items = append(items, item)
				return nil
			})
			if err != nil {
				return err
			}
			return c.printList(items, func(out io.Writer) error { return writeDeadLetters(out, items, c.now().Location()) })
		},
	}
	d.flags(cmd.Flags(), 50)
	return cmd
}

func writeDeadLetters(out io.Writer, items []json.RawMessage, zone *time.Location) error {
	var rows [][]string
	for _, raw := range items {
		var d struct {
			ID       string    `json:"id"`
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
		rows = append(rows, []string{d.Last.In(zone).Format("2006-01-02 15:04:05"), clean(d.ID), clean(d.Rule), clean(d.Target),
			clean(orDefault(d.EventID, d.Position)), strconv.Itoa(d.Attempts), shorten(clean(causeOf(d.Reason, d.Status, d.Detail)), 60)})
	}
	return writeTable(out, []string{"LAST ATTEMPT", "ID", "RULE", "TARGET", "EVENT", "ATTEMPTS", "WHY"}, rows)
}

func causeOf(reason string, status int, detail string) string {
	if status != 0 {
		reason += " " + strconv.Itoa(status)
	}
	if detail != "" {
		reason += ": " + detail
	}
	return reason
}

// deadCount is how many dead letters there are, by what they died of.
type deadCount struct {
	Total  uint64 `json:"total"`
	Groups []struct {
		Fingerprint string    `json:"fingerprint"`
		Reason      string    `json:"reason"`
		Status      int       `json:"status"`
		Detail      string    `json:"detail"`
		Count       uint64    `json:"count"`
		Last        time.Time `json:"last"`
	} `json:"groups"`
	More    uint64 `json:"more"`
	Partial bool   `json:"partial"`
}

// much says how many there are of what is counted.
func (n deadCount) much(one, many string) string {
	switch {
	case n.Partial:
		return fmt.Sprintf("more than %d %s", n.Total, many)
	case n.Total == 1:
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n.Total, many)
}

func (n deadCount) write(out io.Writer, zone *time.Location) error {
	var rows [][]string
	for _, g := range n.Groups {
		rows = append(rows, []string{strconv.FormatUint(g.Count, 10), clean(g.Fingerprint), g.Last.In(zone).Format("2006-01-02 15:04:05"),
			shorten(clean(causeOf(g.Reason, g.Status, g.Detail)), 80)})
	}
	if n.More > 0 {
		rows = append(rows, []string{strconv.FormatUint(n.More, 10), "-", "-", "for other reasons"})
	}
	return writeTable(out, []string{"COUNT", "FINGERPRINT", "LAST", "FOR EXAMPLE"}, rows)
}

func newDeadCount(c *cli) *cobra.Command {
	var d deadFilter
	cmd := &cobra.Command{
		Use:   "count",
		Short: "Count dead letters by what they died of",
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			query, err := d.query(c.now())
			if err != nil {
				return err
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			a, err := cl.do(cmd.Context(), request{Method: http.MethodGet, Path: "/v1/deadletters:count", Query: query})
			if err != nil {
				return err
			}
			return c.printCount(a.Body)
		},
	}
	d.flags(cmd.Flags(), 0)
	return cmd
}

func (c *cli) printCount(body []byte) error {
	var n deadCount
	if err := json.Unmarshal(body, &n); err != nil {
		return fmt.Errorf("unreadable answer: %w", err)
	}
	return c.print(json.RawMessage(body), func(out io.Writer) error { return n.write(out, c.now().Location()) })
}

func newDeadGet(c *cli) *cobra.Command {
	var bus string
	cmd := &cobra.Command{
		Use:     "get ID",
		Short:   "Show a dead letter with its event",
		Example: `  rialto deadletters get DEAD:7`,
		Args:    arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			a, err := cl.do(cmd.Context(), request{Method: http.MethodGet, Path: "/v1/deadletters/" + url.PathEscape(args[0]), Query: onBus(bus)})
			if err != nil {
				return err
			}
			if c.output == "table" { // there is nothing to put in columns
				c.output = "yaml"
			}
			return c.encode(json.RawMessage(a.Body))
		},
	}
	cmd.Flags().StringVar(&bus, "bus", "", "the bus it is of; for a key whose right is for one bus")
	return cmd
}

func onBus(bus string) url.Values {
	query := url.Values{}
	set(query, "bus", bus)
	return query
}

// jobRequest is a redrive or a discard as a command line asks for it.
type jobRequest struct {
	verb     string
	filter   deadFilter
	outcome  string // of deliveries, in place of dead letters
	subject  string // goes with outcome
	to, why  string
	event    string
	rate     float64
	dry, yes bool
}

func newDeadRedrive(c *cli) *cobra.Command {
	q := jobRequest{verb: "redrive"}
	cmd := &cobra.Command{
		Use:   "redrive [ID...]",
		Short: "Make dead letters owed again",
		Long: `Make dead letters owed again: those named, or all that the flags select. Without names nothing is done but to
count, until --yes says so. A delivery keeps its webhook-id; its event gets the extension rialtoredrive.`,
		Example: `  rialto deadletters redrive DEAD:7
  rialto deadletters redrive DEAD:7 --event mended.json
  rialto deadletters redrive --target ops-webhook --send-to spare --rate 50 --yes`,
		Args: arguments(0, -1),
		RunE: func(cmd *cobra.Command, args []string) error { return c.startJob(cmd.Context(), q, args) },
	}
	f := cmd.Flags()
	q.filter.flags(f, 0)
	f.StringVar(&q.to, "send-to", "", "another target (default: the same)")
	f.Float64Var(&q.rate, "rate", 0, "deliveries per second (default 100)")
	f.StringVar(&q.event, "event", "", "send this event instead: a FILE in the CloudEvents JSON format, or - for stdin; for one ID")
	f.StringVar(&q.why, "why", "", "a note for those who look at the job")
	q.consent(f)
	return cmd
}

func newDeadDiscard(c *cli) *cobra.Command {
	q := jobRequest{verb: "discard"}
	cmd := &cobra.Command{
		Use:   "discard [ID...] --why TEXT",
		Short: "Write dead letters off",
		Long: `Write dead letters off: those named, or all that the flags select. Without names nothing is done but to count,
until --yes says so. The job and the journey of each event say who did it, when and why.`,
		Example: `  rialto deadletters discard --rule trial --why "test data" --yes`,
		Args:    arguments(0, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if q.why == "" {
				return usagef("discard needs --why: it says later why these were written off")
			}
			return c.startJob(cmd.Context(), q, args)
		},
	}
	f := cmd.Flags()
	q.filter.flags(f, 0)
	f.StringVar(&q.why, "why", "", "why they are of no use")
	q.consent(f)
	return cmd
}

func (q *jobRequest) consent(f *pflag.FlagSet) {
	f.BoolVar(&q.dry, "dry-run", false, "only count")
	f.BoolVar(&q.yes, "yes", false, "do it, if no ID is given")
}

// body is what the server is asked for.
func (q *jobRequest) body(c *cli, ids []string, dry bool) (map[string]any, error) {
	selected, err := q.filter.query(c.now())
	if err != nil {
		return nil, err
	}
	filter := map[string]any{}
	for name := range selected {
		if name != "bus" {
			filter[name] = selected.Get(name)
		}
	}
	if len(ids) > 0 {
		filter["ids"] = ids
	}
	for name, text := range map[string]string{"outcome": q.outcome, "subject": q.subject} {
		if text != "" {
			filter[name] = text
		}
	}
	body := map[string]any{"filter": filter, "dryRun": dry}
	for name, text := range map[string]string{"to": q.to, "why": q.why} {
		if text != "" {
			body[name] = text
		}
	}
	if q.rate != 0 {
		body["rate"] = q.rate
	}
	if q.event != "" {
		raw, err := c.readText(q.event)
		if err != nil {
			return nil, err
		}
		if !json.Valid(raw) {
			return nil, usagef("--event %s is not JSON", q.event)
		}
		body["event"] = json.RawMessage(raw)
	}
	return body, nil
}

// maxText is how much readText reads.
const maxText = 16 << 20

// readText reads a file, or stdin for -.
func (c *cli) readText(name string) ([]byte, error) {
	from := c.in
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		from = f
	}
	b, err := io.ReadAll(io.LimitReader(from, maxText+1))
	if err == nil && len(b) > maxText {
		err = fmt.Errorf("%s is larger than %d MiB", name, maxText>>20)
	}
	return b, err
}

func (c *cli) startJob(ctx context.Context, q jobRequest, ids []string) error {
	dry := q.dry || len(ids) == 0 && !q.yes
	body, err := q.body(c, ids, dry)
	if err != nil {
		return err
	}
	cl, err := c.client()
	if err != nil {
		return err
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	path, query, one, many := "/v1/deadletters:"+q.verb, onBus(q.filter.bus), "dead letter", "dead letters"
	if q.outcome != "" {
		path, query, one, many = "/v1/buses/"+url.PathEscape(q.filter.bus)+"/deliveries:"+q.verb, nil, "delivery", "deliveries"
	}
	a, err := cl.do(ctx, request{Method: http.MethodPost, Path: path, Query: query,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: raw})
	if err != nil {
		return err
	}
	if !dry {
		var started struct {
			Job json.RawMessage `json:"job"`
		}
		if err := json.Unmarshal(a.Body, &started); err != nil {
			return fmt.Errorf("unreadable answer: %w", err)
		}
		return c.printJob(started.Job)
	}
	if err := c.printCount(a.Body); err != nil {
		return err
	}
	if !q.dry {
		var n deadCount
		if err := json.Unmarshal(a.Body, &n); err != nil {
			return fmt.Errorf("unreadable answer: %w", err)
		}
		fmt.Fprintf(c.err, "nothing was done: --yes would %s %s\n", q.verb, n.much(one, many))
	}
	return nil
}

// jobStory is a job, as the server keeps it.
type jobStory struct {
	ID        string    `json:"id"`
	State     string    `json:"state"`
	Waiting   string    `json:"waiting"`
	By        string    `json:"by"`
	Why       string    `json:"why"`
	Total     uint64    `json:"total"`
	Handled   uint64    `json:"handled"`
	Skipped   uint64    `json:"skipped"`
	Skip      string    `json:"skipReason"`
	Pending   uint64    `json:"pending"`
	Delivered uint64    `json:"delivered"`
	Dead      uint64    `json:"dead"`
	Otherwise uint64    `json:"endedOtherwise"`
	CreatedAt time.Time `json:"createdAt"`
}

func newJobs(c *cli) *cobra.Command {
	var bus string
	cmd := &cobra.Command{
		Use:   "jobs [ID]",
		Short: "Show redrives and discards, and how far they are",
		Example: `  rialto deadletters jobs
  rialto deadletters jobs pause redrive-12`,
		Args: arguments(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			if len(args) == 1 {
				a, err := cl.do(cmd.Context(), request{Method: http.MethodGet, Path: "/v1/jobs/" + url.PathEscape(args[0]), Query: onBus(bus)})
				if err != nil {
					return err
				}
				return c.printJob(a.Body)
			}
			var items []json.RawMessage
			if err := cl.list(cmd.Context(), "/v1/jobs", onBus(bus), 0, func(item json.RawMessage) error {
				items = append(items, item)
				return nil
			}); err != nil {
				return err
			}
			return c.printList(items, func(out io.Writer) error { return writeJobs(out, items, c.now().Location()) })
		},
	}
	cmd.PersistentFlags().StringVar(&bus, "bus", "", "only of this bus")
	for verb, short := range map[string]string{"pause": "Pause a job", "resume": "Go on with a job", "cancel": "End a job; what it has handed over stays so"} {
		cmd.AddCommand(&cobra.Command{
			Use: verb + " ID", Short: short, Args: arguments(1, 1),
			RunE: func(cmd *cobra.Command, args []string) error {
				cl, err := c.client()
				if err != nil {
					return err
				}
				a, err := cl.do(cmd.Context(), request{Method: http.MethodPost, Path: "/v1/jobs/" + url.PathEscape(args[0]) + ":" + verb, Query: onBus(bus)})
				if err != nil {
					return err
				}
				return c.printJob(a.Body)
			},
		})
	}
	return cmd
}

func (c *cli) printJob(raw json.RawMessage) error {
	return c.print(raw, func(out io.Writer) error { return writeJobs(out, []json.RawMessage{raw}, c.now().Location()) })
}

func writeJobs(out io.Writer, items []json.RawMessage, zone *time.Location) error {
	var rows [][]string
	n := func(v uint64) string { return strconv.FormatUint(v, 10) }
	for _, raw := range items {
		var j jobStory
		if err := json.Unmarshal(raw, &j); err != nil {
			return fmt.Errorf("unreadable answer: %w", err)
		}
		note := j.Why
		switch {
		case j.Waiting != "":
			note = "waits: " + j.Waiting
		case j.Skipped > 0:
			note = n(j.Skipped) + " skipped: " + j.Skip
		}
		rows = append(rows, slices.Concat([]string{clean(j.ID), j.CreatedAt.In(zone).Format("2006-01-02 15:04:05"), clean(j.State), clean(j.By),
			n(j.Handled) + "/" + n(j.Total)}, []string{n(j.Delivered), n(j.Pending), n(j.Dead + j.Otherwise), shorten(clean(note), 60)}))
	}
	return writeTable(out, []string{"ID", "STARTED", "STATE", "BY", "HANDLED", "DELIVERED", "PENDING", "FAILED", "NOTE"}, rows)
}

func newRedrive(c *cli) *cobra.Command {
	var bus, source, rule, target, to, event string
	var delivered bool
	cmd := &cobra.Command{
		Use:   "redrive EVENT-ID",
		Short: "Make a delivery of an event that has ended owed again",
		Long: `Make a delivery owed again, whatever it ended as: dead, expired, cancelled, discarded, or, with --delivered,
delivered. --rule and --target choose among several deliveries. If its rule was deleted, the delivery is rendered by the
rule as it was when the event was routed; if its target was deleted, it needs --send-to.`,
		Example: `  rialto redrive order-17 --target ops-webhook
  rialto redrive order-17 --send-to spare --delivered`,
		Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := map[string]any{"delivered": delivered}
			for name, text := range map[string]string{"source": source, "rule": rule, "target": target, "to": to} {
				if text != "" {
					body[name] = text
				}
			}
			if event != "" {
				raw, err := c.readText(event)
				if err != nil {
					return err
				}
				if !json.Valid(raw) {
					return usagef("--event %s is not JSON", event)
				}
				body["event"] = json.RawMessage(raw)
			}
			a, err := c.onEvent(cmd.Context(), bus, args[0], "redrive", body)
			if err != nil {
				return err
			}
			return c.print(json.RawMessage(a.Body), func(out io.Writer) error {
				_, err := fmt.Fprintf(out, "%s is owed again\n", clean(args[0]))
				return err
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&bus, "bus", defaultBus, "bus of the event")
	f.StringVar(&source, "source", "", "which event, if several have the id")
	f.StringVar(&rule, "rule", "", "rule of the delivery")
	f.StringVar(&target, "target", "", "target of the delivery")
	f.StringVar(&to, "send-to", "", "another target (default: the same)")
	f.StringVar(&event, "event", "", "send this event instead: a FILE in the CloudEvents JSON format, or - for stdin")
	f.BoolVar(&delivered, "delivered", false, "also if it was delivered")
	return cmd
}
