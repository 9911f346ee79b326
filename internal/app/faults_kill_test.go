// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
)

// arrivals notes when the far side said yes, body by body.
type arrivals struct {
	mu sync.Mutex // guards at
	at map[string][]time.Time
}

func (a *arrivals) add(body []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at[string(body)] = append(a.at[string(body)], time.Now())
}

// TestKillWithFailingTargets kills the process at random moments while targets fail, hang, recover, refuse and are deleted,
// and while rules are edited, created and deleted. Afterwards every accepted event has ended, for each rule it met, as
// delivered, dead, or cancelled for a reason, the account adds up at every look, and nothing was delivered twice but what
// was under way when the process was killed.
func TestKillWithFailingTargets(t *testing.T) {
	const rounds = 8
	dir := t.TempDir()
	rnd := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 2))
	var down atomic.Bool
	release := make(chan struct{}) // closed at the end: what hangs then goes on
	behave := map[string]func(w http.ResponseWriter, r *http.Request, body []byte) int{
		"steady": func(http.ResponseWriter, *http.Request, []byte) int { return 200 },
		"edited": func(http.ResponseWriter, *http.Request, []byte) int { return 200 },
		"flaky": func(http.ResponseWriter, *http.Request, []byte) int {
			return []int{200, 503}[rand.IntN(2)]
		},
		"recovers": func(http.ResponseWriter, *http.Request, []byte) int {
			if down.Load() {
				return 502
			}
			return 200
		},
		"hangs": func(_ http.ResponseWriter, r *http.Request, _ []byte) int {
			if rand.IntN(100) == 0 {
				select {
				case <-release:
				case <-r.Context().Done():
					return 0
				}
			}
			return 200
		},
		"refuses": func(_ http.ResponseWriter, _ *http.Request, body []byte) int {
			if strings.Contains(string(body), `7"`) {
				return 422
			}
			return 200
		},
		"doomed":  func(http.ResponseWriter, *http.Request, []byte) int { return 500 },
		"removed": func(http.ResponseWriter, *http.Request, []byte) int { return 503 },
	}
	seen := map[string]*arrivals{}
	urls := map[string]string{}
	for name, fn := range behave {
		a := &arrivals{at: map[string][]time.Time{}}
		seen[name] = a
		urls[name] = newSink(t, func(w http.ResponseWriter, r *http.Request, body []byte) {
			status := fn(w, r, body)
			if status == 200 {
				a.add(body)
			}
			if status > 0 {
				w.WriteHeader(status)
			}
		}).URL
	}

	var acked acknowledged
	var kills []time.Time
	for round := range rounds {
		s, cmd := spawn(t, dir)
		if round == 0 {
			for name, url := range urls {
				attempts, breaker := 1000, `{"window":"2s","minAttempts":10,"failurePercent":70,"open":"1s","maxOpen":"1s"}`
				if name == "doomed" {
					attempts, breaker = 2, `{"enabled":false}`
				}
				s.target(name, url, fmt.Sprintf(`{"concurrency":8,"timeout":"1s","retry":{"schedule":["40ms"],"maxAttempts":%d},"breaker":%s}`,
					attempts, breaker))
				s.rule("default", name, `{"type":["reading"]}`, name)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		for w := range 3 {
			wg.Go(func() { publishHTTP(ctx, s, &acked, fmt.Sprintf("f%d-%d", round, w)) })
		}
		wg.Go(func() { editRules(ctx, s, round) })
		wg.Go(func() {
			for ctx.Err() == nil {
				down.Store(!down.Load())
				select {
				case <-time.After(time.Duration(50+rand.IntN(300)) * time.Millisecond):
				case <-ctx.Done():
				}
			}
		})
		if round == rounds/2 {
			wg.Go(func() { // may come too late, and is repeated below
				s.call("DELETE", "/v1/buses/default/rules/removed", "")
				s.call("DELETE", "/v1/targets/removed", "")
			})
		}
		<-time.After(time.Duration(200+rnd.IntN(900)) * time.Millisecond)
		kills = append(kills, time.Now())
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		cancel()
		wg.Wait()
		cmd.Wait() // killed: the error is known
	}

	s, _ := spawn(t, dir)
	down.Store(false)
	close(release)
	for _, path := range []string{"/v1/buses/default/rules/removed", "/v1/targets/removed"} {
		if status, body := s.call("DELETE", path, ""); status >= 300 && status != http.StatusNotFound {
			t.Fatalf("DELETE %s: %d %s", path, status, body)
		}
	}
	account := s.settled("default", 2*time.Minute)
	if account.Events.Accepted < uint64(len(acked.ids)) || account.Events.NotYetRouted != 0 {
		t.Errorf("the ledger has %+v, and %d events were acknowledged", account.Events, len(acked.ids))
	}
	by := map[string]bridge.LedgerDelivery{}
	for _, d := range account.Deliveries {
		by[d.Rule] = d // each rule is called like its target
		if d.Owed != d.Delivered+d.Dead+d.Expired+d.Cancelled+d.Discarded {
			t.Errorf("%s/%s: %+v", d.Rule, d.Target, d)
		}
	}
	for _, name := range []string{"steady", "flaky", "recovers", "hangs"} {
		if missing := seen[name].missing(acked.bodies); len(missing) > 0 {
			t.Errorf("%s did not get %d of %d acknowledged events, such as %s", name, len(missing), len(acked.bodies), missing[0])
		}
		if d := by[name]; d.Delivered != d.Owed || d.Owed < uint64(len(acked.bodies)) {
			t.Errorf("%s: %+v", name, d)
		}
	}
	if d := by["doomed"]; d.Dead != d.Owed {
		t.Errorf("doomed: %+v", d)
	}
	if d := by["refuses"]; d.Dead == 0 || d.Dead+d.Delivered != d.Owed {
		t.Errorf("refuses: %+v", d)
	}
	if d := by["removed"]; d.Cancelled == 0 || d.Cancelled+d.Dead+d.Delivered != d.Owed {
		t.Errorf("removed: %+v", d)
	}
	repeats := 0
	for name, a := range seen {
		repeats += a.repeated(t, name, kills)
	}
	checkJourneys(t, s, acked.ids)
	t.Logf("%d acknowledged in %d lives, %d deliveries owed, repeated after a kill: %d", len(acked.ids), rounds, totalOwed(account), repeats)
}

// editRules changes the rule "edited", whose transform shows its revision, and makes and deletes another one.
func editRules(ctx context.Context, s *server, round int) {
	for i := 0; ctx.Err() == nil; i++ {
		s.call("PUT", "/v1/buses/default/rules/edited", fmt.Sprintf(`{"kind":"Rule","name":"edited","bus":"default","pattern":{"type":["reading"]},
			"targets":[{"target":"edited","transform":{"template":{"edit":"%d-%d","id":"${id}"}}}]}`, round, i))
		s.call("PUT", "/v1/buses/default/rules/passing", `{"kind":"Rule","name":"passing","bus":"default","pattern":{"type":["reading"]},"targets":[{"target":"flaky"}]}`)
		select {
		case <-time.After(time.Duration(10+rand.IntN(40)) * time.Millisecond):
		case <-ctx.Done():
		}
		s.call("DELETE", "/v1/buses/default/rules/passing", "")
	}
}

func (a *arrivals) missing(want []string) (out []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range want {
		if len(a.at[w]) == 0 {
			out = append(out, w)
		}
	}
	return out
}

// repeated counts what arrived again and complains about what had no reason to: between two arrivals of a body there must
// be a kill that followed the first one so closely that its outcome may not have been committed.
func (a *arrivals) repeated(t *testing.T, name string, kills []time.Time) (n int) {
	t.Helper()
	const uncommitted, noted = 2 * time.Second, time.Second // generous: a slow disk; a far side that was slow to note what it got
	rules := 1
	if name == "flaky" {
		rules = 2 // the passing one sends there too
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for body, at := range a.at {
		for i := rules; i < len(at); i++ {
			n++
			excused := false
			for _, k := range kills {
				for _, before := range at[:i] {
					excused = excused || before.After(k.Add(-uncommitted)) && before.Before(k.Add(noted)) && at[i].After(k)
				}
			}
			if !excused {
				t.Errorf("%s got %s again at %v after %v, and the kills were at %v", name, body, at[i], at[:i], kills)
			}
		}
	}
	return n
}

// checkJourneys looks at some of the events: each delivery has ended, and says why if it was not delivered.
func checkJourneys(t *testing.T, s *server, ids []string) {
	t.Helper()
	for i := 0; i < len(ids); i += max(1, len(ids)/200) {
		var found struct {
			Journey struct {
				Deliveries []struct{ Rule, Target, State, Reason string }
			}
		}
		raw := s.event("default", ids[i])
		if raw == nil {
			t.Errorf("acknowledged event %s is not in the log", ids[i])
			continue
		}
		if err := json.Unmarshal(raw, &found); err != nil {
			t.Fatal(err)
		}
		if len(found.Journey.Deliveries) == 0 {
			t.Errorf("event %s owes nothing: %s", ids[i], raw)
		}
		for _, d := range found.Journey.Deliveries {
			switch {
			case d.State == "delivered":
			case (d.State == "dead" || d.State == "cancelled") && d.Reason != "":
			default:
				t.Errorf("event %s, rule %s, target %s: %s %q", ids[i], d.Rule, d.Target, d.State, d.Reason)
			}
		}
	}
}

func totalOwed(l bridge.Ledger) (n uint64) {
	for _, d := range l.Deliveries {
		n += d.Owed
	}
	return n
}
