// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"
)

// TestKillStoresEachReplyOnce has a function elsewhere reply to events, with a new id each time it is called, and some on to
// another bus, while the process is killed again and again. Each event that was acknowledged has one reply in the end, and is on the
// other bus once: none is lost, and a call that was repeated is no second reply.
func TestKillStoresEachReplyOnce(t *testing.T) {
	const rounds = 5
	dir := t.TempDir()
	var acked acknowledged
	fn := newSink(t, func(w http.ResponseWriter, r *http.Request, body []byte) {
		if rand.IntN(20) == 0 { // some retries are always under way
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/cloudevents+json")
		fmt.Fprintf(w, `{"specversion":"1.0","id":"%d","source":"/fn","type":"done","subject":%q,"data":%s}`, rand.Int64(), r.Header.Get("ce-id"), body)
	})
	for round := range rounds {
		s, cmd := spawn(t, dir)
		if round == 0 {
			s.must("PUT", "/v1/buses/copies", `{}`)
			s.must("PUT", "/v1/targets/fn", `{"type":"function","config":{"runtime":"http","url":"`+fn.URL+`","replyBus":"devices"},"delivery":{"concurrency":16,"retry":{"schedule":["50ms"],"maxAttempts":100}}}`)
			s.must("PUT", "/v1/targets/copy", `{"type":"bus","config":{"bus":"copies"},"delivery":{"concurrency":16}}`)
			s.rule("default", "all", `{"type":["reading"]}`, "fn")
			s.rule("default", "copy", `{"type":["reading"]}`, "copy")
			untilRouted(t, s, fn, "default")
		}
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() { publishHTTP(ctx, s, &acked, fmt.Sprintf("k%d-%d", round, w)) })
		}
		timer := time.NewTimer(time.Duration(150+rand.IntN(400)) * time.Millisecond)
		<-timer.C
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		cancel()
		wg.Wait()
		cmd.Wait() // killed: the error is known
	}
	s, _ := spawn(t, dir)
	s.settled("default", time.Minute)
	replies, copies := s.count("devices", "done", func(ev storedEvent) string { return ev.Subject }), s.count("copies", "reading", func(ev storedEvent) string { return ev.ID })
	for _, id := range acked.ids {
		if replies[id] != 1 || copies[id] != 1 {
			t.Errorf("event %s has %d replies and %d copies", id, replies[id], copies[id])
		}
	}
	fn.mu.Lock()
	repeated := 0
	for _, n := range fn.seen {
		repeated += n - 1
	}
	fn.mu.Unlock()
	t.Logf("%d events in %d lives, %d repeated calls", len(acked.ids), rounds, repeated)
}

type storedEvent struct{ ID, Subject string }

// count counts the events of a type on a bus by what key makes of them.
func (s *server) count(bus, typ string, key func(storedEvent) string) map[string]int {
	s.t.Helper()
	counts := map[string]int{}
	cursor := ""
	for {
		var page struct {
			Items      []struct{ Event storedEvent }
			NextCursor string
		}
		if err := json.Unmarshal([]byte(s.must("GET", "/v1/buses/"+bus+"/events?limit=500&type="+typ+"&cursor="+url.QueryEscape(cursor), "")), &page); err != nil {
			s.t.Fatal(err)
		}
		for _, item := range page.Items {
			counts[key(item.Event)]++
		}
		if cursor = page.NextCursor; cursor == "" {
			return counts
		}
	}
}
