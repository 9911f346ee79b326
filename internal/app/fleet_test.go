// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestGateManyTargetsDelayNobody has two hundred targets, each with a rule and ten events a second of its own. Twenty of
// them cannot be connected to, twenty hang, and twenty are limited to one request a second. The 99th percentile of the other
// hundred and forty, from send to arrival, must be what it is when only their events come: at most 1.2 times or 2 ms more,
// by the median of five windows each, in turns.
func TestGateManyTargetsDelayNobody(t *testing.T) {
	const (
		targets, healthy = 200, 140
		each, seconds    = 10, 1 // events of a target a second, and length of a window
		turns            = 5
	)
	s, _ := start(t, options(t.TempDir()))
	hang := make(chan struct{})
	hanging := newSink(t, func(_ http.ResponseWriter, r *http.Request, _ []byte) {
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	})
	defer close(hang)
	limited := newSink(t, nil)
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close() // whoever connects to it is refused
	var mu sync.Mutex
	latencies := map[string][]time.Duration{} // by window
	fine := newSink(t, func(_ http.ResponseWriter, _ *http.Request, body []byte) {
		window, sent, _ := strings.Cut(string(body), " ")
		ns, err := strconv.ParseInt(sent, 10, 64)
		if err != nil {
			t.Errorf("body %q: %v", body, err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		latencies[window] = append(latencies[window], time.Duration(time.Now().UnixNano()-ns))
	})
	for i := range targets {
		name := fmt.Sprintf("t%d", i)
		switch {
		case i < healthy:
			s.target(name, fine.URL, `{}`)
		case i < healthy+20:
			s.target(name, "http://"+gone.Addr().String(), `{}`)
		case i < healthy+40:
			s.target(name, hanging.URL, `{"timeout":"2s"}`)
		default:
			s.target(name, limited.URL, `{"rateLimit":{"perSecond":1,"burst":1}}`)
		}
		s.rule("default", name, fmt.Sprintf(`{"type":[%q]}`, name), name)
	}

	window := func(name string, to int) time.Duration {
		n := to * each * seconds
		pace(t, to*each, n, func(i int) {
			body := fmt.Sprintf("%s %d", name, time.Now().UnixNano())
			if status := s.publish("default", fmt.Sprintf("%s-%d", name, i), fmt.Sprint("t", i%to), body); status != http.StatusAccepted {
				t.Errorf("publish: %d", status)
			}
		})
		want := healthy * each * seconds
		var p99 time.Duration
		eventually(t, 20*time.Second, func() (string, bool) {
			mu.Lock()
			defer mu.Unlock()
			got := latencies[name]
			if len(got) < want {
				return fmt.Sprintf("%d of %d arrived", len(got), want), false
			}
			slices.Sort(got)
			p99 = got[len(got)*99/100]
			return "", true
		})
		return p99
	}
	window("warm", targets)
	// A machine that does something else for a moment spoils windows of either kind; it is given one more chance.
	for try := range 2 {
		var alone, together []time.Duration
		for n := range turns {
			alone = append(alone, window(fmt.Sprintf("alone-%d-%d", try, n), healthy))
			together = append(together, window(fmt.Sprintf("together-%d-%d", try, n), targets))
		}
		a, b := median(alone), median(together)
		t.Logf("p99 alone %v, together %v (medians of %v and %v)", a, b, alone, together)
		if b <= a+a/5 || b <= a+2*time.Millisecond {
			return
		}
	}
	t.Error("the healthy targets' p99 grew, twice")
}
