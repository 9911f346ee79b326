// SPDX-License-Identifier: Apache-2.0

package wasm_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// examples is where the functions of the documentation are.
const examples = "../../docs/examples/functions"

// wat makes a module of text.
func wat(t testing.TB, text string) []byte {
	t.Helper()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "f.wat"), filepath.Join(dir, "f.wasm")
	if err := os.WriteFile(from, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("wat2wasm", from, "-o", to).CombinedOutput(); err != nil {
		t.Fatalf("wat2wasm: %v: %s (.ci/packages installs it)", err, out)
	}
	return read(t, to)
}

func read(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func shout(t testing.TB) []byte { return wat(t, string(read(t, examples+"/shout.wat"))) }

// The modules of the example in Go, which take a while to build, are built once.
var built = struct {
	sync.Mutex
	modules map[string][]byte
}{modules: map[string][]byte{}}

// inGo builds the example in Go in a mode of go build: c-shared for the ABI handle, exe for the ABI command.
func inGo(t testing.TB, mode string) []byte {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if b := built.modules[mode]; b != nil {
		return b
	}
	out := filepath.Join(t.TempDir(), "go.wasm")
	cmd := exec.Command("go", "build", "-buildmode="+mode, "-ldflags=-s -w", "-o", out, ".")
	cmd.Dir = examples + "/go"
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, b)
	}
	built.modules[mode] = read(t, out)
	return built.modules[mode]
}

func digest(code []byte) string {
	sum := sha256.Sum256(code)
	return hex.EncodeToString(sum[:])
}
