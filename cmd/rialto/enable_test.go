// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"strings"
	"testing"
)

func TestEnable(t *testing.T) {
	server := serve(t, map[string]http.HandlerFunc{
		"POST /v1/targets/{name}": func(w http.ResponseWriter, r *http.Request) {
			switch r.PathValue("name") {
			case "ops:enable":
				says(200, `{"target":"ops","disabledAt":"2026-11-29T20:14:00Z","reason":"it answered 410","held":2,"missed":{"total":3,"groups":[]},
					"redrive":{"method":"POST","path":"/v1/deadletters:redrive","body":{"filter":{"target":"ops","from":"2026-11-29T19:00:00.001Z","to":"2026-11-29T20:15:00Z"}}}}`)(w, r)
			case "quiet:enable":
				says(200, `{"target":"quiet","disabledAt":"2026-11-29T20:14:00Z","reason":"it answered 410","held":0,"missed":{"total":0,"groups":[]}}`)(w, r)
			default:
				says(409, `{"title":"conflict","detail":"the target is not disabled: it is active"}`)(w, r)
			}
		}})
	got := rialto(t, server, "", "enable", "ops")
	want := "TARGET  DISABLED             HELD  MISSED  WHY\nops     2026-11-29 20:14:00  2     3       it answered 410\n"
	if got.code != exitOK || got.out != want ||
		got.err != "to deliver what was missed: rialto deadletters redrive --target ops --from 2026-11-29T19:00:00.001Z --to 2026-11-29T20:15:00Z --yes\n" {
		t.Errorf("exit %d\n%s%s", got.code, got.out, got.err)
	}
	if got := rialto(t, server, "", "enable", "quiet", "-o", "json"); got.code != exitOK || got.err != "" || !strings.Contains(got.out, `"held":`) {
		t.Errorf("exit %d\n%s%s", got.code, got.out, got.err)
	}
	if got := rialto(t, server, "", "enable", "other"); got.code != exitConflict || !strings.Contains(got.err, "it is active") {
		t.Errorf("exit %d\n%s%s", got.code, got.out, got.err)
	}
}
