// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func newRegions(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "regions",
		Short: "See the links to other regions, and what comes from them",
		Long: `Show every link with where it leads and how far it is: the state, how many events and seconds it is behind, and the
last error. Regions and links are definitions: rialto apply, get and delete make, show and remove them, and rialto
pause, resume and reset stop a link and have it go on.`,
		Example: `  rialto regions
  rialto regions inlets --bus devices`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return c.showLinks(cmd) },
	}
	cmd.AddCommand(newInlets(c), newForgetInlet(c), newTranslate(c))
	return cmd
}

// linkDoc is a link as the server shows it.
type linkDoc struct {
	Name   string `json:"name"`
	Region string `json:"region"`
	Bus    string `json:"bus"`
	To     string `json:"to"`
	Status *struct {
		State string `json:"state"`
		Error *struct {
			Message string `json:"message"`
		} `json:"error"`
		Lag struct {
			Events  uint64  `json:"events"`
			Seconds float64 `json:"seconds"`
		} `json:"lag"`
		Rate float64 `json:"rate"`
	} `json:"status"`
}

func (c *cli) showLinks(cmd *cobra.Command) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	docs := []json.RawMessage{}
	var rows [][]string
	err = cl.list(cmd.Context(), "/v1/links", nil, 0, func(item json.RawMessage) error {
		var l linkDoc
		if err := json.Unmarshal(item, &l); err != nil {
			return fmt.Errorf("unreadable answer: %w", err)
		}
		docs = append(docs, item)
		rows = append(rows, l.row())
		return nil
	})
	if err != nil {
		return err
	}
	all, err := json.Marshal(docs)
	if err != nil {
		return err
	}
	return c.print(all, func(out io.Writer) error {
		return writeTable(out, []string{"LINK", "FROM", "TO", "STATE", "BEHIND", "SECONDS", "RATE/S", "LAST ERROR"}, rows)
	})
}

func (l *linkDoc) row() []string {
	bus := orDefault(l.Bus, defaultBus)
	row := []string{clean(l.Name), clean(bus), clean(l.Region + "/" + orDefault(l.To, bus)), "", "", "", "", ""}
	if s := l.Status; s != nil {
		row[3], row[4] = clean(s.State), strconv.FormatUint(s.Lag.Events, 10)
		row[5], row[6] = strconv.FormatFloat(s.Lag.Seconds, 'f', 1, 64), strconv.FormatFloat(s.Rate, 'g', 3, 64)
		if s.Error != nil {
			row[7] = shorten(clean(s.Error.Message), 60)
		}
	}
	return row
}

func newInlets(c *cli) *cobra.Command {
	var bus string
	cmd := &cobra.Command{
		Use:   "inlets",
		Short: "Show which links of other regions forward to a bus",
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			docs, rows := []json.RawMessage{}, [][]string(nil)
			err = cl.list(cmd.Context(), "/v1/buses/"+url.PathEscape(bus)+"/inlets", nil, 0, func(item json.RawMessage) error {
				var in inletDoc
				if err := json.Unmarshal(item, &in); err != nil {
					return fmt.Errorf("unreadable answer: %w", err)
				}
				docs, rows = append(docs, item), append(rows, in.row(c.now()))
				return nil
			})
			if err != nil {
				return err
			}
			all, err := json.Marshal(docs)
			if err != nil {
				return err
			}
			return c.print(all, func(out io.Writer) error {
				return writeTable(out, []string{"LINK", "INSTANCE", "STATE", "THROUGH", "GAPS", "STORED", "REFUSED", "LAST EVENT"}, rows)
			})
		},
	}
	cmd.Flags().StringVar(&bus, "bus", defaultBus, "the bus they forward to")
	return cmd
}

// inletDoc is a link of another bridge as the server shows it.
type inletDoc struct {
	Instance  string    `json:"instance"`
	Link      string    `json:"link"`
	Stream    string    `json:"stream"`
	Connected bool      `json:"connected"`
	Through   uint64    `json:"through"`
	Gaps      int       `json:"gaps"`
	Stored    uint64    `json:"stored"`
	Refused   uint64    `json:"refused"`
	LastAt    time.Time `json:"lastAt"`
}

func (in *inletDoc) row(now time.Time) []string {
	state, last := "cut", ""
	if in.Connected {
		state = "connected"
	}
	if !in.LastAt.IsZero() {
		last = ago(now, in.LastAt.Format(time.RFC3339))
	}
	return []string{clean(in.Link), clean(in.Instance), state, clean(in.Stream) + ":" + strconv.FormatUint(in.Through, 10),
		strconv.Itoa(in.Gaps), strconv.FormatUint(in.Stored, 10), strconv.FormatUint(in.Refused, 10), last}
}

func newForgetInlet(c *cli) *cobra.Command {
	var bus string
	cmd := &cobra.Command{
		Use:   "forget INSTANCE/LINK",
		Short: "Forget what a link of another region has brought, so that another key may forward as it",
		Long: `Forget what a link of another region has brought to a bus. Another key may forward as that link then. What it forwards
again is recognised within the deduplication window of the bus only.`,
		Example: `  rialto regions forget k3v9/alarms-up --bus plant`,
		Args:    arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			instance, link, ok := strings.Cut(args[0], "/")
			if !ok {
				return usagef("%q is not INSTANCE/LINK, as rialto regions inlets shows it", clean(args[0]))
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			_, err = cl.do(cmd.Context(), request{Method: http.MethodDelete,
				Path: "/v1/buses/" + url.PathEscape(bus) + "/inlets/" + url.PathEscape(instance) + "/" + url.PathEscape(link)})
			return err
		},
	}
	cmd.Flags().StringVar(&bus, "bus", defaultBus, "the bus it forwarded to")
	return cmd
}

func newTranslate(c *cli) *cobra.Command {
	var bus string
	cmd := &cobra.Command{
		Use:   "position INSTANCE/STREAM:SEQUENCE",
		Short: "Find where a consumer of another region goes on here",
		Long: `Find the first position here of an event that stood, in another region, behind the given position there: where a
consumer goes on that moves from there to here. rialto regions inlets shows the names of instances.`,
		Example: `  rialto regions position k3v9/EV_default:48213 --bus default`,
		Args:    arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			query := url.Values{"of": args}
			for {
				a, err := cl.do(cmd.Context(), request{Method: http.MethodGet, Path: "/v1/buses/" + url.PathEscape(bus) + "/position", Query: query})
				if err != nil {
					return err
				}
				var found struct {
					Next, Scanned string
					Done          bool
				}
				if err := json.Unmarshal(a.Body, &found); err != nil {
					return fmt.Errorf("unreadable answer: %w", err)
				}
				if !found.Done {
					_, seq, _ := strings.Cut(found.Scanned, ":")
					n, err := strconv.ParseUint(seq, 10, 64)
					if err != nil {
						return fmt.Errorf("unreadable answer: %w", err)
					}
					query.Set("from", strconv.FormatUint(n+1, 10))
					continue
				}
				if found.Next == "" {
					return &codeError{exitNotFound, fmt.Errorf("no event of %s is here that stood behind that", clean(args[0]))}
				}
				return c.print(json.RawMessage(a.Body), func(out io.Writer) error {
					_, err := fmt.Fprintln(out, clean(found.Next))
					return err
				})
			}
		},
	}
	cmd.Flags().StringVar(&bus, "bus", defaultBus, "the bus here")
	return cmd
}
