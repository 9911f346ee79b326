// SPDX-License-Identifier: Apache-2.0

package wasm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/sys"
)

// instance is a module with a memory of its own. It belongs to one call at a time.
type instance struct {
	module api.Module
	memory *arena
	from   *snapshot // what it can be set back to; nil if it cannot
	box    *sandbox
	alloc  api.Function
	handle api.Function
	idleAt time.Time // since when nobody needs it
}

// startWithin is how long a module may take to begin, which comes before the first event and is not part of it.
const startWithin = 5 * time.Second

// sandboxed is how instances of a program are made, with what they see of the world.
func sandboxed(box *sandbox) wazero.ModuleConfig {
	return wazero.NewModuleConfig().WithName("").WithStartFunctions().WithRandSource(box).
		WithWalltime(box.walltime, sys.ClockResolution(time.Microsecond)).WithNanotime(box.nanotime, sys.ClockResolution(time.Millisecond))
}

// start makes an instance of a program for the ABI handle. With from, it is what another was when that was taken.
func (p *program) start(ctx context.Context, from *snapshot) (*instance, error) {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	// Chance begins with nothing of the event here: all instances begin alike.
	i := &instance{box: &sandbox{}}
	i.box.begin("start", time.Unix(0, 0), maxStderr, nil)
	var err error
	if ctx, i.memory, err = withArena(ctx, p.most); err != nil {
		return nil, err
	}
	if i.module, err = p.runtime.InstantiateModule(ctx, p.compiled, sandboxed(i.box).WithStdout(&i.box.stderr).WithStderr(&i.box.stderr)); err != nil {
		i.memory.Free()
		return nil, p.explain(err, i.box)
	}
	i.alloc, i.handle = i.module.ExportedFunction(exportAlloc), i.module.ExportedFunction(exportHandle)
	if initialize := i.module.ExportedFunction(exportInitialize); from == nil && initialize != nil {
		_, err = initialize.Call(ctx)
	} else if from != nil {
		err = i.adopt(from, p.globals)
	}
	if err != nil {
		return nil, errors.Join(p.explain(err, i.box), i.close())
	}
	return i, nil
}

// explain says why a module has failed, for people.
func (p *program) explain(err error, box *sandbox) error {
	text, _, _ := bytes.Cut([]byte(err.Error()), []byte("\nwasm stack trace"))
	var exit *sys.ExitError
	if errors.As(err, &exit) {
		text = fmt.Appendf(nil, "exit code %d", exit.ExitCode())
	}
	if said := presentable(string(box.stderr.b)); said != "" {
		text = append(append(text, ": "...), said...)
	}
	return errors.New(presentable(string(text)))
}

// take copies the state of an instance, which can be set back to it from then on.
func (i *instance) take(globals []uint32) (*snapshot, error) {
	memory := i.module.Memory()
	view, _ := memory.Read(0, memory.Size())
	s, err := newSnapshot(view)
	if err != nil {
		return nil, err
	}
	if err := i.memory.adopt(view, s); err != nil {
		s.close()
		return nil, err
	}
	for _, g := range globals {
		s.globals = append(s.globals, i.module.ExportedGlobal(globalName(g)).Get())
	}
	i.from = s
	return s, nil
}

// adopt makes a new instance what another was.
func (i *instance) adopt(s *snapshot, globals []uint32) error {
	memory := i.module.Memory()
	if missing := len(s.memory) - int(memory.Size()); missing > 0 {
		memory.Grow(uint32(missing / pageSize)) //nolint:gosec // at most MaxMemory
	}
	view, _ := memory.Read(0, memory.Size())
	if len(view) != len(s.memory) {
		return errors.New("the memory of a new instance has another size than that of the one before")
	}
	if err := i.memory.adopt(view, s); err != nil {
		return err
	}
	i.setGlobals(s, globals)
	i.from = s
	return nil
}

// restore sets an instance back. It cannot where memory has grown, since memory does not shrink.
func (i *instance) restore(globals []uint32) bool {
	view, _ := i.module.Memory().Read(0, i.module.Memory().Size())
	if len(view) != len(i.from.memory) {
		return false
	}
	i.memory.reset(view, i.from)
	i.setGlobals(i.from, globals)
	return true
}

func (i *instance) setGlobals(s *snapshot, globals []uint32) {
	for k, g := range globals {
		if global, ok := i.module.ExportedGlobal(globalName(g)).(api.MutableGlobal); ok && global.Get() != s.globals[k] {
			global.Set(s.globals[k])
		}
	}
}

// call hands an event to the function and returns a copy of its result.
func (i *instance) call(ctx context.Context, ev []byte, maxOutput int) ([]byte, error) {
	stack := [2]uint64{api.EncodeU32(uint32(len(ev)))} //nolint:gosec // an event is far smaller
	if err := i.alloc.CallWithStack(ctx, stack[:]); err != nil {
		return nil, err
	}
	at := api.DecodeU32(stack[0])
	if !i.module.Memory().Write(at, ev) {
		return nil, fmt.Errorf("alloc(%d) returned %d, where there is not as much memory", len(ev), at)
	}
	stack = [2]uint64{uint64(at), uint64(len(ev))}
	if err := i.handle.CallWithStack(ctx, stack[:]); err != nil {
		return nil, err
	}
	at, n := uint32(stack[0]>>32), uint32(stack[0])
	if int64(n) > int64(maxOutput) {
		return nil, errOutput
	}
	out, ok := i.module.Memory().Read(at, n)
	if !ok {
		return nil, fmt.Errorf("handle returned %d bytes at %d, where there is not as much memory", n, at)
	}
	return bytes.Clone(out), nil
}

func (i *instance) close() error {
	err := i.module.Close(context.Background())
	i.memory.Free()
	return err
}

// command runs a module of the ABI command, once.
func (p *program) command(ctx context.Context, box *sandbox, ev []byte) (out []byte, memory uint32, err error) {
	module, err := p.runtime.InstantiateModule(ctx, p.compiled, sandboxed(box).
		WithStdin(bytes.NewReader(ev)).WithStdout(&box.stdout).WithStderr(&box.stderr))
	if err != nil {
		return nil, 0, err
	}
	_, err = module.ExportedFunction(exportStart).Call(ctx)
	memory = module.Memory().Size()
	var exit *sys.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 0 {
		err = nil
	}
	return box.stdout.b, memory, errors.Join(err, module.Close(context.Background()))
}
