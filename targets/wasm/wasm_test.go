// SPDX-License-Identifier: Apache-2.0

package wasm_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/wasm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// settings are the defaults, with more time: the machine of a test may be busy.
func settings() wasm.Settings {
	return wasm.Settings{Memory: wasm.DefaultMemory, Timeout: 5 * time.Second, MaxOutput: wasm.DefaultOutput, Instances: wasm.DefaultInstances}
}

// function makes a function in a runtime of its own.
func function(t testing.TB, o wasm.Options, code []byte, edit func(*wasm.Settings)) *wasm.Function {
	t.Helper()
	rt := wasm.New(o)
	t.Cleanup(rt.Close)
	s := settings()
	if edit != nil {
		edit(&s)
	}
	return rt.Function(wasm.Spec{Name: "f", Digest: digest(code), Settings: s,
		Code: func(context.Context) ([]byte, error) { return code, nil }})
}

// call calls a function with an event whose payload is data.
func call(t testing.TB, f *wasm.Function, data string) (wasm.Result, error) {
	t.Helper()
	ev := event.Event{ID: "1", Source: "/box/17", Type: "com.acme.telemetry", DataContentType: "application/json", Data: []byte(data)}
	return f.Call(t.Context(), wasm.Call{Delivery: "dlv_1", Time: time.Unix(1_800_000_000, 0), Event: event.AppendJSON(nil, &ev)})
}

// want calls a function and compares the payload that it makes.
func want(t *testing.T, f *wasm.Function, data, result string) {
	t.Helper()
	r, err := call(t, f, data)
	if err != nil || string(r.Data) != result {
		t.Errorf("%s gives %s, %v, want %s", data, r.Data, err, result)
	}
}

func TestABIs(t *testing.T) {
	for abi, mode := range map[wasm.ABI]string{wasm.ABIHandle: "c-shared", wasm.ABICommand: "exe"} {
		t.Run(string(abi), func(t *testing.T) {
			code := inGo(t, mode)
			kept := wasm.Options{Dir: t.TempDir()} // compiling takes a while, and is done once
			rt := wasm.New(kept)
			defer rt.Close()
			if found, err := rt.Check(t.Context(), code, digest(code), settings()); err != nil || found != abi {
				t.Errorf("the ABI is %s, %v, want %s", found, err, abi)
			}
			f := function(t, kept, code, nil)
			want(t, f, `{"temperature": 9.5, "door": "open"}`, `{"door":"open","temperature":9.5,"warm":true}`)
			want(t, f, `{"temperature": 1}`, `{"temperature":1,"warm":false}`)
			var te *targets.Error
			if _, err := call(t, f, `{"door": "open"}`); !errors.As(err, &te) || !te.Permanent || te.Reason != targets.ReasonFunction ||
				te.Err.Error() != "there is no temperature" {
				t.Errorf("a function that refuses: %v", err)
			}
		})
	}
	f := function(t, wasm.Options{}, shout(t), nil)
	for range 3 {
		r, err := call(t, f, `{}`)
		if err != nil || len(r.Events) != 1 || r.Events[0].Type != "com.example.heard" || string(r.Events[0].Data) != `"heard you"` ||
			r.Events[0].ID != "" || r.Events[0].Source != "" {
			t.Errorf("the example in text gives %+v, %v", r, err)
		}
	}
	if s := f.Status(); s.Calls != 3 || len(s.Failures) != 0 || s.Instances != 1 || s.PeakMemory != 3<<16 {
		t.Errorf("status %+v", s)
	}
}

