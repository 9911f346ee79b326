// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const hookSecret = "a secret of the hooks"

func (s *server) githubHook(name string) {
	s.t.Helper()
	s.must("PUT", "/v1/sources/"+name, `{"kind":"Source","name":"`+name+`","type":"webhook","config":{"provider":"github","secret":{"value":"`+hookSecret+`"}}}`)
}

// hook sends what GitHub would and returns the status; a failure to reach the server is status 0.
func (s *server) hook(name, id, secret string) int {
	body := `{"action":"opened","issue":{"number":7},"repository":{"url":"https://api.github.com/repos/a/b"},"n":"` + id + `"}`
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(body))
	status, _ := s.call("POST", "/hooks/"+name, body, "X-GitHub-Event", "issues", "X-GitHub-Delivery", id,
		"X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	return status
}

// A hook is defined, takes an event in that a rule sends on, says where it stands, hides its secret, and goes.
func TestHookFromDefinitionToTarget(t *testing.T) {
	s, _ := start(t, options(t.TempDir()))
	out := newSink(t, nil)
	s.target("sink", out.URL, `{}`)
	s.rule("default", "issues", `{"type":[{"prefix":"com.github."}]}`, "sink")
	s.githubHook("github")
	if status := s.hook("github", "g1", hookSecret); status != http.StatusOK {
		t.Fatalf("answered %d", status)
	}
	if status := s.hook("github", "g2", "another"); status != http.StatusForbidden {
		t.Errorf("a wrong signature is answered %d", status)
	}
	s.settled("default", 10*time.Second)
	if len(out.seen) != 1 {
		t.Errorf("the target saw %d", len(out.seen))
	}
	if s.event("default", "g1") == nil || s.event("default", "g2") != nil {
		t.Error("stored is not what was signed")
	}
	doc := s.must("GET", "/v1/sources/github", "")
	for _, want := range []string{`"state":"running"`, `"hook":"/hooks/github"`, `"stored":1`, `"rejected":1`, `[redacted]`} {
		if !strings.Contains(doc, want) {
			t.Errorf("%s is not in %s", want, doc)
		}
	}
	if strings.Contains(doc, hookSecret) {
		t.Error("the secret is shown")
	}
	s.must("PUT", "/v1/sources/github", `{"kind":"Source","name":"github","type":"webhook","config":{"provider":"github","secret":{"value":"[redacted]"}}}`)
	s.must("POST", "/v1/sources/github:pause", "")
	if status := s.hook("github", "g3", hookSecret); status != http.StatusServiceUnavailable {
		t.Errorf("a paused hook answers %d", status)
	}
	s.must("POST", "/v1/sources/github:resume", "")
	if status := s.hook("github", "g3", hookSecret); status != http.StatusOK {
		t.Errorf("a hook that was resumed, with the secret that was read, answers %d", status)
	}
	if status, answer := s.call("DELETE", "/v1/buses/default", ""); status == http.StatusNoContent {
		t.Errorf("a bus in use is deleted: %s", answer)
	}
	metrics := s.must("GET", "/metrics", "")
	for _, want := range []string{`rialto_hook_requests_total{result="forbidden",source="github"} 1`, `rialto_source_events_total{result="stored",source="github"} 2`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("%s is not in the metrics", want)
		}
	}
	s.must("DELETE", "/v1/sources/github", "")
	if status := s.hook("github", "g4", hookSecret); status != http.StatusNotFound {
		t.Errorf("a deleted hook answers %d", status)
	}
}

// Whatever was answered with 2xx is in the log, although the process is killed again and again while hooks come in.
func TestKillHooks(t *testing.T) {
	dir := t.TempDir()
	var answered sync.Map
	var n atomic.Int64
	for round := range 3 {
		s, cmd := spawn(t, dir)
		s.githubHook("github")
		enough, before := make(chan struct{}), n.Load()
		var once sync.Once
		var all sync.WaitGroup
		for w := range 8 {
			all.Go(func() {
				for i := 0; ; i++ {
					id := fmt.Sprintf("r%d-w%d-%d", round, w, i)
					switch status := s.hook("github", id, hookSecret); {
					case status == 0:
						return // killed
					case status == http.StatusOK:
						answered.Store(id, true)
						if n.Add(1)-before > 300 {
							once.Do(func() { close(enough) })
						}
					}
				}
			})
		}
		<-enough
		if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		all.Wait()
	}
	s, _ := spawn(t, dir)
	missing := 0
	answered.Range(func(id, _ any) bool {
		if s.event("default", id.(string)) == nil {
			missing++
		}
		return true
	})
	if missing > 0 {
		t.Errorf("%d of %d events that were answered with 200 are not in the log", missing, n.Load())
	}
}

// floodVariable sets the number of requests a second with wrong signatures; 10000 is the whole thing.
const floodVariable = "RIALTO_HOOK_FLOOD"

// A flood of requests with wrong signatures does not hold up those that are good.
func TestGateHookFlood(t *testing.T) {
	rate := 1000
	if text := os.Getenv(floodVariable); text != "" {
		var err error
		if rate, err = strconv.Atoi(text); err != nil || rate < 1 {
			t.Fatalf("%s=%q is no number", floodVariable, text)
		}
	}
	s, _ := start(t, options(t.TempDir()))
	s.githubHook("good")
	s.githubHook("flooded")
	const good, seconds = 200, 1
	turn := 0
	// run sends good requests at a pace, and returns how long the middle one of them took.
	run := func() time.Duration {
		turn++
		var mu sync.Mutex
		var took []time.Duration
		pace(t, good, good*seconds, func(i int) {
			began := time.Now()
			if status := s.hook("good", fmt.Sprintf("%d-%d", turn, i), hookSecret); status != http.StatusOK {
				t.Errorf("a good request is answered %d", status)
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(began))
		})
		return median(took)
	}
	// flooded is run beside a flood.
	flooded := func() time.Duration {
		var flood sync.WaitGroup
		defer flood.Wait()
		flood.Go(func() {
			pace(t, rate, rate*seconds, func(i int) {
				if status := s.hook("flooded", fmt.Sprint(i), "wrong"); status != http.StatusForbidden {
					t.Errorf("a wrong signature is answered %d", status)
				}
			})
		})
		return run()
	}
	// A machine that does something else for a moment spoils turns of either kind; it is given one more chance.
	slower := true
	for try := 0; try < 2 && slower; try++ {
		var alone, together []time.Duration
		for range 3 {
			alone, together = append(alone, run()), append(together, flooded())
		}
		a, b := median(alone), median(together)
		t.Logf("a good request takes %v alone, %v beside %d wrong ones a second (medians of %v and %v)", a, b, rate, alone, together)
		slower = b > a+a/10 && b > a+2*time.Millisecond
	}
	if slower {
		t.Error("good requests are slower beside a flood, twice")
	}
	if n := s.must("GET", "/v1/sources/flooded", ""); !strings.Contains(n, `"stored":0`) {
		t.Errorf("something of the flood is stored: %s", n)
	}
}
