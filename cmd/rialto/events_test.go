// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/event"
)

var update = flag.Bool("update", false, "write the golden files")

// inbox is a bus that reads events with the bridge's own decoder.
type inbox struct {
	events []event.Event
	modes  []event.Mode
}

func newInbox(t *testing.T, bus string) (*inbox, *httptest.Server) {
	in := &inbox{}
	server := serve(t, map[string]http.HandlerFunc{"POST /v1/buses/" + bus + "/events": func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		mode, events, err := event.FromHTTP(r.Header, body, event.Limits{})
		if err != nil {
			says(400, fmt.Sprintf(`{"detail":%q}`, err))(w, r)
			return
		}
		var accepted []receipt
		for _, e := range events {
			in.events = append(in.events, e)
			accepted = append(accepted, receipt{ID: e.ID, Position: fmt.Sprintf("EV_%s:%d", bus, len(in.events))})
		}
		in.modes = append(in.modes, mode)
		w.WriteHeader(http.StatusAccepted)
		json.NewEncoder(w).Encode(map[string]any{"accepted": accepted})
	}})
	return in, server
}

// What the SDK encodes, the bridge reads as it was meant, in every mode.
func TestPublish(t *testing.T) {
	file := filepath.Join(t.TempDir(), "reading.json")
	writeFile(t, file, "{\"temperature\": 9.10}\n")
	blob := filepath.Join(t.TempDir(), "blob")
	writeFile(t, blob, "\xff\x00\x01")
	for _, mode := range []string{"binary", "structured", "batch"} {
		for _, c := range []struct {
			name      string
			args      []string
			stdin     string
			wantType  string
			wantData  string
			wantSubj  string
			wantExtra string
		}{
			{name: "no data", args: nil},
			{name: "JSON text", args: []string{"--data", `{"a":1}`}, wantType: "application/json", wantData: `{"a":1}`},
			{name: "JSON file", args: []string{"--data", "@" + file}, wantType: "application/json", wantData: `{"temperature": 9.10}`},
			{name: "plain text", args: []string{"--data", "hällo"}, wantType: "text/plain; charset=utf-8", wantData: "hällo"},
			{name: "stdin", args: []string{"--data", "-"}, stdin: "from stdin", wantType: "text/plain; charset=utf-8", wantData: "from stdin"},
			{name: "bytes", args: []string{"--data", "@" + blob}, wantType: "application/octet-stream", wantData: "\xff\x00\x01"},
			{name: "said type", args: []string{"--data", "<a/>", "--datacontenttype", "application/xml"}, wantType: "application/xml", wantData: "<a/>"},
			{name: "claims JSON", args: []string{"--data", "{nope", "--datacontenttype", "application/json"}, wantType: "application/json", wantData: "{nope"},
			{name: "attributes", args: []string{"--subject", `Straße 7, "50 %"`, "--ext", "traceparent=00-ab", "--ext", "region=eu west"}, wantSubj: `Straße 7, "50 %"`, wantExtra: "eu west"},
		} {
			t.Run(mode+"/"+c.name, func(t *testing.T) {
				in, server := newInbox(t, "devices")
				got := rialto(t, server, c.stdin, append([]string{"publish", "--bus", "devices", "--type", "com.acme.telemetry",
					"--source", "/boxes/17", "--id", "e/1", "--mode", mode}, c.args...)...)
				if got.code != exitOK || got.out != "e/1  EV_devices:1\n" || len(in.events) != 1 {
					t.Fatalf("exit %d, %q, stderr %q, %d events", got.code, got.out, got.err, len(in.events))
				}
				e := in.events[0]
				region, _ := e.Extension("region")
				if c.wantExtra == "" {
					region = ""
				}
				if e.ID != "e/1" || e.Source != "/boxes/17" || e.Type != "com.acme.telemetry" || e.Subject != c.wantSubj || !e.Time.Equal(at) || region != c.wantExtra {
					t.Errorf("event is %+v", e)
				}
				data := strings.TrimSuffix(string(e.Data), "\n")
				if mode != "binary" { // JSON in JSON loses its insignificant space
					c.wantData = strings.ReplaceAll(c.wantData, `: 9`, `:9`)
				}
				if data != c.wantData || e.DataContentType != c.wantType {
					t.Errorf("data %q as %q, want %q as %q", data, e.DataContentType, c.wantData, c.wantType)
				}
				if in.modes[0].String() != mode {
					t.Errorf("arrived as %v", in.modes[0])
				}
			})
		}
	}
}

