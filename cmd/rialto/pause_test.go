// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

func TestPauseResumeAndReset(t *testing.T) {
	var asked []string
	server := serve(t, map[string]http.HandlerFunc{
		"POST /v1/{kind}/{name}": func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			asked = append(asked, strings.TrimSpace(r.URL.Path+" "+string(body)))
			name, verb, _ := strings.Cut(r.PathValue("name"), ":")
			if name == "nobody" {
				says(404, `{"title":"not found","detail":"there is no target nobody"}`)(w, r)
				return
			}
			says(200, fmt.Sprintf(`{"kind":"Target","name":%q,"type":"webhook","paused":%t,"revision":7}`, name, verb == "pause"))(w, r)
		}})
	for _, line := range []string{"pause target ops", "resume targets ops", "pause Source hub", "resume source hub", "reset source hub", "pause region eu",
		"reset link up --start latest", "pause link up"} {
		if got := rialto(t, server, "", strings.Fields(line)...); got.code != exitOK || got.err != "" || !strings.Contains(got.out, strings.Fields(line)[2]) {
			t.Errorf("%s: exit %d\n%s%s", line, got.code, got.out, got.err)
		}
	}
	want := []string{"/v1/targets/ops:pause", "/v1/targets/ops:resume", "/v1/sources/hub:pause", "/v1/sources/hub:resume", `/v1/sources/hub:reset {"start":""}`,
		"/v1/regions/eu:pause", `/v1/links/up:reset {"start":"latest"}`, "/v1/links/up:pause"}
	if !slices.Equal(asked, want) {
		t.Errorf("asked for\n%s\nwant\n%s", strings.Join(asked, "\n"), strings.Join(want, "\n"))
	}
	if got := rialto(t, server, "", "pause", "target", "ops", "-o", "yaml"); !strings.Contains(got.out, "paused: true") || strings.Contains(got.out, "revision") {
		t.Errorf("as YAML:\n%s", got.out)
	}
	if got := rialto(t, server, "", "pause", "target", "nobody"); got.code != exitNotFound {
		t.Errorf("exit %d\n%s", got.code, got.err)
	}
}
