// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPublishLater(t *testing.T) {
	query := ""
	server := serve(t, map[string]http.HandlerFunc{"POST /v1/buses/default/events": func(w http.ResponseWriter, r *http.Request) {
		query = r.URL.RawQuery
		says(202, `{"scheduled":[{"id":"e1","at":"2026-11-29T22:15:00Z"}]}`)(w, r)
	}})
	got := rialto(t, server, "", "publish", "--type", "t", "--id", "e1", "--delay", "2h")
	if got.code != exitOK || got.out != "e1  due 2026-11-29T22:15:00Z\n" || query != "delay=2h" {
		t.Errorf("exit %d, %q, stderr %q, query %q", got.code, got.out, got.err, query)
	}
	got = rialto(t, server, "", "publish", "--type", "t", "--id", "e1", "--at", "2026-11-29T23:15:00+01:00", "-o", "jsonl", "--count", "2")
	if got.code != exitOK || !strings.HasPrefix(got.out, `{"id":"e1","at":"2026-11-29T22:15:00Z"}`+"\n") || query != "deliverAt=2026-11-29T23%3A15%3A00%2B01%3A00" ||
		!strings.Contains(got.err, "2 events scheduled") {
		t.Errorf("exit %d, %q, stderr %q, query %q", got.code, got.out, got.err, query)
	}
	if got := rialto(t, server, "", "publish", "--type", "t", "--at", "2027-01-01T00:00:00Z", "--delay", "2h"); got.code != exitUsage {
		t.Errorf("both: exit %d, stderr %q", got.code, got.err)
	}
}

func TestScheduled(t *testing.T) {
	const one = `{"id":"e/1","bus":"default","source":"/shop","type":"com.acme.reminder","at":"2026-11-29T22:15:00Z","keptAt":"2026-11-29T20:15:00Z"}`
	var asked []string
	answer := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, r.Method+" "+r.URL.EscapedPath()+"?"+r.URL.RawQuery)
			says(status, body)(w, r)
		}
	}
	server := serve(t, map[string]http.HandlerFunc{"GET /v1/scheduled": answer(200, `{"items":[`+one+`]}`),
		"GET /v1/scheduled/{id}": answer(200, one), "DELETE /v1/scheduled/{id}": answer(204, ""), "DELETE /v1/scheduled/gone": answer(404, `{"detail":"no such event"}`)})
	got := rialto(t, server, "", "scheduled", "--bus", "default")
	want := `DUE                  ID   BUS      TYPE               SOURCE
2026-11-29 22:15:00  e/1  default  com.acme.reminder  /shop
`
	if got.code != exitOK || got.out != want {
		t.Errorf("exit %d, stderr %q\n%s", got.code, got.err, cmp.Diff(want, got.out))
	}
	if got := rialto(t, server, "", "scheduled", "get", "e/1"); got.code != exitOK || !strings.Contains(got.out, "type: com.acme.reminder\n") {
		t.Errorf("get: exit %d, %q, stderr %q", got.code, got.out, got.err)
	}
	if got := rialto(t, server, "", "scheduled", "cancel", "e/1", "--source", "/shop"); got.code != exitOK || got.out != "" || got.err != "e/1 is cancelled\n" {
		t.Errorf("cancel: exit %d, %q, stderr %q", got.code, got.out, got.err)
	}
	if got := rialto(t, server, "", "scheduled", "cancel", "gone"); got.code != exitNotFound {
		t.Errorf("cancel what is not there: exit %d, stderr %q", got.code, got.err)
	}
	wantAsked := []string{"GET /v1/scheduled?bus=default", "GET /v1/scheduled/e%2F1?", "DELETE /v1/scheduled/e%2F1?source=%2Fshop", "DELETE /v1/scheduled/gone?"}
	if diff := cmp.Diff(wantAsked, asked); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}
