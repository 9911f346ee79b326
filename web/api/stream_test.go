// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/web/api"
)

// subscriber reads a stream.
type subscriber struct {
	t      *testing.T
	resp   *http.Response
	scan   *bufio.Scanner
	lastID string
}

func (s *server) subscribe(query string, header ...string) *subscriber {
	s.t.Helper()
	return s.follow("/v1/stream?"+query, header...)
}

// follow reads a stream of any path.
func (s *server) follow(path string, header ...string) *subscriber {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	s.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "GET", s.http.URL+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.key)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := s.http.Client().Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { resp.Body.Close() })
	if ct := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || ct != "text/event-stream" {
		b, _ := io.ReadAll(resp.Body)
		s.t.Fatalf("stream answered %d as %s: %s", resp.StatusCode, ct, b)
	}
	return &subscriber{t: s.t, resp: resp, scan: bufio.NewScanner(resp.Body)}
}

// message is one message of a stream.
type message struct{ event, id, data, comment string }

// next reads a message, also one without data. ok is false at the end of the stream.
func (s *subscriber) next() (m message, ok bool) {
	s.t.Helper()
	for s.scan.Scan() {
		line := s.scan.Text()
		if line == "" {
			return m, true
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "event":
			m.event = value
		case "id":
			m.id, s.lastID = value, value
		case "data":
			m.data += value
		case "":
			m.comment = value
		}
	}
	return m, false
}

// events reads n events and returns their ids.
func (s *subscriber) events(n int) []string {
	s.t.Helper()
	var out []string
	for len(out) < n {
		m, ok := s.next()
		if !ok {
			s.t.Fatalf("the stream ended after %v: %v", out, s.scan.Err())
		}
		if m.event != "event" {
			continue
		}
		var d struct {
			Bus, Position string
			Received      time.Time
			Event         struct{ ID string }
		}
		if err := json.Unmarshal([]byte(m.data), &d); err != nil {
			s.t.Fatalf("%v: %s", err, m.data)
		}
		if !d.Received.Equal(arrived) || !strings.Contains(m.id, d.Position) || !strings.HasSuffix(d.Position[:strings.Index(d.Position, ":")], d.Bus) {
			s.t.Errorf("message %+v", m)
		}
		out = append(out, d.Event.ID)
	}
	return out
}

