// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/web/api"
)

type accepted struct {
	Accepted []struct {
		ID, Position string
		Duplicate    bool
	}
}

func TestIngestBinary(t *testing.T) {
	s := start(t)
	a := s.post("default", "e-1", "Ce-Subject", "Euro%20%E2%82%AC").want(t, http.StatusAccepted)
	if a.body != `{"accepted":[{"id":"e-1","position":"EV_default:1"}]}` || a.header.Get("Content-Type") != "application/json" {
		t.Errorf("answer = %s as %s", a.body, a.header.Get("Content-Type"))
	}
	got := into[struct {
		Event    map[string]any
		Position string
		Received time.Time
		Status   string
		Journey  struct{ State string }
	}](t, s.do("GET", "/v1/buses/default/events/e-1", "").want(t, http.StatusOK))
	want := map[string]any{"specversion": "1.0", "id": "e-1", "source": "/test", "type": "com.example.test", "subject": "Euro €",
		"datacontenttype": "application/json", "data": map[string]any{"a": 1.0}}
	if diff := cmp.Diff(want, got.Event); diff != "" {
		t.Errorf("event read back (-want +got):\n%s", diff)
	}
	if got.Position != "EV_default:1" || !got.Received.Equal(arrived) || got.Journey.State != "unmatched" || got.Status != "unmatched" {
		t.Errorf("read back: %+v", got)
	}
}

func TestIngestAgain(t *testing.T) {
	s := start(t)
	s.post("default", "e-1").want(t, http.StatusAccepted)
	s.post("default", "e-2").want(t, http.StatusAccepted)
	a := into[accepted](t, s.post("default", "e-1").want(t, http.StatusAccepted))
	if len(a.Accepted) != 1 || a.Accepted[0].Position != "EV_default:1" || !a.Accepted[0].Duplicate {
		t.Errorf("the same event again: %+v, want its first position", a)
	}
	if n := s.bridge.stored("default"); n != 2 {
		t.Errorf("%d events stored, want 2", n)
	}
}

func TestIngestStructuredAndBatch(t *testing.T) {
	s := start(t)
	one := func(id string) string {
		return `{"specversion":"1.0","id":"` + id + `","source":"/test","type":"t","data":{"id":"` + id + `"}}`
	}
	s.do("POST", "/v1/buses/devices/events", one("s-1"), "Content-Type", "application/cloudevents+json; charset=utf-8").want(t, http.StatusAccepted)
	a := into[accepted](t, s.do("POST", "/v1/buses/devices/events", "["+one("b-1")+","+one("b-2")+"]",
		"Content-Type", "application/cloudevents-batch+json").want(t, http.StatusAccepted))
	if len(a.Accepted) != 2 || a.Accepted[0].ID != "b-1" || a.Accepted[1].Position != "EV_devices:3" {
		t.Errorf("batch answered %+v", a)
	}
	if a := s.do("POST", "/v1/buses/devices/events", "[]", "Content-Type", "application/cloudevents-batch+json").want(t, http.StatusAccepted); a.body != `{"accepted":[]}` {
		t.Errorf("empty batch answered %s", a.body)
	}
	// The pooled buffer of one body is no part of the event of another.
	for i := range 50 {
		id := fmt.Sprint("p-", i)
		s.do("POST", "/v1/buses/devices/events", one(id), "Content-Type", "application/cloudevents+json").want(t, http.StatusAccepted)
	}
	for i := range 50 {
		id := fmt.Sprint("p-", i)
		if a := s.do("GET", "/v1/buses/devices/events/"+id, ""); !strings.Contains(a.body, `"data":{"id":"`+id+`"}`) {
			t.Fatalf("event %s came back as %s", id, a.body)
		}
	}
}

