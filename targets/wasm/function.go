// SPDX-License-Identifier: Apache-2.0

package wasm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/targets"
)

// Spec is what a Function is made of.
type Spec struct {
	Name     string
	Digest   string // of the code: its SHA-256 in hex
	Settings Settings
	Trial    bool // made for a test: what it does counts in no metric of the function
	// Code returns the code. It is asked before the first event, and not again.
	Code func(ctx context.Context) ([]byte, error)
}

// Call is an event on its way through a function.
type Call struct {
	Delivery string    // what chance begins with
	Time     time.Time // where the clock stands; of the event
	Event    []byte    // in the JSON format
}

// Function is code with its settings and its instances. It is safe for concurrent use.
type Function struct {
	spec    Spec
	rt      *Runtime
	slots   chan struct{} // one for each instance that may be
	loading chan struct{} // guards program: held by who compiles
	program *program      // nil until somebody has

	mu     sync.Mutex // guards all below
	idle   []*instance
	base   *snapshot // of the instances there are; nil if there are none, or they are not set back
	live   int       // instances that are there
	counts Counts
	busy   int // calls that have begun
	closed bool
}

// ErrClosed is what calls of a function that is no more end with.
var ErrClosed = errors.New("the function is no more")

func newFunction(rt *Runtime, s Spec) *Function {
	return &Function{spec: s, rt: rt, slots: make(chan struct{}, s.Settings.Instances), loading: make(chan struct{}, 1)}
}

// Digest is that of the code.
func (f *Function) Digest() string { return f.spec.Digest }

// Call hands an event to the function and blocks until it has a result, its time is up, or ctx is done; before that, until
// it is its turn. The error is a *targets.Error: ReasonFunction for what the code has done, whether or not it may go
// better another time, ReasonTimeout, ReasonInterrupted, or ReasonInternal where the code could not be had; or ErrClosed.
func (f *Function) Call(ctx context.Context, c Call) (Result, error) {
	if !f.enter() {
		return Result{}, ErrClosed
	}
	defer f.leave()
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	case <-ctx.Done():
		return Result{}, f.failed(0, failBusy, &targets.Error{Reason: targets.ReasonOf(ctx.Err()), Err: errors.New("all instances of the function are busy")})
	}
	p, err := f.load(ctx)
	if err != nil {
		return Result{}, f.failed(0, failLoad, &targets.Error{Reason: targets.ReasonInternal, Err: err})
	}
	began := f.rt.o.Now()
	out, err := f.run(ctx, p, c)
	took := f.rt.o.Now().Sub(began)
	if err != nil {
		reason, te := f.classify(ctx, err)
		return Result{}, f.failed(took, reason, te)
	}
	result, err := ParseResult(out, event.Limits{MaxData: f.spec.Settings.MaxOutput})
	var refusal *Refusal
	switch {
	case errors.As(err, &refusal):
		return Result{}, f.failed(took, failRefused, &targets.Error{Reason: targets.ReasonFunction, Permanent: !refusal.Retry, Err: err})
	case err != nil:
		return Result{}, f.failed(took, failResult, &targets.Error{Reason: targets.ReasonFunction, Err: err})
	}
	f.count(took, "")
	return result, nil
}

// enter begins a call, unless the function is closed.
func (f *Function) enter() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.busy++
	}
	return !f.closed
}

// leave ends a call. The last one of a closed function takes down what is left of it.
func (f *Function) leave() {
	f.mu.Lock()
	f.busy--
	last := f.closed && f.busy == 0
	f.mu.Unlock()
	if last {
		f.takeDown()
	}
}

