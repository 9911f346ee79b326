// SPDX-License-Identifier: Apache-2.0

package secret_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rialto-bridge/rialto/internal/secret"
)

const hidden = "hunter2-hunter2"

func TestValueNeverPrints(t *testing.T) {
	v := secret.NewValue(hidden)
	var log bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		slog.New(h).Info("x", "v", v, "p", &v, "s", struct{ V secret.Value }{v}, "l", []secret.Value{v})
	}
	asJSON, err := json.Marshal(map[string]any{"v": v, "p": &v, "s": struct{ V secret.Value }{v}})
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	type holder struct{ inner struct{ v secret.Value } } // whose fields fmt reads without asking
	var h holder
	h.inner.v = v
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%T"} {
		fmt.Fprintf(&all, verb+" "+verb+" "+verb+" "+verb+"\n", v, &v, struct{ V secret.Value }{v}, h)
	}
	text := log.String() + string(asJSON) + all.String() + v.String() + fmt.Errorf("wrap: %v", v).Error()
	if strings.Contains(text, hidden) || strings.Contains(text, fmt.Sprintf("%x", hidden)) {
		t.Errorf("a secret was printed:\n%s", text)
	}
	if v.Reveal() != hidden || v.IsZero() || !(secret.Value{}).IsZero() {
		t.Error("Reveal does not return the secret")
	}
}

func TestSource(t *testing.T) {
	for _, c := range []struct {
		doc  string
		ok   bool
		text string // of String
	}{
		{`{"ref": "env:HOOK"}`, true, "env:HOOK"},
		{`{"ref": "file:/run/secrets/hook"}`, true, "file:/run/secrets/hook"},
		{`{"value": "` + hidden + `"}`, true, "[redacted]"},
		{`{}`, false, ""},
		{`{"ref": "env:A", "value": "` + hidden + `"}`, false, ""},
		{`{"ref": ""}`, false, ""},
		{`{"ref": "hook"}`, true, "hook"},
		{`{"ref": "Hook"}`, false, ""},
		{`{"ref": "-hook"}`, false, ""},
		{`{"ref": "vault:` + hidden + `"}`, false, ""},
		{`{"ref": "env:1A"}`, false, ""},
		{`{"ref": "env:A B"}`, false, ""},
		{`{"ref": "env:"}`, false, ""},
		{`{"ref": "file:secrets/hook"}`, false, ""},
		{`{"ref": "file:"}`, false, ""},
		{`{"ref": "file:/a\u0000b"}`, false, ""},
		{`{"ref": 7}`, false, ""},
		{`{"value": ""}`, false, ""},
		{`{"value": "[redacted]"}`, false, ""},
		{`{"value": "` + strings.Repeat("x", secret.MaxSize+1) + `"}`, false, ""},
		{`{"value": "a", "note": "` + hidden + `"}`, false, ""},
		{`"` + hidden + `"`, false, ""},
		{`["` + hidden + `"]`, false, ""},
	} {
		var s secret.Source
		err := json.Unmarshal([]byte(c.doc), &s)
		if (err == nil) != c.ok || c.ok && s.String() != c.text {
			t.Errorf("%.60s: %v, %v, want accepted = %v, %s", c.doc, s, err, c.ok, c.text)
		}
		if err != nil && strings.Contains(err.Error(), hidden) {
			t.Errorf("%.60s: the error repeats the secret: %v", c.doc, err)
		}
		if strings.Contains(fmt.Sprintf("%v %+v %#v", s, s, s), hidden) {
			t.Errorf("%.60s: the source prints its secret", c.doc)
		}
	}
}

func TestSourceResolve(t *testing.T) {
	resolve := func(ref string) (string, error) {
		if ref == "env:HOOK" {
			return hidden, nil
		}
		return "", errors.New("not set")
	}
	for doc, want := range map[string]string{`{"ref": "env:HOOK"}`: hidden, `{"value": "other"}`: "other", `{"ref": "env:NONE"}`: ""} {
		var s secret.Source
		if err := json.Unmarshal([]byte(doc), &s); err != nil {
			t.Fatal(err)
		}
		v, err := s.Resolve(resolve)
		if (err == nil) != (want != "") || v.Reveal() != want {
			t.Errorf("%s resolves to %q, %v", doc, v.Reveal(), err)
		}
	}
}