func TestIngestRefuses(t *testing.T) {
	s := start(t, func(o *api.Options) { o.Limits = event.Limits{MaxData: 1000} })
	head := []string{"Ce-Specversion", "1.0", "Ce-Id", "x", "Ce-Source", "/s", "Ce-Type", "t"}
	const structured, batch = "application/cloudevents+json", "application/cloudevents-batch+json"
	for _, c := range []struct {
		name     string
		req      request
		status   int
		slug     string
		pointers []string
	}{
		{"no type", request{"POST", "/v1/buses/default/events", "", head[:6]}, 400, "invalid", []string{"/type"}},
		{"two ids", request{"POST", "/v1/buses/default/events", "", append(head[:8:8], "Ce-Id", "y")}, 400, "invalid", []string{"/id"}},
		{"bad time", request{"POST", "/v1/buses/default/events", "", append(head[:8:8], "Ce-Time", "yesterday")}, 400, "invalid", []string{"/time"}},
		{"no event at all", request{"POST", "/v1/buses/default/events", "{}", []string{"Content-Type", "application/json"}}, 400, "invalid", nil},
		{"in a batch", request{"POST", "/v1/buses/default/events", `[{"specversion":"1.0","id":"1","source":"/s","type":"t"},{"specversion":"1.0","id":"2","source":"/s"}]`,
			[]string{"Content-Type", batch}}, 400, "invalid", []string{"/1/type"}},
		{"not JSON", request{"POST", "/v1/buses/default/events", `{`, []string{"Content-Type", structured}}, 400, "invalid", nil},
		{"unknown format", request{"POST", "/v1/buses/default/events", `x`, []string{"Content-Type", "application/cloudevents+avro"}}, 415, "unsupported", nil},
		{"compressed", request{"POST", "/v1/buses/default/events", `x`, append(head[:8:8], "Content-Encoding", "gzip")}, 415, "unsupported", nil},
		{"too large", request{"POST", "/v1/buses/default/events", strings.Repeat("x", 1001), head}, 413, "too-large", nil},
		{"too large, structured", request{"POST", "/v1/buses/default/events", strings.Repeat(" ", 200<<10), []string{"Content-Type", structured}}, 413, "too-large", nil},
		{"data too large, structured", request{"POST", "/v1/buses/default/events",
			`{"specversion":"1.0","id":"1","source":"/s","type":"t","data":"` + strings.Repeat("x", 1001) + `"}`, []string{"Content-Type", structured}}, 413, "too-large", nil},
		{"unknown bus", request{"POST", "/v1/buses/none/events", "", head}, 404, "not-found", nil},
		{"bus that is a path", request{"POST", "/v1/buses/..%2f..%2fetc/events", "", head}, 404, "not-found", nil},
		{"query", request{"POST", "/v1/buses/default/events?sync=1", "", head}, 400, "invalid", []string{"/sync"}},
		{"wrong method", request{"PATCH", "/v1/buses/default/events", "", head}, 405, "method-not-allowed", nil},
		{"no such method", request{"BREW", "/v1/buses/default/events", "", head}, 405, "method-not-allowed", nil},
		{"no such path", request{"POST", "/v1/buses/default/event", "", head}, 404, "not-found", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &server{t: t, http: s.http, key: s.key}
			p := wantProblem(t, s.send(c.req), c.status, c.slug, c.pointers...)
			if p.Detail == "" {
				t.Error("the problem has no detail")
			}
		})
	}
	if n := s.bridge.stored("default"); n != 0 {
		t.Errorf("%d events stored by refused requests", n)
	}
	a := s.do("DELETE", "/v1/buses/default/events", "")
	if got := a.header.Get("Allow"); got != "GET, HEAD, POST, OPTIONS" {
		t.Errorf("Allow = %q", got)
	}
}

func TestIngestKeepsSecrets(t *testing.T) {
	s := start(t)
	body := `{"specversion":"1.0","id":"1","source":"/s","type":"t","time":"never","data":{"password":"hunter2"}}`
	a := s.do("POST", "/v1/buses/default/events", body, "Content-Type", "application/cloudevents+json")
	wantProblem(t, a, 400, "invalid", "/time")
	s.bridge.setFail(&fault.Error{Kind: fault.Unavailable, Message: "the log is away", Err: errCause})
	b := s.post("default", "x")
	wantProblem(t, b, 503, "unavailable")
	for _, text := range []string{a.body, b.body, s.log.String()} {
		if strings.Contains(text, "hunter2") || strings.Contains(text, s.key) {
			t.Errorf("a secret is shown in %s", text)
		}
	}
	if strings.Contains(b.body, errCause.Error()) || !strings.Contains(s.log.String(), errCause.Error()) {
		t.Errorf("the cause belongs into the log and not into the answer: %s", b.body)
	}
}

func TestIngestFaults(t *testing.T) {
	s := start(t)
	for _, c := range []struct {
		err    error
		status int
		slug   string
		retry  string
		detail string
	}{
		{fault.New(fault.Full, "the disk has no room"), 507, "full", "", "the disk has no room"},
		{fault.New(fault.Unavailable, "the log is closed"), 503, "unavailable", "1", "the log is closed"},
		{&fault.Error{Kind: fault.Unavailable, Message: "busy", RetryAfter: 1500 * time.Millisecond}, 503, "unavailable", "2", "busy"},
		{&fault.Error{Kind: fault.RateLimited, Message: "slower", RetryAfter: 30 * time.Second}, 429, "rate-limited", "30", "slower"},
		{errors.Join(errCause, fault.New(fault.TooLarge, "larger than the log takes")), 413, "too-large", "", "larger than the log takes"},
		{errCause, 500, "internal", "", ""},
		{fault.New(fault.Internal, "not for users"), 500, "internal", "", ""},
	} {
		s.bridge.setFail(c.err)
		a := s.post("default", "x")
		p := wantProblem(t, a, c.status, c.slug)
		if p.Detail != c.detail || a.header.Get("Retry-After") != c.retry {
			t.Errorf("%v: detail %q, Retry-After %q, want %q and %q", c.err, p.Detail, a.header.Get("Retry-After"), c.detail, c.retry)
		}
	}
}

