// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/pflag"
)

// window is the part of the log that a command looks at, as its flags say it.
type window struct {
	from, to string
	limit    int
}

// flags adds --from, --to and --limit.
func (w *window) flags(f *pflag.FlagSet, limit int) {
	f.StringVar(&w.from, "from", "", "start: a time (RFC 3339), or how long ago (90s, 15m, 2h, 3d)")
	f.StringVar(&w.to, "to", "", "end, said like --from")
	if limit > 0 {
		f.IntVar(&w.limit, "limit", limit, "at most this many")
	}
}

// query puts the window into a query.
func (w *window) query(q url.Values, now time.Time) error {
	if w.limit < 0 {
		return usagef("--limit is not negative")
	}
	for name, text := range map[string]string{"from": w.from, "to": w.to} {
		if text == "" {
			continue
		}
		t, err := parseWhen(text, now)
		if err != nil {
			return usagef("--%s: %w", name, err)
		}
		q.Set(name, t.UTC().Format(time.RFC3339Nano))
	}
	if w.limit > 0 {
		q.Set("limit", strconv.Itoa(min(w.limit, 1000)))
	}
	return nil
}

// parseWhen reads a point in time, or a distance back from now.
func parseWhen(text string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	if n := len(text); n > 1 && text[n-1] == 'd' {
		if days, err := strconv.ParseFloat(text[:n-1], 64); err == nil && days >= 0 && days < 36500 {
			return now.Add(-time.Duration(days * float64(24*time.Hour))), nil
		}
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	return time.Time{}, usagef("%q is neither a time such as 2026-11-29T20:15:00Z nor how long ago, such as 15m", text)
}

// set adds a query parameter, unless it is empty.
func set(q url.Values, name, value string) {
	if value != "" {
		q.Set(name, value)
	}
}
