// SPDX-License-Identifier: Apache-2.0

package main

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The binary that people download: small, and without a library to find.
func TestGateBinary(t *testing.T) {
	const most = 60 << 20
	name := filepath.Join(t.TempDir(), "rialto")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=v1.2.3", "-o", name, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
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
