// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// built is the folder of the binary that stripped has built; "" if it has not.
var built string

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

// stripped builds the binary that people download, once.
func stripped(t *testing.T) string {
	t.Helper()
	name := filepath.Join(built, "rialto")
	if built != "" {
		return name
	}
	dir, err := os.MkdirTemp("", "rialto-gate-")
	if err != nil {
		t.Fatal(err)
	}
	built, name = dir, filepath.Join(dir, "rialto")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=v1.2.3", "-o", name, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return name
}

// A bridge with the edge profile that has nothing to do takes little memory, of its own and of its program file, and works as before
// when it has to. What counts is the resident set as the system reports it, once the process has come to rest.
func TestGateEdgeIdle(t *testing.T) {
	const most = 40_000 // kB
	const ownMost = 28_000
	cmd := exec.Command(stripped(t), "serve", "--profile", "edge", "--anonymous", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--mqtt", "127.0.0.1:0", "--log-level", "warn")
	cmd.Env = []string{"HOME=" + t.TempDir()}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(cmd.Process.Signal(os.Interrupt), cmd.Wait()); err != nil {
			t.Error(err)
		}
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var http, mqtt string
	if _, err := fmt.Sscanf(line, "ready http=%s mqtt=%s", &http, &mqtt); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	resident := func() (all, own int) {
		t.Helper()
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(status)) {
			_, err := fmt.Sscanf(line, "VmRSS: %d kB", &all)
			if err != nil {
				fmt.Sscanf(line, "RssAnon: %d kB", &own) //nolint:errcheck // another line
			}
		}
		if all == 0 || own == 0 {
			t.Fatalf("no VmRSS or no RssAnon in %s", status)
		}
		return all, own
	}
	atRest := func(when string) {
		t.Helper()
		deadline := time.After(20 * time.Second)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		var lowest int
		for {
			all, own := resident()
			if lowest == 0 || all < lowest {
				lowest = all
			}
			if all <= most && own <= ownMost {
				t.Logf("%s: %.1f MB, of which its own %.1f MB", when, float64(all)/1000, float64(own)/1000)
				return
			}
			select {
			case <-tick.C:
			case <-deadline:
				t.Fatalf("%s: %d kB at least, now %d, of which its own %d; the limits are %d and %d", when, lowest, all, own, most, ownMost)
			}
		}
	}
	atRest("after the start")
	publish := func(n int) {
		t.Helper()
		for i := range n {
			if got := rialtoIn(t, nil, "", "publish", "--url", "http://"+http, "--type", "reading", "--source", "/tag", "--data", fmt.Sprintf(`{"n":%d}`, i)); got.code != exitOK {
				t.Fatalf("publish: %d %s", got.code, got.err)
			}
		}
	}
	publish(50)
	atRest("fifty events later")
}

// The binary that people download: small, and without a library to find.
func TestGateBinary(t *testing.T) {
	const most = 75_000_000
	name := stripped(t)
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%.1f MB", float64(info.Size())/1e6)
	if info.Size() > most {
		t.Errorf("the stripped binary has %d bytes, the limit is %d", info.Size(), most)
	}
	binary, err := elf.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer binary.Close()
	if libraries, err := binary.ImportedLibraries(); err != nil || len(libraries) > 0 {
		t.Errorf("the binary needs %v, %v", libraries, err)
	}
	out, err := exec.Command(name, "version").Output()
	if err != nil || !strings.HasPrefix(string(out), "rialto v1.2.3 (") {
		t.Errorf("version prints %q, %v", out, err)
	}
}
