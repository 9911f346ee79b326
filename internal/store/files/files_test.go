// SPDX-License-Identifier: Apache-2.0

package files_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/store/files"
)

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

const twoRules = `# two rules

kind: Rule
name: a
pattern:
  type:
    - com.acme.x
  data:
    "odd/key": [1]
---
# and the other
kind: Rule
bus: devices
name: b
targets: [{target: one},
  {target: two}]
`

func TestPlaces(t *testing.T) {
	for _, c := range []struct {
		text    string
		doc     int
		pointer string
		line    int
	}{
		{twoRules, 0, "", 3},
		{twoRules, 0, "/name", 4},
		{twoRules, 0, "/pattern/type/0", 7},
		{twoRules, 0, "/pattern/data/odd~1key/0", 9},
		{twoRules, 0, "/pattern/none/here", 5},
		{twoRules, 1, "", 12},
		{twoRules, 1, "/targets/0/target", 15},
		{twoRules, 1, "/targets/1/target", 16},
		{"--- {kind: Bus, name: a}\n--- {kind: Bus,\n name: b}\n", 1, "/name", 3},
		{"\n\n{\"kind\": \"Bus\",\n \"name\": \"a\"}\n\n{\"kind\": \"Bus\",\n\n \"name\": \"b\"}", 0, "/name", 4},
		{"\n\n{\"kind\": \"Bus\",\n \"name\": \"a\"}\n\n{\"kind\": \"Bus\",\n\n \"name\": \"b\"}", 1, "/name", 8},
		{"[\n{\"kind\":\"Bus\",\"name\":\"a\"},\n{\"kind\":\"Bus\",\n\"name\":\"b\"}]", 1, "", 3},
		{"[\n{\"kind\":\"Bus\",\"name\":\"a\"},\n{\"kind\":\"Bus\",\n\"name\":\"b\"}]", 1, "/name", 4},
		{"- kind: Bus\n  name: a\n- kind: Bus\n  name: b\n", 1, "/name", 4},
	} {
		docs, err := files.Parse("f", []byte(c.text))
		if err != nil || len(docs) <= c.doc {
			t.Fatalf("Parse(%q) = %d documents, %v", c.text, len(docs), err)
		}
		if got := docs[c.doc].LineOf(c.pointer); got != c.line {
			t.Errorf("document %d of %q: %s is on line %d, want %d", c.doc, c.text, c.pointer, got, c.line)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"kind: Bus\nname: a\n---\nkind: [\n", "f:4: did not find expected node content"},
		{"kind: Bus\nname: a\n---\n\nname: b\nname: c\n", `f:6: key "name" already set in map`},
		{"kind: Bus\n---\nkind: Bus\nname: 7\n", "f:1 (document 1): /name: is missing\nf:4 (document 2): /name: is not a text; write it in quotes"},
		{"name: a\n", "f:1: /kind: is missing"},
		{"17\n", "f:1: a definition is an object with kind and name"},
		{"{\"kind\":\"Bus\",\n\"name\":\"a\"}\n{\"kind\":", "f:3: unexpected EOF"},
		{"kind: Bus\nname: a\n... \nkind: Bus\nname: a\n... x\n", "f:5: did not find expected <document start>"},
	} {
		_, err := files.Parse("f", []byte(c.text))
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.text, err, c.want)
		}
	}
}

func TestReadFolder(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "b.yml"), "kind: Bus\nname: b\n")
	write(t, filepath.Join(dir, "a", "z.json"), `{"kind":"Bus","name":"z"}`)
	write(t, filepath.Join(dir, "a", "rules.yaml"), twoRules)
	write(t, filepath.Join(dir, "README.md"), "kind: Bus\nname: no\n")
	write(t, filepath.Join(dir, ".git", "x.yaml"), "kind: Bus\nname: no\n")
	write(t, filepath.Join(dir, ".hidden.yaml"), "kind: Bus\nname: no\n")
	// As Kubernetes mounts a ConfigMap.
	write(t, filepath.Join(dir, "..2027_01_02", "mounted.yaml"), "kind: Bus\nname: mounted\n")
	for link, to := range map[string]string{"..data": "..2027_01_02", "mounted.yaml": "..data/mounted.yaml", "loop.yaml": "."} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	docs, err := files.Read([]string{dir}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range docs {
		place, _ := filepath.Rel(dir, d.Place())
		got = append(got, d.Head.String()+" "+place)
	}
	want := []string{"Rule/default/a a/rules.yaml:3 (document 1)", "Rule/devices/b a/rules.yaml:12 (document 2)", "Bus/z a/z.json:1", "Bus/b b.yml:1", "Bus/mounted mounted.yaml:1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestReadRefuses(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "x.yaml")
	write(t, outside, "kind: Bus\nname: x\n")
	link := filepath.Join(dir, "link", "x.yaml")
	write(t, filepath.Join(dir, "link", "y.yaml"), "kind: Bus\nname: other\n")
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(dir, "pipe", "x.yaml")
	write(t, filepath.Join(dir, "pipe", "y.yaml"), "")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	large := filepath.Join(dir, "large", "x.yaml")
	write(t, large, strings.Repeat("#", files.MaxBytes+1))
	twice := filepath.Join(dir, "twice")
	write(t, filepath.Join(twice, "a.yaml"), "kind: Rule\nname: x\n---\nkind: Rule\nname: x\nbus: other\n")
	write(t, filepath.Join(twice, "b.yaml"), "\nkind: Rule\nname: x\nbus: default\n")
	for name, want := range map[string]string{
		filepath.Dir(link):         link + ": ",
		filepath.Dir(pipe):         pipe + " is not a regular file",
		filepath.Dir(large):        "larger than 16 MiB",
		twice:                      filepath.Join(twice, "b.yaml") + ":3: /name: Rule/default/x is at " + filepath.Join(twice, "a.yaml") + ":1 (document 1) already",
		filepath.Join(dir, "none"): "no such file",
	} {
		docs, err := files.Read([]string{name}, nil)
		if err == nil || !strings.Contains(err.Error(), want) || docs != nil {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	// A file that is named itself may be anywhere.
	if docs, err := files.Read([]string{link, "-"}, strings.NewReader("kind: Bus\nname: other\n")); err != nil || len(docs) != 2 || docs[1].Place() != "stdin:1" {
		t.Errorf("%v, %v", docs, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(twoRules)
	f.Add(`[{"kind":"Bus","name":"a"}] {"kind":"Rule","name":"b","bus":"c"}`)
	f.Add("--- {kind: Bus, name: x}\n...\n--- 7\n")
	f.Add("{\n\t\"kind\": \"Bus\",\n\t\"name\": \"a\"\n}\n")
	f.Fuzz(func(t *testing.T, text string) {
		lines := strings.Count(text, "\n") + 1
		docs, err := files.Parse("f", []byte(text))
		var e *files.Error
		if err != nil && (!errors.As(err, &e) || e.Line < 1 || e.Line > lines+1 || e.File != "f") {
			t.Fatalf("%q: error %v", text, err)
		}
		for _, d := range docs {
			if d.Line < 1 || d.Line > lines || !json.Valid(d.Raw) || d.Head.Kind == "" || d.Head.Name == "" {
				t.Fatalf("%q: %+v", text, d)
			}
			again, err := files.Parse("f", d.Raw)
			if err != nil || len(again) != 1 || again[0].Head != d.Head {
				t.Fatalf("%s reads back as %s, %v", d.Raw, fmt.Sprint(again), err)
			}
		}
	})
}
