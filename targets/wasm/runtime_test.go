// SPDX-License-Identifier: Apache-2.0

package wasm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/wasm"
)

// TestCheck: what cannot work is refused when it is uploaded, with what is missing.
func TestCheck(t *testing.T) {
	const abi = `(func (export "alloc") (param i32) (result i32) (i32.const 0)) (func (export "handle") (param i32 i32) (result i64) (i64.const 0))`
	const memory = `(memory (export "memory") 1)`
	rt := wasm.New(wasm.Options{})
	defer rt.Close()
	for _, c := range []struct{ text, want string }{
		{`(module ` + memory + abi + `)`, ""},
		{`(module (memory (export "memory") 1 65536)` + abi + `)`, ""},
		{`(module ` + memory + `)`, "does not export the function alloc(i32) i32, which the ABI handle asks for"},
		{`(module ` + memory + `(func (export "_start") (param i32)))`, "does not export the function _start(), which the ABI command asks for"},
		{`(module ` + abi + `)`, "does not export its memory as memory"},
		{`(module (memory (export "memory") 1000)` + abi + `)`, "begins with a memory of 65536000 bytes, which is more than memoryLimit"},
		{`(module (import "env" "socket" (func (param i32)))` + memory + abi + `)`, "imports socket from env; only wasi_snapshot_preview1 can be imported from"},
		{`(module (import "wasi_snapshot_preview1" "spawn" (func))` + memory + abi + `)`, "imports spawn, which wasi_snapshot_preview1 does not have"},
		{`(module (import "wasi_snapshot_preview1" "fd_close" (func))` + memory + abi + `)`, "imports fd_close of wasi_snapshot_preview1 with other parameters"},
		{`(module (import "env" "m" (memory 1)) (export "memory" (memory 0))` + abi + `)`, "imports m from env, which is not a function"},
		{`(module (import "env" "g" (global i32))` + memory + abi + `)`, "imports g from env, which is not a function"},
		{`(module (table 1048577 funcref)` + memory + abi + `)`, "tables of more than 1048576 entries"},
		{`(module (table 1 funcref) (func (drop (table.grow 0 (ref.null func) (i32.const 1))))` + memory + abi + `)`, "table.grow"},
		{`(module ` + memory + abi + `(type (func (param ` + strings.Repeat("i32 ", 1000) + `))))`, ""},
		{`(module ` + memory + abi + `(type (func (param ` + strings.Repeat("i32 ", 1001) + `))))`, "more than 1000 parameters or results"},
		{`(module ` + memory + abi + `(type (func (result ` + strings.Repeat("i32 ", 1001) + `))))`, "more than 1000 parameters or results"},
		{`(module ` + memory + abi + `(func (export "_initialize") (unreachable)))`, "does not start: wasm error: unreachable"},
		{`(module ` + memory + abi + `(func $f (loop (br 0))) (data (i32.const 65536) "x"))`, "does not start: "},
	} {
		code := wat(t, c.text)
		_, err := rt.Check(t.Context(), code, digest(code), settings())
		complain(t, c.text, err, c.want)
	}
	for name, code := range map[string][]byte{
		"nothing": nil, "text": []byte("#!/bin/sh"), "half": shout(t)[:100], "a component": []byte("\x00asm\x0d\x00\x01\x00"),
		"too large": make([]byte, wasm.MaxCode+1),
	} {
		_, err := rt.Check(t.Context(), code, digest(code), settings())
		complain(t, name, err, "/code")
	}
}

