// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// atomic64 are the functions that need 64-bit alignment, which a field has on 32 bits only by luck; the types of sync/atomic have it.
var atomic64 = regexp.MustCompile(`^(Add|Load|Store|Swap|CompareAndSwap|And|Or)(Int|Uint)64$`)

// The code fits a processor of 32 bits: it is compiled as for linux/arm as far as the types of its own packages, with those of the
// others as they are here. To generate code for all of it takes minutes: make cross does.
func TestGateFits32Bits(t *testing.T) {
	own := listPackages(t, "arm", "-json=Dir,ImportPath,Imports,GoFiles", "./...", "math", "math/bits") // these have constants that differ
	mine := map[string]listedPackage{}
	for _, p := range own {
		mine[p.ImportPath] = p
	}
	var foreign []string
	for _, p := range own {
		for _, path := range p.Imports {
			if _, ok := mine[path]; !ok && path != "unsafe" {
				foreign = append(foreign, path)
			}
		}
	}
	slices.Sort(foreign)
	exports := map[string]string{}
	for _, p := range listPackages(t, "", slices.Concat([]string{"-export", "-json=ImportPath,Export"}, slices.Compact(foreign))...) {
		exports[p.ImportPath] = p.Export
	}
	fset := token.NewFileSet()
	others := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(exports[path])
	})
	checked := map[string]*types.Package{}
	var check func(path string) (*types.Package, error)
	check = func(path string) (*types.Package, error) {
		p, ok := mine[path]
		if !ok {
			return others.Import(path)
		}
		if done := checked[path]; done != nil {
			return done, nil
		}
		var files []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			files = append(files, f)
			ast.Inspect(f, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok && atomic64.MatchString(sel.Sel.Name) {
					if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "atomic" {
						t.Errorf("%s: atomic.%s needs an alignment that it may not have: use a type of sync/atomic", fset.Position(n.Pos()), sel.Sel.Name)
					}
				}
				return true
			})
		}
		conf := types.Config{Sizes: types.SizesFor("gc", "arm"), Importer: importFunc(check), Error: func(err error) { t.Error(err) }}
		pkg, err := conf.Check(path, fset, files, nil)
		checked[path] = pkg
		return pkg, err
	}
	for path := range mine {
		if _, err := check(path); err != nil && !errors.As(err, new(types.Error)) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if len(checked) < 20 {
		t.Errorf("only %d packages were looked at", len(checked))
	}
}

type importFunc func(path string) (*types.Package, error)

func (f importFunc) Import(path string) (*types.Package, error) { return f(path) }

type listedPackage struct {
	Dir, ImportPath, Export string
	Imports, GoFiles        []string
}

// listPackages runs go list without cgo, for another processor if arch is not "".
func listPackages(t *testing.T, arch string, args ...string) (all []listedPackage) {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir = root(t)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	if arch != "" {
		cmd.Env = append(cmd.Env, "GOARCH="+arch)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, stderr.String())
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listedPackage
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
