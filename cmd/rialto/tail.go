// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const (
	firstPause   = 250 * time.Millisecond // before a stream that broke is opened again
	longestPause = 10 * time.Second
)

// tailing is what the flags of tail say.
type tailing struct {
	buses, types []string
	from         string
	count        int
}

func newTail(c *cli) *cobra.Command {
	var t tailing
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Follow events as they are stored, until Ctrl-C",
		Long: `Print events as they are stored. When the connection breaks, tail opens it again and goes on where it
was, so that no event is left out. A type may end in * to stand for all that start like it.`,
		Example: `  rialto tail
  rialto tail --bus devices --type 'com.acme.*' -o jsonl | jq .data`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			return c.tail(cmd.Context(), cl, t)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&t.buses, "bus", nil, "buses to follow (default: all)")
	f.StringSliceVar(&t.types, "type", nil, "only events of these types")
	f.StringVar(&t.from, "from", "", "position to start from, such as EV_default:17 (default: now)")
	f.IntVarP(&t.count, "count", "n", 0, "stop after this many events")
	return cmd
}

// errEnough ends a tail that has seen what it was asked for.
var errEnough = errors.New("enough events seen")

// streamed is one event of the stream.
type streamed struct {
	Bus      string          `json:"bus"`
	Position string          `json:"position"`
	Received time.Time       `json:"received"`
	Event    json.RawMessage `json:"event"`
}

// tail follows until ctx is done or enough events were seen, both of which are a good end.
func (c *cli) tail(ctx context.Context, cl *client, t tailing) error {
	if len(t.buses) == 0 {
		var err error
		if t.buses, err = cl.buses(ctx); err != nil {
			return err
		}
	}
	seen := 0
	show := func(m streamed, e eventHead) error {
		if !t.wants(e.Type) {
			return nil
		}
		if err := c.printStreamed(m, e); err != nil {
			return err
		}
		if seen++; t.count > 0 && seen >= t.count {
			return errEnough
		}
		return nil
	}
	var last string // id of the last message, to go on after
	pause, opened := firstPause, false
	for {
		progress, err := cl.follow(ctx, t, &last, show)
		opened = opened || progress
		if errors.Is(err, errEnough) || ctx.Err() != nil {
			return nil
		}
		// Who was never let in is told so; who was, is patient.
		if code := exitCode(err); !opened || code != exitUnreachable {
			return err
		}
		if progress {
			pause = firstPause
		}
		fmt.Fprintf(c.err, "rialto: the stream broke, trying again in %s\n", pause)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, longestPause)
	}
}

// wants reports whether an event of this type is to be shown.
func (t tailing) wants(eventType string) bool {
	return len(t.types) == 0 || slices.ContainsFunc(t.types, func(want string) bool {
		if prefix, ok := strings.CutSuffix(want, "*"); ok {
			return strings.HasPrefix(eventType, prefix)
		}
		return want == eventType
	})
}

// follow reads one connection to its end and reports whether it came about. A stream that ends or breaks is an error
// with exitUnreachable; what show returns is passed on.
func (cl *client) follow(ctx context.Context, t tailing, last *string, show func(streamed, eventHead) error) (bool, error) {
	topics := make([]string, len(t.buses))
	for i, bus := range t.buses {
		topics[i] = "events:" + bus
	}
	query := url.Values{"topics": {strings.Join(topics, ",")}}
	set(query, "from", t.from)
	if len(t.types) == 1 && !strings.HasSuffix(t.types[0], "*") {
		query.Set("type", t.types[0]) // the server leaves the others out already
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, cl.address("/v1/stream", query), nil)
	if err != nil {
		return false, err
	}
	req.Header.Set("Accept", "text/event-stream")
	if *last != "" {
		req.Header.Set("Last-Event-ID", *last)
	}
	resp, err := cl.open(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	for r := newStreamReader(resp.Body); ; {
		m, err := r.Next()
		if err != nil {
			return true, &codeError{exitUnreachable, err}
		}
		switch {
		case m.Data == "": // an id to go on after
		case m.Event == "error":
			p := &problem{}
			if err := json.Unmarshal([]byte(m.Data), p); err != nil {
				return true, fmt.Errorf("unreadable message of the stream: %w", err)
			}
			return true, p
		case m.Event == "event":
			var s streamed
			var head eventHead
			if err := errors.Join(json.Unmarshal([]byte(m.Data), &s), json.Unmarshal(s.Event, &head)); err != nil {
				return true, fmt.Errorf("unreadable message of the stream: %w", err)
			}
			if err := show(s, head); err != nil {
				return true, err
			}
		}
		*last = m.ID
	}
}

// eventHead is what one line says of an event.
type eventHead struct {
	ID, Source, Type, Subject string
	Data                      json.RawMessage `json:"data"`
	Base64                    string          `json:"data_base64"`
}

// data is the payload on one line.
func (e eventHead) data() string {
	switch {
	case len(e.Data) > 0:
		return clean(string(e.Data))
	case e.Base64 != "":
		return fmt.Sprintf("(%s)", count(base64.StdEncoding.DecodedLen(len(e.Base64))-strings.Count(e.Base64, "="), "byte"))
	}
	return ""
}

func (c *cli) printStreamed(m streamed, e eventHead) error {
	switch c.output {
	case "table":
		paint := palette(c.colour)
		_, err := fmt.Fprintf(c.out, "%s  %s  %s  %s\n", paint.dim(m.Received.In(c.now().Location()).Format("15:04:05.000")),
			paint.bold(clean(e.Type)), clean(orDefault(e.Subject, e.Source)), paint.dim(shorten(e.data(), 100)))
		return err
	case "yaml":
		if _, err := fmt.Fprintln(c.out, "---"); err != nil {
			return err
		}
	}
	return c.encode(m.Event)
}
