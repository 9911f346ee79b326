// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/app"
	"github.com/rialto-bridge/rialto/internal/egress"
)

// A target in a private network is refused when it is written, with the field and the setting.
func TestPlainlyForbiddenTargetsAreRefusedWhenWritten(t *testing.T) {
	o := options(t.TempDir())
	var err error
	if o.EgressAllow, err = egress.ParseAllow("127.0.0.0/8,10.1.0.0/16:443"); err != nil {
		t.Fatal(err)
	}
	s, a := start(t, o)
	_, mqttPort, err := net.SplitHostPort(a.MQTTAddr())
	if err != nil {
		t.Fatal(err)
	}
	for url, want := range map[string]string{
		"http://10.1.2.3/hook":             "--egress-allow 10.1.2.3:80 ",
		"https://10.2.2.3/hook":            "--egress-allow 10.2.2.3:443 ",
		"http://[::1]:9000/hook":           "--egress-allow [::1]:9000 ",
		s.url + "/v1/targets/x":            "this bridge's HTTP listener",
		"http://127.0.0.1:" + mqttPort:     "this bridge's MQTT listener",
		"http://localhost:" + mqttPort:     "--egress-allow 127.0.0.1:" + mqttPort + " ",
		"http://169.254.169.254/meta-data": "metadata service",
	} {
		status, answer := s.call("PUT", "/v1/targets/inside", fmt.Sprintf(`{"type":"webhook","config":{"url":%q}}`, url))
		var problem struct {
			Errors []struct{ Pointer, Detail string }
		}
		if err := json.Unmarshal([]byte(answer), &problem); err != nil || status != http.StatusBadRequest || len(problem.Errors) != 1 ||
			problem.Errors[0].Pointer != "/config/url" || !strings.Contains(problem.Errors[0].Detail, want) {
			t.Errorf("PUT of a target at %s: %d %s, want %q", url, status, answer, want)
		}
	}
	for _, url := range []string{"https://10.1.2.3/hook", "http://127.0.0.1:9/"} {
		s.must("PUT", "/v1/targets/inside", fmt.Sprintf(`{"type":"webhook","config":{"url":%q}}`, url))
	}
}

// A target that was written before is in force and connects to nothing: here it is at an address that the bridge itself
// listens on after a restart, and another that was allowed until then.
func TestBlockedAttemptsAreRecorded(t *testing.T) {
	dir := t.TempDir()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	s, a := start(t, options(dir))
	once := `{"retry":{"schedule":[]}}`
	s.target("self", "http://"+address+"/v1/buses/default/events", once)
	s.target("inside", "http://127.0.0.2:9/", once)
	for _, target := range []string{"self", "inside"} {
		s.rule("default", target, `{"source":[{"exists":true}]}`, target)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}

	o := options(dir)
	o.Listen = address
	if o.EgressAllow, err = egress.ParseAllow("127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	s, a = start(t, o)
	if status := s.publish("default", "1", "hello", `{}`); status != http.StatusAccepted {
		t.Fatalf("publish: %d", status)
	}
	s.settled("default", 20*time.Second)
	var found struct{ Journey bridge.Journey }
	if err := json.Unmarshal(s.event("default", "1"), &found); err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]string{
		"self":   "address 127.0.0.1 is not allowed (this bridge's HTTP listener); --egress-allow " + address + " allows it (config key egress-allow)",
		"inside": "address 127.0.0.2 is not allowed (loopback); --egress-allow 127.0.0.2:9 allows it (config key egress-allow)",
	} {
		seen := false
		for _, d := range found.Journey.Deliveries {
			if d.Target != target {
				continue
			}
			seen = true
			if len(d.Attempts) != 1 || d.Attempts[0].Reason != "blocked_address" || d.Attempts[0].Detail != want || d.Attempts[0].Status != 0 {
				t.Errorf("delivery to %s: %+v, want %q", target, d, want)
			}
		}
		if !seen {
			t.Errorf("no delivery to %s: %+v", target, found.Journey)
		}
	}
	var dead struct {
		Items []struct{ Target, Reason, Detail, Response string }
	}
	if err := json.Unmarshal([]byte(s.must("GET", "/v1/deadletters", "")), &dead); err != nil || len(dead.Items) != 2 {
		t.Fatalf("dead letters %+v, %v", dead, err)
	}
	for _, d := range dead.Items {
		if d.Reason != "blocked_address" || d.Response != "" || !strings.Contains(d.Detail, "--egress-allow ") {
			t.Errorf("dead letter %+v", d)
		}
	}

	// The operator does what it says: the delivery is made when it is redriven.
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	sink := newSink(t, nil)
	s, _ = startAllowing(t, dir, sink.Listener.Addr().String())
	s.target("inside", sink.URL, once)
	s.must("POST", "/v1/deadletters:redrive", `{"filter":{"target":"inside"}}`)
	eventually(t, 10*time.Second, func() (string, bool) { return "nothing arrived", len(sink.missing([]string{"{}"})) == 0 })
}

func startAllowing(t *testing.T, dir, list string) (*server, *app.App) {
	t.Helper()
	o := options(dir)
	var err error
	if o.EgressAllow, err = egress.ParseAllow(list); err != nil {
		t.Fatal(err)
	}
	return start(t, o)
}

// The database of the definitions is no target, whatever networks are allowed.
func TestTheDatabaseIsNoTarget(t *testing.T) {
	dsn := databases.Empty(t)
	host, _, _ := strings.Cut(strings.TrimPrefix(dsn, "host="), " ")
	door, err := net.Listen("tcp", "127.0.0.1:0") // the tests' server has none to the network
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { door.Close() })
	go func() {
		for {
			in, err := door.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("unix", host+"/.s.PGSQL.5432")
			if err != nil {
				in.Close()
				continue
			}
			go func() { _, _ = io.Copy(out, in); out.Close() }()
			go func() { _, _ = io.Copy(in, out); in.Close() }()
		}
	}()
	_, port, err := net.SplitHostPort(door.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	o := onPostgres(t.TempDir(), strings.Replace(dsn, "host="+host+" port=5432", "host=127.0.0.1 sslmode=disable port="+port, 1))
	if o.EgressAllow, err = egress.ParseAllow("127.0.0.0/8"); err != nil {
		t.Fatal(err)
	}
	s, _ := start(t, o)
	for url, want := range map[string]int{"http://127.0.0.1:" + port + "/": http.StatusBadRequest, "http://127.0.0.2:" + port + "/": http.StatusCreated} {
		status, answer := s.call("PUT", "/v1/targets/inside", fmt.Sprintf(`{"type":"webhook","config":{"url":%q}}`, url))
		if status != want || want == http.StatusBadRequest && !strings.Contains(answer, "this bridge's database") {
			t.Errorf("PUT of a target at %s: %d %s, want %d", url, status, answer, want)
		}
	}
}
