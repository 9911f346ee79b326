// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var docBlock = regexp.MustCompile("(?ms)^```sh http=(\\d+)\n(.*?)^```$")

// TestHTTPByExample runs every call of docs/http.md that says what it answers, in order, against a fresh bridge.
func TestHTTPByExample(t *testing.T) { byExample(t, "http.md", 30) }

// TestSchemasByExample is the same for docs/schemas.md.
func TestSchemasByExample(t *testing.T) { byExample(t, "schemas.md", 20) }

// TestFunctionsByExample is the same for docs/functions.md.
func TestFunctionsByExample(t *testing.T) { byExample(t, "functions.md", 10) }

// TestChatByExample is the same for docs/chat.md.
func TestChatByExample(t *testing.T) { byExample(t, "chat.md", 3) }

func byExample(t *testing.T, page string, least int) {
	doc, err := os.ReadFile("../../docs/" + page)
	if err != nil {
		t.Fatal(err)
	}
	blocks := docBlock.FindAllStringSubmatch(string(doc), -1)
	if len(blocks) < least {
		t.Fatalf("%d calls found: has the marking changed?", len(blocks))
	}
	s, _ := start(t, options(t.TempDir()))
	docs, err := filepath.Abs("../../docs")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(docs, filepath.Join(dir, "docs")); err != nil {
		t.Fatal(err)
	}
	for _, b := range blocks {
		status, script := b[1], b[2]
		script = strings.Replace(script, "curl ", "curl -w '\\n%{http_code}' ", 1) // the last line of the output
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "RIALTO_URL="+s.url, "RIALTO_KEY="+s.key)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		cancel()
		answer := strings.TrimSpace(out.String())
		got := answer[strings.LastIndexByte(answer, '\n')+1:]
		if err != nil || got != status {
			t.Errorf("%s\nanswered %s, want %s (%v)\n%.500s", b[2], got, status, err, answer)
		}
	}
}
