// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/rialto-bridge/rialto"

// levels is the table of CONTRIBUTING.md. A * stands for one folder name. A package imports only from lower levels;
// x/y may import its contract x from the same level.
var levels = []struct {
	level int
	paths string
}{
	{6, "cmd/rialto"},
	{5, "internal/app"},
	{4, "web/api web/console"},
	{3, "bridge mqttgw sources/* targets/* internal/store/kv internal/store/postgres internal/store/memory internal/store/files internal/store/storetest internal/store/postgres/pgtest"},
	{2, "sources targets targets/notice targets/outbound targets/wasm internal/journal"},
	{1, "rules schema internal/store internal/eventlog mqttgw/sparkplug internal/secret/token"},
	{0, "internal/event internal/fault internal/egress internal/secret mqttgw/packet migrations"},
}

// standardOnly lists the packages that import nothing but the standard library.
var standardOnly = []string{"internal/event", "internal/fault", "mqttgw/packet"}

// suites are packages that tests import from beside them.
var suites = []string{"internal/store/storetest", "internal/store/memory", "internal/store/postgres/pgtest", "sources/sourcetest"}

// testOnly are packages that the program does not have in it.
var testOnly = []string{"internal/store/storetest", "sources/sourcetest", "internal/store/postgres/pgtest"}

type goPackage struct {
	Dir, ImportPath, Name, Doc         string
	Imports, TestImports, XTestImports []string
	GoFiles                            []string
}

// folder is the path inside the module.
func (p goPackage) folder() string { return strings.TrimPrefix(p.ImportPath, module+"/") }

// levelOf returns the level of a folder and whether the table has it. A path that is written out wins over one with *.
func levelOf(folder string) (int, bool) {
	found, level := false, 0
	for _, row := range levels {
		for pattern := range strings.FieldsSeq(row.paths) {
			if pattern == folder {
				return row.level, true
			}
			if ok, _ := path.Match(pattern, folder); ok {
				found, level = true, row.level
			}
		}
	}
	return level, found
}

// root is the folder of go.mod.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above this package")
		}
		dir = filepath.Dir(dir)
	}
}

func packages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=Dir,ImportPath,Name,Doc,Imports,TestImports,XTestImports,GoFiles", "./...")
	cmd.Dir = root(t)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, stderr.Bytes())
	}
	var all []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// forbidden says why the code of from may not import to; "" if it may.
func forbidden(from, to string) string {
	a, ok := levelOf(from)
	if !ok {
		return fmt.Sprintf("%s is not in the table of levels", from)
	}
	b, ok := levelOf(to)
	switch {
	case !ok:
		return fmt.Sprintf("%s is not in the table of levels", to)
	case b < a, b == a && path.Dir(from) == to:
		return ""
	case b == a:
		return fmt.Sprintf("%s and %s are both on level %d", from, to, a)
	default:
		return fmt.Sprintf("%s is on level %d, above %s on level %d", to, b, from, a)
	}
}

func TestRepositoryLayers(t *testing.T) {
	for _, p := range packages(t) {
		if _, ok := levelOf(p.folder()); !ok {
			t.Errorf("%s is not in the table of levels", p.folder())
			continue
		}
		for _, imp := range p.Imports {
			to, ours := strings.CutPrefix(imp, module+"/")
			if ours {
				if slices.Contains(testOnly, to) {
					t.Errorf("%s imports %s, which is for tests", p.folder(), to)
				}
				if why := forbidden(p.folder(), to); why != "" {
					t.Errorf("%s imports %s: %s", p.folder(), to, why)
				}
				continue
			}
			if slices.Contains(standardOnly, p.folder()) && strings.Contains(imp, ".") {
				t.Errorf("%s imports %s, and may import the standard library only", p.folder(), imp)
			}
		}
		// Tests use the real thing beside them, and never what stands above them.
		for _, imp := range slices.Concat(p.TestImports, p.XTestImports) {
			to, ours := strings.CutPrefix(imp, module+"/")
			if !ours || to == p.folder() || slices.Contains(suites, to) {
				continue
			}
			a, _ := levelOf(p.folder())
			if b, ok := levelOf(to); !ok || b > a {
				t.Errorf("a test of %s (level %d) imports %s (level %d)", p.folder(), a, to, b)
			}
		}
	}
}

func TestRepositoryLayersTable(t *testing.T) {
	for _, c := range []struct {
		from, to string
		ok       bool
	}{
		{"bridge", "internal/eventlog", true},
		{"bridge", "mqttgw", false},
		{"mqttgw", "bridge", false},
		{"mqttgw", "mqttgw/packet", true},
		{"mqttgw/packet", "mqttgw", false},
		{"targets/webhook", "targets", true},
		{"targets/webhook", "targets/outbound", true},
		{"targets/webhook", "targets/function", false},
		{"targets/outbound", "targets", true},
		{"targets", "targets/outbound", false},
		{"internal/store/kv", "internal/store", true},
		{"internal/store", "internal/store/kv", false},
		{"internal/event", "internal/fault", false},
		{"web/api", "internal/app", false},
		{"cmd/rialto", "internal/util", false},
		{"internal/store/kv/deeper", "internal/store", false},
	} {
		if why := forbidden(c.from, c.to); (why == "") != c.ok {
			t.Errorf("forbidden(%s, %s) = %q, want allowed = %v", c.from, c.to, why, c.ok)
		}
	}
}

