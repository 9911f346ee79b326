// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/sources"
	"github.com/rialto-bridge/rialto/sources/sourcetest"
	"github.com/rialto-bridge/rialto/sources/webhook"
)

// golden is a request as a product sends it and the event it must become.
type golden struct {
	name   string
	header http.Header
	body   []byte
	want   map[string]any
}

// readGolden reads a file of testdata/golden: "=== name", headers and an empty line if there are any, the body, "--- event",
// and the event. Its time "now" is that of arrival, its id "hash" one of the body and the time of signing; data that is not said is the body.
func readGolden(t *testing.T, file string) (out []golden) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, section := range strings.Split("\n"+string(b), "\n=== ")[1:] {
		name, rest, _ := strings.Cut(section, "\n")
		request, want, ok := strings.Cut(rest, "\n--- event\n")
		if !ok {
			t.Fatalf("%s: %s has no event", file, name)
		}
		g := golden{name: name, header: http.Header{}, body: []byte(request)}
		if head, body, ok := strings.Cut(request, "\n\n"); ok {
			h, err := textproto.NewReader(bufio.NewReader(strings.NewReader(head + "\n\n"))).ReadMIMEHeader()
			if err != nil {
				t.Fatal(err)
			}
			g.header, g.body = http.Header(h), []byte(body)
		}
		if err := json.Unmarshal([]byte(want), &g.want); err != nil {
			t.Fatalf("%s: %s: %v", file, name, err)
		}
		out = append(out, g)
	}
	return out
}

// state is the state plane of all worlds: hooks keep nothing in it.
var state *eventlog.Log

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "rialto-webhook-")
	if err == nil {
		state, err = eventlog.Open(context.Background(), eventlog.Options{Dir: dir, Durability: eventlog.OS, Reserve: 1 << 20})
	}
	if err != nil {
		panic(err)
	}
	code := m.Run()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := errors.Join(state.Close(ctx), os.RemoveAll(dir)); err != nil {
		panic(err)
	}
	os.Exit(code)
}

// world is one supervisor with one hook, and the log behind it.
type world struct {
	log *sourcetest.Log
	s   *sources.Supervisor
	url string
	cl  *http.Client
}

func newWorld(t *testing.T, config func(base string) string, edit func(*sources.Options)) *world {
	t.Helper()
	w := &world{log: sourcetest.NewLog(), cl: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(w.cl.CloseIdleConnections)
	srv := sourcetest.HookServer(t, func() *sources.Supervisor { return w.s })
	w.url = srv.URL + "/hooks/s"
	w.s, _ = sourcetest.Node(t, "n", state, w.log, edit, webhook.Kind())
	sourcetest.Define(t, w.s, fmt.Sprintf(`{"name":"s","type":"webhook","config":%s}`, config(srv.URL)), webhook.Kind())
	return w
}

// send returns the status and the body of the answer.
func (w *world) send(t *testing.T, r *http.Request) (int, string) {
	t.Helper()
	resp, err := w.cl.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, b.String()
}

func TestPayloadsBecomeTheEventsOfTheTable(t *testing.T) {
	for _, s := range senders {
		t.Run(s.name, func(t *testing.T) {
			cases := readGolden(t, filepath.Join("testdata", "golden", s.name+".txt"))
			if len(cases) < 3 {
				t.Fatalf("%d cases, want at least 3", len(cases))
			}
			w := newWorld(t, s.config, (&vault{}).edit)
			for i, g := range cases {
				before := time.Now()
				status, answer := w.send(t, s.sign(t, w.url, g.body, g.header, before))
				evs := w.log.Events()
				if status > 299 || len(evs) != i+1 {
					t.Fatalf("%s: answered %d %s, %d events are stored", g.name, status, answer, len(evs))
				}
				compare(t, s, g, evs[i], before)
			}
		})
	}
}

var hashed = regexp.MustCompile(`^[0-9a-f]{32}$`)

// compare holds an event against what it must be.
func compare(t *testing.T, s sender, g golden, ev event.Event, before time.Time) {
	t.Helper()
	got := map[string]any{"id": ev.ID, "source": ev.Source, "type": ev.Type, "time": ev.Time.Format(time.RFC3339Nano)}
	if ev.Subject != "" {
		got["subject"] = ev.Subject
	}
	if ev.Time.Sub(before) < time.Minute && before.Sub(ev.Time) < time.Minute { // SNS says milliseconds
		got["time"] = "now"
	}
	if g.want["id"] == "hash" && hashed.MatchString(ev.ID) { // the time of signing is in it
		got["id"] = "hash"
	}
	if ev.DataContentType != "application/json" && ev.DataContentType != "" {
		got["datacontenttype"] = ev.DataContentType
	}
	switch {
	case g.want["data"] != nil:
		var data any
		if err := json.Unmarshal(ev.Data, &data); err != nil {
			t.Errorf("%s: %v", g.name, err)
		}
		got["data"] = data
	case g.want["text"] != nil:
		got["text"] = string(ev.Data)
	case s.name == "aws-sns": // its signature is in it
		if !bytes.Contains(ev.Data, []byte(`"Signature":`)) {
			t.Errorf("%s: data is not the body", g.name)
		}
	case !bytes.Equal(ev.Data, g.body):
		t.Errorf("%s: data is not the payload: %s", g.name, ev.Data)
	}
	if _, ok := ev.Extension("recordedtime"); !ok {
		t.Errorf("%s: no recordedtime", g.name)
	}
	if diff := cmp.Diff(g.want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", g.name, diff)
	}
}
