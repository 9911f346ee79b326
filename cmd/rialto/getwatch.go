// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// definitionChange is a message about a definition.
type definitionChange struct {
	Event    string          `json:"event"` // put or delete
	Document json.RawMessage `json:"document"`
}

// errResync says that the server does not know any more what was missed.
var errResync = errors.New("what was missed is not known any more")

// watch follows the definitions of a kind until ctx is done, which is a good end. A stream that breaks is taken up where it
// was.
func (c *cli) watch(ctx context.Context, cl *client, k kind, bus, labels string) error {
	query := url.Values{"watch": {"true"}}
	set(query, "labels", labels)
	address := cl.address(k.path(bus), query)
	last, pause, opened := "", firstPause, false
	for {
		progress, err := cl.followWatch(ctx, address, &last, func(w definitionChange) error { return c.printWatched(k, bus, w) })
		opened = opened || progress
		switch code := exitCode(err); {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errResync):
			fmt.Fprintln(c.err, "rialto: "+errResync.Error()+", beginning again with what there is")
			last = ""
			continue
		case !opened || code != exitUnreachable:
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

// followWatch reads one connection to its end and reports whether it came about.
func (cl *client) followWatch(ctx context.Context, address string, last *string, show func(definitionChange) error) (bool, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return false, err
	}
	req.Header.Set("Accept", "text/event-stream")
	if *last != "" {
		req.Header.Set("Last-Event-ID", *last)
	}
	resp, err := cl.open(req)
	var p *problem
	if errors.As(err, &p) && p.Status == http.StatusGone && *last != "" {
		return true, errResync
	}
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	for r := newStreamReader(resp.Body); ; {
		m, err := r.Next()
		if err != nil {
			return true, &codeError{exitUnreachable, err}
		}
		switch m.Event {
		case "error":
			p := &problem{}
			if err := json.Unmarshal([]byte(m.Data), p); err != nil {
				return true, fmt.Errorf("unreadable message of the stream: %w", err)
			}
			return true, p
		case "put", "delete":
			if err := show(definitionChange{m.Event, json.RawMessage(m.Data)}); err != nil {
				return true, err
			}
		}
		*last = m.ID
	}
}

func (c *cli) printWatched(k kind, bus string, w definitionChange) error {
	if c.output != "table" {
		if c.output == "yaml" {
			if _, err := fmt.Fprintln(c.out, "---"); err != nil {
				return err
			}
		}
		return c.encode(w)
	}
	var doc struct {
		Name     string `json:"name"`
		Revision uint64 `json:"revision"`
	}
	if err := json.Unmarshal(w.Document, &doc); err != nil {
		return fmt.Errorf("unreadable message of the stream: %w", err)
	}
	_, err := fmt.Fprintf(c.out, "%-6s  %s  revision %d\n", w.Event, clean(resource{kind: k, bus: bus, name: doc.Name}.String()), doc.Revision)
	return err
}
