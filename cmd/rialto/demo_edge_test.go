// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestKillDemoEdge plays the whole demo, short: the line is cut, the edge is killed, and its account adds up in print.
func TestKillDemoEdge(t *testing.T) {
	program, dir := stripped(t), t.TempDir()
	t.Setenv("TMPDIR", dir)
	var out, errOut bytes.Buffer
	c := &cli{in: strings.NewReader(""), out: &out, err: &errOut, getenv: func(string) string { return "" }, http: &http.Client{}, now: time.Now}
	err := c.edgeStory(t.Context(), demoOptions{length: 8 * time.Second, program: program})
	text := out.String()
	if code := exitCode(err); code != exitOK || errOut.Len() > 0 {
		t.Fatalf("exit %d (%v), stderr:\n%s\nstdout:\n%s", code, err, errOut.String(), text)
	}
	for _, want := range []string{
		`cloud  http://127\.0\.0\.1:\d+, bus plant`,
		`edge   http://127\.0\.0\.1:\d+, --profile edge`,
		`line   is cut`, `edge   SIGKILL`, `edge   is back`, `line   is back; [1-9]\d* alarms and averages wait`,
		`cloud  a fresh alarm is there after \d+ ms`,
		`alarms-up +plant +cloud +[1-9]\d* +[1-9]\d* +0 +0 +0 +0 +adds up`,
		`In the cloud: [1-9]\d* by event id, 0 missing, 0 twice, 0 that nobody sent\.`,
		`It adds up\.\n$`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("the demo did not print %s", want)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if t.Failed() {
		t.Log(text)
	}
}
