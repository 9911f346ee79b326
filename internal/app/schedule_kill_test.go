// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"syscall"
	"testing"
	"time"
)

// TestKillSchedules kills the process again and again while the ticks of many schedules are stored and noted, on a bus that knows
// no id again, and looks whether each tick is there exactly once. Every kill hits many schedules between the commit of a tick and
// that of the position.
func TestKillSchedules(t *testing.T) {
	const schedules, lives = 100, 4
	dir := t.TempDir()
	for life := range lives {
		began := time.Now()
		s, cmd := spawn(t, dir)
		if life == 0 {
			s.must("PUT", "/v1/buses/ticks", `{"dedupWindow":"0s"}`)
			for i := range schedules {
				s.must("PUT", fmt.Sprintf("/v1/sources/tick-%d", i), `{"type":"schedule","bus":"ticks","config":{"every":"1s","missed":"all"}}`)
			}
		}
		eventually(t, 30*time.Second, func() (string, bool) {
			n := s.ticks(began)
			return fmt.Sprintf("%d schedules have ticked in this life", len(n)), len(n) == schedules
		})
		now := time.Now()
		next := now.Truncate(time.Second).Add(time.Second + time.Duration(rand.IntN(40))*time.Millisecond)
		<-time.NewTimer(next.Sub(now)).C
		if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
	}
	s, _ := spawn(t, dir)
	began := time.Now()
	var got map[string]map[time.Time]int
	eventually(t, 30*time.Second, func() (string, bool) {
		got = s.ticks(time.Time{})
		for _, at := range got {
			if !newest(at).After(began) {
				return "a schedule has not ticked since the last start", false
			}
		}
		return "", true
	})
	count, twice, missing := 0, 0, 0
	for _, at := range got {
		first, last := newest(at), newest(at)
		for tick, n := range at {
			count++
			if n > 1 {
				twice++
			}
			if tick.Before(first) {
				first = tick
			}
		}
		missing += int(last.Sub(first)/time.Second) + 1 - len(at)
	}
	t.Logf("%d ticks of %d schedules in %d lives", count, len(got), lives+1)
	if twice > 0 || missing > 0 || len(got) != schedules {
		t.Errorf("of %d ticks of %d schedules %d are stored more than once, and %d are missing", count, len(got), twice, missing)
	}
}

func newest(at map[time.Time]int) (last time.Time) {
	for tick := range at {
		if tick.After(last) {
			last = tick
		}
	}
	return last
}

// ticks returns how often each tick is stored, by source.
func (s *server) ticks(from time.Time) map[string]map[time.Time]int {
	s.t.Helper()
	out := map[string]map[time.Time]int{}
	query := url.Values{"limit": {"1000"}}
	if !from.IsZero() {
		query.Set("from", from.UTC().Format(time.RFC3339))
	}
	for {
		var page struct {
			Items []struct {
				Event struct {
					Source string    `json:"source"`
					Time   time.Time `json:"time"`
				} `json:"event"`
			} `json:"items"`
			NextCursor string `json:"nextCursor"`
		}
		if err := json.Unmarshal([]byte(s.must("GET", "/v1/buses/ticks/events?"+query.Encode(), "")), &page); err != nil {
			s.t.Fatal(err)
		}
		for _, item := range page.Items {
			if out[item.Event.Source] == nil {
				out[item.Event.Source] = map[time.Time]int{}
			}
			out[item.Event.Source][item.Event.Time]++
		}
		if page.NextCursor == "" {
			return out
		}
		query.Set("cursor", page.NextCursor)
	}
}