// behaving is a module that does what its event says: its body stands in handle, $at is the address of the event's text
// and $n its length. $is compares the payload's first letter, which stands at the end of the event: "x"} .
func behaving(handle string) string {
	return `(module
	  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
	  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
	  (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
	  (import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
	  (memory (export "memory") 2)
	  (table 2 funcref)
	  (global $seen (mut i32) (i32.const 0))
	  (global $half (mut f64) (f64.const 0.5))
	  (data (i32.const 16) "{\"data\":0}")
	  (data (i32.const 64) "no JSON{\"data\":1,\"error\":\"x\"}{\"error\":\"later\",\"retry\":true}")
	  (func (export "alloc") (param i32) (result i32) (i32.const 1024))
	  (func $is (param $at i32) (param $n i32) (param $letter i32) (result i32)
	    (i32.eq (i32.load8_u (i32.sub (i32.add (local.get $at) (local.get $n)) (i32.const 3))) (local.get $letter)))
	  (func $result (param $at i32) (param $n i32) (result i64)
	    (i64.or (i64.shl (i64.extend_i32_u (local.get $at)) (i64.const 32)) (i64.extend_i32_u (local.get $n))))
	  (func $forever (loop (br 0)))
	  (func $branching (param $n i64) (if (i64.gt_s (local.get $n) (i64.const 0)) (then
	    (call $branching (i64.sub (local.get $n) (i64.const 1))) (call $branching (i64.sub (local.get $n) (i64.const 1))))))
	  (func $deeper (call $deeper))
	  (func $fill (loop (memory.fill (i32.const 2048) (i32.const 0) (i32.const 100000)) (br 0)))
	  (func $greedy (loop (if (i32.eq (memory.grow (i32.const 16)) (i32.const -1)) (then (unreachable))) (br 0)))
	  (func (export "handle") (param $at i32) (param $n i32) (result i64) ` + handle + `))`
}

// TestMisbehaviour: whatever a function does, it is stopped at its limit, and the next event runs fine.
func TestMisbehaviour(t *testing.T) {
	code := wat(t, behaving(`
	  (if (call $is (local.get $at) (local.get $n) (i32.const 0x6c (; l ;))) (then (call $forever)))
	  (if (call $is (local.get $at) (local.get $n) (i32.const 0x62 (; b ;))) (then (call $branching (i64.const 64))))
	  (if (call $is (local.get $at) (local.get $n) (i32.const 0x66 (; f ;))) (then (call $fill)))
	  (if (call $is (local.get $at) (local.get $n) (i32.const 0x67 (; g ;))) (then (call $greedy)))
	  (if (call $is (local.get $at) (local.get $n) (i32.const 0x73 (; s ;))) (then (call $deeper)))
	  (if (call $is (local.get $at) (local.get $n) (i32.const 0x75 (; u ;))) (then (unreachable)))
	  (if (call $is (local.get $at) (local.get $n) (i32.const 0x65 (; e ;))) (then (call $exit (i32.const 7))))
	  (if (call $is (local.get $at) (local.get $n) (i32.const 0x7a (; z ;))) (then (call $exit (i32.const 0))))
	  (if (call $is (local.get $at) (local.get $n) (i32.const 0x68 (; h ;))) (then (return (call $result (i32.const 16) (i32.const 100000)))))
	  (if (call $is (local.get $at) (local.get $n) (i32.const 0x6f (; o ;))) (then (return (call $result (i32.const 131000) (i32.const 1000)))))
	  (if (call $is (local.get $at) (local.get $n) (i32.const 0x6a (; j ;))) (then (return (call $result (i32.const 64) (i32.const 7)))))
	  (if (call $is (local.get $at) (local.get $n) (i32.const 0x74 (; t ;))) (then (return (call $result (i32.const 71) (i32.const 22)))))
	  (if (call $is (local.get $at) (local.get $n) (i32.const 0x72 (; r ;))) (then (return (call $result (i32.const 93) (i32.const 30)))))
	  (call $result (i32.const 16) (i32.const 10))`))
	f := function(t, wasm.Options{}, code, func(s *wasm.Settings) {
		s.Timeout, s.MaxOutput, s.Memory, s.Instances = 300*time.Millisecond, 50_000, 4<<20, 1
	})
	for _, c := range []struct {
		letter string
		reason targets.Reason
		said   string
	}{
		{"l", targets.ReasonTimeout, "stopped after 300ms"},
		{"b", targets.ReasonTimeout, "stopped after 300ms"},
		{"f", targets.ReasonTimeout, "stopped after 300ms"},
		{"g", targets.ReasonFunction, "of the 4194304 that it may have: wasm error: unreachable"},
		{"u", targets.ReasonFunction, "unreachable"},
		{"e", targets.ReasonFunction, "exit code 7"},
		{"z", targets.ReasonFunction, "exit code 0"},
		{"h", targets.ReasonFunction, "larger than maxOutput"},
		{"o", targets.ReasonFunction, "not as much memory"},
		{"j", targets.ReasonFunction, "is not JSON"},
		{"t", targets.ReasonFunction, "more than one of"},
		{"r", targets.ReasonFunction, "later"},
	} {
		began := time.Now()
		_, err := call(t, f, `"`+c.letter+`"`)
		var te *targets.Error
		if !errors.As(err, &te) || te.Reason != c.reason || te.Permanent || !strings.Contains(err.Error(), c.said) {
			t.Errorf("%s: %v, want a retryable %s: %s", c.letter, err, c.reason, c.said)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s took %v", c.letter, took)
		}
		want(t, f, `"-"`, `0`)
	}
	if s := f.Status(); s.Instances != 1 || s.Calls != 24 || s.Failures["timeout"] != 3 || s.Failures["memory"] != 1 || s.Failures["crash"] != 4 ||
		s.Failures["output"] != 1 || s.Failures["result"] != 2 || s.Failures["refused"] != 1 || s.PeakMemory < 3<<20 || s.PeakMemory > 4<<20 {
		t.Errorf("status %+v", s)
	}
}

