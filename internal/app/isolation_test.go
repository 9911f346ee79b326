// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// TestGateSlowTargetsDelayNobody sends 1000 events a second to a healthy target, alone and together with one that hangs
// and one that answers 500, in turns. The healthy one's 99th percentile from send to arrival must stay the same: at most
// 1.2 times or 2 ms more, by the median of five turns each.
func TestGateSlowTargetsDelayNobody(t *testing.T) {
	s, _ := start(t, options(t.TempDir()))
	hang := make(chan struct{})
	hanging := newSink(t, func(_ http.ResponseWriter, r *http.Request, _ []byte) {
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	})
	defer close(hang)
	failing := newSink(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) { w.WriteHeader(http.StatusInternalServerError) })
	var mu sync.Mutex
	var latencies []time.Duration
	healthy := newSink(t, func(_ http.ResponseWriter, _ *http.Request, body []byte) {
		sent, err := strconv.ParseInt(string(body), 10, 64)
		if err != nil {
			t.Errorf("body %q: %v", body, err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		latencies = append(latencies, time.Duration(time.Now().UnixNano()-sent))
	})
	s.target("healthy", healthy.URL, `{"concurrency":16}`)
	s.target("hanging", hanging.URL, `{"concurrency":8,"timeout":"2s"}`)
	s.target("failing", failing.URL, `{"concurrency":8}`)
	s.rule("default", "healthy", `{"type":["alone","together"]}`, "healthy")
	s.rule("default", "hanging", `{"type":["together"]}`, "hanging")
	s.rule("default", "failing", `{"type":["together"]}`, "failing")
	eventually(t, 10*time.Second, func() (string, bool) { // until the rules are in force
		s.publish("default", fmt.Sprint("warm", time.Now().UnixNano()), "alone", fmt.Sprint(time.Now().UnixNano()))
		mu.Lock()
		defer mu.Unlock()
		return "nothing arrives", len(latencies) > 100
	})

	const perTurn, rate, turns = 1500, 1000, 5
	turn := func(n int, typ string) time.Duration {
		mu.Lock()
		latencies = latencies[:0]
		mu.Unlock()
		pace(t, rate, perTurn, func(i int) {
			if status := s.publish("default", fmt.Sprintf("%s-%d-%d", typ, n, i), typ, fmt.Sprint(time.Now().UnixNano())); status != http.StatusAccepted {
				t.Errorf("publish: %d", status)
			}
		})
		var p99 time.Duration
		eventually(t, 20*time.Second, func() (string, bool) {
			mu.Lock()
			defer mu.Unlock()
			if len(latencies) < perTurn {
				return fmt.Sprintf("%d of %d arrived", len(latencies), perTurn), false
			}
			slices.Sort(latencies)
			p99 = latencies[len(latencies)*99/100]
			return "", true
		})
		return p99
	}
	// A machine that does something else for a moment spoils five turns of either kind; it is given one more chance.
	for try := range 2 {
		var alone, together []time.Duration
		for n := range turns {
			alone = append(alone, turn(try*turns+n, "alone"))
			together = append(together, turn(try*turns+n, "together"))
		}
		a, b := median(alone), median(together)
		t.Logf("p99 alone %v, together %v (medians of %v and %v)", a, b, alone, together)
		if b <= a+a/5 || b <= a+2*time.Millisecond {
			return
		}
	}
	t.Error("the healthy target's p99 grew, twice")
}

func median(d []time.Duration) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[len(s)/2]
}

// pace calls fn n times, rate times a second, from a few goroutines.
func pace(t testing.TB, rate, n int, fn func(i int)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	due := make(chan int, 64)
	var wg sync.WaitGroup
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range due {
				fn(i)
			}
		}()
	}
	began := time.Now()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for i := 0; i < n; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		}
		for due2 := int(time.Since(began).Seconds() * float64(rate)); i < min(due2, n); i++ {
			due <- i
		}
	}
	close(due)
	wg.Wait()
}
