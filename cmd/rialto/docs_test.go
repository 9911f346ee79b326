// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/app"
)

var runBlock = regexp.MustCompile("(?ms)^```sh run\n(.*?)^```$")

// TestDevicesStepByStep runs every block of docs/devices.md that says so, in order, against a fresh bridge.
func TestDevicesStepByStep(t *testing.T) { stepByStep(t, "devices.md", t.TempDir(), 8) }

// TestGitOpsStepByStep is the same for docs/gitops.md, in a folder that has the example.
func TestGitOpsStepByStep(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "definitions"), os.DirFS("../../docs/examples/fleet")); err != nil {
		t.Fatal(err)
	}
	stepByStep(t, "gitops.md", dir, 6)
}

func stepByStep(t *testing.T, page, dir string, least int) {
	doc, err := os.ReadFile("../../docs/" + page)
	if err != nil {
		t.Fatal(err)
	}
	blocks := runBlock.FindAllStringSubmatch(string(doc), -1)
	if len(blocks) < least {
		t.Fatalf("%d blocks found: has the marking changed?", len(blocks))
	}
	if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, "rialto"), ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	a, err := app.Start(t.Context(), app.Options{Data: filepath.Join(dir, "data"), Listen: "127.0.0.1:0", MQTT: "127.0.0.1:0", Reserve: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := a.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	_, port, err := net.SplitHostPort(a.MQTTAddr())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range blocks {
		script := strings.ReplaceAll(b[1], "-p 1883", "-p "+port)
		// set -e does not look at what is negated, so a command that must fail is turned around.
		script = regexp.MustCompile(`(?m)^! (.*)$`).ReplaceAllString(script, "if $1; then echo 'succeeded, and must not'; exit 1; fi")
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "RIALTO_URL=http://"+a.HTTPAddr(), "RIALTO_KEY="+a.AdminKey(), "PATH="+dir+":"+os.Getenv("PATH"))
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		cancel()
		if err != nil {
			t.Errorf("%s\n%v\n%.2000s", b[1], err, out.String())
		}
	}
}