// TestDeepCalls: calls that go ever deeper end at the limit of the stack.
func TestDeepCalls(t *testing.T) {
	f := function(t, wasm.Options{}, wat(t, behaving(`(call $deeper) (i64.const 0)`)), func(s *wasm.Settings) { s.Timeout = wasm.MaxTimeout })
	for range 2 {
		if _, err := call(t, f, `0`); err == nil || !strings.Contains(err.Error(), "stack overflow") {
			t.Errorf("%v, want a stack overflow", err)
		}
	}
}

// TestNothingStays: what an event has changed is not there for the next, in memory, globals and tables.
func TestNothingStays(t *testing.T) {
	counting := map[string]string{
		"memory":  `(i32.store8 (i32.const 24) (i32.add (i32.load8_u (i32.const 24)) (i32.const 1)))`,
		"globals": `(global.set $seen (i32.add (global.get $seen) (i32.const 1))) (i32.store8 (i32.const 24) (i32.add (i32.const 0x30) (global.get $seen)))`,
		"floats": `(global.set $half (f64.add (global.get $half) (f64.const 1)))
		  (i32.store8 (i32.const 24) (i32.add (i32.const 0x30) (i32.trunc_f64_s (global.get $half))))`,
		"grown": `(drop (memory.grow (i32.const 1))) (i32.store8 (i32.const 24) (i32.add (i32.const 0x2e) (memory.size)))`,
		"tables": `(i32.store8 (i32.const 24) (i32.sub (i32.const 0x32) (ref.is_null (table.get 0 (i32.const 1)))))
		  (table.set 0 (i32.const 1) (ref.func $forever))`,
	}
	for name, body := range counting {
		t.Run(name, func(t *testing.T) {
			source := strings.Replace(behaving(body+` (call $result (i32.const 16) (i32.const 10))`), "(table 2 funcref)",
				"(table 2 funcref) (elem declare func $forever)", 1)
			code := wat(t, source)
			f := function(t, wasm.Options{}, code, nil)
			for range 3 {
				want(t, f, `0`, `1`)
			}
			stateful := function(t, wasm.Options{}, code, func(s *wasm.Settings) { s.Stateful = true })
			want(t, stateful, `0`, `1`)
			want(t, stateful, `0`, `2`)
		})
	}
}

