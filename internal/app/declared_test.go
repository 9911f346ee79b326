// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/app"
)

// folder is a directory of definitions.
type folder struct {
	t   *testing.T
	dir string
}

func (f folder) write(name, text string) {
	f.t.Helper()
	file := filepath.Join(f.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f folder) remove(name string) {
	f.t.Helper()
	if err := os.Remove(filepath.Join(f.dir, name)); err != nil {
		f.t.Fatal(err)
	}
}

const (
	declaredTarget = "kind: Target\nname: hook\ntype: webhook\nconfig: {url: \"https://example.com/a\"}\n"
	declaredRule   = "kind: Rule\nname: all\nbus: orders\npattern: {type: [t]}\ntargets: [{target: hook}]\n"
	declaredBus    = "kind: Bus\nname: orders\nschemaPolicy: quarantine\nquarantineBus: misfits\n"
)

func declaredOptions(data, dir string) app.Options {
	o := options(data)
	o.Definitions, o.DefinitionsPoll = dir, 10*time.Millisecond
	return o
}

// status waits until a definition is answered with a status.
func (s *server) status(path string, want int) {
	s.t.Helper()
	eventually(s.t, 10*time.Second, func() (string, bool) {
		status, body := s.call("GET", path, "")
		return path + ": " + http.StatusText(status) + " " + body, status == want
	})
}

func (s *server) verbose(text string, want bool) {
	s.t.Helper()
	eventually(s.t, 10*time.Second, func() (string, bool) {
		status, body := s.call("GET", "/readyz?verbose", "")
		return body, status == http.StatusOK && strings.Contains(body, text) == want
	})
}

func TestDeclaredDefinitions(t *testing.T) {
	data, f := t.TempDir(), folder{t, t.TempDir()}
	f.write("a/rules.yaml", declaredRule)
	f.write("target.yaml", declaredTarget)
	f.write("bus.yaml", declaredBus)
	f.write("devices.yaml", "kind: Device\nname: box\npassword: {value: a long one}\n")
	s, _ := start(t, declaredOptions(data, f.dir))
	for _, path := range []string{"/v1/buses/orders/rules/all", "/v1/targets/hook", "/v1/buses/orders", "/v1/devices/box", "/v1/buses/devices"} {
		s.must("GET", path, "")
	}
	s.status("/v1/buses/misfits", http.StatusOK) // which the bridge makes itself

	// They are read-only; keys, devices that are not declared, and the running of things are not.
	for _, r := range [][3]string{{"PUT", "/v1/targets/other", `{"type":"webhook","config":{"url":"https://example.com"}}`}, {"DELETE", "/v1/buses/orders/rules/all", ""},
		{"POST", "/v1/devices/box:block", ""}, {"POST", "/v1/definitions:apply", `{"documents":[{"kind":"Bus","name":"x"}]}`}} {
		if status, body := s.call(r[0], r[1], r[2]); status != http.StatusConflict || !strings.Contains(body, "declared by "+f.dir) {
			t.Errorf("%s %s: %d %s", r[0], r[1], status, body)
		}
	}
	s.must("POST", "/v1/keys", `{"name":"k","scopes":["events:read"]}`)
	s.must("PUT", "/v1/devices/other", `{}`)
	s.must("POST", "/v1/definitions:apply", `{"documents":[{"kind":"Schema","group":"g","name":"s","schema":{"type":"object"}}]}`)
	if a := s.must("POST", "/v1/definitions:apply?dryRun=true", `{"documents":[{"kind":"Bus","name":"orders","schemaPolicy":"quarantine","quarantineBus":"misfits"}]}`); !strings.Contains(a, "unchanged") {
		t.Errorf("dry run: %s", a)
	}

	// A change comes by itself, and what has left the directory goes. What the directory does not manage stays.
	f.write("target.yaml", strings.Replace(declaredTarget, "/a", "/b", 1)+"---\n"+strings.Replace(declaredTarget, "name: hook", "name: second", 1))
	f.remove("devices.yaml")
	s.status("/v1/targets/second", http.StatusOK)
	if doc := s.must("GET", "/v1/targets/hook", ""); !strings.Contains(doc, "example.com/b") {
		t.Errorf("changed target: %s", doc)
	}
	f.remove("a/rules.yaml")
	s.status("/v1/buses/orders/rules/all", http.StatusNotFound)
	for _, path := range []string{"/v1/devices/box", "/v1/devices/other", "/v1/keys/k", "/v1/buses/misfits", "/v1/buses/default"} {
		s.must("GET", path, "")
	}
	s.must("POST", "/v1/devices/box:block", "") // it is not declared any more

	// A state that is wrong changes nothing, and is said.
	f.write("target.yaml", declaredTarget+"---\nkind: Rule\nname: lost\npattern: {type: [t]}\ntargets:\n- target: none\n")
	s.verbose("target.yaml:10 (document 2): /targets/0/target: there is no target of this name", true)
	s.must("GET", "/v1/targets/second", "")
	if m := s.must("GET", "/metrics", ""); !strings.Contains(m, "rialto_declared_definitions_valid 0") {
		t.Error("the metric does not say that the directory is wrong")
	}
	f.write("target.yaml", "kind: Key\nname: x\nscopes: [\"admin:*\"]\n")
	s.verbose("keys cannot be declared", true)
	f.remove("bus.yaml") // before the one that is wrong: what is in between must not be a state to be taken over
	f.remove("target.yaml")
	s.verbose("it holds no definition", true)
	s.must("GET", "/v1/targets/second", "")
	f.write("target.yaml", declaredTarget)
	f.write("bus.yaml", declaredBus)
	s.verbose("is not in force", false)
	s.status("/v1/targets/second", http.StatusNotFound)
	if m := s.must("GET", "/metrics", ""); !strings.Contains(m, "rialto_declared_definitions_valid 1") {
		t.Error("the metric does not say that the directory is right again")
	}
}

// A directory that names a Secret, and a function without its code, comes into force once they are there, at a first start and later.
func TestDeclaredBeforeWhatItNames(t *testing.T) {
	f := folder{t, t.TempDir()}
	f.write("a.yaml", "kind: Target\nname: hook\ntype: webhook\nconfig: {url: \"https://example.com\", headers: {X-Token: {ref: ops}}}\n")
	f.write("b.yaml", "kind: Function\nname: shape\ntimeout: 2s\n")
	s, _ := start(t, declaredOptions(t.TempDir(), f.dir))
	s.verbose("there is no secret of this name", true)
	s.must("PUT", "/v1/secrets/ops", `{"value":"a token"}`)
	s.verbose("there is no secret of this name", false)
	s.verbose("is missing: upload the code first", true)
	if m := s.must("GET", "/metrics", ""); !strings.Contains(m, `rialto_declared_definitions_loads_total{result="invalid"} 2`) {
		t.Error("a state that goes wrong in two ways is not counted twice")
	}
	first := s.upload("shape", returning(t, `{}`))
	s.status("/v1/targets/hook", http.StatusOK)
	if doc := s.must("GET", "/v1/functions/shape", ""); !strings.Contains(doc, `"timeout":"2s"`) {
		t.Errorf("the function that is in force: %s", doc)
	}
	if status, body := s.call("PUT", "/v1/functions/shape", `{"timeout":"1s"}`); status != http.StatusConflict {
		t.Errorf("a declared function is changed: %d %s", status, body)
	}
	if second := s.upload("shape", returning(t, `{"data":1}`)); second == first {
		t.Error("new code of a declared function is the old code")
	}

	f.write("c.yaml", "kind: Target\nname: second\ntype: webhook\nconfig: {url: \"https://example.com\", headers: {X-Token: {ref: later}}}\n")
	s.verbose("there is no secret of this name", true)
	s.must("PUT", "/v1/secrets/later", `{"value":"a token"}`)
	s.status("/v1/targets/second", http.StatusOK)
}

func TestDeclaredReload(t *testing.T) {
	f := folder{t, t.TempDir()}
	f.write("target.yaml", declaredTarget)
	o := declaredOptions(t.TempDir(), f.dir)
	o.DefinitionsPoll = time.Hour
	s, a := start(t, o)
	s.must("GET", "/v1/targets/hook", "")
	f.write("more.yaml", strings.Replace(declaredTarget, "name: hook", "name: second", 1))
	a.Reload()
	s.status("/v1/targets/second", http.StatusOK)
}

// A bridge that has definitions starts with them when the directory is wrong; one that has none does not start.
func TestDeclaredStart(t *testing.T) {
	data, f := t.TempDir(), folder{t, t.TempDir()}
	f.write("x.yaml", "kind: Target\nname: hook\ntype: nonsense\n")
	_, err := app.Start(t.Context(), declaredOptions(data, f.dir))
	if err == nil || !strings.Contains(err.Error(), "x.yaml:3: /type") {
		t.Fatalf("a first start with a wrong directory: %v", err)
	}
	f.write("x.yaml", declaredTarget)
	a, err := app.Start(t.Context(), declaredOptions(data, f.dir))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := a.Close(ctx); err != nil {
		t.Fatal(err)
	}
	f.write("x.yaml", "kind: [")
	s, _ := start(t, declaredOptions(data, f.dir))
	s.must("GET", "/v1/targets/hook", "")
	s.verbose("x.yaml:1: ", true)
}
