// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// bridgeProcess is `rialto serve`, running in this process.
type bridgeProcess struct {
	env        map[string]string // for client commands
	http, mqtt string            // addresses
	hangups    chan<- os.Signal  // of the server
}

// startBridge runs `rialto serve` until the test ends.
func startBridge(t *testing.T, flags ...string) *bridgeProcess {
	t.Helper()
	hangups := make(chan os.Signal)
	data := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	stdout, write := io.Pipe()
	var log syncBuffer
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, &cli{in: strings.NewReader(""), out: write, err: &log, getenv: func(string) string { return "" },
			http: &http.Client{}, now: time.Now, hangups: func() (<-chan os.Signal, func()) { return hangups, func() {} }},
			append([]string{"serve", "--data", data, "--listen", "127.0.0.1:0", "--mqtt", "127.0.0.1:0",
				"--mqtt-anonymous", "--egress-allow", "127.0.0.0/8", "--reserve", "1MiB"}, flags...))
		write.Close()
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-done; code != exitOK {
			t.Errorf("serve ended with %d", code)
		}
		if t.Failed() {
			t.Logf("log of the server:\n%s", log.String())
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("serve: %v\n%s", err, log.String())
	}
	b := &bridgeProcess{hangups: hangups}
	if _, err := fmt.Sscanf(line, "ready http=%s mqtt=%s", &b.http, &b.mqtt); err != nil {
		t.Fatalf("the first line is %q", line)
	}
	go io.Copy(io.Discard, stdout) // ends when serve does
	b.env = map[string]string{"RIALTO_URL": "http://" + b.http, "RIALTO_DATA": data}
	return b
}

// syncBuffer is a buffer that several goroutines write to.
type syncBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.b.Reset()
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// must runs a command line that has to go well and returns its output.
func (b *bridgeProcess) must(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	got := rialtoIn(t, b.env, stdin, args...)
	if got.code != exitOK {
		t.Fatalf("rialto %s: exit %d\n%s%s", strings.Join(args, " "), got.code, got.out, got.err)
	}
	return got.out
}

// eventually waits until a command line prints what was asked for.
func (b *bridgeProcess) eventually(t *testing.T, want string, args ...string) string {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	for {
		got := rialtoIn(t, b.env, "", args...)
		if got.code == exitOK && strings.Contains(got.out, want) {
			return got.out
		}
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("rialto %s does not come to %q: exit %d\n%s%s", strings.Join(args, " "), want, got.code, got.out, got.err)
		}
	}
}

// inForce waits until an event of a type and with data meets a rule of the bus: definitions take effect a moment after
// they were stored.
func (b *bridgeProcess) inForce(t *testing.T, bus, eventType, data string) {
	t.Helper()
	for n := range 1000 {
		id := fmt.Sprintf("probe-%d", n)
		b.must(t, "", "publish", "--bus", bus, "--type", eventType, "--id", id, "--data", data)
		if strings.Contains(b.eventually(t, "matched", "journey", id, "--bus", bus), "of 1 rule matched") {
			return
		}
	}
	t.Fatalf("no rule of %s takes effect", bus)
}