func TestPublishMany(t *testing.T) {
	in, server := newInbox(t, "default")
	got := rialto(t, server, "", "publish", "--type", "t", "--count", "250", "--mode", "batch", "--id", "n", "-o", "jsonl")
	if got.code != exitOK || strings.Count(got.out, "\n") != 250 || len(in.modes) != 3 || !strings.Contains(got.err, "250 events stored") {
		t.Errorf("exit %d, %d lines, %d requests, stderr %q", got.code, strings.Count(got.out, "\n"), len(in.modes), got.err)
	}
	if in.events[249].ID != "n-250" {
		t.Errorf("the last id is %s", in.events[249].ID)
	}
	ids := map[string]bool{}
	got = rialto(t, server, "", "publish", "--type", "t", "--count", "5", "--rate", "1000/s")
	for _, e := range in.events[250:] {
		ids[e.ID] = true
	}
	if got.code != exitOK || len(ids) != 5 {
		t.Errorf("exit %d, %d ids; want 5", got.code, len(ids))
	}
}

func TestPublishRefused(t *testing.T) {
	server := serve(t, map[string]http.HandlerFunc{"POST /v1/buses/default/events": says(507, `{"detail":"the log has no room"}`)})
	got := rialto(t, server, "", "publish", "--type", "t")
	if got.code != exitFailed || got.out != "" || !strings.Contains(got.err, "the log has no room (507)") {
		t.Errorf("exit %d, %q, stderr %q", got.code, got.out, got.err)
	}
}

// tail goes on where it was when its connection breaks, and shows each event once.
func TestTailResumes(t *testing.T) {
	connections := 0
	server := serve(t, map[string]http.HandlerFunc{
		"GET /v1/buses": says(200, `{"items":[{"name":"default"},{"name":"devices"}]}`),
		"GET /v1/stream": func(w http.ResponseWriter, r *http.Request) {
			if got := r.URL.Query().Get("topics"); got != "events:default,events:devices" {
				t.Errorf("topics = %q", got)
			}
			w.Header().Set("Content-Type", "text/event-stream")
			connections++
			send := func(id int, eventType string) {
				fmt.Fprintf(w, "event: event\nid: %d\ndata: {\"bus\":\"default\",\"position\":\"EV_default:%d\",\"received\":\"2026-11-29T20:15:0%dZ\",\n"+
					"data: \"event\":{\"id\":\"e%d\",\"type\":%q,\"source\":\"/s\",\"data\":{\"n\":%d}}}\n\n", id, id, id, id, eventType, id)
			}
			switch connections {
			case 1:
				io.WriteString(w, ": hello\n\nretry: 10\nid: 0\n\n")
			case 2:
				if got := r.Header.Get("Last-Event-ID"); got != "0" {
					t.Errorf("Last-Event-ID = %q, want 0", got)
				}
				send(1, "com.acme.a")
				send(2, "org.other")
				io.WriteString(w, "event: event\nid: 3\ndata: {\"cut off")
			default:
				if got := r.Header.Get("Last-Event-ID"); got != "2" {
					t.Errorf("Last-Event-ID = %q, want 2", got)
				}
				send(3, "com.acme.b")
				send(4, "com.acme.c")
				if err := http.NewResponseController(w).Flush(); err != nil {
					t.Error(err)
				}
				<-r.Context().Done()
			}
		},
	})
	got := rialto(t, server, "", "tail", "--type", "com.acme.*", "-n", "2", "-o", "jsonl")
	want := `{"id":"e1","type":"com.acme.a","source":"/s","data":{"n":1}}
{"id":"e3","type":"com.acme.b","source":"/s","data":{"n":3}}
`
	if got.code != exitOK || got.out != want || !strings.Contains(got.err, "trying again") {
		t.Errorf("exit %d, stderr %q\n%s", got.code, got.err, cmp.Diff(want, got.out))
	}
}

