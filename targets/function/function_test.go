// SPDX-License-Identifier: Apache-2.0

package function_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/internal/store/memory"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/function"
	"github.com/rialto-bridge/rialto/targets/targettest"
	"github.com/rialto-bridge/rialto/targets/wasm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// returning is a module whose result is always the same.
func returning(t *testing.T, result string) []byte {
	t.Helper()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "f.wat"), filepath.Join(dir, "f.wasm")
	text := fmt.Sprintf(`(module (memory (export "memory") 3) (data (i32.const 16) %q)
	  (func (export "alloc") (param i32) (result i32) (i32.const 65536))
	  (func (export "handle") (param i32 i32) (result i64) (i64.or (i64.shl (i64.const 16) (i64.const 32)) (i64.const %d))))`, result, len(result))
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
	return code
}

// world is a library with what it stands on.
type world struct {
	*function.Library
	blobs *memory.Blobs
	now   time.Time
	dir   string
}

func library(t *testing.T) *world {
	t.Helper()
	rt := wasm.New(wasm.Options{})
	t.Cleanup(rt.Close)
	w := &world{blobs: new(memory.Blobs), now: time.Now(), dir: t.TempDir()}
	w.Library = function.NewLibrary(function.Options{Runtime: rt, Blobs: w.blobs, Dir: w.dir, Now: func() time.Time { return w.now }})
	return w
}

// put uploads code and puts it in force, over old; it returns the document.
func (w *world) put(t *testing.T, name string, code, old []byte) []byte {
	t.Helper()
	doc, err := w.Upload(t.Context(), name, code, old)
	if err == nil {
		doc, err = w.Normalize(t.Context(), doc, old)
	}
	if err != nil {
		t.Fatal(err)
	}
	d, err := function.ParseDefinition(doc)
	if err != nil {
		t.Fatal(err)
	}
	w.Set(d)
	return doc
}