// load returns the program, which the first call compiles.
func (f *Function) load(ctx context.Context) (*program, error) {
	select {
	case f.loading <- struct{}{}:
		defer func() { <-f.loading }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if f.program != nil {
		return f.program, nil
	}
	code, err := f.spec.Code(ctx)
	if err != nil {
		return nil, fmt.Errorf("the code cannot be had: %w", err)
	}
	p, err := f.rt.compile(ctx, code, f.spec.Digest, f.spec.Settings)
	if err == nil {
		f.program = p
	}
	return p, err
}

// run makes the call within the function's time.
func (f *Function) run(ctx context.Context, p *program, c Call) (out []byte, err error) {
	if p.abi == ABICommand {
		return f.runCommand(ctx, p, c)
	}
	i, err := f.take(ctx, p)
	if err != nil {
		return nil, err
	}
	bound, stop := f.bound(ctx)
	i.box.begin(c.Delivery, c.Time, maxStderr, nil)
	out, err = i.call(bound, c.Event, f.spec.Settings.MaxOutput)
	cause := context.Cause(bound)
	stop(nil)
	size := i.module.Memory().Size()
	if err != nil {
		err = f.because(p, err, cause, i.box, size)
	}
	return out, errors.Join(err, f.put(p, i, err == nil, size))
}

func (f *Function) runCommand(ctx context.Context, p *program, c Call) ([]byte, error) {
	bound, stop := f.bound(ctx)
	defer stop(nil)
	box := &sandbox{}
	box.begin(c.Delivery, c.Time, f.spec.Settings.MaxOutput, stop)
	f.addLive(1)
	out, size, err := p.command(bound, box, c.Event)
	f.addLive(-1)
	f.peak(int64(size))
	if err != nil {
		return nil, f.because(p, err, context.Cause(bound), box, size)
	}
	return out, nil
}

// bound is ctx with the function's time limit. stop ends it, with a cause.
func (f *Function) bound(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	timed, cancel := context.WithTimeoutCause(ctx, f.spec.Settings.Timeout, errTimeout)
	bound, stop := context.WithCancelCause(timed)
	return bound, func(cause error) { stop(cause); cancel() }
}

// errTimeout is the end of a function's time, not of the attempt's.
var errTimeout = errors.New("the function's time is up")

// because says why a call has failed, if something else than the code's own doing has ended it.
func (f *Function) because(p *program, err, cause error, box *sandbox, size uint32) error {
	switch {
	case errors.Is(err, errOutput), cause != nil:
		return errors.Join(cause, err)
	case int64(size) > f.spec.Settings.Memory/4*3:
		return fmt.Errorf("%w %d bytes of the %d that it may have: %w", errMemory, size, f.spec.Settings.Memory, p.explain(err, box))
	}
	return p.explain(err, box)
}

// errMemory goes with the failure of an instance that had most of its memory: that it wanted more, nobody is told.
var errMemory = errors.New("its memory has grown to")

// take returns an instance that is as it was before its first event, or, if it is stateful, as the last has left it.
func (f *Function) take(ctx context.Context, p *program) (*instance, error) {
	f.mu.Lock()
	if n := len(f.idle); n > 0 {
		i := f.idle[n-1]
		f.idle = f.idle[:n-1]
		f.mu.Unlock()
		return i, nil
	}
	base := f.base
	f.live++
	f.mu.Unlock()
	i, err := p.start(ctx, base)
	if err != nil {
		f.addLive(-1)
		return nil, fmt.Errorf("the module does not start: %w", err)
	}
	if base == nil && p.resettable && !f.spec.Settings.Stateful {
		f.remember(p, i)
	}
	return i, nil
}

// remember takes the snapshot of a first instance. Without one the instance is not used again.
func (f *Function) remember(p *program, i *instance) {
	s, err := i.take(p.globals)
	if err != nil {
		f.rt.log.Error("instances of a function cannot be set back", "function", f.spec.Name, "err", err)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.base == nil {
		f.base = s
	} else {
		s.close() // another was faster; this instance is used once
	}
}

// put takes an instance back, if it can be used again, and closes it if not.
func (f *Function) put(p *program, i *instance, well bool, size uint32) error {
	f.peak(int64(size))
	f.mu.Lock()
	base := f.base
	f.mu.Unlock()
	again := well && (f.spec.Settings.Stateful || base != nil && i.from == base && i.restore(p.globals))
	f.mu.Lock()
	if again && !f.closed {
		i.idleAt = f.rt.o.Now()
		f.idle = append(f.idle, i)
		f.mu.Unlock()
		return nil
	}
	f.live--
	f.mu.Unlock()
	return i.close()
}

// shrink closes the instances that nobody has needed since a moment.
func (f *Function) shrink(since time.Time) error {
	f.mu.Lock()
	var old []*instance
	for len(f.idle) > 0 && !f.idle[0].idleAt.After(since) { // the last one that came back is taken first
		old = append(old, f.idle[0])
		f.idle = f.idle[1:]
	}
	f.live -= len(old)
	if f.live == 0 && f.base != nil {
		f.base.close()
		f.base = nil
	}
	f.mu.Unlock()
	var errs []error
	for _, i := range old {
		errs = append(errs, i.close())
	}
	return errors.Join(errs...)
}

// Close lets no call begin any more. Those under way go on, and what the function holds is given back when the last has
// ended; Runtime.Close waits for that. Safe to call twice.
func (f *Function) Close() {
	f.mu.Lock()
	first := !f.closed
	f.closed = true
	last := first && f.busy == 0
	f.mu.Unlock()
	if last {
		f.takeDown()
	}
}

func (f *Function) takeDown() {
	err := f.shrink(f.rt.o.Now())
	if f.program != nil {
		err = errors.Join(err, f.program.close(context.Background()))
	}
	if err != nil {
		f.rt.log.Error("function was not closed", "function", f.spec.Name, "err", err)
	}
	f.rt.gone(f)
}