// A stream that the server ends for a reason ends tail with that reason.
func TestTailEnded(t *testing.T) {
	server := serve(t, map[string]http.HandlerFunc{"GET /v1/stream": func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "id: 1\n\nevent: error\ndata: {\"status\":404,\"title\":\"not found\",\"detail\":\"no bus a\"}\n\n")
	}})
	if got := rialto(t, server, "", "tail", "--bus", "a"); got.code != exitNotFound || !strings.Contains(got.err, "no bus a (404)") {
		t.Errorf("exit %d, stderr %q", got.code, got.err)
	}
}

func TestTailTable(t *testing.T) {
	server := serve(t, map[string]http.HandlerFunc{"GET /v1/stream": func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, `event: event
id: 1
data: {"received":"2026-11-29T20:15:00.5Z","event":{"id":"1","type":"com.acme.a","source":"/s","subject":"box/17","data":"\u001b[2J"}}

`)
	}})
	got := rialto(t, server, "", "tail", "--bus", "default", "-n", "1")
	if got.code != exitOK || got.out != "20:15:00.500  com.acme.a  box/17  \"\\u001b[2J\"\n" {
		t.Errorf("exit %d, %q, stderr %q", got.code, got.out, got.err)
	}
}

func TestTailNeverLetIn(t *testing.T) {
	for status, want := range map[int]int{401: exitAuth, 404: exitNotFound, 503: exitUnreachable} {
		server := serve(t, map[string]http.HandlerFunc{"GET /v1/stream": says(status, `{}`)})
		if got := rialto(t, server, "", "tail", "--bus", "default"); got.code != want {
			t.Errorf("%d: exit %d, want %d", status, got.code, want)
		}
	}
}

func TestJourney(t *testing.T) {
	stories, err := filepath.Glob("testdata/journey/*.json")
	if err != nil || len(stories) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, name := range stories {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".json"), func(t *testing.T) {
			story, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			server := serve(t, map[string]http.HandlerFunc{
				"GET /v1/buses":                     says(200, `{"items":[{"name":"default"},{"name":"devices"}]}`),
				"GET /v1/buses/default/events/{id}": says(404, `{"detail":"no such event"}`),
				"GET /v1/buses/devices/events/{id}": says(200, string(story)),
			})
			got := rialto(t, server, "", "journey", "any/id")
			if got.code != exitOK || got.err != "" {
				t.Fatalf("exit %d, stderr %q", got.code, got.err)
			}
			golden := strings.TrimSuffix(name, ".json") + ".txt"
			if *update {
				writeFile(t, golden, got.out)
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.out); diff != "" {
				t.Errorf("picture (-want +got)\n%s", diff)
			}
			for line := range strings.Lines(got.out) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > pageWidth {
					t.Errorf("%d columns: %s", n, line)
				}
			}
			inJSON := rialto(t, server, "", "journey", "any/id", "--bus", "devices", "-o", "json")
			var a, b any
			if err := json.Unmarshal([]byte(inJSON.out), &a); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(story, &b); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(b, a); diff != "" {
				t.Errorf("-o json changes the story: %s", diff)
			}
		})
	}
}

