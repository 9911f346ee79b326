// SPDX-License-Identifier: Apache-2.0

package wasm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// program is a module that was compiled with the settings of a function. It is safe for concurrent use.
type program struct {
	abi        ABI
	runtime    wazero.Runtime
	cache      wazero.CompilationCache // nil if none is kept
	compiled   wazero.CompiledModule
	most       int      // bytes that its memory may have
	globals    []uint32 // mutable ones, by number
	resettable bool
}

// Names of what a module exports.
const (
	exportMemory     = "memory"
	exportAlloc      = "alloc"
	exportHandle     = "handle"
	exportStart      = "_start"
	exportInitialize = "_initialize"
)

// compile makes a program of code. The compiled form is kept in dir, and taken from there if it is whole; "" keeps none.
// An empty ABI is the one that the module's exports speak of. What is wrong with the code is a *fault.Error that points to
// /code.
func compile(ctx context.Context, code []byte, s Settings, dir string) (*program, error) {
	if len(code) > MaxCode {
		return nil, fault.Invalidf("/code", "has %d bytes; at most %d are allowed", len(code), MaxCode)
	}
	m, err := parseModule(code)
	if err != nil {
		return nil, fault.Invalidf("/code", "%s", err)
	}
	if m.pages > s.pages() {
		return nil, fault.Invalidf("/code", "begins with a memory of %d bytes, which is more than memoryLimit", int64(m.pages)*pageSize)
	}
	shelf := &shelf{dir: dir}
	cache, err := shelf.open()
	if err != nil {
		return nil, err
	}
	config := wazero.NewRuntimeConfig().WithMemoryLimitPages(s.pages()).WithCloseOnContextDone(true)
	if cache != nil {
		config = config.WithCompilationCache(cache)
	}
	p := &program{abi: s.ABI, most: int(s.pages()) * pageSize, globals: m.globals, resettable: m.resettable, cache: cache, runtime: wazero.NewRuntimeWithConfig(ctx, config)}
	if err := p.build(ctx, m.encode(s.pages())); err != nil {
		return nil, errors.Join(err, p.close(ctx))
	}
	return p, shelf.seal()
}

func (p *program) build(ctx context.Context, code []byte) error {
	_, err := wasi_snapshot_preview1.Instantiate(ctx, p.runtime)
	if err != nil {
		return fmt.Errorf("instantiate WASI: %w", err)
	}
	wasi := p.runtime.Module(wasi_snapshot_preview1.ModuleName).ExportedFunctionDefinitions()
	if p.compiled, err = p.runtime.CompileModule(ctx, code); err != nil {
		return fault.Invalidf("/code", "does not compile: %s", presentable(err.Error()))
	}
	var faults []fault.Detail
	for _, f := range p.compiled.ImportedFunctions() {
		if why := unknownImport(f, wasi); why != "" && len(faults) < 10 {
			faults = append(faults, fault.Detail{Pointer: "/code", Detail: why})
		}
	}
	if err := fault.Collect(faults); err != nil {
		return err
	}
	return p.checkExports()
}

// unknownImport says why a function cannot be imported.
func unknownImport(f api.FunctionDefinition, wasi map[string]api.FunctionDefinition) string {
	module, name, _ := f.Import()
	there := wasi[name]
	switch {
	case module != wasi_snapshot_preview1.ModuleName:
		return fmt.Sprintf("imports %s from %s; only %s can be imported from", presentable(name), presentable(module), wasi_snapshot_preview1.ModuleName)
	case there == nil:
		return fmt.Sprintf("imports %s, which %s does not have", presentable(name), module)
	case !slices.Equal(there.ParamTypes(), f.ParamTypes()) || !slices.Equal(there.ResultTypes(), f.ResultTypes()):
		return fmt.Sprintf("imports %s of %s with other parameters or results than it has", presentable(name), module)
	}
	return ""
}

