// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/app"
	"github.com/rialto-bridge/rialto/internal/egress"
)

// childData, in the environment, makes this test binary a bridge with its data there, until it is killed.
const childData = "RIALTO_TEST_CHILD_DATA"

// childRing gives such a bridge another size of its memory of recent events, in bytes.
const childRing = "RIALTO_TEST_CHILD_RING"

// childPostgres gives such a bridge a database for its definitions.
const childPostgres = "RIALTO_TEST_CHILD_POSTGRES"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childData); dir != "" {
		os.Exit(beBridge(dir))
	}
	if addr := os.Getenv(childFlood); addr != "" {
		os.Exit(beFlood(addr))
	}
	if os.Getenv(childNull) != "" {
		os.Exit(beNull())
	}
	code := m.Run()
	if err := databases.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func beBridge(dir string) int {
	o := options(dir)
	o.Postgres = os.Getenv(childPostgres)
	if v := os.Getenv(childRing); v != "" {
		var err error
		if o.RingBytes, err = strconv.ParseInt(v, 10, 64); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	a, err := app.Start(context.Background(), o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Printf("ready http=%s mqtt=%s\n", a.HTTPAddr(), a.MQTTAddr())
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	go func() {
		io.Copy(io.Discard, os.Stdin) // until the parent is gone
		cancel()
	}()
	<-stop.Done()
	limit, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := a.Close(limit); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// options are those of a bridge for tests: free ports, loopback targets, anonymous MQTT.
func options(dir string) app.Options {
	return app.Options{Data: dir, Listen: "127.0.0.1:0", MQTT: "127.0.0.1:0", MQTTAnonymous: true, Reserve: 1 << 20,
		EgressAllow: []egress.Entry{{Prefix: netip.MustParsePrefix("127.0.0.0/8")}}}
}

// server is a bridge as its users see it.
type server struct {
	t    testing.TB
	url  string
	mqtt string
	key  string
}

// start runs a bridge in this process.
func start(t testing.TB, o app.Options) (*server, *app.App) {
	t.Helper()
	if os.Getenv("RIALTO_TEST_LOG") != "" {
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	a, err := app.Start(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := a.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return &server{t: t, url: "http://" + a.HTTPAddr(), mqtt: a.MQTTAddr(), key: a.AdminKey()}, a
}

// startChild starts this test program once more, as what the environment says. It ends when its parent does; who starts it closes stdin
// and waits for it.
func startChild(t testing.TB, env ...string) (cmd *exec.Cmd, stdin io.WriteCloser, stdout io.Reader) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if stdout, err = cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, stdin, stdout
}

// spawn runs a bridge in a process of its own.
func spawn(t testing.TB, dir string) (*server, *exec.Cmd) {
	t.Helper()
	cmd, stdin, out := startChild(t, childData+"="+dir)
	t.Cleanup(func() {
		stdin.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the bridge did not start: %v", err)
	}
	s := &server{t: t}
	if _, err := fmt.Sscanf(line, "ready http=%s mqtt=%s", &s.url, &s.mqtt); err != nil {
		t.Fatalf("first line %q: %v", line, err)
	}
	s.url = "http://" + s.url
	key, err := os.ReadFile(filepath.Join(dir, "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	s.key = strings.TrimSpace(string(key))
	return s, cmd
}

// call makes a request and returns the status and the body. A failure to reach the server is status 0.
func (s *server) call(method, path, body string, header ...string) (int, string) {
	req, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.key)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

var client = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

// must is call for what has to work.
func (s *server) must(method, path, body string, header ...string) string {
	s.t.Helper()
	status, answer := s.call(method, path, body, header...)
	if status < 200 || status > 299 {
		s.t.Fatalf("%s %s: %d %s", method, path, status, answer)
	}
	return answer
}

// publish sends one event and returns the status.
func (s *server) publish(bus, id, typ, data string) int {
	status, _ := s.call("POST", "/v1/buses/"+bus+"/events", data, "ce-specversion", "1.0", "ce-id", id, "ce-source", "/test", "ce-type", typ)
	return status
}

func (s *server) target(name, url, delivery string) {
	s.t.Helper()
	s.must("PUT", "/v1/targets/"+name, fmt.Sprintf(`{"kind":"Target","name":%q,"type":"webhook","config":{"url":%q},"delivery":%s}`, name, url, delivery))
}

func (s *server) rule(bus, name, pattern, target string) {
	s.t.Helper()
	s.must("PUT", "/v1/buses/"+bus+"/rules/"+name,
		fmt.Sprintf(`{"kind":"Rule","name":%q,"bus":%q,"pattern":%s,"targets":[{"target":%q}]}`, name, bus, pattern, target))
}

// settled waits until nothing of a bus is pending. The account must add up at every look.
func (s *server) settled(bus string, within time.Duration) bridge.Ledger {
	s.t.Helper()
	var l bridge.Ledger
	eventually(s.t, within, func() (string, bool) {
		var account struct{ Buses []bridge.Ledger }
		if err := json.Unmarshal([]byte(s.must("GET", "/v1/ledger?bus="+bus, "")), &account); err != nil {
			s.t.Fatal(err)
		}
		l = account.Buses[0]
		if !l.Balanced {
			s.t.Fatalf("the account of %s differs by %d: %+v", bus, l.Difference, l)
		}
		pending := l.Events.NotYetRouted
		for _, d := range l.Deliveries {
			pending += d.Pending
		}
		return fmt.Sprintf("%d pending on %s: %+v", pending, bus, l), pending == 0
	})
	return l
}

// event reads an event back; nil if it is not there.
func (s *server) event(bus, id string) json.RawMessage {
	s.t.Helper()
	status, body := s.call("GET", "/v1/buses/"+bus+"/events/"+url.PathEscape(id), "")
	if status == http.StatusNotFound {
		return nil
	}
	if status != http.StatusOK {
		s.t.Fatalf("read event %s: %d %s", id, status, body)
	}
	return json.RawMessage(body)
}

func eventually(t testing.TB, within time.Duration, look func() (string, bool)) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(within)
	for {
		what, ok := look()
		if ok {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal(what)
		}
	}
}

// sink is a webhook receiver that counts bodies.
type sink struct {
	*httptest.Server
	mu   sync.Mutex // guards seen
	seen map[string]int
}

func newSink(t testing.TB, handle func(w http.ResponseWriter, r *http.Request, body []byte)) *sink {
	s := &sink{seen: map[string]int{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var b bytes.Buffer
		if _, err := b.ReadFrom(r.Body); err != nil {
			return
		}
		if handle != nil {
			handle(w, r, b.Bytes())
		}
		s.mu.Lock()
		s.seen[b.String()]++
		s.mu.Unlock()
	}))
	t.Cleanup(s.Close)
	return s
}

// missing returns what of want has not arrived.
func (s *sink) missing(want []string) (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range want {
		if s.seen[w] == 0 {
			out = append(out, w)
		}
	}
	return out
}