// A journey that comes in pages is shown whole, or as much of it as was asked for.
func TestJourneyInPages(t *testing.T) {
	page := func(rest, attempts, more string) string {
		return `{"event":{"specversion":"1.0","id":"a","source":"/s","type":"t","data":12.50},"position":"EV_devices:1","received":"2027-01-02T03:04:05Z","journey":{"state":"routed",
			"rules":[],"deliveries":[{"rule":"all","revision":1,"target":"ops","state":"delivered","attempts":[` + attempts + `]` + rest + `}` + more + `}}`
	}
	const spare = `,{"rule":"all","revision":1,"target":"spare","state":"dead","attempts":[{"n":1}]}`
	asked := []string{}
	server := serve(t, map[string]http.HandlerFunc{"GET /v1/buses/devices/events/a": func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.RawQuery)
		switch r.URL.Query().Get("cursor") {
		case "":
			says(200, page(`,"redrives":[{"by":"me"}]`, `{"n":5}`, `],"recordsMore":3,"nextCursor":"1-9","responsesMore":1`))(w, r)
		case "1-9":
			says(200, page(`,"discarded":{"why":"old"}`, `{"n":3},{"n":4}`, spare+`],"recordsMore":1,"nextCursor":"1-4"`))(w, r)
		case "1-4":
			says(200, page(`,"redrives":[{"by":"ci"}]`, `{"n":1},{"n":2}`, `],"responsesMore":2`))(w, r)
		}
	}})
	for _, c := range []struct {
		limit, want string
		asked       []string
	}{
		{"", page(`,"redrives":[{"by":"ci"},{"by":"me"}],"discarded":{"why":"old"}`, `{"n":1},{"n":2},{"n":3},{"n":4},{"n":5}`, spare+`],"responsesMore":3`),
			[]string{"", "cursor=1-9&source=%2Fs", "cursor=1-4&source=%2Fs"}},
		{"2", page(`,"redrives":[{"by":"me"}]`, `{"n":5}`, `],"recordsMore":3,"nextCursor":"1-9","responsesMore":1`), []string{"limit=2"}},
		{"1500", page(`,"redrives":[{"by":"me"}],"discarded":{"why":"old"}`, `{"n":3},{"n":4},{"n":5}`, spare+`],"recordsMore":1,"nextCursor":"1-4","responsesMore":1`),
			[]string{"limit=1000", "cursor=1-9&limit=500&source=%2Fs"}},
	} {
		asked = nil
		args := []string{"journey", "a", "--bus", "devices", "-o", "json"}
		if c.limit != "" {
			args = append(args, "--limit", c.limit)
		}
		got := rialto(t, server, "", args...)
		var a, b any
		if err := errors.Join(json.Unmarshal([]byte(got.out), &a), json.Unmarshal([]byte(c.want), &b)); err != nil {
			t.Fatalf("%v: %s%s", err, got.out, got.err)
		}
		if diff := cmp.Diff(b, a) + cmp.Diff(c.asked, asked); diff != "" {
			t.Errorf("limit %q (-want +got)\n%s", c.limit, diff)
		}
		if !strings.Contains(got.out, "12.50") {
			t.Errorf("the event is not as it was sent: %s", got.out)
		}
	}
	if got := rialto(t, server, "", "journey", "a", "--bus", "devices", "--limit", "-1"); got.code != exitUsage {
		t.Errorf("a negative limit: exit %d", got.code)
	}
}

func TestJourneyPath(t *testing.T) {
	for id, want := range map[string]string{
		"plain":     "/v1/buses/devices/events/plain?source=%2Fa%3Fb",
		"a/b?c#d%e": "/v1/buses/devices/events/a%2Fb%3Fc%23d%25e?source=%2Fa%3Fb",
		"..":        "/v1/buses/devices/events/%2E%2E?source=%2Fa%3Fb",
	} {
		var uri string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			uri = r.RequestURI
			says(404, `{}`)(w, r)
		}))
		got := rialto(t, server, "", "journey", id, "--bus", "devices", "--source", "/a?b")
		server.Close()
		if got.code != exitNotFound || uri != want {
			t.Errorf("journey %s asks %s (exit %d), want %s", id, uri, got.code, want)
		}
	}
}