// TestCounts: a module that says that it has more than it can hold is refused, before anybody makes room for as much.
func TestCounts(t *testing.T) {
	rt := wasm.New(wasm.Options{})
	defer rt.Close()
	const many = "\xff\xff\xff\xff\x0f" // the largest number
	section := func(id byte, body string) string { return string([]byte{id, byte(len(body))}) + body }
	function := section(1, "\x01\x60\x00\x00") + section(3, "\x01\x00")
	locals := func(n, more string) string { // two runs of them
		body := "\x02" + n + "\x7e" + more + "\x7e\x0b"
		return function + section(10, "\x01"+string([]byte{byte(len(body))})+body)
	}
	for _, c := range []struct{ name, sections, want string }{
		{"types", section(1, many), "damaged"},
		{"parameters", section(1, "\x01\x60"+many), "damaged"},
		{"results", section(1, "\x01\x60\x00"+many), "damaged"},
		{"imports", section(2, many), "damaged"},
		{"functions", section(3, many), "damaged"},
		{"tables", section(4, many), "damaged"},
		{"globals", section(6, many), "damaged"},
		{"exports", section(7, many), "damaged"},
		{"name of an export", section(7, "\x01"+many), "damaged"},
		{"elements", section(9, many), "damaged"},
		{"functions of an element", section(9, "\x01\x00\x41\x00\x0b"+many), "damaged"},
		{"functions of a passive element", section(9, "\x01\x01\x00"+many), "damaged"},
		{"expressions of an element", section(9, "\x01\x06\x00\xd0\x70\x0b\x70"+many), "damaged"},
		{"expressions of an element behind a type of two bytes", section(9, "\x01\x04\xd0\x80\x0b\x0b\x00"+many), "damaged"},
		{"bodies", section(10, many), "has code that breaks off"},
		{"data", section(11, many), "damaged"},
		{"bytes of data", section(11, "\x01\x00\x41\x00\x0b"+many), "damaged"},
		{"bytes of passive data", section(11, "\x01\x01"+many), "damaged"},
		{"locals", locals(many, many), "has a function with more than 50000 locals"},
		{"one local too many", locals("\xd0\x86\x03", "\x01"), "has a function with more than 50000 locals"}, // 50000 and one
		{"as many locals as may be", locals("\xcf\x86\x03", "\x01"), "does not export its memory"},
	} {
		code := []byte("\x00asm\x01\x00\x00\x00" + c.sections)
		_, err := rt.Check(t.Context(), code, digest(code), settings())
		complain(t, c.name, err, c.want)
	}
}

func complain(t *testing.T, what string, err error, want string) {
	t.Helper()
	var f *fault.Error
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: %v, want no complaint", what, err)
	case want != "" && (!errors.As(err, &f) || f.Kind != fault.Invalid || len(f.Details) == 0 || f.Details[0].Pointer != "/code" || !strings.Contains(err.Error(), want)):
		t.Errorf("%s: %v, want a complaint about /code: %s", what, err, want)
	}
}

// TestIdle: fifty functions that nobody needs hold no instance.
func TestIdle(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	clock := &clock{now: time.Unix(1_800_000_000, 0)}
	rt := wasm.New(wasm.Options{Idle: 40 * time.Millisecond, Now: clock.Now, Registerer: reg})
	defer rt.Close()
	code := shout(t)
	for i := range 50 {
		f := rt.Function(wasm.Spec{Name: fmt.Sprintf("f%d", i), Digest: digest(code), Settings: settings(),
			Code: func(context.Context) ([]byte, error) { return code, nil }})
		if _, err := call(t, f, `{}`); err != nil {
			t.Fatal(err)
		}
	}
	gauges := func(instances, memory float64) error {
		m := gathered(t, reg)
		if len(m["rialto_function_instances"]) != 1 || m["rialto_function_instances"][0] != instances || m["rialto_function_idle_memory_bytes"][0] != memory {
			return fmt.Errorf("%v instances with %v bytes, want %v with %v", m["rialto_function_instances"], m["rialto_function_idle_memory_bytes"], instances, memory)
		}
		return nil
	}
	if err := gauges(50, 50*3<<16); err != nil {
		t.Error(err)
	}
	clock.forward(time.Minute)
	until(t, func() error { return gauges(0, 0) })
	if m := gathered(t, reg)["rialto_function_calls_total"]; len(m) != 50 || m[0] != 1 {
		t.Errorf("calls are counted as %v", m)
	}
}

// gathered is the values of all metrics by name.
func gathered(t *testing.T, reg *prometheus.Registry) map[string][]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			all[f.GetName()] = append(all[f.GetName()], m.GetGauge().GetValue()+m.GetCounter().GetValue())
		}
	}
	return all
}

