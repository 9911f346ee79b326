// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

func newJourney(c *cli) *cobra.Command {
	var bus, source string
	var limit int
	cmd := &cobra.Command{
		Use:   "journey ID",
		Short: "Show what happened to one event, from arrival to the last attempt",
		Long: `Show what happened to one event: when it arrived, what each rule said of it and why, and every attempt
to deliver it. Without --bus every bus is asked. Of an event that was tried some thousand times, --limit
shows the newest records.`,
		Example: `  rialto journey 0192f0c1-7d3a-7c11-a1b2-6f0e5a9d1c17
  rialto journey order-17 --source /shop -o json`,
		Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return usagef("--limit is not negative")
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			raw, bus, err := cl.findEvent(cmd.Context(), bus, args[0], source, limit)
			if err != nil {
				return err
			}
			if raw, err = cl.olderRecords(cmd.Context(), bus, args[0], raw, limit); err != nil {
				return err
			}
			return c.print(raw, func(w io.Writer) error {
				var story eventStory
				if err := json.Unmarshal(raw, &story); err != nil {
					return err
				}
				picture := drawJourney(bus, story, c.now(), palette(c.colour))
				_, err := io.WriteString(w, picture)
				return err
			})
		},
	}
	cmd.Flags().StringVar(&bus, "bus", "", "bus that has the event (default: all are asked)")
	cmd.Flags().StringVar(&source, "source", "", "source of the event, when several events have this id")
	cmd.Flags().IntVar(&limit, "limit", 0, "at most this many records, the newest (default: all)")
	return cmd
}

// findEvent reads an event from a bus, or from the first bus that has it, with the newest records of its journey, at most so many
// (0 = as many as a page has).
func (cl *client) findEvent(ctx context.Context, bus, id, source string, records int) (json.RawMessage, string, error) {
	candidates := []string{bus}
	if bus == "" {
		var err error
		candidates, err = cl.buses(ctx)
		switch {
		case exitCode(err) == exitAuth:
			candidates = []string{defaultBus, "devices"} // a key for events alone cannot list buses; these always exist
		case err != nil:
			return nil, "", err
		}
	}
	query := url.Values{}
	if source != "" {
		query.Set("source", source)
	}
	if records > 0 {
		query.Set("limit", strconv.Itoa(min(records, journeyPage)))
	}
	var last error
	for _, bus := range candidates {
		a, err := cl.do(ctx, request{Method: "GET", Path: eventPath(bus, id), Query: query})
		if err == nil {
			return a.Body, bus, nil
		}
		// A bus that the key does not cover may not be the one.
		if code := exitCode(err); code != exitNotFound && (code != exitAuth || len(candidates) == 1) {
			return nil, "", err
		}
		if last == nil || exitCode(err) == exitNotFound {
			last = err
		}
	}
	return nil, "", last
}

func eventPath(bus, id string) string {
	return "/v1/buses/" + url.PathEscape(bus) + "/events/" + escapeSegment(id)
}

// escapeSegment escapes an id for a path. An id may be "." or "..", which a path would swallow.
func escapeSegment(id string) string {
	if strings.Trim(id, ".") == "" {
		return strings.ReplaceAll(id, ".", "%2E")
	}
	return url.PathEscape(id)
}