// One story with every command against a real bridge: definitions go in, an application and a device send, a webhook
// gets, and the bridge can say what happened.
func TestStory(t *testing.T) {
	var got syncBuffer
	sink := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if r.URL.Path == "/refuses" {
			http.Error(w, "no such field", http.StatusUnprocessableEntity)
			return
		}
		fmt.Fprintf(&got, "%s %s\n", r.Header.Get("Ce-Type"), body)
	}))
	defer sink.Close()
	b := startBridge(t)

	bridge := fmt.Sprintf(`
kind: Rule
name: too-warm
bus: devices
pattern: {data: {temperature: [{numeric: [">", 8]}]}}
targets:
  - target: ops
    transform: {template: "too warm: ${data.temperature}"}
---
kind: Rule
name: orders
pattern: {type: [{prefix: com.acme.order}]}
targets: [{target: ops}, {target: refuses}]
---
kind: Target
name: ops
type: webhook
config: {url: %q}
---
kind: Target
name: refuses
type: webhook
config: {url: %q}
---
kind: Key
name: reader
scopes: ["events:read:default"]
`, sink.URL+"/ops", sink.URL+"/refuses")
	file := filepath.Join(t.TempDir(), "bridge.yaml")
	writeFile(t, file, bridge)
	if out := b.must(t, "", "apply", "-f", file, "--dry-run"); strings.Count(out, "created (dry run)") != 5 {
		t.Errorf("dry run:\n%s", out)
	}
	var secret string
	for line := range strings.Lines(b.must(t, "", "apply", "-f", file)) {
		if _, s, ok := strings.Cut(line, "its secret, shown this once: "); ok {
			secret = strings.TrimSpace(s)
		}
	}
	if out := b.must(t, "", "apply", "-f", file); strings.Count(out, "unchanged") != 5 {
		t.Errorf("applied again:\n%s", out)
	}
	for _, kind := range kindNames() {
		docs := b.must(t, "", "get", kind, "-o", "yaml")
		if docs == "" {
			continue // there are no devices
		}
		if out := b.must(t, docs, "apply", "-f", "-"); strings.Contains(out, "configured") || strings.Contains(out, "created") {
			t.Errorf("get %s -o yaml | apply:\n%s%s", kind, out, docs)
		}
	}

	// The key that was made may read one bus and nothing else.
	reader := map[string]string{"RIALTO_URL": b.env["RIALTO_URL"], "RIALTO_KEY": secret}
	if r := rialtoIn(t, reader, "", "search"); r.code != exitOK {
		t.Errorf("reader searches: exit %d, %s", r.code, r.err)
	}
	if r := rialtoIn(t, reader, "", "publish", "--type", "x"); r.code != exitAuth {
		t.Errorf("reader publishes: exit %d, %s", r.code, r.err)
	}

	b.inForce(t, "default", "com.acme.order.probe", `{"total":0}`)
	b.inForce(t, "devices", "probe", `{"temperature":99}`)

	tailed := make(chan result, 1)
	go func() {
		tailed <- rialtoIn(t, b.env, "", "tail", "--bus", "default", "--type", "com.acme.order.placed", "--from", "EV_default:1", "-n", "3", "-o", "jsonl")
	}()

	// An application sends, in each mode.
	for _, mode := range []string{"binary", "structured", "batch"} {
		b.must(t, "", "publish", "--type", "com.acme.order.placed", "--subject", "Straße 7 %", "--id", "order/"+mode, "--mode", mode, "--data", `{"total":12.50}`)
	}
	picture := b.eventually(t, "✗ dead letter", "journey", "order/batch")
	for _, want := range []string{"✓ delivered", "200 OK", "422 Unprocessable Entity", "Straße 7 %", "arrived on default"} {
		if !strings.Contains(picture, want) {
			t.Errorf("the journey does not say %q:\n%s", want, picture)
		}
	}
	b.eventually(t, "order/structured", "deadletters", "--target", "refuses")
	if r := rialtoIn(t, b.env, "", "deadletters", "redrive", "--target", "refuses"); r.code != exitOK || !strings.Contains(r.err, "nothing was done: --yes would redrive ") {
		t.Errorf("redrive without --yes: exit %d\n%s%s", r.code, r.out, r.err)
	}
	b.must(t, "", "deadletters", "redrive", "--target", "refuses", "--yes", "--why", "once more")
	b.eventually(t, " done ", "deadletters", "jobs", "redrive-1")
	b.eventually(t, "redriven by admin (redrive-1)", "journey", "order/batch")
	b.eventually(t, `"redrive":"redrive-1"`, "deadletters", "list", "--target", "refuses", "--limit", "1", "-o", "jsonl") // refused again
	var dead struct{ ID string }
	if err := json.Unmarshal([]byte(b.must(t, "", "deadletters", "list", "--limit", "1", "-o", "jsonl")), &dead); err != nil {
		t.Fatal(err)
	}
	if out := b.must(t, "", "deadletters", "count", "--target", "refuses"); !strings.Contains(out, "status 422") {
		t.Errorf("count:\n%s", out)
	}
	if out := b.must(t, "", "deadletters", "get", dead.ID); !strings.Contains(out, "redrive: redrive-1") {
		t.Errorf("get:\n%s", out)
	}
	b.must(t, "", "deadletters", "discard", "--target", "refuses", "--why", "of no use", "--yes")
	b.eventually(t, "of no use", "journey", "order/batch")
	b.must(t, "", "redrive", "order/batch", "--target", "refuses")
	if r := <-tailed; r.code != exitOK || strings.Count(r.out, "\n") != 3 || !strings.Contains(r.out, `"order/binary"`) {
		t.Errorf("tail: exit %d\n%s%s", r.code, r.out, r.err)
	}

	// A device sends: a client of another make, over MQTT.
	host, port, _ := strings.Cut(b.mqtt, ":")
	for _, version := range []string{"311", "5"} {
		pub := exec.Command("mosquitto_pub", "-V", version, "-h", host, "-p", port, "-q", "1", "-i", "box-"+version,
			"-t", "fleet/7/box/"+version, "-m", `{"temperature":9.1}`)
		if out, err := pub.CombinedOutput(); err != nil {
			t.Fatalf("mosquitto_pub -V %s: %v\n%s", version, err, out)
		}
	}
	b.eventually(t, "delivered", "search", "--bus", "devices", "--subject", "fleet/7/box/311")
	var found struct {
		Event struct{ ID, Type, Subject string }
	}
	if err := json.Unmarshal([]byte(b.must(t, "", "search", "--bus", "devices", "--subject", "fleet/7/box/5", "-o", "jsonl")), &found); err != nil {
		t.Fatal(err)
	}
	picture = b.eventually(t, "✓ delivered", "journey", found.Event.ID)
	if !strings.Contains(picture, "MQTT QoS 1 on fleet/7/box/5 by box-5") {
		t.Errorf("the journey does not say how it arrived:\n%s", picture)
	}
	if text := got.String(); strings.Count(text, "too warm: 9.1") != 2 || strings.Count(text, `{"total":12.50}`) != 3 {
		t.Errorf("the webhook got\n%s", text)
	}

	explains(t, b, found.Event.ID, file)

	account := b.must(t, "", "ledger")
	if strings.Count(account, "adds up") != 2 || !strings.Contains(account, "too-warm  ops") {
		t.Errorf("ledger:\n%s", account)
	}
	t.Logf("\n%s\n%s", picture, account)

	b.must(t, "", "delete", "-f", file)
	if r := rialtoIn(t, b.env, "", "get", "target", "ops"); r.code != exitNotFound {
		t.Errorf("get after delete: exit %d", r.code)
	}
	if r := rialtoIn(t, b.env, "", "journey", "no-such-id"); r.code != exitNotFound {
		t.Errorf("journey of nothing: exit %d, %s", r.code, r.err)
	}
	if _, err := os.Stat(filepath.Join(b.env["RIALTO_DATA"], "admin.key")); err != nil {
		t.Error(err)
	}
}