type clock struct {
	mu  sync.Mutex // guards now
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) forward(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// until waits until a condition holds.
func until(t *testing.T, holds func() error) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); ; <-tick.C {
		err := holds()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// TestConcurrency: calls at the same time do not meet, there are never more instances than allowed, and a close in between
// lets those under way end.
func TestConcurrency(t *testing.T) {
	f := function(t, wasm.Options{}, wat(t, behaving(`
	  (i32.store8 (i32.const 24) (i32.load8_u (i32.sub (i32.add (local.get $at) (local.get $n)) (i32.const 2))))
	  (call $result (i32.const 16) (i32.const 10))`)), nil)
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			for range 50 {
				want(t, f, fmt.Sprint(i), fmt.Sprint(i))
				if n := f.Status().Instances; n > wasm.DefaultInstances {
					t.Errorf("there are %d instances", n)
				}
			}
		})
	}
	wg.Wait()
	for range 10 {
		wg.Go(func() {
			if _, err := call(t, f, `1`); err != nil && !errors.Is(err, wasm.ErrClosed) {
				t.Error(err)
			}
		})
	}
	f.Close()
	wg.Wait()
	if _, err := call(t, f, `1`); !errors.Is(err, wasm.ErrClosed) {
		t.Errorf("a function that is closed: %v", err)
	}
	if n := f.Status().Instances; n != 0 {
		t.Errorf("%d instances are left", n)
	}
}

// TestWait: who finds all instances at work waits for no longer than the attempt may take.
func TestWait(t *testing.T) {
	f := function(t, wasm.Options{}, wat(t, behaving(`(call $forever) (i64.const 0)`)), func(s *wasm.Settings) {
		s.Instances, s.Timeout = 1, wasm.MaxTimeout
	})
	busy, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := f.Call(busy, wasm.Call{Event: []byte(`{}`)})
		done <- err
	}()
	until(t, func() error {
		if f.Status().Instances == 0 {
			return errors.New("the function has not begun")
		}
		return nil
	})
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	var te *targets.Error
	if _, err := f.Call(short, wasm.Call{Event: []byte(`{}`)}); !errors.As(err, &te) || te.Reason != targets.ReasonTimeout || !strings.Contains(err.Error(), "busy") {
		t.Errorf("while the only instance is at work: %v", err)
	}
	stop()
	if err := <-done; !errors.As(err, &te) || te.Reason != targets.ReasonInterrupted {
		t.Errorf("an attempt that was cut off: %v", err)
	}
}

// TestCode: code that cannot be had is asked for again, and had once.
func TestCode(t *testing.T) {
	rt := wasm.New(wasm.Options{})
	defer rt.Close()
	asked := 0
	code := shout(t)
	f := rt.Function(wasm.Spec{Name: "f", Digest: digest(code), Settings: settings(), Code: func(context.Context) ([]byte, error) {
		if asked++; asked == 1 {
			return nil, errors.New("the store is away")
		}
		return code, nil
	}})
	var te *targets.Error
	if _, err := call(t, f, `{}`); !errors.As(err, &te) || te.Reason != targets.ReasonInternal || te.Permanent {
		t.Errorf("code that cannot be had: %v", err)
	}
	for range 2 {
		if _, err := call(t, f, `{}`); err != nil {
			t.Error(err)
		}
	}
	if asked != 2 {
		t.Errorf("the code was asked for %d times", asked)
	}
}

// TestCompiledForm: it is used when it is whole, made again when it is not, whatever was done to it, and forgotten.
func TestCompiledForm(t *testing.T) {
	dir := t.TempDir()
	code := shout(t)
	check := func() {
		t.Helper()
		if _, err := call(t, function(t, wasm.Options{Dir: dir}, code, nil), `{}`); err != nil {
			t.Error(err)
		}
	}
	files := func() map[string][]byte {
		t.Helper()
		all := map[string][]byte{}
		err := filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				all[name] = read(t, name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	check()
	whole := files()
	if len(whole) != 2 {
		t.Fatalf("there are %d files, want the compiled form and its sum", len(whole))
	}
	for name, b := range whole {
		for what, damaged := range map[string][]byte{"empty": nil, "half": b[:len(b)/2], "longer": append(bytes.Clone(b), "x"...),
			"changed": append(append(bytes.Clone(b[:30]), b[30]^1), b[31:]...)} {
			if err := os.WriteFile(name, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			check()
			for again, want := range whole {
				if !bytes.Equal(files()[again], want) {
					t.Errorf("%s: after %s was %s it is not as it was", again, name, what)
				}
			}
		}
	}
	rt := wasm.New(wasm.Options{Dir: dir})
	defer rt.Close()
	if err := rt.Forget(digest(code)); err != nil || len(files()) != 0 {
		t.Errorf("%d files are left, %v", len(files()), err)
	}
}
