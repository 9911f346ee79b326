// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What the examples say is what a server has when they are applied, and what it has can be applied again: neither changes
// anything.
func TestExamplesRoundTrip(t *testing.T) {
	b := startBridge(t)
	examples := filepath.Join("..", "..", "docs", "examples")
	first := b.must(t, "", "apply", "-f", examples)
	if strings.Contains(first, "unchanged") || strings.Count(first, " created\n") < 15 {
		t.Errorf("first apply:\n%s", first)
	}
	second := b.must(t, "", "apply", "-f", examples)
	if strings.Contains(second, "created") || strings.Contains(second, "configured") {
		t.Errorf("second apply:\n%s", second)
	}
	b.must(t, "", "diff", "-f", examples, "--prune", "-l", "managed-by=git")
	var all strings.Builder
	for _, kind := range kindNames() {
		docs := b.must(t, "", "get", kind, "-o", "yaml")
		if docs != "" {
			all.WriteString(docs + "---\n")
		}
	}
	again := b.must(t, all.String(), "apply", "-f", "-")
	if strings.Contains(again, "created") || strings.Contains(again, "configured") || strings.Count(again, "unchanged") < 15 {
		t.Errorf("what get has printed:\n%s", again)
	}
	if out := b.must(t, all.String(), "diff", "-f", "-"); out != "" {
		t.Errorf("diff of what get has printed:\n%s", out)
	}
}

// A hangup has the directory read at once, and diff can be asked about it.
func TestServeDefinitions(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "bus.yaml"), "kind: Bus\nname: orders\n")
	b := startBridge(t, "--definitions", dir, "--definitions-poll", "1h")
	b.must(t, "", "get", "bus", "orders")
	writeFile(t, filepath.Join(dir, "bus.yaml"), "kind: Bus\nname: orders\nretention: {maxAge: 24h}\n")
	if got := rialtoIn(t, b.env, "", "diff", "-f", dir); got.code != exitFailed || !strings.Contains(got.out, "+  maxAge: 24h") {
		t.Errorf("diff: exit %d, %s%s", got.code, got.out, got.err)
	}
	if got := rialtoIn(t, b.env, "", "apply", "-f", dir); got.code != exitConflict || !strings.Contains(got.err, "declared by "+dir) {
		t.Errorf("apply: exit %d, %s%s", got.code, got.out, got.err)
	}
	b.hangups <- syscall.SIGHUP
	b.eventually(t, "24h", "get", "bus", "orders", "-o", "json")
	if err := os.Remove(filepath.Join(dir, "bus.yaml")); err != nil {
		t.Fatal(err)
	}
	b.hangups <- syscall.SIGHUP
	b.must(t, "", "get", "bus", "orders") // an empty directory says nothing
}