// TestRepeatable: the same delivery has the same bytes, whatever chance and clock a function asks for, and another does not.
func TestRepeatable(t *testing.T) {
	// The result is {"data":"RRRRRRRRTTTTTTTT"}, eight bytes each of chance and of the clock, made letters.
	code := wat(t, strings.Replace(behaving(`
	  (drop (call $random (i32.const 209) (i32.const 8)))
	  (drop (call $clock (i32.const 0) (i64.const 1) (i32.const 217)))
	  (i64.store (i32.const 209) (i64.or (i64.and (i64.load (i32.const 209)) (i64.const 0x0f0f0f0f0f0f0f0f)) (i64.const 0x4040404040404040)))
	  (i64.store (i32.const 217) (i64.or (i64.and (i64.load (i32.const 217)) (i64.const 0x0f0f0f0f0f0f0f0f)) (i64.const 0x4040404040404040)))
	  (call $result (i32.const 200) (i32.const 27))`),
		"(func $forever", `(data (i32.const 200) "{\"data\":\"") (data (i32.const 225) "\"}") (func $forever`, 1))
	call := func(f *wasm.Function, delivery string, at int64) string {
		r, err := f.Call(t.Context(), wasm.Call{Delivery: delivery, Time: time.Unix(at, 0), Event: []byte(`{}`)})
		if err != nil {
			t.Fatal(err)
		}
		return string(r.Data)
	}
	a, b := function(t, wasm.Options{}, code, nil), function(t, wasm.Options{}, code, nil)
	first := call(a, "dlv_1", 1_800_000_000)
	if again := call(a, "dlv_1", 1_800_000_000); again != first {
		t.Errorf("the same delivery has %s and then %s", first, again)
	}
	if elsewhere := call(b, "dlv_1", 1_800_000_000); elsewhere != first {
		t.Errorf("the same delivery has %s here and %s elsewhere", first, elsewhere)
	}
	if other := call(a, "dlv_2", 1_800_000_000); other[:9] == first[:9] {
		t.Errorf("another delivery has the same random bytes: %s", other)
	}
	if later := call(a, "dlv_1", 1_900_000_001); later[9:] == first[9:] {
		t.Errorf("an event of another time has the same clock: %s", later)
	}
}

// TestCommandOutput: what a program says of its failure is told, and one that writes without end is stopped.
func TestCommandOutput(t *testing.T) {
	program := func(fd, count string) []byte {
		return wat(t, `(module
		  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
		  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
		  (memory (export "memory") 2)
		  (data (i32.const 0) "\10\00\00\00\05\00\00\00")
		  (data (i32.const 16) "oh\07no")
		  (func (export "_start") (local $n i32)
		    (loop
		      (drop (call $write (i32.const `+fd+`) (i32.const 0) (i32.const 1) (i32.const 8)))
		      (local.set $n (i32.add (local.get $n) (i32.const 1)))
		      (br_if 0 (i32.lt_u (local.get $n) (i32.const `+count+`))))
		    (call $exit (i32.const 3))))`)
	}
	limited := func(s *wasm.Settings) { s.MaxOutput = 10_000 }
	if _, err := call(t, function(t, wasm.Options{}, program("2", "1"), limited), `0`); err == nil || err.Error() != "function: exit code 3: oh no" {
		t.Errorf("a program that fails: %v", err)
	}
	if _, err := call(t, function(t, wasm.Options{}, program("2", "1000000"), limited), `0`); err == nil || len(err.Error()) > 600 {
		t.Errorf("a program that says much of its failure: %v", err)
	}
	began := time.Now()
	_, err := call(t, function(t, wasm.Options{}, program("1", "0xffffffff"), limited), `0`)
	if err == nil || !strings.Contains(err.Error(), "larger than maxOutput") || time.Since(began) > 4*time.Second {
		t.Errorf("a program that writes without end: %v after %v", err, time.Since(began))
	}
}