func TestRepositoryFolders(t *testing.T) {
	badName := regexp.MustCompile(`^(utils?|commons?|helpers?|types|models?|misc|shared|managers?)$`)
	inFrame := strings.Fields(".ci bridge cmd docs internal migrations mqttgw rules schema sources targets web")
	walk(t, func(name string, d fs.DirEntry) {
		if !d.IsDir() || name == "." {
			return
		}
		if !strings.Contains(name, "/") && !slices.Contains(inFrame, name) {
			t.Errorf("folder %s: the frame has %s", name, strings.Join(inFrame, " "))
		}
		if badName.MatchString(path.Base(name)) && !strings.Contains(name, "testdata") && !strings.HasPrefix(name, "web/console/") {
			t.Errorf("folder %s: name it after what it is about", name)
		}
	})
	entries, err := os.ReadDir(filepath.Join(root(t), "internal"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.Contains(" app egress event eventlog fault journal secret store ", " "+e.Name()+" ") {
			t.Errorf("internal/%s has no place in the frame", e.Name())
		}
	}
}

func TestRepositoryPackageComments(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) > 0 && !strings.HasPrefix(p.Doc, "Package "+p.Name+" ") && p.Name != "main" {
			t.Errorf("%s: its package comment should start with %q, and starts with %q", p.folder(), "Package "+p.Name, p.Doc)
		}
		if p.Name == "main" && p.Doc == "" {
			t.Errorf("%s has no package comment", p.folder())
		}
	}
}

func TestRepositoryGoFiles(t *testing.T) {
	const licence = "// SPDX-License-Identifier: Apache-2.0\n"
	// Written apart, so that this file does not hold what it looks for.
	unfinished := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b|\bt\.Sk` + `ip(Now|f)?\(|\bb\.Sk` + `ip(Now|f)?\(`)
	nap := []byte("time.Sl" + "eep(")
	walk(t, func(name string, d fs.DirEntry) {
		if d.IsDir() || !strings.HasSuffix(name, ".go") || strings.Contains(name, "testdata/") {
			return
		}
		src := read(t, name)
		if !bytes.HasPrefix(src, []byte(licence)) {
			t.Errorf("%s does not start with its licence line", name)
		}
		if m := unfinished.Find(src); m != nil {
			t.Errorf("%s holds %s", name, m)
		}
		// Inside a synctest bubble a nap takes no time.
		if strings.HasSuffix(name, "_test.go") && bytes.Contains(src, nap) && !bytes.Contains(src, []byte(`"testing/synctest"`)) {
			t.Errorf("%s sleeps: wait for the condition, or inject the clock", name)
		}
	})
}

// The tree speaks of the project alone: no folders of a workplace, no registries, no tools that wrote it.
func TestRepositoryWords(t *testing.T) {
	words := regexp.MustCompile(`(?i)/wo` + `rk/(main|shared)|/tmp/ri` + `alto|\.\./sha` + `red/|proxy\.gol` + `ang\.org|registry\.npm` +
		`js\.org|deb\.deb` + `ian\.org|\banth` + `ropic\b|\bclau` + `de\b|\bchat` + `gpt\b|\bcop` + `ilot\b|language mo` + `del|\bA` + `I assistant`)
	walk(t, func(name string, d fs.DirEntry) {
		if d.IsDir() || strings.HasSuffix(name, ".sum") || strings.Contains(name, "package-lock") {
			return
		}
		if m := words.Find(read(t, name)); m != nil {
			t.Errorf("%s holds %q, which does not belong here", name, m)
		}
	})
}

// A link in a page leads to a file of the tree.
func TestRepositoryLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	fenced := regexp.MustCompile("(?s)\n```.*?\n```|`[^`\n]*`")
	walk(t, func(name string, d fs.DirEntry) {
		if d.IsDir() || !strings.HasSuffix(name, ".md") || strings.Contains(name, "testdata/") {
			return
		}
		for _, m := range link.FindAllSubmatch(fenced.ReplaceAll(read(t, name), nil), -1) {
			to := path.Join(path.Dir(name), string(m[1]))
			if _, err := os.Stat(filepath.Join(root(t), filepath.FromSlash(to))); err != nil {
				t.Errorf("%s links to %s, which is not there", name, m[1])
			}
		}
	})
}

func TestRepositoryModule(t *testing.T) {
	mod := string(read(t, "go.mod"))
	for _, line := range []string{"module " + module, "ignore ./web/console/node_modules"} {
		if !strings.Contains("\n"+mod, "\n"+line+"\n") {
			t.Errorf("go.mod has no line %q", line)
		}
	}
	if strings.Contains(mod, "\nreplace ") {
		t.Error("go.mod replaces a module: nobody could go install the command")
	}
	for _, name := range []string{"github.com/hamba/avro", "github.com/mochi-mqtt/server"} {
		if strings.Contains(mod, name) {
			t.Errorf("go.mod requires %s, which has known holes", name)
		}
	}
	if !strings.Contains(string(read(t, ".ci/run")), "\nexec make test\n") {
		t.Error(".ci/run is not `make test`")
	}
}

// walk calls fn for every file and folder of the tree that is, or could be, committed. Names are relative to the root.
func walk(t *testing.T, fn func(name string, d fs.DirEntry)) {
	t.Helper()
	leaveOut := strings.Fields(".git bin rialto rialto-data .tools node_modules dist")
	err := fs.WalkDir(os.DirFS(root(t)), ".", func(name string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed while we looked
		}
		if err != nil {
			return err
		}
		if slices.Contains(leaveOut, d.Name()) && name != "cmd/rialto" {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		fn(name, d)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root(t), filepath.FromSlash(name)))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return b
}