func TestResolve(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return "file:" + p
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOOK", hidden)
	t.Setenv("EMPTY", "")
	t.Setenv("LONG", strings.Repeat("x", secret.MaxSize+1))
	for _, c := range []struct {
		ref, want, why string
	}{
		{"env:HOOK", hidden, ""},
		{"env:NO_SUCH_VARIABLE_HERE", "", "is not set"},
		{"env:EMPTY", "", "is not set"},
		{"env:LONG", "", "longer than"},
		{write("plain", hidden), hidden, ""},
		{write("newline", hidden+"\n"), hidden, ""},
		{write("crlf", hidden+"\r\n"), hidden, ""},
		{write("two", hidden+"\n\n"), hidden + "\n", ""},
		{write("empty", "\n"), "", "is not set"},
		{write("largest", strings.Repeat("x", secret.MaxSize)+"\n"), strings.Repeat("x", secret.MaxSize), ""},
		{write("large", strings.Repeat("x", secret.MaxSize+1)), "", "longer than"},
		{write("huge", strings.Repeat("x", 1<<20)), "", "longer than"},
		{"file:" + filepath.Join(dir, "none"), "", "no such file"},
		{"file:" + dir, "", "not a regular file"},
		{"file:" + pipe, "", "not a regular file"}, // and does not wait for a writer
		{"file:/dev/zero", "", "not a regular file"},
		{"file:relative", "", "absolute"},
		{"hook", "", "name of a Secret"},
	} {
		got, err := secret.Resolver{}.Resolve(c.ref)
		if got != c.want || (err == nil) != (c.why == "") || err != nil && !strings.Contains(err.Error(), c.why) {
			t.Errorf("Resolve(%s) = %d bytes, %v, want %d bytes, %q", c.ref, len(got), err, len(c.want), c.why)
		}
		if err != nil && strings.Contains(err.Error(), "xxx") {
			t.Errorf("Resolve(%s): the error repeats content", c.ref)
		}
	}
}