func TestStream(t *testing.T) {
	s := start(t)
	s.post("default", "before").want(t, http.StatusAccepted)
	sub := s.subscribe("topics=events:default")
	if m, ok := sub.next(); !ok || m.id != "EV_default:1" || m.data != "" {
		t.Errorf("first message = %+v, want an id and nothing else", m)
	}
	s.post("default", "a").want(t, http.StatusAccepted)
	s.post("devices", "elsewhere").want(t, http.StatusAccepted)
	s.post("default", "b").want(t, http.StatusAccepted)
	if diff := cmp.Diff([]string{"a", "b"}, sub.events(2)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	// Whoever comes back goes on where it was.
	sub.resp.Body.Close()
	s.post("default", "c").want(t, http.StatusAccepted)
	again := s.subscribe("topics=events:default", "Last-Event-ID", sub.lastID)
	s.post("default", "d").want(t, http.StatusAccepted)
	if diff := cmp.Diff([]string{"c", "d"}, again.events(2)); diff != "" {
		t.Errorf("events after coming back (-want +got):\n%s", diff)
	}
}

func TestStreamFrom(t *testing.T) {
	s := start(t)
	for i := range 5 {
		s.post("default", fmt.Sprint("e", i), "Ce-Type", "x").want(t, http.StatusBadRequest) // the type is there twice
		s.do("POST", "/v1/buses/default/events", "", "Ce-Specversion", "1.0", "Ce-Id", fmt.Sprint("e", i), "Ce-Source", "/s",
			"Ce-Type", []string{"even", "odd"}[i%2]).want(t, http.StatusAccepted)
	}
	if diff := cmp.Diff([]string{"e3", "e4"}, s.subscribe("topics=events:default&from=EV_default:4").events(2)); diff != "" {
		t.Errorf("from a position (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"e1", "e3"}, s.subscribe("topics=events:default&from=EV_default:1&type=odd").events(2)); diff != "" {
		t.Errorf("of one type (-want +got):\n%s", diff)
	}
	if a := s.do("HEAD", "/v1/stream?topics=events:default", "").want(t, http.StatusOK); a.header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("HEAD = %v", a.header)
	}
}

func TestStreamOfSeveralBuses(t *testing.T) {
	s := start(t)
	const both = "topics=events:default,events:devices"
	sub := s.subscribe(both)
	s.post("default", "a").want(t, http.StatusAccepted)
	if got := sub.events(1); got[0] != "a" {
		t.Errorf("got %v", got)
	}
	s.post("devices", "b").want(t, http.StatusAccepted)
	if got := sub.events(1); got[0] != "b" || sub.lastID != "EV_default:1,EV_devices:1" {
		t.Errorf("got %v, id %s", got, sub.lastID)
	}
	sub.resp.Body.Close()
	s.post("default", "c").want(t, http.StatusAccepted)
	again := s.subscribe(both, "Last-Event-ID", "EV_default:1,EV_devices:0")
	got := again.events(2)
	if !(got[0] == "b" && got[1] == "c" || got[0] == "c" && got[1] == "b") {
		t.Errorf("after coming back: %v, want b and c", got)
	}
}

func TestStreamDataOnOneLine(t *testing.T) {
	s := start(t)
	sub := s.subscribe("topics=events:default")
	s.do("POST", "/v1/buses/default/events", "{\r\n \"a\":\r1,\n\"b\":\"x\\ny\"}", "Ce-Specversion", "1.0", "Ce-Id", "lines", "Ce-Source", "/s", "Ce-Type", "t",
		"Content-Type", "application/json").want(t, http.StatusAccepted)
	for {
		m, ok := sub.next()
		if !ok {
			t.Fatal("the stream ended")
		}
		if m.event != "event" {
			continue
		}
		var d struct{ Event struct{ Data map[string]any } }
		if err := json.Unmarshal([]byte(m.data), &d); err != nil {
			t.Fatalf("%v: %q", err, m.data)
		}
		if diff := cmp.Diff(map[string]any{"a": 1.0, "b": "x\ny"}, d.Event.Data); diff != "" {
			t.Errorf("data (-want +got):\n%s", diff)
		}
		return
	}
}

func TestStreamRefuses(t *testing.T) {
	s := start(t)
	for _, c := range []struct {
		query, header string
		status        int
		slug, pointer string
	}{
		{"", "", 400, "invalid", "/topics"},
		{"topics=", "", 400, "invalid", "/topics"},
		{"topics=journeys", "", 400, "invalid", "/topics"},
		{"topics=events:", "", 400, "invalid", "/topics"},
		{"topics=events:default,events:default", "", 400, "invalid", "/topics"},
		{"topics=" + strings.Repeat("events:default,", 40), "", 400, "invalid", "/topics"},
		{"topics=events:default&form=now", "", 400, "invalid", "/form"},
		{"topics=events:none", "", 404, "not-found", ""},
		{"topics=events:default&from=yesterday", "", 400, "invalid", "/from"},
		{"topics=events:default&from=EV_devices:1", "", 400, "invalid", "/from"},
		{"topics=events:default&from=EV_default:-1", "", 400, "invalid", "/from"},
		{"topics=events:default", "EV_default:x", 400, "invalid", "/Last-Event-ID"},
		{"topics=events:default", "EV_default:1", 410, "gone", ""}, // there is none: the log was another one
		{"topics=events:default&from=EV_default:2", "", 410, "gone", ""},
	} {
		var header []string
		if c.header != "" {
			header = []string{"Last-Event-ID", c.header}
		}
		a := s.do("GET", "/v1/stream?"+c.query, "", header...)
		if c.pointer == "" {
			wantProblem(t, a, c.status, c.slug)
		} else {
			wantProblem(t, a, c.status, c.slug, c.pointer)
		}
	}
	s.key = s.addKey("one-bus", "events:read:default")
	wantProblem(t, s.do("GET", "/v1/stream?topics=events:default,events:devices", ""), 403, "forbidden")
	s.key = ""
	wantProblem(t, s.do("GET", "/v1/stream?topics=events:default", ""), 401, "unauthorized")
}

func TestStreamLimit(t *testing.T) {
	s := start(t, func(o *api.Options) { o.MaxStreams = 1 })
	sub := s.subscribe("topics=events:default")
	a := s.do("GET", "/v1/stream?topics=events:default", "")
	wantProblem(t, a, 503, "unavailable")
	if a.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	sub.resp.Body.Close()
	for range 2000 { // the place is free once the server has noticed
		if a = s.do("HEAD", "/v1/stream?topics=events:default", ""); a.status == http.StatusOK {
			return
		}
	}
	t.Errorf("the place is not given back: %d", a.status)
}

func TestStreamHeartbeatAndEnd(t *testing.T) {
	s := start(t, func(o *api.Options) { o.Heartbeat = 5 * time.Millisecond })
	sub := s.subscribe("topics=events:default")
	for beats := 0; beats < 3; {
		m, ok := sub.next()
		if !ok {
			t.Fatal("the stream ended")
		}
		if m.comment != "" {
			beats++
		}
	}
	// A topic that ends says why.
	s.bridge.setFail(&fault.Error{Kind: fault.Unavailable, Message: "the bus was removed"})
	s.bridge.mu.Lock()
	close(s.bridge.news)
	s.bridge.news = make(chan struct{})
	s.bridge.mu.Unlock()
	for {
		m, ok := sub.next()
		if !ok {
			t.Fatal("the stream ended without saying why")
		}
		if m.event == "error" {
			var p api.Problem
			if err := json.Unmarshal([]byte(m.data), &p); err != nil || p.Status != 503 || p.Detail != "the bus was removed" {
				t.Errorf("error message = %s, %v", m.data, err)
			}
			break
		}
	}
	if m, ok := sub.next(); ok {
		t.Errorf("after the error: %+v", m)
	}
}

// What a client came with may end before its stream does.
func TestStreamsEndWithTheirKeys(t *testing.T) {
	var late atomic.Bool
	s := start(t, func(o *api.Options) {
		o.Heartbeat = 5 * time.Millisecond
		o.Now = func() time.Time {
			if late.Load() {
				return time.Now().Add(48 * time.Hour)
			}
			return time.Now()
		}
	})
	soon := time.Now().Add(24 * time.Hour).UTC().Format(time.RFC3339)
	for _, c := range []struct {
		name   string
		end    func()
		status int
	}{
		{"deleted", func() { s.do("DELETE", "/v1/keys/deleted", "").want(t, http.StatusNoContent) }, 401},
		{"rotated", func() { s.do("POST", "/v1/keys/rotated:rotate", "").want(t, http.StatusOK) }, 401},
		{"reduced", func() { s.do("PUT", "/v1/keys/reduced", `{"scopes":["queues:read"]}`).want(t, http.StatusOK) }, 403},
		{"expired", func() { late.Store(true) }, 401},
	} {
		auth := "Bearer " + s.addKey(c.name, "events:read", "definitions:read")
		if c.name == "expired" {
			s.do("PUT", "/v1/keys/expired", `{"scopes":["events:read","definitions:read"],"expiresAt":"`+soon+`"}`).want(t, http.StatusOK)
		}
		streams := []*subscriber{s.subscribe("topics=events:default", "Authorization", auth), s.follow("/v1/targets?watch=true", "Authorization", auth)}
		for _, sub := range streams {
			for m, ok := sub.next(); m.comment != "alive"; m, ok = sub.next() {
				if !ok {
					t.Fatalf("%s: a stream ended before its key", c.name)
				}
			}
		}
		c.end()
		for _, sub := range streams {
			var last message
			for m, ok := sub.next(); ok; m, ok = sub.next() {
				last = m
			}
			var p api.Problem
			if err := json.Unmarshal([]byte(last.data), &p); err != nil || last.event != "error" || p.Status != c.status {
				t.Errorf("%s: the last message is %+v, want a problem with status %d", c.name, last, c.status)
			}
		}
	}
}

func TestStreamStops(t *testing.T) {
	s := start(t)
	sub := s.subscribe("topics=events:default,events:devices")
	sub.next()
	s.api.Close()
	if m, ok := sub.next(); ok {
		t.Errorf("after Close: %+v", m)
	}
	wantProblem(t, s.do("GET", "/v1/stream?topics=events:default", ""), 503, "unavailable")
}

// TestStreamSlowClient has a client that reads nothing: it is dropped, and meanwhile holds nobody up.
func TestStreamSlowClient(t *testing.T) {
	s := start(t, func(o *api.Options) { o.SlowClient, o.MaxStreams = 50*time.Millisecond, 1 })
	conn, err := net.Dial("tcp", s.http.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET /v1/stream?topics=events:default HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", s.key)
	data := strings.Repeat("x", 512<<10)
	for i := range 1000 { // more than all buffers on the way hold, until the place of the stream is free
		s.do("POST", "/v1/buses/default/events", data, "Ce-Specversion", "1.0", "Ce-Id", fmt.Sprint(i), "Ce-Source", "/s", "Ce-Type", "t",
			"Content-Type", "text/plain").want(t, http.StatusAccepted)
		if i > 16 && s.do("HEAD", "/v1/stream?topics=events:default", "").status == http.StatusOK {
			return
		}
	}
	t.Error("a client that reads nothing keeps its stream")
}
