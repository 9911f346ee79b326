// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestDemoSaaS plays the demo short: a forged request is refused, deliveries die and are redriven, and it adds up.
func TestDemoSaaS(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var out, errOut bytes.Buffer
	c := &cli{in: strings.NewReader(""), out: &out, err: &errOut, getenv: func(string) string { return "" }, http: &http.Client{}, now: time.Now}
	err := c.saas(t.Context(), demoOptions{length: 6 * time.Second, http: "127.0.0.1:0", mqtt: "127.0.0.1:0"})
	text := out.String()
	if code := exitCode(err); code != exitOK || errOut.Len() > 0 {
		t.Fatalf("exit %d (%v), stderr:\n%s\nstdout:\n%s", code, err, errOut.String(), text)
	}
	for _, want := range []string{
		`wrong signature: 403, and it is not in the log`,
		`answers 503`,
		`[1-9]\d* dead letters? of \d+ for the crm`,
		`rialto deadletters redrive --target crm`,
		`got 2xx for \d+ requests`,
		`all but 0 arrived; [1-9]\d* of them died first and were redriven`,
		`It adds up\.\n$`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("the demo did not print %s", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}