// checkExports finds out which ABI the module speaks, or that it does not speak the one it should.
func (p *program) checkExports() error {
	functions := p.compiled.ExportedFunctions()
	if p.abi == "" {
		p.abi = ABIHandle
		if functions[exportStart] != nil {
			p.abi = ABICommand
		}
	}
	i32, i64 := api.ValueTypeI32, api.ValueTypeI64
	wanted := map[string][2][]api.ValueType{exportStart: {}}
	if p.abi == ABIHandle {
		wanted = map[string][2][]api.ValueType{exportAlloc: {{i32}, {i32}}, exportHandle: {{i32, i32}, {i64}}}
		if functions[exportInitialize] != nil {
			wanted[exportInitialize] = [2][]api.ValueType{}
		}
	}
	var faults []fault.Detail
	for name, signature := range wanted {
		f := functions[name]
		if f == nil || !slices.Equal(f.ParamTypes(), signature[0]) || !slices.Equal(f.ResultTypes(), signature[1]) {
			faults = append(faults, fault.Detail{Pointer: "/code", Detail: fmt.Sprintf("does not export %s, which the ABI %s asks for",
				describe(name, signature), p.abi)})
		}
	}
	if p.compiled.ExportedMemories()[exportMemory] == nil {
		faults = append(faults, fault.Detail{Pointer: "/code", Detail: "does not export its memory as " + exportMemory})
	}
	slices.SortFunc(faults, func(a, b fault.Detail) int { return strings.Compare(a.Detail, b.Detail) })
	return fault.Collect(faults)
}

func describe(name string, signature [2][]api.ValueType) string {
	words := func(types []api.ValueType) string {
		names := make([]string, len(types))
		for i, t := range types {
			names[i] = api.ValueTypeName(t)
		}
		return strings.Join(names, ", ")
	}
	return strings.TrimSpace("the function " + name + "(" + words(signature[0]) + ") " + words(signature[1]))
}

// try starts an instance. A command is only instantiated: it begins with an event.
func (p *program) try(ctx context.Context) error {
	if p.abi == ABIHandle {
		i, err := p.start(ctx, nil)
		if err != nil {
			return fault.Invalidf("/code", "does not start: %s", err)
		}
		return i.close()
	}
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	box := &sandbox{}
	box.begin("start", time.Unix(0, 0), maxStderr, nil)
	module, err := p.runtime.InstantiateModule(ctx, p.compiled, sandboxed(box))
	if err != nil {
		return fault.Invalidf("/code", "does not start: %s", p.explain(err, box))
	}
	return module.Close(context.WithoutCancel(ctx))
}

func (p *program) close(ctx context.Context) error {
	err := p.runtime.Close(ctx)
	if p.cache != nil { // the compiled code is the cache's
		err = errors.Join(err, p.cache.Close(ctx))
	}
	return err
}

// shelf is a folder with the compiled form of one module. The compiler's own check covers only a part of its file, and
// what is in it is run; so the folder has a sum of what it should hold, and another content is thrown away.
type shelf struct {
	dir   string
	cache wazero.CompilationCache
}

// sumFile holds the SHA-256 of the other files.
const sumFile = "sum"

func (s *shelf) open() (wazero.CompilationCache, error) {
	if s.dir == "" {
		return nil, nil
	}
	want, err := os.ReadFile(filepath.Join(s.dir, sumFile))
	if sum, serr := s.sum(); err != nil || serr != nil || sum != string(want) {
		if err := os.RemoveAll(s.dir); err != nil {
			return nil, fmt.Errorf("remove a damaged compiled form: %w", err)
		}
	}
	s.cache, err = wazero.NewCompilationCacheWithDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("open the compiled form: %w", err)
	}
	return s.cache, nil
}

// seal writes the sum, after everything else.
func (s *shelf) seal() error {
	if s.dir == "" {
		return nil
	}
	sum, err := s.sum()
	if err == nil {
		err = os.WriteFile(filepath.Join(s.dir, sumFile), []byte(sum), 0o600)
	}
	if err != nil {
		return fmt.Errorf("seal the compiled form: %w", err)
	}
	return nil
}

// sum is the SHA-256 of the names and contents of all files but sumFile.
func (s *shelf) sum() (string, error) {
	h := sha256.New()
	err := filepath.WalkDir(s.dir, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == sumFile {
			return err
		}
		b, err := os.ReadFile(name)
		fmt.Fprintf(h, "%s %d\n", d.Name(), len(b))
		h.Write(b)
		return err
	})
	return hex.EncodeToString(h.Sum(nil)), err
}