func TestPaint(t *testing.T) {
	var s eventStory
	if err := json.Unmarshal([]byte(`{"event":{"type":"t","id":"\u001b[31mred"},"position":"EV_default:1","journey":{"state":"unmatched"}}`), &s); err != nil {
		t.Fatal(err)
	}
	plain, coloured := drawJourney("default", s, at, false), drawJourney("default", s, at, true)
	if strings.Contains(plain, "\x1b") {
		t.Errorf("colour where none was asked for: %q", plain)
	}
	if !strings.Contains(coloured, "\x1b[1m") || strings.Contains(coloured, "\x1b[31m") {
		t.Errorf("colours of our own only: %q", coloured)
	}
}

func TestSearch(t *testing.T) {
	server := serve(t, map[string]http.HandlerFunc{"GET /v1/buses/devices/events": func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Get("type") != "com.acme.a" || q.Get("from") != "2026-11-29T20:00:00Z" || q.Get("limit") != "2" ||
			q.Get("target") != "ops" || q.Get("outcome") != "dead" {
			t.Errorf("query is %v", q)
		}
		says(200, `{"items":[{"event":{"id":"e1","type":"com.acme.a","subject":"box/17"},"position":"EV_devices:4","received":"2026-11-29T20:14:00Z","status":"delivered"},
			{"event":{"id":"e2","type":"com.acme.a"},"position":"EV_devices:5","received":"2026-11-29T20:14:01Z"}],"nextCursor":"more"}`)(w, r)
	}})
	got := rialto(t, server, "", "search", "--bus", "devices", "--type", "com.acme.a", "--from", "15m", "--limit", "2", "--target", "ops", "--outcome", "dead")
	want := `RECEIVED                 TYPE        SUBJECT  STATUS     POSITION      ID
2026-11-29 20:14:00.000  com.acme.a  box/17   delivered  EV_devices:4  e1
2026-11-29 20:14:01.000  com.acme.a  -        -          EV_devices:5  e2
`
	if got.code != exitOK || got.out != want {
		t.Errorf("exit %d, stderr %q\n%s", got.code, got.err, cmp.Diff(want, got.out))
	}
}

func TestDeadLetters(t *testing.T) {
	server := serve(t, map[string]http.HandlerFunc{"GET /v1/deadletters": func(w http.ResponseWriter, r *http.Request) {
		if got := r.URL.Query().Get("target"); got != "ops" {
			t.Errorf("target = %q", got)
		}
		says(200, `{"items":[{"id":"DEAD:7","lastAttempt":"2026-11-29T20:14:00Z","rule":"too-warm","target":"ops","eventId":"e1","reason":"status","status":410,"attempts":1,"detail":"gone for good"}]}`)(w, r)
	}})
	got := rialto(t, server, "", "deadletters", "--target", "ops")
	want := `LAST ATTEMPT         ID      RULE      TARGET  EVENT  ATTEMPTS  WHY
2026-11-29 20:14:00  DEAD:7  too-warm  ops     e1     1         status 410: gone for good
`
	if got.code != exitOK || got.out != want {
		t.Errorf("exit %d, stderr %q\n%s", got.code, got.err, cmp.Diff(want, got.out))
	}
}

