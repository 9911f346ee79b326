// SPDX-License-Identifier: Apache-2.0

package wasm

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Options are what a Runtime is made of.
type Options struct {
	// Dir is where compiled code is kept from start to start; it can be deleted at any time that no Runtime uses it. "" keeps
	// none.
	Dir string
	// Idle is how long an instance is kept that nobody needs; 0 = a minute.
	Idle       time.Duration
	Now        func() time.Time      // nil = time.Now
	Logger     *slog.Logger          // nil = none
	Registerer prometheus.Registerer // nil = no metrics
}

// Runtime makes functions, and is the owner of what they hold. It is safe for concurrent use.
type Runtime struct {
	o         Options
	log       *slog.Logger
	compiling chan struct{} // one module at a time: compiling takes memory, and a processor for itself

	mu        sync.Mutex // guards functions and closed
	functions map[*Function]bool
	closed    bool
	drained   sync.WaitGroup // the functions

	stop context.CancelFunc
	done chan struct{}
}

// New makes a runtime. Close ends it.
func New(o Options) *Runtime {
	if o.Idle == 0 {
		o.Idle = time.Minute
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	rt := &Runtime{o: o, log: o.Logger.With("component", "functions"), compiling: make(chan struct{}, 1),
		functions: make(map[*Function]bool), done: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	rt.stop = cancel
	go rt.shrink(ctx)
	if o.Registerer != nil {
		o.Registerer.MustRegister(rt)
	}
	return rt
}

// Function makes a function and opens nothing yet. Close ends it, or the runtime's Close does.
func (rt *Runtime) Function(s Spec) *Function {
	f := newFunction(rt, s)
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if f.closed = rt.closed; !f.closed {
		rt.functions[f] = true
		rt.drained.Add(1)
	}
	return f
}

// Check compiles code and starts an instance of it, and returns the ABI that it speaks, which s may leave open. What is
// wrong with the code is a *fault.Error that points to /code. It blocks for as long as that takes: about half a second
// for each MB of code.
func (rt *Runtime) Check(ctx context.Context, code []byte, digest string, s Settings) (ABI, error) {
	p, err := rt.compile(ctx, code, digest, s)
	if err != nil {
		return "", err
	}
	err = p.try(ctx)
	if cerr := p.close(context.WithoutCancel(ctx)); err == nil {
		err = cerr
	}
	return p.abi, err
}

// Forget removes what is kept of compiled code.
func (rt *Runtime) Forget(digest string) error {
	if rt.o.Dir == "" {
		return nil
	}
	if err := os.RemoveAll(filepath.Join(rt.o.Dir, digest)); err != nil {
		return fmt.Errorf("remove compiled code: %w", err)
	}
	return nil
}

func (rt *Runtime) compile(ctx context.Context, code []byte, digest string, s Settings) (*program, error) {
	select {
	case rt.compiling <- struct{}{}:
		defer func() { <-rt.compiling }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	dir := ""
	if rt.o.Dir != "" {
		dir = filepath.Join(rt.o.Dir, digest)
	}
	return compile(ctx, code, s, dir)
}

// shrink closes idle instances until ctx is done.
func (rt *Runtime) shrink(ctx context.Context) {
	defer close(rt.done)
	t := time.NewTicker(rt.o.Idle / 4)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		for _, f := range rt.all() {
			if err := f.shrink(rt.o.Now().Add(-rt.o.Idle)); err != nil {
				rt.log.Error("idle instances were not closed", "function", f.spec.Name, "err", err)
			}
		}
	}
}

func (rt *Runtime) all() []*Function {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	all := make([]*Function, 0, len(rt.functions))
	for f := range rt.functions {
		all = append(all, f)
	}
	return all
}

// gone is called by a function that holds nothing any more.
func (rt *Runtime) gone(f *Function) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	delete(rt.functions, f)
	rt.drained.Done()
}

// Close closes all functions and waits for their calls, which end within their own time. Safe to call twice.
func (rt *Runtime) Close() {
	rt.mu.Lock()
	rt.closed = true
	rt.mu.Unlock()
	for _, f := range rt.all() {
		f.Close()
	}
	rt.drained.Wait()
	rt.stop()
	<-rt.done
}
