// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
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

// floodRate is how many hooks a second with wrong signatures must not hold up those that are good.
const floodRate = 10_000

// A flood of hooks with wrong signatures does not hold up those that are good. Who sends so many requests from this very machine
// takes processor time from it, and so does whoever reads them: good hooks are measured alone, beside the same flood to a bare
// net/http handler in another process, and to one in the process of the bridge. What is left between that and a flood of hooks
// is the bridge's own doing: it may be a tenth, or, on a machine so busy that the bare handler alone does worse, as much as that does.
func TestGateHookFlood(t *testing.T) {
	dir := t.TempDir()
	bareAddr := filepath.Join(dir, "bare")
	t.Setenv(childBare, bareAddr)
	s, cmd := spawn(t, filepath.Join(dir, "data"))
	null, nullPID := spawnNull(t)
	inside, err := os.ReadFile(bareAddr)
	if err != nil {
		t.Fatal(err)
	}
	s.githubHook("good")
	s.githubHook("flooded")
	alone := &hookFlood{pid: cmd.Process.Pid}
	outside := &hookFlood{addr: strings.TrimPrefix(null, "http://"), path: "/null", status: http.StatusAccepted, pid: nullPID, conns: 8}
	bare := &hookFlood{addr: string(inside), path: "/null", status: http.StatusAccepted, pid: cmd.Process.Pid, conns: 8}
	refused := &hookFlood{addr: strings.TrimPrefix(s.url, "http://"), path: "/hooks/flooded", status: http.StatusForbidden, pid: cmd.Process.Pid, conns: 8}
	kinds := []*hookFlood{alone, outside, bare, refused}
	// A machine that does something else for a moment spoils turns of any kind, so they are short and many; and it is given
	// two more chances.
	slow, dear := true, true
	for try := 0; try < 3 && (slow || dear); try++ {
		for _, f := range kinds {
			f.reset()
		}
		for round := range 12 {
			for i := range kinds {
				f := kinds[(round+i)%len(kinds)]
				f.during(t, func() { s.goodHooks(fmt.Sprintf("%d-%d-%d", try, round, i), 50, f) })
			}
		}
		t.Logf("a good hook takes %v alone, %v beside %.0f requests a second to a bare handler of another process, %v beside %.0f to one of the same, %v beside %.0f refused hooks",
			median(alone.good), median(outside.good), outside.rate(), median(bare.good), bare.rate(), median(refused.good), refused.rate())
		idle := alone.cpu.Seconds() / alone.took.Seconds()
		t.Logf("a request costs a bare handler %v or %v of processor time, a refused hook costs the bridge %v", outside.cost(0), bare.cost(idle), refused.cost(idle))
		b := median(bare.good)
		slow = median(refused.good) > b+max(b/10, b-median(alone.good), floodFloor)
		dear = refused.cost(idle) > bare.cost(idle)*7/4
	}
	if slow {
		t.Error("good hooks are slower beside a flood of refused ones, three times")
	}
	if dear {
		t.Error("a refused hook costs 1.75 times what a bare handler does or more, three times")
	}
	if n := s.must("GET", "/v1/sources/flooded", ""); !strings.Contains(n, `"stored":0`) {
		t.Errorf("something of the flood is stored: %s", n)
	}
}

// floodFloor is a difference of medians that says nothing.
const floodFloor = 100 * time.Microsecond

// goodHooks sends n good hooks, 200 a second, and notes how long each takes.
func (s *server) goodHooks(name string, n int, f *hookFlood) {
	var mu sync.Mutex
	pace(s.t, 200, n, func(i int) {
		began := time.Now()
		if status := s.hook("good", fmt.Sprintf("%s-%d", name, i), hookSecret); status != http.StatusOK {
			s.t.Errorf("a good hook is answered %d", status)
		}
		mu.Lock()
		defer mu.Unlock()
		f.good = append(f.good, time.Since(began))
	})
}

// hookFlood sends requests that nobody has signed to a process, floodRate of them a second over a few connections, and knows how
// good hooks fared meanwhile. With no connections it is none.
type hookFlood struct {
	addr, path string
	status     int // of every answer
	pid        int // of who answers
	conns      int

	sent      atomic.Int64
	took, cpu time.Duration
	good      []time.Duration
}

func (f *hookFlood) reset() {
	f.sent.Store(0)
	f.took, f.cpu, f.good = 0, 0, nil
}

// rate is how many a second were sent.
func (f *hookFlood) rate() float64 { return float64(f.sent.Load()) / f.took.Seconds() }

// cost is the processor time for each, without what the process takes besides, which is idle of a processor.
func (f *hookFlood) cost(idle float64) time.Duration {
	return (f.cpu - time.Duration(idle*float64(f.took))) / time.Duration(f.sent.Load())
}

// during floods until fn is done.
func (f *hookFlood) during(t *testing.T, fn func()) {
	t.Helper()
	stop := make(chan struct{})
	var all sync.WaitGroup
	began, before := time.Now(), cpuOf(t, f.pid)
	for range f.conns {
		all.Go(func() { f.send(t, stop) })
	}
	fn()
	close(stop)
	all.Wait()
	f.took += time.Since(began)
	f.cpu += cpuOf(t, f.pid) - before
}

// send sends its part of the flood over one connection until stop is closed.
func (f *hookFlood) send(t *testing.T, stop <-chan struct{}) {
	c, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	body := `{"action":"opened","issue":{"number":7},"repository":{"url":"https://api.github.com/repos/a/b"},"n":"1"}`
	request := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nX-GitHub-Event: issues\r\nX-GitHub-Delivery: g1\r\n"+
		"X-Hub-Signature-256: sha256=%064x\r\nContent-Length: %d\r\n\r\n%s", f.path, f.addr, 7, len(body), body)
	in, want := bufio.NewReaderSize(c, 1024), fmt.Sprintf("HTTP/1.1 %d ", f.status)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for n := 0; ; {
		select {
		case <-tick.C:
		case <-stop:
			return
		}
		for due := int(time.Since(began).Seconds() * floodRate / float64(f.conns)); n < due; n++ {
			if _, err := c.Write(request); err != nil {
				t.Error(err)
				return
			}
			if err := readAnswer(in, want); err != nil {
				t.Error(err)
				return
			}
			f.sent.Add(1)
		}
	}
}