func TestLedger(t *testing.T) {
	account := func(bus string, difference int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if got := r.URL.Query().Get("bus"); got != bus {
				t.Errorf("bus = %q, want %q", got, bus)
			}
			says(200, fmt.Sprintf(`{"balanced":%t,"buses":[{"bus":"default","balanced":true,"events":{}},
				{"bus":"devices","balanced":%[1]t,"difference":%d,"events":{"accepted":9,"matched":5,"unmatched":3,"notYetRouted":1},
				"deliveries":[{"rule":"too-warm","target":"ops","owed":5,"delivered":2,"dead":1,"cancelled":1,"pending":1,"parked":1}]}]}`,
				difference == 0, difference))(w, r)
		}
	}
	got := rialto(t, serve(t, map[string]http.HandlerFunc{"GET /v1/ledger": account("", 0)}), "", "ledger")
	want := `default: 0 accepted = 0 matched + 0 unmatched + 0 not routed yet, adds up

devices: 9 accepted = 5 matched + 3 unmatched + 1 not routed yet, adds up
RULE      TARGET  OWED  DELIVERED  UNDER WAY  PARKED  DEAD  ENDED OTHERWISE
too-warm  ops     5     2          0          1       1     1
`
	if got.code != exitOK || got.out != want {
		t.Errorf("exit %d, stderr %q\n%s", got.code, got.err, cmp.Diff(want, got.out))
	}
	got = rialto(t, serve(t, map[string]http.HandlerFunc{"GET /v1/ledger": account("devices", 3)}), "", "ledger", "--bus", "devices", "--from", "2h")
	if got.code != exitFailed || !strings.Contains(got.out, "differs by 3") || !strings.Contains(got.err, "devices does not add up") {
		t.Errorf("exit %d, %s, stderr %q", got.code, got.out, got.err)
	}
}

func TestRuleCases(t *testing.T) {
	good := `{"id":"good","pattern":"{\"a\":[1]}","event":"{\"a\":1}","expect":true}` + "\n"
	bad := `{"id":"bad","pattern":"{\"a\":[1]}","event":"{\"a\":2}","expect":true}` + "\n"
	file := filepath.Join(t.TempDir(), "cases.jsonl")
	writeFile(t, file, good+bad)
	for _, c := range []struct {
		name, stdin string
		args        []string
		code        int
		closing     string
	}{
		{"all pass", good, []string{"-"}, exitOK, "1 passed, 0 failed\n"},
		{"one fails", "", []string{file}, exitProblems, "1 passed, 1 failed\n"},
		{"two files", good, []string{file, "-"}, exitProblems, "2 passed, 1 failed\n"},
		{"no file", "", []string{file + ".none"}, exitFailed, ""},
	} {
		got := rialto(t, nil, c.stdin, append([]string{"test"}, c.args...)...)
		if got.code != c.code || !strings.HasSuffix(got.out, c.closing) || strings.Contains(got.out, "FAIL bad") != (c.code == exitProblems) {
			t.Errorf("%s: exit %d, %q, stderr %q", c.name, got.code, got.out, got.err)
		}
	}
}

func TestParseWhen(t *testing.T) {
	for text, want := range map[string]time.Time{
		"2026-11-29T20:00:00Z":      at.Add(-15 * time.Minute),
		"2026-11-29T21:00:00+01:00": at.Add(-15 * time.Minute),
		"15m":                       at.Add(-15 * time.Minute),
		"1.5h":                      at.Add(-90 * time.Minute),
		"2d":                        at.Add(-48 * time.Hour),
	} {
		if got, err := parseWhen(text, at); err != nil || !got.Equal(want) {
			t.Errorf("parseWhen(%s) = %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "yesterday", "-5m", "d", "NaNd", "2026-11-29"} {
		if got, err := parseWhen(text, at); err == nil {
			t.Errorf("parseWhen(%q) = %v, want an error", text, got)
		}
	}
}

func FuzzStream(f *testing.F) {
	f.Add("event: event\nid: 7\ndata: a\ndata: b\n\n")
	f.Add(": comment\nretry: 10\ndata\n\nid\ndata:x\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		r := newStreamReader(strings.NewReader(text))
		for {
			m, err := r.Next()
			if err != nil {
				return
			}
			// A message written out again is read as the same message.
			if strings.ContainsAny(m.Data+m.Event+m.ID, "\r") {
				continue
			}
			if m.Data == "" {
				continue // an id alone
			}
			lines := "data: " + strings.ReplaceAll(m.Data, "\n", "\ndata: ")
			again, err := newStreamReader(strings.NewReader("id: " + m.ID + "\nevent: " + m.Event + "\n" + lines + "\n\n")).Next()
			if err != nil || again != m {
				t.Fatalf("%q reads back as %q, %v", m, again, err)
			}
		}
	})
}