// TestIngestEarlyRefusal has a client that announces much and waits to be told to send it.
func TestIngestEarlyRefusal(t *testing.T) {
	s := start(t)
	conn, err := net.Dial("tcp", s.http.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v1/buses/default/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 99999999\r\nExpect: 100-continue\r\n\r\n", s.key)
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || !strings.Contains(line, "413") {
		t.Errorf("answer to the announcement = %q, %v, want 413", line, err)
	}
}

func TestIngestCutBody(t *testing.T) {
	s := start(t)
	for _, header := range []string{"Content-Length: 100", "Content-Length: 100\r\nContent-Type: application/cloudevents+json"} {
		conn, err := net.Dial("tcp", s.http.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST /v1/buses/default/events HTTP/1.1\r\nHost: x\r\nCe-Specversion: 1.0\r\nCe-Id: cut\r\nCe-Type: t\r\nCe-Source: /s\r\nAuthorization: Bearer %s\r\n%s\r\n\r\n{", s.key, header)
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(conn)
		conn.Close()
		if err != nil || !strings.Contains(string(b), " 400 ") {
			t.Errorf("answer to a cut body = %q, %v, want 400", b, err)
		}
	}
	if n := s.bridge.stored("default"); n != 0 {
		t.Errorf("%d cut events stored", n)
	}
}

func TestEventIDsInPaths(t *testing.T) {
	s := start(t)
	for _, id := range []string{"a/b", "a?b#c", "100%", "100%25", "a b", "..", "a/../b", "é ..", "a+b", "%2F", "a:b", `"q"`, "a\\b", "ü/%/?"} {
		body, err := json.Marshal(map[string]string{"specversion": "1.0", "id": id, "source": "/s", "type": "t"})
		if err != nil {
			t.Fatal(err)
		}
		a := s.do("POST", "/v1/buses/default/events", string(body), "Content-Type", "application/cloudevents+json").want(t, http.StatusAccepted)
		if got := into[accepted](t, a).Accepted[0].ID; got != id {
			t.Errorf("accepted id %q, sent %q", got, id)
		}
		got := into[struct{ Event struct{ ID string } }](t, s.do("GET", "/v1/buses/default/events/"+escape(id), "").want(t, http.StatusOK))
		if got.Event.ID != id {
			t.Errorf("GET of id %q gave %q", id, got.Event.ID)
		}
	}
}

// escape encodes everything that is not a letter or digit, as careful clients do.
func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, "%%%02X", s[i])
	}
	return b.String()
}

func TestEventsWithOneID(t *testing.T) {
	s := start(t)
	s.post("default", "same").want(t, http.StatusAccepted)
	s.do("POST", "/v1/buses/default/events", "", "Ce-Specversion", "1.0", "Ce-Id", "same", "Ce-Source", "/other", "Ce-Type", "t").want(t, http.StatusAccepted)
	type found struct {
		Event    struct{ Source string }
		Position string
		Others   []string
	}
	got := into[found](t, s.do("GET", "/v1/buses/default/events/same", "").want(t, 200))
	if got.Event.Source != "/other" || cmp.Diff([]string{"EV_default:1"}, got.Others) != "" {
		t.Errorf("without source: %+v, want the newest and the other", got)
	}
	got = into[found](t, s.do("GET", "/v1/buses/default/events/same?source="+url.QueryEscape("/test"), "").want(t, 200))
	if got.Event.Source != "/test" || got.Others != nil {
		t.Errorf("with source: %+v", got)
	}
	wantProblem(t, s.do("GET", "/v1/buses/default/events/same?source=x", ""), 404, "not-found")
	wantProblem(t, s.do("GET", "/v1/buses/default/events/same?sauce=x", ""), 400, "invalid", "/sauce")
	wantProblem(t, s.do("GET", "/v1/buses/default/events/none", ""), 404, "not-found")
	wantProblem(t, s.do("GET", "/v1/buses/none/events/same", ""), 404, "not-found")
}

func FuzzAcceptedIDs(f *testing.F) {
	for _, s := range []string{"", "plain", `"\`, "\x00\x1f", "é\u2028😀", "\xff\xc0\xa0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b := api.AppendJSONString(nil, s)
		var got string
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("%q is written as %q: %v", s, b, err)
		}
		if want := strings.ToValidUTF8(s, "\ufffd"); utf8.ValidString(s) && got != want {
			t.Fatalf("%q is written as %q, which reads %q", s, b, got)
		}
	})
}

func TestAPageOfAJourney(t *testing.T) {
	s := start(t)
	s.post("default", "a").want(t, http.StatusAccepted)
	s.do("GET", "/v1/buses/default/events/a?source=/test&limit=10&cursor=1-7", "").want(t, http.StatusOK)
	if d := cmp.Diff(bridge.EventQuery{Bus: "default", ID: "a", Source: "/test", Limit: 10, Cursor: "1-7"}, s.bridge.lastQuery()); d != "" {
		t.Errorf("query (-want +got):\n%s", d)
	}
	for _, limit := range []string{"0", "-1", "1001", "all"} {
		wantProblem(t, s.do("GET", "/v1/buses/default/events/a?limit="+limit, ""), 400, "invalid", "/limit")
	}
	wantProblem(t, s.do("GET", "/v1/buses/default/events/a?cursor=1-7&cursor=1-8", ""), 400, "invalid", "/cursor")
}