// What is the bridge's own is refused by whatever way somebody comes to it.
func TestResolveOwn(t *testing.T) {
	data, beside := t.TempDir(), t.TempDir()
	file := func(elem ...string) string {
		name := filepath.Join(elem...)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(hidden), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	link := func(to string) string {
		name := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(to, name); err != nil {
			t.Fatal(err)
		}
		return name
	}
	admin, deep, key, other := file(data, "admin.key"), file(data, "a", "b"), file(beside, "seal.key"), file(beside, "other")
	t.Setenv("RIALTO_SECRET_KEY", hidden)
	r := secret.Resolver{Own: []string{link(data), key, filepath.Join(beside, "none")}}
	for _, ref := range []string{"env:RIALTO_SECRET_KEY", "file:" + admin, "file:" + deep, "file:" + key, "file:" + link(admin), "file:" + filepath.Join(link(data), "a", "b"),
		"file:" + filepath.Join(beside, "..", filepath.Base(data), "admin.key"), "file:/proc/self/environ", "file:" + link("/proc") + "/self/environ"} {
		got, err := r.Resolve(ref)
		if err == nil || got != "" || !strings.Contains(err.Error(), ref) || !strings.Contains(err.Error(), "the bridge's own") {
			t.Errorf("Resolve(%s) = %d bytes, %v", ref, len(got), err)
		}
	}
	for _, name := range []string{other, link(other)} {
		if got, err := r.Resolve("file:" + name); err != nil || got != hidden {
			t.Errorf("Resolve(file:%s) = %d bytes, %v", name, len(got), err)
		}
	}
	if err := secret.CheckRef("env:RIALTO_SECRET_KEY"); err == nil {
		t.Error("a variable of the bridge can be written")
	}
}

func TestRedactAndRestore(t *testing.T) {
	for _, c := range []struct{ doc, shown string }{
		{`{"url": "x", "n": 12345678901234567890}`, `{"url": "x", "n": 12345678901234567890}`},
		{`{"secret": {"value": "hunter2"}, "url": "a<b"}`, `{"secret":{"value":"[redacted]"},"url":"a<b"}`},
		{`{"secret": [{"ref": "env:A"}, {"value": "hunter2"}], "n": 1.50}`, `{"n":1.50,"secret":[{"ref":"env:A"},{"value":"[redacted]"}]}`},
		{`{"secret": [{"value": "hunter2", "until": "2027-03-01T12:00:00Z"}]}`, `{"secret":[{"until":"2027-03-01T12:00:00Z","value":"[redacted]"}]}`},
		{`{"headers": {"A": {"value": "hunter2"}, "B": "b"}}`, `{"headers":{"A":{"value":"[redacted]"},"B":"b"}}`},
		{`{"value": 7, "other": {"value": "x", "unit": "C"}}`, `{"value": 7, "other": {"value": "x", "unit": "C"}}`},
		{`{"secret": {"value": "hunter2"`, `null`},
		{`{"secret": {"value": "hunter2"}} {"value": "hunter2"}`, `null`},
	} {
		shown := secret.Redact(json.RawMessage(c.doc))
		if string(shown) != c.shown {
			t.Errorf("Redact(%s) = %s, want %s", c.doc, shown, c.shown)
		}
		if again := secret.Redact(shown); string(again) != string(shown) {
			t.Errorf("Redact(%s) = %s", shown, again)
		}
		if c.shown == "null" {
			continue
		}
		back, err := secret.Restore(shown, json.RawMessage(c.doc))
		if err != nil || !sameJSON(t, back, json.RawMessage(c.doc)) {
			t.Errorf("Restore(%s) = %s, %v, want %s", shown, back, err, c.doc)
		}
	}
}

func TestRestoreTakesFromTheSamePlaceOnly(t *testing.T) {
	stored := json.RawMessage(`{"secret": {"value": "hunter2"}, "list": [{"value": "one"}]}`)
	for doc, want := range map[string]string{
		`{"secret": {"value": "new"}}`:                              `{"secret": {"value": "new"}}`,
		`{"secret": {"value": "[redacted]"}}`:                       `{"secret":{"value":"hunter2"}}`,
		`{"other": {"value": "[redacted]"}}`:                        `{"other": {"value": "[redacted]"}}`,
		`{"list": [{"value": "[redacted]"}]}`:                       `{"list":[{"value":"one"}]}`,
		`{"list": [{"value":"new"}, {"value": "[redacted]"}]}`:      `{"list": [{"value":"new"}, {"value": "[redacted]"}]}`,
		`{"list": [{"value": "[redacted]"}, {"value":"new"}]}`:      `{"list": [{"value": "[redacted]"}, {"value":"new"}]}`,
		`{"secret": {"value": {"value": "[redacted]"}}}`:            `{"secret": {"value": {"value": "[redacted]"}}}`,
		`{"list": {"value": "[redacted]"}, "secret": {"ref": "x"}}`: `{"list": {"value": "[redacted]"}, "secret": {"ref": "x"}}`,
	} {
		got, err := secret.Restore(json.RawMessage(doc), stored)
		if err != nil || string(got) != want {
			t.Errorf("Restore(%s) = %s, %v, want %s", doc, got, err, want)
		}
	}
	if _, err := secret.Restore(json.RawMessage(`{`), stored); err == nil {
		t.Error("Restore accepts what is not JSON")
	}
	if _, err := secret.Restore(json.RawMessage(`{}`), json.RawMessage(`{`)); err == nil {
		t.Error("Restore accepts a stored document that is not JSON")
	}
}

func sameJSON(t *testing.T, a, b json.RawMessage) bool {
	t.Helper()
	norm := func(m json.RawMessage) string {
		var v any
		if err := json.Unmarshal(m, &v); err != nil {
			t.Fatal(err)
		}
		out, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	return norm(a) == norm(b)
}

func FuzzRedact(f *testing.F) {
	f.Add([]byte(`{"secret": [{"ref": "env:A"}, {"value": "hunter2"}]}`))
	f.Add([]byte(`{"value": {"value": "x"}}`))
	f.Add([]byte(`[{"value":"a"},{"value":"b","c":1}]`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		shown := secret.Redact(doc)
		if !json.Valid(shown) {
			t.Fatalf("Redact(%q) = %q", doc, shown)
		}
		if string(shown) == "null" {
			return
		}
		back, err := secret.Restore(shown, doc)
		if err != nil {
			t.Fatalf("Restore(%q): %v", shown, err)
		}
		// There and back again: nothing but the secrets is touched, and they come back.
		if string(secret.Redact(back)) != string(secret.Redact(shown)) && !sameJSON(t, secret.Redact(back), shown) {
			t.Fatalf("%q, shown as %q, came back as %q", doc, shown, back)
		}
	})
}
