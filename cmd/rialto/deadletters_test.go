// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const aJob = `{"id":"redrive-12","kind":"redrive","state":"running","by":"ci","why":"mended","total":5,"handled":3,"delivered":2,"pending":1,
	"dead":0,"endedOtherwise":0,"skipped":0,"createdAt":"2026-11-29T20:14:00Z"}`

const aJobTable = `ID          STARTED              STATE    BY  HANDLED  DELIVERED  PENDING  FAILED  NOTE
redrive-12  2026-11-29 20:14:00  running  ci  3/5      2          1        0       mended
`

// jobServer answers redrives and discards, and keeps what it was asked.
func jobServer(t *testing.T, asked *map[string]any, query *string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		*asked, *query = nil, r.URL.RawQuery
		if err := json.Unmarshal(raw, asked); err != nil {
			t.Error(err)
		}
		if (*asked)["dryRun"] == true {
			says(200, `{"total":5,"groups":[{"fingerprint":"0f3c9a51d2be","reason":"status","status":422,"detail":"status 422","count":5,"last":"2026-11-29T20:14:00Z"}]}`)(w, r)
			return
		}
		says(202, `{"job":`+aJob+`}`)(w, r)
	}
}

func TestRedriveAndDiscard(t *testing.T) {
	var asked map[string]any
	var query string
	h := jobServer(t, &asked, &query)
	server := serve(t, map[string]http.HandlerFunc{"POST /v1/deadletters:redrive": h, "POST /v1/deadletters:discard": h})
	file := filepath.Join(t.TempDir(), "mended.json")
	writeFile(t, file, `{"id":"a"}`)
	counted := "COUNT  FINGERPRINT   LAST                 FOR EXAMPLE\n5      0f3c9a51d2be  2026-11-29 20:14:00  status 422: status 422\n"
	for _, c := range []struct {
		line, out, err string
		want           map[string]any
		query          string
	}{
		{"deadletters redrive --bus default --target ops --from 2026-11-29T00:00:00Z", counted, "nothing was done: --yes would redrive 5 dead letters\n",
			map[string]any{"dryRun": true, "filter": map[string]any{"target": "ops", "from": "2026-11-29T00:00:00Z"}}, "bus=default"},
		{"deadletters redrive --target ops --rate 2.5 --send-to spare --why mended --yes", aJobTable, "",
			map[string]any{"dryRun": false, "filter": map[string]any{"target": "ops"}, "rate": 2.5, "to": "spare", "why": "mended"}, ""},
		{"deadletters redrive DEAD:7 --event " + file, aJobTable, "",
			map[string]any{"dryRun": false, "filter": map[string]any{"ids": []any{"DEAD:7"}}, "event": map[string]any{"id": "a"}}, ""},
		{"deadletters redrive DEAD:7 --dry-run", counted, "", map[string]any{"dryRun": true, "filter": map[string]any{"ids": []any{"DEAD:7"}}}, ""},
		{"deadletters discard --fingerprint 0f3c9a51d2be --why trial --yes", aJobTable, "",
			map[string]any{"dryRun": false, "filter": map[string]any{"fingerprint": "0f3c9a51d2be"}, "why": "trial"}, ""},
	} {
		got := rialto(t, server, "", strings.Fields(c.line)...)
		if got.code != exitOK || got.out != c.out || got.err != c.err {
			t.Errorf("%s: exit %d, stdout\n%sstderr %q", c.line, got.code, got.out, got.err)
		}
		if d := cmp.Diff(c.want, asked); d != "" || query != c.query {
			t.Errorf("%s: query %q, asked (-want +got):\n%s", c.line, query, d)
		}
	}
	writeFile(t, file, `{nope`)
	if got := rialto(t, server, "", "deadletters", "redrive", "DEAD:7", "--event", file); got.code != exitUsage {
		t.Errorf("an event that is not JSON: exit %d, %s", got.code, got.err)
	}
}

func TestJobs(t *testing.T) {
	var called []string
	answer := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			called = append(called, r.URL.RequestURI())
			says(200, body)(w, r)
		}
	}
	server := serve(t, map[string]http.HandlerFunc{"GET /v1/jobs": answer(`{"items":[` + aJob + `]}`), "GET /v1/jobs/{id}": answer(aJob),
		"POST /v1/jobs/{id}": answer(aJob)})
	for _, line := range []string{"jobs", "jobs redrive-12", "jobs pause redrive-12", "jobs resume redrive-12 --bus default", "jobs cancel redrive-12"} {
		if got := rialto(t, server, "", strings.Fields("deadletters "+line)...); got.code != exitOK || got.out != aJobTable {
			t.Errorf("%s: exit %d, stderr %q\n%s", line, got.code, got.err, cmp.Diff(aJobTable, got.out))
		}
	}
	want := []string{"/v1/jobs", "/v1/jobs/redrive-12", "/v1/jobs/redrive-12:pause", "/v1/jobs/redrive-12:resume?bus=default", "/v1/jobs/redrive-12:cancel"}
	if d := cmp.Diff(want, called); d != "" {
		t.Errorf("calls (-want +got):\n%s", d)
	}
}

func TestRedriveOfAnEvent(t *testing.T) {
	var asked map[string]any
	server := serve(t, map[string]http.HandlerFunc{"POST /v1/buses/devices/events/{id}": func(w http.ResponseWriter, r *http.Request) {
		if r.URL.EscapedPath() != "/v1/buses/devices/events/a%2Fb:redrive" {
			t.Errorf("path %s", r.URL.EscapedPath())
		}
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			t.Error(err)
		}
		says(202, `{"delivery":"dlv_1"}`)(w, r)
	}})
	got := rialto(t, server, "", "redrive", "a/b", "--bus", "devices", "--target", "ops", "--delivered")
	if got.code != exitOK || got.out != "a/b is owed again\n" {
		t.Errorf("exit %d, %q, stderr %q", got.code, got.out, got.err)
	}
	if d := cmp.Diff(map[string]any{"target": "ops", "delivered": true}, asked); d != "" {
		t.Errorf("asked (-want +got):\n%s", d)
	}
}

func TestSkipOfAnEvent(t *testing.T) {
	var asked map[string]any
	server := serve(t, map[string]http.HandlerFunc{"POST /v1/buses/devices/events/{id}": func(w http.ResponseWriter, r *http.Request) {
		if r.URL.EscapedPath() != "/v1/buses/devices/events/a%2Fb:skip" {
			t.Errorf("path %s", r.URL.EscapedPath())
		}
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			t.Error(err)
		}
		says(200, `{"deadLetter":"DEAD:7"}`)(w, r)
	}})
	got := rialto(t, server, "", "skip", "a/b", "--bus", "devices", "--target", "ops")
	if got.code != exitOK || got.out != "a/b is dead letter DEAD:7\n" {
		t.Errorf("exit %d, %q, stderr %q", got.code, got.out, got.err)
	}
	if d := cmp.Diff(map[string]any{"target": "ops"}, asked); d != "" {
		t.Errorf("asked (-want +got):\n%s", d)
	}
}

// Deliveries by outcome are a job on the path of their bus, and a count that is not whole says so.
func TestDeliveriesRedrive(t *testing.T) {
	var asked map[string]any
	partial := says(200, `{"total":100000,"groups":[{"fingerprint":"0f3c9a51d2be","reason":"rule_deleted","count":100000,"last":"2026-11-29T20:14:00Z"}],"partial":true}`)
	server := serve(t, map[string]http.HandlerFunc{
		"POST /v1/buses/{bus}/deliveries:redrive": func(w http.ResponseWriter, r *http.Request) {
			asked = nil
			if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || r.URL.RawQuery != "" {
				t.Errorf("%s: %v", r.URL, err)
			}
			asked["bus"] = r.PathValue("bus")
			if asked["dryRun"] == true {
				partial(w, r)
				return
			}
			says(202, `{"job":`+aJob+`}`)(w, r)
		}})
	got := rialto(t, server, "", strings.Fields("deliveries redrive --target ops --outcome cancelled --reason rule_deleted --subject box-1")...)
	want := map[string]any{"bus": "default", "dryRun": true, "filter": map[string]any{"target": "ops", "outcome": "cancelled", "reason": "rule_deleted", "subject": "box-1"}}
	if d := cmp.Diff(want, asked); got.code != exitOK || d != "" || got.err != "nothing was done: --yes would redrive more than 100000 deliveries\n" {
		t.Errorf("exit %d, %s\n%s", got.code, got.err, d)
	}
	got = rialto(t, server, "", strings.Fields("deliveries redrive --bus devices --target ops --outcome delivered --from 2026-11-29T00:00:00Z --send-to spare --rate 5 --why lost --yes")...)
	want = map[string]any{"bus": "devices", "dryRun": false, "to": "spare", "rate": 5.0, "why": "lost",
		"filter": map[string]any{"target": "ops", "outcome": "delivered", "from": "2026-11-29T00:00:00Z"}}
	if d := cmp.Diff(want, asked); got.code != exitOK || d != "" || got.out != aJobTable {
		t.Errorf("exit %d, %s%s\n%s", got.code, got.out, got.err, d)
	}
}