// explains asks the bridge of TestStory, which has a reading and the rules of a file, why rules match and do not.
func explains(t *testing.T, b *bridgeProcess, reading, file string) {
	t.Helper()
	for _, c := range []struct {
		args []string
		says []string
	}{
		{[]string{"--event", reading}, []string{"1 of 1 rule on devices would take it", "too-warm", "stored   EV_devices:"}},
		{[]string{"--event", reading, "--rule", "too-warm"}, []string{"too-warm", "matches", "✓ data.temperature: 9.1"}},
		{[]string{"--event", "order/batch", "--rule", "orders", "--bus", "default"}, []string{`✓ type: "com.acme.order.placed"`}},
		{[]string{"--event", "order/batch", "--rule", "too-warm"}, []string{"the event is on bus default and the rule on bus devices", "✗ data.temperature: absent"}},
		{[]string{"--event", reading, "--rule", file}, []string{"● too-warm", "○ orders"}},
	} {
		out := b.must(t, "", append([]string{"explain"}, c.args...)...)
		for _, want := range c.says {
			if !strings.Contains(out, want) {
				t.Errorf("explain %v does not say %q:\n%s", c.args, want, out)
			}
		}
	}
	// What a command prints of an event can be asked about.
	story := b.must(t, "", "journey", reading, "-o", "json")
	if out := b.must(t, story, "explain", "--event", "-", "--bus", "default"); !strings.Contains(out, "none of 1 rule on default matches") {
		t.Errorf("a reading on another bus:\n%s", out)
	}
	for _, args := range [][]string{{"--event", "no-such-id"}, {"--event", reading, "--rule", "none"}, {"--event", reading, "--bus", "none"}} {
		if r := rialtoIn(t, b.env, "", append([]string{"explain"}, args...)...); r.code != exitNotFound || r.out != "" {
			t.Errorf("explain %v: exit %d, %s", args, r.code, r.err)
		}
	}
}
