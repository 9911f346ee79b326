// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
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

// A flood of hooks with wrong signatures does not hold up those that are good: they take at most a tenth longer than with no flood,
// whether it comes over few connections or many. Its senders do not wait for answers.
func TestGateHookFlood(t *testing.T) {
	s, cmd := spawn(t, t.TempDir())
	s.githubHook("good")
	s.githubHook("flooded")
	for _, conns := range []int{8, 400} {
		t.Run(fmt.Sprintf("%d connections", conns), func(t *testing.T) {
			s.hookFlood(t, cmd.Process.Pid, conns)
		})
	}
	doc := s.must("GET", "/v1/sources/flooded", "")
	if !strings.Contains(doc, `"stored":0`) {
		t.Errorf("something of the flood is stored: %s", doc)
	}
}

func (s *server) hookFlood(t *testing.T, pid, conns int) {
	// A machine that does something else for a moment spoils turns of either kind, so there are many of them; and it is given
	// two more chances.
	for try := range 3 {
		alone := &hookFlood{pid: pid}
		flooded := &hookFlood{addr: strings.TrimPrefix(s.url, "http://"), pid: pid, conns: conns}
		kinds := []*hookFlood{alone, flooded}
		for round := range 8 {
			for i := range kinds {
				f := kinds[(round+i)%len(kinds)]
				f.during(t, func() { s.goodHooks(t, fmt.Sprintf("c%d-%d-%d-%d", conns, try, round, i), 150, f) })
			}
		}
		a, b := median(alone.good), median(flooded.good)
		t.Logf("a good hook takes %v alone, %v (%+.0f %%) in a flood of %.0f requests a second, of which %.0f are answered; the bridge takes %.1f %% and %.1f %% of a processor",
			a, b, more(b, a), flooded.rate(&flooded.sent), flooded.rate(&flooded.answered), alone.share(), flooded.share())
		if n := flooded.rate(&flooded.sent); n < floodRate*9/10 {
			t.Errorf("only %.0f hooks a second were sent", n)
		}
		if more(b, a) <= floodBar || b-a < noise {
			return
		}
	}
	t.Errorf("good hooks are more than %d %% slower in a flood, three times", floodBar)
}

// floodBar is by how many percent a flood may slow good hooks down; noise is what the machine makes of two equal turns at times.
const (
	floodBar = 10
	noise    = 250 * time.Microsecond
)

// more is by how many percent d is more than base.
func more(d, base time.Duration) float64 { return 100 * (float64(d)/float64(base) - 1) }

// goodHooks sends n good hooks, 200 a second, and notes how long each takes.
func (s *server) goodHooks(t *testing.T, name string, n int, f *hookFlood) {
	var mu sync.Mutex
	pace(t, 200, n, func(i int) {
		began := time.Now()
		if status := s.hook("good", fmt.Sprintf("%s-%d", name, i), hookSecret); status != http.StatusOK {
			t.Errorf("a good hook is answered %d", status)
		}
		mu.Lock()
		defer mu.Unlock()
		f.good = append(f.good, time.Since(began))
	})
}

// hookFlood sends requests that nobody has signed, floodRate of them a second, and knows how good hooks fared meanwhile. With no
// connections it is none.
type hookFlood struct {
	addr  string
	pid   int // of who answers
	conns int

	sent, answered atomic.Int64
	took, cpu      time.Duration
	good           []time.Duration
}

func (f *hookFlood) rate(n *atomic.Int64) float64 { return float64(n.Load()) / f.took.Seconds() }

// share is how much of a processor the bridge took, in percent.
func (f *hookFlood) share() float64 { return 100 * f.cpu.Seconds() / f.took.Seconds() }

// during floods until fn is done.
func (f *hookFlood) during(t *testing.T, fn func()) {
	t.Helper()
	conns := make([]net.Conn, f.conns)
	for i := range conns {
		c, err := net.Dial("tcp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns[i] = c
	}
	stop := make(chan struct{})
	var all, readers sync.WaitGroup
	began, before := time.Now(), cpuOf(t, f.pid)
	for _, c := range conns {
		readers.Go(func() { f.read(t, c) })
	}
	if f.conns > 0 {
		all.Go(func() { f.send(t, conns, stop) })
	}
	fn()
	close(stop)
	for _, c := range conns { // the server may have stopped reading
		if err := c.SetWriteDeadline(time.Unix(1, 0)); err != nil {
			t.Error(err)
		}
	}
	all.Wait()
	f.took += time.Since(began)
	f.cpu += cpuOf(t, f.pid) - before
	for _, c := range conns {
		c.Close()
	}
	readers.Wait()
}

// send sends the flood over the connections in turn until stop is closed.
func (f *hookFlood) send(t *testing.T, conns []net.Conn, stop <-chan struct{}) {
	body := `{"action":"opened","issue":{"number":7},"repository":{"url":"https://api.github.com/repos/a/b"},"n":"1"}`
	request := fmt.Appendf(nil, "POST /hooks/flooded HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nX-GitHub-Event: issues\r\nX-GitHub-Delivery: g1\r\n"+
		"X-Hub-Signature-256: sha256=%064x\r\nContent-Length: %d\r\n\r\n%s", f.addr, 7, len(body), body)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for n := 0; ; {
		select {
		case <-tick.C:
		case <-stop:
			return
		}
		for due := int(time.Since(began).Seconds() * floodRate); n < due; n++ {
			if _, err := conns[n%len(conns)].Write(request); err != nil {
				if !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Error(err)
				}
				return
			}
			f.sent.Add(1)
		}
	}
}

// read reads the answers to a flood until its connection is closed.
func (f *hookFlood) read(t *testing.T, c net.Conn) {
	in := bufio.NewReader(c)
	for {
		answer, err := http.ReadResponse(in, nil)
		if err != nil {
			return
		}
		if answer.StatusCode != http.StatusForbidden {
			t.Errorf("an unsigned hook is answered %d", answer.StatusCode)
		}
		if _, err := io.Copy(io.Discard, answer.Body); err != nil {
			return
		}
		f.answered.Add(1)
	}
}