// deliver makes an attempt, and returns what was published.
func deliver(t *testing.T, w *world, config string, ev event.Event, emit error) (published []event.Event, bus string, err error) {
	t.Helper()
	kinds := targets.NewCatalog(function.TargetKind(w.Library, targettest.Guard().CheckURL))
	d, err := targets.ParseDefinition([]byte(`{"kind":"Target","name":"f","type":"function","config":`+config+`}`), kinds)
	if err != nil {
		t.Fatal(err)
	}
	target, err := kinds.New(d, targets.Env{Emit: func(_ context.Context, to string, evs ...event.Event) error {
		published, bus = evs, to
		return emit
	}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = target.Deliver(t.Context(), targets.Delivery{ID: "dlv_1", Event: &ev, Bus: "orders", Attempt: 1})
	return published, bus, err
}

var said = event.Event{ID: "1", Source: "/s", Type: "said"}

func TestReplies(t *testing.T) {
	w := library(t)
	w.put(t, "f", returning(t, `{"events":[{"type":"a"},{"type":"b","id":"own","source":"/own","rialtohops":99}]}`), nil)
	for range 2 { // an attempt that is repeated is not a second reply
		evs, bus, err := deliver(t, w, `{"function":"f"}`, said, nil)
		if err != nil || bus != "orders" || len(evs) != 2 || evs[0].ID != "dlv_1-0" || evs[0].Source != "rialto/functions/f" || evs[1].ID != "own" || evs[1].Source != "/own" {
			t.Errorf("%+v on %s, %v", evs, bus, err)
		}
		for _, ev := range evs {
			if fmt.Sprint(ev.Extensions) != "[{causationid 1} {rialtohops 1}]" {
				t.Errorf("extensions %v", ev.Extensions)
			}
			if err := ev.Validate(event.Limits{}); err != nil {
				t.Error(err)
			}
		}
	}
	if _, bus, err := deliver(t, w, `{"function":"f","replyBus":"replies"}`, said, nil); err != nil || bus != "replies" {
		t.Errorf("replies on %s, %v", bus, err)
	}
	if evs, _, err := deliver(t, w, `{"function":"f","replyIds":"derived"}`, said, nil); err != nil || evs[1].ID != "dlv_1-1" || evs[1].Source != "/own" {
		t.Errorf("%+v, %v", evs, err)
	}
	for hops, permanent := range map[int32]bool{0: false, 7: false, 8: true, math.MaxInt32: true, -5: false} {
		ev := said
		ev.Extensions = []event.Attribute{{Name: targets.HopsExtension, Value: hops}}
		_, _, err := deliver(t, w, `{"function":"f"}`, ev, nil)
		var te *targets.Error
		if permanent != (errors.As(err, &te) && te.Permanent) {
			t.Errorf("after %d functions: %v", hops, err)
		}
	}
}

func TestFailures(t *testing.T) {
	w := library(t)
	for name, result := range map[string]string{"data": `{"data":1}`, "no": `{"error":"no"}`, "later": `{"error":"later","retry":true}`, "broken": `{`,
		"nothing": `{}`, "reply": `{"event":{"type":"a"}}`} {
		w.put(t, name, returning(t, result), nil)
	}
	for _, c := range []struct {
		function  string
		emit      error
		permanent bool
		said      string // "" = none
	}{
		{"nothing", nil, false, ""},
		{"data", nil, true, "data, which is for a transform"},
		{"no", nil, true, "function: no"},
		{"later", nil, false, "function: later"},
		{"broken", nil, false, "not JSON"},
		{"missing", nil, true, "there is no function missing"},
		{"reply", fault.Invalidf("/type", "is not allowed"), true, "reply to bus orders"},
		{"reply", fault.New(fault.Unfit, "does not fit its schema"), true, "reply to bus orders"},
		{"reply", fault.New(fault.Unavailable, "the log is away"), false, "reply to bus orders"},
		{"reply", errors.New("broken"), false, "internal"},
	} {
		_, _, err := deliver(t, w, `{"function":"`+c.function+`"}`, said, c.emit)
		var te *targets.Error
		if c.said == "" && err != nil || c.said != "" && (!errors.As(err, &te) || te.Permanent != c.permanent || !strings.Contains(err.Error(), c.said)) {
			t.Errorf("%s: %v, want %s, permanent = %v", c.function, err, c.said, c.permanent)
		}
	}
}

// A version that a transform is pinned to fails for good, one that is not may be mended.
func TestTransform(t *testing.T) {
	w := library(t)
	doc := w.put(t, "f", returning(t, `{`), nil)
	broken := w.Digest("f")
	var te *targets.Error
	if _, _, err := w.Transform(t.Context(), "f", broken, "dlv_1", &said); !errors.As(err, &te) || !te.Permanent {
		t.Errorf("a pinned version that fails: %v", err)
	}
	if _, _, err := w.Transform(t.Context(), "f", "", "dlv_1", &said); !errors.As(err, &te) || te.Permanent {
		t.Errorf("a version that fails: %v", err)
	}
	w.put(t, "f", returning(t, `{"data":"x","datacontenttype":"text/plain"}`), doc)
	if data, mime, err := w.Transform(t.Context(), "f", "", "dlv_1", &said); err != nil || string(data) != "x" || mime != "text/plain" {
		t.Errorf("%s, %s, %v", data, mime, err)
	}
	if _, _, err := w.Transform(t.Context(), "f", broken, "dlv_1", &said); err == nil {
		t.Error("the version before is not what it was")
	}
	w.put(t, "none", returning(t, `{}`), nil)
	if _, _, err := w.Transform(t.Context(), "none", w.Digest("none"), "dlv_1", &said); err == nil || !strings.Contains(err.Error(), "has returned no data") {
		t.Errorf("no data: %v", err)
	}
}

// Versions that are neither among the last nor in force lately go, and their code with them; what a folder has lost, or
// has damaged, comes from the store.
func TestVersions(t *testing.T) {
	w := library(t)
	var doc []byte
	var digests []string
	for i := range 8 {
		w.now = w.now.Add(3 * 24 * time.Hour)
		doc = w.put(t, "f", returning(t, fmt.Sprintf(`{"data":%d}`, i)), doc)
		digests = append(digests, w.Digest("f"))
	}
	d, err := function.ParseDefinition(doc)
	if err != nil || len(d.Versions) != 5 || d.Versions[0].Digest != digests[7] || d.Versions[4].Digest != digests[3] {
		t.Fatalf("versions %+v, %v", d.Versions, err)
	}
	pinned := 1
	if err := w.Sweep(t.Context(), []store.Document{{Raw: doc}}, []string{digests[pinned]}); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(w.dir)
	if err != nil || len(files) != 6 {
		t.Errorf("%d files are left, %v", len(files), err)
	}
	for i, digest := range digests {
		_, err := w.blobs.Get(t.Context(), strings.TrimPrefix(digest, "sha256:"))
		if (err == nil) != (i >= 3 || i == pinned) {
			t.Errorf("version %d: %v", i, err)
		}
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(w.dir, f.Name()), []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if data, _, err := w.Transform(t.Context(), "f", digests[4], "dlv_1", &said); err != nil || string(data) != "4" {
		t.Errorf("%s, %v", data, err)
	}
	if err := w.Sweep(t.Context(), []store.Document{{Raw: json.RawMessage(`{"memory":1}`)}}, nil); err == nil {
		t.Error("code is swept although a document cannot be read")
	}
}

// Code that only this process has left is in the store again when a function names it.
func TestCodeOfAnotherFunction(t *testing.T) {
	w := library(t)
	w.put(t, "f", returning(t, `{}`), nil)
	if err := w.blobs.Sweep(t.Context(), nil, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Normalize(t.Context(), fmt.Appendf(nil, `{"name":"g","code":%q}`, w.Digest("f")), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := w.blobs.Get(t.Context(), strings.TrimPrefix(w.Digest("f"), "sha256:")); err != nil {
		t.Error(err)
	}
}

// A version that nobody keeps is none, and is not remembered; one that a rule may pin, although the function keeps it no more, is.
func TestUnknownVersion(t *testing.T) {
	w := library(t)
	w.put(t, "f", returning(t, `{"data":1}`), nil)
	w.put(t, "g", returning(t, `{"data":2}`), nil)
	call, end := w.Trial(t.Context(), "test")
	defer end()
	unknown := "sha256:" + strings.Repeat("0", 64)
	var te *targets.Error
	if _, _, err := w.Transform(t.Context(), "f", unknown, "dlv_1", &said); !errors.As(err, &te) || !te.Permanent || fault.KindOf(te.Err) != fault.NotFound {
		t.Errorf("a delivery: %v", err)
	}
	if _, _, err := w.Transform(t.Context(), "f", "../f", "dlv_1", &said); !errors.As(err, &te) || fault.KindOf(te.Err) != fault.NotFound {
		t.Errorf("no digest: %v", err)
	}
	if _, _, err := call("f", unknown, &said); !errors.As(err, &te) || !te.Permanent || fault.KindOf(te.Err) != fault.NotFound {
		t.Errorf("a trial: %v", err)
	}
	for _, transform := range []func() ([]byte, string, error){
		func() ([]byte, string, error) { return w.Transform(t.Context(), "f", w.Digest("g"), "dlv_1", &said) },
		func() ([]byte, string, error) { return call("f", w.Digest("g"), &said) },
	} {
		if data, _, err := transform(); err != nil || string(data) != "2" {
			t.Errorf("a version that is there: %s, %v", data, err)
		}
	}
}

// A trial shows what a function does, and leaves no trace in it.
func TestTrial(t *testing.T) {
	w := library(t)
	w.put(t, "f", returning(t, `{"data":1}`), nil)
	call, end := w.Trial(t.Context(), "test")
	for range 3 {
		if data, mime, err := call("f", "", &said); err != nil || string(data) != "1" || mime != "application/json" {
			t.Errorf("%s, %s, %v", data, mime, err)
		}
	}
	if _, _, err := call("g", "", &said); err == nil || !strings.Contains(err.Error(), "there is no function g") {
		t.Errorf("a function that is not there: %v", err)
	}
	if s, ok := w.Status("f").(wasm.Status); !ok || s.Calls != 0 || s.Instances != 0 {
		t.Errorf("the function stands at %+v", w.Status("f"))
	}
	end()
	if _, _, err := call("f", "", &said); !errors.Is(err, wasm.ErrClosed) {
		t.Errorf("after its end: %v", err)
	}
}

func TestSizes(t *testing.T) {
	for in, want := range map[string]int64{`"1MiB"`: 1 << 20, `"64KiB"`: 64 << 10, `65537`: 65537, `"65537"`: 65537} {
		d, err := function.ParseDefinition([]byte(`{"memoryLimit":` + in + `}`))
		if err != nil || d.Settings.Memory != want {
			t.Errorf("%s is %+v, %v", in, d, err)
		}
	}
	for _, in := range []string{`"1 MiB"`, `"1mib"`, `-1`, `1.5`, `""`, `"999999999999MiB"`, `true`, `[]`, `{}`} {
		if _, err := function.ParseDefinition([]byte(`{"memoryLimit":` + in + `}`)); err == nil || !strings.Contains(err.Error(), "/memoryLimit") {
			t.Errorf("%s gives %v", in, err)
		}
	}
}

// FuzzDefinition: what is refused is about the document, and what is taken is within the bounds.
func FuzzDefinition(f *testing.F) {
	for _, s := range []string{`{}`, `{"kind":"Function","name":"a","code":"sha256:` + strings.Repeat("a", 64) + `","abi":"handle","memoryLimit":"1MiB","timeout":"1s",
		"maxOutput":1,"stateful":true,"instances":2,"versions":[{"digest":"x","size":1,"at":"2027-01-01T00:00:00Z"}],"revision":1,"status":{}}`,
		`[]`, `{"timeout":"-1s"}`, `{"labels":{"a":"b"}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := function.ParseDefinition(b)
		if err != nil {
			if fault.KindOf(err) != fault.Invalid {
				t.Errorf("%s: %v", b, err)
			}
			return
		}
		s := d.Settings
		if s.Memory < 64<<10 || s.Memory > wasm.MaxMemory || s.Timeout < wasm.MinTimeout || s.Timeout > wasm.MaxTimeout || s.MaxOutput < 1 ||
			s.MaxOutput > wasm.MaxOutput || s.Instances < 1 || s.Instances > wasm.MaxInstances {
			t.Errorf("%s: %+v", b, s)
		}
	})
}
