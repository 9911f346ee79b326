// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/app"
	"github.com/rialto-bridge/rialto/internal/store/postgres/pgtest"
)

// TestFunctionCommands tells the story of a function against a real bridge.
func TestFunctionCommands(t *testing.T) {
	dir := t.TempDir()
	a, err := app.Start(t.Context(), app.Options{Data: filepath.Join(dir, "data"), Listen: "127.0.0.1:0", MQTT: "off", Reserve: 1 << 20})
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
	module := func(result string) string {
		from, to := filepath.Join(dir, "f.wat"), filepath.Join(dir, result[2:6]+".wasm")
		writeFile(t, from, `(module (memory (export "memory") 3) (data (i32.const 16) "`+strings.ReplaceAll(result, `"`, `\"`)+`")
			(func (export "alloc") (param i32) (result i32) (i32.const 65536))
			(func (export "handle") (param i32 i32) (result i64) (i64.const 0x100000000c)))`)
		if out, err := exec.Command("wat2wasm", from, "-o", to).CombinedOutput(); err != nil {
			t.Fatalf("wat2wasm: %v: %s (.ci/packages installs it)", err, out)
		}
		return to
	}
	one, two := module(`{"data":"a"}`), module(`{"error":""}`)
	ev := filepath.Join(dir, "event.yaml")
	writeFile(t, ev, "type: a\n")
	env := map[string]string{"RIALTO_URL": "http://" + a.HTTPAddr(), "RIALTO_KEY": a.AdminKey()}
	run := func(code int, want string, args ...string) string {
		t.Helper()
		r := rialtoIn(t, env, "", append([]string{"function"}, args...)...)
		if r.code != code || !strings.Contains(r.out+r.err, want) {
			t.Errorf("%v: exit %d, %s%s, want %d and %s", args, r.code, r.out, r.err, code, want)
		}
		return r.out
	}
	run(exitFailed, "/code: is not a WebAssembly module", "put", "f", ev)
	run(exitUsage, "FILE or --version", "put", "f")
	run(exitOK, "function f runs sha256:", "put", "f", one)
	run(exitOK, `"data":"a"`, "test", "f", "--event", ev)
	run(exitUsage, "--event", "test", "f")
	var f functionDoc
	if err := json.Unmarshal([]byte(run(exitOK, "", "get", "f", "-o", "json")), &f); err != nil {
		t.Fatal(err)
	}
	run(exitOK, "function f runs sha256:", "put", "f", two)
	run(exitProblems, `"error":"function`, "test", "f", "--event", ev)
	run(exitOK, `"data":"a"`, "test", "f", "--event", ev, "--version", f.Code)
	run(exitOK, f.Code, "get", "f")
	run(exitOK, "f     handle", "list")
	run(exitOK, "function f runs "+f.Code, "put", "f", "--version", f.Code)
	run(exitFailed, "/code", "put", "f", "--version", "sha256:"+strings.Repeat("0", 64))
	saved := filepath.Join(dir, "saved.wasm")
	run(exitOK, "", "get", "f", "--code", saved)
	want, err := os.ReadFile(one)
	got, gerr := os.ReadFile(saved)
	if err != nil || gerr != nil || !bytes.Equal(got, want) {
		t.Errorf("the code that was saved is another: %v, %v", err, gerr)
	}
	run(exitOK, "function/f deleted", "delete", "f")
	run(exitNotFound, "", "get", "f")
}

// Functions move with their code from a data directory to Postgres, and run there.
func TestFunctionsMove(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "f.wat"), filepath.Join(dir, "f.wasm")
	writeFile(t, from, `(module (memory (export "memory") 3) (data (i32.const 16) "{\"data\":\"a\"}")
		(func (export "alloc") (param i32) (result i32) (i32.const 65536))
		(func (export "handle") (param i32 i32) (result i64) (i64.const 0x100000000c)))`)
	if out, err := exec.Command("wat2wasm", from, "-o", to).CombinedOutput(); err != nil {
		t.Fatalf("wat2wasm: %v: %s (.ci/packages installs it)", err, out)
	}
	ev := filepath.Join(dir, "event.yaml")
	writeFile(t, ev, "type: a\n")
	data := filepath.Join(dir, "data")
	var key string
	runBridge(t, app.Options{Data: data}, func(a *app.App, env map[string]string) {
		key = a.AdminKey()
		want(t, exitOK, env, "", "function", "put", "f", to)
	})
	export := want(t, exitOK, nil, "", "export", "--data", data).out
	if strings.Count(export, `"store":"blobs"`) != 1 {
		t.Fatalf("the export is %s", export)
	}
	damaged := strings.Replace(export, `"document":"AGFzbQ`, `"document":"AGFzbR`, 1)
	dsn := pgtest.Start(t).Database(t)
	env := map[string]string{"RIALTO_POSTGRES": dsn}
	if r := rialtoIn(t, env, damaged, "import", "-"); r.code != exitFailed || !strings.Contains(r.err, "holds other data than its name says") {
		t.Errorf("code that is damaged: exit %d, %s", r.code, r.err)
	}
	want(t, exitOK, env, export, "import", "-")
	if r := want(t, exitOK, env, export, "import", "-"); !strings.Contains(r.err, "0 documents written") {
		t.Errorf("the same import again: %s", r.err)
	}
	runBridge(t, app.Options{Data: filepath.Join(dir, "other"), Postgres: dsn}, func(_ *app.App, env map[string]string) {
		env["RIALTO_KEY"] = key
		if r := want(t, exitOK, env, "", "function", "test", "f", "--event", ev); !strings.Contains(r.out, `"data":"a"`) {
			t.Errorf("on Postgres the function makes %s", r.out)
		}
	})
}
