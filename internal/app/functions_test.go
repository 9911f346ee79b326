// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// wat makes a module of text.
func wat(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "f.wat"), filepath.Join(dir, "f.wasm")
	if err := os.WriteFile(from, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("wat2wasm", from, "-o", to).CombinedOutput(); err != nil {
		t.Fatalf("wat2wasm: %v: %s (.ci/packages installs it)", err, out)
	}
	code, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	return string(code)
}

// returning is a module whose result is always the same.
func returning(t *testing.T, result string) string {
	t.Helper()
	return wat(t, fmt.Sprintf(`(module (memory (export "memory") 3) (data (i32.const 16) %q)
	  (func (export "alloc") (param i32) (result i32) (i32.const 65536))
	  (func (export "handle") (param i32 i32) (result i64) (i64.or (i64.shl (i64.const 16) (i64.const 32)) (i64.const %d))))`, result, len(result)))
}

// upload puts code in force and returns its digest.
func (s *server) upload(name, code string) string {
	s.t.Helper()
	var f struct{ Code string }
	if err := json.Unmarshal([]byte(s.must("PUT", "/v1/functions/"+name+"/code", code, "Content-Type", "application/wasm")), &f); err != nil {
		s.t.Fatal(err)
	}
	return f.Code
}

// A function is uploaded, replies to events, is used as long as something names it, and is there after a restart.
func TestFunctionFromUploadToReply(t *testing.T) {
	dir := t.TempDir()
	s, a := start(t, options(dir))
	digest := s.upload("heard", returning(t, `{"event":{"type":"com.example.heard","data":1}}`))
	s.must("PUT", "/v1/targets/heard", `{"kind":"Target","name":"heard","type":"function","config":{"function":"heard"}}`)
	s.rule("default", "hear", `{"type":["com.example.said"]}`, "heard")
	if status := s.publish("default", "1", "com.example.said", `{}`); status != http.StatusAccepted {
		t.Fatal(status)
	}
	s.settled("default", 10*time.Second)
	reply := s.must("GET", "/v1/buses/default/events?type=com.example.heard", "")
	for _, want := range []string{`"source":"rialto/functions/heard"`, `"rialtohops":1`, `"data":1`} {
		if strings.Count(reply, want) != 1 {
			t.Errorf("%s is not once in %s", want, reply)
		}
	}
	if status, answer := s.call("DELETE", "/v1/functions/heard", ""); status != http.StatusConflict || !strings.Contains(answer, "target heard") {
		t.Errorf("a function that is in use: %d %s", status, answer)
	}
	if doc := s.must("GET", "/v1/functions/heard", ""); !strings.Contains(doc, `"calls":1`) || !strings.Contains(doc, `"abi":"handle"`) {
		t.Errorf("the function is %s", doc)
	}
	if metrics := s.must("GET", "/metrics", ""); !strings.Contains(metrics, `rialto_function_calls_total{function="heard"} 1`) {
		t.Error("the call is not in the metrics")
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	again, _ := start(t, options(dir))
	if code := again.must("GET", "/v1/functions/heard/code?digest="+digest, ""); !strings.HasPrefix(code, "\x00asm") {
		t.Errorf("the code is %.20q", code)
	}
	again.publish("default", "2", "com.example.said", `{}`)
	again.settled("default", 10*time.Second)
	if reply := again.must("GET", "/v1/buses/default/events?type=com.example.heard", ""); strings.Count(reply, `"rialtohops"`) != 2 {
		t.Errorf("after a restart the replies are %s", reply)
	}
}

// Functions that feed themselves end after eight.
func TestFunctionLoop(t *testing.T) {
	s, _ := start(t, options(t.TempDir()))
	s.upload("echo", returning(t, `{"events":[{"type":"com.example.echo"}]}`))
	s.must("PUT", "/v1/targets/echo", `{"kind":"Target","name":"echo","type":"function","config":{"runtime":"wasm","function":"echo","replyBus":"default"}}`)
	s.rule("default", "echo", `{"type":["com.example.echo"]}`, "echo")
	s.publish("default", "1", "com.example.echo", `{}`)
	eventually(t, 20*time.Second, func() (string, bool) {
		letters := s.must("GET", "/v1/deadletters", "")
		return letters, strings.Contains(letters, "is there a loop?")
	})
	s.settled("default", 10*time.Second)
	if all := s.must("GET", "/v1/buses/default/events?type=com.example.echo", ""); strings.Count(all, `"id":`) < 9 || strings.Contains(all, `"rialtohops":9`) {
		t.Errorf("the loop made %s", all)
	}
}

// A transform keeps the version that an event was routed with: a retry sends the same bytes although another was uploaded
// meanwhile, and the next event meets the new one.
func TestFunctionTransformKeepsItsVersion(t *testing.T) {
	s, _ := start(t, options(t.TempDir()))
	first := s.upload("shape", returning(t, `{"data":{"version":1}}`))
	var down atomic.Bool
	down.Store(true)
	tries := make(chan string, 100)
	out := newSink(t, func(w http.ResponseWriter, _ *http.Request, body []byte) {
		tries <- string(body)
		if down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	s.target("sink", out.URL, `{"retry":{"schedule":["1s"],"maxAttempts":50}}`)
	s.must("PUT", "/v1/buses/default/rules/shaped", `{"kind":"Rule","name":"shaped","bus":"default","pattern":{"type":["a"]},
		"targets":[{"target":"sink","transform":{"function":"shape"}}]}`)
	s.publish("default", "1", "a", `{}`)
	if got := <-tries; got != `{"version":1}` {
		t.Fatalf("the first attempt sent %s", got)
	}
	second := s.upload("shape", returning(t, `{"data":{"version":2}}`))
	if first == second {
		t.Fatal("both versions have one digest")
	}
	down.Store(false)
	s.publish("default", "2", "a", `{}`)
	s.settled("default", 20*time.Second)
	if missing := out.missing([]string{`{"version":1}`, `{"version":2}`}); len(missing) > 0 {
		t.Errorf("%v was not delivered", missing)
	}
	if doc := s.must("GET", "/v1/buses/default/rules/shaped", ""); strings.Contains(doc, "sha256") {
		t.Errorf("the rule is shown with what it was pinned to: %s", doc)
	}
	s.must("PUT", "/v1/functions/shape", `{"kind":"Function","name":"shape","code":"`+first+`","timeout":"2s"}`) // rollback
	s.publish("default", "3", "a", `{}`)
	s.settled("default", 10*time.Second)
	if tested := s.must("POST", "/v1/rules:test", `{"pattern":{"type":["a"]},"transform":{"function":"shape"},
		"events":[{"specversion":"1.0","id":"1","source":"/s","type":"a"}]}`); !strings.Contains(tested, `"data":{"version":1}`) {
		t.Errorf("after the rollback the rule makes %s", tested)
	}
	if status, answer := s.call("DELETE", "/v1/functions/shape", ""); status != http.StatusConflict || !strings.Contains(answer, "rule default/shaped") {
		t.Errorf("a function that is in use: %d %s", status, answer)
	}
}

// What cannot be is refused, with a pointer.
func TestFunctionRefusals(t *testing.T) {
	s, _ := start(t, options(t.TempDir()))
	digest := s.upload("f", returning(t, `{}`))
	unknown := "sha256:" + strings.Repeat("0", 64)
	for _, c := range []struct{ method, path, body, contentType, want string }{
		{"PUT", "/v1/functions/g/code", "#!/bin/sh", "application/wasm", `"pointer":"/code"`},
		{"PUT", "/v1/functions/g/code", "{}", "application/json", "application/wasm"},
		{"PUT", "/v1/functions/G/code", "{}", "application/wasm", `"pointer":"/name"`},
		{"PUT", "/v1/functions/g", `{"kind":"Function","name":"g"}`, "", `"pointer":"/code"`},
		{"PUT", "/v1/functions/f", `{"code":"` + unknown + `"}`, "", `no code with this digest`},
		{"PUT", "/v1/functions/f", `{"code":"latest"}`, "", `"pointer":"/code"`},
		{"PUT", "/v1/functions/f", `{"abi":"command"}`, "", `does not export the function _start`},
		{"PUT", "/v1/functions/f", `{"abi":"extism"}`, "", `"pointer":"/abi"`},
		{"PUT", "/v1/functions/f", `{"memoryLimit":"1GiB"}`, "", `"pointer":"/memoryLimit"`},
		{"PUT", "/v1/functions/f", `{"memoryLimit":"64KiB"}`, "", `more than memoryLimit`},
		{"PUT", "/v1/functions/f", `{"timeout":"1m"}`, "", `"pointer":"/timeout"`},
		{"PUT", "/v1/functions/f", `{"timeout":5}`, "", `"pointer":"/timeout"`},
		{"PUT", "/v1/functions/f", `{"maxOutput":0}`, "", `"pointer":"/maxOutput"`},
		{"PUT", "/v1/functions/f", `{"instances":0}`, "", `"pointer":"/instances"`},
		{"PUT", "/v1/functions/f", `{"memory":"1MiB"}`, "", `"pointer":"/memory"`},
		{"PUT", "/v1/targets/t", `{"type":"function","config":{"function":"none"}}`, "", `"pointer":"/config/function"`},
		{"PUT", "/v1/targets/t", `{"type":"function","config":{"function":"f","replyBus":"none"}}`, "", `"pointer":"/config/replyBus"`},
		{"PUT", "/v1/buses/default/rules/r", `{"pattern":{"type":["a"]},"targets":[{"target":"none","transform":{"function":"none"}}]}`, "", `"pointer":"/targets/0/transform/function"`},
		{"PUT", "/v1/buses/default/rules/r", `{"pattern":{"type":["a"]},"targets":[{"target":"none","transform":{"function":"f","code":"1"}}]}`, "", `"pointer":"/targets/0/transform/code"`},
		{"PUT", "/v1/buses/default/rules/r", `{"pattern":{"type":["a"]},"targets":[{"target":"none","transform":{"code":"` + digest + `"}}]}`, "", `goes with a function`},
		{"PUT", "/v1/buses/default/rules/r", `{"pattern":{"type":["a"]},"targets":[{"target":"none","transform":{"function":"f","code":"` + unknown + `"}}]}`, "", `"pointer":"/targets/0/transform/code"`},
		{"GET", "/v1/functions/f/code?digest=" + unknown, "", "", "has no version"},
		{"GET", "/v1/functions/f/code?version=1", "", "", `"pointer":"/version"`},
		{"GET", "/v1/functions/none/code", "", "", "there is no function none"},
		{"POST", "/v1/functions/none:test", `{"event":{"specversion":"1.0","id":"1","source":"/s","type":"a"}}`, "", "does not exist"},
		{"POST", "/v1/functions/f:test", `{"code":"` + unknown + `","event":{"specversion":"1.0","id":"1","source":"/s","type":"a"}}`, "", "has no version"},
		{"POST", "/v1/functions/f:test", `{"code":"sha256:../../f","event":{"specversion":"1.0","id":"1","source":"/s","type":"a"}}`, "", "has no version"},
		{"POST", "/v1/functions/f:test", `{"event":{}}`, "", `"pointer":"/event"`},
		{"POST", "/v1/functions/f:test", `{}`, "", `"pointer":"/event"`},
	} {
		var header []string
		if c.contentType != "" {
			header = []string{"Content-Type", c.contentType}
		}
		if status, answer := s.call(c.method, c.path, c.body, header...); status < 400 || status > 499 || !strings.Contains(answer, c.want) {
			t.Errorf("%s %s %s: %d %s, want %s", c.method, c.path, c.body, status, answer, c.want)
		}
	}
	if status, answer := s.call("PUT", "/v1/functions/f/code", strings.Repeat("x", 16<<20+1), "Content-Type", "application/wasm"); status != http.StatusRequestEntityTooLarge {
		t.Errorf("code that is too large: %d %.200s", status, answer)
	}
	if status, _ := s.call("PUT", "/v1/functions/f/code", returning(t, `{"data":1}`), "Content-Type", "application/wasm", "If-Match", `"1"`); status != http.StatusPreconditionFailed {
		t.Errorf("a precondition that does not hold: %d", status)
	}
}

// The last five versions are kept, and those that were in force lately; all can be put in force again.
func TestFunctionVersions(t *testing.T) {
	s, _ := start(t, options(t.TempDir()))
	var digests []string
	for i := range 7 {
		digests = append(digests, s.upload("f", returning(t, fmt.Sprintf(`{"data":%d}`, i))))
	}
	for i, digest := range digests {
		answer := s.must("POST", "/v1/functions/f:test", `{"code":"`+digest+`","event":{"specversion":"1.0","id":"1","source":"/s","type":"a"}}`)
		if !strings.Contains(answer, fmt.Sprintf(`"data":%d`, i)) {
			t.Errorf("version %d makes %s", i, answer)
		}
	}
	s.must("PUT", "/v1/functions/f", `{"code":"`+digests[2]+`","description":"back"}`)
	doc := s.must("GET", "/v1/functions/f", "")
	if strings.Index(doc, `"digest":"`+digests[2]) > strings.Index(doc, `"digest":"`+digests[6]) || strings.Count(doc, `"digest"`) != 7 {
		t.Errorf("after a rollback the function is %s", doc)
	}
	s.must("DELETE", "/v1/functions/f", "")
	if status, _ := s.call("GET", "/v1/functions/f/code", ""); status != http.StatusNotFound {
		t.Errorf("the code of a function that was deleted: %d", status)
	}
}
