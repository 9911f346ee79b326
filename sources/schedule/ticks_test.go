// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A tick is every minute whose hands and date fit, and no other, however clocks are set: in Berlin by an hour at night, in Beirut by an
// hour at midnight, on Lord Howe Island by half an hour.
func TestTicksWhereClocksAreSet(t *testing.T) {
	for _, c := range []struct {
		zone, cron, from string
		want             []string // of the next eight days
	}{
		{"Europe/Berlin", "30 2 * * 0", "2026-03-22T12:00:00Z", nil},
		{"Europe/Berlin", "30 2 * * 0", "2026-10-18T12:00:00Z", []string{"2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"}},
		{"Asia/Beirut", "0 12 * * 0", "2026-03-22T12:00:00Z", []string{"2026-03-29T09:00:00Z"}},
		{"Asia/Beirut", "30 0 * * 0", "2026-03-22T12:00:00Z", nil},
		{"Asia/Beirut", "0 9 29 * *", "2026-03-22T12:00:00Z", []string{"2026-03-29T06:00:00Z"}},
		{"Australia/Lord_Howe", "0 3 * * 0", "2026-03-29T12:00:00Z", []string{"2026-04-04T16:30:00Z"}},
		{"Australia/Lord_Howe", "45 1 * * 0", "2026-03-29T12:00:00Z", []string{"2026-04-04T14:45:00Z", "2026-04-04T15:15:00Z"}},
		{"Australia/Lord_Howe", "45 1 * * 0", "2026-09-27T12:00:00Z", []string{"2026-10-03T15:15:00Z"}},
		{"Australia/Lord_Howe", "15 2 * * 0", "2026-09-27T12:00:00Z", nil},
		{"Africa/Cairo", "0 0 * * 5", "2026-10-24T12:00:00Z", []string{"2026-10-29T22:00:00Z"}},
		{"UTC", "0 0 1,15 * 1", "2026-06-01T00:00:00Z", []string{"2026-06-08T00:00:00Z"}},
		{"UTC", "59 23 28 2 *", "2026-02-27T00:00:00Z", []string{"2026-02-28T23:59:00Z"}},
	} {
		zone, err := time.LoadLocation(c.zone)
		if err != nil {
			t.Fatal(err)
		}
		ticks, err := parseCron(c.cron, zone)
		if err != nil {
			t.Fatal(err)
		}
		from, err := time.Parse(time.RFC3339, c.from)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for at := ticks.next(from); at.Before(from.AddDate(0, 0, 8)); at = ticks.next(at) {
			got = append(got, at.Format(time.RFC3339))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s in %s from %s (-want +got):\n%s", c.cron, c.zone, c.from, diff)
		}
	}
}
